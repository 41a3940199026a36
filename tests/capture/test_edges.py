"""Connections that cross the edges of a capture: missing bytes at the end, and rows of ``bronze.pending``."""

from __future__ import annotations

from pathlib import Path

import pytest

from capture.in_memory import read_captures
from pcapgen import containers, frames
from pcapgen import conversation as t
from pcapgen.exchanges import Damage, recorded, tap
from pcapgen.scenarios import capture_dialogue, remote_read_dialogue
from udfs.capture.capture_reader import read_capture

DATA_FOLDER = Path(__file__).parents[2] / "data"
BIG = remote_read_dialogue(size=12_000, cuts=(5816, 5816))
PARTS = t.segments(BIG.script)
DATA = t.data_indexes(PARTS)


def tables(parts, **options):
    file, _ = capture_dialogue(BIG, parts)
    got = read_capture(file.data, path="memory.pcap", **options)
    return {name: table.to_pylist() for name, table in got.items()}


def last_from(side):
    return next(index for index in reversed(DATA) if PARTS[index].side == side)


@pytest.mark.parametrize("side", [t.CLIENT, t.SERVER])
def test_bytes_lost_before_the_fin_are_missing_and_the_capture_lost_them(side):
    index = last_from(side)
    (connection,) = tables(t.drop_segments(PARTS, index))["connections"]
    size = len(PARTS[index].payload)
    assert connection["missing_bytes"] == size
    assert connection["lost_by_capture_bytes"] == size
    assert connection["packets"] == len(PARTS) - 1


@pytest.mark.parametrize("flag", [frames.RST, frames.ACK])
def test_bytes_lost_before_the_sender_says_where_it_stands_are_missing(flag):
    index = last_from(t.CLIENT)
    size = len(PARTS[index].payload)
    lost = t.drop_segments(PARTS[: index + 1], index)
    says = t.Segment(PARTS[index].time_ns + 1000, t.CLIENT, PARTS[index].offset + size, None, flag)
    (connection,) = tables([*lost, says])["connections"]
    assert (connection["missing_bytes"], connection["lost_by_capture_bytes"]) == (size, 0)
    assert connection["closed_by"] == ("rst" if flag == frames.RST else None)
    (connection,) = tables([*PARTS[: index + 1], says])["connections"]
    assert connection["missing_bytes"] == 0


def test_nothing_is_missing_where_the_capture_ends_with_the_data():
    (connection,) = tables(PARTS[: DATA[-1] + 1])["connections"]
    assert connection["missing_bytes"] == 0


def _data(row, side):
    """Return (sequence number, bytes) of each segment with data, of one direction of a remainder."""
    return [(one["sequence"], one["data"]) for one in row["segments"] if one["side"] == side and one["data"]]


def test_a_pdu_cut_by_the_end_waits_with_its_call():
    long = [index for index in DATA if len(PARTS[index].payload) == 1460]
    found = tables(PARTS[: long[1] + 1])
    (row,) = found["pending"]
    tail = PARTS[long[0]].payload + PARTS[long[1]].payload
    assert row["waits_for"] == ["call", "end"]
    assert any(b"".join(data for _, data in _data(row, side)).endswith(tail) for side in (0, 1))
    calls = {call["call_key"]: call["outcome"] for call in found["rpc_calls"]}
    assert [calls[key] for key in row["call_keys"]] == ["damaged"]
    assert row["capture_id"] == found["capture_files"][0]["capture_id"]
    assert row["bytes"] < sum(len(PARTS[index].payload) for index in range(long[1] + 1))


def test_end_and_beginning_of_a_cut_capture_are_the_pdu():
    """Cut inside a response: the end of the first capture and the start of the second form a whole PDU."""
    long = [index for index in DATA if len(PARTS[index].payload) == 1460]
    first, second = PARTS[: long[1] + 1], PARTS[long[1] + 1 :]
    side = next(
        side for side in (0, 1) if PARTS[long[0]].payload in dict(_data(tables(first)["pending"][0], side)).values()
    )
    tail = _data(tables(first)["pending"][0], side)[-2:]
    head = _data(tables(second)["pending"][0], side)
    assert tail[-1][0] + len(tail[-1][1]) == head[0][0]
    joined = b"".join(data for _, data in tail + head)
    length = int.from_bytes(joined[8:10], "little")
    assert joined[length : length + 3] in (b"", b"\x05\x00\x02")


