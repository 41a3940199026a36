"""SQL that joins messages on a hop with what their sequence shows: that the receiver refuses them for ever."""

from __future__ import annotations


def with_refusals(transfers: str, sequences: str) -> str:
    """Return a subquery over gold.message_transfers: its columns, and ``refused``.

    ``refused`` is true where the message waits for its order acknowledgement in a sequence whose ``condition`` is
    `refused`: the next machine has its bytes (``outcome`` may be `transferred`), and its queue never gets it.
    ``transfers`` and ``sequences`` are SQL names of the tables. The SQL is valid for Spark and for DuckDB.
    """
    return f"""(SELECT sent.*, coalesce(sent.transaction_number >= refusing.first_waiting_number
      AND sent.outcome NOT IN ('received', 'delivered', 'rejected'), FALSE) AS refused
    FROM {transfers} AS sent LEFT JOIN (
      SELECT sequence_key, min(first_waiting_number) AS first_waiting_number FROM {sequences}
      WHERE condition = 'refused' GROUP BY sequence_key
    ) AS refusing ON refusing.sequence_key = sent.sequence_key)"""
