"""Console overview of queues: the last report of each queue, one line per queue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from pipeline.bronze.event_time import newest_event_time_us
from pipeline.lake.lake import Lake
from pipeline.queues.last_reports import LAST_QUEUE_REPORTS_SQL, LAST_TRANSFERS_SQL, max_gap_s
from pipeline.queues.queue_managers import QueueManagerNames
from pipeline.queues.queue_rows import QueueNames, with_canonical_names
from pipeline.runs.recovery import RunMarkers
from pipeline.silver.machines import names_in_gold
from pipeline.silver.queue_aliases import AliasIndex
from pipeline.text import escape_as_hex, format_time
from schemas.eod import EOD_TRANSFERS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from udfs.times import datetime_to_us

_MAX_LINES: Final = 40
_CACHE_FORMAT: Final = 3  # increase it whenever the lines change: cached lines of another format are ignored
_THING_COLUMNS: Final = ("queue", "queue_manager", "queue_format_name")
# Queues that answered no question: they have no history. The newest result of each source.
_UNANSWERED_SQL: Final = f"""
SELECT {", ".join(_THING_COLUMNS)}, source, max_by(hresult_name, observed_at) AS hresult_name
FROM {{rows}} WHERE queue IS NOT NULL
GROUP BY {", ".join(_THING_COLUMNS)}, source HAVING max(CASE WHEN hresult = 0 THEN 1 ELSE 0 END) = 0"""


def queue_lines(lake: Lake, as_of: datetime | None = None) -> list[str]:
    """Return a line with the last report of each queue, as on the site; empty without snapshots.

    ``as_of`` overrides "now", the time of the newest packet or snapshot.
    The lines are cached in the lake's folder of runs, and stay valid until a table has another version.
    """
    found = lake.versions.newest_commits(QUEUE_SNAPSHOTS, QUEUE_HISTORY, EOD_TRANSFERS, QUEUE_ALIASES)
    if QUEUE_SNAPSHOTS not in found:
        return []
    now = newest_event_time_us(lake) if as_of is None else datetime_to_us(as_of)
    made_of = [_CACHE_FORMAT, now, *(each.version for each in found.values())]
    cache_file = RunMarkers.of(lake).root / "queues"
    with suppress(OSError, ValueError, TypeError, KeyError):
        cached = json.loads(cache_file.read_text())
        if cached["made_of"] == made_of:
            return [str(line) for line in cached["lines"]]
    rows = [*_last_reports(lake), *_unanswered(lake)]
    lines = format_queues(rows, now, max_lines=_MAX_LINES)
    with suppress(OSError):  # a read-only lake has no cache
        cache_file.write_text(json.dumps({"made_of": made_of, "lines": lines}))
    return lines


def _last_reports(lake: Lake) -> list[dict[str, Any]]:
    """Return the last reports of the queues with the most messages; times are microseconds."""
    transfers = LAST_TRANSFERS_SQL.replace("{max_gap_s}", repr(max_gap_s(lake)))
    sql = f"""
SELECT last.queue, last.queue_manager, last.queue_format_name, last.state, last.message_count, last.journal_count,
  unix_micros(last.known_until) AS known_until, unix_micros(last.reported_at) AS reported_at, last.sources,
  transfer.unacked_count, transfer.resend_count
FROM ({LAST_QUEUE_REPORTS_SQL}) AS last LEFT JOIN ({transfers}) AS transfer
  ON last.queue = transfer.queue AND last.queue_manager = transfer.queue_manager
    AND lower(last.queue_format_name) = lower(transfer.queue_format_name)
ORDER BY last.message_count DESC NULLS LAST, last.queue, last.queue_manager, last.queue_format_name
LIMIT {_MAX_LINES + 1}"""
    rows: list[dict[str, Any]] = lake.query(sql, queue_history=QUEUE_HISTORY, eod_transfers=EOD_TRANSFERS).to_pylist()
    return rows


def _unanswered(lake: Lake) -> list[dict[str, Any]]:
    """Return the queues that answered no question of any source, with their names of gold."""
    rows = lake.query(_UNANSWERED_SQL, rows=QUEUE_SNAPSHOTS).to_pylist()
    if not rows:
        return []
    managers = QueueManagerNames(names_in_gold(lake))
    named = with_canonical_names(rows, QueueNames(managers, AliasIndex.load(lake).canonical_names))
    known = "SELECT DISTINCT queue, queue_manager, lower(queue_format_name) AS name FROM {rows} WHERE queue IN {queues}"
    queues = {row["queue"] for row in named}
    answered = {tuple(row.values()) for row in lake.query(known, rows=QUEUE_HISTORY, queues=queues).to_pylist()}
    things: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in sorted(named, key=lambda row: (row["queue"], str(row["queue_manager"]), row["source"])):
        thing = (row["queue"], row["queue_manager"], (row["queue_format_name"] or "").lower())
        if thing not in answered:
            first = things.setdefault(thing, row | {"sources": row["source"]})
            first["sources"] = ", ".join(dict.fromkeys([*first["sources"].split(", "), row["source"]]))
    return list(things.values())


def format_queues(rows: Iterable[Mapping[str, Any]], now: int | None, *, max_lines: int) -> list[str]:
    """Return one line for each row of last reports, at most ``max_lines``; names from the wire are escaped."""
    found = list(rows)
    if not found:
        return []
    lines = ["queues    last report, most messages first"]
    lines += [_format_queue(row, now) for row in found[:max_lines]]
    if len(found) > max_lines:
        lines.append("  ... and more: gold.queue_history")
    return lines


def _format_queue(row: Mapping[str, Any], now: int | None) -> str:
    if "hresult_name" in row:
        parts = [row["hresult_name"] or "no answer"]
    else:
        parts = [f"{'?' if row['message_count'] is None else row['message_count']} messages"]
        parts += [f"{row['journal_count']} in the journal"] if row["journal_count"] else []
        parts += [row["state"]]
        parts += [f"{row['unacked_count']} not acknowledged"] if row["unacked_count"] else []
        parts += [f"resend count {row['resend_count']}"] if row["resend_count"] else []
        parts += [f"reported {format_time(row['reported_at'])}"] if row["reported_at"] is not None else []
        if row["known_until"] is not None and now is not None and row["known_until"] <= now:
            parts.append(f"unknown since {format_time(row['known_until'])}")
    where = (row["queue_manager"] or "?", row["queue_format_name"] or "no format name", row["sources"] or "operations")
    text = f"{', '.join(parts)} ({', '.join(where)})"
    return f"  {escape_as_hex(row['queue']):<40} {escape_as_hex(text)}"
