"""Alerts of queues: rows of gold.queue_history of any queues -> what is wrong with them (questions 1, 4, 16, 17).

Rows are plain, with times in microseconds, of whole histories from some time on. No Spark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any, Final, NamedTuple

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import ERROR, INFO, WARNING, Alert, Look, Row, spells
from pipeline.lake.arrow_rows import us
from pipeline.queues.growth import Point, with_least
from pipeline.queues.history import DEAD, JOURNAL, NOT_CONNECTED, ON_HOLD, UNKNOWN
from pipeline.text import clock, counted

COLUMNS: Final = (
    "queue_manager", "queue", "queue_format_name", "valid_from", "valid_to", "state", "message_count", "bytes",
    "journal_count", "journal_bytes", "received", "nacked", "moved_out", "purged", "unexplained_change", "evidence",
    "missing",
)  # fmt: skip
"""What is read of gold.queue_history."""

SERIES: Final = ("queue_manager", "queue", "queue_format_name")
_LOCAL: Final = "LOCAL CONNECTION"
_NINE_TENTHS: Final = 0.9
_HOUR_US: Final = 3_600_000_000


class _Asked(NamedTuple):
    """A condition that can hold of a queue, its looks, and how long it must hold; ``of`` it, or its journal.

    ``rejoins``: one that comes again soon is the same.
    """

    condition: str
    looks: Iterator[Look]
    after: timedelta = timedelta(0)
    error_after: timedelta | None = None
    of: str = "queue"
    rejoins: bool = True


def queues(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int) -> Iterator[Alert]:
    """Yield the alerts of whole histories."""
    ordered = sorted(rows, key=lambda row: (*(row[name] or "" for name in SERIES), row["valid_from"]))
    for (manager, queue, _), series in groupby(ordered, key=lambda row: tuple(row[name] for name in SERIES)):
        history = [dict(row) for row in series if row["valid_from"] <= now]
        for asked in _asked(queue or "", history, limits):
            rejoin = limits.rejoin if asked.rejoins else None
            found = spells(asked.looks, now, after=asked.after, error_after=asked.error_after, rejoin=rejoin)
            for spell in found:
                yield Alert(asked.condition, f"{asked.of} {queue} at {manager}", spell, queue, manager)


def _asked(queue: str, history: Sequence[Row], limits: Thresholds) -> Iterator[_Asked]:
    messages, journal = _points(history, "message_count", "bytes"), _points(history, "journal_count", "journal_bytes")
    if queue.endswith(JOURNAL):
        yield from _of_journal(messages, queue.removesuffix(JOURNAL), limits, "queue")
        return
    yield _Asked("queue_disconnected", _disconnected(history), limits.disconnected_after, limits.error_after)
    yield _Asked("queue_on_hold", _on_hold(history), limits.on_hold_after)
    if DEAD.search(queue):
        yield _Asked("dead_letters_growing", _growing(messages, limits, limits.dead_letters, "dead letter"))
    else:
        yield _Asked("queue_stuck", _stuck(history), limits.stuck_after, limits.error_after, rejoins=False)
    yield _Asked("nearly_full", _filling(messages, limits, _quota(queue, limits)[0]))
    yield from _of_journal(journal, queue, limits, "journal of")


def _of_journal(points: Sequence[Point], queue: str, limits: Thresholds, of: str) -> Iterator[_Asked]:
    yield _Asked("journal_growing", _growing(points, limits, limits.journal_messages, "message"), of=of)
    yield _Asked("nearly_full", _filling(points, limits, _quota(queue, limits)[1]), of=of)


def _look(row: Row, *, holds: bool, message: str = "", severity: str = WARNING) -> Look:
    evidence, missing = tuple(row["evidence"] or ())[-1:], tuple(row["missing"] or ())
    return Look(row["valid_from"], holds, row["valid_to"], message, severity, evidence, missing)


def _known(history: Iterable[Row]) -> Iterator[Row]:
    return (row for row in history if row["state"] != UNKNOWN)


def _disconnected(history: Iterable[Row]) -> Iterator[Look]:
    for row in _known(history):
        waiting = row["message_count"]
        what = "no message waits" if not waiting else f"{counted(waiting, 'message')} ({row['bytes'] or 0} bytes) wait"
        severity = WARNING if waiting else INFO
        yield _look(row, holds=row["state"] in NOT_CONNECTED, message=f"{row['state']}: {what}", severity=severity)


def _on_hold(history: Iterable[Row]) -> Iterator[Look]:
    for row in _known(history):
        holds = row["state"] == ON_HOLD and bool(row["message_count"])
        yield _look(row, holds=holds, message=f"on hold: {counted(row['message_count'] or 0, 'message')} wait")


def _stuck(history: Iterable[Row]) -> Iterator[Look]:
    """Yield whether messages wait and nothing shows that one is read.

    Applications on the machine itself read without any captured call: that shows where the number of messages falls
    below what is expected, or their bytes fall.
    """
    before: Row | None = None
    for row in _known(history):
        if row["state"] != _LOCAL or row["message_count"] is None:
            before = None
            yield _look(row, holds=False)
            continue
        if before is not None and any(_fell(before, row, name) for name in ("message_count", "bytes")):
            yield Look(row["valid_from"], holds=False, to=row["valid_from"])
        read = any(row[name] for name in ("received", "nacked", "moved_out", "purged"))
        read = read or (row["unexplained_change"] or 0) < 0
        message = f"{counted(row['message_count'], 'message')} ({row['bytes'] or 0} bytes) wait, nothing reads them"
        yield _look(row, holds=row["message_count"] > 0 and not read, message=message)
        before = row


def _fell(before: Row, row: Row, name: str) -> bool:
    return before[name] is not None and row[name] is not None and row[name] < before[name]


def _points(history: Iterable[Row], count: str, size: str) -> list[Point]:
    return [Point(row, row["valid_from"], row[count], row[size]) for row in history if row[count] is not None]


def _growing(points: Iterable[Point], limits: Thresholds, least: int, thing: str) -> Iterator[Look]:
    """Yield whether there are so many more than there once were within the slow window."""
    for point, least_one in with_least(points, us(limits.slow_window)):
        more = point.number - least_one.number
        message = f"{point.number} there, {counted(more, thing)} more than at {clock(least_one.at)}"
        yield _look(point.row, holds=more >= least, message=message)


def _filling(points: Iterable[Point], limits: Thresholds, quota: int | None) -> Iterator[Look]:
    """Yield whether a quota is nearly used up, or will be soon: at the rate of the slow window, of an hour at least."""
    window: deque[Point] = deque()
    for point in points:
        if not quota or point.size is None:
            continue
        window.append(point)
        while window[0].at < point.at - us(limits.slow_window):
            window.popleft()
        grown, span = point.size - (window[0].size or 0), point.at - window[0].at
        left = max(quota - point.size, 0) * span / grown if grown > 0 and span >= _HOUR_US else None
        used = point.size / quota
        message = f"{point.size} of {quota} bytes ({used:.0%})"
        message += "" if left is None else f", at this rate full in {left / _HOUR_US / 24:.1f} days"
        holds = used >= _NINE_TENTHS or (left is not None and left <= us(limits.full_within))
        severity = ERROR if used >= _NINE_TENTHS else WARNING
        yield _look(point.row, holds=holds, message=message, severity=severity)


def _quota(queue: str, limits: Thresholds) -> tuple[int | None, int | None]:
    """Return the quotas of a queue and its journal, bytes; None where it is not known."""
    own = limits.quotas.get(queue, (None, None))
    return own[0] or limits.queue_quota, own[1] or limits.journal_quota
