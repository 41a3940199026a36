"""Want of memory, disk or time at one capture: it is read again alone, and the others are ingested."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from bench import hostile
from ledgers import ledger_of
from pipeline.bronze import isolated_reads
from pipeline.bronze.capture_tasks import mark_path, read_options, read_split, split_of
from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.ingest_plan import plan_ingest
from pipeline.bronze.input_files import list_files
from pipeline.bronze.isolated_reads import IsolatedRead, interrupted_reads, read_captures, read_in_process
from pipeline.lake.lake_path import LakePath
from pipeline.lake.staging_files import StagingWriter
from udfs.capture.capture_reader import BRONZE_SCHEMAS, read_capture
from udfs.files.capture_file import CaptureFileReader
from udfs.rpc.batch_spool import BatchSpool
from udfs.rpc.call_rows import CallRowBuilder

BAD, FIRST, LAST = "02-remoteread-ndr64-multiplexed.pcap", "01-remoteread-ndr.pcap", "08-endpoint-mapper.pcap"
FULL_DISK = OSError(errno.ENOSPC, "No space left on device")
BROKEN_DISK = OSError(errno.EIO, "Input/output error")
STEPS = {
    "read a block": (CaptureFileReader, "read_blocks"),
    "make rows": (CallRowBuilder, "build_rows"),
    "keep waiting rows": (BatchSpool, "drain"),
    "stage rows": (StagingWriter, "add"),
    "write rows": (pq.ParquetWriter, "write_table"),
    "publish rows": (StagingWriter, "close"),
}


@pytest.fixture
def reads(project, tmp_path):
    """The planned reads of three captures."""
    folder = tmp_path / "captures"
    folder.mkdir()
    for name in (FIRST, BAD, LAST):
        shutil.copy(project / "data" / "sample" / name, folder / name)
    return plan_ingest(list_files([str(folder)]), ledger_of()).reads


@pytest.fixture
def ingest(reads, tmp_path):
    """Return a function that reads the captures into staging files: their rows of the ledger by file name."""

    def once(run_tasks=lambda tasks: list(tasks.read_in_driver()), **arguments):
        staged = tmp_path / "run" / "tables"
        run, tables = LakePath(str(tmp_path / "run")), LakePath(str(staged))
        read_captures(reads, IngestClock(), run, tables, {}, run_tasks, log=[].append, **arguments)
        assert len(list((staged / "capture_files").iterdir())) == len(reads)  # nothing half written beside them
        rows = pads.dataset(staged / "capture_files", BRONZE_SCHEMAS["capture_files"]).to_table().to_pylist()
        found = pads.dataset(staged / "rpc_calls", BRONZE_SCHEMAS["rpc_calls"]).to_table()
        counts = {row["path"].rsplit("/", 1)[1]: row for row in rows}
        assert found.num_rows == sum(row["calls"] for row in rows)
        return counts

    return once


@pytest.fixture
def inject(monkeypatch):
    """Return a function that lets a step fail while the capture ``BAD`` is read, so many times."""
    reading = [""]
    right = read_split.__globals__["read_capture_batches"]

    def noting(source, *arguments):
        reading[0] = source.path
        return right(source, *arguments)

    monkeypatch.setitem(read_split.__globals__, "read_capture_batches", noting)

    def let_fail(step, error, times):
        place, name = STEPS[step]
        step_right, left = getattr(place, name), [times]

        def failing(*arguments, **named):
            if reading[0].endswith(BAD) and left[0]:
                left[0] -= 1
                raise error
            return step_right(*arguments, **named)

        monkeypatch.setattr(place, name, failing)

    return let_fail


def read_in_this_process(isolated: IsolatedRead) -> None:
    """Stand for ``read_in_process`` where a test injects faults."""
    split = split_of(isolated.read, isolated.clock)
    for _ in read_split(split, read_options(isolated.options), StagingWriter(isolated.staging_folder, split.file.path)):
        pass


@pytest.mark.parametrize("error", [MemoryError(), FULL_DISK, BROKEN_DISK], ids=["memory", "full disk", "broken disk"])
@pytest.mark.parametrize("step", STEPS)
def test_want_of_memory_or_disk_at_one_capture(ingest, inject, reads, step, error):
    alone = []

    def read_isolated(isolated):
        alone.append(isolated.read.file.path.rsplit("/", 1)[1])
        read_in_this_process(isolated)

    inject(step, error, 1)
    ledger = ingest(read_isolated=read_isolated)
    if (step, error) == ("read a block", FULL_DISK) or (step, error) == ("read a block", BROKEN_DISK):
        assert (ledger[BAD]["status"], alone) == ("unreadable", [])  # of the capture's own disk: said at once
        return
    assert alone == [BAD]
    assert {row["status"] for row in ledger.values()} == {"complete"}
    assert ledger[BAD]["calls"] == read_capture(reads[1].file.path)["rpc_calls"].num_rows


@pytest.mark.parametrize("error", [MemoryError(), FULL_DISK, BROKEN_DISK], ids=["memory", "full disk", "broken disk"])
def test_a_capture_that_fails_again_is_unreadable(ingest, inject, error):
    inject("make rows", error, -1)
    ledger = ingest(read_isolated=read_in_this_process)
    assert [(name, row["status"], row["damage"]) for name, row in sorted(ledger.items())] == [
        (FIRST, "complete", None), (BAD, "unreadable", "resource_limit"), (LAST, "complete", None)
    ]  # fmt: skip
    assert ledger[BAD]["error"].startswith(f"{type(error).__name__} in ")


class KilledError(BaseException):
    """The end of a task's process, which no ``except Exception`` sees."""


