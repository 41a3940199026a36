"""Apply a retention cutoff: delete what is older from bronze; silver and gold follow as after any other change.

Each step skips what is gone already, so that a killed job is done by repeating it. Rows are deleted here; ``erasure``
removes their bytes from the tables' files. The caller holds the lake's lease and has undone unfinished runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.bronze.across_captures.stored_rows import renumber_clocks
from pipeline.bronze.connection_openings import update_connection_attempts
from pipeline.bronze.ingest_clock import is_ahead_sql
from pipeline.bronze.input_files import FindFile, find_file
from pipeline.bronze.ledger import Ledger
from pipeline.bronze.ledger_entries import LedgerEntry
from pipeline.bronze.retention_cutoff import RetentionCutoff, recount_connection_calls, replace_rows
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryInput, Values
from pipeline.settings import IngestConfig
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS, RUNS
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW
from schemas.hosts import HOSTS
from schemas.quality import QUALITY_RESULTS
from schemas.sessions import PINGS, SESSION_PACKETS
from schemas.table import EVENT_DATE, INGESTED_AT, Table
from udfs.rows import RowDict

_TABLES_WITH_CAPTURE_ID: Final = (RPC_CALLS, RPC_BINDS, SESSION_PACKETS, PINGS, QUARANTINE, PENDING)
_TIME_COLUMNS: Final = {
    RPC_BINDS: "bound_at", SESSION_PACKETS: "sent_at", PINGS: EVENT_DATE, QUARANTINE: "seen_at",
    PENDING: "last_packet_at", RPC_CALLS: EVENT_DATE,
}  # fmt: skip
_CONNECTION_TIME_SQL: Final = "coalesce(last_packet_at, closed_at, first_packet_at)"
_PATHS_PER_DELETE: Final = 500


@dataclass(slots=True)
class RetentionResult:
    """Rows that were, or would be, removed, by table, and files of which the ledger keeps only that they were read."""

    rows_removed: dict[str, int] = field(default_factory=dict)
    emptied_file_count: int = 0

    def add(self, table: Table, rows: int) -> None:
        """Add removed rows of a table."""
        self.rows_removed[str(table)] = self.rows_removed.get(str(table), 0) + rows


def apply_retention(
    lake: Lake, cutoff: RetentionCutoff, *, dry_run: bool = False, find_file: FindFile = find_file,
    max_time_ahead: timedelta = IngestConfig.max_time_ahead,
) -> RetentionResult:  # fmt: skip
    """Delete what is older than the cutoff from bronze, quality results and hosts. With ``dry_run`` only count it."""
    return _RetentionRun(lake, cutoff, dry_run, find_file, max_time_ahead).run()


@dataclass(slots=True)
class _RetentionRun:
    """Applies one cutoff to a lake."""

    lake: Lake
    cutoff: RetentionCutoff
    dry_run: bool
    find_file: FindFile
    max_time_ahead: timedelta
    result: RetentionResult = field(default_factory=RetentionResult)

    def run(self) -> RetentionResult:
        """Delete rows. The ledgers, which show what is old, come last: a killed run is repeated."""
        before = f"< {self.cutoff.timestamp_sql}"
        undated = self._undated_captures()
        day = f"{EVENT_DATE} < DATE'{self.cutoff.first_kept_date}'"
        self._delete(RPC_CALLS, f"{day}{_or_undated_sql(RPC_CALLS)}", undated=undated)
        self._delete(CONNECTIONS, f"{_CONNECTION_TIME_SQL} {before}")
        self._delete(PINGS, f"{day}{_or_undated_sql(PINGS)}", undated=undated)
        self._delete(SESSION_PACKETS, f"sent_at {before}{_or_undated_sql(SESSION_PACKETS)}", undated=undated)
        self._remove_binds(undated)
        self._delete(QUARANTINE, f"seen_at {before}{_or_undated_sql(QUARANTINE)}", undated=undated)
        going_on = self._remove_pending(undated)
        self._trim_pending()
        if undated and not self.dry_run:
            self._remove_undated_connections()
        self._remove_snapshots()
        self._delete(RUNS, f"began_at {before}")
        self._remove_quality_results()
        # What the endpoint mapper showed outlives removed stubs (hosts.update_hosts): it does not follow bronze.
        self._delete(HOSTS, f"source = 'endpoint_mapper' AND last_seen_at {before}")
        self._trim_ledger(going_on)
        if not self.dry_run:
            recount_connection_calls(self.lake, self.cutoff)
            update_connection_attempts(
                self.lake, (), None, datetime.now(UTC), everything=True
            )  # what it rested on may be gone
        return self.result

    def _delete(self, table: Table, condition: str, **of: Values) -> None:
        """Delete the rows that meet a condition; names in braces stand for values, as for ``Lake.delete``."""
        if not self.lake.exists(table):
            return
        counted = self.lake.query(f"SELECT count(*) AS n FROM {{rows}} WHERE {condition}", rows=table, **of)
        rows: int = counted["n"][0].as_py()
        self.result.add(table, rows)
        if rows and not self.dry_run:
            self.lake.delete(table, condition, **of)

    def _texts(self, sql: str, **of: QueryInput) -> set[str]:
        """Return the values that a query of one column finds."""
        return set(self.lake.query(sql, **of).column(0).to_pylist())

    # -- captures --------------------------------------------------------------------------------------------------

    def _undated_captures(self) -> set[str]:
        """Return the captures that are all older than the cutoff and have rows without a time."""
        found: set[str] = set()
        for table in _TABLES_WITH_CAPTURE_ID:
            undated = f"{_TIME_COLUMNS[table]} IS NULL AND capture_id IS NOT NULL"
            found |= self._texts(f"SELECT DISTINCT capture_id FROM {{rows}} WHERE {undated}", rows=table)
        ledger: list[RowDict] = self.lake.select_by_values(CAPTURE_FILES, found).to_pylist()
        return {row["capture_id"] for row in ledger if self.cutoff.is_capture_expired(row)}

    def _remove_binds(self, undated: Collection[str]) -> None:
        """Delete older binds of connections that ended before the cutoff."""
        time = self.cutoff.timestamp_sql
        kept = f"SELECT connection_id FROM {{connections}} WHERE {_CONNECTION_TIME_SQL} >= {time}"
        sql = (
            f"SELECT bind_key FROM {{binds}} AS binds WHERE (bound_at < {time}{_or_undated_sql(RPC_BINDS)})"
            f" AND NOT EXISTS (SELECT 1 FROM ({kept}) AS kept WHERE kept.connection_id = binds.connection_id)"
        )
        removed = self._texts(sql, binds=RPC_BINDS, connections=CONNECTIONS, undated=undated)
        self.result.add(RPC_BINDS, len(removed))
        if not self.dry_run:
            self.lake.delete_values(RPC_BINDS, "bind_key", removed, dates=None)

    def _remove_pending(self, undated: Collection[str]) -> set[str]:
        """Delete the remainders of connections that ended before the cutoff; return the captures of the others.

        All of a connection that went on stay: its key, its binds and the places of its bytes rest on the first.
        """
        if not self.lake.exists(PENDING):
            return set()
        last = "SELECT *, max(last_packet_at) OVER (PARTITION BY connection_id) AS last_seen FROM {pending}"
        ended = f"coalesce(last_seen < {self.cutoff.timestamp_sql}, FALSE){_or_undated_sql(PENDING)}"
        sql = f"SELECT pending_key, capture_id, {ended} AS has_ended FROM ({last})"
        rows = self.lake.query(sql, pending=PENDING, undated=undated)
        removed = rows.filter(rows["has_ended"])
        self.result.add(PENDING, removed.num_rows)
        if not self.dry_run:
            self.lake.delete_values(PENDING, "pending_key", set(removed["pending_key"].to_pylist()), dates=None)
        return set(rows.filter(pc.invert(rows["has_ended"]))["capture_id"].to_pylist())

    def _trim_pending(self) -> None:
        """Remove older bytes from pending connections that went on after the cutoff."""
        if self.dry_run:
            return
        stored = self.lake.select(PENDING, f"first_packet_at < {self.cutoff.timestamp_sql}")
        trimmed = [self.cutoff.trim_pending_row(row) for row in stored.to_pylist()]
        replace_rows(self.lake, PENDING, trimmed, stored)

    def _remove_undated_connections(self) -> None:
        """Delete connections without a time of which no other row is left."""
        others = {table.name: table for table in (RPC_CALLS, RPC_BINDS, SESSION_PACKETS, PENDING)}
        no_row = (
            f" AND NOT EXISTS (SELECT 1 FROM {{{name}}} AS o WHERE o.connection_id = c.connection_id)"
            for name in others
        )
        sql = f"SELECT connection_id FROM {{connections}} AS c WHERE {_CONNECTION_TIME_SQL} IS NULL{''.join(no_row)}"
        removed = self._texts(sql, connections=CONNECTIONS, **others)
        self.result.add(CONNECTIONS, len(removed))
        self.lake.delete_values(CONNECTIONS, "connection_id", removed, dates={None})

    def _trim_ledger(self, going_on: Collection[str]) -> None:
        """Remove from the ledger what older captures held, and older captures whose files are gone.

        Captures ``going_on`` show connections that went on: their rows stay. Places where clocks were set that an older
        capture showed go from the rows of the others too.
        """
        ledger = self.lake.select(CAPTURE_FILES, "TRUE")
        every: list[RowDict] = ledger.to_pylist()
        dropped = {row["capture_id"]: row for row in every if self.cutoff.is_capture_expired(row)}
        staying = {row["capture_id"] for row in every} - dropped.keys()
        affected = [row for row in every if self._is_affected(row) or _with_steps_of(row, staying) != row]
        if not affected:
            return
        emptied = {entry.capture_id for entry in self._ledger_entries(dropped.values()) if self._file_exists(entry)}
        removed = dropped.keys() - emptied - set(going_on)
        self.result.add(CAPTURE_FILES, len(removed))
        self.result.emptied_file_count += len(emptied)
        if self.dry_run:
            return
        kept = [row for row in affected if row["capture_id"] not in removed]
        servers = self._servers_by_capture({row["capture_id"] for row in kept} - dropped.keys())
        rows = [self.cutoff.trim_ledger_row(_with_steps_of(row, staying), servers[row["capture_id"]]) for row in kept]
        self._renumber_clocks(kept, rows)
        replace_rows(self.lake, CAPTURE_FILES, rows, pa.Table.from_pylist(affected, ledger.schema))

    def _renumber_clocks(self, before: Iterable[RowDict], after: Iterable[RowDict]) -> None:
        """Number the clocks of calls anew in captures of which fewer places are known where clocks were set."""
        changed = {
            row["capture_id"]: row["tap_steps"]
            for was, row in zip(before, after, strict=True)
            if row["tap_steps"] != was["tap_steps"]
        }
        steps = read_clock_steps(self.lake, tap_steps=changed)
        renumber_clocks(self.lake, changed, steps)

    def _is_affected(self, row: RowDict) -> bool:
        """Whether a row of the ledger may still describe something older, or be of a file that is gone by now."""
        partly_older = row["first_packet_at"] is not None and self.cutoff.affects_capture(row)
        return self.cutoff.is_capture_expired(row) or partly_older

    def _ledger_entries(self, rows: Iterable[RowDict]) -> list[LedgerEntry]:
        return Ledger(self.lake.query).captures({row["capture_id"] for row in rows})

    def _file_exists(self, entry: LedgerEntry) -> bool:
        """Whether one of a capture's files exists: it would be read again if the ledger did not know it."""
        paths = {*(state.path for state in entry.all_files), *entry.other_paths}
        return any(self.find_file(path) is not None for path in sorted(paths))

    def _servers_by_capture(self, captures: Collection[str]) -> Mapping[str, set[str]]:
        """Return the servers of the rows that are left, by capture; nothing without captures."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        sql = "SELECT DISTINCT capture_id, server_address FROM {rows} WHERE capture_id IN {captures}"
        for table in (RPC_CALLS, RPC_BINDS, SESSION_PACKETS, PINGS, PENDING) if captures else ():
            for row in self.lake.query(sql, rows=table, captures=captures).to_pylist():
                found[row["capture_id"]].add(row["server_address"])
        return found

    # -- snapshots and quality results -----------------------------------------------------------------------------

    def _remove_snapshots(self) -> None:
        """Delete older snapshots, and the broken lines (without a time) of every file that holds one."""
        if not self.lake.exists(SNAPSHOT_FILES):
            return
        before = f"< {self.cutoff.timestamp_sql}"
        older = f"coalesce(last_asked_at, least(modified_at, {INGESTED_AT})) {before}"
        paths_sql = "SELECT path FROM {files} WHERE "
        older_paths = self._texts(paths_sql + older, files=SNAPSHOT_FILES)
        names = sorted(self._texts(f"{paths_sql}first_asked_at {before} OR {older}", files=SNAPSHOT_FILES))
        for begin in range(0, len(names), _PATHS_PER_DELETE):
            paths = names[begin : begin + _PATHS_PER_DELETE]
            self._delete(QUARANTINE, "capture_id IS NULL AND source_path IN {paths}", paths=paths)
        # Snapshots that are ahead are as old as their ingestion: of lakes that were once written with another limit.
        ahead = f"({is_ahead_sql('asked_at', self.max_time_ahead)} AND {INGESTED_AT} {before})"
        self._delete(SNAPSHOTS_RAW, f"coalesce(asked_at, collected_at, {INGESTED_AT}) {before} OR {ahead}")
        missing = {path for path in older_paths if self.find_file(path) is None}
        self.result.add(SNAPSHOT_FILES, len(missing))
        self.result.emptied_file_count += len(older_paths) - len(missing)
        if not self.dry_run:
            self.lake.delete_values(SNAPSHOT_FILES, "path", missing, dates=None)

    def _remove_quality_results(self) -> None:
        """Delete older quality results, and the values and keys that later ones quote: these may be of older rows."""
        self._delete(QUALITY_RESULTS, f"run_at < {self.cutoff.timestamp_sql}")
        if self.dry_run:
            return
        provenance = self.lake.versions.provenance_json(QUALITY_RESULTS)
        unexpected = "(NOT success OR coalesce(unexpected, 0) > 0)"
        quoting = f"{unexpected} AND (observed IS NOT NULL OR failed_keys IS NOT NULL)"
        emptied = dict.fromkeys(("observed", "failed_keys"), "NULL")
        self.lake.update(QUALITY_RESULTS, emptied, quoting, provenance=provenance)


def _with_steps_of(row: RowDict, captures: Collection[str]) -> RowDict:
    """Return a row of the ledger with only those places where clocks were set that some captures show."""
    steps = [step for step in row["tap_steps"] or () if step["other_capture_id"] in captures]
    return {**row, "tap_steps": steps or None}


def _or_undated_sql(table: Table) -> str:
    """Return a SQL alternative for the rows without a time of the captures ``{undated}``."""
    return f" OR ({_TIME_COLUMNS[table]} IS NULL AND capture_id IN {{undated}})"
