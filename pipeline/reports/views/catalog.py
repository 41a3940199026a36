"""The 25 questions and the views that answer them: temporary views of a session, or permanent ones of a catalog.

A view's text names tables as ``layer.name``. In a session these are temporary views too (``gold_queue_history``), so
that tables that are not there yet are empty ones; in a catalog they are the tables themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame

from pipeline.bronze.event_time import NOW
from pipeline.lake.arrow_rows import us_of
from pipeline.lake.lake import Lake
from pipeline.reports.views import calls, queues
from pipeline.reports.views import messages as views_messages
from pipeline.reports.views.view import View
from schemas import catalog
from schemas.queue_history import QUEUE_HISTORY
from schemas.table import Table, literal, quoted


class Question(NamedTuple):
    """A question, which evidence can answer it (R: RPC captures, S: snapshots, T: captures of TCP 1801), and more.

    ``needs``: what evidence would be needed for what no view can tell.
    """

    text: str
    evidence: str
    needs: str = ""


_ON_1801: Final = "captures of the binary protocol (TCP 1801), decoded: they are counted only"
QUESTIONS: Final = {
    1: Question("Which outgoing queues are not connected, since when, and why?", "S, part R"),
    2: Question("How long was each queue in each state?", "S"),
    3: Question("Depth and bytes over time, growth rate, time until a quota is full?", "S"),
    4: Question("Is a queue stuck: messages waiting and nobody reading for N minutes?", "S + R"),
    5: Question("How old is the oldest unread message?", "part R (peeked packets)"),
    6: Question("Per outgoing queue: not sent, sent but unacknowledged, acknowledged but unread?", "S"),
    7: Question(
        "Transfer stall: same first unacknowledged number, resend count climbing; which step of the ladder, when is "
        "the next try?",
        "S",
    ),
    8: Question(
        "Which sequence numbers were never acknowledged?", "part S, T", f"Which messages these are: {_ON_1801}."
    ),
    9: Question(
        "Gap or disorder in a sequence at the receiver?", "part S, T", f"The packets out of order: {_ON_1801}."
    ),
    10: Question(
        "Was a message read twice (by applications)? delivered twice (on the wire)?",
        "R; T",
        f"Delivered twice on the wire: {_ON_1801}.",
    ),
    11: Question("Do sender and receiver disagree about the next number?", "S of both ends"),
    12: Question(
        "Transfer latency per pair of machines and size?",
        "T",
        f"It cannot be known from what was captured. It would need {_ON_1801}: the UserMessage packet at the sender "
        "and its session or order acknowledgement, or the same packet captured at both ends, with clocks that agree. "
        "Sent and arrival times of messages that are read remotely (view clock_differences, least_transit_s) are "
        "whole seconds of two clocks.",
    ),
    13: Question(
        "Share of retransmitted messages and bytes?",
        "T, part S",
        f"Bytes of messages that were sent again: {_ON_1801}.",
    ),
    14: Question(
        "Negative acknowledgements by class, sender and queue?",
        "part R (administration queues read remotely), T",
        f"Those that nobody reads remotely: {_ON_1801}.",
    ),
    15: Question(
        "Messages that asked for an acknowledgement and got none?",
        "part R, T",
        f"Acknowledgements that nobody reads remotely: {_ON_1801}.",
    ),
    16: Question("Dead letters by reason and age, and their growth?", "part R, S (counts)"),
    17: Question("Journal growth, days until full?", "S"),
    18: Question("Remote-read latency by server, queue and method; waiting told from slowness?", "R"),
    19: Question("Receives begun and never ended; ended with a refusal after data was sent?", "R"),
    20: Question("Load and fairness by reader; how many receives wait at once on a server?", "R"),
    21: Question("Which calls fail with which HRESULT, and since when?", "R"),
    22: Question("Do two machines share one queue-manager identifier?", "R, S"),
    23: Question("Do the clocks of two machines differ, and by how much?", "part R"),
    24: Question(
        "COM+ calls by interface and method; the way of a message through the retry queues to the dead queue; poison "
        "methods?",
        "part R, S",
    ),
    25: Question(
        "How much is not known: capture loss, one-sided conversations, encrypted stubs, missing snapshots, decode "
        "errors?",
        "all",
    ),
}
"""The questions of the people who run Message Queuing, by their numbers."""

ALL: Final = {view.name: view for view in (*queues.VIEWS, *views_messages.VIEWS, *calls.VIEWS)}
"""Every view, by its name."""

NOT_KNOWN: Final = "not_known"
_NAMED: Final = re.compile(r"\b(bronze|silver|gold)\.([a-z_]+)\b")


def of_question(number: int) -> list[View]:
    """Return the views that answer a question."""
    return [view for view in ALL.values() if view.question == number]


@dataclass(frozen=True, slots=True)
class Views:
    """The views over a lake. ``as_of``: what counts as now, else the newest packet or snapshot; quotas in bytes."""

    lake: Lake
    as_of: datetime | None = None
    queue_quota: int | None = None
    journal_quota: int | None = None
    quotas: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def temporary(self, names: Collection[str] = tuple(ALL)) -> None:
        """Make views of these names temporary views of the lake's session."""
        for table in sorted({table for name in names for table in self._tables(ALL[name])}, key=str):
            self.lake.read(table).createOrReplaceTempView(_temporary(table))
        for name in names:
            self.lake.spark.sql(
                f"CREATE OR REPLACE TEMPORARY VIEW {quoted(name)} AS {self._text(ALL[name], _temporary)}"
            )

    def permanent(self, names: Collection[str] = tuple(ALL)) -> list[str]:
        """Make views of these names permanent ones in gold's schema of the lake's catalog; their full names.

        Tables that they need and that are not there yet are made, empty. "Now" is then always the newest packet or
        snapshot, unless ``as_of`` was given.
        """
        lake, made = self.lake, []
        for table in sorted({table for name in names for table in self._tables(ALL[name])}, key=str):
            lake.create(table)
        for name in names:
            schema = lake.sql_name(QUEUE_HISTORY).rpartition(".")[0]
            full = f"{schema}.{quoted(name)}"
            comment = literal(f"Question {ALL[name].question}: one row is {ALL[name].row} (docs/questions.md).")
            text = self._text(ALL[name], lake.sql_name)
            lake.spark.sql(f"CREATE OR REPLACE VIEW {full} COMMENT {comment} AS {text}")
            made.append(full)
        return made

    def answer(self, name: str) -> DataFrame:
        """Return the rows of a view that was made a temporary one."""
        return self.lake.spark.table(quoted(name))

    def beside(self, name: str, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
        """Return what is not known beside rows of a view: of their hours, and their servers where it names any.

        One row per server, and one of what is of no single server; the view ``not_known`` was made too.
        """
        view, found = ALL[name], list(rows)
        times = [row[column] for row in found for column in view.times if row.get(column) is not None]
        servers = {row[view.server] for row in found if row[view.server] is not None} if view.server else set()
        conditions = ["TRUE"]
        if times:
            first, last = min(times), max(times)
            within = f"hour > {_at(first - timedelta(hours=1))} AND hour <= {_at(last)}"
            conditions.append(f"(hour IS NULL OR ({within}))")
        if servers:
            known = self.lake.made(QUEUE_HISTORY).get("names", {})
            addresses = servers | {address for address, called in known.items() if called in servers}
            named = ", ".join(literal(address) for address in sorted(addresses))
            conditions.append(f"(server_address IS NULL OR server_address IN ({named}))")
        measures = (name for name in self.answer(NOT_KNOWN).columns if name not in ("hour", "server_address"))
        sums = ", ".join(f"sum({measure}) AS {measure}" for measure in measures)
        return self.lake.spark.sql(
            f"SELECT server_address, min(hour) AS from_hour, max(hour) AS to_hour, {sums} FROM {quoted(NOT_KNOWN)} "
            f"WHERE {' AND '.join(conditions)} GROUP BY server_address ORDER BY server_address NULLS FIRST"
        )

    def _tables(self, view: View) -> set[Table]:
        """Return the tables that a view is of."""
        text = view.sql.replace("setting.now", NOW)
        return {catalog.table(f"{layer}.{name}") for layer, name in _NAMED.findall(text)}

    def _text(self, view: View, name: Callable[[Table], str]) -> str:
        """Return a view's SQL with the names that its tables have."""
        now = NOW if self.as_of is None else f"(SELECT {_at(self.as_of)} AS now)"
        text = view.sql.replace("setting.now", now).replace("setting.quotas", self._quotas())
        return _NAMED.sub(lambda found: name(catalog.table(found[0])), text)

    def _quotas(self) -> str:
        """Return the quotas as a query."""
        every = (None, (self.queue_quota, self.journal_quota))
        lines = [
            f"SELECT {'CAST(NULL AS STRING)' if queue is None else literal(queue)} AS queue, "
            f"{_size(messages)} AS messages, {_size(journal)} AS journal"
            for queue, (messages, journal) in (every, *self.quotas.items())
        ]
        return f"({' UNION ALL '.join(lines)})"


def _temporary(table: Table) -> str:
    return f"{table.layer}_{table.name}"


def _at(when: datetime) -> str:
    return f"timestamp_micros({us_of(when)})"


def _size(size: int | None) -> str:
    return "CAST(NULL AS BIGINT)" if size is None else f"{size}L"
