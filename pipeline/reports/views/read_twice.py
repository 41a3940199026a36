"""SQL of messages that applications have twice."""

from __future__ import annotations

from typing import Final

_COPIES: Final = "PARTITION BY message_key, queue, server_address, handle"
READ_TWICE_SQL: Final = f"""(SELECT *, loss_risk = 'read_twice' OR is_copy AS read_twice FROM (
    SELECT *, message_key IS NOT NULL AND fate = 'consumed'
      AND coalesce(min(consumed_id) OVER ({_COPIES}) <> max(consumed_id) OVER ({_COPIES}), FALSE) AS is_copy
    FROM (SELECT *, CASE WHEN fate = 'consumed' THEN lookup_id END AS consumed_id FROM gold.ack_sequences) AS each
  ) AS copies)"""
"""A subquery over gold.ack_sequences: its columns, and ``read_twice``; null where nothing shows it.

Two receives of the message were acknowledged: of one copy, or of two in its queue, which have two lookup identifiers.
"""
