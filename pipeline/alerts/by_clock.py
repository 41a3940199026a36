"""The alerts by the clock, as they are printed and sent: rows of gold.alerts, and what the clock adds to them.

``gold.alerts`` depends on evidence only. By the clock a source that brings nothing is an alert too
(``evidence_stopped``), an open alert that nobody observed lately stands apart, and a single event that has ended by the
time it is read is told all the same. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pipeline.alerts.conditions import SINGLE_EVENTS, Thresholds
from pipeline.alerts.entries import AlertRow, Entry, evidence_keys, find_entries
from pipeline.alerts.silence import find_stopped, longest_wait, read_sources
from pipeline.alerts.update import current_alerts
from pipeline.bronze.event_time import newest_event_time_us
from pipeline.lake.lake import Lake
from pipeline.settings import ClockLimits
from pipeline.silver.machines import UNNAMED, Machines
from schemas.bronze import CAPTURE_FILES, RPC_CALLS
from schemas.sessions import SESSION_PACKETS
from udfs.times import us_to_datetime

# Those of some keys whose rows the last run that read captures wrote.
_FIRST_READ_SQL = """
SELECT key FROM (
  SELECT call_key AS key, ingested_at FROM {calls} AS calls WHERE call_key IN {keys}
  UNION ALL SELECT packet_key AS key, ingested_at FROM {packets} AS packets WHERE packet_key IN {keys}
) AS found CROSS JOIN (SELECT max(ingested_at) AS newest_run FROM {captures} AS captures) AS last
WHERE ingested_at >= newest_run"""


@dataclass(frozen=True, slots=True)
class AlertsByClock:
    """Alerts as they are by the clock.

    ``rows``: all of gold.alerts, active and ended. ``stopped``: rows of the same form for sources that bring no
    evidence any more. ``unobserved``: the ``alert_key`` of active alerts without newer evidence. ``recent_events``:
    those of ended single events that are not older than ``alerts.event_hold``; ``first_read``: those of them that the
    last run which read captures was the first to read. ``newest_at`` is the time of the newest packet or snapshot.
    ``machines`` have the names that the texts show.
    """

    clock: datetime
    newest_at: datetime | None
    rows: tuple[AlertRow, ...]
    stopped: tuple[AlertRow, ...]
    unobserved: frozenset[str]
    recent_events: frozenset[str]
    first_read: frozenset[str]
    machines: Machines = UNNAMED

    @property
    def every(self) -> tuple[AlertRow, ...]:
        """All rows: those of gold.alerts, and those that the clock adds."""
        return (*self.rows, *self.stopped)

    @property
    def evidence_age(self) -> timedelta | None:
        """How old the newest packet or snapshot is by the clock; None where none has a time."""
        return None if self.newest_at is None else self.clock - self.newest_at

    def is_reported(self, row: AlertRow) -> bool:
        """Whether an alert is printed and counts for the exit code: it is active, or an event that was first read."""
        return row["until"] is None or row["alert_key"] in self.first_read

    def entries(self, alerts: Iterable[AlertRow]) -> tuple[list[Entry], list[Entry]]:
        """Return the entries of alerts: those that are observed, and those of which no alert has newer evidence."""
        observed, apart = list[Entry](), list[Entry]()
        for entry in find_entries(alerts, self.machines):
            is_apart = all(row["alert_key"] in self.unobserved for row in entry.alerts)
            (apart if is_apart else observed).append(entry)
        return observed, apart


def alerts_by_clock(
    lake: Lake, limits: Thresholds, of_clock: ClockLimits, clock: datetime, as_of: datetime | None = None
) -> AlertsByClock:
    """Return the alerts by a clock; ``as_of``, if it is given, takes its place, and is "now" of the alerts too."""
    clock = clock if as_of is None else as_of
    newest_us = newest_event_time_us(lake)
    rows = tuple(current_alerts(lake, limits, as_of, newest_us).to_pylist())
    sources, machines = read_sources(lake, clock), Machines.of(lake, limits.machine_names)
    oldest_observed = clock - longest_wait(sources, clock, of_clock.silence_after)
    events = [
        row for row in rows
        if row["condition"] in SINGLE_EVENTS and row["until"] is not None
        and clock - row["last_seen_at"] <= of_clock.event_hold
    ]  # fmt: skip
    return AlertsByClock(
        clock,
        None if newest_us is None else us_to_datetime(newest_us),
        rows,
        tuple(find_stopped(sources, clock, of_clock.silence_after, machines)),
        frozenset(row["alert_key"] for row in rows if row["until"] is None and row["last_seen_at"] < oldest_observed),
        frozenset(row["alert_key"] for row in events),
        _first_read(lake, events),
        machines,
    )


def _first_read(lake: Lake, events: Iterable[AlertRow]) -> frozenset[str]:
    """Return the ``alert_key`` of alerts with evidence that the last run which read captures was the first to read."""
    keys = {key for row in events for key in evidence_keys(row)}
    if not keys:
        return frozenset()
    found = lake.query(_FIRST_READ_SQL, calls=RPC_CALLS, packets=SESSION_PACKETS, captures=CAPTURE_FILES, keys=keys)
    new = {*found["key"].to_pylist()}
    return frozenset(row["alert_key"] for row in events if new.intersection(evidence_keys(row)))
