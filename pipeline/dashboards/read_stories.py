"""Reads the stories of the page: a set of queries for all queues, and one for all messages, however many they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

import pyarrow.compute as pc

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.entries import AlertRow, Entry, find_entries
from pipeline.alerts.episodes import SEVERITY_ORDER
from pipeline.dashboards.dashboard_data import MAX_DATASET_ROWS, NEVER_ARRIVED, NOT_READ, DatasetRows
from pipeline.dashboards.stories import MAX_MESSAGES, MAX_STORIES, EntryCause, Stories, build_stories, with_queue_facts
from pipeline.lake.lake import Lake
from pipeline.reports.queue_verdict.causes import find_cause
from pipeline.reports.queue_verdict.inputs import QueueRows, read_queue_rows
from pipeline.reports.queue_verdict.verdict import QueueVerdict, _exportable, _verdict
from pipeline.reports.trace.inputs import read_timelines
from pipeline.silver.machines import Machines
from schemas.alerts import ALERTS
from schemas.table import literal

_ACTIVE_SQL: Final = f"""SELECT * FROM {{alerts}} WHERE until IS NULL
ORDER BY array_position(array({", ".join(map(literal, SEVERITY_ORDER))}), severity) DESC, since, alert_key
LIMIT {MAX_DATASET_ROWS}"""


def read_stories(
    lake: Lake, data: Mapping[str, DatasetRows], limits: Thresholds, now: datetime, lake_name: str
) -> tuple[Stories, dict[str, DatasetRows]]:
    """Return the stories of what is in trouble, and the datasets to which they add columns.

    ``data`` are the datasets of the page. Their queues have facts, those in trouble and the messages in trouble stories.
    """
    alerts = lake.query(_ACTIVE_SQL, alerts=ALERTS).to_pylist() if lake.exists(ALERTS) else []
    machines = Machines.of(lake)
    entries = find_entries(alerts, machines)
    facts, verdicts = {}, []
    for queue in _queues(entries, data):
        facts[queue] = read_queue_rows(lake, queue, [queue], now)
        if facts[queue].is_captured:
            verdicts.append(_verdict(lake, facts[queue], None, entries, machines, limits))
    causes = [_entry_cause(lake, entry, verdicts, facts, machines, limits, now) for entry in entries[:MAX_STORIES]]
    messages, left_out = _messages_in_trouble(data)
    stories = build_stories(causes, verdicts, read_timelines(lake, messages), machines, lake_name)
    stories = replace(stories, left_out={**stories.left_out, "messages": stories.left_out["messages"] + left_out})
    queues = data["queues"]
    if queues.rows is None:
        return stories, {}
    return stories, {"queues": replace(queues, rows=with_queue_facts(queues.rows, facts))}


def _queues(entries: Iterable[Entry], data: Mapping[str, DatasetRows]) -> list[str]:
    """Return the queues that may be in trouble, those of entries first, then all others of the page."""
    found = dict.fromkeys(queue for entry in entries for queue in entry.queues)
    found |= dict.fromkeys(row["queue"] for row in _rows(data, "message_transfers", "queue", "not_delivered")
                           if row["not_delivered"] is not None)  # fmt: skip
    found |= dict.fromkeys(row["queue"] for row in _rows(data, "queues", "queue"))
    return [queue for queue in found if queue is not None][:MAX_DATASET_ROWS]


def _messages_in_trouble(data: Mapping[str, DatasetRows]) -> tuple[list[str], int]:
    """Return the keys of the first messages in trouble, and the number of the others.

    First those that never arrived, then those whose reads may have lost or repeated them, then those not read.
    """
    sent = _rows(data, "message_transfers", "message_key", "not_delivered")
    read = _rows(data, "sequences", "message_key", "loss_risk")
    found = dict.fromkeys(row["message_key"] for row in sent if row["not_delivered"] == NEVER_ARRIVED)
    found |= dict.fromkeys(row["message_key"] for row in read if row["loss_risk"] is not None)
    found |= dict.fromkeys(row["message_key"] for row in sent if row["not_delivered"] == NOT_READ)
    keys = [key for key in found if key is not None]
    return keys[:MAX_MESSAGES], max(0, len(keys) - MAX_MESSAGES)


def _rows(data: Mapping[str, DatasetRows], name: str, *columns: str) -> list[dict[str, str | None]]:
    rows = data[name].rows
    return [] if rows is None else rows.select(columns).to_pylist()


def _entry_cause(lake, entry, verdicts, facts, machines, limits, now):
    own = next((v for v in verdicts if v.entries and v.entries[0] is entry), None)
    if own is not None and own.cause is not None:
        return EntryCause(entry, own.cause, own.keys)
    cause = find_cause(entry, QueueRows("", now), machines, limits.failure_window)
    return EntryCause(entry, cause, _exportable(lake, cause.evidence))
