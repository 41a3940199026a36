"""Redaction is declared for every column of bronze and silver that holds text or bytes, and applied as declared."""

import pyarrow as pa
import pytest

from pipeline.collector import client
from pipeline.collector.round import COLLECTOR_VERSION
from pipeline.privacy import redacted_columns
from pipeline.privacy.redacted_columns import (
    REDACTED_BRONZE_TABLES,
    REDACTED_SILVER_TABLES,
    column_redactor,
    contains_text_or_bytes,
    redact_rows,
)
from schemas import catalog
from schemas.bronze import CAPTURE_FILES, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
from schemas.calls import MANAGEMENT_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.comqc import COMQC_CALLS
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, PROPERTIES, QUEUE_SNAPSHOTS
from udfs.keys import key
from udfs.pseudonyms import PSEUDONYM_KINDS, Pseudonymizer

COLLECTOR_ERRORS = [getattr(client, name) for name in dir(client) if name.endswith("_CODE")]
BY = Pseudonymizer(PSEUDONYM_KINDS, b"a key of the tests")


def batch(table, **columns):
    """Return a batch of one row, null except for some columns."""
    schema = table.schema()
    return pa.RecordBatch.from_pylist([{name: columns.get(name) for name in schema.names}], schema)


def redacted(table, **columns):
    return redact_rows(table, batch(table, **columns), BY).to_pylist()[0]


@pytest.mark.parametrize("table", catalog.ALL_TABLES, ids=str)
def test_every_column_with_texts_is_decided_about(table):
    fields = table.schema()
    undecided = [
        f.name
        for f in fields
        if contains_text_or_bytes(f.type) and f.name != "sighting_key" and column_redactor(table, f.name) is None
    ]
    assert undecided == []


def test_every_table_below_gold_is_written_by_redaction_or_made_of_such():
    assert {*REDACTED_BRONZE_TABLES, *REDACTED_SILVER_TABLES, QUEUE_ALIASES, HOSTS} == {
        table for table in catalog.DATA_TABLES if table.layer != "gold"
    }


def test_a_column_that_nobody_decided_about_is_not_written(monkeypatch):
    monkeypatch.setattr(redacted_columns, "column_redactor", lambda *_: None)
    with pytest.raises(KeyError, match=r"bronze\.rpc_calls\.call_key"):
        redact_rows(RPC_CALLS, batch(RPC_CALLS), BY)


def test_lists_of_queues_have_the_pseudonyms_of_their_queues():
    row = redacted(MESSAGES, destination_queue="srv1\\q", destination_list=["srv1\\q", None, "srv2\\q"], admin_list=[])
    assert row["destination_list"] == [row["destination_queue"], None, BY.queue_name("srv2\\q")]
    assert "srv1" not in row["destination_queue"]
    assert row["admin_list"] == []


def test_nothing_is_kept_of_bytes():
    row = redacted(
        RPC_CALLS,
        request_stub=b"secret",
        response_stub=b"secret",
        request_signed_bytes=b"secret",
        response_signed_bytes=b"secret",
    )
    assert [value for value in row.values() if value is not None] == []
    assert redacted(QUARANTINE, sample=b"secret", reason="stray")["sample"] is None
    message = redacted(MESSAGES, body=b"secret", extension=b"secret", soap_header="secret")
    assert [value for value in message.values() if value is not None] == []
    segment = dict.fromkeys(
        ("side", "time_ns", "number", "file_offset", "sequence", "acknowledgement", "flags", "size"), 1
    )
    assert redacted(PENDING, segments=[{**segment, "data": b"secret"}])["segments"] is None
    assert redacted(COMQC_CALLS, target_text="secret", marshaled=b"secret", arguments=[{"vt": 8, "value": "secret"}])[
        "arguments"
    ] == [{"vt": 8, "vt_name": None, "value": None}]
    raw = redacted(SNAPSHOTS_RAW, properties=[{"property_id": 1, "vt": 31, "value_json": '"secret"'}])
    assert raw["properties"] == [{"property_id": 1, "vt": 31, "value_json": None}]


def test_keys_agree_over_tables():
    call = redacted(RPC_CALLS, call_key="c", connection_id="n")
    message = redacted(MESSAGES, call_key="c", sighting_key=key("c"))
    assert message["call_key"] == call["call_key"] != "c"
    assert message["sighting_key"] == key(call["call_key"])
    assert redacted(PENDING, call_keys=["c"])["call_keys"] == [call["call_key"]]
    assert redacted(PROPERTIES, snapshot_id="c")["snapshot_id"] == call["call_key"]  # of the wire the call's key


