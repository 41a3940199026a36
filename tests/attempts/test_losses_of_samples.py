"""Whatever a capture of the sample lost, no attempt or message that is ``complete`` ends otherwise than in the whole.

Left out is loss that leaves no trace (docs/reference/limits.md): at a server with a connection that lost its last
bytes, or its RST or FIN, a message may have been read, or given back, unseen.
"""

import socket
from functools import cache
from random import Random

import pytest

from attempts.telling import sequences_here
from attempts.test_on_the_wire import unseen_of
from attempts.test_sample import WHOLE, gold_of
from capture.in_memory import read_captures
from conftest import ROOT
from pcapgen.containers import NANOSECONDS, pcap
from pcapgen.exchanges import read_frames
from transfers.losses import lose

RECORDINGS = {name: read_frames(ROOT / "data" / "sample" / name) for name in WHOLE if "many-clients" not in name}
ENDPOINTS = ("client_address", "client_port", "server_address", "server_port")


def concluded(capture):
    """What attempts, by connection and start, and messages, by queue and lookup id, came to; and who is complete."""
    tables = read_captures([[capture]])
    if not len(tables["rpc_calls"]):
        return {}
    attempts, operations, _, _ = gold_of(tables)
    found = {
        ("attempt", *(row[name] for name in ENDPOINTS), row["started_at"]): (row["outcome"], row["confidence"])
        for row in attempts.to_pylist()
    }
    return found | {
        ("message", row["queue"], row["lookup_id"], row["message_key"]): (
            (row["fate"], row["loss_risk"]), row["confidence"],
        )
        for row in sequences_here(attempts, operations, unseen=unseen_of(tables))
    }  # fmt: skip


@cache
def whole(name, packets):
    """What the first packets of a recording conclude."""
    return concluded(pcap(RECORDINGS[name][:packets], magic=NANOSECONDS).data)


def compare(seeds):
    """What complete rows of lossy captures conclude otherwise than the whole ones, and how many were compared."""
    broken, compared = [], 0
    for seed in seeds:
        chance = Random(seed)
        name = chance.choice(sorted(RECORDINGS))
        lossy = lose(chance, RECORDINGS[name])
        unseen = {socket.inet_ntoa(end[0]) for ends in lossy.untraced | lossy.unended for end in ends}
        happened = whole(name, len(lossy.whole))
        for key, (said, confidence) in concluded(lossy.capture).items():
            is_compared = not unseen if key[0] == "message" else key[3] not in unseen
            if confidence == "complete" and is_compared:
                compared += 1
                there = happened.get(key, (None,))[0]
                broken += [(seed, name, lossy.way, key, said, there)] if there != said else []
    return broken, compared


def check(seeds):
    broken, compared = compare(seeds)
    assert broken == []
    assert compared > 2 * len(seeds)


def test_what_is_complete_is_as_in_the_whole_sample():
    """The same losses in each run; the long test takes others each time."""
    check([*range(40), 3249])  # 3249: an End that was refused, after one that was accepted, was lost


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_what_is_complete_of_many_is_as_in_the_whole_sample(part):
    """A thousand losses, other ones in each run: a failure names their seeds."""
    first = Random().randrange(1 << 40)
    check(range(first + part * 100, first + part * 100 + 100))
