"""Reads that wait while another call is made, as columns. No Spark."""

from __future__ import annotations

import numpy as np

from pipeline.findings.columns.association_calls import AssociationCalls
from pipeline.findings.columns.call_columns import Mask, Method, Numbers
from pipeline.findings.columns.call_history import REMOTE_READ_READS, TIMER_SLACK_US
from udfs.columns.absent import BEFORE_ALL, NONE
from udfs.columns.codes import row_codes
from udfs.columns.groups import Groups, take_or
from udfs.columns.time_index import TimeIndex
from udfs.dcerpc.interfaces import QM2QM_NAME


def waiting_with_same_key(calls: AssociationCalls, reads: Mask, *names: str) -> Numbers:
    """Return for each of some reads the one that has its values of some columns, and certainly waited then.

    These are positions, ``NONE`` without one. Of the reads before it is the one that was answered last.
    """
    keys, found = calls.keys(*names), np.full(calls.count, NONE)
    rows = calls.in_order(reads, keys, calls.started_at)
    by_end, rank = _ranked(calls.ended_at[rows])
    last = Groups(np.arange(len(rows)), keys[rows]).largest_before(rank, NONE)
    before = take_or(rows[by_end], last, NONE)
    waited = (before != NONE) & calls.answered[before] & (calls.started_at[before] < calls.started_at[rows])
    waited &= calls.started_at[rows] < calls.responded_at[before]
    found[rows[waited]] = before[waited]
    return found


def _ranked(times: Numbers) -> tuple[Numbers, Numbers]:
    """Return the places of times in their order, and the rank of each."""
    order = np.argsort(times, kind="stable")
    rank = np.empty(len(times), np.int64)
    rank[order] = np.arange(len(times))
    return order, rank


class OpenReads:
    """Reads by key, each from its request to an end, to find those that are open at a time.

    ``keys`` and ``ends`` are numbers and times of all calls.
    """

    def __init__(self, calls: AssociationCalls, reads: Mask, keys: Numbers, ends: Numbers) -> None:
        rows = calls.in_order(reads, keys, calls.started_at)
        by_end, self._rank = _ranked(ends[rows])
        self._index = TimeIndex(keys[rows], calls.started_at[rows])
        self._groups = Groups(rows, keys[rows])
        self._rows, self._ends = rows[by_end], ends[rows[by_end]]  # by rank

    def find(self, asked: Mask, keys: Numbers, before: Numbers, until: Numbers, most: int = 1) -> list[Numbers]:
        """Return for some calls the reads with their key that were made before a time, and end at another or later.

        These are ``most`` arrays of positions, ``NONE`` where there are fewer reads: first the one that ends last, and
        of those that end at one time the newest. Keys and times are of all calls.
        """
        ours, rank, found = np.flatnonzero(asked), self._rank, []
        places = self._index.latest(keys[ours], before[ours], inclusive=False)
        for _ in range(most):
            last = take_or(self._groups.largest_so_far(rank), places, NONE)
            is_open = (last != NONE) & (take_or(self._ends, last, 0) >= until[ours])
            found.append(np.full(len(asked), NONE))
            found[-1][ours[is_open]] = self._rows[last[is_open]]
            rank = np.minimum(rank, self._groups.largest_before(rank, NONE))  # without the largest
        return found


def reads_met(calls: AssociationCalls, reads: tuple[Method, ...], *names: str, most: int = 1) -> list[Numbers]:
    """Return the reads that may wait while judged calls are made, of those with their values of some columns.

    These are positions as of ``OpenReads.find``.
    """
    keys = calls.keys(*names)
    found = calls.share(
        ("reads met", reads, names), lambda: OpenReads(calls, calls.of(*reads), keys, calls.responded_at)
    )
    return found.find(calls.judged, keys, calls.responded_at, calls.started_at, most)


def is_after_first(calls: AssociationCalls, reads: tuple[Method, ...], *names: str) -> Mask:
    """Tell which judged calls were answered after the first of the reads with their values of some columns was made."""
    keys, rows = calls.keys(*names), np.flatnonzero(calls.of(*reads))
    first = TimeIndex(keys[rows], calls.started_at[rows]).latest(keys, calls.responded_at, inclusive=False)
    return np.asarray(first != NONE)


def reads_left_pending(calls: AssociationCalls, reads: tuple[Method, ...], keys: Numbers) -> Numbers:
    """Return of each judged close a read with its key that is pending well after it; positions, ``NONE`` without.

    The read was answered later, or is not answered while packets of the association come, and is not given up.
    """
    unanswered_until = np.where(calls.abandoned, BEFORE_ALL, calls.last_packet_at)
    ends = np.where(calls.answered, calls.responded_at, unanswered_until)
    found = OpenReads(calls, calls.of(*reads) & calls.request_decoded, keys, ends)
    return found.find(calls.judged, keys, calls.started_at, calls.ended_at + TIMER_SLACK_US + 1)[0]


def queues_of_sessions(calls: AssociationCalls, name: str) -> Numbers:
    """Return a number for each queue of an association that calls name.

    Closes of sessions name none: theirs is in a column, ``name``, of the call that opened the session.
    """
    closes = calls.of((QM2QM_NAME, 3))
    opened = calls.at_open(calls.numbers(name), 0)
    return row_codes([calls.association, np.where(closes, opened, calls.numbers("queue_handle"))])


def waiting_at_context_closes(calls: AssociationCalls) -> tuple[Numbers, tuple[Numbers, ...]]:
    """Return how many reads on a context were made before each judged close and answered later, and three of them."""
    reads = calls.of(*REMOTE_READ_READS) & calls.answered
    keys, at, rows = calls.keys("context_handle"), calls.started_at, np.flatnonzero(reads)
    found = OpenReads(calls, reads, keys, calls.responded_at).find(calls.judged, keys, at, at + 1, most=3)
    answered_at = np.maximum(calls.responded_at, at + 1)  # where clocks differ, a read may be answered before it starts
    begun, over = (TimeIndex(keys[rows], times[rows]) for times in (at, answered_at))
    return begun.count(keys, at - 1) - over.count(keys, at), tuple(found)
