"""Rules on reads that look at several calls: time-outs, Ends and cancels. No Spark."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from pipeline.findings.columns.association_calls import AssociationCalls
from pipeline.findings.columns.call_history import (
    CLEANUP_TIMEOUT_US,
    QM2QM_READS,
    READ_METHODS,
    REMOTE_READ_READS,
    TIMER_SLACK_US,
    AssociationHistory,
    CapturedCall,
    ConcurrentReads,
    HandleLifetime,
    PendingReceive,
    TimeSpans,
)
from pipeline.findings.columns.receives import has_end, unpaired_handles, unpaired_receives
from pipeline.findings.columns.waiting_reads import (
    closes_of_contexts_with_reads,
    closes_of_sessions_with_reads,
    request_ids_of_held_messages,
    unusual_cancels,
    waiting_with_same_key,
)
from pipeline.findings.rules.qm2qm import client_section
from pipeline.findings.rules.registry import (
    PROTOCOL_RULES,
    ViolatingCalls,
    Violation,
    association_call_rule,
    association_rule,
    violation_of_either,
)
from udfs.codes import (
    MQ_ERROR_IO_TIMEOUT,
    MQ_ERROR_OPERATION_CANCELLED,
    MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT,
    result_name,
)
from udfs.columns.absent import AFTER_ALL, NONE
from udfs.dcerpc.interfaces import QM2QM_NAME, REMOTE_READ_NAME

_ENDS: Final = ((REMOTE_READ_NAME, 9), (REMOTE_READ_NAME, 15))
_MOST_EVIDENCE: Final = 3  # reads that a finding names
_INFINITE_MS: Final = 0xFFFFFFFF
_LOOKUP_MASK, _LOOKUP_BITS = 0xC0000000, 0x40000000  # of actions (``is_lookup_action``)
_RPC_TIMEOUT_US: Final = 300_000_000
_TIMER_ROUNDING_US: Final = 2_000_000  # by how much a timer of one second, and the capture's clock, may be early
_NO_LOSS: Final = "no packet of the association is missing"
_FIRST_WAITED: Final = "both reads were captured completely, and the first certainly waited when the second was made"
_END_CAPTURED: Final = "the read and its End were captured completely"
_CONTEXT_CLOSED: Final = "its context was closed, or every connection ended with FIN"
_QM2QM_CANCELS: Final = ((QM2QM_NAME, 5), QM2QM_READS, "queue_handle")
_REMOTE_READ_CANCELS: Final = ((REMOTE_READ_NAME, 8), REMOTE_READ_READS, "context_handle")
"""Cancels by protocol: the method, the reads that it cancels, and the column of the queue that both name."""


def _abandoned(call: CapturedCall) -> bool:
    """Tell whether the client cancelled or orphaned a call."""
    return call["cancelled_at"] is not None or call["orphaned_at"] is not None


@association_call_rule("Q09", *QM2QM_READS, precondition=_FIRST_WAITED)
def request_id_in_use_accepted(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read with the request id of a read that still waits on the queue was answered MQ_OK."""
    waiting = waiting_with_same_key(calls, calls.judged, "queue_handle", "request_id")
    accepted = calls.succeeded & (waiting != NONE)
    yield ViolatingCalls(accepted, "dwRequestID {request_id} is waiting", evidence=(waiting,))


def _request_ids_in_use(calls: AssociationCalls) -> ViolatingCalls:
    """Return the reads with the request id of one of the same client that waits."""
    waiting = waiting_with_same_key(calls, calls.judged & calls.has("request_id"), "request_id")
    return ViolatingCalls(waiting != NONE, evidence=(waiting,))


