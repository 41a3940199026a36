"""Lakes of the whole pipeline as tables in memory, and runs of it: in this process, and in one that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from jobs import ingest_captures, run_all
from pipeline.lake.concurrency import gather
from pipeline.lake.lake import Lake
from schemas import bronze, catalog
from schemas.table import Table

_LOOK_S = 0.02
_LONGEST_S = 600.0


def tables(lake: Lake, of: Iterable[Table] = catalog.ALL) -> dict[str, pa.Table]:
    """Tables of a lake, all by default, by the names they have within their layers."""

    def read(table: Table) -> pa.Table:
        return lake.read(table).toArrow()

    return gather({table.name: partial(read, table) for table in of})


BRONZE, ALL = "ingest_captures", "run_all"  # jobs: captures to bronze, and through all layers
KILLED = ("all", "workers", "java", "driver")  # what of a job's processes can be killed
WRITTEN_BY = {BRONZE: bronze.TABLES, ALL: catalog.ALL}
_MAIN = {BRONZE: ingest_captures.main, ALL: run_all.main}


def run(lake: Lake, *captures: Path, job: str = ALL) -> None:
    """Run a job in this process."""
    assert _MAIN[job](["--lake", lake.root, "--captures", *map(str, captures)]) == 0


def signs(root: Path) -> set[str]:
    """What a run shows of its progress, as paths: commits and side files, not those that are still written."""
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
    """A moment of a run: so many signs had shown, the last one some seconds ago."""

    signs: int
    after_s: float


@dataclass
class Job:
    """A job in a process of its own, and what it has shown so far (seconds since its start, signs)."""

    root: Path
    captures: Sequence[Path]
    name: str = ALL
    more: Sequence[str] = ()
    timeline: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._before = self._seen = signs(self.root)
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                f"jobs.{self.name}",
                "--lake",
                str(self.root),
                *(["--captures", *map(str, self.captures)] if self.captures else []),
                *self.more,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def _look(self) -> int:
        """Count the signs that showed so far; those that are gone too."""
        self._seen = self._seen | signs(self.root)
        count = len(self._seen) - len(self._before)
        if not self.timeline or self.timeline[-1][1] != count:
            self.timeline.append((time.monotonic() - self._began, count))
        return count

    def running(self) -> bool:
        """Whether it is not at its end."""
        return self._process.poll() is None

    @property
    def survived(self) -> bool:
        """Whether it is at its end, and ended well."""
        return self._process.poll() == 0

    def look(self) -> int:
        """Count the signs that showed so far."""
        return self._look()

    def watch(self) -> None:
        """Watch the job to its end; it must end well."""
        while self._process.poll() is None:
            self._look()
            time.sleep(_LOOK_S)
        self.succeed()

    def succeed(self) -> None:
        """Wait for the job's end; it must end well."""
        code, said = self.end()
        assert code == 0, f"exit code {code}:\n{said}"

    def end(self) -> tuple[int, str]:
        """Wait for the job's end; its exit code and what it said."""
        try:
            _, said = self._process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            self._kill(self._processes())
            _, said = self._process.communicate()
            raise AssertionError(f"not at its end after {_LONGEST_S:.0f} s:\n{said.decode()}") from None
        return self._process.returncode, said.decode()

    def moment(self, fraction: float) -> Moment:
        """The moment of a job that was watched, from its first sign (0) to its last one (1)."""
        at = self.seconds(fraction)
        when, count = [entry for entry in self.timeline if entry[0] <= at][-1]
        return Moment(count, at - when)

    def seconds(self, fraction: float) -> float:
        """How long after its start a job that was watched was so far: from its first sign (0) to its last one (1)."""
        begin, end = self.timeline[1][0], self.timeline[-1][0]
        return begin + fraction * (end - begin)

    def kill(self, moment: Moment, what: str) -> str:
        """Kill ``what`` (all, driver, java or workers) at a moment, wait for the end; what was done and said.

        Where this machine is quicker than when the moment was noted, it comes with the next sign at the latest, so that
        the job is at work still.
        """
        while (count := self._look()) < moment.signs:
            assert self._process.poll() is None, f"at its end after {count} signs; killed it should be at {moment}"
            time.sleep(_LOOK_S)
        reached = time.monotonic()
        while time.monotonic() < reached + moment.after_s and self._look() == count:
            time.sleep(_LOOK_S)
        while not (chosen := self._chosen(what)):
            assert self._process.poll() is None, f"at its end without {what} after {count} signs"
            time.sleep(_LOOK_S)
        return self._killed(chosen, what, f"after {count} signs")

    def kill_after(self, seconds: float, what: str) -> str | None:
        """Kill ``what`` some seconds after the start, as ``kill`` does; None when the job was at its end before."""
        while self.running():
            late = time.monotonic() >= self._began + seconds
            if late and (chosen := self._chosen(what)):
                return self._killed(chosen, what, f"after {seconds:.1f} s")
            time.sleep(_LOOK_S)
        self.succeed()
        return None

    def _killed(self, chosen: Sequence[int], what: str, when: str) -> str:
        self._kill(chosen)
        code, said = self.end()
        return f"{what} killed {when} ({len(chosen)} processes), exit code {code}:\n{said}"

    def _chosen(self, what: str) -> list[int]:
        processes = self._processes()
        own = self._process.pid
        daemons = {pid for pid, (_, line) in processes.items() if "jobs.python_daemon" in line}
        chosen = {
            "all": set(processes),
            "driver": {own},
            "java": {pid for pid, (above, line) in processes.items() if "java" in line.split()[0] and above == own},
            "workers": {pid for pid in daemons if processes[pid][0] in daemons},
        }
        return sorted(chosen[what])

    def _processes(self) -> dict[int, tuple[int, str]]:
        """The job's process and all below it: the process above each, and its command line."""
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
