"""Exports of everything that can be asked for, from recorded traffic, compared with what tshark shows of it."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from engines import LOCAL, without_spark
from jobs import export_packets, ingest_captures, run_all
from pipeline.lake.engine.collect import collect
from pipeline.lake.lake import Lake
from pipeline.reports.packet_export.evidence import TABLES_WITH_PACKETS, ExportRequest
from pipeline.reports.packet_export.pcapng_file import ExportLimits, write_packets
from pipeline.reports.packet_export.plan import plan_export
from reports.packet_export.recordings import Expected, comments_of, frames, tshark
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.catalog import ALL_TABLES, table
from schemas.coverage import COVERAGE
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.quality import QUALITY_RESULTS
from schemas.sessions import FINDING_CHECKPOINTS, SESSION_PACKETS
from schemas.transfers import MESSAGE_TRANSFERS
from udfs.files.capture_file import CaptureFileReader
from udfs.files.file_source import FileSource

RECORDED = (
    "sample/01-remoteread-ndr.pcap", "sample/02-remoteread-ndr64-multiplexed.pcap",
    "sample/03-qm2qm-dependent-client.pcap", "sample/04-qmmgmt.pcapng", "sample/09-transactions-and-moves.pcapng",
    "transfers/03-transactions.pcapng", "transfers/05-resends.pcap", "transfers/08-stall.pcap.gz",
    "estate/wire/collector.pcap.gz",
)  # fmt: skip
LIMITS = ExportLimits(1000, 1 << 30)
GOLD = [each for each in ALL_TABLES if each.layer == "gold"]


@pytest.fixture(scope="module")
def recorded(project, tmp_path_factory):
    """Copies of recordings, which tests may take away for a while."""
    folder = tmp_path_factory.mktemp("captures")
    return [Path(shutil.copy(project / "data" / name, folder)) for name in RECORDED]


@pytest.fixture(scope="module")
def lake(project, recorded, tmp_path_factory):
    """The lake of these recordings, with a row in each table of gold."""
    root = str(tmp_path_factory.mktemp("lake") / "lake")
    snapshots = project / "data" / "estate" / "snapshots"
    given = ["--lake", root, *LOCAL, "--captures", *recorded, "--snapshots", snapshots]
    assert run_all.main([*map(str, given)]) == 0
    found = Lake(without_spark(), root)
    attempt, session = keys_of(found, RECEIVE_ATTEMPTS)[0], keys_of(found, table("silver.sessions"))[0]
    result = {
        "result_key": "result",
        "table": "gold.receive_attempts",
        "key_column": "attempt_key",
        "failed_keys": [attempt],
    }
    for of, row in ((QUALITY_RESULTS, result), (FINDING_CHECKPOINTS, {"connection_id": session})):
        whole = {name: [row.get(name)] for name in of.names}
        found.append(of, pa.table(whole, schema=of.schema()))
    return found


@pytest.fixture(scope="module")
def expected(lake, recorded):
    return expected_of(lake, recorded)


def expected_of(lake, paths):
    every = [frame for path in paths for frame in frames(path)]
    bronze = (RPC_CALLS, SESSION_PACKETS, CONNECTIONS, RPC_BINDS)
    return Expected({each.name: lake.select(each, "TRUE").to_pylist() for each in bronze}, every)


def keys_of(lake, of):
    return sorted(lake.query(f"SELECT {of.key[0]} AS key FROM {{rows}}", rows=of)["key"].to_pylist())


def exported(lake, request, path):
    """Write what is asked for, and return its plan."""
    plan = plan_export(lake, request)
    with path.open("wb") as out:
        write_packets(plan, out, LIMITS, None)
    return plan


def main(lake, *given):
    return export_packets.main(["--lake", lake.root, *LOCAL, *map(str, given)])


def test_every_declared_table_of_gold_is_reachable(lake, tmp_path):
    assert {str(each) for each in GOLD} <= TABLES_WITH_PACKETS.keys()
    bronze = {key for each in (RPC_CALLS, SESSION_PACKETS, CONNECTIONS) for key in keys_of(lake, each)}
    given = []
    for of in GOLD:
        rows = {row[of.key[0]]: row for row in lake.select(of, "TRUE").to_pylist()}
        assert rows, of
        plan = plan_export(lake, ExportRequest(rows={of: rows.keys()}))
        assert plan.unknown == []
        without = {name.removeprefix(f"{of} ") for name in plan.without_packets}
        if "evidence" in of.names:  # reports of collectors lead to no packet
            own = {key: {row.get("call_key"), row.get("packet_key"), *row["evidence"]} for key, row in rows.items()}
            assert without == {key for key, named in own.items() if not named & bronze}, of
        else:
            assert without == set()
        chosen = next(key for key in sorted(rows) if key not in without)
        assert any(f"{of} {chosen}" in piece.names for pieces in plan.pieces_by_path.values() for piece in pieces), of
        given += ["--row", of.name, chosen]
    assert main(lake, *given, "--out", tmp_path / "rows.pcapng") == 0  # no row without a packet


@pytest.mark.tool("tshark")
def test_rows_give_exactly_the_packets_that_tshark_shows_in_the_recording(lake, expected, tmp_path):
    """A row of each table drawn at random, and several of all together: each packet is there once, in order."""
    draw, out = random.Random(77), tmp_path / "out.pcapng"
    rows_of, evidence = {}, set()
    for of in [each for each in GOLD if "evidence" in each.names]:
        rows = {row[of.key[0]]: row for row in lake.select(of, "TRUE").to_pylist()}
        named = {key: {row.get("call_key"), row.get("packet_key"), *row["evidence"]} for key, row in rows.items()}
        rows_of[of] = draw.sample(sorted(rows), min(6, len(rows)))
        exported(lake, ExportRequest(rows={of: rows_of[of][:1]}), out)
        assert times_of(out) == [frame.time_ns for frame in expected.of(named[rows_of[of][0]])], of
        evidence = evidence.union(*(named[key] for key in rows_of[of]))
    exported(lake, ExportRequest(rows=rows_of), out)
    found = frames(out)
    assert sorted(found) == expected.of(evidence)
    assert [frame.time_ns for frame in found] == sorted(frame.time_ns for frame in found)
    assert len(found) > 300


@pytest.mark.tool("tshark")
def test_connections_give_exactly_the_packets_that_tshark_shows_in_the_recording(lake, expected, tmp_path):
    for connection in random.Random(7).sample(sorted(expected.connections), 5):
        exported(lake, ExportRequest(connections=[connection]), tmp_path / "out.pcapng")
        found = frames(tmp_path / "out.pcapng")
        assert sorted(found) == expected.of([connection])
        assert len(found) == expected.connections[connection]["packets"]


@pytest.mark.tool("tshark")
def test_an_hour_of_coverage_is_the_connections_of_its_server(lake, expected, tmp_path):
    row = lake.select(COVERAGE, "server_address = {server}", server="10.77.108.2").to_pylist()[0]
    exported(lake, ExportRequest(rows={COVERAGE: [row["coverage_key"]]}), tmp_path / "out.pcapng")
    ends = row["hour"] + timedelta(hours=1)
    own = [key for key, each in expected.connections.items() if each["server_address"] == "10.77.108.2"]
    found = [frame for frame in expected.of(own) if frame.time_ns < ends.timestamp() * 10**9]
    assert sorted(frames(tmp_path / "out.pcapng")) == found != []


@pytest.mark.tool("tshark")
def test_comments_and_names_as_tshark_shows_them(lake, expected, tmp_path):
    out = tmp_path / "out.pcapng"
    attempts = keys_of(lake, RECEIVE_ATTEMPTS)[:20]
    exported(lake, ExportRequest(rows={RECEIVE_ATTEMPTS: attempts}), out)
    shown = tshark(
        out, "frame.number", "ip.src", "ip.src_host", "dcerpc.opnum", "dcerpc.pkt_type", "frame.comment", names=True
    )
    assert [int(number) for number, *_ in shown] == list(range(1, len(shown) + 1))
    assert {(host, address) for _, address, host, *_ in shown if address == "10.77.0.1"} == {("srv1", "10.77.0.1")}
    methods = {call["call_key"]: call for call in lake.select(table("silver.remote_read_calls"), "TRUE").to_pylist()}
    calls = 0
    for _, _, _, opnum, kind, comment in shown:
        said, _, key = comment.partition("; call ")
        if kind == "0" and " | " not in comment and (call := methods.get(key[:32])) is not None:
            assert (call["opnum"], f"{call['protocol']} {call['method']}") == (
                int(opnum),
                re.split(r"\(| -> ", said)[0],
            )
            assert said.endswith(", ".join(filter(None, (call["hresult_name"] or call["fault_name"], "ok")))), comment
            assert comment.endswith((".pcap", ".pcapng"))
            calls += 1
    assert calls > 10


def test_packets_of_the_binary_protocol_say_kind_label_and_outcome(lake, tmp_path):
    transfers = lake.select(MESSAGE_TRANSFERS, "sendings > 1 AND transactional").to_pylist()
    assert main(lake, "--transfer", transfers[0]["transfer_key"], "--out", tmp_path / "out.pcapng") == 0
    comments = comments_of(tmp_path / "out.pcapng")
    sent = [each for each in comments if each.startswith("user_message(")]
    assert f"message_id={transfers[0]['message_id'][:36]}" in sent[0]
    assert "transaction_number=" in sent[0]
    assert any("acknowledged; packet " in each for each in sent)


@pytest.mark.parametrize("name", ["message_id", "message_key", "sighting_key", "label"])
def test_a_message(lake, name):
    """By any of its keys, and by a part of its label: its sightings, and the evidence of its attempts and transfers."""
    row = next(row for row in lake.select(MESSAGES, "label IS NOT NULL AND packet_key IS NOT NULL").to_pylist())
    request = ExportRequest(label=row["label"].upper()) if name == "label" else ExportRequest(messages=[row[name]])
    same = "label = {label}" if name == "label" else "message_key = {message}"
    messages = lake.select(MESSAGES, same, label=row["label"], message=row["message_key"]).to_pylist()
    wanted = {each[key] for each in messages for key in ("call_key", "packet_key")} - {None}
    keys = {each["message_key"] for each in messages}
    for of in (RECEIVE_ATTEMPTS, MESSAGE_TRANSFERS):
        for each in lake.select(of, "message_key IN {keys}", keys=keys).to_pylist():
            wanted |= {*each["evidence"]}
    plan = plan_export(lake, request)
    found = {
        piece.comment.rpartition(" ")[2] for pieces in plan.pieces_by_path.values() for piece in pieces if piece.names
    }
    assert found == wanted
    assert len(wanted) > 1


def test_a_queue_and_a_time(lake):
    queue = "orders"
    attempts = lake.select(RECEIVE_ATTEMPTS, "queue LIKE {like}", like=f"%{queue}%").to_pylist()
    assert attempts
    every = plan_export(lake, ExportRequest(queue=queue.upper()))
    found = {piece.comment.rpartition(" ")[2] for pieces in every.pieces_by_path.values() for piece in pieces}
    assert {key for each in attempts for key in each["evidence"]} <= found
    at = attempts[len(attempts) // 2]["started_at"]
    some = plan_export(lake, ExportRequest(queue=queue, since=at, until=at + timedelta(milliseconds=5)))
    within = [piece for pieces in some.pieces_by_path.values() for piece in pieces if piece.names]
    assert within
    assert all(0 <= piece.begin_us - at.timestamp() * 10**6 <= 5000 for piece in within)
    assert plan_export(lake, ExportRequest(queue="no such queue")).unknown[0].startswith("queue no such queue")


def test_each_capture_is_read_once(lake, recorded, tmp_path, monkeypatch):
    read, opened = FileSource.from_path, Counter()
    monkeypatch.setattr(FileSource, "from_path", lambda path: opened.update([path]) or read(path))
    rows = {of: keys_of(lake, of) for of in (FINDINGS, COVERAGE)}
    exported(lake, ExportRequest(rows=rows, queue="o", label="o"), tmp_path / "out.pcapng")
    assert len(opened) > 2
    assert {*opened.values()} == {1}


def test_a_capture_that_is_gone_is_said_and_the_rest_is_given(lake, recorded, tmp_path, capsys):
    calls = {row["capture_id"]: row["call_key"] for row in lake.select(RPC_CALLS, "TRUE").to_pylist()}
    paths = {row["path"]: row["capture_id"] for row in lake.select(CAPTURE_FILES, "TRUE").to_pylist()}
    gone, there = (calls[paths[str(path)]] for path in recorded[:2])
    away = recorded[0].rename(tmp_path / "away")
    try:
        assert main(lake, "--call", gone, there, "--out", tmp_path / "out.pcapng") == 3
        said = capsys.readouterr().err
        assert f"{recorded[0]}: No such file or directory; it has packets of call {gone}\n" in said
        assert f"no packet was found of call {gone}\n" in said
        assert all(comment.endswith(str(recorded[1])) for comment in comments_of(tmp_path / "out.pcapng"))
        assert main(lake, "--call", gone, "--out", tmp_path / "none.pcapng") == 2
        assert not (tmp_path / "none.pcapng").exists()
    finally:
        away.rename(recorded[0])


def test_most_packets(lake, tmp_path, capsys):
    """The earliest are written; what begins later is not even read."""
    connections = keys_of(lake, CONNECTIONS)
    assert main(lake, "--connection", *connections, "--out", tmp_path / "every.pcapng") == 0
    every = times_of(tmp_path / "every.pcapng")
    last = max(lake.select(CAPTURE_FILES, "TRUE").to_pylist(), key=lambda row: row["first_packet_at"])
    away = Path(last["path"]).rename(tmp_path / "away")
    try:
        assert main(lake, "--connection", *connections, "--most", "60", "--out", tmp_path / "some.pcapng") == 0
    finally:
        away.rename(last["path"])
    assert times_of(tmp_path / "some.pcapng") == every[:60]
    said = capsys.readouterr()
    assert "there are more: these are the earliest 60 packets (--most)" in said.err
    assert '"packets": 60, "more": true' in said.out


def times_of(path):
    with path.open("rb") as stream:
        return [time for block in CaptureFileReader(stream, 1 << 20).read_blocks() for time in block.time_ns.tolist()]


@pytest.mark.tool("tshark")
def test_to_standard_output(lake):
    """The file alone is there, as a program reads it from a pipe; a closed pipe is no failure."""
    attempt = keys_of(lake, RECEIVE_ATTEMPTS)[0]
    command = [sys.executable, "-m", "jobs", "export_packets", "--lake", lake.root, *LOCAL, "--attempt", attempt]
    with subprocess.Popen([*command, "--out", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        shown = subprocess.run(
            ["tshark", "-N", "n", "-r", "-", "-T", "fields", "-e", "ip.src_host"],
            stdin=job.stdout, capture_output=True, text=True, check=True,
        )  # fmt: skip
        said = job.stderr.read().decode()
    assert job.returncode == 0
    assert "srv1" in shown.stdout.splitlines()
    assert f"{len(shown.stdout.splitlines())} packets of 1 capture in standard output\n" in said
    assert said.splitlines()[-1].startswith('{"job": "export_packets"')
    with subprocess.Popen([*command, "--out", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        job.stdout.close()
        said = job.stderr.read().decode()
    assert (job.returncode, said.splitlines()[-1][:24]) == (0, '{"job": "export_packets"')
    assert "Error" not in said


def test_what_cannot_be_asked_for_is_one_line(lake, tmp_path, capsys):
    out = ["--out", tmp_path / "out.pcapng"]
    for given, said in (
        ([], "what to export? Give --message"),
        (["--row", "gold.alerts"], "--row: give gold.alerts and the keys of rows"),
        (["--row", "hosts", "x"], "--row: hosts: not one of bronze.connections, "),
        (["--row", "alerts", "x"], "not in"),
        (["--message", "x", "--label", "no such label"], "message x, label no such label"),
        (["--call", keys_of(lake, RPC_CALLS)[0], "--to", "2026-01-01"], " in this time: call "),
        (["--alert", "x", "--from", "2026-01-02", "--to", "2026-01-01"], "is later than --to"),
    ):
        assert main(lake, *given, *out) == 2
        assert said in capsys.readouterr().err
    history = table("gold.queue_history")
    reported = plan_export(lake, ExportRequest(rows={history: keys_of(lake, history)})).without_packets[0]
    assert main(lake, "--row", *reported.split(), *out) == 5
    assert "no packet is evidence of gold.queue_history" in capsys.readouterr().err
    assert not (tmp_path / "out.pcapng").exists()


@pytest.mark.tool("tshark")
def test_connections_of_public_captures_are_what_tshark_shows(captures, tmp_path):
    public = [path for name in ("arkime", "idaholab", "OISF*5133") for path in (captures / "dcerpc").glob(f"{name}*")]
    root = str(tmp_path / "lake")
    assert ingest_captures.main(["--lake", root, *LOCAL, "--captures", *map(str, public)]) == 0
    lake = Lake(without_spark(), root)
    expected = expected_of(lake, public)
    assert len(expected.connections) > 5
    exported(lake, ExportRequest(connections=expected.connections), tmp_path / "out.pcapng")
    assert sorted(frames(tmp_path / "out.pcapng")) == expected.of(expected.connections)
    for connection, row in expected.connections.items():
        assert len(expected.of([connection])) == row["packets"]


@pytest.mark.spark
def test_spark_gives_the_same_plan(spark, lake, monkeypatch):
    other = Lake(spark, lake.root)
    monkeypatch.setattr(other, "query", lambda sql, /, **of: collect(other.frame(sql, **of)))
    rows = {of: keys_of(lake, of) for of in (COVERAGE, FINDINGS)}
    assert_same_plan(lake, other, ExportRequest(rows=rows, label="o"))


@pytest.mark.long
@pytest.mark.spark
def test_a_lake_that_spark_stores_gives_the_same_plan(spark, lake, tmp_path, monkeypatch):
    other = Lake(spark, str(tmp_path / "spark"), store="spark", read_log="spark")
    for each in ALL_TABLES:
        if lake.exists(each):
            other.append(each, lake.select(each, "TRUE"))
    rows = {of: keys_of(lake, of) for of in GOLD}
    assert_same_plan(lake, other, ExportRequest(rows=rows, label="o", queue="o", messages=["x"]))


def assert_same_plan(one, other, request):
    plans = [plan_export(each, request) for each in (one, other)]
    pieces = [{path: set(own) for path, own in each.pieces_by_path.items()} for each in plans]
    assert pieces[0] == pieces[1]
    assert len(pieces[0]) > 2
    assert set(plans[0].without_packets) == set(plans[1].without_packets)
    assert (plans[0].hosts, plans[0].unknown) == (plans[1].hosts, plans[1].unknown)
