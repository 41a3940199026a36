"""Conversations cut into several files, in any order and number of runs, give the tables of the uncut captures."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import accumulate, permutations
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from capture.merge.cutting import evenly, plain
from end_to_end.conversations import SAMPLE, SMALL, Conversations
from end_to_end.lakes import ALL, BRONZE, run, tables
from pipeline.bronze.capture_tasks import group_by_task, whole_file_splits
from pipeline.bronze.input_files import list_files
from pipeline.lake.lake import Lake
from schemas import catalog
from schemas.bronze import CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.table import INGESTED_AT, RUN_ID, Table
from tests.support.lakes import changes, versions_text

pytestmark = pytest.mark.spark
LONG = pytest.mark.long  # for `make test-all`

ORDERS = tuple(permutations(range(5)))


def _orders_within_tasks(folder: Path, count: int) -> dict[int, list[int]]:
    """Return the order in which a run reads the five files of each conversation; one task reads all of them."""
    found: dict[int, list[int]] = defaultdict(list)
    for task in group_by_task(whole_file_splits(list_files([str(folder)]))):
        of_task = defaultdict(list)
        for split in task:
            number, _, index = Path(split.file.path).name.split("_")
            of_task[int(number)].append(int(index))
        for number, indexes in of_task.items():
            if number < count:
                assert number not in found
                found[number] = indexes
    return found


def rewritten(lake: Lake, table: Table, since: int | None) -> int:
    """Return how many rows a run rewrote without a change: the tables above would have to follow them.

    ``since`` is the table's version when the run began.
    """
    if since is None or lake.version(table) == since:
        return 0
    (key,) = table.key
    facts = F.to_json(F.struct(*(name for name in table.names if name not in (RUN_ID, INGESTED_AT)))).alias("facts")
    before = lake.spark.read.format("delta").option("versionAsOf", since).load(lake.path(table)).select(key, facts)
    same = before.join(lake.read(table).select(key, facts), [key, "facts"])
    return same.join(changes(lake, table, since).select(key).distinct(), key, "left_semi").count()


@pytest.mark.parametrize(
    ("name", "orders", "ways", "job"),
    [
        pytest.param("01-remoteread-ndr.pcap", ORDERS[3::24], [(2, 3)], BRONZE, marks=LONG),
        pytest.param("01-remoteread-ndr.pcap", ORDERS, [(5,), (1, 1, 1, 1, 1)], ALL, marks=LONG),
        pytest.param("03-qm2qm-dependent-client.pcap", ORDERS, [(5,), (1, 1, 1, 1, 1)], ALL, marks=LONG),
    ],
    ids=["few orders", "all of RemoteRead", "all of qm2qm"],
)
def test_orders_of_five_files(spark, tmp_path, name, orders, ways, job):
    """Each order of files is distributed over runs; if one run has all files, its task reads them in that order.

    ``ways`` are the numbers of files that each run reads. Further conversations of the sample are cut at random, and
    their files distributed over the runs.
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
    run(uncut, talks.uncut, job=job)
    for lake, sizes in zip(lakes, ways, strict=True):
        for last, size in zip(accumulate(sizes), sizes, strict=True):
            began = {table: lake.version(table) for table in (RPC_CALLS, CONNECTIONS, RPC_BINDS)}
            run(lake, *(talks.run(number) for number in range(last - size + 1, last + 1)), job=job)
            assert [rewritten(lake, table, since) for table, since in began.items()] == [0, 0, 0]
        talks.same(lake, uncut)
        if lake is lakes[0]:
            first = tables(lake)
        talks.equal(lake, first)
    versions = versions_text(lakes[-1], *catalog.DATA_TABLES)
    run(lakes[-1], talks.cut, job=job)
    assert versions_text(lakes[-1], *catalog.DATA_TABLES) == versions


@LONG
@pytest.mark.parametrize("seed", range(4))
def test_captures_cut_anywhere_in_three_runs(spark, tmp_path, seed):
    """Two conversations of each sample capture, including the large ones."""
    talks, chance = Conversations(tmp_path / "captures"), random.Random(seed)
    for name in (*SAMPLE, *SAMPLE):
        talks.add_any(name, chance, last=3)
    talks.write()
    uncut, three = (Lake(spark, str(tmp_path / name)) for name in ("uncut", "three"))
    run(uncut, talks.uncut)
    for number in range(1, 4):
        run(three, talks.run(number))
    talks.same(three, uncut)
