"""Silver follows bronze.rpc_calls: the tables made call by call take its changes, once, and nothing else.

The changed calls are decoded in one pass, to side files; each table takes its rows from there. What a run only adds to
bronze.rpc_calls is decoded while it is written there, for then it is in memory (``Decoded``). The last table,
silver.remote_read_calls, has a commit after all others, also when nothing of it changed: that says of which version of
bronze.rpc_calls all of them were made. The side files' folder stays where a run was killed or failed: the next one then
puts rows in the place of any of the same calls, for some tables may have them already. Where nothing is known (a first
run, other decoders, a feed that does not reach back) all are made anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.lake.concurrency import gather
from pipeline.lake.lake import Lake
from pipeline.lake.net_changes import Net, net_changes
from pipeline.lake.queries import UNTOLD
from pipeline.lake.recovery import Runs
from pipeline.silver.decode import BY_CALL, INTERFACES, TABLES, VERSION
from pipeline.silver.decode_tasks import Decoded, Decoder, as_decoded_before, followed, silver_dates, without_stubs
from schemas.bronze import PENDING, RPC_CALLS
from schemas.table import EVENT_DATE, Table

EMPTIED: Final = "stubs emptied"  # what the commit of bronze.rpc_calls says that silver need not follow
LAST: Final = TABLES[-1]
_CALLS: Final = str(RPC_CALLS)
_STUBS: Final = ("request_stub", "response_stub", "request_pieces", "response_pieces")
_UNFINISHED: Final = ("no_request", "no_response", "damaged", "unbound")


def decoder(lake: Lake, *, keep_packets: bool, keep_bodies: bool = False) -> Decoder:
    """Return a decoder for what is written to bronze.rpc_calls next; what an earlier one left is removed."""
    folder = Runs.of(lake).root / "decoded"
    shutil.rmtree(folder, ignore_errors=True)
    return Decoder(str(folder), keep_packets, keep_bodies)


def silver(
    lake: Lake, *, keep_packets: bool, keep_stubs: bool, keep_bodies: bool = False, decoded: Decoded | None = None
) -> dict[str, int]:
    """Bring changes of bronze.rpc_calls to the tables of silver; returns how many rows of each were written.

    Without ``keep_stubs`` bronze loses the stubs then (the setting store.stubs): they hold bodies. Those of calls that
    still wait for something (bronze.pending) are kept until they have it. ``decoded``: what was decoded already, by
    ``decoder`` with the same settings.
    """
    written = {str(table): 0 for table in TABLES}
    newest = lake.version(RPC_CALLS)
    if newest is None:
        return written
    made = lake.made(LAST)
    emptied = not keep_stubs or made.get("emptied", bool(made) or lake.exists(LAST))
    side = Runs.of(lake).root / "silver"
    options = {"emptied": emptied, "keep_packets": keep_packets, "keep_bodies": keep_bodies}
    written |= _Work(lake, side, made, newest, decoded, interrupted=side.exists(), **options).follow()
    shutil.rmtree(side, ignore_errors=True)
    if decoded is not None:
        shutil.rmtree(decoded.by.folder, ignore_errors=True)
    if not keep_stubs:
        _empty_stubs(lake)
    return written


@dataclass(slots=True, kw_only=True)
class _Options:
    emptied: bool  # stubs of some calls may have been taken away after they were decoded
    interrupted: bool  # an earlier run did not end
    keep_packets: bool
    keep_bodies: bool


@dataclass(slots=True)
class _Work(_Options):
    """One run's work: what the last table's commit said, and the version of bronze.rpc_calls that is gone to."""

    lake: Lake
    side: Path
    made: dict[str, Any]
    newest: int
    decoded: Decoded | None

    def follow(self) -> dict[str, int]:
        """Bring all tables to the newest version."""
        since = self.made.get(_CALLS)
        if not self.made:  # with nothing in them tables begin, at version 0
            decoded = self._added_to(0)
            return self._anew(None if decoded is None else decoded.by)
        if self.made.get("decoder") != VERSION or since is None or since > self.newest:
            return self._anew()
        if (decoded := self._added_to(since)) is not None:
            return self._add(decoded)
        passed_over = self._passed_over(since)
        if since + len(passed_over) == self.newest:
            return {}
        net = self._changes(since, passed_over)
        return self._anew() if net is None else self._bring(net, since)

    def _added_to(self, version: int) -> Decoded | None:
        """Return what was decoded of all that changed since a version; None if it is not all, or not known to be."""
        known = self.decoded
        if known is None or self.interrupted or (known.write.since, known.write.version) != (version, self.newest):
            return None
        return None if self.emptied and known.write.removed.calls else known

    def _passed_over(self, since: int) -> list[int]:
        """Return the versions that only emptied stubs."""
        said = self.lake.said(RPC_CALLS, since) if since < self.newest else {}
        return [version for version, what in said.items() if what == EMPTIED]

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
        except UNTOLD:
            return None

    def _says(self, version: int) -> str:
        return json.dumps({_CALLS: version, "decoder": VERSION, "emptied": self.emptied})

    def _decode(self, calls: DataFrame) -> Decoder:
        """Decode calls to side files."""
        folder = self.side / uuid4().hex
        folder.mkdir(parents=True)
        by = Decoder(str(folder), self.keep_packets, self.keep_bodies)
        by.decode(calls)
        return by

    def _rows(self, table: Table, by: Decoder, count: int) -> DataFrame:
        """Return what was decoded of a table; without a row there is no file."""
        spark = self.lake.spark
        if not count:
            return spark.createDataFrame([], table.struct())
        return spark.read.schema(table.struct()).parquet(f"{by.folder}/{table.name}")

    def _anew(self, decoded: Decoder | None = None) -> dict[str, int]:
        """Make all tables of all calls there are; ``decoded``: what they are decoded by already."""
        lake, calls = self.lake, self.lake.read(RPC_CALLS)
        found = gather({table: partial(lake.exists, table) for table in TABLES})
        there = {table for table in TABLES if found[table]}
        if decoded is None:
            lake.begin_with(RPC_CALLS)
            self.newest = lake.version(RPC_CALLS) or 0
            decoded = self._decode(calls)
        by, written, says = decoded, decoded.written(), self._says(self.newest)
        bare = calls.where(without_stubs()).select("call_key")

        def make(table: Table) -> None:
            count = written[str(table)]
            if table not in there:
                lake.create(table)
                if count:
                    lake.append(table, by.rows(table), made_of=None if table is LAST else says)
                return
            rows = self._rows(table, by, count)
            if self.emptied and table in BY_CALL:
                rows = as_decoded_before(table, rows, bare, lake.read(table))
            elif self.emptied:
                rows = rows.unionByName(lake.read(table).join(bare, "call_key", "left_semi"))
            if "source" in table.names:  # what the collector was told is not made of calls
                rows = rows.unionByName(lake.read(table).where("source = 'collector'"))
            lake.replace(table, rows, made_of=None if table is LAST else says)

        gather({table: partial(make, table) for table in TABLES})
        self._stamp()  # the last table waited for nobody, so that its rows say nothing yet
        return written

    def _add(self, decoded: Decoded) -> dict[str, int]:
        """Bring what was decoded of calls that are new, and take out what was made of those that are gone."""
        self.side.mkdir(parents=True, exist_ok=True)  # from here on some tables may have rows that others do not
        by, gone, says = decoded.by, decoded.write.removed, self._says(self.newest)
        written = by.written()

        def exchange(table: Table) -> None:
            if written[str(table)] or gone.calls:
                self.lake.exchange(
                    table, "call_key", gone.calls, by.rows(table), dates=gone.dates, made_of=says, was_made_of=says
                )

        _each(exchange, TABLES)
        self._stamp()
        return written

    def _bring(self, net: Net, since: int) -> dict[str, int]:
        """Bring a net change since a version to the tables."""
        lake, says, was = self.lake, self._says(self.newest), self._says(since)
        by = self._decode(net.rows)
        written = by.written()
        rows = self._tables(by, written)
        bare = self._still_bare(net) if self.emptied and net.replaces else None
        named = _keys(bare) if bare is not None and net.were is not None else frozenset()
        merged = [table for table in TABLES if bare is not None and table in BY_CALL]
        others = [table for table in TABLES if table not in merged]
        gone = {table: self._leaving(table, net, bare, named) for table in others}
        with lake.saying(was):  # two commits, the first says that nothing is done yet: a fraction of a MERGE's time
            _each(lambda table: lake.remove(table, "call_key", gone[table], dates=self._dates(net)), others)
        self._append({table: rows[table] for table in others if table in rows})
        if bare is not None:
            for table in merged:
                if table in rows or not _is_none(self._leaving(table, net, None, frozenset())):
                    self._merge(table, rows.get(table), net, bare, says)
        self._stamp()
        return written

    def _tables(self, by: Decoder, written: Mapping[str, int]) -> dict[Table, DataFrame]:
        """Return what was decoded of the tables that have a row of it."""
        return {table: self._rows(table, by, written[str(table)]) for table in TABLES if written[str(table)]}

    def _append(self, rows: Mapping[Table, DataFrame]) -> None:
        says = self._says(self.newest)
        _each(lambda table: self.lake.append(table, rows[table], made_of=says), list(rows))

    def _stamp(self) -> None:
        """Have the last table say what all are made of, where its newest commit does not yet."""
        says = self._says(self.newest)
        if self.lake.made_of(LAST) != says:
            self.lake.stamp(LAST, says)

    def _dates(self, net: Net) -> frozenset[date | None] | None:
        """Return the dates where rows of changed calls are; all, after an interrupted run that may have put more."""
        return None if self.interrupted else net.dates

    def _leaving(
        self, table: Table, net: Net, kept: DataFrame | None, named: frozenset[str]
    ) -> frozenset[str] | DataFrame:
        """Return the calls whose rows leave the table, without those that are ``kept``, and ``named`` if they are few.

        After an interrupted run these are all calls that changed or came: some of their rows may be there already.
        """
        interfaces = INTERFACES[table]
        if net.were is not None and not self.interrupted:
            every = table in BY_CALL
            were = net.were.items()
            ours = {key for key, row in were if row["interface_name"] in interfaces and (every or row["answered"])}
            return frozenset(ours - named)
        if self.interrupted:
            found = net.settled.select("call_key").union(net.rows.select("call_key")).distinct()
        else:
            found = net.settled.where(F.col("was") & F.col("interface_name").isin(*interfaces)).select("call_key")
        return found if kept is None else found.join(kept, "call_key", "left_anti")

    def _merge(self, table: Table, rows: DataFrame | None, net: Net, bare: DataFrame, says: str) -> None:
        """Put rows in the place of those before, in one commit: what was decoded before is read while it goes."""
        rows = self.lake.spark.createDataFrame([], table.struct()) if rows is None else rows
        rows = as_decoded_before(table, rows, bare, self.lake.read(table)).withColumn("gone", F.lit(False))  # noqa: FBT003
        gone = net.settled
        if not self.interrupted:
            gone = gone.where(F.col("was") & F.col("interface_name").isin(*INTERFACES[table]))
        gone = gone.select("call_key").join(rows.select("call_key"), "call_key", "left_anti")
        rows = rows.unionByName(gone.withColumn("gone", F.lit(True)), allowMissingColumns=True)  # noqa: FBT003
        self.lake.merge(table, rows, dates=self._dates(net), delete_when="gone", made_of=says)

    def _still_bare(self, net: Net) -> DataFrame:
        """Return the calls that have no stub and had none: it was emptied, or never seen, and what was made stays."""
        now = net.rows.where(without_stubs()).select("call_key")
        return now.join(net.settled.where("was AND bare"), "call_key", "left_semi")


def _each(step: Callable[[Table], None], tables: Sequence[Table]) -> None:
    """Do a step for several tables at a time, and for the last one when all others are done.

    Most of a small commit is planning, by one thread. What one step's commit says, those beside it may say too.
    """
    gather({table: partial(step, table) for table in tables if table is not LAST})
    if LAST in tables:
        step(LAST)


def _is_none(calls: frozenset[str] | DataFrame) -> bool:
    return isinstance(calls, frozenset) and not calls


def _keys(frame: DataFrame) -> frozenset[str]:
    return frozenset(row[0] for row in frame.select("call_key").collect())


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
        nothing = (F.lit(None).cast("binary").alias(name) for name in _STUBS)
        lake.fill(RPC_CALLS, calls.select("call_key", *nothing), dates=dates, made_of=EMPTIED)
