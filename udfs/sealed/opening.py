"""Opening the calls of one connection: which are opened, by whose handshake, and why the others stay closed.

A call is opened whole or not at all: its stubs that were seen whole are all opened, or all kept as captured. Calls that
are signed alone are looked at with them, for one context's PDUs are counted through: what is told of these is whether
what was captured is what was signed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from udfs.dcerpc.verification import trailer_start
from udfs.sealed.contexts import SecurityContext
from udfs.sealed.pieces import MalformedPiecesError, Piece, unpacked
from udfs.sealed.session import Closed, Opened, Sent

Row = Mapping[str, Any]
HALVES: Final = ("request", "response")
_MASK: Final = 0xFFFFFFFF
_ORDER: Final = tuple(Closed)


@dataclass(frozen=True, slots=True)
class Call:
    """What became of a protected call: both stubs in the clear and the principal, or why not.

    ``refuted``: the key of its handshake is known, and a signature does not fit.
    """

    request_stub: bytes | None
    response_stub: bytes | None
    principal: str | None
    closed: Closed | None
    refuted: bool


def open_calls(calls: Sequence[Row], contexts: Sequence[SecurityContext]) -> list[Call]:
    """Return what becomes of the protected calls of one connection, in their order.

    A call has ``sealed``, and ``<half>_stub`` as captured, ``<half>_pieces`` (udfs.sealed.pieces) and ``<half>_us`` (a
    time) of both halves.
    """
    connection = _Connection(contexts)
    found = [_Parts(call) for call in calls]
    for parts in found:
        connection.take(parts)
    connection.open()
    return [parts.result() for parts in found]


class _Parts:
    """One call while it is opened: the stubs of its PDUs, by half and in their order."""

    __slots__ = ("call", "context", "principal", "reason", "refuted", "stubs")

    def __init__(self, call: Row) -> None:
        self.call = call
        self.stubs: dict[str, list[Opened]] = {}
        self.reason: Closed | None = None
        self.refuted = False
        self.principal: str | None = None
        self.context: int | None = None  # the number of its security context

    def fails(self, reason: Closed | None) -> None:
        """Note why it stays closed: of several reasons that which stands first in tables.md."""
        if reason is not None and (self.reason is None or _ORDER.index(reason) < _ORDER.index(self.reason)):
            self.reason = reason

    def result(self) -> Call:
        call = self.call
        for opened in self.stubs.values():
            for each in opened:
                if isinstance(each, Closed):
                    self.fails(each)
                    self.refuted |= each is Closed.BAD_SIGNATURE
        if self.reason is None and self.principal is None:  # nothing was protected that was seen whole
            self.reason = Closed.NO_HANDSHAKE
        if self.reason is not None or not call["sealed"]:
            principal = None if self.reason is not None else self.principal
            return Call(call["request_stub"], call["response_stub"], principal, self.reason, self.refuted)
        clear = {
            half: b"".join(self.stubs[half]) if half in self.stubs else call[f"{half}_stub"]  # type: ignore[arg-type]
            for half in HALVES
        }
        request = clear["request"]
        trailer = None if request is None else trailer_start(request)
        if request is not None and trailer is not None:
            request = request[:trailer]
        return Call(request, clear["response"], self.principal, None, refuted=False)


class _Connection:
    """The security contexts of a connection, and what was sent in each."""

    def __init__(self, contexts: Sequence[SecurityContext]) -> None:
        self._contexts = contexts
        self._of_id: dict[int, list[int]] = defaultdict(list)
        for number, context in enumerate(contexts):
            self._of_id[context.context_id].append(number)
        self._sent: dict[int, list[Sent]] = defaultdict(list)
        self._places: dict[int, list[tuple[list[Opened], int]]] = defaultdict(list)

    def take(self, parts: _Parts) -> None:
        """Give a call's PDUs to the contexts that they belong to."""
        for half in HALVES:
            records, stub = parts.call[f"{half}_pieces"], parts.call[f"{half}_stub"]
            if records is None or stub is None:
                continue
            try:
                pieces = unpacked(records, stub)
            except MalformedPiecesError:
                parts.fails(Closed.BAD_SIGNATURE)
                parts.refuted |= any(context.session is not None for context in self._contexts)
                continue
            self._take(parts, half, pieces)

    def _take(self, parts: _Parts, half: str, pieces: Sequence[Piece]) -> None:
        client, at = half == "request", parts.call[f"{half}_us"] or 0
        opened: list[Opened] = [Closed.NO_HANDSHAKE] * len(pieces)
        parts.stubs[half] = opened
        for index, piece in enumerate(pieces):
            chosen = self._chosen(piece, parts.context, client=client)
            if chosen is None:
                continue
            parts.context = chosen
            context = self._contexts[chosen]
            if context.session is None:
                parts.fails(context.closed)
                opened[index] = b""
                continue
            parts.principal = context.principal
            self._sent[chosen].append(Sent(client, at, piece))
            self._places[chosen].append((opened, index))

    def open(self) -> None:
        """Open all that was taken."""
        for chosen, sent in self._sent.items():
            session = self._contexts[chosen].session
            if session is not None:
                for (opened, index), one in zip(self._places[chosen], session.open(sent), strict=True):
                    opened[index] = one

    def _chosen(self, piece: Piece, before: int | None, *, client: bool) -> int | None:
        """Return the context of a PDU: of its context id, the last one that begins before it.

        Where not all are known to begin, an answer has that of its request (``before``).
        """
        possible = self._of_id.get(piece.context_id, ())
        if len(possible) < 2:
            return possible[0] if possible else None
        begins = {number: self._contexts[number].begins[0 if client else 1] for number in possible}
        if before in begins and None in begins.values():
            return before
        behind = {number: (piece.sequence - (begin or 0)) & _MASK for number, begin in begins.items()}
        return min(possible, key=lambda number: 0 if begins[number] is None else behind[number])
