"""Recorded remote reads in captures whose times go back, and of taps that see one direction each: gold stays right."""

from collections import Counter
from functools import cache

import pyarrow.compute as pc
import pytest

from attempts.telling import sequences_here
from attempts.test_sample import gold_of
from attempts.test_taps import finding_counts, outcomes
from capture.in_memory import read_captures
from capture.merge.cutting import cut
from capture.rewritten import (
    by_direction,
    capture_of,
    closest,
    halves_swapped,
    in_queues,
    records_of,
    second_tap,
    set_back,
    set_forward,
    without_timestamps,
)
from pcapgen.record import SAMPLE
from udfs.capture.capture_reader import VOID, ReadOptions, read_capture, read_capture_batches
from udfs.capture.record_order import CLOCK_SET, OUT_OF_ORDER
from udfs.files.file_source import FileSource

REMOTE_READ, QM2QM = "01-remoteread-ndr", "03-qm2qm-dependent-client"
SERVER = "10.77.0.1"
PLACES = {"capture_id", "request_packet", "response_capture_id", "response_packet", "byte_offset"}


@cache
def sample(name=REMOTE_READ):
    capture = (SAMPLE / f"{name}.pcap").read_bytes()
    return capture, read_capture(capture)


@cache
def conclusions(name):
    _, right = sample(name)
    return finding_counts(right), sorted(map(whole, outcomes(right))), durations(right)


def without(table, columns):
    return table.select([name for name in table.column_names if name not in columns]).to_pylist()


def time_steps(tables):
    return tables["capture_files"]["times_go_back"][0].as_py()


def whole(outcome):
    """An outcome without what is said of its durations."""
    return outcome.replace("'clock_step', ", "").replace("['clock_step']", "[]").replace("'partial'", "'complete'")


def durations(tables):
    attempts = gold_of(tables)[0].to_pylist()
    return [(row["wait_ms"], row["hold_ms"], row["missing"]) for row in attempts]


@pytest.mark.parametrize(
    ("name", "part", "by_us"),
    [
        (REMOTE_READ, 0.4, 200_000),
        (REMOTE_READ, 0.7, 3_600_000_000),
        (QM2QM, 0.5, 200_000),
        (REMOTE_READ, 0.2, -31_000_000),
        (REMOTE_READ, 0.4, -60_000_000),
        (REMOTE_READ, 0.7, -10_800_000_000),
        (QM2QM, 0.3, -60_000_000),
        (QM2QM, 0.5, -10_800_000_000),
    ],
)
def test_a_clock_that_was_set_changes_no_conclusion(name, part, by_us):
    capture, _ = sample(name)
    findings, right, times = conclusions(name)
    place = closest(capture, part, part + 0.2)
    found = read_captures([[set_back(capture, place, by_us)]])
    (step,) = time_steps(found)
    assert (step["packet"], step["cause"]) == (place + 1, CLOCK_SET)
    assert step["back_us"] == pytest.approx(by_us, abs=5000 if by_us > 0 else 500_000)
    assert finding_counts(found) == findings
    assert sorted(map(whole, outcomes(found))) == right
    for (wait, hold, missing), (right_wait, right_hold, _) in zip(durations(found), times, strict=True):
        assert wait in (right_wait, None)
        assert hold is None or hold == pytest.approx(right_hold)
        assert (wait, hold) == (right_wait, right_hold) or "clock_step" in missing


