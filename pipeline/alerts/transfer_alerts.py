"""Alerts of exactly-once delivery, from rows of gold.eod_transfers and gold.eod_sources (questions 6, 7, 9, 11).

An observation stays valid for ``max_gap``, as in gold.queue_history. Captures and the collector give separate series;
``alert_rows`` merges overlapping alerts of one subject. No Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Any, Final

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import ERROR, WARNING, Alert, ConditionHistory, Ends, Observation
from pipeline.text import format_count, format_time
from udfs.rows import RowDict
from udfs.times import timedelta_to_us

EOD_TRANSFER_COLUMNS: Final = (
    "queue_manager", "queue", "queue_format_name", "source", "observed_at", "condition", "stalled_since",
    "first_unacked_number", "unacked_count", "unread_count", "in_flight_s", "resend_count", "ladder_step",
    "next_resend_at", "acknowledged_at", "next_received_at", "evidence", "missing",
)  # fmt: skip
"""The columns of gold.eod_transfers, of ``acknowledged_after`` and ``next_receipts``, for ``eod_transfer_alerts``."""

EOD_SOURCE_COLUMNS: Final = (
    "queue_manager", "queue", "queue_format_name", "source", "observed_at", "sender_queue_manager",
    "sender_format_name", "sequence_id", "last_number", "reject_count", "disagrees_with_sender", "evidence", "missing",
)  # fmt: skip
"""The columns of gold.eod_sources that ``eod_source_alerts`` needs."""

_TRANSFER_SERIES: Final = ("queue_manager", "queue", "queue_format_name", "source")
_SENDER_SERIES: Final = (*_TRANSFER_SERIES, "sender_queue_manager", "sender_format_name")
_ERROR_LADDER_STEP: Final = 3  # half an hour between tries


def eod_transfer_alerts(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int) -> Iterator[Alert]:
    """Yield the alerts of outgoing transactional queues, from rows of gold.eod_transfers."""
    for series in _group_series(rows, _TRANSFER_SERIES):
        queue, manager = series[0]["queue"], series[0]["queue_manager"]
        for check in _transfer_checks(f"transfer to {queue} from {manager}", series, limits):
            yield from check.alerts(now, limits.merge_within, queue, manager, Ends(from_machine=manager))


def eod_source_alerts(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int) -> Iterator[Alert]:
    """Yield the alerts of incoming transactional queues, per sender, from rows of gold.eod_sources."""
    for series in _group_series(rows, _SENDER_SERIES):
        queue, manager = series[0]["queue"], series[0]["queue_manager"]
        sender = series[0]["sender_queue_manager"]
        for check in _source_checks(f"sequence of {sender} to {queue} at {manager}", series, limits):
            yield from check.alerts(now, limits.merge_within, queue, manager, Ends(sender, manager))


def _group_series(rows: Iterable[Mapping[str, Any]], names: tuple[str, ...]) -> Iterator[list[RowDict]]:
    def order(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return (*(row[name] or "" for name in names), row["observed_at"], list(row["evidence"] or ()))

    ordered = sorted(rows, key=order)
    for _, series in groupby(ordered, key=lambda row: tuple(row[name] for name in names)):
        yield [dict(row) for row in series]


def _transfer_checks(subject: str, series: list[RowDict], limits: Thresholds) -> Iterator[ConditionHistory]:
    observe = partial(_observation, limits)
    stalled = _until(_observations(series, partial(_stalled, observe)), series, "acknowledged_at")
    yield ConditionHistory("transfer_stalled", subject, stalled, limits.stalled_after, limits.error_after)
    overdue = _observations(series, partial(_unacknowledged, observe, timedelta_to_us(limits.unacked_after)))
    overdue = _until(overdue, series, "acknowledged_at")
    yield ConditionHistory("messages_unacknowledged", subject, overdue)
    unread = _until(_unread(series, observe), series, "next_received_at")
    yield ConditionHistory("messages_unread", subject, unread, limits.unread_after)


def _source_checks(subject: str, series: list[RowDict], limits: Thresholds) -> Iterator[ConditionHistory]:
    observe = partial(_observation, limits)
    rejected = _observations(series, partial(_rejected, observe, limits.rejected_messages))
    yield ConditionHistory("sequence_gap", subject, rejected)
    yield ConditionHistory("ends_disagree", subject, _observations(series, partial(_disagrees, observe)))


def _observations(series: Iterable[RowDict], judge: Callable[[RowDict], Observation | None]) -> Iterator[Observation]:
    return (observation for observation in map(judge, series) if observation is not None)


def _until(observations: Iterable[Observation], series: Iterable[RowDict], column: str) -> Iterator[Observation]:
    """Yield the observations, and that the condition ended at each time in a column: a capture shows it."""
    yield from observations
    for at in {row[column] for row in series if row[column] is not None}:
        yield Observation(at, is_met=False, valid_until=at)


def _observation(
    limits: Thresholds, row: RowDict, *, holds: bool, message: str, severity: str = WARNING, since: int | None = None
) -> Observation:
    at: int = row["observed_at"]
    evidence, missing = tuple(row["evidence"] or ())[-1:], tuple(row["missing"] or ())
    return Observation(at, holds, at + timedelta_to_us(limits.max_gap), message, severity, evidence, missing, since)


def _stalled(observe: Callable[..., Observation], row: RowDict) -> Observation | None:
    if row["condition"] is None:
        return None  # the snapshot reports too little
    since = row["stalled_since"]
    waiting = "messages" if row["unacked_count"] is None else format_count(row["unacked_count"], "message")
    message = f"{waiting} from number {row['first_unacked_number']} on not acknowledged, nothing moved"
    if row["resend_count"]:
        message += f"; sent {row['resend_count']} times, step {row['ladder_step']} of the ladder"
    if row["next_resend_at"] is not None:
        message += f", next try at {format_time(row['next_resend_at'])}"
    severity = ERROR if (row["ladder_step"] or 0) >= _ERROR_LADDER_STEP else WARNING
    return observe(row, holds=row["condition"] == "stalled", message=message, severity=severity, since=since)


def _unacknowledged(observe: Callable[..., Observation], max_age_us: int, row: RowDict) -> Observation:
    age = None if row["in_flight_s"] is None else round(row["in_flight_s"] * 1e6)
    waiting = "messages" if row["unacked_count"] is None else format_count(row["unacked_count"], "message")
    message = f"{waiting} sent and not acknowledged, the oldest is number {row['first_unacked_number']}"
    if age is None or age < max_age_us:
        return observe(row, holds=False, message=message)
    return observe(row, holds=True, message=message, since=row["observed_at"] - age)


def _unread(series: Iterable[RowDict], observe: Callable[..., Observation]) -> Iterator[Observation]:
    """Yield whether messages arrived that are not read. A falling number shows that some were read."""
    before = 0
    for row in series:
        count = row["unread_count"]
        if count is None:
            continue
        message = f"{format_count(count, 'message')} arrived and not read, as acknowledgements tell"
        observation = observe(row, holds=count > 0, message=message)
        if count < before:
            yield observation._replace(is_met=False, valid_until=observation.observed_at)
        before = count
        yield observation


def _rejected(observe: Callable[..., Observation], min_count: int, row: RowDict) -> Observation | None:
    count = row["reject_count"]
    if count is None:
        return None
    rejected = f"{format_count(count, 'message')} rejected"
    message = f"{rejected} since number {row['last_number']} of sequence {row['sequence_id']}"
    return observe(row, holds=count >= min_count, message=message)


def _disagrees(observe: Callable[..., Observation], row: RowDict) -> Observation | None:
    how = row["disagrees_with_sender"]
    if how is None and "no_snapshot" in (row["missing"] or ()):
        return None  # the sender was not observed
    return observe(row, holds=how is not None, message=how or "", severity=ERROR)
