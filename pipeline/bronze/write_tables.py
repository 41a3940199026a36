"""Write one round of an ingest of captures to the bronze tables, one commit for each table.

Rows come from the round's staging files, changed on the way by what merging across captures found. Stored rows that
merging replaces leave in the same commit. The ledger (``bronze.capture_files``) is written last and by itself.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in
from pipeline.bronze.across_captures import merge_connections
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.bronze.across_captures.merge_connections import MergeChanges
from pipeline.bronze.capture_parts import add_row_before
from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.ledger_entries import IngestPlan, PlannedRead
from pipeline.bronze.pending_expiry import PendingExpiry
from pipeline.bronze.retention_cutoff import RetentionCutoff
from pipeline.bronze.row_observers import RemovedCalls, RowObserver
from pipeline.bronze.staged_reads import StagedReads
from pipeline.concurrency import run_concurrently
from pipeline.lake.date_filters import dates_condition
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import RowsOfDates
from pipeline.lake.schema_enforcement import changed_keys
from pipeline.lake.staging_files import Batches, BatchTransform, StagedPart, StagingWriter, plan_tasks, staged_files
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
from schemas.sessions import PINGS, SESSION_PACKETS
from schemas.table import EVENT_DATE, INGESTED_AT, RUN_ID, Table, literal
from udfs.capture.call_sightings import row_without_captures
from udfs.capture.capture_reader import BRONZE_SCHEMAS
from udfs.capture.clocks.tap_steps import with_tap_steps
from udfs.capture.merged_remainders import add_packet_counts
from udfs.rows import RowDict
from udfs.sessions.packet_sightings import packet_without_captures
from udfs.sessions.pings import ping_rows, pings_batch, pings_of_rows
from udfs.times import us_to_datetime

_TABLES_WITH_CAPTURE_ID: Final = (RPC_CALLS, RPC_BINDS, SESSION_PACKETS, PINGS, QUARANTINE, PENDING, CAPTURE_FILES)
_CAPTURE_COLUMNS: Final = ("capture_id", "response_capture_id")
_CAPTURES_IN_LISTS: Final = (*_CAPTURE_COLUMNS, "other_capture_id")
_SIGHTINGS: Final = "sightings"
_TAP_STEPS: Final = "tap_steps"
_MERGED: Final = "merged"  # the folder of the staging files that merging gave
_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


def captures_without_entry(lake: Lake) -> set[str]:
    """Return the captures that bronze has rows of, and the ledger has not."""
    found = set[str]()
    no_entry = "capture_id IS NOT NULL AND NOT capture_id IN (SELECT capture_id FROM {ledger})"
    for table in _TABLES_WITH_CAPTURE_ID:
        sql = f"SELECT DISTINCT capture_id FROM {{rows}} WHERE {no_entry}"
        found.update(lake.query(sql, rows=table, ledger=CAPTURE_FILES)["capture_id"].to_pylist())
    return found


@dataclass(slots=True)
class BronzeWriter:
    """Writes the tables of one round. ``folder`` holds its staging files; ``observers`` see the rows that are added.

    ``staged`` are those that the read tasks write.
    ``versions_before`` are the tables' versions at the start: None for a table that did not exist. ``removed_calls``
    are the calls that the commit of ``bronze.rpc_calls`` took out, if they are observed.
    """

    lake: Lake
    run_id: str
    folder: LakePath
    versions_before: dict[str, int | None]
    plan: IngestPlan
    clock: IngestClock
    observers: Mapping[Table, RowObserver] = field(default_factory=dict)
    cutoff: RetentionCutoff | None = None
    removed_calls: RemovedCalls = field(default_factory=RemovedCalls, init=False)
    staged: StagedReads = field(init=False)
    _kept_servers: dict[str, set[str]] = field(
        default_factory=dict, init=False
    )  # by path, of captures that the cutoff trimmed

    def __post_init__(self) -> None:
        """Begin without any read."""
        self.staged = StagedReads(self.folder)

    def trim_staged_rows(self, folder: LakePath, reads: Mapping[str, PlannedRead], rows: Iterable[RowDict]) -> None:
        """Remove rows from before the retention cutoff from the staging files of reads, which are given by name.

        ``folder`` is that of the pass, ``rows`` are the reads' rows of the ledger.
        """
        if self.cutoff is not None:
            captures = [{**row, INGESTED_AT: self._ingested_at(reads[row["path"]])} for row in rows]
            kept: dict[str, set[str]] = defaultdict(set)
            for name, servers in self.cutoff.trim_staging_files(folder, captures).items():
                kept[reads[name].file.path] |= servers
            self._kept_servers |= kept

    def _ingested_at(self, read: PlannedRead) -> dt.datetime:
        return self.clock.ingested_at(read.ingested_us)

    # -- stored captures -------------------------------------------------------------------------------------------

    def remove_replaced_captures(self) -> pa.Table:
        """Delete the rows of captures that are read again; return their rows of ``bronze.pending``."""
        lake, replaced = self.lake, sorted(self.plan.replaced_captures)
        if not replaced:
            return merge_connections.pending_table([])
        rows = lake.select(PENDING, "capture_id IN {names}", BRONZE_SCHEMAS["pending"].names, names=replaced)
        rows = rows.cast(BRONZE_SCHEMAS["pending"])
        dates = {day for row in rows.to_pylist() for day in merge_connections.packet_dates(row)}
        connections = rows["connection_id"].unique().to_pylist()
        self._remove_sightings(dates, connections)
        self._remove_packet_sightings(dates, connections)
        # A ping is noted of one of the captures that saw it: another saw what its own beginning did.
        self._rename_rows(PINGS, self.plan.beginnings)
        self._write_pings(removed=replaced)
        for table in _TABLES_WITH_CAPTURE_ID:
            lake.delete(table, "capture_id IN {names}", names=replaced)
        return rows

    def _remove_sightings(self, dates: Collection[dt.date | None], connections: Collection[str]) -> None:
        """Rebuild calls that replaced captures share with others, from the sightings of the others alone."""
        replaced, schema, lake = self.plan.replaced_captures, BRONZE_SCHEMAS["rpc_calls"], self.lake
        by_taps = "clocks IS NOT NULL AND connection_id IN {connections}"
        shared = lake.query(
            f"SELECT call_key, {_SIGHTINGS}, {by_taps} AS by_taps FROM {{rows}} "
            f"WHERE {_SIGHTINGS} IS NOT NULL OR {by_taps}",
            rows=RowsOfDates(RPC_CALLS, dates), connections=connections,
        )  # fmt: skip
        seen = pc.or_(shared["by_taps"], _name_captures(shared, _SIGHTINGS, replaced))
        calls = shared.filter(seen)["call_key"].to_pylist()
        rows = lake.select_by_values(RPC_CALLS, calls, dates=dates).select(schema.names).cast(schema).to_pylist()
        steps = read_clock_steps(lake)
        left = [row for row in (row_without_captures(row, replaced, steps) for row in rows) if row is not None]
        lake.delete_values(RPC_CALLS, "call_key", calls, dates=dates)
        self._append(RPC_CALLS, pa.Table.from_pylist(left, schema))

    def _remove_packet_sightings(self, dates: Collection[dt.date | None], connections: Collection[str]) -> None:
        """Rebuild packets that replaced captures share with others, from the sightings of the others alone."""
        replaced, schema = self.plan.replaced_captures, BRONZE_SCHEMAS["session_packets"]
        where = f"connection_id IN {{names}} AND sightings IS NOT NULL AND {dates_condition(dates)}"
        stored = self.lake.select(SESSION_PACKETS, where, schema.names, names=connections).cast(schema)
        rows = [row for row in stored.to_pylist() if replaced & {seen["capture_id"] for seen in row["sightings"]}]
        left = [row for row in (packet_without_captures(row, replaced) for row in rows) if row is not None]
        self.lake.delete_values(SESSION_PACKETS, "packet_key", {row["packet_key"] for row in rows}, dates=dates)
        self._append(SESSION_PACKETS, pa.Table.from_pylist(left, schema))

    def rename_captures(self) -> None:
        """Give stored captures their new keys, all in one statement per table: two captures may swap keys.

        Sightings, and places that captures show of one another, name them too.
        """
        if not self.plan.renamed_captures:
            return
        for table in _TABLES_WITH_CAPTURE_ID:
            self._rename_rows(table, self.plan.renamed_captures)
            for column in (_SIGHTINGS, _TAP_STEPS):
                if column in table.names and self.lake.exists(table):
                    self._rename_in_lists(table, column)

    def _rename_rows(self, table: Table, renamed: Mapping[str, str]) -> None:
        """Give captures new keys in the rows of a table, but for sightings."""
        if not renamed:
            return
        cases = " ".join(f"WHEN {literal(old)} THEN {literal(new)}" for old, new in sorted(renamed.items()))
        names = ", ".join(literal(name) for name in sorted(renamed))
        columns = [name for name in _CAPTURE_COLUMNS if name in table.names]
        where = " OR ".join(f"{column} IN ({names})" for column in columns)
        self.lake.update(table, {column: f"CASE {column} {cases} ELSE {column} END" for column in columns}, where)

    def _rename_in_lists(self, table: Table, column: str) -> None:
        """Give captures new keys in a column of lists of structs."""
        renamed = self.plan.renamed_captures
        stored = self.lake.select(table, f"{column} IS NOT NULL", (*table.key, column))
        found = stored.filter(_name_captures(stored, column, renamed))
        rows = found.to_pylist()
        for element in (one for row in rows for one in row[column]):
            names = element.keys() & _CAPTURES_IN_LISTS
            element |= {name: renamed.get(element[name], element[name]) for name in names}
        if rows:
            self.lake.update_columns(table, pa.Table.from_pylist(rows, found.schema), dates=None)

    # -- all tables but the ledger ---------------------------------------------------------------------------------

    def write_tables(self, changes: MergeChanges, expiry: PendingExpiry | None) -> None:
        """Write all tables but the ledger, concurrently."""
        previous = changes.previous_connection_ids

        def write_connections(counts: Mapping[str, int]) -> None:
            rows = _with_call_counts(changes.new_rows("connections"), counts)
            self._write(CONNECTIONS, changes, "connection_id", previous, rows=rows)

        def write_calls_and_connections() -> None:
            write_connections(self._write_calls(changes))

        writes: dict[Table, Callable[[], Any]] = {
            RPC_CALLS: partial(self._write_calls, changes),
            CONNECTIONS: partial(write_connections, {}),
            RPC_BINDS: lambda: self._write(RPC_BINDS, changes, "connection_id", previous),
            SESSION_PACKETS: partial(self._write_packets, changes),
            PINGS: self._write_pings,
            QUARANTINE: lambda: self._write(QUARANTINE, changes, "quarantine_key", changes.replaced_quarantine_keys),
            PENDING: partial(self._write_pending, changes, expiry),
        }
        if changes.overlapping_connections:  # their calls are counted when they are merged
            writes[RPC_CALLS] = write_calls_and_connections
            del writes[CONNECTIONS]
        run_concurrently(writes)
        run_concurrently({table: partial(self.lake.create, table) for table in writes | {CONNECTIONS: None}})

    def _write(
        self, table: Table, changes: MergeChanges, column: str, replaced: Collection[str], *,
        rows: pa.Table | None = None,
    ) -> None:  # fmt: skip
        """Write a table: the staged rows, and merged rows in place of those with a ``replaced`` value of ``column``."""
        lake = self.lake
        rows = changes.new_rows(table.name) if rows is None else rows
        if table is QUARANTINE:
            transform = merge_connections.apply_connection_ids(changes)
        elif table is SESSION_PACKETS:
            transform = merge_connections.apply_packet_moves(changes)
        else:
            transform = merge_connections.exclude_rows(column, replaced)
        if table is CONNECTIONS and self.plan.replaced_captures:  # connections that are read again may be stored
            staged = transform(self.staged.rows(table.name).to_batches())
            rows = pa.concat_tables([pa.Table.from_batches(staged, rows.schema), rows])
            dates = changes.dates | set(rows.column("event_date").to_pylist())
            stored = lake.select_by_values(table, {*replaced, *rows.column(column).to_pylist()}, dates=dates)
            lake.replace_changed(table, self._stamp(table, rows), stored, dates=dates)
            return
        deleted: set[str] = set()
        if self.versions_before[str(table)] is not None:
            deleted = set(replaced) if changes.affects_stored_rows else set()
            if deleted:  # rows that merging left unchanged stay
                stored = lake.select_by_values(table, deleted, column=column, dates=changes.dates)
                fresh, deleted = changed_keys(rows, stored, table.key[0])
                rows = rows.filter(is_in(rows, table.key[0], fresh))
        self._delete_and_insert(table, transform, rows, deleted=deleted, dates=changes.dates)

    def _write_pending(self, changes: MergeChanges, expiry: PendingExpiry | None) -> None:
        """Write the remainders but those that have expired; stored ones that have leave."""
        replaced = changes.updated_remainders | changes.unmergeable
        rows, transform = changes.new_rows("pending"), merge_connections.exclude_rows("pending_key", replaced)
        deleted, dates = set(replaced) if changes.affects_stored_rows else set[str](), set(changes.dates)
        if expiry is None:
            self._delete_and_insert(PENDING, transform, rows, deleted=deleted, dates=dates)
            return
        open_connections = expiry.find_open_connections(self.lake, rows)
        if self.versions_before[str(PENDING)] is not None:
            expired = expiry.expired_rows(self.lake, open_connections)
            deleted |= set(expired["pending_key"].to_pylist())
            dates |= set(expired[EVENT_DATE].to_pylist())

        def unexpired(batches: Batches) -> Batches:
            return map(expiry.drop_expired, transform(batches))

        rows = expiry.drop_expired(rows, open_connections)
        self._delete_and_insert(PENDING, unexpired, rows, deleted=deleted, dates=dates)

    def _delete_and_insert(
        self, table: Table, transform: BatchTransform, merged: pa.Table, *, deleted: Collection[str],
        dates: Collection[dt.date | None],
    ) -> None:  # fmt: skip
        """Insert the staged rows, changed by ``transform``, and the ``merged`` ones; delete rows.

        In how many commits: see ``Lake.delete_and_insert``. Staging files are read once, by the tasks that write the
        table. ``deleted`` are keys of stored rows on ``dates``.
        """
        run_id, ingested_at, observer = self.run_id, self.clock.now, self.observers.get(table)
        merged_folder = self.folder / _MERGED / table.name
        staging = StagingWriter(str(merged_folder.folder), _MERGED)
        for batch in merged.to_batches():
            staging.add(table.name, batch)
        staging.close()
        tasks = plan_tasks(self.staged.files(table.name) | staged_files(merged_folder))
        merged_path = str(merged_folder)

        def staged(number: int) -> Batches:
            for part in tasks[number]:
                yield from part.read() if part.path.startswith(merged_path) else transform(part.read())

        def rows(number: int) -> Batches:
            stamped = (stamp_rows(table, batch, run_id, ingested_at) for batch in staged(number))
            return stamped if observer is None else observer.record_and_pass(stamped, str(number))

        fresh = PartitionedRows(len(tasks), sum(part.size for task in tasks for part in task), rows)
        if tasks or deleted:
            self.lake.delete_and_insert(table, table.key[0], deleted, fresh, dates=dates)

    def _write_calls(self, changes: MergeChanges) -> dict[str, int]:
        """Write the calls; return the numbers of calls of connections that captures saw at the same time."""
        lake, calls = self.lake, changes.new_rows("rpc_calls")
        overlapping = is_in(calls, "connection_id", changes.overlapping_connections)
        stored = self._stored_calls(changes)
        unchanged = changes.unchanged_call_keys | _unchanged_calls(calls, stored)
        deleted = changes.replaced_call_keys - unchanged
        if RPC_CALLS in self.observers:
            dates = _silver_dates(stored.filter(is_in(stored, "call_key", deleted)))
            self.removed_calls = RemovedCalls(frozenset(deleted), dates)
        rows = calls.filter(pc.invert(pc.or_(overlapping, is_in(calls, "call_key", unchanged))))
        transform = merge_connections.apply_bind_context(changes)
        self._delete_and_insert(RPC_CALLS, transform, rows, deleted=deleted, dates=changes.dates)
        if not changes.overlapping_connections:
            return {}
        merged = merge_connections.merge_overlapping_calls(lake, changes, calls.filter(overlapping))
        self._append(RPC_CALLS, merged)
        counts = Counter(merged.column("connection_id").to_pylist())
        return {name: counts[name] for name in changes.overlapping_connections}

    def _write_packets(self, changes: MergeChanges) -> None:
        """Write the packets of the binary protocol."""
        rows, replaced = changes.new_rows("session_packets"), changes.replaced_packet_keys
        if changes.shared_sessions:
            shared = is_in(rows, "connection_id", changes.shared_sessions)
            staged = (batch for part in self._staged_parts(SESSION_PACKETS) for batch in part.read())
            merged, keys = merge_connections.merge_shared_packets(self.lake, changes, rows.filter(shared), staged)
            rows = pa.concat_tables([rows.filter(pc.invert(shared)), merged])
            replaced = replaced | keys
        if self.plan.replaced_captures:  # what others saw of their packets was put back
            replaced = replaced | {*rows["packet_key"].to_pylist()}
        self._write(SESSION_PACKETS, changes, "packet_key", replaced, rows=rows)

    def _write_pings(self, removed: Sequence[str] = ()) -> None:
        """Write pings: those of this round with the stored ones that they may belong to.

        With ``removed``, only take out what these captures saw.
        """
        lake, schema = self.lake, BRONZE_SCHEMAS["pings"]
        staged = schema.empty_table() if removed else self.staged.rows(PINGS.name)
        where, names = "cookie IN {names}", staged["cookie"].unique().to_pylist()
        if removed:
            where, names = "capture_id IN {names} OR response_capture_id IN {names}", [*removed]
        if not names:
            return
        stored = lake.select(PINGS, where, schema.names, names=names).cast(schema)
        rows = ping_rows(pings_of_rows([*stored.to_pylist(), *staged.to_pylist()], removed))
        found = pa.Table.from_batches([pings_batch(rows)])
        dates = {*stored["event_date"].to_pylist(), *found["event_date"].to_pylist()}
        fresh, stale = changed_keys(found, stored, "ping_key")
        rows = self._stamp(PINGS, found.filter(is_in(found, "ping_key", fresh)))
        lake.delete_and_insert(PINGS, "ping_key", stale, rows, dates=dates)

    def _staged_parts(self, table: Table) -> list[StagedPart]:
        return [part for task in plan_tasks(self.staged.files(table.name)) for part in task]

    def _stored_calls(self, changes: MergeChanges) -> pa.Table:
        """Return the stored rows of calls that merging built again."""
        if not changes.replaced_call_keys:
            return RPC_CALLS.schema().empty_table()
        return self.lake.select_by_values(RPC_CALLS, changes.replaced_call_keys, dates=changes.dates)

    def _append(self, table: Table, rows: pa.Table) -> None:
        """Append rows, if there are any."""
        if rows.num_rows:
            self.lake.append(table, self._stamp(table, rows))

    def _stamp(self, table: Table, rows: pa.Table) -> pa.Table:
        return stamp_rows(table, rows, self.run_id, self.clock.now)

    # -- the ledger ------------------------------------------------------------------------------------------------

    def find_tap_steps(self, changes: MergeChanges, file_rows: list[RowDict]) -> dict[str, list[RowDict] | None]:
        """Return by capture the column ``tap_steps`` where it changes, and note it in ``clocks`` of stored calls.

        Call it when all tables but the ledger are written: merging shows what captures have in common.
        """
        found, names = changes.common.steps(), ("capture_id", _TAP_STEPS)
        if not found and not self.plan.replaced_captures:
            return {}
        read = {read.capture_id for read in self.plan.reads if not read.start_offset} | self.plan.replaced_captures
        rows = {name: dict.fromkeys(names) | {"capture_id": name} for name in found}
        if self.versions_before[str(CAPTURE_FILES)] is not None:
            stored = self.lake.select(CAPTURE_FILES, f"{_TAP_STEPS} IS NOT NULL", names)
            rows |= {row["capture_id"]: row for row in stored.to_pylist()}
        after = {name: with_tap_steps(row, found.get(name, ()), read) for name, row in rows.items()}
        changed = {name: row[_TAP_STEPS] for name, row in after.items() if row != rows[name]}
        if changed:
            steps = read_clock_steps(self.lake, file_rows, changed)
            merge_connections.renumber_clocks(self.lake, changed, steps)
        return changed

    def write_ledger(
        self, file_rows: list[RowDict], count_corrections: Mapping[str, list[RowDict]],
        tap_steps: Mapping[str, list[RowDict] | None],
    ) -> int:  # fmt: skip
        """Write ``bronze.capture_files``: captures that were read, whose files changed, or of which more is known.

        ``count_corrections``, by capture, are added to its counts: merging counts the packets of connections again.
        ``tap_steps``, by capture, are the columns that changed.
        Returns how many rows were written. ``ingested_at`` of captures whose bytes were read before stays.
        """
        rows = {row["path"]: row for row in file_rows}
        schema = pa.schema([f for f in BRONZE_SCHEMAS["capture_files"] if f.name in CAPTURE_FILES.names])
        schema = schema.append(CAPTURE_FILES.schema().field(INGESTED_AT))
        affected = {*(read.capture_id for read in self.plan.reads), *self.plan.changed_file_sets}
        affected |= count_corrections.keys() | tap_steps.keys()
        stored = schema.empty_table()
        if self.versions_before[str(CAPTURE_FILES)] is not None:  # else this round created it, empty
            stored = self.lake.select_by_values(CAPTURE_FILES, affected).select(schema.names).cast(schema)
        ledger = {row["capture_id"]: row for row in stored.to_pylist()}
        written = []
        for read in self.plan.reads:
            before = ledger.get(read.capture_id) if read.start_offset else None
            row = {**_ledger_row(read, rows[read.file.path], before), INGESTED_AT: self._ingested_at(read)}
            if self.cutoff is not None and read.file.path in self._kept_servers:
                servers_before = () if before is None else before["servers"] or ()
                row = self.cutoff.trim_ledger_row(row, self._kept_servers[read.file.path] | set(servers_before))
            written.append(row)
        for capture_id, files in self.plan.changed_file_sets.items():
            written.append({**ledger[capture_id], **_file_columns(files.ledger_columns())})
        done = {row["capture_id"] for row in written}
        written += [row for capture_id, row in ledger.items() if capture_id not in done]
        for row in written:
            row[_TAP_STEPS] = tap_steps.get(row["capture_id"], row[_TAP_STEPS])
            if self.cutoff is not None and self.cutoff.is_capture_expired(row):
                continue  # what it held is not counted
            for correction in count_corrections.get(row["capture_id"], ()):
                add_packet_counts(row, correction)
        if written:
            table = pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in written], schema)
            dates = {row["event_date"] for row in ledger.values()}
            stamped = stamp_rows(CAPTURE_FILES, table, self.run_id, None)
            self.lake.replace_changed(CAPTURE_FILES, stamped, stored, dates=dates)
        return len(written)


def _name_captures(rows: pa.Table, column: str, captures: Collection[str]) -> pa.Array:
    """Return which rows name one of the captures in a column of lists of structs, as a boolean array."""
    lists = rows[column].combine_chunks()
    each, names = pc.list_flatten(lists), pa.array(sorted(captures), pa.string())
    columns = [name for name in _CAPTURES_IN_LISTS if each.type.get_field_index(name) >= 0]
    is_named = reduce(pc.or_, [pc.is_in(pc.struct_field(each, name), names) for name in columns])
    places = pc.list_parent_indices(lists).filter(is_named)
    return pc.is_in(pa.array(range(len(lists)), pa.int64()), places)


def _ledger_row(read: PlannedRead, row: RowDict, before: RowDict | None) -> RowDict:
    """Return a capture's ledger row: what was read, added to the row ``before`` if reading was resumed."""
    row = {**row, **_file_columns(read.capture_files.ledger_columns()), "capture_id": read.capture_id}
    row["first_key"] = row["first_key"] or read.first_key  # the reader does not know it where it failed
    return row if before is None else {**add_row_before(row, before), "first_key": read.first_key}


