"""The property: whatever a capture lost, no row that is ``complete`` concludes otherwise than the whole capture.

Recordings of queue managers lose packets at random, in bursts, at their beginning or end, of one machine, of one
direction, or behind a snap length. What leaves no trace (docs/reference/limits.md) is derived from the numbers of the
packets that remain, and left out. Against over-caution, the share of rows that stay complete is measured.
"""

import sys
from collections import Counter
from functools import cache
from random import Random

import pytest

from example_counts import seeds
from pcapgen.containers import NANOSECONDS, pcap
from pcapgen.exchanges import read_frames
from transfers.conclusions import TABLES, concluded, wrong
from transfers.in_memory import transfers_of
from transfers.losses import lose
from transfers_peer.reading import CAPTURES

RECORDINGS = {path.name: read_frames(path) for path in CAPTURES}


@cache
def whole(name, packets):
    """What the first packets of a recording conclude."""
    return transfers_of([pcap(RECORDINGS[name][:packets], magic=NANOSECONDS).data])


def lossy(seed, **how):
    """A recording that lost packets, what it concludes, and what the whole one does."""
    chance = Random(seed)
    name = chance.choice(sorted(RECORDINGS))
    found = lose(chance, RECORDINGS[name], **how)
    return name, found, transfers_of([found.capture]), whole(name, len(found.whole))


def check(seeds):
    broken = []
    for seed in seeds:
        name, found, lake, happened = lossy(seed)
        broken += [(seed, name, found.way, *each) for each in wrong(found, lake, happened)]
    assert broken == []


@pytest.mark.parametrize("part", seeds(1, 10))
def test_what_is_complete_is_as_in_the_whole_capture(part):
    """Ten losses, the same in each run, and nine times as many more in long ones, which also take others."""
    check(range(5_000 + part * 10, 5_000 + part * 10 + 10))


# Each showed a fault: an order ack in a hole, an acknowledgement of the lost copy of a message, a resend of a message
# whose order ack was seen, a sequence that began before the capture, acknowledgements that go to a third machine or
# come from the sender itself, a header whose order was not certain yet, a resend in a session whose begin was lost, an
# answer to a handshake that was taken for the request.
@pytest.mark.parametrize("seed", [64, 73, 90, 265, 365, 387, 433, 624, 868, 633_894_753_906, 800_000_000_018])
def test_losses_that_showed_faults(seed):
    check([seed])


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_what_is_complete_of_many_is_as_in_the_whole_capture(part):
    """Two thousand losses, other ones in each run: a failure names their seeds."""
    first = Random().randrange(1 << 40)
    check(range(first + part * 100, first + part * 100 + 100))


def _main(said):
    """What is said without refusals, which are null where bytes are lost."""
    return said[:2] if isinstance(said, tuple) else said


def shares(share, seeds):
    """By table: of rows that conclude what the whole capture does, how many there are, and how many stay complete."""
    found = {table: Counter() for table in TABLES}
    for seed in seeds:
        _, _, lake, happened = lossy(seed, way="few", share=share)
        for table, conclude in TABLES.items():
            there = concluded(conclude(happened))
            for key, (said, complete, _) in conclude(lake).items():
                if key in there and there[key][1] and _main(there[key][0]) == _main(said):
                    found[table]["same"] += 1
                    found[table]["complete"] += complete
    return {table: (each["complete"], each["same"]) for table, each in found.items()}


@pytest.mark.long
@pytest.mark.parametrize(("share", "transfers", "sequences"), [(0.01, 0.94, 0.8), (0.05, 0.83, 0.5)])
def test_what_was_not_lost_stays_complete(share, transfers, sequences):
    found = shares(share, range(150))
    least = {"transfers": transfers, "sequences": sequences}
    for table, bound in least.items():
        complete, same = found[table]
        assert complete >= bound * same, (table, complete, same)


if __name__ == "__main__":  # PYTHONPATH=tests:tests/support:. python tests/transfers/test_complete_is_complete.py
    for percent in (1, 2, 5, 10):
        sys.stdout.write(f"{percent} % lost: ")
        rows = shares(percent / 100, range(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
        sys.stdout.write(", ".join(f"{name} {some}/{every}" for name, (some, every) in rows.items()) + "\n")
