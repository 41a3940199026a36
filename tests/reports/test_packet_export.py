"""Packets of the binary protocol and whole sessions, exported to a pcapng file that the reader reads again."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from jobs import export_packets, ingest_captures
from pcapgen import containers
from pcapgen import conversation as tcp
from pcapgen import sessions as packets
from pcapgen.reading import to_rows
from udfs.capture.capture_reader import read_capture

FLOW = tcp.Flow(server_port=packets.PORT)
OTHER = tcp.Flow(client="10.0.0.8", server_port=packets.PORT)
FACTS = ("sent_by", "tcp_sequence", "kind", "length_bytes", "seen_bytes", "complete", "packet")


def session(flow, shift_ns=0, lost=()):
    script = tcp.Script()
    for side, data in packets.handshake():
        script.send(side, data)
    for number in range(4):
        script.send(0, packets.message(bytes([number]) * 1000, header=packets.session_header(number)))
        script.send(1, packets.session_ack(packets.session_header(number + 1)))
    parts = tcp.drop_segments(tcp.segments(script, mss=300), *lost)
    return tcp.records(flow, [part.shifted(shift_ns) for part in parts])


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Two sessions at the same time in one capture; of the first one another tap has what this one lost."""
    folder = tmp_path_factory.mktemp("export")
    records = sorted([*session(FLOW, lost=(15,)), *session(OTHER, 50_000, lost=(15,))], key=lambda each: each.time_ns)
    (folder / "one.pcap").write_bytes(containers.pcap(records, magic=containers.NANOSECONDS).data)
    taken = session(FLOW, 20_000, lost=(20,))
    (folder / "two.pcap").write_bytes(containers.pcap(taken, magic=containers.NANOSECONDS).data)
    files = [str(folder / name) for name in ("one.pcap", "two.pcap")]
    assert ingest_captures.main(["--lake", str(folder / "lake"), "--captures", *files]) == 0
    return folder / "lake"


def rows(lake, name):
    return DeltaTable(str(lake / "bronze" / name)).to_pyarrow_table().to_pylist()


def exported(lake, out, *arguments, code=0):
    assert export_packets.main(["--lake", str(lake), "--out", str(out), *arguments]) == code
    return read_capture(out.read_bytes())


def facts(row):
    return tuple(row[name] for name in FACTS)


def test_a_packet(lake, tmp_path):
    for row in rows(lake, "session_packets"):
        found = to_rows(exported(lake, tmp_path / "out.pcapng", "--packet", row["packet_key"])["session_packets"])
        (same,) = [each for each in found if each["tcp_sequence"] == row["tcp_sequence"]]
        assert facts(row) == facts(same)
        assert {each["client_address"] for each in found} == {row["client_address"]}
        assert len(found) <= 3  # its answer, and what was sent at once


def test_a_session_with_what_each_tap_has(lake, tmp_path):
    for connection in rows(lake, "connections"):
        own = [row for row in rows(lake, "session_packets") if row["connection_id"] == connection["connection_id"]]
        tables = exported(lake, tmp_path / "out.pcapng", "--session", connection["connection_id"])
        (found,) = to_rows(tables["connections"])
        assert found["client_address"] == connection["client_address"]
        assert sorted(map(facts, own)) == sorted(map(facts, to_rows(tables["session_packets"])))
        assert tables["capture_files"]["packets"].to_pylist() == [connection["packets"]]


def test_several_and_what_is_not_there(lake, tmp_path, capsys):
    packet = next(row for row in rows(lake, "session_packets") if row["client_address"] == FLOW.client)
    (other,) = [row for row in rows(lake, "connections") if row["client_address"] == OTHER.client]
    given = ["--packet", packet["packet_key"], "none", "--session", other["connection_id"], "--call", "x"]
    tables = exported(lake, tmp_path / "out.pcapng", *given, code=3)
    assert {row["client_address"] for row in to_rows(tables["connections"])} == {FLOW.client, OTHER.client}
    shown = capsys.readouterr().err
    assert "not in the lake: packet none" in shown
    assert "not in the lake: call x" in shown
    assert export_packets.main(["--lake", str(lake), "--out", str(tmp_path / "x"), "--session", "none"]) == 2
    assert export_packets.main(["--lake", str(lake), "--out", str(tmp_path / "x")]) == 2
    assert "what to export? Give --message, " in capsys.readouterr().err


def test_a_capture_that_is_another_file_now_is_one_line(lake, tmp_path, capsys):
    packet = rows(lake, "session_packets")[0]["packet_key"]
    captures = [lake.parent / name for name in ("one.pcap", "two.pcap")]
    before = [path.read_bytes() for path in captures]
    try:
        for path in captures:
            path.write_bytes(b"another file of this name")
        assert export_packets.main(["--lake", str(lake), "--out", str(tmp_path / "x"), "--packet", packet]) == 2
        assert ".pcap: no capture format begins with " in capsys.readouterr().err
    finally:
        for path, data in zip(captures, before, strict=True):
            path.write_bytes(data)
