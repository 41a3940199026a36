"""gold.queue_opens: who opened which queue, how, until when, and whom that blocked."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, StructField, StructType

from schemas.receive_attempts import EVIDENCE
from schemas.table import (
    BIGINT,
    BOOLEAN,
    CLIENT_IDENTITY,
    ENDPOINT_COLUMNS,
    STRING,
    STRINGS,
    TIMESTAMP,
    Column,
    Table,
    run_columns,
)

_STEP = StructType(
    [
        StructField("step", STRING),
        StructField("seen", BOOLEAN),
        StructField("call_key", STRING),
        StructField("at", TIMESTAMP),
    ]
)

QUEUE_OPENS = Table(
    "gold",
    "queue_opens",
    "One row per call that opens a queue: who asked, how long it was open, how that ended, and who blocked whom.",
    key=("call_key",),
    event_date_columns=("requested_at", "responded_at"),
    columns=(
        Column("call_key", STRING, "bronze.rpc_calls, of the opening call"),
        Column("protocol", STRING, "qmcomm ([MS-MQMP]), qm2qm ([MS-MQQP]) or RemoteRead ([MS-MQRR])"),
        Column("method", STRING, "the IDL's name of the operation"),
        Column("queue", STRING, "canonical normal form of the queue; null when not known"),
        Column(
            "opened_queue",
            STRING,
            "its normal form as it was asked for; of RemoteQMOpenQueue as it was asked for in remote_open",
        ),
        Column("queue_format_name", STRING, "format name that was asked for; null where it is not known"),
        Column("connection_id", STRING, "bronze.connections"),
        *ENDPOINT_COLUMNS,
        *CLIENT_IDENTITY,
        Column("client_id", STRING, "GUID that the client says it is (pClientId, pLicGuid), lower case"),
        Column("access", BIGINT, "access mode asked for, as sent; of RemoteQMOpenQueue that of remote_open"),
        Column("access_name", STRING, "its bits: receive, send, peek, admin, move, joined by +; 0x and hex for others"),
        Column("share_mode", BIGINT, "share mode asked for, as sent; of RemoteQMOpenQueue that of remote_open"),
        Column("share_mode_name", STRING, "MQ_DENY_NONE or MQ_DENY_SHARE; 0x and hex when unknown"),
        Column("context_handle", STRING, "context handle that was returned, hex of 20 bytes"),
        Column("queue_handle", BIGINT, "qmcomm, qm2qm: number of the queue at its owner"),
        Column(
            "remote_open",
            STRING,
            "of RemoteQMOpenQueue: call_key of the R_QMOpenRemoteQueue that returned its number; null when not seen",
        ),
        Column("requested_at", TIMESTAMP, "time of the request, UTC"),
        Column("responded_at", TIMESTAMP, "time of the response, UTC"),
        Column(
            "outcome",
            STRING,
            "opened; refused; referred: the queue manager named the owner of the queue instead "
            "(rpc_QMOpenQueueInternal); unknown: no answer was seen, or it cannot be read",
        ),
        Column("result", BIGINT, "HRESULT, or status of the fault; null for an answer that has none"),
        Column("result_name", STRING, "name of result: why an open was refused; 0x and hex when unknown"),
        Column("opened_at", TIMESTAMP, "since when the queue was open: time of the answer, UTC; null unless opened"),
        Column("closed_at", TIMESTAMP, "when that ended, UTC; null while it had not, and where it is not known"),
        Column(
            "ended_by",
            STRING,
            "of an opened queue: closed (by a call); rundown (the last connection of the association ended); "
            "connection_ended (its connection ended; which association it belongs to was not seen); open (had not "
            "ended in what was captured); unknown",
        ),
        Column("cursors", BIGINT, "cursors that were seen to be created on it; null unless opened"),
        Column(
            "blocked_by",
            STRINGS,
            "of an open refused with MQ_ERROR_SHARING_VIOLATION: call_key of the opens that held the queue then and "
            "whose access and share mode explain it, the first 100; null where none was seen",
        ),
        Column("blocks", STRINGS, "call_key of the refused opens that this one blocked, as far as seen; else empty"),
        Column(
            "steps",
            ArrayType(_STEP),
            "of RemoteQMOpenQueue and R_OpenQueue, the sequence of a remote open ([MS-MQQP] 3.2.4.1): number (qm2qm: "
            "R_QMOpenRemoteQueue returned the queue's), port (asked for), binding (of the connection that it came "
            "over), open (accepted); each seen or not, with its call and time, UTC",
        ),
        *EVIDENCE,
        *run_columns("gold", "requested_at, else of responded_at"),
    ),
)

TABLES = (QUEUE_OPENS,)
