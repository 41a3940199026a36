"""The retention cutoff of a lake: a date before which nothing is kept, and what it leaves of rows and captures.

``jobs.forget`` sets it (file ``_runs/forgotten``). Every later run applies it: captures that are still in the folder,
that have grown, or that are read again bring nothing older back. Days begin at midnight UTC.

The age of a call, a bind or a quarantined run of bytes is its own time. The age of a connection is its last packet:
while it goes on, its binds stay, and its calls from the cutoff on. Rows without a time are as old as their capture. A
capture without a time is as old as its file, and that was modified before it was read, whatever it says.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.lake.date_filters import distinct_dates
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath, open_parquet
from pipeline.runs.recovery import RunMarkers
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.table import INGESTED_AT, Table
from udfs.capture.bronze_rows import sum_server_connections
from udfs.capture.overlapping_captures import WHOLE_PDU
from udfs.dcerpc.pdu_headers import ALTER_CONTEXT, ALTER_CONTEXT_RESP, AUTH3, BIND, BIND_ACK, BIND_NAK
from udfs.keys import key
from udfs.rows import RowDict
from udfs.tcp.packet_decoder import FRAMED_BEFORE, SKIPPED_BEFORE

_BINDS: Final = frozenset((BIND, BIND_ACK, BIND_NAK, ALTER_CONTEXT, ALTER_CONTEXT_RESP, AUTH3))
_FILE: Final = "forgotten"  # in the folder of the runs
_PTYPE_OFFSET: Final = 2  # of the type of a PDU ([C706] 12.6.3.1)
_TABLES_WITH_SERVER: Final = ("rpc_calls", "rpc_binds", "session_packets", "pings", "pending")
# Binds need connections.
_TRIMMED_TABLES: Final = (
    "connections", "rpc_calls", "rpc_binds", "session_packets", "pings", "quarantine", "pending"
)  # fmt: skip
_TIME_COLUMNS: Final = {"pending": "last_packet_at", "quarantine": "seen_at", "session_packets": "sent_at"}
_ROWS_PER_BATCH: Final = 4096
# Columns of the ledger that describe the content of a capture, and that count it.
_CONTENT_COLUMNS: Final = (
    "servers", "server_connections", "learned_endpoints", "reread_endpoints", "resume", "error", "first_packet_at",
    "last_packet_at", "packets_dropped", "times_go_back", "host_names", "tap_steps",
    "event_date",
)  # fmt: skip
_COUNT_COLUMNS: Final = (
    "packets", "packets_tcp", "packets_truncated", "packets_used", "packets_other", "packets_damaged",
    "packets_binary_protocol", "packets_ahead",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RetentionCutoff:
    """The first date of which rows are kept, and the rules for what is older."""

    first_kept_date: dt.date

    @staticmethod
    def load(runs: RunMarkers) -> RetentionCutoff | None:
        """Return the cutoff of a lake; None if it has none."""
        said = runs.read_state(_FILE)
        return None if said is None else RetentionCutoff(dt.date.fromisoformat(said["before"]))

    def save(self, runs: RunMarkers) -> None:
        """Store the cutoff in the lake, for all later runs."""
        runs.write_state(_FILE, {"before": self.first_kept_date.isoformat()})

    @property
    def first_kept_time(self) -> dt.datetime:
        """Midnight UTC of the first date that is kept."""
        return dt.datetime.combine(self.first_kept_date, dt.time(), dt.UTC)

    @property
    def timestamp_sql(self) -> str:
        """``first_kept_time`` as a literal of Spark SQL, independent of the session's time zone."""
        return f"TIMESTAMP'{self.first_kept_date} 00:00:00 UTC'"

    def excludes_time(self, *times: dt.datetime | None) -> bool:
        """Whether the first of these times that is not None is before the cutoff; False if all are None."""
        known = next((time for time in times if time is not None), None)
        return known is not None and known < self.first_kept_time

    def is_capture_expired(self, capture: Mapping[str, Any]) -> bool:
        """Whether all of a capture is older than the cutoff, by its row of ``bronze.capture_files``."""
        emptied = capture.get("first_key") is not None and not capture["packets"]  # by ``trim_ledger_row``
        file_times = [time for time in (capture["modified_at"], capture.get(INGESTED_AT)) if time is not None]
        return emptied or self.excludes_time(capture["last_packet_at"], min(file_times, default=None))

    def affects_capture(self, capture: Mapping[str, Any]) -> bool:
        """Whether a capture holds packets from before the cutoff, or may because it has no times."""
        first = capture["first_packet_at"]
        return first is None or bool(first < self.first_kept_time)

    def trim_ledger_row(self, row: RowDict, servers: Collection[str]) -> RowDict:
        """Return a capture's row of the ledger without what is older than the cutoff.

        Of a capture that is all older only its files stay, to show that it was read. One that is partly older keeps the
        servers among ``servers``, those of its rows that stay, and their names; and places where clocks were set, as
        another capture shows, with packets behind them that stay.
        """
        if self.is_capture_expired(row):
            return {**row, **dict.fromkeys(_CONTENT_COLUMNS), **dict.fromkeys(_COUNT_COLUMNS, 0)}
        if not self.affects_capture(row):
            return row
        kept = [each for each in row["server_connections"] or () if each["server_address"] in servers]
        endpoints = {
            name: [text for text in row[name] or () if text.partition("|")[0] in servers] or None
            for name in ("learned_endpoints", "reread_endpoints")
        }
        names = [each for each in row["host_names"] or () if each["address"] in servers] or None
        steps = [step for step in row["tap_steps"] or () if step["first_at"] >= self.first_kept_time] or None
        return {**row, **sum_server_connections(kept), **endpoints, "host_names": names, "tap_steps": steps}

    # -- rows ------------------------------------------------------------------------------------------------------

    def keeps_row(
        self, table: str, row: Mapping[str, Any], connections: Collection[str], *, capture_dropped: bool
    ) -> bool:
        """Whether a row of a bronze table stays, by its time, capture and connection (``connections`` stay)."""
        times: tuple[dt.datetime | None, ...]
        if table == "connections":
            times = row["last_packet_at"], row["closed_at"], row["first_packet_at"]
        elif table in ("rpc_calls", "pings"):
            day = row["event_date"]
            return not capture_dropped if day is None else bool(day >= self.first_kept_date)
        elif table == "rpc_binds":
            times = (row["bound_at"],)
            if row["connection_id"] in connections:
                return True
        else:
            times = (row[_TIME_COLUMNS[table]],)
        return not (capture_dropped if all(time is None for time in times) else self.excludes_time(*times))

    def trim_pending_row(self, row: RowDict) -> RowDict:
        """Return a row of ``bronze.pending`` without the bytes from before the cutoff; binds stay.

        Segments stay, without bytes: those of whole PDUs count as parsed, others as passed over.
        """
        first_ns = int(self.first_kept_time.timestamp()) * 1_000_000_000
        heads: dict[tuple[int, int], int] = {}  # PDU types, by direction and sequence number of the PDU's next segment
        segments = []
        for segment in row["segments"] or ():
            data, whole = segment["data"], bool(segment["flags"] & WHOLE_PDU)
            kind = heads.pop((segment["side"], segment["sequence"]), None)
            if whole and data and kind is None:
                kind = data[_PTYPE_OFFSET] if len(data) > _PTYPE_OFFSET else -1
                heads[segment["side"], (segment["sequence"] + len(data)) & 0xFFFFFFFF] = kind
            if not data or segment["time_ns"] >= first_ns or (whole and kind in _BINDS):
                segments.append(segment)
                continue
            flag = FRAMED_BEFORE if whole else SKIPPED_BEFORE
            segments.append({**segment, "data": None, "flags": flag, "number": 0, "file_offset": 0})
        kept = [run for run in row["runs"] or () if run["time_ns"] >= first_ns]
        size = sum(len(segment["data"]) for segment in segments if segment["data"] is not None)
        return {**row, "segments": segments, "runs": kept, "bytes": size}

    # -- staging files of a run --------------------------------------------------------------------------------------

    def trim_staging_files(self, folder: LakePath, captures: Iterable[Mapping[str, Any]]) -> dict[str, set[str]]:
        """Remove what is older than the cutoff from a run's staging files, before anything is written to the lake.

        ``captures`` are their rows of ``bronze.capture_files``. Returns, by path of the captures that may hold anything
        older, the servers of the rows that stay.
        """
        return {
            capture["path"]: self._trim_capture_files(
                folder, f"{key(capture['path'])}.parquet", capture_dropped=self.is_capture_expired(capture)
            )
            for capture in captures
            if self.affects_capture(capture)
        }

    def _trim_capture_files(self, folder: LakePath, name: str, *, capture_dropped: bool) -> set[str]:
        connections: set[str] = set()
        servers: set[str] = set()
        for table in _TRIMMED_TABLES:
            path = folder / table / name
            if not path.exists():
                continue
            temporary = path.temporary("kept")
            with open_parquet(path) as source, temporary.open_output() as sink:
                schema = source.schema_arrow
                with pq.ParquetWriter(sink, schema, compression="lz4", write_statistics=False) as out:
                    for batch in source.iter_batches(_ROWS_PER_BATCH):
                        rows = [
                            self.trim_pending_row(row) if table == "pending" else row
                            for row in batch.to_pylist()
                            if self.keeps_row(table, row, connections, capture_dropped=capture_dropped)
                        ]
                        if table == "connections":
                            connections |= {row["connection_id"] for row in rows}
                        elif table in _TABLES_WITH_SERVER:
                            servers |= {row["server_address"] for row in rows}
                        out.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
            path.publish(temporary)
        return servers


