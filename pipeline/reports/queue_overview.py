"""Console overview of queues: the last observed state of each queue, one line per queue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from pipeline.lake.lake import Lake
from pipeline.lake.recovery import RunMarkers
from pipeline.text import escape_as_hex
from schemas.queue_snapshots import QUEUE_SNAPSHOTS

_MAX_LINES: Final = 40
_CACHE_FORMAT: Final = 2  # increase it whenever the lines change: cached lines of another format are ignored
_STATE_COLUMNS: Final = (
    "message_count", "journal_message_count", "state", "eod_no_ack_count", "eod_resend_count", "hresult_name",
    "observed_at",
)  # fmt: skip


def queue_lines(lake: Lake) -> list[str]:
    """Return a line with the last observation of each queue, queue manager and source; empty without snapshots.

    The lines are cached in the lake's folder of runs, and stay valid until the table has another version.
    """
    version = lake.version(QUEUE_SNAPSHOTS)
    if version is None:
        return []
    cache_file = RunMarkers.of(lake).root / "queues"
    with suppress(OSError, ValueError, TypeError, KeyError):
        cached = json.loads(cache_file.read_text(encoding="utf-8"))
        if (cached["version"], cached["format"]) == (version, _CACHE_FORMAT):
            return [str(line) for line in cached["lines"]]
    lines = format_queues(_read_last_observations(lake), max_lines=_MAX_LINES)
    with suppress(OSError):  # a read-only lake has no cache
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        temporary = cache_file.with_name(".queues")
        temporary.write_text(
            json.dumps({"version": version, "format": _CACHE_FORMAT, "lines": lines}), encoding="utf-8"
        )
        temporary.replace(cache_file)
    return lines


def _read_last_observations(lake: Lake) -> list[dict[str, Any]]:
    group = "PARTITION BY queue, queue_manager, source"
    newest = f"row_number() OVER ({group} ORDER BY observed_at DESC NULLS LAST, snapshot_id DESC NULLS LAST) AS place"
    names = ", ".join(("queue", "queue_manager", "source", *_STATE_COLUMNS))
    ranked = f"SELECT {names}, {newest}, count(*) OVER ({group}) AS n FROM {{rows}} WHERE queue IS NOT NULL"
    order = "message_count DESC NULLS LAST, queue NULLS FIRST, source NULLS FIRST, queue_manager NULLS FIRST"
    sql = f"SELECT {names}, n FROM ({ranked}) WHERE place = 1 ORDER BY {order} LIMIT {_MAX_LINES + 1}"
    rows: list[dict[str, Any]] = lake.query(sql, rows=QUEUE_SNAPSHOTS).to_pylist()
    return rows


def format_queues(rows: Iterable[Mapping[str, Any]], *, max_lines: int) -> list[str]:
    """Return one line for each row of last observations, at most ``max_lines``; names from the wire are escaped."""
    found = list(rows)
    if not found:
        return []
    lines = ["queues    last observation, most messages first"]
    lines += [_format_queue(row) for row in found[:max_lines]]
    if len(found) > max_lines:
        lines.append("  ... and more: silver.queue_snapshots")
    return lines


def _format_queue(row: Mapping[str, Any]) -> str:
    if row["message_count"] is None and row["state"] is None:
        what = row["hresult_name"] or "no answer"
    else:
        count = "?" if row["message_count"] is None else row["message_count"]
        parts = [f"{count} messages"]
        parts += [f"{row['journal_message_count']} in the journal"] if row["journal_message_count"] else []
        parts += [escape_as_hex(row["state"])] if row["state"] else []
        parts += [f"{row['eod_no_ack_count']} not acknowledged"] if row["eod_no_ack_count"] else []
        parts += [f"resend count {row['eod_resend_count']}"] if row["eod_resend_count"] else []
        what = ", ".join(parts)
    where = f"{escape_as_hex(row['queue_manager'] or '?')}, {row['source']}, {row['n']} observations"
    return f"  {escape_as_hex(row['queue']):<40} {what} ({where})"
