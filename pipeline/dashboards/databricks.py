"""Dashboard definition for Databricks AI/BI (.lvdash.json) over the tables of a lake."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol

from pipeline.dashboards.read_datasets import fill_table_names
from pipeline.queues.last_reports import LAST_QUEUE_REPORTS_SQL
from pipeline.reports.views.catalog import VIEWS_BY_NAME, catalog_sql
from pipeline.transfers.hops.hop_sql import hop_rows_sql
from pipeline.transfers.sequences.sequence_progress import STALLED_SINCE_SQL, ProgressEvidence, with_progress
from schemas import catalog
from schemas.table import Table
from udfs.call_results import response_ms_sql

_GRID_COLUMNS: Final = 6
_WIDGET_VERSIONS: Final = {"counter": 2, "table": 2, "filter-multi-select": 2, "bar": 3, "line": 3, "area": 3}


# A queue manager, else the address where no handshake named it.
_SENDER: Final = "coalesce(sender_queue_manager, sender_address)"
_RECEIVER: Final = "coalesce(receiver_queue_manager, receiver_address)"
_OF_HOP: Final = (
    "sender_queue_manager, receiver_queue_manager, sender_address, receiver_address, packet_bytes, first_sent_at"
)
# Not the time until a quota: quotas are settings, which the dashboard does not have.
_TREND: Final = "trend, trend_days, trend_bytes_per_day, trend_low, trend_high"


class TableNames(Protocol):
    """Gives the SQL names of a lake's tables."""

    def sql_name(self, table: Table) -> str:
        """Return the quoted SQL name of a table."""
        ...


class DashboardDataset(NamedTuple):
    """A dataset of the Databricks dashboard; in its SQL ``{name}`` stands for a table or a view of questions."""

    name: str
    title: str
    sql: str


