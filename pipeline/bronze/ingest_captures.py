"""Ingest packet captures into the bronze tables: plan, read, merge with earlier captures, write.

The read tasks write the rows of all tables to staging files in the run's own folder. Connections that one capture could
not finish alone are then merged across captures (``merge_pending``), and each table is written in one commit
(``write_tables``). The ledger (``bronze.capture_files``) is written last: the next run undoes a run that did not get
that far (``pipeline.runs.recovery``). The caller holds the lake's lease.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.bronze.across_captures import learned_endpoints
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.bronze.across_captures.merge_changes import MergeChanges
from pipeline.bronze.across_captures.merge_pending import merge_pending, read_stored_pending
from pipeline.bronze.across_captures.stored_rows import relabel_stored_rows
from pipeline.bronze.capture_parts import cut_into_parts, join_rows_of_parts
from pipeline.bronze.capture_tasks import time_limits
from pipeline.bronze.connection_openings import update_connection_attempts
from pipeline.bronze.failed_inputs import failed_columns, mark_failed
from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.ingest_plan import files_on_days, plan_ingest, plan_reprocessing
from pipeline.bronze.input_files import InputFile, find_file, newest_paths
from pipeline.bronze.isolated_reads import interrupted_reads, read_captures
from pipeline.bronze.ledger import Ledger
from pipeline.bronze.ledger_entries import (
    DateRange,
    IngestPlan,
    PlannedRead,
    ReprocessSelector,
)
from pipeline.bronze.pending_expiry import PendingExpiry
from pipeline.bronze.read_progress import Meter, ReadProgress, no_meter
from pipeline.bronze.retention_cutoff import RetentionCutoff, recount_connection_calls
from pipeline.bronze.row_observers import ObservedWrite, RowObserver
from pipeline.bronze.write_tables import BronzeWriter, captures_without_entry
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake import Lake
from pipeline.lake.staging_files import count_staged_rows
from pipeline.lake.versions import versions_by_name
from pipeline.runs.recovery import RunMarkers, undo_unfinished_runs
from pipeline.settings import IngestConfig, PendingConfig
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
from schemas.sessions import PINGS, SESSION_PACKETS
from schemas.table import Table
from udfs.capture.capture_reader import BRONZE_SCHEMAS
from udfs.rows import RowDict

# The ledger is last.
BRONZE_TABLES: Final = (
    RPC_CALLS, CONNECTIONS, RPC_BINDS, SESSION_PACKETS, PINGS, QUARANTINE, PENDING, CAPTURE_FILES
)  # fmt: skip
LogFunction = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """Which captures a run reads, beside all new ones.

    ``days`` limits new captures to those with packets on these days. ``reprocess`` selects captures of the ledger to
    read again. With ``dry_run`` nothing is written: the plan is logged.
    """

    days: DateRange | None = None
    reprocess: ReprocessSelector | None = None
    dry_run: bool = False


@dataclass(slots=True)
class CaptureIngestResult:
    """Counts and ledger rows of one ingest of captures.

    ``file_rows`` are the ledger rows of the files that were read. ``skipped_files`` counts the files that the ledger
    knew already. ``observed_writes`` are the commits, by table, of which observers saw all rows that they
    added. ``newest_paths`` are the newest of the given files in each folder.
    """

    file_rows: list[RowDict] = field(default_factory=list)
    skipped_files: int = 0
    rows_written: dict[str, int] = field(default_factory=dict)  # by table
    observed_writes: dict[Table, ObservedWrite] = field(default_factory=dict)
    newest_paths: frozenset[str] = frozenset()

    def add(self, other: CaptureIngestResult) -> None:
        """Add the result of the next round; a capture that was read again counts once."""
        reread = {row["path"] for row in other.file_rows}
        self.observed_writes = {} if self.file_rows else other.observed_writes
        self.file_rows = [row for row in self.file_rows if row["path"] not in reread] + other.file_rows
        for table, rows in other.rows_written.items():
            self.rows_written[table] = self.rows_written.get(table, 0) + rows

    @property
    def unreadable_files(self) -> int:
        """How many files could not be read, or are damaged inside.

        Warnings do not count: a truncated last record, a file of 0 bytes, zeros at the end of a folder's newest file.
        """
        return sum(self._is_unreadable(row) for row in self.file_rows)

    def _is_unreadable(self, row: RowDict) -> bool:
        if row["status"] == "empty" or (row["damage"] == "zero_tail" and row["path"] in self.newest_paths):
            return False
        return row["damage"] not in (None, "cut_short") or row["status"] == "unreadable"


def ingest(
    lake: Lake, files: list[InputFile], *, run_id: str, reader_options: dict[str, Any], log: LogFunction,
    pending_expiry: dt.timedelta = PendingConfig.expire, as_of: dt.datetime | None = None,
    options: IngestOptions | None = None, observers: Mapping[Table, RowObserver] | None = None,
    max_time_ahead: dt.timedelta = IngestConfig.max_time_ahead, meter: Meter = no_meter,
) -> CaptureIngestResult:  # fmt: skip
    """Ingest captures into bronze. Files that the ledger knows unchanged are not read again.

    ``pending_expiry`` is how long an unfinished call or connection is waited for, in the packets' time, counted back
    from ``as_of`` or else from the newest packet read. ``observers`` see rows on their way into tables, calls in runs
    that change no stored one. Packets are read without their times if these are later than the clock by more than
    ``max_time_ahead``. ``meter`` shows how much is read.
    """
    options, interrupted = options or IngestOptions(), frozenset[str]()
    if not options.dry_run:
        interrupted = interrupted_reads(RunMarkers.of(lake).unfinished_folders())
        undo_unfinished_runs(lake, BRONZE_TABLES, CAPTURE_FILES, log)
    ledger, runs = Ledger(lake.query), RunMarkers.of(lake)
    plan = _plan_reads(files, ledger, options, log)
    if (replaced := runs.captures_to_replace()) is not None:
        plan_reprocessing(plan, ledger, ReprocessSelector(captures=replaced))
        plan.replaced_captures |= captures_without_entry(lake)
    result = CaptureIngestResult(skipped_files=plan.skipped_files, newest_paths=newest_paths(files))
    if options.dry_run:
        for line in list(plan.describe()) or [f"nothing new in {plan.skipped_files} capture files"]:
            log(line)
        return result
    cutoff = RetentionCutoff.load(runs)
    if plan:
        size = sum(read.size for read in plan.reads)
        lake.session.expect_to_read(size)
        if plan.reads:
            lake.start_spark_soon()
        log(f"reading {len(plan.reads)} capture files, {size / 1e6:.1f} MB; {plan.skipped_files} known already")
    else:
        log(f"nothing new in {plan.skipped_files} capture files")
        plan = _plan_rereads(lake, runs, log)
    rounds, endpoints = 0, ledger.learned_endpoints() if plan else set()
    while plan:
        round_id = run_id if not rounds else f"{run_id}-{rounds}"
        versions = bronze_versions(lake)
        changed = {*plan.replaced_captures, *plan.renamed_captures, *(read.capture_id for read in plan.reads)}
        folder = runs.begin(round_id, versions, changed)
        writer = BronzeWriter(
            lake, round_id, folder, versions, plan, IngestClock(max_time_ahead), observers or {}, cutoff
        )
        result.add(_IngestRound(writer, reader_options, pending_expiry, as_of, endpoints, interrupted, meter).run(log))
        if cutoff is not None:
            recount_connection_calls(lake, cutoff)
        runs.end(round_id)
        plan, rounds = _plan_rereads(lake, runs, log), rounds + 1
    runs.set_captures_to_replace(None)
    return result


def bronze_versions(lake: Lake) -> dict[str, int | None]:
    """Return the current Delta version of each bronze table; None for a table that does not exist."""
    return versions_by_name(lake.versions.newest_commits(*BRONZE_TABLES), BRONZE_TABLES)


def _plan_rereads(lake: Lake, runs: RunMarkers, log: LogFunction) -> IngestPlan:
    """Plan to read captures again: other captures showed that more of their connections are MSMQ."""
    wanted, plan = runs.captures_to_reread(), IngestPlan()
    if not wanted:
        return plan
    ledger = Ledger(lake.query)
    known = {entry.capture_id: {*entry.reread_endpoints} for entry in ledger.captures(wanted)}
    endpoints = {name: known[name].union(new) for name, new in wanted.items() if name in known}
    captures = frozenset(name for name in endpoints if endpoints[name] != known[name])
    plan_reprocessing(plan, ledger, ReprocessSelector(captures=captures))
    plan.reads = [replace(read, reread_endpoints=tuple(sorted(endpoints[read.capture_id]))) for read in plan.reads]
    for entry in plan.missing_captures:
        log(f"{entry.file.path}: gone or changed since; connections that other captures identified are not read")
    if plan.reads:
        _log_rereads(plan.reads, log)
    else:
        runs.set_captures_to_reread({})
    return plan


def _log_rereads(reads: Sequence[PlannedRead], log: LogFunction) -> None:
    log(f"reading {len(reads)} capture files again: other captures identified connections in them")


def _plan_reads(files: list[InputFile], ledger: Ledger, options: IngestOptions, log: LogFunction) -> IngestPlan:
    """Plan what to read of the files given and of the captures to reprocess."""
    if options.days is not None:
        files = files_on_days(files, ledger, options.days)
    plan = plan_ingest(files, ledger)
    if options.reprocess is not None:
        count = plan_reprocessing(plan, ledger, options.reprocess)
        log(f"{count} captures of the lake are selected to be read again")
        for entry in plan.missing_captures:
            log(f"{entry.file.path}: gone or changed since, it cannot be read again")
    return plan


@dataclass(slots=True)
class _IngestRound:
    """Carries out one plan: reads the captures, merges their connections, has the writer write the tables."""

    writer: BronzeWriter
    reader_options: dict[str, Any]
    pending_expiry: dt.timedelta
    as_of: dt.datetime | None
    endpoints: set[str]  # server endpoints named by calls of any capture; those of this round are added
    interrupted: frozenset[str]  # marks of captures that earlier runs were killed at
    meter: Meter
    _file_rows: dict[str, RowDict] = field(default_factory=dict)  # of the ledger, by path
    _wanted: dict[str, set[str]] = field(default_factory=dict)  # by capture: endpoints that it has to be read for
    _merge_count: int = 0

    def run(self, log: LogFunction) -> CaptureIngestResult:
        """Remove and rename stored captures, read, merge, write."""
        writer, lake, plan = self.writer, self.writer.lake, self.writer.plan
        result = CaptureIngestResult(skipped_files=plan.skipped_files)
        removed = writer.remove_replaced_captures()
        writer.rename_captures()
        changes = self._read_and_merge(removed, log)
        result.file_rows = [self._file_rows[read.file.path] for read in plan.reads]
        if changes:
            log(f"merging {len(changes.previous_connection_ids)} connections that several captures saw")
            relabel_stored_rows(lake, changes)
        if later := self._captures_to_reread_later():
            runs = RunMarkers.of(lake)
            runs.set_captures_to_reread({**runs.captures_to_reread(), **later})
        are_relabelled = lake.version(RPC_CALLS) != writer.versions_before[str(RPC_CALLS)]
        # Where these are, calls change otherwise too.
        if len(changes.overlapping_connections) or plan.replaced_captures or are_relabelled:
            writer.observers = {each: observer for each, observer in writer.observers.items() if each is not RPC_CALLS}
        writer.write_tables(changes, self._expiry(result.file_rows))
        tap_steps = writer.find_tap_steps(changes, result.file_rows)
        for row in result.file_rows:
            row["tap_steps"] = tap_steps.get(row["capture_id"])
        failures = dict(changes.failures)
        for row in result.file_rows:
            if (why := failures.pop(row["capture_id"], None)) is not None:
                row.update(failed_columns(why))
        for table in writer.observers:
            known, after = writer.versions_before[str(table)], lake.versions.newest_commit(table)
            before = -1 if known is None else known  # the first version may have rows
            changes_stored = table is RPC_CALLS and tap_steps
            if after is not None and after.version > before and after.is_ours and not changes_stored:
                result.observed_writes[table] = ObservedWrite(before, after.version, writer.removed_calls)
        for table in (CONNECTIONS, RPC_BINDS, SESSION_PACKETS, PINGS, QUARANTINE, PENDING):
            result.rows_written[str(table)] = count_staged_rows(writer.staged.files(table.name))
        result.rows_written[str(CAPTURE_FILES)] = writer.write_ledger(
            result.file_rows, changes.count_corrections(), tap_steps
        )
        mark_failed(lake, failures)  # captures of earlier runs
        everything = bool(plan.replaced_captures or plan.renamed_captures)
        update_connection_attempts(lake, result.file_rows, writer.run_id, writer.clock.now, everything=everything)
        result.rows_written[str(RPC_CALLS)] = sum(row["calls"] for row in result.file_rows)
        return result

    def _read_and_merge(self, removed: pa.Table, log: LogFunction) -> MergeChanges:
        """Read the captures and merge their connections.

        As long as calls of some of them show endpoints that others did not know, these others are read again, before
        anything of them is written. That ends: what a capture knows only grows.
        """
        reads = self.writer.plan.reads
        while True:
            self._read(reads, log)
            fresh = self.writer.staged.rows(PENDING.name)
            self._learn(self._file_rows.values(), fresh)
            if reads := self._reads_to_repeat(log):
                continue  # with that known, merging shows more
            changes = self._merge(fresh, removed)
            for capture_id, endpoints in changes.captures_to_reread().items():
                self._want(capture_id, endpoints)
            self._learn(changes.packet_counts.to_pylist(), fresh)
            if not (reads := self._reads_to_repeat(log)):
                return changes

    def _read(self, reads: Sequence[PlannedRead], log: LogFunction) -> None:
        """Read captures into staging files, and note their rows of the ledger.

        Rows are staged first because what other captures show of a call is known only when all captures are read.
        Staging takes a tenth of the time that changing rows in Delta afterwards would take.
        """
        writer, captures = self.writer, cut_into_parts(reads, self.writer.clock)
        if not captures:
            return
        parts = list(chain.from_iterable(captures))
        folder = writer.staged.begin_pass(captures)
        schema = from_arrow_schema(BRONZE_SCHEMAS["capture_files"])

        def run_tasks(tasks: PartitionedRows) -> None:
            session = writer.lake.session
            if session.engine == "local":
                session.note_in_driver(tasks.read_part)
            tasks.table(session, schema)

        with ReadProgress(parts, writer.folder, folder / CAPTURE_FILES.name).shown(self.meter):
            read_captures(
                parts, writer.clock, writer.folder, folder, self.reader_options, run_tasks, log, self.interrupted
            )
        by_name = {row["path"]: row for row in writer.staged.rows(CAPTURE_FILES.name).to_pylist()}
        writer.trim_staged_rows(folder, {part.name: part for part in parts}, [by_name[part.name] for part in parts])
        for of_capture in captures:
            path, rows = of_capture[0].file.path, [by_name[part.name] for part in of_capture]
            self._file_rows[path] = {**join_rows_of_parts(rows), "path": path}

    def _merge(self, fresh: pa.Table, removed: pa.Table) -> MergeChanges:
        """Merge connections: pending rows of this round, and ``removed`` ones, with those of earlier runs."""
        lake = self.writer.lake
        limits = time_limits(self.reader_options)
        stored = read_stored_pending(lake, pa.concat_tables([fresh, removed]), limits)
        RunMarkers.of(lake).add_captures(self.writer.run_id, stored["capture_id"].unique().to_pylist())
        steps = read_clock_steps(lake, self._file_rows.values())
        folder = self.writer.folder / f"merged-{self._merge_count}"
        self._merge_count += 1
        return merge_pending(lake, folder, fresh, stored, removed, limits, steps)

    def _learn(self, rows: Iterable[RowDict], fresh: pa.Table) -> None:
        """Find which captures have to be read for endpoints that ``rows`` name, or other captures before.

        ``fresh`` are the rows of ``bronze.pending`` of this round.
        """
        new = {endpoint for row in rows for endpoint in row["learned_endpoints"] or ()} - self.endpoints
        self.endpoints |= new
        if not self.endpoints:
            return
        pending = [
            *learned_endpoints.pending_without_endpoint(fresh),
            *learned_endpoints.stored_pending_at_endpoints(self.writer.lake, new),
        ]
        for capture_id, endpoints in learned_endpoints.captures_to_reread(pending, self.endpoints).items():
            self._want(capture_id, endpoints)

    def _want(self, capture_id: str, endpoints: Collection[str]) -> None:
        self._wanted.setdefault(capture_id, set()).update(endpoints)

    def _reads_to_repeat(self, log: LogFunction) -> list[PlannedRead]:
        """Return the captures of this round that have to be read for more endpoints, to be read again at once.

        Not those that were read on, whose rows are in the tables, nor those whose files have changed meanwhile.
        """
        reads, again = self.writer.plan.reads, list[PlannedRead]()
        for place, read in enumerate(reads):
            endpoints = self._wanted.get(read.capture_id, set()).union(read.reread_endpoints)
            if len(endpoints) == len(read.reread_endpoints) or read.start_offset:
                continue
            if find_file(read.file.path) == read.file:
                reads[place] = replace(read, reread_endpoints=tuple(sorted(endpoints)))
                again.append(reads[place])
        if again:
            _log_rereads(again, log)
        return again

    def _captures_to_reread_later(self) -> dict[str, set[str]]:
        """Return the captures that the next round has to read again, each for connections to some endpoints."""
        known = {read.capture_id: read.reread_endpoints for read in self.writer.plan.reads}
        return {name: wanted for name, wanted in self._wanted.items() if not wanted.issubset(known.get(name, ()))}

    def _expiry(self, file_rows: Sequence[RowDict]) -> PendingExpiry | None:
        """Return which pending rows expire, in the packets' time; None where no time is known."""
        times = (row["last_packet_at"] for row in file_rows if row["last_packet_at"] is not None)
        now = self.as_of or max(times, default=None)
        return None if now is None else PendingExpiry(now - self.pending_expiry)
