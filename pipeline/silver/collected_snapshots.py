"""Decode the collector's snapshots: ``bronze.snapshots_raw`` to the silver tables of properties and snapshots.

The decoders are those of calls, and so are the tables: rows with ``source`` = ``collector`` stand beside those decoded
from traffic, and neither source touches the other's rows. The commit of ``silver.hosts``, which comes last, notes how
far ``bronze.snapshots_raw`` was decoded. A run that continues after a killed one finds the rows already written by
their keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from datetime import date
from functools import partial
from itertools import chain
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pipeline.bronze.failed_inputs import mark_failed_snapshot_files
from pipeline.lake.concurrency import run_concurrently
from pipeline.lake.date_filters import dates_condition
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.net_changes import net_changes
from pipeline.lake.queries import CHANGE_FEED_ERRORS
from pipeline.lake.recovery import RunMarkers
from pipeline.lake.schema_enforcement import event_date_column
from pipeline.lake.spark.frames import read_parquet_folder
from pipeline.lake.staging_files import StagingWriter, task_number
from pipeline.silver.decode import DecodeFailure, decode_snapshots_safely
from pipeline.silver.decode_tasks import stage_failures, staged_failures
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, PROPERTIES, QUEUE_SNAPSHOTS
from schemas.table import EVENT_DATE, Table
from udfs.errors import DECODING_SNAPSHOT

SNAPSHOT_TABLES: Final = (PROPERTIES, MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS)
INPUT_COLUMNS: Final = (
    "snapshot_id", "queue_manager", "object_type", "format_name", "asked_at", "collected_at", "hresult", "error",
    "properties", "source_path", "run_id",
)  # fmt: skip
COLLECTOR_ROWS_SQL: Final = "source = 'collector'"
SOURCE_TABLE_NAME: Final = str(SNAPSHOTS_RAW)
_ROW_COUNTS_SCHEMA: Final = pa.schema({"table": pa.string(), "day": pa.date32(), "rows": pa.int64()})


def decode_new_snapshots(lake: Lake, since_version: int | None, failures: dict[str, str]) -> dict[str, int]:
    """Decode the snapshots added after a version of ``bronze.snapshots_raw``; None: all of them again.

    Returns how many rows of each table were written. Files at whose snapshots decoding failed are marked in the ledger,
    and added to ``failures`` with the reason.
    """
    folder = RunMarkers.of(lake).root / "collected"
    folder.remove_folder()
    try:
        return _decode_new(lake, since_version, str(folder / uuid4().hex), failures)
    finally:
        folder.remove_folder()


def _decode_new(lake: Lake, since: int | None, folder: str, failures: dict[str, str]) -> dict[str, int]:
    rows, replaced, dates = _read_changes(lake, since)
    written, days = _decode_to_staging(lake.read(SNAPSHOTS_RAW) if rows is None else rows, folder)
    for table in SNAPSHOT_TABLES:
        if rows is None:
            lake.delete(table, COLLECTOR_ROWS_SQL)
        elif replaced:
            lake.delete_values(table, "snapshot_id", replaced, dates=dates)

    def append(table: Table) -> None:
        lake.append(table, _staged_rows_not_in(lake, table, folder, days))

    run_concurrently({table: partial(append, table) for table in SNAPSHOT_TABLES if written[str(table)]})
    for failure in staged_failures(folder):
        failures[failure.source] = f"{DECODING_SNAPSHOT} {failure.row_key}: {failure.error}"
    mark_failed_snapshot_files(lake, failures, all_decoded=rows is None)
    return written


def _read_changes(lake: Lake, since: int | None) -> tuple[DataFrame | None, Collection[str], Collection[date | None]]:
    """Return added and changed rows, and keys and dates of changed ones as they were. None for the rows: decode all."""
    if since is None:
        return None, (), ()
    try:
        net = net_changes(
            lake.changes(SNAPSHOTS_RAW, since), "snapshot_id", [event_date_column("collected_at", "asked_at")], {}
        )
    except CHANGE_FEED_ERRORS:
        return None, (), ()
    return (None, (), ()) if net.keys_before is None else (net.rows, frozenset(net.keys_before), net.dates)


def _decode_to_staging(rows: DataFrame, folder: str) -> tuple[Counter[str], dict[str, set[date | None]]]:
    """Decode to staging files in one Spark job; return row counts and dates of each table."""
    written: Counter[str] = Counter()
    days: dict[str, set[date | None]] = {str(table): set() for table in SNAPSHOT_TABLES}
    counted = rows.select(*INPUT_COLUMNS).mapInArrow(
        partial(_decode_task, folder), "table string, day date, rows bigint"
    )
    for table, day, count in counted.collect():
        written[table] += count
        days[table].add(day)
    return written, days


def _decode_task(folder: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    staging = StagingWriter(folder, task_number())
    names = {str(table): table.name for table in SNAPSHOT_TABLES}
    rows_by_day: Counter[tuple[str, date | None]] = Counter()
    failures: list[DecodeFailure] = []
    for batch in batches:
        for table, rows in chain.from_iterable(map(dict.items, decode_snapshots_safely(batch, failures))):
            staging.add(names[table], rows)
            for day in pc.value_counts(rows.column(EVENT_DATE)).to_pylist():
                rows_by_day[table, day["values"]] += day["counts"]
    stage_failures(staging, failures)
    staging.close()
    counts = [{"table": table, "day": day, "rows": count} for (table, day), count in rows_by_day.items()]
    yield pa.RecordBatch.from_pylist(counts, schema=_ROW_COUNTS_SCHEMA)


def _staged_rows_not_in(lake: Lake, table: Table, folder: str, days: dict[str, set[date | None]]) -> DataFrame:
    """Return the staged rows of snapshots of which the table has no row yet."""
    rows = read_parquet_folder(lake.spark, LakePath(folder) / table.name, table.struct())
    stored = (
        lake.read(table)
        .where(COLLECTOR_ROWS_SQL)
        .where(dates_condition(days[str(table)]))
        .select("snapshot_id")
        .distinct()
    )
    return rows.join(stored, "snapshot_id", "left_anti").select(*table.names)