DASHBOARD_DATASETS: Final = (
    DashboardDataset(
        "queues",
        "Queues, last report",
        f"""SELECT queue, queue_manager, queue_format_name, state, known_until, message_count AS messages, bytes,
  journal_count AS journal, reported_at, sources FROM ({LAST_QUEUE_REPORTS_SQL})""",
    ),
    DashboardDataset(
        "history",
        "Queues over time",
        """SELECT queue, queue_manager, queue_format_name, state, valid_from, message_count AS messages, bytes,
  journal_count AS journal, (unix_micros(valid_to) - unix_micros(valid_from)) / 1000000D AS seconds
FROM {queue_history}""",
    ),
    DashboardDataset(
        "pairs",
        "Messages between queue managers",
        f"""SELECT {_SENDER} AS sender, {_RECEIVER} AS receiver, message_kind, outcome,
  date_trunc('HOUR', first_sent_at) AS hour, count(*) AS messages, sum(packet_bytes) AS bytes,
  sum(sendings) - count(*) AS resends, sum(resent_bytes) AS resent_bytes
FROM {hop_rows_sql("{message_transfers}", f"{_OF_HOP}, message_kind, outcome, sendings, resent_bytes")} GROUP BY ALL""",
    ),
    DashboardDataset(
        "latencies",
        "Latencies between queue managers",
        f"""SELECT {_SENDER} AS sender, {_RECEIVER} AS receiver,
  CASE WHEN packet_bytes < 4096 THEN 'below 4 KiB' WHEN packet_bytes < 65536 THEN 'below 64 KiB'
       WHEN packet_bytes < 1048576 THEN 'below 1 MiB'
       WHEN packet_bytes >= 1048576 THEN '1 MiB and more' END AS size, count(*) AS messages,
  percentile_approx(transmit_ms, 0.5) AS transmit_p50_ms, percentile_approx(transmit_ms, 0.95) AS transmit_p95_ms,
  percentile_approx(session_ack_ms, 0.5) AS session_ack_p50_ms,
  percentile_approx(session_ack_ms, 0.95) AS session_ack_p95_ms,
  percentile_approx(order_ack_ms, 0.5) AS order_ack_p50_ms,
  percentile_approx(order_ack_ms, 0.95) AS order_ack_p95_ms
FROM {hop_rows_sql("{message_transfers}", f"{_OF_HOP}, transmit_ms, session_ack_ms, order_ack_ms")} GROUP BY ALL""",
    ),
    DashboardDataset(
        "transfer_sequences",
        "Sequences on TCP 1801",
        f"""SELECT destination_queue, {_SENDER} AS sender, {_RECEIVER} AS receiver, condition_now AS condition, waiting,
  first_waiting_number, acknowledged_number, messages, resends, missing_numbers, out_of_order, refusals,
  longest_stall_s, {STALLED_SINCE_SQL} AS stalled_since, first_sent_at, last_sent_at
FROM {with_progress("{transfer_sequences}", ProgressEvidence())} AS sequences""",
    ),
    DashboardDataset(
        "sessions",
        "Sessions on TCP 1801",
        """SELECT coalesce(initiator_queue_manager, client_address) AS initiator,
  coalesce(acceptor_queue_manager, server_address) AS acceptor,
  date_trunc('HOUR', first_packet_at) AS hour, first_packet_at, last_packet_at, outcome,
  not_established, CASE WHEN ended IS NOT NULL THEN ended WHEN outcome = 'open' THEN 'still open' ELSE 'not open' END
    AS ended, client_messages + server_messages AS messages,
  client_bytes + server_bytes AS bytes, client_window_full_ms + server_window_full_ms AS window_full_ms
FROM {sessions}""",
    ),
    DashboardDataset(
        "eod_transfers",
        "Exactly-once transfers",
        """SELECT queue, queue_manager, queue_format_name, source, observed_at, condition, unacked_count, unread_count,
  first_unacked_number, next_number, resend_count, ladder_step, next_resend_at, in_flight_s, stalled_since
FROM {eod_transfers}""",
    ),
    DashboardDataset(
        "attempts",
        "Receives and peeks",
        """SELECT coalesce(queue, concat(inferred_queue, ' (inferred)'), 'unknown') AS queue, server_address,
  client_address, date_trunc('HOUR', started_at) AS hour, outcome, count(*) AS attempts,
  max(wait_ms) AS longest_wait_ms, max(hold_ms) AS longest_hold_ms FROM {receive_attempts} GROUP BY ALL""",
    ),
    DashboardDataset(
        "risks",
        "Messages at risk",
        """SELECT coalesce(queue, inferred_queue, 'unknown') AS queue, lookup_id, fate, loss_risk, redelivered,
  attempts, first_attempt_at, settled_at FROM {ack_sequences} WHERE loss_risk IS NOT NULL""",
    ),
    DashboardDataset(
        "calls",
        "Calls",
        f"""SELECT interface_name, opnum, server_address, outcome, date_trunc('HOUR', request_at) AS hour,
  count(*) AS calls, percentile_approx(ms, 0.95) AS p95_ms, max(ms) AS longest_ms
FROM (SELECT *, {response_ms_sql("request_at", "response_at", "clocks")} AS ms FROM {{rpc_calls}}) GROUP BY ALL""",
    ),
    DashboardDataset(
        "comqc",
        "COM+ calls",
        """SELECT target_clsid, interface_id, opnum, dispatch_id, date_trunc('HOUR', seen_at) AS hour, count(*) AS calls
FROM {comqc_calls} GROUP BY ALL""",
    ),
    DashboardDataset(
        "findings",
        "Findings",
        "SELECT rule_id, source, severity, subject, observed_at, message, expected, actual FROM {findings}",
    ),
    DashboardDataset(
        "alerts",
        "Alerts",
        """SELECT condition, severity, subject, queue, queue_manager, since, until, message, suggestion
FROM {alerts}""",
    ),
    DashboardDataset(
        "quality",
        "Quality",
        """SELECT run_at, `table`, suite, expectation, description, limits, severity, success, evaluated, unexpected,
       observed, failed_keys
FROM (SELECT *, rank() OVER (PARTITION BY suite ORDER BY run_at DESC, run_id DESC) AS place FROM {quality_results})
WHERE place = 1""",
    ),
    DashboardDataset("coverage", "Coverage", "SELECT hour, server_address, layer, measure, value FROM {coverage}"),
    DashboardDataset(
        "estate_queues",
        "Queues of the estate",
        "SELECT * FROM {estate_queues}",
    ),
    DashboardDataset("estate_flows", "Who sends to whom", "SELECT * FROM {estate_flows}"),
    DashboardDataset("estate_machines", "Machines", "SELECT * FROM {estate_machines}"),
    DashboardDataset(
        "estate_hours",
        "Busy hours",
        """SELECT queue, date_format(start_at, 'EEEE') AS weekday, hour(start_at) AS hour_of_day,
  sum(sendings) AS sendings FROM {estate_hours} GROUP BY ALL""",
    ),
    DashboardDataset(
        "trends",
        "Growth",
        f"""SELECT 'messages' AS what, queue_manager, queue, last_bytes AS bytes, {_TREND} FROM {{depth_growth}}
UNION ALL SELECT 'journal', queue_manager, queue, last_bytes, {_TREND} FROM {{journal_growth}} WHERE trend_days > 0
UNION ALL SELECT 'all queues', queue_manager, NULL, bytes, {_TREND} FROM {{machines}}""",
    ),
    DashboardDataset(
        "runs",
        "Runs",
        """SELECT began_at, command, coalesce(CAST(exit_code AS string), 'killed') AS ended, seconds, failures,
  captures_read, snapshots_read, packets, to_json(rows_written) AS rows_written, engine, executions, restarts,
  program_version FROM {runs}""",
    ),
)


