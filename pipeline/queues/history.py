"""Queue histories: compute the intervals of a queue's state from events. No Spark.

The rules, from [MS-MQMR] 3.1.4.2, [MS-MQDMPR] 3.1.7.1 and the fact sheet on RPC interfaces, 4.3 and 4.4:

* A snapshot reports values. Each value holds until it is reported again, at most ``max_gap``. A value that the queue
  manager answers as not available (VT_NULL) is unknown from then on; a value that was not requested stays as it was.
* An answered pause or resume holds until a state is reported. A purge leaves no message but those that a reader holds
  (PurgePending: they are deleted when the read ends, either way). Both hold as long as an observation does.
* The expected count continues from the last reported count, also through intervals that begin without a report. What
  queue managers hand on (TCP 1801) arrives in a queue of the one and departs from a queue of the other.
* Purges, moves, reads, arrivals and departures apply to a queue, whatever name it was opened by. Snapshots, pauses and
  resumes apply to one format name (part of an outgoing queue's identity). So a purge starts an interval in the history
  of each name that has a recent event; if there is none, the name that the purge was opened by gets a history of its
  own.

Nothing depends on events more than ``max_gap`` back, so a history can be resumed at any of its interval bounds.
Times are microseconds since the epoch (UTC).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Literal

from pipeline.queues.valid_values import ValidValue, valid_intervals
from udfs.columns.absent import BEFORE_ALL
from udfs.rows import RowDict

EventKind = Literal[
    "pause",
    "resume",
    "purge",
    "snapshot",
    "received",
    "peeked",
    "nacked",
    "arrived",
    "departed",
    "moved_in",
    "moved_out",
    "purged",
    "doubt",
]

QUEUE_REPORTED_COLUMNS: Final = ("state", "message_count", "bytes", "journal_count", "journal_bytes")
COUNT_COLUMNS: Final = ("received", "peeked", "nacked", "arrived", "departed", "moved_in", "moved_out", "purged")
STATE_UNKNOWN: Final = "UNKNOWN"
STATE_LOCAL: Final = "LOCAL CONNECTION"
STATE_ON_HOLD: Final = "ONHOLD"
NOT_CONNECTED_STATES: Final = ("WAITING", "NEED VALIDATION", "DISCONNECTED", "DISCONNECTING", "LOCKED")
"""States of an outgoing queue that should have a connection and has none: it retries, has no address yet, was cut off,
shuts down, or is not allowed to. Without INACTIVE (does not try) and ONHOLD (paused): [MS-MQDMPR] 3.1.1.3, [MS-MQMR]
3.1.4.1."""
SOURCE_OPERATIONS: Final = "operations"
DEAD_LETTER_QUEUE_PATTERN: Final = re.compile(r";dead(letter|xact)$|_deadqueue$")
DEAD_LETTER_QUEUES_SQL: Final = f"'{DEAD_LETTER_QUEUE_PATTERN.pattern}'"
JOURNAL_SUFFIX: Final = ";journal"
_RANK: Final = {"pause": 0, "resume": 1, "purge": 2, "snapshot": 3}  # order of events with the same time
_NAMED_KINDS: Final = frozenset({"snapshot", "pause", "resume"})  # events of one format name


@dataclass(frozen=True, slots=True)
class QueueEvent:
    """An event of a queue: a snapshot, an operation or read, or a doubtful one (``missing`` says why).

    ``purge`` starts an interval; ``purged`` is a purge that is only counted. ``format_name`` is the name that a
    snapshot, pause or resume is about, or that a purge was opened by. ``values`` are the values that a snapshot
    reports, None if not available. ``handed_out_at`` is the time when the reader got the message.
    """

    at: int
    kind: EventKind
    key: str
    format_name: str | None = None
    source: str = SOURCE_OPERATIONS
    values: Mapping[str, Any] = field(default_factory=dict)
    handed_out_at: int | None = None
    missing: tuple[str, ...] = ()
    errors: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where to resume a history: rows are wanted from ``since`` on; the state is unknown from ``unknown_since`` on."""

    since: int
    unknown_since: int | None = None