def recount_connection_calls(lake: Lake, cutoff: RetentionCutoff) -> None:
    """Update the number of calls of connections that began before the cutoff to the calls that are left."""
    older = f"SELECT connection_id, calls FROM {{connections}} WHERE first_packet_at < {cutoff.timestamp_sql}"
    counts = "SELECT connection_id, count(*) AS number FROM {calls} GROUP BY connection_id"
    sql = (
        f"SELECT older.connection_id, coalesce(number, 0) AS number FROM ({older}) AS older"
        f" LEFT JOIN ({counts}) AS counted ON counted.connection_id = older.connection_id"
        " WHERE older.calls IS DISTINCT FROM coalesce(number, 0)"
    )
    found = lake.query(sql, connections=CONNECTIONS, calls=RPC_CALLS)
    if changed := dict(zip(found["connection_id"].to_pylist(), found["number"].to_pylist(), strict=True)):
        stored = lake.select_by_values(CONNECTIONS, changed)
        replace_rows(
            lake, CONNECTIONS, [{**row, "calls": changed[row["connection_id"]]} for row in stored.to_pylist()], stored
        )


def replace_rows(lake: Lake, table: Table, rows: Sequence[RowDict], stored: pa.Table) -> None:
    """Put rows in the place of stored ones, as far as they differ; stored ones of other keys are deleted."""
    dates = distinct_dates(stored)
    lake.replace_changed(table, pa.Table.from_pylist(rows, stored.schema), stored, dates=dates)
