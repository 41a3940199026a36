"""Gold follows silver: what changed below is brought to the layer above, once, and nothing else.

Each commit of gold says of which versions of the tables below it was made, so that rows and what they rest on are one
commit: a run killed between the layers, or before this one's commit, leaves nothing behind for good. Where that is not
known (a first run, a feed that does not reach back) gold is made anew of all there is.

Two tables of silver cannot be made call by call and follow here, before gold does: silver.queue_aliases, and the
queues of silver.messages, which gold's attempts know. gold.queue_operations comes of the same facts as the attempts.
The commit of gold.receive_attempts comes last and stands for all four.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.attempts import affected_scope, capture_gaps, message_queues, recompute_in_memory
from pipeline.attempts.affected_scope import Changed, Scope
from pipeline.attempts.attempt_rows import receive_attempts, with_gone
from pipeline.attempts.operation_rows import queue_operations
from pipeline.attempts.server_openings import OPENINGS
from pipeline.lake.change_feeds import Feeds
from pipeline.lake.concurrency import gather
from pipeline.lake.date_filters import on_dates
from pipeline.lake.lake import Lake, versions_of
from pipeline.lake.queries import only
from pipeline.lake.settings import unmeasured
from pipeline.silver import queue_aliases
from pipeline.silver.queue_aliases import Groups, Known
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.calls import CLIENT_CALLS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.receive_attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import Table

BELOW: Final = (REMOTE_READ_CALLS, CLIENT_CALLS, CONNECTIONS, CAPTURE_FILES, QUEUE_SNAPSHOTS)
_FED: Final = (REMOTE_READ_CALLS, CLIENT_CALLS, CONNECTIONS, QUEUE_ALIASES)  # whose changes are followed
_MOST_AT_ONCE: Final = 500_000  # calls whose attempts are computed and compared here; of more, in Spark
_MADE_BY: Final = 5  # another number when attempts or operations are made in another way: all are made anew
Capture: TypeAlias = tuple[list[str], int | None, int | None]

_MOST_SERVERS: Final = 5000  # whose captures' ends a commit of gold remembers; with more, all is computed anew


def gold(lake: Lake, *, cleanup: timedelta, declared: Groups = ()) -> int:
    """Recompute the attempts that what changed below can touch; returns how many rows were written.

    ``cleanup`` is the clean-up timer of pending receives; with another one all are computed anew. ``declared`` are
    groups of names that the configuration says are one queue's. A row that came out as it was is not written.
    """
    newest = lake.newest(*BELOW, QUEUE_ALIASES, RECEIVE_ATTEMPTS)
    if REMOTE_READ_CALLS not in newest:
        return 0
    made = newest[RECEIVE_ATTEMPTS].made() if RECEIVE_ATTEMPTS in newest else {}
    rests_on: dict[str, Any] = {**versions_of(newest, (*BELOW, QUEUE_ALIASES))}
    rests_on |= {"cleanup_s": cleanup.total_seconds(), "declared": [list(group) for group in declared]}
    rests_on["made_by"] = _MADE_BY
    if rests_on == {name: made.get(name) for name in rests_on}:
        return 0
    return _Work(lake, made, rests_on, cleanup.total_seconds(), declared).follow()


@dataclass(slots=True)
class _Work:
    """One run's work: what gold's last commit said, and what this one's will say."""

    lake: Lake
    made: dict[str, Any]
    rests_on: dict[str, Any]
    cleanup_s: float
    declared: Groups

    def follow(self) -> int:
        """Bring the aliases, the messages' queues and gold to what there is now."""
        lake = self.lake
        questions: dict[str, Callable[[], Any]] = {
            "captures": lambda: _captures(lake),
            "aliases": lambda: Known.of(lake),
            "connections": lambda: _connections(lake),
            "reads": partial(self._changes, REMOTE_READ_CALLS, affected_scope.READS_CHANGED),
            "clients": partial(self._changes, CLIENT_CALLS, affected_scope.CLIENTS_CHANGED),
            "moved": partial(self._changes, CONNECTIONS, affected_scope.CONNECTIONS_CHANGED),
            "waiting": partial(affected_scope.waiting, lake, self.cleanup_s),
            "told": self._told,
        }
        asked = gather(questions)
        ends = _ends(asked["captures"])
        self.rests_on["lost"] = _lost(lake, asked["connections"], asked["captures"])
        feeds = [asked[name] for name in ("reads", "clients", "moved", "waiting")]
        incremental = None not in feeds and ends is not None and self.made.get("ends") is not None
        incremental = incremental and "numbered" in self.made and self.made.get("made_by") == _MADE_BY
        incremental = incremental and self.made.get("cleanup_s") == self.cleanup_s
        changed = Changed(*feeds) if incremental else Changed()
        names: Known = asked["aliases"]
        if not incremental or changed.answers or self._names_differ() or names.misses(changed.named):
            if queue_aliases.refresh(lake, self.declared):
                names = Known.of(lake)
            self.rests_on[str(QUEUE_ALIASES)] = lake.version(QUEUE_ALIASES)
        renamed = self._renamed() if incremental else None
        if renamed is None or ends is None:
            return self._anew(ends, names.texts)
        earlier = {server for server, at in self.made["ends"].items() if ends.get(server, -1) < at}
        changed = replace(changed, told=asked["told"], earlier=earlier, renamed=renamed)
        return self._bring(changed, asked["connections"], ends, names.texts)

    def _bring(
        self, changed: Changed, connections: pa.Table | None, ends: dict[str, int], texts: Mapping[str, str]
    ) -> int:
        """Bring changes to gold."""
        lake = self.lake
        before: dict[str, int] = self.made["numbered"]
        started = changed.started()
        # Of servers that no capture holds any more nothing is left to be said either.
        numbered = {
            server: max(before.get(server, at), at) for server, at in (before | started).items() if server in ends
        }
        cancels = self.made["cancels"] or changed.cancels
        says = json.dumps({**self.rests_on, "ends": ends, "numbered": numbered, "cancels": cancels})
        scope = affected_scope.scope(lake, changed, connections, ends, numbered=before, cancels=cancels)
        if scope is None:
            return self._anew(ends, texts)
        if not scope:
            lake.stamp(RECEIVE_ATTEMPTS, says)
            return 0
        if scope.calls > _MOST_AT_ONCE:
            return self._many(scope, ends, texts, says)
        settled = recompute_in_memory.settle(
            lake, scope, connections=connections, numbered=numbered, ends=ends, aliases=texts, cleanup_s=self.cleanup_s
        )
        rows = settled.rows
        opened = dict(zip(rows["attempt_key"].to_pylist(), rows["opened_queue"].to_pylist(), strict=True))
        message_queues.write(lake, message_queues.differing(settled.messages, opened), dates=scope.dates)
        self._put_operations(settled.operations, settled.operations_there, scope)
        was = json.dumps(self.made)
        return lake.put(RECEIVE_ATTEMPTS, rows, settled.there, dates=scope.dates, made_of=says, was_made_of=was)

    def _put_operations(self, now: pa.Table, there: pa.Table, scope: Scope) -> None:
        """Put operations in the place of those that are there."""
        if now.num_rows or there.num_rows:
            self.lake.put(QUEUE_OPERATIONS, now, there, dates=scope.dates)

    def _names_differ(self) -> bool:
        """Tell whether snapshots or the configuration can show other names than they did."""
        names = (str(QUEUE_SNAPSHOTS), "declared")
        return any(self.made.get(name) != self.rests_on[name] for name in names)

    @property
    def _feeds(self) -> Feeds:
        """What changed below since gold's commit."""
        return Feeds(self.lake, self.made, self.rests_on)

    def _changes(self, table: Table, sql: str) -> list[dict[str, Any]] | None:
        """What a table's feed tells; None when it cannot tell, or of too much."""
        return self._feeds.rows(table, sql, affected_scope.MOST) if self.made else None

    def _told(self) -> pa.Table | None:
        """Under which names the changed calls tell something; None when it cannot be told, or of too many."""
        if not self.made:
            return None
        feeds = self._feeds
        if feeds.is_unchanged(REMOTE_READ_CALLS):
            return affected_scope.TOLD.empty_table()
        return feeds.table(REMOTE_READ_CALLS, affected_scope.TOLD_OF, affected_scope.MOST)

    def _renamed(self) -> set[str] | None:
        """The texts that stood for queues and do not any more, since gold's commit; None when it cannot be told."""
        return queue_aliases.renamed(self._feeds)

    def _many(self, scope: Scope, ends: dict[str, int], texts: Mapping[str, str], says: str) -> int:
        """Settle what is touched in Spark, of all calls of the servers that it is at."""
        lake = self.lake
        here = on_dates(scope.dates)
        ours = partial(only, column="connection_id", values=scope.connections)
        rows = ours(self._computed(self._ends_frame(ends), texts, servers=scope.servers))
        there = ours(lake.read(RECEIVE_ATTEMPTS).where(here))
        with unmeasured(lake.spark):
            done = ours(self._operations(texts, servers=scope.servers)).toArrow()
        self._put_operations(done, ours(lake.read(QUEUE_OPERATIONS).where(here)).toArrow(), scope)
        before = lake.version(RECEIVE_ATTEMPTS)
        with unmeasured(lake.spark):
            lake.merge(
                RECEIVE_ATTEMPTS, with_gone(rows, there), dates=scope.dates, delete_when="gone", unless_same=True,
                made_of=json.dumps(self.made),
            )  # fmt: skip
        written = lake.rows_written(RECEIVE_ATTEMPTS) if lake.version(RECEIVE_ATTEMPTS) != before else 0
        message_queues.follow_gold(lake, dates=scope.dates)
        lake.stamp(RECEIVE_ATTEMPTS, says)
        return written

    def _anew(self, ends: dict[str, int] | None, texts: Mapping[str, str]) -> int:
        """Make all attempts of all there is."""
        lake = self.lake
        for table in _FED:
            lake.begin_with(table)
        self.rests_on |= {str(table): lake.version(table) for table in _FED}
        numbered, cancels = affected_scope.by_number(lake)
        frame = self._ends_frame(ends) if ends is not None else None
        lake.widen(RECEIVE_ATTEMPTS)
        with unmeasured(lake.spark):
            lake.replace(QUEUE_OPERATIONS, self._operations(texts))
            lake.replace(RECEIVE_ATTEMPTS, self._computed(frame, texts))
        written = lake.rows_written(RECEIVE_ATTEMPTS)
        message_queues.follow_gold(lake, dates=None)
        lake.stamp(
            RECEIVE_ATTEMPTS, json.dumps({**self.rests_on, "ends": ends, "numbered": numbered, "cancels": cancels})
        )
        lake.keep(*OPENINGS.values())  # which the next run asks for
        return written

    def _computed(
        self, ends: DataFrame | None, texts: Mapping[str, str], *, servers: Collection[str | None] | None = None
    ) -> DataFrame:
        """Attempts computed in Spark, of the calls of some servers or of all."""
        reads, connections, calls, clients = self._facts(servers)
        return receive_attempts(
            reads,
            connections,
            calls,
            self.lake.read(CAPTURE_FILES),
            ends=ends,
            messages=self.lake.read(MESSAGES),
            clients=clients,
            aliases=texts,
            cleanup_s=self.cleanup_s,
        )

    def _operations(self, texts: Mapping[str, str], *, servers: Collection[str | None] | None = None) -> DataFrame:
        """Operations computed in Spark, likewise."""
        reads, connections, calls, clients = self._facts(servers)
        return queue_operations(reads, connections, calls, clients=clients, aliases=texts)

    def _facts(self, servers: Collection[str | None] | None) -> list[DataFrame]:
        """The tables that gold is computed of, of some servers or of all."""
        frames = [self.lake.read(table) for table in (REMOTE_READ_CALLS, CONNECTIONS, RPC_CALLS, CLIENT_CALLS)]
        return frames if servers is None else [only(frame, "server_address", servers) for frame in frames]

    def _ends_frame(self, ends: dict[str, int]) -> DataFrame:
        """What ``server_ends`` found, as a frame that need not be computed again."""
        rows = self.lake.spark.createDataFrame(list(ends.items()), "server_address string, at bigint")
        return rows.select("server_address", F.timestamp_micros("at").alias("capture_ends_at"))


