"""Benchmark of a year of captures: a run that adds a quarter of an hour, after 1, 30 and 365 days.

Run from the project's folder: ``python -m bench.year [--scale 1] [--days 1 30 365]``. With scale 1 the newest day is an
hour with 4 million messages, each day before it has 40,000, the ledger has 10,000 captures of each, and the quarter of
an hour that the run adds has a million messages of some 10,000 connections. All these numbers follow the scale.

The captures are one stretch of traffic: those that the lake is made of, then those of a run that brings the lake up to
date, then those of the run that is measured. So connections go on from run to run, and new ones begin between the same
machines. The run in the middle is needed because the rows that are copied have keys that the pipeline does not compute,
and because tables keep for the next run what they knew of the template alone.

What scales with a real year: numbers of rows, files, commits, captures, connections, and machines of the newest hour.
What does not: bodies are small (100 to 400 bytes), and history has the machines of one hundredth of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench import traffic, transfers
from bench.measure import log_progress
from bench.runs import run_all
from bench.sequences import no_spark
from bench.year_lake import NEWEST_HOUR_COPIES, YearLake
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.lake import Lake

_HOUR_MESSAGES: Final = 4_000_000
_ADDED_MESSAGES: Final = 1_000_000
_FILES_A_DAY: Final = 10_000
_BODIES: Final = (100, 400)
_TRANSFER_BYTES, _READ_BYTES = 560, 1_050  # of a capture, for each message that is sent, or read
_RING: Final = 10  # captures of each kind


class Traffic:
    """Endless traffic: half of the messages are sent over TCP 1801, half are read over RPC."""

    def __init__(self) -> None:
        self._streams = {
            "sent": (transfers.generate_packets(sizes=_BODIES), _TRANSFER_BYTES),
            "read": (traffic.generate_packets(body_bytes=_BODIES), _READ_BYTES),
        }

    def write(self, folder: Path, messages: int) -> list[Path]:
        """Write captures with about that many more messages to a new folder; return their paths."""
        folder.mkdir(parents=True)
        files = []
        for name, (packets, size) in self._streams.items():
            paths = [folder / f"{name}{number:02d}.pcap" for number in range(_RING)]
            files += traffic.write_pcaps(packets, paths, messages // 2 * size)
        return files


def data_files(lake: Path) -> Iterator[Path]:
    """Yield the files with rows of a lake's tables."""
    return lake.rglob("*.parquet")


def measure_run(
    lake: Path, captures: Sequence[Path], options: Sequence[str], *, after: Sequence[Path] = ()
) -> dict[str, Any]:
    """Run over captures with a copy of a lake, ``after`` a run over others; return figures of the run, by name.

    Files are known to have been read by their access times, which the file system keeps for those older than the file.
    """
    copy = lake.with_name("copy")
    shutil.copytree(lake, copy)
    if after:
        run_all(copy, after, options=options)
    for path in data_files(copy):
        os.utime(path, (0, path.stat().st_mtime))
    before = {*data_files(copy)}
    usage = lake.with_name("usage.json")
    run = run_all(copy, captures, options=options, module=("bench.stage_usage", str(usage)))
    touched = [path.stat().st_size for path in before if path.exists() and path.stat().st_atime > 0]
    shutil.rmtree(copy)
    return {
        "seconds": run["wall_s"],
        "processor time": sum(run["memory"].cpu_s.values()),
        "processor time of the driver": run["memory"].driver_cpu_s,
        "driver, MB": run["memory"].driver_bytes / 1e6,
        "read, MB": run["memory"].read_bytes / 1e6,
        "files": len(before),
        "files touched": len(touched),
        "files touched, MB": sum(touched) / 1e6,
        "executions of Spark": run["engine"].get("executions", 0),
        **{
            f"{stage}: {name}": value
            for stage, used in json.loads(usage.read_text(encoding="utf-8")).items()
            for name, value in used.items()
        },
    }


def measure(folder: Path, scale: float, days: Iterable[int], options: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the figures of the run after each number of days, and of the same on an empty lake."""
    stretch, template_messages = Traffic(), int(_HOUR_MESSAGES * scale) // (NEWEST_HOUR_COPIES + 1)
    template = stretch.write(folder / "template", template_messages)
    between = stretch.write(folder / "between", template_messages)
    added = stretch.write(folder / "added", int(_ADDED_MESSAGES * scale))
    path, found = folder / "lake", dict[str, dict[str, Any]]()
    path.mkdir()

    def note_run(name: str, after: Sequence[Path] = ()) -> None:
        """Measure the run on the lake as it is, and log the figures: a later one may fail."""
        found[name] = measure_run(path, added, options, after=after)
        figures = ", ".join(f"{value:,.1f} {each}" for each, value in found[name].items())
        log_progress(f"year: the run, {name}: {figures}")

    note_run("empty")
    run_all(path, template, options=options)
    begin, making = time.perf_counter(), 0.0
    year = YearLake(Lake(LazySession(no_spark, engine="local"), str(path)), files_a_day=int(_FILES_A_DAY * scale))
    year.rest_of_the_newest_hour()
    there = 1
    for last in sorted(days):
        year.days_before(there, last - 1)
        there = max(there, last)
        making += time.perf_counter() - begin
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        log_progress(f"year: {last} days, {size / 1e9:.2f} GB, made in {making:.0f} s")
        note_run(f"{last} days", after=between)
        begin = time.perf_counter()
    return found


def format_figures(found: dict[str, dict[str, Any]]) -> str:
    """Return the figures as a table of Markdown, with a column for each lake."""
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    lines = [["", *found], ["---", *("---:" for _ in found)]]
    lines += [[name, *(f"{figures.get(name, 0):,.1f}" for figures in found.values())] for name in names]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.year", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of all numbers of messages and files (1)")
    parser.add_argument("--days", type=int, nargs="+", default=[1, 30, 365], help="after how many days (1 30 365)")
    parser.add_argument("--folder", type=Path, help="where the lake and captures are made (the folder for such files)")
    parser.add_argument("--set", action="append", default=[], help="a setting of the runs, NAME=VALUE")
    given = parser.parse_args(arguments)
    options = [each for setting in given.set for each in ("--set", setting)]
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        print(format_figures(measure(Path(folder), given.scale, given.days, options)))


if __name__ == "__main__":
    main(sys.argv[1:])
