"""Captures at which this program failed: an exception while a capture is read, merged or decoded is its error.

The other captures of the run are processed. The capture is ``unreadable`` in the ledger and the error says what failed
and where, whatever else the tables hold of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from pipeline.lake.lake import Lake
from pipeline.lake.schema_enforcement import arrow_schema
from schemas.bronze import CAPTURE_FILES
from udfs.rows import RowDict


def failed_columns(why: str) -> RowDict:
    """Return the columns of ``bronze.capture_files`` that say that processing a capture failed."""
    return {"status": "unreadable", "damage": "failed", "error": why}


def mark_failed(lake: Lake, failures: Mapping[str, str]) -> None:
    """Set the status of captures in the ledger; ``failures`` says by capture_id why."""
    if not failures:
        return
    known = lake.select(CAPTURE_FILES, "capture_id IN {names}", ("capture_id", "event_date"), names=set(failures))
    rows = [{"capture_id": name, **failed_columns(failures[name])} for name in known["capture_id"].to_pylist()]
    schema = pa.schema([arrow_schema(CAPTURE_FILES).field(name) for name in ("capture_id", *failed_columns(""))])
    lake.update_columns(CAPTURE_FILES, pa.Table.from_pylist(rows, schema), dates=set(known["event_date"].to_pylist()))
