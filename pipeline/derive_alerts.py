"""gold.alerts follows gold and silver: what a change below can touch is asked again, and nothing else.

Each source is a frame of what one or two tables tell, and the plain function that finds the alerts in its rows; here
where they are few, and in Spark, one subject's rows together, where they are many. The commit says of which versions
of the tables below the rows were made, with which thresholds, and of how many rows. Where these are few all is made
again; else what changed names the earliest day: alerts that were over some time before it (``_slack``) stay, and the
others are made again, of what is told since the first of them began.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial, reduce
from operator import or_
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import TimestampType

from pipeline import alerts_calls, alerts_queues, alerts_transfers
from pipeline.alerts import Alert, Thresholds, rows, us
from pipeline.exchanges import MG
from pipeline.feeds import Feeds
from pipeline.gather import gather
from pipeline.lake import Commit, Lake, versions_of
from pipeline.rows import microseconds, table_of
from pipeline.touched import only
from schemas.alerts import ALERTS
from schemas.bronze import CAPTURE_FILES, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS
from schemas.coverage import COVERAGE
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.findings import FINDINGS
from schemas.gold import RECEIVE_ATTEMPTS
from schemas.messages import MESSAGES
from schemas.properties import QUEUE_SNAPSHOTS
from schemas.queue_history import QUEUE_HISTORY
from schemas.silver import REMOTE_READ_CALLS
from schemas.snapshots import SNAPSHOTS_RAW
from schemas.table import EVENT_DATE, RUN_ID
from udfs.stubs import methods

VERSION: Final = "1"  # another one when alerts are made in another way: then all are made again
MOST: Final = 200_000  # rows of a source that are looked at here; of more, in Spark
FEW: Final = 20_000  # rows of all sources that are looked at again rather than ask what changed
_FED: Final = (
    QUEUE_HISTORY, EOD_TRANSFERS, EOD_SOURCES, RECEIVE_ATTEMPTS, MESSAGES, REMOTE_READ_CALLS, MANAGEMENT_CALLS,
    CLIENT_CALLS, RPC_CALLS, FINDINGS, COVERAGE, SNAPSHOTS_RAW,
)  # fmt: skip
_BELOW: Final = (*_FED, CAPTURE_FILES)
_SCHEMA: Final = to_arrow_schema(ALERTS.struct())
_DAY_US: Final = 86_400_000_000
_FAILED: Final = 0x80000000

Plain = Mapping[str, Any]


class Known(NamedTuple):
    """What the commits of gold tell beside their rows: names of queue managers by address, ends of captures."""

    names: Mapping[str, str]
    ends: Mapping[str, int]


class Span(NamedTuple):
    """The time that is asked about: from ``since`` (None: the beginning) to ``now``, microseconds."""

    since: int | None
    now: int

    def of(self, rows: DataFrame, *times: str) -> DataFrame:
        """Return rows of which a time is in it; files that hold none are not read."""
        found = rows.where(F.coalesce(*times) <= F.timestamp_micros(F.lit(self.now)))
        if self.since is None:
            return found
        since = F.timestamp_micros(F.lit(self.since))
        return found.where(reduce(or_, (F.col(name) >= since for name in times)))


class Source(NamedTuple):
    """A frame of what is told, the columns that all rows of one subject share, and the alerts of such rows."""

    rows: Callable[[Lake, Thresholds, Span], DataFrame]
    subject: tuple[str, ...]
    alerts: Callable[[Iterable[Plain], Thresholds, int, Known], Iterable[Alert]]
    conditions: tuple[str, ...]


def _history(lake: Lake, _: Thresholds, span: Span) -> DataFrame:
    return _plain(span.of(lake.read(QUEUE_HISTORY), "valid_from", "valid_to"), *alerts_queues.COLUMNS)


def _transfers(lake: Lake, _: Thresholds, span: Span) -> DataFrame:
    return _plain(span.of(lake.read(EOD_TRANSFERS), "observed_at"), *alerts_transfers.TRANSFERS)


def _sources(lake: Lake, _: Thresholds, span: Span) -> DataFrame:
    return _plain(span.of(lake.read(EOD_SOURCES), "observed_at"), *alerts_transfers.SOURCES)


def _attempts(lake: Lake, limits: Thresholds, span: Span) -> DataFrame:
    """Return the receives that were held too long, to their reader's end, or whose end was refused."""
    long = f"hold_ms >= {us(limits.held_after) / 1000}"
    trouble = f"outcome IN ('in_flight', 'expired', 'rundown', 'failed') OR ack_refused OR {long}"
    found = span.of(lake.read(RECEIVE_ATTEMPTS), "returned_at", "ended_at")
    return _plain(found.where(f"is_receive AND returned_at IS NOT NULL AND ({trouble})"), *alerts_calls.ATTEMPTS)


