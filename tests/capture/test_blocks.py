"""Reading in small blocks gives the same tables as reading in one, whatever happened on the wire.

Here blocks are so small that each anomaly meets a block edge.
"""

from __future__ import annotations

import pytest

from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen.reading import calls, read_rows, sort_rows
from pcapgen.scenarios import capture_dialogue, interleaved_dialogue, remote_read_dialogue, secured_dialogue
from udfs.rows import RowDict

BIG = remote_read_dialogue(size=12_000, cuts=(5816, 5816))
PARTS = t.segments(BIG.script)
DATA = t.data_indexes(PARTS)
LONG = [index for index in DATA if len(PARTS[index].payload) == 1460]
NOISE = bytes(value ^ 0x5A for value in PARTS[LONG[2]].payload)

TROUBLE = {
    "none": PARTS,
    "retransmission far behind": t.retransmit(PARTS, LONG[1], at=LONG[-1] + 1),
    "conflict": t.retransmit(PARTS, LONG[2], at=LONG[2] + 1, payload=NOISE),
    "conflict far behind": t.retransmit(PARTS, LONG[2], at=LONG[-1] + 1, payload=NOISE),
    "conflict with a PDU of long ago": t.retransmit(
        PARTS, DATA[-4], at=DATA[-1] + 1, payload=bytes(len(PARTS[DATA[-4]].payload))
    ),
    "late segment": t.move_segment(PARTS, LONG[1], LONG[-1]),
    "lost segment": t.drop_segments(PARTS, LONG[3]),
    "answer before its question": t.move_segment(PARTS, DATA[2], DATA[3]),
    "bind_ack before its bind": t.move_segment(PARTS, DATA[0], DATA[1] + 1),
    "client alone": t.one_side(PARTS, t.CLIENT),
    "server alone": t.one_side(PARTS, t.SERVER),
    "begins inside": PARTS[LONG[2] :],
    "keep-alive": t.keep_alive(PARTS, DATA[-1]),
}


def tables(file: c.CaptureFile, **options) -> dict[str, list[RowDict]]:
    got = read_rows(file, all_pdus=True, **options)
    return {
        **got,
        "rpc_calls": calls(got),
        "pdus": sort_rows(got["pdus"], "packet_number", "call_id", "ptype"),
        "quarantine": sort_rows(got["quarantine"], "byte_offset"),
        "rpc_binds": sort_rows(got["rpc_binds"], "bind_key"),
    }


@pytest.mark.parametrize("block_bytes", [600, 5000])
@pytest.mark.parametrize("name", TROUBLE)
def test_trouble_at_a_cut_between_blocks(name, block_bytes):
    file, _ = capture_dialogue(BIG, TROUBLE[name])
    assert tables(file, block_bytes=block_bytes) == tables(file)


@pytest.mark.parametrize("block_bytes", [600, 5000])
@pytest.mark.parametrize("dialogue", [interleaved_dialogue(), secured_dialogue()], ids=["interleaved", "secured"])
def test_other_dialogues_in_blocks(dialogue, block_bytes):
    file, _ = capture_dialogue(dialogue)
    assert tables(file, block_bytes=block_bytes) == tables(file)


@pytest.mark.parametrize("block_bytes", [600, 16 << 20])
def test_a_connection_whose_server_begins_with_rubbish_is_still_ours(block_bytes):
    """The answer to the bind is damaged; the bind and five whole calls still identify the connection."""
    dialogue = remote_read_dialogue()
    parts = t.segments(dialogue.script)
    answer = next(index for index in t.data_indexes(parts) if parts[index].side == t.SERVER)
    broken = t.Segment(
        parts[answer].time_ns,
        t.SERVER,
        0,
        parts[answer].ack_offset,
        parts[answer].flags,
        b"\xee" * len(parts[answer].payload),
    )
    file, _ = capture_dialogue(dialogue, [*parts[:answer], broken, *parts[answer + 1 :]])
    got = read_rows(file, block_bytes=block_bytes)
    assert [row["call_id"] for row in calls(got)] == [2, 3, 4, 5, 6]
    assert sum(row["size_bytes"] for row in got["quarantine"]) == len(broken.payload)
