"""The reference of receive attempts: what became of each Start, call by call, in plain Python.

Production computes the same over columns (``pipeline/attempts/receive_attempts.py``); a property test compares both.
This one is as the rules are told: one attempt after the other, with lists and dictionaries. It rests on the same
associations and calls, and on nothing else of production. Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Final, NamedTuple

from pipeline.attempts.associations import ClientAssociation, RpcConnection, group_into_associations
from pipeline.attempts.calls import (
    CALL_ROLES,
    CLOCK_TOLERANCE_US,
    ONE_CLOCK,
    CallRole,
    DecodedCall,
    DecodeErrorFields,
)
from pipeline.attempts.timeline import NEVER, Timeline
from udfs.codes import (
    ACTION_NAMES,
    MQ_ERROR_IO_TIMEOUT,
    MQ_ERROR_MESSAGE_NOT_FOUND,
    MQ_ERROR_OPERATION_CANCELLED,
    MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT,
    MQMSG_CLASS_NACK_RECEIVE_REJECTED,
    RR_ACK,
    RR_NACK,
    code_name,
    is_lookup_action,
    is_peek_action,
)

NOT_OPENED = frozenset({"no_open", "queue_unknown"})
QUEUE_UNNAMED = frozenset({"queue_unknown"})


class OpenedQueue(NamedTuple):
    """What is known of the queue behind a Start: its normal form, the calls that show it, and what is missing."""

    queue: str | None = None
    open_calls: tuple[DecodedCall, ...] = ()
    missing: frozenset[str] = frozenset()


class QueueHandles:
    """The handles of one server's calls. ``calls`` are in order of (time, key), ``of`` returns a call's association."""

    def __init__(
        self,
        calls: Iterable[DecodedCall],
        of: Callable[[DecodedCall], ClientAssociation],
        roles: Mapping[tuple[str, int], CallRole] = CALL_ROLES,
    ) -> None:
        self._of = of
        self._asked = Timeline[DecodedCall]()  # all opens, readable or not, by association
        self._opens = Timeline[DecodedCall]()  # by association, interface and context handle
        self._closes = Timeline[DecodedCall]()  # by the same: those that were not refused
        self._closed_at = Timeline[DecodedCall]()  # by the same: those that were accepted
        self._sessions = Timeline[DecodedCall]()  # RemoteQMOpenQueue, by hQueue
        self._lowest_over: defaultdict[str, list[int]] = defaultdict(list)  # by session: when it or one behind was over
        self._session_closes = Timeline[DecodedCall]()  # by association and hQueue
        self._strays = Timeline[DecodedCall]()  # RemoteQMCloseQueue of what was not opened in sight, by association
        self._targets = Timeline[DecodedCall]()  # R_OpenQueueForMove, by association and the number it returned
        self._named = Timeline[DecodedCall]()  # R_QMOpenRemoteQueue, by phQueue
        self._released = Timeline[DecodedCall]()  # R_QMCloseRemoteQueueContext, by association and context handle
        by_role: dict[str, list[DecodedCall]] = {}
        for call in calls:
            by_role.setdefault(roles[call.protocol, call.opnum], []).append(call)
        self._add_opens(by_role.get("open", []))
        self._add_closes(by_role.get("close", []))
        for call in _answered(call for call in by_role.get("name", []) if call.is_accepted and call.queue_handle):
            self._named.add(call.queue_handle, call, call.responded_at or 0)
        for call in _answered(call for call in by_role.get("target", []) if not call.is_refused and call.move_context):
            self._targets.add((of(call).name, call.move_context), call, call.responded_at or 0)
        for call in by_role.get("release", []):
            if call.context_handle and call.requested_at is not None and call.outcome != "fault":
                self._released.add((of(call).name, call.context_handle), call, call.requested_at)

    def _add_opens(self, calls: list[DecodedCall]) -> None:
        for call in calls:
            self._asked.add((self._of(call).name, call.protocol), call, call.at)
        for call in _answered(call for call in calls if not call.is_refused):
            self._opens.add(self._context(call), call, call.responded_at or 0)
            if call.protocol == "qm2qm" and call.queue_handle:
                self._sessions.add(call.queue_handle, call, call.responded_at or 0)

    def _add_closes(self, calls: list[DecodedCall]) -> None:
        for call in calls:
            if call.is_refused or not call.context_handle or call.requested_at is None:
                continue
            self._closes.add(self._context(call), call, call.requested_at)
            if call.is_accepted:
                self._closed_at.add(self._context(call), call, call.requested_at)
            session = self._opens.latest(self._context(call), call.requested_at) if call.protocol == "qm2qm" else None
            if session is not None:
                self._session_closes.add((self._of(call).name, session.queue_handle), call, call.requested_at)
            elif call.protocol == "qm2qm":
                self._strays.add(self._of(call).name, call, call.requested_at)

    def _context(self, call: DecodedCall) -> tuple[str, str, str | None]:
        return self._of(call).name, call.protocol, call.context_handle

    def first_close_after(self, start: DecodedCall, at: int) -> DecodedCall | None:
        """Return the close, not refused, after a time, of the queue that a Start reads from."""
        if start.protocol == "qm2qm":
            return self._session_closes.first_after((self._of(start).name, start.queue_handle), at)
        return self._closes.first_after(self._context(start), at)

    def last_close_until(self, start: DecodedCall, until: int) -> bool:
        """Whether a client closed the queue that a Start reads from until a time, or may have.

        May have: it closed a queue whose number it was given before the capture began.
        """
        closes = [self.first_close_after(start, start.at)]
        if start.protocol == "qm2qm" and self._sessions.latest(start.queue_handle, start.at) is None:
            closes.append(self._strays.first_after(self._of(start).name, start.at))
        return any(call is not None and call.at <= until for call in closes)

    def find_move_target(self, move: DecodedCall) -> DecodedCall | None:
        """Return the R_OpenQueueForMove whose number a move names."""
        found = self._targets.latest((self._of(move).name, move.move_context), move.at)
        return None if found is None or self._closed(found, move.at) else found

    def find_remote_open(self, session: DecodedCall) -> DecodedCall | None:
        """Return the R_QMOpenRemoteQueue that returned the number that a RemoteQMOpenQueue opens."""
        return self._name_of(session.queue_handle, session, session.at) if session.queue_handle else None

    def find_opened_queue(self, start: DecodedCall) -> OpenedQueue:
        """Return the open whose handle a Start used; a handle is valid from open to close."""
        given = start.queue_handle if start.protocol == "qm2qm" else start.context_handle
        if not given:
            asked = self._asked.latest((self._of(start).name, start.protocol), start.at)
            return OpenedQueue(missing=NOT_OPENED if asked is None else QUEUE_UNNAMED)
        return self._by_number(start) if start.protocol == "qm2qm" else self._by_context(start)

    def _by_context(self, start: DecodedCall) -> OpenedQueue:
        found = self._opens.latest(self._context(start), start.at)
        if found is None or self._closed(found, start.at):
            return OpenedQueue(missing=NOT_OPENED)
        evidence = (found, *self._may_have_closed(found, start))
        return OpenedQueue(found.queue, evidence, QUEUE_UNNAMED if found.queue is None else frozenset())

    def _by_number(self, start: DecodedCall) -> OpenedQueue:
        session = self._sessions.latest(start.queue_handle, start.at)
        if session is not None and self._over_at(session) < start.at:
            return OpenedQueue(missing=NOT_OPENED)
        named = self._name_of(start.queue_handle, session, start.at)
        if named is None:
            return OpenedQueue(missing=NOT_OPENED)
        missing = QUEUE_UNNAMED if named.queue is None else frozenset()
        if session is None:  # the supporting server's open was not captured
            return OpenedQueue(named.queue, (named,), missing | {"no_open"})
        return OpenedQueue(named.queue, (named, session, *self._may_have_closed(session, start)), missing)

    def _name_of(self, number: int | None, session: DecodedCall | None, at: int) -> DecodedCall | None:
        """Return the latest R_QMOpenRemoteQueue of a number, if it was still valid when the session opened it.

        Without a captured session: if it is still valid at a time at which a read shows that some session uses it.
        """
        until = at if session is None else session.at
        found = self._named.latest(number, until)
        if session is not None and (found is None or not _same_numbers(found, session)):
            found = self._named.first_after(number, until)  # by the clock of a tap that is ahead
            if found is None or not _same_numbers(found, session):
                return None
            if (found.responded_at or 0) > until + _clock_slack_us(found, session):
                return None
        if found is None:
            return None
        since = found.responded_at or 0
        sessions, low, high = self._sessions.span(number, since, until)
        if low < high and self._first_over(sessions, low, high) < until:
            return None
        adopted = high - low > 1 or (low < high and sessions[low] is not session)
        if session is not None and not adopted and self._let_go(found, until - _clock_slack_us(found, session)):
            return None
        return found

    def _first_over(self, sessions: list[DecodedCall], low: int, high: int) -> int:
        """Return when the first of the sessions of a number was over, from place ``low`` to before ``high``."""
        lowest = self._lowest_over[sessions[low].call_key]
        for session in sessions[low + len(lowest) : high]:
            lowest.append(min([self._over_at(session), *lowest[-1:]]))
        return lowest[high - low - 1]

    def _over_at(self, session: DecodedCall) -> int:
        """Return when a queue that RemoteQMOpenQueue opened was closed, or its association ended."""
        closed, ended_at = self._close_of(session), self._of(session).ended_at
        return min(NEVER if closed is None else closed.at, NEVER if ended_at is None else ended_at)

    def _close_of(self, opened: DecodedCall) -> DecodedCall | None:
        return self._closed_at.first_after(self._context(opened), opened.responded_at or opened.at)

    def _closed(self, opened: DecodedCall, at: int) -> bool:
        closed = self._close_of(opened)
        return closed is not None and closed.at < at

    def _may_have_closed(self, opened: DecodedCall, use: DecodedCall) -> tuple[DecodedCall, ...]:
        """Return the unanswered close that may be why a use of a handle was not accepted."""
        asked = self._closes.first_after(self._context(opened), opened.responded_at or opened.at)
        unanswered = asked is not None and asked.responded_at is None and asked.at < use.at
        return (asked,) if asked is not None and unanswered and not use.is_accepted else ()

    def _let_go(self, named: DecodedCall, at: int) -> bool:
        """Whether the application had closed its context, or its association had ended, at a time."""
        key = (self._of(named).name, named.context_handle)
        released = self._released.first_after(key, named.responded_at or named.at)
        return (released is not None and released.at < at) or self._ended(named, at)

    def _ended(self, call: DecodedCall, at: int) -> bool:
        ended_at = self._of(call).ended_at
        return ended_at is not None and ended_at < at


def _answered(calls: Iterable[DecodedCall]) -> list[DecodedCall]:
    """Return opens whose answer gave a context handle, in order of the answers."""
    given = (call for call in calls if call.context_handle and call.responded_at)
    return sorted(given, key=lambda call: (call.responded_at or 0, call.call_key))


def _clock_slack_us(named: DecodedCall, session: DecodedCall) -> int:
    """Return by how much the clocks of two calls of different connections may differ, where taps saw one."""
    return 0 if named.clocks == session.clocks == ONE_CLOCK else CLOCK_TOLERANCE_US


def _same_numbers(named: DecodedCall, session: DecodedCall) -> bool:
    """Whether a session was opened with the numbers that the application was given (rule Q30)."""
    pairs = ((named.queue_descriptor, session.queue_descriptor), (named.open_context, session.open_context))
    return all(None in pair or pair[0] == pair[1] for pair in pairs)


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


CLEANUP_INTERVAL_US: Final = 300_000_000  # [MS-MQRR] 3.1.2.2: 5 minutes
LOOKUP_ID_ACTION_FLAG: Final = (1 << 56) - 1  # the part of a LookupIdentifier that the wire carries

_FAULT_CANCEL: Final = 0x1C00000D  # nca_s_fault_cancel
_CANCELLED: Final = {MQ_ERROR_OPERATION_CANCELLED, MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT, _FAULT_CANCEL}  # D5
_FOR_EVER: Final = 0xFFFFFFFF  # ulTimeout
_TRANSACTIONAL: Final = 13  # R_StartTransactionalReceive
_ANSWER_SLACK_US: Final = 5_000_000  # a server's timers and the way back; after that the answer was not captured


@dataclass(slots=True)
class ReceiveAttempt(CallConclusion):
    """One Start (``call``) and what became of it: the facts of a row of gold.receive_attempts.

    ``ack_refused``: an End with RR_ACK was refused; ``ack_unanswered``: the answer of the End that counts was not
    captured; ``reader_gone_at``: when the last connection ended of a reader that took the message and never closed
    the queue; ``gaps``: bytes of its association were not captured.
    """

    outcome: str = "unknown"
    gaps: bool = False
    queue: str | None = None
    inferred_queue: str | None = None
    ended_at: int | None = None
    end_hresult: int | None = None
    ack_refused: bool = False
    ack_unanswered: bool = False
    reader_gone_at: int | None = None
    ending_call: DecodedCall | None = None

    @property
    def is_receive(self) -> bool | None:
        """A receive, not a peek; None when the action was not captured."""
        return None if self.call.action is None else not is_peek_action(self.call.action)

    @property
    def transactional(self) -> bool | None:
        """Within a transaction; None when the method that can be was not readable."""
        if self.call.transaction_id is not None:
            return True
        unread = self.call.opnum == _TRANSACTIONAL and self.call.action is None
        return None if unread else False

    @property
    def lookup_id(self) -> int | None:
        """The returned message's identifier, 56 bits; None without a message, and where the method returns none."""
        if not self.call.is_accepted or not self.call.sequence_id:
            return None
        return self.call.sequence_id & LOOKUP_ID_ACTION_FLAG

    @property
    def action_name(self) -> str | None:
        """MQ_ACTION_... or MQ_LOOKUP_...; None when the action was not captured."""
        return None if self.call.action is None else code_name(ACTION_NAMES, self.call.action)

    @property
    def wait_us(self) -> int | None:
        """From the request to its response; None where two taps saw them."""
        start = self.call
        if start.clocks.request_tap != start.clocks.response_tap:
            return None
        return _difference(start.captured_response_at, start.captured_request_at)

    @property
    def hold_us(self) -> int | None:
        """From the response to what ended the attempt; None where two taps saw them."""
        start, end = self.call, self.ending_call
        if end is None:
            ended_at = None if self.ended_at is None else self.ended_at - self._ahead_us
            return _difference(ended_at, start.responded_at)
        taps = end.clocks.request_tap, start.clocks.response_tap  # numbers within a connection
        one_clock = taps[0] == taps[1] if end.connection_id == start.connection_id else taps == (None, None)
        return _difference(self.ended_at, start.captured_response_at) if one_clock else None

    @property
    def _ahead_us(self) -> int:
        """How far ahead the clock is of the tap that saw the response, else the request."""
        clocks = self.call.clocks
        ahead_us = clocks.request_ahead_us if self.call.responded_at is None else clocks.response_ahead_us
        return ahead_us or 0

    @property
    def confidence(self) -> str:
        """How certain the attempt is, by what is missing."""
        return confidence_level(self.missing, guessed=self.inferred_queue is not None)

    def infer_queue(self, destination: str | None) -> None:
        """Guess the queue, where it is not known, from the message's destination."""
        self.inferred_queue = destination if self.queue is None else None

    def end_call(self, outcome: str, call: DecodedCall | None = None, at: int | None = None) -> None:
        """Set the outcome, by the call that ended the attempt or at a time of its own.

        ``end_hresult`` is an End's: that of a cancel or close says nothing about the message.
        """
        self.outcome, self.ending_call = outcome, call
        if call is not None:
            self.ended_at = call.captured_request_at
            if self.ended_at is None:  # its packet has no time
                self.missing.add("capture_loss")
        elif at is not None:
            self.ended_at = at + self._ahead_us
        if call is not None:
            self.used_calls.append(call)
            if CALL_ROLES[call.protocol, call.opnum] == "end":
                self.end_hresult = call.hresult


