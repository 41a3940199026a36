"""Captures whose reading ended for want of memory, disk or time are read again alone, in a process with limits.

A task marks the capture that it reads (``mark_path``). A capture that is marked and has no row of the ledger among
the staging files was being read when its task, or the whole run, died: or its task could not write its rows. What
fails again within the limits is ``unreadable`` with ``resource_limit``. The other captures are ingested.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final

from pipeline.bronze.capture_tasks import (
    CaptureSplit,
    build_read_tasks,
    read_options,
    read_split,
    split_of,
    stage_failure,
)
from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.ledger_entries import PlannedRead
from pipeline.bronze.read_progress import mark_path, marks_folder
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake_path import LakePath
from pipeline.lake.staging_files import StagingWriter, staging_file_name
from pipeline.settings import CaptureConfig
from udfs.errors import ResourceLimitError, is_resource_failure

_MEMORY_IN_USE: Final = Path("/proc/self/statm")  # of Linux, in pages; the second number is that of resident ones
_MEMORY_INTERVAL_S: Final = 0.02
_BEYOND_LIMITS: Final = 75  # exit code of the process that reads one capture
RunTasks = Callable[[PartitionedRows], object]
ReadIsolated = Callable[["IsolatedRead"], None]
LogFunction = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class IsolatedReadLimits:
    """Limits of a process that reads one capture: bytes of memory, bytes of each file that it writes, seconds."""

    memory_bytes: int = CaptureConfig.alone_memory_bytes
    file_bytes: int = CaptureConfig.alone_file_bytes
    seconds: float = CaptureConfig.alone_timeout.total_seconds()

    @staticmethod
    def of(options: Mapping[str, Any]) -> IsolatedReadLimits:
        """Return the limits among the reader's options; defaults for those that are not there."""
        defaults = IsolatedReadLimits()
        return IsolatedReadLimits(
            int(options.get("alone_memory_bytes", defaults.memory_bytes)),
            int(options.get("alone_file_bytes", defaults.file_bytes)),
            float(options.get("alone_seconds", defaults.seconds)),
        )


@dataclass(frozen=True, slots=True)
class IsolatedRead:
    """One capture to read alone, by which clock, where its rows go, and the reader's options."""

    read: PlannedRead
    clock: IngestClock
    staging_folder: str
    options: Mapping[str, str]


def interrupted_reads(folders: Iterable[LakePath]) -> frozenset[str]:
    """Return the marks in the folders of runs that were killed: of captures that were being read."""
    return frozenset(mark.name for folder in folders for mark in marks_folder(folder).entries())


def read_captures(
    reads: Sequence[PlannedRead], clock: IngestClock, folder: LakePath, staging_folder: LakePath,
    options: Mapping[str, Any], run_tasks: RunTasks, log: LogFunction, interrupted: frozenset[str] = frozenset(),
    read_isolated: ReadIsolated | None = None,
) -> None:  # fmt: skip
    """Read captures into staging files: by tasks, then alone those at which tasks ended.

    ``folder`` is the run's. ``interrupted`` are marks of captures that an earlier run was killed at. Raises the error
    of the tasks if no capture was being read.
    """
    read_isolated = read_isolated or read_in_process
    marks = marks_folder(folder)
    marks.make_folder()

    def is_read(read: PlannedRead) -> bool:
        return (staging_folder / "capture_files" / staging_file_name(read.name)).exists()

    def is_marked(read: PlannedRead) -> bool:
        return mark_path(marks, read.name).exists()

    for read in reads:
        if (mark := mark_path(marks, read.name)).name in interrupted:
            mark.write_text("")
    by_tasks = [read for read in reads if not is_marked(read)]
    while by_tasks:
        task_file, target = staging_folder / "tasks.jsonl", str(staging_folder)
        tasks = build_read_tasks(
            by_tasks, task_file, clock, rows="capture_files", staging_folder=target, marks=marks, **options
        )  # fmt: skip
        try:
            run_tasks(tasks)
        except Exception as error:
            if not any(is_marked(read) and not is_read(read) for read in by_tasks):
                raise
            log(f"a task that reads captures ended: {' '.join(str(error).split())[:300]}")
            by_tasks = [read for read in by_tasks if not is_marked(read) and not is_read(read)]
        else:
            break
    texts = {name: str(value) for name, value in options.items()}
    for read in reads:
        if not is_read(read):
            log(f"{read.name}: read again, alone")
            read_isolated(IsolatedRead(read, clock, str(staging_folder), texts))


