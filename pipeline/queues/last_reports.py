"""SQL of the last report of each queue, machine, transfer and sender: each thing once, with who reported it.

Captures and the collector report the same queue, and a local queue may be asked for by several format names. Totals
therefore count the rows of these queries, never rows of the tables. Placeholders stand for the tables, and
``{max_gap_s}`` for what ``max_gap_s`` returns. The SQL is valid for Spark and for DuckDB.
"""

from __future__ import annotations

from typing import Final

from pipeline.lake.lake import Lake
from pipeline.queues.history import STATE_LOCAL, STATE_UNKNOWN
from pipeline.queues.queue_rows import QueueSettings
from schemas.queue_history import QUEUE_HISTORY
from schemas.table import literal

_UNKNOWN_SQL: Final = f"state = {literal(STATE_UNKNOWN)}"


def max_gap_s(lake: Lake) -> float:
    """Return the setting history.max_gap with which the queue tables were computed, in seconds."""
    max_gap_us: int = lake.versions.provenance(QUEUE_HISTORY).get("max_gap_us", QueueSettings().max_gap_us)
    return max_gap_us / 1e6


def _sources_sql(thing: str) -> str:
    """Return the SQL of the sources among the rows of a thing, as text: ``collector, wire``."""
    each = (f"max(CASE WHEN source = '{name}' THEN '{name}' END) OVER ({thing})" for name in ("collector", "wire"))
    return f"concat_ws(', ', {', '.join(each)}) AS sources"


_QUEUE: Final = "PARTITION BY queue_manager, queue, outgoing_name"
LAST_QUEUE_REPORTS_SQL: Final = f"""SELECT queue, queue_manager, queue_format_name, interval_key, known_state AS state,
  known_until, reported_at, message_count, bytes, journal_count, journal_bytes, known_paused AS paused, sources,
  confidence, missing, evidence
FROM (
  SELECT *, row_number() OVER ({_QUEUE} ORDER BY reported_at IS NULL, reported_at DESC, valid_from, interval_key)
      AS place,
    first_value(state) OVER ({_QUEUE} ORDER BY {_UNKNOWN_SQL}, valid_from DESC, interval_key) AS known_state,
    max(CASE WHEN NOT {_UNKNOWN_SQL} THEN valid_to END) OVER ({_QUEUE}) AS known_until,
    first_value(paused) OVER ({_QUEUE} ORDER BY paused IS NULL, valid_from DESC, interval_key) AS known_paused,
    {_sources_sql(_QUEUE)}
  FROM (
    SELECT *, CASE WHEN max(CASE WHEN state IN ({literal(STATE_LOCAL)}, {literal(STATE_UNKNOWN)}) THEN 0 ELSE 1 END)
        OVER (PARTITION BY queue_manager, queue) = 1 THEN lower(queue_format_name) END AS outgoing_name
    FROM {{queue_history}}
  ) AS named
) AS ranked
WHERE place = 1"""
"""The last report of each queue, from gold.queue_history: its values, and ``reported_at``, their own time.

``state`` is the last one that was known, ``known_until`` when it stopped being valid: it is unknown since. Format names
are part of the identity of outgoing queues only.
"""


_MACHINE: Final = "PARTITION BY queue_manager"
LAST_MACHINE_REPORTS_SQL: Final = f"""SELECT queue_manager, interval_key, known_state AS state, since, known_until,
  reported_at, directory_server, bytes_in_all_queues, active_queues, private_queues, sources, confidence, missing,
  evidence
FROM (
  SELECT *, row_number() OVER ({_MACHINE} ORDER BY reported_at IS NULL, reported_at DESC, valid_from, interval_key)
      AS place,
    first_value(state) OVER ({_MACHINE} ORDER BY {_UNKNOWN_SQL}, valid_from DESC) AS known_state,
    max(CASE WHEN NOT {_UNKNOWN_SQL} THEN valid_to END) OVER ({_MACHINE}) AS known_until,
    first_value(run_since) OVER ({_MACHINE} ORDER BY {_UNKNOWN_SQL}, valid_from DESC) AS since,
    {_sources_sql(_MACHINE)}
  FROM (
    SELECT *, min(valid_from) OVER (PARTITION BY queue_manager, run) AS run_since
    FROM (
      SELECT *, sum(CASE WHEN changed THEN 1 ELSE 0 END) OVER ({_MACHINE} ORDER BY valid_from) AS run
      FROM (
        SELECT *, coalesce(state <> lag(state) OVER ({_MACHINE} ORDER BY valid_from), TRUE) AS changed
        FROM {{machine_history}}
      ) AS compared
    ) AS numbered
  ) AS runs
) AS ranked
WHERE place = 1"""
"""The last report of each queue manager, from gold.machine_history: its values, and ``reported_at``, their own time.

``state`` is the last one that was known, ``since`` when it began, ``known_until`` when it stopped being valid.
"""


def _last_observations_sql(table: str, thing: str, key: str) -> str:
    """Return the SQL of the last observation of each thing in a table.

    A source's first observation is compared with none before: while a compared one of another source is valid, that
    one counts.
    """
    own = f"PARTITION BY {thing}"
    newest = f"unix_micros(max(observed_at) OVER ({own}))"
    return f"""SELECT * FROM (
  SELECT *, row_number() OVER ({own} ORDER BY is_valid AND size(evidence) > 1 DESC, observed_at DESC, {key}) AS place
  FROM (
    SELECT *, {newest} - unix_micros(observed_at) <= {{max_gap_s}} * 1000000 AS is_valid, {_sources_sql(own)}
    FROM {{{table}}}
  ) AS every
) AS ranked WHERE place = 1"""


LAST_TRANSFERS_SQL: Final = _last_observations_sql(
    "eod_transfers", "queue_manager, queue, lower(queue_format_name)", "snapshot_id"
)
"""The last observation of each outgoing transactional queue, from gold.eod_transfers."""
LAST_SENDERS_SQL: Final = _last_observations_sql(
    "eod_sources", "queue_manager, queue, sender_queue_manager, lower(sender_format_name)", "source_key"
)
"""The last observation of each sender of an incoming transactional queue, from gold.eod_sources."""
