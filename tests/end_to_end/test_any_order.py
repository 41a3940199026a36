"""One conversation over five files, through the jobs: in any order and number of runs, killed, or two runs at once.

The tables are those of the one uncut file. How many orders, kills and pairs there are, ``--long`` decides.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from jobs import run_all
from joining.comparing import OF_FILES, OF_THE_RUN, PLACES, differences
from joining.cutting import cut, evenly, plain
from pcapgen.record import sample_captures
from pipeline.bronze import BRONZE
from pipeline.lake import Lake
from pipeline.runs import Runs
from schemas.gold import RECEIVE_ATTEMPTS
from schemas.silver import REMOTE_READ_CALLS
from udfs.capture.reader import SCHEMAS

pytestmark = pytest.mark.spark

NAME = "01-remoteread-ndr.pcap"
MADE = (REMOTE_READ_CALLS, RECEIVE_ATTEMPTS)
LEFT_OUT = PLACES | OF_THE_RUN | {"evidence"}


@pytest.fixture(scope="module")
def capture():
    return plain(next(path for path in sample_captures() if path.name == NAME))


@pytest.fixture(scope="module")
def files(capture, tmp_path_factory):
    """The five files, in order."""
    folder = tmp_path_factory.mktemp("ring")
    paths = []
    for number, data in enumerate(cut(capture, evenly(capture))):
        paths.append(folder / f"ring_{number}.pcap")
        paths[-1].write_bytes(data)
    return paths


@pytest.fixture(scope="module")
def uncut(spark, capture, tmp_path_factory):
    """The tables of the one uncut file."""
    folder = tmp_path_factory.mktemp("uncut")
    (folder / NAME).write_bytes(capture)
    root = tmp_path_factory.mktemp("uncut_lake")
    assert run_all.main(["--lake", str(root), "--captures", str(folder)]) == 0
    return tables(Lake(spark, str(root)))


def tables(lake: Lake) -> dict[str, pa.Table]:
    """All facts of a lake, without what is about files."""
    found = {}
    for table in BRONZE:
        if table.name not in OF_FILES:
            names = [name for name in SCHEMAS[table.name].names if name in table.names]
            wanted = pa.schema([SCHEMAS[table.name].field(name) for name in names])
            found[table.name] = lake.read(table).select(*names).toArrow().cast(wanted)
    for table in MADE:
        found[table.name] = lake.read(table).toArrow()
    return found


def same(lake: Lake, uncut: dict[str, pa.Table]) -> None:
    found = differences(tables(lake), uncut, left_out=LEFT_OUT)
    assert not found, "\n" + "\n".join(found)


def run(lake: Lake, paths: list[Path]) -> None:
    assert run_all.main(["--lake", lake.root, "--captures", *map(str, paths)]) == 0


def job(root: Path, paths: list[Path]) -> subprocess.Popen[bytes]:
    """The whole pipeline in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "jobs.run_all", "--lake", str(root), "--captures", *map(str, paths)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


LONG = pytest.mark.long  # a run takes a quarter of a minute on two cores: most of these wait for `make test-all`
ORDERS = [
    ((3, 4, 0, 1, 2), 3),
    pytest.param((4, 2, 0, 3, 1), 5, marks=LONG),
    pytest.param((0, 1, 2, 3, 4), 5, marks=LONG),
    pytest.param((0, 1, 2, 3, 4), 1, marks=LONG),
    pytest.param((4, 3, 2, 1, 0), 1, marks=LONG),
    pytest.param((2, 0, 4, 1, 3), 1, marks=LONG),
]


@pytest.mark.parametrize(("order", "at_once"), ORDERS)
def test_any_order_in_any_number_of_runs(spark, files, uncut, tmp_path, order, at_once):
    lake = Lake(spark, str(tmp_path / "lake"))
    for begin in range(0, 5, at_once):
        run(lake, [files[number] for number in order[begin : begin + at_once]])
    same(lake, uncut)
    versions = lake.versions(*BRONZE, *MADE)
    run(lake, files)
    assert lake.versions(*BRONZE, *MADE) == versions


def _kill_when(process: subprocess.Popen[bytes], reached) -> bool:
    """Kill the job and all it started, as soon as a point is reached; whether it was still at work."""
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if reached():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.01)
    return False


def _commits(root: Path, table: str) -> int:
    return len(list((root / table / "_delta_log").glob("*.json")))


KILLS = [
    pytest.param("bronze/pending", 3, marks=LONG),
    pytest.param("bronze/rpc_calls", 3, marks=LONG),
    pytest.param("silver/remote_read_calls", 3, marks=LONG),
]


@pytest.mark.parametrize(("table", "commits"), KILLS)
def test_a_killed_run_repeated_leaves_the_tables_of_an_undisturbed_one(spark, files, uncut, tmp_path, table, commits):
    root = tmp_path / "lake"
    lake = Lake(spark, str(root))
    run(lake, [files[1], files[3]])
    assert _kill_when(job(root, files), lambda: _commits(root, table) >= commits)
    run(lake, files)
    assert Runs.of(lake).unfinished() == {}
    same(lake, uncut)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(22))
def test_killed_at_any_time(spark, files, uncut, tmp_path, seed):
    root = tmp_path / "lake"
    lake = Lake(spark, str(root))
    wait = time.monotonic() + random.Random(seed).uniform(4, 30)
    _kill_when(job(root, files), lambda: time.monotonic() > wait)
    run(lake, files)
    same(lake, uncut)


PAIRS = [pytest.param((0, 2, 4), (1, 3), marks=LONG), pytest.param((0, 1, 2, 3, 4), (0, 1, 2, 3, 4), marks=LONG)]


@pytest.mark.parametrize(("one", "two"), PAIRS)
def test_two_runs_at_once_lose_and_double_nothing(spark, files, uncut, tmp_path, one, two):
    root = tmp_path / "lake"
    both = [job(root, [files[number] for number in order]) for order in (one, two)]
    for process in both:
        _, said = process.communicate(timeout=600)
        assert process.returncode == 0, said.decode()
    same(Lake(spark, str(root)), uncut)