def _negative(lake: Lake, _: Thresholds, span: Span) -> DataFrame:
    """Return negative acknowledgements (classes with the highest bit), each at its first sighting, by minutes."""
    kind = alerts_calls.NEGATIVE[:4]
    found = span._replace(since=None).of(lake.read(MESSAGES), "seen_at").where("class >= 32768")
    first = found.groupBy(F.coalesce("message_key", "sighting_key").alias("message"), *kind).agg(
        F.min(F.unix_micros("seen_at")).alias("at"), F.min_by("call_key", F.struct("seen_at", "call_key")).alias("key")
    )
    return _by_minute(first if span.since is None else first.where(f"at >= {span.since}"), *kind)


def _failing(lake: Lake, limits: Thresholds, span: Span) -> DataFrame:
    """Return calls with a failure as result, and faults, by minutes."""
    parts = []
    for table, interface in (
        (REMOTE_READ_CALLS, F.col("protocol")), (MANAGEMENT_CALLS, F.lit(MG)), (CLIENT_CALLS, F.col("interface_name")),
    ):  # fmt: skip
        failed = span.of(lake.read(table), "responded_at", "requested_at").where(f"hresult >= {_FAILED}")
        parts.append(_results(failed, interface, "hresult", ("responded_at", "requested_at"), is_fault=False))
    faults = span.of(lake.read(RPC_CALLS), "response_at", "request_at")
    faults = faults.where("outcome = 'fault' AND fault_status IS NOT NULL")
    faults = faults.where(F.col("interface_name").isin(*methods.ALL))
    times = ("response_at", "request_at")
    parts.append(_results(faults, F.col("interface_name"), "fault_status", times, is_fault=True))
    every = reduce(DataFrame.unionByName, parts)
    if limits.ignored_results:
        every = every.where(~F.col("result").isin(*limits.ignored_results))
    return _by_minute(every, *alerts_calls.FAILING[:5])


def _results(calls: DataFrame, interface: Column, result: str, times: tuple[str, str], *, is_fault: bool) -> DataFrame:
    return calls.select(
        "server_address",
        interface.alias("interface_name"),
        "opnum",
        F.col(result).alias("result"),
        F.lit(is_fault).alias("is_fault"),
        F.unix_micros(F.coalesce(*times)).alias("at"),
        F.col("call_key").alias("key"),
    )


def _judged(lake: Lake, _: Thresholds, span: Span) -> DataFrame:
    found = span.of(lake.read(FINDINGS), "observed_at").where("rule_id IN ('O01', 'O02')")
    return _plain(found, "rule_id", "subject", "observed_at", "actual", "evidence")


def _lost(lake: Lake, _: Thresholds, span: Span) -> DataFrame:
    """Return what captures have and lack of each server, by hours; hours that lack nothing are left out."""
    found = span.of(lake.read(COVERAGE), "hour").where("layer = 'transport' AND server_address IS NOT NULL")
    names = ("bytes", "bytes_missing")
    sums = [F.sum(F.when(F.col("measure") == name, F.col("value"))).alias(name) for name in names]
    hour = F.unix_micros("hour").alias("hour")
    return found.groupBy("server_address", hour).agg(*sums).where("bytes_missing > 0")


def _unanswered(lake: Lake, _: Thresholds, span: Span) -> DataFrame:
    """Return how many snapshots of each queue manager there should be, and failed, by hours where any did."""
    hour = F.unix_micros(F.date_trunc("hour", "asked_at")).alias("hour")
    counts = [F.count("*").alias("expected"), F.count("error").alias("missing"), F.max("error").alias("error")]
    found = span.of(lake.read(SNAPSHOTS_RAW), "asked_at").groupBy("queue_manager", hour).agg(*counts)
    return found.where("missing > 0")


