"""gold: attempts to receive, what else was done to queues, and who opened which, with evidence and what is missing."""

from __future__ import annotations

import pyarrow as pa

from schemas.table import (
    BIGINT,
    BOOLEAN,
    CLIENT_IDENTITY,
    DOUBLE,
    ENDPOINT_COLUMNS,
    ERRORS,
    INT,
    STRING,
    STRINGS,
    TIMESTAMP,
    UINT64,
    Column,
    Table,
    list_of,
    run_columns,
)

EVIDENCE = (
    Column("evidence", STRINGS, "keys of the calls, or ids of the snapshots, that the answer rests on"),
    Column("confidence", STRING, "complete, inferred, provisional or partial"),
    Column("missing", STRINGS, "codes of the evidence that is missing, sorted; empty when complete"),
    Column("errors", ERRORS, "what went wrong with this row: code, field, offset in bytes; empty when all is well"),
)

_AHEAD = "by how much the clock of"
_AHEAD_OF = "is ahead of the one by which events are in order, microseconds (clocks of rpc_calls); null where it is not"

RECEIVE_ATTEMPTS = Table(
    "gold",
    "receive_attempts",
    "One row per Start of a remote receive or peek, of either protocol, with how it ended.",
    key=("attempt_key",),
    event_date_columns=("started_at", "returned_at", "ended_at"),
    looked_up_by=("queue",),
    columns=(
        Column("attempt_key", STRING, "key of the Start's call_key"),
        Column("protocol", STRING, "qm2qm ([MS-MQQP]) or RemoteRead ([MS-MQRR])"),
        Column("queue", STRING, "canonical normal form of the queue read from; null when not known"),
        Column("inferred_queue", STRING, "queue guessed from the message's destination; never copied to queue"),
        Column("opened_queue", STRING, "normal form of the queue as it was opened, as in silver; null when not known"),
        Column("connection_id", STRING, "bronze.connections, of the Start"),
        *ENDPOINT_COLUMNS,
        *CLIENT_IDENTITY,
        Column("context_handle", STRING, "context handle given to the Start, hex of 20 bytes"),
        Column("remote_read_handle", STRING, "qm2qm: handle that Start returned, hex of 20 bytes"),
        Column("queue_handle", BIGINT, "qm2qm: number of the queue at its owner, hRemoteQueue"),
        Column("request_id", BIGINT, "the client's number of the Start, unique in its context"),
        Column("action_name", STRING, "MQ_ACTION_... or MQ_LOOKUP_...; 0x and hex when unknown"),
        Column("timeout_ms", BIGINT, "time-out of the Start, milliseconds; 4294967295 is infinite"),
        Column("is_receive", BOOLEAN, "a receive, not a peek; null when sealed and not decrypted"),
        Column("transactional", BOOLEAN, "within a transaction"),
        Column("transaction_id", STRING, "transaction identifier as GUID text; null when zero or none"),
        Column("started_at", TIMESTAMP, "time of the Start's request, UTC"),
        Column("returned_at", TIMESTAMP, "time of the Start's response, UTC"),
        Column("ended_at", TIMESTAMP, "request of the call, or packet, that ended the attempt, UTC; null if none"),
        Column("wait_ms", DOUBLE, "returned_at - started_at, milliseconds"),
        Column("hold_ms", DOUBLE, "ended_at - returned_at, milliseconds; null where either is"),
        Column("started_ahead_us", BIGINT, f"{_AHEAD} started_at {_AHEAD_OF}"),
        Column("returned_ahead_us", BIGINT, f"{_AHEAD} returned_at {_AHEAD_OF}"),
        Column("ended_ahead_us", BIGINT, f"{_AHEAD} ended_at {_AHEAD_OF}"),
        Column("lookup_id", UINT64, "lookup identifier of the message, 56 bits"),
        Column("message_key", STRING, "silver.messages; null when no message or its header is not whole"),
        Column("message_bytes", BIGINT, "declared size of the message's body, bytes"),
        Column("abort_count", INT, "AbortCounter of the message: reads and moves that failed in a row before; or null"),
        Column("start_hresult", BIGINT, "result of the Start, unsigned"),
        Column("start_hresult_name", STRING, "name of start_hresult; 0x and hex when unknown"),
        Column("end_hresult", BIGINT, "result of the call that ended the attempt, unsigned"),
        Column("end_hresult_name", STRING, "name of end_hresult; 0x and hex when unknown"),
        Column(
            "outcome",
            STRING,
            "how it ended: rejected, acked, nacked, expired, rundown, peeked, cancelled, timed_out, empty, failed, "
            "in_flight, unknown",
        ),
        Column("ack_refused", BOOLEAN, "an End with RR_ACK was refused"),
        Column("ack_unanswered", BOOLEAN, "no answer was seen to the End with RR_ACK that settled the attempt"),
        Column(
            "reader_gone_at",
            TIMESTAMP,
            "end of the reader's last connection, UTC, if it had acknowledged the message and not closed the queue",
        ),
        Column(
            "gaps",
            BOOLEAN,
            "bytes of the connections that share its handles are in no capture: they may have contained other calls",
        ),
        *EVIDENCE,
        *run_columns("gold", "started_at, else of the next time that is known"),
    ),
)

