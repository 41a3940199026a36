"""Conversations over several files, through the jobs: in any order and number of runs, killed, or two runs at once.

The tables are those of the uncut captures. A run costs a quarter of a minute whatever it reads, so many conversations
go through one lake: copies of a recorded one, each between machines of its own and in an order of its own.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate, permutations
from pathlib import Path

import pytest

from end_to_end.lakes import Job, run, tables
from joining.comparing import OF_FILES, OF_THE_RUN, PLACES, differences
from joining.cutting import cut, elsewhere, evenly, padded, plain, records
from pcapgen.record import sample_captures
from pipeline.capture_source import pack, whole
from pipeline.lake import Lake
from pipeline.listing import list_files
from pipeline.runs import Runs
from schemas import catalog

pytestmark = pytest.mark.spark
LONG = pytest.mark.long  # for `make test-all`

SAMPLE = {path.name: path for path in sample_captures()}
SMALL = tuple(name for name, path in SAMPLE.items() if path.stat().st_size < 100_000)
ORDERS = tuple(permutations(range(5)))


@dataclass
class Conversations:
    """Captures of conversations between machines of their own, and their pieces in a folder for each run.

    ``told``: for each of their addresses, which conversation it is of and how that was cut and spread over runs.
    """

    folder: Path
    count: int = 0
    pieces: list[tuple[int, str, bytes]] = field(default_factory=list)  # number of the run, name, content
    told: dict[str, str] = field(default_factory=dict)

    @property
    def uncut(self) -> Path:
        return self.folder / "uncut"

    @property
    def cut(self) -> Path:
        return self.folder / "cut"

    def run(self, number: int) -> Path:
        return self.cut / str(number)

    def add(self, name: str, places: list[int], runs: list[int]) -> None:
        """Add a conversation of the sample cut at these places, each piece given to a run."""
        capture = elsewhere(plain(SAMPLE[name]), self.count)
        title = f"{self.count:03}_{Path(name).stem}"
        self.uncut.mkdir(parents=True, exist_ok=True)
        (self.uncut / title).write_bytes(capture)
        for index, (number, piece) in enumerate(zip(runs, cut(capture, places), strict=True)):
            self.pieces.append((number, f"{title}_{index}", piece))
        self.told[f"10.{77 + self.count}"] = f"{title} cut at {places}, its files in runs {runs}"
        self.count += 1

    def add_any(self, name: str, chance: random.Random, *, last: int) -> None:
        """Add a conversation of the sample cut anywhere, its pieces given by chance to runs 1 to ``last``."""
        places = sorted(chance.sample(range(1, records(plain(SAMPLE[name]))), chance.randint(1, 6)))
        self.add(name, places, [chance.randint(1, last) for _ in range(len(places) + 1)])

    def write(self, *, padded_prefix: int = 0) -> None:
        """Write the pieces, those of the first conversations all of one size, above that of all others."""
        size = max(len(piece) for _, _, piece in self.pieces) + 64
        for number, name, piece in self.pieces:
            self.run(number).mkdir(parents=True, exist_ok=True)
            content = padded(piece, size) if int(name[:3]) < padded_prefix else piece
            (self.run(number) / name).write_bytes(content)

    def explain(self, lines: list[str]) -> str:
        """Lines of differences, and of which conversations they are."""
        places = {".".join(found.split(".")[:2]) for found in re.findall(r"\d+\.\d+\.\d+\.\d+", "\n".join(lines))}
        return "\n".join(
            ["", *lines, *(f"{place}.*: {self.told[place]}" for place in sorted(places & self.told.keys()))]
        )

    def same(self, lake: Lake, uncut: Lake) -> None:
        """Fail unless the facts are the same, in all tables but those of files, without places."""
        found = differences(tables(lake), tables(uncut), left_out=PLACES | OF_THE_RUN, not_compared=OF_FILES)
        assert not found, self.explain(found)

    def equal(self, lake: Lake, other: Lake) -> None:
        """Fail unless two lakes that read the same files are equal in every column of every table but the run's."""
        found = differences(tables(lake), tables(other), left_out=OF_THE_RUN)
        assert not found, self.explain(found)


def _orders_within_tasks(folder: Path, count: int) -> dict[int, list[int]]:
    """In which order one run's tasks read the five files of each conversation; a conversation is of one task."""
    found: dict[int, list[int]] = defaultdict(list)
    for task in pack(whole(list_files([str(folder)]))):
        of_task = defaultdict(list)
        for reading in task.readings:
            number, _, index = Path(reading.file.path).name.split("_")
            of_task[int(number)].append(int(index))
        for number, indexes in of_task.items():
            if number < count:
                assert number not in found
                found[number] = indexes
    return found


