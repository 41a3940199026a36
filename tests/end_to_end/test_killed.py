"""Jobs that are killed, or run two at a time: the tables are those of an undisturbed run."""

from __future__ import annotations

import random
import shutil
import struct
import time
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from capture.merge.cutting import plain
from end_to_end.conversations import SAMPLE, SMALL, Conversations
from end_to_end.lakes import ALL, BRONZE, KILLED, WRITTEN_BY, Job, run, tables
from pipeline.lake.lake import Lake
from pipeline.lake.storage.store import StoreName
from pipeline.runs.recovery import RunMarkers
from schemas.bronze import CAPTURE_FILES
from udfs.keys import key

pytestmark = pytest.mark.spark
LONG = pytest.mark.long  # for `make test-all`


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    """Conversations of several protocols, cut at random; the first run has some of their files."""
    found = Conversations(tmp_path_factory.mktemp("captures"))
    chance = random.Random(25)
    for name in SMALL:
        found.add_any(name, chance, last=2)
    found.write()
    return found


@pytest.fixture(scope="module")
def prepared(spark, talks, tmp_path_factory):
    """For each job and store, made once: a lake with the files of the first run, a watched second run, its tables.

    Quick tests use the job that ingests to bronze, others the one through all layers.
    """

    @cache
    def of(job: str, store: StoreName = "delta-rs") -> tuple[Lake, Job, dict[str, pa.Table]]:
        folder = tmp_path_factory.mktemp(job)
        begun = Lake(spark, str(folder / "begun"), store=store)
        run(begun, talks.run(1), job=job)
        undisturbed = Job(_copied(begun, folder), [talks.cut], job, engine=_ENGINES[store])
        undisturbed.watch()
        return begun, undisturbed, tables(Lake(spark, str(undisturbed.root)), WRITTEN_BY[job])

    return of


_ENGINES = {"delta-rs": "local", "spark": "spark"}  # the other two are tried by test_both_stores


def _copied(lake: Lake, folder: Path) -> Path:
    return Path(shutil.copytree(lake.root, folder / "lake"))


FEW_KILLS = [("all", 0.85), ("workers", 0.1), ("java", 0.5)]
# Over the whole duration of a run; workers are there in the first half of it.
KILLS = [
    (what, (number + 0.5) / (46 if what == "workers" else 23)) for number in range(22) for what in [KILLED[number % 4]]
]


@pytest.mark.parametrize(
    ("job", "what", "when"),
    [
        (BRONZE, *FEW_KILLS[0]),
        *(pytest.param(BRONZE, *kill, marks=LONG) for kill in FEW_KILLS[1:]),
        *(pytest.param(ALL, what, round(when, 3), marks=LONG) for what, when in [*FEW_KILLS, *KILLS]),
    ],
)
def test_a_killed_run_repeated_leaves_the_tables_of_an_undisturbed_one(
    spark, talks, prepared, tmp_path, job, what, when
):
    begun, undisturbed, expected = prepared(job, "spark" if what in {"java", "workers"} else "delta-rs")
    lake = Lake(spark, str(_copied(begun, tmp_path)))
    killed = Job(Path(lake.root), [talks.cut], job, engine=_ENGINES[lake.store_name])
    outcome = killed.kill(undisturbed.moment(when), what)
    print(outcome)  # shown when the test fails
    run(lake, talks.cut, job=job)
    assert RunMarkers.of(lake).unfinished() == {}
    talks.equal(lake, expected)


@LONG
@pytest.mark.parametrize(("engine", "what"), [("spark", "workers"), ("local", "all")])
def test_a_capture_whose_reading_process_is_killed_is_read_again_alone(spark, tmp_path, engine, what):
    """Spark reads in workers, and the run goes on; else the job reads in its own process, and the next run goes on."""
    captures, root = tmp_path / "captures", tmp_path / "lake"
    captures.mkdir()
    other = struct.pack("<IIII", 1_700_000_000, 0, 60_000, 60_000) + bytes(60_000)
    large = captures / "large.pcap"
    large.write_bytes(plain(SAMPLE["01-remoteread-ndr.pcap"]) + other * 1500)
    shutil.copy(SAMPLE["04-qmmgmt.pcapng"], captures)
    marks = f"_runs/*/reading/{key(str(large))}"
    job = Job(root, [captures], BRONZE, engine=engine)
    outcome = job.kill_when(lambda: any(root.glob(marks)), what)
    if what == "all":
        outcome = Job(root, [captures], BRONZE).succeed()
    assert f"{large}: read again, alone" in outcome, outcome
    ledger = Lake(spark, str(root)).read(CAPTURE_FILES).collect()
    found = {Path(row.path).name: row.status for row in ledger}
    assert found == {"04-qmmgmt.pcapng": "complete", "large.pcap": "complete"}


FEW_PAIRS = [((1,), (2,)), ((1, 2), (1, 2))]
PAIRS = [*FEW_PAIRS, ((2,), (1,)), ((1,), (1, 2)), ((1, 2), (2,))]


@pytest.mark.parametrize(
    ("job", "one", "two", "later_s"),
    [
        *(pytest.param(BRONZE, *pair, 0, marks=LONG) for pair in FEW_PAIRS),
        *(pytest.param(ALL, *pair, later_s, marks=LONG) for later_s in (0, 4) for pair in PAIRS),
    ],
)
def test_two_runs_at_once_lose_and_double_nothing(spark, talks, prepared, tmp_path, job, one, two, later_s):
    """Two jobs on one new lake, the second some seconds later, with all files between them."""
    root, both = tmp_path / "lake", []
    for numbers, wait_s in ((one, later_s), (two, 0)):
        both.append(Job(root, [talks.run(number) for number in numbers], job))
        time.sleep(wait_s)
    for each in both:
        each.succeed()
    _, _, expected = prepared(job)
    talks.equal(Lake(spark, str(root)), expected)
