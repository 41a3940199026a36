"""The state of queues and what was counted, in Prometheus' text format 0.0.4, for the textfile collector or a scrape.

Samples carry no time (the textfile collector refuses them): how old a queue's state is says
``msmq_queue_told_timestamp_seconds``. What is not known has no sample, and is never 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pipeline.dashboards.model import Data, Site, state_now
from pipeline.queues.history import UNKNOWN

_QUEUE: Final = ("queue", "queue_manager", "queue_format_name")


class Family(NamedTuple):
    """One metric: name, type, meaning, and (labels, value) of its samples."""

    name: str
    kind: str
    help: str
    samples: Iterable[tuple[Mapping[str, str], float | int | datetime | bool | None]]


def metrics(site: Site) -> str:
    """Return all metrics of a site; samples without a value are left out."""
    return "".join(_lines(family) for family in _families(site))


def _lines(family: Family) -> str:
    lines = [f"# HELP {family.name} {_escaped(family.help)}\n", f"# TYPE {family.name} {family.kind}\n"]
    for labels, value in family.samples:
        number = _number(value)
        if number is not None:
            named = ",".join(f'{name}="{_escaped(text, quote=True)}"' for name, text in labels.items())
            lines.append(f"{family.name}{{{named}}} {number}\n" if named else f"{family.name} {number}\n")
    return "".join(lines)


def _escaped(text: str, *, quote: bool = False) -> str:
    """A text as the format wants it: backslash and line feed escaped, in labels the quotation mark too."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quote else escaped


def _number(value: float | datetime | bool | None) -> str | None:  # noqa: FBT001
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, datetime):
        return repr(value.astimezone(UTC).timestamp())
    return repr(value) if isinstance(value, float) else str(int(value))


def _families(site: Site) -> Iterator[Family]:
    yield Family(
        "msmq_newest_evidence_timestamp_seconds",
        "gauge",
        "Time of the newest packet or snapshot that was read.",
        [({}, site.as_of)],
    )
    yield Family(
        "msmq_published_timestamp_seconds", "gauge", "When these numbers were written.", [({}, site.published_at)]
    )
    yield from _queues(site)
    yield from _transfers(site)
    yield _counted(
        site,
        "attempts",
        ("queue", "server_address", "outcome"),
        "msmq_receive_attempts_total",
        "Remote receives and peeks seen, by how they ended.",
    )
    yield _counted(
        site,
        "sequences",
        ("queue", "loss_risk"),
        "msmq_messages_at_risk",
        "Messages read remotely that are at risk of loss, by the kind of risk.",
        only="loss_risk",
        kind="gauge",
    )
    yield _counted(
        site,
        "calls",
        ("interface_name", "method", "server_address", "result"),
        "msmq_rpc_calls_total",
        "RPC calls seen, by their result.",
    )
    yield _counted(
        site,
        "findings",
        ("rule_id", "severity", "subject"),
        "msmq_findings_total",
        "Rules of the specifications that were broken.",
    )
    yield _counted(
        site,
        "coverage",
        ("layer", "measure", "server_address"),
        "msmq_coverage_total",
        "What was seen, and what was not, by layer and measure.",
        value="value",
    )
    holding = [row for row in _rows(site, "alerts") if row["until"] is None]
    counts = Counter((row["condition"], row["severity"], row["queue"], row["queue_manager"]) for row in holding)
    names = ("condition", "severity", "queue", "queue_manager")
    alerts = [
        (_labels(dict(zip(names, key, strict=True)), names), number) for key, number in sorted(counts.items(), key=str)
    ]
    yield Family("msmq_alerts", "gauge", "Alerts that hold.", alerts)


def _queues(site: Site) -> Iterator[Family]:
    rows = [row | {"state": state_now(row, site.as_of)} for row in _rows(site, "queues")]
    gauges = {
        "message_count": ("msmq_queue_messages", "Messages in the queue, as last reported."),
        "bytes": ("msmq_queue_bytes", "Bytes of the messages in the queue, as last reported."),
        "journal_count": ("msmq_queue_journal_messages", "Messages in the queue's journal, as last reported."),
        "journal_bytes": ("msmq_queue_journal_bytes", "Bytes in the queue's journal, as last reported."),
        "paused": ("msmq_queue_paused", "1 when the queue is on hold, 0 when not."),
        "valid_from": ("msmq_queue_told_timestamp_seconds", "When the state was reported that the other metrics show."),
    }
    for column, (name, text) in gauges.items():
        # What no longer holds is no value of now; only its time is told.
        known = [row for row in rows if column == "valid_from" or row["state"] != UNKNOWN]
        yield Family(name, "gauge", text, [(_labels(row, _QUEUE), row[column]) for row in known])
    states = [(_labels(row, (*_QUEUE, "state")), 1) for row in rows]
    yield Family(
        "msmq_queue_state", "gauge", "1 for the state that the queue is in; UNKNOWN when nothing tells it now.", states
    )


def _transfers(site: Site) -> Iterator[Family]:
    rows = list(_rows(site, "transfers"))
    gauges = {
        "unacked_count": ("msmq_transfer_unacknowledged", "Messages sent and not acknowledged in order."),
        "unread_count": ("msmq_transfer_unread", "Messages acknowledged in order and not yet as received."),
        "resend_count": ("msmq_transfer_resends", "Times that the last message was sent, or its place on the ladder."),
        "ladder_step": ("msmq_transfer_ladder_step", "Step of the resend ladder, from 1."),
        "next_resend_at": ("msmq_transfer_next_resend_timestamp_seconds", "When the next resend is due."),
        "in_flight_s": ("msmq_transfer_in_flight_seconds", "How long the oldest number has not been acknowledged."),
        "stalled_since": ("msmq_transfer_stalled_timestamp_seconds", "Since when the transfer stands still."),
        "observed_at": ("msmq_transfer_observed_timestamp_seconds", "When this was observed."),
    }
    names = (*_QUEUE, "source")
    for column, (name, text) in gauges.items():
        yield Family(name, "gauge", text, [(_labels(row, names), row[column]) for row in rows])
    conditions = [(_labels(row, (*names, "condition")), 1) for row in rows if row["condition"] is not None]
    yield Family("msmq_transfer_condition", "gauge", "1 for the condition that the transfer is in.", conditions)


def _counted(
    site: Site, name: str, columns: tuple[str, ...], metric: str, text: str, *, only: str | None = None,
    value: str | None = None, kind: str = "counter",
) -> Family:  # fmt: skip
    """Sums over all rows of a dataset by the values of columns; ``only``: of rows that have a value there."""
    totals: Counter[tuple[str | None, ...]] = Counter()
    for row in _rows(site, name, summed=True):
        if only is None or row[only] is not None:
            totals[tuple(row[column] for column in columns)] += row[value] if value else row.get("n", 1)
    samples = [
        (_labels(dict(zip(columns, key, strict=True)), columns), number)
        for key, number in sorted(totals.items(), key=lambda item: str(item[0]))
    ]
    return Family(metric, kind, text, samples)


def _rows(site: Site, name: str, *, summed: bool = False) -> list[dict[str, Any]]:
    data: Data | None = site.data.get(name)
    if data is None or data.rows is None:
        return []
    table = data.summed if summed and data.summed is not None else data.rows
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _labels(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    """The labels of a row; what is not known is the empty text, which Prometheus takes for no label."""
    return {name: "" if row[name] is None else str(row[name]) for name in names}
