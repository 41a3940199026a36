"""Messages that reads of an association returned, as columns: which these are, and how long a reader holds them.

A message is known by its number in its queue. No Spark.
"""

from __future__ import annotations

import numpy as np

from pipeline.findings.columns.association_calls import AssociationCalls
from pipeline.findings.columns.call_columns import Mask, Method, Numbers
from pipeline.findings.columns.call_history import (
    CLEANUP_TIMEOUT_US,
    QM2QM_READS,
    REMOTE_READ_READS,
    TIMER_SLACK_US,
)
from pipeline.findings.columns.exchanges import end_made_at, ended_by
from udfs.codes import RR_ACK
from udfs.columns.absent import AFTER_ALL, NONE
from udfs.columns.codes import either_code, row_codes
from udfs.columns.groups import Groups, first_of, take_or


def opened_queues(calls: AssociationCalls) -> Numbers:
    """Return a number for the queue that each call opens: by its name, or by the context without one."""
    names = calls.dictionary_codes("queue")
    return either_code(names != NONE, names, calls.dictionary_codes("context_handle"))


def returned_messages(calls: AssociationCalls) -> Numbers:
    """Return a number for the message that each read returned; ``NONE`` without one, or if its queue is not known.

    Queues of qm2qm are known by their number.
    """
    return calls.share("returned messages", lambda: _returned_messages(calls))


def _returned_messages(calls: AssociationCalls) -> Numbers:
    of_qm2qm = calls.of(*QM2QM_READS)
    queue_numbers = np.where(calls.has("queue_handle"), calls.numbers("queue_handle"), NONE)
    queues = either_code(of_qm2qm, queue_numbers, calls.at_open(opened_queues(calls), NONE))
    returned = (of_qm2qm | calls.of(*REMOTE_READ_READS)) & (calls.lookup_id_number != 0) & (queues != NONE)
    found = np.full(calls.count, NONE)
    found[returned] = row_codes([each[returned] for each in (calls.association, queues, calls.lookup_id_number)])
    return found


def messages_returned_again(calls: AssociationCalls) -> Numbers:
    """Return the same of those messages that several reads returned; ``NONE`` for others."""
    return calls.share("messages returned again", lambda: _messages_returned_again(calls))


def _messages_returned_again(calls: AssociationCalls) -> Numbers:
    messages = returned_messages(calls)
    several = np.bincount(messages + 1) > 1
    return np.where(several[messages + 1], messages, NONE)


def message_numbers(calls: AssociationCalls, method: Method) -> Numbers:
    """Return the number of a message that calls of a method ask for, and of others that which they return; or 0."""
    returned = calls.lookup_id_number.astype(np.uint64)
    return np.where(calls.of(method), calls.requested_lookup_id, returned)


def acknowledged(calls: AssociationCalls) -> Mask:
    """Tell which receives took their message: their End was accepted as an acknowledgement, outside a transaction."""
    accepted = calls.succeeded & calls.equals("ack", RR_ACK)
    return calls.is_receive & ~calls.has("transaction_id") & take_or(accepted, ended_by(calls), default=False)


def held_until(calls: AssociationCalls) -> Numbers:
    """Return the time until which each receive that was answered certainly holds its message."""
    closed_at = take_or(calls.started_at, calls.context.closes, AFTER_ALL)
    given_up_at = calls.responded_at + CLEANUP_TIMEOUT_US - TIMER_SLACK_US
    given_up_at = np.where(calls.of(*REMOTE_READ_READS), given_up_at, AFTER_ALL)
    result: Numbers = np.minimum.reduce([end_made_at(calls), closed_at, given_up_at])
    return result


def first_of_same(keys: Numbers, rows: Numbers) -> Numbers:
    """Return for each call the first of some positions that has its key; ``NONE`` without one, or without a key."""
    return take_or(first_of(keys[rows], rows, len(keys)), keys, NONE)


def previous_of_same(keys: Numbers, rows: Numbers) -> Numbers:
    """Return for each of some positions the one before it that has its key; ``NONE`` without one, and for others."""
    groups, found = Groups(rows, keys[rows]), np.full(len(keys), NONE)
    found[groups.rows] = groups.before(groups.rows, NONE)
    return found
