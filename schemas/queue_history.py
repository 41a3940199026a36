"""gold: how each queue went on, interval by interval."""

from __future__ import annotations

from schemas.receive_attempts import EVIDENCE
from schemas.table import BIGINT, BOOLEAN, STRING, TIMESTAMP, Column, Table, run_columns

QUEUE_HISTORY = Table(
    "gold",
    "queue_history",
    "One row per interval of a queue's life; intervals are half-open, do not overlap and leave no hole between the "
    "first and the last evidence. Where nothing is known the state is UNKNOWN and the values are null.",
    key=("interval_key",),
    event_date_columns=("valid_from", "valid_to"),
    columns=(
        Column("interval_key", STRING, "key of queue_manager, queue, queue_format_name and valid_from"),
        Column(
            "queue_manager",
            STRING,
            "configured name of the queue manager, if one is known for its address, else the address",
        ),
        Column("queue", STRING, "canonical normal form of the queue"),
        Column("queue_format_name", STRING, "its format name as asked, part of an outgoing queue's identity"),
        Column("valid_from", TIMESTAMP, "beginning of the interval, UTC"),
        Column("valid_to", TIMESTAMP, "end of the interval, UTC; no longer part of it"),
        Column("state", STRING, "state as reported, upper case; UNKNOWN when the last report has expired"),
        Column("message_count", BIGINT, "messages in the queue, as last reported"),
        Column("bytes", BIGINT, "bytes of these messages, as last reported"),
        Column("journal_count", BIGINT, "messages in the journal, as last reported"),
        Column("journal_bytes", BIGINT, "bytes in the journal, as last reported"),
        Column("received", BIGINT, "captured remote receives that were acknowledged in it"),
        Column("peeked", BIGINT, "captured remote peeks that were answered in it"),
        Column("nacked", BIGINT, "captured remote receives whose message was given back in it"),
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

TABLES = (QUEUE_HISTORY,)
