"""Rules on reads that look at several calls: time-outs, Ends and cancels. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from pipeline.findings.columns.association_calls import QM2QM_END, REMOTE_READ_ENDS, AssociationCalls
from pipeline.findings.columns.call_columns import Mask, Method, Numbers
from pipeline.findings.columns.call_history import (
    CLEANUP_TIMEOUT_US,
    QM2QM_READS,
    REMOTE_READ_READS,
    TIMER_SLACK_US,
)
from pipeline.findings.columns.exchanges import (
    REMOTE_READ_CANCEL,
    end_made_at,
    ended_by,
    ended_receive,
    ends_without_receive,
    exchanges,
    has_end,
    held_message,
    holds_message,
    last_before,
    receive_before,
)
from pipeline.findings.columns.waiting_reads import (
    is_after_first,
    queues_of_sessions,
    reads_left_pending,
    reads_met,
    waiting_with_same_key,
)
from pipeline.findings.rules.qm2qm import client_section
from pipeline.findings.rules.registry import (
    PROTOCOL_RULES,
    ViolatingCalls,
    association_call_rule,
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
_QM2QM_CANCEL: Final = (QM2QM_NAME, 5)


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
    before = receive_before(calls)
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


def _left_pending(calls: AssociationCalls, reads: tuple[Method, ...], keys: Numbers) -> ViolatingCalls:
    """Return the judged closes that leave a read with their key pending."""
    pending = reads_left_pending(calls, reads, keys)
    request_ids = take_or(calls.numbers("request_id"), pending, 0)
    return ViolatingCalls(pending != NONE, "read {} is pending", (request_ids,), evidence=(pending,))


@association_call_rule("Q38", (QM2QM_NAME, 3), needs="ok", complete=True)
def reads_pending_after_session_close(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read is pending well after its queue was closed."""
    for name in ("queue_handle", "open_context"):
        found = _left_pending(calls, QM2QM_READS, queues_of_sessions(calls, name))
        yield found._replace(calls=found.calls & calls.context.is_known)


@association_call_rule("R13", (REMOTE_READ_NAME, 3), needs="ok", complete=True)
def reads_pending_after_context_close(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read is pending well after its context was closed."""
    yield _left_pending(calls, REMOTE_READ_READS, calls.keys("context_handle"))


@association_call_rule("Q43", _QM2QM_CANCEL, needs="ok", complete=True)
def cancel_accepted_without_reads(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A cancel on a queue without waiting reads was answered MQ_OK."""
    (met,) = reads_met(calls, QM2QM_READS, "queue_handle")
    yield ViolatingCalls(met == NONE, "no read was waiting")


@association_call_rule("Q44", _QM2QM_CANCEL, needs="ok", complete=True)
def cancel_accepted_of_other_request_id(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A cancel of a request id that did not wait, while others did, was answered MQ_OK."""
    (met,) = reads_met(calls, QM2QM_READS, "queue_handle", "request_id")
    others = reads_met(calls, QM2QM_READS, "queue_handle", most=_MOST_EVIDENCE)
    wrong = (met == NONE) & (others[0] != NONE)
    yield ViolatingCalls(wrong, "no read {request_id} was waiting", evidence=tuple(others))


@association_call_rule("Q45", _QM2QM_CANCEL, complete=True)
def cancel_of_unknown_request_id(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A cancel of a request id that no read on the queue had."""
    yield ViolatingCalls(~is_after_first(calls, QM2QM_READS, "queue_handle", "request_id"), "dwRequestID {request_id}")


@association_call_rule("R48", REMOTE_READ_CANCEL, complete=True)
def remote_read_cancel_of_unknown_request_id(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A cancel of a request id that no read of the context had."""
    known = is_after_first(calls, REMOTE_READ_READS, "context_handle", "request_id")
    yield ViolatingCalls(~known, "dwRequestId {request_id}")


@association_call_rule("R46", REMOTE_READ_CANCEL, needs="ok", complete=True)
def cancel_accepted_of_completed_read(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A cancel of a read that did not wait was answered MQ_OK."""
    (met,) = reads_met(calls, REMOTE_READ_READS, "context_handle", "request_id")
    yield ViolatingCalls(met == NONE, "request {request_id} was not waiting")


def _only_read_met(calls: AssociationCalls, reads: tuple[Method, ...], queue: str) -> Numbers:
    """Return the read that each judged cancel is of; ``NONE`` where it may be of none, or of several."""
    met, other = reads_met(calls, reads, queue, "request_id", most=2)
    return np.where(other == NONE, met, NONE)


def _not_cancelled(
    calls: AssociationCalls, reads: tuple[Method, ...], queue: str, *good: int
) -> Iterator[ViolatingCalls]:
    """Yield cancels that were answered MQ_OK although the read did not end with a good HRESULT."""
    read = _only_read_met(calls, reads, queue)

    def of_read(values: Mask) -> Mask:
        return take_or(values, read, default=False)

    waits = of_read(~calls.answered & ~calls.abandoned & ~calls.is_peek) & calls.has_packets_after
    yield ViolatingCalls(waits, "no answer to the read", evidence=(read,))
    ended = of_read(calls.answered) & (take_or(calls.responded_at, read, BEFORE_ALL) >= calls.responded_at)
    yield ViolatingCalls(ended & of_read(calls.succeeded), "a message came all the same", evidence=(read,))
    wrong = ended & of_read(calls.response_decoded & ~calls.equals("hresult", *good)) & calls.judged
    results = calls.computed(calls.at(read[wrong]), ["hresult"], lambda call: result_name(call["hresult"]))[1][read]
    yield ViolatingCalls(wrong, "the read ended with {}", (results,), severity="info", evidence=(read,))


@association_call_rule("Q46", _QM2QM_CANCEL, needs="ok", complete=True)
def qm2qm_read_not_cancelled(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read whose cancel was answered MQ_OK returned a message, or was not answered."""
    good = (MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT, MQ_ERROR_OPERATION_CANCELLED)
    yield from _not_cancelled(calls, QM2QM_READS, "queue_handle", *good)


@association_call_rule("R47", REMOTE_READ_CANCEL, needs="ok", complete=True)
def remote_read_not_cancelled(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A request whose cancel was answered MQ_OK returned a message, or was not answered."""
    yield from _not_cancelled(calls, REMOTE_READ_READS, "context_handle", MQ_ERROR_OPERATION_CANCELLED)


@association_call_rule("Q47", _QM2QM_CANCEL, needs="ok", complete=True)
def cancelled_peek_keeps_waiting(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """The cancel of a waiting peek was answered MQ_OK, and the peek keeps waiting."""
    read = _only_read_met(calls, QM2QM_READS, "queue_handle")
    waits = take_or(calls.is_peek & ~calls.answered, read, default=False)
    yield ViolatingCalls(waits & calls.has_packets_after, "the peek is pending", evidence=(read,))


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


@association_call_rule("R50", *REMOTE_READ_ENDS, complete=True)
def end_without_receives(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """An End on a context without pending receives: nothing was received, or all is ended."""
    ends, others = ends_without_receive(calls)
    yield ViolatingCalls(ends & (others[0] == NONE), "nothing to end", of_either=True)


@association_call_rule("R51", *REMOTE_READ_ENDS, complete=True)
def end_of_other_request_id(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """An End of a request id that was not pending, unknown or already ended, while others were pending."""
    ends, others = ends_without_receive(calls)
    of_other = ends & (others[0] != NONE)
    yield ViolatingCalls(of_other, "no request {request_id} to end", of_either=True, evidence=others)


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
    followed = receive_before(calls)[receives]
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
