"""What is told of queues, for findings: brought here of the queues that changed, or judged in Spark where it is much.

Findings of growth and of ends that disagree are one for each day; all others are of a moment, and rest on what lies
within ``history.max_gap`` of it, or, for a message that came back, within a day. So of a queue of which something
changed since a time, those from that day, or from a little before that time on, are made again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial, reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pipeline.findings import evaluate_queues as judging
from pipeline.findings.evaluate import SCHEMA
from pipeline.findings.rules.queue_facts import DAY_US, Limits
from pipeline.lake.change_feeds import Feeds
from pipeline.lake.concurrency import gather
from pipeline.lake.lake import Lake
from pipeline.lake.queries import Question, Source
from pipeline.lake.settings import unmeasured
from pipeline.queues import queue_rows
from pipeline.queues.queue_managers import Machines
from pipeline.queues.queue_rows import Names
from pipeline.queues.recompute_queues import texts_of
from pipeline.silver import queue_aliases
from pipeline.silver.queue_aliases import Known
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.eod import EOD_SOURCES
from schemas.findings import FINDINGS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.receive_attempts import RECEIVE_ATTEMPTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE, Table

BELOW: Final = (QUEUE_SNAPSHOTS, RECEIVE_ATTEMPTS, EOD_SOURCES, ACK_SEQUENCES, QUEUE_ALIASES)
MOST: Final = 200_000  # things told of queues that are brought here; of more, all is judged in Spark
_MOST_QUEUES: Final = 5000  # that are followed one by one
_RULES: Final = {
    "counts": ("O03", "O04"),
    "reports": ("O06",),
    "again": ("Q22", "Q24", "R53"),
    "sources": ("O05",),
}
"""The rules that are asked of what is read first; the reads are those of reports, or of what came again."""
_DAILY: Final = (*_RULES["counts"], *_RULES["sources"])
_COUNTED: Final = (  # queues whose own number of messages is looked at
    "(right(queue, 10) = '_deadqueue'"
    " OR queue LIKE '%;journal' OR queue LIKE '%;deadletter' OR queue LIKE '%;deadxact')"
)
_WAITED: Final = ("timed_out", "cancelled")
_ALWAYS: Final = 0  # a time before all others

_COUNTS: Final = ("source", "queue_manager", "queue", "observed_at", "snapshot_id", "message_count",
                  "journal_message_count")  # fmt: skip
_REPORTS: Final = ("source", "queue_manager", "queue", "observed_at", "snapshot_id", "call_key", "message_count",
                   "subqueue_count")  # fmt: skip
_READS: Final = (
    "source", "queue_manager", "queue", "attempt_key", "protocol", "server_address", "client_address", "connection_id",
    "action_name", "is_receive", "transactional", "started_at", "returned_at", "ended_at", "lookup_id", "message_key",
    "start_hresult", "outcome", "ack_refused", "ack_unanswered", "evidence", "missing", "errors", "run_id",
)  # fmt: skip
_SOURCES: Final = ("queue_manager", "queue", "observed_at", "source_key", "sender_queue_manager",
                   "disagrees_with_sender", "evidence")  # fmt: skip
_CONNECTIONS: Final = "SELECT connection_id, first_packet_at, association_group_id FROM {rows}"
_ASKED_AT: Final = "SELECT snapshot_id, asked_at FROM {rows}"

# Messages that were handed out again after one reader acknowledged them.
_AGAIN: Final = (
    "queue IS NOT NULL AND lookup_id IS NOT NULL AND message_key IS NOT NULL "
    "AND array_position(outcomes, 'acked') BETWEEN 1 AND size(outcomes) - 1"
)


def _first(where: str, *times: str) -> str:
    """Ask for the queues of what changed, and since when something of each did."""
    at = f"min(unix_micros(coalesce({', '.join((*times, 'NULL'))})))"
    return f"SELECT queue, {at} AS `at` FROM {{feed}} WHERE queue IS NOT NULL AND {where} GROUP BY queue"


_COUNTED_ROWS: Final = "hresult = 0 AND (message_count IS NOT NULL OR journal_message_count IS NOT NULL)"
_CHANGED: Final[dict[Table, tuple[str, tuple[str, ...]]]] = {
    QUEUE_SNAPSHOTS: (_first(_COUNTED_ROWS, "observed_at"), ("counts", "reports")),
    RECEIVE_ATTEMPTS: (_first("TRUE", "started_at", "returned_at", "ended_at"), ("reports",)),
    EOD_SOURCES: (_first("disagrees_with_sender IS NOT NULL", "observed_at"), ("sources",)),
    ACK_SEQUENCES: (_first(_AGAIN, "first_attempt_at"), ("again",)),
}
"""What of each table's changes tells queues and times, and what is read again then."""

Rows = list[dict[str, Any]]


