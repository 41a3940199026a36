"""Queries for what the rules on queues look at (``Lake.map_groups``), each with the canonical name of the ``queue``.

Snapshots have any name of a queue, tables of gold have canonical names. Most queues have no snapshots that rules look
at: a first query tells which ones have, and the others read of these queues only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from pipeline.findings.rules.queue_facts import QueueRuleLimits
from pipeline.findings.rules.transactional_queues import MAX_SNAPSHOT_DISTANCE_US
from pipeline.lake.queries.inputs import BoundQuery, QueryInput
from pipeline.queues.queue_rows import QueueNames, since_sql
from pipeline.queues.recompute_queues import queue_name_variants
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.calls import REMOTE_READ_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.eod import EOD_SOURCES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.table import EVENT_DATE, Table
from udfs.call_results import QMMGMT_SUCCEEDED_SQL
from udfs.rows import RowMapping
from udfs.times import DAY_US, us_to_datetime

_IS_LOCAL: Final = "(upper(state) = 'LOCAL CONNECTION' OR upper(location) = 'LOCAL')"
HAS_COUNTS: Final = f"({QMMGMT_SUCCEEDED_SQL} AND (message_count IS NOT NULL OR journal_message_count IS NOT NULL))"
"""The condition of snapshots that report a number of messages."""
HAS_KIND: Final = f"({QMMGMT_SUCCEEDED_SQL} AND {_IS_LOCAL} AND upper(xact) IN ('YES', 'NO'))"
"""The condition of snapshots that tell whether a queue is transactional."""
IS_DELIVERED_AGAIN: Final = (
    "(queue IS NOT NULL AND lookup_id IS NOT NULL AND message_key IS NOT NULL "
    "AND array_position(outcomes, 'acked') BETWEEN 1 AND size(outcomes) - 1)"
)
"""The condition of messages that were delivered again after a reader acknowledged them."""
TARGET_QUEUE: Final = "split_part(target_queue, ';', 1)"
"""The queue that is the target of a move, or has it: a queue is transactional with its subqueues."""

_IS_COUNTED_QUEUE: Final = (  # journals, and queues of dead letters
    "(right(queue, 10) = '_deadqueue'"
    " OR queue LIKE '%;journal' OR queue LIKE '%;deadletter' OR queue LIKE '%;deadxact')"
)
# Reads that returned a message, or waited, for at most a day, and got none.
_IS_READ: Final = (
    "(lookup_id IS NOT NULL OR outcome IN ('timed_out', 'cancelled'))"
    " AND returned_at IS NOT NULL AND coalesce(wait_ms, 0) <= 86400000"
)
# Receives of RemoteRead in a transaction, and moves, that were answered MQ_OK.
_IS_RECEIVE: Final = "protocol = 'RemoteRead' AND transaction_id IS NOT NULL AND is_receive AND start_hresult = 0"
_IS_MOVE: Final = "operation = 'move' AND outcome = 'done'"

_SNAPSHOT_COLUMNS: Final = "source, queue_manager, canonical_queue AS queue, observed_at, snapshot_id"
_OF_SERVER: Final = "'wire' AS source, server_address AS queue_manager"
_READ_COLUMNS: Final = f"""
{_OF_SERVER}, queue, attempt_key, protocol, server_address, client_address, connection_id, action_name, is_receive,
transactional, started_at, returned_at, ended_at, lookup_id, message_key, start_hresult, outcome, ack_refused,
ack_unanswered, evidence, missing, errors, run_id"""
_USE_COLUMNS: Final = "transaction_id, lookup_id, client_address, server_address, connection_id, evidence, run_id"


def use_time(since: int) -> int:
    """Return the time from which uses of queues are looked at, where snapshots changed since a time."""
    return max(since - MAX_SNAPSHOT_DISTANCE_US, 0)


@dataclass(frozen=True, slots=True)
class QueueFactQueries:
    """The queries for the facts of some queues, or of all (None), from the time ``since`` on, counts from ``day`` on.

    ``parts`` are the keys of ``queue_inputs.RULES_BY_PART`` that are needed.
    """

    limits: QueueRuleLimits
    names: QueueNames
    queues: Collection[str] | None
    since: int
    day: int
    parts: Collection[str]

    def snapshots_query(self) -> BoundQuery:
        """Return the query for the names that snapshots have of the queues, and which snapshots each of them has.

        The boolean columns are ``counts`` (of queues that are counted, or with a journal that was ever not empty),
        ``reports``, ``kinds`` and ``not_transactional``.
        """
        counted = f"({_IS_COUNTED_QUEUE} AND message_count IS NOT NULL OR journal_message_count > 0)"
        columns = f"""
