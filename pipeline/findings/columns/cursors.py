"""Cursors of qm2qm, as columns: which are open when a session is closed. No Spark."""

from __future__ import annotations

import numpy as np

from pipeline.findings.columns.association_calls import AssociationCalls
from pipeline.findings.columns.call_columns import Numbers
from pipeline.findings.columns.call_history import QM2QM_READS
from pipeline.findings.columns.waiting_reads import queues_of_sessions
from udfs.columns.absent import AFTER_ALL, NONE
from udfs.columns.groups import last_of, take_or
from udfs.columns.time_index import TimeIndex
from udfs.dcerpc.interfaces import QM2QM_NAME

_CLOSE_CURSOR = (QM2QM_NAME, 4)


def open_cursors(calls: AssociationCalls) -> Numbers:
    """Return of each judged close of a session the last read with a cursor of its queue that is open.

    These are positions, ``NONE`` without one. Of several cursors it is the first in the order of their texts.
    """
    is_read = calls.of(*QM2QM_READS) & calls.succeeded & calls.nonzero("cursor_handle")
    if not is_read.any():
        return np.full(calls.count, NONE)
    is_close = calls.judged & calls.context.is_known
    rows = calls.in_order(is_read | is_close | calls.of(_CLOSE_CURSOR), calls.started_at)
    places, reads = np.arange(len(rows)), np.flatnonzero(is_read[rows])
    cursors = np.where(is_close[rows], NONE, calls.keys("queue_handle", "cursor_handle")[rows])
    next_use = TimeIndex(cursors, places).first_after(cursors[reads], reads)
    queues = queues_of_sessions(calls, "queue_handle")[rows]
    close = TimeIndex(np.where(is_close[rows], queues, NONE), places).first_after(queues[reads], reads)
    is_open = np.flatnonzero((close != NONE) & (close < take_or(places, next_use, AFTER_ALL)))
    numbers = calls.numbers("cursor_handle")[rows[reads[is_open]]]
    by_text = is_open[np.argsort(numbers.astype(str))[::-1]]
    return last_of(rows[close[by_text]], rows[reads[by_text]], calls.count)
