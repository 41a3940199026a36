"""Machines that see a session side by side and each lose some of it: together they show what all of them saw."""

from __future__ import annotations

import hypothesis
from hypothesis import HealthCheck, assume, given, note
from hypothesis import strategies as st

from capture.merge.comparing import equal
from pcapgen import containers, frames
from pcapgen import conversation as tcp
from pcapgen import sessions as packets
from pcapgen.reading import to_rows
from sessions.stream_oracle import cut
from sessions.test_any_cuts import accounted
from sessions.test_framing import FLOW
from udfs.capture.in_memory import read_captures
from udfs.sessions import packet_framing

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture]  # fmt: skip
# No packets inside of bodies: a machine that begins there believes them, if it does not keep enough.
PLAIN = st.sampled_from([
    packets.connection_parameters(), packets.session_ack(), packets.order_ack(), packets.message(b"x" * 700),
    packets.message(b"y" * 300, header=packets.session_header(3)), packets.message(b"z" * 90),
    packets.order_ack(2, message_class=0x4000, direct=True, header=packets.session_header(1)),
    b"garbage " * 9,
])  # fmt: skip


@st.composite
def observed(draw):
    """The segments of a client, and for each machine what it has of them and how far its clock is ahead."""
    stream = b"".join(draw(st.lists(PLAIN, min_size=2, max_size=9)))
    size = draw(st.integers(100, 600))
    parts = [*tcp.handshake(), tcp.Segment(tcp.START_NS + 400_000, 1, 0, 0, frames.ACK)]
    now = tcp.START_NS + 1_000_000
    for at in range(0, len(stream), size):
        parts.append(tcp.Segment(now, 0, at, 0, frames.ACK, stream[at : at + size]))
        parts.append(tcp.Segment(now + 300_000, 1, 0, min(at + size, len(stream)), frames.ACK))
        now += 1_000_000
    machines = []
    for _ in range(draw(st.integers(2, 3))):
        low = draw(st.sampled_from([0, 0, len(parts) // 4]))
        lost = draw(st.sets(st.integers(4, len(parts) - 1), max_size=4))
        ahead = draw(st.integers(-300_000, 300_000)) * 1000
        machines.append(([each for at, each in enumerate(parts) if at >= low and at not in lost], ahead))
    return stream, machines


@hypothesis.settings(report_multiple_bugs=False, max_examples=80, deadline=None, suppress_health_check=SLOW)
@given(observed(), st.data())
def test_machines_side_by_side(monkeypatch, made, data):
    monkeypatch.setattr(packet_framing, "START_BYTES", data.draw(st.sampled_from([0, 500, 64 << 10])))
    _, machines = made
    files = [
        containers.pcap(tcp.records(FLOW, [part.shifted(ahead) for part in parts]), magic=containers.NANOSECONDS).data
        for parts, ahead in machines
    ]
    assume(len({file[24:100] for file in files}) == len(files))
    assume(all(any(part.payload for part in parts) for parts, _ in machines))
    order = data.draw(st.permutations(range(len(files))))
    found = read_captures([[files[index]] for index in order])
    equal(found, read_captures([files]))
    accounted(found)
    seen = [
        {part.offset + at: value for part in parts for at, value in enumerate(part.payload)} for parts, _ in machines
    ]
    union = {at: value for octets in seen for at, value in octets.items()}
    syn = any(part.offset < 0 and part.side == 0 for parts, _ in machines for part in parts)
    begin = 0 if syn else min(union)
    expected = cut(union, syn=syn, begin=begin, end=max(union) + 1)
    rows = sorted(to_rows(found["session_packets"]), key=lambda row: row["stream_offset"])
    note(f"{expected}")
    assert [(r["stream_offset"] + begin, r["length_bytes"], r["seen_bytes"]) for r in rows] == expected.packets
    ids = {}
    for file in files:
        (row,) = to_rows(read_captures([[file]])["capture_files"])
        ids[row["capture_id"]] = len(ids)
    for row in rows:
        at, size = row["stream_offset"] + begin, row["length_bytes"]
        having = [number for number, octets in enumerate(seen) if any(at + index in octets for index in range(size))]
        assert row["observations"] == len(having)
        whole = [number for number in having if all(at + index in seen[number] for index in range(size))]
        if whole:
            times = {number: first_time(machines[number], at) for number in whole}
            assert row["sent_at"] == min(times.values())
            assert times[ids[row["capture_id"]]] == row["sent_at"]
            assert row["packet"] == bytes(union[at + index] for index in range(size))


def first_time(machine, at):
    parts, ahead = machine
    carriers = (part for part in parts if part.payload and part.offset <= at < part.offset + len(part.payload))
    return (min(part.time_ns for part in carriers) + ahead) // 1000
