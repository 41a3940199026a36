"""Properties of all 33 numbers, captured and collected, to property rows and snapshot rows; and unfit values."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from peer.idl import Variant
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, PROPERTIES, QUEUE_SNAPSHOTS
from stubs.helpers import peer_stub
from udfs.capture.capture_reader import read_capture
from udfs.properties import property_names
from udfs.properties.observations import (
    observations_from_calls,
    observations_from_snapshots,
    property_rows,
)
from udfs.properties.snapshot_rows import machine_snapshot_rows, queue_snapshot_rows
from udfs.stubs.call_decoder import decode_management_calls
from udfs.stubs.method_registry import MANAGEMENT_METHODS

GUID = "c1d2e3f4-0506-0708-090a-0b0c0d0e0f10"
AT = dt.datetime(2024, 5, 1, 12, 0, tzinfo=dt.UTC)
CLOSING = {"event_date", "run_id"}
RAW = pa.schema(
    {
        "snapshot_id": pa.string(), "queue_manager": pa.string(), "object_type": pa.string(),
        "format_name": pa.string(), "asked_at": pa.timestamp("us", tz="UTC"),
        "collected_at": pa.timestamp("us", tz="UTC"), "hresult": pa.int64(), "error": pa.string(),
        "properties": pa.list_(pa.struct({"property_id": pa.int32(), "vt": pa.int32(), "value_json": pa.string()})),
    }
)  # fmt: skip


def moment(seconds):
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def sequence(ident, number, previous):
    return ident.to_bytes(8, "little") + number.to_bytes(4, "little") + previous.to_bytes(4, "little")


def nested(*parts):
    return [{"vt": vt, "value": value} for vt, value in parts]


SOURCES = nested(
    (0x101F, ["DIRECT=OS:cli\\out"]), (0x1048, [GUID]), (0x1015, [2**64 - 1]), (0x1013, [17]),
    (0x1003, [1_700_000_000]), (0x1013, [2]),
)  # fmt: skip
HISTORY = [(0x1013, [2, 0x80000004]), (0x1003, [1_700_000_000, 0]), (0x1003, [0, -0x3FF1FFE5])]
ADDRESSES = (0x100C, nested((0x101F, ["10.0.0.7", "fe80::1"]), (0x101F, [])))
TEXT = {1: "srv\\q", 2: "DIRECT=OS:srv\\q", 3: "PUBLIC", 4: "REMOTE", 5: "YES", 6: "Unknown", 11: "CONNECTED"}
# number: type, JSON value, what the column holds
QUEUE = {
    **{number: (31, text, text) for number, text in TEXT.items()},
    **{number: (19, 2**32 - number, 2**32 - number) for number in (7, 8, 9, 10, 15, 19, 20, 22, 23, 26)},
    12: (0x101F, ["IP=10.0.0.7"], ["IP=10.0.0.7"]),
    27: (0x101F, [], []),
    13: (65, sequence(2**64 - 1, 5, 4).hex(),
         {"sequence_id": Decimal(2**64 - 1), "sequence_number": 5, "previous_number": 4}),
    16: (65, sequence(7, 6, 5).hex(), {"sequence_id": Decimal(7), "sequence_number": 6, "previous_number": 5}),
    17: (65, "", None),
    18: (65, bytes(16).hex(), None),
    14: (3, 1_700_000_100, moment(1_700_000_100)),
    21: (3, 0, None),
    24: (0x100C, SOURCES, [{
        "sender_format_name": "DIRECT=OS:cli\\out", "sender_queue_manager": GUID, "sequence_id": Decimal(2**64 - 1),
        "last_number": 17, "last_access_at": moment(1_700_000_000), "reject_count": 2,
    }]),
    25: (0x100C, nested(*HISTORY, ADDRESSES), [
        {"status": 2, "status_name": "Established", "changed_at": moment(1_700_000_000), "error": 0,
         "error_name": "MQ_OK", "addresses": ["10.0.0.7", "fe80::1"]},
        {"status": 0x80000004, "status_name": "SocketConnectFailure", "changed_at": None, "error": 0xC00E001B,
         "error_name": "MQ_ERROR_IO_TIMEOUT", "addresses": []},
    ]),
}  # fmt: skip
MACHINE = {
    1: (0x101F, ["DIRECT=OS:srv\\q"], ["DIRECT=OS:srv\\q"]), 2: (0x101F, ["srv\\private$\\q"], ["srv\\private$\\q"]),
    3: (31, "\\\\dc", "\\\\dc"), 4: (31, "CONNECTED", "CONNECTED"), 5: (31, "", ""),
    6: (20, 2**63 - 1, Decimal(2**63 - 1)),
}  # fmt: skip


def collected(kind, held, **more):
    row = {
        "snapshot_id": "s1", "queue_manager": "qm1", "object_type": kind, "asked_at": AT, "collected_at": AT,
        "format_name": "DIRECT=OS:Srv\\Q" if kind == "queue" else None, "hresult": 0,
        "properties": [
            {"property_id": number, "vt": vt, "value_json": None if vt is None else json.dumps(value)}
            for number, (vt, value, *_) in held.items()
        ],
    } | more  # fmt: skip
    return observations_from_snapshots(pa.Table.from_pylist([row], schema=RAW))


SNAPSHOTS = {"queue": queue_snapshot_rows, "machine": machine_snapshot_rows}


@pytest.mark.parametrize(("kind", "held"), [("queue", QUEUE), ("machine", MACHINE)])
def test_every_property_has_its_column(kind, held):
    (row,) = SNAPSHOTS[kind](collected(kind, held)).to_pylist()
    assert (
        held.keys()
        == {"queue": property_names.QUEUE_PROPERTY_NAMES, "machine": property_names.MACHINE_PROPERTY_NAMES}[kind].keys()
    )
    for number, (_, _, expected) in held.items():
        assert row[property_names.property_column_name(kind, number)] == expected, number
    assert dict(row["property_states"]) == {
        property_names.property_column_name(kind, number): "value" for number in held
    }
    assert (row["errors"], row["hresult_name"], row["observed_at"]) == ([], "MQ_OK", AT)
    assert SNAPSHOTS["machine" if kind == "queue" else "queue"](collected(kind, held)).num_rows == 0


def _variant(vt, value):
    """Return a JSON value as the peer's codec takes it."""
    if vt == 0x100C:
        return Variant(vt, [_variant(each["vt"], each["value"]) for each in value])
    if vt == 65:
        return Variant(vt, bytes.fromhex(value))
    if vt == 0x1048:
        return Variant(vt, [UUID(text) for text in value])
    if vt in (3, 0x1003):
        return Variant(vt, value % 2**32 if vt == 3 else [each % 2**32 for each in value])
    return Variant(vt, value)