SOURCES: Final = {
    "history": Source(
        _history,
        ("queue_manager", "queue"),
        lambda found, limits, now, _: alerts_queues.queues(found, limits, now),
        ("queue_disconnected", "queue_on_hold", "queue_stuck", "dead_letters_growing", "journal_growing",
         "nearly_full"),
    ),
    "transfers": Source(
        _transfers,
        ("queue_manager", "queue"),
        lambda found, limits, now, _: alerts_transfers.transfers(found, limits, now),
        ("transfer_stalled", "messages_unacknowledged", "messages_unread"),
    ),
    "sources": Source(
        _sources,
        ("queue_manager", "queue"),
        lambda found, limits, now, _: alerts_transfers.sources(found, limits, now),
        ("sequence_gap", "ends_disagree"),
    ),
    "attempts": Source(
        _attempts,
        ("server_address", "client_address"),
        lambda found, limits, now, known: alerts_calls.receives(found, limits, now, known.names, known.ends),
        ("receives_not_ended", "ends_refused"),
    ),
    "negative": Source(
        _negative,
        ("class_name", "source_queue_manager"),
        lambda found, limits, now, _: alerts_calls.negative(found, limits, now),
        ("negative_acknowledgements",),
    ),
    "failing": Source(
        _failing,
        ("server_address", "interface_name", "opnum", "result"),
        lambda found, limits, now, known: alerts_calls.failing(found, limits, now, known.names),
        ("calls_failing",),
    ),
    "judged": Source(
        _judged,
        ("rule_id", "subject"),
        lambda found, limits, now, _: alerts_calls.judged(found, limits, now),
        ("duplicate_queue_manager", "clocks_differ"),
    ),
    "lost": Source(
        _lost,
        ("server_address",),
        lambda found, limits, now, known: alerts_calls.lost(found, limits, now, known.names),
        ("capture_lost",),
    ),
    "unanswered": Source(
        _unanswered,
        ("queue_manager",),
        lambda found, _, now, __: alerts_calls.unanswered(found, now),
        ("snapshots_missing",),
    ),
}  # fmt: skip
"""Where alerts come from."""


def gold(lake: Lake, limits: Thresholds, run_id: str, as_of: datetime | None = None) -> int:
    """Bring gold.alerts to what is told below; return how many rows were written. ``as_of``: what counts as now."""
    work = _Work.of(lake, limits, run_id, as_of)
    return 0 if work is None or work.is_done() else work.follow()


def current(lake: Lake, limits: Thresholds, as_of: datetime | None = None) -> pa.Table:
    """Return the alerts with these thresholds as of a time: the table's, if it is of these. Nothing is written."""
    work = _Work.of(lake, limits, "", as_of)
    if work is None:
        return _SCHEMA.empty_table()
    return lake.read(ALERTS).toArrow().cast(_SCHEMA) if work.is_done() else work.whole()[0]


