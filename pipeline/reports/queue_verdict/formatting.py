"""Prints the verdict for a queue as console lines, one screen at most, and as JSON. Names are escaped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from textwrap import wrap
from typing import Any, Final

from pipeline.alerts.entries import Entry
from pipeline.reports.export_keys import export_packets_command
from pipeline.reports.queue_verdict.verdict import QueueVerdict
from pipeline.text import escape_as_hex, format_age, format_cell, format_count, json_default

_WIDTH: Final = 100
_HEIGHT: Final = 40
_INDENT: Final = " " * 12
_MAX_ITEMS: Final = 4  # of reports, senders, readers and alerts each; fewer where they are more than a screen


def format_verdict(verdict: QueueVerdict, lake: str) -> list[str]:
    """Return the verdict as lines; ``lake``: the options that name it, for the command that exports packets."""
    last = [f"  packets   {export_command(verdict, lake)}"] if verdict.keys else []
    sections = [*_sections(verdict)]
    for most in range(_MAX_ITEMS, 0, -1):
        lines = [*_head(verdict), *(line for section in sections for line in _section(*section, most)), *last]
        if len(lines) <= _HEIGHT:
            break
    return lines


def _head(verdict: QueueVerdict) -> Iterator[str]:
    """Yield the queue, and what it is in trouble for."""
    facts, cause = verdict.facts, verdict.cause
    yield escape_as_hex(facts.queue)
    if cause is None:
        yield f"  no trouble is seen, as of {format_cell(facts.as_of)}: no alert is active"
    else:
        since = "" if cause.since is None else f" since {format_cell(cause.since)}"
        yield from _wrapped(f"  TROUBLE{since}: {cause.text}")


def _sections(verdict: QueueVerdict) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield what is known, as texts under a name each."""
    facts = verdict.facts
    yield "do", [] if verdict.cause is None else [verdict.cause.suggestion]
    yield "where", [verdict.where]
    yield "state", [_report(row, verdict) for row in facts.reports if row not in facts.outgoing]
    yield "error", [f"at {verdict.name(row['queue_manager'])}: {row['hresult_name']}" for row in facts.errors]
    if verdict.oldest_unread is not None:
        row = verdict.oldest_unread
        yield "oldest", [f"unread for {_age(row['age_s'])}, last seen {format_cell(row['seen_at'])}"]
    yield "transfers", [_report(row, verdict) for row in facts.outgoing]
    yield "senders", [_sender(row, verdict) for row in facts.senders]
    yield "readers", [_reader(row, verdict) for row in facts.readers]
    if facts.last_received_at is not None:
        yield "received", [f"last at {format_cell(facts.last_received_at)}, as an acknowledgement says"]
    yield "alerts", [text for entry in verdict.entries for text in _alerts(entry, verdict)]
    yield "not known", verdict.not_known


def format_in_line(verdict: QueueVerdict) -> str:
    """Return the verdict as one line, for a list of queues."""
    if verdict.cause is None:
        return f"no trouble seen  {escape_as_hex(verdict.facts.queue)}"
    since = "" if verdict.cause.since is None else f" since {format_cell(verdict.cause.since)}"
    return f"TROUBLE          {escape_as_hex(verdict.facts.queue)}{since}: {escape_as_hex(verdict.cause.text)}"


def export_command(verdict: QueueVerdict, lake: str) -> str:
    """Return the command that exports the packets of the evidence."""
    return export_packets_command(verdict.keys, lake)


def verdict_to_json(verdict: QueueVerdict, lake: str) -> dict[str, Any]:
    """Return the verdict as values for JSON; ``machines`` has the names of the addresses and GUIDs in it."""
    values = _json_values(verdict, lake)
    return values | {"machines": verdict.machines.shown_in(json.dumps(values, default=json_default))}


