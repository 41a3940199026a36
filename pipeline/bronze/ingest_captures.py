"""Captures -> bronze: reads what the ledger does not know yet, joins it with what was read before, and writes it.

The reading tasks write all tables' rows to side files under the run's own folder. What captures could not finish alone
is joined then (``rejoin``), and each table is written in one commit. The ledger (``capture_files``) is written last; a
run that never came so far is undone by the next one (``runs``). The caller holds the lake's lease.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.bronze import learned_endpoints, merge_connections
from pipeline.bronze.capture_source import read_captures
from pipeline.bronze.ingest_plan import plan, reprocess, within
from pipeline.bronze.input_files import Listed
from pipeline.bronze.ledger_entries import COLUMNS, Days, Known, Plan, Read, Reprocess
from pipeline.bronze.retention_cutoff import Horizon, recount_calls
from pipeline.bronze.write_tap import RemovedCalls, TappedWrite, WriteTap
from pipeline.lake import codegen
from pipeline.lake.arrow_rows import one_of, us_of
from pipeline.lake.concurrency import gather
from pipeline.lake.date_filters import on_dates
from pipeline.lake.lake import Lake, versions_of
from pipeline.lake.recovery import Runs, recover
from pipeline.lake.schema_enforcement import differing, part_of, schema_of
from pipeline.lake.staging_files import Batches, SideFiles, Through, rows_in, tasks_of
from pipeline.lake.tasks import Tasks
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
from schemas.table import INGESTED_AT, RUN_ID, Table, literal
from udfs.capture.duplicate_calls import left_by
from udfs.capture.merge import recount
from udfs.capture.reader import SCHEMAS
from udfs.capture.tables import with_servers

BRONZE: Final = (RPC_CALLS, CONNECTIONS, RPC_BINDS, QUARANTINE, PENDING, CAPTURE_FILES)  # the ledger is last
_OF_CAPTURES: Final = (RPC_CALLS, RPC_BINDS, QUARANTINE, PENDING, CAPTURE_FILES)  # whose rows name their capture
_TIMES_OF_CALLS: Final = ("request_at", "response_at")
_PROGRESS_S: Final = 3.0
_READ: Final = "read"
_JOINED: Final = "joined"
Say = Callable[[str], None]
Row = dict[str, Any]
_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a run reads of the files given: all that is new, and what these options say.

    ``days``: of new captures only those with packets on these; ``again``: captures of the ledger to read again;
    ``only_say``: nothing is written.
    """

    days: Days | None = None
    again: Reprocess | None = None
    only_say: bool = False


@dataclass(slots=True)
class Ingested:
    """What a run read: the files' rows of the ledger, and how many it passed over because it knew them.

    ``tapped``: the commit of the calls, where all that is new went through the tap.
    """

    files: list[Row] = field(default_factory=list)
    known: int = 0
    written: dict[str, int] = field(default_factory=dict)  # rows by table
    tapped: TappedWrite | None = None

    def add(self, other: Ingested) -> None:
        """Add what was read next; a capture that was read again counts once."""
        again = {row["path"] for row in other.files}
        self.tapped = None if self.files else other.tapped
        self.files = [row for row in self.files if row["path"] not in again] + other.files
        for table, rows in other.written.items():
            self.written[table] = self.written.get(table, 0) + rows

    @property
    def unreadable(self) -> bool:
        """Whether some file could not be read, or is damaged inside; a last record cut short is only a warning."""
        return any(row["damage"] not in (None, "cut_short") or row["status"] == "unreadable" for row in self.files)