def test_a_call_across_the_step_has_two_clocks_and_no_duration():
    capture, _ = sample()
    calls = read_capture(capture)["rpc_calls"].to_pylist()
    place = calls[len(calls) // 2]["response_packet"] - 1  # index of the response's packet
    found = read_capture(set_back(capture, place, 250_000))["rpc_calls"].to_pylist()
    (call,) = [row for row in found if row["response_packet"] == place + 1 and row["request_packet"] <= place][:1]
    clocks = call["clocks"]
    assert clocks["request_tap"] != clocks["response_tap"]
    asked = call["request_at"].timestamp() * 1e6 - clocks["request_ahead_us"]
    answered = call["response_at"].timestamp() * 1e6 - clocks["response_ahead_us"]
    assert answered >= asked - 1
    assert call["response_at"] < call["request_at"]  # the times stay those of the packets


def test_records_out_of_order_are_read_in_the_order_of_their_times():
    capture, right = sample(QM2QM)
    for other in (halves_swapped(capture), in_queues(capture, SERVER, 50_000)):
        found = read_capture(other)
        assert {step["cause"] for step in time_steps(found)} == {OUT_OF_ORDER}
        for name in ("rpc_calls", "connections", "rpc_binds", "quarantine"):
            places = PLACES | {"packet_number", "bind_key", "call_key", "connection_id", "quarantine_key"}
            assert without(found[name], places) == without(right[name], places)


def test_blocks_do_not_matter():
    capture, _ = sample()
    for other in (halves_swapped(capture), set_back(capture, closest(capture, 0.4, 0.6), 10**6)):
        at_once, blocks = read_capture(other), read_capture(other, block_bytes=8000)
        for name, order in (("rpc_calls", "call_key"), ("connections", "connection_id"), ("capture_files", "path")):
            assert blocks[name].sort_by(order).equals(at_once[name].sort_by(order))
        kinds = [
            kind for kind, _ in read_capture_batches(FileSource.from_bytes(other, "x"), ReadOptions(block_bytes=2000))
        ]
        assert VOID in kinds
        first = ReadOptions(block_bytes=8000, order_first=True)
        kinds = [kind for kind, _ in read_capture_batches(FileSource.from_bytes(other, "x"), first)]
        assert kinds[0] == VOID
        assert VOID not in kinds[1:]


def test_jitter_is_no_step():
    capture, right = sample()
    records = records_of(capture)
    jittered = [(at - 4000 * (index % 7 == 3), rest) for index, (at, rest) in enumerate(records)]
    found = read_capture(capture_of(capture, jittered))
    assert time_steps(found) is None
    assert [row["clocks"] for row in found["rpc_calls"].to_pylist()] == [None] * right["rpc_calls"].num_rows


def test_where_no_connection_crosses_times_are_believed():
    capture, _ = sample()
    later = [(at + 10**9, rest) for at, rest in records_of(capture)]
    twice = capture_of(capture, later + records_of(capture))  # the same connections, long before
    assert [step["cause"] for step in time_steps(read_capture(twice))] == [OUT_OF_ORDER]


def test_the_order_of_files_does_not_matter():
    capture, _ = sample()
    stepped = set_back(capture, closest(capture, 0.6, 0.8), 200_000)
    files = cut(stepped, [len(records_of(capture)) // 3])
    together = read_captures([files])
    for runs in ([[files[0]], [files[1]]], [[files[1]], [files[0]]]):
        found = read_captures(runs)
        columns = ["call_id", "request_at", "response_at", "clocks", "outcome"]
        assert sorted(map(repr, found["rpc_calls"].select(columns).to_pylist())) == sorted(
            map(repr, together["rpc_calls"].select(columns).to_pylist())
        )
    assert any(row["clocks"] is not None for row in together["rpc_calls"].to_pylist())


@pytest.mark.parametrize(
    ("name", "ahead_us"), [(REMOTE_READ, -1_900_000), (REMOTE_READ, 1_900_000), (QM2QM, -1_900_000), (QM2QM, -300_000)]
)
def test_taps_of_one_direction_each_whose_clocks_are_apart(name, ahead_us):
    capture, right = sample(name)
    findings, attempts, _ = conclusions(name)
    one, other = by_direction(capture, SERVER, ahead_us)
    found = read_captures([[one, other]])
    assert finding_counts(found) == findings
    assert sorted(outcomes(found)) == attempts
    assert all(wait is None for wait, _, _ in durations(found))
    for run in ([[one], [other]], [[other], [one]]):
        again = read_captures(run)["rpc_calls"]
        assert sorted(map(repr, again.to_pylist())) == sorted(map(repr, found["rpc_calls"].to_pylist()))
    assert pc.count_distinct(found["rpc_calls"]["connection_id"]).as_py() == right["connections"].num_rows


def fates(captures):
    """What became of messages: what rows of gold.ack_sequences say, without what they lack."""
    found, operations, _, _ = gold_of(read_captures([captures]))
    names = ("queue", "lookup_id", "message_key", "fate", "loss_risk", "outcomes", "redelivered", "moved_to")
    return Counter(repr([row[name] for name in names]) for row in sequences_here(found, operations))


@pytest.mark.parametrize("name", [REMOTE_READ, QM2QM])
def test_what_became_of_messages_is_as_by_one_clock(name):
    """One of them has an End that failed behind one that was done: by two clocks it seems to come before it."""
    capture, _ = sample(name)
    expected = fates([capture])
    for ahead_us in (-1_900_000, 1_900_000):
        assert fates([*by_direction(capture, SERVER, ahead_us)]) == expected
    for part, by_us in ((0.4, 200_000), (0.5, 60_000_000), (0.6, -3_600_000_000)):
        assert fates([set_back(capture, closest(capture, part, part + 0.15), by_us)]) == expected


def test_a_wait_over_a_file_in_which_the_clock_was_set_is_not_shown():
    """A ring of three files; the clock is set in the second one. No duration from one file to another is wrong."""
    capture, right = sample(QM2QM)
    calls = [call for call in right["rpc_calls"].to_pylist() if call["response_packet"] is not None]
    longest = max(calls, key=lambda call: call["response_packet"] - call["request_packet"])
    bounds = [longest["request_packet"], longest["response_packet"] - 1]  # behind the request, before the response
    for by_us in (-60_000_000, 300_000_000):
        found = read_captures([cut(set_back(capture, sum(bounds) // 2, by_us), bounds)])
        assert [len(steps.as_py() or ()) for steps in found["capture_files"]["times_go_back"]] == [0, 1, 0]
        waits = [(round(wait, 3) if wait is not None else None, missing) for wait, _, missing in durations(found)]
        shown = Counter(wait for wait, _ in waits)
        lacking = Counter(round(wait, 3) for wait, *_ in durations(right) if wait is not None) - shown
        assert lacking.total() == 1  # of the call that lies over the file
        assert shown.keys() - {None} <= {round(wait, 3) for wait, *_ in durations(right) if wait is not None}
        assert any(wait is None and "clock_step" in missing for wait, missing in waits)


def in_a_call(capture, calls):
    """The index of a record behind the request of a call and not behind its response; calls go on before and behind."""
    place = calls[len(calls) * 2 // 3]["response_packet"] - 1
    assert calls[len(calls) * 2 // 3]["request_packet"] <= place
    return place


def check_durations(found, expected):
    """Check that durations are as expected, or null where a row says that the clock was set."""
    for (wait, hold, missing), (right_wait, right_hold, _) in zip(durations(found), durations(expected), strict=True):
        for value, right in ((wait, right_wait), (hold, right_hold)):
            assert value is None or value == pytest.approx(right)
            assert (value is None) == (right is None) or "clock_step" in missing


@pytest.mark.parametrize(("by_us", "silence_us"), [(5 * 10**6, 0), (60 * 10**6, 0), (-5 * 10**6, 30 * 10**6)])
@pytest.mark.parametrize("name", [pytest.param(REMOTE_READ, marks=pytest.mark.long), QM2QM])
def test_a_clock_that_was_set_as_another_tap_shows(name, by_us, silence_us):
    """Of the taps, that whose clock was set is shown wherever it is earlier; without timestamps nothing else tells."""
    capture, alone = sample(name)
    place = in_a_call(capture, alone["rpc_calls"].to_pylist())
    capture = without_timestamps(set_forward(capture, place, silence_us))
    for offset_us in (1500, -1500, -max(by_us, 0) - 1500):
        right = read_captures([[capture, second_tap(capture, offset_us)]])
        other = set_forward(second_tap(capture, offset_us), place, by_us)
        found = [read_captures(runs) for runs in ([[capture, other]], [[other, capture]], [[other], [capture]])]
        assert [steps.as_py() for steps in found[0]["capture_files"]["times_go_back"]] == [None, None]
        assert not Counter(finding_counts(found[0])) - Counter(finding_counts(right))
        assert list(map(whole, outcomes(found[0]))) == list(map(whole, outcomes(right)))
        check_durations(found[0], right)
        (across,) = across_a_step(found[0])
        assert across["clocks"]["request_tap"] % 1000 == across["clocks"]["response_tap"] % 1000
        for again in found[1:]:
            assert sorted(map(repr, again["rpc_calls"].to_pylist())) == sorted(
                map(repr, found[0]["rpc_calls"].to_pylist())
            )


def across_a_step(tables):
    """The calls with halves on two clocks."""
    rows = [row for row in tables["rpc_calls"].to_pylist() if row["response_at"] is not None and row["clocks"]]
    return [row for row in rows if row["clocks"]["request_tap"] != row["clocks"]["response_tap"]]


def test_a_call_across_a_step_of_more_than_the_clocks_may_differ_is_one_row():
    capture, alone = sample()
    place = in_a_call(capture, alone["rpc_calls"].to_pylist())
    capture = without_timestamps(capture)
    for by_us in (10_800_000_000, -10_800_000_000):
        other = set_forward(second_tap(capture), place, by_us)
        found = read_captures([[capture, other]])
        findings, right, _ = conclusions(REMOTE_READ)
        assert found["rpc_calls"].num_rows == alone["rpc_calls"].num_rows
        assert finding_counts(found) == findings
        assert sorted(map(whole, outcomes(found))) == right
        check_durations(found, alone)


@pytest.mark.parametrize("name", [REMOTE_READ, QM2QM])
def test_drift_and_jitter_of_two_taps_are_no_step(name):
    capture, _ = sample(name)
    records = records_of(capture)
    hours = [(records[0][0] + (at - records[0][0]) * 30_000, rest) for at, rest in records]  # 9 hours: a drift of 3 s
    capture = without_timestamps(capture_of(capture, hours))
    exact, found = (
        read_captures([[capture, second_tap(capture, -(10**7), drift, jitter)]])
        for drift, jitter in ((0, 0), (1e-4, 5000))
    )
    assert not across_a_step(found)
    assert {row["clocks"]["request_tap"] for row in found["rpc_calls"].to_pylist()} <= {0, 1, None}
    empty = [[value is None for value in row[:2]] + [row[2]] for row in durations(exact)]
    assert [[value is None for value in row[:2]] + [row[2]] for row in durations(found)] == empty


def test_where_only_one_tap_saw_the_calls_around_a_step_none_has_a_duration():
    """The other tap lost what lies around the step: where the clock was set between those calls is not known."""
    capture, alone = sample()
    place = in_a_call(capture, alone["rpc_calls"].to_pylist())
    capture = without_timestamps(capture)
    hole = range(place - 7, place + 7)
    lossy = capture_of(capture, [each for index, each in enumerate(records_of(capture)) if index not in hole])
    found = read_captures([[set_forward(second_tap(capture, -(10**7)), place, 5_000_000), lossy]])
    check_durations(found, alone)
    only = [
        row for row in found["rpc_calls"].to_pylist()
        if row["request_packet"] - 1 in hole and row["response_packet"] - 1 in hole
    ]  # fmt: skip
    assert len(only) > 2
    assert all(row["clocks"]["request_tap"] != row["clocks"]["response_tap"] for row in only)


def of_port(capture, port):
    """The records of a capture, in IPv4 without options in Ethernet, that go from or to a TCP port."""
    number, begin = port.to_bytes(2, "big"), 8 + 14 + 20
    records = [each for each in records_of(capture) if number in (each[1][begin:][:2], each[1][begin + 2 :][:2])]
    return capture_of(capture, records)


@cache
def one_connection_in_two_taps(by_us):
    """Two captures, the second one of one connection alone, whose clock was set while other connections had calls."""
    capture, alone = sample(QM2QM)
    calls = alone["rpc_calls"].to_pylist()
    answered = [call for call in calls if call["response_packet"] is not None]
    ports = Counter(call["client_port"] for call in answered)
    (port, _), *_ = ports.most_common()
    others = [call for call in answered if call["client_port"] != port]
    ours = sorted(call["request_packet"] for call in answered if call["client_port"] == port)
    inside = [call for call in others if ours[3] < call["request_packet"] and call["response_packet"] < ours[-4]]
    place = max(inside, key=lambda call: call["response_packet"] - call["request_packet"])["response_packet"] - 1
    capture = without_timestamps(capture)
    return capture, of_port(set_forward(second_tap(capture), place, by_us), port), port, place


def test_a_step_that_one_connection_shows_counts_for_all_of_a_capture():
    capture, other, port, place = one_connection_in_two_taps(120_000_000)
    found = [read_captures(runs) for runs in ([[capture, other]], [[other, capture]], [[other], [capture]])]
    (step,) = found[0]["capture_files"]["tap_steps"][0].as_py()
    assert step["last_packet"] <= place < step["first_packet"]
    crossing = [
        row for row in found[0]["rpc_calls"].to_pylist()
        if row["client_port"] != port and row["response_packet"] is not None
        and row["request_packet"] < step["first_packet"] and row["response_packet"] > step["last_packet"]
    ]  # fmt: skip
    assert crossing
    assert all(row["clocks"]["request_tap"] != row["clocks"]["response_tap"] for row in crossing)
    alone = conclusions(QM2QM)
    assert finding_counts(found[0]) == alone[0]
    assert sorted(map(whole, outcomes(found[0]))) == alone[1]
    check_durations(found[0], sample(QM2QM)[1])
    for again in found[1:]:
        assert sorted(map(repr, again["rpc_calls"].to_pylist())) == sorted(map(repr, found[0]["rpc_calls"].to_pylist()))
