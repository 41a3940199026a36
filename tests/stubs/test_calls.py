"""Decoding whole calls to silver columns: merging of request and response, and nulls for each state of a call."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from schemas.calls import REMOTE_READ_CALLS
from stubs.helpers import VECTORS, peer_stub
from udfs.stubs.call_decoder import DECODER_VERSION, decode_remote_read_calls
from udfs.stubs.to_arrow import COLUMN_TYPES

SCHEMA = pa.schema(
    {
        "interface_name": pa.string(), "opnum": pa.int32(), "transfer_syntax": pa.string(), "byte_order": pa.string(),
        "outcome": pa.string(), "sealed": pa.bool_(), "opened_by": pa.string(), "request_stub": pa.binary(),
        "response_stub": pa.binary(),
    }
)  # fmt: skip
DEFAULT = {"transfer_syntax": "NDR", "byte_order": "little", "outcome": "ok", "sealed": False, "opened_by": None}
READ = "00000000125d7c0baa770e4c9f3100112233aabb"


def stub(method, direction, note, syntax="NDR20"):
    key = (method, direction, note, syntax)
    return next(bytes.fromhex(v["hex"]) for v in VECTORS
                if (v["method"], v["direction"], v["note"], v["syntax"]) == key)  # fmt: skip


def call(interface, opnum, request=None, response=None, **more):
    return DEFAULT | {
        "interface_name": interface, "opnum": opnum, "request_stub": request, "response_stub": response,
    } | more  # fmt: skip


def decoded(*calls, packets=False):
    """Decode calls; per row the columns that are neither null nor constant."""
    batch = pa.RecordBatch.from_pylist(list(calls), schema=SCHEMA)
    out = decode_remote_read_calls(batch, packets=packets)
    assert all(len(array) == len(calls) for array in out.values())
    rows = [{name: array[row].as_py() for name, array in out.items()} for row in range(len(calls))]
    for row in rows:
        assert row.pop("decoder_version") == DECODER_VERSION
    return [{name: value for name, value in row.items() if value is not None and value != []} for row in rows]


RECEIVE = (
    stub("RemoteQMStartReceive", "request", "receive ok"),
    stub("RemoteQMStartReceive", "response", "receive ok"),
)
RECEIVED = {
    "method": "RemoteQMStartReceive", "remote_read_handle": READ, "queue_handle": 0x1C, "queue_descriptor": 0x1C,
    "cursor_handle": 0, "action": 0, "action_name": "MQ_ACTION_RECEIVE", "timeout_ms": 0xFFFFFFFF, "request_id": 7,
    "hresult": 0, "hresult_name": "MQ_OK", "packet_bytes": 37,
    "arrived_at": dt.datetime(2012, 3, 9, 20, 43, 40, tzinfo=dt.UTC),
}  # fmt: skip
FAILED = {
    "method": "R_StartReceive", "sequence_id": Decimal(0), "hresult": 0xC00E001B,
    "hresult_name": "MQ_ERROR_IO_TIMEOUT",
}  # fmt: skip


def test_a_call_merges_its_request_and_response():
    assert decoded(call("qm2qm", 0, *RECEIVE)) == [RECEIVED]


def test_every_pdu_has_its_senders_byte_order():
    """A big-endian client sends the request, a little-endian server the response."""
    values = {"hRemoteQueue": 1, "hCursor": 0, "ulAction": 0, "ulTimeout": 9, "dwSize": 0, "dwQueue": 1,
              "dwRequestID": 7, "Reserved": 0, "dwArriveTime": 0, "eAckNack": 0, "lpBuffer": None}  # fmt: skip
    big = peer_stub("RemoteQMStartReceive", "request", {"lpRemoteReadDesc": values}, ndr64=False, order=">")
    schema = SCHEMA.append(pa.field("response_byte_order", pa.string()))
    rows = [call("qm2qm", 0, big, RECEIVE[1], byte_order="big", response_byte_order="little"),
            call("qm2qm", 0, None, RECEIVE[1], byte_order="little", response_byte_order=None)]  # fmt: skip
    out = decode_remote_read_calls(pa.RecordBatch.from_pylist(rows, schema=schema))
    assert out["remote_read_handle"].to_pylist() == [READ, READ]
    assert out["timeout_ms"].to_pylist() == [9, 0xFFFFFFFF]
    assert out["hresult_name"].to_pylist() == ["MQ_OK", "MQ_OK"]
    assert out["errors"].to_pylist() == [[], []]


def test_packets_are_kept_only_when_asked_for():
    (row,) = decoded(call("qm2qm", 0, *RECEIVE), packets=True)
    assert row == RECEIVED | {"packet": RECEIVE[1][76:113]}


def test_the_sequence_id_is_the_answers():
    request = stub("RemoteQMStartReceive2", "request", "receive2 ok")
    response = stub("RemoteQMStartReceive2", "response", "receive2 ok")
    both, alone = decoded(call("qm2qm", 9, request, response), call("qm2qm", 9, request, outcome="no_response"))
    assert both["sequence_id"] == 0x1000000000005
    assert alone["sequence_id"] == 0


def test_without_a_request_the_echo_tells_queue_and_action():
    assert decoded(call("qm2qm", 0, None, RECEIVE[1], outcome="no_request")) == [RECEIVED]


def test_a_closing_methods_handle_is_the_one_given():
    given = bytes.fromhex(READ)
    assert decoded(call("RemoteRead", 3, given, bytes(24)), call("RemoteRead", 3, None, given + bytes(4))) == [
        {"method": "R_CloseQueue", "context_handle": READ, "hresult": 0, "hresult_name": "MQ_OK"},
        {"method": "R_CloseQueue", "hresult": 0, "hresult_name": "MQ_OK"},
    ]


def test_a_refused_read_has_no_message_whatever_its_response_holds():
    ok = stub("R_StartReceive", "response", "one section")
    refused = ok[:-4] + bytes.fromhex("1b000ec0")
    good, bad = decoded(call("RemoteRead", 7, None, ok), call("RemoteRead", 7, None, refused))
    assert good["section_types"] == [0]
    assert good["packet_bytes"] == 37
    assert "arrived_at" in good
    assert bad == FAILED | {"sequence_id": Decimal(0x1000000000005)}


def test_sealed_stubs_are_not_decoded_unless_a_key_opened_them():
    sealed = {"sealed": True, "outcome": "encrypted"}
    assert decoded(
        call("qm2qm", 0, *RECEIVE, **sealed),
        call("qm2qm", 0, *RECEIVE, **sealed, opened_by="CORP\\svc"),
        call("RemoteRead", 2, b"\xff" * 60, None, sealed=True, outcome="fault"),
    ) == [{"method": "RemoteQMStartReceive"}, RECEIVED, {"method": "R_OpenQueue"}]


@pytest.mark.parametrize("outcome", ["fault", "no_response", "damaged"])
def test_what_was_not_seen_is_null_and_no_error(outcome):
    request = stub("R_EndReceive", "request", "end")
    assert decoded(call("RemoteRead", 9, request, None, outcome=outcome)) == [
        {"method": "R_EndReceive", "context_handle": "00000000701f6e9a1d3c524b8e0a5d1c2b3a4f60", "ack": 2,
         "ack_name": "RR_ACK", "request_id": 0x51},
    ]  # fmt: skip


def test_a_stub_cut_short_is_an_error_unless_the_call_is_known_to_be_damaged():
    cut = stub("R_EndReceive", "request", "end")[:25]
    seen = {"method": "R_EndReceive", "context_handle": "00000000701f6e9a1d3c524b8e0a5d1c2b3a4f60", "ack": 2,
            "ack_name": "RR_ACK"}  # fmt: skip
    assert decoded(call("RemoteRead", 9, cut, bytes(2)), call("RemoteRead", 9, cut, None, outcome="damaged")) == [
        seen | {"errors": [{"code": "truncated", "field": "request.dwRequestId", "offset": 24},
                           {"code": "truncated", "field": "response.return", "offset": 0}]},
        seen,
    ]  # fmt: skip


def test_without_a_bind_the_syntax_that_fits_is_taken():
    ndr, ndr64 = (stub("R_StartReceive", "response", "failed", syntax) for syntax in ("NDR20", "NDR64"))
    unbound = {"transfer_syntax": None, "outcome": "unbound"}
    neither = call("RemoteRead", 7, None, ndr + bytes(9), **unbound)
    first, second, third = decoded(
        call("RemoteRead", 7, None, ndr, **unbound), call("RemoteRead", 7, None, ndr64, **unbound), neither
    )
    assert first == second == FAILED
    assert third["errors"] == [{"code": "malformed", "field": "response.end of stub", "offset": 28}]


def test_what_has_no_table_is_unsupported():
    assert decoded(
        call("RemoteRead", 99, b"1234", None),
        call("RemoteRead", 1, None, None, outcome="fault"),
        call("RemoteRead", None, None, b"1234", outcome="no_request"),
        call("qm2qm", 4, bytes(8), None, transfer_syntax="00000000-0000-0000-0000-000000000001"),
        call("qmcomm", 4, bytes(8), None),
    ) == [
        {"errors": [{"code": "unsupported", "field": "request.opnum", "offset": 0}]},
        {"method": "Opnum1NotUsedOnWire"},
        {},
        {"method": "RemoteQMCloseCursor",
         "errors": [{"code": "unsupported", "field": "request.transfer_syntax", "offset": 0}]},
        {},
    ]  # fmt: skip


def test_unknown_codes_are_shown_as_hex():
    request = bytearray(RECEIVE[0])
    request[8:12] = bytes.fromhex("efbeadde")
    (row,) = decoded(call("qm2qm", 0, bytes(request), None))
    assert (row["action"], row["action_name"]) == (0xDEADBEEF, "0xDEADBEEF")


def test_rows_of_all_kinds_in_one_batch_and_in_slices():
    calls = [
        call("qm2qm", 0, *RECEIVE),
        call("RemoteRead", 7, stub("R_StartReceive", "request", "two sections"), None),
        call("RemoteRead", 7, None, stub("R_StartReceive", "response", "two sections", "NDR64"),
             transfer_syntax="NDR64"),
        call("qm2qm", 8, b"", bytes.fromhex("0601b11d")),
        call("RemoteRead", 2, stub("R_OpenQueue", "request", "open qf3"), None, outcome="fault"),
    ] * 3  # fmt: skip
    whole = decoded(*calls, packets=True)
    assert whole == [row for each in calls for row in decoded(each, packets=True)]
    batch = pa.RecordBatch.from_pylist(calls, schema=SCHEMA).slice(4, 6)
    names = ("queue", "packet", "section_types", "version_major")
    assert [
        [decode_remote_read_calls(batch, packets=True)[name][row].as_py() for name in names] for row in range(6)
    ] == [[row.get(name) for name in names] for row in whole[4:10]]
    empty = decode_remote_read_calls(batch.slice(0, 0))
    assert COLUMN_TYPES.keys() & set(REMOTE_READ_CALLS.names) <= empty.keys()
