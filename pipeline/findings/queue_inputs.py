"""Input of the rules on queues: read in memory for the queues that changed, evaluated in Spark where it is too much.

Findings of growth and of disagreeing ends are one for each day. All others are of a moment, and depend on what happened
within ``history.max_gap`` of it or, for a message that was delivered again, within a day. Findings about transactions
depend on snapshots within a day, also on later ones. So for a queue that changed since a time, the findings from that
day on, from shortly before that time on, or from a day before it on, are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pipeline.findings.evaluate import FINDINGS_SCHEMA
from pipeline.findings.evaluate_queues import (
    FACT_PARTS,
    QUEUE_SCOPE,
    evaluate_queues,
)
from pipeline.findings.rules.queue_facts import DAY_US, QueueRuleLimits
from pipeline.findings.rules.transactional_queues import MAX_SNAPSHOT_DISTANCE_US
from pipeline.lake.arrow_rows import table_to_rows, times_to_us
from pipeline.lake.concurrency import run_concurrently
from pipeline.lake.incremental import ChangeFeeds
from pipeline.lake.lake import Lake
from pipeline.lake.queries import MAX_ROWS_IN_MEMORY, BoundQuery, QueryInput
from pipeline.lake.spark.groups import map_groups_in_spark
from pipeline.lake.spark.settings import fixed_row_batches
from pipeline.queues import queue_rows
from pipeline.queues.queue_managers import QueueManagerNames
from pipeline.queues.queue_rows import QueueNames
from pipeline.queues.recompute_queues import queue_name_variants
from pipeline.silver import queue_aliases
from pipeline.silver.queue_aliases import AliasIndex
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.eod import EOD_SOURCES
from schemas.findings import FINDINGS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.receive_attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE, Table
from udfs.call_results import QMMGMT_SUCCEEDED_SQL

SOURCE_TABLES: Final = (
    QUEUE_SNAPSHOTS, RECEIVE_ATTEMPTS, QUEUE_OPERATIONS, EOD_SOURCES, ACK_SEQUENCES, QUEUE_ALIASES,
)  # fmt: skip
_MAX_CHANGED_QUEUES: Final = 5000  # more changed queues are all computed again
_RULES_BY_PART: Final = {
    "counts": ("O03", "O04"),
    "reports": ("O06",),
    "again": ("Q22", "Q24", "R53"),
    "sources": ("O05",),
    "kinds": ("R59", "R66"),
}
"""The rules that need each part. Reads are read for queues with reports, and for messages delivered again.

