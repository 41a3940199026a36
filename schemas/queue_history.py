"""gold: how queues and queue managers went on, interval by interval, and what administrators had them do."""

from __future__ import annotations

from typing import Final

from schemas.attempts import EVIDENCE
from schemas.table import (
    BIGINT,
    BOOLEAN,
    ENDPOINT_COLUMNS,
    INT,
    NAMED_QUEUE_MANAGER,
    STRING,
    TIMESTAMP,
    UINT64,
    Column,
    Table,
    run_columns,
)

_INTERVAL: Final = (
    Column("valid_from", TIMESTAMP, "beginning of the interval, UTC"),
    Column("valid_to", TIMESTAMP, "end of the interval, UTC; no longer part of it"),
)

QUEUE_HISTORY = Table(
    "gold",
    "queue_history",
    "One row per interval of a queue's life; intervals are half-open, do not overlap and leave no hole between the "
    "first and the last evidence. Where nothing is known the state is UNKNOWN and the values are null.",
    key=("interval_key",),
    event_date_columns=("valid_from", "valid_to"),
    looked_up_by=("queue_manager", "queue"),
    columns=(
        Column("interval_key", STRING, "key of queue_manager, queue, queue_format_name and valid_from"),
        NAMED_QUEUE_MANAGER,
        Column("queue", STRING, "canonical normal form of the queue"),
        Column("queue_format_name", STRING, "its format name as asked, part of an outgoing queue's identity"),
        *_INTERVAL,
        Column("state", STRING, "state as reported, upper case; UNKNOWN when the last report has expired"),
        Column("message_count", BIGINT, "messages in the queue, as last reported"),
        Column("bytes", BIGINT, "bytes of these messages, as last reported"),
        Column("journal_count", BIGINT, "messages in the journal, as last reported"),
        Column("journal_bytes", BIGINT, "bytes in the journal, as last reported"),
        Column("received", BIGINT, "captured remote receives that were acknowledged in it"),
        Column("peeked", BIGINT, "captured remote peeks that were answered in it"),
        Column("nacked", BIGINT, "captured remote receives whose message was given back in it"),
        Column(
            "arrived",
            BIGINT,
            "messages that other queue managers were seen to hand over to it in it (TCP 1801), resends once",
        ),
        Column("departed", BIGINT, "messages that it, an outgoing queue, was seen to hand over to the next machine"),
        Column("arrivals_seen", BOOLEAN, "its queue manager's transfers were captured for the whole interval"),
        Column("moved_in", BIGINT, "messages that captured calls moved here in it"),
        Column("moved_out", BIGINT, "messages that captured calls moved away in it"),
        Column("purged", BIGINT, "captured purges that succeeded in it"),
        Column("paused", BOOLEAN, "on hold, by the reported state or by a pause; null when neither is known"),
        Column(
            "expected_message_count",
            BIGINT,
            "messages at valid_to by the last report (0 after a purge) and what was captured since; below 0 where "
            "messages came that nobody saw",
        ),
        Column("unexplained_change", BIGINT, "count reported at valid_to - expected_message_count; null without one"),
        Column(
            "source",
            STRING,
            "evidence that it begins with or continues from: wire, collector, operations; null when UNKNOWN",
        ),
        Column(
            "reported_at",
            TIMESTAMP,
            "time of the newest report of state, messages, bytes or journal that holds in it, UTC; null without one",
        ),
        *EVIDENCE,
        *run_columns("gold", "valid_from"),
    ),
)

MACHINE_HISTORY = Table(
    "gold",
    "machine_history",
    "One row per interval of a queue manager's life; intervals are half-open, do not overlap and leave no hole between "
    "the first and the last evidence. Where nothing is known the state is UNKNOWN and the values are null.",
    key=("interval_key",),
    event_date_columns=("valid_from", "valid_to"),
    looked_up_by=("queue_manager",),
    columns=(
        Column("interval_key", STRING, "key of queue_manager and valid_from"),
        NAMED_QUEUE_MANAGER,
        *_INTERVAL,
        Column(
            "state",
            STRING,
            "DISCONNECTED: taken off the network and the directory; CONNECTED: not taken off, whether or not a "
            "directory answers; as reported (upper case) or by a CONNECT or DISCONNECT since; UNKNOWN when the last "
            "report has expired",
        ),
        Column("directory_server", STRING, "name of the directory server, as last reported; null when it has none"),
        Column("bytes_in_all_queues", UINT64, "bytes of the messages in all its queues, as last reported"),
        Column("active_queues", BIGINT, "number of its active queues, as last reported"),
        Column("private_queues", BIGINT, "number of its private queues, as last reported"),
        Column(
            "source",
            STRING,
            "evidence that it begins with or continues from: wire, collector, operations; null when UNKNOWN",
        ),
        Column(
            "reported_at",
            TIMESTAMP,
            "time of the newest report of one of its values that holds in it, UTC; null without one",
        ),
        *EVIDENCE,
        *run_columns("gold", "valid_from"),
    ),
)

MANAGEMENT_ACTIONS = Table(
    "gold",
    "management_actions",
    "One row per R_QMMgmtAction call ([MS-MQMR] 3.1.4.2): who asked a queue manager to do what, with which result, and "
    "the state of the queue or queue manager before and after.",
    key=("call_key",),
    event_date_columns=("requested_at", "responded_at"),
    looked_up_by=("queue_manager", "queue"),
    columns=(
        Column("call_key", STRING, "bronze.rpc_calls"),
        Column(
            "action",
            STRING,
            "CONNECT, DISCONNECT, TIDY of a machine; PAUSE, RESUME, EOD_RESEND of a queue; any other as sent, upper "
            "case; null when it cannot be read",
        ),
        Column("object_type", STRING, "machine, queue, session; null when it cannot be read"),
        NAMED_QUEUE_MANAGER,
        Column("queue", STRING, "canonical normal form of the queue; null for machines, and when not known"),
        Column("queue_format_name", STRING, "its format name as sent, part of an outgoing queue's identity"),
        Column("connection_id", STRING, "bronze.connections"),
        *ENDPOINT_COLUMNS,
        Column(
            "auth_level",
            INT,
            "authentication level of the call; 1 without authentication; null when the bind was not seen",
        ),
        Column("auth_level_name", STRING, "name of auth_level, RPC_C_AUTHN_LEVEL_...; 0x and hex when unknown"),
        Column("requested_at", TIMESTAMP, "time of the request, UTC"),
        Column("responded_at", TIMESTAMP, "time of the response, UTC"),
        Column("hresult", BIGINT, "result of the call, unsigned; null for faults and without an answer"),
        Column("hresult_name", STRING, "name of hresult; 0x and hex when unknown"),
        Column("fault_name", STRING, "name of the status of a fault; 0x and hex when unknown; null without a fault"),
        Column("outcome", STRING, "done, failed, or unknown: no answer was seen, or it cannot be read"),
        Column(
            "state_before",
            STRING,
            "state in the last snapshot of the queue or machine (CONNECTED) before the request, upper case; null when "
            "it is older than history.max_gap, or another action changed the state since",
        ),
        Column("state_before_at", TIMESTAMP, "time of that snapshot, UTC"),
        Column(
            "state_after",
            STRING,
            "state in the first snapshot after the response, upper case; null when there is none within "
            "history.max_gap, or another action changed the state before",
        ),
        Column("state_after_at", TIMESTAMP, "time of that snapshot, UTC"),
        *EVIDENCE,
        *run_columns("gold", "requested_at, else of responded_at"),
    ),
)

TABLES = (QUEUE_HISTORY, MACHINE_HISTORY, MANAGEMENT_ACTIONS)
