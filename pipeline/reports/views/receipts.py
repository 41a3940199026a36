"""SQL of messages that applications received, as acknowledgements say that came back to the sender."""

from __future__ import annotations

from typing import Final

from pipeline.queues.ended_receives import RECEIVED_AT_SQL
from pipeline.silver.canonical_queues import with_canonical_queues

RECEIPTS_SQL: Final = (
    f"(SELECT queue, {RECEIVED_AT_SQL} AS received_at FROM "
    + with_canonical_queues(
        "gold.message_transfers",
        {"queue": "rows.destination_queue"},
        "final_class, final_acked_at, receive_class, receive_acked_at",
    )
    + ")"
)
"""A subquery: queue, received_at. The acknowledgement came then: the message was received before; null without one.

The SQL is valid for Spark and for DuckDB.
"""