class Widget(NamedTuple):
    """A widget. ``columns`` are those of x, y and color of a chart, of a counter's value, or of a table in order."""

    kind: str
    dataset: str
    title: str
    columns: tuple[str, ...]
    width: int = 3
    height: int = 6


DASHBOARD_PAGES: Final[tuple[tuple[str, tuple[Widget, ...]], ...]] = (
    (
        "Overview",
        (
            Widget("counter", "alerts", "Alerts", ("count(`condition`)",), 1, 3),
            Widget("counter", "risks", "Messages at risk", ("count(`loss_risk`)",), 1, 3),
            Widget("counter", "findings", "Findings", ("count(`rule_id`)",), 1, 3),
            Widget("counter", "queues", "Messages in queues", ("sum(`messages`)",), 1, 3),
            Widget("counter", "attempts", "Receives and peeks", ("sum(`attempts`)",), 1, 3),
            Widget("counter", "calls", "Calls", ("sum(`calls`)",), 1, 3),
            Widget(
                "table",
                "alerts",
                "Alerts",
                ("severity", "condition", "subject", "since", "until", "message", "suggestion"),
                6,
                6,
            ),
            Widget("bar", "coverage", "Coverage", ("measure", "sum(`value`)", "layer"), 6, 7),
        ),
    ),
    (
        "Queues",
        (
            Widget("filter-multi-select", "history", "Queue", ("queue",), 3, 1),
            Widget("filter-multi-select", "history", "Machine", ("queue_manager",), 3, 1),
            Widget(
                "table",
                "queues",
                "Last report",
                (
                    "queue",
                    "queue_manager",
                    "queue_format_name",
                    "state",
                    "known_until",
                    "messages",
                    "bytes",
                    "journal",
                    "reported_at",
                    "sources",
                ),
                6,
                8,
            ),
            Widget("line", "history", "Messages", ("valid_from", "max(`messages`)", "queue"), 3, 7),
            Widget("line", "history", "Messages in journals", ("valid_from", "max(`journal`)", "queue"), 3, 7),
            Widget("bar", "history", "Seconds in each state", ("queue", "sum(`seconds`)", "state"), 6, 7),
        ),
    ),
    (
        "Transfers",
        (
            Widget("filter-multi-select", "pairs", "Sender", ("sender",), 3, 1),
            Widget("filter-multi-select", "pairs", "Receiver", ("receiver",), 3, 1),
            Widget("bar", "pairs", "Messages by outcome", ("hour", "sum(`messages`)", "outcome"), 6, 6),
            Widget(
                "table",
                "pairs",
                "Who sends to whom",
                (
                    "hour",
                    "sender",
                    "receiver",
                    "message_kind",
                    "outcome",
                    "messages",
                    "bytes",
                    "resends",
                    "resent_bytes",
                ),
                6,
                7,
            ),
            Widget(
                "table",
                "latencies",
                "Latencies by size",
                (
                    "sender",
                    "receiver",
                    "size",
                    "messages",
                    "transmit_p50_ms",
                    "transmit_p95_ms",
                    "session_ack_p50_ms",
                    "session_ack_p95_ms",
                    "order_ack_p50_ms",
                    "order_ack_p95_ms",
                ),
                6,
                7,
            ),
            Widget(
                "bar", "transfer_sequences", "Waiting numbers", ("destination_queue", "sum(`waiting`)", "condition")
            ),
            Widget("bar", "sessions", "Sessions by end", ("hour", "count(`outcome`)", "ended")),
            Widget(
                "table",
                "transfer_sequences",
                "Sequences",
                (
                    "condition",
                    "destination_queue",
                    "sender",
                    "receiver",
                    "waiting",
                    "first_waiting_number",
                    "acknowledged_number",
                    "messages",
                    "resends",
                    "missing_numbers",
                    "out_of_order",
                    "refusals",
                    "longest_stall_s",
                    "stalled_since",
                    "first_sent_at",
                    "last_sent_at",
                ),
                6,
                8,
            ),
            Widget(
                "table",
                "sessions",
                "Sessions",
                (
                    "first_packet_at",
                    "initiator",
                    "acceptor",
                    "outcome",
                    "not_established",
                    "ended",
                    "messages",
                    "bytes",
                    "window_full_ms",
                    "last_packet_at",
                ),
                6,
                7,
            ),
        ),
    ),
    (
        "Exactly-once",
        (
            Widget(
                "line",
                "eod_transfers",
                "Unacknowledged messages",
                ("observed_at", "max(`unacked_count`)", "queue"),
                6,
                7,
            ),
            Widget(
                "table",
                "eod_transfers",
                "Observations",
                (
                    "observed_at",
                    "queue",
                    "queue_manager",
                    "queue_format_name",
                    "source",
                    "condition",
                    "unacked_count",
                    "first_unacked_number",
                    "next_number",
                    "resend_count",
                    "ladder_step",
                    "next_resend_at",
                    "stalled_since",
                ),
                6,
                9,
            ),
        ),
    ),
    (
        "Reads",
        (
            Widget("filter-multi-select", "attempts", "Queue", ("queue",), 3, 1),
            Widget("filter-multi-select", "attempts", "Server", ("server_address",), 3, 1),
            Widget("bar", "attempts", "Receives and peeks by outcome", ("hour", "sum(`attempts`)", "outcome"), 6, 7),
            Widget("bar", "attempts", "Longest hold, ms", ("queue", "max(`longest_hold_ms`)", "outcome"), 6, 7),
            Widget(
                "table",
                "risks",
                "Messages at risk",
                ("queue", "lookup_id", "fate", "loss_risk", "redelivered", "attempts", "first_attempt_at"),
                6,
                8,
            ),
        ),
    ),
    (
        "Calls",
        (
            Widget("bar", "calls", "Calls", ("hour", "sum(`calls`)", "outcome"), 6, 6),
            Widget(
                "table",
                "calls",
                "Response times",
                ("hour", "interface_name", "opnum", "server_address", "outcome", "calls", "p95_ms", "longest_ms"),
                6,
                9,
            ),
            Widget(
                "table",
                "comqc",
                "COM+ calls",
                ("hour", "target_clsid", "interface_id", "opnum", "dispatch_id", "calls"),
                6,
                7,
            ),
        ),
    ),
    (
        "Findings and quality",
        (
            Widget("bar", "findings", "Findings by rule", ("rule_id", "count(`subject`)", "severity"), 6, 6),
            Widget(
                "table",
                "findings",
                "Findings",
                ("severity", "rule_id", "source", "subject", "observed_at", "message", "expected", "actual"),
                6,
                8,
            ),
            Widget(
                "table",
                "quality",
                "Quality",
                (
                    "success",
                    "severity",
                    "table",
                    "description",
                    "limits",
                    "evaluated",
                    "unexpected",
                    "observed",
                    "run_at",
                ),
                6,
                8,
            ),
        ),
    ),
    (
        "Estate",
        (
            Widget("filter-multi-select", "estate_flows", "Sender", ("sender",), 3, 1),
            Widget("filter-multi-select", "estate_flows", "Receiver", ("receiver",), 3, 1),
            Widget("bar", "estate_flows", "Bytes by receiver", ("receiver", "sum(`bytes`)", "sender"), 6, 7),
            Widget(
                "table",
                "estate_flows",
                "Who sends to whom",
                ("sender", "receiver", "queue", "way", "messages", "sendings", "bytes", "first_at", "last_at"),
                6,
                7,
            ),
            Widget(
                "bar",
                "estate_hours",
                "Sendings by hour of the day",
                ("hour_of_day", "sum(`sendings`)", "weekday"),
                6,
                6,
            ),
            Widget(
                "table",
                "estate_queues",
                "Queues",
                (
                    "queue",
                    "holders",
                    "senders",
                    "readers",
                    "messages",
                    "mean_per_minute",
                    "p95_per_minute",
                    "peak_per_minute",
                    "peak_at",
                    "captured_minutes",
                    "body_p50_bytes",
                    "body_p99_bytes",
                    "largest_body_bytes",
                    "headers_known",
                    "express",
                    "recoverable",
                    "transactional",
                    "priorities",
                    "source_journal",
                    "dead_lettered",
                    "acks_asked",
                    "encrypted",
                    "frameworks",
                ),
                6,
                9,
            ),
            Widget(
                "table",
                "estate_machines",
                "Machines",
                (
                    "machine",
                    "roles",
                    "versions",
                    "queue_manager_ids",
                    "addresses",
                    "sent_messages",
                    "received_messages",
                    "queues_held",
                    "clock_ahead_s",
                ),
                6,
                7,
            ),
            Widget(
                "table",
                "trends",
                "Growth of daily maxima",
                (
                    "trend",
                    "queue_manager",
                    "queue",
                    "what",
                    "bytes",
                    "trend_bytes_per_day",
                    "trend_low",
                    "trend_high",
                    "trend_days",
                ),
                6,
                7,
            ),
        ),
    ),
    (
        "Runs",
        (
            Widget("line", "runs", "Seconds", ("began_at", "max(`seconds`)", "command"), 3, 6),
            Widget("bar", "runs", "Exit codes", ("began_at", "count(`command`)", "ended"), 3, 6),
            Widget(
                "table",
                "runs",
                "Runs",
                (
                    "began_at",
                    "command",
                    "ended",
                    "seconds",
                    "failures",
                    "captures_read",
                    "snapshots_read",
                    "packets",
                    "rows_written",
                    "executions",
                    "restarts",
                    "program_version",
                ),
                6,
                9,
            ),
        ),
    ),
)
_TIME_COLUMNS: Final = frozenset({"valid_from", "observed_at", "hour", "began_at"})


