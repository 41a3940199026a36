"""Recorded sessions in captures whose times go back, and of taps that see one direction each: gold stays right."""

import gzip
from collections import Counter
from functools import cache

import pytest

from capture.rewritten import (
    by_direction,
    closest,
    halves_swapped,
    second_tap,
    set_back,
    set_forward,
    without_timestamps,
)
from example_counts import one_in
from pcapgen.record import SAMPLE
from schemas.bronze import CAPTURE_FILES
from schemas.findings import FINDINGS
from schemas.sessions import SENDINGS, SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from transfers.in_memory import transfers_of

CAPTURE = (SAMPLE.parent / "transfers" / "05-resends.pcap").read_bytes()
DURATIONS = ("session_ack_ms", "store_ms", "order_ack_ms")


@cache
def right():
    return transfers_of([CAPTURE])


def counted(lake, table, *columns):
    rows = map(repr, lake.rows(table).select(columns).to_pylist())
    return Counter(row.replace("['clock_step']", "[]").replace(", 'clock_step'", "") for row in rows)


STALL = gzip.decompress((SAMPLE.parent / "transfers" / "08-stall.pcap.gz").read_bytes())
ACKS = (SAMPLE.parent / "transfers" / "04-administration-acks.pcap").read_bytes()


@pytest.mark.parametrize("by_us", one_in(2, [10_800_000_000, 60_000_000]))
@pytest.mark.parametrize("part", [0.15, 0.35, 0.75])
def test_what_a_clock_left_out_is_no_stall_and_no_silence(part, by_us):
    stalls = {}
    for by in (0, by_us):
        lake = transfers_of([set_forward(STALL, closest(STALL, part, part + 0.15), by)])
        rows = lake.rows(TRANSFER_SEQUENCES).sort_by("sequence_key").to_pylist()
        stalls[by] = [(row["condition"], len(row["stalls"] or ()), row["longest_stall_s"]) for row in rows]
    assert [each[:2] for each in stalls[by_us]] == [each[:2] for each in stalls[0]]
    assert [each[2] for each in stalls[by_us]] == pytest.approx([each[2] for each in stalls[0]], abs=0.1)
    silent = [
        transfers_of([set_forward(ACKS, closest(ACKS, part, part + 0.2), by)]).rows(SESSIONS)["ended"].to_pylist()
        for by in (0, by_us)
    ]
    assert sorted(map(str, silent[0])) == sorted(map(str, silent[1]))


@pytest.mark.parametrize("by_us", [300_000_000, -10_800_000_000])
def test_a_message_expires_for_certain_or_lacks_the_clock(by_us):
    lake = transfers_of([set_back(CAPTURE, closest(CAPTURE, 0.15, 0.3), by_us)])
    found = {row["message_id"]: row for row in lake.rows(MESSAGE_TRANSFERS).to_pylist()}
    rows = right().rows(MESSAGE_TRANSFERS).to_pylist()
    for row in rows:
        assert (
            found[row["message_id"]]["outcome"] == row["outcome"] or "clock_step" in found[row["message_id"]]["missing"]
        )
    (expired,) = [found[row["message_id"]] for row in rows if row["outcome"] == "expired"]
    assert expired["outcome"] == ("unacknowledged" if by_us > 0 else "expired")  # set back, the capture ends before


def check_conclusions(lake):
    for table, columns in (
        (MESSAGE_TRANSFERS, ("message_id", "outcome", "sendings")),
        (SENDINGS, ("session_number", "recoverable_number", "surely_acknowledged", "acknowledgement_may_be_missing")),
        (SESSIONS, ("client_port", "outcome", "ended", "missing", "client_window_full_ms", "server_window_full_ms")),
        (FINDINGS, ("rule_id", "actual")),
    ):
        assert counted(lake, table, *columns) == counted(right(), table, *columns), str(table)


def durations(lake):
    rows = lake.rows(MESSAGE_TRANSFERS).select(["message_id", "missing", *DURATIONS]).to_pylist()
    return {row.pop("message_id"): (row.pop("missing"), row) for row in rows}


@pytest.mark.parametrize(
    ("part", "by_us"),
    [
        (0.3, 20_000_000),
        (0.5, 300_000_000),
        (0.7, 500_000),
        (0.2, -33_000_000),
        (0.4, -60_000_000),
        (0.5, -10_800_000_000),
    ],
)
def test_a_clock_that_was_set_changes_no_conclusion(part, by_us):
    lake = transfers_of([set_back(CAPTURE, closest(CAPTURE, part, part + 0.2), by_us)])
    assert lake.rows(CAPTURE_FILES)["times_go_back"][0].as_py()[0]["back_us"] == pytest.approx(by_us, abs=500_000)
    check_conclusions(lake)
    expected = durations(right())
    for name, (missing, found) in durations(lake).items():
        for duration, value in found.items():
            assert value is None or value == pytest.approx(expected[name][1][duration]), name
            assert value == expected[name][1][duration] or "clock_step" in missing


def test_records_out_of_order_are_read_in_the_order_of_their_times():
    lake = transfers_of([halves_swapped(CAPTURE)])
    check_conclusions(lake)
    assert durations(lake) == durations(right())


@pytest.mark.parametrize("ahead_us", [-2_000_000, 60_000_000])
def test_taps_of_one_direction_each_whose_clocks_are_apart(ahead_us):
    captures = by_direction(CAPTURE, "10.77.105.2", ahead_us)
    lake = transfers_of([*captures])
    check_conclusions(lake)
    for _, found in durations(lake).values():
        assert found["session_ack_ms"] is None
        assert found["store_ms"] is None
    assert lake.rows(SESSIONS)["overlapping_captures"].null_count == 0


@pytest.mark.parametrize("part", one_in(2, [0.3, 0.6]))
@pytest.mark.parametrize("offset_us", [1500, -1500, -5_001_500])
def test_a_clock_that_was_set_by_little_as_another_tap_shows_changes_no_conclusion(part, offset_us):
    capture = without_timestamps(CAPTURE)
    other = set_forward(second_tap(capture, offset_us), closest(capture, part, part + 0.2), 5_000_000)
    for captures in ([capture, other], [other, capture]):
        check_conclusions(transfers_of(captures))
