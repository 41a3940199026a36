"""What answers of gold rest on, and what is missing of it: one server's calls and connections, put in order.

An answer is about one call, and uses others. What is missing is said of all of them: the cause (a capture that began
late, lost segments, a sealed stub) as well as the effect (no open, no response).

Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.attempts.associations import Association, Connection, associations
from pipeline.attempts.calls import ROLES, Call, Error, Role
from pipeline.attempts.handles import Handles


@dataclass(slots=True)
class Answer:
    """What is said of a call: the codes of what is ``missing``, and the other calls that were ``used``."""

    call: Call
    missing: set[str] = field(default_factory=set, kw_only=True)
    used: list[Call] = field(default_factory=list, kw_only=True)

    @property
    def evidence(self) -> list[str]:
        """Keys of the calls that the answer rests on, in order of time."""
        calls = {call.call_key: call for call in (self.call, *self.used)}
        return [call.call_key for call in sorted(calls.values(), key=lambda call: (call.at, call.call_key))]

    @property
    def errors(self) -> list[Error]:
        """Decode errors of these calls."""
        calls = {call.call_key: call for call in (self.call, *self.used)}
        return [error for key in self.evidence for error in calls[key].errors]


def confidence(missing: Iterable[str], *, guessed: bool) -> str:
    """How sure an answer is, by what is missing; ``guessed``: its queue is a guess."""
    codes = set(missing)
    if not codes:
        return "complete"
    if guessed or "no_bind" in codes:
        return "inferred"
    return "provisional" if codes == {"transaction_open"} else "partial"


class Server:
    """One server's calls that play a part, and ``connections``, all that are known of it."""

    def __init__(self, calls: Iterable[Call], connections: Iterable[Connection]) -> None:
        self.connections = {connection.connection_id: connection for connection in connections}
        self.association = associations(self.connections.values())
        self._with_gaps = {
            self.association[connection.connection_id].name
            for connection in self.connections.values()
            if connection.missing_bytes
        }
        self._strays: defaultdict[str | None, list[Connection]] = defaultdict(list)  # by client
        for connection in self.connections.values():
            if connection.is_stray:
                self._strays[connection.client_address].append(connection)
        ours = (call for call in calls if (call.protocol, call.opnum) in ROLES)
        self.calls = sorted(ours, key=lambda call: (call.at, call.call_key))
        self.by_role: dict[Role, list[Call]] = {role: [] for role in ROLES.values()}
        for call in self.calls:
            self.by_role[ROLES[call.protocol, call.opnum]].append(call)
        self.handles = Handles(self.calls, self.of)

    def of(self, call: Call) -> Association:
        """Return a call's association."""
        found = self.association.get(call.connection_id)
        if found is None:  # its connection's row is not there: alone, and never seen to end
            found = self.association[call.connection_id] = Association(call.connection_id)
        return found

    def has_gaps(self, call: Call) -> bool:
        """Whether bytes of a call's association were not captured: what is not there may have been in them."""
        return self.of(call).name in self._with_gaps

    def may_share(self, call: Call, since: int, until: int) -> bool:
        """Whether a stray connection that was there between two times may be of a call's association."""
        own = self.connections.get(call.connection_id)
        strays = () if own is None else self._strays[own.client_address]
        return any(stray.first_packet_at <= until and stray.last_packet_at >= since for stray in strays)

    def name_queue(self, answer: Answer) -> str | None:
        """Return the queue behind the handle that a call used, and say which opens tell."""
        opened = self.handles.opened(answer.call)
        answer.used += opened.opens
        answer.missing |= opened.missing
        return opened.queue

    def say_what_is_missing(self, answer: Answer) -> None:
        """Add what the calls do not tell that an answer rests on, and why."""
        missing, calls = answer.missing, (answer.call, *answer.used)
        for call in calls:
            if not call.bind_seen:
                missing.add("no_bind")
            if call.requested_at is None:
                missing.add("no_request")
            if call.closed:
                missing.add("sealed")
            if call.outcome == "damaged":
                missing.add("damaged")
            if call.errors:
                missing.add("decode_error")
            if call.responded_at is None and call.outcome != "damaged":
                self._say_unanswered(answer, call)
        if missing & {"no_open", "no_bind", "no_request"} and not all(self.of(call).beginning_seen for call in calls):
            missing.add("capture_begins")
        if missing & {"no_response", "no_request", "damaged", "no_open", "no_bind"}:
            through = {call.connection_id for call in calls} & self.connections.keys()
            if any(self.connections[name].missing_bytes for name in through):
                missing.add("capture_loss")

    def _say_unanswered(self, answer: Answer, call: Call) -> None:
        if call.orphaned_at is not None:  # its client gave it up: no answer was to come ([C706] 12.6.4.11)
            return
        answer.missing.add("no_response")
        connection = self.connections.get(call.connection_id)
        if call is not answer.call and connection is not None and connection.closed_at is None:
            answer.missing.add("capture_ends")