def is_dead_letter(read_from: str, own_queue: str) -> str:
    """Return the SQL of whether a message that was read from a queue is a dead letter there, and no acknowledgement.

    Both have a class that says why. The arguments are SQL expressions of canonical names: of the queue, and of the
    dead-letter queue that the message's sender asked for.
    """
    return f"coalesce(regexp_like({read_from}, {DEAD_LETTER_QUEUES_SQL}) OR {read_from} = {own_queue}, FALSE)"


def compute_histories(
    events: Iterable[QueueEvent], max_gap: int, resume_points: Mapping[str | None, ResumePoint] | None = None
) -> dict[str | None, list[RowDict]]:
    """Return the intervals of each format name of one queue, computed from all its events.

    To resume a history, it needs the events from twice ``max_gap`` before the resume point on, and snapshots, pauses
    and resumes from three times on: whether a name has a recent event when a purge comes takes another ``max_gap``.
    Earlier purges may come as ``purged``.
    """
    resume_points = resume_points or {}
    ordered = sorted(events, key=_event_order)
    named: dict[str | None, list[QueueEvent]] = {name: [] for name in resume_points}
    counted: list[QueueEvent] = []
    for event in ordered:
        if event.kind in _NAMED_KINDS:
            named.setdefault(event.format_name, []).append(event)
        elif event.kind != "purge":
            counted.append(event)
    purges = [event for event in ordered if event.kind == "purge"]
    bounds = {name: list(events) for name, events in named.items()}
    times = {name: [event.at for event in events] for name, events in named.items()}
    for purge in purges:
        known = [name for name, at in times.items() if _has_recent(at, purge.at, max_gap)]
        for name in known or [purge.format_name]:
            bounds.setdefault(name, []).append(purge)
    counted = sorted([*counted, *purges], key=attrgetter("at"))
    builders = {name: _HistoryBuilder(own, counted, max_gap, resume_points.get(name)) for name, own in bounds.items()}
    return {name: builder.rows() for name, builder in builders.items()}


def _event_order(event: QueueEvent) -> tuple[int, int, str, str]:
    """Order events by time; at the same time operations come before snapshots."""
    return event.at, _RANK.get(event.kind, len(_RANK)), event.source, event.key


def _has_recent(times: Sequence[int], at: int, max_gap: int) -> bool:
    """Return whether the newest of the sorted times up to ``at`` is less than ``max_gap`` before it."""
    place = bisect_right(times, at)
    return place > 0 and times[place - 1] > at - max_gap


