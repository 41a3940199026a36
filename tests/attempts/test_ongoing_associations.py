"""Associations go on while they have the connections they had, and perhaps new ones, and nothing else is otherwise."""

from dataclasses import replace

import pytest

from pipeline.attempts.calls.associations import RpcConnection
from pipeline.attempts.ongoing_associations import find_ongoing

ONE = RpcConnection("one", "10.0.0.2", 0, 50, association_group_id=7)
TWO = RpcConnection("two", "10.0.0.2", 10, 50, association_group_id=7)
OTHER = RpcConnection("other", "10.0.0.3", 0, 50, association_group_id=7)  # of another client
ALL = {"one": "one", "two": "one", "other": "other"}


def test_more_packets_and_another_connection_leave_it_as_it_was():
    new = RpcConnection("new", "10.0.0.2", 40, 50, association_group_id=7)
    before = {"one": replace(ONE, last_packet_at=20), "new": None}
    assert find_ongoing([ONE, TWO, OTHER, new], before).associations == ALL | {"new": "one"}


def test_a_connection_that_ends_while_another_stays_wakes_what_is_unanswered_on_it():
    on = find_ongoing([replace(ONE, closed_at=45), TWO, OTHER], {"one": ONE})
    assert on.associations == ALL
    assert on.newly_closed_connections == {"one"}
    assert find_ongoing([ONE, TWO, OTHER], {"two": replace(TWO, server_bytes=0)}).newly_closed_connections == {"two"}


@pytest.mark.parametrize(
    ("now", "before"),
    [
        pytest.param([replace(ONE, closed_at=45), replace(TWO, closed_at=48)], {"two": TWO}, id="it ended"),
        pytest.param([ONE, TWO], {"one": replace(ONE, missing_bytes=9)}, id="bytes are no longer missing"),
        pytest.param([ONE, replace(TWO, missing_bytes=9)], {"two": TWO}, id="bytes are missing"),
        pytest.param([replace(ONE, missing_bytes=9), replace(TWO, missing_bytes=1)], {"two": TWO}, id="here too"),
        pytest.param([ONE, TWO], {"two": replace(TWO, association_group_id=8)}, id="one joined it"),
        pytest.param([replace(ONE, association_joined=True), TWO], {"one": ONE}, id="it turns out to be older"),
        pytest.param([ONE], {"two": TWO}, id="one of it is gone"),
        pytest.param([ONE, TWO], {"one": None}, id="one is new and came first"),
        pytest.param([ONE, TWO], {"one": replace(ONE, first_packet_at=5)}, id="it began earlier"),
        pytest.param([ONE, replace(TWO, syn_seen=False)], {"two": None}, id="the new one's beginning was not seen"),
        pytest.param([ONE, TWO], {"one": None, "two": None}, id="it is new"),
    ],
)
def test_all_of_it_is_touched_where(now, before):
    assert find_ongoing([*now, OTHER], before).associations == {"other": "other"}
