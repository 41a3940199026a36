"""Snapshot files -> ``bronze.snapshots_raw``, each snapshot once, and broken lines to ``bronze.quarantine``.

``bronze.snapshot_files`` is the ledger: a file that it knows by path, size and time is not read again. It is written
last, and every write before it does no harm when it is repeated: a run that was killed is simply done again. A snapshot
that several files hold is one row, from the smallest (path, line): the tables are a function of the files that were
read, not of their order. The caller holds the lake's lease.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.bronze.ingest_captures import BRONZE
from pipeline.bronze.input_files import Listed
from pipeline.bronze.retention_cutoff import Horizon
from pipeline.lake.arrow_rows import moment_of, us_of
from pipeline.lake.date_filters import on_dates
from pipeline.lake.frames import column_of, frame
from pipeline.lake.lake import Lake
from pipeline.lake.recovery import Runs, recover
from pipeline.lake.schema_enforcement import event_date
from pipeline.lake.staging_files import SideFiles, number_of_task
from schemas.bronze import CAPTURE_FILES, QUARANTINE
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW
from schemas.table import EVENT_DATE, INGESTED_AT, RUN_ID, Table
from udfs.files.identity import MAX_EXPANDED, MAX_EXPANSION
from udfs.files.sources import Source
from udfs.properties import snapshot_lines
from udfs.properties.snapshot_lines import BROKEN, ROWS

Say = Callable[[str], None]
Row = dict[str, Any]
_BATCH: Final = 2000  # lines that are brought to Arrow together
_MOST_TASKS: Final = 64
_FILES_A_TASK: Final = 16
_BYTES_A_TASK: Final = 16 << 20
_SNAPSHOTS, _BROKEN = "snapshots", "broken"  # kinds of side files
_COUNTED: Final = pa.schema(
    {
        "path": pa.string(),
        "snapshots": pa.int64(),
        "quarantined": pa.int64(),
        "first_us": pa.int64(),
        "last_us": pa.int64(),
        "error": pa.string(),
    }
)
_COUNTED_DDL: Final = "path string, snapshots bigint, quarantined bigint, first_us bigint, last_us bigint, error string"


@dataclass(slots=True)
class Ingested:
    """What a run read: rows of the ledger, how many files it knew, and how many rows of each table it wrote."""

    files: list[Row] = field(default_factory=list)
    known: int = 0
    written: dict[str, int] = field(default_factory=dict)

    @property
    def unreadable(self) -> bool:
        """Whether some file could not be read at all; broken lines are no such thing."""
        return any(row["status"] == "unreadable" for row in self.files)


def ingest(lake: Lake, files: Sequence[Listed], *, run_id: str, say: Say) -> Ingested:
    """Bring the snapshots of files that are new, or have changed, into bronze."""
    recover(lake, BRONZE, CAPTURE_FILES, say)  # it would take back what is written to bronze.quarantine here
    ledger = {
        (row[0], row[1], row[2]): row[3]
        for row in lake.read(SNAPSHOT_FILES)
        .select("path", "size_bytes", F.unix_micros("modified_at"), "status")
        .collect()
    }
    fresh = [file for file in files if ledger.get((file.path, file.size, file.modified_us), "new") != "complete"]
    done = Ingested(known=len(files) - len(fresh))
    if not fresh:
        say(f"nothing new in {done.known} snapshot files")
        return done
    say(f"reading {len(fresh)} snapshot files, {sum(file.size for file in fresh) / 1e6:.1f} MB; {done.known} known")
    side = Runs.of(lake).root / "snapshots"
    shutil.rmtree(side, ignore_errors=True)  # what a killed run left
    try:
        _Run(lake, run_id, str(side / uuid4().hex), fresh, {path for path, *_ in ledger}).carry_out(done)
    finally:
        shutil.rmtree(side, ignore_errors=True)
    return done


@dataclass(slots=True)
class _Run:
    lake: Lake
    run_id: str
    side: str
    files: list[Listed]
    known_paths: set[str]
    now: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))

    def carry_out(self, done: Ingested) -> None:
        """Read to side files, then write: quarantine, the snapshots, the ledger."""
        counted = {row["path"]: row for row in read_files(self.lake, self.files, self.side).to_pylist()}
        done.files = [self._ledger_row(file, counted[file.path]) for file in self.files]
        done.written[str(QUARANTINE)] = self._write_broken(done.files)
        done.written[str(SNAPSHOTS_RAW)] = self._write_snapshots(any(row["snapshots"] for row in done.files))
        self._write_ledger(done.files)
        done.written[str(SNAPSHOT_FILES)] = len(done.files)

    def _ledger_row(self, file: Listed, counted: Row) -> Row:
        def moment(at: int | None) -> dt.datetime | None:
            return None if at is None else moment_of(at)

        first = moment(counted["first_us"])
        return {
            "path": file.path,
            "size_bytes": file.size,
            "modified_at": moment(file.modified_us),
            "lines": counted["snapshots"] + counted["quarantined"],
            "snapshots": counted["snapshots"],
            "quarantined": counted["quarantined"],
            "status": "complete" if counted["error"] is None else "unreadable",
            "error": counted["error"],
            "first_asked_at": first,
            "last_asked_at": moment(counted["last_us"]),
            EVENT_DATE: None if first is None else first.date(),
        }

    def _side_rows(self, kind: str, table: Table) -> DataFrame:
        """Return side rows with all columns of their table."""
        rows = self._kept(self.lake.spark.read.parquet(f"{self.side}/{kind}"), kind)
        stamp = {RUN_ID: F.lit(self.run_id), INGESTED_AT: F.lit(self.now)}
        made = {
            column.name: F.lit(None).cast(column.type)
            for column in table.columns
            if column.name not in (*rows.columns, EVENT_DATE)
        }
        return rows.withColumns({**made, **stamp, EVENT_DATE: event_date(*table.dated_by)}).select(
            *(F.col(column.name).cast(column.type).alias(column.name) for column in table.columns)
        )

    def _kept(self, rows: DataFrame, kind: str) -> DataFrame:
        """Leave out what the lake has forgotten: older snapshots, and the broken lines of every file with one."""
        horizon = Horizon.of(Runs.of(self.lake))
        if horizon is None:
            return rows
        older = f"coalesce(asked_at, collected_at) < {horizon.time_sql}"
        if kind == _SNAPSHOTS:
            return rows.where(f"NOT coalesce({older}, FALSE)")
        if not Path(self.side, _SNAPSHOTS).is_dir():
            return rows
        begun = self.lake.spark.read.parquet(f"{self.side}/{_SNAPSHOTS}").where(older).select("source_path").distinct()
        return rows.join(begun, "source_path", "left_anti")

    def _write_broken(self, files: list[Row]) -> int:
        """Write the lines that are no snapshots in the place of those that the same files had."""
        broken: int = sum(row["quarantined"] for row in files)
        paths = {row["path"] for row in files if row["quarantined"] or row["path"] in self.known_paths}
        if paths and self.lake.exists(QUARANTINE):
            self.lake.remove(QUARANTINE, "source_path", paths, dates={None})
        if broken:
            self.lake.append(QUARANTINE, self._side_rows(_BROKEN, QUARANTINE))
        return broken

    def _write_snapshots(self, any_rows: bool) -> int:  # noqa: FBT001
        """Write each snapshot that is not there yet, and those of which this is the smaller (path, line)."""
        lake = self.lake
        if not any_rows:
            lake.create(SNAPSHOTS_RAW)
            return 0
        rows = self._side_rows(_SNAPSHOTS, SNAPSHOTS_RAW)
        place = F.struct("source_path", "source_line")
        first = rows.groupBy("snapshot_id").agg(
            F.min(place).alias("first"), F.count("*").alias("times"), F.min(EVENT_DATE).alias("day")
        )
        twice, days, ids = first.agg(F.max("times"), F.collect_set("day"), F.count("*")).first()  # type: ignore[misc]  # an aggregate has a row
        if twice > 1:
            chosen = first.select("snapshot_id", F.col("first").alias("_first"))
            rows = rows.join(chosen, "snapshot_id").where(place == F.col("_first")).drop("_first")
            rows = rows.dropDuplicates(["snapshot_id"])  # a file has the same line number once: this is no choice
        if not lake.exists(SNAPSHOTS_RAW):
            lake.append(SNAPSHOTS_RAW, rows)
            return int(ids)
        found = (
            lake.read(SNAPSHOTS_RAW)
            .where(on_dates(days))
            .select("snapshot_id", F.struct("source_path", "source_line").alias("there"))
            .join(first.select("snapshot_id", "first"), "snapshot_id")
            .select("snapshot_id", (F.col("first") < F.col("there")).alias("smaller"))
        )
        known = found.toArrow()
        if known.num_rows:
            stays = known.filter(pa.compute.invert(known.column("smaller"))).select(["snapshot_id"])
            moved = set(known.filter(known.column("smaller")).column("snapshot_id").to_pylist())
            rows = rows.join(F.broadcast(frame(lake.spark, stays)), "snapshot_id", "left_anti")
            lake.remove(SNAPSHOTS_RAW, "snapshot_id", moved, dates=set(days))
            ids -= stays.num_rows
        if ids:
            lake.append(SNAPSHOTS_RAW, rows)
        return int(ids)

    def _write_ledger(self, files: list[Row]) -> None:
        schema = pa.schema([(column.name, _arrow(column.type.simpleString())) for column in SNAPSHOT_FILES.columns])
        rows = pa.Table.from_pylist([{**row, RUN_ID: self.run_id, INGESTED_AT: self.now} for row in files], schema)
        there = self.lake.with_keys(SNAPSHOT_FILES, {row["path"] for row in files})
        days = set(there.column(EVENT_DATE).to_pylist())
        if not self.lake.exists(SNAPSHOT_FILES):
            self.lake.create(SNAPSHOT_FILES)
        self.lake.put(SNAPSHOT_FILES, rows, there, dates=days)


def _arrow(kind: str) -> pa.DataType:
    return {
        "string": pa.string(), "bigint": pa.int64(), "timestamp": pa.timestamp("us", "UTC"), "date": pa.date32(),
    }[kind]  # fmt: skip


def read_files(lake: Lake, files: Collection[Listed], side: str) -> pa.Table:
    """Read snapshot files to side files below ``side``; return what each holds (rows of ``_COUNTED``).

    A task reads several files and has a side file for each kind of rows, named by its number.
    """
    paths = column_of(lake.spark, [file.path for file in files], "path")
    size = sum(file.size for file in files)
    tasks = min(_MOST_TASKS, len(files), max(1, -(-len(files) // _FILES_A_TASK), size // _BYTES_A_TASK))
    return paths.repartition(tasks, "path").mapInArrow(partial(_read_task, side), _COUNTED_DDL).toArrow()


def _read_task(side: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    out = SideFiles(side, number_of_task())
    counted = [_read_file(path, out) for batch in batches for path in batch.column("path").to_pylist()]
    out.close()
    yield pa.RecordBatch.from_pylist(counted, schema=_COUNTED)


def _read_file(path: str, out: SideFiles) -> Row:
    """Read one file; what cannot be opened, or breaks off under the reader, is said and not an exception."""
    counts: Row = {"path": path, "snapshots": 0, "quarantined": 0, "first_us": None, "last_us": None, "error": None}
    try:
        with Source.of_path(path).open(MAX_EXPANSION, MAX_EXPANDED) as stream:
            rows = snapshot_lines.read_lines(stream, path)
            while part := list(islice(rows, _BATCH)):
                good = [row for row in part if "reason" not in row]
                bad = [row for row in part if "reason" in row]
                out.add(_SNAPSHOTS, pa.RecordBatch.from_pylist(good, schema=ROWS))
                out.add(_BROKEN, pa.RecordBatch.from_pylist(bad, schema=BROKEN))
                counts["snapshots"] += len(good)
                counts["quarantined"] += len(bad)
                times = [us_of(row["asked_at"]) for row in good]
                for name, better in (("first_us", min), ("last_us", max)):
                    known = [counts[name]] if counts[name] is not None else []
                    counts[name] = better([*times, *known], default=None)
            if (damage := getattr(stream, "error", None)) is not None:  # of compressed files; what came before is used
                counts["error"] = damage
    except OSError as error:
        counts["error"] = (error.strerror or str(error)).splitlines()[0]
    return counts