queue, bool_or({self._has_counts} AND {counted}) AS counts, bool_or({self._is_report}) AS reports,
bool_or({self._has_kind}) AS kinds, bool_or({self._has_kind} AND upper(xact) = 'NO') AS not_transactional"""
        any_of_them = f"({self._has_counts} OR {self._is_report} OR {self._has_kind})"
        found = self._of_queues(QUEUE_SNAPSHOTS, columns, any_of_them)
        return found._replace(sql=f"{found.sql} GROUP BY queue")

    def of_facts(self, snapshots: Collection[RowMapping]) -> dict[str, BoundQuery]:
        """Return the queries by ``evaluate_queues.FACT_PARTS``; ``snapshots`` are the rows of ``snapshots_query``."""

        def named(part: str, column: str) -> list[str]:
            return [row["queue"] for row in snapshots if part in self.parts and row[column]]

        queries: dict[str, BoundQuery] = {}
        if counted := named("counts", "counts"):
            queries["counts"] = self._counts_query(counted)
        reported = named("reports", "reports")
        if reported or "again" in self.parts:
            reads = self._reads_query(reported)
            queries |= {"reads": _with_connections(reads), "calls": self._calls_query(reads)}
            if reported:
                queries["reports"] = self._reports_query(reported, reads)
        if of_kind := named("kinds", "kinds"):
            queries["kinds"] = self._kinds_query(of_kind)
            queries["uses"] = self._uses_query(of_kind, named("kinds", "not_transactional"))
        if "sources" in self.parts:
            queries["sources"] = self._sources_query()
        return queries

    # Snapshots

    @property
    def _has_counts(self) -> str:
        return f"({HAS_COUNTS} AND {since_sql(self.day - self.limits.growth_window, 'observed_at')})"

    @property
    def _is_report(self) -> str:
        """The condition of reports of how many messages a local queue has."""
        local = f"{QMMGMT_SUCCEEDED_SQL} AND {_IS_LOCAL} AND message_count IS NOT NULL"
        return f"({local} AND {since_sql(self.since, 'observed_at')})"

    @property
    def _has_kind(self) -> str:
        return f"({HAS_KIND} AND {since_sql(use_time(self.since) - MAX_SNAPSHOT_DISTANCE_US, 'observed_at')})"

    def _snapshots(self, names: Iterable[str], columns: str, where: str) -> BoundQuery:
        """Return the query for snapshots of queues by names, with the ``canonical_queue``."""
        always = "source, queue_manager, queue, observed_at, snapshot_id"
        found = f"SELECT {always}, {columns} FROM {{snapshots}} WHERE {where}"
        sql = f"SELECT found.*, canonical_queue FROM ({found}) AS found JOIN {{names}} AS names USING (queue)"
        return BoundQuery(sql, {"snapshots": QUEUE_SNAPSHOTS, "names": self.names.as_table(names)})

    def _counts_query(self, names: Iterable[str]) -> BoundQuery:
        """Return the query for counts of dead-letter queues and of journals."""
        counted = f"CASE WHEN {_IS_COUNTED_QUEUE} THEN message_count END AS message_count"
        found = self._snapshots(names, f"{counted}, journal_message_count", self._has_counts)
        return found.wrap(f"SELECT {_SNAPSHOT_COLUMNS}, message_count, journal_message_count FROM {{answer}}")

    def _reports_query(self, names: Iterable[str], reads: BoundQuery) -> BoundQuery:
        """Return the query for reports of queues with reads, with the capture of each, and when it was asked for."""
        found = self._snapshots(names, "call_key, message_count, subqueue_count", self._is_report)
        reports = found.wrap(f"""
WITH reports AS (SELECT * FROM {{answer}} WHERE canonical_queue IN (SELECT queue FROM ({reads.sql}))),
  of_calls AS (SELECT call_key AS key, capture_id, request_at FROM {{calls}}
    WHERE {self._days} AND call_key IN (SELECT call_key FROM reports)),
  of_collector AS (SELECT snapshot_id AS id, asked_at FROM {{asked}}
    WHERE snapshot_id IN (SELECT snapshot_id FROM reports))
SELECT {_SNAPSHOT_COLUMNS}, message_count, subqueue_count, capture_id,
  least(coalesce(request_at, asked_at, observed_at), observed_at) AS asked_at
