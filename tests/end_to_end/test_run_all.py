"""The whole pipeline through its command line, on the recorded sample: tables, repeated runs, bad input, exit codes."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

import example_rows
from end_to_end.lakes import reading_jobs
from jobs import export_packets, ingest_captures, publish_dashboards, run_all, trace_message
from ledgers import ledger_of
from pipeline.bronze.capture_tasks import build_read_tasks
from pipeline.bronze.ingest_captures import BRONZE_TABLES
from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.ingest_plan import plan_ingest
from pipeline.bronze.input_files import InputFile, list_files
from pipeline.concurrency import run_concurrently
from pipeline.dashboards.read_datasets import RowLimits, read_dashboard_data
from pipeline.data_source.capture_source import register_capture_source
from pipeline.lake.lake import Lake
from pipeline.quality.check import CheckOptions, check_suites
from pipeline.quality.suites import read_suites
from pipeline.runs.recovery import RunMarkers
from schemas import catalog
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_BINDS, RPC_CALLS, RUNS
from schemas.calls import REMOTE_READ_CALLS
from schemas.quality import QUALITY_RESULTS
from schemas.queue_history import MACHINE_HISTORY, MANAGEMENT_ACTIONS
from tests.support.lakes import versions_text
from udfs.capture.capture_reader import BRONZE_SCHEMAS, read_capture, read_capture_batches

pytestmark = pytest.mark.spark

SAMPLES = ("01-remoteread-ndr.pcap", "04-qmmgmt.pcapng", "06-mid-stream.pcap", "10-many-clients.pcap.gz")


def summary(capsys):
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def versions(lake):
    return {str(table): versions_text(lake, table) for table in catalog.DATA_TABLES}


@pytest.fixture(scope="module")
def captures(project, tmp_path_factory):
    folder = tmp_path_factory.mktemp("captures")
    for name in SAMPLES:
        shutil.copy(project / "data" / "sample" / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def lake(spark, captures, tmp_path_factory):
    """A lake with some of the sample in it."""
    root = tmp_path_factory.mktemp("lake")
    assert run_all.main(["--lake", str(root), "--captures", str(captures)]) == 0
    return Lake(spark, str(root))


def test_the_tables_hold_what_the_reader_reads(lake, captures):
    expected = {"rpc_calls": [], "connections": [], "rpc_binds": [], "capture_files": []}
    for name in SAMPLES:
        tables = read_capture(captures / name)
        for kind, rows in expected.items():
            rows.extend(tables[kind].to_pylist())
    for table, key in ((RPC_CALLS, "call_key"), (CONNECTIONS, "connection_id"), (RPC_BINDS, "bind_key")):
        found = [row.asDict(recursive=True) for row in lake.read(table).drop("run_id", "ingested_at").collect()]
        wanted = expected[table.name]
        for row in (*found, *wanted):
            for name, value in row.items():
                if hasattr(value, "tzinfo") and value is not None and hasattr(value, "hour"):
                    row[name] = value.replace(tzinfo=None)
                elif isinstance(value, bytearray):
                    row[name] = bytes(value)
        assert sorted(found, key=lambda row: row[key]) == sorted(wanted, key=lambda row: row[key])
    assert lake.read(REMOTE_READ_CALLS).count() == sum(
        row["interface_name"] in ("RemoteRead", "qm2qm") for row in expected["rpc_calls"]
    )
    assert lake.read(RECEIVE_ATTEMPTS).where("outcome = 'acked'").count() > 20


def test_what_an_administrator_did_stands_beside_the_states_it_changed(lake):
    columns = ("action", "outcome", "auth_level", "state_before", "state_after")
    actions = lake.read(MANAGEMENT_ACTIONS).orderBy("requested_at").select(*columns).collect()
    assert [tuple(row) for row in actions] == [
        ("PAUSE", "done", 1, "CONNECTED", "ONHOLD"),
        ("RESUME", "done", 1, "ONHOLD", "CONNECTED"),
        ("EOD_RESEND", "done", 1, "CONNECTED", None),
        ("PAUSE", "failed", 1, "LOCAL CONNECTION", None),
        ("DISCONNECT", "done", 1, "CONNECTED", None),
        ("CONNECT", "done", 1, None, None),
        ("TIDY", "done", 1, None, None),
        ("EXPLODE", "failed", 1, None, None),
    ]
    states = lake.read(MACHINE_HISTORY).orderBy("valid_from").select("state", "source", "active_queues").collect()
    assert [tuple(row) for row in states] == [
        ("CONNECTED", "wire", 5), ("DISCONNECTED", "operations", 5), ("CONNECTED", "operations", 5),
        ("CONNECTED", "operations", None),
    ]  # fmt: skip


def test_jobs_that_only_read_make_nothing_in_a_lake(lake, captures, tmp_path, capsys):
    def files():
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in Path(lake.root).rglob("*")}

    before, key = files(), lake.read(RPC_CALLS).first()["call_key"]
    dry_run = (run_all, ["--lake", lake.root, "--captures", str(captures), "--dry-run"])
    for job, given in [*reading_jobs(Path(lake.root), tmp_path, key), dry_run]:
        assert job.main(given) == 0, capsys.readouterr().err
        assert files() == before, job.JOB


def test_running_again_changes_no_table(lake, captures, capsys):
    before = versions(lake)
    assert run_all.main(["--lake", lake.root, "--captures", str(captures)]) == 0
    assert versions(lake) == before
    assert all(counts["rows_out"] == 0 for counts in summary(capsys)["tables"].values())


@pytest.mark.parametrize("can_be_undone", [True, False])
def test_a_run_that_was_killed_is_undone_or_brought_forward(spark, captures, tmp_path, capsys, can_be_undone):
    """A run killed after it appended calls and before it wrote the ledger leaves its marker and rows."""
    lake = Lake(spark, str(tmp_path / "lake"))
    one, two = str(captures / SAMPLES[0]), str(captures / SAMPLES[3])
    assert ingest_captures.main(["--lake", lake.root, "--captures", one]) == 0
    calls, capture_id = lake.read(RPC_CALLS).count(), lake.read(CAPTURE_FILES).first().capture_id
    versions = {str(table): lake.version(table) for table in BRONZE_TABLES}
    RunMarkers.of(lake).begin("killed", versions, [capture_id])
    lake.append(RPC_CALLS, lake.read(RPC_CALLS).withColumn("run_id", F.lit("killed")))
    lake.append(RPC_CALLS, lake.read(RPC_CALLS).withColumns({"run_id": F.lit("killed"), "capture_id": F.lit("new")}))
    assert lake.read(RPC_CALLS).count() == 4 * calls
    if not can_be_undone:
        lake.update(RPC_CALLS, {"outcome": "'other'"}, "TRUE")  # which writes all files again
        lake.vacuum(RPC_CALLS)
    capsys.readouterr()
    assert ingest_captures.main(["--lake", lake.root, "--captures", one, two]) == 0
    assert ("it cannot be undone" in capsys.readouterr().err) is not can_be_undone
    assert lake.read(RPC_CALLS).where("run_id = 'killed'").count() == 0
    assert {row.capture_id for row in lake.read(CAPTURE_FILES).where(F.col("path") == one).collect()} == {capture_id}
    assert lake.read(RPC_CALLS).where(F.col("capture_id") == capture_id).count() == calls
    assert RunMarkers.of(lake).unfinished() == {}
    assert RunMarkers.of(lake).captures_to_replace() is None


@pytest.mark.long
def test_stubs_can_be_emptied_once_they_are_decoded(spark, captures, tmp_path):
    lake = Lake(spark, str(tmp_path / "lake"))
    arguments = ["--lake", lake.root, "--captures", str(captures / SAMPLES[0]), "--set", "store.stubs=false"]
    assert run_all.main(arguments) == 0
    calls = lake.read(RPC_CALLS)
    assert calls.count() == 54
    assert calls.where("request_stub is not null or response_stub is not null").count() == 0
    assert lake.read(REMOTE_READ_CALLS).where("context_handle is not null").count() > 20


def test_bad_files_are_rows_and_the_others_are_read(spark, captures, tmp_path, capsys):
    folder = tmp_path / "mixed"
    folder.mkdir()
    whole = (captures / SAMPLES[0]).read_bytes()
    (folder / "good.pcap").write_bytes(whole)
    (folder / "cut.pcap").write_bytes((captures / SAMPLES[2]).read_bytes()[:-7])
    (folder / "empty").write_bytes(b"")
    (folder / "notes.txt").write_text("no capture at all")
    damaged = bytearray(whole)
    damaged[24 + 8 : 24 + 12] = b"\xff\xff\xff\x7f"
    (folder / "damaged.pcap").write_bytes(damaged)
    root = str(tmp_path / "lake")
    assert ingest_captures.main(["--lake", root, "--captures", str(folder)]) == 3
    errors = capsys.readouterr().err
    ledger = {row["path"].rsplit("/", 1)[1]: row for row in Lake(spark, root).read(CAPTURE_FILES).collect()}
    assert {name: (row["status"], row["damage"]) for name, row in ledger.items()} == {
        "good.pcap": ("complete", None),
        "cut.pcap": ("partial", "cut_short"),
        "empty": ("empty", "empty"),
        "notes.txt": ("unreadable", "not_a_capture"),
        "damaged.pcap": ("unreadable", "damaged"),
    }
    assert "notes.txt: unreadable: no capture format begins with 6e 6f 20 63" in errors
    assert ledger["good.pcap"]["packets_used"] == 147


def test_a_capture_that_vanishes_before_it_is_read_is_a_row(tmp_path):
    """A file that is listed, and gone when its task starts."""
    gone = tmp_path / "gone.pcap"
    tables = dict(read_capture_batches(InputFile(str(gone), 1000, 1).capture_source()))
    (row,) = tables["capture_files"].to_pylist()
    assert (row["path"], row["status"], row["damage"]) == (str(gone), "unreadable", "unreadable")
    assert "gone.pcap" in row["error"]


def test_a_last_record_cut_short_is_only_a_warning(spark, captures, tmp_path, capsys):
    cut = tmp_path / "cut.pcap"
    cut.write_bytes((captures / SAMPLES[0]).read_bytes()[:-1])
    assert ingest_captures.main(["--lake", str(tmp_path / "lake"), "--captures", str(cut)]) == 0
    assert "cut.pcap: partial: the record at byte" in capsys.readouterr().err


def test_an_empty_ring_is_a_warning_and_a_page_says_so(spark, tmp_path, capsys):
    (tmp_path / "ring").mkdir()
    arguments = ["--lake", str(tmp_path / "lake"), "--captures", str(tmp_path / "ring")]
    for pages in ([], ["--pages", str(tmp_path / "pages")]):
        assert run_all.main([*arguments, *pages]) == 0
        assert f"warning: there are no capture files in {tmp_path / 'ring'}" in capsys.readouterr().err
    page = (tmp_path / "pages" / "index.html").read_text(encoding="utf-8")
    data = json.loads(re.search('<script type="application/json" id="site">(.*?)</script>', page, re.DOTALL)[1])
    assert not any(dataset["computed"] for dataset in data["data"].values())  # its first sentence: "No data: ..."


def test_files_that_something_still_writes_are_warnings(spark, captures, tmp_path, capsys):
    """The newest file has 0 bytes, then ends in zeros, then is whole. An older file that ends in zeros is damaged."""
    ring, root = tmp_path / "ring", str(tmp_path / "lake")
    ring.mkdir()
    whole = (captures / SAMPLES[0]).read_bytes()
    arguments = ["--lake", root, "--captures", str(ring)]

    def ledger():
        rows = Lake(spark, root).read(CAPTURE_FILES).orderBy("path").collect()
        return [(row["path"].rsplit("/", 1)[1], row["status"], row["packets"]) for row in rows]

    states = [(b"", "empty", 0), (whole[:20_000] + bytes(50_000), "partial", 69), (whole, "complete", 147)]
    for state, status, packets in states:
        (ring / "newest.pcap").write_bytes(state)
        assert ingest_captures.main(arguments) == 0
        assert ledger() == [("newest.pcap", status, packets)]
        assert (f"newest.pcap: {status}: " in capsys.readouterr().err) == (status != "complete")
    calls = Lake(spark, root).read(RPC_CALLS)
    assert (calls.count(), calls.where("observations > 1").count()) == (54, 0)
    (ring / "older.pcap").write_bytes((captures / SAMPLES[2]).read_bytes() + bytes(5000))
    os.utime(ring / "older.pcap", (1, 1))
    assert ingest_captures.main(arguments) == 3


def test_what_may_not_be_listed_or_is_gone_is_reported_and_the_others_are_read(
    spark, captures, tmp_path, capsys, monkeypatch
):
    name = os.fsdecode(b"caf\xe9.pcap")
    (tmp_path / "closed").mkdir()
    shutil.copy(captures / SAMPLES[0], tmp_path / name)
    scandir = os.scandir

    def refusing(folder):
        if str(folder) == str(tmp_path / "closed"):
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    arguments = ["--lake", str(tmp_path / "lake"), "--captures", str(tmp_path / name), str(tmp_path / "gone.pcap")]
    assert run_all.main([*arguments, "--snapshots", str(tmp_path / "closed" / "*.jsonl")]) == 3
    shown = capsys.readouterr()
    assert f"{tmp_path}/closed: cannot be listed: Permission denied" in shown.err
    assert f"no such file or folder: {tmp_path}/gone.pcap" in shown.err
    (row,) = Lake(spark, str(tmp_path / "lake")).read(CAPTURE_FILES).collect()
    assert (row["path"], row["status"]) == (f"{tmp_path}/caf\\xe9.pcap", "complete")
    assert run_all.main(["--lake", str(tmp_path / "lake"), "--captures", str(tmp_path / "closed")]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--captures", "/nowhere/at/all.pcap"], "no such file or folder: /nowhere/at/all.pcap"),
        (["--captures", "/tmp/no-such-*.pcap"], "no file matches /tmp/no-such-*.pcap"),
        ([], "no captures: --captures takes files"),
        (["--captures", ".", "--set", "capture.reorder=1"], "capture.reorder"),
        (["--captures", ".", "--set", "privacy.redact=[labels]"], "privacy.redact needs a key"),
        (["--captures", ".", "--as-of", "0001-01-01"], "out of range"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(tmp_path, capsys, arguments, message):
    assert run_all.main(["--lake", str(tmp_path / "lake"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_a_named_pipe_is_spooled_and_known_the_second_time(spark, captures, tmp_path, capsys):
    pipe, root = tmp_path / "pipe", str(tmp_path / "lake")
    data = (captures / SAMPLES[0]).read_bytes()
    for turn in range(2):
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(data,))
        writer.start()
        assert ingest_captures.main(["--lake", root, "--captures", str(pipe)]) == 0
        writer.join()
        pipe.unlink()
        assert summary(capsys)["tables"]["bronze.capture_files"]["rows_out"] == (1 if turn == 0 else 0)
    assert Lake(spark, root).read(RPC_CALLS).count() == 54


def test_a_pipe_longer_than_the_spool_may_be_stops_with_one_line(captures, tmp_path, capsys):
    command = [
        sys.executable, "-m", "jobs.ingest_captures", "--lake", str(tmp_path / "lake"), "--captures", "-",
        "--set", "capture.spool_bytes=1000",
    ]  # fmt: skip
    data = (captures / SAMPLES[0]).read_bytes()
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.decode().strip() == "ingest_captures: -: more than 1000 bytes (capture.spool_bytes)"


def test_packets_are_never_written_over_a_capture_of_the_lake(lake, tmp_path, capsys):
    call = lake.read(RPC_CALLS).first()
    (capture,) = lake.read(CAPTURE_FILES).where(f"capture_id = '{call['capture_id']}'").collect()
    link, before = tmp_path / "out.pcapng", Path(capture["path"]).read_bytes()
    link.hardlink_to(capture["path"])
    assert export_packets.main(["--lake", lake.root, "--call", call["call_key"], "--out", str(link)]) == 2
    assert f"out.pcapng: is {capture['path']}, which jobs read" in capsys.readouterr().err
    assert Path(capture["path"]).read_bytes() == before


@pytest.mark.tool("tshark")
def test_packets_of_a_call_open_in_wireshark(lake, tmp_path, capsys):
    call = lake.read(RPC_CALLS).where("opnum = 7 and interface_name = 'RemoteRead' and response_fragments = 1").first()
    out = tmp_path / "call.pcapng"
    assert export_packets.main(["--lake", lake.root, "--call", call["call_key"], "--out", str(out)]) == 0
    fields = ["-T", "fields", "-e", "dcerpc.pkt_type", "-e", "dcerpc.cn_call_id", "-e", "dcerpc.opnum"]
    shown = subprocess.run(
        ["tshark", "-n", "-r", out, "-Y", "dcerpc", *fields], capture_output=True, text=True, check=True
    )
    lines = [line.split("\t") for line in shown.stdout.splitlines()]
    assert [kind for kind, *_ in lines[:2]] == ["11", "12"]  # bind, bind_ack
    assert ["0", str(call["call_id"]), "7"] in lines
    assert ["2", str(call["call_id"]), "7"] in lines
    assert summary(capsys)["packets"] >= 4


def test_asking_for_a_call_that_is_not_there_is_one_line(lake, tmp_path, capsys):
    arguments = ["--lake", lake.root, "--call", "0" * 32, "--out", str(tmp_path / "x.pcapng")]
    assert export_packets.main(arguments) == 2
    assert f"call {'0' * 32}" in capsys.readouterr().err


@pytest.fixture(scope="module")
def suites(project):
    """Some expectations; tests/quality covers all, with --long."""
    return [
        each for each in read_suites(project / "conf" / "quality") if each.name in ("rpc_calls", "remote_read_calls")
    ]


@pytest.fixture(scope="module")
def checked(lake, suites):
    """The lake, with quality results."""
    now = datetime.now(UTC)
    assert check_suites(lake, suites, CheckOptions("first", now, now)).failed_rows("error") == []
    return lake


@pytest.fixture(scope="module")
def pages(checked, tmp_path_factory):
    """The folder of the lake's pages, and the content of the page."""
    lake, out = checked, tmp_path_factory.mktemp("pages")
    assert publish_dashboards.main(["--lake", lake.root, "--out", str(out)]) == 0
    text = (out / "index.html").read_text(encoding="utf-8")
    held = re.search('<script type="application/json" id="site">(.*?)</script>', text, re.DOTALL)[1]
    return out, json.loads(held)


