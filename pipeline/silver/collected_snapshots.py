"""Decode the collector's snapshots: ``bronze.snapshots_raw`` to the silver tables of properties and snapshots.

The decoders are those of calls, and so are the tables: rows with ``source`` = ``collector`` stand beside those decoded
from traffic, and neither source touches the other's rows. The commit of ``silver.hosts``, which comes last, notes how
far ``bronze.snapshots_raw`` was decoded. A run that continues after a killed one finds the rows already written by
their keys.
"""

from __future__ import annotations

from collections import Counter
from datetime import date
from functools import partial
from itertools import chain
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.bronze.failed_inputs import mark_failed_snapshot_files
from pipeline.concurrency import run_concurrently
from pipeline.lake.date_filters import distinct_dates, utc_date_sql
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.net_changes import net_changes
from pipeline.lake.queries.inputs import BoundQuery, ChangesSince, QueryAnswers, QueryInput, RowsOfDates
from pipeline.lake.schema_enforcement import select_fields
from pipeline.lake.stage_groups import bucket_sql, stage_groups
from pipeline.lake.staging_files import StagingWriter, staged_rows
from pipeline.runs.recovery import RunMarkers
from pipeline.silver.decode import DecodeFailure, decode_snapshots_safely
from pipeline.silver.decode_tasks import stage_failures, staged_failures
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, PROPERTIES, QUEUE_SNAPSHOTS
from schemas.table import EVENT_DATE, Table
from udfs.errors import DECODING_SNAPSHOT

SNAPSHOT_TABLES: Final = (PROPERTIES, MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS)
RAW_SNAPSHOT_COLUMNS: Final = (
    "snapshot_id", "queue_manager", "object_type", "format_name", "asked_at", "collected_at", "hresult", "error",
    "properties", "source_path", "run_id",
)  # fmt: skip
COLLECTOR_ROWS_SQL: Final = "source = 'collector'"
SOURCE_TABLE_NAME: Final = str(SNAPSHOTS_RAW)
_BATCH_ROWS: Final = 10_000  # of snapshots that are decoded at once
_FACTS: Final = {
    EVENT_DATE: EVENT_DATE,
    "day": utc_date_sql("coalesce(collected_at, asked_at)"),
}  # of bronze, of silver
_ROW_COUNTS_SCHEMA: Final = pa.schema({"table": pa.string(), "day": pa.date32(), "rows": pa.int64()})


def decode_new_snapshots(lake: Lake, since_version: int | None, failures: dict[str, str]) -> dict[str, int]:
    """Decode the snapshots added after a version of ``bronze.snapshots_raw``; None: all of them again.

    Returns how many rows of each table were written. Files at whose snapshots decoding failed are marked in the ledger,
    and added to ``failures`` with the reason.
    """
    folder = RunMarkers.of(lake).root / "collected"
    folder.remove_folder()
    try:
        return _decode_new(lake, since_version, folder / uuid4().hex, failures)
    finally:
        folder.remove_folder()


def _decode_new(lake: Lake, since: int | None, folder: LakePath, failures: dict[str, str]) -> dict[str, int]:
    changes = None
    if since is not None:
        feed = ChangesSince(SNAPSHOTS_RAW, since, lake.version(SNAPSHOTS_RAW) or 0)
        changes = net_changes(lake, feed, "snapshot_id", _FACTS)
    where, inputs = "TRUE", dict[str, QueryInput](rows=SNAPSHOTS_RAW)
    if changes is not None:
        inputs["rows"] = RowsOfDates(SNAPSHOTS_RAW, distinct_dates(changes.now))
        where, inputs["keys"] = "snapshot_id IN (SELECT snapshot_id FROM {keys})", changes.now
    sql = f"SELECT {', '.join(RAW_SNAPSHOT_COLUMNS)}, {bucket_sql('snapshot_id')} FROM {{rows}} WHERE {where}"
    written, days = _decode_to_staging(lake, BoundQuery(sql, inputs), folder)
    for table in SNAPSHOT_TABLES:
        if changes is None:
            lake.delete(table, COLLECTOR_ROWS_SQL)
        else:
            keys, days_before = (changes.before[name].to_pylist() for name in ("snapshot_id", "day"))
            lake.delete_values(table, "snapshot_id", keys, dates=set(days_before))

    def append(table: Table) -> None:
        lake.append(table, _staged_rows_not_in(lake, table, folder, days))

    run_concurrently({table: partial(append, table) for table in SNAPSHOT_TABLES if written[str(table)]})
    for failure in staged_failures(str(folder)):
        failures[failure.source] = f"{DECODING_SNAPSHOT} {failure.row_key}: {failure.error}"
    mark_failed_snapshot_files(lake, failures, all_decoded=changes is None)
    return written


def _decode_to_staging(
    lake: Lake, snapshots: BoundQuery, folder: LakePath
) -> tuple[Counter[str], dict[str, set[date | None]]]:
    """Decode to staging files; return row counts and dates of each table."""
    written: Counter[str] = Counter()
    days: dict[str, set[date | None]] = {str(table): set() for table in SNAPSHOT_TABLES}
    counted = stage_groups(lake, folder, {"snapshots": snapshots}, _decode, from_arrow_schema(_ROW_COUNTS_SCHEMA))
    for row in counted.to_pylist():
        written[row["table"]] += row["rows"]
        days[row["table"]].add(row["day"])
    return written, days


def _decode(parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
    """Decode snapshots; return the number of rows by table and day."""
    names = {str(table): table.name for table in SNAPSHOT_TABLES}
    rows_by_day: Counter[tuple[str, date | None]] = Counter()
    failures: list[DecodeFailure] = []
    snapshots = (
        parts["snapshots"]
        .select(RAW_SNAPSHOT_COLUMNS)
        .cast(select_fields(SNAPSHOTS_RAW.schema(), RAW_SNAPSHOT_COLUMNS))
    )
    for batch in snapshots.to_batches(max_chunksize=_BATCH_ROWS):
        for table, rows in chain.from_iterable(map(dict.items, decode_snapshots_safely(batch, failures))):
            staging.add(names[table], rows)
            for day in pc.value_counts(rows.column(EVENT_DATE)).to_pylist():
                rows_by_day[table, day["values"]] += day["counts"]
    stage_failures(staging, failures)
    counts = [{"table": table, "day": day, "rows": count} for (table, day), count in rows_by_day.items()]
    return pa.Table.from_pylist(counts, schema=_ROW_COUNTS_SCHEMA)


def _staged_rows_not_in(
    lake: Lake, table: Table, folder: LakePath, days: dict[str, set[date | None]]
) -> PartitionedRows:
    """Return the staged rows of snapshots of which the table has no row yet."""
    rows = RowsOfDates(table, days[str(table)])
    stored = lake.query(f"SELECT DISTINCT snapshot_id FROM {{rows}} WHERE {COLLECTOR_ROWS_SQL}", rows=rows)
    known = stored["snapshot_id"].combine_chunks()

    def is_new(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(pc.invert(pc.is_in(rows.column("snapshot_id"), known)))

    return staged_rows(folder / table.name, table, partial(map, is_new) if len(known) else None)
