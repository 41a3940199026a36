"""Frames in, whole frames out: bronze.rpc_calls to silver.remote_read_calls to gold.receive_attempts."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.testing import assertDataFrameEqual

from peer.idl import QueueFormat
from pipeline.attempts.attempt_rows import attempts_function
from pipeline.attempts.capture_gaps import latest_by_server
from pipeline.attempts.server_slices import attempt_queries
from pipeline.lake.engine.frames import arrow_to_frame
from pipeline.lake.lake import Lake
from pipeline.silver.decode import DecodeSettings, decode_calls
from pipeline.silver.queue_aliases import AliasIndex
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.calls import REMOTE_READ_CALLS
from schemas.messages import MESSAGES
from stubs.helpers import peer_stub
from stubs.test_methods import TAIL
from udfs.keys import key
from udfs.stubs.call_decoder import DECODER_VERSION

pytestmark = pytest.mark.spark

BEGIN = dt.datetime(2024, 5, 17, 23, 59, 58, tzinfo=dt.UTC)
HANDLE = bytes.fromhex("01000000a1b2c3d4e5f60718292a2b2c2d2e2f30")
ORDERS = "srv1\\private$\\orders"
SERVERS = ["10.0.0.1"]
FOUR_TUPLE = {"client_address": "10.0.0.2", "client_port": 50000, "server_address": "10.0.0.1", "server_port": 2103}


def at(seconds):
    return BEGIN + dt.timedelta(seconds=seconds)


def frame(spark, table, rows):
    names = table.struct().fieldNames()
    assert all(row.keys() <= set(names) for row in rows)
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], table.struct())


def stubs(method, request, response, order="<"):
    sides = {
        f"{side}_stub": None if values is None else peer_stub(method, side, values, ndr64=False, order=order)
        for side, values in (("request", request), ("response", response))
    }
    return sides | {"byte_order": "little" if order == "<" else "big"}


def call(call_key, opnum, request_at, response_at, interface="RemoteRead", **more):
    return {
        "call_key": call_key, "connection_id": "c1", **FOUR_TUPLE, "call_id": 1, "interface_name": interface,
        "transfer_syntax": "NDR", "opnum": opnum, "bind_seen": True, "sealed": False, "request_at": at(request_at),
        "response_at": None if response_at is None else at(response_at), "outcome": "ok", "capture_id": "one",
        "response_capture_id": "one", "run_id": "run",
    } | more  # fmt: skip


OPEN = call("open", 2, 0, 0.5, **stubs(
    "R_OpenQueue", {"pQueueFormat": QueueFormat.direct("OS:Srv1\\private$\\orders"), **TAIL}, {"pphContext": HANDLE},
))  # fmt: skip
START = call("start", 7, 1, 3, **stubs(
    "R_StartReceive",
    {"phContext": HANDLE, "LookupId": 0, "hCursor": 0, "ulAction": 0, "ulTimeout": 5000, "dwRequestId": 7,
     "dwMaxBodySize": 8, "dwMaxCompoundMessageSize": 9},
    {"pdwArriveTime": 1715990000, "pSequenceId": 2**55 + 1, "pdwNumberOfSections": 1,
     "ppPacketSections": [{"SectionBufferType": 0, "SectionSizeAlloc": 3, "SectionSize": 3, "pSectionBuffer": b"abc"}],
     "return": 0},
    order=">",
))  # fmt: skip
END = call(
    "end", 9, 4, 4.5, **stubs("R_EndReceive", {"phContext": HANDLE, "dwAck": 2, "dwRequestId": 7}, {"return": 0})
)
OTHERS = [
    call("lost", 7, 5, None, **stubs("R_StartReceive", None, None), outcome="damaged"),
    call("sealed", 7, 6, 7, request_stub=b"\xaa" * 56, response_stub=b"\xbb" * 28, sealed=True, outcome="encrypted"),
    call("fault", 0, 8, 9, "qm2qm", connection_id="c2", fault_status=0x000006F7, outcome="fault"),
    call("mgmt", 0, 8, 9, "qmmgmt", request_stub=b"", response_stub=b""),
]

SILVER = {
    "protocol": "RemoteRead", "connection_id": "c1", "call_id": 1, **FOUR_TUPLE, "errors": [],
    "decoder_version": DECODER_VERSION, "run_id": "run",
}  # fmt: skip


def silver(call_key, method, opnum, requested_at, responded_at, **more):
    times = {"requested_at": at(requested_at), "responded_at": None if responded_at is None else at(responded_at)}
    return SILVER | {"call_key": call_key, "method": method, "opnum": opnum, **times,
                     "event_date": at(requested_at).date()} | more  # fmt: skip


EXPECTED = [
    silver(
        "open", "R_OpenQueue", 2, 0, 0.5, context_handle=HANDLE.hex(), queue_format_type=3,
        queue_format_name="DIRECT=OS:Srv1\\private$\\orders", queue="srv1\\private$\\orders", access=1, share_mode=0,
        client_id="00112233-4455-6677-8899-aabbccddeeff", non_routing_server=False, workgroup=True, version_major=255,
        version_minor=1, build_number=65535,
    ),
    silver(
        "start", "R_StartReceive", 7, 1, 3, context_handle=HANDLE.hex(), lookup_id=Decimal(0), cursor_handle=0,
        action=0, action_name="MQ_ACTION_RECEIVE", timeout_ms=5000, request_id=7, max_body_bytes=8,
        max_compound_message_bytes=9, sequence_id=Decimal(2**55 + 1), hresult=0, hresult_name="MQ_OK",
        arrived_at=dt.datetime(2024, 5, 17, 23, 53, 20, tzinfo=dt.UTC), section_types=[0], section_bytes=[3],
        section_allocated_bytes=[3], packet_bytes=3,
    ),
    silver(
        "end", "R_EndReceive", 9, 4, 4.5, context_handle=HANDLE.hex(), ack=2, ack_name="RR_ACK", request_id=7,
        hresult=0, hresult_name="MQ_OK",
    ),
    silver("lost", "R_StartReceive", 7, 5, None),
    silver("sealed", "R_StartReceive", 7, 6, 7),
    silver(
        "fault", "RemoteQMStartReceive", 0, 8, 9, protocol="qm2qm", connection_id="c2",
        fault_name="RPC_X_BAD_STUB_DATA",
    ),
]  # fmt: skip


def decode_remote_read_calls(calls, *, keep_packets=False):
    """Rows of silver.remote_read_calls of a frame of calls."""
    batches = calls.toArrow().to_batches()
    found = [decode_calls(batch, DecodeSettings(packets=keep_packets))[str(REMOTE_READ_CALLS)] for batch in batches]
    return pa.Table.from_batches(found, REMOTE_READ_CALLS.schema())


@pytest.mark.parametrize("keep_packets", [False, True])
def test_calls_become_their_parameters(spark, keep_packets):
    calls = frame(spark, RPC_CALLS, [OPEN, START, END, *OTHERS])
    expected = [row | ({"packet": b"abc"} if keep_packets and row["call_key"] == "start" else {}) for row in EXPECTED]
    made = arrow_to_frame(spark, decode_remote_read_calls(calls, keep_packets=keep_packets))
    assertDataFrameEqual(made, frame(spark, REMOTE_READ_CALLS, expected))


def gold_anew(lake, cleanup_s=300):
    """Attempts as they would be if they were made now of all there is."""
    captured = "SELECT servers, unix_micros(last_packet_at) AS `at` FROM {rows} WHERE servers IS NOT NULL"
    captures = lake.query(captured, rows=CAPTURE_FILES).to_pylist()
    ends = latest_by_server((server, row["at"]) for row in captures for server in row["servers"])
    queries = attempt_queries(lake, None, ends)
    parts = {name: lake.query(query.sql, **query.inputs) for name, query in queries.items()}
    find = attempts_function(ends=ends, aliases=AliasIndex.load(lake).canonical_names, cleanup_s=cleanup_s)
    return lake.spark.createDataFrame(pa.concat_tables(find(parts)), RECEIVE_ATTEMPTS.struct())


def filled(spark, root, calls, connections, **more):
    """A lake with calls, what they decode to, connections, and more tables' rows."""
    lake, calls = Lake(spark, str(root)), frame(spark, RPC_CALLS, calls)
    lake.append(RPC_CALLS, calls)
    lake.append(REMOTE_READ_CALLS, decode_remote_read_calls(calls))
    lake.append(CONNECTIONS, frame(spark, CONNECTIONS, connections))
    for table in (CAPTURE_FILES, MESSAGES):
        lake.append(table, frame(spark, table, more.get(table.name, [])))
    return lake