@dataclass(slots=True)
class _Work:
    """One run's work: what the last commit said, and what this one's will say."""

    lake: Lake
    limits: Thresholds
    run_id: str
    made: dict[str, Any]
    rests_on: dict[str, Any]
    known: Known
    now: int | None = None  # asked for once

    @staticmethod
    def of(lake: Lake, limits: Thresholds, run_id: str, as_of: datetime | None) -> _Work | None:
        """Return the work; None where there is nothing to tell of."""
        newest = lake.newest(*_BELOW, ALERTS)
        if CAPTURE_FILES not in newest and SNAPSHOTS_RAW not in newest:
            return None
        at = None if as_of is None else us(as_of - datetime(1970, 1, 1, tzinfo=UTC))
        rests_on = {**versions_of(newest, _BELOW), **limits.said(), "as_of": at, "alerts": VERSION}
        rests_on = json.loads(json.dumps(rests_on))  # as a commit gives it back
        names = newest.get(QUEUE_HISTORY, Commit(0, None)).made().get("names") or {}
        ends = newest.get(RECEIVE_ATTEMPTS, Commit(0, None)).made().get("ends") or {}
        made = newest.get(ALERTS, Commit(0, None)).made()
        return _Work(lake, limits, run_id, made, rests_on, Known(names, ends))

    def is_done(self) -> bool:
        """Whether the table is of this already."""
        return bool(self.made) and {name: self.made.get(name) for name in self.rests_on} == self.rests_on

    def follow(self) -> int:
        """Bring the table to what there is now."""
        lake = self.lake
        since = self._changed_since()
        if since is None:
            found, looked = self.whole()
            there = lake.read(ALERTS).toArrow()
        else:
            found, there, looked = self._part(since)
        says = json.dumps(self.rests_on | {"looked": looked, "now": self._newest()})
        dates = set(there[EVENT_DATE].to_pylist())
        lake.create(ALERTS)
        return lake.put(ALERTS, found, there, dates=dates, made_of=says, was_made_of=json.dumps(self.made))

    def whole(self) -> tuple[pa.Table, int]:
        """Return all alerts, and of how many rows they were made."""
        return self._found(dict.fromkeys(SOURCES))

    # What changed

    def _changed_since(self) -> int | None:
        """Return the beginning of the earliest day on which something changed; None where all is to be made again."""
        same = (*self.limits.said(), "as_of", "alerts")
        if any(self.made.get(name) != self.rests_on[name] for name in same) or self.rests_on["as_of"] is not None:
            return None
        before, now = self.made.get("now"), self._newest()
        if self.made.get("looked", 0) <= FEW or before is None or now < before:
            return None
        feeds = Feeds(self.lake, self.made, self.rests_on)
        moved = [table for table in _FED if self.made.get(str(table)) != self.rests_on[str(table)]]
        found = gather({table: partial(feeds.rows, table, _first_day, 1) for table in moved})
        if any(told is None for told in found.values()):
            return None
        days = [date(1970, 1, 1) + timedelta(microseconds=before)]
        for told in found.values():
            for day, undated in told or ():
                if undated:
                    return None
                days += [day] if day is not None else []
        return (min(days) - date(1970, 1, 1)).days * _DAY_US

    def _slack(self) -> int:
        """Return how long before a change what it changes can have begun without being told of, or have ended."""
        limits = self.limits
        counts = max(limits.negative, limits.failures) + 1
        spans = (
            limits.disconnected_after, limits.on_hold_after, limits.stuck_after, limits.unacked_after,
            limits.unread_after, limits.stalled_after, limits.slow_window, limits.held_after, limits.cleanup,
            limits.max_gap, limits.window * counts, timedelta(hours=2),
        )  # fmt: skip
        return us(max(spans) + limits.rejoin + limits.max_gap)

    def _part(self, changed: int) -> tuple[pa.Table, pa.Table, int]:
        """Return the alerts that a change on a day can have touched as they are now and as they were; and a count."""
        over = changed - self._slack()
        held = F.col("until").isNull() | (F.unix_micros("until") >= F.lit(over))
        there = self.lake.read(ALERTS).where(held).toArrow()
        begun: dict[str, int] = {}
        at = microseconds(there["since"]).to_pylist()
        for condition, since in zip(there["condition"].to_pylist(), at, strict=True):
            begun[condition] = min(since, begun.get(condition, since))
        since = {
            name: min([over, *(begun[each] for each in source.conditions if each in begun)]) - self._slack()
            for name, source in SOURCES.items()
        }
        found, looked = self._found(since)
        until = microseconds(found["until"]).to_pylist()
        mask = pa.array([each is None or each >= over for each in until], pa.bool_())
        return found.filter(mask), there, max(looked, FEW + 1)

    # What is told

    def _found(self, since: Mapping[str, int | None]) -> tuple[pa.Table, int]:
        """Return the alerts of what each source tells since a time, None: all; and how many rows tell it."""
        spans = {name: Span(since[name], self._newest()) for name in SOURCES}
        found = gather({name: partial(self._ask, source, spans[name]) for name, source in SOURCES.items()})
        table = pa.concat_tables([part for part, _ in found.values()])
        return self._with_reasons(table), sum(count for _, count in found.values())

    def _newest(self) -> int:
        """Return the time of the newest packet or snapshot, or what was said to count as now."""
        at: int | None = self.rests_on["as_of"] if self.now is None else self.now
        if at is None:
            captures = self.lake.read(CAPTURE_FILES).select(F.unix_micros("last_packet_at").alias("at"))
            asked = F.unix_micros(F.coalesce("collected_at", "asked_at")).alias("at")
            newest = captures.unionAll(self.lake.read(SNAPSHOTS_RAW).select(asked)).agg(F.max("at")).first()
            at = 0 if newest is None or newest[0] is None else int(newest[0])
            self.now = at
        return at

    def _ask(self, source: Source, span: Span) -> tuple[pa.Table, int]:
        """Return the alerts of what a source tells of a time, and how many rows tell it."""
        frame = source.rows(self.lake, self.limits, span)
        make = _maker(source, self.limits, span.now, self.known, self.run_id)
        told = frame.limit(MOST + 1).toArrow()
        if told.num_rows <= MOST:
            return make(told), told.num_rows
        many = frame.groupBy(*source.subject).applyInArrow(make, ALERTS.struct())
        return many.toArrow().cast(_SCHEMA), MOST + 1

    def _with_reasons(self, found: pa.Table) -> pa.Table:
        """Return alerts, of queues that are not connected with what the queue manager says of why."""
        every = found.to_pylist()
        ours = {row["evidence"][-1] for row in every if row["condition"] == "queue_disconnected" and row["evidence"]}
        if not ours:
            return found
        asked = only(self.lake.read(QUEUE_SNAPSHOTS), "snapshot_id", ours)
        last = F.expr("try_element_at(connection_history, -1)").alias("last")
        told = {row["snapshot_id"]: row for row in asked.select("snapshot_id", "nexthops", last).toArrow().to_pylist()}
        messages = []
        for row in every:
            why = (
                told.get(row["evidence"][-1]) if row["condition"] == "queue_disconnected" and row["evidence"] else None
            )
            messages.append(row["message"] if why is None else f"{row['message']}{_reason(why)}")
        place = found.column_names.index("message")
        return found.set_column(place, found.schema.field("message"), pa.array(messages, pa.string()))


