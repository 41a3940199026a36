"""What stands at a cut twice: sent again in the next file, or captured twice; and more than a remainder may hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capture.merge.comparing import equal, same
from capture.merge.traffic import foreign
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import rpc
from pcapgen.model import Dialogue, stub_of
from udfs.capture import overlap
from udfs.capture.in_memory import read_together
from udfs.capture.reader import read_capture


def both_ways(records: list[c.Record], place: int) -> dict:
    """Two files of a capture, in both orders, are the uncut one."""
    pieces = [c.pcap(records[:place]).data, c.pcap(records[place:]).data]
    found = read_together([[piece] for piece in pieces])
    same(found, read_capture(c.pcap(records).data))
    equal(read_together([[piece] for piece in reversed(pieces)]), found)
    return found


def many() -> tuple[Dialogue, list[t.Segment]]:
    """Calls enough for the second file to know the interface without its bind, and to finish calls alone."""
    dialogue = Dialogue()
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    for number in range(6):
        dialogue.call(2, stub_of(number, 64), stub_of(3, 20))
        dialogue.call(7, stub_of(number, 56), stub_of(8, 300))
        dialogue.call(9, stub_of(number, 28), stub_of(10, 4))
    return dialogue, t.segments(dialogue.script)


@pytest.mark.parametrize("place", range(23, 27))
def test_every_packet_captured_twice(place):
    """As a mirrored port gives them: the copy of what ends a file begins the next one."""
    dialogue, parts = many()
    records = t.records(dialogue.flow, parts)
    records = [each for one in records for each in (one, replace(one, time_ns=one.time_ns + 1000))]
    assert both_ways(records, place)["rpc_calls"].num_rows == len(dialogue.calls)


@pytest.mark.parametrize("answered", [False, True])
def test_a_request_sent_again_after_the_cut(answered):
    """Its first sending ends a file, with its answer or without: the next file alone makes a call of the second."""
    dialogue, parts = many()
    asked = next(index for index in t.data_indexes(parts)[12:] if parts[index].side == t.CLIENT)
    place = asked + (2 if answered else 1)
    copies = [replace(parts[index], time_ns=parts[asked + 1].time_ns + 9_000 + index) for index in (asked, asked + 1)]
    again = [*parts[:place], *(copies if answered else copies[:1]), *parts[place:]]
    records = t.records(dialogue.flow, again)
    assert both_ways(records, place)["rpc_calls"].num_rows == len(dialogue.calls)


def test_more_unfinished_calls_than_a_remainder_holds_stay_rows():
    """3 MB of requests whose answers nobody captured: what is too much to be joined is a row all the same."""
    dialogue = Dialogue()
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    for _ in range(70):
        dialogue.call(7, stub_of(7, 40_000), stub_of(8, 40), cuts=(20_000,))
    records = t.records(dialogue.flow, t.only(t.segments(dialogue.script, mss=20_000), t.CLIENT))
    found = both_ways(records, len(records) * 4 // 5)
    assert found["rpc_calls"].num_rows == len(dialogue.calls)


def test_a_connection_of_many_files_is_compared_with_its_neighbours_only(monkeypatch):
    """A connection may live through all files of a ring, and each run joins them all."""
    dialogue, parts = many()
    records = t.records(dialogue.flow, parts)
    files = [read_capture(c.pcap([record]).data)["pending"].to_pylist() for record in records]
    rows = [row for each in files for row in each]
    compared = []
    whether = overlap._together
    monkeypatch.setattr(overlap, "_together", lambda *two: compared.append(two) or whether(*two))
    assert len(overlap.groups(rows)) == len(rows) == len(records)
    assert len(compared) < len(rows)


@pytest.mark.parametrize("later_ns", [0, 1000])
@pytest.mark.parametrize("last", [1, 8])
def test_a_request_of_a_large_call_that_ends_one_file_and_begins_the_next(last, later_ns):
    """Neither file has the bind, so the first alone is not sure what it has; such calls are not kept for others."""
    dialogue = foreign()
    records = t.records(dialogue.flow, t.segments(dialogue.script, mss=536, opened=False, closed=False, acks=False)[1:])
    again = replace(records[last], time_ns=records[last].time_ns + later_ns)
    one, two = c.pcap(records[: last + 1]).data, c.pcap([again, *records[last + 1 :]]).data
    for runs in ([[one, two]], [[one], [two]], [[two], [one]]):
        found = read_together(runs)
        assert found["rpc_calls"].num_rows == len(dialogue.calls)
        assert found["connections"]["calls"].to_pylist() == [len(dialogue.calls)]
        assert set(found["rpc_calls"]["outcome"].to_pylist()) == {"unbound"}
