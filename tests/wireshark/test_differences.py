"""Where the dissector shows less than the tables have: each case with its cause. What it shows is right."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from capture.in_memory import read_captures
from pcapgen.containers import pcap
from pcapgen.exchanges import Damage, recorded, tap
from pcapgen.reading import to_rows
from udfs.capture.capture_reader import read_capture
from wireshark.shown import IN_ORDER, trees

pytestmark = pytest.mark.tool("tshark")

LOST = Damage(cuts=(300,), lost=(20, 41, 60))
MOVED = Damage(cuts=(100,), moves=((5, 3), (20, -4), (30, 2)))
# Recording, damage, whether tshark puts segments in order (tcp.reassemble_out_of_order), and how many packets only the
# tables have. With this preference tshark waits at a hole for the segment that is missing, and shows nothing behind it.
CASES = {
    "hole": ("02-session-acks", LOST, False, 0),
    "hole, put in order": ("02-session-acks", LOST, True, 46),
    "begins later": ("02-session-acks", Damage(cuts=(300,), begin=0.3), True, 0),
    "whole": ("03-transactions", Damage(), True, 0),
    "small segments": ("03-transactions", Damage(cuts=(100,)), True, 0),
    "out of order": ("03-transactions", MOVED, True, 0),
    "out of order, not put in order": ("03-transactions", MOVED, False, 2),
    "sent again": ("02-session-acks", Damage(cuts=(200,), copies=((5, 3, 50), (20, 4, 0))), True, 0),
    "ends earlier": ("03-transactions", Damage(cuts=(300,), end=0.5), True, 0),
    "hole in a large message": ("09-large-messages", LOST, True, 6),
}
PLAIN = ("out of order", "begins later", "hole", "hole, put in order")


def captured(talks, damage, folder):
    path = folder / "made.pcap"
    path.write_bytes(pcap(tap(talks, damage).records).data)
    return path


@cache
def trees_of_whole(recording):
    """What is shown of a recording, by what tells its packets apart."""
    return {key_of(tree): tree for tree in trees(recording) if tree.one("kind")}


def key_of(tree):
    return tree.ends, tree.one("kind"), int(tree.one("packet_size")), tree.one("message_id")


@pytest.mark.parametrize(
    "case", [*PLAIN, *(pytest.param(case, marks=pytest.mark.long) for case in CASES if case not in PLAIN)]
)
def test_what_is_not_shown_has_a_cause(project, tmp_path, case):
    name, damage, in_order, missing = CASES[case]
    (recording,) = (project / "data" / "transfers").glob(f"{name}.*")
    talks = recorded(recording)
    whole = trees_of_whole(recording)
    path = captured(talks, damage, tmp_path)
    shown = [tree for tree in trees(path, IN_ORDER if in_order else ()) if tree.one("kind")]
    numbered = 0
    for tree in shown:
        first = whole[key_of(tree)]
        for number in ("session_number", "recoverable_number"):
            assert tree.one(number) in {None, first.one(number)}
            numbered += tree.one(number) is not None
    assert numbered > 0
    wanted, found = whole_packets(read_capture(path)), Counter(key_of(tree)[:3] for tree in shown)
    assert (found - wanted).total() == 0
    assert (wanted - found).total() == missing


def whole_packets(tables):
    """How many packets tables have as a whole, by direction, kind and size."""
    out = Counter()
    for row in to_rows(tables["session_packets"]):
        client, server = (row["client_address"], row["client_port"]), (row["server_address"], row["server_port"])
        ends = (*client, *server) if row["sent_by"] == "client" else (*server, *client)
        out[ends, row["kind"], row["packet_size"]] += row["complete"]
    return out


def test_a_packet_that_two_captures_share_is_in_the_tables_alone(project, tmp_path):
    talks = recorded(project / "data" / "transfers" / "09-large-messages.pcap.gz")
    records = tap(talks, Damage(cuts=(300,))).records
    halves = [records[: len(records) // 2], records[len(records) // 2 :]]
    shown, alone, captures = Counter(), Counter(), []
    for number, half in enumerate(halves):
        path = tmp_path / f"{number}.pcap"
        path.write_bytes(pcap(half).data)
        shown.update(key_of(tree)[:3] for tree in trees(path, IN_ORDER) if tree.one("kind"))
        alone += whole_packets(read_capture(path))
        captures.append(path.read_bytes())
    together = whole_packets(read_captures([captures]))
    assert shown == alone
    assert (together - alone).total() == 1
