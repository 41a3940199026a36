"""Machines that see a session side by side and each lose some of it: together they show what all of them saw."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import hypothesis
import pytest
from hypothesis import HealthCheck, assume, given, note
from hypothesis import strategies as st

from capture.in_memory import BRONZE_TABLES, apply_merge, read_captures
from capture.merge.comparing import equal
from example_counts import examples
from pcapgen import containers, frames
from pcapgen import conversation as tcp
from pcapgen import sessions as packets
from pcapgen.reading import to_rows
from sessions.stream_oracle import cut
from sessions.test_any_cuts import accounted
from sessions.test_framing import FLOW
from udfs.capture.capture_reader import read_capture
from udfs.capture.connection_merge import merge_connections
from udfs.sessions import packet_framing

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture]  # fmt: skip
OTHER = tcp.Flow(client_port=50_000, server_port=9999)
# No packets inside of bodies: a machine that begins there believes them, if it does not keep enough.
PLAIN = st.sampled_from([
    packets.connection_parameters(), packets.session_ack(), packets.order_ack(), packets.message(b"x" * 700),
    packets.message(b"y" * 300, header=packets.session_header(3)), packets.message(b"z" * 90),
    packets.order_ack(2, message_class=0x4000, direct=True, header=packets.session_header(1)),
    b"garbage " * 9,
])  # fmt: skip


@st.composite
def observed(draw, fewest=2):
    """The segments of a client, and for each machine what it has of them, how far its clock is ahead, how much later.

    A machine that goes on for more than a minute has forgotten a connection that it saw to its end.
    """
    stream = b"".join(draw(st.lists(PLAIN, min_size=2, max_size=9)))
    size = draw(st.integers(100, 600))
    parts = [*tcp.handshake(), tcp.Segment(tcp.START_NS + 400_000, 1, 0, 0, frames.ACK)]
    now = tcp.START_NS + 1_000_000
    for at in range(0, len(stream), size):
        parts.append(tcp.Segment(now, 0, at, 0, frames.ACK, stream[at : at + size]))
        parts.append(tcp.Segment(now + 300_000, 1, 0, min(at + size, len(stream)), frames.ACK))
        now += 1_000_000
    if draw(st.booleans()):
        parts.append(tcp.Segment(now, 0, len(stream), 0, frames.FIN | frames.ACK))
        parts.append(tcp.Segment(now + 100_000, 1, 0, len(stream) + 1, frames.FIN | frames.ACK))
    machines = []
    begins = draw(st.lists(st.sampled_from([0, 0, len(parts) // 4]), min_size=fewest, max_size=3))
    # Clocks further apart than the captures last: with little in common, only SYNs show that it is one connection.
    most = 300 if any(begins) else 300_000
    for low in begins:
        lost = draw(st.sets(st.integers(4, len(parts) - 1), max_size=4))
        ahead = draw(st.integers(-most, most)) * 1000
        goes_on_s = draw(st.sampled_from([0, 0, 30, 100]))
        machines.append(([each for at, each in enumerate(parts) if at >= low and at not in lost], ahead, goes_on_s))
    return stream, machines


@hypothesis.settings(report_multiple_bugs=False, max_examples=examples(80), deadline=None, suppress_health_check=SLOW)
@given(observed(), st.data())
def test_machines_side_by_side(monkeypatch, made, data):
    monkeypatch.setattr(packet_framing, "START_BYTES", data.draw(st.sampled_from([0, 500, 64 << 10])))
    _, machines = made
    files = [file_of(machine) for machine in machines]
    assume(len({file[24:100] for file in files}) == len(files))
    assume(all(any(part.payload for part in parts) for parts, *_ in machines))
    order = data.draw(st.permutations(range(len(files))))
    found = read_captures([[files[index]] for index in order])
    equal(found, read_captures([files]))
    accounted(found)
    seen = [
        {part.offset + at: value for part in parts for at, value in enumerate(part.payload)} for parts, *_ in machines
    ]
    union = {at: value for octets in seen for at, value in octets.items()}
    syn = any(part.offset < 0 and part.side == 0 for parts, *_ in machines for part in parts)
    begin = 0 if syn else min(union)
    expected = cut(union, syn=syn, begin=begin, end=max(union) + 1)
    assert len({row["connection_id"] for row in to_rows(found["session_packets"])}) <= 1
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


def file_of(machine):
    parts, ahead, goes_on_s = machine
    records = tcp.records(FLOW, [part.shifted(ahead) for part in parts])
    if goes_on_s:
        records += tcp.records(OTHER, tcp.handshake(tcp.START_NS + goes_on_s * 10**9))
    return containers.pcap(records, magic=containers.NANOSECONDS).data


def first_time(machine, at):
    parts, ahead, _ = machine
    carriers = (part for part in parts if part.payload and part.offset <= at < part.offset + len(part.payload))
    return (min(part.time_ns for part in carriers) + ahead) // 1000


@hypothesis.settings(report_multiple_bugs=False, max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
@given(observed(fewest=3))
def test_a_capture_whose_remainder_expired_still_counts(made):
    """What a capture had of a packet whole stays in ``sightings``, and counts, when its remainder is gone."""
    _, machines = made
    files = [file_of(machine) for machine in machines]
    assume(len({file[24:100] for file in files}) == len(files))
    tables = {name: [] for name in BRONZE_TABLES}
    for number, file in enumerate(files):
        if number == len(files) - 1:
            first, *others = sorted(tables["pending"], key=lambda row: row["first_time_ns"])
            tables["pending"] = [first, *others[1:]]  # the first one names the connection
        for name, rows in read_capture(file).items():
            tables[name] += rows.to_pylist()
        tables["pending"] = [row for row in tables["pending"] if row["server_port"] == packets.PORT]
        apply_merge(tables, tables["pending"], merge_connections(tables["pending"]))
    for row in tables["session_packets"]:
        having = {seen["capture_id"] for seen in row["sightings"] or ()}
        assert row["observations"] >= max(len(having), 1)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_rest_of_a_message_that_looks_like_a_pdu_belongs_to_the_message(order):
    """The one machine has the whole message; what the other one saw of it, from where it begins, is no stray."""
    pdu = bytes.fromhex("05000003 10000000 4000 0000 01000000") + bytes(48)
    stream = packets.message(b"x" * 200 + pdu) + 3 * packets.order_ack()
    parts = [*tcp.handshake()]
    for number, (at, end) in enumerate(pairwise((0, stream.index(pdu), len(stream) - 192, len(stream)))):
        now = tcp.START_NS + (number + 1) * 1_000_000
        parts.append(tcp.Segment(now, 0, at, 0, frames.ACK, stream[at:end]))
    files = [file_of((parts, 0, 0)), file_of((parts[-2:], 7000, 0))]
    alone = read_captures([[files[1]]])
    assert [row["reason"] for row in to_rows(alone["quarantine"])] == ["capture_begins"]
    found = read_captures([[files[index]] for index in order])
    assert not to_rows(found["quarantine"])
    assert to_rows(found["session_packets"])[0]["length_bytes"] == len(stream) - 3 * 192
    accounted(found)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_another_machine_shows_to_be_no_packet_is_none(order):
    """It stands behind strays, at the end of what the one machine has; the other one has strays behind it too."""
    stream = packets.order_ack() + b"garbage " * 18 + packets.order_ack() + b"garbage " * 9
    parts = [*tcp.handshake()]
    for number, at in enumerate(range(0, len(stream), 100)):
        now = tcp.START_NS + (number + 1) * 1_000_000
        parts.append(tcp.Segment(now, 0, at, 0, frames.ACK, stream[at : at + 100]))
    end = 2 * len(packets.order_ack()) + 144
    early = [replace(part, payload=part.payload[: end - part.offset]) for part in parts if part.offset < end]
    files = [file_of((early, 0, 0)), file_of((parts, 1000, 0))]
    alone, found = read_captures([[files[0]]]), read_captures([[files[index]] for index in order])
    assert [row["stream_offset"] for row in to_rows(alone["session_packets"])] == [0, end - len(packets.order_ack())]
    assert [row["stream_offset"] for row in to_rows(found["session_packets"])] == [0]
    accounted(found)