def _json_values(verdict: QueueVerdict, lake: str) -> dict[str, Any]:
    facts, cause = verdict.facts, verdict.cause
    return {
        "queue": facts.queue,
        "trouble": verdict.is_in_trouble,
        "cause": None if cause is None else cause._asdict(),
        "as_of": facts.as_of,
        "where": verdict.where,
        "reports": facts.reports,
        "errors": facts.errors,
        "senders": facts.senders,
        "readers": facts.readers,
        "rejections": facts.rejections,
        "oldest_unread": verdict.oldest_unread,
        "last_read_at": facts.last_read_at,
        "entries": [
            {"leading": entry.leading["alert_key"], "severity": entry.severity, "since": entry.since,
             "subject_text": entry.leading["subject_text"], "alerts": [row["alert_key"] for row in entry.alerts]}
            for entry in verdict.entries
        ],
        "not_known": verdict.not_known,
        "export": export_command(verdict, lake) if verdict.keys else None,
    }  # fmt: skip


def _section(name: str, texts: Sequence[str], most: int) -> Iterator[str]:
    """Yield the lines of texts under a name, of ``most`` of them."""
    shown = [*texts[:most], *([f"and {len(texts) - most} more"] if len(texts) > most else ())]
    for place, text in enumerate(shown):
        yield from _wrapped(f"  {name if not place else '':<9} {text}")


def _wrapped(text: str) -> list[str]:
    """Return the lines of a text, which may come from the wire; only a longer word makes one wider than a screen."""
    return wrap(escape_as_hex(text), _WIDTH, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)


def _report(row: Mapping[str, Any], verdict: QueueVerdict) -> str:
    """Return what a machine reported last of its queue, or of its outgoing queue."""
    parts = [row["state"]]
    parts += [f"since {format_cell(row['state_since'])}"] if row["state_since"] is not None else []
    parts += ["on hold"] if row["paused"] else []
    parts += [format_count(row["message_count"], "message")] if row["message_count"] is not None else []
    parts += [format_count(row["bytes"], "byte")] if row["bytes"] is not None else []
    parts += [f"{row['journal_count']} in the journal"] if row["journal_count"] else []
    parts += [f"{row['unacked_count']} not acknowledged"] if row["unacked_count"] else []
    parts += [f"resend count {row['resend_count']}"] if row["resend_count"] else []
    parts += [f"next try {format_cell(row['next_resend_at'])}"] if row["next_resend_at"] is not None else []
    parts += [f"reported {format_cell(row['reported_at'])}"] if row["reported_at"] is not None else []
    return f"at {verdict.name(row['queue_manager'])}: {', '.join(parts)}"


def _sender(row: Mapping[str, Any], verdict: QueueVerdict) -> str:
    parts = [f"{format_count(row['messages'], 'message')}, the last one {format_cell(row['last_sent_at'])}"]
    if row["last_delivered_at"] is not None:
        parts.append(f"arrived last {format_cell(row['last_delivered_at'])}")
    if row["waiting"]:
        parts.append(f"{row['waiting']} not acknowledged since {format_cell(row['waiting_since'])}")
    ends = verdict.name(row["sender_address"]), verdict.name(row["receiver_address"])
    return f"{ends[0]} to {ends[1]}: {', '.join(parts)}"


def _reader(row: Mapping[str, Any], verdict: QueueVerdict) -> str:
    read = "never" if row["last_read_at"] is None else f"last {format_cell(row['last_read_at'])}"
    parts = [f"{row['read']} received, {read}"]
    parts += [f"gave back {row['given_back']}"] if row["given_back"] else []
    parts += [f"peeked {format_count(row['peeked'], 'time')}"] if row["peeked"] else []
    parts += [f"asked last {format_cell(row['last_asked_at'])}"] if row["last_read_at"] is None else []
    return f"{verdict.name(row['client_address'])}: {', '.join(parts)}"


def _alerts(entry: Entry, verdict: QueueVerdict) -> Iterator[str]:
    """Yield the alerts of one cause; what the leading one says, unless the cause says it already."""
    said = "" if verdict.cause is None else verdict.cause.text
    for row in entry.alerts:
        also = "" if row is entry.leading else "also "
        message = f": {row['message']}" if row is entry.leading and row["message"] not in said else ""
        yield f"{also}{row['severity']} {row['condition']} since {format_cell(row['since'])}{message}"


def _age(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else format_age(timedelta(seconds=seconds))
