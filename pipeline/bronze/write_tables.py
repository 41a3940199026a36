"""Write one round of an ingest of captures to the bronze tables, one commit for each table.

Rows come from the round's staging files, changed on the way by what merging across captures found. Stored rows that
merging replaces leave in the same commit. The ledger (``bronze.capture_files``) is written last and by itself.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import NO_TEXTS, distinct_texts, is_in
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.bronze.across_captures.merge_changes import MERGED_CALLS, Dates, MergeChanges, packet_dates
from pipeline.bronze.across_captures.overlapping_calls import stage_overlapping_calls
from pipeline.bronze.across_captures.replaced_rows import stage_replacing_rows
from pipeline.bronze.across_captures.shared_packets import stage_shared_packets
from pipeline.bronze.across_captures.shared_steps import find_shared_steps
from pipeline.bronze.across_captures.staged_rows import (
    apply_bind_context,
    apply_connection_ids,
    apply_packet_moves,
    exclude_rows,
)
from pipeline.bronze.across_captures.stored_captures import (
    RowOfOthers,
    rename_captures,
    rename_rows,
    stage_rows_of_others,
)
from pipeline.bronze.across_captures.stored_rows import renumber_clocks
from pipeline.bronze.capture_parts import add_row_before
from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.ledger_entries import IngestPlan, PlannedRead
from pipeline.bronze.pending_expiry import EXPIRY_COLUMNS, PendingExpiry
from pipeline.bronze.retention_cutoff import RetentionCutoff
from pipeline.bronze.row_observers import RemovedCalls, RowObserver
from pipeline.bronze.staged_reads import StagedReads
from pipeline.concurrency import run_concurrently
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import RowsOfFiles, Values
from pipeline.lake.schema_enforcement import changed_keys
from pipeline.lake.staging_files import Batches, BatchTransform, plan_tasks, staged_files
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
from schemas.sessions import PINGS, SESSION_PACKETS
from schemas.table import EVENT_DATE, INGESTED_AT, RUN_ID, Table
from udfs.capture.call_sightings import row_without_captures
from udfs.capture.capture_reader import BRONZE_SCHEMAS
from udfs.capture.clocks.tap_steps import with_tap_steps
from udfs.capture.merged_remainders import add_packet_counts
from udfs.rows import RowDict
from udfs.sessions.packet_sightings import packet_without_captures
from udfs.sessions.pings import ping_rows, pings_batch, pings_of_rows
from udfs.times import us_to_datetime

_TABLES_WITH_CAPTURE_ID: Final = (RPC_CALLS, RPC_BINDS, SESSION_PACKETS, PINGS, QUARANTINE, PENDING, CAPTURE_FILES)
_TAP_STEPS: Final = "tap_steps"
_REPLACING: Final = "replacing"  # the folder of merged rows that differ from stored ones
_OF_OTHERS: Final = "of others"  # the folder of rows as captures show them that are not read again
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
            return BRONZE_SCHEMAS["pending"].empty_table()
        rows = lake.select(PENDING, "capture_id IN {names}", BRONZE_SCHEMAS["pending"].names, names=replaced)
        rows = rows.cast(BRONZE_SCHEMAS["pending"])
        spans = rows.select(["first_packet_at", "last_packet_at"]).to_pylist()
        dates = {day for span in spans for day in packet_dates(span)}
        connections = rows["connection_id"].unique().to_pylist()
        self._replace_shared_rows(dates, connections)
        # A ping is noted of one of the captures that saw it: another saw what its own beginning did.
        rename_rows(lake, PINGS, self.plan.beginnings)
        self._write_pings(removed=replaced)
        for table in _TABLES_WITH_CAPTURE_ID:
            lake.delete(table, "capture_id IN {names}", names=replaced)
        return rows

    def _replace_shared_rows(self, dates: Dates, connections: Collection[str]) -> None:
        """Leave calls and packets that replaced captures share with others as these others show them."""
        replaced, folder = self.plan.replaced_captures, self.folder / _OF_OTHERS
        rows_of_others: dict[Table, RowOfOthers] = {
            RPC_CALLS: partial(row_without_captures, captures=replaced, steps=read_clock_steps(self.lake)),
            SESSION_PACKETS: partial(packet_without_captures, captures=replaced),
        }
        for table, row_of_others in rows_of_others.items():
            keys = stage_rows_of_others(
                self.lake, folder, table, replaced, row_of_others, dates=dates, connections=connections
            )
            if len(keys):
                left = self._stamped_rows(table, (staged_files(folder / table.name), iter))
                self.lake.delete_and_insert(table, table.key[0], keys, left, dates=dates)

    def rename_captures(self) -> None:
        """Give stored captures their new keys."""
        if renamed := self.plan.renamed_captures:
            for table in _TABLES_WITH_CAPTURE_ID:
                rename_captures(self.lake, table, renamed)

    # -- all tables but the ledger ---------------------------------------------------------------------------------

    def write_tables(self, changes: MergeChanges, expiry: PendingExpiry | None) -> None:
        """Write all tables but the ledger, concurrently."""
        previous = changes.previous_connection_ids

        def write_connections() -> None:
            self._write(CONNECTIONS, changes, "connection_id", previous)

        def write_calls_and_connections() -> None:
            self._write_calls(changes)
            write_connections()

        writes: dict[Table, Callable[[], Any]] = {
            RPC_CALLS: partial(self._write_calls, changes),
            CONNECTIONS: write_connections,
            RPC_BINDS: lambda: self._write(RPC_BINDS, changes, "connection_id", previous),
            SESSION_PACKETS: partial(self._write_packets, changes),
            PINGS: self._write_pings,
            QUARANTINE: lambda: self._write(QUARANTINE, changes, "quarantine_key", changes.replaced_quarantine_keys),
            PENDING: partial(self._write_pending, changes, expiry),
        }
        if len(changes.overlapping_connections):  # their calls are counted when they are merged
            writes[RPC_CALLS] = write_calls_and_connections
            del writes[CONNECTIONS]
        run_concurrently(writes)
        run_concurrently({table: partial(self.lake.create, table) for table in writes | {CONNECTIONS: None}})

    def _write(self, table: Table, changes: MergeChanges, column: str, replaced: pa.Array) -> None:
        """Write a table: the staged rows, and merged rows in place of those with a ``replaced`` value of ``column``."""
        lake = self.lake
        if table is QUARANTINE:
            transform = apply_connection_ids(changes)
        elif table is SESSION_PACKETS:
            transform = apply_packet_moves(changes)
        else:
            transform = exclude_rows(column, replaced)
        if table is CONNECTIONS and self.plan.replaced_captures:  # connections that are read again may be stored
            rows = changes.new_rows(table.name)
            staged = transform(self.staged.rows(table.name).to_batches())
            rows = pa.concat_tables([pa.Table.from_batches(staged, rows.schema), rows])
            dates = changes.dates | set(rows.column("event_date").to_pylist())
            stored = lake.select_by_values(table, distinct_texts(replaced, rows.column(column)), dates=dates)
            lake.replace_changed(table, self._stamp(table, rows), stored, dates=dates)
            return
        merged, deleted = changes.files(table.name), table.schema().empty_table()
        if self.versions_before[str(table)] is not None and changes.affects_stored_rows and len(replaced):
            deleted = self._replace(table, merged, replaced, changes.dates, column=column)
            merged = self._replacing(table)
        self._delete_and_insert(table, transform, merged, deleted=deleted, dates=changes.dates)

    def _replace(
        self, table: Table, merged: RowsOfFiles, replaced: pa.Array, dates: Dates, *,
        column: str | None = None, columns: Sequence[str] = (),
    ) -> pa.Table:  # fmt: skip
        """Return the rows that merged ones replace, as ``stage_replacing_rows``; those that are equal stay."""
        folder = self.folder / _REPLACING
        return stage_replacing_rows(self.lake, folder, table, merged, replaced, dates, column=column, columns=columns)

    def _replacing(self, table: Table) -> RowsOfFiles:
        """Return the merged rows that ``_replace`` staged."""
        return RowsOfFiles(BRONZE_SCHEMAS[table.name], staged_files(self.folder / _REPLACING / table.name))

    def _write_pending(self, changes: MergeChanges, expiry: PendingExpiry | None) -> None:
        """Write the remainders but those that have expired; stored ones that have leave."""
        replaced = distinct_texts(changes.updated_remainders, changes.unmergeable)
        merged, transform = changes.files(PENDING.name), exclude_rows("pending_key", replaced)
        deleted, dates = replaced if changes.affects_stored_rows else NO_TEXTS, set(changes.dates)
        if expiry is None:
            self._delete_and_insert(PENDING, transform, merged, deleted=deleted, dates=dates)
            return
        open_connections = expiry.find_open_connections(self.lake, changes.new_rows(PENDING.name, EXPIRY_COLUMNS))
        if self.versions_before[str(PENDING)] is not None:
            expired = expiry.expired_rows(self.lake, open_connections)
            deleted = distinct_texts(deleted, expired["pending_key"])
            dates |= set(expired[EVENT_DATE].to_pylist())

        def unexpired(batches: Batches) -> Batches:
            return map(expiry.drop_expired, transform(batches))

        def unexpired_merged(batches: Batches) -> Batches:
            return (expiry.drop_expired(batch, open_connections) for batch in batches)

        self._delete_and_insert(
            PENDING, unexpired, merged, deleted=deleted, dates=dates, merged_transform=unexpired_merged
        )

    def _delete_and_insert(
        self, table: Table, transform: BatchTransform, merged: RowsOfFiles, *, deleted: Values | pa.Table,
        dates: Collection[dt.date | None], merged_transform: BatchTransform = iter,
    ) -> None:  # fmt: skip
        """Insert the staged rows and the ``merged`` ones, each as a transform changes them; delete rows.

        In how many commits: see ``Lake.delete_and_insert``. Staging files are read once, by the tasks that write the
        table. ``deleted`` are stored rows on ``dates``, or their keys.
        """
        sources = (self.staged.files(table.name), transform), (merged.files, merged_transform)
        fresh = self._stamped_rows(table, *sources, observer=self.observers.get(table))
        if fresh.part_count or len(deleted):
            self.lake.delete_and_insert(table, table.key[0], deleted, fresh, dates=dates)

    def _stamped_rows(
        self, table: Table, *sources: tuple[Mapping[LakePath, int], BatchTransform], observer: RowObserver | None = None
    ) -> PartitionedRows:
        """Return the rows of staging files, as a transform changes them, with the columns of the run."""
        run_id, ingested_at = self.run_id, self.clock.now
        transforms = {str(file): transform for files, transform in sources for file in files}
        tasks = plan_tasks({file: size for files, _ in sources for file, size in files.items()})

        def rows(number: int) -> Batches:
            batches = chain.from_iterable(transforms[part.path](part.read()) for part in tasks[number])
            stamped = (stamp_rows(table, batch, run_id, ingested_at) for batch in batches)
            return stamped if observer is None else observer.record_and_pass(stamped, str(number))

        return PartitionedRows(len(tasks), sum(part.size for task in tasks for part in task), rows)

    def _write_calls(self, changes: MergeChanges) -> None:
        """Write the calls, and stage the connections that captures saw at the same time."""
        merged, deleted = changes.files(RPC_CALLS.name), RPC_CALLS.schema().empty_table()
        replaced = changes.replaced_call_keys
        replaced = replaced.filter(pc.invert(pc.is_in(replaced, changes.unchanged_call_keys)))
        if len(replaced):
            columns = "interface_name", "request_at", "response_at"
            deleted = self._replace(RPC_CALLS, merged, replaced, changes.dates, columns=columns)
            merged = self._replacing(RPC_CALLS)
            if RPC_CALLS in self.observers:
                removed = deleted.select(["call_key", "interface_name"])
                self.removed_calls = RemovedCalls(removed, _silver_dates(deleted))
        stay = exclude_rows("call_key", changes.unchanged_call_keys)
        transform = apply_bind_context(changes)
        self._delete_and_insert(
            RPC_CALLS, transform, merged, deleted=deleted, dates=changes.dates, merged_transform=stay
        )
        if len(changes.overlapping_connections):
            stage_overlapping_calls(self.lake, changes)
            of_taps, names = changes.files(MERGED_CALLS), changes.overlapping_connections
            rows = self._stamped_rows(RPC_CALLS, (of_taps.files, iter))
            self.lake.delete_and_insert(RPC_CALLS, "connection_id", names, rows, dates=changes.dates)

    def _write_packets(self, changes: MergeChanges) -> None:
        """Write the packets of the binary protocol."""
        staged = RowsOfFiles(BRONZE_SCHEMAS[SESSION_PACKETS.name], self.staged.files(SESSION_PACKETS.name))
        replaced = [changes.replaced_packet_keys, stage_shared_packets(self.lake, changes, staged)]
        if self.plan.replaced_captures:  # what others saw of their packets was put back
            replaced.append(changes.new_rows(SESSION_PACKETS.name, ["packet_key"])["packet_key"])
        self._write(SESSION_PACKETS, changes, "packet_key", distinct_texts(*replaced))

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

    def _stamp(self, table: Table, rows: pa.Table) -> pa.Table:
        return stamp_rows(table, rows, self.run_id, self.clock.now)

    # -- the ledger ------------------------------------------------------------------------------------------------

    def find_tap_steps(self, changes: MergeChanges, file_rows: list[RowDict]) -> dict[str, list[RowDict] | None]:
        """Return by capture the column ``tap_steps`` where it changes, and note it in ``clocks`` of stored calls.

        Call it when all tables but the ledger are written: merging shows what captures have in common.
        """
        found, names = find_shared_steps(self.lake, changes), ("capture_id", _TAP_STEPS)
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
            renumber_clocks(self.lake, changed, steps)
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


def _silver_dates(calls: pa.Table) -> frozenset[dt.date | None]:
    """Return the event dates that silver's rows of calls can have: those of request and response."""
    if not calls.num_rows:
        return frozenset()
    days = (pc.unique(pc.cast(calls[name], pa.date32())) for name in ("request_at", "response_at"))
    return frozenset({None, *(day for of_name in days for day in of_name.to_pylist())})
