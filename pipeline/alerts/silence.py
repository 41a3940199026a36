"""Sources that bring no evidence any more: the condition ``evidence_stopped``, which depends on the clock.

A source is a folder of captures, or a collected queue manager. What one run first read of it is one *arrival*, however
many files it has: so a folder that was filled once has no rhythm. An arrival counts if it has later packets (snapshots)
than all before it, and was read within a week of them: else it fills a gap of the past.

An arrival came when it was read. Where the clock is set to an earlier time (``--as-of``), it came at the time of its
last packet.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple

from pipeline.alerts.conditions import CLOCK_CONDITIONS, EVIDENCE_STOPPED
from pipeline.alerts.entries import AlertRow
from pipeline.alerts.episodes import ERROR, Alert, Episode, alert_rows
from pipeline.arrow_rows import rows_to_table
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import FilteredTable
from pipeline.silver.machines import UNNAMED, Machines
from pipeline.text import format_age, format_cell
from schemas.alerts import ALERTS
from schemas.bronze import CAPTURE_FILES
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.table import EVENT_DATE, RUN_ID, Table
from udfs.times import datetime_to_us, timedelta_to_us

CAPTURES, SNAPSHOTS = "captures", "snapshots"
MIN_ARRIVALS: Final = 5  # fewer are no rhythm
_MAX_ARRIVALS: Final = 20  # of a source, the newest of those that count
_HISTORY: Final = timedelta(days=180)  # a source that brought nothing for so long is not expected any more
_FILLED_LATER: Final = timedelta(days=7)  # evidence that was older than this when it was read
_INTERVALS: Final = 3  # that a source may miss
_LEAST_SILENCE: Final = timedelta(hours=1)
# A part of a path that is only digits, "-" and "_", maybe behind "day=": a day or an hour. Its folders are one source.
_DATED_FOLDER: Final = re.compile(r"(?<=/)(?:[A-Za-z_]+=)?\d[\d_-]*(?=/|$)")
_SCHEMA: Final = ALERTS.schema()

_IS_LATE_SQL: Final = f"unix_micros(read_at) - unix_micros(newest_at) > {timedelta_to_us(_FILLED_LATER)}"
_ARRIVALS_SQL: Final = f"""
SELECT * FROM (
  SELECT *, row_number() OVER (PARTITION BY kind, source, {_IS_LATE_SQL} ORDER BY read_at DESC) AS place FROM (
    SELECT '{CAPTURES}' AS kind, regexp_replace(path, '/[^/]*$', '') AS source, ingested_at AS read_at,
      max(last_packet_at) AS newest_at, max_by(capture_id, last_packet_at) AS evidence
    FROM {{captures}} AS captures GROUP BY ALL
    UNION ALL
    SELECT '{SNAPSHOTS}' AS kind, queue_manager AS source, ingested_at AS read_at,
      max(collected_at) AS newest_at, max_by(snapshot_id, collected_at) AS evidence
    FROM {{snapshots}} AS snapshots GROUP BY ALL
  ) AS arrivals
) AS placed WHERE place <= {_MAX_ARRIVALS}"""


class Arrival(NamedTuple):
    """What one run first read of a source: when it read it, its newest packet or snapshot, and that one's key."""

    read_at: datetime
    newest_at: datetime
    evidence: str

    @property
    def fills_the_past(self) -> bool:
        """Whether it was old when it was read."""
        return self.read_at - self.newest_at > _FILLED_LATER


