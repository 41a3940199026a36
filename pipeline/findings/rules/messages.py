"""Rules on the delivery of messages, as one association sees it. No Spark.

A message is known by its number in its queue. An association knows of it what its own reads and Ends show. Reads of
others are seen only where they share the association, so a message that another association receives again is not
evaluated here (``duplicate_delivery``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from pipeline.findings.columns.association_calls import QM2QM_END, REMOTE_READ_ENDS, AssociationCalls
from pipeline.findings.columns.call_columns import Mask, Numbers
from pipeline.findings.columns.call_history import QM2QM_READS, REMOTE_READ_READS, CapturedCall
from pipeline.findings.columns.deliveries import (
    acknowledged,
    first_of_same,
    held_until,
    message_numbers,
    messages_returned_again,
    opened_queues,
    previous_of_same,
    returned_messages,
)
from pipeline.findings.columns.exchanges import ended_by, ended_receive
from pipeline.findings.rules.qm2qm import client_section
from pipeline.findings.rules.registry import ViolatingCalls, association_call_rule
from udfs.codes import MQMSG_CLASS_NACK_RECEIVE_REJECTED, RR_NACK
from udfs.columns.absent import AFTER_ALL, NONE
from udfs.columns.codes import row_codes
from udfs.columns.groups import Groups, first_of, take_or
from udfs.columns.time_index import TimeIndex
from udfs.dcerpc.interfaces import QM2QM_NAME, REMOTE_READ_NAME

_PURGE: Final = (QM2QM_NAME, 6)
_MOVE, _OPEN_FOR_MOVE = (REMOTE_READ_NAME, 10), (REMOTE_READ_NAME, 11)
_TRANSACTIONAL_READ, _SET_CLASS, _TRANSACTIONAL_END = ((REMOTE_READ_NAME, opnum) for opnum in (13, 14, 15))
_SECTION_COLUMNS: Final = ("interface_name", "opnum", "action", "cursor_handle")
_RECEIVE_FIRST: Final = 0  # MQ_ACTION_RECEIVE
_NUMBERS_RETURNED: Final = "the reads return the message's number"


def _may_have_moved(calls: AssociationCalls) -> Mask:
    """Tell which calls returned a message that the association moved: it may be in another queue, and come back."""
    moves = calls.of(_MOVE) & calls.succeeded
    if not moves.any():
        return moves
    messages = row_codes([calls.association, message_numbers(calls, _MOVE)])
    return np.isin(messages, messages[moves])


def _returned_after_acknowledgement(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """Yield reads that returned a message which was acknowledged before they were made."""
    messages, ends = messages_returned_again(calls), ended_by(calls)
    gone_at = np.maximum(take_or(calls.responded_at, ends, AFTER_ALL), calls.started_at)
    takers = calls.judged & (messages != NONE) & acknowledged(calls) & ~_may_have_moved(calls)
    first = first_of_same(messages, calls.in_order(takers, gone_at, calls.started_at))
    again = calls.started_at > take_or(gone_at, first, AFTER_ALL)
    evidence = first, take_or(ends, first, NONE)
    yield ViolatingCalls(again, "message {} was acknowledged", (calls.lookup_id_number,), evidence=evidence)


def _returned_while_held(calls: AssociationCalls, *, in_transaction: bool) -> Iterator[ViolatingCalls]:
    """Yield receives that returned a message which another receive certainly holds."""
    messages, answered_at = messages_returned_again(calls), calls.responded_at
    receives = calls.judged & (messages != NONE) & calls.is_receive & calls.answered
    if not receives.any():
        return
    holders = receives & (calls.has("transaction_id") == in_transaction)
    rows = calls.in_order(holders, answered_at, calls.started_at)
    groups, until = Groups(rows, messages[rows]), held_until(calls)
    longest = groups.row_of_largest_so_far(until[groups.rows])
    index = TimeIndex(groups.keys, answered_at[groups.rows], longest)
    holder = index.latest(messages, calls.started_at, inclusive=False)
    held = receives & (answered_at < take_or(until, holder, NONE))
    yield ViolatingCalls(held, "message {} is held", (calls.lookup_id_number,), evidence=(holder,))


@association_call_rule("Q22", *QM2QM_READS, needs="ok", complete=True, precondition=_NUMBERS_RETURNED)
def qm2qm_message_returned_after_acknowledgement(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read returned a message that was acknowledged."""
    yield from _returned_after_acknowledgement(calls)


