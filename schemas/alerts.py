"""gold.alerts: conditions that an operator wants to be told of, since when, and until when they held."""

from __future__ import annotations

from schemas.attempts import EVIDENCE
from schemas.table import STRING, TIMESTAMP, Column, Table, run_columns

ALERTS = Table(
    "gold",
    "alerts",
    "One row per condition, subject and period in which it held (docs/reference/alerts.md). Ended alerts stay.",
    key=("alert_key",),
    event_date_columns=("since",),
    looked_up_by=("queue",),
    columns=(
        Column("alert_key", STRING, "key of condition, subject and since"),
        Column("condition", STRING, "what is wrong (docs/reference/alerts.md): queue_disconnected, queue_stuck, ..."),
        Column("severity", STRING, "error, warning or info: the highest that it reached"),
        Column("subject", STRING, "what has the condition: a queue, transfer, reader, method, machine, ..."),
        Column(
            "subject_text",
            STRING,
            "subject with the names of machines in place of addresses and GUIDs, which stand beside a name that does "
            "not decide (names.machines); for people, it is part of no key",
        ),
        Column("queue", STRING, "canonical normal form of the queue; null if it concerns none, or several"),
        Column(
            "queue_manager", STRING, "configured name of the queue manager, else its address; null if it concerns none"
        ),
        Column(
            "from_machine",
            STRING,
            "machine that sends, or asks: address, name or GUID, as the evidence has it; null if it concerns none",
        ),
        Column("to_machine", STRING, "machine that receives or answers, or that owns the queue, likewise"),
        Column(
            "cause",
            STRING,
            "what the evidence shows of the cause: no_answer, reset, answer_not_captured, refused, unanswered of "
            "connections, the class of a negative acknowledgement; null where it shows none",
        ),
        Column("since", TIMESTAMP, "first observation that showed it, UTC"),
        Column("until", TIMESTAMP, "first observation that no longer showed it, UTC; null while it holds"),
        Column("last_seen_at", TIMESTAMP, "last observation, call or message that showed it, UTC"),
        Column("message", STRING, "what was observed last, as a sentence"),
        Column("suggestion", STRING, "what to look at or do"),
        *EVIDENCE,
        *run_columns("gold", "since"),
    ),
)

TABLES = (ALERTS,)
