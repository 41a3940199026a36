"""Cutting sides into packets: any cut into segments, blocks, holes and garbage, against a second opinion."""

from __future__ import annotations

import struct

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from example_counts import examples
from pcapgen import containers, frames
from pcapgen import conversation as tcp
from pcapgen import sessions as packets
from pcapgen.reading import to_rows
from sessions.stream_oracle import cut
from udfs.capture.capture_reader import read_capture

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
FLOW = tcp.Flow(server_port=packets.PORT, isn=(2**32 - 700, 5))

ONE_MESSAGE = packets.message(b"body" * 30)
PARTS = st.one_of(
    st.sampled_from([
        packets.establish_connection(), packets.connection_parameters(), packets.session_ack(), packets.order_ack(),
        packets.order_ack(2, message_class=0x4000, direct=True, header=packets.session_header(1)), ONE_MESSAGE,
        packets.message(b"x" * 700, header=packets.session_header(3)),
        packets.message(ONE_MESSAGE * 3),  # packets inside a body
        packets.message(ONE_MESSAGE, header=packets.base_header(packets.IN, 36)),  # a SessionHeader like a header
        packets.message(b"y" * 90, flags=packets.PR3 | packets.SH),  # PacketSize counts all: no SessionHeader behind
        packets.base_header(packets.IN, 24) + struct.pack("<HH", 0, 9) + b"unk?",
        packets.base_header(0, 16), packets.base_header(0, 15), packets.base_header(0, 0x400000),
        b"\x10\0\0\0LIOR", b"LIOR" * 20, b"garbage " * 9, b"\x10",
    ]),
    st.binary(max_size=40),
)  # fmt: skip


@st.composite
def sides(draw):
    """A side's octets, how they are cut into segments, which of these are lost, and whether the SYN is seen."""
    stream = b"".join(draw(st.lists(PARTS, min_size=1, max_size=7)))[:6000]
    sizes = draw(st.lists(st.integers(1, 700), min_size=1, max_size=9))
    count, at = 0, 0
    while at < len(stream):
        at += sizes[count % len(sizes)]
        count += 1
    lost = draw(st.sets(st.integers(0, max(count - 1, 0)), max_size=3))
    return stream, sizes, lost, draw(st.booleans()), draw(st.sampled_from([1 << 10, 3 << 10, 16 << 20]))


def segments_of(stream, sizes, lost, syn):
    parts = tcp.handshake() if syn else []
    parts += [tcp.Segment(tcp.START_NS + 400_000, 1, 0, 0, frames.ACK)]
    at = number = 0
    now = tcp.START_NS + 1_000_000
    while at < len(stream):
        size = sizes[number % len(sizes)]
        if number not in lost:
            parts.append(tcp.Segment(now, 0, at, 0, frames.ACK, stream[at : at + size]))
        at, number, now = at + size, number + 1, now + 1_000_000
    return parts


def expected(stream, parts, *, syn):
    octets = {part.offset + index: value for part in parts for index, value in enumerate(part.payload)}
    begin, end = (0 if syn else min(octets, default=0)), max(octets, default=-1) + 1
    return octets, begin, cut(octets, syn=syn, begin=begin, end=end)


def shown(tables):
    rows = [row for row in to_rows(tables["session_packets"]) if row["sent_by"] == "client"]
    return rows, to_rows(tables["quarantine"])


@settings(max_examples=examples(400), deadline=None, suppress_health_check=SLOW)
@given(sides())
@example((packets.base_header(0, 0x400000) * 3, [30], {1}, True, 1 << 10))
@example((packets.establish_connection() + b"\0", [572, 1], set(), False, 1 << 10))
def test_any_side_is_cut_as_the_rules_say(side):
    stream, sizes, lost, syn, block = side
    parts = segments_of(stream, sizes, lost, syn)
    octets, begin, found = expected(stream, parts, syn=syn)
    file = containers.pcap(tcp.records(FLOW, parts))
    tables = read_capture(file.data, block_bytes=block)
    rows, strays = shown(tables)
    rows.sort(key=lambda row: row["stream_offset"])
    assert [(r["stream_offset"] + begin, r["length_bytes"], r["seen_bytes"]) for r in rows] == found.packets
    first = FLOW.isn[0] + 1
    assert sorted((s["size_bytes"], s["reason"]) for s in strays) == sorted(each[1:] for each in found.strays)
    for row in rows:
        at = row["stream_offset"] + begin
        assert row["tcp_sequence"] == (first + at) % 2**32
        held = 0
        while held < row["length_bytes"] and at + held in octets:
            held += 1
        assert row["packet"] == bytes(octets[at + index] for index in range(held))
        carriers = [part for part in parts if part.payload and part.offset < at + row["length_bytes"]
                    and part.offset + len(part.payload) > at]  # fmt: skip
        assert row["sent_at"] == carriers[0].time_ns // 1000
        place = file.frame_offsets[row["packet_number"] - 1]
        assert parts[row["packet_number"] - 1] is carriers[0]
        assert file.data[row["byte_offset"]] == octets[at]
        assert place < row["byte_offset"]
        assert row["complete"] == (row["seen_bytes"] == row["length_bytes"])
        done = max(part.time_ns for part in carriers) // 1000
        assert row["sent_done_at"] == (done if row["complete"] else None)
    seen = sum(row["seen_bytes"] for row in rows) + sum(row["size_bytes"] for row in strays)
    assert seen == len(octets)
    (connection,) = to_rows(tables["connections"]) or [None]
    if connection is not None:
        assert (connection["kind"], connection["client_bytes"]) == ("binary_protocol", seen)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=SLOW)
@given(
    cuts=st.lists(st.integers(1, 1460), min_size=1, max_size=12),
    copies=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 6)), max_size=8),
    moves=st.lists(st.tuples(st.integers(0, 500), st.integers(-6, 6)), max_size=8),
    blocks=st.sampled_from([1 << 10, 16 << 20]),
)
def test_order_and_repetition_of_segments_change_nothing(cuts, copies, moves, blocks):
    script = tcp.Script()
    for side, data in packets.handshake():
        script.send(side, data)
    for number in range(8):
        script.send(0, packets.message(bytes([number]) * 300 * number, header=packets.session_header(number)))
        script.send(1, packets.session_ack(packets.session_header(number + 1)))
    if sum(cuts) < 40 * len(cuts):
        cuts = [*cuts, 400]
    parts = tcp.segments(script, cuts=cuts)
    for index, distance in copies:
        indexes = tcp.data_indexes(parts)
        chosen = indexes[index % len(indexes)]
        parts = tcp.retransmit(parts, chosen, at=min(chosen + distance, len(parts)))
    for index, distance in moves:
        end = len(parts) - 3
        chosen = 3 + index % (end - 3)
        parts = tcp.move_segment(parts, chosen, min(max(chosen + distance, 3), end - 1))
    tables = read_capture(containers.pcap(tcp.records(FLOW, parts)).data, block_bytes=blocks)
    rows = to_rows(tables["session_packets"])
    assert all(row["complete"] for row in rows)
    assert not tables["quarantine"].num_rows
    for side, name in enumerate(("client", "server")):
        own = sorted((row for row in rows if row["sent_by"] == name), key=lambda row: row["stream_offset"])
        assert b"".join(row["packet"] for row in own) == script.stream(side)
