"""Sessions through the whole ingest into a lake: in several runs, in any order, seen by one machine or by two."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from deltalake import DeltaTable

import example_rows
from capture.merge.cutting import cut
from example_counts import one_in
from jobs import ingest_captures
from pcapgen import containers
from pcapgen import conversation as tcp
from pcapgen import sessions as packets
from schemas.sessions import PINGS, SESSION_PACKETS
from schemas.table import INGESTED_AT, RUN_ID
from sessions.test_pings import answer, request

FLOW = tcp.Flow(server_port=packets.PORT)
TABLES = ("session_packets", "connections", "quarantine")
OF_FILES = ("capture_id", "packet_number", "byte_offset", "sightings", "quarantine_key")


def session(count: int = 12):
    script = tcp.Script()
    for side, data in packets.handshake():
        script.send(side, data)
    for number in range(count):
        script.send(0, packets.message(bytes([number]) * (number * 400), header=packets.session_header(number)))
        script.send(1, packets.order_ack(number + 1, header=packets.session_header(number + 1)))
    return tcp.records(FLOW, tcp.segments(script, mss=900, acks=True))


def read(lake, *captures):
    assert ingest_captures.main(["--lake", str(lake), "--captures", *map(str, captures)]) == 0


def rows(lake, name, left_out=()):
    found = DeltaTable(str(lake / "bronze" / name)).to_pyarrow_table().to_pylist()
    gone = {RUN_ID, INGESTED_AT, *left_out}
    return Counter(repr({key: row[key] for key in sorted(row) if key not in gone}) for row in found)


def facts(lake, left_out=()):
    return {name: rows(lake, name, left_out) for name in TABLES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    (folder / "all.pcap").write_bytes(containers.pcap(session()).data)
    read(folder / "lake", folder / "all.pcap")
    return folder / "lake"


def test_one_capture(whole):
    assert sum(rows(whole, "session_packets").values()) == 4 + 24
    assert not rows(whole, "quarantine")
    (counted,) = DeltaTable(str(whole / "bronze" / "capture_files")).to_pyarrow_table().to_pylist()
    assert counted["packets_binary_protocol"] == counted["packets"]


@pytest.mark.parametrize("order", one_in(3, permutations(range(3))))
def test_files_of_a_ring_in_a_run_each_in_any_order(whole, tmp_path, order):
    capture = containers.pcap(session()).data
    pieces = cut(capture, [23, 51])
    for number, piece in enumerate(pieces):
        (tmp_path / f"{number}.pcap").write_bytes(piece)
    for number in order:
        read(tmp_path / "lake", tmp_path / f"{number}.pcap")
    left_out = (*OF_FILES, "observations")
    assert facts(tmp_path / "lake", left_out) == facts(whole, left_out)
    read(tmp_path / "at_once", *(tmp_path / f"{number}.pcap" for number in range(3)))
    assert facts(tmp_path / "lake") == facts(tmp_path / "at_once")


@pytest.mark.parametrize("order", one_in(3, permutations(range(3))))
def test_machines_that_saw_parts_of_it_side_by_side(whole, tmp_path, order):
    records = session()
    taps = [
        [record for number, record in enumerate(records) if number not in (20, 21, 40)],
        [containers.Record(record.time_ns + 1000, record.frame) for record in records[30:]],
        [containers.Record(record.time_ns - 2000, record.frame) for record in records[:60]],
    ]
    for number, taken in enumerate(taps):
        (tmp_path / f"{number}.pcap").write_bytes(containers.pcap(taken, magic=containers.NANOSECONDS).data)
    for number in order:
        read(tmp_path / "lake", tmp_path / f"{number}.pcap")
    read(tmp_path / "at_once", *(tmp_path / f"{number}.pcap" for number in range(3)))
    assert facts(tmp_path / "lake") == facts(tmp_path / "at_once")
    times = ("sent_at", "sent_done_at", "packet_key", "first_packet_at", "last_packet_at", "connection_id", "closed_at",
             "packets", "round_trip_ms", "retransmitted_bytes")  # fmt: skip
    left_out = (*OF_FILES, *times, "observations")
    found, expected = (facts(lake, left_out) for lake in (tmp_path / "lake", whole))
    assert found["session_packets"] == expected["session_packets"]
    assert found["quarantine"] == expected["quarantine"]


@pytest.mark.spark
def test_a_capture_that_is_read_again_changes_nothing(tmp_path):
    records = session()
    for number, taken in enumerate((records[:40], records[20:])):
        (tmp_path / f"{number}.pcap").write_bytes(containers.pcap(taken).data)
    read(tmp_path / "lake", tmp_path / "0.pcap", tmp_path / "1.pcap")
    before = facts(tmp_path / "lake")
    files = [str(tmp_path / name) for name in ("0.pcap", "1.pcap")]
    again = ["--lake", str(tmp_path / "lake"), "--captures", *files, "--reprocess", f"capture={files[0]}"]
    assert ingest_captures.main(again) == 0
    assert facts(tmp_path / "lake") == before


def test_the_example_rows(tmp_path):
    records = session()
    shorter = [containers.Record(record.time_ns - 2000, record.frame) for record in records[:60]]
    pinged = [request(-2), answer(-1)]
    (tmp_path / "1.pcap").write_bytes(containers.pcap([*pinged, *records], magic=containers.NANOSECONDS).data)
    (tmp_path / "2.pcap").write_bytes(containers.pcap(shorter, magic=containers.NANOSECONDS).data)
    read(tmp_path / "lake", tmp_path / "1.pcap", tmp_path / "2.pcap")
    tables = {
        table: DeltaTable(str(tmp_path / "lake" / "bronze" / table.name)).to_pyarrow_table()
        for table in (SESSION_PACKETS, PINGS)
    }
    example_rows.check(tables)
