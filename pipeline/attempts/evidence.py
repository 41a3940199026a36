"""The evidence that operations and opens rest on, and what is missing of it: one server's calls and connections.

A conclusion is about one call, and uses others. What is missing of them is found for all conclusions at once
(``columns.call_evidence``). Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from pipeline.attempts.calls.associations import ClientAssociation, RpcConnection
from pipeline.attempts.calls.decoded_call import CALL_ROLES, CallRole, DecodedCall, DecodeErrorFields
from pipeline.attempts.calls.handles import QueueHandles
from pipeline.attempts.columns.call_columns import rows_of_calls
from pipeline.attempts.columns.call_evidence import CallEvidence, EvidenceCalls
from pipeline.attempts.columns.missing_codes import MISSING_CODES, codes_of_bits, missing_bits
from udfs.array_types import Ints
from udfs.columns.absent import NONE


@dataclass(slots=True)
class CallConclusion:
    """A conclusion about a call: the codes of what is ``missing``, and the other calls (``used_calls``)."""

    call: DecodedCall
    missing: set[str] = field(default_factory=set, kw_only=True)
    used_calls: list[DecodedCall] = field(default_factory=list, kw_only=True)

    @property
    def evidence_calls(self) -> list[DecodedCall]:
        """The calls that the conclusion rests on, in order of time."""
        if not self.used_calls:
            return [self.call]
        calls = {call.call_key: call for call in (self.call, *self.used_calls)}
        return sorted(calls.values(), key=attrgetter("at", "call_key"))

    @property
    def evidence(self) -> list[str]:
        """Their keys."""
        return [call.call_key for call in self.evidence_calls]

    @property
    def errors(self) -> list[DecodeErrorFields]:
        """Their decode errors."""
        if not any(call.errors for call in (self.call, *self.used_calls)):
            return []
        return [error for call in self.evidence_calls for error in call.errors]


def confidence_level(missing: Iterable[str], *, guessed: bool) -> str:
    """Return how certain a conclusion is, by what is missing; ``guessed``: its queue is a guess."""
    codes = set(missing)
    if not codes:
        return "complete"
    if guessed or "no_bind" in codes:
        return "inferred"
    return "provisional" if codes == {"transaction_open"} else "partial"


class ServerCalls:
    """One server's calls that have a role (``roles``), by default in remote reads, its associations and handles.

    ``connections`` are all that are known of the server.
    """

    def __init__(
        self,
        calls: Iterable[DecodedCall],
        connections: Iterable[RpcConnection],
        roles: Mapping[tuple[str, int], CallRole] = CALL_ROLES,
    ) -> None:
        given = [*calls]
        self._evidence = CallEvidence(rows_of_calls(given), connections, roles)
        self.connections = self._evidence.connections
        self.calls = [given[place] for place in self._evidence.calls.places.tolist()]
        """In order of (time, key)."""
        self.by_role: dict[CallRole, list[DecodedCall]] = {role: [] for role in roles.values()}
        for call in self.calls:
            self.by_role[roles[call.protocol, call.opnum]].append(call)
        self.handles = QueueHandles(self.calls, self.association_of, roles)
        self._index = {call.call_key: index for index, call in enumerate(self.calls)}

    def association_of(self, call: DecodedCall) -> ClientAssociation:
        """Return a call's association."""
        return self._evidence.association_of(call)

    def has_gaps(self, call: DecodedCall) -> bool:
        """Whether a call may be missing in a call's association: bytes were not captured, or calls have no time."""
        return bool(self._evidence.has_gaps[self._index[call.call_key]])

    def may_share_association(self, call: DecodedCall, since: int, until: int) -> bool:
        """Whether a connection without bind that existed between two times may belong to a call's association."""
        return self._evidence.may_share_association(self._index[call.call_key], since, until)

    def find_queues(self, answers: Sequence[CallConclusion]) -> list[str | None]:
        """Return the queues behind the handles that calls used, and add their opens to the conclusions' evidence."""
        found = self._evidence.queues.find(self._places(answer.call for answer in answers))
        for number, answer in enumerate(answers):
            opens = (int(calls[number]) for calls in found.calls)
            answer.used_calls += [*dict.fromkeys(self.calls[place] for place in opens if place != NONE)]
            answer.missing |= {*codes_of_bits(int(found.missing[number]))}
        return [None if place == NONE else self.calls[place].queue for place in found.named.tolist()]

    def add_gaps(self, answers: Sequence[CallConclusion]) -> None:
        """Add to conclusions what is missing of their calls, and why."""
        about = self._places(answer.call for answer in answers)
        owners = np.repeat(np.arange(len(answers)), [len(answer.used_calls) for answer in answers])
        used = self._places(call for answer in answers for call in answer.used_calls)
        evidence = EvidenceCalls.of((np.arange(len(answers)), owners), (about, used), len(answers), len(self.calls))
        known = [missing_bits(*(answer.missing & {*MISSING_CODES})) for answer in answers]
        found = self._evidence.missing_of(about, evidence, np.array(known, np.int64))
        for answer, missing in zip(answers, found.tolist(), strict=True):
            answer.missing |= {*codes_of_bits(missing)}

    def _places(self, calls: Iterable[DecodedCall]) -> Ints:
        return np.array([self._index[call.call_key] for call in calls], np.int64)
