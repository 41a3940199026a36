"""Data at a cut that occurs twice: sent again in the next file, or captured twice; and the limits of a remainder."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capture.in_memory import read_captures
from capture.merge.comparing import equal, same
from capture.merge.traffic import foreign
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import rpc
from pcapgen.model import Dialogue, make_stub
from udfs.capture import overlapping_captures
from udfs.capture.capture_reader import read_capture


def both_ways(records: list[c.Record], place: int) -> dict:
    """Check that two files of a capture, in both orders, equal the uncut one."""
    pieces = [c.pcap(records[:place]).data, c.pcap(records[place:]).data]
    found = read_captures([[piece] for piece in pieces])
    same(found, read_capture(c.pcap(records).data))
    equal(read_captures([[piece] for piece in reversed(pieces)]), found)
    return found


def many() -> tuple[Dialogue, list[t.Segment]]:
    """Calls enough for the second file to infer the interface without a bind, and to finish calls alone."""
    dialogue = Dialogue()
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    for number in range(6):
        dialogue.call(2, make_stub(number, 64), make_stub(3, 20))
        dialogue.call(7, make_stub(number, 56), make_stub(8, 300))
        dialogue.call(9, make_stub(number, 28), make_stub(10, 4))
    return dialogue, t.segments(dialogue.script)


@pytest.mark.parametrize("place", range(23, 27))
def test_every_packet_captured_twice(place):
    """As with a mirrored port: the copy of the last packet of a file begins the next one."""
    dialogue, parts = many()
    records = t.records(dialogue.flow, parts)
    records = [each for one in records for each in (one, replace(one, time_ns=one.time_ns + 1000))]
    assert both_ways(records, place)["rpc_calls"].num_rows == len(dialogue.calls)


@pytest.mark.parametrize("answered", [False, True])
def test_a_request_sent_again_after_the_cut(answered):
    """The first copy ends a file, with its response or without; the next file alone makes a call of the second copy."""
    dialogue, parts = many()
    asked = next(index for index in t.data_indexes(parts)[12:] if parts[index].side == t.CLIENT)
    place = asked + (2 if answered else 1)
    copies = [replace(parts[index], time_ns=parts[asked + 1].time_ns + 9_000 + index) for index in (asked, asked + 1)]
    again = [*parts[:place], *(copies if answered else copies[:1]), *parts[place:]]
    records = t.records(dialogue.flow, again)
    assert both_ways(records, place)["rpc_calls"].num_rows == len(dialogue.calls)


def test_more_unfinished_calls_than_a_remainder_holds_stay_rows():
    """3 MB of unanswered requests: over the limit they are rows nevertheless."""
    dialogue = Dialogue()
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    for _ in range(70):
        dialogue.call(7, make_stub(7, 40_000), make_stub(8, 40), cuts=(20_000,))
    records = t.records(dialogue.flow, t.one_side(t.segments(dialogue.script, mss=20_000), t.CLIENT))
    found = both_ways(records, len(records) * 4 // 5)
    assert found["rpc_calls"].num_rows == len(dialogue.calls)


def test_a_connection_of_many_files_is_compared_with_its_neighbours_only(monkeypatch):
    """A connection may span all files of a ring, and each run merges them all."""
    dialogue, parts = many()
    records = t.records(dialogue.flow, parts)
    files = [read_capture(c.pcap([record]).data)["pending"].to_pylist() for record in records]
    rows = [row for each in files for row in each]
    compared = []
    whether = overlapping_captures._do_overlap
    monkeypatch.setattr(overlapping_captures, "_do_overlap", lambda *two: compared.append(two) or whether(*two))
    captured = [overlapping_captures.Captured(row) for row in rows]
    overlaps = overlapping_captures.find_overlaps(captured)
    numbers = overlapping_captures.conversations(captured, overlaps, 0)
    pairs = overlapping_captures.side_by_side_pairs(captured, overlaps, numbers)
    assert len(overlapping_captures.group_simultaneous(len(rows), pairs)) == len(rows) == len(records)
    assert len(compared) < len(rows)


@pytest.mark.parametrize("later_ns", [0, 1000])
@pytest.mark.parametrize("last", [1, 8])
def test_a_request_of_a_large_call_that_ends_one_file_and_begins_the_next(last, later_ns):
    """Neither file has the bind; PDUs of such large calls are not retained."""
    dialogue = foreign()
    records = t.records(dialogue.flow, t.segments(dialogue.script, mss=536, opened=False, closed=False, acks=False)[1:])
    again = replace(records[last], time_ns=records[last].time_ns + later_ns)
    one, two = c.pcap(records[: last + 1]).data, c.pcap([again, *records[last + 1 :]]).data
    for runs in ([[one, two]], [[one], [two]], [[two], [one]]):
        found = read_captures(runs)
        assert found["rpc_calls"].num_rows == len(dialogue.calls)
        assert found["connections"]["calls"].to_pylist() == [len(dialogue.calls)]
        assert set(found["rpc_calls"]["outcome"].to_pylist()) == {"unbound"}
