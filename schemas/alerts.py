"""gold.alerts: conditions that an operator wants to be told of, since when, and until when they held."""

from __future__ import annotations

from schemas.receive_attempts import EVIDENCE
from schemas.table import STRING, TIMESTAMP, Column, Table, closing_columns

ALERTS = Table(
    "gold",
    "alerts",
    "One row per condition and subject, and per time that it held (docs/alerts.md). One that ended keeps its row.",
    key=("alert_key",),
    dated_by=("since",),
    columns=(
        Column("alert_key", STRING, "key of condition, subject and since"),
        Column("condition", STRING, "what is wrong, a name of docs/alerts.md: queue_disconnected, queue_stuck, ..."),
        Column("severity", STRING, "error, warning or info: the gravest that it came to"),
        Column("subject", STRING, "what the condition is of: a queue, transfer, reader, method, machine, ..."),
        Column("queue", STRING, "canonical normal form of the queue; null where it is of none, or of several"),
        Column("queue_manager", STRING, "configured name of the queue manager, else its address; null if of no one"),
        Column("since", TIMESTAMP, "when what was seen first showed it, UTC"),
        Column("until", TIMESTAMP, "when what was seen no longer showed it, UTC; null while it holds"),
        Column("last_seen_at", TIMESTAMP, "last observation, call or message that showed it, UTC"),
        Column("message", STRING, "what was seen last, as a sentence"),
        Column("suggestion", STRING, "what to look at or do"),
        *EVIDENCE,
        *closing_columns("gold", "since"),
    ),
)

TABLES = (ALERTS,)
