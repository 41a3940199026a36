"""What of gold.receive_attempts a change below can touch: whole associations, named by their connections.

An attempt rests on the calls and connections of its association, on the end of its server's capture, and in qm2qm on
cancels from any connection. So these are touched: the associations of changed calls and connections, as they are now
and as they were; of attempts that are open until the server's capture has gone on for long enough; and of qm2qm Starts
that share queue handle and number with a cancel, where one of them changed. What is taken is at least that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.associations import Connection, associations
from pipeline.lake import on_dates
from schemas.table import EVENT_DATE

MOST: Final = 200_000  # connections, or days, that are named; if there are more, all is computed anew
_FOR_EVER: Final = 0xFFFFFFFF  # ulTimeout
_CANCEL: Final = 5
_SHARED: Final = ("server_address", "queue_handle", "request_id")  # by a qm2qm Start and its cancel
_GROUP: Final = ("server", "client", "association")
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Changed:
    """Feeds of silver.remote_read_calls and bronze.connections, and the servers whose capture now ends earlier."""

    reads: DataFrame
    connections: DataFrame
    servers: Collection[str]


@dataclass(frozen=True, slots=True)
class Scope:
    """The connections whose attempts are computed anew, and the event dates where their calls and attempts are.

    ``calls``: how many calls they have. ``shared_dates`` are those of qm2qm Starts and cancels of other connections;
    None when there is no cancel at all.
    """

    connections: frozenset[str]
    dates: frozenset[date | None]
    shared_dates: frozenset[date | None] | None = None
    calls: int = 0

    def on_dates(self, *, with_shared: bool = False) -> str:
        """The SQL condition for rows on these dates."""
        return on_dates(self.dates | (self.shared_dates or frozenset()) if with_shared else self.dates)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The connections as a frame with the one column ``connection_id``."""
        return spark.createDataFrame([(name,) for name in sorted(self.connections)], "connection_id string")

    def reads(self, reads: DataFrame, ours: DataFrame) -> DataFrame:
        """The rows of silver that these attempts rest on; ``ours`` is ``frame``."""
        mine = reads.where(self.on_dates()).join(ours, "connection_id", "left_semi")
        if self.shared_dates is None:
            return mine
        return mine.unionByName(_sharing(reads, mine).join(ours, "connection_id", "left_anti"))

    def neighbours(self, connections: DataFrame, reads: DataFrame, ours: DataFrame) -> DataFrame:
        """The rows of bronze.connections likewise."""
        if self.shared_dates is None:
            return connections.join(ours, "connection_id", "left_semi")
        also = self.reads(reads, ours).select("connection_id").union(ours).distinct()
        return connections.join(also, "connection_id", "left_semi")


def scope(
    changed: Changed,
    reads: DataFrame,
    connections: DataFrame,
    attempts: DataFrame,
    ends: DataFrame,
    *,
    cleanup_s: float,
) -> Scope | None:
    """Return what changes touch; None when it is too much to be named.

    ``reads``, ``connections`` and ``attempts`` are the tables as they are now, ``ends`` (server_address,
    capture_ends_at) the newest packet of captures that hold packets of a server. Each call's connection has a row,
    and the call's times lie within it.
    """
    spark = reads.sparkSession
    calls = changed.reads.select("connection_id", EVENT_DATE).distinct().limit(MOST + 1).collect()
    places = _place(changed.connections).withColumn("added", F.col("_change_type") == "insert")
    linked = places.distinct().limit(MOST + 1).collect()
    names = {row[0] for row in calls} | {row["connection_id"] for row in linked}
    dates: set[date | None] = {row[1] for row in calls}
    waiting = attempts.where("outcome = 'in_flight'").withColumn("_until", _until(cleanup_s))
    due = waiting.join(ends, "server_address").where(F.unix_micros("capture_ends_at") > F.col("_until"))
    earlier = attempts.where(F.col("server_address").isin(*changed.servers)).select("connection_id", EVENT_DATE)
    for row in due.select("connection_id", EVENT_DATE).union(earlier).distinct().limit(MOST + 1).collect():
        names.add(row[0])
        dates.add(row[1])
    if len(names) > MOST or len(calls) > MOST or len(linked) > MOST:
        return None
    if not names:
        return Scope(frozenset(), frozenset())
    cancels = not _cancels(reads).select("opnum").union(_cancels(changed.reads).select("opnum")).isEmpty()
    for row in [] if not cancels else _cancelled(changed.reads, reads, _frame(spark, names)).limit(MOST).collect():
        names.add(row[0])
        dates.add(row[1])
    wide = {tuple(row[name] for name in _GROUP) for row in linked if not row["added"]}
    members = _members(connections, _frame(spark, names), wide, spark)
    if members is None:
        return None
    names |= _associated(members, names, wide)
    days = _days((c["first_packet_at"], c["last_packet_at"]) for c in members if c["connection_id"] in names)
    if days is None:
        return None
    calls_of_all = sum(c["calls"] or 0 for c in members if c["connection_id"] in names)
    found = Scope(frozenset(names), frozenset({*dates, *days, None}), calls=calls_of_all)
    if not cancels:
        return found
    shared = replace(found, shared_dates=frozenset()).reads(reads, found.frame(spark)).select(EVENT_DATE).distinct()
    return replace(found, shared_dates=frozenset(row[0] for row in shared.collect()))


