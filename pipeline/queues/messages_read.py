"""SQL of what shows that messages of a queue were read. Valid for Spark and for DuckDB."""

from __future__ import annotations

from typing import Final

from pipeline.queues.ended_receives import RECEIVED_AT_SQL
from pipeline.queues.history import DEAD_LETTER_QUEUE_PATTERN, JOURNAL_SUFFIX, STATE_LOCAL
from pipeline.silver.canonical_queues import with_canonical_queues
from schemas.table import literal
from udfs.codes import MQMSG_CLASS_ACK_RECEIVE

_COUNTED: Final = "PARTITION BY queue_manager, queue, queue_format_name, is_counted ORDER BY valid_from"
_SERIES: Final = "queue_manager, queue, queue_format_name"
_NOT_FOR_READERS: Final = f"'{JOURNAL_SUFFIX}$|{DEAD_LETTER_QUEUE_PATTERN.pattern}'"
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


def waiting_intervals(history: str, transfers: str, aliases: str, now: str) -> str:
    """Return a subquery over gold.queue_history: the intervals in which messages wait and nothing shows any was read.

    These are of local queues, neither journals nor for dead letters, until ``now``. Intervals of one wait follow one
    another, apart from time in which the number of messages is not known. A wait ends with a captured receive (also one
    that gave the message back), a move, a purge, or an acknowledgement on TCP 1801 that a message of the queue was
    received; and where there are fewer messages or bytes than before, or than expected: applications on the machine
    itself read without a call that is captured.

    Beside the columns of the table it has ``waits_since``; ``waits_until``, the last time that shows the wait;
    ``observed_us``, how much of it reports show, microseconds; and ``may_last``: nothing shows that it ended.

    ``history``, ``transfers`` and ``aliases`` are the SQL names of gold.queue_history, gold.message_transfers and
    silver.queue_aliases; acknowledgements after ``now``, a SQL expression, do not count.
    """
    receipts = next_receipts(history, "interval_key", "valid_from", transfers, aliases, now)
    in_time = f"(PARTITION BY {_SERIES} ORDER BY valid_from)"
    return f"""(WITH reads AS (
            SELECT history.*,
              coalesce(state = {literal(STATE_LOCAL)} AND message_count IS NOT NULL, FALSE) AS is_counted,
              coalesce(received + nacked + moved_out + purged > 0, FALSE) OR coalesce(unexplained_change < 0, FALSE)
                OR coalesce(next_received_at < valid_to, FALSE) AS is_read,
              least({now}, CASE WHEN lead(state) OVER in_time <> 'UNKNOWN' THEN valid_to ELSE reported_at END)
                AS shown_until
            FROM {history} AS history LEFT JOIN {receipts} AS receipts ON of_row = history.interval_key
            WHERE NOT regexp_like(coalesce(queue, ''), {_NOT_FOR_READERS}) AND valid_from <= {now}
            WINDOW in_time AS {in_time}
          ), judged AS (
            SELECT *, is_read OR NOT is_counted OR message_count = 0 AS is_over,
              is_counted AND coalesce(message_count < lag(message_count) OVER counted
                OR bytes < lag(bytes) OVER counted, FALSE) AS is_fewer
            FROM reads WINDOW counted AS ({_COUNTED})
          ), waits AS (
            SELECT *, sum(CAST(is_over OR is_fewer AS int)) OVER in_time AS wait,
              lead(valid_from) OVER in_time IS NULL AS is_last
            FROM judged WHERE is_counted OR is_read WINDOW in_time AS {in_time}
          )
          SELECT *, min(valid_from) OVER one_wait AS waits_since, max(shown_until) OVER one_wait AS waits_until,
            sum(greatest(unix_micros(shown_until) - unix_micros(valid_from), 0)) OVER one_wait AS observed_us,
            max(is_last) OVER one_wait AS may_last
          FROM waits WHERE NOT is_over WINDOW one_wait AS (PARTITION BY {_SERIES}, wait))"""