def test_pages_hold_what_the_tables_say(lake, pages):
    _, site = pages
    for name, table in (
        ("attempts", "receive_attempts"),
        ("sequences", "ack_sequences"),
        ("intervals", "queue_history"),
    ):
        assert site["data"][name]["count"] == lake.read(catalog.table(f"gold.{table}")).count() > 0
    assert site["data"]["calls"]["count"] == lake.read(RPC_CALLS).count()
    newest = lake.read(CAPTURE_FILES).agg(F.unix_micros(F.max("last_packet_at"))).first()[0]
    assert site["as_of"] == newest
    assert site["column_comments"]["attempts"]["wait_ms"] == "returned_at - started_at, milliseconds"
    not_there = {name: data["note"] for name, data in site["data"].items() if not data["computed"]}
    assert not [note for note in not_there.values() if lake.exists(catalog.table(note.split()[-1]))]


def test_pages_show_what_was_checked(lake, pages, suites):
    out, site = pages
    shown = site["data"]["quality"]
    assert shown["computed"], shown["note"]
    assert shown["count"] == sum(len(suite.expectations) for suite in suites) == lake.read(QUALITY_RESULTS).count()
    assert site["column_comments"]["quality"]["success"] == "it held for these rows"
    # The pages are written again when any table changes.
    made_of = json.loads((out / ".provenance.json").read_text(encoding="utf-8"))["provenance"]
    shown_tables = (*catalog.DATA_TABLES, QUALITY_RESULTS)
    assert made_of["tables"] == {str(table): lake.version(table) for table in shown_tables}


