"""Scheduled runs: what one more capture costs, beside the first run of all and beside a run that finds nothing new.

Each run is a process of its own, as a scheduler starts it: starting Java and the session are in its time.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.measure import Measure, say
from bench.traffic import EPOCH_US, generate
from pipeline.lake.local.commits import newest

DAY_US = 86_400_000_000
RING = 100
LATE = 50  # the file that comes last of all
TABLES = (
    "bronze/rpc_calls", "bronze/connections", "bronze/rpc_binds", "bronze/quarantine", "bronze/pending",
    "silver/remote_read_calls", "gold/receive_attempts", "gold/ack_sequences",
)  # fmt: skip


def run(lake: Path, captures: Sequence[Path]) -> float:
    """Seconds of a run of the whole pipeline over these captures."""
    command = [sys.executable, "-m", "jobs.run_all", "--lake", str(lake), "--captures", *map(str, captures)]
    begin = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"runs: run_all ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return time.perf_counter() - begin


def rows_changed(lake: Path, since: dict[str, int]) -> int:
    """Rows that commits after these versions took out of tables or changed in them; what they added does not count."""
    total = 0
    for table, version in since.items():
        for log in (lake / table / "_delta_log").glob("*.json"):
            if int(log.stem) > version:
                commit = next(json.loads(line) for line in log.read_text().splitlines() if "commitInfo" in line)
                metrics = commit["commitInfo"].get("operationMetrics", {})
                names = ("numDeletedRows", "numUpdatedRows", "numTargetRowsUpdated", "numTargetRowsDeleted")
                total += sum(int(metrics.get(name, 0)) for name in names)
    return total


def versions(lake: Path) -> dict[str, int]:
    """The newest version of each table."""
    found = {table: newest(lake / table / "_delta_log") for table in TABLES}
    return {table: commit.version for table, commit in found.items() if commit is not None}


def measure(folder: Path, total: int, days: int) -> list[Measure]:
    """A ring of a hundred captures of ``total`` bytes: all but two, one more, a late one, nothing; then with history.

    ``days``: of history, a small capture each, that another lake holds before the same is done with it. Each day has
    a seed of its own, and none the ring's: with the same ports and numbers their connections would be the ring's.
    """
    files = generate(folder / "ring", total, ring=RING)
    last, late = files[-1], files[LATE]
    most = [path for path in files if path not in (last, late)]
    lake = folder / "lake"
    out = _lake("", lake, most, last, files)
    shutil.rmtree(lake)
    if days:
        history = [
            generate(folder / f"day{day}", 200_000, seed=1 + day, begin_us=EPOCH_US - day * DAY_US)[0]
            for day in range(1, days + 1)
        ]
        say(f"runs: {days} days of history")
        run(lake, history)
        out += _lake(f"after {days} days, ", lake, most, last, files)
    shutil.rmtree(folder)
    return out


def _lake(when: str, lake: Path, most: Sequence[Path], last: Path, files: Sequence[Path]) -> list[Measure]:
    say(f"runs: {when}the first of {len(most)} captures")
    first = run(lake, most)
    say(f"runs: {when}one more")
    more = run(lake, [*most, last])
    before = versions(lake)
    say(f"runs: {when}a late one")
    behind = run(lake, files)
    rewritten = rows_changed(lake, before)
    say(f"runs: {when}nothing new")
    nothing = min(run(lake, files) for _ in range(2))
    share = 100 * (more - nothing) / (first - nothing)
    return [
        Measure(f"{when}{len(most)} captures, first run", first, "s"),
        Measure(f"{when}a run that adds one", more, "s"),
        Measure(f"{when}a run that adds a late one", behind, "s"),
        Measure(f"{when}rows taken out or changed for it", rewritten, ""),
        Measure(f"{when}a run with nothing new", nothing, "s", 20, 8, least=False),
        Measure(f"{when}one more against the first", share, "%", 5, 2, least=False),
    ]
