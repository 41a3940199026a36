"""Apply a retention cutoff: delete what is older from bronze; silver and gold follow as after any other change.

Each step skips what is gone already, so that a killed job is done by repeating it. Rows are deleted here; ``erasure``
removes their bytes from the tables' files. The caller holds the lake's lease and has undone unfinished runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Final

import pyarrow.compute as pc

from pipeline.bronze.ingest_clock import DEFAULT_MAX_TIME_AHEAD, is_ahead_sql
from pipeline.bronze.input_files import FindFile, find_file
from pipeline.bronze.ledger_entries import LEDGER_COLUMNS, LedgerEntry
from pipeline.bronze.retention_cutoff import RetentionCutoff, recount_connection_calls, upsert_rows
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import Values
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
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
    max_time_ahead: timedelta = DEFAULT_MAX_TIME_AHEAD,
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
        self._remove_quality_results()
        # What the endpoint mapper showed outlives removed stubs (hosts.update_hosts): it does not follow bronze.
        self._delete(HOSTS, f"source = 'endpoint_mapper' AND last_seen_at {before}")
        self._trim_ledger(going_on)
        if not self.dry_run:
            recount_connection_calls(self.lake, self.cutoff)
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

    # -- captures --------------------------------------------------------------------------------------------------

    def _undated_captures(self) -> set[str]:
        """Return the captures that are all older than the cutoff and have rows without a time."""
        found: set[str] = set()
        for table in _TABLES_WITH_CAPTURE_ID:
            rows = self.lake.read(table).where(f"{_TIME_COLUMNS[table]} IS NULL AND capture_id IS NOT NULL")
            found |= {row[0] for row in rows.select("capture_id").distinct().collect()}
        if not found:
            return found
        ledger: list[RowDict] = self.lake.read(CAPTURE_FILES).toArrow().to_pylist()
        return {row["capture_id"] for row in ledger if self.cutoff.is_capture_expired(row)} & found

    def _remove_binds(self, undated: Collection[str]) -> None:
        """Delete older binds of connections that ended before the cutoff."""
        time = self.cutoff.timestamp_sql
        sql = f"SELECT bind_key, connection_id FROM {{binds}} WHERE bound_at < {time}{_or_undated_sql(RPC_BINDS)}"
        old = self.lake.frame(sql, binds=RPC_BINDS, undated=undated)
        kept = self.lake.read(CONNECTIONS).where(f"{_CONNECTION_TIME_SQL} >= {time}").select("connection_id")
        removed = old.join(kept, "connection_id", "left_anti").select("bind_key").toArrow()
        self.result.add(RPC_BINDS, removed.num_rows)
        if removed.num_rows and not self.dry_run:
            self.lake.delete_values(RPC_BINDS, "bind_key", set(removed.column(0).to_pylist()), dates=None)

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
        stored = self.lake.read(PENDING).where(f"first_packet_at < {self.cutoff.timestamp_sql}").toArrow()
        rows = stored.to_pylist()
        trimmed = [self.cutoff.trim_pending_row(row) for row in rows]
        if trimmed == rows or self.dry_run:
            return
        dates: set[date | None] = {row[EVENT_DATE] for row in rows}
        upsert_rows(self.lake, PENDING, trimmed, stored.schema, dates)

    def _remove_undated_connections(self) -> None:
        """Delete connections without a time of which no other row is left."""
        left = self.lake.read(CONNECTIONS).where(f"{_CONNECTION_TIME_SQL} IS NULL")
        for table in (RPC_CALLS, RPC_BINDS, SESSION_PACKETS, PENDING):
            left = left.join(self.lake.read(table).select("connection_id"), "connection_id", "left_anti")
        removed = {row[0] for row in left.select("connection_id").collect()}
        self.result.add(CONNECTIONS, len(removed))
        self.lake.delete_values(CONNECTIONS, "connection_id", removed, dates={None})

    def _trim_ledger(self, going_on: Collection[str]) -> None:
        """Remove from the ledger what older captures held, and older captures whose files are gone.

        Captures ``going_on`` show connections that went on: their rows stay.
        """
        if not self.lake.exists(CAPTURE_FILES):
            return
        stored = self.lake.read(CAPTURE_FILES).toArrow()
        affected = [row for row in stored.to_pylist() if self._is_affected(row)]
        if not affected:
            return
        dropped = [row for row in affected if self.cutoff.is_capture_expired(row)]
        emptied = {entry.capture_id for entry in self._ledger_entries(dropped) if self._file_exists(entry)}
        removed = {row["capture_id"] for row in dropped} - emptied - set(going_on)
        self.result.add(CAPTURE_FILES, len(removed))
        self.result.emptied_file_count += len(emptied)
        if self.dry_run:
            return
        partly_older = {row["capture_id"] for row in affected} - {row["capture_id"] for row in dropped}
        servers = self._servers_by_capture(partly_older)
        kept = [row for row in affected if row["capture_id"] not in removed]
        rows = [self.cutoff.trim_ledger_row(row, servers[row["capture_id"]]) for row in kept]
        dates: set[date | None] = {row[EVENT_DATE] for row in affected}
        self.lake.delete_values(CAPTURE_FILES, "capture_id", removed, dates=dates)
        upsert_rows(self.lake, CAPTURE_FILES, rows, stored.schema, dates)

    def _is_affected(self, row: RowDict) -> bool:
        """Whether a row of the ledger may still describe something older, or be of a file that is gone by now."""
        partly_older = row["first_packet_at"] is not None and self.cutoff.affects_capture(row)
        return self.cutoff.is_capture_expired(row) or partly_older

    def _ledger_entries(self, rows: Iterable[RowDict]) -> list[LedgerEntry]:
        names = {row["capture_id"] for row in rows}
        ledger = self.lake.read(CAPTURE_FILES).selectExpr(*LEDGER_COLUMNS).collect()
        return [LedgerEntry.from_row(row.asDict()) for row in ledger if row["capture_id"] in names]

    def _file_exists(self, entry: LedgerEntry) -> bool:
        """Whether one of a capture's files exists: it would be read again if the ledger did not know it."""
        paths = {*(state.path for state in entry.all_files), *entry.other_paths}
        return any(self.find_file(path) is not None for path in sorted(paths))

    def _servers_by_capture(self, captures: Collection[str]) -> Mapping[str, set[str]]:
        """Return the servers of the rows that are left, by capture; nothing without captures."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for table in (RPC_CALLS, RPC_BINDS, SESSION_PACKETS, PINGS, PENDING) if captures else ():
            rows = self.lake.read(table).select("capture_id", "server_address").distinct()
            for capture_id, server in rows.collect():
                found[capture_id].add(server)
        return found

    # -- snapshots and quality results -----------------------------------------------------------------------------

    def _remove_snapshots(self) -> None:
        """Delete older snapshots, and the broken lines (without a time) of every file that holds one."""
        if not self.lake.exists(SNAPSHOT_FILES):
            return
        before = f"< {self.cutoff.timestamp_sql}"
        older = f"coalesce(last_asked_at, least(modified_at, {INGESTED_AT})) {before}"
        ledger = self.lake.read(SNAPSHOT_FILES)
        older_paths = [row[0] for row in ledger.where(older).select("path").collect()]
        partly_older = ledger.where(f"first_asked_at {before} OR {older}").select("path").collect()
        names = sorted(row[0] for row in partly_older)
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
        provenance = self.lake.provenance_json(QUALITY_RESULTS)
        unexpected = "(NOT success OR coalesce(unexpected, 0) > 0)"
        quoting = f"{unexpected} AND (observed IS NOT NULL OR failed_keys IS NOT NULL)"
        if self.lake.read(QUALITY_RESULTS).where(quoting).limit(1).count():
            self.lake.update(
                QUALITY_RESULTS, dict.fromkeys(("observed", "failed_keys"), "NULL"), quoting, provenance=provenance
            )


def _or_undated_sql(table: Table) -> str:
    """Return a SQL alternative for the rows without a time of the captures ``{undated}``."""
    return f" OR ({_TIME_COLUMNS[table]} IS NULL AND capture_id IN {{undated}})"
