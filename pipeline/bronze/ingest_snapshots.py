"""Ingest snapshot files into ``bronze.snapshots_raw``, each snapshot once, and broken lines into ``bronze.quarantine``.

``bronze.snapshot_files`` is the ledger: a file that it knows by path, size and time is not read again. It is written
last, and every write before it may be repeated: a run that was killed is simply done again. A snapshot that several
files hold is one row, from the smallest (path, line), so that the tables do not depend on the order of files. The
caller holds the lake's lease.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.bronze.failed_inputs import NOT_DECODED_SQL
from pipeline.bronze.ingest_captures import BRONZE_TABLES, LogFunction
from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.input_files import InputFile
from pipeline.bronze.ledger import IS_SAME_FILE, files_to_table
from pipeline.bronze.retention_cutoff import RetentionCutoff
from pipeline.lake.date_filters import dates_condition, distinct_dates
from pipeline.lake.engine.tasks import PartitionedRows, balance_by_size
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath, parquet_dataset
from pipeline.lake.schema_enforcement import conform_table, select_fields
from pipeline.lake.staging_files import StagingWriter, staged_rows
from pipeline.runs.recovery import RunMarkers, undo_unfinished_runs
from pipeline.settings import IngestConfig
from schemas.bronze import CAPTURE_FILES, QUARANTINE
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW
from schemas.table import EVENT_DATE, INGESTED_AT, RUN_ID, Table
from udfs.errors import describe_failure
from udfs.files.capture_fingerprint import MAX_EXPANDED_BYTES, MAX_EXPANSION_RATIO
from udfs.files.file_source import FileSource
from udfs.properties import snapshot_lines
from udfs.rows import RowDict
from udfs.times import datetime_to_us, us_to_datetime

# The files whose paths the ledger has, and whether they were read as they are.
_KNOWN: Final = f"""
SELECT position, max(CASE WHEN {IS_SAME_FILE} AND (status = 'complete' OR {NOT_DECODED_SQL}) THEN 1 ELSE 0 END) = 1
  AS was_read
FROM {{files}} AS files JOIN {{ledger}} AS known ON known.path = files.path
GROUP BY position"""
_LINES_PER_BATCH: Final = 2000
_MAX_TASKS: Final = 64
_FILES_PER_TASK: Final = 16
_BYTES_PER_TASK: Final = 16 << 20
_FILE_COUNTS_SCHEMA: Final = pa.schema(
    {
        "path": pa.string(),
        "snapshots": pa.int64(),
        "quarantined": pa.int64(),
        "first_us": pa.int64(),
        "last_us": pa.int64(),
        "is_older": pa.bool_(),  # whether it has snapshots from before the retention cutoff
        "error": pa.string(),
    }
)
# The smallest (path, line) of each snapshot, unless the table has a smaller one.
_CHOSEN_SQL: Final = """SELECT new.source_path, new.source_line, new.snapshot_id,
  stored.snapshot_id IS NOT NULL AS replaces
