"""Benchmark of whole runs: captures to all layers, stage by stage, beside tshark's listing of the same captures.

The calls are at several servers, or all at one. Each run is a process with a new lake, in which Spark computes; the
largest ring is also read by a process that computes itself, and once more for the memory of all processes together.
What a run takes beside its input, as the start of Python, is taken out: speeds are those of the bytes by which the
larger capture is larger than the smaller one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final

from bench.measure import Measure, log_progress
from bench.runs import memory_measures, run_all, tree_measure
from bench.traffic import SERVERS, generate_captures

_KINDS: Final = {  # files of a ring, servers; floor and goal
    "single file": (0, SERVERS, 1.0, 1.3),
    "single file, one server": (0, 1, 1.0, 1.3),
    "ring": (20, SERVERS, 1.5, 2.0),
}
_ONE_CORE: Final = ("taskset", "--cpu-list", "0")
_PAIRS: Final = 3  # of runs on one core and on all
_LOCAL_MIB: Final = 1.5e9 / 2**20  # memory of a run that computes in its own process

TimeTshark = Callable[[Sequence[Path]], tuple[float, int]]


def measure(folder: Path, sizes: tuple[int, int], time_tshark: TimeTshark) -> list[Measure]:
    """Measure runs over captures of two sizes, in bytes; ``time_tshark`` returns seconds first."""
    out: list[Measure] = []
    for kind, (ring, servers, floor, goal) in _KINDS.items():
        runs, listings = [], []
        for size in sizes:
            files = generate_captures(folder / "captures", size, ring=ring, servers=servers)
            name = f"{size / 1e6:.0f} MB {kind}"
            most = 1024 if size == sizes[-1] else None
            log_progress(f"whole runs: {name}")
            runs.append(_run(folder / "lake", files))
            log_progress(f"whole runs: {name}, tshark")
            listings.append(time_tshark(files)[0])
            out += [
                Measure(f"{name}: run_all", runs[-1]["seconds"], "s"),
                *(Measure(f"{name}: {stage}", seconds, "s") for stage, seconds in runs[-1]["stages"].items()),
                Measure(f"{name}: tshark", listings[-1], "s"),
                *memory_measures(name, runs[-1], driver=most, tasks=most),
            ]
            if kind == "single file" and size == sizes[-1]:
                log_progress(f"whole runs: {name}, one core")
                ratio = _one_core_against_all(folder / "lake", files, runs[-1]["seconds"])
                out.append(Measure(f"{name}: one core against all", ratio, "x", 1.6, 1.9))
            if kind == "ring" and size == sizes[-1]:
                log_progress(f"whole runs: {name}, engine local")
                out += _measure_local(name, folder / "lake", files, runs[-1]["seconds"])
                log_progress(f"whole runs: {name}, memory of all processes")
                out.append(tree_measure(name, _run(folder / "lake", files, whole_tree=True), 4, 3.5))
            shutil.rmtree(folder / "captures")
        small, large = runs
        speed = (listings[1] - listings[0]) / (large["seconds"] - small["seconds"])
        out += [
            Measure(f"{kind}: run_all against tshark", speed, "x", floor, goal),
            Measure(f"{kind}: attempts", _rate(small, large, "rows_out", "attempts"), "/s", 60_000, 100_000),
            Measure(f"{kind}: findings, calls", _rate(small, large, "rows_in", "findings"), "/s", 100_000, 150_000),
        ]
    return out


def _measure_local(name: str, lake: Path, files: Sequence[Path], spark_s: float) -> list[Measure]:
    """Measure a run that computes in its own process, beside one by Spark that took ``spark_s``."""
    run = _run(lake, files, options=("--set", "run.engine=local"))
    name = f"{name}, engine local"
    return [
        Measure(f"{name}: run_all", run["seconds"], "s"),
        Measure(f"{name}: against engine spark", run["seconds"] / spark_s, "x"),
        *memory_measures(name, run, driver=_LOCAL_MIB),
    ]


def _one_core_against_all(lake: Path, files: Sequence[Path], first: float) -> float:
    """Return how much longer runs on one core take than those between them; ``first`` is one on all cores, seconds.

    One such pair varies by a tenth: a machine is not equally fast from minute to minute.
    """
    alone: list[float] = []
    on_all = [first]
    for _ in range(_PAIRS):
        alone.append(_run(lake, files, _ONE_CORE)["seconds"])
        on_all.append(_run(lake, files)["seconds"])
    return mean(alone) / mean(on_all)


def _rate(small: dict[str, Any], large: dict[str, Any], count: str, stage: str) -> float:
    """Return how many more attempts the larger run made, or of calls, by the seconds that a stage took longer."""
    few, many = (run["tables"]["gold.receive_attempts"][count] for run in (small, large))
    short, long = (run["stages"][stage] for run in (small, large))
    return float((many - few) / (long - short))


def _run(lake: Path, files: Sequence[Path], prefix: Sequence[str] = (), **how: Any) -> dict[str, Any]:
    """Run the whole pipeline over captures into a new lake, as ``run_all`` does; return its summary."""
    summary = run_all(lake, files, prefix, **how)
    shutil.rmtree(lake)
    return summary
