"""Benchmark of whole runs where Spark computes, and where it stores the tables: the demo, and a ring of captures.

Each run is a process, as users start it. Seconds are those of the process, with the start of Python and of Java; SQL
executions and jobs of Spark are those that the run itself counts. The catalog is that of a Spark without a metastore,
which lives as long as the process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyspark
from deltalake import DeltaTable

from bench.measure import Measure, log_progress
from bench.runs import run_command, tree_measure
from bench.traffic import generate_captures
from jobs.session import PROJECT_ROOT

RING_BYTES: Final = 200_000_000
_RING_FILES: Final = 20
_SMALL_RING_BYTES: Final = 30_000_000  # in ten files: ports are learned from one file for connections in another
_SMALL_RING_FILES: Final = 10
_DATA: Final = PROJECT_ROOT / "data"
_DEMO: Final = (
    "--captures", str(_DATA / "sample"), str(_DATA / "estate" / "wire"), str(_DATA / "transfers"),
    "--snapshots", str(_DATA / "estate" / "snapshots"),
)  # fmt: skip
_ADDED: Final = _DATA / "sample" / "01-remoteread-ndr.pcap"  # 39 kB
_QUESTION: Final = "oldest_unread"
_SPARK_STORES: Final = ("--set", "lake.store=spark")
_SPARK_READS_LOG: Final = ("--set", "lake.read_log=spark")
_EXECUTIONS_PER_COMMIT: Final = 4
_OTHER_EXECUTIONS: Final = 30  # of a run that reads one capture
# Seconds, floor and goal, of one capture more where Spark stores the tables. Three runs took 19.1, 20.7 and 21.2 s:
# Java's start, then 19 commits of four executions each, most of them one behind the other.
_ONE_MORE: Final = (22, 8)

Bounds = tuple[float, float | None]
"""Floor and goal."""


class _Bench:
    """Runs commands, and keeps their measures in ``out``; ``folder`` is for lakes, and for what spark-submit needs."""

    def __init__(self, folder: Path, repeat: int) -> None:
        folder.mkdir(parents=True)
        self.out: list[Measure] = []
        self.folder, self._repeat = folder, repeat
        home = Path(pyspark.__file__).parent
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # spark-submit looks for python3
        self._environment = {**os.environ, "PATH": path, "SPARK_HOME": str(home), "PYTHONPATH": str(PROJECT_ROOT)}
        properties, code = self._make("write_spark_conf", "spark.conf"), self._make("build_pyfiles", "pyfiles.zip")
        self._submit = [
            str(home / "bin" / "spark-submit"), "--properties-file", properties, "--py-files", code,
            "--conf", f"spark.sql.warehouse.dir={(folder / 'catalog' / 'tables').as_uri()}",
        ]  # fmt: skip

    def _make(self, tool: str, name: str) -> str:
        """Let a tool of the project write a file; return its path."""
        path = str(self.folder / name)
        command = [sys.executable, str(PROJECT_ROOT / "tools" / f"{tool}.py"), path]
        subprocess.run(command, env=self._environment, check=True, capture_output=True)
        return path

    def job(self, name: str, lake: Path, *arguments: str) -> list[str]:
        """Return the command of a job over a lake, as plain Python."""
        return [sys.executable, "-m", f"jobs.{name}", "--lake", str(lake), *arguments]

    def submitted(self, lake: Path, *arguments: str) -> list[str]:
        """Return the command of ``run_all`` by spark-submit, with the properties that set-up writes."""
        return [*self._submit, str(PROJECT_ROOT / "jobs" / "run_all.py"), "--lake", str(lake), *arguments]

    def add(
        self, name: str, command: list[str], seconds: Bounds | None, *, executions: Bounds | None = None,
        new: Path | None = None, starts_spark: bool = True,
    ) -> None:  # fmt: skip
        """Measure a command, the quickest of several runs; ``new`` is the lake that each of them makes anew.

        ``starts_spark=False``: no run may start Java.
        """
        log_progress(f"engines: {name}")
        runs = []
        for _ in range(self._repeat):
            if new is not None:
                shutil.rmtree(new, ignore_errors=True)
            runs.append(run_command(command, self._environment))
        self.add_run(name, min(runs, key=lambda run: run["wall_s"]), seconds, executions)
        if not starts_spark:
            started = sum(run["engine"]["started"] for run in runs)
            self.out.append(Measure(f"{name}: starts of Java", started, "", 0, 0, higher_is_better=False))

    def run_once(self, command: list[str], *, whole_tree: bool = False) -> dict[str, Any]:
        """Run a command; return what ``run_command`` does."""
        return run_command(command, self._environment, whole_tree=whole_tree)

    def add_run(self, name: str, run: dict[str, Any], seconds: Bounds | None, executions: Bounds | None) -> None:
        """Keep the measures of a run."""
        engine = run["engine"]
        for what, value, unit, bounds in (
            (name, run["wall_s"], "s", seconds),
            (f"{name}: executions", engine["executions"], "", executions),
            (f"{name}: jobs", engine["jobs"], "", None),
        ):
            floor, goal = bounds or (None, None)
            self.out.append(Measure(what, value, unit, floor, goal, higher_is_better=False))


def measure_demo(folder: Path, repeat: int) -> list[Measure]:
    """Measure the captures and snapshots of `make demo` with each store, and runs over the lakes that hold them.

    A measure is that of the quickest of ``repeat`` runs. Lakes are made and removed below ``folder``.
    """
    bench = _Bench(folder, repeat)
    lake, submitted, made, catalog = (folder / name for name in ("folder", "submitted", "made", "catalog"))
    bench.add("demo, folder", bench.job("run_all", lake, *_DEMO), (15, 11), new=lake)
    again = bench.job("run_all", lake, *_DEMO)
    bench.add("nothing new, folder", again, (2, 1.5), starts_spark=False)
    bench.add("ask, folder", bench.job("ask", lake, _QUESTION), (3, 1.5), starts_spark=False)
    bench.add("demo, folder, spark-submit", bench.submitted(submitted, *_DEMO), (15, 11), new=submitted)
    # Set-up is not what is measured here, and looks at what it has made before.
    make = ["make", "--no-print-directory", "-C", str(PROJECT_ROOT), "--assume-old=setup", "demo", f"LAKE={made}"]
    bench.add("make demo, with quality and pages", make, (28, 20), new=made)
    in_catalog = ("--set", "lake.catalog=spark_catalog")
    bench.add(
        "demo, catalog", bench.submitted(catalog / "runs", *_DEMO, *in_catalog), (45, 30), executions=(200, None),
        new=catalog,
    )  # fmt: skip
    _measure_stored_by_spark(bench)
    shutil.rmtree(folder)
    return bench.out


def _measure_stored_by_spark(bench: _Bench) -> None:
    """Measure the demo, nothing new, a question, and one capture more where Spark stores the tables."""
    lake, more = bench.folder / "stored", bench.folder / "more"
    demo = bench.job("run_all", lake, *_DEMO, *_SPARK_STORES)
    bench.add("demo, stored by Spark", demo, (40, 25), executions=(150, 130), new=lake)
    bench.add("nothing new, stored by Spark", demo, (5, 3), starts_spark=False)
    bench.add("nothing new, Spark reads the logs", [*demo, *_SPARK_READS_LOG], (15, None), executions=(30, None))
    ask = bench.job("ask", lake, _QUESTION)
    bench.add("ask, stored by Spark", ask, (3, 1.5), starts_spark=False)
    bench.add("ask, Spark reads the logs", [*ask, *_SPARK_READS_LOG], (12, None))
    name = f"{_ADDED.stat().st_size / 1000:.0f} kB more, stored by Spark"
    log_progress(f"engines: {name}")
    others = [str(path) for path in sorted(_ADDED.parent.iterdir()) if path != _ADDED]
    less = [_DEMO[0], *others, *_DEMO[2:]]  # the sample's folder is named first
    bench.run_once(bench.job("run_all", more, *less, *_SPARK_STORES))
    before = count_commits(more)
    run = bench.run_once(bench.job("run_all", more, *_DEMO, *_SPARK_STORES))
    commits = count_commits(more) - before
    most = _EXECUTIONS_PER_COMMIT * commits + _OTHER_EXECUTIONS
    bench.add_run(name, run, _ONE_MORE, (most, None))
    bench.out.append(Measure(f"{name}: commits", commits, ""))


def count_commits(lake: Path) -> int:
    """Return how many commits the tables in a folder have."""
    return sum(DeltaTable(log.parent.as_uri()).version() + 1 for log in lake.glob("*/*/_delta_log"))


def measure_ring(folder: Path, repeat: int, size: int = RING_BYTES) -> list[Measure]:
    """Measure first runs over a ring of captures of ``size`` bytes with each engine and store.

    A measure is that of the quickest of ``repeat`` runs. Captures and lakes are made and removed below ``folder``.
    """
    bench = _Bench(folder, repeat)
    lake = folder / "lake"
    captures = ("--captures", *map(str, generate_captures(folder / "captures", size, ring=_RING_FILES)))
    name = f"ring of {size / 1e6:.0f} MB"
    plain = bench.job("run_all", lake, *captures)
    bench.add(f"{name}, folder", plain, (14, 11), new=lake)
    bench.add(f"{name}, folder, spark-submit", bench.submitted(lake, *captures), (18, 14), new=lake)
    bench.add(
        f"{name}, folder, engine local", [*plain, "--set", "run.engine=local"], None, new=lake, starts_spark=False
    )
    bench.add(f"{name}, stored by Spark", [*plain, *_SPARK_STORES], (35, 20), executions=(120, None), new=lake)
    log_progress(f"engines: {name}, memory")
    shutil.rmtree(lake)
    bench.out.append(tree_measure(f"{name}, folder", bench.run_once(plain, whole_tree=True), 3, 2.5))
    small = map(str, generate_captures(folder / "small", _SMALL_RING_BYTES, ring=_SMALL_RING_FILES))
    bench.add("ring of ten files of 3 MB, folder", bench.job("run_all", lake, "--captures", *small), (9, 6), new=lake)
    shutil.rmtree(folder)
    return bench.out
