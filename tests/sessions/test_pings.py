"""Pings ([MS-MQQB] 2.2.7): requests and answers, in one capture and across captures."""

from __future__ import annotations

import struct
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import published_frames as published
from capture.in_memory import read_captures
from capture.merge.comparing import equal
from example_counts import examples
from pcapgen import containers, frames
from pcapgen.containers import Record
from pcapgen.conversation import START_NS
from pcapgen.reading import to_rows
from udfs.capture.capture_reader import read_capture

CLIENT, SERVER, PORT = "10.0.0.9", "10.0.0.1", 3527
SECOND = 1_000_000_000


def datagram(source, source_port, target, target_port, data, at_s):
    udp = struct.pack(">HHHH", source_port, target_port, 8 + len(data), 0) + data
    wrap = frames.ipv6(source, target, udp, following=17) if ":" in source else frames.ipv4(
        source, target, udp, protocol=17)  # fmt: skip
    return Record(START_NS + int(at_s * SECOND), frames.ethernet(wrap))


def request(at_s, data=published.PING_REQUEST, port=50_000):
    return datagram(CLIENT, port, SERVER, PORT, data, at_s)


def answer(at_s, data=None, port=50_000):
    data = data or published.PING_ANSWER[:4] + published.PING_REQUEST[4:8] + published.PING_ANSWER[8:]
    return datagram(SERVER, PORT, CLIENT, port, data, at_s)


def pings(*records):
    tables = read_capture(containers.pcap(records, magic=containers.NANOSECONDS).data)
    return to_rows(tables["pings"]), to_rows(tables["capture_files"])[0]


def test_the_published_exchange():
    # Their cookies are both 4.
    (row,), counted = pings(request(0), answer(0.25, published.PING_ANSWER))
    assert (row["client_address"], row["client_port"], row["server_address"]) == (CLIENT, 50_000, SERVER)
    assert (row["cookie"], row["refused"], row["workstation"], row["round_trip_ms"]) == (4, False, True, 250.0)
    assert row["client_queue_manager"] == "557358d1-9150-9595-4997-b6e611ea26c6"
    assert row["server_queue_manager"] == "43cd8907-394c-8f11-4445-9078909ea0fc"
    assert (row["packet_number"], row["response_packet"]) == (1, 2)
    assert (counted["packets"], counted["packets_binary_protocol"], counted["packets_other"]) == (2, 2, 0)


def test_the_latest_waiting_request_is_answered():
    rows, _ = pings(request(0), request(1), answer(2), answer(3), answer(4))
    assert [(row["requested_at"] is not None, row["round_trip_ms"]) for row in rows] == [
        (True, 3000.0), (True, 1000.0), (False, None),
    ]  # fmt: skip


@pytest.mark.parametrize(("late", "count"), [(60, 1), (60.001, 2)])
def test_an_answer_comes_within_a_minute(late, count):
    assert len(pings(request(0), answer(late))[0]) == count


@pytest.mark.parametrize(
    "data",
    [
        published.PING_REQUEST[:23],
        published.PING_REQUEST + b"\0",
        published.PING_REQUEST[:2] + b"\x48\x54" + published.PING_REQUEST[4:],
    ],
)
def test_other_datagrams_of_the_port_are_none(data):
    rows, counted = pings(request(0, data))
    assert (rows, counted["packets_binary_protocol"], counted["packets_other"]) == ([], 0, 1)


def test_both_ports_are_the_pings_own():
    (row,), _ = pings(request(0, port=PORT), answer(1, port=PORT))
    assert (row["client_address"], row["round_trip_ms"]) == (CLIENT, 1000.0)


def test_a_refusal_over_ipv6():
    ends = ("fe80::9", 50_000, "fe80::1", PORT)
    refused = b"\x03" + published.PING_REQUEST[1:]
    (row,), _ = pings(
        datagram(*ends, published.PING_REQUEST, 0), datagram(*ends[2:], *ends[:2], refused, 1)
    )  # fmt: skip
    assert (row["client_address"], row["server_address"], row["refused"]) == ("fe80::9", "fe80::1", True)


MADE = st.lists(
    st.tuples(st.sampled_from([request, answer]), st.integers(0, 130_000), st.sampled_from([50_000, 50_001, PORT])),
    min_size=1, max_size=8, unique_by=lambda one: one[1],
)  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(MADE, st.data())
def test_captures_in_any_order_give_the_pings_of_the_whole(made, data):
    # Each has another queue manager: none is like the copy of another one.
    records = sorted(
        (
            make(at_ms / 1000, published.PING_REQUEST[:23] + bytes([number]), port=port)
            for number, (make, at_ms, port) in enumerate(made)
        ),
        key=lambda record: record.time_ns,
    )
    where = data.draw(st.lists(st.integers(1, 3), min_size=len(records), max_size=len(records)))
    # The third place is both captures: a copy counts once.
    files = [
        containers.pcap(taken, magic=containers.NANOSECONDS).data
        for number in (1, 2)
        if (taken := [record for record, place in zip(records, where, strict=True) if place in (number, 3)])
    ]
    if len(files) == 2 and files[0][:100] == files[1][:100]:
        return
    whole = to_rows(read_capture(containers.pcap(records, magic=containers.NANOSECONDS).data)["pings"])
    for order in permutations(files):
        found = read_captures([[file] for file in order])
        places = ("capture_id", "packet_number", "response_capture_id", "response_packet")
        assert bare(to_rows(found["pings"]), places) == bare(whole, places)
        equal({"pings": found["pings"]}, {"pings": read_captures([files])["pings"]})


def bare(rows, places):
    kept = [{name: value for name, value in row.items() if name not in places} for row in rows]
    return sorted(kept, key=repr)
