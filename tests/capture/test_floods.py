"""What the connections of one capture hold together is limited: what is over a limit is counted and has a name."""

from dataclasses import replace
from functools import partial

import pytest

from bench import hostile, hostile_frames
from bench.traffic import ACK, SYN
from pcapgen import containers, conversation, sessions
from pcapgen.record import sample_captures
from udfs.capture.capture_reader import read_capture
from udfs.rpc import batch_spool, waiting_pdus
from udfs.rpc.association_state import MAX_TOKENS_PER_BIND, RpcAssociation
from udfs.sealed.security_tokens import HandshakeToken
from udfs.tcp import capture_budget, connection_tracker


@pytest.fixture
def limited(monkeypatch):
    """Return a function that sets limits of the captures that are read."""

    def limit(**limits):
        budget = partial(capture_budget.CaptureBudget, **limits)
        monkeypatch.setattr(connection_tracker, "CaptureBudget", budget)

    return limit


def not_read(tables):
    """Return the packets that are not read, by what they are."""
    (found,) = tables["capture_files"]["packets_not_read"].to_pylist()
    return {each["what"]: each["packets"] for each in found or ()}


def quarantined(tables, reason):
    """Return the sizes of quarantined bytes with a reason."""
    return [row["size_bytes"] for row in tables["quarantine"].to_pylist() if row["reason"] == reason]


def test_of_a_flood_the_newest_are_handed_on(limited):
    limited(open_connections=20)
    tables = read_capture(hostile.half_open_connections(50))
    assert sorted(row["client_port"] for row in tables["pending"].to_pylist()) == list(range(1024 + 30, 1024 + 50))
    assert not_read(tables) == {capture_budget.NOT_HANDED_ON: 30}
    limited(open_connections=50)
    whole = read_capture(hostile.half_open_connections(50))
    assert (whole["pending"].num_rows, not_read(whole)) == (50, {})
    assert whole["capture_files"]["packets"].to_pylist() == [50]


@pytest.mark.parametrize("block_bytes", [16 << 20, 200])
def test_connections_over_the_limit_are_not_followed(limited, block_bytes):
    (path, *_) = sample_captures()
    whole = read_capture(path.read_bytes())
    calls = whole["rpc_calls"].to_pylist()
    limited(connections=1)
    tables = read_capture(path.read_bytes(), block_bytes=block_bytes)
    (first,) = tables["connections"]["connection_id"].to_pylist()
    assert {row["call_key"] for row in tables["rpc_calls"].to_pylist()} == {
        row["call_key"] for row in calls if row["connection_id"] == first
    }
    packets = {row["connection_id"]: row["packets"] for row in whole["connections"].to_pylist()}
    assert not_read(tables) == {capture_budget.NOT_FOLLOWED: sum(packets.values()) - packets[first]}
    assert tables["capture_files"]["packets"] == whole["capture_files"]["packets"]


def test_a_four_tuple_that_begins_anew_over_the_limit_is_not_followed(limited):
    limited(connections=1)
    frames = [hostile_frames.ethernet_frame(1024, at, SYN) for at in (1, 500_000_000)]
    frames += [hostile_frames.ethernet_frame(1024, 500_000_001, ACK, b"x" * 30)]
    for block_bytes in (16 << 20, 80):
        tables = read_capture(hostile_frames.pcap(iter(frames)), block_bytes=block_bytes)
        assert not_read(tables) == {capture_budget.NOT_FOLLOWED: 2}
        assert tables["pending"]["packets"].to_pylist() == [1]


def test_first_bytes_like_a_header_make_rpc_of_a_limited_number_of_connections(limited):
    limited(recognitions=20)
    tables = read_capture(hostile.plausible_first_bytes(50))
    assert not_read(tables) == {capture_budget.NOT_RECOGNISED: 30}
    assert sorted(tables["pending"]["kind"].to_pylist()) == ["cold"] * 30 + ["rpc"] * 20


def test_binds_over_the_limit_of_contexts_are_quarantined(limited):
    limited(contexts=2 * 2 * 255)
    tables = read_capture(hostile.large_binds(255 * 5))
    assert tables["rpc_binds"].num_rows == 2 * 255
    assert quarantined(tables, "bind_limit") == [28 + 255 * 44] * 3


