"""SQL of what shows that messages of a queue were read. Valid for Spark and for DuckDB."""

from __future__ import annotations

from typing import Final

from pipeline.queues.ended_receives import RECEIVED_AT_SQL
from pipeline.queues.history import STATE_LOCAL
from pipeline.silver.canonical_queues import with_canonical_queues
from schemas.table import literal
from udfs.codes import MQMSG_CLASS_ACK_RECEIVE

_COUNTED: Final = "PARTITION BY queue_manager, queue, queue_format_name, is_counted ORDER BY valid_from"
_FROM_HERE: Final = "PARTITION BY queue ORDER BY begins RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"


def next_receipts(rows: str, key: str, begins: str, transfers: str, aliases: str, now: str) -> str:
    """Return a subquery: when TCP 1801 next showed that a message of a row's queue was received, as of ``now``.

    Its columns are ``of_row``, the ``key`` of a row, and ``next_received_at``: when the first acknowledgement from the
    row's time ``begins`` on came; null without one. ``rows`` is the SQL name of a table with canonical ``queue``,
    ``transfers`` and ``aliases`` are those of gold.message_transfers and silver.queue_aliases.
    """
    received = with_canonical_queues(
        f"(SELECT destination_queue, {RECEIVED_AT_SQL} AS received_at FROM {transfers} "
        f"WHERE {MQMSG_CLASS_ACK_RECEIVE} IN (final_class, receive_class))",
        {"queue": "rows.destination_queue"},
        "received_at",
        aliases,
    )
    return f"""(SELECT of_row, next_received_at FROM (
              SELECT of_row, min(received_at) OVER ({_FROM_HERE}) AS next_received_at
              FROM (
                SELECT {key} AS of_row, queue, {begins} AS begins, CAST(NULL AS timestamp) AS received_at
                FROM {rows} AS given
                UNION ALL
                SELECT CAST(NULL AS string), queue, received_at, received_at FROM {received} AS received
                WHERE received_at <= {now}
              ) AS every
            ) AS placed WHERE of_row IS NOT NULL)"""


def with_reads(history: str, transfers: str, aliases: str, now: str) -> str:
    """Return a subquery over gold.queue_history: its columns, and what shows that messages of a queue were read.

    ``is_counted``: the queue is local, and its number of messages is known. ``is_read``: in the interval there was a
    captured receive (also one that gave the message back), a move, a purge, or an acknowledgement on TCP 1801 that a
    message of the queue was received, or at its end there are fewer messages than expected. ``is_fewer``: it has fewer
    messages or bytes than the counted interval before. Applications on the machine itself read without a call that is
    captured: they show by the last two.

    ``history``, ``transfers`` and ``aliases`` are the SQL names of gold.queue_history, gold.message_transfers and
    silver.queue_aliases; acknowledgements after ``now``, a SQL expression, do not count.
    """
    receipts = next_receipts(history, "interval_key", "valid_from", transfers, aliases, now)
    return f"""(SELECT *, is_counted AND coalesce(message_count < lag(message_count) OVER counted
              OR bytes < lag(bytes) OVER counted, FALSE) AS is_fewer
          FROM (
            SELECT history.*,
              coalesce(state = {literal(STATE_LOCAL)} AND message_count IS NOT NULL, FALSE) AS is_counted,
              coalesce(received + nacked + moved_out + purged > 0, FALSE) OR coalesce(unexplained_change < 0, FALSE)
                OR coalesce(next_received_at < valid_to, FALSE) AS is_read
            FROM {history} AS history LEFT JOIN {receipts} AS receipts ON of_row = history.interval_key
          ) AS judged
          WINDOW counted AS ({_COUNTED}))"""
