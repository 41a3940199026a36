"""Silver follows bronze.rpc_calls: the tables made call by call take its changes, once, and nothing else.

The changed calls are decoded in one pass, to side files; each table takes its rows from there. Its commit says of which
version of bronze.rpc_calls they were made. The last table, silver.remote_read_calls, is written after all others, also
when nothing of it changed: where its commit says a version, every table is made of that one at least, and a run with
nothing new asks no other. After a run that was killed on the way, those that are further go on from where they are.
Where nothing is known (a first run, other decoders, a feed that does not reach back) all are made anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.changes import Net, net_changes
from pipeline.decoding import BY_CALL, INTERFACES, TABLES, VERSION
from pipeline.lake import FeedError, Lake
from pipeline.runs import Runs
from pipeline.silver import as_decoded_before, decode_into, followed, silver_dates, without_stubs
from schemas.bronze import PENDING, RPC_CALLS
from schemas.table import EVENT_DATE, Table

EMPTIED: Final = "stubs emptied"  # what the commit of bronze.rpc_calls says that silver need not follow
LAST: Final = TABLES[-1]
_AT_ONCE: Final = 4  # tables written side by side
_CALLS: Final = str(RPC_CALLS)
_STUBS: Final = ("request_stub", "response_stub")
_UNFINISHED: Final = ("no_request", "no_response", "damaged", "unbound")


def silver(lake: Lake, *, keep_packets: bool, keep_stubs: bool, keep_bodies: bool = False) -> dict[str, int]:
    """Bring changes of bronze.rpc_calls to the tables of silver; returns how many rows of each were written.

    Without ``keep_stubs`` bronze loses the stubs then (the setting store.stubs): they hold bodies. Those of calls that
    still wait for something (bronze.pending) are kept until they have it.
    """
    written = {str(table): 0 for table in TABLES}
    newest = lake.version(RPC_CALLS)
    if newest is None:
        return written
    made = lake.made(LAST)
    emptied = not keep_stubs or made.get("emptied", bool(made) or lake.exists(LAST))
    with _side_folder(lake) as side:
        work = _Work(lake, side, made, newest, emptied=emptied, keep_packets=keep_packets, keep_bodies=keep_bodies)
        written |= work.follow()
    if not keep_stubs:
        _empty_stubs(lake)
    return written


@contextmanager
def _side_folder(lake: Lake) -> Iterator[Path]:
    """Give a folder for side files; what a killed run left goes first."""
    folder = Runs.of(lake).root / "silver"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder / uuid4().hex
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True, kw_only=True)
class _Options:
    emptied: bool  # stubs of some calls may have been taken away after they were decoded
    keep_packets: bool
    keep_bodies: bool


@dataclass(slots=True)
class _Work(_Options):
    """One run's work: what the last table's commit said, and the version of bronze.rpc_calls that is gone to."""

    lake: Lake
    side: Path
    made: dict[str, Any]
    newest: int

    def follow(self) -> dict[str, int]:
        """Bring all tables to the newest version."""
        since = self.made.get(_CALLS)
        if self.made.get("decoder") != VERSION or since is None or since > self.newest:
            return self._anew()
        passed_over = self._passed_over(since)
        if since + len(passed_over) == self.newest:
            return {}
        groups = self._behind(since)
        changes = {version: self._changes(version, passed_over) for version in groups}
        if None in changes.values():
            return self._anew()
        written: dict[str, int] = {}
        for version in sorted(groups, reverse=True):  # the last table is among those that are furthest behind
            if net := changes[version]:
                written |= self._bring(groups[version], net, version)
        return written

    def _passed_over(self, since: int) -> list[int]:
        """Return the versions that only emptied stubs."""
        said = self.lake.said(RPC_CALLS, since) if since < self.newest else {}
        return [version for version, what in said.items() if what == EMPTIED]

    def _behind(self, since: int) -> dict[int, list[Table]]:
        """Return the tables by the version that they were made of; ``since`` at least, as the last one says."""
        groups: dict[int, list[Table]] = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            made = dict(zip(TABLES, pool.map(self.lake.made, TABLES), strict=True))
        for table, own in made.items():
            version = max(since, own.get(_CALLS, 0) if own.get("decoder") == VERSION else 0)
            if version < self.newest:
                groups.setdefault(version, []).append(table)
        return groups

    def _changes(self, since: int, passed_over: Sequence[int]) -> Net | None:
        """What became of the calls that silver takes; None when the feed cannot tell."""
        try:
            feed = self.lake.changes(RPC_CALLS, since).where(followed())
            if passed_over:
                feed = feed.where(~F.col("_commit_version").isin(*passed_over))
            facts = {
                "bare": without_stubs(),
                "interface_name": F.col("interface_name"),
                "answered": F.col("response_at").isNotNull(),
            }
            return net_changes(feed, "call_key", silver_dates(), facts)
        except (FeedError, PySparkException):
            return None

    def _says(self, version: int) -> str:
        return json.dumps({_CALLS: version, "decoder": VERSION, "emptied": self.emptied})

    def _decode(self, calls: DataFrame, tables: Sequence[Table]) -> tuple[Path, dict[str, int]]:
        """Decode calls to side files; return their folder and how many rows there are of each table."""
        folder = self.side / uuid4().hex
        options = {"keep_packets": self.keep_packets, "keep_bodies": self.keep_bodies}
        return folder, decode_into(calls, str(folder), tables, **options)

    def _rows(self, table: Table, folder: Path, count: int) -> DataFrame:
        spark = self.lake.spark
        if not count:
            return spark.createDataFrame([], table.struct())
        return spark.read.schema(table.struct()).parquet(str(folder / table.name))

    def _anew(self) -> dict[str, int]:
        """Make all tables of all calls there are."""
        lake = self.lake
        lake.tell_changes(RPC_CALLS)
        says = self._says(lake.version(RPC_CALLS) or 0)
        calls = lake.read(RPC_CALLS)
        folder, written = self._decode(calls, TABLES)
        bare = calls.where(without_stubs()).select("call_key")

        def make(table: Table) -> None:
            is_there, count = lake.exists(table), written[str(table)]
            if not (is_there or count or table is LAST):
                lake.create(table)
                return
            rows = self._rows(table, folder, count)
            if self.emptied and is_there and table in BY_CALL:
                rows = as_decoded_before(table, rows, bare, lake.read(table))
            elif self.emptied and is_there:
                rows = rows.unionByName(lake.read(table).join(bare, "call_key", "left_semi"))
            if is_there and "source" in table.names:  # what the collector was told is not made of calls
                rows = rows.unionByName(lake.read(table).where("source = 'collector'"))
            lake.replace(table, rows, made_of=says)

        _each(make, TABLES)
        return written

    def _bring(self, tables: Sequence[Table], net: Net, since: int) -> dict[str, int]:
        """Bring a net change since a version to tables that are made of that version."""
        lake, says, was = self.lake, self._says(self.newest), self._says(since)
        folder, written = self._decode(net.rows, tables)
        bare = self._still_bare(net) if self.emptied and net.replaces else None
        named = _keys(bare) if bare is not None and net.were is not None else frozenset()
        merged = [table for table in tables if bare is not None and table in BY_CALL]
        others = [table for table in tables if table not in merged]
        with lake.saying(was):  # two commits, the first says that nothing is done yet: a fraction of a MERGE's time
            gone = {table: _leaving(table, net, bare, named) for table in others}
            _each(lambda table: lake.remove(table, "call_key", gone[table], dates=net.dates), others)
        added = [table for table in others if written[str(table)]]
        _each(lambda table: lake.append(table, self._rows(table, folder, written[str(table)]), made_of=says), added)
        if bare is not None:
            for table in merged:
                if written[str(table)] or not _is_none(_leaving(table, net, None, frozenset())):
                    self._merge(table, self._rows(table, folder, written[str(table)]), net, bare, says)
        if LAST in tables and lake.made_of(LAST) != says:  # nothing of it was to be written
            lake.stamp(LAST, says)
        return written

    def _merge(self, table: Table, rows: DataFrame, net: Net, bare: DataFrame, says: str) -> None:
        """Put rows in the place of those before, in one commit: what was decoded before is read while it goes."""
        rows = as_decoded_before(table, rows, bare, self.lake.read(table)).withColumn("gone", F.lit(False))  # noqa: FBT003
        ours = F.col("interface_name").isin(*INTERFACES[table])
        here = rows.select("call_key")
        gone = net.settled.where(F.col("was") & ours).select("call_key").join(here, "call_key", "left_anti")
        rows = rows.unionByName(gone.withColumn("gone", F.lit(True)), allowMissingColumns=True)  # noqa: FBT003
        self.lake.merge(table, rows, dates=net.dates, delete_when="gone", made_of=says)

    def _still_bare(self, net: Net) -> DataFrame:
        """Return the calls that have no stub and had none: it was emptied, or never seen, and what was made stays."""
        now = net.rows.where(without_stubs()).select("call_key")
        return now.join(net.settled.where("was AND bare"), "call_key", "left_semi")


def _each(step: Callable[[Table], None], tables: Sequence[Table]) -> None:
    """Do a step for several tables at a time, and for the last one when all others are done.

    Most of a small commit is planning, by one thread. Only steps that set nothing in the session may be side by side.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(step, [table for table in tables if table is not LAST]))
    if LAST in tables:
        step(LAST)


def _is_none(calls: frozenset[str] | DataFrame) -> bool:
    return isinstance(calls, frozenset) and not calls


def _keys(frame: DataFrame) -> frozenset[str]:
    return frozenset(row[0] for row in frame.select("call_key").collect())


def _leaving(table: Table, net: Net, kept: DataFrame | None, named: frozenset[str]) -> frozenset[str] | DataFrame:
    """Return the calls whose rows leave the table, without those that are ``kept``, and ``named`` if they are few."""
    interfaces = INTERFACES[table]
    if net.were is None:
        found = net.settled.where(F.col("was") & F.col("interface_name").isin(*interfaces)).select("call_key")
        return found if kept is None else found.join(kept, "call_key", "left_anti")
    every = table in BY_CALL
    ours = {key for key, row in net.were.items() if row.interface_name in interfaces and (every or row.answered)}
    return frozenset(ours - named)


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
