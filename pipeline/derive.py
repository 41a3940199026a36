"""Gold follows silver: what changed below is brought to the layer above, once, and nothing else.

Each commit of a layer says of which versions of the tables below it was made, so that rows and what they rest on are
one commit: a run killed between the layers, or before this one's commit, leaves nothing behind for good. Where that is
not known (a first run, a feed that does not reach back) the layer is made anew of all there is.
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
from pipeline.gold import receive_attempts, server_ends, with_gone
from pipeline.lake import FeedError, Lake
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.gold import RECEIVE_ATTEMPTS
from schemas.messages import MESSAGES
from schemas.silver import REMOTE_READ_CALLS
from schemas.table import Table

_MOST_AT_ONCE: Final = 500_000  # calls whose attempts are compared in memory; of more, in Spark
_MOST_SERVERS: Final = 5000  # whose captures' ends a commit of gold remembers; with more, all is computed anew


def gold(lake: Lake, *, cleanup: timedelta) -> int:
    """Recompute the attempts that what changed below can touch; returns how many rows were written.

    ``cleanup`` is the clean-up timer of pending receives; with another one all are computed anew. An attempt that came
    out as it was is not written.
    """
    cleanup_s = cleanup.total_seconds()
    rests_on = _versions(lake, cleanup_s)
    if rests_on[str(REMOTE_READ_CALLS)] is None:
        return 0
    made = lake.made(RECEIVE_ATTEMPTS)
    known = made.pop("ends", None)
    if made == rests_on:
        return 0
    reads, connections, calls = lake.read(REMOTE_READ_CALLS), lake.read(CONNECTIONS), lake.read(RPC_CALLS)
    messages = lake.read(MESSAGES)
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
        rows = receive_attempts(reads, connections, calls, ends=ends, messages=messages, cleanup_s=cleanup_s)
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
            messages=messages.where(here),  # a call's answer lies within its connection, whose days these are
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


def _rows_written(lake: Lake, table: Table, says: str) -> int:
    """How many rows a layer's commit wrote. Where there was nothing to write, it is said that the layer is made."""
    if lake.made_of(table) == says:
        return lake.rows_written(table)
    lake.stamp(table, says)
    return 0