def dashboard_json(tables: TableNames) -> str:
    """Return the dashboard definition (.lvdash.json) as text, over the tables of a lake's catalog or folder.

    Tables that do not exist yet are included: the dashboard also serves later runs.
    """
    names = {str(table): tables.sql_name(table) for table in catalog.ALL_TABLES}
    names |= {f"view.{name}": f"({catalog_sql(name, tables.sql_name)})" for name in VIEWS_BY_NAME}
    datasets = [
        {
            "name": dataset.name,
            "displayName": dataset.title,
            "queryLines": fill_table_names(dataset.sql, names).splitlines(keepends=True),
        }
        for dataset in DASHBOARD_DATASETS
    ]
    pages = [
        {
            "name": title.lower().replace(" ", "_"),
            "displayName": title,
            "pageType": "PAGE_TYPE_CANVAS",
            "layout": _layout(title, widgets),
        }
        for title, widgets in DASHBOARD_PAGES
    ]
    return json.dumps({"datasets": datasets, "pages": pages}, indent=2) + "\n"


def _layout(page: str, widgets: Iterable[Widget]) -> list[dict[str, Any]]:
    """Return widgets with positions: from left to right, continued in the next row."""
    layout, x, y, row_height = [], 0, 0, 0
    for number, widget in enumerate(widgets):
        if x + widget.width > _GRID_COLUMNS:
            x, y, row_height = 0, y + row_height, 0
        position = {"x": x, "y": y, "width": widget.width, "height": widget.height}
        name = f"{page.lower().replace(' ', '_')}_{number}"
        layout.append({"widget": _widget_json(name, widget), "position": position})
        x, row_height = x + widget.width, max(row_height, widget.height)
    return layout


