"""Rules on reads that look at several calls: time-outs, Ends and cancels. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from pipeline.findings.columns.association_calls import QM2QM_END, REMOTE_READ_ENDS, AssociationCalls
from pipeline.findings.columns.call_columns import Mask, Numbers
from pipeline.findings.columns.call_history import (
    CLEANUP_TIMEOUT_US,
    QM2QM_READS,
    REMOTE_READ_READS,
    TIMER_SLACK_US,
    AssociationHistory,
    CapturedCall,
    ConcurrentReads,
)
from pipeline.findings.columns.exchanges import (
    end_made_at,
    ended_by,
    ended_receive,
    ends_without_receive,
    exchanges,
    has_end,
    held_message,
    holds_message,
    last_before,
    oldest_pending,
)
from pipeline.findings.columns.waiting_reads import (
    closes_of_contexts_with_reads,
    closes_of_sessions_with_reads,
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
)
from udfs.codes import (
    MQ_ERROR_IO_TIMEOUT,
    MQ_ERROR_OPERATION_CANCELLED,
    MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT,
    result_name,
)
from udfs.columns.absent import AFTER_ALL, BEFORE_ALL, NONE
from udfs.columns.groups import Groups, take_or
from udfs.dcerpc.interfaces import QM2QM_NAME, REMOTE_READ_NAME

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


@association_call_rule("Q10", *QM2QM_READS, needs="headers", complete=True)
def request_id_of_held_message(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read has the request id of a message in its queue that is not ended (a SHOULD)."""
    keys = calls.keys("queue_handle", "request_id")
    rows = calls.in_order(calls.judged, keys, calls.started_at)
    before = last_before(calls, Groups(rows, keys[rows]), holds_message(calls))
    held = take_or(calls.ended_at, before, AFTER_ALL) < calls.started_at
    not_ended = take_or(end_made_at(calls), before, NONE) > calls.started_at
    actual = "dwRequestID {request_id} of a message that is not ended"
    yield ViolatingCalls(held & not_ended, actual, severity="warning", evidence=(before,))


