"""Alerts of a scenario of snapshots and calls."""

from __future__ import annotations

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import alert_rows
from pipeline.alerts.sources import ALERT_SOURCES, AlertContext, TimeWindow
from queue_states.queue_events import MINUTE, us
from reports.questions.in_memory_lake import NAMES, InMemoryLake, history_tables

LIMITS = Thresholds()
CONTEXT = AlertContext({}, {}, {})


def alerts_for(events, now, limits=LIMITS):
    """Return all alerts on queues and transfers of some events, as rows; ``now`` is in minutes."""
    events = [row | {"queue": NAMES.canonical_queue(row["queue"])} for row in events]
    return alerts_of(history_tables(events), ("history", "waits", "transfers", "sources"), now, limits)


def alerts_of(tables, sources, now, limits=LIMITS):
    """Return the alerts of some sources over a lake of these tables, as rows; ``now`` is in minutes."""
    lake = InMemoryLake(None, tables)
    window = TimeWindow(None, us(now * MINUTE))
    found = []
    for source in (ALERT_SOURCES[name] for name in sources):
        query = source.query(limits, window)
        rows = lake.query(query.sql, **query.inputs).to_pylist()
        found += source.find_alerts(rows, limits, window.now, CONTEXT)
    return alert_rows(found)


def summaries(found):
    """Return alerts as (condition, severity, since, until), times in minutes."""

    def at(time):
        return None if time is None else time / us(MINUTE)

    return sorted((row["condition"], row["severity"], at(row["since"]), at(row["until"])) for row in found)
