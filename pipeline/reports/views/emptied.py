"""SQL of queues that had no message at a time: what was seen in them before is gone."""

from __future__ import annotations

from typing import Final

from pipeline.queues.ended_receives import reported_empty_sql

_REPORTED: Final = reported_empty_sql("gold.queue_history", "(SELECT now FROM setting.now)")
EMPTIED_SQL: Final = f"""(SELECT queue, max(emptied_at) AS emptied_at FROM (
    SELECT queue, emptied_at FROM {_REPORTED} AS reported
    UNION ALL
    SELECT queue, responded_at FROM gold.queue_operations CROSS JOIN setting.now
    WHERE operation = 'purge' AND outcome = 'done' AND queue IS NOT NULL AND responded_at <= now
  ) AS every GROUP BY queue)"""
"""A subquery: when each queue was last reported to be empty, or purged. Valid for Spark and for DuckDB.

A reader may hold a message meanwhile, which goes when its read ends.
"""
