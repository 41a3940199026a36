"""Alerts of exactly-once delivery: rows of gold.eod_transfers and eod_sources -> what is wrong (questions 6, 7, 9, 11).

An observation is believed for ``max_gap``, as in gold.queue_history. What the wire showed and what the collector was
told are series of their own; alerts of one subject are made one in the end (``alerts.rows``). No Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Any, Final

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import ERROR, WARNING, Alert, Look, Row, spells
from pipeline.lake.arrow_rows import us
from pipeline.text import clock, counted

TRANSFERS: Final = (
    "queue_manager", "queue", "queue_format_name", "source", "observed_at", "condition", "stalled_since",
    "first_unacked_number", "unacked_count", "unread_count", "in_flight_s", "resend_count", "ladder_step",
    "next_resend_at", "evidence", "missing",
)  # fmt: skip
"""What is read of gold.eod_transfers."""

SOURCES: Final = (
    "queue_manager", "queue", "queue_format_name", "source", "observed_at", "sender_queue_manager",
    "sender_format_name", "sequence_id", "last_number", "reject_count", "disagrees_with_sender", "evidence", "missing",
)  # fmt: skip
"""What is read of gold.eod_sources."""

TRANSFER: Final = ("queue_manager", "queue", "queue_format_name", "source")
SENDER: Final = (*TRANSFER, "sender_queue_manager", "sender_format_name")
_GRAVE_STEP: Final = 3  # of the ladder: half an hour between tries

Asked = tuple[str, Iterator[Look], timedelta, timedelta | None]


def transfers(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int) -> Iterator[Alert]:
    """Yield the alerts of outgoing transactional queues."""
    for series in _series(rows, TRANSFER):
        first = series[0]
        subject = f"transfer to {first['queue']} from {first['queue_manager']}"
        yield from _alerts(subject, first, limits, now, _of_transfer(series, limits))


def sources(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int) -> Iterator[Alert]:
    """Yield the alerts of incoming transactional queues, sender by sender."""
    for series in _series(rows, SENDER):
        first = series[0]
        subject = f"sequence of {first['sender_queue_manager']} to {first['queue']} at {first['queue_manager']}"
        yield from _alerts(subject, first, limits, now, _of_source(series, limits))


def _series(rows: Iterable[Mapping[str, Any]], names: tuple[str, ...]) -> Iterator[list[Row]]:
    def order(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return (*(row[name] or "" for name in names), row["observed_at"], list(row["evidence"] or ()))

    ordered = sorted(rows, key=order)
    for _, series in groupby(ordered, key=lambda row: tuple(row[name] for name in names)):
        yield [dict(row) for row in series]


def _alerts(subject: str, place: Row, limits: Thresholds, now: int, asked: Iterable[Asked]) -> Iterator[Alert]:
    for condition, looks, after, error_after in asked:
        for spell in spells(looks, now, after=after, error_after=error_after, rejoin=limits.rejoin):
            yield Alert(condition, subject, spell, place["queue"], place["queue_manager"])


def _of_transfer(series: list[Row], limits: Thresholds) -> Iterator[Asked]:
    look = partial(_look, limits)
    yield "transfer_stalled", _looks(series, partial(_stalled, look)), limits.stalled_after, limits.error_after
    aged = _looks(series, partial(_unacknowledged, look, us(limits.unacked_after)))
    yield "messages_unacknowledged", aged, timedelta(0), None
    yield "messages_unread", _unread(series, look), limits.unread_after, None


def _of_source(series: list[Row], limits: Thresholds) -> Iterator[Asked]:
    look = partial(_look, limits)
    yield "sequence_gap", _looks(series, partial(_rejected, look, limits.rejected)), timedelta(0), None
    yield "ends_disagree", _looks(series, partial(_disagrees, look)), timedelta(0), None


def _looks(series: Iterable[Row], of: Callable[[Row], Look | None]) -> Iterator[Look]:
    return (look for look in map(of, series) if look is not None)


def _look(
    limits: Thresholds, row: Row, *, holds: bool, message: str, severity: str = WARNING, since: int | None = None
) -> Look:
    at: int = row["observed_at"]
    evidence, missing = tuple(row["evidence"] or ())[-1:], tuple(row["missing"] or ())
    return Look(at, holds, at + us(limits.max_gap), message, severity, evidence, missing, since)


def _stalled(look: Callable[..., Look], row: Row) -> Look | None:
    if row["condition"] is None:
        return None  # not enough was told
    since = row["stalled_since"]
    waiting = "messages" if row["unacked_count"] is None else counted(row["unacked_count"], "message")
    message = f"{waiting} from number {row['first_unacked_number']} on not acknowledged, nothing moved"
    if row["resend_count"]:
        message += f"; sent {row['resend_count']} times, step {row['ladder_step']} of the ladder"
    if row["next_resend_at"] is not None:
        message += f", next try at {clock(row['next_resend_at'])}"
    severity = ERROR if (row["ladder_step"] or 0) >= _GRAVE_STEP else WARNING
    return look(row, holds=row["condition"] == "stalled", message=message, severity=severity, since=since)


def _unacknowledged(look: Callable[..., Look], least: int, row: Row) -> Look:
    flying = None if row["in_flight_s"] is None else round(row["in_flight_s"] * 1e6)
    at: int = row["observed_at"]
    waiting = "messages" if row["unacked_count"] is None else counted(row["unacked_count"], "message")
    message = f"{waiting} sent and not acknowledged, the oldest is number {row['first_unacked_number']}"
    holds = flying is not None and flying >= least
    return look(row, holds=holds, message=message, since=at - flying if holds and flying is not None else None)


def _unread(series: Iterable[Row], look: Callable[..., Look]) -> Iterator[Look]:
    """Yield whether messages arrived that are not read; where fewer are left, some were."""
    before = 0
    for row in series:
        count = row["unread_count"]
        if count is None:
            continue
        message = f"{counted(count, 'message')} arrived and not read, as acknowledgements tell"
        found = look(row, holds=count > 0, message=message)
        if count < before:
            yield found._replace(holds=False, to=found.at)
        before = count
        yield found


def _rejected(look: Callable[..., Look], least: int, row: Row) -> Look | None:
    count = row["reject_count"]
    if count is None:
        return None
    message = f"{counted(count, 'message')} rejected since number {row['last_number']} of sequence {row['sequence_id']}"
    return look(row, holds=count >= least, message=message)


def _disagrees(look: Callable[..., Look], row: Row) -> Look | None:
    how = row["disagrees_with_sender"]
    if how is None and "no_snapshot" in (row["missing"] or ()):
        return None  # the sender was not observed
    return look(row, holds=how is not None, message=how or "", severity=ERROR)