R66 is also a rule on single calls, whose findings have another scope.
"""
_TRANSACTION_RULES: Final = _RULES_BY_PART["kinds"]
_DAILY_RULES: Final = (*_RULES_BY_PART["counts"], *_RULES_BY_PART["sources"])
_IS_COUNTED_QUEUE: Final = (  # journals, and queues of dead letters
    "(right(queue, 10) = '_deadqueue'"
    " OR queue LIKE '%;journal' OR queue LIKE '%;deadletter' OR queue LIKE '%;deadxact')"
)
_EMPTY_WAIT_OUTCOMES: Final = ("timed_out", "cancelled")
_EARLIEST_US: Final = 0  # before all other times

_COUNT_COLUMNS: Final = ("source", "queue_manager", "queue", "observed_at", "snapshot_id", "message_count",
                  "journal_message_count")  # fmt: skip
_REPORT_COLUMNS: Final = ("source", "queue_manager", "queue", "observed_at", "snapshot_id", "call_key", "message_count",
                   "subqueue_count")  # fmt: skip
_READ_COLUMNS: Final = (
    "source", "queue_manager", "queue", "attempt_key", "protocol", "server_address", "client_address", "connection_id",
    "action_name", "is_receive", "transactional", "started_at", "returned_at", "ended_at", "lookup_id", "message_key",
    "start_hresult", "outcome", "ack_refused", "ack_unanswered", "evidence", "missing", "errors", "run_id",
)  # fmt: skip
_SOURCE_COLUMNS: Final = ("queue_manager", "queue", "observed_at", "source_key", "sender_queue_manager",
                   "disagrees_with_sender", "evidence")  # fmt: skip
_KIND_COLUMNS: Final = ("source", "queue_manager", "queue", "observed_at", "snapshot_id")
_USE_COLUMNS: Final = (
    "attempt_key", "call_key", "at", "transaction_id", "lookup_id", "client_address", "server_address", "connection_id",
    "evidence", "run_id",
)  # fmt: skip
_SELECT_CONNECTIONS: Final = "SELECT connection_id, first_packet_at, association_group_id FROM {rows}"
_SELECT_ASKED_AT: Final = "SELECT snapshot_id, asked_at FROM {rows}"

_IS_LOCAL: Final = "(upper(state) = 'LOCAL CONNECTION' OR upper(location) = 'LOCAL')"
_TARGET_QUEUE: Final = "split_part(target_queue, ';', 1)"  # a queue is transactional with its subqueues

# Messages that were delivered again after a reader acknowledged them.
_IS_DELIVERED_AGAIN: Final = (
    "queue IS NOT NULL AND lookup_id IS NOT NULL AND message_key IS NOT NULL "
    "AND array_position(outcomes, 'acked') BETWEEN 1 AND size(outcomes) - 1"
)


def _changed_queues_sql(where: str, *times: str, queue: str = "queue") -> str:
    """Return the SQL that reads the changed queues of a change feed, and the time of each one's first change."""
    at = f"min(unix_micros(coalesce({', '.join((*times, 'NULL'))})))"
    return f"SELECT {queue} AS queue, {at} AS `at` FROM {{feed}} WHERE {queue} IS NOT NULL AND {where} GROUP BY {queue}"


_HAS_KIND: Final = f"{QMMGMT_SUCCEEDED_SQL} AND {_IS_LOCAL} AND upper(xact) IN ('YES', 'NO')"
_HAS_COUNTS: Final = f"{QMMGMT_SUCCEEDED_SQL} AND (message_count IS NOT NULL OR journal_message_count IS NOT NULL)"
_CHANGE_QUERIES: Final[dict[Table, tuple[str, tuple[str, ...]]]] = {
    QUEUE_SNAPSHOTS: (
        _changed_queues_sql(f"(({_HAS_COUNTS}) OR ({_HAS_KIND}))", "observed_at"),
        ("counts", "reports", "kinds"),
    ),
    RECEIVE_ATTEMPTS: (_changed_queues_sql("TRUE", "started_at", "returned_at", "ended_at"), ("reports", "kinds")),
    QUEUE_OPERATIONS: (
        _changed_queues_sql("operation = 'move'", "responded_at", "requested_at", queue=_TARGET_QUEUE),
        ("kinds",),
    ),
    EOD_SOURCES: (_changed_queues_sql("disagrees_with_sender IS NOT NULL", "observed_at"), ("sources",)),
    ACK_SEQUENCES: (_changed_queues_sql(_IS_DELIVERED_AGAIN, "first_attempt_at"), ("again",)),
}
"""The query for changed queues of each table's change feed, and the parts that it changes."""

Rows = list[dict[str, Any]]


