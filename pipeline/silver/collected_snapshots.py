"""``bronze.snapshots_raw`` -> silver: what the collector was told, in the tables of what was seen on the wire.

The same decoders, another source: rows with ``source`` collector stand beside those of the wire, and neither road
touches the other's. What is done is said by the commit of ``silver.hosts``, which is written last; a run that was
killed on the way finds by their keys the rows that it had written.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from datetime import date
from functools import partial
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pipeline.lake.concurrency import gather
from pipeline.lake.date_filters import on_dates
from pipeline.lake.lake import Lake
from pipeline.lake.net_changes import net_changes
from pipeline.lake.queries import UNTOLD
from pipeline.lake.recovery import Runs
from pipeline.lake.schema_enforcement import event_date
from pipeline.lake.staging_files import SideFiles, number_of_task
from pipeline.silver.decode import decode_collected
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, PROPERTIES, QUEUE_SNAPSHOTS
from schemas.table import EVENT_DATE, Table

TABLES: Final = (PROPERTIES, MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS)
READ: Final = (
    "snapshot_id", "queue_manager", "object_type", "format_name", "asked_at", "collected_at", "hresult", "error",
    "properties", "run_id",
)  # fmt: skip
OURS: Final = "source = 'collector'"
RAW: Final = str(SNAPSHOTS_RAW)
_COUNTS: Final = pa.schema({"table": pa.string(), "day": pa.date32(), "rows": pa.int64()})


def follow(lake: Lake, since: int | None) -> dict[str, int]:
    """Bring snapshots landed after a version of bronze.snapshots_raw to silver; None: all of them, anew.

    Returns how many rows of each table were written.
    """
    side = Runs.of(lake).root / "collected"
    shutil.rmtree(side, ignore_errors=True)
    try:
        return _follow(lake, since, str(side / uuid4().hex))
    finally:
        shutil.rmtree(side, ignore_errors=True)


def _follow(lake: Lake, since: int | None, folder: str) -> dict[str, int]:
    rows, gone, dates = _changed(lake, since)
    written, days = _decode(lake.read(SNAPSHOTS_RAW) if rows is None else rows, folder)
    for table in TABLES:
        if rows is None:
            lake.delete(table, OURS)
        elif gone:
            lake.remove(table, "snapshot_id", gone, dates=dates)

    def append(table: Table) -> None:
        lake.append(table, _not_there(lake, table, folder, days))

    gather({table: partial(append, table) for table in TABLES if written[str(table)]})
    return written


def _changed(lake: Lake, since: int | None) -> tuple[DataFrame | None, Collection[str], Collection[date | None]]:
    """Return the rows that are new or changed, and the keys and dates of those that were there; None: all is new."""
    if since is None:
        return None, (), ()
    try:
        net = net_changes(
            lake.changes(SNAPSHOTS_RAW, since), "snapshot_id", [event_date("collected_at", "asked_at")], {}
        )
    except UNTOLD:
        return None, (), ()
    return (None, (), ()) if net.were is None else (net.rows, frozenset(net.were), net.dates)


def _decode(rows: DataFrame, folder: str) -> tuple[Counter[str], dict[str, set[date | None]]]:
    """Decode to side files in one job; how many rows there are of each table, and of which dates."""
    written: Counter[str] = Counter()
    days: dict[str, set[date | None]] = {str(table): set() for table in TABLES}
    counted = rows.select(*READ).mapInArrow(partial(_decode_task, folder), "table string, day date, rows bigint")
    for table, day, count in counted.collect():
        written[table] += count
        days[table].add(day)
    return written, days


def _decode_task(folder: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    side = SideFiles(folder, number_of_task())
    names = {str(table): table.name for table in TABLES}
    found: Counter[tuple[str, date | None]] = Counter()
    for batch in batches:
        for table, rows in decode_collected(batch).items():
            side.add(names[table], rows)
            for day in pc.value_counts(rows.column(EVENT_DATE)).to_pylist():
                found[table, day["values"]] += day["counts"]
    side.close()
    counts = [{"table": table, "day": day, "rows": count} for (table, day), count in found.items()]
    yield pa.RecordBatch.from_pylist(counts, schema=_COUNTS)


def _not_there(lake: Lake, table: Table, folder: str, days: dict[str, set[date | None]]) -> DataFrame:
    """Return the side rows of snapshots of which the table has none yet."""
    rows = lake.spark.read.schema(table.struct()).parquet(f"{folder}/{table.name}")
    there = lake.read(table).where(OURS).where(on_dates(days[str(table)])).select("snapshot_id").distinct()
    return rows.join(there, "snapshot_id", "left_anti").select(*table.names)