@pytest.mark.parametrize(
    ("name", "orders", "ways"),
    [
        ("01-remoteread-ndr.pcap", ORDERS[3::20], [(2, 3)]),
        pytest.param("01-remoteread-ndr.pcap", ORDERS, [(5,), (1, 1, 1, 1, 1)], marks=LONG),
        pytest.param("03-qm2qm-dependent-client.pcap", ORDERS, [(5,), (1, 1, 1, 1, 1)], marks=LONG),
    ],
    ids=["few orders", "all of RemoteRead", "all of qm2qm"],
)
def test_orders_of_five_files(spark, tmp_path, name, orders, ways):
    """Each order gives its files to runs; where one run has all, the task that has them reads them in that order.

    ``ways``: how many of the five files each run reads. Beside the orders are conversations of the sample cut anywhere,
    their files spread over the runs.
    """
    talks, places = Conversations(tmp_path / "captures"), evenly(plain(SAMPLE[name]))
    for order in orders:
        talks.add(name, places, [1 + order.index(piece) for piece in range(5)])
    chance = random.Random(4)
    for number in range(len(orders) // 5):
        talks.add_any(SMALL[number % len(SMALL)], chance, last=5)
    talks.write(padded_prefix=len(orders))
    if (5,) in ways:  # fewer conversations would not fill the tasks evenly
        assert _orders_within_tasks(talks.cut, len(orders)) == dict(enumerate(map(list, orders)))

    uncut, *lakes = (Lake(spark, str(tmp_path / f"lake_{number}")) for number in range(1 + len(ways)))
    run(uncut, talks.uncut)
    for lake, sizes in zip(lakes, ways, strict=True):
        for last, size in zip(accumulate(sizes), sizes, strict=True):
            run(lake, *(talks.run(number) for number in range(last - size + 1, last + 1)))
        talks.same(lake, uncut)
        talks.equal(lake, lakes[0])
    versions = lakes[-1].versions(*catalog.ALL)
    run(lakes[-1], talks.cut)
    assert lakes[-1].versions(*catalog.ALL) == versions


@LONG
@pytest.mark.parametrize("seed", range(4))
def test_captures_cut_anywhere_in_three_runs(spark, tmp_path, seed):
    """Two conversations of each capture of the sample, the large ones too."""
    talks, chance = Conversations(tmp_path / "captures"), random.Random(seed)
    for name in (*SAMPLE, *SAMPLE):
        talks.add_any(name, chance, last=3)
    talks.write()
    uncut, three = (Lake(spark, str(tmp_path / name)) for name in ("uncut", "three"))
    run(uncut, talks.uncut)
    for number in range(1, 4):
        run(three, talks.run(number))
    talks.same(three, uncut)


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    """Conversations of several protocols, each cut anywhere; a first run has some of their files."""
    found = Conversations(tmp_path_factory.mktemp("captures"))
    chance = random.Random(25)
    for name in SMALL:
        found.add_any(name, chance, last=2)
    found.write()
    return found


@pytest.fixture(scope="module")
def begun(spark, talks, tmp_path_factory):
    """A lake that has the files of the first run."""
    lake = Lake(spark, str(tmp_path_factory.mktemp("begun") / "lake"))
    run(lake, talks.run(1))
    return lake


@pytest.fixture(scope="module")
def undisturbed(talks, begun, tmp_path_factory):
    """A job that brought all files to such a lake, watched: it tells the others' moments."""
    job = Job(_copied(begun, tmp_path_factory.mktemp("undisturbed")), [talks.cut])
    job.watch()
    return job


def _copied(lake: Lake, folder: Path) -> Path:
    return Path(shutil.copytree(lake.root, folder / "lake"))


KILLED = ("all", "workers", "java", "driver")
FEW_KILLS = [("all", 0.85), ("workers", 0.1), ("java", 0.5)]
KILLS = [(KILLED[number % 4], (number + 0.5) / 23) for number in range(22)]  # over the whole course of a run


@pytest.mark.parametrize(
    ("what", "when"), [*FEW_KILLS, *(pytest.param(what, round(when, 3), marks=LONG) for what, when in KILLS)]
)
def test_a_killed_run_repeated_leaves_the_tables_of_an_undisturbed_one(
    spark, talks, begun, undisturbed, tmp_path, what, when
):
    lake = Lake(spark, str(_copied(begun, tmp_path)))
    told = Job(Path(lake.root), [talks.cut]).kill(undisturbed.moment(when), what)
    print(told)  # shown when the test fails
    run(lake, talks.cut)
    assert Runs.of(lake).unfinished() == {}
    talks.equal(lake, Lake(spark, str(undisturbed.root)))


FEW_PAIRS = [((1,), (2,)), ((1, 2), (1, 2))]
PAIRS = [*FEW_PAIRS, ((2,), (1,)), ((1,), (1, 2)), ((1, 2), (2,))]


@pytest.mark.parametrize(
    ("one", "two", "later_s"),
    [
        *((*pair, 0) for pair in FEW_PAIRS),
        *(pytest.param(*pair, 0, marks=LONG) for pair in PAIRS[len(FEW_PAIRS) :]),
        *(pytest.param(*pair, 4, marks=LONG) for pair in PAIRS),
    ],
)
def test_two_runs_at_once_lose_and_double_nothing(spark, talks, undisturbed, tmp_path, one, two, later_s):
    """Two jobs on one new lake, the second some seconds later; together they are given all files."""
    root, both = tmp_path / "lake", []
    for numbers, wait_s in ((one, later_s), (two, 0)):
        both.append(Job(root, [talks.run(number) for number in numbers]))
        time.sleep(wait_s)
    for job in both:
        job.succeed()
    talks.equal(Lake(spark, str(root)), Lake(spark, str(undisturbed.root)))
