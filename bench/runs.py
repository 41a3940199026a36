"""Benchmark of scheduled runs: the first run over a ring of captures, one more capture, a late one, and nothing new.

Before that the first run over a small ring whose files name ports to each other, beside one file of the same packets.

Each run is a separate process, as a scheduler starts it. So its time includes the start of Java and of the session.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from bench.measure import Measure, log_progress
from bench.memory import PeakMemory
from bench.traffic import EPOCH_US, PCAP_HEADER, generate_captures
from udfs.times import DAY_US

RING_FILES = 100
LATE_FILE_INDEX = 50  # this file of the ring is read last
NAMING_FILES, NAMING_BYTES = 10, 30_000_000  # files and bytes of the ring whose clients ask for ports
CALL_COLUMNS = ("call_key", "connection_id", "interface_name", "outcome", "request_stub", "response_stub")
TABLES = (
    "bronze/rpc_calls", "bronze/connections", "bronze/rpc_binds", "bronze/quarantine", "bronze/pending",
    "silver/remote_read_calls", "gold/receive_attempts", "gold/ack_sequences",
)  # fmt: skip


def run_command(
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, whole_tree: bool = False
) -> dict[str, Any]:
    """Run a job by a command; return its summary, with its ``memory`` and the seconds of the whole process, ``wall_s``.

    ``whole_tree``: as for ``PeakMemory``. SystemExit if the exit code is not 0.
    """
    begin = time.perf_counter()
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    with PeakMemory(run.pid, whole_tree=whole_tree) as memory:
        printed, problems = run.communicate()
    wall_s = time.perf_counter() - begin
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {run.returncode}:\n{problems[-2000:]}")
    summary: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return summary | {"memory": memory, "wall_s": wall_s}


def run_all(
    lake: Path, captures: Sequence[Path], prefix: Sequence[str] = (), *, options: Sequence[str] = (),
    whole_tree: bool = False, module: Sequence[str] = ("jobs.run_all",),
) -> dict[str, Any]:  # fmt: skip
    """Run the whole pipeline over captures, by a command with a prefix; return what ``run_command`` does.

    ``options`` are further arguments of the job, ``module`` the one that is run, with arguments of its own.
    """
    command = [sys.executable, "-m", *module, "--lake", str(lake), "--captures", *map(str, captures), *options]
    return run_command([*prefix, *command], whole_tree=whole_tree)


def memory_measures(
    name: str, run: dict[str, Any], *, driver: float | None = None, tasks: float | None = None
) -> list[Measure]:
    """Return how much memory the processes of a run took at most, with limits in MiB; a small run has none of tasks."""
    memory: PeakMemory = run["memory"]
    processes = (("driver", memory.driver_bytes, driver), ("a worker", memory.worker_bytes, tasks))
    return [
        Measure(f"{name}: memory of {process}", used / 2**20, "MiB", most, higher_is_better=False)
        for process, used, most in processes
        if used
    ]


def tree_measure(name: str, run: dict[str, Any], floor: float, goal: float) -> Measure:
    """Return how much memory all processes of a run took together at most; the bounds are in GB.

    The run is one with ``whole_tree``.
    """
    used = run["memory"].tree_bytes / 1e9
    return Measure(f"{name}: memory of all processes", used, "GB", floor, goal, higher_is_better=False)


def time_run(lake: Path, captures: Sequence[Path]) -> float:
    """Run the whole pipeline over captures and return the seconds that it takes, the start of Python included."""
    return float(run_all(lake, captures)["wall_s"])


def count_changed_rows(lake: Path, since: dict[str, int]) -> int:
    """Count the rows that commits after the given versions deleted or updated; inserted rows do not count."""
    total = 0
    for table, version in since.items():
        for log in (lake / table / "_delta_log").glob("*.json"):
            if int(log.stem) > version:
                commit = next(json.loads(line) for line in log.read_text().splitlines() if "commitInfo" in line)
                metrics = commit["commitInfo"].get("operationMetrics", {})
                names = ("numDeletedRows", "numUpdatedRows", "numTargetRowsUpdated", "numTargetRowsDeleted")
                total += sum(int(metrics.get(name, 0)) for name in names)
    return total


def table_versions(lake: Path) -> dict[str, int]:
    """Return the newest version of each table."""
    folders = {table: lake / table for table in TABLES}
    return {
        table: DeltaTable(folder.as_uri()).version()
        for table, folder in folders.items()
        if (folder / "_delta_log").is_dir()
    }


def measure_named_ports(folder: Path) -> list[Measure]:
    """Measure the first run over a ring of which most files hold connections to ports that only other files name.

    SystemExit if its calls are not those of one file with the same packets.
    """
    ring = generate_captures(folder / "ring", NAMING_BYTES, ring=NAMING_FILES, named_ports=True)
    single = folder / "single.pcap"
    single.write_bytes(PCAP_HEADER + b"".join(path.read_bytes()[len(PCAP_HEADER) :] for path in ring))
    log_progress("runs: files that name ports to each other")
    seconds = [time_run(folder / name, files) for name, files in (("one", [single]), ("many", ring))]
    one, many = (
        DeltaTable((folder / name / "bronze/rpc_calls").as_uri())
        .to_pyarrow_table(columns=[*CALL_COLUMNS])
        .sort_by("call_key")
        for name in ("one", "many")
    )
    if not one.equals(many):
        raise SystemExit(f"runs: {many.num_rows} calls of a ring are not the {one.num_rows} of one file")
    shutil.rmtree(folder)
    name = f"{NAMING_FILES} files that name ports to each other, {NAMING_BYTES / 1e6:.0f} MB"
    return [
        Measure(f"{name}: first run", seconds[1], "s", 9, 6, higher_is_better=False),
        Measure(f"{name}: as one file", seconds[0], "s"),
    ]


def measure(folder: Path, total: int, days: int) -> list[Measure]:
    """Measure runs over a ring of a hundred captures with ``total`` bytes, in a new lake and in one with history.

    The runs read all but two captures, then one more, then a late one from the middle, then nothing new. ``days`` is
    the number of days of history, one small capture each. Each day has another seed than the ring; otherwise its
    connections would have the same ports and sequence numbers.
    """
    out = measure_named_ports(folder / "named")
    files = generate_captures(folder / "ring", total, ring=RING_FILES)
    last, late = files[-1], files[LATE_FILE_INDEX]
    most = [path for path in files if path not in (last, late)]
    lake = folder / "lake"
    out += _measure_lake("", lake, most, last, files)
    shutil.rmtree(lake)
    if days:
        history = [
            generate_captures(folder / f"day{day}", 200_000, seed=1 + day, begin_us=EPOCH_US - day * DAY_US)[0]
            for day in range(1, days + 1)
        ]
        log_progress(f"runs: {days} days of history")
        time_run(lake, history)
        out += _measure_lake(f"after {days} days, ", lake, most, last, files)
    shutil.rmtree(folder)
    return out


def _measure_lake(when: str, lake: Path, most: Sequence[Path], last: Path, files: Sequence[Path]) -> list[Measure]:
    log_progress(f"runs: {when}the first of {len(most)} captures")
    first = time_run(lake, most)
    log_progress(f"runs: {when}one more")
    more = time_run(lake, [*most, last])
    before = table_versions(lake)
    log_progress(f"runs: {when}a late one")
    behind = time_run(lake, files)
    rewritten = count_changed_rows(lake, before)
    log_progress(f"runs: {when}nothing new")
    nothing = min(time_run(lake, files) for _ in range(2))
    share = 100 * (more - nothing) / (first - nothing)
    return [
        Measure(f"{when}{len(most)} captures, first run", first, "s"),
        Measure(f"{when}a run that adds one", more, "s"),
        Measure(f"{when}a run that adds a late one", behind, "s"),
        Measure(f"{when}rows taken out or changed for it", rewritten, ""),
        Measure(f"{when}a run with nothing new", nothing, "s", 20, 8, higher_is_better=False),
        Measure(f"{when}one more against the first", share, "%", 5, 2, higher_is_better=False),
    ]