def _file_columns(columns: RowDict) -> RowDict:
    """Return the ledger columns of a capture's files, with ``modified_at`` for ``modified_us``."""
    return {**columns, "modified_at": us_to_datetime(columns.pop("modified_us"))}


def stamp_rows(table: Table, rows: _Rows, run_id: str | None, ingested_at: dt.datetime | None) -> _Rows:
    """Return rows with all columns of the table, ``run_id`` filled in, and ``ingested_at`` where it is given."""
    run = {RUN_ID: pa.scalar(run_id, pa.string())}
    if ingested_at is not None:
        run[INGESTED_AT] = pa.scalar(ingested_at, pa.timestamp("us", "UTC"))
    arrays = [pa.repeat(run[name], rows.num_rows) if name in run else rows.column(name) for name in table.names]
    return type(rows).from_arrays(arrays, names=list(table.names))


def _unchanged_calls(calls: pa.Table, stored: pa.Table) -> set[str]:
    """Return the keys of calls whose stored rows are equal: nothing has to follow them."""
    known = calls.filter(is_in(calls, "call_key", stored["call_key"].to_pylist()))
    fresh, _ = changed_keys(known, stored, "call_key")
    return {*known["call_key"].to_pylist()} - {*fresh.to_pylist()}


def _silver_dates(calls: pa.Table) -> frozenset[dt.date | None]:
    """Return the event dates that silver's rows of calls can have: those of request and response."""
    if not calls.num_rows:
        return frozenset()
    times = {time for name in ("request_at", "response_at") for time in calls[name].to_pylist()}
    return frozenset({None, *(time.date() for time in times if time is not None)})


def _with_call_counts(connections: pa.Table, counts: Mapping[str, int]) -> pa.Table:
    """Return rows of connections with their numbers of calls replaced where ``counts`` has one."""
    if not counts:
        return connections
    rows = [{**row, "calls": counts.get(row["connection_id"], row["calls"])} for row in connections.to_pylist()]
    return pa.Table.from_pylist(rows, connections.schema)