def _frame(spark: SparkSession, names: Iterable[str]) -> DataFrame:
    return spark.createDataFrame([(name,) for name in names], "connection_id string")


def _place(connections: DataFrame) -> DataFrame:
    """Add where an RPC connection belongs: its server, its client, and its group, alone without one."""
    group = F.when(F.col("association_group_id") != 0, F.col("association_group_id").cast("string"))
    return (
        connections.where(F.col("kind") == "rpc")
        .withColumns(
            {
                "server": F.coalesce("server_address", F.lit("")),
                "client": F.coalesce("client_address", F.lit("")),
                "association": F.coalesce(group, "connection_id"),
            }
        )
        .select("connection_id", *_GROUP, *(name for name in ("_change_type",) if name in connections.columns))
    )


def _until(cleanup_s: float) -> Column:
    """When the capture's end settles an open attempt, microseconds; null when it never does. At the earliest."""
    held = (F.col("protocol") == "RemoteRead") & F.col("returned_at").isNotNull()
    unanswered = F.col("returned_at").isNull() & (F.col("timeout_ms") != _FOR_EVER)
    expires = F.unix_micros("returned_at") + round(cleanup_s * 1e6)
    return F.when(held, expires).when(unanswered, F.unix_micros("started_at") + F.col("timeout_ms") * 1000)


def _cancels(reads: DataFrame) -> DataFrame:
    return reads.where((F.col("protocol") == "qm2qm") & (F.col("opnum") == _CANCEL))


def _starts(reads: DataFrame) -> DataFrame:
    return reads.where((F.col("protocol") == "qm2qm") & F.col("opnum").isin(0, 9, 10))


def _cancelled(changes: DataFrame, reads: DataFrame, names: DataFrame) -> DataFrame:
    """Connection and date of qm2qm Starts that share a cancel with a call that changed, or of a connection that did."""
    changed = changes.select(*_SHARED, "protocol", "opnum")
    of_ours = reads.join(F.broadcast(names), "connection_id", "left_semi").select(*changed.columns)
    cancels = _cancels(reads).select(*_SHARED).union(_cancels(changed).select(*_SHARED))
    near = changed.union(of_ours)
    shared = _starts(near).union(_cancels(near)).select(*_SHARED).distinct().join(cancels, [*_SHARED], "left_semi")
    return _starts(reads).join(shared, [*_SHARED], "left_semi").select("connection_id", EVENT_DATE).distinct()


def _sharing(reads: DataFrame, mine: DataFrame) -> DataFrame:
    """All qm2qm Starts and cancels that share queue handle and number with one of these Starts and with a cancel."""
    shared = _starts(mine).select(*_SHARED).distinct().join(_cancels(reads), [*_SHARED], "left_semi")
    return _starts(reads).union(_cancels(reads)).join(shared, [*_SHARED], "left_semi").select(*reads.columns)


def _members(
    connections: DataFrame, names: DataFrame, groups: Collection[tuple[str, ...]], spark: SparkSession
) -> list[dict[str, Any]] | None:
    """All connections of these groups and of those that the named connections are in; None if there are too many."""
    placed = _place(connections)
    named = placed.join(F.broadcast(names), "connection_id", "left_semi").select(*_GROUP)
    given = spark.createDataFrame(sorted(groups), ", ".join(f"{name} string" for name in _GROUP))
    facts = connections.select(
        "connection_id",
        "server_address",
        "client_address",
        "association_group_id",
        "first_packet_at",
        "last_packet_at",
        "closed_at",
        "calls",
    )
    mine = placed.join(named.union(given).distinct(), [*_GROUP], "left_semi").join(facts, "connection_id")
    rows = mine.withColumns({name: F.unix_micros(name) for name in ("first_packet_at", "last_packet_at", "closed_at")})
    found = rows.limit(MOST + 1).collect()
    return None if len(found) > MOST else [row.asDict() for row in found]


def _associated(members: list[dict[str, Any]], names: Collection[str], wide: Collection[tuple[str, ...]]) -> set[str]:
    """The connections of the associations that these connections are in, and of whole groups that are ``wide``.

    A connection that was added can only have joined associations, and these are in the one it is in now; one that
    changed or went can have parted them, so that all of its group may stand in another one than before.
    """
    by_server: defaultdict[str | None, list[Connection]] = defaultdict(list)
    for c in members:
        by_server[c["server_address"]].append(
            Connection(
                c["connection_id"],
                c["client_address"],
                c["first_packet_at"],
                c["last_packet_at"],
                c["closed_at"],
                c["association_group_id"],
            )
        )
    name_of: dict[str, str] = {}
    for ours in by_server.values():
        name_of |= {connection: found.name for connection, found in associations(ours).items()}
    touched = {name_of[name] for name in names if name in name_of}
    return {
        c["connection_id"]
        for c in members
        if name_of[c["connection_id"]] in touched or tuple(c[name] for name in _GROUP) in wide
    }


def _days(spans: Iterable[tuple[int, int]]) -> set[date] | None:
    """All days, UTC, of spans in microseconds since the epoch; None if there are too many."""
    days = {(first // _DAY_US, last // _DAY_US) for first, last in spans}
    if sum(last - first + 1 for first, last in days) > MOST:
        return None
    return {_EPOCH + timedelta(days=day) for first, last in days for day in range(first, last + 1)}