def test_no_calls_become_no_rows(spark, tmp_path):
    assert decode_remote_read_calls(frame(spark, RPC_CALLS, [])).num_rows == 0
    assert gold_anew(filled(spark, tmp_path, [], [])).collect() == []


def _connection(name, first, closed=None, **more):
    return {
        "connection_id": name, **FOUR_TUPLE, "kind": "rpc", "syn_seen": True, "first_packet_at": at(first),
        "last_packet_at": at(10), "closed_at": None if closed is None else at(closed), "association_group_id": 1,
        "server_bytes": 100, "missing_bytes": 0,
    } | more  # fmt: skip


CONNECTED = [
    _connection("c1", 0),
    _connection("c2", 0),
    _connection("idle", 0, server_address="10.0.0.9"),
    _connection("binary", 0, kind="binary_protocol", server_port=1801, missing_bytes=None),
]
ATTEMPT = {
    "protocol": "RemoteRead", "connection_id": "c1", **FOUR_TUPLE, "transactional": False, "errors": [],
    "ack_refused": False, "ack_unanswered": False, "gaps": False,
    "run_id": "run",
}  # fmt: skip


def attempt(call_key, started_at, returned_at, ended_at=None, **more):
    return ATTEMPT | {
        "attempt_key": key(call_key), "started_at": at(started_at), "event_date": at(started_at).date(),
        "returned_at": None if returned_at is None else at(returned_at),
        "ended_at": None if ended_at is None else at(ended_at),
        "wait_ms": None if returned_at is None else (returned_at - started_at) * 1000.0,
        "hold_ms": None if ended_at is None else (ended_at - returned_at) * 1000.0,
    } | more  # fmt: skip