def _widget_json(name: str, widget: Widget) -> dict[str, Any]:
    fields = [_field(column) for column in widget.columns]
    query = {"datasetName": widget.dataset, "fields": fields, "disaggregated": widget.kind == "table"}
    spec = {
        "version": _WIDGET_VERSIONS[widget.kind],
        "widgetType": widget.kind,
        "encodings": _encodings(widget, [field["name"] for field in fields]),
        "frame": {"showTitle": True, "title": widget.title},
    }
    return {"name": name, "queries": [{"name": "main_query", "query": query}], "spec": spec}


def _field(column: str) -> dict[str, str]:
    """Return a column, or an aggregate of one, with the name that Databricks gives it: ``sum(value)``."""
    function, bracket, rest = column.partition("(")
    expression = function.upper() + bracket + rest if bracket else f"`{column}`"
    return {"name": column.replace("`", ""), "expression": expression}


def _encodings(widget: Widget, names: list[str]) -> dict[str, Any]:
    if widget.kind == "counter":
        return {"value": {"fieldName": names[0], "displayName": widget.title}}
    if widget.kind == "table":
        return {"columns": [{"fieldName": name, "displayName": name.replace("_", " ")} for name in names]}
    if widget.kind.startswith("filter"):
        return {"fields": [{"fieldName": names[0], "displayName": widget.title, "queryName": "main_query"}]}
    kinds = ("temporal" if widget.columns[0] in _TIME_COLUMNS else "categorical", "quantitative", "categorical")
    return {
        axis: {"fieldName": name, "scale": {"type": kind}, "displayName": name.replace("_", " ")}
        for axis, name, kind in zip(("x", "y", "color"), names, kinds, strict=False)
    }
