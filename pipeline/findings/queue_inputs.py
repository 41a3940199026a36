"""The rules on queues, evaluated on the queues that changed, or on all (``Lake.map_groups``).

Findings of growth and of disagreeing ends are one for each day. All others are of a moment, and depend on what happened
within ``history.max_gap`` of it or, for a message that was delivered again, within a day. Findings about transactions
depend on snapshots within a day, also on later ones. So for a queue that changed since a time, the findings from that
day on, from shortly before that time on, or from a day before it on, are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in, table_to_rows, times_to_us
from pipeline.concurrency import run_concurrently
from pipeline.findings.evaluate import FINDINGS_SCHEMA
from pipeline.findings.evaluate_queues import QUEUE_SCOPE, evaluate_queues
from pipeline.findings.queue_queries import (
    HAS_COUNTS,
    HAS_KIND,
    IS_DELIVERED_AGAIN,
    TARGET_QUEUE,
    QueueFactQueries,
    use_time,
)
from pipeline.findings.rules.queue_facts import QueueRuleLimits
from pipeline.lake.incremental import ChangeFeeds
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import GroupedQuery, GroupFunction
from pipeline.queues.queue_managers import QueueManagerNames, renamed_queue_managers
from pipeline.queues.queue_rows import QueueNames, since_sql
from pipeline.silver import queue_aliases
from pipeline.silver.queue_aliases import AliasIndex
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.eod import EOD_SOURCES
from schemas.findings import FINDINGS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.table import Table
from udfs.columns.absent import AFTER_ALL
from udfs.times import DAY_US

SOURCE_TABLES: Final = (
    QUEUE_SNAPSHOTS, RECEIVE_ATTEMPTS, QUEUE_OPERATIONS, EOD_SOURCES, ACK_SEQUENCES, QUEUE_ALIASES,
)  # fmt: skip
RULES_BY_PART: Final = {
    "counts": ("O03", "O04"),
    "reports": ("O06",),
    "again": ("Q22", "Q24", "R53"),
    "sources": ("O05",),
    "kinds": ("R59", "R66"),
}
"""The rules that need each part. Reads are read for queues with reports, and for messages delivered again.

R66 is also a rule on single calls, whose findings have another scope.
"""
_TRANSACTION_RULES: Final = RULES_BY_PART["kinds"]
_DAILY_RULES: Final = (*RULES_BY_PART["counts"], *RULES_BY_PART["sources"])
_EARLIEST_US: Final = 0  # before all other times


def _changed_queues_sql(where: str, *times: str, queue: str = "queue") -> str:
    """Return the SQL that reads the changed queues of a change feed, and the time of each one's first change."""
    at = f"min(unix_micros(coalesce({', '.join((*times, 'NULL'))})))"
    return f"SELECT {queue} AS queue, {at} AS `at` FROM {{feed}} WHERE {queue} IS NOT NULL AND {where} GROUP BY {queue}"


_CHANGE_QUERIES: Final[dict[Table, tuple[str, tuple[str, ...]]]] = {
    QUEUE_SNAPSHOTS: (
        _changed_queues_sql(f"({HAS_COUNTS} OR {HAS_KIND})", "observed_at"),
        ("counts", "reports", "kinds"),
    ),
    RECEIVE_ATTEMPTS: (_changed_queues_sql("TRUE", "started_at", "returned_at", "ended_at"), ("reports", "kinds")),
    QUEUE_OPERATIONS: (
        _changed_queues_sql("operation = 'move'", "responded_at", "requested_at", queue=TARGET_QUEUE),
        ("kinds",),
    ),
    EOD_SOURCES: (_changed_queues_sql("disagrees_with_sender IS NOT NULL", "observed_at"), ("sources",)),
    ACK_SEQUENCES: (_changed_queues_sql(IS_DELIVERED_AGAIN, "first_attempt_at"), ("again",)),
}
"""The query for changed queues of each table's change feed, and the parts that it changes."""


@dataclass(slots=True)
class AffectedQueues:
    """The queues, by canonical name, that changed, the time of the first change, microseconds, and the changed parts.

    ``parts`` are keys of ``RULES_BY_PART``.
    """

    queues: set[str] = field(default_factory=set)
    since: int = AFTER_ALL
    parts: set[str] = field(default_factory=set)

    def add(self, queue: str | None, at: int | None, parts: Iterable[str]) -> None:
        """Add a change of a queue at a time."""
        if queue is not None:
            self.queues.add(queue)
            self.since = min(self.since, max(at or _EARLIEST_US, _EARLIEST_US))
            self.parts.update(parts)