class _HistoryBuilder:
    """Builds the intervals of one history, in order of time.

    ``known`` has the valid values: those of REPORTED_COLUMNS, ``paused``, ``base`` (the count from which the expected
    count continues) and ``event`` (the last event of any kind).
    """

    def __init__(
        self, bounds: Iterable[QueueEvent], counted: Sequence[QueueEvent], max_gap: int, resume: ResumePoint | None
    ) -> None:
        self.resume_point = resume or ResumePoint(BEFORE_ALL)
        gone = self.resume_point.unknown_since
        self.bounds = [event for event in sorted(bounds, key=_event_order) if gone is None or event.at >= gone]
        self.counted = counted
        self.max_gap = max_gap
        self.known: dict[str, ValidValue[QueueEvent]] = {}
        self._next = 0  # index in self.counted

    def rows(self) -> list[RowDict]:
        """Return the intervals in order of time."""
        out: list[RowDict] = []
        unknown_since = self.resume_point.unknown_since
        for begin, end in valid_intervals(self.bounds, self.known, self._apply, self.max_gap, unknown_since):
            row = self._row(begin, end)
            if out:
                self._set_unexplained_change(out[-1], begin)
            out.append(row)
        return [row for row in out if row["valid_from"] >= self.resume_point.since]

    def _apply(self, event: QueueEvent) -> None:
        """Update ``known`` with what an event reports or does."""

        def know(name: str, value: Any) -> None:  # noqa: ANN401 - of any column's type
            self.known[name] = ValidValue(value, event.at, event)

        know("event", None)
        if event.kind == "purge":
            know("base", 0)
        elif event.kind in ("pause", "resume"):
            know("paused", event.kind == "pause")
        for name, value in event.values.items():
            know(name, value)
        if event.values.get("state") is not None:
            know("paused", event.values["state"] == STATE_ON_HOLD)
        if "message_count" in event.values:
            know("base", event.values["message_count"])

    def _row(self, begin: int, end: int) -> RowDict:
        """Return the interval, and carry its counted events over into the expected count."""
        counts: dict[str, int] = dict.fromkeys(COUNT_COLUMNS, 0)
        within: list[QueueEvent] = []
        base = self.known.get("base")
        change = 0
        while self._next < len(self.counted) and self.counted[self._next].at < end:
            event = self.counted[self._next]
            self._next += 1
            if event.at < begin:
                continue
            within.append(event)
            if event.kind != "doubt":
                counts["purged" if event.kind == "purge" else event.kind] += 1
            change += self._count_change(event, base)
        if base is not None and base.value is not None:
            base = self.known["base"] = ValidValue(base.value + change, base.at, base.event)
        rests_on = {known.event.key: known.event for known in self.known.values()}
        events = sorted([*rests_on.values(), *within], key=lambda event: (event.at, event.key))
        missing = {code for event in (*rests_on.values(), *within) for code in event.missing}
        if any(name not in self.known for name in ("state", "message_count")):
            missing.add("no_snapshot")
        errors = [dict(error) for event in rests_on.values() for error in event.errors]
        if errors:
            missing.add("decode_error")
        values = {name: self._value(name) for name in QUEUE_REPORTED_COLUMNS}
        return {
            "valid_from": begin,
            "valid_to": end,
            **values,
            "state": values["state"] or STATE_UNKNOWN,
            **{name: counts[name] for name in COUNT_COLUMNS},
            "paused": self._value("paused"),
            "expected_message_count": None if base is None else base.value,
            "unexplained_change": None,
            "source": max(rests_on.values(), key=_event_order).source if rests_on else None,
            "reported_at": max(
                (self.known[name].at for name in QUEUE_REPORTED_COLUMNS if name in self.known), default=None
            ),
            "evidence": list(dict.fromkeys(event.key for event in events)),
            "confidence": _confidence(missing),
            "missing": sorted(missing),
            "errors": errors,
        }

    def _value(self, name: str) -> Any:  # noqa: ANN401 - of any column's type
        return self.known[name].value if name in self.known else None

    @staticmethod
    def _count_change(event: QueueEvent, base: ValidValue[QueueEvent] | None) -> int:
        """Return by how much an event changes the expected number of messages."""
        if event.kind in ("arrived", "moved_in"):
            return 1
        if event.kind in ("departed", "moved_out"):
            return -1
        if event.kind != "received":
            return 0
        purged = base is not None and base.event.kind == "purge"
        if purged and base is not None and event.handed_out_at is not None and event.handed_out_at <= base.event.at:
            return 0  # the purge deleted the message that this reader held
        return -1

    def _set_unexplained_change(self, before: RowDict, at: int) -> None:
        """Set the difference between the count reported at a time, if any, and the count expected before it."""
        count = self.known.get("message_count")
        expected = before["expected_message_count"]
        if count is not None and count.at == at and count.value is not None and expected is not None:
            before["unexplained_change"] = count.value - expected


def _confidence(missing: set[str]) -> str:
    if not missing:
        return "complete"
    return "provisional" if missing == {"transaction_open"} else "partial"
