"""Receives and what ends them, as columns. No Spark.

An exchange of RemoteRead is the reads, Ends and cancels with one request id on one context. One of qm2qm is the reads
that returned one handle, and the Ends with it. An End, or a cancel that did not fail, ends the newest receive of its
exchange that was made before it, of RemoteRead, or answered before it, of qm2qm, and that is not ended yet.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pipeline.findings.columns.association_calls import (
    QM2QM_END,
    REMOTE_READ_ENDS,
    AssociationCalls,
    Spans,
    UsedHandles,
    used_handles,
)
from pipeline.findings.columns.call_columns import Mask, Numbers
from pipeline.findings.columns.call_history import QM2QM_READS, REMOTE_READ_READS
from udfs.columns.absent import AFTER_ALL, BEFORE_ALL, NONE
from udfs.columns.codes import either_code
from udfs.columns.groups import Groups, newest_open, take_or
from udfs.columns.time_index import TimeIndex
from udfs.dcerpc.interfaces import REMOTE_READ_NAME

REMOTE_READ_CANCEL: Final = (REMOTE_READ_NAME, 8)
_MOST_PENDING: Final = 3  # receives that a finding names


def holds_message(calls: AssociationCalls) -> Mask:
    """Tell which reads of qm2qm returned the handle of a message: the owner holds it until it is ended."""
    return calls.of(*QM2QM_READS) & calls.succeeded & calls.has("remote_read_handle")


def _is_remote_receive(calls: AssociationCalls) -> Mask:
    return calls.of(*REMOTE_READ_READS) & calls.is_receive


def _is_to_end(calls: AssociationCalls) -> Mask:
    return holds_message(calls) | _is_remote_receive(calls)


def exchanges(calls: AssociationCalls) -> Groups:
    """Return the reads, Ends and cancels by exchange, in order of time; computed once.

    Reads of qm2qm are in the order of their answers, before Ends of the same time.
    """
    return calls.share("exchanges", lambda: _exchanges(calls))


def _exchanges(calls: AssociationCalls) -> Groups:
    held, end_of_held = holds_message(calls), calls.of(QM2QM_END) & calls.has("remote_read_handle")
    ours = held | end_of_held | calls.of(*REMOTE_READ_READS, *REMOTE_READ_ENDS, REMOTE_READ_CANCEL)
    request_ids = calls.keys("context_handle", "request_id")
    keys = either_code(held | end_of_held, calls.keys("remote_read_handle"), request_ids)
    rows = calls.in_order(ours, keys, np.where(held, calls.ended_at, calls.started_at), end_of_held)
    return Groups(rows, keys[rows])


def last_before(calls: AssociationCalls, groups: Groups, wanted: Mask) -> Numbers:
    """Return for each call of some groups the position of the last wanted one before it in its group, or ``NONE``.

    Calls of no group have ``NONE``.
    """
    found, places = np.full(calls.count, NONE), np.arange(len(groups.rows))
    before = groups.largest_before(np.where(wanted[groups.rows], places, NONE), NONE)
    found[groups.rows] = take_or(groups.rows, before, NONE)
    return found


def receive_before(calls: AssociationCalls) -> Numbers:
    """Return the position of the last receive before each call in its exchange, ``NONE`` without one; computed once."""
    return calls.share("receive before", lambda: last_before(calls, exchanges(calls), _is_to_end(calls)))


def ended_receive(calls: AssociationCalls) -> Numbers:
    """Return for each End or cancel the position of the receive that it ended, ``NONE`` without one; computed once."""
    return calls.share("ended receive", lambda: _ended_receive(calls))


def _ended_receive(calls: AssociationCalls) -> Numbers:
    groups, found = exchanges(calls), np.full(calls.count, NONE)
    begins = _is_to_end(calls)
    ends = calls.of(*REMOTE_READ_ENDS, REMOTE_READ_CANCEL) & ~calls.failed
    ends |= calls.of(QM2QM_END) & calls.succeeded
    ours = (begins | ends)[groups.rows]
    rows = groups.rows[ours]
    found[rows] = take_or(rows, newest_open(groups.number[ours], begins[rows]), NONE)
    return found


def ended_by(calls: AssociationCalls) -> Numbers:
    """Return for each receive the position of the End or cancel that ended it, ``NONE`` without one; computed once."""
    return calls.share("ended by", lambda: _ended_by(calls))


def _ended_by(calls: AssociationCalls) -> Numbers:
    ended, found = ended_receive(calls), np.full(calls.count, NONE)
    ends = np.flatnonzero(ended != NONE)
    found[ended[ends]] = ends
    return found


def end_made_at(calls: AssociationCalls) -> Numbers:
    """Return when the End, or cancel, of each receive was made; ``AFTER_ALL`` without one."""
    return take_or(calls.started_at, ended_by(calls), AFTER_ALL)


def _pending_until(calls: AssociationCalls) -> Numbers:
    """Return until when a server may have each receive of RemoteRead to end: it failed, or its End was answered."""
    failed_at = np.where(calls.failed, calls.responded_at, AFTER_ALL)
    result: Numbers = np.minimum(failed_at, take_or(calls.responded_at, ended_by(calls), AFTER_ALL))
    return result


def has_end(calls: AssociationCalls) -> Mask:
    """Tell which calls are of an exchange with an End or a cancel, of whatever result."""
    groups, ends = exchanges(calls), calls.of(QM2QM_END, *REMOTE_READ_ENDS, REMOTE_READ_CANCEL)
    return calls.at(groups.rows[groups.any(ends[groups.rows])])


def held_message(calls: AssociationCalls) -> UsedHandles:
    """Return the message of qm2qm whose handle each End names: that of the newest read that returned the handle."""
    opens = receive_before(calls)
    return used_handles(calls, opens, take_or(ended_by(calls), opens, NONE))


def ends_without_receive(calls: AssociationCalls) -> tuple[Mask, tuple[Numbers, ...]]:
    """Return the Ends on open contexts that find no pending receive with their request id; computed once.

    Beside them are the positions of the oldest receives that are pending on the context of each of these Ends: an array
    of the oldest ones, of the next ones, and of the third; ``NONE`` without one.
    """
    return calls.share("ends without receive", lambda: _ends_without_receive(calls))


def _ends_without_receive(calls: AssociationCalls) -> tuple[Mask, tuple[Numbers, ...]]:
    keys, rows = calls.keys("context_handle", "request_id"), np.flatnonzero(_is_remote_receive(calls))
    receives = Spans(keys[rows], calls.started_at[rows], _pending_until(calls)[rows])
    ends = np.flatnonzero(calls.of(*REMOTE_READ_ENDS) & calls.context.is_known & ~calls.context.is_closed)
    found = calls.at(ends[~receives.any_meets(keys[ends], calls.started_at[ends], calls.responded_at[ends])])
    return found, _oldest_pending(calls, found)


def _oldest_pending(calls: AssociationCalls, ends: Mask) -> tuple[Numbers, ...]:
    contexts, at = calls.keys("context_handle"), np.flatnonzero(ends)
    receives = _is_remote_receive(calls) & np.isin(contexts, contexts[at])
    rows = calls.in_order(receives, contexts, calls.started_at)
    groups, until, found = Groups(rows, contexts[rows]), _pending_until(calls)[rows], []
    for _ in range(_MOST_PENDING):
        index = TimeIndex(groups.keys, groups.largest_so_far(until), rows)
        oldest = index.first_after(contexts[at], calls.started_at[at] - 1)
        begun = take_or(calls.started_at, oldest, AFTER_ALL) < calls.started_at[at]
        found.append(np.full(calls.count, NONE))
        found[-1][at[begun]] = oldest[begun]
        until = np.minimum(until, groups.largest_before(until, BEFORE_ALL))  # while an older one is pending
    return tuple(found)
