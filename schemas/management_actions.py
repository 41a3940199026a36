"""gold: what administrators had queue managers do, and what changed after it."""

from __future__ import annotations

from schemas.receive_attempts import EVIDENCE
from schemas.table import BIGINT, ENDPOINT_COLUMNS, INT, STRING, TIMESTAMP, Column, Table, run_columns

MANAGEMENT_ACTIONS = Table(
    "gold",
    "management_actions",
    "One row per R_QMMgmtAction call ([MS-MQMR] 3.1.4.2): who asked a queue manager to do what, with which result, and "
    "the state of the queue or queue manager before and after.",
    key=("call_key",),
    event_date_columns=("requested_at", "responded_at"),
    columns=(
        Column("call_key", STRING, "bronze.rpc_calls"),
        Column(
            "action",
            STRING,
            "CONNECT, DISCONNECT, TIDY of a machine; PAUSE, RESUME, EOD_RESEND of a queue; any other as sent, upper "
            "case; null when it cannot be read",
        ),
        Column("object_type", STRING, "machine, queue, session; null when it cannot be read"),
        Column(
            "queue_manager",
            STRING,
            "configured name of the queue manager, if one is known for its address, else the address",
        ),
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

TABLES = (MANAGEMENT_ACTIONS,)
