"""SQL of queues that had no message at a time: what was seen in them before is gone."""

from __future__ import annotations

from typing import Final

REPORTED_EMPTY_SQL: Final = """(SELECT queue, max(valid_from) AS emptied_at
    FROM gold.queue_history CROSS JOIN setting.now
    WHERE message_count = 0 AND state = 'LOCAL CONNECTION' AND valid_from <= now GROUP BY queue)"""
"""A subquery: when each queue was last reported to be empty, by the machine that has it: outgoing queues elsewhere have
its name too. Valid for Spark and for DuckDB, as in ``View.sql``."""

EMPTIED_SQL: Final = f"""(SELECT queue, max(emptied_at) AS emptied_at FROM (
    SELECT queue, emptied_at FROM {REPORTED_EMPTY_SQL} AS reported
    UNION ALL
    SELECT queue, responded_at FROM gold.queue_operations CROSS JOIN setting.now
    WHERE operation = 'purge' AND outcome = 'done' AND queue IS NOT NULL AND responded_at <= now
  ) AS every GROUP BY queue)"""
"""The same, or when it was purged. A reader may hold a message meanwhile, which goes when its read ends."""
