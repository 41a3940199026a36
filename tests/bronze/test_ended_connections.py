"""A connection that several taps saw to its end, each without other packets, is one connection in any order of runs.

The captures go on for longer than a minute after it: none of them waits for more of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations

import pytest
from deltalake import DeltaTable

from jobs import ingest_captures
from pcapgen import containers
from pcapgen import conversation as tcp
from pcapgen import sessions as packets
from pcapgen.scenarios import remote_read_dialogue
from schemas.table import INGESTED_AT, RUN_ID

TABLES = {"connections": "connection_id", "rpc_calls": "call_key", "session_packets": "packet_key",
          "rpc_binds": "bind_key", "quarantine": "quarantine_key"}  # fmt: skip
SECOND_NS = 10**9


def session():
    script = tcp.Script()
    for side, data in packets.handshake():
        script.send(side, data)
    for number in range(4):
        script.send(0, packets.message(bytes([number]) * 1200, header=packets.session_header(number)))
        script.send(1, packets.session_ack(packets.session_header(number + 1)))
    return tcp.Flow(server_port=packets.PORT), tcp.segments(script, mss=700)


def remote_reads():
    dialogue = remote_read_dialogue(size=5000)
    return dialogue.flow, tcp.segments(dialogue.script, mss=700)


PROTOCOLS = {"session": session, "rpc": remote_reads}


def tap(flow, parts, lost, *, ahead_ns=0, again_s=None):
    """A capture of a connection without some segments, which goes on for 100 s; maybe with the same ports used again.

    What it goes on with are other packets of no connection of MSMQ, and tell the captures apart.
    """
    records = tcp.records(flow, tcp.drop_segments(parts, *lost))
    if again_s is not None:
        other = replace(flow, isn=(flow.isn[0] + 700_000_000, flow.isn[1] + 500_000_000))
        records += tcp.records(other, [part.shifted(again_s * SECOND_NS) for part in parts])
    end_s = 100 + (again_s or 0)
    noise = tcp.Flow(client_port=50_000 + len(lost), server_port=9999)
    last = tcp.records(noise, tcp.handshake(tcp.START_NS + end_s * SECOND_NS))
    first = tcp.records(noise, tcp.handshake(tcp.START_NS - SECOND_NS))
    moved = (replace(record, time_ns=record.time_ns + ahead_ns) for record in [*first, *records, *last])
    return containers.pcap(list(moved), magic=containers.NANOSECONDS).data


def ingest(lake, *captures):
    assert ingest_captures.main(["--lake", str(lake), "--captures", *map(str, captures)]) == 0


def rows(lake, name):
    found = DeltaTable(str(lake / "bronze" / name)).to_pyarrow_table().drop_columns([RUN_ID, INGESTED_AT])
    return found.to_pylist()


def facts(lake):
    return {name: Counter(repr(sorted(row.items())) for row in rows(lake, name)) for name in TABLES}


def assert_one_row_for_each(lake):
    for name, key in TABLES.items():
        assert all(count == 1 for count in Counter(row[key] for row in rows(lake, name)).values()), name


@pytest.mark.parametrize(
    "ahead_ns", [pytest.param(0, marks=pytest.mark.long), 2_000_000], ids=["one clock", "two clocks"]
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_tap_without_other_packets(tmp_path, protocol, ahead_ns):
    flow, parts = PROTOCOLS[protocol]()
    data = tcp.data_indexes(parts)
    files = [tmp_path / "1.pcap", tmp_path / "2.pcap", tmp_path / "whole.pcap"]
    files[0].write_bytes(tap(flow, parts, data[6:7]))
    files[1].write_bytes(tap(flow, parts, data[8:10], ahead_ns=ahead_ns))
    files[2].write_bytes(tap(flow, parts, []))
    ingest(tmp_path / "whole", files[2])
    ingest(tmp_path / "at once", *files[:2])
    found, whole = ({name: rows(tmp_path / lake, name) for name in TABLES} for lake in ("at once", "whole"))
    assert {name: len(found[name]) for name in TABLES} == {name: len(whole[name]) for name in TABLES}
    assert not found["quarantine"]
    for column in ("client_bytes", "server_bytes", "missing_bytes", "calls", "closed_by"):
        assert [row[column] for row in found["connections"]] == [row[column] for row in whole["connections"]]
    assert {row["outcome"] for row in found["rpc_calls"]} == {row["outcome"] for row in whole["rpc_calls"]}
    assert all(row["complete"] for row in found["session_packets"])
    for name in ("rpc_calls", "session_packets"):
        assert {row["observations"] for row in found[name]} <= {1, 2}
        assert not found[name] or max(row["observations"] for row in found[name]) == 2
        assert all(row["observations"] >= len(row["sightings"] or ()) for row in found[name])
    assert_one_row_for_each(tmp_path / "at once")
    for order in permutations(files[:2]):
        lake = tmp_path / order[0].stem
        for file in order:
            ingest(lake, file)
        assert facts(lake) == facts(tmp_path / "at once")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_same_ports_used_again_later(tmp_path, protocol):
    """A connection an hour later is no part of the first one, which two taps saw; a third tap may still show that."""
    flow, parts = PROTOCOLS[protocol]()
    data = tcp.data_indexes(parts)
    later = [part.shifted(3600 * SECOND_NS) for part in parts]
    other = replace(flow, isn=(flow.isn[0] + 700_000_000, flow.isn[1] + 500_000_000))
    taps = [
        tap(flow, parts, data[6:7]), tap(flow, parts, data[8:10], ahead_ns=2_000_000),
        containers.pcap(tcp.records(other, later), magic=containers.NANOSECONDS).data,
        tap(flow, parts, data[7:9] + data[3:4], ahead_ns=-1_000_000, again_s=3600),
    ]  # fmt: skip
    files = [tmp_path / f"{number}.pcap" for number in range(len(taps))]
    for file, capture in zip(files, taps, strict=True):
        file.write_bytes(capture)
    lake = tmp_path / "lake"
    ingest(lake, files[0])
    ingest(lake, files[1])
    before = facts(lake)
    ingest(lake, files[2])
    after = facts(lake)
    assert all(not before[name] - after[name] for name in TABLES)
    assert len(rows(lake, "connections")) == 2
    ingest(lake, files[3])
    ingest(tmp_path / "at once", *files)
    assert facts(lake) == facts(tmp_path / "at once")
    assert len(rows(lake, "connections")) == 2
    assert_one_row_for_each(lake)
    seen = {row["observations"] for row in rows(lake, "session_packets") + rows(lake, "rpc_calls")}
    assert 3 in seen
