"""One conversation over five files, in any order, in one run or several: the tables equal those of the uncut file.

All 120 orders of one story always run; those of each story and of each sample capture run with ``--long``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import permutations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capture.in_memory import read_captures
from capture.merge.comparing import equal, same
from capture.merge.cutting import cut, evenly, plain
from capture.merge.test_two_captures import MILLISECOND, shifted
from capture.merge.traffic import stories
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen.record import sample_captures
from pcapgen.scenarios import remote_read_dialogue
from udfs.capture.capture_reader import read_capture

STORIES = stories()
SAMPLE = {path.name: path for path in sample_captures()}
COUNTS = (
    "packets", "packets_tcp", "packets_truncated", "packets_used", "packets_other", "packets_damaged",
    "packets_binary_protocol",
)  # fmt: skip
Order = tuple[int, ...]
ALL = tuple(permutations(range(5)))
SOME = (ALL[0], ALL[-1], *random.Random(4).sample(ALL[1:-1], 4))


@cache
def pieces_of(name: str) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the uncut capture of a story or sample, and its five files."""
    if name in STORIES:
        story = STORIES[name]()
        return story.capture, tuple(cut(story.capture, story.places))
    capture = plain(SAMPLE[name])
    return capture, tuple(cut(capture, evenly(capture)))


@cache
def uncut(name: str) -> dict[str, pa.Table]:
    return read_capture(pieces_of(name)[0])


def grouped(order: Order, sizes: Sequence[int]) -> list[Order]:
    """Distribute the files, in an order, to runs of the given sizes."""
    runs, at = [], 0
    for size in sizes:
        runs.append(order[at : at + size])
        at += size
    assert at == len(order)
    return runs


ONE_RUN, FIVE_RUNS = (5,), (1, 1, 1, 1, 1)
GROUPS = (ONE_RUN, FIVE_RUNS, (2, 3), (1, 3, 1), (4, 1))


def together(name: str, runs: Iterable[Order]) -> dict[str, pa.Table]:
    pieces = pieces_of(name)[1]
    return read_captures([[pieces[index] for index in run] for run in runs])


def readings(name: str, orders: Iterable[Order], groups: Iterable[tuple[int, ...]]) -> Iterator[dict[str, pa.Table]]:
    """Compare each order in each grouping with the uncut capture; a failure names both."""
    groups = list(groups)
    for order in orders:
        for sizes in groups:
            runs = grouped(order, sizes)
            found = together(name, runs)
            try:
                same(found, uncut(name))
            except AssertionError as failure:
                raise AssertionError(f"{name}, runs {runs} | uncut:{failure}") from None
            yield found


def all_alike(found: Iterator[dict[str, pa.Table]]) -> None:
    """Check that reads of the same files are equal in every column, positions and files included."""
    first = next(found)
    for other in found:
        equal(other, first)


@pytest.mark.parametrize("name", [*STORIES, *SAMPLE])
def test_one_file_alone_is_what_the_reader_makes_of_it(name):
    capture, _ = pieces_of(name)
    same(read_captures([[capture]]), uncut(name))


@pytest.mark.parametrize("orders", [ALL[::7], pytest.param(ALL, marks=pytest.mark.long)], ids=["some", "all"])
def test_orders_of_five_files_in_one_run_and_in_five(orders):
    all_alike(readings("fragments", orders, (ONE_RUN, FIVE_RUNS)))


@pytest.mark.parametrize(
    ("ahead_ms", "orders"),
    [(150, ALL[::5]), *(pytest.param(ahead_ms, ALL, marks=pytest.mark.long) for ahead_ms in (150, -150))],
)
def test_orders_of_the_files_of_two_taps_whose_clocks_differ(ahead_ms, orders):
    """Three files of one tap, two of another that lost every fifth packet and began late."""
    dialogue = remote_read_dialogue(size=700)
    records = t.records(dialogue.flow, t.segments(dialogue.script, mss=536))
    behind = [
        record for index, record in enumerate(shifted(records, ahead_ms * MILLISECOND)) if index > 5 and index % 5
    ]
    one, two = c.pcap(records, magic=c.NANOSECONDS).data, c.pcapng(behind, tsresol=9).data
    pieces = [*cut(one, evenly(one, 3)), *cut(two, evenly(two, 2))]
    runs = (
        [[pieces[index] for index in run] for run in grouped(order, sizes)]
        for order in orders
        for sizes in (ONE_RUN, FIVE_RUNS)
    )
    all_alike(map(read_captures, runs))
    found = read_captures([pieces])
    assert len(found["rpc_calls"]) == len(dialogue.calls)
    assert found["connections"]["retransmitted_bytes"].to_pylist() == [0]


@pytest.mark.parametrize("name", STORIES)
def test_some_orders_of_every_story(name):
    all_alike(readings(name, SOME[:2], GROUPS[:2]))


@pytest.mark.parametrize("name", SAMPLE)
def test_some_orders_of_the_sample(name):
    all_alike(readings(name, SOME[1:2], (ONE_RUN, FIVE_RUNS)))


@pytest.mark.parametrize("name", [*STORIES, *SAMPLE])
def test_the_files_count_their_packets_as_the_uncut_one(name):
    """A bind in one file makes packets of another file count as used."""
    ledger = together(name, [ALL[-1]])["capture_files"]
    assert ledger.num_rows == 5
    whole = uncut(name)["capture_files"].to_pylist()[0]
    assert {count: pc.sum(ledger[count]).as_py() for count in COUNTS} == {count: whole[count] for count in COUNTS}


@pytest.mark.parametrize(
    "name",
    [
        "bind in pieces",
        "another protocol",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("fragments", "nobody answers")),
    ],
)
def test_after_each_run_the_tables_are_those_of_the_files_read_so_far(name):
    """Runs leave no trace: one after another, or the same files in one run."""
    for order in SOME:
        for count in range(1, 5):
            equal(together(name, [(index,) for index in order[:count]]), together(name, [order[:count]]))


@pytest.mark.long
@pytest.mark.parametrize("name", [*STORIES, *SAMPLE])
def test_all_orders_of_everything(name):
    all_alike(readings(name, ALL, (ONE_RUN, FIVE_RUNS)))
