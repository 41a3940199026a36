"""Decrypt the protected calls of one connection: stubs in the clear and principal, or the reason of failure, per call.

Both stubs of a call are decrypted or neither: else it stays as captured. Calls that are signed but not sealed are
verified together with the sealed ones, because all PDUs of a security context share one sequence count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from udfs.dcerpc.verification_trailer import find_verification_trailer
from udfs.sealed.protected_pdu import (
    DecryptedStub,
    DecryptionFailure,
    MalformedPduRecordsError,
    ProtectedPdu,
    SentPdu,
    unpack_pdus,
)
from udfs.sealed.security_contexts import SecurityContext

CallRow = Mapping[str, Any]
HALVES: Final = ("request", "response")
_SEQUENCE_MASK: Final = 0xFFFFFFFF
_FAILURE_ORDER: Final = tuple(DecryptionFailure)


@dataclass(frozen=True, slots=True)
class CallDecryption:
    """Result for one protected call: stubs in the clear and principal, or stubs as captured and the failure.

    ``refuted``: the key of the handshake is known, but a signature does not fit.
    """

    request_stub: bytes | None
    response_stub: bytes | None
    principal: str | None
    failure: DecryptionFailure | None
    refuted: bool


def decrypt_connection_calls(calls: Sequence[CallRow], contexts: Sequence[SecurityContext]) -> list[CallDecryption]:
    """Decrypt the protected calls of one connection; returns one result per call, in their order.

    A call has ``sealed`` and, for both halves, ``<half>_stub`` as captured, ``<half>_signed_bytes``
    (``udfs.sealed.protected_pdu``) and ``<half>_us`` (a time in microseconds).
    """
    connection = _ConnectionContexts(contexts)
    found = [_CallInProgress(call) for call in calls]
    for progress in found:
        connection.assign_pdus(progress)
    connection.decrypt()
    return [progress.result() for progress in found]


class _CallInProgress:
    """One call during decryption: the decrypted stubs of its PDUs, by half."""

    __slots__ = ("call", "context", "failure", "principal", "refuted", "stubs")

    def __init__(self, call: CallRow) -> None:
        self.call = call
        self.stubs: dict[str, list[DecryptedStub]] = {}
        self.failure: DecryptionFailure | None = None
        self.refuted = False
        self.principal: str | None = None
        self.context: int | None = None  # the index of its security context

    def record_failure(self, reason: DecryptionFailure | None) -> None:
        """Record why the call cannot be decrypted; of several reasons the first one in ``DecryptionFailure`` counts."""
        if reason is not None and (
            self.failure is None or _FAILURE_ORDER.index(reason) < _FAILURE_ORDER.index(self.failure)
        ):
            self.failure = reason

    def result(self) -> CallDecryption:
        call = self.call
        for decrypted in self.stubs.values():
            for each in decrypted:
                if isinstance(each, DecryptionFailure):
                    self.record_failure(each)
                    self.refuted |= each is DecryptionFailure.BAD_SIGNATURE
        if self.failure is None and self.principal is None:  # no protected half was captured completely
            self.failure = DecryptionFailure.NO_HANDSHAKE
        if self.failure is not None or not call["sealed"]:
            principal = None if self.failure is not None else self.principal
            return CallDecryption(call["request_stub"], call["response_stub"], principal, self.failure, self.refuted)
        clear = {
            half: b"".join(self.stubs[half]) if half in self.stubs else call[f"{half}_stub"]  # type: ignore[arg-type]
            for half in HALVES
        }
        request = clear["request"]
        trailer = None if request is None else find_verification_trailer(request)
        if request is not None and trailer is not None:
            request = request[:trailer]
        return CallDecryption(request, clear["response"], self.principal, None, refuted=False)


class _ConnectionContexts:
    """The security contexts of a connection, and the PDUs assigned to each."""

    def __init__(self, contexts: Sequence[SecurityContext]) -> None:
        self._contexts = contexts
        self._indices_by_context_id: dict[int, list[int]] = defaultdict(list)
        for number, context in enumerate(contexts):
            self._indices_by_context_id[context.context_id].append(number)
        self._sent: dict[int, list[SentPdu]] = defaultdict(list)
        self._destinations: dict[int, list[tuple[list[DecryptedStub], int]]] = defaultdict(list)

    def assign_pdus(self, progress: _CallInProgress) -> None:
        """Assign the PDUs of a call to their security contexts."""
        for half in HALVES:
            records, stub = progress.call[f"{half}_signed_bytes"], progress.call[f"{half}_stub"]
            if records is None or stub is None:
                continue
            try:
                pdus = unpack_pdus(records, stub)
            except MalformedPduRecordsError:
                progress.record_failure(DecryptionFailure.BAD_SIGNATURE)
                progress.refuted |= any(context.session is not None for context in self._contexts)
                continue
            self._assign_half(progress, half, pdus)

    def _assign_half(self, progress: _CallInProgress, half: str, pdus: Sequence[ProtectedPdu]) -> None:
        client, at = half == "request", progress.call[f"{half}_us"] or 0
        decrypted: list[DecryptedStub] = [DecryptionFailure.NO_HANDSHAKE] * len(pdus)
        progress.stubs[half] = decrypted
        for position, pdu in enumerate(pdus):
            index = self._choose_context(pdu, progress.context, client=client)
            if index is None:
                continue
            progress.context = index
            context = self._contexts[index]
            if context.session is None:
                progress.record_failure(context.failure)
                decrypted[position] = b""
                continue
            progress.principal = context.principal
            self._sent[index].append(SentPdu(client, at, pdu))
            self._destinations[index].append((decrypted, position))

    def decrypt(self) -> None:
        """Decrypt all assigned PDUs."""
        for index, sent in self._sent.items():
            session = self._contexts[index].session
            if session is not None:
                for (decrypted, position), one in zip(self._destinations[index], session.decrypt(sent), strict=True):
                    decrypted[position] = one

    def _choose_context(self, pdu: ProtectedPdu, before: int | None, *, client: bool) -> int | None:
        """Return the index of a PDU's security context: among those of its context id, the last that begins before it.

        If the begin of one is unknown, a response has the context of its request (``before``).
        """
        possible = self._indices_by_context_id.get(pdu.context_id, ())
        if len(possible) < 2:
            return possible[0] if possible else None
        begins = {number: self._contexts[number].start_sequences[0 if client else 1] for number in possible}
        if before in begins and None in begins.values():
            return before
        behind = {number: (pdu.sequence - (begin or 0)) & _SEQUENCE_MASK for number, begin in begins.items()}
        return min(possible, key=lambda number: 0 if begins[number] is None else behind[number])