def read_in_process(isolated: IsolatedRead) -> None:
    """Read one capture in a process of its own with limits; if that fails, its row of the ledger says why."""
    limits = IsolatedReadLimits.of(isolated.options)
    clock = isolated.clock.now.isoformat(), isolated.clock.max_time_ahead.total_seconds()
    request = json.dumps([isolated.read.to_json_dict(), clock, isolated.staging_folder, dict(isolated.options)])
    modules = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = [sys.executable, "-m", "pipeline.bronze.isolated_reads"]
    try:
        done = subprocess.run(  # noqa: S603 - this program, with no argument of the input
            command, input=request, text=True, check=False, env={**os.environ, **modules}, timeout=limits.seconds,
            capture_output=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        why: Exception = ResourceLimitError(f"reading it alone took longer than {limits.seconds:g} s")
    else:
        if not done.returncode:
            return
        if done.returncode == _BEYOND_LIMITS:
            memory, disk = f"memory ({limits.memory_bytes} bytes)", f"disk ({limits.file_bytes} bytes for a file)"
            why = ResourceLimitError(f"reading it alone took more than its limits of {memory} or {disk}")
        elif done.returncode < 0:
            why = ResourceLimitError(f"the process that read it alone was ended by signal {-done.returncode}")
        else:
            why = RuntimeError(f"reading it alone: {(done.stderr.strip().splitlines() or [''])[-1]}")
    stage_failure(
        split_of(isolated.read, isolated.clock), StagingWriter(isolated.staging_folder, isolated.read.name), why
    )


def _set_limits(limits: IsolatedReadLimits) -> None:
    """Limit this process. Where the system has no such limits, only time is limited, by the parent.

    A thread ends the process when it takes too much memory: Python may not survive an allocation that the system
    refuses, which therefore happens at twice the limit only.
    """
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 (not on Windows)

    for kind, most in ((resource.RLIMIT_DATA, 2 * limits.memory_bytes), (resource.RLIMIT_FSIZE, limits.file_bytes)):
        resource.setrlimit(kind, (most, most))
    Thread(target=_watch_memory, args=(limits.memory_bytes,), daemon=True).start()


def _watch_memory(most: int) -> None:
    while _memory_in_use() <= most:
        time.sleep(_MEMORY_INTERVAL_S)
    os._exit(_BEYOND_LIMITS)


def _memory_in_use() -> int:
    """Return the bytes of memory that this process has; without Linux's /proc, the most that it ever had."""
    import resource  # noqa: PLC0415 (not on Windows)

    if _MEMORY_IN_USE.exists():
        return int(_MEMORY_IN_USE.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10  # only macOS tells it in bytes


def main() -> int:
    """Read the capture that standard input names; return the exit code."""
    values, (now, seconds_ahead), staging_folder, options = json.loads(sys.stdin.read())
    clock = IngestClock(dt.timedelta(seconds=seconds_ahead), dt.datetime.fromisoformat(now))
    split: CaptureSplit = split_of(PlannedRead.from_json_dict(values), clock)
    limits = IsolatedReadLimits.of(options)
    _set_limits(limits)
    staging = StagingWriter(staging_folder, split.name)
    try:
        for _ in read_split(split, read_options(options), staging):
            pass
    except (MemoryError, OSError) as error:
        if not is_resource_failure(error):
            raise
        os._exit(_BEYOND_LIMITS)  # without the end of the interpreter, for which there may be no memory
    return 0


if __name__ == "__main__":
    sys.exit(main())