def test_a_task_that_dies_at_a_capture(ingest, inject):
    """The captures of the task that were not begun are read by tasks again."""
    runs, alone = [], []

    def run_tasks(tasks):
        runs.append(tasks.part_count)
        try:
            list(tasks.read_in_driver())
        except KilledError as error:
            raise RuntimeError("Python worker exited unexpectedly") from error

    inject("make rows", KilledError(), 1)
    ledger = ingest(run_tasks, read_isolated=lambda isolated: (alone.append(isolated), read_in_this_process(isolated)))
    assert {row["status"] for row in ledger.values()} == {"complete"}
    assert [isolated.read.file.path.rsplit("/", 1)[1] for isolated in alone] == [BAD]
    assert runs in ([3], [3, 1], [3, 2])  # depends on which of them the task had read


def test_a_capture_at_which_a_run_was_killed_is_read_alone_by_the_next(ingest, inject, reads, tmp_path):
    inject("make rows", KilledError(), 1)
    with pytest.raises(KilledError):
        ingest()
    interrupted = interrupted_reads([LakePath(str(tmp_path / "run"))])
    assert interrupted == {mark_path(LakePath(str(tmp_path)), reads[1].file.path).name}
    shutil.rmtree(tmp_path / "run")
    sizes, alone = [], []
    ledger = ingest(
        lambda tasks: (sizes.append(tasks.part_count), list(tasks.read_in_driver())),
        interrupted=interrupted,
        read_isolated=lambda isolated: (alone.append(isolated.read), read_in_this_process(isolated)),
    )
    assert (sizes, alone) == ([2], [reads[1]])
    assert {row["status"] for row in ledger.values()} == {"complete"}


def test_an_error_of_the_tasks_at_no_capture_ends_the_run(ingest):
    def run_tasks(tasks):
        raise RuntimeError("no workers")

    with pytest.raises(RuntimeError, match="no workers"):
        ingest(run_tasks)


LIMITS = {
    "memory": ({"alone_memory_bytes": 200 << 20}, "took more than its limits of memory (209715200 bytes)"),
    "disk": ({"alone_file_bytes": 1000}, "or disk (1000 bytes for a file)"),
    "time": ({"alone_seconds": 0.1}, "took longer than 0.1 s"),
}


@pytest.mark.parametrize(
    "limit", [pytest.param(each, marks=[pytest.mark.long] * (each != "memory")) for each in LIMITS]
)
def test_the_limits_of_the_process_that_reads_a_capture_alone(tmp_path, limit):
    options, expected = LIMITS[limit]
    path = tmp_path / "hostile.pcap"
    path.write_bytes(hostile.calls_without_bind(400_000 if limit == "memory" else 1000))
    (read,) = plan_ingest(list_files([str(path)]), ledger_of()).reads
    read_in_process(
        IsolatedRead(
            read, IngestClock(), str(tmp_path / "tables"), {name: str(value) for name, value in options.items()}
        )
    )
    staged = pads.dataset(tmp_path / "tables" / "capture_files", BRONZE_SCHEMAS["capture_files"])
    (row,) = staged.to_table().to_pylist()
    assert (row["status"], row["damage"], row["capture_id"]) == ("unreadable", "resource_limit", read.capture_id)
    assert expected in row["error"]


def test_a_process_without_need_of_limits_reads_as_tasks_do(ingest, reads, tmp_path):
    marks = tmp_path / "run" / "reading"
    interrupted = frozenset(mark_path(marks, read.file.path).name for read in reads[:1])
    ledger = ingest(interrupted=interrupted)
    assert ledger[FIRST]["calls"] == read_capture(reads[0].file.path)["rpc_calls"].num_rows


@pytest.mark.parametrize(("memory_bytes", "code"), [(2 << 20, 75), (16 << 30, 0)])
@pytest.mark.parametrize("has_proc", [True, False], ids=["Linux", "no /proc"])
def test_memory_is_limited_without_proc_too(reads, tmp_path, memory_bytes, code, has_proc):
    """Elsewhere, as on macOS, the system only tells how much memory a process had at most."""
    hidden = "" if has_proc else "isolated_reads._MEMORY_IN_USE = Path('/nowhere')\n"
    program = "import resource, sys\nfrom pathlib import Path\nfrom pipeline.bronze import isolated_reads\n"
    program += "resource.setrlimit = lambda *_: None\n"  # which macOS does not enforce
    program += f"{hidden}sys.exit(isolated_reads.main())"
    limits = {"alone_memory_bytes": str(memory_bytes)}
    clock = IngestClock()
    request = [reads[0].to_json_dict(), (clock.now.isoformat(), clock.max_time_ahead.total_seconds())]
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps([*request, str(tmp_path / "staged"), limits]), text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert (tmp_path / "staged" / "capture_files").exists() == (code == 0)


@pytest.mark.parametrize(("platform", "unit"), [("darwin", 1), ("freebsd", 1024)])
def test_what_a_system_without_proc_tells_of_memory(monkeypatch, platform, unit):
    monkeypatch.setattr(isolated_reads, "_MEMORY_IN_USE", Path("/nowhere"))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=12345))
    assert isolated_reads._memory_in_use() == 12345 * unit
