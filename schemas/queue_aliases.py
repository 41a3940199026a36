"""silver.queue_aliases: which texts name the same queue."""

from __future__ import annotations

from schemas.table import DECODER_COLUMNS, STRING, TIMESTAMP, Column, Table, run_columns

QUEUE_ALIASES = Table(
    "silver",
    "queue_aliases",
    "Which texts name the same queue: a row for each text of two and each kind of evidence, the first piece of it.",
    key=("queue", "other_queue", "named_as", "evidence"),
    event_date_columns=("observed_at",),
    columns=(
        Column("queue", STRING, "a normal form"),
        Column("canonical_queue", STRING, "the text that stands for all of its group, transitively"),
        Column("other_queue", STRING, "the other normal form that this evidence binds it to"),
        Column("named_as", STRING, "what queue was shown as: path_name, format_name"),
        Column("evidence", STRING, "snapshot, open, configuration"),
        Column("call_key", STRING, "bronze.rpc_calls; null when no call shows it"),
        Column("snapshot_id", STRING, "silver.queue_snapshots; null when no snapshot shows it"),
        Column("observed_at", TIMESTAMP, "when it was shown, UTC; null for configuration"),
        *DECODER_COLUMNS,
        *run_columns("silver", "observed_at"),
    ),
)

TABLES = (QUEUE_ALIASES,)
