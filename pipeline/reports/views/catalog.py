"""The 28 questions, and the views that answer them: queries of a lake, or views of a session or a catalog.

The SQL of a view names tables as ``layer.name``, and is valid for Spark and for DuckDB. In a session, tables are
temporary views too (``gold_queue_history``), so that tables that do not exist yet are empty. In a catalog, the views
select from the tables themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pipeline.bronze.event_time import NEWEST_EVENT_TIME_QUERY
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, QueryInput, sql_list
from pipeline.reports.views.acknowledgements import ACKNOWLEDGEMENT_VIEWS
from pipeline.reports.views.applications import APPLICATION_VIEWS
from pipeline.reports.views.calls import CALL_VIEWS, COVERAGE_COUNTS_SQL
from pipeline.reports.views.estate_queues import ESTATE_QUEUES
from pipeline.reports.views.estate_traffic import ESTATE_TRAFFIC_VIEWS
from pipeline.reports.views.evidence import EVIDENCE_SCOPE, EvidenceKind, SeenEvidence, Sight
from pipeline.reports.views.machines import MACHINE_VIEWS
from pipeline.reports.views.messages import MESSAGE_VIEWS
from pipeline.reports.views.names import Names, find_machines, find_queues, queue_names
from pipeline.reports.views.queues import QUEUE_VIEWS
from pipeline.reports.views.scope import EVERYTHING, Scope, ScopeColumns, timestamp_sql
from pipeline.reports.views.transfers import TRANSFER_VIEWS
from pipeline.reports.views.view import View
from pipeline.settings import HistoryConfig
from pipeline.silver.machines import names_in_gold
from schemas import catalog
from schemas.coverage import COVERAGE
from schemas.queue_history import QUEUE_HISTORY
from schemas.table import Table, literal, quoted


class Question(NamedTuple):
    """One of the 28 questions, with the evidence that can answer it.

    ``evidence`` names R (RPC captures), S (snapshots of queue managers) and T (captures of TCP 1801).
    """

    text: str
    evidence: str


QUESTIONS: Final = {
    1: Question("Which outgoing queues are not connected, since when, and why?", "S, part R"),
    2: Question("How long was each queue in each state?", "S"),
    3: Question("Depth and bytes over time, growth rate, time until a quota is full?", "S"),
    4: Question("Is a queue stuck: messages waiting and nobody reading for N minutes?", "S + R"),
    5: Question("How old is the oldest unread message?", "part R (peeked packets)"),
    6: Question("Per outgoing queue: not sent, sent but unacknowledged, acknowledged but unread?", "S"),
    7: Question(
        "Transfer stall: same first unacknowledged number, rising resend count; which step of the resend ladder, when "
        "is the next resend?",
        "S",
    ),
    8: Question("Which sequence numbers were never acknowledged?", "T, part S"),
    9: Question("Gap or disorder in a sequence at the receiver?", "T, part S"),
    10: Question("Was a message read twice (by applications)? delivered twice (on the wire)?", "R; T"),
    11: Question("Do sender and receiver disagree about the next number?", "S of both ends"),
    12: Question("Transfer latency per pair of machines and size?", "T"),
    13: Question("Share of retransmitted messages and bytes?", "T, part S"),
    14: Question(
        "Negative acknowledgements by class, sender and queue?", "T, part R (administration queues read remotely)"
    ),
    15: Question("Messages that asked for an acknowledgement and got none?", "T, part R"),
    16: Question("Dead letters by reason and age, and their growth?", "T, part R, S (counts)"),
    17: Question("Journal growth, days until full?", "S"),
    18: Question("Remote-read latency by server, queue and method, with waiting separated from slowness?", "R"),
    19: Question("Receives that were never ended, or whose end was refused after the message was handed out?", "R"),
    20: Question("Load and fairness by reader; how many receives wait at the same time on a server?", "R"),
    21: Question("Which calls fail with which HRESULT, and since when?", "R"),
    22: Question("Do two machines share one queue-manager identifier?", "R, S, T"),
    23: Question("Do the clocks of two machines differ, and by how much?", "part R, part T"),
    24: Question(
        "COM+ calls by interface and method; the path of a message through the retry queues to the dead queue; poison "
        "methods?",
        "part R, S, T",
    ),
    25: Question(
        "How much is not known: capture loss, one-sided conversations, encrypted stubs, missing snapshots, decode "
        "errors?",
        "all",
    ),
    26: Question("Which messages could applications not process, why, and are they still there?", "part R, T, part S"),
    27: Question("Who sends which type of message to whom, how often, how large?", "part R, T"),
    28: Question("What does the estate do, queue by queue and machine by machine?", "R, S, T"),
}
"""The questions of Message Queuing administrators, by number."""

VIEWS_BY_NAME: Final = {
    view.name: view
    for view in (
        *QUEUE_VIEWS, *MACHINE_VIEWS, *TRANSFER_VIEWS, *MESSAGE_VIEWS, *ACKNOWLEDGEMENT_VIEWS, *CALL_VIEWS,
        *APPLICATION_VIEWS, ESTATE_QUEUES, *ESTATE_TRAFFIC_VIEWS,
    )
}  # fmt: skip
"""All views by name."""

COVERAGE_VIEW: Final = "not_known"
_QUOTAS: Final = pa.schema([("queue", pa.string()), ("messages", pa.int64()), ("journal", pa.int64())])
_MACHINE_QUOTAS: Final = pa.schema([("queue_manager", pa.string()), ("bytes", pa.int64())])
_TABLE_NAME: Final = re.compile(r"\b(bronze|silver|gold)\.([a-z_]+)\b")
_SETTING: Final = re.compile(r"\bsetting\.([a-z_]+)\b")
_NO_COLUMNS: Final = ScopeColumns("", "")


def views_of_question(number: int) -> list[View]:
    """Return the views that answer the question of a number."""
    return [view for view in VIEWS_BY_NAME.values() if view.question_number == number]


@dataclass(frozen=True, slots=True)
class LakeViews:
    """Answers from the views over a lake, and creates them.

    ``as_of`` overrides "now", which is otherwise the newest packet or snapshot. Quotas are in bytes: default quotas,
    and by queue name the quotas of its messages and of its journal; likewise of queue managers. ``max_gap`` is the
    setting history.max_gap. ``scope`` limits the answers, and the views that are created; ValueError from a view that
    it cannot limit.
    """

    lake: Lake
    as_of: datetime | None = None
    queue_quota_bytes: int | None = None
    journal_quota_bytes: int | None = None
    quotas: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    max_gap: timedelta = HistoryConfig.max_gap
    machine_quota_bytes: int | None = None
    machine_quotas: Mapping[str, int] = field(default_factory=dict)
    scope: Scope = EVERYTHING

    def create_temporary(self, names: Collection[str] = tuple(VIEWS_BY_NAME)) -> None:
        """Create temporary views in the lake's Spark session, as notebooks use them."""
        for table in self._tables_of_views(names):
            self.lake.read(table).createOrReplaceTempView(_plain_name(table))
        for name in names:
            text = self._stored_sql(VIEWS_BY_NAME[name], _plain_name)
            self.lake.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {quoted(name)} AS {text}")

    def create_permanent(self, names: Collection[str] = tuple(VIEWS_BY_NAME)) -> list[str]:
        """Create permanent views in the gold schema of the lake's catalog, and return their full names.

        Missing tables are created empty. "Now" in a permanent view is the newest packet or snapshot at query time,
        unless ``as_of`` was given.
        """
        lake, full_names = self.lake, []
        for table in self._tables_of_views(names):
            lake.create(table)
        for name in names:
            view, schema = VIEWS_BY_NAME[name], lake.sql_name(QUEUE_HISTORY).rpartition(".")[0]
            full = f"{schema}.{quoted(name)}"
            comment = f"Question {view.question_number}: one row is {view.row_meaning} (docs/reference/questions.md)."
            text = self._stored_sql(view, lake.sql_name)
            lake.spark.sql(f"CREATE OR REPLACE VIEW {full} COMMENT {literal(comment)} AS {text}")
            full_names.append(full)
        return full_names

    def answer(self, name: str, max_rows: int | None = None) -> pa.Table:
        """Return the rows of a view, in its order; at most ``max_rows``. It need not exist anywhere."""
        view = VIEWS_BY_NAME[name]
        return self._query(view.sql if max_rows is None else f"{view.sql} LIMIT {max_rows}", self.scope, view.scope)

    def bound_query(self, name: str) -> BoundQuery:
        """Return the query whose answer are the rows of a view."""
        view = VIEWS_BY_NAME[name]
        return self._bind(view.sql, self.scope, view.scope)

    def machines_called(self, text: str) -> Names:
        """Return all names, addresses and GUIDs of the machines that a text means (``find_machines``)."""
        return find_machines(self._query, self._tables_of_views(VIEWS_BY_NAME), names_in_gold(self.lake), text)

    def queue_names(self, tables: Collection[Table]) -> dict[str, set[str]]:
        """Return all names that tables have of each queue, by its canonical one (``queue_names``)."""
        return queue_names(self._query, tables)

    def queues_called(self, text: str) -> Names:
        """Return all names of the queues that a text means (``find_queues``)."""
        return find_queues(self._query, self._tables_of_views(VIEWS_BY_NAME), text)

    def _query(self, text: str, scope: Scope = EVERYTHING, columns: ScopeColumns = _NO_COLUMNS) -> pa.Table:
        """Return the answer to a query as views are written (``View``)."""
        query = self._bind(text, scope, columns)
        return self.lake.query(query.sql, **query.inputs)

    def _bind(self, text: str, scope: Scope, columns: ScopeColumns) -> BoundQuery:
        named: dict[str, QueryInput] = {"quotas": self._quotas(), "machine_quotas": self._machine_quotas()}
        named |= {"machines": scope.machines or (), "queues": scope.queues or ()}
        settings = _settings({each: _input(each) for each in named}, scope, columns)
        sql = _resolve_sql(text, lambda table: _input(_plain_name(table)), settings, self.as_of, self.max_gap)
        inputs: dict[str, QueryInput] = {_plain_name(table): table for table in self._tables_of(text)}
        inputs |= {each: values for each, values in named.items() if _input(each) in sql}
        return BoundQuery(sql, inputs)

    def evidence(self, name: str) -> SeenEvidence:
        """Return what was seen of the evidence that a view needs, until now and within the hours that it is about.

        The hours and machines asked for limit it. Evidence of other queues tells that nothing was seen of the one asked
        for.
        """
        condition = VIEWS_BY_NAME[name].needs
        sights = self._look_for(condition.kinds, None if self.scope.since else condition.hours)
        seen = {sight.kind for sight in sights}
        is_enough = all(seen.intersection(need) for need in condition.needs)
        return SeenEvidence(is_enough, sights, tuple(kind for kind in condition.kinds if kind not in seen))

    def _look_for(self, kinds: Sequence[EvidenceKind], hours: int | None) -> tuple[Sight, ...]:
        """Return what was seen of each kind of evidence until now, of those of which something was.

        What has no time counts, but not within hours.
        """
        counted = "first_at <= now OR first_at IS NULL" if hours is None else (
            f"first_at <= now AND last_at > now - INTERVAL {hours} HOUR"
        )  # fmt: skip
        seen = " UNION ALL ".join(f"SELECT {place} AS kind, * FROM ({kind.sql})" for place, kind in enumerate(kinds))
        found = self._query(
            "SELECT kind, count(DISTINCT subject) AS subjects, count(DISTINCT server) AS servers, "
            f"min(first_at) AS first_at, max(last_at) AS last_at FROM ({seen}) AS seen CROSS JOIN setting.now "
            f"WHERE ({counted}) AND setting.scope GROUP BY kind HAVING count(DISTINCT subject) > 0 ORDER BY kind",
            replace(self.scope, queues=None),
            EVIDENCE_SCOPE,
        )
        return tuple(Sight(**{**row, "kind": kinds[row["kind"]]}) for row in found.to_pylist())

    def coverage_for(self, answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> pa.Table:
        """Return the coverage gaps for rows of views, by their names: in the hours and at the servers asked for.

        Without these, in the hours and at the servers of the rows; of all, where a view has rows without. There is one
        row per server, and one for gaps of no single server.
        """
        times = [_values_of(rows, VIEWS_BY_NAME[name].time_columns) for name, rows in answers.items()]
        places = [_values_of(rows, VIEWS_BY_NAME[name].server_columns) for name, rows in answers.items()]
        first, last = self.scope.since, self.scope.until
        if first is None and all(times):
            first = min(map(min, times), default=None)
        if last is None and all(times):
            last = max(map(max, times), default=None)
        servers = set(self.scope.machines or (set().union(*places) if all(places) else ()))
        where, inputs = "TRUE", dict[str, QueryInput](coverage=COVERAGE)
        if first is not None:
            where += f" AND (hour IS NULL OR hour > {timestamp_sql(first - timedelta(hours=1))})"
        if last is not None:
            where += f" AND (hour IS NULL OR hour <= {timestamp_sql(last)})"
        if servers:
            names = names_in_gold(self.lake).items()
            inputs["addresses"] = servers | {address for address, name in names if name in servers}
            where += " AND (server_address IS NULL OR server_address IN {addresses})"
        return self.lake.query(
            f"SELECT server_address, min(hour) AS from_hour, max(hour) AS to_hour,{COVERAGE_COUNTS_SQL} "
            f"FROM {{coverage}} WHERE {where} GROUP BY server_address ORDER BY server_address",
            **inputs,
        )

    def _tables_of(self, text: str) -> set[Table]:
        """Return the tables that a query selects from."""
        text = text.replace("setting.now", NEWEST_EVENT_TIME_QUERY)
        return {catalog.table(f"{layer}.{name}") for layer, name in _TABLE_NAME.findall(text)}

    def _tables_of_views(self, names: Iterable[str]) -> list[Table]:
        """Return the tables that views select from, by their names."""
        return sorted({table for name in names for table in self._tables_of(VIEWS_BY_NAME[name].sql)}, key=str)

    def _quotas(self) -> pa.Table:
        every = {"messages": self.queue_quota_bytes, "journal": self.journal_quota_bytes}
        single = ({"queue": name, "messages": sizes[0], "journal": sizes[1]} for name, sizes in self.quotas.items())
        return pa.Table.from_pylist([every, *single], _QUOTAS)

    def _machine_quotas(self) -> pa.Table:
        single = ({"queue_manager": name, "bytes": size} for name, size in self.machine_quotas.items())
        return pa.Table.from_pylist([{"bytes": self.machine_quota_bytes}, *single], _MACHINE_QUOTAS)

    def _stored_sql(self, view: View, name: Callable[[Table], str]) -> str:
        """Return the SQL of a view that Spark stores: with quotas and names as literals."""
        given = {"quotas": _values_sql(self._quotas()), "machine_quotas": _values_sql(self._machine_quotas())}
        given |= {"machines": sql_list(self.scope.machines or ()), "queues": sql_list(self.scope.queues or ())}
        return _resolve_sql(view.sql, name, _settings(given, self.scope, view.scope), self.as_of, self.max_gap)


def catalog_sql(name: str, sql_name: Callable[[Table], str]) -> str:
    """Return the SQL of a view in Spark over tables that ``sql_name`` names: of all that they hold, without quotas."""
    view = VIEWS_BY_NAME[name]
    no_quotas = {"quotas": _QUOTAS, "machine_quotas": _MACHINE_QUOTAS}
    given = {each: _values_sql(pa.Table.from_pylist([{}], schema)) for each, schema in no_quotas.items()}
    settings = _settings({**given, "machines": sql_list(()), "queues": sql_list(())}, EVERYTHING, view.scope)
    return _resolve_sql(view.sql, sql_name, settings, None, HistoryConfig.max_gap)


def _resolve_sql(
    text: str, name: Callable[[Table], str], settings: Mapping[str, str], as_of: datetime | None, max_gap: timedelta
) -> str:
    """Return the SQL of a query with table names and settings filled in; ``settings``: the SQL of most of them."""
    now = NEWEST_EVENT_TIME_QUERY if as_of is None else f"(SELECT {timestamp_sql(as_of)} AS now)"
    text = _TABLE_NAME.sub(lambda found: name(catalog.table(found[0])), text.replace("setting.now", now))
    every = {**settings, "max_gap_s": repr(max_gap.total_seconds())}
    # Last: a queue with a quota may be called like a table.
    return _SETTING.sub(lambda found: every[found[1]], text)


def _settings(given: Mapping[str, str], scope: Scope, columns: ScopeColumns) -> dict[str, str]:
    """Return the SQL of settings; ``given``: that of quotas, and of the lists of machines and queues."""
    condition = scope.condition(columns, given["machines"], given["queues"])
    return {**given, "since": timestamp_sql(scope.since), "scope": condition}


def _input(name: str) -> str:
    return f"{{{name}}}"


def _plain_name(table: Table) -> str:
    return f"{table.layer}_{table.name}"


def _values_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> set[Any]:
    """Return the values in some columns of rows, without null."""
    return {row[column] for row in rows for column in columns} - {None}


def _values_sql(rows: pa.Table) -> str:
    """Return rows of texts and numbers as a subquery of literals."""
    kinds = ["STRING" if pa.types.is_string(field.type) else "BIGINT" for field in rows.schema]

    def spelled(value: str | int | None) -> str:
        return "NULL" if value is None else literal(value) if isinstance(value, str) else str(value)

    texts = (
        ", ".join(f"CAST({spelled(value)} AS {kind})" for value, kind in zip(row.values(), kinds, strict=True))
        for row in rows.to_pylist()
    )
    return f"(SELECT * FROM VALUES ({'), ('.join(texts)}) AS rows({', '.join(rows.column_names)}))"
