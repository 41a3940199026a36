"""SQL of receives that ended although no call shows it: what came later does. Valid for Spark and for DuckDB."""

from __future__ import annotations

from typing import Final

from pipeline.queues.history import STATE_LOCAL
from schemas.table import literal
from udfs.codes import MQMSG_CLASS_ACK_RECEIVE

_TIMES: Final = ", ".join(
    f"CASE WHEN {name}_class = {MQMSG_CLASS_ACK_RECEIVE} THEN {name}_acked_at END" for name in ("final", "receive")
)
RECEIVED_AT_SQL: Final = f"least({_TIMES})"  # without what is null
"""When the acknowledgement came that a message was received, of a row of gold.message_transfers; null without one."""


def reported_empty_sql(history: str, now: str) -> str:
    """Return a subquery: when each queue was last reported to be empty (``emptied_at``), until a time.

    Only the machine that has a queue says so: outgoing queues elsewhere have its name too. ``history`` is the SQL name
    of gold.queue_history, ``now`` a SQL expression.
    """
    return (
        f"(SELECT queue, max(valid_from) AS emptied_at FROM {history} "
        f"WHERE message_count = 0 AND state = {literal(STATE_LOCAL)} AND valid_from <= {now} GROUP BY queue)"
    )


def with_known_ends(attempts: str, transfers: str, history: str, sequences: str, now: str) -> str:
    """Return a subquery over gold.receive_attempts: its columns, ``ended_anyway`` and ``given_back``.

    ``ended_anyway`` is true where an acknowledgement on TCP 1801 says that the message was received before the end that
    the attempt has, or where it has none and its queue was reported to be empty since. ``given_back`` is true where it
    has none and the message was handed out again: it ended before that, nobody knows when. ``transfers``, ``history``
    and ``sequences`` are the SQL names of gold.message_transfers, gold.queue_history and gold.ack_sequences, ``now`` is
    a SQL expression.
    """
    return f"""(SELECT attempts.*, outcome IN ('in_flight', 'expired', 'rundown') AND (
        coalesce(received_at >= returned_at AND received_at <= coalesce(ended_at, received_at), FALSE)
        OR coalesce(outcome = 'in_flight' AND emptied_at > returned_at, FALSE)
      ) AS ended_anyway,
      coalesce(outcome = 'in_flight' AND last_key <> attempt_key, FALSE) AS given_back
    FROM {attempts} AS attempts
    LEFT JOIN (
      SELECT message_key AS received_key, min({RECEIVED_AT_SQL}) AS received_at FROM {transfers}
      WHERE {MQMSG_CLASS_ACK_RECEIVE} IN (final_class, receive_class)
        AND message_key IN (SELECT message_key FROM {attempts} AS wanted)
      GROUP BY message_key
    ) AS receipts ON received_key = attempts.message_key
    LEFT JOIN (
      SELECT explode(attempt_keys) AS delivered_key, try_element_at(attempt_keys, -1) AS last_key FROM {sequences}
      WHERE size(attempt_keys) > 1
    ) AS deliveries ON delivered_key = attempts.attempt_key
    LEFT JOIN {reported_empty_sql(history, now)} AS emptied
      ON emptied.queue = coalesce(attempts.queue, attempts.inferred_queue))"""