def test_the_example_rows_of_the_documentation(checked, captures):
    """UPDATE_EXAMPLE_ROWS=1 regenerates them; of other tables: test_runs.py, tests/contract/test_example_rows.py."""
    tables = (table for table in catalog.ALL_TABLES if table is not RUNS and checked.exists(table))
    rows = {table: checked.select(table, "TRUE") for table in tables}
    example_rows.check({table: each for table, each in rows.items() if each.num_rows}, paths=[(captures, "/data/ring")])


def test_a_lake_of_tables_without_rows_has_pages(spark, tmp_path, capsys):
    """Captures alone, without purges and without queries of queue managers, give no queue history either."""
    empty, out = Lake(spark, str(tmp_path / "lake")), tmp_path / "pages"
    run_concurrently({table: partial(empty.create, table) for table in catalog.DATA_TABLES})
    assert publish_dashboards.main(["--lake", empty.root, "--out", str(out)]) == 0
    assert (out / "index.html").exists()
    assert summary(capsys)["attention"] == []


def test_pages_are_made_anew_only_of_something_new(lake, pages, capsys):
    out, _ = pages
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert publish_dashboards.main(["--lake", lake.root, "--out", str(out)]) == 0
    result = summary(capsys)
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert result["written_bytes"]["index.html"] == (out / "index.html").stat().st_size
    assert any("messages at risk" in line for line in result["attention"])