@association_call_rule("Q24", *QM2QM_READS, needs="ok", complete=True, precondition=_NUMBERS_RETURNED)
def qm2qm_message_returned_while_held(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A receive returned a message that another receive holds."""
    yield from _returned_while_held(calls, in_transaction=False)


@association_call_rule("R53", *REMOTE_READ_READS, needs="ok", complete=True, precondition=_NUMBERS_RETURNED)
def remote_read_message_returned_again(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read returned a message that was acknowledged, or that another receive holds."""
    yield from _returned_while_held(calls, in_transaction=False)
    yield from _returned_after_acknowledgement(calls)


@association_call_rule("R54", *REMOTE_READ_READS, needs="ok", complete=True, precondition=_NUMBERS_RETURNED)
def message_returned_while_held_in_transaction(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A receive returned a message that another receive holds in a transaction."""
    yield from _returned_while_held(calls, in_transaction=True)


@association_call_rule("Q23", *QM2QM_READS, needs="ok", complete=True, precondition=_NUMBERS_RETURNED)
def rejected_message_skipped(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """The next receive skips a message that was rejected with RR_NACK, and returns one behind it."""
    numbers, ends = calls.lookup_id_number, ended_by(calls)
    rejected = (returned_messages(calls) != NONE) & take_or(_rejects(calls), ends, default=False)
    rejected = calls.in_order(rejected & calls.judged, numbers, calls.started_at)
    if not rejected.size:  # keys of all calls take long
        return
    queues = calls.keys("queue_handle")
    receives = calls.in_order(calls.judged & calls.equals("action", _RECEIVE_FIRST) & (numbers != 0), calls.started_at)
    index = TimeIndex(queues[receives], calls.started_at[receives], receives)
    following = index.first_after(queues[rejected], calls.responded_at[ends[rejected]])
    skips = take_or(numbers, following, 0) > numbers[rejected]
    skipped = first_of(following[skips], rejected[skips], calls.count)
    actual = "message {}, {} was given back"
    given = numbers, take_or(numbers, skipped, 0)
    yield ViolatingCalls(skipped != NONE, actual, given, evidence=(skipped, take_or(ends, skipped, NONE)))


def _rejects(calls: AssociationCalls) -> Mask:
    """Tell which Ends gave their message back."""
    return calls.succeeded & calls.equals("ack", RR_NACK)


@association_call_rule("R52", *REMOTE_READ_ENDS, needs="ok", complete=True, precondition=_NUMBERS_RETURNED)
def second_acknowledgement_accepted(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """The acknowledgement of a message that was acknowledged before was answered MQ_OK."""
    messages = messages_returned_again(calls)
    takers = (messages != NONE) & acknowledged(calls) & ~_may_have_moved(calls)
    before = previous_of_same(messages, calls.in_order(takers, calls.started_at))
    first = take_or(before, ended_receive(calls), NONE)
    first_end = take_or(ended_by(calls), first, NONE)
    again = calls.started_at > take_or(calls.responded_at, first_end, AFTER_ALL)
    numbers = take_or(calls.lookup_id_number, first, 0)
    yield ViolatingCalls(again, "message {} was acknowledged", (numbers,), evidence=(first, first_end))


@association_call_rule("Q49", *QM2QM_READS, needs="ok", complete=True, precondition=_NUMBERS_RETURNED)
def message_returned_after_purge(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read returned a message that was in the queue before a purge; only the first read after it."""
    purges = calls.in_order(calls.of(_PURGE) & calls.succeeded & calls.answered, calls.started_at)
    if not purges.size:  # keys of all calls take long
        return
    queues, messages = calls.keys("queue_handle"), messages_returned_again(calls)
    reads = calls.judged & (messages != NONE)
    first_peek = first_of_same(messages, calls.in_order(reads & calls.is_peek, calls.responded_at, calls.started_at))
    index = TimeIndex(queues[purges], calls.responded_at[purges], purges)
    purge = index.latest(queues, calls.started_at, inclusive=False)
    before = previous_of_same(messages, calls.in_order(reads, calls.started_at))
    is_first = reads & (purge != take_or(purge, before, NONE))
    was_there = take_or(calls.responded_at, first_peek, AFTER_ALL) < take_or(calls.started_at, purge, NONE)
    evidence, numbers = (first_peek, purge), (calls.lookup_id_number,)
    yield ViolatingCalls(is_first & was_there, "message {} was purged", numbers, evidence=evidence)


@association_call_rule("R60", _MOVE, needs="ok", complete=True, precondition=_NUMBERS_RETURNED)
def move_of_absent_message_accepted(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """The move of a message that was moved away or acknowledged before was answered MQ_OK.

    A message is gone after its acknowledgement, and after a move out of its queue; it is back after a move into it.
    """
    takers = calls.in_order((returned_messages(calls) != NONE) & acknowledged(calls), calls.started_at)
    moves = calls.in_order(calls.judged, calls.started_at)
    turns, is_final = np.arange(len(moves)), ~calls.has("transaction_id")[moves]
    gone = np.concatenate([ended_by(calls)[takers], np.full(len(moves), NONE), moves[is_final]])
    gone_in = np.concatenate([np.full(len(takers), NONE), turns, turns[is_final]])
    sources, targets = calls.context.opens, _opens_of_targets(calls)
    opens = np.concatenate([sources[moves], sources[takers], targets[moves], sources[moves[is_final]]])
    rows = np.concatenate([moves, takers, moves, moves[is_final]])
    numbers = message_numbers(calls, _MOVE)[rows]
    messages = row_codes([calls.association[rows], take_or(opened_queues(calls), opens, NONE), numbers])
    moved, events = np.split(messages, [len(moves)])
    before = np.full(calls.count, NONE)
    before[moves] = TimeIndex(events, gone_in, gone).latest(moved, turns, inclusive=False)
    absent = take_or(calls.responded_at, before, AFTER_ALL) < calls.started_at
    yield ViolatingCalls(absent, "message {} was gone", (calls.requested_lookup_id,), evidence=(before,))


def _opens_of_targets(calls: AssociationCalls) -> Numbers:
    """Return the position of the last call that opened each move's target; ``NONE`` without one."""
    opens = calls.in_order(calls.of(_OPEN_FOR_MOVE), calls.started_at)
    return first_of_same(calls.keys("move_context"), opens[::-1])


def _rejections_of_readable_messages(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """Yield Ends that reject a message whose packet was decoded without an error."""
    rejected, reads = calls.judged & _rejects(calls), ended_receive(calls)
    if not rejected.any():
        return
    readable = (returned_messages(calls) != NONE) & calls.has("body_bytes") & ~calls.has_message_errors
    rejected &= take_or(readable, reads, default=False)
    _, sections = calls.computed(calls.at(reads[rejected]), _SECTION_COLUMNS, _section)
    yield ViolatingCalls(rejected, "RR_NACK", (sections[reads],), source="{}", evidence=(reads,))


def _section(read: dict[str, Any]) -> str:
    return client_section(CapturedCall(read))


@association_call_rule("Q68", QM2QM_END, needs="ok", complete=True, precondition=_NUMBERS_RETURNED)
def readable_message_rejected(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A message that could be decoded is rejected."""
    yield from _rejections_of_readable_messages(calls)


@association_call_rule("R55", *REMOTE_READ_ENDS, needs="ok", complete=True, precondition=_NUMBERS_RETURNED)
def remote_read_readable_message_rejected(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A message that could be decoded is rejected."""
    yield from _rejections_of_readable_messages(calls)


@association_call_rule("R69", _SET_CLASS, complete=True, precondition=_NUMBERS_RETURNED)
def acknowledgement_class_set_early(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """R_SetUserAcknowledgementClass comes before the message's receive, or before its End."""
    numbers = message_numbers(calls, _SET_CLASS)
    messages, requests = row_codes([calls.keys("context_handle"), numbers]), calls.keys("context_handle", "request_id")
    reads = calls.in_order(calls.of(_TRANSACTIONAL_READ) & (numbers != 0), calls.started_at)
    first_end = first_of_same(requests, calls.in_order(calls.of(_TRANSACTIONAL_END), calls.started_at))
    ended_at = take_or(calls.started_at, first_end[reads], AFTER_ALL)
    first = first_of_same(messages, reads)
    returned = TimeIndex(messages[reads], calls.ended_at[reads]).latest(messages, calls.started_at) != NONE
    was_ended = TimeIndex(messages[reads], ended_at).latest(messages, calls.started_at, inclusive=False) != NONE
    yield ViolatingCalls(~returned, "no R_StartTransactionalReceive of message {}", (numbers,))
    yield ViolatingCalls(~was_ended, "no R_EndTransactionalReceive of message {}", (numbers,), evidence=(first,))


@association_call_rule("R70", _SET_CLASS, needs="ok", complete=True, precondition=_NUMBERS_RETURNED)
def acknowledgement_class_of_unknown_message_accepted(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """R_SetUserAcknowledgementClass of a message that no transactional receive returned was answered MQ_OK."""
    numbers, reads = message_numbers(calls, _SET_CLASS), calls.of(_TRANSACTIONAL_READ)
    unread = reads & ~calls.response_decoded & ~calls.failed
    all_read = ~np.isin(calls.association, calls.association[unread])
    messages = row_codes([calls.association, numbers])
    known = np.isin(messages, messages[reads & calls.has("transaction_id") & (numbers != 0)])
    allowed = calls.equals("acknowledgement_class", 0, MQMSG_CLASS_NACK_RECEIVE_REJECTED)
    yield ViolatingCalls(all_read & allowed & ~known, "message {} is in no transaction", (numbers,))
