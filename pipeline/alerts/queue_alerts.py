"""Alerts from rows of gold.queue_history (questions 1, 4, 16, 17). No Spark.

Rows are dictionaries with times in microseconds: for each queue its whole history from some time on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Final

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import (
    ERROR,
    INFO,
    NO_SNAPSHOT,
    WARNING,
    Alert,
    ConditionHistory,
    Ends,
    Episode,
    Observation,
)
from pipeline.queues.growth import CountSample, pair_with_window_minimum
from pipeline.queues.history import (
    DEAD_LETTER_QUEUE_PATTERN,
    JOURNAL_SUFFIX,
    NOT_CONNECTED_STATES,
    STATE_ON_HOLD,
    STATE_UNKNOWN,
)
from pipeline.text import format_count, format_time
from udfs.rows import RowDict
from udfs.times import HOUR_US, timedelta_to_us

HISTORY_COLUMNS: Final = (
    "queue_manager", "queue", "queue_format_name", "valid_from", "valid_to", "state", "message_count", "bytes",
    "journal_count", "journal_bytes", "departed", "paused", "evidence", "missing",
)  # fmt: skip
"""The columns of gold.queue_history that ``history_alerts`` needs.

Beside them ``unacked_count``: of gold.eod_transfers, of the report with which the interval begins; null without one.
"""

WAITING_COLUMNS: Final = (
    "queue_manager", "queue", "queue_format_name", "valid_from", "valid_to", "message_count", "bytes", "waits_since",
    "waits_until", "observed_us", "may_last", "evidence", "missing",
)  # fmt: skip
"""The columns of ``waiting_intervals`` that ``waiting_alerts`` needs."""

_OUTGOING: Final = ("queue_disconnected", "queue_on_hold")  # of queues whose messages go to another machine
_SERIES_COLUMNS: Final = ("queue_manager", "queue", "queue_format_name")
_NEARLY_FULL_SHARE: Final = 0.9


def history_alerts(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int) -> Iterator[Alert]:
    """Yield the alerts of queues, from rows of gold.queue_history (``HISTORY_COLUMNS``)."""
    ordered = sorted(rows, key=lambda row: (*(row[name] or "" for name in _SERIES_COLUMNS), row["valid_from"]))
    for (manager, queue, _), series in groupby(ordered, key=lambda row: tuple(row[name] for name in _SERIES_COLUMNS)):
        history = [{**row, "valid_to": min(row["valid_to"], now)} for row in series if row["valid_from"] <= now]
        for check in _condition_checks(queue or "", f"{queue} at {manager}", history, limits):
            ends = Ends(from_machine=manager) if check.condition in _OUTGOING else Ends(to_machine=manager)
            yield from check.alerts(now, limits.merge_within, queue, manager, ends)


def waiting_alerts(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int) -> Iterator[Alert]:
    """Yield an alert for each wait that reports show for long enough, from its intervals (``WAITING_COLUMNS``).

    It ends when messages were last known to wait, once something shows that the wait is over.
    """
    names = (*_SERIES_COLUMNS, "waits_since")
    ordered = sorted(rows, key=lambda row: (*(row[name] or "" for name in _SERIES_COLUMNS), row["valid_from"]))
    for (manager, queue, _, since), wait in groupby(ordered, key=lambda row: tuple(row[name] for name in names)):
        intervals = [*wait]
        last = intervals[-1]
        if last["observed_us"] < timedelta_to_us(limits.stuck_after):
            continue
        is_long = last["waits_until"] - since >= timedelta_to_us(limits.error_after)
        message = f"{_count_and_size(last)} waiting, nothing reads them"
        until = None if last["may_last"] else last["waits_until"]
        episode = Episode(since, last["valid_from"], last["valid_to"], ERROR if is_long else WARNING, message, until)
        for row in intervals:
            episode.add_evidence(tuple(row["evidence"] or ())[-1:], row["missing"] or ())
        if any(later["valid_from"] > row["valid_to"] for row, later in pairwise(intervals)) or (
            until is None and last["valid_to"] < now
        ):
            episode.missing.add(NO_SNAPSHOT)
        ends = Ends(to_machine=manager)
        yield Alert("queue_stuck", f"queue {queue} at {manager}", episode, queue, manager, ends=ends)


def _condition_checks(
    queue: str, subject: str, history: Sequence[RowDict], limits: Thresholds
) -> Iterator[ConditionHistory]:
    messages = _samples(history, "message_count", "bytes")
    journal = _samples(history, "journal_count", "journal_bytes")
    own, of_journal = f"queue {subject}", f"journal of {subject}"
    if queue.endswith(JOURNAL_SUFFIX):
        yield from _journal_checks(messages, queue.removesuffix(JOURNAL_SUFFIX), limits, own)
        return
    disconnected = _disconnected(history, timedelta_to_us(limits.max_gap))
    yield ConditionHistory("queue_disconnected", own, disconnected, limits.disconnected_after, limits.error_after)
    yield ConditionHistory("queue_on_hold", own, _on_hold(history), limits.on_hold_after)
    if DEAD_LETTER_QUEUE_PATTERN.search(queue):
        growing = _growing(messages, limits, limits.dead_letters, "dead letter")
        yield ConditionHistory("dead_letters_growing", own, growing)
    yield ConditionHistory("nearly_full", own, _filling(messages, limits, _quotas(queue, limits)[0]))
    yield from _journal_checks(journal, queue, limits, of_journal)


def _journal_checks(
    samples: Sequence[CountSample], queue: str, limits: Thresholds, subject: str
) -> Iterator[ConditionHistory]:
    yield ConditionHistory("journal_growing", subject, _growing(samples, limits, limits.journal_messages, "message"))
    yield ConditionHistory("nearly_full", subject, _filling(samples, limits, _quotas(queue, limits)[1]))


def _observation(row: RowDict, *, holds: bool, message: str = "", severity: str = WARNING) -> Observation:
    evidence, missing = tuple(row["evidence"] or ())[-1:], tuple(row["missing"] or ())
    return Observation(row["valid_from"], holds, row["valid_to"], message, severity, evidence, missing)


def _known_rows(history: Iterable[RowDict]) -> Iterator[RowDict]:
    return (row for row in history if row["state"] != STATE_UNKNOWN)


def _disconnected(history: Iterable[RowDict], max_gap_us: int) -> Iterator[Observation]:
    """Yield whether the queue has no connection: as reported, unless a message was handed over since."""
    unacked, unacked_until = None, 0
    for row in _known_rows(history):
        if row["unacked_count"] is not None:
            unacked, unacked_until = row["unacked_count"], row["valid_from"] + max_gap_us
        elif row["valid_from"] >= unacked_until:
            unacked = None
        waiting = row["message_count"]
        what = [f"{_count_and_size(row)} waiting"] if waiting else [] if unacked else ["no message waits"]
        if waiting is None:
            what = ["it is not known whether messages wait"]
        if unacked:
            what.append(f"{format_count(unacked, 'message')} sent and not acknowledged")
        holds = row["state"] in NOT_CONNECTED_STATES and not row["departed"]
        severity = WARNING if waiting or unacked else INFO
        yield _observation(row, holds=holds, message=f"{row['state']}: {', '.join(what)}", severity=severity)


def _on_hold(history: Iterable[RowDict]) -> Iterator[Observation]:
    for row in _known_rows(history):
        is_held = row["state"] == STATE_ON_HOLD if row["paused"] is None else row["paused"]
        holds = is_held and bool(row["message_count"])
        message = f"on hold: {format_count(row['message_count'] or 0, 'message')} waiting"
        yield _observation(row, holds=holds, message=message)


def _count_and_size(row: Mapping[str, Any]) -> str:
    """Return the number of messages, with their size if it was reported."""
    size = "" if row["bytes"] is None else f" ({row['bytes']} bytes)"
    return f"{format_count(row['message_count'], 'message')}{size}"


def _samples(history: Iterable[RowDict], count: str, size: str) -> list[CountSample]:
    return [CountSample(row, row["valid_from"], row[count], row[size]) for row in history if row[count] is not None]


def _growing(samples: Iterable[CountSample], limits: Thresholds, min_growth: int, thing: str) -> Iterator[Observation]:
    """Yield whether the count is ``min_growth`` above the lowest one of the slow window."""
    for sample, lowest in pair_with_window_minimum(samples, timedelta_to_us(limits.growth_window)):
        growth = sample.message_count - lowest.message_count
        message = f"{sample.message_count} there, {format_count(growth, thing)} more than at {format_time(lowest.at)}"
        yield _observation(sample.row, holds=growth >= min_growth, message=message)


def _filling(samples: Iterable[CountSample], limits: Thresholds, quota: int | None) -> Iterator[Observation]:
    """Yield whether a quota is nearly used up, or will be soon at the rate of the slow window (one hour at least)."""
    window: deque[CountSample] = deque()
    least = max(HOUR_US, timedelta_to_us(limits.max_gap))
    for sample in samples:
        if not quota or sample.size_bytes is None:
            continue
        window.append(sample)
        while window[0].at < sample.at - timedelta_to_us(limits.growth_window):
            window.popleft()
        growth, span = sample.size_bytes - (window[0].size_bytes or 0), sample.at - window[0].at
        left = max(quota - sample.size_bytes, 0) * span / growth if growth > 0 and span >= least else None
        used = sample.size_bytes / quota
        message = f"{sample.size_bytes} of {quota} bytes ({used:.0%})"
        message += "" if left is None else f", at this rate full in {left / HOUR_US / 24:.1f} days"
        nearly_full = used >= _NEARLY_FULL_SHARE
        holds = nearly_full or (left is not None and left <= timedelta_to_us(limits.full_within))
        yield _observation(sample.row, holds=holds, message=message, severity=ERROR if nearly_full else WARNING)


def _quotas(queue: str, limits: Thresholds) -> tuple[int | None, int | None]:
    """Return the quotas of a queue and of its journal in bytes; None where unknown."""
    own = limits.quotas.get(queue, (None, None))
    return own[0] or limits.queue_quota_bytes, own[1] or limits.journal_quota_bytes