@pytest.mark.tool("tshark")
def test_packets_that_a_page_names_are_the_calls(captures, pages):
    """The packet numbers that a page shows for calls are those of requests and responses in Wireshark."""
    columns = {
        name: column.get("values")
        or [column["dictionary"][index] if index >= 0 else None for index in column["indices"]]
        for name, column in pages[1]["data"]["calls"]["columns"].items()
    }
    calls = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path = str(captures / SAMPLES[0])
    here = [call for call in calls if call["capture"] == path == call["response_capture"]]
    assert len(here) == 54
    requests = {call["request_packet"] for call in here}
    shown = " || ".join(f"frame.number == {packet}" for packet in requests | {call["response_packet"] for call in here})
    fields = ["-T", "fields", "-e", "frame.number", "-e", "dcerpc.pkt_type"]
    command = ["tshark", "-n", "-r", path, "-Y", shown, *fields]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # A PDU of several segments is shown with its last one; its first byte, which counts here, has no type there.
    found = {
        int(number): kinds.split(",")[0] for number, kinds in (line.split("\t") for line in done.stdout.splitlines())
    }
    assert len(found) == 108
    assert {kind for number, kind in found.items() if number in requests} <= {"0", ""}
    assert {kind for number, kind in found.items() if number not in requests} <= {"2", "3", ""}
    assert len([kind for kind in found.values() if kind]) > 100


