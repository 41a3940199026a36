"""What is told of queues, for findings: brought here of the queues that changed, or judged in Spark where it is much.

Findings of growth and of ends that disagree are one for each day; all others are of a moment, and rest on what lies
within ``history.max_gap`` of it, or, for a message that came back, within a day. So of a queue of which something
changed since a time, those from that day, or from a little before that time on, are made again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.window import Window

from pipeline import aliases, states
from pipeline import findings_of_queues as judging
from pipeline.aliases import Known
from pipeline.feeds import Feeds
from pipeline.findings import SCHEMA
from pipeline.gather import gather
from pipeline.lake import Lake
from pipeline.machines import Machines
from pipeline.queue_facts import DAY_US, Limits
from pipeline.settings import unmeasured
from pipeline.states import Names
from pipeline.states_of_queues import texts_of
from pipeline.touched import only
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.calls import QUEUE_ALIASES
from schemas.eod import EOD_SOURCES
from schemas.findings import FINDINGS
from schemas.gold import RECEIVE_ATTEMPTS
from schemas.properties import QUEUE_SNAPSHOTS
from schemas.silver import REMOTE_READ_CALLS
from schemas.snapshots import SNAPSHOTS_RAW
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
_COUNTED: Final = r";(journal|deadletter|deadxact)$|_deadqueue$"  # queues whose own number of messages is looked at
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
_CALLS: Final = ("call_key", "capture_id", "request_at", "arrived_at", "cursor_handle")
_CONNECTIONS: Final = ("connection_id", "first_packet_at", "association_group_id")

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
        none: set[str] = set()
        asked: dict[Table, Callable[[], Any]] = {
            table: partial(feeds.rows, table, ask, _MOST_QUEUES) for table, (ask, _) in _CHANGED.items()
        }
        asked[QUEUE_ALIASES] = partial(feeds.told, QUEUE_ALIASES, aliases.renamed, none)
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
        moment = F.col("observed_at") >= F.timestamp_micros(F.lit(since))
        daily = F.col("rule_id").isin(*_DAILY) & (F.col("observed_at") >= F.timestamp_micros(F.lit(day)))
        there = only(self.lake.read(FINDINGS).where(F.col("scope") == judging.SCOPE), "queue", touched.queues)
        there = there.where(daily | ~F.col("rule_id").isin(*_DAILY) & moment)
        there = there.where(F.col("rule_id").isin(*(rule for what in sorted(touched.what) for rule in _RULES[what])))
        asked = _Asked(self.lake, self.limits, self._names(), touched.queues, since, day, frozenset(touched.what))
        rows = self._judged(asked)
        at = rows.column("observed_at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        is_daily = pc.is_in(rows.column("rule_id"), pa.array(_DAILY))
        kept = pc.greater_equal(at, pc.if_else(is_daily, pa.scalar(day), pa.scalar(since)))
        was = there.select(*SCHEMA.names).toArrow().cast(SCHEMA)
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
        frames = {"counts": self._counts, "reports": self._reports, "again": self._again, "sources": self._sources}
        if not self._bring(told, {name: frame() for name, frame in frames.items() if name in self.what}):
            return None
        if not self._bring_reads(told):
            return None
        reads, reports = told["reads"], told["reports"]
        keys = {each for row in reads for each in row["evidence"] or ()}
        keys |= {row["call_key"] for row in reports if row["call_key"] is not None}
        asked = {row["snapshot_id"] for row in reports if row["call_key"] is None}
        more: dict[str, DataFrame] = {}
        if keys:
            connections = self.lake.read(CONNECTIONS).select(*_CONNECTIONS)
            more["calls"] = only(self._calls(), "call_key", keys)
            more["connections"] = only(connections, "connection_id", {row["connection_id"] for row in reads})
        if asked:
            more["asked"] = only(self._asked_at(), "snapshot_id", asked)
        brought = {name: judging.plain(rows) for name, rows in gather({n: f.toArrow for n, f in more.items()}).items()}
        told |= {name: brought.get(name, []) for name in ("calls", "connections")}
        calls = {row["call_key"]: row for row in told["calls"]}
        times = {row["snapshot_id"]: row["asked_at"] for row in brought.get("asked", ())}
        for row in reports:
            call = calls.get(row["call_key"], {})
            at = call.get("request_at") or times.get(row["snapshot_id"]) or row["observed_at"]
            row |= {"capture_id": call.get("capture_id"), "asked_at": min(at, row["observed_at"])}
        return told

    def _bring(self, told: dict[str, Rows], frames: Mapping[str, DataFrame]) -> bool:
        """Bring rows, with the names of gold; tell whether they are few enough."""
        found = gather({name: frame.limit(MOST + 1).toArrow for name, frame in frames.items()})
        for name, rows in found.items():
            told[name] = states.named(judging.plain(rows), self.names)
        return all(rows.num_rows <= MOST for rows in found.values())

    def _bring_reads(self, told: dict[str, Rows]) -> bool:
        """Bring the reads of queues with reports, and of messages that came again."""
        frames = {}
        if reported := {row["queue"] for row in told["reports"]}:
            frames["reads"] = only(self._reads(self.since - self.limits.max_gap), "queue", reported)
        if again := {(row["queue"], row["lookup_id"]) for row in told["again"]}:
            theirs = only(self._reads(self.since - DAY_US), "queue", {queue for queue, _ in again})
            frames["more"] = only(theirs, "lookup_id", {str(lookup_id) for _, lookup_id in again})
        if not self._bring(told, frames):
            return False
        both = {row["attempt_key"]: row for row in (*told["reads"], *told.pop("more", ()))}
        told["reads"] = list(both.values())
        read = {row["queue"] for row in told["reads"]}
        told["reports"] = [row for row in told["reports"] if row["queue"] in read]
        return True

    def in_spark(self) -> pa.Table:
        """Return the findings, judged queue by queue in tasks of Spark."""
        reports, again = self._reports(), self._again()
        reads = self._named(self._reads(_ALWAYS))
        about = self._named(reports).select("queue", F.lit(None).cast("string").alias("_lookup"))
        about = about.unionByName(again.select("queue", F.col("lookup_id").cast("string").alias("_lookup"))).distinct()
        met = (reads["queue"] == about["queue"]) & (
            about["_lookup"].isNull() | (about["_lookup"] == reads["lookup_id"].cast("string"))
        )
        reads = reads.join(about, met, "left_semi")
        calls = self._calls()
        asked = reports.join(calls.select("call_key", "capture_id", "request_at"), "call_key", "left")
        asked = asked.join(self._asked_at(), "snapshot_id", "left")
        at = F.least(F.coalesce("request_at", "asked_at", "observed_at"), "observed_at")
        asked = asked.withColumn("asked_at", at).drop("request_at")
        rests_on = reads.select("queue", F.explode("evidence").alias("call_key")).distinct()
        through = reads.select("queue", "connection_id").distinct()
        connections = self.lake.read(CONNECTIONS).select(*_CONNECTIONS)
        frames = {
            "counts": self._counts(),
            "reports": asked,
            "reads": reads,
            "calls": rests_on.join(calls, "call_key"),
            "connections": through.join(connections, "connection_id"),
            "sources": self._sources(),
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
                yield pa.RecordBatch.from_pylist(states.named(batch.to_pylist(), names), schema=arrow)

        return rows.mapInArrow(rename, schema)

    # What is read of each table

    def _of(self, rows: DataFrame, *, raw: bool = False) -> DataFrame:
        if self.queues is None:
            return rows.where("queue IS NOT NULL")
        return only(rows, "queue", texts_of(self.queues, self.names) if raw else self.queues)

    def _snapshots(self, since: int) -> DataFrame:
        good = self._of(self.lake.read(QUEUE_SNAPSHOTS), raw=True).where("hresult = 0")
        return good.where(_since(since, "observed_at"))

    def _counts(self) -> DataFrame:
        """Return the reports of dead letters, and of journals that ever held anything."""
        rows = self._snapshots(self.day - self.limits.slow_window).select(*_COUNTS)
        looked = F.col("queue").rlike(_COUNTED)
        rows = rows.withColumn("message_count", F.when(looked, F.col("message_count")))
        most = F.max("journal_message_count").over(Window.partitionBy("queue"))
        return (
            rows.withColumn("_most", most)
            .where((F.col("_most") > 0) | F.col("message_count").isNotNull())
            .drop("_most")
        )

    def _reports(self) -> DataFrame:
        local = (F.upper("state") == "LOCAL CONNECTION") | (F.upper("location") == "LOCAL")
        return self._snapshots(self.since).where(local & F.col("message_count").isNotNull()).select(*_REPORTS)

    def _asked_at(self) -> DataFrame:
        return self.lake.read(SNAPSHOTS_RAW).select("snapshot_id", "asked_at")

    def _reads(self, since: int) -> DataFrame:
        """Return reads that brought a message, and those that waited for none; not those that waited for days."""
        rows = self._of(self.lake.read(RECEIVE_ATTEMPTS)).where(_since(since, "started_at", "returned_at", "ended_at"))
        rows = rows.where(F.col("lookup_id").isNotNull() | F.col("outcome").isin(*_WAITED))
        rows = rows.where("returned_at IS NOT NULL AND coalesce(wait_ms, 0) <= 86400000")
        return rows.withColumns({"source": F.lit("wire"), "queue_manager": F.col("server_address")}).select(*_READS)

    def _again(self) -> DataFrame:
        """Return the messages that were handed out again after one reader acknowledged them."""
        rows = self._of(self.lake.read(ACK_SEQUENCES)).where(_AGAIN).where(_since(self.since - DAY_US, "settled_at"))
        nobody = {"source": F.lit("wire"), "queue_manager": F.lit(None).cast("string")}
        return rows.withColumns(nobody).select("source", "queue_manager", "queue", "lookup_id")

    def _sources(self) -> DataFrame:
        rows = self._of(self.lake.read(EOD_SOURCES)).where(_since(self.day, "observed_at"))
        rows = rows.where("disagrees_with_sender IS NOT NULL").select(*_SOURCES)
        return rows.withColumn("source", F.lit("collector"))  # its queue managers have their names

    def _calls(self) -> DataFrame:
        """Return what is asked of calls; days before the time are left out."""
        days: Column = F.lit(True)  # noqa: FBT003
        if self.since > 2 * DAY_US:
            first = F.timestamp_micros(F.lit(self.since - 2 * DAY_US)).cast("date")
            days = F.col(EVENT_DATE).isNull() | (F.col(EVENT_DATE) >= first)
        calls = self.lake.read(RPC_CALLS).where(days).select("call_key", "capture_id", "request_at")
        reads = self.lake.read(REMOTE_READ_CALLS).where(days).select("call_key", "arrived_at", "cursor_handle")
        return calls.join(reads, "call_key", "left").select(*_CALLS)


_AGAIN: Final = (
    "queue IS NOT NULL AND lookup_id IS NOT NULL AND message_key IS NOT NULL "
    "AND array_position(outcomes, 'acked') BETWEEN 1 AND size(outcomes) - 1"
)


def _since(at: int, *columns: str) -> Column:
    """Tell of rows that one of their times is not before another; files that hold none are not read."""
    return reduce(Column.__or__, (F.col(name) >= F.timestamp_micros(F.lit(max(at, 0))) for name in columns))


def _first(rows: DataFrame, *times: str) -> DataFrame:
    """Return the queues of rows, and since when something of each changed."""
    at = F.min(F.unix_micros(F.coalesce(*times))).alias("at")
    return rows.where("queue IS NOT NULL").groupBy("queue").agg(at)


def _snapshots_changed(feed: DataFrame) -> DataFrame:
    told = F.col("message_count").isNotNull() | F.col("journal_message_count").isNotNull()
    return _first(feed.where("hresult = 0").where(told), "observed_at")


_CHANGED: Final[dict[Table, tuple[Callable[[DataFrame], DataFrame], tuple[str, ...]]]] = {
    QUEUE_SNAPSHOTS: (_snapshots_changed, ("counts", "reports")),
    RECEIVE_ATTEMPTS: (lambda feed: _first(feed, "started_at", "returned_at", "ended_at"), ("reports",)),
    EOD_SOURCES: (lambda feed: _first(feed.where("disagrees_with_sender IS NOT NULL"), "observed_at"), ("sources",)),
    ACK_SEQUENCES: (lambda feed: _first(feed.where(_AGAIN), "first_attempt_at"), ("again",)),
}
"""What of each table's changes tells queues and times, and what is read again then."""