FROM reports LEFT JOIN of_calls ON key = call_key LEFT JOIN of_collector ON id = snapshot_id""")
        return _with_inputs(reports, **reads.inputs, calls=RPC_CALLS, asked=SNAPSHOTS_RAW)

    def _kinds_query(self, names: Iterable[str]) -> BoundQuery:
        """Return the query for snapshots that tell whether a queue is transactional: the first one of each hour."""
        hour = "queue_manager, queue, xact, date_trunc('hour', observed_at)"
        place = f"row_number() OVER (PARTITION BY {hour} ORDER BY observed_at, snapshot_id) AS place"
        found = self._snapshots(names, "upper(xact) AS xact", self._has_kind).wrap(f"SELECT *, {place} FROM {{answer}}")
        return found.wrap(f"SELECT {_SNAPSHOT_COLUMNS}, xact FROM {{answer}} WHERE place = 1")

    # Tables of gold

    def _sources_query(self) -> BoundQuery:
        """Return the query for sequences whose sender and receiver disagree; their queue managers are named."""
        columns = "queue_manager, queue, observed_at, source_key, sender_queue_manager, disagrees_with_sender, evidence"
        where = f"disagrees_with_sender IS NOT NULL AND {since_sql(self.day, 'observed_at')}"
        return self._of_queues(EOD_SOURCES, f"'collector' AS source, {columns}", where)

    def _reads_query(self, reported: Iterable[str]) -> BoundQuery:
        """Return the query for reads of queues that have reports, and of messages that were delivered again."""
        times = ("started_at", "returned_at", "ended_at")
        inputs: dict[str, QueryInput] = {"attempts": RECEIVE_ATTEMPTS, "reported": self._canonical(reported)}
        wanted = f"queue IN {{reported}} AND {since_sql(self.since - self.limits.max_gap, *times)}"
        if "again" in self.parts:
            since = self.since - DAY_US
            where = f"{IS_DELIVERED_AGAIN} AND {since_sql(since, 'settled_at')}"
            again = self._of_queues(ACK_SEQUENCES, "queue, lookup_id", where)
            wanted = f"({wanted} OR {since_sql(since, *times)} AND (queue, lookup_id) IN ({again.sql}))"
            inputs |= again.inputs
        return BoundQuery(f"SELECT {_READ_COLUMNS} FROM {{attempts}} WHERE {_IS_READ} AND {wanted}", inputs)

    def _calls_query(self, reads: BoundQuery) -> BoundQuery:
        """Return the query for the calls of reads."""
        calls = reads.wrap(f"""
WITH wanted AS (SELECT DISTINCT queue, explode(evidence) AS key FROM {{answer}}),
  found AS (SELECT call_key, capture_id FROM {{calls}} WHERE {self._days} AND call_key IN (SELECT key FROM wanted)),
  returned AS (SELECT call_key AS read_key, arrived_at, cursor_handle FROM {{decoded}}
    WHERE {self._days} AND call_key IN (SELECT key FROM wanted))
SELECT queue, call_key, capture_id, arrived_at, cursor_handle
FROM wanted JOIN found ON call_key = key LEFT JOIN returned ON read_key = key""")
        return _with_inputs(calls, calls=RPC_CALLS, decoded=REMOTE_READ_CALLS)

    @property
    def _days(self) -> str:
        """The condition of calls that are not of dates long before ``since``."""
        if self.since <= 2 * DAY_US:
            return "TRUE"
        first = us_to_datetime(self.since - 2 * DAY_US).date()
        return f"({EVENT_DATE} IS NULL OR {EVENT_DATE} >= DATE'{first}')"

    def _uses_query(self, of_kind: Iterable[str], not_transactional: Iterable[str]) -> BoundQuery:
        """Return the query for receives and moves, so far as transactions may be wrong there."""
        since = use_time(self.since)
        sql = f"""
SELECT {_OF_SERVER}, queue, 'receive' AS operation, attempt_key, CAST(NULL AS string) AS call_key, returned_at AS `at`,
  {_USE_COLUMNS}
FROM {{attempts}} WHERE queue IN {{receives}} AND {_IS_RECEIVE} AND {since_sql(since, "returned_at")}
UNION ALL
SELECT {_OF_SERVER}, {TARGET_QUEUE} AS queue, 'move' AS operation, CAST(NULL AS string) AS attempt_key, call_key,
  coalesce(responded_at, requested_at) AS `at`, {_USE_COLUMNS}
FROM {{operations}}
WHERE {TARGET_QUEUE} IN {{moves}} AND {_IS_MOVE} AND {since_sql(since, "responded_at", "requested_at")}"""
        inputs: dict[str, QueryInput] = {"attempts": RECEIVE_ATTEMPTS, "operations": QUEUE_OPERATIONS}
        inputs |= {"receives": self._canonical(not_transactional), "moves": self._canonical(of_kind)}
        return BoundQuery(sql, inputs)

    def _of_queues(self, table: Table, columns: str, where: str) -> BoundQuery:
        """Return the query for columns of the queues' rows in a table."""
        sql = f"SELECT {columns} FROM {{rows}} WHERE {where}"
        if self.queues is None:
            return BoundQuery(f"{sql} AND queue IS NOT NULL", {"rows": table})
        names = queue_name_variants(self.queues, self.names) if table is QUEUE_SNAPSHOTS else self.queues
        return BoundQuery(f"{sql} AND queue IN {{queues}}", {"rows": table, "queues": names})

    def _canonical(self, names: Iterable[str]) -> set[str]:
        return {queue for name in names if (queue := self.names.canonical_queue(name)) is not None}


def _with_inputs(query: BoundQuery, **inputs: QueryInput) -> BoundQuery:
    return query._replace(inputs={**query.inputs, **inputs})


def _with_connections(reads: BoundQuery) -> BoundQuery:
    """Return the query for reads with when their connections began, and the associations that these belong to."""
    found = reads.wrap("""
WITH reads AS {answer},
  began AS (SELECT connection_id AS id, first_packet_at, association_group_id FROM {connections}
    WHERE connection_id IN (SELECT connection_id FROM reads))
SELECT reads.*, first_packet_at, association_group_id FROM reads LEFT JOIN began ON id = connection_id""")
    return _with_inputs(found, connections=CONNECTIONS)
