"""Stories of what is in trouble: entries of alerts, queues, machines and messages, as JSON values of the page.

What is said of them comes from the functions that the commands use: ``find_entries``, the verdict for a queue and the
timeline of a message. The page only shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from pipeline.alerts.entries import AlertRow, Entry
from pipeline.dashboards.dashboard_data import MAX_DATASET_BYTES, Stories, Story, to_json_value
from pipeline.queues.history import STATE_LOCAL
from pipeline.reports.export_keys import export_packets_command
from pipeline.reports.queue_verdict.formatting import verdict_to_json
from pipeline.reports.queue_verdict.inputs import QueueRows
from pipeline.reports.queue_verdict.verdict import QueueVerdict
from pipeline.reports.trace.formatting import timeline_to_json
from pipeline.reports.trace.timeline import MessageTimeline
from pipeline.silver.machines import Machines
from pipeline.text import cut_text

MAX_STORIES: Final = 200  # entries, queues and machines in the page, of each
MAX_MESSAGES: Final = 100
_MAX_KIND_BYTES: Final = MAX_DATASET_BYTES // 4  # of entries, queues, machines and messages, as JSON
_MAX_ITEMS: Final = 50  # of a list in a story: alerts of an entry, reports, senders, events of a message
_MESSAGE_FIELDS: Final = ("message_id", "labels", "verdict", "verdict_code", "verdict_complete", "events", "not_known")
_EVENT_FIELDS: Final = ("at", "kind", "text", "clock", "other_candidates")


def build_stories(
    causes: Sequence[QueueVerdict], verdicts: Iterable[QueueVerdict], timelines: Iterable[MessageTimeline],
    machines: Machines, lake: str,
) -> Stories:  # fmt: skip
    """Return the stories of entries, of queues in trouble and of messages.

    ``causes`` are the verdicts of entries; ``lake``: the options that name it, for commands.
    """
    in_trouble = [each for each in verdicts if each.is_in_trouble]
    queues = {_key(entry): entry.queues for each in causes for entry in each.entries}
    for verdict in in_trouble:
        for entry in verdict.entries:
            if verdict.facts.queue not in queues[_key(entry)]:
                queues[_key(entry)].append(verdict.facts.queue)
    every = {
        "entries": [_entry_story(each, queues, machines, lake) for each in causes],
        "queues": [_queue_story(each, lake) for each in in_trouble],
        "machines": _machine_stories(causes, queues, machines),
        "messages": [_message_story(each, lake) for each in timelines],
    }
    kept = {kind: _first(stories) for kind, stories in every.items()}
    return Stories(
        entries=kept["entries"],
        queues={story["queue"]: story for story in kept["queues"]},
        machines=kept["machines"],
        messages={story["key"]: story for story in kept["messages"]},
        left_out={kind: len(stories) - len(kept[kind]) for kind, stories in every.items()},
    )


def with_queue_facts(rows: pa.Table, facts: Mapping[str, QueueRows]) -> pa.Table:
    """Return the rows of the dataset ``queues`` with ``state_since``, ``unacknowledged`` and ``last_read_at``.

    ``unacknowledged`` is what the machine of the row reported last; without a report, what was captured of messages to
    the queue and not acknowledged.
    """
    found = [_facts_of_row(row, facts.get(row["queue"])) for row in _identities(rows)]
    kinds = {"state_since": pa.timestamp("us", tz="UTC"), "unacknowledged": pa.int64(),
             "last_read_at": pa.timestamp("us", tz="UTC")}  # fmt: skip
    for name, kind in kinds.items():
        rows = rows.append_column(name, pa.array([each.get(name) for each in found], kind))
    return rows


def _identities(rows: pa.Table) -> list[dict[str, Any]]:
    names: list[dict[str, Any]] = rows.select(["queue", "queue_manager", "queue_format_name"]).to_pylist()
    return names


def _facts_of_row(row: Mapping[str, Any], facts: QueueRows | None) -> dict[str, Any]:
    if facts is None:
        return {}
    report = next((each for each in facts.reports if _is_of(each, row)), {})
    unacknowledged = report.get("unacked_count")
    if unacknowledged is None and facts.senders and report.get("state") == STATE_LOCAL:
        unacknowledged = sum(sender["waiting"] for sender in facts.senders)
    return {
        "state_since": report.get("state_since"),
        "unacknowledged": unacknowledged,
        "last_read_at": facts.last_read_at,
    }


def _is_of(report: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    names = ("queue_manager", "queue_format_name")
    return all((report[name] or "").casefold() == (row[name] or "").casefold() for name in names)


def _key(entry: Entry) -> str:
    return str(entry.leading["alert_key"])


def _entry_story(verdict: QueueVerdict, queues: Mapping[str, Sequence[str]], machines: Machines, lake: str) -> Story:
    (entry,), cause = verdict.entries, verdict.cause
    leading = entry.leading
    return _shortened({
        "key": _key(entry),
        "condition": leading["condition"],
        "severity": entry.severity,
        "since": entry.since,
        "subject": subject_text(leading),
        "cause": {"text": cause.text if cause else leading["message"],
                  "suggestion": cause.suggestion if cause else leading["suggestion"]},
        "queues": queues[_key(entry)],
        "machines": [machines.text(each) for each in _machines_of(entry)],
        "alerts": [_alert(row) for row in entry.alerts[:_MAX_ITEMS]],
        "alert_count": len(entry.alerts),
        "evidence": verdict.evidence,
    }) | {"export": _export(verdict, lake)}  # fmt: skip


def _export(verdict: QueueVerdict, lake: str) -> str | None:
    return export_packets_command(verdict.keys, lake) if verdict.keys else None


def subject_text(alert: AlertRow) -> str:
    """Return the subject of an alert with the names of its machines; alerts of before have it without."""
    return str(alert["subject_text"] or alert["subject"])


def _alert(row: AlertRow) -> Story:
    names = ("alert_key", "condition", "severity", "queue", "since", "message", "suggestion")
    return {name: row[name] for name in names} | {"subject": subject_text(row)}


def _queue_story(verdict: QueueVerdict, lake: str) -> Story:
    values = verdict_to_json(verdict, lake)
    export, entries = values.pop("export"), [entry["leading"] for entry in values.pop("entries")]
    severity = verdict.entries[0].severity if verdict.entries else "warning"
    return _shortened(values | {"entries": entries, "severity": severity}) | {"export": export}


def _machines_of(entry: Entry) -> Iterator[str]:
    """Yield the machines that the alerts of an entry name, each once."""
    columns = ("from_machine", "to_machine", "queue_manager")
    found = dict.fromkeys(row[column] for row in entry.alerts for column in columns)
    yield from (machine for machine in found if machine is not None)


def _machine_stories(
    causes: Iterable[QueueVerdict], queues: Mapping[str, Sequence[str]], machines: Machines
) -> list[Story]:
    """Return the stories of the machines that entries name, each machine once, whatever it is called."""
    found: list[Story] = []
    by_name: dict[str, Story] = {}
    for entry in (entry for each in causes for entry in each.entries):
        for machine in _machines_of(entry):
            story = by_name.get(machine.casefold())
            if story is None:
                names = sorted(machines.known_as([machine]))
                story = {"name": machines.text(machine), "identifiers": names, "entries": [], "queues": []}
                by_name |= dict.fromkeys((each.casefold() for each in names), story)
                found.append(story)
            if _key(entry) not in story["entries"]:
                story["entries"].append(_key(entry))
                story["queues"] += [queue for queue in queues[_key(entry)] if queue not in story["queues"]]
    return [_shortened(story) for story in found]


def _message_story(timeline: MessageTimeline, lake: str) -> Story:
    values = timeline_to_json(replace(timeline, events=timeline.events[:_MAX_ITEMS]))
    events = [{name: event[name] for name in _EVENT_FIELDS} for event in values["events"]]
    kept = {name: values[name] for name in _MESSAGE_FIELDS} | {"events": events, "event_count": len(timeline.events)}
    key = timeline.message_key
    is_captured = any(event.call_key is not None or event.packet_key is not None for event in timeline.events)
    return _shortened({"key": key} | kept) | {
        "export": export_packets_command({"message": [key]}, lake) if key is not None and is_captured else None
    }


def _shortened(story: Story) -> Story:
    """Return a story with texts and lists of limited length: names on the wire may be a megabyte long."""
    return {name: _shortened_value(each) for name, each in story.items()}


def _shortened_value(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return cut_text(value, distinct=True)
    if isinstance(value, Mapping):
        return {name: _shortened_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened_value(each) for each in value[:_MAX_ITEMS]]
    return to_json_value(value)


def _first(stories: Sequence[Story]) -> list[Story]:
    """Return the first stories, as many as the page may have."""
    kept, size = list[Story](), 0
    for story in stories[:MAX_STORIES]:
        size += len(json.dumps(story))
        if size > _MAX_KIND_BYTES:
            break
        kept.append(story)
    return kept
