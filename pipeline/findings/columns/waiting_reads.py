"""Reads that wait while another call is made, as columns. No Spark."""

from __future__ import annotations

from typing import Final

import numpy as np

from pipeline.findings.columns.association_calls import (
    AssociationCalls,
    Spans,
    Suspects,
    newest_before,
)
from pipeline.findings.columns.call_columns import Mask, Method, Numbers
from pipeline.findings.columns.call_history import MOST_CONCURRENT_READS, QM2QM_READS, REMOTE_READ_READS
from udfs.codes import MQ_ERROR_OPERATION_CANCELLED, MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT
from udfs.columns.absent import NONE
from udfs.columns.codes import row_codes
from udfs.columns.groups import Groups, take_or
from udfs.columns.time_index import TimeIndex
from udfs.dcerpc.interfaces import QM2QM_NAME, REMOTE_READ_NAME

_CANCELLED_RESULTS: Final = (MQ_ERROR_OPERATION_CANCELLED, MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT)


def waiting_with_same_key(calls: AssociationCalls, reads: Mask, *names: str) -> Numbers:
    """Return for each of some reads the one that has its values of some columns, and certainly waited then.

    These are positions, ``NONE`` without one. Of the reads before it is the one that was answered last.
    """
    keys, found = calls.keys(*names), np.full(calls.count, NONE)
    rows = calls.in_order(reads, keys, calls.started_at)
    by_end = np.argsort(calls.ended_at[rows], kind="stable")
    rank = np.empty(len(rows), np.int64)
    rank[by_end] = np.arange(len(rows))
    last = Groups(np.arange(len(rows)), keys[rows]).largest_before(rank, NONE)
    before = take_or(rows[by_end], last, NONE)
    waited = (before != NONE) & calls.answered[before] & (calls.started_at[before] < calls.started_at[rows])
    waited &= calls.started_at[rows] < calls.responded_at[before]
    found[rows[waited]] = before[waited]
    return found


def closes_of_contexts_with_reads(calls: AssociationCalls) -> Suspects:
    """Return the closes of a context of RemoteRead while a read on it waits; beside them the newest of its reads."""
    return calls.share("context closes", lambda: _closes_of_contexts_with_reads(calls))


def _closes_of_contexts_with_reads(calls: AssociationCalls) -> Suspects:
    closes = np.nonzero(calls.of((REMOTE_READ_NAME, 3)) & calls.succeeded)[0]
    keys = calls.keys("context_handle")
    return _closes_with_reads(calls, REMOTE_READ_READS, keys, closes, keys[closes])


def closes_of_sessions_with_reads(calls: AssociationCalls) -> Suspects:
    """Return the closes of a session of qm2qm while a read of its queue waits; beside them the newest reads of it."""
    closes = np.nonzero(calls.of((QM2QM_NAME, 3)) & calls.succeeded & calls.context.is_known)[0]
    numbers = [calls.at_open(calls.numbers(name), 0)[closes] for name in ("queue_handle", "open_context")]
    given = [calls.at_open(calls.has(name), default=False)[closes] for name in ("queue_handle", "open_context")]
    reads = calls.of(*QM2QM_READS) & calls.has("queue_handle")
    queues = np.where(reads, calls.numbers("queue_handle"), -1)
    closes = np.concatenate([closes, closes])
    owners = np.concatenate([calls.association, calls.association[closes]])
    keys = row_codes([owners, np.concatenate([queues, *numbers])])
    asked = np.where(np.concatenate(given), keys[calls.count :], NONE)
    return _closes_with_reads(calls, QM2QM_READS, keys[: calls.count], closes, asked)


def _closes_with_reads(
    calls: AssociationCalls, methods: tuple[Method, ...], keys: Numbers, closes: Numbers, asked: Numbers
) -> Suspects:
    """Return the closes while a read with a key waits, or is never answered; beside them the newest of these reads."""
    rows = np.nonzero(calls.of(*methods))[0]
    spans = Spans(keys[rows], calls.started_at[rows], calls.responded_at[rows])
    at = calls.started_at[closes]
    waiting = spans.any_meets(asked, at + 1, at - 1)
    found, related = calls.nothing(), calls.nothing()
    found[closes[waiting]] = True
    pairs = zip(asked[waiting], at[waiting], strict=True)
    related[newest_before(rows, keys[rows], calls.started_at[rows], pairs, MOST_CONCURRENT_READS)] = True
    return Suspects(found, related)


def unusual_cancels(calls: AssociationCalls, cancel: Method, reads: tuple[Method, ...], queue: str) -> Suspects:
    """Return the cancels but those of one waiting read that ended for it; beside them the newest reads of the queue.

    ``queue`` is the column of the queue that both name.
    """
    return calls.share(("cancels", cancel), lambda: _unusual_cancels(calls, cancel, reads, queue))


def _unusual_cancels(calls: AssociationCalls, cancel: Method, reads: tuple[Method, ...], queue: str) -> Suspects:
    cancels = np.nonzero(calls.of(cancel) & calls.request_decoded)[0]
    found, related = calls.nothing(), calls.nothing()
    if not cancels.size:
        return Suspects(found)
    rows = np.nonzero(calls.of(*reads))[0]
    started, until = calls.started_at[rows], calls.responded_at[cancels]
    requests, queues = calls.keys(queue, "request_id"), calls.keys(queue)
    places = TimeIndex(requests[rows], started).latest(requests[cancels], until, inclusive=False)
    good = calls.answered & calls.response_decoded & calls.equals("hresult", *_CANCELLED_RESULTS)
    if rows.size:
        read = rows[places]
        usual = (places >= 0) & good[read] & (calls.responded_at[read] >= calls.started_at[cancels])
    else:
        usual = np.zeros(len(cancels), np.bool_)
    strange = cancels[~usual]
    found[strange] = True
    for keys in (requests, queues):
        pairs = zip(keys[strange], calls.responded_at[strange], strict=True)
        related[newest_before(rows, keys[rows], started, pairs, MOST_CONCURRENT_READS)] = True
    return Suspects(found, related)
