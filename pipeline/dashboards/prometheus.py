"""Renders dashboard data as metrics in Prometheus text format 0.0.4, for the textfile collector or a scrape.

All metrics are gauges: counts can fall, because rows change (an attempt ``in_flight`` becomes ``acked``) and old rows
are removed. Samples have no timestamps, which the textfile collector rejects: the time of a queue's state is the metric
``msmq_queue_last_report_timestamp_seconds``. An unknown value has no sample; it is never 0.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, NamedTuple

from pipeline.dashboards.dashboard_data import DashboardData, DatasetRows, current_state
from pipeline.queues.history import STATE_UNKNOWN
from pipeline.text import cut_text
from udfs.rows import RowDict

_MAX_LABEL_CHARS: Final = 200
_QUEUE_LABELS: Final = ("queue", "queue_manager", "queue_format_name")
_QUALITY_LABELS: Final = ("table", "suite", "expectation", "severity")
_HOP_LABELS: Final = ("sender_queue_manager", "receiver_queue_manager", "sender_address", "receiver_address")
_SEQUENCE_LABELS: Final = ("queue", *_HOP_LABELS)
_SESSION_LABELS: Final = ("initiator_queue_manager", "acceptor_queue_manager", "client_address", "server_address")
_QUANTILES: Final = (0.5, 0.95, 0.99)
_COVERAGE_LABELS: Final = ("layer", "measure", "server_address")


class MetricFamily(NamedTuple):
    """One metric with its samples as (labels, value). Samples whose value is None are left out."""

    name: str
    help: str
    samples: Iterable[tuple[Mapping[str, str], float | int | datetime | bool | None]]


def render_metrics(dashboard: DashboardData) -> str:
    """Return all metrics of a dashboard as text."""
    return "".join(_render_family(family) for family in _metric_families(dashboard))


def _render_family(family: MetricFamily) -> str:
    lines = [f"# HELP {family.name} {_escape(family.help)}\n", f"# TYPE {family.name} gauge\n"]
    for labels, value in family.samples:
        number = _format_value(value)
        if number is not None:
            label_text = ",".join(f'{name}="{_escape(text, quote=True)}"' for name, text in labels.items())
            lines.append(f"{family.name}{{{label_text}}} {number}\n" if label_text else f"{family.name} {number}\n")
    return "".join(lines)


def _escape(text: str, *, quote: bool = False) -> str:
    """Return a text with backslash and line feed escaped; with ``quote``, as in label values, quotation marks too."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quote else escaped


