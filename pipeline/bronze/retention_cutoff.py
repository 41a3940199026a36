"""The date before which a lake keeps nothing: what is older, and what stays of captures that cross it.

``jobs.forget`` sets it (``_runs/forgotten``), and every later run keeps to it: a capture that still lies in the
folder, a file that has grown, one that is read again, bring nothing back. A day begins at midnight UTC.

A call, a bind, a stray run of bytes is as old as its own time. A connection is as old as its last packet: while it goes
on its binds stay, and of its calls those of the later days. What has no time is as old as the capture it is of.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.lake.frames import frame
from pipeline.lake.lake import Lake
from pipeline.lake.recovery import Runs
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.table import EVENT_DATE, Table
from udfs.capture.overlap import WHOLE
from udfs.capture.tables import with_servers
from udfs.dcerpc.pdu import ALTER_CONTEXT, ALTER_CONTEXT_RESP, AUTH3, BIND, BIND_ACK, BIND_NAK
from udfs.keys import key
from udfs.tcp.packets import CUT_BEFORE, PASSED_OVER

Row = dict[str, Any]
_BINDS: Final = frozenset((BIND, BIND_ACK, BIND_NAK, ALTER_CONTEXT, ALTER_CONTEXT_RESP, AUTH3))
_PTYPE: Final = 2  # the octet of a PDU that says what it is ([C706] 12.6.3.1)
NAMING: Final = ("rpc_calls", "rpc_binds", "pending")  # tables whose rows name their capture and their server
_TRIMMED: Final = ("connections", "rpc_calls", "rpc_binds", "quarantine", "pending")
_BATCH: Final = 4096
# Of a row of the ledger: what tells of the content, and what counts it.
_CONTENT: Final = (
    "servers", "server_connections", "learnt", "followed", "resume", "error", "first_packet_at", "last_packet_at",
    "packets_dropped", "event_date",
)  # fmt: skip
_COUNTS: Final = (
    "packets", "packets_tcp", "packets_truncated", "packets_used", "packets_other", "packets_damaged",
    "packets_binary_protocol",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Horizon:
    """Nothing of days before ``before`` is kept."""

    before: dt.date

    @staticmethod
    def of(runs: Runs) -> Horizon | None:
        """Return that of a lake; None where nothing was ever forgotten."""
        note = runs.root / "forgotten"
        if not note.exists():
            return None
        return Horizon(dt.date.fromisoformat(json.loads(note.read_text(encoding="utf-8"))["before"]))

    def note(self, runs: Runs) -> None:
        """Have all later runs keep to it."""
        runs.root.mkdir(parents=True, exist_ok=True)
        temporary = runs.root / ".forgotten"
        temporary.write_text(json.dumps({"before": self.before.isoformat()}), encoding="utf-8")
        temporary.replace(runs.root / "forgotten")

    @property
    def at(self) -> dt.datetime:
        """Its first moment that is kept."""
        return dt.datetime.combine(self.before, dt.time(), dt.UTC)

    @property
    def time_sql(self) -> str:
        """That moment as a literal of Spark SQL, whatever the session's time zone."""
        return f"TIMESTAMP'{self.before} 00:00:00 UTC'"

    def is_older(self, *times: dt.datetime | None) -> bool:
        """Whether the first of these times that is known lies before it; not where none is."""
        known = next((time for time in times if time is not None), None)
        return known is not None and known < self.at

    def forgets(self, capture: Mapping[str, Any]) -> bool:
        """Whether all of a capture is older: a row of ``bronze.capture_files``, or what a reader says of it."""
        emptied = capture.get("first_key") is not None and not capture["packets"]  # by ``ledger_row``
        return emptied or self.is_older(capture["last_packet_at"], capture["modified_at"])

    def crosses(self, capture: Mapping[str, Any]) -> bool:
        """Whether a capture holds anything older, or may, for want of times."""
        first = capture["first_packet_at"]
        return first is None or bool(first < self.at)

    def ledger_row(self, row: Row, servers: Collection[str]) -> Row:
        """Return what the ledger keeps of a capture.

        Of one that is forgotten: that the file was read, not what was in it. Of one that crosses the date: no server
        that is not among ``servers``, those of its rows that stay.
        """
        if self.forgets(row):
            return {**row, **dict.fromkeys(_CONTENT), **dict.fromkeys(_COUNTS, 0)}
        if not self.crosses(row):
            return row
        kept = [each for each in row["server_connections"] or () if each["server_address"] in servers]
        places = {
            name: [place for place in row[name] or () if place.partition("|")[0] in servers] or None
            for name in ("learnt", "followed")
        }
        return {**row, **with_servers(kept), **places}

    # -- rows ------------------------------------------------------------------------------------------------------

    def keeps(self, kind: str, row: Mapping[str, Any], connections: Collection[str], *, forgotten: bool) -> bool:
        """Whether a row of a bronze table stays: ``connections`` are those that do, ``forgotten`` is its capture."""
        times: tuple[dt.datetime | None, ...]
        if kind == "connections":
            times = row["last_packet_at"], row["closed_at"], row["first_packet_at"]
        elif kind == "rpc_calls":
            day = row["event_date"]
            return not forgotten if day is None else bool(day >= self.before)
        elif kind == "rpc_binds":
            times = (row["bound_at"],)
            if row["connection_id"] in connections:
                return True
        else:
            times = (row["since"],) if kind == "pending" else (row["seen_at"],)
        return not (forgotten if all(time is None for time in times) else self.is_older(*times))

    def remainder(self, row: Row) -> Row:
        """Return a row of ``bronze.pending`` without the bytes that are older, binds aside.

        Its segments stay, without bytes: whole PDUs as if their calls were settled, others as passed over.
        """
        first_ns = int(self.at.timestamp()) * 1_000_000_000
        heads: dict[tuple[int, int], int] = {}  # by where a PDU's second segment begins: what its first one is
        segments = []
        for segment in row["segments"] or ():
            data, whole = segment["data"], bool(segment["flags"] & WHOLE)
            kind = heads.pop((segment["side"], segment["sequence"]), None)
            if whole and data and kind is None:
                kind = data[_PTYPE] if len(data) > _PTYPE else -1
                heads[segment["side"], (segment["sequence"] + len(data)) & 0xFFFFFFFF] = kind
            if not data or segment["time_ns"] >= first_ns or (whole and kind in _BINDS):
                segments.append(segment)
                continue
            flag = CUT_BEFORE if whole else PASSED_OVER
            segments.append({**segment, "data": None, "flags": flag, "number": 0, "file_offset": 0})
        kept = [run for run in row["runs"] or () if run["time_ns"] >= first_ns]
        size = sum(len(segment["data"]) for segment in segments if segment["data"] is not None)
        return {**row, "segments": segments, "runs": kept, "bytes": size}

    # -- side files of a run -----------------------------------------------------------------------------------------

    def trim(self, tables: Path, captures: Iterable[Mapping[str, Any]]) -> dict[str, set[str]]:
        """Take what is older out of a run's side files, before anything is written to the lake.

        ``captures`` are what the reader says of each. Returns the servers of the rows that stay, by the captures'
        paths, of those that hold anything older.
        """
        return {
            capture["path"]: self._trim(tables, f"{key(capture['path'])}.parquet", forgotten=self.forgets(capture))
            for capture in captures
            if self.crosses(capture)
        }

    def _trim(self, tables: Path, name: str, *, forgotten: bool) -> set[str]:
        stay: set[str] = set()
        servers: set[str] = set()
        for kind in _TRIMMED:  # connections first: binds go by them
            path = tables / kind / name
            if not path.exists():
                continue
            temporary = path.with_name(f".{name}.kept")
            with pq.ParquetFile(path) as source:
                schema = source.schema_arrow
                with pq.ParquetWriter(temporary, schema, compression="lz4", write_statistics=False) as out:
                    for batch in source.iter_batches(_BATCH):
                        rows = [
                            self.remainder(row) if kind == "pending" else row
                            for row in batch.to_pylist()
                            if self.keeps(kind, row, stay, forgotten=forgotten)
                        ]
                        if kind == "connections":
                            stay |= {row["connection_id"] for row in rows}
                        elif kind in NAMING:
                            servers |= {row["server_address"] for row in rows}
                        out.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
            temporary.replace(path)
        return servers