def test_contexts_without_their_bind_are_waited_for():
    found = tables(PARTS[DATA[2] :])
    assert "bind" in found["pending"][0]["waits_for"]
    assert {one["context_id"] for one in found["pending"][0]["evidence"]} == {0}
    assert {call["bind_seen"] for call in found["rpc_calls"]} == {False}


@pytest.mark.parametrize("block_bytes", [700, 16 << 20])
def test_pending_does_not_depend_on_blocks(block_bytes):
    long = [index for index in DATA if len(PARTS[index].payload) == 1460]
    parts = PARTS[long[2] : long[-1]]
    assert tables(parts, block_bytes=block_bytes)["pending"] == tables(parts)["pending"]


def test_each_side_has_its_byte_order():
    found = tables(PARTS)["rpc_calls"]
    assert {(call["byte_order"], call["response_byte_order"]) for call in found} == {("little", "little")}
    requests_only = tables(t.one_side(PARTS, t.CLIENT))["rpc_calls"]
    assert {call["response_byte_order"] for call in requests_only} == {None}


def test_what_a_side_acknowledges_of_the_other_is_missing_where_that_was_not_captured():
    """Asymmetric routes: the handshake's acknowledgement shows where the other side begins, the last one its end."""
    (connection,) = tables(t.one_side(PARTS, t.CLIENT))["connections"]
    size = sum(len(PARTS[index].payload) for index in DATA if PARTS[index].side == t.SERVER)
    fin = 1  # it is acknowledged too, and was not captured
    assert connection["missing_bytes"] == connection["lost_by_capture_bytes"] == size + fin
    assert connection["uncaptured_side"] == "server"


@pytest.mark.parametrize("side", [t.CLIENT, t.SERVER])
def test_of_sessions_what_a_side_acknowledges_of_the_other_is_missing(side):
    talks = recorded(DATA_FOLDER / "transfers" / "05-resends.pcap")
    lost = {talk.flow.client_port: len(talk.stream(1 - side)) for talk in talks}
    one = tap(talks, Damage(one_side=side))
    found = read_capture(containers.pcap(one.records).data)["connections"].to_pylist()
    assert [row["uncaptured_side"] for row in found] == [("server", "client")[side]] * len(talks)
    for row in found:
        assert 0 <= row["missing_bytes"] - lost[row["client_port"]] <= 1  # a FIN is acknowledged too


def test_a_side_of_which_acks_alone_were_captured_was_captured():
    kept = [part for part in PARTS if part.side == t.CLIENT or not part.payload]
    (connection,) = tables(kept)["connections"]
    size = sum(len(PARTS[index].payload) for index in DATA if PARTS[index].side == t.SERVER)
    assert (connection["missing_bytes"], connection["uncaptured_side"]) == (size, None)


def test_a_direction_whose_syn_was_not_captured_begins_where_the_handshake_says():
    """The client's first ACK acknowledges the server's SYN: what the server sent first is missing, not unknown."""
    first = next(index for index in DATA if PARTS[index].side == t.SERVER)
    answers = [index for index, part in enumerate(PARTS) if part.side == t.SERVER and part.flags & frames.SYN]
    (connection,) = tables(t.drop_segments(PARTS, *answers, first))["connections"]
    assert connection["missing_bytes"] == connection["lost_by_capture_bytes"] == len(PARTS[first].payload)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("together", [True, False])
def test_two_captures_of_a_direction_each_lack_nothing_together(order, together):
    parts = [t.one_side(PARTS, side) for side in (t.CLIENT, t.SERVER)]
    captures = [capture_dialogue(BIG, parts[side])[0].data for side in order]
    found = read_captures([captures] if together else [[capture] for capture in captures])
    uncut = read_captures([[capture_dialogue(BIG, PARTS)[0].data]])
    names = ("client_bytes", "server_bytes", "missing_bytes", "uncaptured_side", "closed_by")
    assert found["connections"].select(names) == uncut["connections"].select(names)


def test_one_direction_in_two_files_lacks_what_its_acknowledgements_say():
    parts = t.one_side(PARTS, t.CLIENT)
    captures = [capture_dialogue(BIG, some)[0].data for some in (parts[: len(parts) // 2], parts[len(parts) // 2 :])]
    (connection,) = read_captures([[capture] for capture in captures])["connections"].to_pylist()
    (uncut,) = tables(parts)["connections"]
    names = ("client_bytes", "server_bytes", "missing_bytes", "uncaptured_side")
    assert {name: connection[name] for name in names} == {name: uncut[name] for name in names}
