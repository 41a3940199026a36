"""Ingest snapshot files into ``bronze.snapshots_raw``, each snapshot once, and broken lines into ``bronze.quarantine``.

``bronze.snapshot_files`` is the ledger: a file that it knows by path, size and time is not read again. It is written
last, and every write before it may be repeated: a run that was killed is simply done again. A snapshot that several
files hold is one row, from the smallest (path, line), so that the tables do not depend on the order of files. The
caller holds the lake's lease.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.bronze.failed_inputs import NOT_DECODED_SQL
from pipeline.bronze.ingest_captures import BRONZE_TABLES, LogFunction
from pipeline.bronze.ingest_clock import DEFAULT_MAX_TIME_AHEAD, IngestClock
from pipeline.bronze.input_files import InputFile
from pipeline.bronze.retention_cutoff import RetentionCutoff
from pipeline.lake.arrow_rows import datetime_to_us, us_to_datetime
from pipeline.lake.date_filters import dates_condition
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.recovery import RunMarkers, undo_unfinished_runs
from pipeline.lake.schema_enforcement import arrow_schema, event_date_column
from pipeline.lake.spark.frames import arrow_to_frame, read_parquet_folder, values_to_frame
from pipeline.lake.staging_files import StagingWriter, task_number
from schemas.bronze import CAPTURE_FILES, QUARANTINE
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW
from schemas.table import EVENT_DATE, INGESTED_AT, RUN_ID, Table
from udfs.errors import describe_failure
from udfs.files.capture_fingerprint import MAX_EXPANDED_BYTES, MAX_EXPANSION_RATIO
from udfs.files.file_source import FileSource
from udfs.properties import snapshot_lines
from udfs.properties.snapshot_lines import BROKEN_LINE_SCHEMA, SNAPSHOT_SCHEMA
from udfs.rows import RowDict

_LINES_PER_BATCH: Final = 2000
_MAX_TASKS: Final = 64
_FILES_PER_TASK: Final = 16
_BYTES_PER_TASK: Final = 16 << 20
_SNAPSHOTS, _BROKEN = "snapshots", "broken"  # kinds of staging files
_FILE_COUNTS_SCHEMA: Final = pa.schema(
    {
        "path": pa.string(),
        "snapshots": pa.int64(),
        "quarantined": pa.int64(),
        "first_us": pa.int64(),
        "last_us": pa.int64(),
        "error": pa.string(),
    }
)


@dataclass(slots=True)
class SnapshotIngestResult:
    """Ledger rows and counts of one ingest of snapshots; ``skipped_files`` are those that the ledger knew already."""

    file_rows: list[RowDict] = field(default_factory=list)
    skipped_files: int = 0
    rows_written: dict[str, int] = field(default_factory=dict)  # by table

    @property
    def has_unreadable_files(self) -> bool:
        """Whether a file could not be read; broken lines do not count."""
        return any(row["status"] == "unreadable" for row in self.file_rows)


def ingest(
    lake: Lake, files: Sequence[InputFile], *, run_id: str, log: LogFunction, dry_run: bool = False,
    max_time_ahead: dt.timedelta = DEFAULT_MAX_TIME_AHEAD,
) -> SnapshotIngestResult:  # fmt: skip
    """Ingest the snapshots of files that are new or have changed; with ``dry_run`` only list them.

    Snapshots with a time later than the clock by more than ``max_time_ahead`` go to quarantine.
    """
    if not dry_run:
        # Now: if a later ingest did it, it would also restore what is written to bronze.quarantine here.
        undo_unfinished_runs(lake, BRONZE_TABLES, CAPTURE_FILES, log)
    known = lake.query(
        "SELECT path, size_bytes, unix_micros(modified_at) AS modified_us, "
        f"status = 'complete' OR {NOT_DECODED_SQL} AS was_read FROM {{ledger}}",
        ledger=SNAPSHOT_FILES,
    ).to_pylist()
    ledger = {(row["path"], row["size_bytes"], row["modified_us"]): row["was_read"] for row in known}
    fresh = [file for file in files if not ledger.get((file.path, file.size, file.modified_us))]
    result = SnapshotIngestResult(skipped_files=len(files) - len(fresh))
    if not fresh:
        log(f"nothing new in {result.skipped_files} snapshot files")
        return result
    if dry_run:
        for file in fresh:
            log(f"read {file.path} ({file.size} bytes)")
        return result
    megabytes = sum(file.size for file in fresh) / 1e6
    log(f"reading {len(fresh)} snapshot files, {megabytes:.1f} MB; {result.skipped_files} known")
    folder = RunMarkers.of(lake).root / "snapshots"
    folder.remove_folder()  # staging files of a killed run
    try:
        known_paths, clock = {path for path, *_ in ledger}, IngestClock(max_time_ahead)
        _SnapshotIngestRun(lake, run_id, str(folder / uuid4().hex), fresh, known_paths, clock).run(result)
    finally:
        folder.remove_folder()
    return result


@dataclass(slots=True)
class _SnapshotIngestRun:
    """Reads the new snapshot files and writes the tables."""

    lake: Lake
    run_id: str
    staging_folder: str
    files: list[InputFile]
    known_paths: set[str]
    clock: IngestClock

    def run(self, result: SnapshotIngestResult) -> None:
        """Read to staging files, then write broken lines, snapshots and the ledger; add the counts to ``result``."""
        counts = read_snapshot_files(self.lake, self.files, self.staging_folder, self.clock).to_pylist()
        counts_by_path = {row["path"]: row for row in counts}
        result.file_rows = [self._ledger_row(file, counts_by_path[file.path]) for file in self.files]
        result.rows_written[str(QUARANTINE)] = self._write_broken_lines(result.file_rows)
        has_snapshots = any(row["snapshots"] for row in result.file_rows)
        result.rows_written[str(SNAPSHOTS_RAW)] = self._write_snapshots(any_rows=has_snapshots)
        self._write_ledger(result.file_rows)
        result.rows_written[str(SNAPSHOT_FILES)] = len(result.file_rows)

    @staticmethod
    def _ledger_row(file: InputFile, counts: RowDict) -> RowDict:
        def time(at_us: int | None) -> dt.datetime | None:
            return None if at_us is None else us_to_datetime(at_us)

        first = time(counts["first_us"])
        return {
            "path": file.path,
            "size_bytes": file.size,
            "modified_at": time(file.modified_us),
            "lines": counts["snapshots"] + counts["quarantined"],
            "snapshots": counts["snapshots"],
            "quarantined": counts["quarantined"],
            "status": "complete" if counts["error"] is None else "unreadable",
            "error": counts["error"],
            "first_asked_at": first,
            "last_asked_at": time(counts["last_us"]),
            EVENT_DATE: None if first is None else first.date(),
        }

    def _staged_rows(self, kind: str, table: Table) -> DataFrame:
        """Return staged rows with all columns of their table."""
        rows = self._drop_rows_before_cutoff(
            read_parquet_folder(self.lake.spark, LakePath(self.staging_folder) / kind), kind
        )
        stamp = {RUN_ID: F.lit(self.run_id), INGESTED_AT: F.lit(self.clock.now)}
        missing = {
            column.name: F.lit(None).cast(column.type)
            for column in table.columns
            if column.name not in (*rows.columns, EVENT_DATE)
        }
        return rows.withColumns({**missing, **stamp, EVENT_DATE: event_date_column(*table.event_date_columns)}).select(
            *(F.col(column.name).cast(column.type).alias(column.name) for column in table.columns)
        )

    def _drop_rows_before_cutoff(self, rows: DataFrame, kind: str) -> DataFrame:
        """Drop snapshots from before the retention cutoff, and broken lines (without a time) of files that hold one."""
        cutoff = RetentionCutoff.load(RunMarkers.of(self.lake))
        if cutoff is None:
            return rows
        older = f"coalesce(asked_at, collected_at) < {cutoff.timestamp_sql}"
        if kind == _SNAPSHOTS:
            return rows.where(f"NOT coalesce({older}, FALSE)")
        staged = LakePath(self.staging_folder) / _SNAPSHOTS
        if not staged.is_folder():
            return rows
        snapshots = read_parquet_folder(self.lake.spark, staged)
        return rows.join(snapshots.where(older).select("source_path").distinct(), "source_path", "left_anti")

    def _write_broken_lines(self, files: list[RowDict]) -> int:
        """Replace the broken lines of these files in ``bronze.quarantine``; return how many there are."""
        broken: int = sum(row["quarantined"] for row in files)
        paths = {row["path"] for row in files if row["quarantined"] or row["path"] in self.known_paths}
        if paths and self.lake.exists(QUARANTINE):
            self.lake.delete_values(QUARANTINE, "source_path", paths, dates={None})
        if broken:
            self.lake.append(QUARANTINE, self._staged_rows(_BROKEN, QUARANTINE))
        return broken

    def _write_snapshots(self, *, any_rows: bool) -> int:
        """Write the snapshots that are new, or whose (path, line) is smaller than the stored one; return how many."""
        lake = self.lake
        if not any_rows:
            lake.create(SNAPSHOTS_RAW)
            return 0
        rows = self._staged_rows(_SNAPSHOTS, SNAPSHOTS_RAW)
        place = F.struct("source_path", "source_line")
        first = rows.groupBy("snapshot_id").agg(
            F.min(place).alias("first"), F.count("*").alias("times"), F.min(EVENT_DATE).alias("day")
        )
        most, days, ids = first.agg(F.max("times"), F.collect_set("day"), F.count("*")).first()  # type: ignore[misc]  # an aggregate has a row
        if most > 1:
            chosen = first.select("snapshot_id", F.col("first").alias("_first"))
            rows = rows.join(chosen, "snapshot_id").where(place == F.col("_first")).drop("_first")
            rows = rows.dropDuplicates(["snapshot_id"])  # of equal rows: a file has each line number once
        if not lake.exists(SNAPSHOTS_RAW):
            lake.append(SNAPSHOTS_RAW, rows)
            return int(ids)
        stored = (
            lake.read(SNAPSHOTS_RAW)
            .where(dates_condition(days))
            .select("snapshot_id", F.struct("source_path", "source_line").alias("stored"))
            .join(first.select("snapshot_id", "first"), "snapshot_id")
            .select("snapshot_id", (F.col("first") < F.col("stored")).alias("smaller"))
            .toArrow()
        )
        if stored.num_rows:
            kept = stored.filter(pa.compute.invert(stored.column("smaller"))).select(["snapshot_id"])
            replaced = set(stored.filter(stored.column("smaller")).column("snapshot_id").to_pylist())
            rows = rows.join(F.broadcast(arrow_to_frame(lake.spark, kept)), "snapshot_id", "left_anti")
            lake.delete_values(SNAPSHOTS_RAW, "snapshot_id", replaced, dates=set(days))
            ids -= kept.num_rows
        if ids:
            lake.append(SNAPSHOTS_RAW, rows)
        return int(ids)

    def _write_ledger(self, files: list[RowDict]) -> None:
        stamp = {RUN_ID: self.run_id, INGESTED_AT: self.clock.now}
        rows = pa.Table.from_pylist([{**row, **stamp} for row in files], arrow_schema(SNAPSHOT_FILES))
        stored = self.lake.select_by_values(SNAPSHOT_FILES, {row["path"] for row in files})
        self.lake.create(SNAPSHOT_FILES)
        self.lake.replace_changed(SNAPSHOT_FILES, rows, stored, dates=set(stored.column(EVENT_DATE).to_pylist()))


def read_snapshot_files(lake: Lake, files: Collection[InputFile], staging_folder: str, clock: IngestClock) -> pa.Table:
    """Read snapshot files to staging files; return the counts of each file (``_FILE_COUNTS_SCHEMA``).

    A task reads several files. It writes one staging file for each kind of rows, named by its number.
    """
    paths = values_to_frame(lake.spark, [file.path for file in files], "path")
    size = sum(file.size for file in files)
    tasks = min(_MAX_TASKS, len(files), max(1, -(-len(files) // _FILES_PER_TASK), size // _BYTES_PER_TASK))
    read = partial(_read_task, staging_folder, us_to_datetime(clock.latest_us()))
    return paths.repartition(tasks, "path").mapInArrow(read, from_arrow_schema(_FILE_COUNTS_SCHEMA)).toArrow()


def _read_task(staging_folder: str, latest: dt.datetime, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    staging = StagingWriter(staging_folder, task_number())
    counts = [_read_file(path, staging, latest) for batch in batches for path in batch.column("path").to_pylist()]
    staging.close()
    yield pa.RecordBatch.from_pylist(counts, schema=_FILE_COUNTS_SCHEMA)


def _read_file(path: str, staging: StagingWriter, latest: dt.datetime) -> RowDict:
    """Read one file to staging files; return its counts, with an error if it could not be read to its end."""
    counts: RowDict = {"path": path, "snapshots": 0, "quarantined": 0, "first_us": None, "last_us": None, "error": None}
    try:
        with FileSource.from_path(path).open_decompressed(MAX_EXPANSION_RATIO, MAX_EXPANDED_BYTES) as stream:
            rows = snapshot_lines.read_snapshot_rows(stream, path, latest)
            while part := list(islice(rows, _LINES_PER_BATCH)):
                good = [row for row in part if "reason" not in row]
                bad = [row for row in part if "reason" in row]
                staging.add(_SNAPSHOTS, pa.RecordBatch.from_pylist(good, schema=SNAPSHOT_SCHEMA))
                staging.add(_BROKEN, pa.RecordBatch.from_pylist(bad, schema=BROKEN_LINE_SCHEMA))
                counts["snapshots"] += len(good)
                counts["quarantined"] += len(bad)
                times = [datetime_to_us(row["asked_at"]) for row in good]
                for name, better in (("first_us", min), ("last_us", max)):
                    known = [counts[name]] if counts[name] is not None else []
                    counts[name] = better([*times, *known], default=None)
            if (damage := getattr(stream, "error", None)) is not None:  # of a compressed file: what came before is used
                counts["error"] = damage
    except OSError as error:
        counts["error"] = (error.strerror or str(error)).splitlines()[0]
    except Exception as error:  # noqa: BLE001 - it is the error of one file: the others are read
        counts["error"] = describe_failure(error)
    return counts
