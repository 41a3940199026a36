"""Decode the collector's snapshots: ``bronze.snapshots_raw`` to the silver tables of properties and snapshots.

The decoders are those of calls, and so are the tables: rows with ``source`` = ``collector`` stand beside those decoded
from traffic, and neither source touches the other's rows. The commit of ``silver.hosts``, which comes last, notes how
far ``bronze.snapshots_raw`` was decoded. A run that continues after a killed one finds the rows already written by
their keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from functools import partial
from itertools import chain
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.bronze.failed_inputs import mark_failed_snapshot_files
from pipeline.lake.concurrency import run_concurrently
from pipeline.lake.date_filters import dates_condition, utc_date_sql
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.net_changes import MAX_ROWS_IN_DRIVER
from pipeline.lake.queries.inputs import CHANGE_FEED_ERRORS, POST_IMAGES, PRE_IMAGES, ChangesSince, QueryInput
from pipeline.lake.recovery import RunMarkers
from pipeline.lake.schema_enforcement import arrow_schema, select_fields
from pipeline.lake.staging_files import StagingWriter, staged_rows, task_number
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
_MAX_ROWS_IN_MEMORY: Final = 10_000  # snapshots that are decoded in this process
_INPUTS: Final = ", ".join(INPUT_COLUMNS)


def _ends_sql(names: str, columns: str, images: Sequence[str], order: str) -> str:
    """Return the SQL of the first or last of each snapshot's changes, where it is one of ``images``."""
    after = f"_change_type IN ({', '.join(map(repr, POST_IMAGES))})"
    place = f"row_number() OVER (PARTITION BY snapshot_id ORDER BY _commit_version {order}, {after} {order}) AS place"
    ends = f"SELECT {columns}, _change_type, {place} FROM {{feed}}"
    return f"SELECT {names} FROM ({ends}) WHERE place = 1 AND _change_type IN ({', '.join(map(repr, images))})"


_NEW_ROWS_SQL: Final = _ends_sql(_INPUTS, _INPUTS, POST_IMAGES, "DESC")
_OLD_DAY: Final = utc_date_sql("coalesce(collected_at, asked_at)")
_OLD_KEYS_SQL: Final = _ends_sql("snapshot_id, day", f"snapshot_id, {_OLD_DAY} AS day", PRE_IMAGES, "ASC")
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
    feed = ChangesSince(SNAPSHOTS_RAW, since or 0, lake.version(SNAPSHOTS_RAW) or 0)
    before = None if since is None else _keys_before(lake, feed)
    if before is None:  # decode all
        rows = _read_rows(lake, f"SELECT {_INPUTS} FROM {{rows}}", rows=SNAPSHOTS_RAW)
    else:
        rows = _read_rows(lake, _NEW_ROWS_SQL, feed=feed)
    written, days = _decode_to_staging(rows, folder)
    for table in SNAPSHOT_TABLES:
        if before is None:
            lake.delete(table, COLLECTOR_ROWS_SQL)
        else:
            lake.delete_values(table, "snapshot_id", before.keys(), dates=set(before.values()))

    def append(table: Table) -> None:
        lake.append(table, _staged_rows_not_in(lake, table, folder, days))

    run_concurrently({table: partial(append, table) for table in SNAPSHOT_TABLES if written[str(table)]})
    for failure in staged_failures(folder):
        failures[failure.source] = f"{DECODING_SNAPSHOT} {failure.row_key}: {failure.error}"
    mark_failed_snapshot_files(lake, failures, all_decoded=before is None)
    return written


def _keys_before(lake: Lake, feed: ChangesSince) -> dict[str, date | None] | None:
    """Return the keys of changed and deleted snapshots, with the date of their rows in silver; None: not known."""
    try:
        found = lake.query_at_most(_OLD_KEYS_SQL, MAX_ROWS_IN_DRIVER, feed=feed)
    except CHANGE_FEED_ERRORS:
        return None
    return None if found is None else dict(zip(found["snapshot_id"].to_pylist(), found["day"].to_pylist(), strict=True))


def _read_rows(lake: Lake, sql: str, **inputs: QueryInput) -> DataFrame | pa.Table:
    """Return snapshots to decode: an Arrow table if they are few."""
    few = lake.query_at_most(sql, _MAX_ROWS_IN_MEMORY, **inputs)
    if few is None:
        return lake.frame(sql, **inputs)
    return few.cast(select_fields(arrow_schema(SNAPSHOTS_RAW), INPUT_COLUMNS))


def _decode_to_staging(rows: DataFrame | pa.Table, folder: str) -> tuple[Counter[str], dict[str, set[date | None]]]:
    """Decode to staging files, in one Spark job where there are many; return row counts and dates of each table."""
    written: Counter[str] = Counter()
    days: dict[str, set[date | None]] = {str(table): set() for table in SNAPSHOT_TABLES}
    decode = partial(_decode_task, folder)
    if isinstance(rows, DataFrame):
        counted = rows.mapInArrow(decode, from_arrow_schema(_ROW_COUNTS_SCHEMA)).toArrow()
    else:
        counted = pa.Table.from_batches(decode(rows.to_batches()), _ROW_COUNTS_SCHEMA)
    for row in counted.to_pylist():
        written[row["table"]] += row["rows"]
        days[row["table"]].add(row["day"])
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


def _staged_rows_not_in(lake: Lake, table: Table, folder: str, days: dict[str, set[date | None]]) -> PartitionedRows:
    """Return the staged rows of snapshots of which the table has no row yet."""
    where = f"{COLLECTOR_ROWS_SQL} AND {dates_condition(days[str(table)])}"
    stored = lake.query(f"SELECT DISTINCT snapshot_id FROM {{rows}} WHERE {where}", rows=table)["snapshot_id"]
    known = stored.combine_chunks()

    def is_new(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(pc.invert(pc.is_in(rows.column("snapshot_id"), known)))

    return staged_rows(LakePath(folder) / table.name, table, is_new if len(known) else None)
