"""Reads with a cursor of qm2qm, as columns: which of them show what is open when a session is closed. No Spark."""

from __future__ import annotations

import numpy as np

from pipeline.findings.columns.association_calls import AssociationCalls, Suspects
from pipeline.findings.columns.call_history import QM2QM_READS
from udfs.columns.codes import row_codes
from udfs.columns.groups import Groups
from udfs.dcerpc.interfaces import QM2QM_NAME

_CLOSES = ((QM2QM_NAME, 3), (QM2QM_NAME, 4))


def closes_of_sessions_with_cursors(calls: AssociationCalls) -> Suspects:
    """Return the closes of sessions; beside them the last read with each cursor before each close of anything."""
    reads = calls.of(*QM2QM_READS) & calls.succeeded & calls.nonzero("cursor_handle")
    found = (
        calls.of((QM2QM_NAME, 3)) & calls.succeeded & np.isin(calls.association, np.unique(calls.association[reads]))
    )
    if not found.any():
        return Suspects(found)
    rows, closes = np.nonzero(reads)[0], np.sort(calls.started_at[calls.of(*_CLOSES)])
    following = np.searchsorted(closes, calls.started_at[rows], side="left")
    keys = row_codes([calls.keys("queue_handle", "cursor_handle")[rows], following])
    groups = Groups(rows, keys, calls.started_at[rows])
    last = calls.started_at[groups.rows] == groups.largest(calls.started_at[groups.rows])
    related = calls.nothing()
    related[groups.rows[last]] = True
    return Suspects(found, related)
