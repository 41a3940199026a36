"""Inputs at which this program failed: an exception while one is read, merged or decoded is its error.

The other captures and snapshot files of the run are processed. The input is ``unreadable`` in its ledger and the error
says what failed and where, whatever else the tables hold of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from pipeline.lake.lake import Lake
from pipeline.lake.schema_enforcement import arrow_schema
from schemas.bronze import CAPTURE_FILES
from schemas.collected_snapshots import SNAPSHOT_FILES
from schemas.table import EVENT_DATE
from udfs.errors import DECODING_SNAPSHOT
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


def mark_failed_snapshot_files(lake: Lake, failures: Mapping[str, str], *, all_decoded: bool) -> None:
    """Set the status of snapshot files in the ledger; ``failures`` says by path why decoding one failed.

    ``all_decoded``: all snapshots of the lake were decoded, so that files at which it failed earlier are complete now.
    """
    if not failures and not all_decoded:
        return
    failed_before = f"error LIKE '{DECODING_SNAPSHOT}%'" if all_decoded else "FALSE"
    columns = ("path", "status", "error")
    known = lake.select(
        SNAPSHOT_FILES, f"path IN {{paths}} OR {failed_before}", (*columns, EVENT_DATE), paths=set(failures)
    )
    rows = [
        {"path": path, "status": "unreadable" if path in failures else "complete", "error": failures.get(path)}
        for path in known["path"].to_pylist()
    ]
    if rows:
        table = pa.Table.from_pylist(rows, pa.schema([arrow_schema(SNAPSHOT_FILES).field(name) for name in columns]))
        lake.update_columns(SNAPSHOT_FILES, table, dates=set(known[EVENT_DATE].to_pylist()))
