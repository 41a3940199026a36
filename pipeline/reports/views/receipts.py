"""SQL of messages that applications received, as acknowledgements say that came back to the sender."""

from __future__ import annotations

from typing import Final

from pipeline.reports.views.canonical import with_canonical_queues
from udfs.codes import MQMSG_CLASS_ACK_RECEIVE

_TIMES: Final = ", ".join(
    f"CASE WHEN {name}_class = {MQMSG_CLASS_ACK_RECEIVE} THEN {name}_acked_at END" for name in ("final", "receive")
)
RECEIPTS_SQL: Final = (
    f"(SELECT message_key, queue, least({_TIMES}) AS received_at FROM "  # without what is null
    + with_canonical_queues(
        "gold.message_transfers",
        {"queue": "rows.destination_queue"},
        "message_key, final_class, final_acked_at, receive_class, receive_acked_at",
    )
    + f" WHERE {MQMSG_CLASS_ACK_RECEIVE} IN (final_class, receive_class))"
)
"""A subquery: message_key, queue, received_at. The acknowledgement came then: the message was received before.

The SQL is valid for Spark and for DuckDB.
"""
