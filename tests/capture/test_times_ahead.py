"""Packets that say that they are later than the clock of the machine that reads them: their times are not used."""

from __future__ import annotations

import struct
from collections.abc import Collection

import pytest

from capture.in_memory import read_captures
from capture.merge.cutting import cut, layout, plain
from pcapgen.reading import to_rows
from pcapgen.record import sample_captures
from udfs.capture.capture_reader import CaptureReadRequest, read_capture
from udfs.rows import RowDict

SAMPLE = {path.name[:2]: plain(path) for path in sample_captures() if path.suffix != ".pcapng"}
LATEST_NS = 1_800_000_000_000_000_000  # 2027-01-15
FAR_S = 2_500_000_000  # from 2026 to 2106
OTHER_COLUMNS = frozenset(
    {"call_key", "connection_id", "capture_id", "response_capture_id", "event_date", "observations", "sightings"}
)  # those that depend on times, or on what is merged


def ahead(capture: bytes, packets: Collection[int]) -> bytes:
    """Return a pcap capture with some of its packets, by index, 80 years later."""
    units = [unit.data for unit in layout(capture).units]
    for number in packets:
        (seconds,) = struct.unpack_from("<I", units[number])
        units[number] = struct.pack("<I", min(seconds + FAR_S, 0xFFFFFFFF)) + units[number][4:]
    return capture[:24] + b"".join(units)


def count(capture: bytes) -> int:
    return len(layout(capture).units)


def split(row: RowDict) -> tuple[RowDict, RowDict]:
    """Return what a call is, and its times."""
    times = {name: row[name] for name in row if name.endswith("_at")}
    return {name: row[name] for name in row if name not in times and name not in OTHER_COLUMNS}, times


def str_of_facts(both: tuple[RowDict, RowDict]) -> str:
    return str(both[0])


@pytest.mark.parametrize("name", ["07", "10"])
@pytest.mark.parametrize("step", [1, 2, 7])
def test_a_capture_is_read_as_ever_without_the_times_that_are_ahead(name, step):
    capture = SAMPLE[name]
    packets = range(step // 2, count(capture), step)
    found = read_capture(ahead(capture, packets), request=CaptureReadRequest(latest_time_ns=LATEST_NS))
    was = read_capture(capture)
    calls, expected = (sorted(map(split, to_rows(each["rpc_calls"])), key=str_of_facts) for each in (found, was))
    assert [facts for facts, _ in calls] == [facts for facts, _ in expected]
    for (_, times), (_, right) in zip(calls, expected, strict=True):
        assert all(at is None or at == right[which] for which, at in times.items())
    (file,), (whole,) = to_rows(found["capture_files"]), to_rows(was["capture_files"])
    assert (file["packets_ahead"], whole["packets_ahead"]) == (len(packets), 0)
    if step == 1:
        assert {file["first_packet_at"], file["last_packet_at"]} == {None}
        assert not any(at for _, times in calls for at in times.values())
    else:  # what follows from the newest packet, such as what is waited for, follows from one that is not ahead
        assert whole["first_packet_at"] <= file["first_packet_at"] <= file["last_packet_at"] <= whole["last_packet_at"]
    for row, other in zip(*(to_rows(each["connections"]) for each in (found, was)), strict=True):
        assert row["round_trip_ms"] in (None, other["round_trip_ms"])
        assert (row["missing_bytes"], row["closed_by"]) == (other["missing_bytes"], other["closed_by"])


@pytest.mark.parametrize("late", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_halves_are_joined_whichever_of_their_captures_is_ahead(late):
    capture = SAMPLE["07"]
    places = [count(capture) // 3, 2 * count(capture) // 3]
    pieces = cut(capture, places)
    for number in late:
        pieces[number] = ahead(pieces[number], range(count(pieces[number])))

    def facts(calls: list[RowDict]) -> list[str]:
        positions = ("request_packet", "response_packet", "byte_offset")
        kept = (split(row)[0] for row in calls)
        return sorted(str({name: row[name] for name in row if name not in positions}) for row in kept)

    expected = facts(to_rows(read_capture(capture)["rpc_calls"]))
    for runs in ([[piece] for piece in pieces], [pieces[::-1]]):
        found = read_captures(runs, latest_time_ns=LATEST_NS)
        assert facts(to_rows(found["rpc_calls"])) == expected