@association_call_rule("Q10", *QM2QM_READS, precondition=_FIRST_WAITED)
def request_id_in_use(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read has the request id of one of the same client that waits."""
    yield _request_ids_in_use(calls)._replace(actual="dwRequestID {request_id} is waiting")


@association_rule("Q10", complete=True, suspects=request_ids_of_held_messages)
def request_id_of_held_message(history: AssociationHistory) -> Iterator[Violation]:
    """A read has the request id of a message in its queue that is not ended (a SHOULD)."""
    lifetimes = {lifetime.open_call["call_key"]: lifetime for lifetime in history.held_messages}
    held: dict[Any, HandleLifetime] = {}
    for read in history.calls_of(*QM2QM_READS):
        key = (read["queue_handle"], read["request_id"])
        lifetime = held.get(key)
        closing = lifetime.close_call if lifetime is not None else None
        not_ended = closing is None or closing.started_at > read.started_at
        if lifetime is not None and lifetime.opened_at < read.started_at and not_ended:
            actual = f"dwRequestID {read['request_id']} of a message that is not ended"
            yield Violation(read, actual, (lifetime.open_call, read), "warning")
        if read["call_key"] in lifetimes:
            held[key] = lifetimes[read["call_key"]]


@association_call_rule("R29", *REMOTE_READ_READS, precondition=_FIRST_WAITED)
def remote_read_request_id_in_use(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A request has the request id of one of the same client that waits."""
    yield _request_ids_in_use(calls)._replace(actual="dwRequestId {request_id} is waiting", source=client_section)


@association_rule("R28", complete=True, suspects=unpaired_receives)
def request_id_reused_before_end(history: AssociationHistory) -> Iterator[Violation]:
    """A request id is used again on its context before its receive was ended or cancelled."""
    for receives in history.pending_receives.values():
        for before, after in itertools.pairwise(receives):
            start, ending = before.receive_call, before.end_call
            if start.failed or (start.responded_at is None and _abandoned(start)):
                continue
            ended_at = ending.responded_at if ending is not None else None
            if ending is None or (ended_at is not None and ended_at > after.receive_call.started_at):
                used = tuple(call for call in (start, ending, after.receive_call) if call is not None)
                yield Violation(after.receive_call, f"dwRequestId {start['request_id']} is not ended", used)


def _time_outs_not_kept(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """Yield reads that were answered after their time-out, or timed out before it."""
    limit = calls.numbers("timeout_ms")
    limited = calls.lossless & ~calls.abandoned & calls.has("timeout_ms") & (limit != _INFINITE_MS)
    is_lookup = calls.has("action") & (calls.numbers("action") & _LOOKUP_MASK == _LOOKUP_BITS)
    at_once = (limit == 0) | calls.of((QM2QM_NAME, 10)) | is_lookup
    due = calls.started_at + np.where(at_once, 0, limit * 1000) + TIMER_SLACK_US
    waited = calls.responded_at - calls.started_at
    answered = limited & calls.answered
    actual = "after {:.1f} s, time-out {timeout_ms} ms"
    yield ViolatingCalls(answered & (calls.responded_at > due), f"answered {actual}", (waited / 1e6,))
    timed_out = answered & calls.response_decoded & calls.equals("hresult", MQ_ERROR_IO_TIMEOUT)
    early = timed_out & ~at_once & (waited < limit * 1000 - _TIMER_ROUNDING_US)
    yield ViolatingCalls(early, f"timed out {actual}", (waited / 1e6,))
    missing = limited & calls.text_in("outcome", {"no_response"}) & calls.complete
    over = calls.last_packet_at > due + TIMER_SLACK_US
    yield ViolatingCalls(missing & ~calls.answered & over, "no answer, time-out {timeout_ms} ms")


@association_call_rule("Q64", *QM2QM_READS, precondition=_NO_LOSS)
def qm2qm_time_out_not_kept(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read is answered after its time-out, or times out early."""
    yield from _time_outs_not_kept(calls)


@association_call_rule("R45", *REMOTE_READ_READS, precondition=_NO_LOSS)
def remote_read_time_out_not_kept(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read is answered after its time-out, or times out early."""
    yield from _time_outs_not_kept(calls)


def _read_left_pending(
    history: AssociationHistory, close: CapturedCall, waiting: ConcurrentReads, key: object
) -> CapturedCall | None:
    """Return the newest read with a key that was still pending well after a close was answered."""
    until = close.responded_at or close.started_at
    for read in waiting.started_before(key, close.started_at):
        if read.responded_at is not None:
            late = read.responded_at > until + TIMER_SLACK_US
        else:
            late = history.has_packets_after(until) and not _abandoned(read)
        if read.request_decoded and late:
            return read
    return None


@association_rule("Q38", complete=True, suspects=closes_of_sessions_with_reads)
def reads_pending_after_session_close(history: AssociationHistory) -> Iterator[Violation]:
    """A read is pending well after its queue was closed."""
    waiting = ConcurrentReads.by_key(history.calls_of(*QM2QM_READS), lambda call: call["queue_handle"])
    for close in history.calls_of((QM2QM_NAME, 3)):
        lifetime = history.context_handles.latest((QM2QM_NAME, close["context_handle"]), close.started_at)
        if not close.succeeded or lifetime is None:
            continue
        for number in {lifetime.open_call["queue_handle"], lifetime.open_call["open_context"]}:
            read = _read_left_pending(history, close, waiting, number)
            if read is not None:
                yield Violation(close, f"read {read['request_id']} is pending", (read, close))


@association_rule("R13", complete=True, suspects=closes_of_contexts_with_reads)
def reads_pending_after_context_close(history: AssociationHistory) -> Iterator[Violation]:
    """A read is pending well after its context was closed."""
    waiting = ConcurrentReads.by_key(history.calls_of(*REMOTE_READ_READS), lambda call: call["context_handle"])
    for close in history.calls_of((REMOTE_READ_NAME, 3)):
        read = _read_left_pending(history, close, waiting, close["context_handle"]) if close.succeeded else None
        if read is not None:
            yield Violation(close, f"read {read['request_id']} is pending", (read, close))


def _cancels_with_reads(
    history: AssociationHistory, cancel: tuple[str, int], reads: tuple[tuple[str, int], ...], queue: str
) -> Iterator[tuple[CapturedCall, list[CapturedCall], list[CapturedCall], list[CapturedCall]]]:
    """Yield each cancel with three lists of reads that it may concern.

    First the reads with its queue and request id that may have been pending, then all earlier reads with its queue and
    request id, then the reads with its queue that may have been pending.
    """
    if not history.calls_of(cancel):
        return
    every = history.calls_of(*reads)
    by_request_id = ConcurrentReads.by_key(every, lambda call: (call[queue], call["request_id"]))
    by_queue = ConcurrentReads.by_key(every, lambda call: call[queue])

    def pending(reads: list[CapturedCall], at: int) -> list[CapturedCall]:
        return [read for read in reads if read.responded_at is None or read.responded_at >= at]

    for call in history.calls_of(cancel):
        if call.request_decoded:
            until = call.responded_at if call.responded_at is not None else AFTER_ALL
            asked = by_request_id.started_before((call[queue], call["request_id"]), until)
            of_queue = by_queue.started_before(call[queue], until)
            yield call, pending(asked, call.started_at), asked, pending(of_queue, call.started_at)


@association_rule("Q43", complete=True, suspects=lambda calls: unusual_cancels(calls, *_QM2QM_CANCELS))
def cancel_accepted_without_reads(history: AssociationHistory) -> Iterator[Violation]:
    """A cancel on a queue without waiting reads was answered MQ_OK."""
    for call, _, _, others in _cancels_with_reads(history, *_QM2QM_CANCELS):
        if call.succeeded and not others:
            yield Violation(call, "no read was waiting")


@association_rule("Q44", complete=True, suspects=lambda calls: unusual_cancels(calls, *_QM2QM_CANCELS))
def cancel_accepted_of_other_request_id(history: AssociationHistory) -> Iterator[Violation]:
    """A cancel of a request id that did not wait, while others did, was answered MQ_OK."""
    for call, met, _, others in _cancels_with_reads(history, *_QM2QM_CANCELS):
        if call.succeeded and not met and others:
            yield Violation(call, f"no read {call['request_id']} was waiting", (*others[:_MOST_EVIDENCE], call))


@association_rule("Q45", complete=True, suspects=lambda calls: unusual_cancels(calls, *_QM2QM_CANCELS))
def cancel_of_unknown_request_id(history: AssociationHistory) -> Iterator[Violation]:
    """A cancel of a request id that no read on the queue had."""
    for call, _, asked, _ in _cancels_with_reads(history, *_QM2QM_CANCELS):
        if not asked:
            yield Violation(call, f"dwRequestID {call['request_id']}")


@association_rule("R48", complete=True, suspects=lambda calls: unusual_cancels(calls, *_REMOTE_READ_CANCELS))
def remote_read_cancel_of_unknown_request_id(history: AssociationHistory) -> Iterator[Violation]:
    """A cancel of a request id that no read of the context had."""
    for call, _, asked, _ in _cancels_with_reads(history, *_REMOTE_READ_CANCELS):
        if not asked:
            yield Violation(call, f"dwRequestId {call['request_id']}")


@association_rule("R46", complete=True, suspects=lambda calls: unusual_cancels(calls, *_REMOTE_READ_CANCELS))
def cancel_accepted_of_completed_read(history: AssociationHistory) -> Iterator[Violation]:
    """A cancel of a read that did not wait was answered MQ_OK."""
    for call, met, _, _ in _cancels_with_reads(history, *_REMOTE_READ_CANCELS):
        if call.succeeded and not met:
            yield Violation(call, f"request {call['request_id']} was not waiting")


def _reads_not_cancelled(
    history: AssociationHistory,
    cancels: tuple[tuple[str, int], tuple[tuple[str, int], ...], str],
    good: set[int],
) -> Iterator[Violation]:
    """Yield cancels that were answered MQ_OK although the read did not end with a good HRESULT."""
    for call, met, _, _ in _cancels_with_reads(history, *cancels):
        if not call.succeeded or len(met) != 1 or call.responded_at is None:
            continue
        (read,) = met
        if read.responded_at is None:
            if not _abandoned(read) and history.has_packets_after(call.responded_at) and not read.is_peek:
                yield Violation(call, "no answer to the read", (read, call))
        elif read.succeeded and read.responded_at >= call.responded_at:
            yield Violation(call, "a message came all the same", (read, call))
        elif read.response_decoded and read["hresult"] not in good and read.responded_at >= call.responded_at:
            actual = f"the read ended with {result_name(read['hresult'])}"
            yield Violation(call, actual, (read, call), "info")


@association_rule("Q46", complete=True, suspects=lambda calls: unusual_cancels(calls, *_QM2QM_CANCELS))
def qm2qm_read_not_cancelled(history: AssociationHistory) -> Iterator[Violation]:
    """A read whose cancel was answered MQ_OK returned a message, or was not answered."""
    good = {MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT, MQ_ERROR_OPERATION_CANCELLED}
    yield from _reads_not_cancelled(history, _QM2QM_CANCELS, good)


@association_rule("R47", complete=True, suspects=lambda calls: unusual_cancels(calls, *_REMOTE_READ_CANCELS))
def remote_read_not_cancelled(history: AssociationHistory) -> Iterator[Violation]:
    """A request whose cancel was answered MQ_OK returned a message, or was not answered."""
    yield from _reads_not_cancelled(history, _REMOTE_READ_CANCELS, {MQ_ERROR_OPERATION_CANCELLED})


@association_rule("Q47", complete=True, suspects=lambda calls: unusual_cancels(calls, *_QM2QM_CANCELS))
def cancelled_peek_keeps_waiting(history: AssociationHistory) -> Iterator[Violation]:
    """The cancel of a waiting peek was answered MQ_OK, and the peek keeps waiting."""
    for call, met, _, _ in _cancels_with_reads(history, *_QM2QM_CANCELS):
        waiting = len(met) == 1 and met[0].is_peek and met[0].responded_at is None
        if call.succeeded and waiting and history.has_packets_after(call.responded_at or call.started_at):
            yield Violation(call, "the peek is pending", (met[0], call))


@association_call_rule(
    "Q16", *QM2QM_READS, needs="ok", complete=True, precondition="every connection of it ended with FIN"
)
def receive_without_end(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A received message is never acknowledged nor rejected."""
    never_ended = ~has_end(calls) & calls.has("remote_read_handle")
    yield ViolatingCalls(calls.is_receive & calls.closed_by_fin & never_ended, "no RemoteQMEndReceive")


def _was_ended_before(lifetime: HandleLifetime, call: CapturedCall) -> bool:
    """Tell whether a received message was ended by another call, before a call was made."""
    return lifetime.close_call is not call and lifetime.closed_before(call.started_at)


@association_rule("Q18", complete=True, suspects=unpaired_handles)
def end_with_invalid_handle(history: AssociationHistory) -> Iterator[Violation]:
    """RemoteQMEndReceive with a handle that no read returned, with a NULL one, or with one that is ended."""
    for call in history.calls_of((QM2QM_NAME, 1)):
        if not call.request_decoded:
            continue
        handle = call["remote_read_handle"]
        lifetime = history.held_messages.latest(handle, call.started_at) if handle is not None else None
        if lifetime is None:
            yield Violation(call, "a NULL handle" if handle is None else "a handle that no read gave")
        elif _was_ended_before(lifetime, call):
            yield Violation(call, "a handle that was ended", lifetime.calls_with_handle(call))


@association_rule("Q25", complete=True, suspects=unpaired_handles)
def second_end_accepted(history: AssociationHistory) -> Iterator[Violation]:
    """RemoteQMEndReceive of a message that was ended before was answered MQ_OK."""
    for call in history.calls_of((QM2QM_NAME, 1)):
        lifetime = history.held_messages.latest(call["remote_read_handle"], call.started_at) if call.succeeded else None
        if lifetime is not None and _was_ended_before(lifetime, call):
            yield Violation(call, "the message was ended before", lifetime.calls_with_handle(call))


class _PendingSweep:
    """The receives of a context that are pending at moments that are asked for in order of time."""

    def __init__(self, receives: Iterable[PendingReceive]) -> None:
        in_order = sorted(receives, key=lambda each: (each.receive_call.started_at, each.receive_call["call_key"]))
        self._later = deque(in_order)
        self._begun: deque[PendingReceive] = deque()

    def pending_at(self, time: int) -> list[CapturedCall]:
        """Return the oldest receives, at most three, that were made before a time and are pending at it."""
        while self._later and self._later[0].receive_call.started_at < time:
            self._begun.append(self._later.popleft())
        found: list[PendingReceive] = []
        while self._begun and len(found) < _MOST_EVIDENCE:
            pending = self._begun.popleft()
            if pending.pending_until >= time:
                found.append(pending)
        self._begun.extendleft(reversed(found))
        return [pending.receive_call for pending in found]


def _ends_without_receive(history: AssociationHistory) -> list[tuple[CapturedCall, list[CapturedCall]]]:
    """Return Ends on open contexts that had no receive to end, each with the oldest pending receives of the context."""
    return history.share(_ends_without_receive, lambda: [*_find_ends_without_receive(history)])


def _find_ends_without_receive(history: AssociationHistory) -> Iterator[tuple[CapturedCall, list[CapturedCall]]]:
    by_context: defaultdict[str, list[PendingReceive]] = defaultdict(list)
    for (context, _), receives in history.pending_receives.items():
        by_context[context] += receives
    sweeps = {context: _PendingSweep(receives) for context, receives in by_context.items()}
    spans = {
        key: TimeSpans((each.receive_call.started_at, each.pending_until) for each in receives)
        for key, receives in history.pending_receives.items()
    }
    for call in history.calls_of(*_ENDS):
        context_open = history.context_lifetime(call) if call.request_decoded else None
        if context_open is None or context_open.closed_before(call.started_at):
            continue
        until = call.responded_at if call.responded_at is not None else AFTER_ALL
        own = spans.get((call["context_handle"], call["request_id"]))
        if own is None or not own.any_meets(call.started_at, until):
            sweep = sweeps.get(call["context_handle"])
            yield call, sweep.pending_at(call.started_at) if sweep is not None else []


@association_rule("R50", complete=True, suspects=unpaired_receives)
def end_without_receives(history: AssociationHistory) -> Iterator[Violation]:
    """An End on a context without pending receives: nothing was received, or all is ended."""
    for call, others in _ends_without_receive(history):
        if not others:
            yield violation_of_either(call, "nothing to end")


@association_rule("R51", complete=True, suspects=unpaired_receives)
def end_of_other_request_id(history: AssociationHistory) -> Iterator[Violation]:
    """An End of a request id that was not pending, unknown or already ended, while others were pending."""
    for call, others in _ends_without_receive(history):
        if others:
            yield violation_of_either(call, f"no request {call['request_id']} to end", (*others, call))


@association_rule("R32", precondition=_END_CAPTURED, suspects=unpaired_receives)
def end_method_mismatch(history: AssociationHistory) -> Iterator[Violation]:
    """R_EndReceive of a transactional read, or R_EndTransactionalReceive of another."""
    for receives in history.pending_receives.values():
        for pending in receives:
            start, end = pending.receive_call, pending.end_call
            if end is None or end.method not in _ENDS or not end.request_decoded or not start.request_decoded:
                continue
            if end.method != (
                (REMOTE_READ_NAME, 9) if start.method == (REMOTE_READ_NAME, 7) else (REMOTE_READ_NAME, 15)
            ):
                yield Violation(end, f"opnum {end.method[1]} ends a read of opnum {start.method[1]}", (start, end))


@association_rule("R33", precondition=_END_CAPTURED, suspects=unpaired_receives)
def end_of_peek(history: AssociationHistory) -> Iterator[Violation]:
    """An End follows a peek."""
    last: dict[tuple[str, int], CapturedCall] = {}
    for call in history.calls_of(*REMOTE_READ_READS, *_ENDS):
        key = (call["context_handle"], call["request_id"])
        if call.method in READ_METHODS:
            last[key] = call
        elif call.request_decoded and key in last and last[key].is_peek and last[key].succeeded:
            source = PROTOCOL_RULES["R33"].source_for(last[key].method)
            yield Violation(call, "an End of a peek", (last[key], call), source=source)


def _receives_never_ended(history: AssociationHistory, opnum: int) -> Iterator[Violation]:
    """Yield receives that returned a message and were neither ended nor cancelled before their context closed."""
    tried = {(call["context_handle"], call["request_id"]) for call in history.calls_of(*_ENDS, (REMOTE_READ_NAME, 8))}
    for key, receives in history.pending_receives.items():
        start, ending = receives[-1].receive_call, receives[-1].end_call
        if start.method != (REMOTE_READ_NAME, opnum) or not start.succeeded or ending is not None or key in tried:
            continue
        lifetime = history.context_lifetime(start)
        close = lifetime.close_call if lifetime is not None else None
        if close is not None and start.responded_at is not None and close.started_at > start.responded_at:
            yield Violation(start, "no End before the queue was closed", (start, close))
        elif close is None and history.closed_by_fin:
            yield Violation(start, "no End before the connection was closed")


@association_rule("R30", precondition=_CONTEXT_CLOSED, complete=True, suspects=unpaired_receives)
def receive_never_ended(history: AssociationHistory) -> Iterator[Violation]:
    """A message that R_StartReceive returned is neither ended nor cancelled."""
    yield from _receives_never_ended(history, 7)


@association_rule("R31", precondition=_CONTEXT_CLOSED, complete=True, suspects=unpaired_receives)
def transactional_receive_never_ended(history: AssociationHistory) -> Iterator[Violation]:
    """A message that R_StartTransactionalReceive returned is neither ended nor cancelled."""
    yield from _receives_never_ended(history, 13)


@association_rule("R72", precondition=_END_CAPTURED, suspects=unpaired_receives)
def end_accepted_after_cleanup(history: AssociationHistory) -> Iterator[Violation]:
    """An End well after the clean-up timer was answered MQ_OK; another setting of the server explains it (D3)."""
    for receives in history.pending_receives.values():
        for pending in receives:
            start, end = pending.receive_call, pending.end_call
            if end is None or end.method not in _ENDS or not end.succeeded or start.responded_at is None:
                continue
            after = end.started_at - start.responded_at
            if after > CLEANUP_TIMEOUT_US + TIMER_SLACK_US:
                yield Violation(end, f"MQ_OK {after / 1e6:.0f} s after the message came", (start, end), "info")


def _calls_waiting_too_long(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """Yield calls that were neither answered nor cancelled within the RPC time-out."""
    due = calls.started_at + _RPC_TIMEOUT_US + TIMER_SLACK_US
    waits = calls.has("request_at") & (calls.given_up_at > due)
    waited = (calls.responded_at - calls.started_at) / 1e6
    late = waits & calls.answered & (calls.responded_at > due)
    yield ViolatingCalls(late, "answered after {:.0f} s", (waited,))
    missing = waits & ~calls.answered & calls.lossless & (calls.last_packet_at > due)
    yield ViolatingCalls(missing, "neither answered nor cancelled")


@association_call_rule("Q34", (QM2QM_NAME, 2), needs="headers", precondition=_NO_LOSS)
def session_open_waits_too_long(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """The client waited longer than 300 s for RemoteQMOpenQueue."""
    yield from _calls_waiting_too_long(calls)


@association_call_rule(
    "R71", *((REMOTE_READ_NAME, opnum) for opnum in (2, 11, 12)), needs="headers", precondition=_NO_LOSS
)
def remote_read_open_waits_too_long(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """The client waited longer than 300 s for R_OpenQueue, R_OpenQueueForMove or R_QMEnlistRemoteTransaction."""
    yield from _calls_waiting_too_long(calls)