def wire(kind, held, *, hresult=0, ndr64=False, order="<", **more):
    asked = peer_stub(
        "R_QMMgmtGetInfo", "request",
        {"pObjectFormat": {"type": {"machine": 1, "queue": 2}[kind], "queue": None}, "cp": len(held),
         "aProp": list(held), "apVar": [Variant(1)] * len(held)}, ndr64=ndr64, order=order,
    )  # fmt: skip
    answer = [_variant(vt, value) for vt, value, *_ in held.values()]
    answered = peer_stub("R_QMMgmtGetInfo", "response", {"apVar": answer, "return": hresult}, ndr64=ndr64, order=order)
    call = {
        "interface_name": "qmmgmt", "opnum": 0, "transfer_syntax": "NDR64" if ndr64 else "NDR", "outcome": "ok",
        "byte_order": "little" if order == "<" else "big", "sealed": False, "opened_by": None, "request_stub": asked,
        "response_stub": answered, "server_address": "10.0.0.7", "call_key": "k1", "responded_at": AT,
    } | more  # fmt: skip
    types = {"opened_by": pa.string(), "response_stub": pa.binary(), "opnum": pa.int32()}
    schema = pa.schema([(name, types.get(name) or pa.scalar(value).type) for name, value in call.items()])
    batch = pa.RecordBatch.from_pylist([call], schema=schema)
    return observations(batch)


def observations(batch):
    columns = {name: batch.column(name) for name in batch.schema.names} | decode_management_calls(batch)
    return observations_from_calls(pa.table(columns))


@pytest.mark.parametrize(("ndr64", "order"), [(False, "<"), (False, ">"), (True, "<")])
@pytest.mark.parametrize(("kind", "held"), [("queue", QUEUE), ("machine", MACHINE)])
def test_the_wire_and_a_collector_give_the_same_columns(kind, held, ndr64, order):
    (one,) = SNAPSHOTS[kind](wire(kind, held, ndr64=ndr64, order=order)).to_pylist()
    (two,) = SNAPSHOTS[kind](collected(kind, held)).to_pylist()
    where = {"snapshot_id", "call_key", "source", "queue_manager", "queue", "queue_format_name"}
    assert {name: value for name, value in one.items() if name not in where} == {
        name: value for name, value in two.items() if name not in where
    }
    assert (one["snapshot_id"], one["call_key"], one["source"], one["queue_manager"]) == (
        "k1", "k1", "wire", "10.0.0.7",
    )  # fmt: skip
    assert (two["call_key"], two["source"], two["queue_manager"]) == (None, "collector", "qm1")


