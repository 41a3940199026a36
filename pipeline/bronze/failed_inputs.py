"""Inputs at which this program failed: an exception while one is read, merged or decoded is its error.

The other captures and snapshot files of the run are processed. The input is ``unreadable`` in its ledger and the error
says what failed and where, whatever else the tables hold of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from pipeline.lake.date_filters import distinct_dates
from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES
from schemas.collected_snapshots import SNAPSHOT_FILES
from schemas.table import EVENT_DATE, Table
from udfs.errors import DECODING_SNAPSHOT
from udfs.rows import RowDict

NOT_DECODED_SQL: Final = f"error LIKE '{DECODING_SNAPSHOT}%'"
"""Whether a row of ``bronze.snapshot_files`` is of a file that was read, but not decoded."""


def failed_columns(why: str) -> RowDict:
    """Return the columns of ``bronze.capture_files`` that say that processing a capture failed."""
    return {"status": "unreadable", "damage": "failed", "error": why}


def mark_failed(lake: Lake, failures: Mapping[str, str]) -> None:
    """Set the status of captures in the ledger; ``failures`` says by capture_id why."""
    if not failures:
        return
    known = lake.select(CAPTURE_FILES, "capture_id IN {names}", ("capture_id", EVENT_DATE), names=set(failures))
    rows = [{"capture_id": name, **failed_columns(failures[name])} for name in known["capture_id"].to_pylist()]
    _update_ledger(lake, CAPTURE_FILES, rows, known)


def mark_failed_snapshot_files(lake: Lake, failures: Mapping[str, str], *, all_decoded: bool) -> None:
    """Set the status of snapshot files in the ledger; ``failures`` says by path why decoding one failed.

    ``all_decoded``: all snapshots of the lake were decoded, so that files at which it failed earlier are complete now.
    """
    if not failures and not all_decoded:
        return
    failed_before = NOT_DECODED_SQL if all_decoded else "FALSE"
    known = lake.select(
        SNAPSHOT_FILES, f"path IN {{paths}} OR {failed_before}", ("path", EVENT_DATE), paths=set(failures)
    )
    rows = [
        {"path": path, "status": "unreadable" if path in failures else "complete", "error": failures.get(path)}
        for path in known["path"].to_pylist()
    ]
    _update_ledger(lake, SNAPSHOT_FILES, rows, known)


def _update_ledger(lake: Lake, ledger: Table, rows: Sequence[RowDict], known: pa.Table) -> None:
    """Set the columns that ``rows`` have, by the ledger's key; ``known`` has the event dates of the rows there."""
    if not rows:
        return
    schema = pa.schema([ledger.schema().field(name) for name in rows[0]])
    lake.update_columns(ledger, pa.Table.from_pylist(list(rows), schema), dates=distinct_dates(known))