def ingest(
    lake: Lake, files: list[Listed], *, run_id: str, reader_options: dict[str, Any], say: Say,
    expire: dt.timedelta = dt.timedelta(days=7), as_of: dt.datetime | None = None, choice: Choice | None = None,
    tap: WriteTap | None = None,
) -> Ingested:  # fmt: skip
    """Bring new captures into bronze; returns what was read. Files that the ledger knows are not read again.

    ``expire``: how long, in the packets' time, unfinished halves are waited for; ``as_of``: until when, where that is
    not the newest packet read. ``tap`` reads the calls on their way to the table, if a run only adds some.
    """
    choice = choice or Choice()
    if not choice.only_say:
        recover(lake, BRONZE, CAPTURE_FILES, say)
    ledger = _ledger(lake)
    planned = _plan(files, ledger, choice, say)
    if choice.only_say:
        for line in planned.lines():
            say(line)
        return Ingested(known=planned.known)
    runs, done = Runs.of(lake), Ingested(known=planned.known)
    horizon = Horizon.of(runs)
    if planned:
        size = sum(read.file.size - read.start for read in planned.read)
        codegen.expect(lake.spark, size, sum(known.file.size for known in ledger))
        say(f"reading {len(planned.read)} capture files, {size / 1e6:.1f} MB; {planned.known} known already")
    else:
        say(f"nothing new in {planned.known} capture files")
        planned = _again(lake, runs, say)
    rounds, named = 0, {place for known in ledger for place in known.learnt}
    while planned:
        name = run_id if not rounds else f"{run_id}-{rounds}"
        before = versions(lake)
        side = runs.begin(name, before)
        part = _Run(
            lake, name, side, before, planned, reader_options, expire, as_of, named, horizon=horizon, tap=tap
        ).carry_out(say)
        if horizon is not None:
            recount_calls(lake, horizon)
        runs.end(name)
        done.add(part)
        planned, rounds = _again(lake, runs, say), rounds + 1
    return done


def versions(lake: Lake) -> dict[str, int | None]:
    """Return the versions of all tables of bronze."""
    return versions_of(lake.newest(*BRONZE), BRONZE)


def _ledger(lake: Lake) -> list[Known]:
    rows = lake.query(f"SELECT {', '.join(COLUMNS)} FROM {{captures}}", captures=CAPTURE_FILES)
    return [Known.of(row) for row in rows.to_pylist()]


def _again(lake: Lake, runs: Runs, say: Say) -> Plan:
    """Plan to read captures again that hold more of connections than was kept when nothing showed they were ours."""
    wanted, planned = runs.again(), Plan()
    if not wanted:
        return planned
    ledger = {known.capture_id: known for known in _ledger(lake)}
    more = {name: {*endpoints, *ledger[name].followed} for name, endpoints in wanted.items() if name in ledger}
    names = frozenset(name for name, endpoints in more.items() if endpoints != set(ledger[name].followed))
    reprocess(planned, list(ledger.values()), Reprocess(captures=names))
    planned.read = [replace(read, followed=tuple(sorted(more[read.capture_id]))) for read in planned.read]
    for known in planned.missing:
        say(f"{known.file.path}: gone or changed since; its part of connections known by now is not read")
    if planned.read:
        say(f"reading {len(planned.read)} capture files again: others show what connections in them are")
    else:
        runs.note_again({})
    return planned


def _plan(files: list[Listed], ledger: list[Known], choice: Choice, say: Say) -> Plan:
    """Decide what is read."""
    if choice.days is not None:
        files = within(files, ledger, choice.days)
    planned = plan(files, ledger)
    if choice.again is not None:
        chosen = reprocess(planned, ledger, choice.again)
        say(f"{chosen} captures of the lake are chosen to be read again")
        for known in planned.missing:
            say(f"{known.file.path}: gone or changed since, it cannot be read again")
    followed = {planned.renamed.get(known.capture_id, known.capture_id): known.followed for known in ledger}
    planned.read = [replace(read, followed=followed.get(read.capture_id, ())) for read in planned.read]
    return planned


