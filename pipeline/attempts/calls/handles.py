"""Queue handles: from when to when an open's handle stood for its queue, and which queue that was. No Spark.

Which open gave the handle that a call uses is found for all calls at once (``columns.opened_queues``).

RemoteRead: R_OpenQueue returns a context handle, which its association may use until it is closed or the association
ends ([MS-MQRR] 3.1.4.2).

qm2qm: hRemoteQueue is a number. The application opens the queue at its owner (R_QMOpenRemoteQueue of qmcomm: phQueue,
dwpQueue, pdwContext). Its supporting server, another host, opens that number on a connection of its own
(RemoteQMOpenQueue: hQueue, pQueue, dwpContext, the same three) and reads with it ([MS-MQQP] 3.2.4.1; the fact sheet on
RPC interfaces, 4.2). The number is the owner's, belongs to one queue while that is open, and is reused: the latest open
before the call counts, wherever it was captured. It is released

* by RemoteQMCloseQueue, or the end of the association that RemoteQMOpenQueue came over;
* by R_QMCloseRemoteQueueContext, or the end of that association, as long as no RemoteQMOpenQueue has used it (D17).

The captured answer counts, not the request: a queue whose open was not captured has no name, and none is guessed. A
close whose answer was not captured may have ended a handle; a call refused after it rests on that close too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from pipeline.attempts.calls.associations import ClientAssociation
from pipeline.attempts.calls.decoded_call import CALL_ROLES, CLOCK_TOLERANCE_US, ONE_CLOCK, CallRole, DecodedCall
from pipeline.attempts.calls.timeline import Timeline
from udfs.columns.absent import AFTER_ALL


class HandleSpan(NamedTuple):
    """What is known of the handle that an open returned, for those who use it.

    ``opened``: the call that returned it, of RemoteRead or qm2qm. ``named``: the call that named its queue, None where
    it was not seen. ``over_at``: since when it stands for nothing, ``AFTER_ALL`` while it does. ``doubtful_close``: a
    close without a captured answer, which may be why a later use was refused.
    """

    opened: DecodedCall
    named: DecodedCall | None
    over_at: int
    doubtful_close: DecodedCall | None


class QueueHandles:
    """The handles of one server's calls. ``calls`` are in order of (time, key), ``of`` returns a call's association."""

    def __init__(
        self,
        calls: Iterable[DecodedCall],
        of: Callable[[DecodedCall], ClientAssociation],
        roles: Mapping[tuple[str, int], CallRole] = CALL_ROLES,
    ) -> None:
        self._of = of
        self._opens = Timeline[DecodedCall]()  # by association, interface and context handle
        self._closes = Timeline[DecodedCall]()  # by the same: those that were not refused
        self._closed_at = Timeline[DecodedCall]()  # by the same: those that were accepted
        self._sessions = Timeline[DecodedCall]()  # RemoteQMOpenQueue, by hQueue
        self._lowest_over: defaultdict[str, list[int]] = defaultdict(list)  # by session: when it or one behind was over
        self.closes: list[tuple[DecodedCall, DecodedCall | None]] = []
        """Closes that were not refused, in order of time; of qm2qm with the session that they close, if it was seen."""
        self._targets = Timeline[DecodedCall]()  # R_OpenQueueForMove, by association and the number it returned
        self._named = Timeline[DecodedCall]()  # R_QMOpenRemoteQueue, by phQueue
        self._released = Timeline[DecodedCall]()  # R_QMCloseRemoteQueueContext, by association and context handle
        by_role: dict[str, list[DecodedCall]] = {}
        for call in calls:
            by_role.setdefault(roles[call.protocol, call.opnum], []).append(call)
        self._add_opens(by_role.get("open", []))
        self._add_closes(by_role.get("close", []))
        self._names = _answered(call for call in by_role.get("name", []) if call.is_accepted and call.queue_handle)
        for call in self._names:
            self._named.add(call.queue_handle, call, call.responded_at or 0)
        for call in _answered(call for call in by_role.get("target", []) if not call.is_refused and call.move_context):
            self._targets.add((of(call).name, call.move_context), call, call.responded_at or 0)
        for call in by_role.get("release", []):
            if call.context_handle and call.requested_at is not None and call.outcome != "fault":
                self._released.add((of(call).name, call.context_handle), call, call.requested_at)

    def _add_opens(self, calls: list[DecodedCall]) -> None:
        self._answered_opens = _answered(call for call in calls if not call.is_refused)
        for call in self._answered_opens:
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
            self.closes.append((call, session))

    def _context(self, call: DecodedCall) -> tuple[str, str, str | None]:
        return self._of(call).name, call.protocol, call.context_handle

    def spans(self) -> Iterator[HandleSpan]:
        """Yield the span of each handle that an open returned, in order of the answers."""
        for call in self._answered_opens:
            doubtful = self._doubtful_close(call)
            if call.protocol == "RemoteRead":
                closed = self._close_of(call)
                yield HandleSpan(call, call, AFTER_ALL if closed is None else closed.at, doubtful)
            elif call.queue_handle:
                yield HandleSpan(call, self._name_of(call.queue_handle, call), self._over_at(call), doubtful)

    @property
    def names(self) -> list[DecodedCall]:
        """The calls that gave a queue a number, R_QMOpenRemoteQueue, in order of the answers."""
        return self._names

    def find_move_target(self, move: DecodedCall) -> DecodedCall | None:
        """Return the R_OpenQueueForMove whose number a move names."""
        found = self._targets.latest((self._of(move).name, move.move_context), move.at)
        return None if found is None or self._closed(found, move.at) else found

    def find_remote_open(self, session: DecodedCall) -> DecodedCall | None:
        """Return the R_QMOpenRemoteQueue that returned the number that a RemoteQMOpenQueue opens."""
        return self._name_of(session.queue_handle, session) if session.queue_handle else None

    def _name_of(self, number: int, session: DecodedCall) -> DecodedCall | None:
        """Return the latest R_QMOpenRemoteQueue of a number, if it was still valid when the session opened it."""
        until = session.at
        found = self._named.latest(number, until)
        if found is None or not _same_numbers(found, session):
            found = self._named.first_after(number, until)  # by the clock of a tap that is ahead
            if found is None or not _same_numbers(found, session):
                return None
            if (found.responded_at or 0) > until + _clock_slack_us(found, session):
                return None
        sessions, low, high = self._sessions.span(number, found.responded_at or 0, until)
        if low < high and self._first_over(sessions, low, high) < until:
            return None
        adopted = high - low > 1 or (low < high and sessions[low] is not session)
        if not adopted and self._let_go(found, until - _clock_slack_us(found, session)):
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
        return min(AFTER_ALL if closed is None else closed.at, AFTER_ALL if ended_at is None else ended_at)

    def _close_of(self, opened: DecodedCall) -> DecodedCall | None:
        return self._closed_at.first_after(self._context(opened), opened.responded_at or opened.at)

    def _closed(self, opened: DecodedCall, at: int) -> bool:
        closed = self._close_of(opened)
        return closed is not None and closed.at < at

    def _doubtful_close(self, opened: DecodedCall) -> DecodedCall | None:
        """Return the first close of a handle, if its answer was not captured."""
        asked = self._closes.first_after(self._context(opened), opened.responded_at or opened.at)
        return asked if asked is not None and asked.responded_at is None else None

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