def recount_calls(lake: Lake, horizon: Horizon) -> None:
    """Have connections that cross the date count the calls that are left of them."""
    if not lake.exists(CONNECTIONS):
        return
    crossing = lake.read(CONNECTIONS).where(f"first_packet_at < {horizon.time_sql}").select("connection_id", "calls")
    calls: DataFrame = lake.read(RPC_CALLS).join(crossing.select("connection_id"), "connection_id", "left_semi")
    counted = calls.groupBy("connection_id").agg(F.count("*").alias("n"))
    found = crossing.join(counted, "connection_id", "left").select("connection_id", "calls", F.coalesce("n", F.lit(0)))
    left = {name: now for name, before, now in found.collect() if before != now}
    if left:
        there = lake.with_keys(CONNECTIONS, left)
        now = [{**row, "calls": left[row["connection_id"]]} for row in there.to_pylist()]
        put_rows(lake, CONNECTIONS, now, there.schema, {row[EVENT_DATE] for row in now})


def put_rows(lake: Lake, table: Table, rows: Sequence[Row], schema: pa.Schema, dates: Collection[date | None]) -> None:
    """Put rows in the place of those with their keys, in one commit: killed, the job finds the old or the new."""
    if rows:
        lake.merge(table, frame(lake.spark, pa.Table.from_pylist(rows, schema)), dates=dates, unless_same=True)
