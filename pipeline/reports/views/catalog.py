"""The 25 questions, and the views that answer them: temporary views of a session, or permanent views of a catalog.

The SQL of a view names tables as ``layer.name``. In a session, tables are temporary views too (``gold_queue_history``),
so that tables that do not exist yet are empty. In a catalog, the views select from the tables themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.bronze.event_time import NEWEST_EVENT_TIME_QUERY
from pipeline.lake.arrow_rows import datetime_to_us
from pipeline.lake.engine.frames import where_in
from pipeline.lake.lake import Lake
from pipeline.reports.views.acknowledgements import ACKNOWLEDGEMENT_VIEWS
from pipeline.reports.views.calls import CALL_VIEWS
from pipeline.reports.views.machines import MACHINE_VIEWS
from pipeline.reports.views.messages import MESSAGE_VIEWS
from pipeline.reports.views.queues import QUEUE_VIEWS
from pipeline.reports.views.transfers import TRANSFER_VIEWS
from pipeline.reports.views.view import View
from schemas import catalog
from schemas.queue_history import QUEUE_HISTORY
from schemas.table import Table, literal, quoted


class Question(NamedTuple):
    """One of the 25 questions, with the evidence that can answer it.

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
}
"""The questions of Message Queuing administrators, by number."""

VIEWS_BY_NAME: Final = {
    view.name: view
    for view in (
        *QUEUE_VIEWS, *MACHINE_VIEWS, *TRANSFER_VIEWS, *MESSAGE_VIEWS, *ACKNOWLEDGEMENT_VIEWS, *CALL_VIEWS,
    )
}  # fmt: skip
"""All views by name."""

COVERAGE_VIEW: Final = "not_known"
_TABLE_NAME: Final = re.compile(r"\b(bronze|silver|gold)\.([a-z_]+)\b")
_SETTING: Final = re.compile(r"\bsetting\.([a-z_]+)\b")


def views_of_question(number: int) -> list[View]:
    """Return the views that answer the question of a number."""
    return [view for view in VIEWS_BY_NAME.values() if view.question_number == number]