def find_attempts(
    calls: Iterable[DecodedCall],
    connections: Iterable[RpcConnection],
    *,
    capture_ends_at: int | None = None,
    cleanup_us: int = CLEANUP_INTERVAL_US,
) -> list[ReceiveAttempt]:
    """Return one attempt per Start of one server, in order of (time, call key).

    ``connections`` are all known connections of that server. ``capture_ends_at`` is the last packet of captures with
    packets of it; None: the last packet of its connections.
    """
    return _AttemptsOfServer(calls, connections, capture_ends_at, cleanup_us).attempts()


class _AttemptsOfServer(ServerCalls):
    def __init__(
        self,
        calls: Iterable[DecodedCall],
        connections: Iterable[RpcConnection],
        capture_ends_at: int | None,
        cleanup_us: int,
    ) -> None:
        super().__init__(calls, connections)
        if capture_ends_at is None:
            capture_ends_at = max((c.last_packet_at for c in self.connections.values()), default=0)
        self.capture_ends_at = capture_ends_at
        self.cleanup_us = cleanup_us
        self.ends = self._belonging("end")
        self.rejects = self._belonging("reject")
        self.cancels = self._cancels()

    def attempts(self) -> list[ReceiveAttempt]:
        """Return the server's attempts with their outcomes."""
        out = []
        for start in self.by_role["start"]:
            attempt = ReceiveAttempt(start, gaps=self.has_gaps(start))
            self._settle(attempt)
            self._settle_risk(attempt)
            attempt.queue = self.find_queue(attempt)
            if attempt.transactional and attempt.outcome in ("acked", "rejected"):
                attempt.missing.add("transaction_open")
            self.add_gaps(attempt)
            out.append(attempt)
        return out

    # Whose is what

    def _attempt_key(self, call: DecodedCall) -> Hashable:
        """Return what an attempt and its End share; None where that was not captured."""
        name = self.association_of(call).name
        if call.protocol == "qm2qm":
            return None if call.remote_read_handle is None else (name, call.remote_read_handle)
        if call.context_handle is None or call.request_id is None:
            return None
        return (name, call.context_handle, call.request_id)

    def _reject_key(self, call: DecodedCall) -> Hashable:
        """Return what an attempt and a rejection of its message share; None where that was not captured."""
        identifier = call.sequence_id if CALL_ROLES[call.protocol, call.opnum] == "start" else call.lookup_id
        if call.protocol != "RemoteRead" or call.context_handle is None or not identifier:
            return None
        return (self.association_of(call).name, call.context_handle, identifier & LOOKUP_ID_ACTION_FLAG)

    def _belonging(self, role: CallRole) -> dict[str, list[DecodedCall]]:
        """Assign each End or rejection to the latest attempt before it that can hold a message; by the Start's key."""
        owned: dict[str, list[DecodedCall]] = defaultdict(list)
        if not self.by_role[role]:
            return owned
        key_of = self._attempt_key if role == "end" else self._reject_key
        since = self._held_from if role == "end" else self._answered_at
        holders = Timeline[DecodedCall]()
        for start in sorted(self.by_role["start"], key=lambda c: (since(c), c.call_key)):
            key = key_of(start)
            if key is not None and _can_hold(start):
                holders.add(key, start, since(start))
        for call in self.by_role[role]:
            key = key_of(call)
            at = call.responded_at if call.requested_at is None else call.requested_at
            holder = holders.latest(key, at) if key is not None and at is not None else None
            if holder is not None:
                owned[holder.call_key].append(call)
        return owned

    @staticmethod
    def _held_from(start: DecodedCall) -> int:
        """Return the time from which a call can end the attempt: a qm2qm handle is not known before its response."""
        return _AttemptsOfServer._answered_at(start) if start.protocol == "qm2qm" else start.at

    @staticmethod
    def _answered_at(start: DecodedCall) -> int:
        """Return the time from which a client knows which message it got."""
        return start.responded_at or start.at

    def _cancels(self) -> dict[str, list[DecodedCall]]:
        """Assign each accepted cancel to the latest attempt with its key that began before it."""
        starts = deque(self.by_role["start"])
        waiting: dict[Hashable, list[DecodedCall]] = defaultdict(list)  # the latest last
        holding: dict[Hashable, DecodedCall] = {}  # the latest one that can hold a message
        owned: dict[str, list[DecodedCall]] = defaultdict(list)
        for call in self.by_role["cancel"]:
            while starts and starts[0].at <= call.at:
                start = starts.popleft()
                key = self._cancel_key(start)
                if key is not None:
                    waiting[key].append(start)
                if key is not None and _can_hold(start):
                    holding[key] = start
            key = self._cancel_key(call)
            if key is None or not call.is_accepted or call.requested_at is None:
                continue
            reads = waiting[key]
            while reads and (self._waited_until(reads[-1]) or call.at) < call.at:
                reads.pop()
            found = reads[-1] if reads else holding.get(key)
            if found is not None:
                owned[found.call_key].append(call)
        return owned

    def _waited_until(self, start: DecodedCall) -> int | None:
        """Return when a read stopped waiting: its answer, or its connection's end; None if neither was captured."""
        connection = self.connections.get(start.connection_id)
        if start.responded_at is not None or connection is None:
            return start.responded_at
        return connection.closed_at

    def _cancel_key(self, call: DecodedCall) -> Hashable:
        """Return what a waiting read and its cancel share: a qm2qm read belongs to the owner's hQueue."""
        if call.request_id is None:
            return None
        if call.protocol == "qm2qm":
            return None if call.queue_handle is None else (call.queue_handle, call.request_id)
        return self._attempt_key(call)

    # What became of it

    def _settle(self, attempt: ReceiveAttempt) -> None:
        start = attempt.call
        ends = self.ends.get(start.call_key, [])
        held = start.is_accepted and attempt.is_receive
        if held or ends:
            self._settle_held(attempt, ends)
        elif start.is_accepted and attempt.is_receive is False:
            attempt.outcome = "peeked"
        elif start.is_refused:
            self._settle_refused(attempt)
        elif start.responded_at is None or self.is_cut_off(start):
            self._settle_unanswered(attempt)
        # What is left was answered, but the answer cannot be read: unknown.

    def _settle_held(self, attempt: ReceiveAttempt, ends: list[DecodedCall]) -> None:
        """Decide an attempt that got a message, or whose End shows that it did."""
        attempt.used_calls += ends
        rejects = [
            call
            for call in self.rejects.get(attempt.call.call_key, [])
            if call.is_accepted and call.acknowledgement_class == MQMSG_CLASS_NACK_RECEIVE_REJECTED
        ]
        end = _deciding_end(ends)
        if rejects and not (end is not None and end.ack == RR_NACK):  # what was given back is not there to reject
            attempt.end_call("rejected", rejects[-1] if end is None else end)
            attempt.used_calls += rejects
            # Messages are rejected in transactions, after their End ([MS-MQRR] 3.1.4.14, rule R69): a later one's.
            if attempt.gaps and (end is None or not attempt.transactional):
                attempt.missing.add("capture_loss")
        elif end is not None:
            attempt.end_call({RR_ACK: "acked", RR_NACK: "nacked"}.get(end.ack or 0, "unknown"), end)
            # After the clean-up timer, or another End, it can be of a later Start with the same number.
            if attempt.gaps and (end is not ends[0] or self._is_late(attempt.call, end)):
                attempt.missing.add("capture_loss")
        else:
            self._settle_unended(attempt, ends)

    def _settle_unended(self, attempt: ReceiveAttempt, refused: list[DecodedCall]) -> None:
        """Decide a held message without an End that took effect: by the first thing that happened."""
        start = attempt.call
        if attempt.gaps:
            attempt.missing.add("capture_loss")
        since = start.responded_at if start.responded_at is not None else start.at
        until = self._settle_by_what_happened(attempt, since, refused)
        if self.may_share_association(start, since, until):  # an End can have come over that
            attempt.missing.add("capture_begins")

    def _settle_by_what_happened(self, attempt: ReceiveAttempt, since: int, refused: list[DecodedCall]) -> int:
        """Return until when the message was held, as far as is known."""
        start = attempt.call
        happened: list[tuple[int, int, str, DecodedCall | None]] = []  # time, rank, outcome, call
        happened += [(call.at, 0, "failed", call) for call in refused]
        cancels = self.cancels.get(start.call_key, [])
        happened += [(call.at, 1, "cancelled", call) for call in cancels if call.at >= since]
        close = self.handles.first_close_after(start, since)
        if close is not None and start.protocol == "RemoteRead":
            happened.append((close.at, 2, "rundown", close))
        gone_at = self.association_of(start).ended_at
        if gone_at is not None and gone_at >= since:
            happened.append((gone_at, 3, "rundown", None))
        happened.sort(key=lambda entry: entry[:2])
        deadline = since + self.cleanup_us
        seen_until = happened[0][0] if happened else self.capture_ends_at
        if start.protocol == "RemoteRead" and start.responded_at is not None and seen_until > deadline:
            late = [call for call in refused if self._is_late(start, call)]
            attempt.end_call("expired", late[0] if late else None)
            return deadline
        if happened:
            at, _, outcome, call = happened[0]
            attempt.end_call(outcome, call, at)
            return at
        attempt.outcome = "in_flight"
        attempt.missing.add("capture_ends")
        return self.capture_ends_at

    def _is_late(self, start: DecodedCall, end: DecodedCall) -> bool:
        """Whether an End was requested after the clean-up timer had taken back what the Start brought."""
        there = start.responded_at if start.protocol == "RemoteRead" else None
        return there is not None and end.at > there + self.cleanup_us

    def _settle_cancelled(self, attempt: ReceiveAttempt) -> bool:
        """Decide a read that did not return a message, if something cancelled it while it waited."""
        start = attempt.call
        until = self._waited_until(start)
        cancels = [call for call in self.cancels.get(start.call_key, []) if until is None or call.at <= until]
        if cancels:
            attempt.end_call("cancelled", cancels[0])
            return True
        given_up = [at for at in (start.cancelled_at, start.orphaned_at) if at and (until is None or at <= until)]
        if given_up:
            attempt.end_call("cancelled", at=min(given_up))
            return True
        close = self.handles.first_close_after(start, start.at)
        if close is not None and close.is_accepted and (until is None or close.at <= until):
            attempt.end_call("cancelled", close)
            return True
        return False

    def _settle_refused(self, attempt: ReceiveAttempt) -> None:
        """Decide a Start that was answered with an error or a fault."""
        start = attempt.call
        if self._settle_cancelled(attempt):
            return
        if start.result in _CANCELLED:
            attempt.outcome = "cancelled"
        elif start.hresult == MQ_ERROR_IO_TIMEOUT:
            attempt.outcome = "empty" if start.timeout_ms == 0 else "timed_out"
        elif (
            start.hresult == MQ_ERROR_MESSAGE_NOT_FOUND and start.action is not None and is_lookup_action(start.action)
        ):
            attempt.outcome = "empty"
        else:
            attempt.outcome = "failed"
            if attempt.gaps and start.fault_status is not None:  # that the handle was let go before, for one
                attempt.missing.add("capture_loss")

    def _settle_unanswered(self, attempt: ReceiveAttempt) -> None:
        """Decide a Start without a whole answer: it still waits, the capture ends inside it, or it was not captured."""
        if self._settle_cancelled(attempt):
            return
        start = attempt.call
        connection = self.connections.get(start.connection_id)
        if connection is not None and (connection.closed_at is not None or not connection.server_bytes):
            return
        if start.timeout_ms not in (None, _FOR_EVER) and start.responded_at is None:
            due = start.at + (start.timeout_ms or 0) * 1000 + _ANSWER_SLACK_US
            if due < self.capture_ends_at:
                return
        attempt.outcome = "in_flight"
        attempt.missing.add("capture_ends")

    def _settle_risk(self, attempt: ReceiveAttempt) -> None:
        """Note what can have become of an acknowledgement."""
        ends = self.ends.get(attempt.call.call_key)
        if ends is None:
            return
        attempt.ack_refused = any(end.ack == RR_ACK and end.is_refused for end in ends)
        end = _deciding_end(ends)
        if end is None or end.ack != RR_ACK:
            return
        attempt.ack_unanswered = end.responded_at is None or self.is_cut_off(end)
        gone_at = self.association_of(attempt.call).ended_at
        if gone_at is not None and gone_at >= end.at and not self.handles.last_close_until(attempt.call, gone_at):
            attempt.reader_gone_at = gone_at


def _deciding_end(ends: list[DecodedCall]) -> DecodedCall | None:
    """Return the End that decides: the first accepted one, else the last whose answer was not captured.

    An End after an accepted one belongs to a Start with the same number that was not captured.
    """
    for end in ends:
        if end.is_accepted:
            return end
    return next((end for end in reversed(ends) if not end.is_refused), None)


def _difference(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None else later - earlier


def _can_hold(start: DecodedCall) -> bool:
    """Whether a Start may have got a message to hold: a receive that was not refused."""
    return not start.is_refused and (start.action is None or not is_peek_action(start.action))
