"""What a capture's edges cut: what is missing at the end, and what is handed on to other captures (bronze.pending)."""

from __future__ import annotations

import pytest

from pcapgen import conversation as t
from pcapgen.scenarios import captured, reads
from udfs.capture.reader import read_capture

BIG = reads(size=12_000, cuts=(5816, 5816))
PARTS = t.segments(BIG.script)
DATA = t.data_indexes(PARTS)


def tables(parts, **options):
    file, _ = captured(BIG, parts)
    got = read_capture(file.data, path="memory.pcap", **options)
    return {name: table.to_pylist() for name, table in got.items()}


def last_from(side):
    return next(index for index in reversed(DATA) if PARTS[index].side == side)


@pytest.mark.parametrize("side", [t.CLIENT, t.SERVER])
def test_bytes_lost_before_the_fin_are_missing_and_the_capture_lost_them(side):
    index = last_from(side)
    (connection,) = tables(t.lost(PARTS, index))["connections"]
    size = len(PARTS[index].payload)
    assert connection["missing_bytes"] == size
    assert connection["lost_by_capture_bytes"] == size
    assert connection["packets"] == len(PARTS) - 1


def test_nothing_is_missing_where_the_capture_ends_with_the_data():
    (connection,) = tables(PARTS[: DATA[-1] + 1])["connections"]
    assert connection["missing_bytes"] == 0


def test_a_pdu_cut_by_the_end_is_a_tail_and_its_call_a_half():
    long = [index for index in DATA if len(PARTS[index].payload) == 1460]
    found = tables(PARTS[: long[1] + 1])
    calls = {call["call_key"]: call for call in found["rpc_calls"]}
    (tail,) = [row for row in found["pending"] if row["kind"] == "tail"]
    (half,) = [row for row in found["pending"] if row["kind"] == "half"]
    assert tail["data"] == PARTS[long[0]].payload + PARTS[long[1]].payload
    assert tail["data"][:3] == b"\x05\x00\x02"
    assert tail["from_client"] is False
    assert calls[half["call_key"]]["outcome"] == "damaged"
    assert half["from_client"] is True
    assert {row["capture_id"] for row in found["pending"]} == {found["capture_files"][0]["capture_id"]}


def test_head_and_tail_of_a_cut_capture_are_the_pdu():
    """Cut in the middle of a response: what ends the first capture and begins the second make a whole PDU."""
    long = [index for index in DATA if len(PARTS[index].payload) == 1460]
    first, second = PARTS[: long[1] + 1], PARTS[long[1] + 1 :]
    (tail,) = [row for row in tables(first)["pending"] if row["kind"] == "tail"]
    (head,) = [row for row in tables(second)["pending"] if row["kind"] == "head"]
    assert (tail["sequence"] + len(tail["data"])) & 0xFFFFFFFF == head["sequence"]
    joined = tail["data"] + head["data"]
    assert len(joined) == int.from_bytes(joined[8:10], "little")


def test_contexts_without_their_bind_are_handed_on():
    found = tables(PARTS[DATA[2] :])
    assert [(row["context_id"], row["call_key"]) for row in found["pending"] if row["kind"] == "context"] == [(0, None)]
    assert {call["bind_seen"] for call in found["rpc_calls"]} == {False}


@pytest.mark.parametrize("block_bytes", [700, 16 << 20])
def test_pending_does_not_depend_on_blocks(block_bytes):
    long = [index for index in DATA if len(PARTS[index].payload) == 1460]
    parts = PARTS[long[2] : long[-1]]
    assert tables(parts, block_bytes=block_bytes)["pending"] == tables(parts)["pending"]


def test_each_side_has_its_byte_order():
    found = tables(PARTS)["rpc_calls"]
    assert {(call["byte_order"], call["response_byte_order"]) for call in found} == {("little", "little")}
    requests_only = tables(t.only(PARTS, t.CLIENT))["rpc_calls"]
    assert {call["response_byte_order"] for call in requests_only} == {None}