@pytest.mark.parametrize(
    ("name", "column", "value", "told"),
    [
        ("PROPID_MGMT_QUEUE_PATHNAME", "value_text", r"srv1\private$\q", BY.queue_name(r"srv1\private$\q")),
        ("PROPID_MGMT_QUEUE_STATE", "value_text", "Connected", "Connected"),
        ("PROPID_MGMT_QUEUE_STATE", "value_text", "srv1", BY.known_text("srv1", str.isspace)),
        ("PROPID_MGMT_MSMQ_TYPE", "value_text", "Windows Server 2008, MSMQ 5.0", "Windows Server 2008, MSMQ 5.0"),
        ("PROPID_MGMT_MSMQ_TYPE", "value_text", "MSMQ 10.0.0.7", f"MSMQ {BY.known_text('10.0.0.7', str.isspace)}"),
        (
            "PROPID_MGMT_MSMQ_PRIVATEQ",
            "value_texts",
            [r"srv1\private$\q", None],
            [BY.queue_name(r"srv1\private$\q"), None],
        ),
        ("PROPID_MGMT_MSMQ_DSSERVER", "value_text", r"\\dc1", BY.host_name("dc1")),
        ("PROPID_MGMT_QUEUE_CONNECTION_HISTORY", "value_json", '["10.0.0.7"]', f'["{BY.address("10.0.0.7")}"]'),
        ("PROPID_MGMT_QUEUE_EOD_NEXT_SEQ", "value_binary", b"\1" * 16, None),
        ("0x00000400", "value_text", "whatever", None),
        ("0x00000400", "value_binary", b"whatever", None),
    ],
)
def test_what_a_text_is_hangs_on_the_property(name, column, value, told):
    assert redacted(PROPERTIES, property_name=name, **{column: value})[column] == told


@pytest.mark.parametrize(
    ("table", "column", "kept", "replaced"),
    [
        (RPC_BINDS, "secondary_address", ["2103", ""], ["\\PIPE\\srv1", "1 2103", "2103 "]),
        (SNAPSHOTS_RAW, "error", [*COLLECTOR_ERRORS, "fault:0x1C010003"], ["srv1", "fault:0xsrv1", "cut\n"]),
        (SNAPSHOTS_RAW, "collector_version", [COLLECTOR_VERSION, "1.20.3"], ["10.0.0.7", "srv1", "1.0-srv1"]),
        (MANAGEMENT_CALLS, "action", ["PAUSE", "eod_resend"], ["PAUSE srv1", "srv1"]),
        (QUEUE_SNAPSHOTS, "state", ["LOCAL CONNECTION", "Locked"], ["srv1"]),
        (QUEUE_SNAPSHOTS, "foreign", ["Unknown"], ["MULTICAST"]),
        (MACHINE_SNAPSHOTS, "connected", ["DISCONNECTED"], ["WAITING"]),
    ],
)
def test_only_known_words_and_forms_are_kept(table, column, kept, replaced):
    for text in kept:
        assert redacted(table, **{column: text})[column] == text
    for text in replaced:
        assert redacted(table, **{column: text})[column] == BY.known_text(text, lambda _: False)


def test_addresses_in_lists_agree_with_those_of_connections():
    servers = [{"server_address": "10.0.0.7", "connections": 3}]
    row = redacted(
        CAPTURE_FILES, servers=["10.0.0.7"], server_connections=servers, learned_endpoints=["10.0.0.7|2103|qmcomm"],
        host_names=[{"address": "10.0.0.7", "name": "srv7"}],
    )  # fmt: skip
    assert row["host_names"] == [{"address": BY.address("10.0.0.7"), "name": BY.host_name("srv7")}]
    assert row["servers"] == [BY.address("10.0.0.7")]
    assert row["server_connections"] == [{"server_address": BY.address("10.0.0.7"), "connections": 3}]
    assert row["learned_endpoints"] is None


def test_what_applications_say_is_redacted_by_what_it_is():
    row = redacted(
        MESSAGES, framework="Rebus", framework_evidence="extension rbs2- keys", body_format="json", body_root="card",
        sent_types=["Sales.Order", None], exception_type="System.Exception", intent="Send", failed_queue="sales@srv1",
        conversation_id="order 7", application_headers=[("a", "secret")], exception_message="secret",
    )  # fmt: skip
    assert (row["framework"], row["framework_evidence"], row["body_format"], row["intent"]) == (
        "Rebus", "extension rbs2- keys", "json", "Send",
    )  # fmt: skip
    assert (row["body_root"], row["exception_type"]) == (BY.label("card"), BY.label("System.Exception"))
    assert row["sent_types"] == [BY.label("Sales.Order"), None]
    assert row["failed_queue"] == f"{BY.queue_part('sales')}@{BY.host_name('srv1')}"
    assert row["conversation_id"] == BY.application_id("order 7") != "order 7"
    assert (row["application_headers"], row["exception_message"]) == (None, None)
    assert redacted(MESSAGES, intent="secret")["intent"] == BY.known_text("secret", lambda _: False)
