"""Alerts of what is told in a story of snapshots and calls, each as (condition, severity, since, until), in minutes."""

from __future__ import annotations

from datetime import timedelta

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import rows
from pipeline.alerts.queue_alerts import queues
from pipeline.alerts.transfer_alerts import sources, transfers
from pipeline.queues import queue_rows
from pipeline.queues.queue_managers import Machines
from pipeline.queues.queue_rows import Names, Settings
from queue_states.telling import MINUTE, us

LIMITS = Thresholds()
NAMES = Names(Machines(managers={"a1": ["relay"]}), {})
SETTINGS = Settings()


def minutes(number):
    return timedelta(minutes=number)


def of_story(told, now, limits=LIMITS):
    """All alerts on queues and transfers of what ``states.told`` gives, as rows."""
    told = [row | {"queue": NAMES.queue(row["queue"])} for row in told]
    observed = queue_rows.observations(told)
    outgoing = queue_rows.transfer_rows(observed, SETTINGS)
    incoming = queue_rows.source_rows(queue_rows.with_senders(observed, NAMES), outgoing, NAMES, SETTINGS)
    history = queue_rows.history_rows(told, SETTINGS)
    at = us(now * MINUTE)
    found = [*queues(history, limits, at), *transfers(outgoing, limits, at), *sources(incoming, limits, at)]
    return rows(found)


def short(found):
    """Alerts as (condition, severity, since, until), the times in minutes."""

    def at(time):
        return None if time is None else time / us(MINUTE)

    return sorted((row["condition"], row["severity"], at(row["since"]), at(row["until"])) for row in found)
