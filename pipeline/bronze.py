"""Captures -> bronze: reads what the ledger does not know yet, and writes it so that a repeated run does no harm.

Complete calls are appended straight from the reading tasks. The small tables come by side files under the run's own
folder. Delta has no transaction over several tables: the ledger (``capture_files``) is written last, and a run that
never came so far left a marker, by which the next run takes its rows out again before it begins.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from pyarrow.dataset import dataset
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.capture_source import read_captures
from pipeline.lake import Lake
from pipeline.listing import Listed
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
from schemas.table import RUN_ID, Table, literal

SIDE_TABLES: Final = (CONNECTIONS, RPC_BINDS, QUARANTINE, PENDING, CAPTURE_FILES)  # the ledger is last
BRONZE: Final = (RPC_CALLS, *SIDE_TABLES)
_PROGRESS_S: Final = 3.0
Say = Callable[[str], None]


@dataclass(slots=True)
class Ingested:
    """What a run read: the files' rows of the ledger, and how many it passed over because it knew them."""

    files: list[dict[str, Any]] = field(default_factory=list)
    known: int = 0
    written: dict[str, int] = field(default_factory=dict)  # rows by table

    @property
    def unreadable(self) -> bool:
        """Whether some file could not be read, or is damaged inside; a last record cut short is only a warning."""
        return any(row["damage"] not in (None, "cut_short") or row["status"] == "unreadable" for row in self.files)


@dataclass(frozen=True, slots=True)
class Runs:
    """The folder of the lake where runs keep their work: a marker for each that is not finished, and side files."""

    root: Path

    @staticmethod
    def of(lake: Lake) -> Runs:
        """Return the folder of a lake."""
        return Runs(Path(lake.root) / "_runs")

    def begin(self, run_id: str) -> Path:
        """Mark a run as begun; return the folder for its side files."""
        side = self.root / run_id
        side.mkdir(parents=True, exist_ok=True)
        (self.root / f"{run_id}.json").write_text(json.dumps({"run_id": run_id}), encoding="utf-8")
        return side

    def end(self, run_id: str) -> None:
        """Take away a run's side files, then its marker."""
        shutil.rmtree(self.root / run_id, ignore_errors=True)
        (self.root / f"{run_id}.json").unlink(missing_ok=True)

    def unfinished(self) -> list[str]:
        """Return the runs that began and did not end."""
        return sorted(path.stem for path in self.root.glob("*.json")) if self.root.is_dir() else []


def roll_back(lake: Lake, runs: Runs, say: Say) -> None:
    """Take out what unfinished runs wrote, unless their ledger rows show that only their end was missing."""
    for run_id in runs.unfinished():
        done = lake.read(CAPTURE_FILES).where(F.col(RUN_ID) == run_id).limit(1).count()
        if not done:
            say(f"an earlier run did not end: its rows are taken out ({run_id})")
            for table in BRONZE:
                lake.delete_run(table, run_id)
        runs.end(run_id)


def unknown_files(lake: Lake, files: Iterable[Listed]) -> tuple[list[Listed], int]:
    """Return the files that the ledger does not hold as they are now, and how many it does."""
    ledger = lake.read(CAPTURE_FILES).select("path", "other_paths", "size_bytes", F.unix_micros("modified_at"))
    known = {}
    for path, others, size, modified in ledger.collect():
        known.update(dict.fromkeys((path, *(others or ())), (size, modified)))
    fresh = [file for file in files if known.get(file.path) != (file.size, file.modified_us)]
    return fresh, len(list(files)) - len(fresh)


def ingest(lake: Lake, files: list[Listed], *, run_id: str, reader_options: dict[str, Any], say: Say) -> Ingested:
    """Bring new captures into bronze; returns what was read. Files that the ledger knows are not read again."""
    runs = Runs.of(lake)
    roll_back(lake, runs, say)
    fresh, known = unknown_files(lake, files)
    done = Ingested(known=known)
    if not fresh:
        say(f"nothing new in {known} capture files")
        return done
    say(f"reading {len(fresh)} capture files, {sum(file.size for file in fresh) / 1e6:.1f} MB; {known} known already")
    side = runs.begin(run_id)
    manifest = side / "manifest.json"
    manifest.write_text(json.dumps([[f.path, f.size, f.modified_us] for f in fresh]), encoding="utf-8")
    calls = read_captures(lake.spark, rows="rpc_calls", manifest=manifest, side=side / "tables", **reader_options)
    stamp = {RUN_ID: F.lit(run_id), "ingested_at": F.lit(datetime.now(UTC))}
    _replaced(lake, fresh)
    with _progress(side / "tables" / CAPTURE_FILES.name, len(fresh), say):
        lake.append(RPC_CALLS, calls.withColumns(stamp))
    for table in SIDE_TABLES:
        folder = side / "tables" / table.name
        if not folder.is_dir():
            continue
        rows = lake.spark.read.parquet(str(folder))
        if table is CAPTURE_FILES:
            done.files = [row.asDict() for row in rows.collect()]
        lake.append(table, _known(table, rows).withColumns(stamp))
        done.written[str(table)] = dataset(folder).count_rows()
    done.written[str(RPC_CALLS)] = sum(row["calls"] for row in done.files)
    runs.end(run_id)
    return done


@contextmanager
def _progress(folder: Path, total: int, say: Say) -> Iterator[None]:
    """Tell how many captures were read, every few seconds while there is something new to tell.

    The tasks write a capture's row of the ledger when they are through with it: these are counted.
    """
    done = Event()

    def watch() -> None:
        told = 0
        while not done.wait(_PROGRESS_S):
            read = sum(not path.name.startswith(".") for path in folder.glob("*")) if folder.is_dir() else 0
            if read != told:
                say(f"{read} of {total} capture files read")
                told = read

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _known(table: Table, rows: DataFrame) -> DataFrame:
    """The rows without columns that only the run's summary needs."""
    return rows.select(*(name for name in rows.columns if name in table.names))


def _replaced(lake: Lake, fresh: list[Listed]) -> None:
    """A file that changed since it was read is read anew: what it gave before goes."""
    if not lake.exists(CAPTURE_FILES):
        return
    paths = [file.path for file in fresh]
    rows = lake.read(CAPTURE_FILES).where(F.col("path").isin(paths)).select("capture_id").collect()
    if not rows:
        return
    ids = ", ".join(literal(row[0]) for row in rows)
    gone = f"capture_id IN ({ids})"
    keys = lake.read(RPC_CALLS).where(gone).select("connection_id").distinct().collect()
    for table in (RPC_CALLS, RPC_BINDS, QUARANTINE, PENDING, CAPTURE_FILES):
        if lake.exists(table):
            lake.spark.sql(f"DELETE FROM {lake.sql_name(table)} WHERE {gone}")  # noqa: S608
    if keys and lake.exists(CONNECTIONS):
        connections = ", ".join(literal(row[0]) for row in keys)
        lake.spark.sql(f"DELETE FROM {lake.sql_name(CONNECTIONS)} WHERE connection_id IN ({connections})")  # noqa: S608
