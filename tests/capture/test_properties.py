"""Properties for any segmentation, duplication and order of packets, and for arbitrary bytes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from example_counts import examples
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen.reading import calls, capture_files_row, drop_columns, read_rows
from pcapgen.scenarios import capture_dialogue, remote_read_dialogue

DIALOGUE = remote_read_dialogue(size=1200, cuts=(400, 400))
FILE, TRUTH = capture_dialogue(DIALOGUE)
NG = c.pcapng(FILE.records)
CHANGING = (
    "call_key", "connection_id", "capture_id", "response_capture_id", "byte_offset", "request_packet",
    "response_packet", "request_at", "request_done_at", "response_at", "response_done_at",
)  # fmt: skip
EXPECTED = drop_columns(TRUTH.calls(), *CHANGING)
RELAXED = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@RELAXED
@given(
    cuts=st.lists(st.integers(1, 1460), min_size=1, max_size=12),
    copies=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 6)), max_size=8),
    moves=st.lists(st.tuples(st.integers(0, 500), st.integers(-6, 6)), max_size=8),
    isn=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    blocks=st.sampled_from([1 << 10, 8 << 10, 16 << 20]),
)
def test_any_segmentation_duplication_and_order_gives_the_same_calls(cuts, copies, moves, isn, blocks):
    if sum(cuts) < 30 * len(cuts):
        cuts = [*cuts, 200]
    parts = t.segments(DIALOGUE.script, cuts=cuts)
    begin = 3  # the handshake stays first
    for index, distance in copies:
        indexes = t.data_indexes(parts)
        chosen = indexes[index % len(indexes)]
        parts = t.retransmit(parts, chosen, at=min(chosen + distance, len(parts)))
    for index, distance in moves:
        end = len(parts) - 3  # and the FINs last
        chosen = begin + index % (end - begin)
        parts = t.move_segment(parts, chosen, min(max(chosen + distance, begin), end - 1))
    dialogue = remote_read_dialogue(t.Flow(isn=isn), size=1200, cuts=(400, 400))
    file, _ = capture_dialogue(dialogue, parts)
    tables = read_rows(file, block_bytes=blocks)
    assert drop_columns(calls(tables), *CHANGING) == EXPECTED
    row = capture_files_row(tables)
    assert (row["packets"], row["packets_used"]) == (len(parts), len(parts))
    (connection,) = tables["connections"]
    assert (connection["missing_bytes"], connection["conflicting_bytes"]) == (0, 0)
    assert connection["client_bytes"] == len(DIALOGUE.script.stream(t.CLIENT))


def sound(data: bytes, **options) -> None:
    """Read without exception; one ledger row that accounts for each record (``capture_files_row`` checks the sum)."""
    tables = read_rows(data, **options)
    row = capture_files_row(tables)
    assert row["size_bytes"] == len(data)
    assert row["status"] in {"complete", "partial", "unreadable"} if data else row["status"] == "empty"
    assert (row["error"] is None) == (row["status"] == "complete")


@RELAXED
@given(
    st.binary(max_size=400),
    st.sampled_from([b"", FILE.data[:24], NG.data[:48], b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd"]),
)
def test_any_bytes_give_rows(data, head):
    sound(head + data)


@RELAXED
@given(
    st.sampled_from([FILE.data, NG.data]),
    st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=8)), min_size=1, max_size=12),
    st.sampled_from([1 << 10, 16 << 20]),
)
def test_captures_with_any_bytes_changed_give_rows(data, changes, blocks):
    broken = bytearray(data)
    for at, value in changes:
        begin = at % len(broken)
        broken[begin : begin + len(value)] = value
    sound(bytes(broken), block_bytes=blocks, all_pdus=True)


@RELAXED
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 10**6), st.binary(min_size=1, max_size=4)), min_size=1, max_size=10
    ),
    st.lists(st.integers(1, 1460), min_size=1, max_size=5),
)
def test_streams_with_any_bytes_changed_give_rows_and_lose_nothing(changes, cuts):
    """Damaged payload in intact TCP: each payload byte is counted, and the ledger adds up."""
    if sum(cuts) < 30 * len(cuts):
        cuts = [*cuts, 200]
    script = t.Script()
    streams = [bytearray(DIALOGUE.script.stream(side)) for side in (t.CLIENT, t.SERVER)]
    for side, at, value in changes:
        begin = at % (len(streams[side]) - 4)
        streams[side][begin : begin + len(value)] = value
    offsets = [0, 0]
    for side, data, pause in DIALOGUE.script.sends:
        script.send(side, bytes(streams[side][offsets[side] : offsets[side] + len(data)]), pause)
        offsets[side] += len(data)
    parts = t.segments(script, cuts=cuts)
    file = c.pcap(t.records(DIALOGUE.flow, parts))
    tables = read_rows(file, all_pdus=True)
    row = capture_files_row(tables)
    assert (row["packets"], row["packets_damaged"]) == (len(parts), 0)
    for connection in tables["connections"]:
        assert connection["client_bytes"] + connection["server_bytes"] == sum(map(len, streams))
        assert connection["missing_bytes"] == 0
    assert sum(row["frag_length"] for row in tables["pdus"]) <= sum(map(len, streams))


@pytest.mark.long
def test_shared_captures_with_any_bytes_changed_give_rows(captures: Path):
    rng = random.Random(11)
    for path in sorted(captures.rglob("*.pcap*")):
        data = path.read_bytes()
        if not data or len(data) > 200_000:
            continue
        for _ in range(5):
            broken = bytearray(data)
            for _ in range(rng.randrange(1, 30)):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            sound(bytes(broken), all_pdus=True)