QUEUE_OPERATIONS = Table(
    "gold",
    "queue_operations",
    "One row per purge of a queue, and per move of a message between a queue and its subqueues, seen in captures.",
    key=("call_key",),
    event_date_columns=("requested_at", "responded_at"),
    looked_up_by=("queue",),
    columns=(
        Column("call_key", STRING, "bronze.rpc_calls"),
        Column("operation", STRING, "purge (R_PurgeQueue, RemoteQMPurgeQueue) or move (R_MoveMessage)"),
        Column("protocol", STRING, "qm2qm ([MS-MQQP]) or RemoteRead ([MS-MQRR])"),
        Column("queue", STRING, "canonical normal form of the queue purged or moved from; null when not known"),
        Column("opened_queue", STRING, "normal form of that queue as it was opened, as in silver; null when not known"),
        Column("queue_format_name", STRING, "format name that it was opened by; null when not known"),
        Column("target_queue", STRING, "of a move: canonical normal form of the queue moved to; null when not known"),
        Column("connection_id", STRING, "bronze.connections"),
        *ENDPOINT_COLUMNS,
        Column("context_handle", STRING, "context handle of the queue, hex of 20 bytes"),
        Column("queue_handle", BIGINT, "qm2qm: number of the queue at its owner"),
        Column("lookup_id", UINT64, "of a move: lookup identifier of the message, 56 bits"),
        Column("transaction_id", STRING, "of a move: transaction identifier as GUID text; null when zero"),
        Column("requested_at", TIMESTAMP, "time of the request, UTC"),
        Column("responded_at", TIMESTAMP, "time of the response, UTC"),
        Column("requested_ahead_us", BIGINT, f"{_AHEAD} requested_at {_AHEAD_OF}"),
        Column("hresult", BIGINT, "result of the call, unsigned"),
        Column("hresult_name", STRING, "name of hresult; 0x and hex when unknown"),
        Column("outcome", STRING, "done, failed, or unknown: no answer was seen, or it cannot be read"),
        *EVIDENCE,
        *run_columns("gold", "requested_at, else of responded_at"),
    ),
)

_STEP = pa.struct(
    [
        ("step", STRING),
        ("seen", BOOLEAN),
        ("call_key", STRING),
        ("at", TIMESTAMP),
    ]
)

QUEUE_OPENS = Table(
    "gold",
    "queue_opens",
    "One row per call that opens a queue: who asked, how long it was open, how that ended, and who blocked whom.",
    key=("call_key",),
    event_date_columns=("requested_at", "responded_at"),
    looked_up_by=("queue",),
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
            list_of(_STEP),
            "of RemoteQMOpenQueue and R_OpenQueue, the sequence of a remote open ([MS-MQQP] 3.2.4.1): number (qm2qm: "
            "R_QMOpenRemoteQueue returned the queue's), port (asked for), binding (of the connection that it came "
            "over), open (accepted); each seen or not, with its call and time, UTC",
        ),
        *EVIDENCE,
        *run_columns("gold", "requested_at, else of responded_at"),
    ),
)

TABLES = (RECEIVE_ATTEMPTS, QUEUE_OPERATIONS, QUEUE_OPENS)
