"""Finds the receive attempts of servers: what became of each Start, for all at once over columns. No Spark.

The rules, from [MS-MQQP] 3.1.4, [MS-MQRR] 3.1.4 and the doubts (D..) of the fact sheet on RPC interfaces:

* A RemoteRead attempt is identified by (association, context handle, request id), and ended by R_EndReceive or
  R_EndTransactionalReceive with the same three. A qm2qm attempt is ended by RemoteQMEndReceive with the handle that
  its Start returned, and cancelled by (owner, hQueue, request id). Numbers and handles are reused: an End belongs to
  the latest attempt before it that can hold a message.
* A message that a Start returned is held until the first of: an End that was not refused, an End that was, an
  accepted cancel, or close of the queue, the clean-up timer counted from the response (RemoteRead only, D3), the end
  of the last connection of the association (D30). CloseQueue of qm2qm leaves the message with its own handle (D12).
* The order of input rows does not matter; the end of the capture is a parameter.

Times are microseconds since the epoch, UTC. Where a step has one value for each attempt, an index stands for the
attempt; calls are indexes too (``CallColumns``), -1 for none.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.attempts.columns.call_evidence import CallEvidence, EvidenceCalls
from pipeline.attempts.columns.missing_codes import missing_bits
from pipeline.settings import TimersConfig
from udfs.array_types import Bools, Ints
from udfs.capture.clock_steps import CLOCK_OF_TAP
from udfs.codes import (
    MQ_ERROR_IO_TIMEOUT,
    MQ_ERROR_MESSAGE_NOT_FOUND,
    MQ_ERROR_OPERATION_CANCELLED,
    MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT,
    MQMSG_CLASS_NACK_RECEIVE_REJECTED,
    RR_ACK,
    RR_NACK,
    is_lookup_action,
    is_peek_action,
)
from udfs.columns.absent import ABSENT, AFTER_ALL, NONE
from udfs.columns.arrays import from_ints, over_distinct, to_flags
from udfs.columns.codes import combine_codes, either_code, number_codes
from udfs.columns.groups import first_of, last_of, order_by, take_or
from udfs.columns.time_index import TimeIndex
from udfs.times import timedelta_to_us

CLEANUP_INTERVAL_US: Final = timedelta_to_us(TimersConfig.cleanup)  # [MS-MQRR] 3.1.2.2

_FAULT_CANCEL: Final = 0x1C00000D  # nca_s_fault_cancel
_CANCELLED_RESULTS: Final = (
    MQ_ERROR_OPERATION_CANCELLED,
    MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT,
    _FAULT_CANCEL,
)  # D5
_FOR_EVER: Final = 0xFFFFFFFF  # ulTimeout
_ANSWER_SLACK_US: Final = 5_000_000  # a server's timers and the way back; after that the answer was not captured

TRANSACTIONAL_OPNUM: Final = 13
"""R_StartTransactionalReceive."""
ATTEMPT_OUTCOMES: Final = (
    "unknown", "rejected", "acked", "nacked", "expired", "rundown", "peeked", "cancelled", "timed_out", "empty",
    "failed", "in_flight",
)  # fmt: skip
"""What can become of a Start; the column ``outcome`` of ``ReceiveAttempts`` has indexes into these."""
(
    _UNKNOWN, _REJECTED, _ACKED, _NACKED, _EXPIRED, _RUNDOWN, _PEEKED, _CANCELLED, _TIMED_OUT, _EMPTY, _FAILED,
    _IN_FLIGHT,
) = range(len(ATTEMPT_OUTCOMES))  # fmt: skip


@dataclass(slots=True)
class ReceiveAttempts:
    """Starts and what became of them, one after the other in order of (server, time, call key).

    ``started``: the Starts; ``named``: the calls that name the queues. ``ended_at``: the request of the call that ended
    the attempt, or the time of what else did, by the clock of the tap that saw it, which is ahead by
    ``ended_ahead_us``. ``wait_us`` and ``hold_us``: from request to response, and from that to the end. ``end_hresult``
    is an End's: that of a cancel or close says nothing about the message. ``ack_refused``: an End with RR_ACK was
    refused; ``ack_unanswered``: the answer of the End that counts was not captured; ``reader_gone_at``: when the last
    connection ended of a reader that took the message and never closed the queue. ``gaps``: bytes of its association
    were not captured. ``missing`` are bits (``missing_codes``). Times and numbers that there are not are ``ABSENT``.
    """

    started: Ints
    outcome: Ints
    ended_at: Ints
    end_hresult: Ints
    ended_ahead_us: Ints
    wait_us: Ints
    hold_us: Ints
    ack_refused: Bools
    ack_unanswered: Bools
    reader_gone_at: Ints
    gaps: Bools
    named: Ints
    missing: Ints
    evidence: EvidenceCalls

    def take(self, places: Ints) -> ReceiveAttempts:
        """Return some of the attempts."""
        arrays = {each.name: getattr(self, each.name)[places] for each in fields(self) if each.name != "evidence"}
        return ReceiveAttempts(**arrays, evidence=self.evidence.take(places))


def find_attempts(
    evidence: CallEvidence, ends: Mapping[str, int], *, cleanup_us: int = CLEANUP_INTERVAL_US
) -> ReceiveAttempts:
    """Return one attempt per Start of some servers.

    ``ends``: the last packet of captures with packets of a server, by its address; of a server without, the last packet
    of its connections.
    """
    return _Attempts(evidence, ends, cleanup_us).attempts()


class _Belonging(NamedTuple):
    """Calls that belong to attempts, in order of time: pairs of attempt and call."""

    owners: Ints
    calls: Ints

    def where(self, condition: Bools) -> _Belonging:
        return _Belonging(self.owners[condition], self.calls[condition])


class _Attempts:
    def __init__(self, evidence: CallEvidence, ends: Mapping[str, int], cleanup_us: int) -> None:
        self.known, self.calls, self.cleanup_us = evidence, evidence.calls, cleanup_us
        calls = self.calls
        self.accepted, self.refused = calls.succeeded
        self.starts = calls.of_role("start")
        self.count = len(self.starts)
        self.every = np.arange(self.count)
        self.capture_ends_at = evidence.capture_ends_at(ends)[self.starts]
        self.at, self.responded_at = calls.at[self.starts], calls.responded_at[self.starts]
        self.by_number, self.action = calls.by_number[self.starts], calls.numbers("action")[self.starts]
        self.peeks, self.looks_up = self._which_actions(is_peek_action), self._which_actions(is_lookup_action)
        self.can_hold = ~self.refused[self.starts] & ~self.peeks
        self.gaps = evidence.has_gaps[self.starts]
        self.gone_at = evidence.association_ended_at[self.starts]
        self.ends, self.rejects, self.cancels = self._ends(), self._rejects(), self._cancels()
        self.first_end, self.deciding = self._deciding_ends()

        self.outcome = np.full(self.count, _UNKNOWN, np.int64)
        self.ending = np.full(self.count, NONE, np.int64)
        self.over_at = np.full(self.count, ABSENT, np.int64)  # by one clock, where something else than a call ended it
        self.missing = np.zeros(self.count, np.int64)
        self.used = [_Belonging(self.every, self.starts)]

    def attempts(self) -> ReceiveAttempts:
        """Return the servers' attempts with their outcomes."""
        calls, starts = self.calls, self.starts
        self._settle()
        ended_at = self._ended_at()
        is_end = take_or(np.isin(np.arange(len(calls)), calls.of_role("end")), self.ending, default=False)
        opened = self.known.queues.find(starts)
        self.missing |= opened.missing
        self.used += [_Belonging(self.every, column) for column in (self.ending, *opened.calls)]
        transactional = calls.is_known("transaction_id")[starts]
        self._miss("transaction_open", transactional & np.isin(self.outcome, (_ACKED, _REJECTED)))
        owners, used = zip(*self.used, strict=True)
        evidence = EvidenceCalls.of(owners, used, self.count, len(calls))
        ack_refused, ack_unanswered, reader_gone_at = self._risks()
        return ReceiveAttempts(
            started=starts,
            outcome=self.outcome,
            ended_at=ended_at,
            ended_ahead_us=self._ended_ahead_us(),
            end_hresult=np.where(is_end, take_or(calls.numbers("hresult"), self.ending, ABSENT), ABSENT),
            wait_us=self._wait_us(),
            hold_us=self._hold_us(ended_at),
            ack_refused=ack_refused,
            ack_unanswered=ack_unanswered,
            reader_gone_at=reader_gone_at,
            gaps=self.gaps,
            named=opened.named,
            missing=self.known.missing_of(starts, evidence, self.missing),
            evidence=evidence,
        )

    def _which_actions(self, function: Callable[[int], bool]) -> Bools:
        """Return which Starts ask for an action of some kind; none whose action was not captured."""
        return to_flags(over_distinct(from_ints(self.action, ABSENT), function, pa.bool_()))

    # Whose is what

    @cached_property
    def _attempt_keys(self) -> Ints:
        """What an attempt and its End share, of all calls; -1 where that was not captured."""
        calls, association = self.calls, self.known.association
        read_handle = combine_codes(association, calls.dictionary_codes("remote_read_handle")[0])
        context = combine_codes(
            association, calls.dictionary_codes("context_handle")[0], number_codes(calls.numbers("request_id"))
        )
        return either_code(calls.by_number, read_handle, context)

    def _ends(self) -> _Belonging:
        """Assign each End to the latest attempt before it; a qm2qm handle is not known before its response."""
        since = np.where(self.by_number, self._answered_at, self.at)
        return self._belonging(self.calls.of_role("end"), self._attempt_keys, since)

    def _rejects(self) -> _Belonging:
        """Assign each rejection that counts to the attempt that got its message last, in its context."""
        calls = self.calls
        rejects = calls.of_role("reject")
        is_read = np.isin(np.arange(len(calls)), self.starts)
        message = np.where(is_read, calls.identifiers("sequence_id"), calls.identifiers("lookup_id"))
        keys = combine_codes(self.known.association, calls.dictionary_codes("context_handle")[0], number_codes(message))
        keys = np.where(calls.by_number, NONE, keys)
        counts = self.accepted[rejects]
        counts &= calls.numbers("acknowledgement_class")[rejects] == MQMSG_CLASS_NACK_RECEIVE_REJECTED
        return self._belonging(rejects[counts], keys, self._answered_at)

    @property
    def _answered_at(self) -> Ints:
        """The times from which clients know which message they got."""
        return np.where(np.isin(self.responded_at, (ABSENT, 0)), self.at, self.responded_at)

    def _belonging(self, later: Ints, keys: Ints, since: Ints) -> _Belonging:
        """Assign calls to the latest attempt that can hold a message, with their key, that there was before them."""
        calls = self.calls
        order = order_by([since], calls.key.take(pa.array(self.starts)))
        order = order[self.can_hold[order]]
        holders = TimeIndex(keys[self.starts[order]], since[order], order)
        at = np.where(calls.requested_at[later] == ABSENT, calls.responded_at[later], calls.requested_at[later])
        owners = holders.latest(np.where(at == ABSENT, NONE, keys[later]), at)
        return _Belonging(owners, later).where(owners != NONE)

    def _cancels(self) -> _Belonging:
        """Assign each accepted cancel to the latest attempt with its key that began before it.

        One that waits comes before one that holds a message. A qm2qm read belongs to the owner's hQueue.
        """
        calls = self.calls
        numbers = (number_codes(calls.numbers(name)) for name in ("queue_handle", "request_id"))
        keys = either_code(calls.by_number, combine_codes(calls.server + 1, *numbers), self._attempt_keys)
        cancels = calls.of_role("cancel")
        cancels = cancels[self.accepted[cancels] & (calls.requested_at[cancels] != ABSENT) & (keys[cancels] != NONE)]
        some = np.flatnonzero(np.isin(keys[self.starts], keys[cancels]))
        columns = (keys[self.starts], calls.server[self.starts], self.at, self._waited_until, self.can_hold)
        reads = deque(zip(some.tolist(), *(column[some].tolist() for column in columns), strict=True))
        waiting: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # and until when; the latest last
        holding: dict[int, int] = {}  # the latest one that can hold a message
        found = []
        for key, server, at in zip(*(each[cancels].tolist() for each in (keys, calls.server, calls.at)), strict=True):
            while reads and reads[0][2:4] <= (server, at):
                read, its_key, _, _, until, can_hold = reads.popleft()
                waiting[its_key].append((read, until))
                if can_hold:
                    holding[its_key] = read
            while waiting[key] and waiting[key][-1][1] < at:
                waiting[key].pop()
            found.append(waiting[key][-1][0] if waiting[key] else holding.get(key, NONE))
        owners = np.array(found, np.int64)
        return _Belonging(owners, cancels).where(owners != NONE)

    @cached_property
    def _waited_until(self) -> Ints:
        """When reads stopped waiting: their answer, or their connection's end; ``AFTER_ALL`` if none was captured."""
        closed_at = self.known.closed_at[self.starts]
        until = np.where(self.responded_at == ABSENT, closed_at, self.responded_at)
        return np.where(until == ABSENT, AFTER_ALL, until)

    def _deciding_ends(self) -> tuple[Ints, Ints]:
        """Return the first End of each attempt, and the one that decides.

        The first accepted one, else the last whose answer was not captured. An End after an accepted one belongs to a
        Start with the same number that was not captured.
        """
        ends = self.ends
        accepted = ends.where(self.accepted[ends.calls])
        unrefused = ends.where(~self.refused[ends.calls])
        first, last = first_of(*accepted, self.count), last_of(*unrefused, self.count)
        return first_of(*ends, self.count), np.where(first == NONE, last, first)

    # What became of it

    def _settle(self) -> None:
        """Decide the outcome of each attempt, by what was answered, and what ended it."""
        accepted, refused = self.accepted[self.starts], self.refused[self.starts]
        receives = (self.action != ABSENT) & ~self.peeks
        got = (accepted & receives) | (self.first_end != NONE)  # a message, or its End shows that it did
        self._settle_held(got)
        left = ~got
        peeked = left & accepted & self.peeks
        self.outcome[peeked] = _PEEKED
        left &= ~peeked
        unanswered = left & ~refused & ((self.responded_at == ABSENT) | self.known.is_cut_off[self.starts])
        left &= refused
        cancelled = self._settle_cancelled(left | unanswered)
        self._settle_refused(left & ~cancelled)
        self._settle_unanswered(unanswered & ~cancelled)
        # What is left was answered, but the answer cannot be read: unknown.

    def _settle_held(self, got: Bools) -> None:
        """Decide attempts that got a message, or whose End shows that they did."""
        ends, rejects, end = self.ends, self.rejects, self.deciding
        self.used.append(ends)
        ack = take_or(self.calls.numbers("ack"), end, ABSENT)
        last_reject = last_of(*rejects, self.count)
        rejected = got & (last_reject != NONE) & (ack != RR_NACK)  # what was given back is not there to reject
        self._end(rejected, _REJECTED, np.where(end == NONE, last_reject, end))
        self.used.append(rejects.where(rejected[rejects.owners]))
        # Messages are rejected in transactions, after their End ([MS-MQRR] 3.1.4.14, rule R69): a later one's.
        transactional = self.calls.is_known("transaction_id")[self.starts]
        self._miss("capture_loss", rejected & self.gaps & ((end == NONE) | ~transactional))
        ended = got & ~rejected & (end != NONE)
        outcome = np.where(ack == RR_ACK, _ACKED, np.where(ack == RR_NACK, _NACKED, _UNKNOWN))
        self._end(ended, outcome, end)
        # After the clean-up timer, or another End, it can be of a later Start with the same number.
        late = take_or(self.calls.at, end, ABSENT) > self._expires_at
        self._miss("capture_loss", ended & self.gaps & ((end != self.first_end) | late))
        self._settle_unended(got & ~rejected & ~ended)

    def _settle_unended(self, held: Bools) -> None:
        """Decide held messages without an End that took effect: by the first thing that happened."""
        since = np.where(self.responded_at == ABSENT, self.at, self.responded_at)
        close = np.where(self.by_number, NONE, self.known.queues.first_close_after(self.starts, since))
        cancels = self.cancels.where(self.calls.at[self.cancels.calls] >= since[self.cancels.owners])
        calls = np.stack([self.first_end, first_of(*cancels, self.count), close, np.full(self.count, NONE)])
        times = take_or(self.calls.at, calls, AFTER_ALL)
        times[3] = np.where((self.gone_at != ABSENT) & (self.gone_at >= since), self.gone_at, AFTER_ALL)
        first = times.argmin(axis=0)  # of several at one time the first in this order
        call, until = calls[first, self.every], times[first, self.every]
        happened = until != AFTER_ALL
        until = np.where(happened, until, self.capture_ends_at)
        expired = held & (until > self._expires_at)
        until = np.where(expired, self._expires_at, until)
        late = self.ends.where(self.calls.at[self.ends.calls] > self._expires_at[self.ends.owners])
        self._end(expired, _EXPIRED, first_of(*late, self.count))
        self._end(held & ~expired & happened, np.array([_FAILED, _CANCELLED, _RUNDOWN, _RUNDOWN])[first], call, until)
        self._wait_on(held & ~expired & ~happened)
        self._miss("capture_loss", held & self.gaps)
        self._miss("capture_begins", held & self._may_have_connections_without_bind(held, since, until))

    @property
    def _expires_at(self) -> Ints:
        """When the clean-up timer takes back what Starts brought; ``AFTER_ALL`` where it does not."""
        is_timed = ~self.by_number & (self.responded_at != ABSENT)
        return np.where(is_timed, self.responded_at + self.cleanup_us, AFTER_ALL)

    def _may_have_connections_without_bind(self, held: Bools, since: Ints, until: Ints) -> Bools:
        """Return which attempts a connection may concern that may belong to any association: an End came over that."""
        found = np.zeros(self.count, np.bool_)
        for attempt in np.flatnonzero(held).tolist() if self.known.has_connections_without_bind else ():
            times = int(since[attempt]), int(until[attempt])
            found[attempt] = self.known.may_share_association(int(self.starts[attempt]), *times)
        return found

    def _settle_cancelled(self, unread: Bools) -> Bools:
        """Decide reads that did not return a message and that something cancelled while they waited; return which."""
        calls, until = self.calls, self._waited_until
        cancels = self.cancels.where(calls.at[self.cancels.calls] <= until[self.cancels.owners])
        cancel = first_of(*cancels, self.count)
        by_cancel = unread & (cancel != NONE)
        self._end(by_cancel, _CANCELLED, cancel)
        given_up = np.full(self.count, AFTER_ALL, np.int64)
        for name in ("cancelled_at", "orphaned_at"):
            at = calls.numbers(name)[self.starts]
            given_up = np.where((at != ABSENT) & (at <= until), np.minimum(given_up, at), given_up)
        by_client = unread & ~by_cancel & (given_up != AFTER_ALL)
        self._end(by_client, _CANCELLED, NONE, given_up)
        close = self.known.queues.first_close_after(self.starts, self.at)
        closed = take_or(self.accepted, close, default=False) & (take_or(calls.at, close, AFTER_ALL) <= until)
        by_close = unread & ~by_cancel & ~by_client & closed
        self._end(by_close, _CANCELLED, close)
        cancelled: Bools = by_cancel | by_client | by_close
        return cancelled

    def _settle_refused(self, refused: Bools) -> None:
        """Decide Starts that were answered with an error or a fault."""
        hresult, fault = (self.calls.numbers(name)[self.starts] for name in ("hresult", "fault_status"))
        result = np.where(fault == ABSENT, hresult, fault)
        in_vain = self.calls.numbers("timeout_ms")[self.starts] == 0
        outcome = np.select(
            [
                np.isin(result, _CANCELLED_RESULTS),
                (hresult == MQ_ERROR_IO_TIMEOUT) & in_vain,
                hresult == MQ_ERROR_IO_TIMEOUT,
                (hresult == MQ_ERROR_MESSAGE_NOT_FOUND) & self.looks_up,
            ],
            [_CANCELLED, _EMPTY, _TIMED_OUT, _EMPTY],
            _FAILED,
        )
        self.outcome[refused] = outcome[refused]
        # That the handle was let go before, for one.
        self._miss("capture_loss", refused & (outcome == _FAILED) & self.gaps & (fault != ABSENT))

    def _settle_unanswered(self, unanswered: Bools) -> None:
        """Decide Starts without a whole answer: they still wait, the capture ends inside it, or it was not captured."""
        known, timeout = self.known, self.calls.numbers("timeout_ms")[self.starts]
        is_over = (known.closed_at != ABSENT)[self.starts] | ~known.is_answered[self.starts]
        timed = (self.responded_at == ABSENT) & (timeout != ABSENT) & (timeout != _FOR_EVER)
        timed &= self.at + timeout * 1000 + _ANSWER_SLACK_US < self.capture_ends_at
        self._wait_on(unanswered & ~is_over & ~timed)

    def _end(self, which: Bools, outcome: Ints | int, call: Ints | int, at: Ints | int = ABSENT) -> None:
        """Set the outcome of attempts, by the calls that ended them, or at a time of its own where none did."""
        for column, value in ((self.outcome, outcome), (self.ending, call), (self.over_at, at)):
            column[which] = np.broadcast_to(value, self.count)[which]

    def _wait_on(self, which: Bools) -> None:
        """Note that attempts had not ended when the capture did."""
        self.outcome[which] = _IN_FLIGHT
        self._miss("capture_ends", which)

    def _miss(self, code: str, which: Bools) -> None:
        self.missing[which] |= missing_bits(code)

    # When, and what may come of it

    def _ended_at(self) -> Ints:
        """Return when attempts ended, by the clocks of the taps that saw it."""
        calls = self.calls
        by_call = self.ending != NONE
        called_at = take_or(calls.captured_at("request"), self.ending, ABSENT)
        self._miss("capture_loss", by_call & (called_at == ABSENT))  # the call's packet has no time
        over_at = np.where(self.over_at == ABSENT, ABSENT, self.over_at + self._ended_ahead_us())
        return np.where(by_call, called_at, over_at)

    def _ended_ahead_us(self) -> Ints:
        """Return how far ahead the clocks of ``ended_at`` are: of what is no call, that of the Start."""
        asked, answered = self.calls.ahead_us("request"), self.calls.ahead_us("response")
        of_start = np.where(self.responded_at == ABSENT, asked[self.starts], answered[self.starts])
        return np.where(self.ending == NONE, of_start, take_or(asked, self.ending, 0))

    def _wait_us(self) -> Ints:
        """Return the time from requests to their responses; ``ABSENT`` where two taps saw them."""
        calls = self.calls
        wait = _difference(calls.captured_at("response"), calls.captured_at("request"))
        asked, answered = (calls.clocks[f"{half}_tap"] for half in ("request", "response"))
        self._miss("clock_step", (_is_set_back(asked, answered) & (wait != ABSENT))[self.starts])
        return np.where(asked == answered, wait, ABSENT)[self.starts]

    def _hold_us(self, ended_at: Ints) -> Ints:
        """Return the time from responses to what ended the attempts; ``ABSENT`` where two taps saw them."""
        calls = self.calls
        held = _difference(self.over_at, self.responded_at)
        by_call = _difference(ended_at, calls.captured_at("response")[self.starts])
        ended = take_or(calls.clocks["request_tap"], self.ending, ABSENT)
        answered = calls.clocks["response_tap"][self.starts]
        connection = self.known.connection
        together = take_or(connection, self.ending, NONE) == connection[self.starts]  # taps are numbered in one
        one_clock = np.where(together, ended == answered, (ended == ABSENT) & (answered == ABSENT))
        is_set_back = _is_set_back(ended, answered) | ~together & (np.maximum(ended, answered) >= CLOCK_OF_TAP)
        stepped = (self.ending != NONE) & (by_call != ABSENT) & ~one_clock & is_set_back
        # What ends an attempt without a call is known by the last call of its connection.
        latest = np.maximum(calls.clocks["request_tap"], calls.clocks["response_tap"])
        on_stepped = np.isin(connection[self.starts], connection[latest >= CLOCK_OF_TAP])
        stepped |= (self.ending == NONE) & (held != ABSENT) & on_stepped
        self._miss("clock_step", stepped)
        found = np.where(self.ending == NONE, held, np.where(one_clock, by_call, ABSENT))
        return np.where(stepped, ABSENT, found)

    def _risks(self) -> tuple[Bools, Bools, Ints]:
        """Return ``ack_refused``, ``ack_unanswered`` and ``reader_gone_at``: what can have become of an End."""
        calls, known, end = self.calls, self.known, self.deciding
        is_ack = calls.numbers("ack") == RR_ACK
        ack_refused = np.zeros(self.count, np.bool_)
        ack_refused[self.ends.owners[(is_ack & self.refused)[self.ends.calls]]] = True
        acked = take_or(is_ack, end, default=False)
        unanswered = acked & take_or((calls.responded_at == ABSENT) | known.is_cut_off, end, default=False)
        gone = acked & (self.gone_at != ABSENT) & (self.gone_at >= take_or(calls.at, end, AFTER_ALL))
        gone &= ~known.queues.is_closed_until(self.starts, self.gone_at)
        return ack_refused, unanswered, np.where(gone, self.gone_at, ABSENT)


def _is_set_back(one: Ints, other: Ints) -> Bools:
    """Return where two times are of one tap whose clock was set back between them (column ``clocks``)."""
    before, after = (np.where(each == ABSENT, 0, each) for each in (one, other))
    result: Bools = (before != after) & (before % CLOCK_OF_TAP == after % CLOCK_OF_TAP)
    return result


def _difference(later: Ints, earlier: Ints) -> Ints:
    return np.where((later == ABSENT) | (earlier == ABSENT), ABSENT, later - earlier)
