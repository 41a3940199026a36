"""Benchmark of whole runs: captures to all layers, stage by stage, beside tshark's listing of the same captures.

Each run is a process with a new lake. What a run takes beside its input, the start of Java above all, is taken out:
speeds are those of the bytes by which the larger capture is larger than the smaller one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.measure import Measure, log_progress
from bench.traffic import generate_captures

_KINDS: Final = {"single file": (0, 1.0, 1.3), "ring": (20, 1.5, 2.0)}  # files of a ring; floor and goal
_ONE_CORE: Final = ("taskset", "--cpu-list", "0")

TimeTshark = Callable[[Sequence[Path]], tuple[float, int]]


def measure(folder: Path, sizes: tuple[int, int], time_tshark: TimeTshark) -> list[Measure]:
    """Measure runs over captures of two sizes, in bytes; ``time_tshark`` returns seconds first."""
    out: list[Measure] = []
    for kind, (ring, floor, goal) in _KINDS.items():
        runs, listings = [], []
        for size in sizes:
            files = generate_captures(folder / "captures", size, ring=ring)
            name = f"{size / 1e6:.0f} MB {kind}"
            log_progress(f"whole runs: {name}")
            runs.append(_run(folder / "lake", files))
            log_progress(f"whole runs: {name}, tshark")
            listings.append(time_tshark(files)[0])
            out += [
                Measure(f"{name}: run_all", runs[-1]["seconds"], "s"),
                *(Measure(f"{name}: {stage}", seconds, "s") for stage, seconds in runs[-1]["stages"].items()),
                Measure(f"{name}: tshark", listings[-1], "s"),
            ]
            if kind == "single file" and size == sizes[-1]:
                log_progress(f"whole runs: {name}, one core")
                alone = _run(folder / "lake", files, _ONE_CORE)
                out.append(
                    Measure(f"{name}: one core against all", alone["seconds"] / runs[-1]["seconds"], "x", 1.6, 1.9)
                )
            shutil.rmtree(folder / "captures")
        small, large = runs
        speed = (listings[1] - listings[0]) / (large["seconds"] - small["seconds"])
        attempts, calls = (
            _more(large, small, lambda run, name=name: run["tables"]["gold.receive_attempts"][name])  # type: ignore[misc]
            for name in ("rows_out", "rows_in")
        )
        by_attempts, by_findings = (
            _more(large, small, lambda run, stage=stage: run["stages"][stage])  # type: ignore[misc]
            for stage in ("attempts", "findings")
        )
        out += [
            Measure(f"{kind}: run_all against tshark", speed, "x", floor, goal),
            Measure(f"{kind}: attempts", attempts / by_attempts, "/s", 60_000, 100_000),
            Measure(f"{kind}: findings, calls", calls / by_findings, "/s", 100_000, 150_000),
        ]
    return out


def _more(large: dict[str, Any], small: dict[str, Any], of: Callable[[dict[str, Any]], float]) -> float:
    """Return by how much the larger run has more of something."""
    return of(large) - of(small)


def _run(lake: Path, files: Sequence[Path], prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Run the whole pipeline over captures into a new lake; return its summary."""
    command = [*prefix, sys.executable, "-m", "jobs.run_all", "--lake", str(lake), "--captures", *map(str, files)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    shutil.rmtree(lake, ignore_errors=True)
    if done.returncode:
        raise SystemExit(f"whole runs: run_all ended with {done.returncode}:\n{done.stderr[-2000:]}")
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary
