"""Rules on the delivery of messages, as one association sees it. No Spark.

A message is known by its number in its queue. An association knows of it what its own reads and Ends show. Reads of
others are seen only where they share the association, so a message that another association receives again is not
judged here (``duplicate_delivery``).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from pipeline.findings.rules.call_history import (
    CLEANUP_TIMEOUT_US,
    QM2QM_READS,
    REMOTE_READ_READS,
    TIMER_SLACK_US,
    AssociationHistory,
    CapturedCall,
)
from pipeline.findings.rules.qm2qm import client_section
from pipeline.findings.rules.registry import Violation, complete_association_rule
from udfs.codes import MQMSG_CLASS_NACK_RECEIVE_REJECTED, RR_ACK, RR_NACK
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
    if protocol not in history.rule_cache:
        history.rule_cache[protocol] = _group_deliveries(history, protocol)
    found: dict[tuple[object, int], list[_Delivery]] = history.rule_cache[protocol]
    return found


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


def _repeated_deliveries(history: AssociationHistory, protocol: str) -> Iterator[tuple[_Delivery, _Delivery]]:
    """Yield each receive of a message with each later delivery of the same message."""
    for deliveries in _deliveries_by_message(history, protocol).values():
        for place, delivery in enumerate(deliveries):
            if delivery.read.is_receive:
                for later in deliveries[place + 1 :]:
                    yield delivery, later


def _was_moved(history: AssociationHistory, message: int | None) -> bool:
    """Tell whether the association moved the message: it may be in another queue, and come back."""
    return any(
        call.succeeded and call.requested_lookup_id == message for call in history.calls_of((REMOTE_READ_NAME, 10))
    )


def _returned_after_acknowledgement(history: AssociationHistory, protocol: str) -> Iterator[Violation]:
    """Yield reads that returned a message which was acknowledged before they were made."""
    for delivery, later in _repeated_deliveries(history, protocol):
        end = delivery.end
        if end is None or end.responded_at is None or not delivery.acked or delivery.transactional:
            continue
        number = delivery.read.lookup_id_number
        if later.read.started_at > end.responded_at and not _was_moved(history, number):
            yield Violation(later.read, f"message {number} was acknowledged", (delivery.read, end, later.read))


def _returned_while_held(history: AssociationHistory, protocol: str, *, transactional: bool) -> Iterator[Violation]:
    """Yield receives that returned a message which another receive certainly holds."""
    for delivery, later in _repeated_deliveries(history, protocol):
        read, second = delivery.read, later.read
        if not second.is_receive or delivery.transactional != transactional:
            continue
        if read.responded_at is None or second.responded_at is None:
            continue
        context = history.context_lifetime(read) if protocol == REMOTE_READ_NAME else None
        closed = context.close_call if context is not None else None
        gone = [call.started_at for call in (delivery.end, closed) if call is not None]
        if protocol == REMOTE_READ_NAME:
            gone.append(read.responded_at + CLEANUP_TIMEOUT_US - TIMER_SLACK_US)
        if read.responded_at < second.started_at and second.responded_at < min(gone, default=1 << 62):
            yield Violation(second, f"message {read.lookup_id_number} is held", (read, second))


@complete_association_rule("Q22", _NUMBERS_RETURNED)
def qm2qm_message_returned_after_acknowledgement(history: AssociationHistory) -> Iterator[Violation]:
    """A read returned a message that was acknowledged."""
    yield from _returned_after_acknowledgement(history, QM2QM_NAME)


@complete_association_rule("Q24", _NUMBERS_RETURNED)
def qm2qm_message_returned_while_held(history: AssociationHistory) -> Iterator[Violation]:
    """A receive returned a message that another receive holds."""
    yield from _returned_while_held(history, QM2QM_NAME, transactional=False)


@complete_association_rule("R53", _NUMBERS_RETURNED)
def remote_read_message_returned_again(history: AssociationHistory) -> Iterator[Violation]:
    """A read returned a message that was acknowledged, or that another receive holds."""
    yield from _returned_after_acknowledgement(history, REMOTE_READ_NAME)
    yield from _returned_while_held(history, REMOTE_READ_NAME, transactional=False)


@complete_association_rule("R54", _NUMBERS_RETURNED)
def message_returned_while_held_in_transaction(history: AssociationHistory) -> Iterator[Violation]:
    """A receive returned a message that another receive holds in a transaction."""
    yield from _returned_while_held(history, REMOTE_READ_NAME, transactional=True)


@complete_association_rule("Q23", _NUMBERS_RETURNED)
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
            following = next((call for call in read_of[queue] if call.started_at > (end.responded_at or 0)), None)
            number = following.lookup_id_number if following is not None else None
            if following is not None and number is not None and number > message:
                actual = f"message {number}, {message} was given back"
                yield Violation(following, actual, (delivery.read, end, following))


@complete_association_rule("R52", _NUMBERS_RETURNED)
def second_acknowledgement_accepted(history: AssociationHistory) -> Iterator[Violation]:
    """The acknowledgement of a message that was acknowledged before was answered MQ_OK."""
    for deliveries in _deliveries_by_message(history, REMOTE_READ_NAME).values():
        acked = [delivery for delivery in deliveries if delivery.acked and not delivery.transactional]
        for before, delivery in itertools.pairwise(acked):
            first, second, number = before.end, delivery.end, delivery.read.lookup_id_number
            if first is None or second is None or first.responded_at is None or second.started_at <= first.responded_at:
                continue
            if not _was_moved(history, number):
                yield Violation(second, f"message {number} was acknowledged", (before.read, first, second))


@complete_association_rule("Q49", _NUMBERS_RETURNED)
def message_returned_after_purge(history: AssociationHistory) -> Iterator[Violation]:
    """A read returned a message that was in the queue before a purge."""
    purges = [call for call in history.calls_of((QM2QM_NAME, 6)) if call.succeeded and call.responded_at is not None]
    for (queue, message), deliveries in _deliveries_by_message(history, QM2QM_NAME).items() if purges else ():
        reads = [delivery.read for delivery in deliveries]
        for purge in purges:
            before = [read for read in reads if read.is_peek and (read.responded_at or 0) < purge.started_at]
            after = [read for read in reads if read.started_at > (purge.responded_at or 0)]
            if purge["queue_handle"] == queue and before and after:
                yield Violation(after[0], f"message {message} was purged", (before[0], purge, after[0]))


@complete_association_rule("R60", _NUMBERS_RETURNED)
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


complete_association_rule("Q68", _NUMBERS_RETURNED)(partial(_rejections_of_readable_messages, protocol=QM2QM_NAME))
complete_association_rule("R55", _NUMBERS_RETURNED)(
    partial(_rejections_of_readable_messages, protocol=REMOTE_READ_NAME)
)


@complete_association_rule("R69", _NUMBERS_RETURNED)
def acknowledgement_class_set_early(history: AssociationHistory) -> Iterator[Violation]:
    """R_SetUserAcknowledgementClass comes before the message's receive, or before its End."""
    reads = [call for call in history.calls_of((REMOTE_READ_NAME, 13)) if call.lookup_id_number is not None]
    ends = history.calls_of((REMOTE_READ_NAME, 15))
    for call in history.calls_of((REMOTE_READ_NAME, 14)):
        if not call.request_decoded:
            continue
        context, number = call["context_handle"], call.requested_lookup_id
        ours = [read for read in reads if read.lookup_id_number == number and read["context_handle"] == context]
        ids = {read["request_id"] for read in ours}
        ended = [end for end in ends if end.started_at < call.started_at and end["context_handle"] == context]
        if not any((read.responded_at or read.started_at) <= call.started_at for read in ours):
            yield Violation(call, f"no R_StartTransactionalReceive of message {number}")
        elif not any(end["request_id"] in ids for end in ended):
            yield Violation(call, f"no R_EndTransactionalReceive of message {number}", (*ours[:1], call))


@complete_association_rule("R70", _NUMBERS_RETURNED)
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
