"""Taking out of bronze what is older than a date (``horizon``); silver and gold follow it like any other change.

Each step leaves alone what is gone already, so that one that was killed is done by doing all again. The rows are gone
then, not yet their bytes: ``erasing`` sees to these. The caller holds the lake's lease and has undone runs that did
not end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

from pipeline.bronze.input_files import Listed, find_file
from pipeline.bronze.ledger_entries import COLUMNS, Known
from pipeline.bronze.retention_cutoff import Horizon, put_rows, recount_calls
from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW
from schemas.hosts import HOSTS
from schemas.quality import QUALITY_RESULTS
from schemas.table import EVENT_DATE, INGESTED_AT, Table, literal

Row = dict[str, Any]
Find = Callable[[str], Listed | None]
_UNDATED: Final = (RPC_CALLS, RPC_BINDS, QUARANTINE, PENDING)  # whose rows name a capture, should they have no time
_TIME_OF: Final = {RPC_BINDS: "bound_at", QUARANTINE: "seen_at", PENDING: "since", RPC_CALLS: EVENT_DATE}


@dataclass(slots=True)
class Forgotten:
    """Rows that went, or would go, by table; ``files`` of which the ledger keeps no more than that they were read."""

    rows: dict[str, int] = field(default_factory=dict)
    files: int = 0

    def add(self, table: Table, rows: int) -> None:
        """Count rows of a table."""
        self.rows[str(table)] = self.rows.get(str(table), 0) + rows


def forget(lake: Lake, horizon: Horizon, *, dry_run: bool = False, find: Find = find_file) -> Forgotten:
    """Take what is older out of bronze, and of what runs say of themselves; or only count it."""
    return _Work(lake, horizon, dry_run, find).carry_out()


@dataclass(slots=True)
class _Work:
    lake: Lake
    horizon: Horizon
    dry_run: bool
    find: Find
    done: Forgotten = field(default_factory=Forgotten)

    def carry_out(self) -> Forgotten:
        """Take out rows in an order that can be broken off anywhere: the ledgers, which tell what is old, come last."""
        undated = self._undated()
        day = f"{EVENT_DATE} < DATE'{self.horizon.before}'"
        self._delete(RPC_CALLS, f"{day}{self._or_of(RPC_CALLS, undated)}")
        connections = "coalesce(last_packet_at, closed_at, first_packet_at)"
        self._delete(CONNECTIONS, f"{connections} < {self.horizon.time_sql}")
        self._binds(undated)
        self._delete(QUARANTINE, f"seen_at < {self.horizon.time_sql}{self._or_of(QUARANTINE, undated)}")
        self._pending(undated)
        if undated and not self.dry_run:
            self._connections_without_times()
        self._snapshots()
        self._quality()
        self._captures()
        if not self.dry_run:
            recount_calls(self.lake, self.horizon)
        return self.done

    def _delete(self, table: Table, condition: str) -> None:
        if not self.lake.exists(table):
            return
        rows = self.lake.read(table).where(condition).count()
        self.done.add(table, rows)
        if rows and not self.dry_run:
            self.lake.delete(table, condition)

    # -- captures --------------------------------------------------------------------------------------------------

    def _ledger(self) -> list[Row]:
        rows: list[Row] = self.lake.read(CAPTURE_FILES).toArrow().to_pylist()
        return rows

    def _undated(self) -> set[str]:
        """Return the captures that are older and have rows without any time."""
        found: set[str] = set()
        for table in _UNDATED:
            rows = self.lake.read(table).where(f"{_TIME_OF[table]} IS NULL AND capture_id IS NOT NULL")
            found |= {row[0] for row in rows.select("capture_id").distinct().collect()}
        if not found:
            return found
        return {row["capture_id"] for row in self._ledger() if self.horizon.forgets(row)} & found

    def _or_of(self, table: Table, captures: Collection[str]) -> str:
        if not captures:
            return ""
        named = ", ".join(literal(name) for name in sorted(captures))
        return f" OR ({_TIME_OF[table]} IS NULL AND capture_id IN ({named}))"

    def _binds(self, undated: Collection[str]) -> None:
        """Take out binds that are older, of connections that did not go on."""
        old = self.lake.read(RPC_BINDS).where(f"bound_at < {self.horizon.time_sql}{self._or_of(RPC_BINDS, undated)}")
        stay = self.lake.read(CONNECTIONS).where(
            f"coalesce(last_packet_at, closed_at, first_packet_at) >= {self.horizon.time_sql}"
        )
        gone = old.join(stay.select("connection_id"), "connection_id", "left_anti").select("bind_key").toArrow()
        self.done.add(RPC_BINDS, gone.num_rows)
        if gone.num_rows and not self.dry_run:
            self.lake.remove(RPC_BINDS, "bind_key", set(gone.column(0).to_pylist()), dates=None)

    def _pending(self, undated: Collection[str]) -> None:
        """Take out halves that are older, and out of connections that went on the bytes that are."""
        self._delete(PENDING, f"since < {self.horizon.time_sql}{self._or_of(PENDING, undated)}")
        crossing = f"first_packet_at < {self.horizon.time_sql} AND since >= {self.horizon.time_sql}"
        there = self.lake.read(PENDING).where(crossing).toArrow()
        rows = there.to_pylist()
        now = [self.horizon.remainder(row) for row in rows]
        changed = {row["pending_key"] for row, was in zip(now, rows, strict=True) if row != was}
        if not changed or self.dry_run:
            return
        dates: set[date | None] = {row[EVENT_DATE] for row in rows}
        put_rows(self.lake, PENDING, now, there.schema, dates)

    def _connections_without_times(self) -> None:
        """Take out connections without any time that nothing is left of."""
        left = self.lake.read(CONNECTIONS).where("coalesce(last_packet_at, closed_at, first_packet_at) IS NULL")
        for table in (RPC_CALLS, RPC_BINDS, PENDING):
            left = left.join(self.lake.read(table).select("connection_id"), "connection_id", "left_anti")
        gone = {row[0] for row in left.select("connection_id").collect()}
        self.done.add(CONNECTIONS, len(gone))
        self.lake.remove(CONNECTIONS, "connection_id", gone, dates={None})

    def _captures(self) -> None:
        """Take out of the ledger what captures held, and captures whose files are gone."""
        if not self.lake.exists(CAPTURE_FILES):
            return
        there = self.lake.read(CAPTURE_FILES).toArrow()
        old = [row for row in there.to_pylist() if self._is_to_change(row)]
        if not old:
            return
        forgotten = [row for row in old if self.horizon.forgets(row)]
        standing = {known.capture_id for known in self._known(forgotten) if self._stands(known)}
        gone = {row["capture_id"] for row in forgotten} - standing
        self.done.add(CAPTURE_FILES, len(gone))
        self.done.files += len(standing)
        if self.dry_run:
            return
        servers = self._servers({row["capture_id"] for row in old} - {row["capture_id"] for row in forgotten})
        now = [self.horizon.ledger_row(row, servers[row["capture_id"]]) for row in old if row["capture_id"] not in gone]
        dates: set[date | None] = {row[EVENT_DATE] for row in old}
        self.lake.remove(CAPTURE_FILES, "capture_id", gone, dates=dates)
        put_rows(self.lake, CAPTURE_FILES, now, there.schema, dates)

    def _is_to_change(self, row: Row) -> bool:
        """Whether the ledger still tells of something older; a file that is gone is asked for each time."""
        return self.horizon.forgets(row) or (row["first_packet_at"] is not None and self.horizon.crosses(row))

    def _known(self, rows: Iterable[Row]) -> list[Known]:
        named = {row["capture_id"] for row in rows}
        ledger = self.lake.read(CAPTURE_FILES).selectExpr(*COLUMNS).collect()
        return [Known.of(row.asDict()) for row in ledger if row["capture_id"] in named]

    def _stands(self, known: Known) -> bool:
        """Whether any of a capture's files is where it was: it would be read again if the ledger did not know it."""
        paths = {*(seen.path for seen in known.sightings), *known.other_paths}
        return any(self.find(path) is not None for path in sorted(paths))

    def _servers(self, captures: Collection[str]) -> Mapping[str, set[str]]:
        """Return the servers of the rows that stay, by capture."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for table in (RPC_CALLS, RPC_BINDS, PENDING):
            rows = self.lake.read(table).select("capture_id", "server_address").distinct()
            for capture_id, server in rows.collect() if captures else ():
                found[capture_id].add(server)
        return found

    # -- snapshots, and what runs say of themselves ------------------------------------------------------------------

    def _snapshots(self) -> None:
        """Take out snapshots, and of every file that holds one the lines that are none: they have no time."""
        at = self.horizon.time_sql
        age = "coalesce(last_asked_at, modified_at, ingested_at)"
        old = f"coalesce(asked_at, collected_at, {INGESTED_AT}) < {at}"
        if self.lake.exists(SNAPSHOT_FILES):
            ledger = self.lake.read(SNAPSHOT_FILES)
            ended = [row[0] for row in ledger.where(f"{age} < {at}").select("path").collect()]
            begun = ledger.where(f"first_asked_at < {at} OR {age} < {at}").select("path").collect()
            named = sorted(literal(row[0]) for row in begun)
            for begin in range(0, len(named), _AT_ONCE):
                some = ", ".join(named[begin : begin + _AT_ONCE])
                self._delete(QUARANTINE, f"capture_id IS NULL AND source_path IN ({some})")
            self._delete(SNAPSHOTS_RAW, old)
            gone = {path for path in ended if self.find(path) is None}
            self.done.add(SNAPSHOT_FILES, len(gone))
            self.done.files += len(ended) - len(gone)
            if not self.dry_run:
                self.lake.remove(SNAPSHOT_FILES, "path", gone, dates=None)

    def _quality(self) -> None:
        """Take out checks that are older, and what younger ones quote of rows: these may be."""
        self._delete(QUALITY_RESULTS, f"run_at < {self.horizon.time_sql}")
        if not self.dry_run:
            made = self.lake.made_of(QUALITY_RESULTS)
            quoting = "observed IS NOT NULL AND NOT success"
            if self.lake.read(QUALITY_RESULTS).where(quoting).limit(1).count():
                self.lake.update(QUALITY_RESULTS, {"observed": "NULL"}, quoting, made_of=made)
        # What the endpoint mapper told is kept where stubs are not (hosts.write), so it does not follow bronze.
        told = f"source = 'endpoint_mapper' AND last_seen_at < {self.horizon.time_sql}"
        self._delete(HOSTS, told)


_AT_ONCE: Final = 500
