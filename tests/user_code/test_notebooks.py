"""The notebooks: their format, and their results on the lake of the sample."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

import framework_messages
from application import recorded
from application.test_tables import ingest
from example_counts import one_in
from pipeline.reports.targets.target_file import bundled_targets
from schemas.catalog import ALL_TABLES
from user_code.runner import cells, run

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
TOUR, MESSAGE, STUCK, COMQC, QUALITY, WHERE, ESTATE = NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_explains_itself_and_is_short(path):
    parts = list(cells(path.read_text(encoding="utf-8")))
    texts = [content for is_text, content in parts if is_text]
    assert texts[0].startswith("# ")
    assert sum(len(text.split()) for text in texts) > 80
    assert sum(content.count("\n") for is_text, content in parts if not is_text) < 150
    for number, (is_text, content) in enumerate(parts):
        if not is_text:
            compile(content, f"{path.name}, cell {number}", "exec")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_its_widgets_and_what_is_not_in_the_lake(path):
    first, second, *_ = (content for is_text, content in cells(path.read_text(encoding="utf-8")) if not is_text)
    assert all(line.startswith("dbutils.widgets.text(") for line in first.strip().splitlines())
    assert second.rstrip().endswith("print(table.describe_missing())")


PREFIX = "notebooks_"
ACCOUNTS = FOLDER.parent / "tests" / "transfers_peer" / "accounts"


def account(name):
    """What the queue managers of a recording know of its messages, a hop each, in the order of the first sending."""
    lines = (ACCOUNTS / f"{name}.account.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [each for each in map(json.loads, lines) if each["record"] == "message"]
    return sorted(rows, key=lambda each: each["sendings"])


@pytest.fixture(scope="module", params=["folder", pytest.param("catalog", marks=pytest.mark.long)])
def places(request, spark, demo_lake):
    """Widgets that name the tables: in a folder, or in a catalog with a prefix, which has the same tables."""
    if request.param == "folder":
        yield {"lake": str(demo_lake)}
        return
    layers = {table.layer for table in ALL_TABLES}
    for layer in layers:
        spark.sql(f"CREATE DATABASE {PREFIX}{layer}")
    for table in ALL_TABLES:
        folder = demo_lake / table.layer / table.name
        if folder.exists():  # else Spark would make a table without columns there
            spark.catalog.createTable(f"{PREFIX}{table}", str(folder), "delta")
    yield {"catalog": "spark_catalog", "prefix": PREFIX}
    for layer in layers:
        spark.sql(f"DROP DATABASE {PREFIX}{layer} CASCADE")


@pytest.mark.spark
@pytest.mark.parametrize("places", [pytest.param("folder", marks=pytest.mark.long), "catalog"], indirect=True)
def test_the_tour(spark, places):
    output = run(TOUR, spark, **places, captures=str(FOLDER.parent / "data" / "sample"))
    files, calls, risks, packets, _, opens = output.tables
    assert len(files) > 10
    assert len(calls) == 20
    assert {row["loss_risk"] for row in risks} >= {"read_twice", "poison"}
    assert all(row["filter"].startswith("frame.number == ") for row in packets)
    assert len(packets) >= 6
    assert len(output.figures) == 2
    assert {row["method"] for row in opens} > {"R_OpenQueue", "R_QMOpenRemoteQueue"}


@pytest.mark.spark
class TestOnTheDemosLake:
    def test_the_message_that_was_handed_out_most(self, spark, places):
        sightings, attempts, fates, packets, calls = run(MESSAGE, spark, **places).tables
        assert len(attempts) > 5
        assert len([row for row in attempts if row["outcome"] == "acked"]) > 1
        assert len(sightings) > 1
        assert fates[0]["loss_risk"] == "read_twice"
        assert all(row["path"] and row["request_packet"] for row in packets)
        assert {row["ack_name"] for row in calls} >= {None, "RR_ACK"}

    def test_a_message_by_its_label(self, spark, places):
        sightings, attempts, *_ = run(MESSAGE, spark, **places, message="order 701").tables
        assert {row["label"] for row in sightings} == {"order 701"}
        assert len(attempts) >= 1

    def test_a_message_that_is_not_there(self, spark, places, capsys):
        output = run(MESSAGE, spark, **places, message="no such label")
        assert "no message of that name" in capsys.readouterr().out
        assert output.tables == [[], [], [], [], []]

    def test_the_queue_that_stands_still(self, spark, places, capsys):
        output = run(STUCK, spark, **places)
        said = capsys.readouterr().out
        assert "Its transfer is stalled since" in said
        assert len(output.figures) == 3
        if "lake" in places:  # once
            run(STUCK, spark, **places, queue="growing")
            assert "24 messages" in capsys.readouterr().out

    def test_the_verdict_for_a_queue_in_trouble(self, spark, places, capsys):
        queue = "0cf753ea-ab77-5e15-87bc-834df08a718c\\0000000a"
        alerts = run(STUCK, spark, **places, queue=queue).tables[0]
        said = capsys.readouterr().out
        assert f"{queue}\n  TROUBLE since 2026-11-21 12:36:46: the receiver refuses the sequence" in said
        assert {(row["condition"], row["follows_from"]) for row in alerts} == {
            ("sequence_refused", "sequence_refused"), ("order_acks_stalled", "sequence_refused"),
        }  # fmt: skip

    def test_com_plus_calls(self, spark, places, capsys):
        output = run(COMQC, spark, **places)
        assert capsys.readouterr().out.splitlines() == [
            "Not in the lake, shown without rows: nothing.",
            "35 calls in 30 sightings of messages with recorded calls",
            "2 of them violate the format: see comqc_rejected",
        ]
        methods, arguments, retried, fates = output.tables
        assert methods[0]["calls"] == 21  # of the message that went through the retry queues
        assert len(methods) == 8
        assert {"VT_I4", "VT_BSTR", "VT_ARRAY|VT_VARIANT", "VT_BYREF|VT_VARIANT"} <= {
            row["vt_name"] for row in arguments
        }
        assert retried[0]["label"] == "never played"
        assert {queue.rpartition("billing")[2] for queue in retried[0]["queues"]} >= {"", "_0", "_4", "_deadqueue"}
        assert "poison" in {row["loss_risk"] for row in fates}
        assert len(output.figures) == 1

    def test_a_message_that_went_over_most_hops(self, spark, places, capsys):
        output = run(WHERE, spark, **places)
        (message,), hops, lines, packets = output.tables
        own = [each for each in account("06-two-hops") if each["message_id"] == message["message_id"]]
        assert len(own) == 2
        for hop, truth in zip(hops, own, strict=True):
            assert {name: hop[name] for name in ("sender_address", "receiver_address", "hop_count", "outcome")} == {
                name: truth[name] for name in ("sender_address", "receiver_address", "hop_count", "outcome")
            }
        events = Counter(line["event"] for line in lines)
        assert events["sent"] == 1
        assert events["sending"] == sum(len(each["sendings"]) for each in own) == 2
        assert events["session ack"] == sum(each["session_acked_by"] is not None for each in own) == 2
        assert events["receive ack"] == sum(each["receive_acked_by"] is not None for each in own)
        assert events["report"] == len({json.dumps(report) for each in own for report in each["reports"]}) > 2
        times = [line["at"] for line in lines]
        assert times == sorted(times)
        sendings = [line["place"] for line in lines if line["event"] == "sending"]
        assert sendings == [f"{each['sender_address']} \u2192 {each['receiver_address']}" for each in own]
        assert {row["path"].rpartition("/")[2] for row in packets} == {"06-two-hops.pcapng"}
        assert len({row["packet_number"] for row in packets}) == len(packets) > 4
        assert len(output.figures) == 1
        said = capsys.readouterr().out
        assert f"Last hop: {own[1]['sender_address']} to {own[1]['receiver_address']}: {own[1]['outcome']}." in said

    def test_a_message_that_was_sent_again_by_its_identifier(self, spark, places):
        again = max(account("08-stall"), key=lambda each: len(each["sendings"]))
        _, (hop,), lines, _ = run(WHERE, spark, **places, message=again["message_id"]).tables
        assert hop["sendings"] == len(again["sendings"]) > 3
        assert hop["outcome"] == again["outcome"]
        sent_again = [line["at"] for line in lines if line["event"] == "sending"]
        acked = [line["at"] for line in lines if line["event"] == "order ack"]
        assert len(sent_again) == hop["sendings"]
        assert acked > sent_again[-1:]

    def test_a_message_that_was_read_and_not_seen_on_its_way(self, spark, places, capsys):
        _, hops, lines, packets = run(WHERE, spark, **places, message="order 701").tables
        assert hops == packets == []
        assert {line["event"] for line in lines} >= {"sent", "seen in queue", "read begins", "read ends"}
        said = capsys.readouterr().out
        assert "It was not seen on TCP 1801" in said
        assert run(WHERE, spark, **places, message="no such label").tables == [[], [], [], []]

    def test_the_estate(self, spark, places, capsys):
        output = run(ESTATE, spark, **places, days="400", quota="1000000")
        queues, flows, hours, machines, verdicts, obstacles, growth = output.tables
        names = {row["queue"] for row in queues}
        assert len(names) == len(queues) > 40
        assert {row["way"] for row in flows} >= {"tcp_1801", "rpc_read"}
        sendings = sum(row["sendings"] for row in hours)
        assert sendings == sum(row["sendings"] or 0 for row in queues) > 200
        assert {role for row in machines for role in row["roles"]} >= {"sends", "routes", "holds_queues", "reports"}
        targets = {target.name for target in bundled_targets()}
        assert {row["queue"] for row in verdicts} == names
        assert all(row.keys() == {"queue"} | targets for row in verdicts)
        assert {row["target"] for row in obstacles} == targets
        assert all(row["evidence"] for row in obstacles)
        assert {row["what"] for row in growth} == {"messages", "journal", "all queues"}
        assert {row["trend"] for row in growth} == {None}  # it was recorded on one day
        assert {(row["trend_quota_bytes"], row["quota_assumed"]) for row in growth} == {(1_000_000, False)}
        assert len(output.figures) == 3
        assert f"{len(queues)} queues, " in capsys.readouterr().out

    def test_quality(self, spark, places):
        output = run(QUALITY, spark, **places)
        assert {row["rows"] for row in output.tables[0]} == {0}
        results = output.tables[1]
        assert len(results) > 200
        assert [row["expectation"] for row in results if not row["success"]] == ["machines_fresh"]  # they are recorded
        assert all(row["description"] and row["limits"] for row in results)
        assert len(output.figures) == 2


@pytest.mark.spark
def test_the_conversation_of_a_message(spark, tmp_path, capsys):
    (tmp_path / "frameworks.pcap").write_bytes(recorded.capture())
    ingest(tmp_path / "frameworks.pcap", tmp_path / "lake")
    capsys.readouterr()
    run(MESSAGE, spark, lake=str(tmp_path / "lake"), message=framework_messages.NSB_HEADERS["NServiceBus.MessageId"])
    said = capsys.readouterr().out
    conversation = framework_messages.NSB_HEADERS["NServiceBus.ConversationId"]
    assert f"\nconversation {conversation}: 2 messages, 1 failed\n" in said
    assert "failed in billing@SRV2: System.TimeoutException" in said


@pytest.mark.spark
@pytest.mark.parametrize(
    "widgets", one_in(2, [{"lake": "nothing"}, {"catalog": "spark_catalog", "prefix": "nothing_"}])
)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end_on_a_lake_that_has_none_of_its_tables(spark, tmp_path, capsys, path, widgets):
    """Runs write no table for which they have no rows: without captures there are no calls, for example."""
    captures = str(FOLDER.parent / "data" / "sample")
    output = run(
        path, spark, **{**widgets, **({"lake": str(tmp_path)} if "lake" in widgets else {})}, captures=captures
    )
    said = capsys.readouterr().out.splitlines()[0]
    assert said.startswith("Not in the lake, shown without rows: ")
    names = set(re.findall(r"(?:bronze|silver|gold)\.\w+", said))
    assert names == set(re.findall(r'table\("([a-z_.]+)"\)', path.read_text(encoding="utf-8"))) > set()
    assert len(output.tables) > 2