@dataclass(frozen=True, slots=True)
class Source:
    """A folder of captures or a collected queue manager, with its arrivals until a time, in the order of reading."""

    kind: str
    name: str
    arrivals: tuple[Arrival, ...]

    @property
    def newest_at(self) -> datetime:
        """The time of its newest packet or snapshot."""
        return max(each.newest_at for each in self.arrivals)

    @property
    def subject(self) -> str:
        """What an alert about it is about."""
        return f"captures in {self.name}" if self.kind == CAPTURES else f"snapshots of queue manager {self.name}"


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How regularly a source brings evidence: the last time that it came, the usual interval, and what it may miss.

    ``delay``: how old the newest evidence was when it came.
    """

    came_at: datetime
    interval: timedelta
    allowed: timedelta
    delay: timedelta
    newest: Arrival

    @staticmethod
    def of(source: Source, clock: datetime, silence_after: timedelta | None) -> Rhythm | None:
        """Return the rhythm of a source; None for one that brought evidence fewer than ``MIN_ARRIVALS`` times."""
        arrivals = [*_counted(source.arrivals, clock)][-_MAX_ARRIVALS:]
        if len(arrivals) < MIN_ARRIVALS:
            return None
        came = sorted(_came_at(each, clock) for each in arrivals)
        interval = timedelta(seconds=median((later - earlier).total_seconds() for earlier, later in pairwise(came)))
        allowed = max(_INTERVALS * interval, _LEAST_SILENCE) if silence_after is None else silence_after
        return Rhythm(came[-1], interval, allowed, came[-1] - arrivals[-1].newest_at, arrivals[-1])


def read_sources(lake: Lake, clock: datetime) -> list[Source]:
    """Return the sources that brought evidence within half a year before a time, each with its newest arrivals.

    Captures and snapshots that are later than that time are left out, but for those whose clock was ahead when they
    were read.
    """
    until = f"timestamp_micros({datetime_to_us(clock)})"

    def recent(table: Table, time: str) -> FilteredTable:
        in_days = f"{EVENT_DATE} >= DATE '{clock - _HISTORY:%Y-%m-%d}'"
        return FilteredTable(table, f"{in_days} AND {time} IS NOT NULL AND least({time}, ingested_at) <= {until}")

    captures, snapshots = recent(CAPTURE_FILES, "last_packet_at"), recent(SNAPSHOTS_RAW, "collected_at")
    found = lake.query(_ARRIVALS_SQL, captures=captures, snapshots=snapshots)
    by_source: defaultdict[tuple[str, str], dict[datetime, Arrival]] = defaultdict(dict)
    for row in found.to_pylist():
        arrival = Arrival(row["read_at"], min(row["newest_at"], row["read_at"]), row["evidence"])
        of_source = by_source[row["kind"], _source_name(row["kind"], row["source"])]
        same_run = of_source.get(arrival.read_at, arrival)
        of_source[arrival.read_at] = max(same_run, arrival, key=lambda each: each.newest_at)
    return [
        Source(kind, name, tuple(sorted(of_source.values()))) for (kind, name), of_source in sorted(by_source.items())
    ]


def _source_name(kind: str, text: str) -> str:
    return _DATED_FOLDER.sub("*", text) if kind == CAPTURES else text


def _counted(arrivals: Iterable[Arrival], clock: datetime) -> Iterator[Arrival]:
    """Yield the arrivals that count; what was read after the clock was read in time."""
    newest: datetime | None = None
    for each in arrivals:
        is_late = each.read_at <= clock and each.fills_the_past
        if not is_late and (newest is None or each.newest_at > newest):
            newest = each.newest_at
            yield each


def _came_at(arrival: Arrival, clock: datetime) -> datetime:
    return arrival.read_at if arrival.read_at <= clock else arrival.newest_at


def find_stopped(
    sources: Iterable[Source], clock: datetime, silence_after: timedelta | None, machines: Machines = UNNAMED
) -> list[AlertRow]:
    """Return a row like those of gold.alerts for each source that brings no evidence any more, by the clock.

    ``since`` is when the next evidence should have come; ``last_seen_at`` is the clock. Texts name ``machines``.
    """
    alerts = []
    for source in sources:
        rhythm = Rhythm.of(source, clock, silence_after)
        if rhythm is not None and clock - rhythm.came_at > rhythm.allowed:
            alerts.append(_alert(source, rhythm, clock))
    rows = [{**row, "subject_text": _subject_text(row, machines), RUN_ID: None} for row in alert_rows(alerts)]
    found: list[AlertRow] = rows_to_table(rows, _SCHEMA).to_pylist()
    return found


def _subject_text(row: Mapping[str, Any], machines: Machines) -> str:
    """Return the subject with the name of the collected queue manager; a folder may be called as an address is."""
    subject: str = row["subject"]
    return subject if row["queue_manager"] is None else machines.in_text(subject)


def _alert(source: Source, rhythm: Rhythm, clock: datetime) -> Alert:
    since, at = datetime_to_us(rhythm.came_at + min(rhythm.interval, rhythm.allowed)), datetime_to_us(clock)
    what = "packet" if source.kind == CAPTURES else "snapshot"
    episode = Episode(
        since,
        at,
        at,
        ERROR,
        f"nothing came for {format_age(clock - rhythm.came_at)}, before that every {format_age(rhythm.interval)}; the "
        f"newest {what} is from {format_cell(source.newest_at)}",
        evidence=[rhythm.newest.evidence],
    )
    queue_manager = source.name if source.kind == SNAPSHOTS else None
    suggestion = CLOCK_CONDITIONS[EVIDENCE_STOPPED].suggestion
    return Alert(EVIDENCE_STOPPED, source.subject, episode, None, queue_manager, suggestion=suggestion)


def longest_wait(sources: Iterable[Source], clock: datetime, silence_after: timedelta | None) -> timedelta:
    """Return how old, by the clock, the newest evidence may be while all sources bring it as usual."""
    rhythms = [Rhythm.of(source, clock, silence_after) for source in sources]
    waits = [rhythm.allowed + rhythm.delay for rhythm in rhythms if rhythm is not None]
    return max(waits, default=_LEAST_SILENCE if silence_after is None else silence_after)
