"""Where alerts come from: frames of what gold and silver tell, and the functions that find alerts in their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from pipeline import alerts_calls, alerts_queues, alerts_transfers
from pipeline.alert_conditions import Thresholds
from pipeline.alerts import Alert
from pipeline.exchanges import MG
from pipeline.lake import Lake
from pipeline.rows import us
from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS
from schemas.coverage import COVERAGE
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.findings import FINDINGS
from schemas.gold import RECEIVE_ATTEMPTS
from schemas.messages import MESSAGES
from schemas.queue_history import QUEUE_HISTORY
from schemas.silver import REMOTE_READ_CALLS
from schemas.snapshots import SNAPSHOTS_RAW
from udfs.codes import FAILURE
from udfs.stubs import methods

_HOUR_US: Final = 3_600_000_000

Plain = Mapping[str, Any]


class Known(NamedTuple):
    """What the commits of gold tell beside their rows: names of queue managers by address, ends of captures."""

    names: Mapping[str, str]
    ends: Mapping[str, int]


class Span(NamedTuple):
    """The time that is asked about: from ``since`` (None: the beginning) to ``now``, microseconds."""

    since: int | None
    now: int

    def of(self, rows: DataFrame, *times: str, also: str = "FALSE") -> DataFrame:
        """Return rows of which a time is in it, or of which a condition holds that are not later than now.

        Files that hold none are not read.
        """
        found = rows.where(F.coalesce(*times) <= F.timestamp_micros(F.lit(self.now)))
        if self.since is None:
            return found
        since = F.timestamp_micros(F.lit(self.since))
        return found.where(reduce(or_, (F.col(name) >= since for name in times), F.expr(also)))


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
    """Return the receives that were held too long, to their reader's end, or whose end was refused.

    Those that are not ended are asked for however old they are: how long that is known goes on with the capture.
    """
    long = f"hold_ms >= {us(limits.held_after) / 1000}"
    trouble = f"outcome IN ('in_flight', 'expired', 'rundown', 'failed') OR ack_refused OR {long}"
    found = span.of(lake.read(RECEIVE_ATTEMPTS), "returned_at", "ended_at", also="outcome = 'in_flight'")
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
        failed = span.of(lake.read(table), "responded_at", "requested_at").where(f"hresult >= {FAILURE}")
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
    hour = (F.floor(F.unix_micros("asked_at") / F.lit(_HOUR_US)) * F.lit(_HOUR_US)).cast("bigint").alias("hour")
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