@dataclass(slots=True)
class _Run:
    """One run's work on a lake."""

    lake: Lake
    run_id: str
    side: Path
    before: dict[str, int | None]  # the versions of the tables that it begins at
    planned: Plan
    reader_options: dict[str, Any]
    expire: dt.timedelta
    as_of: dt.datetime | None
    named: set[str]  # places that calls of any capture name; those of this run are added
    now: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))
    horizon: Horizon | None = None  # nothing older is kept
    servers: dict[str, set[str]] = field(default_factory=dict)  # of what it cut: those that stay, by path
    tap: WriteTap | None = None
    removed: RemovedCalls = field(default_factory=RemovedCalls)  # by the commit in which it added calls

    def carry_out(self, say: Say) -> Ingested:
        """Take out, rename, read, join, write."""
        lake, done = self.lake, Ingested(known=self.planned.known)
        out = self._take_out()
        self._rename()
        done.files = self._read(say)
        fresh = self._side("pending")
        joined = self._join(fresh, out)
        if joined:
            say(f"joining {len(joined.was)} connections that other captures have a part of")
            merge_connections.relabel(lake, joined)
        if again := self._again(joined, done.files, fresh):
            runs = Runs.of(lake)
            runs.note_again({**runs.again(), **again})
        if joined.together or self.planned.replaced:  # calls change that are there already, not as a whole
            self.tap = None
        self._write_all(joined, done.files)
        since = self.before[str(RPC_CALLS)] or 0
        if self.tap is not None and (version := lake.version(RPC_CALLS)) == since + 1:
            done.tapped = TappedWrite(since, version, self.removed)
        for table in (CONNECTIONS, RPC_BINDS, QUARANTINE, PENDING):
            done.written[str(table)] = rows_in(self._tables / table.name)
        done.written[str(CAPTURE_FILES)] = self._write_ledger(done.files, joined.packets)
        done.written[str(RPC_CALLS)] = sum(row["calls"] for row in done.files)
        return done

    # -- before reading ------------------------------------------------------------------------------------------

    def _take_out(self) -> pa.Table:
        """Take out the rows of captures that are read anew; return what they could not finish alone."""
        lake, replaced = self.lake, sorted(self.planned.replaced)
        if not replaced:
            return merge_connections.pending_table([])
        rows = lake.select(PENDING, "capture_id IN {names}", SCHEMAS["pending"].names, names=replaced)
        rows = rows.cast(SCHEMAS["pending"])
        self._take_out_of_sightings({day for row in rows.to_pylist() for day in merge_connections.days(row)})
        for table in _OF_CAPTURES:
            lake.delete(table, "capture_id IN {names}", names=replaced)
        return rows

    def _take_out_of_sightings(self, dates: Collection[dt.date | None]) -> None:
        """Make calls that other captures saw too what these alone make of them."""
        gone, schema = self.planned.replaced, SCHEMAS["rpc_calls"]
        named = ", ".join(literal(name) for name in sorted(gone))
        seen = f"exists(sightings, s -> s.capture_id IN ({named}) OR s.response_capture_id IN ({named}))"
        shared = self.lake.read(RPC_CALLS).where(on_dates(dates)).where(seen).select(*schema.names)
        rows = shared.toArrow().cast(schema).to_pylist()
        left = [row for row in (left_by(row, gone) for row in rows) if row is not None]
        self.lake.remove(RPC_CALLS, "call_key", {row["call_key"] for row in rows}, dates=dates)
        self._append_in_memory(RPC_CALLS, pa.Table.from_pylist(left, schema))

    def _rename(self) -> None:
        """Give captures the keys that they have now, all at once: two may have swapped theirs."""
        if not self.planned.renamed:
            return

        def renamed(column: str) -> str:
            cases = " ".join(
                f"WHEN {literal(old)} THEN {literal(new)}" for old, new in sorted(self.planned.renamed.items())
            )
            return f"CASE {column} {cases} ELSE {column} END"

        old = ", ".join(literal(name) for name in sorted(self.planned.renamed))
        for table in _OF_CAPTURES:
            columns = [name for name in ("capture_id", "response_capture_id") if name in table.names]
            where = " OR ".join(f"{column} IN ({old})" for column in columns)
            self.lake.update(table, {column: renamed(column) for column in columns}, where)

    # -- reading -------------------------------------------------------------------------------------------------

    def _read(self, say: Say) -> list[Row]:
        """Read the captures into side files; return the rows of the ledger.

        All goes to side files first: what other captures tell of a call is known when all are read, and then it is
        written once. Writing and reading them takes a tenth of what changing rows in Delta afterwards takes. The
        tables that nothing else is written beside are made meanwhile if they are not there.
        """
        reads = self.planned.read
        if not reads:
            return []
        tasks = read_captures(
            reads, self.side / "tasks.jsonl", rows="capture_files", side=self._tables, **self.reader_options
        )
        schema = from_arrow_schema(SCHEMAS["capture_files"])
        asked: dict[str, Callable[[], Any]] = {_READ: partial(tasks.table, self.lake.spark, schema)}
        asked |= {str(table): partial(self.lake.prepare, table) for table in (RPC_CALLS, CAPTURE_FILES)}
        with _progress(self._tables / CAPTURE_FILES.name, len(reads), say):
            found: list[Row] = gather(asked)[_READ].cast(SCHEMAS["capture_files"]).to_pylist()
        if self.horizon is not None:
            self.servers = self.horizon.trim(self._tables, found)
        return found

    def _join(self, fresh: pa.Table, out: pa.Table) -> merge_connections.Changes:
        """Join what the captures could not finish alone, and what was ``out``, with the remainders of earlier runs.

        One thread of Python does that: the tables that are written next are made meanwhile if they are not there.
        """
        lake, earlier = self.lake, merge_connections.earlier(self.lake, pa.concat_tables([fresh, out]))
        window_s = float(self.reader_options.get("reorder_window_s", 2.0))
        asked: dict[str, Callable[[], Any]] = {
            _JOINED: partial(merge_connections.joined, fresh, earlier, out, window_s=window_s)
        }
        asked |= {str(table): partial(lake.prepare, table) for table in (CONNECTIONS, RPC_BINDS, QUARANTINE, PENDING)}
        joined: merge_connections.Changes = gather(asked)[_JOINED]
        return joined

    def _again(self, joined: merge_connections.Changes, files: Sequence[Row], fresh: pa.Table) -> dict[str, set[str]]:
        """Return captures that are to be read again, and the places for whose connections that is."""
        more = [*files, *(row for rows in joined.packets.values() for row in rows)]
        news = {place for row in more for place in row["learnt"] or ()} - self.named
        self.named |= news
        found = joined.again()
        if not self.named:
            return found
        rows = [*learned_endpoints.unknowing(fresh), *learned_endpoints.unknowing_before(self.lake, news)]
        for capture_id, wanted in learned_endpoints.to_read_again(rows, self.named).items():
            found.setdefault(capture_id, set()).update(wanted)
        return found

    @property
    def _tables(self) -> Path:
        """The folder of the side tables."""
        return self.side / "tables"

    def _side(self, name: str) -> pa.Table:
        """Return the rows of a side table."""
        folder = self._tables / name
        return pads.dataset(folder, SCHEMAS[name]).to_table() if folder.is_dir() else SCHEMAS[name].empty_table()

    # -- writing -------------------------------------------------------------------------------------------------

    def _write_all(self, joined: merge_connections.Changes, files: Sequence[Row]) -> None:
        """Write all tables but the ledger, side by side."""
        changed = {row["pending_key"] for row in joined.pending}

        def connections(counts: dict[str, int]) -> None:
            rows = _with_calls(joined.rows("connections"), counts)
            self._write(CONNECTIONS, joined, "connection_id", joined.was, rows=rows)

        def calls_and_connections() -> None:
            connections(self._write_calls(joined))

        expired = self._expired(files)
        writes: dict[Table, Callable[[], Any]] = {
            RPC_CALLS: partial(self._write_calls, joined),
            CONNECTIONS: partial(connections, {}),
            RPC_BINDS: lambda: self._write(RPC_BINDS, joined, "connection_id", joined.was),
            QUARANTINE: lambda: self._write(QUARANTINE, joined, "quarantine_key", joined.quarantine_keys),
            PENDING: lambda: self._write(PENDING, joined, "pending_key", changed, but=expired),
        }
        if joined.together:  # the calls of a connection are counted when they are merged
            writes[RPC_CALLS] = calls_and_connections
            del writes[CONNECTIONS]
        gather(writes)

    def _write(
        self, table: Table, joined: merge_connections.Changes, column: str, made: Collection[str], *,
        rows: pa.Table | None = None,
        but: _Expired | None = None,
    ) -> None:  # fmt: skip
        """Write a small table's new rows: those of the captures, and in the place of those ``made``, those of joining.

        ``made`` are values of ``column``; ``but``: rows that go too, new ones among them.
        """
        lake = self.lake
        rows = joined.rows(table.name) if rows is None else rows
        told = merge_connections.renaming(joined) if table is QUARANTINE else merge_connections.without(column, made)
        if table is CONNECTIONS and self.planned.replaced:  # what is read again is there already
            own = told(self._side(table.name).to_batches())
            rows = pa.concat_tables([pa.Table.from_batches(own, rows.schema), rows])
            dates = joined.dates | set(rows.column("event_date").to_pylist())
            there = lake.with_keys(table, {*made, *rows.column(column).to_pylist()}, dates=dates)
            lake.put(table, self._stamped(table, rows), there, dates=dates)
            return
        gone: set[str] = set()
        if self.before[str(table)] is not None:
            gone = set(made) if joined.earlier else set()
            if gone and table is not PENDING:  # of these only what differs is made anew
                there = lake.with_keys(table, gone, column=column, dates=joined.dates)
                fresh, gone = differing(rows, there, table.key[0])
                rows = rows.filter(one_of(rows, table.key[0], fresh))
        self._exchange(table, told, rows, gone=gone, dates=joined.dates, but=but)

    def _exchange(
        self, table: Table, told: Through, joined: pa.Table, *, gone: Collection[str],
        dates: Collection[dt.date | None], but: _Expired | None = None,
        onward: Callable[[Batches, str], Batches] | None = None,
    ) -> None:  # fmt: skip
        """Add what captures finished alone, after it was ``told`` of others, and the rows of joining, in one commit.

        All goes from side files to the table once, by way of ``onward``, which is told the task's number too. ``gone``
        are the keys of rows that go, of these ``dates``; ``but`` those that go besides, new ones among them.
        """
        run_id, now = self.run_id, self.now
        of_captures, of_joining = self._tables / table.name, self.side / _JOINED / table.name
        made = SideFiles(str(of_joining.parent), _JOINED)
        for batch in joined.to_batches():
            made.add(table.name, batch)
        made.close()
        tasks = tasks_of(of_captures, of_joining)
        ours = str(of_joining)

        def pieces(number: int) -> Batches:
            for piece in tasks[number]:
                yield from piece.read() if piece.path.startswith(ours) else told(piece.read())

        def rows(number: int) -> Batches:
            left = pieces(number) if but is None else map(but.without, pieces(number))
            stamped = (_stamped(table, batch, run_id, now) for batch in left)
            return stamped if onward is None else onward(stamped, str(number))

        fresh = Tasks(len(tasks), sum(piece.size for task in tasks for piece in task), rows)
        if tasks or gone or (but is not None and self.before[str(table)] is not None):
            self.lake.exchange(table, table.key[0], gone, fresh, dates=dates, also=None if but is None else but.sql)

    def _append_in_memory(self, table: Table, rows: pa.Table) -> None:
        """Append rows in memory, if there are any."""
        if rows.num_rows:
            self.lake.append(table, self._stamped(table, rows))

    def _write_calls(self, joined: merge_connections.Changes) -> dict[str, int]:
        """Write the calls; return the numbers of those of connections that captures saw at the same time."""
        lake, calls = self.lake, joined.rows("rpc_calls")
        shared = one_of(calls, "connection_id", joined.together)
        lake.create(RPC_CALLS)
        there = self._made_before(joined)
        same = joined.unchanged | _same(calls, there)
        gone = joined.call_keys - same
        onward = None
        if self.tap is not None:
            onward = self.tap.passing
            dates = _dates_in_silver(there.filter(one_of(there, "call_key", gone)))
            self.removed = RemovedCalls(frozenset(gone), dates)
        alone = calls.filter(pc.invert(pc.or_(shared, one_of(calls, "call_key", same))))
        self._exchange(
            RPC_CALLS, merge_connections.teaching(joined), alone, gone=gone, dates=joined.dates, onward=onward
        )
        if not joined.together:
            return {}
        merged = merge_connections.merge_together(lake, joined, calls.filter(shared))
        self._append_in_memory(RPC_CALLS, merged)
        counts = Counter(merged.column("connection_id").to_pylist())
        return {name: counts[name] for name in joined.together}

    def _made_before(self, joined: merge_connections.Changes) -> pa.Table:
        """Return the calls, as the table has them, that joining makes anew.

        Where whole rows are not at hand but by reading the table whole, only what silver's rows are found by.
        """
        columns = () if self.lake.is_here else ("call_key", *_TIMES_OF_CALLS)
        if not joined.call_keys:
            return part_of(schema_of(RPC_CALLS), columns or RPC_CALLS.names).empty_table()
        return self.lake.with_keys(RPC_CALLS, joined.call_keys, dates=joined.dates, columns=columns)

    def _stamped(self, table: Table, rows: pa.Table) -> pa.Table:
        """Rows with the table's columns, those of the run too."""
        return _stamped(table, rows, self.run_id, self.now)

    def _write_ledger(self, files: list[Row], packets: dict[str, list[Row]]) -> int:
        """Write the ledger: what was read, counts added to those of a capture that was read on, and moved files.

        Returns how many rows were written.
        ``packets``: by capture, what is to be added to its counts, for other captures tell more of its connections.
        """
        rows = {row["path"]: row for row in files}
        schema = pa.schema([f for f in SCHEMAS["capture_files"] if f.name in CAPTURE_FILES.names])
        concerned = {*(read.capture_id for read in self.planned.read), *self.planned.paths, *packets}
        there = schema.empty_table()
        if self.before[str(CAPTURE_FILES)] is not None:  # else the run itself made it, and it holds nothing
            there = self.lake.with_keys(CAPTURE_FILES, concerned).select(schema.names).cast(schema)
        ledger = {row["capture_id"]: row for row in there.to_pylist()}
        written = []
        for read in self.planned.read:
            known = ledger.get(read.capture_id) if read.start else None
            row = self._ledger_row(read, rows[read.file.path], known)
            if self.horizon is not None and read.file.path in self.servers:
                before = () if known is None else known["servers"] or ()
                row = self.horizon.ledger_row(row, self.servers[read.file.path] | set(before))
            written.append(row)
        for capture_id, names in self.planned.paths.items():
            written.append({**ledger[capture_id], **_ledger_names(names.columns())})
        done = {row["capture_id"] for row in written}
        written += [row for capture_id, row in ledger.items() if capture_id not in done]
        for row in written:
            for more in packets.get(row["capture_id"], ()):
                recount(row, more)
        if written:
            found = pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in written], schema)
            dates = {row["event_date"] for row in ledger.values()}
            self.lake.put(CAPTURE_FILES, self._stamped(CAPTURE_FILES, found), there, dates=dates)
        return len(written)

    def _ledger_row(self, read: Read, row: Row, before: Row | None) -> Row:
        row = {**row, **_ledger_names(read.names.columns()), "capture_id": read.capture_id}
        if before is None:
            return row
        for name in _ADDED:
            row[name] = row[name] + before[name]
        for name, better in (("first_packet_at", min), ("last_packet_at", max)):
            row[name] = better([time for time in (row[name], before[name]) if time is not None], default=None)
        row |= with_servers(row["server_connections"], before["server_connections"])
        for name in ("link_types", "learnt", "followed"):
            row[name] = sorted({*(row[name] or ()), *(before[name] or ())}) or None
        first = row["first_packet_at"]
        return {**row, "first_key": read.first_key, "event_date": None if first is None else first.date()}

    def _expired(self, files: Sequence[Row]) -> _Expired | None:
        """Return what waited too long, in the packets' time: its rows stay, no more is waited for."""
        read = (row["last_packet_at"] for row in files if row["last_packet_at"] is not None)
        now = self.as_of or max(read, default=None)
        return None if now is None else _Expired(now - self.expire)


