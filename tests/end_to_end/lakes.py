"""Tables of lakes in memory, and runs of the pipeline: in this process, or in one that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pyarrow as pa

from jobs import (
    alerts,
    ask,
    export_packets,
    forget,
    ingest_captures,
    publish_dashboards,
    run_all,
    show_message,
    trace_message,
)
from jobs.analysis import rows
from pipeline.lake.lake import Lake
from schemas import bronze, catalog
from schemas.table import INGESTED_AT, RUN_ID, Table

_POLL_S = 0.02
_TIMEOUT_S = 600.0


def tables(lake: Lake, of: Iterable[Table] = catalog.DATA_TABLES) -> dict[str, pa.Table]:
    """Read tables of a lake, all by default, by name without layer."""

    return {table.name: lake.select(table, "TRUE") for table in of}


def facts(rows: pa.Table) -> Counter[str]:
    """Return how often each row occurs, without the columns of the run, which differ between two runs."""
    kept = rows.drop_columns([name for name in (RUN_ID, INGESTED_AT) if name in rows.column_names])
    return Counter(map(repr, kept.to_pylist()))


BRONZE, ALL = "ingest_captures", "run_all"  # jobs: to bronze only, or all layers
KILLED = ("all", "workers", "java", "driver")  # which processes of a job can be killed
WRITTEN_BY = {BRONZE: bronze.TABLES, ALL: catalog.DATA_TABLES}
_MAIN = {BRONZE: ingest_captures.main, ALL: run_all.main}


def run(lake: Lake, *captures: Path, job: str = ALL) -> None:
    """Run a job in this process."""
    stored = f"lake.store={lake.store_name}"
    assert _MAIN[job](["--lake", lake.root, "--set", stored, "--captures", *map(str, captures)]) == 0


def reading_jobs(root: Path, out: Path, call_key: str = "k") -> Iterator[tuple[ModuleType, list[str]]]:
    """Yield each job that only reads a lake, but `run_all --dry-run`, with its arguments."""
    lake = ["--lake", str(root)]
    yield ask, [*lake, "10", "not_known"]
    yield rows, [*lake, "silver.messages", "--limit", "0"]
    yield alerts, [*lake, "--fail-on", "never"]
    yield trace_message, [*lake, "--from", "1971-01-01"]
    yield show_message, [*lake, "--label", "order"]
    yield export_packets, [*lake, "--call", call_key, "--out", str(out / "packets.pcapng")]
    yield publish_dashboards, [*lake, "--out", str(out / "pages")]
    yield forget, [*lake, "--before", "2020-01-01", "--dry-run"]


def progress_files(root: Path) -> set[str]:
    """Return the files that show a run's progress: commits and staging files, without those still being written."""
    found: set[str] = set()
    for folder, below, files in os.walk(root):
        inside = Path(folder).relative_to(root).parts
        if inside[:1] == ("_runs",) or inside[-1:] == ("_delta_log",):
            shown = (name for name in files if name.endswith((".json", ".parquet")) and not name.startswith("."))
            found |= {"/".join((*inside, name)) for name in shown}
        elif len(inside) == 2:  # a table
            below[:] = [name for name in below if name == "_delta_log"]
    return found


@dataclass(frozen=True)
class Moment:
    """A moment of a run: the number of progress files, and the seconds since the last one appeared."""

    file_count: int
    after_s: float