@dataclass(frozen=True, slots=True)
class LakeViews:
    """Creates and reads the views over a lake.

    ``as_of`` overrides "now", which is otherwise the newest packet or snapshot. Quotas are in bytes: default quotas,
    and by queue name the quotas of its messages and of its journal; likewise of queue managers. ``max_gap`` is the
    setting history.max_gap.
    """

    lake: Lake
    as_of: datetime | None = None
    queue_quota_bytes: int | None = None
    journal_quota_bytes: int | None = None
    quotas: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    max_gap: timedelta = timedelta(minutes=15)
    machine_quota_bytes: int | None = None
    machine_quotas: Mapping[str, int] = field(default_factory=dict)

    def create_temporary(self, names: Collection[str] = tuple(VIEWS_BY_NAME)) -> None:
        """Create temporary views in the lake's Spark session."""
        for table in sorted({table for name in names for table in self._tables_of(VIEWS_BY_NAME[name])}, key=str):
            self.lake.read(table).createOrReplaceTempView(_temporary_name(table))
        for name in names:
            text = self._resolve_sql(VIEWS_BY_NAME[name], _temporary_name)
            self.lake.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {quoted(name)} AS {text}")

    def create_permanent(self, names: Collection[str] = tuple(VIEWS_BY_NAME)) -> list[str]:
        """Create permanent views in the gold schema of the lake's catalog, and return their full names.

        Missing tables are created empty. "Now" in a permanent view is the newest packet or snapshot at query time,
        unless ``as_of`` was given.
        """
        lake, full_names = self.lake, []
        for table in sorted({table for name in names for table in self._tables_of(VIEWS_BY_NAME[name])}, key=str):
            lake.create(table)
        for name in names:
            view, schema = VIEWS_BY_NAME[name], lake.sql_name(QUEUE_HISTORY).rpartition(".")[0]
            full = f"{schema}.{quoted(name)}"
            comment = f"Question {view.question_number}: one row is {view.row_meaning} (docs/reference/questions.md)."
            text = self._resolve_sql(view, lake.sql_name)
            lake.spark.sql(f"CREATE OR REPLACE VIEW {full} COMMENT {literal(comment)} AS {text}")
            full_names.append(full)
        return full_names

    def read(self, name: str) -> DataFrame:
        """Return the rows of a view; it must exist as a temporary view."""
        return self.lake.spark.table(quoted(name))

    def has_evidence(self, name: str) -> bool:
        """Return whether anything was captured that the view needs: else an empty answer does not mean "none"."""
        tables = [catalog.table(each) for each in VIEWS_BY_NAME[name].evidence_tables]
        return not tables or any(not self.lake.read(table).isEmpty() for table in tables)

    def coverage_for(self, name: str, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
        """Return the coverage gaps for rows of a view: in the hours and at the servers of these rows.

        There is one row per server, and one for gaps of no single server. The temporary view ``not_known`` must exist.
        """
        view, found = VIEWS_BY_NAME[name], list(rows)
        times = [row[column] for row in found for column in view.time_columns if row.get(column) is not None]
        servers = {row[name] for row in found for name in view.server_columns if row[name] is not None}
        within = "TRUE"
        if times:
            first, last = _timestamp_sql(min(times) - timedelta(hours=1)), _timestamp_sql(max(times))
            within = f"hour IS NULL OR (hour > {first} AND hour <= {last})"
        gaps = self.read(COVERAGE_VIEW).where(within)
        if servers:
            names = self.lake.provenance(QUEUE_HISTORY).get("names", {})
            addresses = servers | {address for address, name in names.items() if name in servers}
            gaps = where_in(gaps, "server_address", {*addresses, None})
        measures = (F.sum(name).alias(name) for name in gaps.columns if name not in ("hour", "server_address"))
        hours = F.min("hour").alias("from_hour"), F.max("hour").alias("to_hour")
        return gaps.groupBy("server_address").agg(*hours, *measures).orderBy(F.asc_nulls_first("server_address"))

    def _tables_of(self, view: View) -> set[Table]:
        """Return the tables that a view selects from."""
        text = view.sql.replace("setting.now", NEWEST_EVENT_TIME_QUERY)
        return {catalog.table(f"{layer}.{name}") for layer, name in _TABLE_NAME.findall(text)}

    def _resolve_sql(self, view: View, name: Callable[[Table], str]) -> str:
        """Return the SQL of a view with table names and settings filled in."""
        now = NEWEST_EVENT_TIME_QUERY if self.as_of is None else f"(SELECT {_timestamp_sql(self.as_of)} AS now)"
        text = _TABLE_NAME.sub(lambda found: name(catalog.table(found[0])), view.sql.replace("setting.now", now))
        settings = {
            "quotas": self._quotas_sql(),
            "machine_quotas": self._machine_quotas_sql(),
            "max_gap_s": repr(self.max_gap.total_seconds()),
        }
        # All at once, and last: a queue with a quota may be called like a table, or like a setting.
        return _SETTING.sub(lambda found: settings[found[1]], text)

    def _quotas_sql(self) -> str:
        """Return the quotas as a subquery."""
        every = (None, (self.queue_quota_bytes, self.journal_quota_bytes))
        rows = (
            f"({_string_sql(queue)}, {_bigint_sql(messages)}, {_bigint_sql(journal)})"
            for queue, (messages, journal) in (every, *self.quotas.items())
        )
        return f"(SELECT * FROM VALUES {', '.join(rows)} AS quotas(queue, messages, journal))"

    def _machine_quotas_sql(self) -> str:
        """Return the quotas of queue managers as a subquery."""
        every = (None, self.machine_quota_bytes)
        rows = (
            f"({_string_sql(machine)}, {_bigint_sql(size)})" for machine, size in (every, *self.machine_quotas.items())
        )
        return f"(SELECT * FROM VALUES {', '.join(rows)} AS quotas(queue_manager, bytes))"


def _temporary_name(table: Table) -> str:
    return f"{table.layer}_{table.name}"


def _timestamp_sql(when: datetime) -> str:
    return f"timestamp_micros({datetime_to_us(when)})"


def _string_sql(text: str | None) -> str:
    return "CAST(NULL AS STRING)" if text is None else literal(text)


def _bigint_sql(size: int | None) -> str:
    return "CAST(NULL AS BIGINT)" if size is None else f"{size}L"