@dataclass(frozen=True, slots=True)
class _Expired:
    """Rows of bronze.pending that wait since before a time."""

    before: dt.datetime

    @property
    def sql(self) -> str:
        """The condition of these."""
        return f"event_date <= DATE'{self.before.date()}' AND since < timestamp_micros({us_of(self.before)})"

    def without(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows without these."""
        gone = pc.and_kleene(pc.less_equal(rows["event_date"], self.before.date()), pc.less(rows["since"], self.before))
        return rows.filter(pc.invert(pc.fill_null(gone, False)))  # noqa: FBT003


def _stamped(table: Table, rows: _Rows, run_id: str, now: dt.datetime) -> _Rows:
    """Return rows with the table's columns, those of the run too."""
    of_run = {RUN_ID: pa.scalar(run_id, pa.string()), INGESTED_AT: pa.scalar(now, pa.timestamp("us", "UTC"))}
    arrays = [pa.repeat(of_run[name], rows.num_rows) if name in of_run else rows.column(name) for name in table.names]
    return type(rows).from_arrays(arrays, names=list(table.names))


def _same(calls: pa.Table, there: pa.Table) -> set[str]:
    """Return the keys of calls that are there as they are: nothing is to follow them."""
    if not {*calls.column_names} <= {*there.column_names}:
        return set()
    ours = calls.filter(one_of(calls, "call_key", there["call_key"].to_pylist()))
    fresh, _ = differing(ours, there, "call_key")
    return {*ours["call_key"].to_pylist()} - fresh


def _dates_in_silver(there: pa.Table) -> frozenset[dt.date | None]:
    """Return the event dates that silver's rows of calls can have: of their requests, and of their answers."""
    if not there.num_rows:
        return frozenset()
    times = {each for name in _TIMES_OF_CALLS for each in there[name].to_pylist()}
    return frozenset({None, *(each.date() for each in times if each is not None)})


def _with_calls(connections: pa.Table, counts: dict[str, int]) -> pa.Table:
    """Return rows of connections with the numbers of their calls, where these are not as joining counted them."""
    if not counts:
        return connections
    rows = [{**row, "calls": counts.get(row["connection_id"], row["calls"])} for row in connections.to_pylist()]
    return pa.Table.from_pylist(rows, connections.schema)


# Of a capture that was read on: what its parts counted adds up.
_ADDED: Final = (
    "packets", "packets_tcp", "packets_truncated", "packets_used", "packets_other", "packets_damaged",
    "packets_binary_protocol",
)  # fmt: skip


def _ledger_names(columns: Row) -> Row:
    """The columns of a capture's files, with the time as the table has it."""
    modified = columns.pop("modified_us")
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return {**columns, "modified_at": None if modified is None else epoch + dt.timedelta(microseconds=modified)}


@contextmanager
def _progress(folder: Path, total: int, say: Say) -> Iterator[None]:
    """Tell how many captures were read, every few seconds while there is something new to tell.

    The tasks write a capture's row of the ledger when they are through with it: these are counted.
    """
    done = Event()

    def watch() -> None:
        told = 0
        while not done.wait(_PROGRESS_S):
            read = sum(not path.name.startswith(".") for path in folder.glob("*")) if folder.is_dir() else 0
            if read != told:
                say(f"{read} of {total} capture files read")
                told = read

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
