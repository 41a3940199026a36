"""Two taps that lost packets, each others, by clocks that are apart: no row that is ``complete`` is wrong.

Where one of them lacks a packet, the times of a session are of both clocks: a packet may seem to be sent before what it
answers. Which of both was first, the packets that both have tell.
"""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from pcapgen.containers import NANOSECONDS, pcap
from pcapgen.exchanges import read_frames
from schemas.sessions import SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS
from transfers.conclusions import wrong
from transfers.in_memory import transfers_of
from transfers.losses import described
from transfers.test_complete_is_complete import whole
from transfers_peer.reading import CAPTURES
from udfs.capture.clocks.tap_offsets import TapOffsets

RECORDINGS = {path.name: found for path in CAPTURES if len(found := read_frames(path)) < 700}
AHEAD_NS = (1_000_000, -1_000_000, 10_000, -2_000_000_000, 60_000_000_000)


def captured_twice(seed):
    """A recording, captures of it by two taps in any order, and what both together lost."""
    chance = Random(seed)
    name = chance.choice(sorted(RECORDINGS))
    records, share, ahead_ns = RECORDINGS[name], chance.choice([0.02, 0.05, 0.1, 0.3]), chance.choice(AHEAD_NS)
    kept = [[chance.random() >= share for _ in records] for _ in range(2)]
    for each in kept:
        each[-1] = True
    taps = [[record for record, there in zip(records, each, strict=True) if there] for each in kept]
    taps[1] = [replace(record, time_ns=record.time_ns + ahead_ns) for record in taps[1]]
    if chance.random() < 0.5:
        taps.reverse()
    lost = described("two taps", records, [any(each) for each in zip(*kept, strict=True)])
    return name, [pcap(tap, magic=NANOSECONDS).data for tap in taps], lost


def waits_to_the_end(found):
    """Whether it is a finding on a wait that goes on: it lasts until the newest packet of any capture (limits.md)."""
    table, key, *_ = found
    return table == "findings" and key[0] == "T18"


def check(seeds):
    broken = []
    for seed in seeds:
        name, captures, lost = captured_twice(seed)
        found = wrong(lost, transfers_of(captures), whole(name, len(lost.whole)))
        broken += [(seed, name, *each) for each in found if not waits_to_the_end(each)]
    assert broken == []


# Each showed a fault: messages that were rejected or delivered and seemed transferred or unacknowledged, and numbers
# that a receiver seemed to have to refuse; by a clock 60 s ahead, a message that seemed to be sent after its time, and
# a session whose RST alone that tap had, which seemed to end for want of an acknowledgement.
@pytest.mark.parametrize("seed", [7, 8, 12, 15, 21, 1_091_681_813_213, 709_243_461_837])
def test_what_is_complete_is_as_in_the_whole_capture(seed):
    check([seed])


@pytest.mark.long
@pytest.mark.parametrize("part", range(5))
def test_what_is_complete_of_many_is_as_in_the_whole_capture(part):
    """Five hundred, other ones in each run: a failure names their seeds."""
    first = Random().randrange(1 << 40)
    check(range(first + part * 100, first + part * 100 + 100))


def test_a_session_says_that_its_times_are_of_two_clocks():
    _, captures, _ = captured_twice(15)
    lake = transfers_of(captures)
    (row,) = [row for row in lake.rows(SESSIONS).to_pylist() if row["overlapping_captures"]]
    assert "clock_step" in row["missing"]
    for each in lake.rows(MESSAGE_TRANSFERS).to_pylist():
        assert each["session_ack_ms"] is None or 0 <= each["session_ack_ms"] < 30_000


def packets_of(*differences, step=1000):
    """Packets of both sides in turn that two captures have, the clock of one of which is ahead by so much."""
    return [(place % 2, {"a": place * step + ahead, "b": place * step}) for place, ahead in enumerate(differences)]


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([500] * 20, 500),
        ([500, 520] * 10, 510),  # the way takes 10 us in each direction
        ([-20, 20] * 10, 0),  # the clocks agree
        ([500, 520] * 5 + [9000] * 2 + [500, 520] * 5, 510),  # two were sent again
    ],
)
def test_how_far_a_clock_is_ahead(differences, expected):
    offsets = TapOffsets(packets_of(*differences), "b")
    assert offsets.ahead("a", np.array([0, 9000, 10**6])).tolist() == [expected] * 3
    assert offsets.ahead("b", np.array([0, 9000])).tolist() == [0, 0]
    assert offsets.ahead("c", np.array([0])).tolist() == [0]


def test_a_clock_is_compared_over_a_third_one():
    found = [*packets_of(*[500] * 10), *((0, {"a": at, "c": at + 300}) for at in range(10))]
    assert TapOffsets(found, "b").ahead("c", np.array([5])).tolist() == [800]


def test_a_clock_that_drifts_is_ahead_by_what_packets_nearby_show():
    offsets = TapOffsets(packets_of(*range(100, 300)), "b")
    assert offsets.ahead("a", np.array([0, 100_000, 10**9])).tolist() == [108, 200, 290]
