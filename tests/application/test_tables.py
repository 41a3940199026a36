"""The application's columns of silver.messages, as runs write them: both ways, all settings, redacted, forgotten."""

import json
import shutil

import pyarrow as pa
import pytest

from application import recorded
from capture.merge.cutting import cut, records
from engines import without_spark
from jobs import forget, run_all
from pipeline.lake.lake import Lake
from privacy.redaction.test_lake import EVERYTHING, found
from schemas.bronze import RPC_CALLS
from schemas.messages import APPLICATION_COLUMNS, MESSAGES
from schemas.sessions import SESSION_PACKETS
from udfs.pseudonyms import PSEUDONYM_KINDS, Pseudonymizer

NAMES = [column.name for column in APPLICATION_COLUMNS]
KEY = "7d9f0a53c1b24e6688aa0b1c2d3e4f50"
FRAMEWORKS = {
    "nservicebus": "NServiceBus", "rebus": "Rebus", "mass transit": "MassTransit", "wcf": "WCF",
    "xml": "System.Messaging", "nrbf": "System.Messaging", "variant": "System.Messaging", "cut": "NServiceBus",
    "nothing": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def capture(tmp_path_factory):
    path = tmp_path_factory.mktemp("capture") / "frameworks.pcap"
    path.write_bytes(recorded.capture())
    return path


def ingest(capture, root, *settings, more=()):
    """Run bronze and silver on the capture, without Spark; return the lake."""
    given = [argument for setting in ("run.engine=local", *settings) for argument in ("--set", setting)]
    with pytest.MonkeyPatch.context() as patch:
        for name, nothing in (("update_gold", None), ("console_summary", ""), ("queue_lines", [])):
            patch.setattr(run_all, name, lambda *_, nothing=nothing: nothing)
        assert run_all.main(["--lake", str(root), "--captures", str(capture), *given, *more]) == 0
    return Lake(without_spark(), str(root))


@pytest.fixture(scope="module")
def lakes(capture, tmp_path_factory):
    """Return a function that returns the lake of some settings, which tests only read."""
    made = {}

    def lake(*settings):
        if settings not in made:
            made[settings] = ingest(capture, tmp_path_factory.mktemp("lake"), *settings)
        return made[settings]

    return lake


def messages(lake):
    """Return rows of messages by label, those that calls returned and those of sessions, with their columns."""
    rows = lake.select(MESSAGES, "TRUE").to_pylist()
    found = [{}, {}]
    for row in rows:
        values = {name: dict(row[name]) if name == "application_headers" and row[name] else row[name] for name in NAMES}
        found[row["packet_key"] is not None][row["label"]] = values
    return found


KNOWN, ALL = ("store.bodies=true",), ("store.application_headers=all",)
EVERYTHING_SAID = (*ALL, *KNOWN)


def test_both_ways_to_a_message_say_the_same(lakes):
    by_rpc, on_the_way = messages(lakes(*KNOWN))
    assert by_rpc == on_the_way
    assert {label: row["framework"] for label, row in by_rpc.items()} == FRAMEWORKS
    failed = by_rpc["nservicebus"]
    assert (failed["failed_queue"], failed["exception_type"]) == ("billing@SRV2", "System.TimeoutException")
    assert (failed["immediate_retries"], failed["delayed_retries"]) == (4, 3)
    assert {row["exception_message"] for row in by_rpc.values()} == {None}
    assert {row["application_headers"] for row in by_rpc.values()} == {None}
    assert by_rpc["cut"]["application_errors"][0]["code"] == "truncated"
    assert set(by_rpc["nothing"].values()) == {None}
    assert "4711" not in json.dumps(by_rpc, default=str)


def test_all_keeps_headers_and_with_bodies_what_exceptions_said(lakes):
    by_rpc, on_the_way = messages(lakes(*ALL))
    assert by_rpc == on_the_way
    kept = by_rpc["nservicebus"]["application_headers"]
    assert {key for key in recorded.FAILED if key not in kept} == {
        "NServiceBus.ExceptionInfo.Message",
        "NServiceBus.ExceptionInfo.StackTrace",
    }
    assert "rbs2-error-details" not in by_rpc["rebus"]["application_headers"]
    assert "4711" not in json.dumps(by_rpc, default=str)
    for rows in messages(lakes(*EVERYTHING_SAID)):
        assert rows["nservicebus"]["application_headers"] == recorded.FAILED
        assert rows["nservicebus"]["exception_message"] == recorded.FAILED["NServiceBus.ExceptionInfo.Message"]
        assert rows["rebus"]["exception_message"] == "card 4711"


def test_none_keeps_the_framework_alone(lakes):
    for rows in messages(lakes("store.application_headers=none")):
        assert {label: row["framework"] for label, row in rows.items()} == FRAMEWORKS
        assert {name for row in rows.values() for name, value in row.items() if value is not None} == {"framework"}


def test_a_redacted_lake_has_the_pseudonyms_of_queues_and_machines(lakes, capture, tmp_path):
    plain, _ = messages(lakes(*EVERYTHING_SAID))
    key = tmp_path / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    settings = (EVERYTHING, f"privacy.scratch_folder={tmp_path / 'work'}", *EVERYTHING_SAID)
    both = messages(ingest(capture, tmp_path / "redacted", *settings, more=("--redact-key", str(key))))
    by = Pseudonymizer(PSEUDONYM_KINDS, KEY.encode())
    joined = by.queue_name("srv2\\private$\\billing").partition("\\private$\\")
    for rows in both:
        found = {row["application_message_id"]: row for row in rows.values() if row["failed_queue"]}
        row = found[recorded.FAILED["NServiceBus.MessageId"]]  # GUIDs stay
        assert row["failed_queue"] == f"{joined[2]}@{joined[0]}"
        assert row["processing_endpoint"] == joined[2]
        assert row["exception_type"] == by.label("System.TimeoutException")
        assert row["sent_types"] == [by.label(each) for each in plain["nservicebus"]["sent_types"]]
        assert (row["framework"], row["intent"], row["delayed_retries"]) == ("NServiceBus", "Send", 3)
        assert {each["application_headers"] for each in rows.values()} == {None}
        assert {each["exception_message"] for each in rows.values()} == {None}
    texts = json.dumps(both, default=str).lower()
    words = ("sales", "billing", "srv1", "srv2", "orderplaced", "tempuri", "4711")
    assert [word for word in words if word in texts] == []


def test_forgotten_messages_leave_nothing(lakes, tmp_path, monkeypatch):
    monkeypatch.setattr(forget, "_republish_pages", lambda *_: None)
    root = tmp_path / "lake"
    shutil.copytree(lakes(*EVERYTHING_SAID).root, root)
    assert holding(root) != []
    assert forget.main(["--lake", str(root), "--before", "2026-01-01", "--set", "run.engine=local"]) == 0
    assert Lake(without_spark(), str(root)).select(MESSAGES, "TRUE").num_rows == 0
    assert holding(root) == []


def holding(root):
    """Return the files of a lake in which a word of an application's header is, compressed by Parquet or not."""
    words = ("billing@SRV2", "Sales.OrderPlaced", "TimeoutException", "card 4711")
    return [hit for hit in found(root, tuple(word.lower() for word in words)) if "_delta_log" not in hit[0]]


def test_rows_of_an_earlier_program_are_filled_where_their_bytes_are(lakes, capture, tmp_path):
    root = tmp_path / "lake"
    shutil.copytree(lakes(*KNOWN).root, root)
    lake = Lake(without_spark(), str(root))
    rows = lake.select(MESSAGES, "TRUE")
    before = pa.table(
        [pa.nulls(rows.num_rows, each.type) if each.name in NAMES else rows[each.name] for each in rows.schema],
        rows.schema,
    )
    lake.replace_changed(MESSAGES, before, rows, dates={*rows["event_date"].to_pylist()})
    assert {row["framework"] for each in messages(lake) for row in each.values()} == {None}
    assert messages(ingest(capture, root, *KNOWN, more=("--reprocess", "all"))) == messages(lakes(*KNOWN))


def test_rows_whose_bytes_are_gone_keep_what_they_have(capture, tmp_path):
    lake = ingest(capture, tmp_path / "lake", "store.stubs=false")
    expected = messages(lake)
    assert {row["framework"] for row in expected[0].values()} == {*FRAMEWORKS.values()}
    assert lake.select(RPC_CALLS, "response_stub IS NOT NULL").num_rows == 0
    assert lake.select(SESSION_PACKETS, "kind = 'user_message' AND packet IS NOT NULL").num_rows == 0
    assert messages(ingest(capture, tmp_path / "lake", "store.stubs=false")) == expected


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_captures_that_come_late_and_in_any_order_give_the_same(lakes, capture, tmp_path, order):
    whole = capture.read_bytes()
    pieces = cut(whole, [records(whole) // 3, records(whole) * 5 // 6])  # in calls, and in the session
    for number in order:
        path = tmp_path / f"{number}.pcap"
        path.write_bytes(pieces[number])
        lake = ingest(path, tmp_path / "lake", *KNOWN)
    assert messages(lake) == messages(lakes(*KNOWN))


@pytest.mark.spark
def test_the_store_of_spark_has_the_same_rows(lakes, spark, tmp_path):
    lake = lakes(*EVERYTHING_SAID)
    other = Lake(spark, str(tmp_path / "spark"), store="spark")
    other.append(MESSAGES, lake.select(MESSAGES, "TRUE"))
    assert messages(other) == messages(lake)


@pytest.mark.long
@pytest.mark.spark
def test_a_run_on_the_store_of_spark_writes_the_same_rows(lakes, spark, capture, tmp_path):
    ingest(capture, tmp_path / "spark", *EVERYTHING_SAID, "lake.store=spark", "lake.read_log=spark")
    assert messages(Lake(spark, str(tmp_path / "spark"))) == messages(lakes(*EVERYTHING_SAID))
