"""Silver and gold follow bronze: what changed below is brought to the layer above, once, and nothing else.

Each commit of a layer says of which versions of the tables below it was made, so that rows and what they rest on are
one commit: a run killed between the layers, or before this one's commit, leaves nothing behind for good. Where that is
not known (a first run, other decoders, a feed that does not reach back) the layer is made anew of all there is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline import touched
from pipeline.changes import Net, net_changes
from pipeline.gold import receive_attempts, server_ends, with_gone
from pipeline.lake import FeedError, Lake
from pipeline.silver import as_decoded_before, remote_read_calls, silver_date, without_stubs
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, RPC_CALLS
from schemas.gold import RECEIVE_ATTEMPTS
from schemas.silver import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE, Table
from udfs.stubs.calls import DECODER_VERSION, METHODS

EMPTIED: Final = "stubs emptied"  # what the commit of bronze.rpc_calls says that silver need not follow
_STUBS: Final = ("request_stub", "response_stub")
_MOST_AT_ONCE: Final = 500_000  # calls whose attempts are compared in memory; of more, in Spark
_MOST_SERVERS: Final = 5000  # whose captures' ends a commit of gold remembers; with more, all is computed anew
_UNFINISHED: Final = ("no_request", "no_response", "damaged", "unbound")


def silver(lake: Lake, *, keep_packets: bool, keep_stubs: bool) -> int:
    """Bring changes of bronze.rpc_calls to silver.remote_read_calls; returns how many rows were written.

    Without ``keep_stubs`` bronze loses the stubs then (the setting store.stubs): they hold bodies. Those of calls that
    still wait for something (bronze.pending) are kept until they have it.
    """
    newest = lake.version(RPC_CALLS)
    if newest is None:
        return 0
    made = _made(lake, REMOTE_READ_CALLS)
    emptied = not keep_stubs or made.get("emptied", bool(made) or lake.exists(REMOTE_READ_CALLS))
    written = _follow(lake, made, newest, emptied=emptied, keep_packets=keep_packets)
    if not keep_stubs:
        _empty_stubs(lake)
    return written


def _follow(lake: Lake, made: dict[str, Any], newest: int, *, emptied: bool, keep_packets: bool) -> int:
    net = None
    if made.get("decoder") == DECODER_VERSION:
        since = made[str(RPC_CALLS)]
        said = lake.said(RPC_CALLS, since) if since < newest else {}
        passed_over = [version for version, what in said.items() if what == EMPTIED]
        if since + len(passed_over) == newest:
            return 0
        net = _changed_calls(lake, since, passed_over)
    if net is None:
        lake.tell_changes(RPC_CALLS)
        newest = lake.version(RPC_CALLS) or 0
    says = json.dumps({str(RPC_CALLS): newest, "decoder": DECODER_VERSION, "emptied": emptied})
    calls = lake.read(RPC_CALLS) if net is None else net.rows
    rows = remote_read_calls(calls, keep_packets=keep_packets)
    if emptied and (net is None or net.replaces):
        # Without a stub, now and before: it was emptied, or there never was one, and then there is nothing to keep.
        bare = calls.where(without_stubs()).select("call_key")
        if net is not None:
            bare = bare.join(net.settled.where("was AND bare"), "call_key", "left_semi")
        rows = as_decoded_before(rows, bare, lake.read(REMOTE_READ_CALLS))
    if net is None:
        lake.replace(REMOTE_READ_CALLS, rows, made_of=says)
    elif net.were is None or (net.were and emptied):  # one commit: what was decoded before is read while it goes
        gone = net.settled.where("was AND NOT present").select("call_key", F.lit(True).alias("gone"))  # noqa: FBT003
        rows = rows.withColumn("gone", F.lit(False)).unionByName(gone, allowMissingColumns=True)  # noqa: FBT003
        lake.merge(REMOTE_READ_CALLS, rows, dates=net.dates, delete_when="gone", made_of=says)
    else:  # two commits, of which the first says that nothing is done yet: a fraction of a MERGE's time
        lake.remove(REMOTE_READ_CALLS, "call_key", net.were, dates=net.dates, made_of=json.dumps(made))
        lake.append(REMOTE_READ_CALLS, rows, made_of=says)
    return _rows_written(lake, REMOTE_READ_CALLS, says)


def _changed_calls(lake: Lake, since: int, passed_over: list[int]) -> Net | None:
    """What became of the calls that silver takes; None when the feed cannot tell."""
    try:
        feed = lake.changes(RPC_CALLS, since).where(F.col("interface_name").isin(*METHODS))
        if passed_over:
            feed = feed.where(~F.col("_commit_version").isin(*passed_over))
        return net_changes(feed, "call_key", silver_date(), {"bare": without_stubs()})
    except (FeedError, PySparkException):
        return None


def _empty_stubs(lake: Lake) -> None:
    """Make the stubs null of all calls that wait for nothing."""
    pending = lake.read(PENDING)
    calls = lake.read(RPC_CALLS).where(~without_stubs()).select("call_key", "connection_id", "outcome", EVENT_DATE)
    unfinished = F.col("outcome").isin(*_UNFINISHED)
    waiting = pending.select("connection_id").distinct().withColumnRenamed("connection_id", "waiting")
    calls = calls.join(waiting, (F.col("connection_id") == F.col("waiting")) & unfinished, "left_anti")
    calls = calls.join(pending.select(F.explode("call_keys").alias("call_key")), "call_key", "left_anti")
    dates = [row[0] for row in calls.select(EVENT_DATE).distinct().collect()]
    if dates:
        nothing = dict.fromkeys(_STUBS, F.lit(None).cast("binary"))
        lake.fill(RPC_CALLS, calls.select("call_key"), nothing, dates=dates, made_of=EMPTIED)


def gold(lake: Lake, *, cleanup: timedelta) -> int:
    """Recompute the attempts that what changed below can touch; returns how many rows were written.

    ``cleanup`` is the clean-up timer of pending receives; with another one all are computed anew. An attempt that came
    out as it was is not written.
    """
    cleanup_s = cleanup.total_seconds()
    rests_on = _versions(lake, cleanup_s)
    if rests_on[str(REMOTE_READ_CALLS)] is None:
        return 0
    made = _made(lake, RECEIVE_ATTEMPTS)
    known = made.pop("ends", None)
    if made == rests_on:
        return 0
    reads, connections, calls = lake.read(REMOTE_READ_CALLS), lake.read(CONNECTIONS), lake.read(RPC_CALLS)
    found = server_ends(connections, lake.read(CAPTURE_FILES))
    collected = found.select("server_address", F.unix_micros("capture_ends_at")).limit(_MOST_SERVERS + 1).collect()
    now = {row[0]: row[1] for row in collected} if len(collected) <= _MOST_SERVERS else None
    ends = found if now is None else _ends(lake, now)
    scope = None
    if now is not None and known is not None and made.get("cleanup_s") == cleanup_s:
        earlier = {server for server, at in known.items() if now.get(server, -1) < at}
        try:
            reads_feed, connections_feed = (_feed(lake, table, made) for table in (REMOTE_READ_CALLS, CONNECTIONS))
            changed = touched.Changed(reads_feed, connections_feed, earlier)
            scope = touched.scope(changed, reads, connections, lake.read(RECEIVE_ATTEMPTS), ends, cleanup_s=cleanup_s)
        except (FeedError, PySparkException):  # whatever is wrong with the feeds, the tables themselves can be read
            scope = None
    if scope is None:
        for table in (REMOTE_READ_CALLS, CONNECTIONS):
            lake.tell_changes(table)
        says = json.dumps({**_versions(lake, cleanup_s), "ends": now})
        rows = receive_attempts(reads, connections, calls, ends=ends, cleanup_s=cleanup_s)
        lake.replace(RECEIVE_ATTEMPTS, rows, made_of=says)
        return _rows_written(lake, RECEIVE_ATTEMPTS, says)
    says = json.dumps({**rests_on, "ends": now})
    if scope.connections:
        ours = scope.frame(lake.spark)
        here = scope.on_dates()
        computed = receive_attempts(
            scope.reads(reads, ours),
            scope.neighbours(connections, reads, ours),
            calls.where(scope.on_dates(with_shared=True)),
            ends=ends,
            cleanup_s=cleanup_s,
        )
        there = lake.read(RECEIVE_ATTEMPTS).where(here).join(ours, "connection_id", "left_semi")
        rows = computed.join(ours, "connection_id", "left_semi")
        if scope.calls <= _MOST_AT_ONCE:
            was = json.dumps({**made, "ends": known})
            written = lake.put(
                RECEIVE_ATTEMPTS, rows.toArrow(), there.toArrow(), dates=scope.dates, made_of=says, was_made_of=was
            )
            if written:
                return written
        else:
            rows = with_gone(rows, there)
            lake.merge(RECEIVE_ATTEMPTS, rows, dates=scope.dates, delete_when="gone", unless_same=True, made_of=says)
    return _rows_written(lake, RECEIVE_ATTEMPTS, says)


def _feed(lake: Lake, table: Table, made: dict[str, Any]) -> DataFrame:
    """The changes of a table since a layer's commit; FeedError when it was not there yet."""
    since = made.get(str(table))
    if since is None:
        raise FeedError(f"{table} was not there")
    return lake.changes(table, since)


def _versions(lake: Lake, cleanup_s: float) -> dict[str, Any]:
    """What gold.receive_attempts rests on, as it is now."""
    tables = (REMOTE_READ_CALLS, CONNECTIONS, CAPTURE_FILES)
    return {**{str(table): lake.version(table) for table in tables}, "cleanup_s": cleanup_s}


def _ends(lake: Lake, ends: Mapping[str, int]) -> DataFrame:
    """What ``server_ends`` found, as a frame that need not be computed again."""
    rows = lake.spark.createDataFrame(list(ends.items()), "server_address string, at bigint")
    return rows.select("server_address", F.timestamp_micros("at").alias("capture_ends_at"))


def _made(lake: Lake, table: Table) -> dict[str, Any]:
    """What the table's last commit said it was made of; nothing when it did not, or in other words than these."""
    try:
        made = json.loads(lake.made_of(table) or "")
    except ValueError:
        return {}
    return made if isinstance(made, dict) else {}


def _rows_written(lake: Lake, table: Table, says: str) -> int:
    """How many rows a layer's commit wrote. Where there was nothing to write, it is said that the layer is made."""
    if lake.made_of(table) == says:
        return lake.rows_written(table)
    lake.stamp(table, says)
    return 0