ATTEMPTS = [
    attempt(
        "start", 1, 3, 4, queue=ORDERS, opened_queue=ORDERS, context_handle=HANDLE.hex(), request_id=7,
        action_name="MQ_ACTION_RECEIVE", timeout_ms=5000, is_receive=True, lookup_id=Decimal(2**55 + 1),
        start_hresult=0, start_hresult_name="MQ_OK", end_hresult=0, end_hresult_name="MQ_OK",
        outcome="acked", evidence=["open", "start", "end"], confidence="complete", missing=[],
    ),
    attempt(
        "lost", 5, None, outcome="in_flight", evidence=["lost"], confidence="partial",
        missing=["capture_ends", "damaged", "queue_unknown"],
    ),
    attempt(
        "sealed", 6, 7, outcome="unknown", evidence=["sealed"], confidence="partial",
        missing=["queue_unknown", "sealed"],
    ),
    attempt(
        "fault", 8, 9, protocol="qm2qm", connection_id="c2", outcome="failed", evidence=["fault"],
        confidence="partial", missing=["no_open", "queue_unknown"],
    ),
]  # fmt: skip


def test_calls_and_connections_become_attempts(spark, tmp_path):
    captures = [{"capture_id": "one", "servers": SERVERS, "last_packet_at": at(10)},
                {"capture_id": "another", "last_packet_at": at(9999)}]  # fmt: skip
    messages = [{"sighting_key": "s", "call_key": "start", "message_key": "m", "body_bytes": 5, "abort_count": 2}]
    calls = [OPEN, START, END, *OTHERS]
    made = gold_anew(filled(spark, tmp_path, calls, CONNECTED, capture_files=captures, messages=messages))
    expected = [ATTEMPTS[0] | {"message_key": "m", "message_bytes": 5, "abort_count": 2}, *ATTEMPTS[1:]]
    assertDataFrameEqual(made, frame(spark, RECEIVE_ATTEMPTS, expected))


def test_the_capture_of_a_server_ends_with_the_newest_capture_that_holds_packets_of_it(spark, tmp_path):
    def outcomes(last_packet_at, **options):
        captures = [] if last_packet_at is None else [
            {"capture_id": "one", "servers": SERVERS, "last_packet_at": at(last_packet_at)}
        ]  # fmt: skip
        root = tmp_path / f"{last_packet_at} {options}"
        made = gold_anew(filled(spark, root, [OPEN, START], CONNECTED, capture_files=captures), **options)
        return [row.outcome for row in made.collect()]

    assert outcomes(302) == ["in_flight"]
    assert outcomes(304) == ["expired"]
    assert outcomes(20, cleanup_s=5) == ["expired"]
    assert outcomes(None) == ["in_flight"]
