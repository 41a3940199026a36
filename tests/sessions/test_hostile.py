"""Hostile sessions: time and memory stay in proportion to the capture, and each byte is accounted for."""

from __future__ import annotations

import time
import tracemalloc

from pcapgen import containers, frames
from pcapgen import conversation as tcp
from pcapgen import sessions as packets
from pcapgen.reading import to_rows
from udfs.capture.capture_reader import read_capture
from udfs.tcp.capture_budget import NOT_KEPT, CaptureBudget

HUGE = packets.base_header(packets.PR3, 0x400000) + bytes(44) + (1 << 21).to_bytes(4, "little")


def capture(streams, *, syn=True, mss=1400):
    """Return a capture in which a segment of each stream follows one of the other streams, in turn."""
    records, now, most = [], tcp.START_NS, max(map(len, streams))
    if syn:
        for number in range(len(streams)):
            flow = tcp.Flow(server_port=packets.PORT, client_port=10_000 + number)
            records += tcp.records(flow, tcp.handshake(now))
    for at in range(0, most, mss):
        for number, stream in enumerate(streams):
            if part := stream[at : at + mss]:
                now += 1000
                flow = tcp.Flow(server_port=packets.PORT, client_port=10_000 + number)
                records += tcp.records(flow, [tcp.Segment(now, 0, at, 0, frames.ACK, part)])
    return containers.pcap(records, magic=containers.NANOSECONDS).data


def accounted(tables):
    seen = sum(row["seen_bytes"] for row in to_rows(tables["session_packets"]))
    seen += sum(row["size_bytes"] for row in to_rows(tables["quarantine"]))
    return seen, sum(row["client_bytes"] + row["server_bytes"] for row in to_rows(tables["connections"]))


def test_very_many_unfinished_packets_of_four_megabytes(monkeypatch):
    monkeypatch.setattr(CaptureBudget.__init__, "__defaults__", _with_limit(packet_bytes=1 << 20))
    data = capture([HUGE + bytes(90_000)] * 100)
    tracemalloc.start()
    tables = read_capture(data, block_bytes=256 << 10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    seen, captured = accounted(tables)
    assert seen == captured == 100 * (len(HUGE) + 90_000)
    rows = to_rows(tables["session_packets"])
    assert {(row["length_bytes"], row["complete"]) for row in rows} == {(0x400000, False)}
    assert min(len(row["packet"]) for row in rows) >= 64 << 10
    assert peak < 12 * len(data)
    (counted,) = to_rows(tables["capture_files"])
    assert {each["what"] for each in counted["packets_not_read"]} == {NOT_KEPT}


def _with_limit(**limits):
    defaults = dict(zip(CaptureBudget.__slots__, CaptureBudget.__init__.__defaults__, strict=True))
    return tuple((defaults | limits).values())


def test_time_of_garbage_with_headers_in_it_grows_with_its_size():
    header = HUGE[:64]
    taken = []
    for count in (8_000, 32_000):
        data = capture([b"x" + header * count], syn=False)
        begin = time.process_time()
        tables = read_capture(data, block_bytes=1 << 20)
        taken.append(time.process_time() - begin)
        seen, captured = accounted(tables)
        assert seen == captured == 1 + 64 * count
    assert taken[1] < 12 * taken[0] + 1


def test_headers_that_claim_one_another_are_searched_once():
    inside = packets.message(b"y" * 40)
    data = capture([b"garbage LIOR" + (inside[:-1] + b"LIOR\x10") * 3000], syn=False)
    begin = time.process_time()
    seen, captured = accounted(read_capture(data, block_bytes=64 << 10))
    assert seen == captured
    assert time.process_time() - begin < 20