FROM (
  SELECT *, row_number() OVER (PARTITION BY snapshot_id ORDER BY source_path, source_line) AS place FROM {new}
) AS new LEFT JOIN {stored} AS stored ON new.snapshot_id = stored.snapshot_id AND {dates}
WHERE new.place = 1 AND (stored.snapshot_id IS NULL OR new.source_path < stored.source_path
  OR (new.source_path = stored.source_path AND new.source_line < stored.source_line))"""


RowFilter = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(slots=True)
class SnapshotIngestResult:
    """Ledger rows and counts of one ingest of snapshots; ``skipped_files`` are those that the ledger knew already."""

    file_rows: list[RowDict] = field(default_factory=list)
    skipped_files: int = 0
    rows_written: dict[str, int] = field(default_factory=dict)  # by table

    @property
    def unreadable_files(self) -> int:
        """How many files could not be read; broken lines do not count."""
        return sum(row["status"] == "unreadable" for row in self.file_rows)


def ingest(
    lake: Lake, files: Sequence[InputFile], *, run_id: str, log: LogFunction, dry_run: bool = False,
    max_time_ahead: dt.timedelta = IngestConfig.max_time_ahead,
) -> SnapshotIngestResult:  # fmt: skip
    """Ingest the snapshots of files that are new or have changed; with ``dry_run`` only list them.

    Snapshots with a time later than the clock by more than ``max_time_ahead`` go to quarantine.
    """
    if not dry_run:
        # Now: if a later ingest did it, it would also restore what is written to bronze.quarantine here.
        undo_unfinished_runs(lake, BRONZE_TABLES, CAPTURE_FILES, log)
    known = lake.query(_KNOWN, files=files_to_table(files), ledger=SNAPSHOT_FILES).to_pylist()
    was_read = {row["position"] for row in known if row["was_read"]}
    fresh = [file for position, file in enumerate(files) if position not in was_read]
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
    with RunMarkers.of(lake).staging_folder("snapshots") as folder:
        known_paths, clock = {files[row["position"]].path for row in known}, IngestClock(max_time_ahead)
        _SnapshotIngestRun(lake, run_id, str(folder / uuid4().hex), fresh, known_paths, clock).run(result)
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
        counts = read_snapshot_files(self.lake, self.files, self._reader()).to_pylist()
        counts_by_path = {row["path"]: row for row in counts}
        result.file_rows = [self._ledger_row(file, counts_by_path[file.path]) for file in self.files]
        older = {row["path"] for row in counts if row["is_older"]}
        result.rows_written[str(QUARANTINE)] = self._write_broken_lines(result.file_rows, older)
        result.rows_written[str(SNAPSHOTS_RAW)] = self._write_snapshots()
        self._write_ledger(result.file_rows)
        result.rows_written[str(SNAPSHOT_FILES)] = len(result.file_rows)

    def _reader(self) -> SnapshotReader:
        latest, cutoff = us_to_datetime(self.clock.latest_us()), RetentionCutoff.load(RunMarkers.of(self.lake))
        return SnapshotReader(self.staging_folder, latest, cutoff, self._stamp)

    @property
    def _stamp(self) -> RowDict:
        return {RUN_ID: self.run_id, INGESTED_AT: self.clock.now}

    def _staged_rows(self, table: Table, keep: RowFilter | None) -> PartitionedRows:
        return staged_rows(
            LakePath(self.staging_folder) / table.name, table, None if keep is None else partial(map, keep)
        )

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

    def _write_broken_lines(self, files: list[RowDict], older: Collection[str]) -> int:
        """Replace the broken lines of these files in ``bronze.quarantine``; return how many there are.

        They have no time: those of ``older`` files, which hold snapshots from before the retention cutoff, are dropped.
        """
        broken: int = sum(row["quarantined"] for row in files)
        paths = {row["path"] for row in files if row["quarantined"] or row["path"] in self.known_paths}
        if paths and self.lake.exists(QUARANTINE):
            self.lake.delete_values(QUARANTINE, "source_path", paths, dates={None})
        if broken:
            dropped = pa.array(sorted(older), pa.string())

            def is_kept(rows: pa.RecordBatch) -> pa.RecordBatch:
                return rows.filter(pc.invert(pc.is_in(rows.column("source_path"), dropped)))

            self.lake.append(QUARANTINE, self._staged_rows(QUARANTINE, is_kept if older else None))
        return broken

    def _write_snapshots(self) -> int:
        """Write the snapshots that are new, or whose (path, line) is smaller than the stored one; return how many."""
        lake, files = self.lake, (LakePath(self.staging_folder) / SNAPSHOTS_RAW.name).files()
        if not files:
            lake.create(SNAPSHOTS_RAW)
            return 0
        names = ["snapshot_id", "source_path", "source_line", EVENT_DATE]
        new = parquet_dataset([*files], select_fields(SNAPSHOTS_RAW.schema(), names)).to_table()
        dates = distinct_dates(new)
        sql = _CHOSEN_SQL.replace("{dates}", dates_condition(dates, "stored.event_date"))
        chosen = lake.query(sql, new=new, stored=SNAPSHOTS_RAW)
        lake.delete_values(
            SNAPSHOTS_RAW, "snapshot_id", chosen.filter(chosen["replaces"])["snapshot_id"].to_pylist(), dates=dates
        )
        places = set(zip(chosen["source_path"].to_pylist(), chosen["source_line"].to_pylist(), strict=True))

        def is_chosen(rows: pa.RecordBatch) -> pa.RecordBatch:
            found = zip(rows.column("source_path").to_pylist(), rows.column("source_line").to_pylist(), strict=True)
            return rows.filter(pa.array([place in places for place in found]))

        if places:
            is_all = len(places) == new.num_rows
            lake.append(SNAPSHOTS_RAW, self._staged_rows(SNAPSHOTS_RAW, None if is_all else is_chosen))
        return len(places)

    def _write_ledger(self, files: list[RowDict]) -> None:
        rows = pa.Table.from_pylist([{**row, **self._stamp} for row in files], SNAPSHOT_FILES.schema())
        stored = self.lake.select_by_values(SNAPSHOT_FILES, {row["path"] for row in files})
        self.lake.replace_changed(SNAPSHOT_FILES, rows, stored, dates=distinct_dates(stored))
        self.lake.create(SNAPSHOT_FILES)


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Reads snapshot files to staging files of ``bronze.snapshots_raw`` and ``bronze.quarantine``.

    Snapshots later than ``latest`` are broken lines. Those from before the retention cutoff are counted and left out.
    ``stamp`` has the columns of the run.
    """

    staging_folder: str
    latest: dt.datetime
    cutoff: RetentionCutoff | None
    stamp: Mapping[str, object]

    def read(self, paths: Collection[str], task: str) -> pa.RecordBatch:
        """Read some files to staging files of this name; return their counts."""
        staging = StagingWriter(self.staging_folder, task)
        counts = [self._read_file(path, staging) for path in paths]
        staging.close()
        return pa.RecordBatch.from_pylist(counts, schema=_FILE_COUNTS_SCHEMA)

    def _read_file(self, path: str, staging: StagingWriter) -> RowDict:
        """Read one file to staging files; return its counts, with an error if it could not be read to its end."""
        counts: RowDict = {
            "path": path, "snapshots": 0, "quarantined": 0, "first_us": None, "last_us": None, "is_older": False,
            "error": None,
        }  # fmt: skip
        try:
            with FileSource.from_path(path).open_decompressed(MAX_EXPANSION_RATIO, MAX_EXPANDED_BYTES) as stream:
                rows = snapshot_lines.read_snapshot_rows(stream, path, self.latest)
                while part := list(islice(rows, _LINES_PER_BATCH)):
                    self._stage(part, staging, counts)
                # Of a compressed file that is damaged, what came before is used.
                counts["error"] = getattr(stream, "error", None)
        except OSError as error:
            counts["error"] = (error.strerror or str(error)).splitlines()[0]
        except Exception as error:  # noqa: BLE001 - it is the error of one file: the others are read
            counts["error"] = describe_failure(error)
        return counts

    def _stage(self, part: Sequence[RowDict], staging: StagingWriter, counts: RowDict) -> None:
        """Add some rows of a file to the staging files, and to its counts."""
        good = [row for row in part if "reason" not in row]
        bad = [row for row in part if "reason" in row]
        times = [datetime_to_us(row["asked_at"]) for row in good]
        for name, better in (("first_us", min), ("last_us", max)):
            known = [counts[name]] if counts[name] is not None else []
            counts[name] = better([*times, *known], default=None)
        counts["snapshots"] += len(good)
        counts["quarantined"] += len(bad)
        if self.cutoff is not None:
            kept = [row for row in good if not self.cutoff.excludes_time(row["asked_at"], row["collected_at"])]
            counts["is_older"] |= len(kept) < len(good)
            good = kept
        for table, rows in ((SNAPSHOTS_RAW, good), (QUARANTINE, bad)):
            for batch in self._table_rows(table, rows).to_batches():
                staging.add(table.name, batch)

    def _table_rows(self, table: Table, rows: Sequence[RowDict]) -> pa.Table:
        """Return rows with all columns of their table."""
        schema = pa.schema([column for column in table.schema() if column.name != EVENT_DATE])
        return conform_table(table, pa.Table.from_pylist([{**row, **self.stamp} for row in rows], schema))


def read_snapshot_files(lake: Lake, files: Collection[InputFile], reader: SnapshotReader) -> pa.Table:
    """Read snapshot files to staging files; return the counts of each file (``_FILE_COUNTS_SCHEMA``).

    A task reads several files. Its staging files are named by its number, so that a repeated task replaces its own.
    """
    size = sum(file.size for file in files)
    count = min(_MAX_TASKS, max(1, -(-len(files) // _FILES_PER_TASK), size // _BYTES_PER_TASK))
    tasks = [[file.path for file in task] for task in balance_by_size(list(files), lambda file: file.size, count)]

    def read(number: int) -> Iterator[pa.RecordBatch]:
        yield reader.read(tasks[number], str(number))

    return PartitionedRows(len(tasks), size, read).table(lake.session, from_arrow_schema(_FILE_COUNTS_SCHEMA))
