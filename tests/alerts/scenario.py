"""Alerts of a scenario of snapshots and calls."""

from __future__ import annotations

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import alert_rows
from pipeline.alerts.queue_alerts import history_alerts
from pipeline.alerts.transfer_alerts import eod_source_alerts, eod_transfer_alerts
from pipeline.queues import queue_rows
from pipeline.queues.queue_managers import QueueManagerNames
from pipeline.queues.queue_rows import QueueNames, QueueSettings
from queue_states.queue_events import MINUTE, us

LIMITS = Thresholds()
NAMES = QueueNames(QueueManagerNames(names_by_guid={"a1": ["relay"]}), {})
SETTINGS = QueueSettings()


def alerts_for(events, now, limits=LIMITS):
    """Return all alerts on queues and transfers of some events, as rows; ``now`` is in minutes."""
    events = [row | {"queue": NAMES.canonical_queue(row["queue"])} for row in events]
    observed = queue_rows.snapshot_observations(events)
    outgoing = queue_rows.eod_transfer_rows(observed, SETTINGS)
    incoming = queue_rows.eod_source_rows(queue_rows.with_sender_queues(observed, NAMES), outgoing, NAMES, SETTINGS)
    history = with_unacknowledged(queue_rows.history_rows(events, SETTINGS), outgoing)
    at = us(now * MINUTE)
    found = [
        *history_alerts(history, limits, at),
        *eod_transfer_alerts(outgoing, limits, at),
        *eod_source_alerts(incoming, limits, at),
    ]
    return alert_rows(found)


def with_unacknowledged(history, outgoing):
    """Return rows of gold.queue_history with what gold.eod_transfers says of the reports that they begin with."""
    series = ("queue_manager", "queue", "queue_format_name")
    sent = {(*(row[name] for name in series), row["observed_at"]): row["unacked_count"] for row in outgoing}
    return [row | {"unacked_count": sent.get((*(row[name] for name in series), row["valid_from"]))} for row in history]


def summaries(found):
    """Return alerts as (condition, severity, since, until), times in minutes."""

    def at(time):
        return None if time is None else time / us(MINUTE)

    return sorted((row["condition"], row["severity"], at(row["since"]), at(row["until"])) for row in found)