def test_rows_of_properties_hold_one_value_by_type():
    held = {
        11: (31, "CONNECTED"), 7: (19, 3), 12: (0x101F, ["a"]), 13: (65, "ab" * 16), 25: (0x100C, nested((19, 7))),
        3: (1, None), 99: (0x1013, [1, 2]),
    }  # fmt: skip
    rows = property_rows(collected("queue", held)).to_pylist()
    value = [
        {name: part for name, part in row.items() if name.startswith("value_") and part is not None} for row in rows
    ]
    assert value == [
        {"value_text": "CONNECTED"}, {"value_decimal": Decimal(3)}, {"value_texts": ["a"]},
        {"value_binary": b"\xab" * 16}, {"value_json": '[{"vt": 19, "value": 7}]'}, {}, {"value_json": "[1, 2]"},
    ]  # fmt: skip
    assert [row["property_name"] for row in rows[:2]] == [
        "PROPID_MGMT_QUEUE_STATE", "PROPID_MGMT_QUEUE_MESSAGE_COUNT",
    ]  # fmt: skip
    assert [row["vt_name"] for row in rows] == [
        "VT_LPWSTR", "VT_UI4", "VT_VECTOR|VT_LPWSTR", "VT_BLOB", "VT_VECTOR|VT_VARIANT", "VT_NULL", "VT_VECTOR|VT_UI4",
    ]  # fmt: skip
    assert [row["state"] for row in rows] == ["value"] * 5 + ["null", "value"]
    assert rows[-1]["property_name"] == "0x00000063"
    assert [row["queue"] for row in rows] == ["srv\\q"] * 7
    (snapshot,) = queue_snapshot_rows(collected("queue", held)).to_pylist()
    states = dict(snapshot["property_states"])
    assert (states["type"], states["0x00000063"]) == ("null", "value")
    # Connection history of one column is none, and says so.
    assert (states["connection_history"], snapshot["connection_history"]) == ("error", None)
    assert [error["field"] for error in snapshot["errors"]] == ["connection_history"]


def test_a_failed_question_has_a_row_per_property_asked_and_no_values():
    held = {7: (1, None), 11: (1, None)}
    for found in (wire("queue", held, hresult=0xC00E0003), collected("queue", held, hresult=0xC00E0003)):
        rows = property_rows(found).to_pylist()
        assert [(row["property_id"], row["state"], row["vt"], row["vt_name"]) for row in rows] == [
            (7, "error", None, None), (11, "error", None, None),
        ]  # fmt: skip
        (snapshot,) = queue_snapshot_rows(found).to_pylist()
        assert snapshot["hresult_name"] == "MQ_ERROR_QUEUE_NOT_FOUND"
        assert dict(snapshot["property_states"]) == {"message_count": "error", "state": "error"}
        assert snapshot["message_count"] is snapshot["state"] is None
    for found in (wire("queue", held, hresult=5), collected("queue", held, hresult=5)):  # a Win32 code, [MS-MQMR] 3
        assert {row["state"] for row in property_rows(found).to_pylist()} == {"error"}
        (snapshot,) = queue_snapshot_rows(found).to_pylist()
        assert (snapshot["hresult_name"], snapshot["message_count"]) == ("ERROR_ACCESS_DENIED", None)
    fault = wire("queue", held, outcome="fault", response_stub=None)
    assert [row["state"] for row in property_rows(fault).to_pylist()] == ["error", "error"]
    assert wire("queue", held, outcome="no_response", response_stub=None).num_rows == 0
    timeout = collected("queue", {}, hresult=None, error="timeout", properties=None)
    (snapshot,) = queue_snapshot_rows(timeout).to_pylist()
    assert (snapshot["hresult"], dict(snapshot["property_states"])) == (None, {})


def test_names_of_subqueues_may_be_variants_and_addresses_single_strings():
    """Doubts D22 and D23 of the sheet on packets."""
    held = {
        27: (0x100C, nested((31, "a"), (31, "b"))),
        25: (0x100C, nested(*HISTORY, (0x101F, ["10.0.0.7", "10.0.0.8"]))),
    }
    (row,) = queue_snapshot_rows(collected("queue", held)).to_pylist()
    assert row["subqueue_names"] == ["a", "b"]
    assert [each["addresses"] for each in row["connection_history"]] == [["10.0.0.7"], ["10.0.0.8"]]


