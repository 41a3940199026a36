"""Connections that were not established, in a lake: files read one by one in any order, again, and as one."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from bronze.test_capture_parts import TABLES, ingest
from capture.merge.comparing import OF_THE_RUN, differences
from capture.test_openings import answer, asks, captured, flow, other_traffic, queue_manager
from example_counts import seeds
from jobs import ingest_captures
from pcapgen import containers as c

EVERY = (*TABLES, "pending")
SEEN = ("client_port", "server_port", "kind", "not_established", "packets")


def records():
    """Return SYNs without an answer and with an RST, of a client that is answered elsewhere, over two minutes."""
    parts = [queue_manager(70), *(other_traffic(at * 9) for at in range(14))]
    for number in range(3):
        parts += [
            asks(flow(1801, client_port=50000 + number, server="10.0.0.2"), 0, 3, 9, start=number * 20),
            asks(flow(1801, client_port=50100 + number, server="10.0.0.3"), 1, start=number * 20),
            answer(flow(1801, client_port=50100 + number, server="10.0.0.3"), number * 20 + 1.1),
            asks(flow(135, client_port=50200 + number), 2, 5, start=number * 20),
            asks(flow(135, client_port=50300 + number, server="10.0.0.4"), 2, 5, start=number * 20),
        ]
    return captured(*parts)


EXPECTED = {
    (40000, 1801, "binary_protocol", None, 8),
    *((50000 + number, 1801, "binary_protocol", "no_answer", 3) for number in range(3)),
    *((50100 + number, 1801, "binary_protocol", "reset", 2) for number in range(3)),
    *((50200 + number, 135, "rpc", "no_answer", 2) for number in range(3)),
}


def seen(tables):
    """Return the connections, and how the packets of all captures are counted."""
    found = {tuple(row[name] for name in SEEN) for row in tables["connections"].to_pylist()}
    assert tables["connections"].num_rows == len(found)
    files = tables["capture_files"].to_pylist()
    return found, sum(row["packets_used"] for row in files), sum(row["packets_other"] for row in files)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The tables of a lake with all records in one capture."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "whole.pcap").write_bytes(c.pcap(records()).data)
    tables = ingest(folder / "lake", folder / "whole.pcap", EVERY)
    assert seen(tables) == (EXPECTED, 6, 6 + 14)
    return tables


@pytest.mark.parametrize("seed", seeds(1, 5))
def test_files_one_by_one_in_any_order_give_what_the_whole_gives(tmp_path, whole, seed):
    chance, every = random.Random(seed), records()
    cuts = [0, *sorted(chance.sample(range(1, len(every)), 3)), len(every)]
    names = []
    for number, (begin, end) in enumerate(pairwise(cuts)):
        names.append(tmp_path / f"{number}.pcap")
        names[-1].write_bytes(c.pcap(every[begin:end]).data)
    chance.shuffle(names)
    for name in names:
        tables = ingest(tmp_path / "lake", name, EVERY)
    assert seen(tables) == seen(whole)
    versions = {path: len([*path.glob("_delta_log/*.json")]) for path in (tmp_path / "lake" / "bronze").iterdir()}
    again = ingest(tmp_path / "lake", names[0], EVERY)  # nothing new
    assert not differences(again, tables, left_out=OF_THE_RUN)
    assert {path: len([*path.glob("_delta_log/*.json")]) for path in versions} == versions
    arguments = ["--lake", str(tmp_path / "lake"), "--reprocess", "all"]
    assert ingest_captures.main(arguments) == 0
    assert seen(ingest(tmp_path / "lake", names[0], EVERY)) == seen(whole)


@pytest.mark.parametrize("later", ["queue manager", "attempts"])
def test_what_shows_a_queue_manager_may_be_read_days_before_or_later(tmp_path, later):
    attempts = captured(asks(flow(135), 0, 3), other_traffic(5))
    files = {"queue manager": queue_manager(6 * 86_400), "attempts": attempts}
    for name in sorted(files, key=lambda name: name == later):
        (tmp_path / f"{name}.pcap").write_bytes(c.pcap(files[name]).data)
        tables = ingest(tmp_path / "lake", tmp_path / f"{name}.pcap", EVERY)
    assert seen(tables) == ({(40000, 1801, "binary_protocol", None, 8), (49200, 135, "rpc", "no_answer", 2)}, 2, 1)
