"""Decoding whole qmcomm, qmcomm2 and qmmgmt calls to silver columns: generated calls and the recorded sample."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS
from stubs.helpers import OTHER_VECTORS
from udfs.capture.capture_reader import read_capture
from udfs.dcerpc.interfaces import QMCOMM_INTERFACE
from udfs.stubs.call_decoder import DECODER_VERSION, decode_client_calls, decode_management_calls
from udfs.stubs.method_registry import CLIENT_METHODS, MANAGEMENT_METHODS

SCHEMA = pa.schema(
    {
        "interface_name": pa.string(), "opnum": pa.int32(), "transfer_syntax": pa.string(), "byte_order": pa.string(),
        "outcome": pa.string(), "sealed": pa.bool_(), "opened_by": pa.string(), "request_stub": pa.binary(),
        "response_stub": pa.binary(), "server_address": pa.string(),
    }
)  # fmt: skip
DEFAULT = {"transfer_syntax": "NDR", "byte_order": "little", "outcome": "ok", "sealed": False, "opened_by": None,
           "server_address": "10.0.0.7"}  # fmt: skip
THROUGH = {"call_key", "opnum", "connection_id", "client_address", "client_port", "server_address", "server_port",
           "requested_at", "responded_at", "clocks", "interface_name", "event_date", "run_id",
           "fault_name"}  # fmt: skip
OPEN = "00000000125d7c0baa770e4c9f3100112233aabb"


def stub(method, direction, note, syntax="NDR20"):
    key = (method, direction, note, syntax)
    return next(bytes.fromhex(v["hex"]) for v in OTHER_VECTORS
                if (v["method"], v["direction"], v["note"], v["syntax"]) == key)  # fmt: skip


def decoded(decode, *calls):
    rows = [DEFAULT | dict(zip(("interface_name", "opnum", "request_stub", "response_stub"), call[:4], strict=True))
            | (call[4] if len(call) > 4 else {}) for call in calls]  # fmt: skip
    out = decode(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    assert all(len(array) == len(rows) for array in out.values())
    made = [{name: array[row].as_py() for name, array in out.items()} for row in range(len(rows))]
    for row in made:
        assert row.pop("decoder_version") == DECODER_VERSION
    return [{name: value for name, value in row.items() if value is not None and value != []} for row in made]


@pytest.mark.parametrize(
    ("decode", "table"), [(decode_client_calls, CLIENT_CALLS), (decode_management_calls, MANAGEMENT_CALLS)]
)
def test_the_columns_are_those_of_the_table(decode, table):
    out = decode(pa.RecordBatch.from_pylist([], schema=SCHEMA))
    assert set(table.names) - THROUGH == out.keys() - {"values", *THROUGH}


def test_client_calls_merge_both_directions():
    opened, named, internal = decoded(
        decode_client_calls,
        ("qmcomm", 2, stub("R_QMOpenRemoteQueue", "request", "open direct"),
         stub("R_QMOpenRemoteQueue", "response", "open direct")),
        ("qmcomm", 1, stub("R_QMGetRemoteQueueName", "request", "name ok"),
         stub("R_QMGetRemoteQueueName", "response", "name ok")),
        ("qmcomm", 19, stub("rpc_QMOpenQueueInternal", "request", "openinternal remote"),
         stub("rpc_QMOpenQueueInternal", "response", "openinternal remote")),
    )  # fmt: skip
    ok = {"hresult": 0, "hresult_name": "MQ_OK"}
    orders = {"queue_format_name": "DIRECT=OS:srv1\\private$\\orders", "queue": "srv1\\private$\\orders"}
    client = "c1d2e3f4-0506-0708-090a-0b0c0d0e0f10"
    assert opened == ok | orders | {
        "method": "R_QMOpenRemoteQueue", "access": 1, "share_mode": 0, "client_id": client, "mqs": 0x400,
        "context_handle": OPEN, "open_context": 0x1C, "queue_descriptor": 0x1C, "queue_handle": 0x1C,
        "request_bytes": 108, "response_bytes": 36,
    }  # fmt: skip
    assert named == ok | {
        "method": "R_QMGetRemoteQueueName", "queue_descriptor": 5, "remote_queue_name": "srv1\\private$\\orders",
        "queue": "srv1\\private$\\orders", "request_bytes": 12, "response_bytes": 68,
    }  # fmt: skip
    assert internal == ok | orders | {
        "method": "rpc_QMOpenQueueInternal", "access": 1, "share_mode": 0, "client_id": client, "client_name": "CLI1",
        "queue_handle": 0, "queue_descriptor": 0, "open_context": 0, "queue_manager_context": 0,
        "remote_queue_name": "srv1\\private$\\orders", "request_bytes": 144, "response_bytes": 92,
    }  # fmt: skip


def test_calls_of_every_method_have_a_name_and_void_ones_no_result():
    void, port, other, unused = decoded(
        decode_client_calls,
        ("qmcomm", 3, bytes.fromhex(OPEN), bytes(20)),
        ("qmcomm", 31, bytes(4), b"\x39\x08\0\0"),
        ("qmcomm", 9, bytes(40), b"\x25\0\x0e\xc0"),
        ("qmcomm", 5, b"", b""),
    )
    assert void == {"method": "R_QMCloseRemoteQueueContext", "context_handle": OPEN, "request_bytes": 20,
                    "response_bytes": 20}  # fmt: skip
    assert port == {"method": "R_QMGetRTQMServerPort", "port_type": 0, "returned_port": 2105, "request_bytes": 4,
                    "response_bytes": 4}  # fmt: skip
    assert other == {"method": "R_QMDeleteObject", "hresult": 0xC00E0025, "hresult_name": "MQ_ERROR_ACCESS_DENIED",
                     "request_bytes": 40, "response_bytes": 4}  # fmt: skip
    assert [error["code"] for error in unused.pop("errors")] == ["unsupported", "unsupported"]
    assert unused == {"method": "Opnum5NotUsedOnWire", "request_bytes": 0, "response_bytes": 0}
    assert len(CLIENT_METHODS["qmcomm"]) == sum("NotUsed" not in name for name in QMCOMM_INTERFACE.methods)


def test_management_calls_tell_object_properties_and_action():
    asked = stub("R_QMMgmtGetInfo", "request", "queue: state,count,bytes")
    answered = stub("R_QMMgmtGetInfo", "response", "queue: state,count,bytes")
    info, unanswered, action, sealed, wide = decoded(
        decode_management_calls,
        ("qmmgmt", 0, asked, answered),
        ("qmmgmt", 0, asked, None, {"outcome": "no_response"}),
        ("qmmgmt", 1, stub("R_QMMgmtAction", "request", "connect"), b"\x06\0\x0e\xc0"),
        ("qmmgmt", 0, asked, answered, {"sealed": True, "outcome": "encrypted"}),
        ("qmmgmt", 0, None, stub("R_QMMgmtGetInfo", "response", "queue: state,count,bytes", "NDR64"),
         {"transfer_syntax": None}),
    )  # fmt: skip
    queue = {
        "method": "R_QMMgmtGetInfo", "queue_manager": "10.0.0.7", "object_type": "queue",
        "queue_format_name": "DIRECT=OS:srv1\\private$\\orders", "queue": "srv1\\private$\\orders",
        "property_ids": [11, 7, 8],
    }  # fmt: skip
    assert unanswered == queue
    assert [each["vt"] for each in info.pop("values")] == [31, 19, 19]
    assert info == queue | {"hresult": 0, "hresult_name": "MQ_OK"}
    assert action == {
        "method": "R_QMMgmtAction", "queue_manager": "10.0.0.7", "object_type": "machine", "action": "connect",
        "hresult": 0xC00E0006, "hresult_name": "MQ_ERROR_INVALID_PARAMETER",
    }  # fmt: skip
    assert sealed == {"method": "R_QMMgmtGetInfo", "queue_manager": "10.0.0.7"}
    assert [each["vt"] for each in wide["values"]] == [31, 19, 19]  # no bind seen: NDR does not fit, NDR64 does


def _sample(name, interfaces):
    path = Path(__file__).parents[2] / "data" / "sample" / name
    calls = read_capture(str(path))["rpc_calls"].combine_chunks()
    calls = calls.filter(pc.is_in(calls.column("interface_name"), pa.array(list(interfaces))))
    (batch,) = calls.combine_chunks().to_batches()
    return batch


@pytest.mark.parametrize(
    ("name", "interfaces", "decode"),
    [
        ("03-qm2qm-dependent-client.pcap", CLIENT_METHODS, decode_client_calls),
        ("04-qmmgmt.pcapng", MANAGEMENT_METHODS, decode_management_calls),
    ],
)
def test_every_recorded_exchange_decodes_to_its_last_byte(name, interfaces, decode):
    batch = _sample(name, interfaces)
    out = decode(batch)
    assert batch.num_rows > 5
    assert [error for row in out["errors"].to_pylist() for error in row] == []
    readable = pc.equal(batch.column("outcome"), "ok")
    answered = out["hresult_name"].filter(readable).to_pylist()
    assert answered.count("MQ_OK") > 2
    assert out["queue"].drop_null().unique().to_pylist() != []