def test_queries_and_widgets_of_the_databricks_dashboard_run(lake, pages):
    definition = json.loads((pages[0] / "msmq.lvdash.json").read_text())
    queries = {each["name"]: "".join(each["queryLines"]) for each in definition["datasets"]}
    run = 0
    for widget in (each["widget"] for page in definition["pages"] for each in page["layout"]):
        query = widget["queries"][0]["query"]
        sql = queries[query["datasetName"]]
        if not all(lake.exists(table) for table in catalog.ALL_TABLES if lake.sql_name(table) in sql):
            continue
        fields = [f"{field['expression']} AS `{field['name']}`" for field in query["fields"]]
        groups = "" if query["disaggregated"] else " GROUP BY ALL"
        frame = lake.spark.sql(f"SELECT {', '.join(fields)} FROM ({sql}){groups}")
        assert frame.columns == [field["name"] for field in query["fields"]]
        run += 1
    assert run > 15


@pytest.mark.long
def test_of_what_is_cut_the_pages_hold_sums_over_all(lake):
    def summed(data):
        return data.rows.num_rows if data.summary is None else sum(data.summary.column("n").to_pylist())

    moment = datetime(2024, 5, 1, tzinfo=UTC)
    whole = read_dashboard_data(lake, limits=RowLimits(), published_at=moment).datasets
    few = read_dashboard_data(lake, limits=RowLimits(dataset_rows=7, summary_rows=60), published_at=moment).datasets
    for name in ("attempts", "sequences", "calls", "findings", "coverage"):
        assert not whole[name].truncated
        assert few[name].truncated
        assert few[name].total_rows == whole[name].rows.num_rows
        assert summed(few[name]) == few[name].total_rows or few[name].note.startswith("sums of the 60 largest groups")
        assert few[name].rows.num_rows == 7
        assert lake.spark.sql(few[name].query).count() == few[name].total_rows
    for name in ("queues", "transfers"):
        assert few[name].rows.schema.names == whole[name].rows.schema.names
    assert not few["attempts"].note
    outcomes = whole["attempts"].rows.column("outcome").to_pylist()
    found = few["attempts"].summary.to_pylist()
    assert {each: sum(row["n"] for row in found if row["outcome"] == each) for each in set(outcomes)} == {
        each: outcomes.count(each) for each in set(outcomes)
    }
    small = read_dashboard_data(lake, limits=RowLimits(table_bytes=5_000), published_at=moment).datasets["attempts"]
    assert small.rows.nbytes <= 5_000
    assert small.summary.nbytes <= 5_000
    assert small.total_rows == whole["attempts"].total_rows > small.rows.num_rows > 0
    named = {key for row in few["attempts"].rows.to_pylist() for key in row["evidence"]}
    there = few["calls"].rows.column("call_key").to_pylist() + few["evidence_calls"].rows.column("call_key").to_pylist()
    assert named & set(there)
    paths = few["evidence_calls"].rows.column("capture").to_pylist()
    assert paths
    assert None not in paths


