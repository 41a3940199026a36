"""Prints the verdict for a queue as console lines, one screen at most, and as JSON. Names are escaped."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from pipeline.reports.queue_verdict.verdict import QueueVerdict
from pipeline.text import escape_as_hex, format_age, format_cell, format_count

_MAX_LINES: Final = 5  # of reports, senders, readers and alerts each


def format_verdict(verdict: QueueVerdict, lake: str) -> Iterator[str]:
    """Yield the verdict as lines; ``lake`` is the place of the lake, for the command that exports packets."""
    facts, cause = verdict.facts, verdict.cause
    yield escape_as_hex(facts.queue)
    if cause is None:
        yield f"  no trouble is seen, as of {format_cell(facts.as_of)}: no alert is active"
    else:
        since = "" if cause.since is None else f" since {format_cell(cause.since)}"
        yield f"  TROUBLE{since}: {escape_as_hex(cause.text)}"
        yield f"  do        {cause.suggestion}"
    yield from _some("state", [_report(row) for row in facts.reports])
    yield from _some("error", [f"{row['queue_manager']}: {row['hresult_name']}" for row in facts.errors])
    if verdict.oldest_unread is not None:
        row = verdict.oldest_unread
        yield f"  oldest    unread for {_age(row['age_s'])}, last seen {format_cell(row['seen_at'])}"
    yield from _some("senders", [_sender(row) for row in facts.senders])
    yield from _some("readers", [_reader(row) for row in facts.readers])
    if facts.last_received_at is not None:
        yield f"  received  last at {format_cell(facts.last_received_at)}, as an acknowledgement says"
    yield from _some("alerts", [escape_as_hex(_alert(row)) for entry in verdict.entries for row in entry.alerts])
    yield from _some("unknown", [escape_as_hex(text) for text in verdict.not_known])
    if verdict.keys:
        yield f"  packets   {export_command(verdict, lake)}"


def export_command(verdict: QueueVerdict, lake: str) -> str:
    """Return the command that exports the packets of the evidence."""
    options = [part for option, keys in verdict.keys.items() for part in (f"--{option}", *keys)]
    return shlex.join(["msmq", "export_packets", "--lake", lake, *options, "--out", "trouble.pcapng"])


def verdict_to_json(verdict: QueueVerdict, lake: str) -> dict[str, Any]:
    """Return the verdict as values for JSON."""
    facts, cause = verdict.facts, verdict.cause
    return {
        "queue": facts.queue,
        "trouble": verdict.is_in_trouble,
        "cause": None if cause is None else cause._asdict(),
        "as_of": facts.as_of,
        "reports": facts.reports,
        "errors": facts.errors,
        "senders": facts.senders,
        "readers": facts.readers,
        "rejections": facts.rejections,
        "oldest_unread": verdict.oldest_unread,
        "last_read_at": facts.last_read_at,
        "entries": [
            {"leading": entry.leading["alert_key"], "severity": entry.severity, "since": entry.since,
             "alerts": [row["alert_key"] for row in entry.alerts]}
            for entry in verdict.entries
        ],
        "not_known": verdict.not_known,
        "export": export_command(verdict, lake) if verdict.keys else None,
    }  # fmt: skip


def _some(name: str, lines: list[str]) -> Iterator[str]:
    """Yield lines under a name, the first few of them."""
    for place, line in enumerate(lines[:_MAX_LINES]):
        yield f"  {name if not place else '':<9} {line}"
    if len(lines) > _MAX_LINES:
        yield f"  {'':<9} and {len(lines) - _MAX_LINES} more"


def _report(row: Mapping[str, Any]) -> str:
    parts = [row["state"]]
    parts += [f"since {format_cell(row['state_since'])}"] if row["state_since"] is not None else []
    parts += [format_count(row["message_count"], "message")] if row["message_count"] is not None else []
    parts += [f"{row['bytes']} bytes"] if row["bytes"] else []
    parts += [f"{row['unacked_count']} not acknowledged"] if row["unacked_count"] else []
    parts += [f"next try {format_cell(row['next_resend_at'])}"] if row["next_resend_at"] is not None else []
    parts += [f"reported {format_cell(row['reported_at'])}"] if row["reported_at"] is not None else []
    return escape_as_hex(f"at {row['queue_manager'] or 'an unknown machine'}: {', '.join(parts)}")


def _sender(row: Mapping[str, Any]) -> str:
    parts = [f"{format_count(row['messages'], 'message')}, the last one {format_cell(row['last_sent_at'])}"]
    if row["last_delivered_at"] is not None:
        parts.append(f"arrived last {format_cell(row['last_delivered_at'])}")
    if row["waiting"]:
        parts.append(f"{row['waiting']} not acknowledged since {format_cell(row['waiting_since'])}")
    return f"{row['sender_address']} to {row['receiver_address']}: {', '.join(parts)}"


def _reader(row: Mapping[str, Any]) -> str:
    read = "never" if row["last_read_at"] is None else f"last {format_cell(row['last_read_at'])}"
    given_back = f", gave back {row['given_back']}" if row["given_back"] else ""
    return f"{row['client_address']}: {row['read']} received, {read}{given_back}"


def _alert(row: Mapping[str, Any]) -> str:
    return f"{row['severity']} {row['condition']} since {format_cell(row['since'])}: {row['message']}"


def _age(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else format_age(timedelta(seconds=seconds))
