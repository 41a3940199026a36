"""The same for Databricks AI/BI: a dashboard definition (.lvdash.json) over the lake's gold and silver tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol

from pipeline.dashboards.read_site import filled
from schemas import catalog
from schemas.table import Table

_WIDTH: Final = 6  # columns of the grid
_VERSIONS: Final = {"counter": 2, "table": 2, "filter-multi-select": 2, "bar": 3, "line": 3, "area": 3}


class Named(Protocol):
    """What says by which names a lake's tables are asked."""

    def sql_name(self, table: Table) -> str:
        """Return the table as it stands in SQL, quoted."""
        ...


class Source(NamedTuple):
    """A dataset of the dashboard."""

    name: str
    title: str
    sql: str


SOURCES: Final = (
    Source(
        "queues",
        "Queues, as last told",
        """SELECT queue, queue_manager, max_by(state, valid_from) AS state,
  max_by(message_count, valid_from) AS messages,
  max_by(bytes, valid_from) AS bytes, max_by(journal_count, valid_from) AS journal, max(valid_from) AS told_at
FROM {queue_history} GROUP BY queue, queue_manager, queue_format_name""",
    ),
    Source(
        "history",
        "Queues over time",
        """SELECT queue, queue_manager, state, valid_from, message_count AS messages, bytes, journal_count AS journal,
  (unix_micros(valid_to) - unix_micros(valid_from)) / 1000000D AS seconds FROM {queue_history}""",
    ),
    Source(
        "transfers",
        "Exactly-once transfers",
        """SELECT queue, queue_manager, observed_at, condition, unacked_count, unread_count, first_unacked_number,
  next_number, resend_count, ladder_step, next_resend_at, in_flight_s, stalled_since FROM {eod_transfers}""",
    ),
    Source(
        "attempts",
        "Receives and peeks",
        """SELECT coalesce(queue, concat(inferred_queue, ' (inferred)'), 'not known') AS queue, server_address,
  client_address, date_trunc('HOUR', started_at) AS hour, outcome, count(*) AS attempts,
  max(wait_ms) AS longest_wait_ms, max(hold_ms) AS longest_hold_ms FROM {receive_attempts} GROUP BY ALL""",
    ),
    Source(
        "risks",
        "Messages at risk",
        """SELECT coalesce(queue, inferred_queue, 'not known') AS queue, lookup_id, fate, loss_risk, redelivered,
  attempts, first_attempt_at, settled_at FROM {ack_sequences} WHERE loss_risk IS NOT NULL""",
    ),
    Source(
        "calls",
        "Calls",
        """SELECT interface_name, opnum, server_address, outcome, date_trunc('HOUR', request_at) AS hour,
  count(*) AS calls, percentile_approx((unix_micros(response_at) - unix_micros(request_at)) / 1000D, 0.95) AS p95_ms,
  max((unix_micros(response_at) - unix_micros(request_at)) / 1000D) AS longest_ms FROM {rpc_calls} GROUP BY ALL""",
    ),
    Source(
        "comqc",
        "COM+ calls",
        """SELECT target_clsid, interface_id, opnum, dispatch_id, date_trunc('HOUR', seen_at) AS hour, count(*) AS calls
FROM {comqc_calls} GROUP BY ALL""",
    ),
    Source(
        "findings",
        "Findings",
        "SELECT rule_id, source, severity, subject, observed_at, message, expected, actual FROM {findings}",
    ),
    Source(
        "alerts",
        "Alerts",
        """SELECT condition, severity, subject, queue, queue_manager, since, until, message, suggestion
FROM {alerts}""",
    ),
    Source(
        "quality",
        "Quality",
        """SELECT run_at, `table`, suite, expectation, severity, success, evaluated, unexpected, observed
FROM (SELECT *, rank() OVER (PARTITION BY suite ORDER BY run_at DESC, run_id DESC) AS place FROM {quality_results})
WHERE place = 1""",
    ),
    Source("coverage", "Coverage", "SELECT hour, server_address, layer, measure, value FROM {coverage}"),
)


class Shown(NamedTuple):
    """A widget: its kind, dataset, title, and columns by place (x, y, color; value; of tables all in order)."""

    kind: str
    source: str
    title: str
    columns: tuple[str, ...]
    width: int = 3
    height: int = 6