@dataclass(slots=True)
class AffectedQueues:
    """The queues, by canonical name, that changed, the time of the first change, microseconds, and the changed parts.

    ``parts`` are keys of ``_RULES_BY_PART``.
    """

    queues: set[str] = field(default_factory=set)
    since: int = 1 << 62
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
        """Return the queues that changed since the last update; None where this is unknown, or too many changed."""
        if any(
            feeds.provenance_before.get(str(table)) is None and feeds.provenance_now[str(table)] is not None
            for table in SOURCE_TABLES
        ):
            return None
        queries: dict[Table, Callable[[], Any]] = {
            table: partial(feeds.rows, table, sql, _MAX_CHANGED_QUEUES) for table, (sql, _) in _CHANGE_QUERIES.items()
        }
        queries[QUEUE_ALIASES] = partial(queue_aliases.replaced_canonical_names, feeds)
        found = run_concurrently(queries)
        if None in found.values():
            return None
        affected = AffectedQueues()
        if not any(found.values()):
            return affected
        names = self._queue_names()
        for name in found.pop(QUEUE_ALIASES):
            affected.add(name, _EARLIEST_US, _RULES_BY_PART)
            affected.add(names.canonical_queue(name), _EARLIEST_US, _RULES_BY_PART)
        for table, (_, parts) in _CHANGE_QUERIES.items():
            for row in found[table]:
                affected.add(names.canonical_queue(row["queue"]), row["at"], parts)
        return affected

    def _queue_names(self) -> QueueNames:
        return QueueNames(QueueManagerNames(self.configured_names), AliasIndex.load(self.lake).canonical_names)

    def recompute(self, affected: AffectedQueues) -> tuple[pa.Table, pa.Table]:
        """Compute the findings of affected queues again; return them, and the stored ones that they replace."""
        if not affected.queues:
            return FINDINGS_SCHEMA.empty_table(), FINDINGS_SCHEMA.empty_table()
        since = max(affected.since - self.limits.max_gap, _EARLIEST_US)
        day = affected.since // DAY_US * DAY_US
        first_times = dict.fromkeys(_DAILY_RULES, day) | dict.fromkeys(_TRANSACTION_RULES, _use_time(since))
        rules = [rule for part in sorted(affected.parts) for rule in _RULES_BY_PART[part]]
        times = (f"WHEN rule_id = '{rule}' THEN {at}" for rule, at in first_times.items())
        late = f"unix_micros(observed_at) >= CASE {' '.join(times)} ELSE {since} END"
        oldest = _not_before(min(since, *first_times.values()), "observed_at")
        where = f"scope = '{QUEUE_SCOPE}' AND queue IN {{queues}} AND rule_id IN {{rules}} AND {oldest} AND {late}"
        stored = self.lake.select(FINDINGS, where, FINDINGS_SCHEMA.names, queues=affected.queues, rules=rules)
        rows = self._evaluate(affected.queues, since, day, affected.parts)
        of_rules = [first_times.get(rule, since) for rule in rows.column("rule_id").to_pylist()]
        first = pa.array(of_rules, pa.int64())
        rows = rows.filter(pc.greater_equal(times_to_us(rows.column("observed_at")), first))
        return rows, stored.cast(FINDINGS_SCHEMA)

    def compute_all(self) -> pa.Table:
        """Compute the findings of all queues."""
        return self._evaluate(None, _EARLIEST_US, _EARLIEST_US, _RULES_BY_PART)

    def _evaluate(self, queues: Collection[str] | None, since: int, day: int, parts: Iterable[str]) -> pa.Table:
        names = self._queue_names()
        reader = _QueueFactsReader(self.lake, self.limits, names, queues, since, day, frozenset(parts))
        rows = reader.read_parts()
        return reader.evaluate_in_spark() if rows is None else evaluate_queues(rows, self.limits)