def _captures(lake: Lake) -> list[Capture]:
    """Of each capture its servers, its last packet, microseconds, and how many packets its machine lost."""
    sql = (
        "SELECT servers, unix_micros(last_packet_at) AS `at`, packets_dropped FROM {captures} WHERE servers IS NOT NULL"
    )
    rows = lake.query(sql, captures=CAPTURE_FILES)
    return [*zip(*(column.to_pylist() for column in rows.columns), strict=True)]


def _ends(captures: list[Capture]) -> dict[str, int] | None:
    """When the capture of each server ends, microseconds, as ``server_ends``; None if there are too many servers."""
    found = capture_gaps.latest((server, at) for servers, at, _ in captures for server in servers)
    return found if len(found) <= _MOST_SERVERS else None


def _lost(lake: Lake, connections: pa.Table | None, captures: list[Capture]) -> dict[str, int]:
    """Until when calls at each server can have been lost, microseconds; ``connections`` as ``_connections``."""
    told = ["server_address", "last_packet_at", "missing_bytes"]
    if connections is None:
        lossy = f"SELECT * FROM ({affected_scope.MEMBERS}) WHERE missing_bytes > 0"
        last = "max(last_packet_at) AS `at`, max(missing_bytes) AS missing"
        sql = f"SELECT server_address, {last} FROM ({lossy}) GROUP BY server_address"
        rows = lake.query(sql, connections=CONNECTIONS)
    else:
        rows = connections.filter(pc.greater(connections["missing_bytes"], 0)).select(told)
    return capture_gaps.lost(zip(*(column.to_pylist() for column in rows.columns), strict=True), captures)


def _connections(lake: Lake) -> pa.Table | None:
    """All RPC connections; None where they are too many to be brought here."""
    found = lake.query(f"{affected_scope.MEMBERS} LIMIT {affected_scope.MOST + 1}", connections=CONNECTIONS)
    return found if found.num_rows <= affected_scope.MOST else None