PAGES: Final[tuple[tuple[str, tuple[Shown, ...]], ...]] = (
    (
        "Overview",
        (
            Shown("counter", "alerts", "Alerts", ("count(`condition`)",), 1, 3),
            Shown("counter", "risks", "Messages at risk", ("count(`loss_risk`)",), 1, 3),
            Shown("counter", "findings", "Findings", ("count(`rule_id`)",), 1, 3),
            Shown("counter", "queues", "Messages in queues", ("sum(`messages`)",), 1, 3),
            Shown("counter", "attempts", "Receives and peeks", ("sum(`attempts`)",), 1, 3),
            Shown("counter", "calls", "Calls", ("sum(`calls`)",), 1, 3),
            Shown(
                "table",
                "alerts",
                "Alerts",
                ("severity", "condition", "subject", "since", "until", "message", "suggestion"),
                6,
                6,
            ),
            Shown("bar", "coverage", "Seen and not seen", ("measure", "sum(`value`)", "layer"), 6, 7),
        ),
    ),
    (
        "Queues",
        (
            Shown("filter-multi-select", "history", "Queue", ("queue",), 3, 1),
            Shown("filter-multi-select", "history", "Machine", ("queue_manager",), 3, 1),
            Shown(
                "table",
                "queues",
                "As last told",
                ("queue", "queue_manager", "state", "messages", "bytes", "journal", "told_at"),
                6,
                8,
            ),
            Shown("line", "history", "Messages", ("valid_from", "max(`messages`)", "queue"), 3, 7),
            Shown("line", "history", "Messages in journals", ("valid_from", "max(`journal`)", "queue"), 3, 7),
            Shown("bar", "history", "Seconds in each state", ("queue", "sum(`seconds`)", "state"), 6, 7),
        ),
    ),
    (
        "Transfers",
        (
            Shown("line", "transfers", "Not acknowledged", ("observed_at", "max(`unacked_count`)", "queue"), 6, 7),
            Shown(
                "table",
                "transfers",
                "Observations",
                (
                    "observed_at",
                    "queue",
                    "queue_manager",
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
            Shown("filter-multi-select", "attempts", "Queue", ("queue",), 3, 1),
            Shown("filter-multi-select", "attempts", "Server", ("server_address",), 3, 1),
            Shown("bar", "attempts", "How receives and peeks ended", ("hour", "sum(`attempts`)", "outcome"), 6, 7),
            Shown("bar", "attempts", "Longest hold, ms", ("queue", "max(`longest_hold_ms`)", "outcome"), 6, 7),
            Shown(
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
            Shown("bar", "calls", "Calls", ("hour", "sum(`calls`)", "outcome"), 6, 6),
            Shown(
                "table",
                "calls",
                "Answer times",
                ("hour", "interface_name", "opnum", "server_address", "outcome", "calls", "p95_ms", "longest_ms"),
                6,
                9,
            ),
            Shown(
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
            Shown("bar", "findings", "Rules broken", ("rule_id", "count(`subject`)", "severity"), 6, 6),
            Shown(
                "table",
                "findings",
                "Findings",
                ("severity", "rule_id", "source", "subject", "observed_at", "message", "expected", "actual"),
                6,
                8,
            ),
            Shown(
                "table",
                "quality",
                "Quality",
                ("success", "severity", "table", "expectation", "evaluated", "unexpected", "observed", "run_at"),
                6,
                8,
            ),
        ),
    ),
)
_TIMES: Final = frozenset({"valid_from", "observed_at", "hour"})


def dashboard(lake: Named) -> str:
    """Return the definition over a lake's tables: those of its catalog, else of its folder.

    Tables that the lake does not have are named all the same: the dashboard is for what is to come as well.
    """
    names = {str(table): lake.sql_name(table) for table in catalog.EVERY}
    datasets = {
        source.name: {
            "name": source.name,
            "displayName": source.title,
            "queryLines": filled(source.sql, names).splitlines(keepends=True),
        }
        for source in SOURCES
    }
    pages = [
        {
            "name": title.lower().replace(" ", "_"),
            "displayName": title,
            "pageType": "PAGE_TYPE_CANVAS",
            "layout": _layout(title, shown),
        }
        for title, shown in PAGES
    ]
    return json.dumps({"datasets": list(datasets.values()), "pages": pages}, indent=2) + "\n"


def _layout(page: str, shown: Iterable[Shown]) -> list[dict[str, Any]]:
    """Widgets from left to right, and in the next row where they no longer fit."""
    made, x, y, tall = [], 0, 0, 0
    for number, each in enumerate(shown):
        if x + each.width > _WIDTH:
            x, y, tall = 0, y + tall, 0
        place = {"x": x, "y": y, "width": each.width, "height": each.height}
        made.append({"widget": _widget(f"{page.lower().replace(' ', '_')}_{number}", each), "position": place})
        x, tall = x + each.width, max(tall, each.height)
    return made


def _widget(name: str, each: Shown) -> dict[str, Any]:
    fields = [_field(column) for column in each.columns]
    query = {"datasetName": each.source, "fields": fields, "disaggregated": each.kind == "table"}
    spec = {
        "version": _VERSIONS[each.kind],
        "widgetType": each.kind,
        "encodings": _encodings(each, [field["name"] for field in fields]),
        "frame": {"showTitle": True, "title": each.title},
    }
    return {"name": name, "queries": [{"name": "main_query", "query": query}], "spec": spec}


def _field(column: str) -> dict[str, str]:
    """A column, or an aggregate of one, named as Databricks names it: ``sum(value)``."""
    function, bracket, rest = column.partition("(")
    expression = function.upper() + bracket + rest if bracket else f"`{column}`"
    return {"name": column.replace("`", ""), "expression": expression}


def _encodings(each: Shown, names: list[str]) -> dict[str, Any]:
    if each.kind == "counter":
        return {"value": {"fieldName": names[0], "displayName": each.title}}
    if each.kind == "table":
        columns = [{"fieldName": name, "displayName": name.replace("_", " ")} for name in names]
        return {"columns": columns}
    if each.kind.startswith("filter"):
        return {"fields": [{"fieldName": names[0], "displayName": each.title, "queryName": "main_query"}]}
    kinds = ("temporal" if each.columns[0] in _TIMES else "categorical", "quantitative", "categorical")
    made = {}
    for place, name, kind in zip(("x", "y", "color"), names, kinds, strict=False):
        made[place] = {"fieldName": name, "scale": {"type": kind}, "displayName": name.replace("_", " ")}
    return made
