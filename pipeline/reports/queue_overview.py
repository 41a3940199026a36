"""The state of queues as they were last observed, on one screen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from pipeline.lake.lake import Lake
from pipeline.lake.recovery import Runs
from pipeline.text import plain
from schemas.queue_snapshots import QUEUE_SNAPSHOTS

_MOST_LINES: Final = 40
_FORMAT: Final = 1  # of the lines, with which others are not taken for these
_SHOWN: Final = (
    "message_count", "journal_message_count", "state", "eod_no_ack_count", "eod_resend_count", "hresult_name",
    "observed_at",
)  # fmt: skip


def queue_lines(lake: Lake) -> list[str]:
    """Return a line for each queue, queue manager and source, as it was last observed; none without a snapshot.

    They are kept beside the lake's tables with the table's version: as long as that is the same they are as well.
    """
    version = lake.version(QUEUE_SNAPSHOTS)
    if version is None:
        return []
    kept = Runs.of(lake).root / "queues"
    with suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(kept.read_text(encoding="utf-8"))
        if (known["version"], known["format"]) == (version, _FORMAT):
            return [str(line) for line in known["lines"]]
    lines = format_queues(_last(lake), most=_MOST_LINES)
    with suppress(OSError):  # a lake that may only be read
        kept.parent.mkdir(parents=True, exist_ok=True)
        temporary = kept.with_name(".queues")
        temporary.write_text(json.dumps({"version": version, "format": _FORMAT, "lines": lines}), encoding="utf-8")
        temporary.replace(kept)
    return lines


def _last(lake: Lake) -> list[dict[str, Any]]:
    one = "PARTITION BY queue, queue_manager, source"
    newest = f"row_number() OVER ({one} ORDER BY observed_at DESC NULLS LAST, snapshot_id DESC NULLS LAST) AS place"
    names = ", ".join(("queue", "queue_manager", "source", *_SHOWN))
    each = f"SELECT {names}, {newest}, count(*) OVER ({one}) AS n FROM {{rows}} WHERE queue IS NOT NULL"
    order = "message_count DESC NULLS LAST, queue NULLS FIRST, source NULLS FIRST, queue_manager NULLS FIRST"
    sql = f"SELECT {names}, n FROM ({each}) WHERE place = 1 ORDER BY {order} LIMIT {_MOST_LINES + 1}"
    rows: list[dict[str, Any]] = lake.query(sql, rows=QUEUE_SNAPSHOTS).to_pylist()
    return rows


def format_queues(rows: Iterable[Mapping[str, Any]], *, most: int) -> list[str]:
    """Return the lines for rows of what was last observed; names come from the wire, and are escaped."""
    found = list(rows)
    if not found:
        return []
    lines = ["queues    as last observed, by how many messages they hold"]
    lines += [_line(row) for row in found[:most]]
    if len(found) > most:
        lines.append("  ... and more: silver.queue_snapshots")
    return lines


def _line(row: Mapping[str, Any]) -> str:
    if row["message_count"] is None and row["state"] is None:
        what = row["hresult_name"] or "no answer"
    else:
        count = "?" if row["message_count"] is None else row["message_count"]
        parts = [f"{count} messages"]
        parts += [f"{row['journal_message_count']} in the journal"] if row["journal_message_count"] else []
        parts += [plain(row["state"])] if row["state"] else []
        parts += [f"{row['eod_no_ack_count']} not acknowledged"] if row["eod_no_ack_count"] else []
        parts += [f"sent {row['eod_resend_count']} times"] if row["eod_resend_count"] else []
        what = ", ".join(parts)
    where = f"{plain(row['queue_manager'] or '?')}, {row['source']}, {row['n']} observations"
    return f"  {plain(row['queue']):<40} {what} ({where})"
