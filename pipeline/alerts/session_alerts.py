"""Alerts from rows of silver.sessions (questions 1, 12). No Spark.

Rows are dictionaries with times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import WARNING, Alert, Episode, EventCount, episodes_from_events
from pipeline.arrow_rows import timedelta_to_us
from pipeline.text import format_count
from udfs.rows import RowDict

SESSION_COLUMNS: Final = (
    "connection_id", "client_address", "server_address", "first_packet_at", "last_packet_at", "closed_at",
    "establish_requested_at", "outcome", "ended", "client_window_full_ms", "server_window_full_ms", "missing_bytes",
)  # fmt: skip
"""The columns of silver.sessions that ``session_alerts`` needs, and ``missing_bytes`` of bronze.connections."""

_REFUSED: Final = "refused"
_UNANSWERED: Final = "unanswered"
_ENDS: Final = ("client_address", "server_address")


def session_alerts(
    rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int, names: Mapping[str, str]
) -> Iterator[Alert]:
    """Yield the alerts of sessions that were refused or not answered, and of windows that were full.

    Rows have ``SESSION_COLUMNS``; ``names`` are the names of queue managers by address.
    """
    ordered = sorted(rows, key=lambda row: (*(row[name] or "" for name in _ENDS), _begun(row), row["connection_id"]))
    for (client, server), series in groupby(ordered, key=itemgetter(*_ENDS)):
        sessions = [dict(row) for row in series if _begun(row) <= now]
        for run in _refused_episodes(sessions, limits, now):
            yield Alert("sessions_refused", f"sessions from {client} to {server}", run, None, names.get(server, server))
        for sender, receiver, side in ((client, server, "client"), (server, client, "server")):
            for episode in _full_windows(sessions, f"{side}_window_full_ms", limits, now):
                yield Alert(
                    "window_full", f"session from {sender} to {receiver}", episode, None, names.get(sender, sender)
                )


def _begun(row: Mapping[str, Any]) -> int:
    at: int = row["first_packet_at"] or 0
    return at


def _refused_episodes(sessions: Iterable[RowDict], limits: Thresholds, now: int) -> Iterator[Episode]:
    """Yield the episodes in which a machine did not let another one open sessions.

    A session that is still open may yet be answered. Where bytes were not captured, one of them may be the answer.
    """
    refused: list[int] = []
    unanswered: list[int] = []
    events = []
    for row in sessions:
        at = row["establish_requested_at"] or _begun(row)
        if row["outcome"] == _REFUSED:
            refused.append(at)
        elif row["outcome"] == _UNANSWERED and row["ended"] is not None and not row["missing_bytes"]:
            unanswered.append(at)
        else:
            continue
        events.append(EventCount(at, at, 1, (row["connection_id"],)))
    for run in episodes_from_events(events, now, window=limits.failure_window, min_count=limits.refused_sessions):
        parts = [
            f"{format_count(sum(run.since <= at <= run.last_seen_at for at in times), 'session')} {how}"
            for times, how in ((refused, "refused"), (unanswered, "not answered"))
            if any(run.since <= at <= run.last_seen_at for at in times)
        ]
        run.message = ", ".join(parts)
        yield run


def _full_windows(sessions: Iterable[RowDict], column: str, limits: Thresholds, now: int) -> Iterator[Episode]:
    """Yield the sessions in which one side had to wait for acknowledgements too long in all."""
    for row in sessions:
        full_ms = row[column]
        if not full_ms or full_ms * 1000 < timedelta_to_us(limits.window_full_after):
            continue
        last = min(row["last_packet_at"], now)
        ended = row["closed_at"] if row["closed_at"] is not None else last if row["ended"] is not None else None
        until = ended if ended is not None and ended <= now else None
        message = f"the window was full of unacknowledged packets for {full_ms / 1000:.1f} s of the session"
        seen = last if until is None else min(last, until)  # packets may follow the end of both directions
        episode = Episode(_begun(row), seen, seen, WARNING, message, until)
        episode.add_evidence((row["connection_id"],), ())
        yield episode