@association_call_rule("R29", *REMOTE_READ_READS, precondition=_FIRST_WAITED)
def remote_read_request_id_in_use(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A request has the request id of one of the same client that waits."""
    yield _request_ids_in_use(calls)._replace(actual="dwRequestId {request_id} is waiting", source=client_section)


@association_call_rule("R28", *REMOTE_READ_READS, needs="headers", complete=True)
def request_id_reused_before_end(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A request id is used again on its context before its receive was ended or cancelled."""
    before = last_before(calls, exchanges(calls), calls.judged & calls.is_receive)
    ends = take_or(ended_by(calls), before, NONE)
    given_up = calls.failed | (~calls.answered & calls.abandoned)
    ended_at = np.where(calls.answered, calls.responded_at, BEFORE_ALL)
    pending = take_or(~given_up, before, default=False) & (take_or(ended_at, ends, AFTER_ALL) > calls.started_at)
    actual = "dwRequestId {request_id} is not ended"
    yield ViolatingCalls(calls.is_receive & pending, actual, evidence=(before, ends))


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


@association_call_rule("Q18", QM2QM_END, complete=True)
def end_with_invalid_handle(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """RemoteQMEndReceive with a handle that no read returned, with a NULL one, or with one that is ended."""
    message = held_message(calls)
    yield ViolatingCalls(~calls.has("remote_read_handle"), "a NULL handle")
    yield ViolatingCalls(~message.is_known, "a handle that no read gave")
    yield ViolatingCalls(message.is_closed, "a handle that was ended", evidence=(message.opens, message.closes))


@association_call_rule("Q25", QM2QM_END, needs="ok", complete=True)
def second_end_accepted(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """RemoteQMEndReceive of a message that was ended before was answered MQ_OK."""
    message = held_message(calls)
    yield ViolatingCalls(message.is_closed, "the message was ended before", evidence=(message.opens, message.closes))


def _ends_without_receive(calls: AssociationCalls) -> tuple[Mask, list[Numbers]]:
    """Return the Ends that have no receive to end, and for each the oldest receives that are pending on its context."""
    ends = ends_without_receive(calls) & calls.judged
    return ends, oldest_pending(calls, ends, _MOST_EVIDENCE)


@association_call_rule("R50", *REMOTE_READ_ENDS, complete=True)
def end_without_receives(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """An End on a context without pending receives: nothing was received, or all is ended."""
    ends, others = _ends_without_receive(calls)
    yield ViolatingCalls(ends & (others[0] == NONE), "nothing to end", of_either=True)


@association_call_rule("R51", *REMOTE_READ_ENDS, complete=True)
def end_of_other_request_id(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """An End of a request id that was not pending, unknown or already ended, while others were pending."""
    ends, others = _ends_without_receive(calls)
    of_other = ends & (others[0] != NONE)
    yield ViolatingCalls(of_other, "no request {request_id} to end", of_either=True, evidence=tuple(others))


@association_call_rule("R32", *REMOTE_READ_ENDS, precondition=_END_CAPTURED)
def end_method_mismatch(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """R_EndReceive of a transactional read, or R_EndTransactionalReceive of another."""
    receive, opnum = ended_receive(calls), calls.numbers("opnum")
    decoded = take_or(calls.request_decoded, receive, default=False)
    started_by = take_or(opnum, receive, NONE)
    crossed = (opnum == REMOTE_READ_ENDS[0][1]) != (started_by == REMOTE_READ_READS[0][1])
    actual = "opnum {opnum} ends a read of opnum {}"
    yield ViolatingCalls(decoded & crossed, actual, (started_by,), evidence=(receive,))


@association_call_rule("R33", *REMOTE_READ_ENDS, precondition=_END_CAPTURED)
def end_of_peek(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """An End follows a peek."""
    read = last_before(calls, exchanges(calls), calls.of(*REMOTE_READ_READS))
    for method in REMOTE_READ_READS:
        of_peek = take_or(calls.of(method) & calls.is_peek & calls.succeeded, read, default=False)
        source = PROTOCOL_RULES["R33"].source_for(method)
        yield ViolatingCalls(of_peek, "an End of a peek", source=source, evidence=(read,))


def _receives_never_ended(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """Yield receives that returned a message and were neither ended nor cancelled before their context closed.

    Of several with one request id that is the last one.
    """
    receives = calls.of(*REMOTE_READ_READS) & calls.is_receive
    followed = last_before(calls, exchanges(calls), receives)[receives]
    never_ended = receives & ~has_end(calls) & ~calls.at(followed[followed != NONE])
    close = calls.context.closes
    closed = take_or(calls.started_at, close, BEFORE_ALL) > calls.responded_at
    yield ViolatingCalls(never_ended & closed, "no End before the queue was closed", evidence=(close,))
    open_at_end = never_ended & (close == NONE) & calls.closed_by_fin
    yield ViolatingCalls(open_at_end, "no End before the connection was closed")


@association_call_rule("R30", REMOTE_READ_READS[0], needs="ok", complete=True, precondition=_CONTEXT_CLOSED)
def receive_never_ended(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A message that R_StartReceive returned is neither ended nor cancelled."""
    yield from _receives_never_ended(calls)


@association_call_rule("R31", REMOTE_READ_READS[1], needs="ok", complete=True, precondition=_CONTEXT_CLOSED)
def transactional_receive_never_ended(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A message that R_StartTransactionalReceive returned is neither ended nor cancelled."""
    yield from _receives_never_ended(calls)


@association_call_rule("R72", *REMOTE_READ_ENDS, needs="ok", precondition=_END_CAPTURED)
def end_accepted_after_cleanup(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """An End well after the clean-up timer was answered MQ_OK; another setting of the server explains it (D3)."""
    receive = ended_receive(calls)
    after = calls.started_at - take_or(calls.responded_at, receive, AFTER_ALL)
    late = after > CLEANUP_TIMEOUT_US + TIMER_SLACK_US
    yield ViolatingCalls(
        late, "MQ_OK {:.0f} s after the message came", (after / 1e6,), severity="info", evidence=(receive,)
    )


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