@pytest.mark.parametrize(
    ("number", "vt", "value"),
    [
        (7, 31, "three"), (11, 19, 3), (12, 31, "a"), (13, 65, "abcd"), (14, 31, "noon"),
        (24, 0x100C, SOURCES[:5]), (24, 0x100C, SOURCES[::-1]),
        (24, 0x100C, [SOURCES[0] | {"value": ["a", "b"]}, *SOURCES[1:]]),
        (24, 0x100C, [SOURCES[0] | {"value": [None]}, *SOURCES[1:]]),
        (25, 0x100C, nested(*HISTORY, (0x101F, ["one"]))), (25, 0x100C, [1, 2, 3, 4]), (27, 0x100C, nested((19, 3))),
    ],
)  # fmt: skip
def test_what_does_not_fit_its_column_is_an_error_in_the_row(number, vt, value):
    found = collected("queue", {11: (31, "X"), number: (vt, value)})
    (row,) = queue_snapshot_rows(found).to_pylist()
    name = property_names.property_column_name("queue", number)
    assert row[name] is None
    assert row["errors"] == [{"code": "malformed", "field": name, "offset": 0 if number == 11 else 1}]
    assert dict(row["property_states"])[name] == "error"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=4) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["vt", "value"]), inner),
    max_leaves=8,
)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.dictionaries(
        st.integers(-1, 30), st.tuples(st.sampled_from([0, 1, 3, 19, 20, 31, 65, 0x101F, 0x100C, 99]), JSON), max_size=8
    ),
    st.sampled_from(["queue", "machine", "session"]),
)  # fmt: skip
def test_whatever_a_collector_wrote_gives_rows(held, kind):
    found = collected(kind, held)
    assert property_rows(found).num_rows == len(held)
    assert queue_snapshot_rows(found).num_rows + machine_snapshot_rows(found).num_rows == (kind != "session")


HELD = st.dictionaries(
    st.sampled_from(sorted(QUEUE)), st.sampled_from([1, 3, 19, 20, 31, 65, 0x101F, 0x100C]), max_size=9
)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(HELD, st.sampled_from([0, 0, 0xC00E0003])), max_size=6))
def test_observations_together_are_what_each_is_alone(drawn):
    """Columns with fitting and unfitting values, so that columnwise and single conversion are mixed."""
    by_type = {1: None, 3: -1, 19: 2**32 - 1, 20: -(2**63), 31: "x", 65: "00" * 16, 0x101F: ["a"],
               0x100C: nested((31, "b"))}  # fmt: skip
    found = []
    for number, (chosen, hresult) in enumerate(drawn):
        held = {n: (vt, by_type[vt]) if (n + number) % 3 else QUEUE[n] for n, vt in chosen.items()}
        found.append(collected("queue", held, hresult=hresult, snapshot_id=str(number)))
    found.append(collected("machine", MACHINE))
    together = pa.concat_tables(found)
    for table in (property_rows, queue_snapshot_rows, machine_snapshot_rows):
        assert table(together).to_pylist() == [row for one in found for row in table(one).to_pylist()]
        assert table(together.slice(1)).to_pylist() == [row for one in found[1:] for row in table(one).to_pylist()]


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "NaN", "1e999", '"\\ud800"', '["\\uD800", {"vt": "\\udfff"}]'])
def test_what_is_no_json_gives_rows(text):
    held = [{"property_id": number, "vt": vt, "value_json": text} for number, vt in ((7, 19), (13, 65), (25, 0x100C))]
    found = collected("queue", {}, properties=held)
    assert property_rows(found).num_rows == 3
    assert queue_snapshot_rows(found).num_rows == 1


def test_properties_without_a_number_are_none():
    held = [None, {"property_id": None, "vt": 19, "value_json": "1"}, {"property_id": 7, "vt": 19, "value_json": "1"}]
    assert property_rows(collected("queue", {}, properties=held)).column("property_id").to_pylist() == [7]


def test_the_columns_are_those_of_the_tables():
    found = collected("queue", {})
    assert set(PROPERTIES.names) - CLOSING == set(property_rows(found).column_names)
    assert set(QUEUE_SNAPSHOTS.names) - CLOSING == set(queue_snapshot_rows(found).column_names)
    assert set(MACHINE_SNAPSHOTS.names) - CLOSING == set(machine_snapshot_rows(found).column_names)


def test_the_recorded_snapshots():
    path = Path(__file__).parents[2] / "data" / "sample" / "04-qmmgmt.pcapng"
    calls = read_capture(str(path))["rpc_calls"]
    calls = calls.filter(pc.is_in(calls.column("interface_name"), pa.array(list(MANAGEMENT_METHODS)))).combine_chunks()
    calls = calls.append_column("responded_at", calls.column("response_at")).combine_chunks()
    (batch,) = calls.to_batches()
    found = observations(batch)
    queues, machines = queue_snapshot_rows(found), machine_snapshot_rows(found)
    assert [error for table in (queues, machines) for row in table.column("errors").to_pylist() for error in row] == []
    whole = next(row for row in queues.to_pylist() if row["location"] == "REMOTE")
    assert whole["eod_next_seq"]["sequence_id"] == 0x6740_0000_0000_0001
    assert [each["status_name"] for each in whole["connection_history"]] == ["Established", "SocketConnectFailure"]
    ledger = next(row for row in queues.to_pylist() if row["eod_source_info"])
    assert [each["last_number"] for each in ledger["eod_source_info"]] == [17, 4]
    assert machines.column("activequeues").drop_null().to_pylist()[0] != []
