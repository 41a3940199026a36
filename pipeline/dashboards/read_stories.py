"""Reads the stories of the page: one set of queries for all queues, and one for all messages, however many they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.entries import find_entries
from pipeline.concurrency import run_concurrently
from pipeline.dashboards.dashboard_data import MAX_DATASET_ROWS, NEVER_ARRIVED, NOT_READ, DatasetRows, Stories
from pipeline.dashboards.stories import MAX_MESSAGES, build_stories, with_queue_facts
from pipeline.lake.lake import Lake
from pipeline.reports.lake_options import lake_options
from pipeline.reports.queue_verdict.verdict import QueueVerdict, Situation, verdicts_for, verdicts_of_entries
from pipeline.reports.trace.inputs import read_timelines
from pipeline.silver.machines import Machines
from schemas.alerts import ALERTS

_ACTIVE_SQL: Final = (
    f"SELECT * FROM {{alerts}} WHERE until IS NULL ORDER BY severity = 'info', severity, since LIMIT {MAX_DATASET_ROWS}"
)


def read_stories(
    lake: Lake, data: Mapping[str, DatasetRows], machines: Machines, limits: Thresholds, now: datetime
) -> tuple[Stories, dict[str, DatasetRows]]:
    """Return the stories of what is in trouble, and the dataset of queues with what is known of each.

    ``data`` are the datasets of the page.
    """
    alerts = lake.query(_ACTIVE_SQL, alerts=ALERTS).to_pylist() if lake.exists(ALERTS) else []
    situation = Situation(find_entries(alerts, machines), machines, limits, now)
    messages = _messages_in_trouble(data)
    found: dict[str, Any] = run_concurrently({
        "verdicts": lambda: verdicts_for(lake, _queues(situation, data), situation),
        "timelines": lambda: read_timelines(lake, messages[:MAX_MESSAGES]),
    })  # fmt: skip
    places = {entry.leading["alert_key"]: place for place, entry in enumerate(situation.entries)}
    verdicts = sorted(found["verdicts"], key=lambda verdict: _place(verdict, places))
    causes = verdicts_of_entries(lake, situation, verdicts)
    stories = build_stories(causes, verdicts, found["timelines"], machines, lake_options(lake))
    without_story = len(messages) - len(stories.messages)
    stories = replace(stories, left_out={**stories.left_out, "messages": without_story})
    queues = data["queues"]
    if queues.rows is None:
        return stories, {}
    facts = {verdict.facts.queue: verdict.facts for verdict in verdicts}
    return stories, {"queues": replace(queues, rows=with_queue_facts(queues.rows, facts))}


def _place(verdict: QueueVerdict, places: Mapping[str, int]) -> int:
    """Return the place of a queue's worst entry among all, to sort queues by it; those without one come last."""
    return places[verdict.entries[0].leading["alert_key"]] if verdict.entries else len(places)


def _queues(situation: Situation, data: Mapping[str, DatasetRows]) -> list[str]:
    """Return the queues of the page by their canonical names: those that may be in trouble first."""
    sent = _rows(data, "message_transfers", "queue", "not_delivered")
    read = _rows(data, "sequences", "queue", "loss_risk")
    found: list[str | None] = [*situation.queues]
    found += [row["queue"] for row in sent if row["not_delivered"] is not None]
    found += [row["queue"] for row in read if row["loss_risk"] is not None]
    found += [row["queue"] for row in _rows(data, "queues", "queue")]
    return [*dict.fromkeys(queue for queue in found if queue is not None)][:MAX_DATASET_ROWS]


def _messages_in_trouble(data: Mapping[str, DatasetRows]) -> list[str]:
    """Return the keys of the messages in trouble.

    First those that never arrived, then those whose reads may have lost or repeated them, then those not read.
    """
    sent = _rows(data, "message_transfers", "message_key", "not_delivered")
    read = _rows(data, "sequences", "message_key", "loss_risk")
    found = dict.fromkeys(row["message_key"] for row in sent if row["not_delivered"] == NEVER_ARRIVED)
    found |= dict.fromkeys(row["message_key"] for row in read if row["loss_risk"])
    found |= dict.fromkeys(row["message_key"] for row in sent if row["not_delivered"] == NOT_READ)
    return [key for key in found if key is not None]


def _rows(data: Mapping[str, DatasetRows], name: str, *columns: str) -> list[dict[str, Any]]:
    rows = data[name].rows
    return [] if rows is None else rows.select(columns).to_pylist()
