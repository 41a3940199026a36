"""Many remainders of one four-tuple at once: what is compared grows with their number, and a limit is said."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from capture.in_memory import read_captures
from example_counts import examples
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen.scenarios import remote_read_dialogue
from udfs.capture import overlapping_captures
from udfs.capture.overlapping_captures import (
    Captured,
    conversations,
    find_overlaps,
    pairs_of_taps,
    side_by_side_pairs,
)
from udfs.capture.taps import assign_taps
from udfs.tcp.packet_decoder import FRAMED_BEFORE
from udfs.tcp.time_limits import DEFAULT_TIME_LIMITS

NUMBERS = 1 << 32


def remainder(index, begin, duration, ranges, tunnel=None):
    """A remainder that shows one range of sequence numbers (beginning, size) of each direction."""
    segments = [
        {"side": side, "time_ns": begin, "number": 0, "file_offset": 0, "sequence": low % NUMBERS,
         "acknowledgement": 0, "flags": FRAMED_BEFORE, "size": size, "data": None}
        for side, (low, size) in enumerate(ranges)
        if size
    ]  # fmt: skip
    return Captured(
        {
            "capture_id": f"capture {index}",
            "first_time_ns": begin,
            "last_time_ns": begin + duration,
            "tunnel_identifier": tunnel,
            "segments": segments,
        }
    )


RANGE = st.tuples(st.sampled_from([0, 5, 40, 900, NUMBERS - 20]), st.integers(0, 60))
REMAINDERS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20), st.tuples(RANGE, RANGE), st.sampled_from([None, 1, 2])),
    max_size=12,
).map(lambda rows: [remainder(index, *row) for index, row in enumerate(sorted(rows, key=lambda row: row[:2]))])


@given(REMAINDERS)
@settings(max_examples=examples(80), deadline=None)
def test_a_sweep_finds_what_comparing_all_pairs_finds(captured):
    overlaps = find_overlaps(captured)
    assert overlaps.over_limit == set()
    for one, two in combinations(range(len(captured)), 2):
        first, second = captured[one], captured[two]
        in_time = second.row["first_time_ns"] < first.row["last_time_ns"]
        assert ((one, two) in overlaps.in_time) == in_time
        directions = [
            each for each in zip(first.spans, second.spans, strict=True) if None not in (each[0].low, each[1].low)
        ]
        in_bytes = any((b.low - a.low) % NUMBERS < a.size or (a.low - b.low) % NUMBERS < b.size for a, b in directions)
        assert ((one, two) in overlaps.in_bytes) == in_bytes
    numbers = conversations(captured, overlaps, DEFAULT_TIME_LIMITS.max_clock_skew_ns)
    pairs = side_by_side_pairs(captured, overlaps, numbers)
    taps = assign_taps(captured, numbers, pairs)
    assert all(taps[one] != taps[two] for one, two in pairs)
    assert all(numbers[one] == numbers[two] for one, two in pairs_of_taps(captured, overlaps, numbers, taps))


def test_of_too_many_captures_at_once_nothing_is_lost(monkeypatch):
    """Each of them misses one packet of the connection; the first four are compared with each other."""
    monkeypatch.setattr(overlapping_captures, "MAX_AT_ONCE", 4)
    dialogue = remote_read_dialogue()
    records = t.records(dialogue.flow, t.segments(dialogue.script, closed=False))
    captures = []
    for number in range(7):
        seen = [replace(record, time_ns=record.time_ns + number * 1000) for record in records]
        del seen[5 + number % (len(seen) - 8)]
        captures.append(c.pcap(seen, magic=c.NANOSECONDS).data)
    found, backwards, whole = (read_captures([files]) for files in (captures, captures[::-1], [c.pcap(records).data]))
    limits = found["pending"]["over_limit"].to_pylist()
    assert sorted(map(str, limits)) == ["None"] * 4 + ["too_many_at_once"] * 3
    for name in ("client_bytes", "server_bytes", "missing_bytes", "calls"):
        assert found["connections"][name].to_pylist() == whole["connections"][name].to_pylist()
    for name in ("call_id", "outcome", "request_stub", "response_stub"):
        assert found["rpc_calls"][name].to_pylist() == whole["rpc_calls"][name].to_pylist()
    for name in ("connections", "rpc_calls"):
        assert found[name].to_pylist() == backwards[name].to_pylist()