def test_binds_that_cannot_be_retained_are_rows_and_quarantined(limited):
    limited(retained_bytes=0)
    tables = read_capture(hostile.large_binds(255 * 2))
    assert tables["rpc_binds"].num_rows == 2 * 255
    assert quarantined(tables, "bind_limit") == [28 + 255 * 44] * 2
    assert not any(segment["data"] for row in tables["pending"].to_pylist() for segment in row["segments"])


def test_bytes_out_of_order_over_the_limit_are_given_up(limited):
    stream, begin = hostile._rpc_stream(3000), 72  # of the bind, which comes in order
    places = [(0, begin), *((at, at + 1) for at in reversed(range(begin, len(stream))))]
    frames = [hostile_frames.ethernet_frame(1024, 99, SYN)]
    frames += [hostile_frames.ethernet_frame(1024, 100 + at, ACK, stream[at:end]) for at, end in places]
    data = hostile_frames.pcap(iter(frames))
    (whole,) = read_capture(data)["connections"].to_pylist()
    assert (whole["client_bytes"], whole["missing_bytes"]) == (len(stream), 0)
    limited(held_bytes=100 << 10)
    (row,) = read_capture(data)["connections"].to_pylist()
    assert row["missing_bytes"] > 0


def test_calls_without_a_bind_for_which_there_is_no_room_to_wait_are_quarantined(monkeypatch):
    monkeypatch.setattr(batch_spool, "MAX_MEMORY_BYTES", 0)
    monkeypatch.setattr(waiting_pdus, "MAX_WAITING_PDUS", 10)  # else they are finished at the end, all at once
    data = hostile.calls_without_bind(500, packet_bytes=1000)
    whole = read_capture(data, block_bytes=1 << 12)
    assert (whole["rpc_calls"].num_rows, quarantined(whole, "waiting_limit")) == (500, [])
    monkeypatch.setattr(batch_spool, "MAX_SPOOL_BYTES", 0)
    tables = read_capture(data, block_bytes=1 << 12)
    kept = tables["rpc_calls"].num_rows
    assert 0 < kept < 500
    assert sum(quarantined(tables, "waiting_limit")) == (500 - kept) * len(hostile.cursor_request(0))


def test_auth3_pdus_belong_to_the_last_bind_before_them_with_their_call_id():
    association = RpcAssociation()
    binds = [(number * 100, number % 3) for number in range(9)]
    for offset, call_id in binds:
        association.add_bind(hostile._bind(call_id, 1), "<", 72, offset, offset, call_id, 0, 1, (None, None))
    for offset, call_id in ((50, 0), (450, 0), (450, 1), (10, 2), (900, 7), (5, 7)):
        token = HandshakeToken(True, offset, 30, 3, 10, 6, 1, f"{offset} {call_id}".encode())
        assert association.add_auth3_token(call_id, offset, token)
        same = [at for at, other in binds if other == call_id] or [binds[-1][0]]
        expected = max((at for at in same if at <= offset), default=same[-1])
        (found,) = [bind.stream_offset for bind in association.binds if token in bind.tokens]
        assert found == expected
    for _ in range(MAX_TOKENS_PER_BIND):
        there_was_room = association.add_auth3_token(1, 150, token)
    assert there_was_room
    assert not association.add_auth3_token(1, 150, token)


def test_connections_that_ended_take_what_open_ones_leave(limited):
    """They are read to the end: of those that are not handed on no packet is unread."""
    flow = conversation.Flow(server_port=sessions.PORT)
    records = []
    for number in range(6):
        script = conversation.Script()
        for side, data in sessions.handshake():
            script.send(side, data)
        start_ns = conversation.START_NS + number * 10**9
        parts = conversation.segments(script, closed=number not in (1, 4), start_ns=start_ns)
        records += conversation.records(replace(flow, client_port=50_000 + number), parts)
    later = conversation.handshake(conversation.START_NS + 200 * 10**9)
    records += conversation.records(replace(flow, client_port=60_000, server_port=9999), later)
    capture = containers.pcap(records).data
    for most, ports in ((9, [*range(50_000, 50_006), 60_000]), (5, [50_001, 50_003, 50_004, 50_005, 60_000]),
                        (3, [50_001, 50_004, 60_000])):  # fmt: skip
        limited(open_connections=most)
        tables = read_capture(capture)
        assert sorted(row["client_port"] for row in tables["pending"].to_pylist()) == ports
        assert not_read(tables) == {}
        assert tables["connections"].num_rows == 6
