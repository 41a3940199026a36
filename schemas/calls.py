"""silver: management and client calls, and which texts name the same queue."""

from __future__ import annotations

from schemas.table import (
    BIGINT,
    CLOCKS,
    DECODER_COLUMNS,
    ENDPOINT_COLUMNS,
    FAULT_NAME,
    INT,
    INTS,
    STRING,
    TIMESTAMP,
    Column,
    Table,
    run_columns,
)

_CALL = (
    Column("opnum", INT, "operation number"),
    Column("connection_id", STRING, "bronze.connections"),
    *ENDPOINT_COLUMNS,
    Column("requested_at", TIMESTAMP, "time of the request's first byte, UTC"),
    Column("responded_at", TIMESTAMP, "time of the response's first byte, UTC"),
    CLOCKS,
)
_METHOD = Column("method", STRING, "the IDL's name of the operation; null when the opnum is not known")
_RESULT = (
    Column("hresult", BIGINT, "result of the call, unsigned; null for methods without one and for faults"),
    Column("hresult_name", STRING, "name of hresult; 0x and hex when unknown"),
    FAULT_NAME,
)
_DATED = run_columns("silver", "requested_at, else of responded_at")

MANAGEMENT_CALLS = Table(
    "silver",
    "management_calls",
    "One row per qmmgmt call ([MS-MQMR]): what was asked or done to a queue manager or one of its queues.",
    key=("call_key",),
    event_date_columns=("requested_at", "responded_at"),
    columns=(
        Column("call_key", STRING, "bronze.rpc_calls"),
        _METHOD,
        *_CALL,
        Column("queue_manager", STRING, "address of the server"),
        Column("object_type", STRING, "MGMT_OBJECT.type: machine, queue, session"),
        Column("queue_format_name", STRING, "format name of the queue asked for, as text"),
        Column("queue", STRING, "its normal form"),
        Column("property_ids", INTS, "aProp of R_QMMgmtGetInfo, in the order asked; 2^31 and more as negative numbers"),
        Column("action", STRING, "lpwszAction of R_QMMgmtAction, as sent"),
        *_RESULT,
        *DECODER_COLUMNS,
        *_DATED,
    ),
)

CLIENT_CALLS = Table(
    "silver",
    "client_calls",
    "One row per qmcomm or qmcomm2 call ([MS-MQMP]); parameters of those that open, name, read, purge or close.",
    key=("call_key",),
    event_date_columns=("requested_at", "responded_at"),
    columns=(
        Column("call_key", STRING, "bronze.rpc_calls"),
        Column("interface_name", STRING, "qmcomm or qmcomm2"),
        _METHOD,
        *_CALL,
        Column("queue_format_name", STRING, "format name of the queue asked for, as text"),
        Column("queue", STRING, "its normal form; for R_QMGetRemoteQueueName that of the name answered"),
        Column("access", BIGINT, "access mode asked for, as sent"),
        Column("share_mode", BIGINT, "share mode asked for, as sent"),
        Column("queue_handle", BIGINT, "phQueue, hQueue, hRemoteQueue, srv_hACQueue: the queue's number at its owner"),
        Column("queue_descriptor", BIGINT, "dwpQueue, pQueue, cli_pQMQueue, as sent"),
        Column("open_context", BIGINT, "pdwContext, dwpRemoteContext, as sent"),
        Column("context_handle", STRING, "context handle given, or for opening methods returned; hex"),
        Column("cursor_handle", BIGINT, "hCursor, phCursor, Receive.Cursor"),
        Column("client_id", STRING, "pLicGuid, GUID of the client, lower case"),
        Column("returned_port", BIGINT, "TCP port that R_QMGetRTQMServerPort answered"),
        *_RESULT,
        Column("remote_queue_name", STRING, "lplpRemoteQueueName: the path name answered, as sent"),
        Column("client_name", STRING, "lpClientName of rpc_QMOpenQueueInternal, as sent"),
        Column("queue_manager_context", BIGINT, "pdwQMContext, hQMContext, as sent"),
        Column("remote_cursor_handle", BIGINT, "hRemoteCursor of rpc_ACSetCursorProperties"),
        Column("port_type", BIGINT, "fIP: kind of port that was asked for"),
        Column("mqs", BIGINT, "dwMQS of R_QMOpenRemoteQueue, as sent"),
        Column("action", BIGINT, "Receive.Action of rpc_ACReceiveMessageEx, as sent"),
        Column("timeout_ms", BIGINT, "Receive.RequestTimeout of rpc_ACReceiveMessageEx, milliseconds"),
        Column("request_bytes", BIGINT, "bytes of the request's stub; null when not seen"),
        Column("response_bytes", BIGINT, "bytes of the response's stub; null when not seen, and for a fault"),
        *DECODER_COLUMNS,
        *_DATED,
    ),
)


TABLES = (MANAGEMENT_CALLS, CLIENT_CALLS)
