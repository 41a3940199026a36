"""Remainders that are merged: all that wait for something, and ended ones with another one near in time."""

from hypothesis import given
from hypothesis import strategies as st

from udfs.capture.merge_candidates import merge_candidates
from udfs.columns.absent import NO_TIME
from udfs.tcp.time_limits import TimeLimits

LIMITS = TimeLimits(max_clock_skew_s=100)
REACH_NS = 100 * 10**9


@st.composite
def remainders(draw):
    first = draw(st.integers(0, 1000)) * 10**9
    timed = draw(st.integers(0, 9)) > 0
    return {
        "capture_id": draw(st.sampled_from("abc")), "waits_for": draw(st.sampled_from([[], [], ["end"]])),
        "client_address": "10.0.0.9", "client_port": draw(st.sampled_from([1, 2])), "server_address": "10.0.0.1",
        "server_port": 1801, "first_time_ns": first if timed else NO_TIME,
        "last_time_ns": first + draw(st.integers(0, 300)) * 10**9,
    }  # fmt: skip


def are_near(one, two):
    if NO_TIME in (one["first_time_ns"], two["first_time_ns"]):
        return True
    apart = max(one["first_time_ns"] - two["last_time_ns"], two["first_time_ns"] - one["last_time_ns"])
    return apart <= REACH_NS


@given(st.lists(remainders(), max_size=12), st.lists(remainders(), max_size=2))
def test_the_rule_pair_by_pair(pending, removed):
    found = merge_candidates(pending, LIMITS, removed)
    rows = [*pending, *removed]
    for place, row in enumerate(pending):
        others = [each for number, each in enumerate(rows) if number != place
                  and each["client_port"] == row["client_port"]]  # fmt: skip
        expected = bool(row["waits_for"]) or any(
            are_near(row, each)
            and (each["waits_for"] or each["capture_id"] != row["capture_id"] or any(each is gone for gone in removed))
            for each in others
        )
        assert any(place in chosen for chosen in found.values()) == expected
    assert sum(map(len, found.values())) == len({place for chosen in found.values() for place in chosen})


def test_very_many_connections_of_one_capture_on_the_same_ports():
    row = {
        "capture_id": "a", "waits_for": [], "client_address": "10.0.0.9", "client_port": 1,
        "server_address": "10.0.0.1", "server_port": 1801, "first_time_ns": 0, "last_time_ns": 10**9,
    }  # fmt: skip
    assert merge_candidates([dict(row) for _ in range(200_000)], LIMITS) == {"10.0.0.1|1801 10.0.0.9|1": []}
