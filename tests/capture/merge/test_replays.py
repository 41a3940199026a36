"""Equal bytes at times that differ by more than clocks do: the conversation was replayed, and is another one."""

from __future__ import annotations

from itertools import permutations

import pytest

from capture.in_memory import read_captures
from capture.merge.comparing import OF_THE_RUN, PLACES, differences, equal
from capture.merge.cutting import cut
from capture.merge.test_sent_again import many
from capture.merge.test_two_captures import shifted
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import rpc
from pcapgen.model import Dialogue, make_stub
from udfs.capture.capture_reader import read_capture
from udfs.tcp.time_limits import TimeLimits

SECOND = 1_000_000_000


def conversation() -> list[c.Record]:
    dialogue, parts = many()
    return t.records(dialogue.flow, parts)


def two_alone(one: bytes, two: bytes) -> list:
    """Return the connections and calls of two captures that have nothing to do with each other."""
    apart = [read_capture(each) for each in (one, two)]
    return [[row for tables in apart for row in tables[name].to_pylist()] for name in ("connections", "rpc_calls")]


@pytest.mark.parametrize("begin", [0, 12])  # with the SYN, and from the middle
@pytest.mark.parametrize("later", [301, 3600])
@pytest.mark.parametrize("files", [1, 3])
def test_a_replay_is_another_connection(begin, later, files):
    records = conversation()[begin:]
    one, two = (c.pcap(each).data for each in (records, shifted(records, later * SECOND)))
    places = [len(records) * index // files for index in range(1, files)]
    pieces = [*cut(one, places), *cut(two, places)]
    orders = list(permutations(pieces)) if files == 1 else [pieces, pieces[::-1], pieces[::2] + pieces[1::2]]
    connections, calls = two_alone(one, two)
    for order in orders:
        for runs in ([order], [[piece] for piece in order], [order[:2], order[2:]]):
            found = read_captures([run for run in runs if run])
            assert found["connections"].num_rows == len(connections) == 2
            assert found["connections"]["retransmitted_bytes"].to_pylist() == [0, 0]
            assert sorted(found["rpc_calls"]["call_key"].to_pylist()) == sorted(row["call_key"] for row in calls)
            assert set(found["rpc_calls"]["observations"].to_pylist()) == {1}
            assert set(found["rpc_calls"]["clocks"].to_pylist()) == {None}


def test_a_replay_while_the_conversation_goes_on():
    """The captures last an hour, and the clocks are ten minutes apart: no time shows where one ends."""
    records = conversation()
    step = 3600 * SECOND // len(records)
    slow = [c.Record(record.time_ns + index * step, record.frame) for index, record in enumerate(records)]
    pieces = [c.pcap(each).data for each in (slow, shifted(slow, 600 * SECOND))]
    for runs in ([pieces], [pieces[::-1]], [[piece] for piece in pieces]):
        found = read_captures(runs)
        assert found["connections"].num_rows == 2
        assert set(found["rpc_calls"]["observations"].to_pylist()) == {1}


@pytest.mark.parametrize("later", [1, 299])
@pytest.mark.parametrize("begin", [0, 12])
def test_clocks_may_differ_by_minutes(begin, later):
    records = conversation()[begin:]
    pieces = [c.pcap(each).data for each in (records, shifted(records, later * SECOND))]
    found = read_captures([pieces])
    equal(read_captures([[piece] for piece in pieces[::-1]]), found)
    assert found["connections"].num_rows == 1
    assert set(found["rpc_calls"]["observations"].to_pylist()) == {2}
    clocks = found["rpc_calls"]["clocks"].to_pylist()
    assert {tap for row in clocks for tap in (row["request_tap"], row["response_tap"])} - {None} == {0}


def test_the_largest_difference_is_a_setting():
    records = conversation()
    pieces = [c.pcap(each).data for each in (records, shifted(records, 10 * SECOND))]
    assert read_captures([pieces])["connections"].num_rows == 1
    assert read_captures([pieces], TimeLimits(max_clock_skew_s=9))["connections"].num_rows == 2


@pytest.mark.parametrize("begin", [0, 12])
def test_equal_numbers_with_other_bytes_are_another_connection(begin):
    """As of a generator of load that always begins with the same number."""
    captures = []
    for seed in (0, 100):
        dialogue = Dialogue()
        dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
        for number in range(6):
            dialogue.call(7, make_stub(seed + number, 56), make_stub(seed + 8, 300))
        dialogue.start(7, make_stub(seed, 56))
        records = t.records(dialogue.flow, t.segments(dialogue.script, start_ns=t.START_NS + seed * SECOND // 2))
        captures.append(c.pcap(records[begin:]).data)
    connections, calls = two_alone(*captures)
    for runs in ([captures], [captures[::-1]], [[each] for each in captures]):
        found = read_captures(runs)
        assert found["connections"].num_rows == len(connections) == 2
        assert found["connections"]["conflicting_bytes"].to_pylist() == [0, 0]
        assert sorted(found["rpc_calls"]["call_key"].to_pylist()) == sorted(row["call_key"] for row in calls)


def test_a_replay_in_the_same_file():
    """A SYN much later than the first is not sent again: it opens a connection with the same numbers."""
    records = conversation()
    later = shifted(records, 400 * SECOND)
    found = read_capture(c.pcap([*records, *later]).data)
    connections, calls = two_alone(c.pcap(records).data, c.pcap(later).data)
    assert found["connections"].num_rows == len(connections) == 2
    assert sorted(found["rpc_calls"]["call_key"].to_pylist()) == sorted(row["call_key"] for row in calls)


@pytest.mark.parametrize("files", [2, 5])
def test_the_files_of_a_long_conversation_are_no_replays(files):
    """Minutes lie between any two packets of one connection, and its files follow one another."""
    records = [
        c.Record(record.time_ns + index * 400 * SECOND, record.frame) for index, record in enumerate(conversation())
    ]
    whole = c.pcap(records).data
    pieces = cut(whole, [len(records) * index // files for index in range(1, files)])
    found = read_captures([[piece] for piece in pieces])
    left_out = PLACES | OF_THE_RUN
    lines = differences(found, read_capture(whole), left_out=left_out, not_compared={"capture_files", "pending"})
    assert not lines, "\n".join(lines)