@dataclass(frozen=True, slots=True)
class _QueueFactsReader:
    """The facts of some queues, or of all (None): from the time ``since`` on, and daily counts from ``day`` on.

    ``parts`` are the keys of ``_RULES_BY_PART`` that are needed.
    """

    lake: Lake
    limits: QueueRuleLimits
    names: QueueNames
    queues: Collection[str] | None
    since: int
    day: int
    parts: frozenset[str]

    def read_parts(self) -> dict[str, Rows] | None:
        """Read the rows of each part, with canonical names; None where they are too many for memory."""
        rows: dict[str, Rows] = {name: [] for name in (*FACT_PARTS, "again")}
        queries = {
            "counts": self._counts_query,
            "reports": self._reports_query,
            "again": self._redeliveries_query,
            "sources": self._sources_query,
            "kinds": self._kinds_query,
        }
        if not self._read_into(rows, {name: query() for name, query in queries.items() if name in self.parts}):
            return None
        if not self._read_attempts_into(rows) or not self._read_uses_into(rows):
            return None
        reads, reports = rows["reads"], rows["reports"]
        keys = {key for row in reads for key in row["evidence"] or ()}
        keys |= {row["call_key"] for row in reports if row["call_key"] is not None}
        snapshots = {row["snapshot_id"] for row in reports if row["call_key"] is None}
        more: dict[str, BoundQuery] = {}
        if keys:
            more["calls"] = self._calls_query("call_key IN {keys}", keys=keys)
            names = {row["connection_id"] for row in reads}
            sql = f"{_SELECT_CONNECTIONS} WHERE connection_id IN {{names}}"
            more["connections"] = BoundQuery(sql, {"rows": CONNECTIONS, "names": names})
        if snapshots:
            sql = f"{_SELECT_ASKED_AT} WHERE snapshot_id IN {{names}}"
            more["asked"] = BoundQuery(sql, {"rows": SNAPSHOTS_RAW, "names": snapshots})
        found = {name: table_to_rows(table) for name, table in self._run(more).items()}
        rows |= {name: found.get(name, []) for name in ("calls", "connections")}
        calls = {row["call_key"]: row for row in rows["calls"]}
        asked_at = {row["snapshot_id"]: row["asked_at"] for row in found.get("asked", ())}
        for row in reports:
            call = calls.get(row["call_key"], {})
            at = call.get("request_at") or asked_at.get(row["snapshot_id"]) or row["observed_at"]
            row |= {"capture_id": call.get("capture_id"), "asked_at": min(at, row["observed_at"])}
        return rows

    def _run(self, queries: Mapping[str, BoundQuery]) -> dict[str, pa.Table]:
        return run_concurrently(
            {name: partial(self.lake.query, query.sql, **query.inputs) for name, query in queries.items()}
        )

    def _read_into(self, rows: dict[str, Rows], queries: Mapping[str, BoundQuery]) -> bool:
        """Read the rows of queries, with canonical names, into ``rows``; return whether they are few enough."""
        ask = self.lake.query_at_most
        found = run_concurrently(
            {name: partial(ask, query.sql, MAX_ROWS_IN_MEMORY, **query.inputs) for name, query in queries.items()}
        )
        for name, table in found.items():
            if table is not None:
                rows[name] = queue_rows.with_canonical_names(table_to_rows(table), self.names)
        return None not in found.values()

    def _read_attempts_into(self, rows: dict[str, Rows]) -> bool:
        """Read the reads of queues that have reports, and of messages that were delivered again."""
        queries = {}
        if reported := {row["queue"] for row in rows["reports"]}:
            queries["reads"] = self._reads_query(self.since - self.limits.max_gap, "queue IN {some}", some=reported)
        if again := {(row["queue"], row["lookup_id"]) for row in rows["again"]}:
            queries["more"] = self._reads_query(
                self.since - DAY_US, "queue IN {some} AND lookup_id IN {numbers}",
                some={queue for queue, _ in again}, numbers={int(lookup_id) for _, lookup_id in again},
            )  # fmt: skip
        if not self._read_into(rows, queries):
            return False
        reads = {row["attempt_key"]: row for row in (*rows["reads"], *rows.pop("more", ()))}
        rows["reads"] = list(reads.values())
        queues = {row["queue"] for row in rows["reads"]}
        rows["reports"] = [row for row in rows["reports"] if row["queue"] in queues]
        return True

    def _read_uses_into(self, rows: dict[str, Rows]) -> bool:
        """Read the receives and moves of queues of known kind, in so far as transactions may be wrong there."""
        by_kind = {kind: {row["queue"] for row in rows["kinds"] if row["xact"] == kind} for kind in ("YES", "NO")}
        queries = {}
        if others := by_kind["NO"]:
            queries["receives"] = self._receives_query("queue IN {some}", some=others)
        if known := by_kind["YES"] | by_kind["NO"]:
            queries["moves"] = self._moves_query("queue IN {some}", some=known)
        if not self._read_into(rows, queries):
            return False
        rows["uses"] = [row for name in queries for row in rows.pop(name)]
        queues = {row["queue"] for row in rows["uses"]}
        rows["kinds"] = [row for row in rows["kinds"] if row["queue"] in queues]
        return True

    def evaluate_in_spark(self) -> pa.Table:
        """Evaluate the rules on queues in Spark, one queue at a time."""

        def frame(query: BoundQuery) -> DataFrame:
            return self.lake.frame(query.sql, **query.inputs)

        reports, again = frame(self._reports_query()), frame(self._redeliveries_query())
        reads = self._with_names(frame(self._reads_query(_EARLIEST_US)))
        needed = self._with_names(reports).select("queue", F.lit(None).cast("string").alias("_lookup"))
        needed = needed.unionByName(again.select("queue", F.col("lookup_id").cast("string").alias("_lookup")))
        needed = needed.distinct()
        same_message = needed["_lookup"].isNull() | (needed["_lookup"] == reads["lookup_id"].cast("string"))
        reads = reads.join(needed, (reads["queue"] == needed["queue"]) & same_message, "left_semi")
        calls = frame(self._calls_query())
        reports = reports.join(calls.select("call_key", "capture_id", "request_at"), "call_key", "left")
        reports = reports.join(frame(BoundQuery(_SELECT_ASKED_AT, {"rows": SNAPSHOTS_RAW})), "snapshot_id", "left")
        asked_at = F.least(F.coalesce("request_at", "asked_at", "observed_at"), "observed_at")
        evidence = reads.select("queue", F.explode("evidence").alias("call_key")).distinct()
        connections = frame(BoundQuery(_SELECT_CONNECTIONS, {"rows": CONNECTIONS}))
        named = self._with_names
        uses = named(frame(self._receives_query()).unionByName(frame(self._moves_query())))
        kinds = named(frame(self._kinds_query()))
        frames = {
            "counts": named(frame(self._counts_query())),
            "reports": named(reports.withColumn("asked_at", asked_at).drop("request_at")),
            "reads": reads,
            "calls": evidence.join(calls, "call_key"),
            "connections": reads.select("queue", "connection_id").distinct().join(connections, "connection_id"),
            "sources": named(frame(self._sources_query())),
            "uses": uses.join(kinds.select("queue").distinct(), "queue", "left_semi"),
            "kinds": kinds.join(uses.select("queue").distinct(), "queue", "left_semi"),
        }
        limits = self.limits

        def evaluate(parts: Mapping[str, pa.Table]) -> pa.Table:
            return evaluate_queues({name: table_to_rows(rows) for name, rows in parts.items()}, limits)

        found = map_groups_in_spark(frames, ("queue",), evaluate, FINDINGS.struct())
        with fixed_row_batches(self.lake.spark):
            return found.toArrow().cast(FINDINGS_SCHEMA)

    def _with_names(self, rows: DataFrame) -> DataFrame:
        """Return rows with the canonical names of queues and queue managers."""
        schema = StructType([*rows.schema.fields])
        arrow, names = to_arrow_schema(schema), self.names

        def rename(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                renamed = queue_rows.with_canonical_names(batch.to_pylist(), names)
                yield pa.RecordBatch.from_pylist(renamed, schema=arrow)

        return rows.mapInArrow(rename, schema)

    # What is read of each table

    def _queue_query(self, table: Table, columns: str, where: str, /, **inputs: QueryInput) -> BoundQuery:
        """Return the query for columns of the queues' rows.

        Snapshots hold any name of a queue, so all its variants are looked up; other tables hold canonical names.
        """
        if self.queues is None:
            sql = f"SELECT {columns} FROM {{rows}} WHERE queue IS NOT NULL AND {where}"
            return BoundQuery(sql, {"rows": table, **inputs})
        names = queue_name_variants(self.queues, self.names) if table is QUEUE_SNAPSHOTS else self.queues
        sql = f"SELECT {columns} FROM {{rows}} WHERE queue IN {{queues}} AND {where}"
        return BoundQuery(sql, {"rows": table, "queues": names, **inputs})

    def _counts_query(self) -> BoundQuery:
        """Return the query for counts of dead-letter queues and of journals that were ever not empty."""
        since = _not_before(self.day - self.limits.growth_window, "observed_at")
        counted = f"CASE WHEN {_IS_COUNTED_QUEUE} THEN message_count END AS message_count"
        names = ", ".join(counted if name == "message_count" else name for name in _COUNT_COLUMNS)
        most = "max(journal_message_count) OVER (PARTITION BY queue) AS most"
        found = self._queue_query(QUEUE_SNAPSHOTS, f"{names}, {most}", f"{QMMGMT_SUCCEEDED_SQL} AND {since}")
        not_empty = "most > 0 OR message_count IS NOT NULL"
        return found.wrap(f"SELECT {', '.join(_COUNT_COLUMNS)} FROM {{answer}} WHERE {not_empty}")

    def _reports_query(self) -> BoundQuery:
        """Return the query for reports of local queues."""
        local = f"{_IS_LOCAL} AND message_count IS NOT NULL"
        where = f"{QMMGMT_SUCCEEDED_SQL} AND {local} AND {_not_before(self.since, 'observed_at')}"
        return self._queue_query(QUEUE_SNAPSHOTS, ", ".join(_REPORT_COLUMNS), where)

    def _reads_query(self, since: int, where: str = "TRUE", **inputs: QueryInput) -> BoundQuery:
        """Return the query for reads that returned a message, or waited, for at most a day, and got none."""
        constants = {"source": "'wire' AS source", "queue_manager": "server_address AS queue_manager"}
        columns = ", ".join(constants.get(name, name) for name in _READ_COLUMNS)
        found = f"(lookup_id IS NOT NULL OR outcome IN ({', '.join(map(repr, _EMPTY_WAIT_OUTCOMES))}))"
        waited = "returned_at IS NOT NULL AND coalesce(wait_ms, 0) <= 86400000"
        late = _not_before(since, "started_at", "returned_at", "ended_at")
        return self._queue_query(RECEIVE_ATTEMPTS, columns, f"{found} AND {waited} AND {late} AND {where}", **inputs)

    def _redeliveries_query(self) -> BoundQuery:
        """Return the query for messages that were delivered again after a reader acknowledged them."""
        columns = "'wire' AS source, CAST(NULL AS string) AS queue_manager, queue, lookup_id"
        where = f"{_IS_DELIVERED_AGAIN} AND {_not_before(self.since - DAY_US, 'settled_at')}"
        return self._queue_query(ACK_SEQUENCES, columns, where)

    def _sources_query(self) -> BoundQuery:
        """Return the query for sequences whose sender and receiver disagree."""
        columns = f"{', '.join(_SOURCE_COLUMNS)}, 'collector' AS source"  # its queue managers are named, not addresses
        where = f"disagrees_with_sender IS NOT NULL AND {_not_before(self.day, 'observed_at')}"
        return self._queue_query(EOD_SOURCES, columns, where)

    def _kinds_query(self) -> BoundQuery:
        """Return the query for snapshots that tell whether a queue is transactional: the first one of each hour."""
        since = _not_before(_use_time(self.since) - MAX_SNAPSHOT_DISTANCE_US, "observed_at")
        names = ", ".join(_KIND_COLUMNS)
        hour = "queue_manager, queue, upper(xact), date_trunc('hour', observed_at)"
        place = f"row_number() OVER (PARTITION BY {hour} ORDER BY observed_at, snapshot_id) AS place"
        found = self._queue_query(QUEUE_SNAPSHOTS, f"{names}, upper(xact) AS xact, {place}", f"{_HAS_KIND} AND {since}")
        return found.wrap(f"SELECT {names}, xact FROM {{answer}} WHERE place = 1")

    def _receives_query(self, where: str = "TRUE", **inputs: QueryInput) -> BoundQuery:
        """Return the query for receives of RemoteRead in a transaction that were answered MQ_OK."""
        done = "protocol = 'RemoteRead' AND transaction_id IS NOT NULL AND is_receive AND start_hresult = 0"
        late = f"returned_at IS NOT NULL AND {_not_before(_use_time(self.since), 'returned_at')}"
        columns = _use_columns("receive", call_key="CAST(NULL AS string)", at="returned_at")
        return self._queue_query(RECEIVE_ATTEMPTS, columns, f"{done} AND {late} AND {where}", **inputs)

    def _moves_query(self, where: str = "TRUE", **inputs: QueryInput) -> BoundQuery:
        """Return the query for moves that were answered MQ_OK, by the queue that is or has the target."""
        at = "coalesce(responded_at, requested_at)"
        columns = _use_columns("move", queue=_TARGET_QUEUE, attempt_key="CAST(NULL AS string)", at=at)
        late = f"{at} IS NOT NULL AND {_not_before(_use_time(self.since), 'responded_at', 'requested_at')}"
        done = f"operation = 'move' AND outcome = 'done' AND {_TARGET_QUEUE} IS NOT NULL AND {late}"
        ours = "TRUE"
        if self.queues is not None:
            ours, inputs = "queue IN {queues}", {"queues": self.queues, **inputs}
        moves = f"(SELECT {columns} FROM {{rows}} WHERE {done}) AS moves"
        return BoundQuery(f"SELECT * FROM {moves} WHERE {ours} AND {where}", {"rows": QUEUE_OPERATIONS, **inputs})

    def _calls_query(self, where: str = "TRUE", **inputs: QueryInput) -> BoundQuery:
        """Return the query for the calls of reads and reports, without dates long before ``since``."""
        days = "TRUE"
        if self.since > 2 * DAY_US:
            first = date(1970, 1, 1) + timedelta(days=self.since // DAY_US - 2)
            days = f"({EVENT_DATE} IS NULL OR {EVENT_DATE} >= DATE'{first}')"
        sql = f"""
SELECT call_key, capture_id, request_at, arrived_at, cursor_handle
FROM (SELECT call_key, capture_id, request_at FROM {{rows}} WHERE {days} AND {where}) AS calls
LEFT JOIN (SELECT call_key, arrived_at, cursor_handle FROM {{reads}} WHERE {days} AND {where}) AS reads
USING (call_key)"""
        return BoundQuery(sql, {"rows": RPC_CALLS, "reads": REMOTE_READ_CALLS, **inputs})


def _use_time(since: int) -> int:
    """Return the time from which calls are looked at, where snapshots changed since a time."""
    return max(since - MAX_SNAPSHOT_DISTANCE_US, _EARLIEST_US)


def _use_columns(operation: str, **columns: str) -> str:
    """Return the SQL of the columns of a use of a queue; ``columns`` are those that have another name or none."""
    own = {"source": "'wire'", "queue_manager": "server_address", "queue": "queue", "operation": f"'{operation}'"}
    own |= {name: name for name in _USE_COLUMNS} | columns
    return ", ".join(text if text == name else f"{text} AS {name}" for name, text in own.items())


def _not_before(at: int, *columns: str) -> str:
    """Return the SQL condition that one of some times is not before a time; it lets files be skipped."""
    return f"({' OR '.join(f'{name} >= timestamp_micros({max(at, 0)})' for name in columns)})"