@dataclass(slots=True)
class Touched:
    """The queues, canonical texts, of which something changed, since when, microseconds, and what (of ``_RULES``)."""

    queues: set[str] = field(default_factory=set)
    since: int = 1 << 62
    what: set[str] = field(default_factory=set)

    def take(self, queue: str | None, at: int | None, what: Iterable[str]) -> None:
        """Note that something changed of a queue at a time."""
        if queue is not None:
            self.queues.add(queue)
            self.since = min(self.since, max(at or _ALWAYS, _ALWAYS))
            self.what.update(what)


@dataclass(frozen=True, slots=True)
class Queues:
    """What is read of the lake, and what queues and queue managers are called."""

    lake: Lake
    limits: Limits
    addresses: Mapping[str, str]  # the configured names of queue managers

    def touched(self, made: Mapping[str, Any], rests_on: Mapping[str, Any]) -> Touched | None:
        """Return what changed since a commit; None where that cannot be told, or is too much."""
        if any(made.get(str(table)) is None and rests_on[str(table)] is not None for table in BELOW):
            return None
        feeds = Feeds(self.lake, made, rests_on)
        asked: dict[Table, Callable[[], Any]] = {
            table: partial(feeds.rows, table, ask, _MOST_QUEUES) for table, (ask, _) in _CHANGED.items()
        }
        asked[QUEUE_ALIASES] = partial(queue_aliases.renamed, feeds)
        found = gather(asked)
        if None in found.values():
            return None
        touched = Touched()
        if not any(found.values()):
            return touched
        names = self._names()
        for text in found.pop(QUEUE_ALIASES):
            touched.take(text, _ALWAYS, _RULES)
            touched.take(names.queue(text), _ALWAYS, _RULES)
        for table, (_, what) in _CHANGED.items():
            for row in found[table]:
                touched.take(names.queue(row["queue"]), row["at"], what)
        return touched

    def _names(self) -> Names:
        return Names(Machines(self.addresses), Known.of(self.lake).texts)

    def bring(self, touched: Touched) -> tuple[pa.Table, pa.Table]:
        """Return the findings of what is touched as they are now, and as they were."""
        if not touched.queues:
            return SCHEMA.empty_table(), SCHEMA.empty_table()
        since = max(touched.since - self.limits.max_gap, _ALWAYS)
        day = touched.since // DAY_US * DAY_US
        daily = f"rule_id IN ({', '.join(map(repr, _DAILY))})"
        late = f"(({daily} AND {_since(day, 'observed_at')}) OR (NOT {daily} AND {_since(since, 'observed_at')}))"
        rules = [rule for what in sorted(touched.what) for rule in _RULES[what]]
        where = f"scope = '{judging.SCOPE}' AND queue IN {{queues}} AND rule_id IN {{rules}} AND {late}"
        was = self.lake.select(FINDINGS, where, SCHEMA.names, queues=touched.queues, rules=rules).cast(SCHEMA)
        asked = _Asked(self.lake, self.limits, self._names(), touched.queues, since, day, frozenset(touched.what))
        rows = self._judged(asked)
        at = rows.column("observed_at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        is_daily = pc.is_in(rows.column("rule_id"), pa.array(_DAILY))
        kept = pc.greater_equal(at, pc.if_else(is_daily, pa.scalar(day), pa.scalar(since)))
        return rows.filter(kept), was

    def anew(self) -> pa.Table:
        """Return the findings of all there is."""
        return self._judged(_Asked(self.lake, self.limits, self._names(), None, _ALWAYS, _ALWAYS, frozenset(_RULES)))

    def _judged(self, asked: _Asked) -> pa.Table:
        few = asked.here()
        return asked.in_spark() if few is None else judging.findings(few, self.limits)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is told of some queues, or of all (None): from a time on, what is counted by days from a day on."""

    lake: Lake
    limits: Limits
    names: Names
    queues: Collection[str] | None
    since: int
    day: int
    what: frozenset[str]

    def here(self) -> dict[str, Rows] | None:
        """Return it, named; None where it is more than is brought here."""
        told: dict[str, Rows] = {name: [] for name in (*judging.PARTS, "again")}
        asked = {"counts": self._counts, "reports": self._reports, "again": self._again, "sources": self._sources}
        if not self._bring(told, {name: ask() for name, ask in asked.items() if name in self.what}):
            return None
        if not self._bring_reads(told):
            return None
        reads, reports = told["reads"], told["reports"]
        keys = {each for row in reads for each in row["evidence"] or ()}
        keys |= {row["call_key"] for row in reports if row["call_key"] is not None}
        snapshots = {row["snapshot_id"] for row in reports if row["call_key"] is None}
        more: dict[str, Question] = {}
        if keys:
            more["calls"] = self._calls("call_key IN {keys}", keys=keys)
            names = {row["connection_id"] for row in reads}
            more["connections"] = Question(f"{_CONNECTIONS} WHERE connection_id IN {{names}}",
                                            {"rows": CONNECTIONS, "names": names})  # fmt: skip
        if snapshots:
            more["asked"] = Question(f"{_ASKED_AT} WHERE snapshot_id IN {{names}}",
                                      {"rows": SNAPSHOTS_RAW, "names": snapshots})  # fmt: skip
        found = gather({name: partial(self.lake.query, each.sql, **each.of) for name, each in more.items()})
        brought = {name: judging.plain(rows) for name, rows in found.items()}
        told |= {name: brought.get(name, []) for name in ("calls", "connections")}
        calls = {row["call_key"]: row for row in told["calls"]}
        times = {row["snapshot_id"]: row["asked_at"] for row in brought.get("asked", ())}
        for row in reports:
            call = calls.get(row["call_key"], {})
            at = call.get("request_at") or times.get(row["snapshot_id"]) or row["observed_at"]
            row |= {"capture_id": call.get("capture_id"), "asked_at": min(at, row["observed_at"])}
        return told

    def _bring(self, told: dict[str, Rows], questions: Mapping[str, Question]) -> bool:
        """Bring rows, with the names of gold; tell whether they are few enough."""
        some = {name: each.within(f"SELECT * FROM {{answer}} LIMIT {MOST + 1}") for name, each in questions.items()}
        found = gather({name: partial(self.lake.query, each.sql, **each.of) for name, each in some.items()})
        for name, rows in found.items():
            told[name] = queue_rows.named(judging.plain(rows), self.names)
        return all(rows.num_rows <= MOST for rows in found.values())

    def _bring_reads(self, told: dict[str, Rows]) -> bool:
        """Bring the reads of queues with reports, and of messages that came again."""
        asked = {}
        if reported := {row["queue"] for row in told["reports"]}:
            asked["reads"] = self._reads(self.since - self.limits.max_gap, "queue IN {some}", some=reported)
        if again := {(row["queue"], row["lookup_id"]) for row in told["again"]}:
            asked["more"] = self._reads(
                self.since - DAY_US, "queue IN {some} AND lookup_id IN {numbers}",
                some={queue for queue, _ in again}, numbers={int(lookup_id) for _, lookup_id in again},
            )  # fmt: skip
        if not self._bring(told, asked):
            return False
        both = {row["attempt_key"]: row for row in (*told["reads"], *told.pop("more", ()))}
        told["reads"] = list(both.values())
        read = {row["queue"] for row in told["reads"]}
        told["reports"] = [row for row in told["reports"] if row["queue"] in read]
        return True

    def in_spark(self) -> pa.Table:
        """Return the findings, judged queue by queue in tasks of Spark."""

        def frame(asked: Question) -> DataFrame:
            return self.lake.frame(asked.sql, **asked.of)

        reports, again = frame(self._reports()), frame(self._again())
        reads = self._named(frame(self._reads(_ALWAYS)))
        about = self._named(reports).select("queue", F.lit(None).cast("string").alias("_lookup"))
        about = about.unionByName(again.select("queue", F.col("lookup_id").cast("string").alias("_lookup"))).distinct()
        met = (reads["queue"] == about["queue"]) & (
            about["_lookup"].isNull() | (about["_lookup"] == reads["lookup_id"].cast("string"))
        )
        reads = reads.join(about, met, "left_semi")
        calls = frame(self._calls())
        asked = reports.join(calls.select("call_key", "capture_id", "request_at"), "call_key", "left")
        asked = asked.join(frame(Question(_ASKED_AT, {"rows": SNAPSHOTS_RAW})), "snapshot_id", "left")
        at = F.least(F.coalesce("request_at", "asked_at", "observed_at"), "observed_at")
        asked = asked.withColumn("asked_at", at).drop("request_at")
        rests_on = reads.select("queue", F.explode("evidence").alias("call_key")).distinct()
        through = reads.select("queue", "connection_id").distinct()
        connections = frame(Question(_CONNECTIONS, {"rows": CONNECTIONS}))
        frames = {
            "counts": frame(self._counts()),
            "reports": asked,
            "reads": reads,
            "calls": rests_on.join(calls, "call_key"),
            "connections": through.join(connections, "connection_id"),
            "sources": frame(self._sources()),
        }
        columns = {name: tuple(frame.columns) for name, frame in frames.items()}
        parts = [frame.withColumn("part", F.lit(name)) for name, frame in frames.items()]
        every = self._named(reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts))
        limits = self.limits

        def judge(rows: pa.Table) -> pa.Table:
            told = {name: judging.plain(part) for name, part in judging.of_parts(rows, columns).items()}
            return judging.findings(told, limits)

        with unmeasured(self.lake.spark):
            return every.groupBy("queue").applyInArrow(judge, FINDINGS.struct()).toArrow().cast(SCHEMA)

    def _named(self, rows: DataFrame) -> DataFrame:
        """Return rows with what queues and queue managers are called."""
        schema = StructType([*rows.schema.fields])
        arrow, names = to_arrow_schema(schema), self.names

        def rename(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield pa.RecordBatch.from_pylist(queue_rows.named(batch.to_pylist(), names), schema=arrow)

        return rows.mapInArrow(rename, schema)

    # What is read of each table

    def _of(self, table: Table, columns: str, where: str, /, **of: Source) -> Question:
        """Ask for columns of rows of the queues; of snapshots these are normal forms, elsewhere canonical texts."""
        if self.queues is None:
            return Question(
                f"SELECT {columns} FROM {{rows}} WHERE queue IS NOT NULL AND {where}", {"rows": table, **of}
            )
        names = texts_of(self.queues, self.names) if table is QUEUE_SNAPSHOTS else self.queues
        sql = f"SELECT {columns} FROM {{rows}} WHERE queue IN {{queues}} AND {where}"
        return Question(sql, {"rows": table, "queues": names, **of})

    def _counts(self) -> Question:
        """Ask for the reports of dead letters, and of journals that ever held anything."""
        since = _since(self.day - self.limits.slow_window, "observed_at")
        looked = f"CASE WHEN {_COUNTED} THEN message_count END AS message_count"
        names = ", ".join(looked if name == "message_count" else name for name in _COUNTS)
        most = "max(journal_message_count) OVER (PARTITION BY queue) AS most"
        found = self._of(QUEUE_SNAPSHOTS, f"{names}, {most}", f"hresult = 0 AND {since}")
        kept = "most > 0 OR message_count IS NOT NULL"
        return found.within(f"SELECT {', '.join(_COUNTS)} FROM {{answer}} WHERE {kept}")

    def _reports(self) -> Question:
        local = "(upper(state) = 'LOCAL CONNECTION' OR upper(location) = 'LOCAL') AND message_count IS NOT NULL"
        where = f"hresult = 0 AND {local} AND {_since(self.since, 'observed_at')}"
        return self._of(QUEUE_SNAPSHOTS, ", ".join(_REPORTS), where)

    def _reads(self, since: int, where: str = "TRUE", **of: Source) -> Question:
        """Ask for reads that brought a message, and those that waited for none; not those that waited for days."""
        told = {"source": "'wire' AS source", "queue_manager": "server_address AS queue_manager"}
        found = f"lookup_id IS NOT NULL OR outcome IN ({', '.join(map(repr, _WAITED))})"
        waited = "returned_at IS NOT NULL AND coalesce(wait_ms, 0) <= 86400000"
        return self._of(
            RECEIVE_ATTEMPTS, ", ".join(told.get(name, name) for name in _READS),
            f"({found}) AND {waited} AND {_since(since, 'started_at', 'returned_at', 'ended_at')} AND {where}", **of,
        )  # fmt: skip

    def _again(self) -> Question:
        """Ask for the messages that were handed out again after one reader acknowledged them."""
        columns = "'wire' AS source, CAST(NULL AS string) AS queue_manager, queue, lookup_id"
        return self._of(ACK_SEQUENCES, columns, f"{_AGAIN} AND {_since(self.since - DAY_US, 'settled_at')}")

    def _sources(self) -> Question:
        columns = f"{', '.join(_SOURCES)}, 'collector' AS source"  # its queue managers have their names
        where = f"disagrees_with_sender IS NOT NULL AND {_since(self.day, 'observed_at')}"
        return self._of(EOD_SOURCES, columns, where)

    def _calls(self, where: str = "TRUE", **of: Source) -> Question:
        """Ask for what is looked at of calls; days before the time are left out."""
        days = "TRUE"
        if self.since > 2 * DAY_US:
            first = date(1970, 1, 1) + timedelta(days=self.since // DAY_US - 2)
            days = f"({EVENT_DATE} IS NULL OR {EVENT_DATE} >= DATE'{first}')"
        sql = f"""
SELECT call_key, capture_id, request_at, arrived_at, cursor_handle
FROM (SELECT call_key, capture_id, request_at FROM {{rows}} WHERE {days} AND {where}) AS calls
LEFT JOIN (SELECT call_key, arrived_at, cursor_handle FROM {{reads}} WHERE {days} AND {where}) AS reads
USING (call_key)"""
        return Question(sql, {"rows": RPC_CALLS, "reads": REMOTE_READ_CALLS, **of})


def _since(at: int, *columns: str) -> str:
    """Return the condition that one of some times is not before another; files that hold none are not read."""
    return f"({' OR '.join(f'{name} >= timestamp_micros({max(at, 0)})' for name in columns)})"
