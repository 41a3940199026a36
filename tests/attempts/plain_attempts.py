"""The reference of receive attempts: what became of each Start, call by call, in plain Python.

Production computes the same over columns (``pipeline/attempts/receive_attempts.py``); a property test compares both.
This one is as the rules are told: one attempt after the other, with lists and dictionaries. It has its own words for
what is computed over columns: whose an End, a cancel or a close is, which open a call uses, what ended an attempt, and
what is missing of it. What production itself does object by object is taken from there: associations
(``associations.py``), from when to when an open's handle stood for a queue (``handles.py``), and how evidence and
confidence are stated (``evidence.py``). These are tested by stories with known answers (``test_handles.py``,
``test_receive_attempts.py``) and by ``broker.py``, which knows the truth. Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from pipeline.attempts.calls.associations import ClientAssociation, RpcConnection, group_into_associations
from pipeline.attempts.calls.decoded_call import (
    CALL_ROLES,
    LOOKUP_ID_ACTION_FLAG,
    ONE_CLOCK,
    CallRole,
    DecodedCall,
)
from pipeline.attempts.calls.handles import HandleSpan, QueueHandles
from pipeline.attempts.calls.timeline import Timeline
from pipeline.attempts.evidence import CallConclusion, confidence_level
from pipeline.attempts.receive_attempts import CLEANUP_INTERVAL_US
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


class QueueLookups:
    """Which open a call uses, one call after the other. What an open's handle stood for is said by ``QueueHandles``.

    ``calls`` are in order of (time, key), ``of`` returns a call's association.
    """

    def __init__(self, calls: Iterable[DecodedCall], of: Callable[[DecodedCall], ClientAssociation]) -> None:
        given = [*calls]
        handles = QueueHandles(given, of)
        self._of = of
        self._asked = Timeline[DecodedCall]()  # all opens, readable or not, by association
        self._contexts = Timeline[HandleSpan]()  # what opens of RemoteRead returned, by association and context handle
        self._sessions = Timeline[HandleSpan]()  # what RemoteQMOpenQueue returned, by hQueue
        self._named = Timeline[DecodedCall]()  # R_QMOpenRemoteQueue, by phQueue
        self._closes = Timeline[DecodedCall]()  # that were not refused, by what they close
        self._strays = Timeline[DecodedCall]()  # RemoteQMCloseQueue of what was not opened in sight, by association
        for call in given:
            if CALL_ROLES[call.protocol, call.opnum] == "open":
                self._asked.add((of(call).name, call.protocol), call, call.at)
        for span in handles.spans():
            opened, by_number = span.opened, span.opened.protocol == "qm2qm"
            known = self._sessions if by_number else self._contexts
            known.add(opened.queue_handle if by_number else self._context(opened), span, opened.responded_at or 0)
        for call in handles.names:
            self._named.add(call.queue_handle, call, call.responded_at or 0)
        for call, session in handles.closes:
            if call.protocol == "RemoteRead":
                self._closes.add(self._context(call), call, call.at)
            elif session is not None:
                self._closes.add((of(call).name, session.queue_handle), call, call.at)
            else:
                self._strays.add(of(call).name, call, call.at)

    def _context(self, call: DecodedCall) -> tuple[str, str | None]:
        return self._of(call).name, call.context_handle

    def first_close_after(self, start: DecodedCall, at: int) -> DecodedCall | None:
        """Return the close, not refused, after a time, of the queue that a Start reads from."""
        number = self._of(start).name, start.queue_handle
        return self._closes.first_after(number if start.protocol == "qm2qm" else self._context(start), at)

    def last_close_until(self, start: DecodedCall, until: int) -> bool:
        """Whether a client closed the queue that a Start reads from until a time, or may have.

        May have: it closed a queue whose number it was given before the capture began.
        """
        closes = [self.first_close_after(start, start.at)]
        if start.protocol == "qm2qm" and self._sessions.latest(start.queue_handle, start.at) is None:
            closes.append(self._strays.first_after(self._of(start).name, start.at))
        return any(call is not None and call.at <= until for call in closes)

    def find_opened_queue(self, start: DecodedCall) -> OpenedQueue:
        """Return the open whose handle a Start used; a handle is valid from open to close."""
        given = start.queue_handle if start.protocol == "qm2qm" else start.context_handle
        if not given:
            asked = self._asked.latest((self._of(start).name, start.protocol), start.at)
            return OpenedQueue(missing=NOT_OPENED if asked is None else QUEUE_UNNAMED)
        return self._by_number(start) if start.protocol == "qm2qm" else self._by_context(start)

    def _by_context(self, start: DecodedCall) -> OpenedQueue:
        span = self._contexts.latest(self._context(start), start.at)
        if span is None or span.over_at < start.at:
            return OpenedQueue(missing=NOT_OPENED)
        return _opened(span.opened, span.opened, *_may_have_closed(span, start))

    def _by_number(self, start: DecodedCall) -> OpenedQueue:
        span = self._sessions.latest(start.queue_handle, start.at)
        if span is None:
            return self._by_number_alone(start)
        if span.over_at < start.at or span.named is None:
            return OpenedQueue(missing=NOT_OPENED)
        return _opened(span.named, span.named, span.opened, *_may_have_closed(span, start))

    def _by_number_alone(self, start: DecodedCall) -> OpenedQueue:
        """Return the latest R_QMOpenRemoteQueue of a number: its supporting server's open was not captured."""
        named = self._named.latest(start.queue_handle, start.at)
        if named is None:
            return OpenedQueue(missing=NOT_OPENED)
        found = _opened(named, named)
        return found._replace(missing=found.missing | {"no_open"})


def _opened(named: DecodedCall, *calls: DecodedCall) -> OpenedQueue:
    return OpenedQueue(named.queue, calls, QUEUE_UNNAMED if named.queue is None else frozenset())


def _may_have_closed(span: HandleSpan, use: DecodedCall) -> tuple[DecodedCall, ...]:
    """Return the unanswered close that may be why a use of a handle was not accepted."""
    close = span.doubtful_close
    return () if close is None or close.at >= use.at or use.is_accepted else (close,)


class ServerCalls:
    """One server's calls in remote reads, its associations and handles.

    ``connections`` are all that are known of the server.
    """

    def __init__(self, calls: Iterable[DecodedCall], connections: Iterable[RpcConnection]) -> None:
        calls = [call for call in calls if (call.protocol, call.opnum) in CALL_ROLES]
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
            if connection.is_without_bind:
                begins, ends = self._strays[connection.client_address]
                begins.append(connection.first_packet_at)
                ends.append(max([connection.last_packet_at, *ends[-1:]]))
        self.calls = sorted(calls, key=lambda call: (call.at, call.call_key))
        self.by_role: dict[CallRole, list[DecodedCall]] = {role: [] for role in CALL_ROLES.values()}
        for call in self.calls:
            self.by_role[CALL_ROLES[call.protocol, call.opnum]].append(call)
        self.handles = QueueLookups(self.calls, self.association_of)

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