@pytest.mark.long
def test_what_a_run_reads_is_what_the_data_source_reads(spark, captures, tmp_path):
    register_capture_source(spark)
    tasks = tmp_path / "tasks.jsonl"
    reads = plan_ingest(list_files([str(captures)]), ledger_of()).reads
    for kind in ("capture_files", "rpc_calls"):
        rows = build_read_tasks(reads, tasks, IngestClock(), rows=kind).frame(
            spark, from_arrow_schema(BRONZE_SCHEMAS[kind])
        )
        whole = spark.read.format("msmq_capture").option("rows", kind).load(str(captures))
        assert rows.schema == whole.schema
        assert sorted(rows.collect(), key=str) == sorted(whole.collect(), key=str)
    assert len(tasks.read_text().splitlines()) == len(SAMPLES)  # one task for each file, though they are small


def test_a_messages_story_is_told_by_queue_and_number(lake, capsys):
    number = lake.read(RECEIVE_ATTEMPTS).where("outcome = 'acked' AND queue IS NOT NULL").first()
    asked = ["--queue", f"DIRECT=OS:{number['queue']}", "--lookup-id", str(number["lookup_id"]), "--json"]
    assert trace_message.main(["--lake", lake.root, *asked]) == 0
    *lines, end = capsys.readouterr().out.splitlines()
    assert json.loads(end)["messages"] == len(lines) > 0
    story = next(each for each in map(json.loads, lines) if each["message_key"] == number["message_key"])
    events = {event["kind"]: event for event in story["events"] if event["row_key"] == number["attempt_key"]}
    assert events["ended"]["text"].startswith("acked")
    call = lake.read(RPC_CALLS).where(F.col("call_key") == events["start"]["call_key"]).first()
    assert (events["start"]["packet"], events["start"]["response_packet"]) == (
        call.request_packet,
        call.response_packet,
    )
    assert trace_message.main(["--lake", lake.root]) == 2


def test_a_lost_and_a_doubled_row_are_found_among_what_changed(spark, checked, suites, tmp_path):
    shutil.copytree(checked.root, tmp_path / "lake")
    copy = Lake(spark, str(tmp_path / "lake"))
    now = datetime.now(UTC)
    lost = copy.read(REMOTE_READ_CALLS).where("method = 'R_OpenQueue'").first()["call_key"]
    copy.delete(REMOTE_READ_CALLS, f"call_key = '{lost}'")
    doubled = copy.read(RPC_CALLS).where(F.col("call_key") != lost).limit(1)
    copy.append(RPC_CALLS, doubled)
    found = check_suites(copy, suites, CheckOptions("second", now, now))
    assert {(row["suite"], row["expectation"]): row["unexpected"] for row in found.failed_rows("error")} == {
        ("rpc_calls", "reads_decoded"): 1, ("rpc_calls", "keys_unique"): 2,
    }  # fmt: skip
    assert max(row["evaluated"] for row in found.rows) == 3
