"""Recorded sessions in captures whose times go back, and of taps that see one direction each: gold stays right."""

from collections import Counter
from functools import cache

import pytest

from capture.rewritten import by_direction, closest, halves_swapped, set_back
from pcapgen.record import SAMPLE
from schemas.bronze import CAPTURE_FILES
from schemas.findings import FINDINGS
from schemas.sessions import SENDINGS, SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS
from transfers.in_memory import transfers_of

CAPTURE = (SAMPLE.parent / "transfers" / "05-resends.pcap").read_bytes()
DURATIONS = ("session_ack_ms", "store_ms", "order_ack_ms")


@cache
def right():
    return transfers_of([CAPTURE])


def counted(lake, table, *columns):
    rows = map(repr, lake.rows(table).select(columns).to_pylist())
    return Counter(row.replace("['clock_step']", "[]").replace(", 'clock_step'", "") for row in rows)


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
        (0.2, -3_000_000),
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