@dataclass(frozen=True, slots=True)
class QueueFindings:
    """The findings of the rules on queues, computed from tables of the lake."""

    lake: Lake
    limits: QueueRuleLimits
    configured_names: Mapping[str, str]  # of queue managers, by address

    def affected_queues(self, feeds: ChangeFeeds) -> AffectedQueues | None:
        """Return the queues that changed since the last update; None where this is unknown."""
        if any(
            feeds.provenance_before.get(str(table)) is None and feeds.provenance_now[str(table)] is not None
            for table in SOURCE_TABLES
        ):
            return None
        queries: dict[Table, Callable[[], Any]] = {
            table: partial(feeds.rows, table, sql) for table, (sql, _) in _CHANGE_QUERIES.items()
        }
        queries[QUEUE_ALIASES] = partial(queue_aliases.replaced_canonical_names, feeds)
        queries[QUEUE_HISTORY] = partial(self._queues_at_renamed, feeds.provenance_before.get("names") or {})
        found = run_concurrently(queries)
        if None in found.values():
            return None
        affected = AffectedQueues()
        if not any(found.values()):
            return affected
        names = self._queue_names()
        for name in (*found[QUEUE_ALIASES], *found[QUEUE_HISTORY]):
            affected.add(name, _EARLIEST_US, RULES_BY_PART)
            affected.add(names.canonical_queue(name), _EARLIEST_US, RULES_BY_PART)
        for table, (_, parts) in _CHANGE_QUERIES.items():
            for row in found[table]:
                affected.add(names.canonical_queue(row["queue"]), row["at"], parts)
        return affected

    def _queues_at_renamed(self, before: Mapping[str, str]) -> list[str]:
        """Return the queues that were asked for, or read from, at queue managers with other names than ``before``."""
        now = self.configured_names
        names = {name for pair in renamed_queue_managers(before, now) for name in pair}
        addresses = {address for address, name in (*before.items(), *now.items()) if name in names} | names
        sql = """
SELECT queue FROM {history} WHERE queue_manager IN {names} AND queue IS NOT NULL
UNION SELECT queue FROM {attempts} WHERE server_address IN {addresses} AND queue IS NOT NULL"""
        of = {"history": QUEUE_HISTORY, "attempts": RECEIVE_ATTEMPTS, "names": names, "addresses": addresses}
        return self.lake.query(sql, **of)["queue"].to_pylist() if names else []

    def _queue_names(self) -> QueueNames:
        return QueueNames(QueueManagerNames(self.configured_names), AliasIndex.load(self.lake).canonical_names)

    def recompute(self, affected: AffectedQueues) -> tuple[pa.Table, pa.Table]:
        """Compute the findings of affected queues again; return them, and the stored ones that they replace."""
        if not affected.queues:
            return FINDINGS_SCHEMA.empty_table(), FINDINGS_SCHEMA.empty_table()
        since = max(affected.since - self.limits.max_gap, _EARLIEST_US)
        day = affected.since // DAY_US * DAY_US
        first_times = dict.fromkeys(_DAILY_RULES, day) | dict.fromkeys(_TRANSACTION_RULES, use_time(since))
        rules = [rule for part in sorted(affected.parts) for rule in RULES_BY_PART[part]]
        times = (f"WHEN rule_id = '{rule}' THEN {at}" for rule, at in first_times.items())
        late = f"unix_micros(observed_at) >= CASE {' '.join(times)} ELSE {since} END"
        oldest = since_sql(min(since, *first_times.values()), "observed_at")
        where = f"scope = '{QUEUE_SCOPE}' AND queue IN {{queues}} AND rule_id IN {{rules}} AND {oldest} AND {late}"
        stored = self.lake.select(FINDINGS, where, FINDINGS_SCHEMA.names, queues=affected.queues, rules=rules)
        rows = self._evaluate(affected.queues, since, day, affected.parts)
        rows = rows.filter(is_in(rows, "rule_id", rules))  # what one part needs may show a rule of another one too
        of_rules = [first_times.get(rule, since) for rule in rows.column("rule_id").to_pylist()]
        first = pa.array(of_rules, pa.int64())
        rows = rows.filter(pc.greater_equal(times_to_us(rows.column("observed_at")), first))
        return rows, stored.cast(FINDINGS_SCHEMA)

    def compute_all(self) -> pa.Table:
        """Compute the findings of all queues."""
        return self._evaluate(None, _EARLIEST_US, _EARLIEST_US, RULES_BY_PART)

    def _evaluate(self, queues: Collection[str] | None, since: int, day: int, parts: Collection[str]) -> pa.Table:
        """Return the findings of some queues, or of all (None), from a time on, of counts from ``day`` on."""
        names = self._queue_names()
        queries = QueueFactQueries(self.limits, names, queues, since, day, parts)
        first = queries.snapshots_query()
        snapshots = self.lake.query(first.sql, **first.inputs).to_pylist()
        evaluate = _findings_function(names.queue_managers, self.limits)
        query = GroupedQuery(queries.of_facts(snapshots), ("queue",), evaluate, FINDINGS.struct())
        return self.lake.map_few_groups(query).cast(FINDINGS_SCHEMA)


def _findings_function(managers: QueueManagerNames, limits: QueueRuleLimits) -> GroupFunction:
    """Return the function that gives the findings of queues from the answers to ``QueueFactQueries``."""

    def find(parts: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
        rows = {name: table_to_rows(table) for name, table in parts.items()}
        for row in chain.from_iterable(of_part for name, of_part in rows.items() if name != "calls"):
            row["queue_manager"] = managers.canonical_name(row["source"], row["queue_manager"])
        yield evaluate_queues(rows, limits)

    return find