@dataclass
class Job:
    """A job in a process of its own. ``timeline``: (seconds since the start, progress files so far)."""

    root: Path
    captures: Sequence[Path]
    name: str = ALL
    more: Sequence[str] = ()
    engine: str = "local"
    timeline: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._before = self._seen = progress_files(self.root)
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                f"jobs.{self.name}",
                "--lake",
                str(self.root),
                "--set",
                f"run.engine={self.engine}",
                *(["--captures", *map(str, self.captures)] if self.captures else []),
                *self.more,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def _count(self) -> int:
        """Return the number of progress files so far, including those that are gone."""
        self._seen = self._seen | progress_files(self.root)
        count = len(self._seen) - len(self._before)
        if not self.timeline or self.timeline[-1][1] != count:
            self.timeline.append((time.monotonic() - self._began, count))
        return count

    def running(self) -> bool:
        """Whether the job runs."""
        return self._process.poll() is None

    @property
    def survived(self) -> bool:
        """Whether the job ended with exit code 0."""
        return self._process.poll() == 0

    def look(self) -> int:
        """Return the number of progress files so far."""
        return self._count()

    def watch(self) -> None:
        """Record the timeline to the job's end; it must succeed."""
        while self._process.poll() is None:
            self._count()
            time.sleep(_POLL_S)
        self.succeed()

    def succeed(self) -> str:
        """Wait for the job's end, and return its standard error; it must succeed."""
        code, output = self.end()
        assert code == 0, f"exit code {code}:\n{output}"
        return output

    def end(self) -> tuple[int, str]:
        """Wait for the job's end; return exit code and standard error."""
        try:
            _, output = self._process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill(self._processes())
            _, output = self._process.communicate()
            raise AssertionError(f"not finished after {_TIMEOUT_S:.0f} s:\n{output.decode()}") from None
        return self._process.returncode, output.decode()

    def moment(self, fraction: float) -> Moment:
        """Return a moment of a watched job, between its first progress file (0) and its last (1)."""
        at = self.seconds(fraction)
        when, count = [entry for entry in self.timeline if entry[0] <= at][-1]
        return Moment(count, at - when)

    def seconds(self, fraction: float) -> float:
        """Return the seconds from a watched job's start to a point between first (0) and last (1) progress file."""
        begin, end = self.timeline[1][0], self.timeline[-1][0]
        return begin + fraction * (end - begin)

    def kill(self, moment: Moment, what: str) -> str:
        """Kill ``what`` (all, driver, java or workers) at a moment and wait for the end; return a description.

        If the machine is faster than when the moment was recorded, the kill comes with the next progress file at the
        latest, while the job still works.
        """
        while (count := self._count()) < moment.file_count:
            assert self._process.poll() is None, f"finished after {count} files; it should be killed at {moment}"
            time.sleep(_POLL_S)
        reached = time.monotonic()
        while time.monotonic() < reached + moment.after_s and self._count() == count:
            time.sleep(_POLL_S)
        while not (chosen := self._chosen(what)):
            assert self._process.poll() is None, f"finished without {what} after {count} files"
            time.sleep(_POLL_S)
        return self._killed(chosen, what, f"after {count} files")

    def kill_after(self, seconds: float, what: str) -> str | None:
        """Kill ``what`` some seconds after the start, like ``kill``; None if the job ended before."""
        while self.running():
            late = time.monotonic() >= self._began + seconds
            if late and (chosen := self._chosen(what)):
                return self._killed(chosen, what, f"after {seconds:.1f} s")
            time.sleep(_POLL_S)
        self.succeed()
        return None

    def kill_when(self, ready: Callable[[], bool], what: str) -> str:
        """Kill ``what`` once something is true; return a description."""
        while not (ready() and (chosen := self._chosen(what))):
            assert self._process.poll() is None, "finished before"
            time.sleep(_POLL_S)
        return self._killed(chosen, what, "in time")

    def _killed(self, chosen: Sequence[int], what: str, when: str) -> str:
        self._kill(chosen)
        code, output = self.end()
        return f"{what} killed {when} ({len(chosen)} processes), exit code {code}:\n{output}"

    def _chosen(self, what: str) -> list[int]:
        processes = self._processes()
        own = self._process.pid
        forking = {pid for pid, (_, line) in processes.items() if "jobs.command_line.python_daemon" in line}
        chosen = {
            "all": set(processes),
            "driver": {own},
            "java": {pid for pid, (above, line) in processes.items() if "java" in line.split()[0] and above == own},
            "workers": {pid for pid, (above, _) in processes.items() if pid in forking and above in forking},
        }
        return sorted(chosen[what])

    def _processes(self) -> dict[int, tuple[int, str]]:
        """Return parent and command line of the job's process and of all its descendants, by process id."""
        listed = subprocess.run(["ps", "-axo", "pid=,ppid=,args="], capture_output=True, check=True, text=True).stdout
        every = {
            int(pid): (int(above), line) for pid, above, line in (row.split(None, 2) for row in listed.splitlines())
        }
        below = defaultdict(list)
        for pid, (above, _) in every.items():
            below[above].append(pid)
        found, todo = {}, [self._process.pid]
        while todo:
            pid = todo.pop()
            if pid in every:
                found[pid] = every[pid]
            todo += below[pid]
        return found

    @staticmethod
    def _kill(processes: Iterable[int]) -> None:
        for pid in processes:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
