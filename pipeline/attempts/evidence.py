"""The evidence that attempts and operations rest on, and what is missing of it: one server's calls and connections.

A conclusion is about one call, and uses others. What is missing is collected for all of them: the cause (a capture
that began late, lost segments, a sealed stub) as well as the effect (no open, no response). Times are microseconds
since the epoch, UTC.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from pipeline.attempts.associations import ClientAssociation, RpcConnection, group_into_associations
from pipeline.attempts.calls import CALL_ROLES, ONE_CLOCK, CallRole, DecodedCall, DecodeErrorFields
from pipeline.attempts.handles import QueueHandles


@dataclass(slots=True)
class CallConclusion:
    """A conclusion about a call: the codes of what is ``missing``, and the other calls that were ``used``."""

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
        calls = [call for call in calls if (call.protocol, call.opnum) in roles]
        untimed = {call.connection_id for call in calls if call.requested_at is None and call.outcome != "no_request"}
        self.connections = {connection.connection_id: connection for connection in connections}
        self._widen_lifetimes(calls)
        self.association = group_into_associations(self.connections.values())
        self._with_gaps = {
            self.association[connection.connection_id].name
            for connection in self.connections.values()
            if connection.missing_bytes or connection.connection_id in untimed
        }
        # By client, in order of their beginnings: these, and the latest end so far.
        self._strays: defaultdict[str | None, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for connection in sorted(self.connections.values(), key=lambda connection: connection.first_packet_at):
            if connection.is_stray:
                begins, ends = self._strays[connection.client_address]
                begins.append(connection.first_packet_at)
                ends.append(max([connection.last_packet_at, *ends[-1:]]))
        self.calls = sorted(calls, key=lambda call: (call.at, call.call_key))
        self.by_role: dict[CallRole, list[DecodedCall]] = {role: [] for role in roles.values()}
        for call in self.calls:
            self.by_role[roles[call.protocol, call.opnum]].append(call)
        self.handles = QueueHandles(self.calls, self.association_of, roles)

    @cached_property
    def _last_answers(self) -> dict[str, int]:
        """The time of the last answer on each connection."""
        last: defaultdict[str, int] = defaultdict(int)
        for call in self.calls:
            last[call.connection_id] = max(last[call.connection_id], call.responded_at or 0)
        return last

    def _widen_lifetimes(self, calls: Iterable[DecodedCall]) -> None:
        """Make connections that several taps saw last from their first to their last call: the clocks differ."""
        for call in calls:
            connection = self.connections.get(call.connection_id)
            if call.clocks != ONE_CLOCK and connection is not None:
                self.connections[call.connection_id] = connection.including(call.at, call.responded_at or call.at)

    def association_of(self, call: DecodedCall) -> ClientAssociation:
        """Return a call's association."""
        found = self.association.get(call.connection_id)
        if found is None:  # its connection has no row: alone, and without a captured end
            found = self.association[call.connection_id] = ClientAssociation(call.connection_id)
        return found

    def is_cut_off(self, call: DecodedCall) -> bool:
        """Whether the capture ended inside the answer: its request is whole, and it is the last of an open connection.

        Where bytes of the connection are missing, the answer may have been damaged by that.
        """
        connection = self.connections.get(call.connection_id)
        if call.outcome != "damaged" or call.responded_at is None or call.result is not None or call.errors:
            return False
        if (call.action, call.ack, call.request_id) == (None, None, None) or connection is None:
            return False  # the request is damaged, or nothing is known of the connection
        goes_on = connection.closed_at is not None or self._last_answers[call.connection_id] > call.responded_at
        return not goes_on and not connection.missing_bytes

    def has_gaps(self, call: DecodedCall) -> bool:
        """Whether a call may be missing in a call's association: bytes were not captured, or calls have no time."""
        return self.association_of(call).name in self._with_gaps

    def may_share_association(self, call: DecodedCall, since: int, until: int) -> bool:
        """Whether a stray connection that existed between two times may belong to a call's association."""
        own = self.connections.get(call.connection_id)
        begins, ends = ([], []) if own is None else self._strays[own.client_address]
        place = bisect_right(begins, until)
        return place > 0 and ends[place - 1] >= since

    def find_queue(self, answer: CallConclusion) -> str | None:
        """Return the queue behind the handle that a call used, and add the opens to the conclusion's evidence."""
        opened = self.handles.find_opened_queue(answer.call)
        answer.used_calls += opened.open_calls
        answer.missing |= opened.missing
        return opened.queue

    def add_gaps(self, answer: CallConclusion) -> None:
        """Add to a conclusion what is missing of its calls, and why."""
        missing, calls = answer.missing, (answer.call, *answer.used_calls)
        for call in calls:
            if not call.bind_seen:
                missing.add("no_bind")
            if call.requested_at is None:
                missing.add("no_request")
            if call.encrypted:
                missing.add("sealed")
            if call.outcome == "damaged":
                missing.add("damaged")
                if self.is_cut_off(call):
                    missing.add("capture_ends")
            if call.errors:
                missing.add("decode_error")
            if call.responded_at is None and call.outcome != "damaged":
                self._note_unanswered(answer, call)
        if missing & {"no_open", "no_bind", "no_request"} and not all(
            self.association_of(call).beginning_seen for call in calls
        ):
            missing.add("capture_begins")
        if missing & {"no_response", "no_request", "damaged", "no_open", "no_bind"}:
            through = {call.connection_id for call in calls} & self.connections.keys()
            if any(self.connections[name].missing_bytes for name in through):
                missing.add("capture_loss")

    def _note_unanswered(self, answer: CallConclusion, call: DecodedCall) -> None:
        if call.orphaned_at is not None:  # abandoned by its client: no answer comes ([C706] 12.6.4.11)
            return
        answer.missing.add("no_response")
        connection = self.connections.get(call.connection_id)
        if call is not answer.call and connection is not None and connection.closed_at is None:
            answer.missing.add("capture_ends")