def _reason(told: Plain) -> str:
    """Return what a queue manager says of a connection, to be put behind a sentence."""
    last, parts = told["last"], []
    if last is not None and last["status_name"]:
        parts.append(f"last {last['status_name']}")
    if last is not None and last["error"]:
        parts.append(f"error {last['error_name']}")
    if told["nexthops"]:
        parts.append(f"next hops {', '.join(told['nexthops'])}")
    return "".join(f"; {part}" for part in parts)


def _maker(source: Source, limits: Thresholds, now: int, known: Known, run_id: str) -> Callable[[pa.Table], pa.Table]:
    """Return the function that gives the alerts of a source's rows."""

    def make(told: pa.Table) -> pa.Table:
        found = rows(source.alerts(told.to_pylist(), limits, now, known))
        return table_of([{**row, RUN_ID: run_id} for row in found], _SCHEMA)

    return make


def _plain(frame: DataFrame, *columns: str) -> DataFrame:
    """Return columns with times in microseconds."""
    times = {each.name for each in frame.schema if isinstance(each.dataType, TimestampType)}
    return frame.select(*(F.unix_micros(name).alias(name) if name in times else F.col(name) for name in columns))


def _by_minute(found: DataFrame, *kind: str) -> DataFrame:
    """Return how many there are of each kind in each minute, from when to when, and the keys of the first and last."""
    minute = F.floor(F.col("at") / F.lit(60_000_000))
    ends = F.array(F.min_by("key", F.struct("at", "key")), F.max_by("key", F.struct("at", "key")))
    counts = [F.min("at").alias("at"), F.max("at").alias("last"), F.count("*").alias("count"), ends.alias("evidence")]
    return found.withColumn("minute", minute).groupBy(*kind, "minute").agg(*counts).drop("minute")


def _first_day(feed: DataFrame) -> DataFrame:
    """Return the earliest date of what changed, and whether any of it has none."""
    return feed.agg(F.min(EVENT_DATE), F.coalesce(F.max(F.col(EVENT_DATE).isNull()), F.lit(False)))  # noqa: FBT003
