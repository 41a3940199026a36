"""Rules on the delivery of messages, as one association sees it. No Spark.

A message is known by its number in its queue. An association knows of it what its own reads and Ends show. Reads of
others are seen only where they share the association, so a message that another association receives again is not
evaluated here (``duplicate_delivery``).
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Final

from pipeline.findings.columns.call_history import (
    CLEANUP_TIMEOUT_US,
    QM2QM_READS,
    REMOTE_READ_READS,
    TIMER_SLACK_US,
    AssociationHistory,
    CapturedCall,
)
from pipeline.findings.columns.deliveries import (
    class_settings,
    moves,
    purged_messages,
    reads_after_rejection,
    rejections,
    repeated_deliveries,
)
from pipeline.findings.rules.qm2qm import client_section
from pipeline.findings.rules.registry import Violation, association_rule
from udfs.codes import MQMSG_CLASS_NACK_RECEIVE_REJECTED, RR_ACK, RR_NACK
from udfs.columns.absent import AFTER_ALL
from udfs.dcerpc.interfaces import QM2QM_NAME, REMOTE_READ_NAME

_READS: Final = {QM2QM_NAME: QM2QM_READS, REMOTE_READ_NAME: REMOTE_READ_READS}
_RECEIVE_FIRST: Final = 0  # MQ_ACTION_RECEIVE
_NUMBERS_RETURNED: Final = "the reads return the message's number"


@dataclass(slots=True)
class _Delivery:
    """A read that returned a message, and the End that completed it; None without one."""

    read: CapturedCall
    end: CapturedCall | None = None

    @property
    def acked(self) -> bool:
        return self.end is not None and self.end.succeeded and self.end["ack"] == RR_ACK

    @property
    def nacked(self) -> bool:
        return self.end is not None and self.end.succeeded and self.end["ack"] == RR_NACK

    @property
    def transactional(self) -> bool:
        return self.read["transaction_id"] is not None


def _deliveries_by_message(history: AssociationHistory, protocol: str) -> dict[tuple[object, int], list[_Delivery]]:
    """Return the deliveries of each message in order of time, by (queue, number); computed once per association."""
    return history.share(protocol, lambda: _group_deliveries(history, protocol))


def _group_deliveries(history: AssociationHistory, protocol: str) -> dict[tuple[object, int], list[_Delivery]]:
    found: defaultdict[tuple[object, int], list[_Delivery]] = defaultdict(list)
    ends = {lifetime.open_call["call_key"]: lifetime.close_call for lifetime in history.held_messages}
    for entries in history.pending_receives.values():
        ends |= {entry.receive_call["call_key"]: entry.end_call for entry in entries}
    for read in history.calls_of(*_READS[protocol]):
        queue, message = history.queue_of(read), read.lookup_id_number
        if message is not None and queue is not None:
            found[queue, message].append(_Delivery(read, ends.get(read["call_key"])))
    return found


def _moved_messages(history: AssociationHistory) -> set[int]:
    """Return the numbers of messages that the association moved: they may be in another queue, and come back."""
    return {call.requested_lookup_id for call in history.calls_of((REMOTE_READ_NAME, 10)) if call.succeeded}


def _returned_after_acknowledgement(history: AssociationHistory, protocol: str) -> Iterator[Violation]:
    """Yield reads that returned a message which was acknowledged before they were made."""
    moved = _moved_messages(history)
    for (_, number), deliveries in _deliveries_by_message(history, protocol).items():
        first: tuple[CapturedCall, CapturedCall, int] | None = None  # the first acknowledged: read, End, answered at
        for delivery in deliveries if number not in moved else ():
            read, end = delivery.read, delivery.end
            if first is not None and read.started_at > first[2]:
                yield Violation(read, f"message {number} was acknowledged", (*first[:2], read))
            acked = delivery.acked and read.is_receive and not delivery.transactional
            if acked and end is not None and end.responded_at is not None:
                first = min(first or (read, end, end.responded_at), (read, end, end.responded_at), key=itemgetter(2))


def _held_until(history: AssociationHistory, protocol: str, delivery: _Delivery) -> int:
    """Return the time until which a receive that was answered certainly holds its message."""
    context = history.context_lifetime(delivery.read) if protocol == REMOTE_READ_NAME else None
    closed = context.close_call if context is not None else None
    gone = [call.started_at for call in (delivery.end, closed) if call is not None]
    if protocol == REMOTE_READ_NAME:
        gone.append((delivery.read.responded_at or 0) + CLEANUP_TIMEOUT_US - TIMER_SLACK_US)
    return min(gone, default=AFTER_ALL)


def _returned_while_held(history: AssociationHistory, protocol: str, *, transactional: bool) -> Iterator[Violation]:
    """Yield receives that returned a message which another receive certainly holds."""
    for (_, number), deliveries in _deliveries_by_message(history, protocol).items():
        answered = [each for each in deliveries if each.read.is_receive and each.read.responded_at is not None]
        by_answer = deque(
            sorted(
                (each for each in answered if each.transactional == transactional),
                key=lambda each: each.read.responded_at or 0,
            )
        )
        holder: tuple[int, CapturedCall] | None = None  # the one that holds it longest, of those answered by then
        for second in (each.read for each in answered):
            while by_answer and (by_answer[0].read.responded_at or 0) < second.started_at:
                delivery = by_answer.popleft()
                held = _held_until(history, protocol, delivery), delivery.read
                holder = max(holder or held, held, key=itemgetter(0))
            if holder is not None and (second.responded_at or 0) < holder[0]:
                yield Violation(second, f"message {number} is held", (holder[1], second))


@association_rule("Q22", precondition=_NUMBERS_RETURNED, complete=True, suspects=repeated_deliveries)
def qm2qm_message_returned_after_acknowledgement(history: AssociationHistory) -> Iterator[Violation]:
    """A read returned a message that was acknowledged."""
    yield from _returned_after_acknowledgement(history, QM2QM_NAME)


@association_rule("Q24", precondition=_NUMBERS_RETURNED, complete=True, suspects=repeated_deliveries)
def qm2qm_message_returned_while_held(history: AssociationHistory) -> Iterator[Violation]:
    """A receive returned a message that another receive holds."""
    yield from _returned_while_held(history, QM2QM_NAME, transactional=False)


@association_rule("R53", precondition=_NUMBERS_RETURNED, complete=True, suspects=repeated_deliveries)
def remote_read_message_returned_again(history: AssociationHistory) -> Iterator[Violation]:
    """A read returned a message that was acknowledged, or that another receive holds."""
    yield from _returned_after_acknowledgement(history, REMOTE_READ_NAME)
    yield from _returned_while_held(history, REMOTE_READ_NAME, transactional=False)


@association_rule("R54", precondition=_NUMBERS_RETURNED, complete=True, suspects=repeated_deliveries)
def message_returned_while_held_in_transaction(history: AssociationHistory) -> Iterator[Violation]:
    """A receive returned a message that another receive holds in a transaction."""
    yield from _returned_while_held(history, REMOTE_READ_NAME, transactional=True)


@association_rule("Q23", precondition=_NUMBERS_RETURNED, complete=True, suspects=reads_after_rejection)
def rejected_message_skipped(history: AssociationHistory) -> Iterator[Violation]:
    """The next receive skips a message that was rejected with RR_NACK, and returns one behind it."""
    read_of: defaultdict[object, list[CapturedCall]] = defaultdict(list)
    for call in history.calls_of(*_READS[QM2QM_NAME]):
        if call.succeeded and call["action"] == _RECEIVE_FIRST and call.lookup_id_number is not None:
            read_of[history.queue_of(call)].append(call)
    for (queue, message), deliveries in _deliveries_by_message(history, QM2QM_NAME).items():
        for delivery in deliveries:
            end = delivery.end
            if not delivery.nacked or end is None or end.responded_at is None:
                continue
            place = bisect_right(read_of[queue], end.responded_at, key=lambda call: call.started_at)
            following = read_of[queue][place] if place < len(read_of[queue]) else None
            number = following.lookup_id_number if following is not None else None
            if following is not None and number is not None and number > message:
                actual = f"message {number}, {message} was given back"
                yield Violation(following, actual, (delivery.read, end, following))


@association_rule("R52", precondition=_NUMBERS_RETURNED, complete=True, suspects=repeated_deliveries)
def second_acknowledgement_accepted(history: AssociationHistory) -> Iterator[Violation]:
    """The acknowledgement of a message that was acknowledged before was answered MQ_OK."""
    moved = _moved_messages(history)
    for (_, number), deliveries in _deliveries_by_message(history, REMOTE_READ_NAME).items():
        acked = [delivery for delivery in deliveries if delivery.acked and not delivery.transactional]
        for before, delivery in itertools.pairwise(acked if number not in moved else ()):
            first, second = before.end, delivery.end
            if first is None or second is None or first.responded_at is None or second.started_at <= first.responded_at:
                continue
            yield Violation(second, f"message {number} was acknowledged", (before.read, first, second))


@association_rule("Q49", precondition=_NUMBERS_RETURNED, complete=True, suspects=purged_messages)
def message_returned_after_purge(history: AssociationHistory) -> Iterator[Violation]:
    """A read returned a message that was in the queue before a purge."""
    purges_of: defaultdict[object, list[CapturedCall]] = defaultdict(list)
    for purge in sorted(history.calls_of((QM2QM_NAME, 6)), key=lambda call: call.responded_at or 0):
        if purge.succeeded and purge.responded_at is not None:
            purges_of[purge["queue_handle"]].append(purge)
    for (queue, message), deliveries in _deliveries_by_message(history, QM2QM_NAME).items() if purges_of else ():
        first: CapturedCall | None = None  # peek that was answered
        last: CapturedCall | None = None  # purge that was looked at
        for read in (delivery.read for delivery in deliveries):
            place = bisect_left(purges_of[queue], read.started_at, key=lambda call: call.responded_at or 0)
            before = purges_of[queue][place - 1] if place else None
            if before is not None and before is not last and first is not None:
                if (first.responded_at or 0) < before.started_at:
                    yield Violation(read, f"message {message} was purged", (first, before, read))
                last = before
            if read.is_peek and (first is None or (read.responded_at or 0) < (first.responded_at or 0)):
                first = read


@association_rule("R60", precondition=_NUMBERS_RETURNED, complete=True, suspects=moves)
def move_of_absent_message_accepted(history: AssociationHistory) -> Iterator[Violation]:
    """The move of a message that was moved away or acknowledged before was answered MQ_OK."""
    gone: dict[tuple[object, int], CapturedCall] = {}
    for name, deliveries in _deliveries_by_message(history, REMOTE_READ_NAME).items():
        for delivery in deliveries:
            if delivery.acked and not delivery.transactional and delivery.end is not None:
                gone[name] = delivery.end
    targets = {call["move_context"]: call["queue"] for call in history.calls_of((REMOTE_READ_NAME, 11))}
    for call in history.calls_of((REMOTE_READ_NAME, 10)):
        name = (history.queue_of(call), call.requested_lookup_id)
        before = gone.get(name)
        if not call.succeeded:
            continue
        if before is not None and before.responded_at is not None and before.responded_at < call.started_at:
            yield Violation(call, f"message {call.requested_lookup_id} was gone", (before, call))
        gone.pop((targets.get(call["move_context"]), call.requested_lookup_id), None)
        if call["transaction_id"] is None:
            gone[name] = call


def _rejections_of_readable_messages(history: AssociationHistory, protocol: str) -> Iterator[Violation]:
    """Yield Ends that reject a message whose packet was decoded without an error."""
    for deliveries in _deliveries_by_message(history, protocol).values():
        for delivery in deliveries:
            end, read = delivery.end, delivery.read
            readable = read["body_bytes"] is not None and not read["message_errors"]
            if delivery.nacked and end is not None and readable:
                yield Violation(end, "RR_NACK", (read, end), source=client_section(read))


association_rule("Q68", precondition=_NUMBERS_RETURNED, complete=True, suspects=rejections)(
    partial(_rejections_of_readable_messages, protocol=QM2QM_NAME)
)
association_rule("R55", precondition=_NUMBERS_RETURNED, complete=True, suspects=rejections)(
    partial(_rejections_of_readable_messages, protocol=REMOTE_READ_NAME)
)


@dataclass(slots=True)
class _TransactionalReads:
    """The transactional receives of a message: when one first returned it, and an End of one was first made."""

    first: CapturedCall
    returned_at: int = AFTER_ALL
    ended_at: int = AFTER_ALL


@association_rule("R69", precondition=_NUMBERS_RETURNED, complete=True, suspects=class_settings)
def acknowledgement_class_set_early(history: AssociationHistory) -> Iterator[Violation]:
    """R_SetUserAcknowledgementClass comes before the message's receive, or before its End."""
    first_end: dict[tuple[str, int], int] = {}  # when the first End of a request id was made, by context
    for end in history.calls_of((REMOTE_READ_NAME, 15)):
        first_end.setdefault((end["context_handle"], end["request_id"]), end.started_at)
    known: dict[tuple[str, int], _TransactionalReads] = {}
    for read in history.calls_of((REMOTE_READ_NAME, 13)):
        if read.lookup_id_number is not None:
            name = read["context_handle"], read.lookup_id_number
            ended_at = first_end.get((name[0], read["request_id"]), AFTER_ALL)
            found = known.setdefault(name, _TransactionalReads(read))
            found.returned_at = min(found.returned_at, read.responded_at or read.started_at)
            found.ended_at = min(found.ended_at, ended_at)
    for call in history.calls_of((REMOTE_READ_NAME, 14)):
        number = call.requested_lookup_id
        reads = known.get((call["context_handle"], number))
        if not call.request_decoded:
            continue
        if reads is None or reads.returned_at > call.started_at:
            yield Violation(call, f"no R_StartTransactionalReceive of message {number}")
        elif reads.ended_at >= call.started_at:
            yield Violation(call, f"no R_EndTransactionalReceive of message {number}", (reads.first, call))


@association_rule("R70", precondition=_NUMBERS_RETURNED, complete=True, suspects=class_settings)
def acknowledgement_class_of_unknown_message_accepted(history: AssociationHistory) -> Iterator[Violation]:
    """R_SetUserAcknowledgementClass of a message that no transactional receive returned was answered MQ_OK."""
    reads = history.calls_of((REMOTE_READ_NAME, 13))
    if any(not read.response_decoded and not read.failed for read in reads):
        return
    known = {read.lookup_id_number for read in reads if read["transaction_id"] is not None}
    for call in history.calls_of((REMOTE_READ_NAME, 14)):
        allowed = call["acknowledgement_class"] in (0, MQMSG_CLASS_NACK_RECEIVE_REJECTED)
        if call.succeeded and allowed and call.requested_lookup_id not in known:
            yield Violation(call, f"message {call.requested_lookup_id} is in no transaction")