def _format_value(value: float | datetime | bool | None) -> str | None:  # noqa: FBT001
    """Return a sample value as text, times in seconds since the epoch; None for null and NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, datetime):
        return repr(value.astimezone(UTC).timestamp())
    return repr(value) if isinstance(value, float) else str(int(value))


def _metric_families(dashboard: DashboardData) -> Iterator[MetricFamily]:
    yield MetricFamily(
        "msmq_newest_evidence_timestamp_seconds",
        "Time of the newest packet or snapshot in the lake.",
        [({}, dashboard.as_of)],
    )
    yield MetricFamily(
        "msmq_source_newest_evidence_timestamp_seconds",
        "Time of the newest packet of a folder of captures, or of the newest snapshot of a collected queue manager.",
        [({"kind": kind, "source": _cut(name)}, at) for (kind, name), at in dashboard.newest_by_source.items()],
    )
    yield MetricFamily(
        "msmq_published_timestamp_seconds", "Time when these metrics were written.", [({}, dashboard.published_at)]
    )
    yield from _queue_families(dashboard)
    yield from _transfer_families(dashboard)
    yield from _message_transfer_families(dashboard)
    yield from _sequence_families(dashboard)
    yield from _session_families(dashboard)
    yield _sum_family(
        dashboard,
        "attempts",
        ("queue", "server_address", "outcome"),
        "msmq_receive_attempts",
        "Captured remote receives and peeks, by outcome.",
    )
    yield _sum_family(
        dashboard,
        "sequences",
        ("queue", "loss_risk"),
        "msmq_messages_at_risk",
        "Messages read remotely that may be lost or duplicated, by kind of risk.",
        where=lambda row: row["loss_risk"] is not None,
    )
    yield _sum_family(
        dashboard,
        "calls",
        ("interface_name", "method", "server_address", "result"),
        "msmq_rpc_calls",
        "Captured RPC calls, by result.",
    )
    yield _sum_family(
        dashboard, "findings", ("rule_id", "severity", "subject"), "msmq_findings", "Violations of specification rules."
    )
    yield _sum_family(
        dashboard,
        "coverage",
        _COVERAGE_LABELS,
        "msmq_coverage_bytes",
        "Bytes captured and missing, by layer and measure of gold.coverage.",
        value=itemgetter("value"),
        where=_counts_bytes,
    )
    yield _sum_family(
        dashboard,
        "coverage",
        _COVERAGE_LABELS,
        "msmq_coverage_items",
        "Packets, connections, calls, messages and snapshots captured and missing, by layer and measure of "
        "gold.coverage.",
        value=itemgetter("value"),
        where=lambda row: not _counts_bytes(row),
    )
    yield MetricFamily(
        "msmq_quality_expectation_met",
        "1 if an expectation of the tables held when it was last checked, else 0.",
        [(_labels(row, _QUALITY_LABELS), row["success"]) for row in _dataset_rows(dashboard, "quality")],
    )
    yield MetricFamily(
        "msmq_quality_unexpected_rows",
        "Rows that were not as expected when an expectation was last checked.",
        [(_labels(row, _QUALITY_LABELS), row["unexpected"]) for row in _dataset_rows(dashboard, "quality")],
    )
    yield _sum_family(
        dashboard,
        "alerts",
        ("condition", "severity", "queue", "queue_manager"),
        "msmq_alerts",
        "Active alerts.",
        where=lambda row: row["until"] is None,
    )


def _counts_bytes(row: RowDict) -> bool:
    """Tell whether a measure of gold.coverage is in bytes."""
    measure: str = row["measure"]
    return measure.startswith("bytes") or (row["layer"], measure) == ("transport", "quarantined")


def _queue_families(dashboard: DashboardData) -> Iterator[MetricFamily]:
    rows = [row | {"state": current_state(row, dashboard.as_of)} for row in _dataset_rows(dashboard, "queues")]
    gauges = {
        "message_count": ("msmq_queue_messages", "Messages in the queue, as last reported."),
        "bytes": ("msmq_queue_bytes", "Bytes of the messages in the queue, as last reported."),
        "journal_count": ("msmq_queue_journal_messages", "Messages in the queue's journal, as last reported."),
        "journal_bytes": ("msmq_queue_journal_bytes", "Bytes in the queue's journal, as last reported."),
        "paused": ("msmq_queue_paused", "1 if the queue is on hold, else 0, as last reported."),
        "reported_at": ("msmq_queue_last_report_timestamp_seconds", "Time of the last report of the queue."),
    }
    yield from _gauge_families(rows, gauges)
    unknown = [row for row in rows if row["state"] == STATE_UNKNOWN]
    yield MetricFamily(
        "msmq_queue_unknown_since_timestamp_seconds",
        "Time since when the state of the queue is unknown: its last report is no longer valid.",
        [(_labels(row, _QUEUE_LABELS), row["known_until"]) for row in unknown],
    )
    yield MetricFamily(
        "msmq_queue_state",
        "1 for the current state of the queue; UNKNOWN if the last report is no longer valid.",
        [(_labels(row, (*_QUEUE_LABELS, "state")), 1) for row in rows],
    )
    yield _source_family("msmq_queue_source", "1 for each source of what is known of the queue.", rows)


def _transfer_families(dashboard: DashboardData) -> Iterator[MetricFamily]:
    rows = _dataset_rows(dashboard, "transfers")
    gauges = {
        "unacked_count": ("msmq_transfer_unacknowledged_messages", "Messages sent and not acknowledged in order."),
        "unread_count": ("msmq_transfer_unread_messages", "Messages acknowledged in order and not yet as received."),
        "resend_count": (
            "msmq_transfer_resends",
            "Resend count as last reported: sends of the last message, or its place on the ladder.",
        ),
        "ladder_step": ("msmq_transfer_ladder_step", "Step of the resend ladder, from 1."),
        "next_resend_at": ("msmq_transfer_next_resend_timestamp_seconds", "Time when the next resend is due."),
        "in_flight_s": ("msmq_transfer_in_flight_seconds", "Time for which the oldest number has been unacknowledged."),
        "stalled_since": ("msmq_transfer_stalled_since_timestamp_seconds", "Time since when the transfer has stalled."),
        "observed_at": ("msmq_transfer_last_report_timestamp_seconds", "Time of the last report of the transfer."),
    }
    yield from _gauge_families(rows, gauges)
    conditions = [(_labels(row, (*_QUEUE_LABELS, "condition")), 1) for row in rows if row["condition"] is not None]
    yield MetricFamily("msmq_transfer_condition", "1 for the current condition of the transfer.", conditions)
    yield _source_family("msmq_transfer_source", "1 for each source that reported the transfer.", rows)


def _message_transfer_families(dashboard: DashboardData) -> Iterator[MetricFamily]:
    """Yield metrics of messages on TCP 1801, by hop; of messages by kind and outcome too."""
    sums = partial(_sum_family, dashboard, "message_transfers")
    yield sums(
        (*_HOP_LABELS, "message_kind", "outcome"),
        "msmq_message_transfers",
        "Messages captured on their way between queue managers (TCP 1801), by what became of them.",
    )
    yield sums(
        _HOP_LABELS,
        "msmq_message_transfer_bytes",
        "Bytes of the first sending of each of these messages.",
        value=itemgetter("packet_bytes"),
    )
    yield sums(
        _HOP_LABELS,
        "msmq_message_transfer_resends",
        "Sendings of these messages after the first one.",
        value=lambda row: row["sendings"] - row.get("n", 1),
    )
    yield sums(
        _HOP_LABELS,
        "msmq_message_transfer_resent_bytes",
        "Bytes of these sendings.",
        value=itemgetter("resent_bytes"),
    )
    yield MetricFamily(
        "msmq_message_transfer_latency_seconds",
        "Time from the first sending of a message to its session ack or order ack, or on the wire, by quantile.",
        _latency_samples(_dataset_rows(dashboard, "transfer_latencies", summary=True)),
    )


def _latency_samples(rows: Iterable[RowDict]) -> Iterator[tuple[dict[str, str], float]]:
    """Yield the quantiles of each hop and stage: the smallest latency that no smaller share of the messages exceeds."""
    by_stage: dict[tuple[str | None, ...], Counter[float]] = defaultdict(Counter)
    labels = (*_HOP_LABELS, "stage")
    for row in rows:
        by_stage[tuple(row[name] for name in labels)][row["latency_ms"]] += row.get("n", 1)
    for key, counts in sorted(by_stage.items(), key=lambda item: str(item[0])):
        latencies = sorted(counts)
        places = list(accumulate(counts[each] for each in latencies))
        for quantile in _QUANTILES:
            latency_ms = latencies[bisect_left(places, quantile * places[-1])]
            stage = _labels(dict(zip(labels, key, strict=True)), labels)
            yield stage | {"quantile": str(quantile)}, latency_ms / 1000


def _sequence_families(dashboard: DashboardData) -> Iterator[MetricFamily]:
    """Yield metrics of exactly-once sequences on TCP 1801, by queue and hop.

    A sender begins a new sequence whenever its queue has emptied, so identifiers of sequences are no labels.
    """
    sums = partial(_sum_family, dashboard, "transfer_sequences")
    yield sums(
        (*_SEQUENCE_LABELS, "condition"), "msmq_transfer_sequences", "Sequences captured on TCP 1801, by condition."
    )
    for column, name, text in (
        ("waiting", "waiting_messages", "Messages sent on TCP 1801 that no captured order ack acknowledges."),
        ("resends", "resends", "Sendings of a number that was sent before."),
        ("stall_count", "stalls", "Waits for an order ack that lasted transfers.stall_after or longer."),
    ):
        yield sums(_SEQUENCE_LABELS, f"msmq_transfer_sequence_{name}", text, value=itemgetter(column))
    stalled: dict[tuple[str | None, ...], datetime] = {}
    for row in _dataset_rows(dashboard, "transfer_sequences", summary=True):
        key, since = tuple(row[name] for name in _SEQUENCE_LABELS), row["stalled_since"]
        if since is not None:
            stalled[key] = min(since, stalled.get(key, since))
    yield MetricFamily(
        "msmq_transfer_sequence_stalled_since_timestamp_seconds",
        "Time since when the oldest stall that has not ended goes on.",
        [
            (_labels(dict(zip(_SEQUENCE_LABELS, key, strict=True)), _SEQUENCE_LABELS), since)
            for key, since in sorted(stalled.items(), key=lambda item: str(item[0]))
        ],
    )


def _session_families(dashboard: DashboardData) -> Iterator[MetricFamily]:
    """Yield metrics of connections on TCP 1801, by the machines at both ends."""
    sums = partial(_sum_family, dashboard, "sessions")
    yield sums(
        (*_SESSION_LABELS, "session_outcome", "not_established", "session_end"),
        "msmq_sessions",
        "Sessions captured on TCP 1801, by outcome, why they were not established and how they ended.",
    )
    yield sums(
        _SESSION_LABELS,
        "msmq_session_window_full_seconds",
        "Time for which senders waited because as many packets were unacknowledged as the window allows.",
        value=_window_full_s,
    )


def _window_full_s(row: RowDict) -> float:
    return ((row["client_window_full_ms"] or 0) + (row["server_window_full_ms"] or 0)) / 1000


def _gauge_families(rows: Iterable[RowDict], gauges: Mapping[str, tuple[str, str]]) -> Iterator[MetricFamily]:
    """Yield a metric for each column in ``gauges`` (name, help), with a sample for each queue or transfer."""
    for column, (name, text) in gauges.items():
        yield MetricFamily(name, text, [(_labels(row, _QUEUE_LABELS), row[column]) for row in rows])


def _source_family(name: str, text: str, rows: Iterable[RowDict]) -> MetricFamily:
    """Return a metric that names sources; they are no labels of values, so that sums count each thing once."""
    of_rows = ((row, _cut(each)) for row in rows for each in (row["sources"] or "").split(", ") if each)
    return MetricFamily(name, text, [(_labels(row, _QUEUE_LABELS) | {"source": each}, 1) for row, each in of_rows])


def _sum_family(
    dashboard: DashboardData, dataset: str, labels: tuple[str, ...], metric: str, help_text: str, *,
    value: Callable[[RowDict], float | None] | None = None, where: Callable[[RowDict], bool] | None = None,
) -> MetricFamily:  # fmt: skip
    """Return a metric that sums a value, or counts rows, by label columns, over all rows that pass a filter."""
    totals: dict[tuple[str | None, ...], float] = defaultdict(int)
    for row in _dataset_rows(dashboard, dataset, summary=True):
        if where is None or where(row):
            totals[tuple(row[column] for column in labels)] += (value(row) or 0) if value else row.get("n", 1)
    samples = [
        (_labels(dict(zip(labels, key, strict=True)), labels), number)
        for key, number in sorted(totals.items(), key=lambda item: str(item[0]))
    ]
    return MetricFamily(metric, help_text, samples)


def _dataset_rows(dashboard: DashboardData, name: str, *, summary: bool = False) -> list[RowDict]:
    """Return the rows of a dataset, with ``summary`` its aggregates if it has some; empty if it was not computed."""
    data: DatasetRows | None = dashboard.datasets.get(name)
    if data is None or data.rows is None:
        return []
    table = data.summary if summary and data.summary is not None else data.rows
    rows: list[RowDict] = table.to_pylist()
    return rows


def _labels(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    """Return the labels of a row. Null is the empty text, which Prometheus treats as no label."""
    return {name: "" if row[name] is None else _cut(str(row[name])) for name in names}


def _cut(text: str) -> str:
    return cut_text(text, _MAX_LABEL_CHARS, distinct=True)
