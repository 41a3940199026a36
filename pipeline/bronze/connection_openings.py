"""What became of connections that were not established: ``not_established`` of ``bronze.connections``, after a round.

What became of an attempt, and whether it was meant for MSMQ, may stand in several captures, which are read in any
order. So it is found in the tables, when a round has written them: in the remainders of ``bronze.pending`` that show
SYNs and no more (``udfs.capture.openings``). Those of captures that ran within an hour of what the round read are
looked at again, and those whose server the lake has come to know as a queue manager.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa

from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.bronze.write_tables import stamp_rows
from pipeline.lake.date_filters import distinct_dates
from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING
from schemas.table import EVENT_DATE, Table
from udfs.capture import openings
from udfs.capture.capture_reader import BRONZE_SCHEMAS, InterfaceEndpoint
from udfs.capture.merged_remainders import add_packet_counts
from udfs.capture.openings import (
    ATTEMPT_PORTS,
    NEAR_NS,
    TRIED_PORTS,
    AttemptOutcomes,
    CaptureSpans,
    Surroundings,
    attempt_connection,
    count_again,
    find_attempt_outcomes,
    heard_in,
    packets_not_read,
)
from udfs.dcerpc.interfaces import BINARY_PROTOCOL_PORT, EPM_PORT
from udfs.rows import RowDict
from udfs.times import datetime_to_us

_COLUMNS: Final = (
    "pending_key", "capture_id", "connection_id", "client_address", "client_port", "server_address", "server_port",
    "tunnel_identifier", "kind", "first_time_ns", "last_time_ns", "packets", "counted", "counted_server", "opening",
    EVENT_DATE,
)  # fmt: skip
_PORTS: Final = ", ".join(map(str, sorted(ATTEMPT_PORTS)))
_ATTEMPTS: Final = f"""
SELECT connection_id, capture_id, server_address, server_port, counted FROM {{pending}}
WHERE opening.syn_ns IS NOT NULL AND NOT opening.client_spoke AND NOT opening.server_spoke
  AND opening.client_reset_ns IS NULL
  AND (kind = 'binary_protocol' OR server_port IN ({_PORTS})
    OR concat_ws('|', server_address, server_port) IN {{endpoints}})"""
_QUEUE_MANAGERS: Final = f"""
SELECT DISTINCT server_address AS address FROM {{connections}}
WHERE server_bytes > 0 AND (kind = 'binary_protocol' OR server_port <> {EPM_PORT})"""
_HEARD: Final = "capture_id IN {captures} AND (client_address IN {clients} OR server_address IN {clients})"
_HEARD_COLUMNS: Final = ("client_address", "server_address", "capture_id", "first_time_ns", "last_time_ns", "opening")
_TRIED: Final = f"""
SELECT client_address, server_address, unix_micros(first_packet_at) AS `at` FROM {{connections}}
WHERE server_port IN ({", ".join(map(str, sorted(TRIED_PORTS)))}) AND server_address IN {{servers}}
  AND first_packet_at IS NOT NULL"""
_NEAR: Final = timedelta(microseconds=NEAR_NS // 1000)


@dataclass(frozen=True, slots=True)
class _Window:
    """The times, in microseconds, between which captures were read or removed; None: any time."""

    since: int | None = None
    until: int | None = None

    @staticmethod
    def of(rows: Iterable[RowDict]) -> _Window:
        """Return the window of rows with the times of a first and a last packet."""
        times = [row[name] for row in rows for name in ("first_packet_at", "last_packet_at")]
        if None in times or not times:
            return _Window()
        return _Window(datetime_to_us(min(times)), datetime_to_us(max(times)))

    def captures(self, lake: Lake, reach: timedelta) -> dict[str, tuple[int, int]]:
        """Return by capture when it ran, in ns, for those that ran within ``reach`` of the window.

        What its clock left out, as it was set forward, did not pass.
        """
        where = "first_packet_at IS NOT NULL"
        if self.since is not None and self.until is not None:
            reach_us = reach // timedelta(microseconds=1)
            where += (
                f" AND last_packet_at >= timestamp_micros({self.since - reach_us})"
                f" AND first_packet_at <= timestamp_micros({self.until + reach_us})"
            )
        sql = (
            "SELECT capture_id, unix_micros(first_packet_at) AS first, unix_micros(last_packet_at) AS last "
            f"FROM {{captures}} WHERE {where}"
        )
        rows = lake.query(sql, captures=CAPTURE_FILES).to_pylist()
        steps = read_clock_steps(lake)
        return {
            row["capture_id"]: (row["first"] * 1000, (row["last"] - steps.skipped_us(row["capture_id"])) * 1000)
            for row in rows
        }


def update_connection_attempts(
    lake: Lake, changed: Collection[RowDict], run_id: str | None, now: datetime, *, everything: bool
) -> None:
    """Bring ``not_established``, its rows and their counts up to date with all captures of the lake.

    ``changed``: rows of ``bronze.capture_files`` that a round read. ``everything``: other captures changed too, or were
    removed. ``now``: what rows that are written have as ``ingested_at``.
    """
    endpoints = _endpoints(lake)
    names = {f"{address}|{port}" for address, port in endpoints} or {""}
    attempts = lake.query(_ATTEMPTS, pending=PENDING, endpoints=names).to_pylist()
    if not attempts:
        return
    managers = {*lake.query(_QUEUE_MANAGERS, connections=CONNECTIONS)["address"].to_pylist()}
    managers |= {address for address, _ in endpoints}
    window = _Window() if everything else _Window.of(changed)
    near = window.captures(lake, _NEAR)
    rows_of = Counter(row["capture_id"] for row in attempts if row["counted"] == "packets_used")
    looked_at = {
        row["capture_id"]
        for row in attempts
        if row["capture_id"] in near
        or (_is_new_to(managers, row) and rows_of[row["capture_id"]] < openings.MAX_RPC_ATTEMPTS)
    }
    chosen = {row["connection_id"] for row in attempts if row["capture_id"] in looked_at}
    if not chosen:
        return
    rows = lake.select(PENDING, "connection_id IN {names}", _COLUMNS, names=chosen).to_pylist()
    around = _surroundings(lake, rows, managers, endpoints)
    _apply(lake, find_attempt_outcomes(rows, around), looked_at, run_id, now)


def _is_new_to(managers: Collection[str], attempt: RowDict) -> bool:
    return attempt["counted"] == "packets_other" and attempt["server_address"] in managers


def _endpoints(lake: Lake) -> set[tuple[str, int]]:
    """Return the addresses and ports at which calls of any capture say that MSMQ listens."""
    sql = "SELECT DISTINCT explode(learned_endpoints) AS endpoint FROM {captures} WHERE learned_endpoints IS NOT NULL"
    found = map(InterfaceEndpoint.parse, lake.query(sql, captures=CAPTURE_FILES)["endpoint"].to_pylist())
    return {(each.address, each.port) for each in found}


def _surroundings(
    lake: Lake, rows: Collection[RowDict], managers: set[str], endpoints: set[tuple[str, int]]
) -> Surroundings:
    times = [row[name] // 1000 for row in rows for name in ("first_time_ns", "last_time_ns") if row[name] > 0]
    spans = _Window(min(times), max(times)).captures(lake, _NEAR) if times else {}
    clients = {row["client_address"] for row in rows} | {row["server_address"] for row in rows}
    near = (
        lake.select(PENDING, _HEARD, _HEARD_COLUMNS, clients=clients, captures=set(spans)).to_pylist() if spans else []
    )
    tried: dict[tuple[str, str], list[int]] = defaultdict(list)
    others = {row["server_address"] for row in rows if row["server_port"] != BINARY_PROTOCOL_PORT} - managers
    if others:
        for row in lake.query(_TRIED, connections=CONNECTIONS, servers=others).to_pylist():
            tried[row["client_address"], row["server_address"]].append(row["at"] * 1000)
    for row in rows:
        if row["server_port"] in TRIED_PORTS:
            tried[row["client_address"], row["server_address"]].append(row["first_time_ns"])
    for each in tried.values():
        each.sort()
    return Surroundings(CaptureSpans(spans), heard_in(near), managers, endpoints, tried)


def _apply(lake: Lake, found: AttemptOutcomes, captures: Collection[str], run_id: str | None, now: datetime) -> None:
    """Write what changes: rows of connections, what counts their packets, and the counts of ``captures``."""
    names = {*found.codes, *found.left_out}
    stored = lake.select(CONNECTIONS, "connection_id IN {names}", names=names)
    binary = [
        {**row, "not_established": found.codes[name]}
        for row in stored.to_pylist()
        if (name := row["connection_id"]) in found.codes and name not in found.rpc
    ]
    rpc = [attempt_connection(name, remainders, found.codes[name]) for name, remainders in found.rpc.items()]
    made = stamp_rows(CONNECTIONS, pa.Table.from_pylist(rpc, BRONZE_SCHEMAS["connections"]), run_id, now)
    _replace(lake, CONNECTIONS, pa.concat_tables([pa.Table.from_pylist(binary, stored.schema), made]), stored)
    counted, changes = count_again(found)
    if counted:
        rows = [{"pending_key": name, "counted": column} for name, column in sorted(counted.items())]
        schema = pa.schema([PENDING.schema().field(name) for name in ("pending_key", "counted")])
        lake.update_columns(PENDING, pa.Table.from_pylist(rows, schema), dates=None)
    files = lake.select_by_values(CAPTURE_FILES, {*changes, *captures})
    after = files.to_pylist()
    for row in after:
        if row["capture_id"] in changes:
            add_packet_counts(row, changes[row["capture_id"]])
        row["packets_not_read"] = packets_not_read(row["packets_not_read"], found.over_limit[row["capture_id"]])
    _replace(lake, CAPTURE_FILES, pa.Table.from_pylist(after, files.schema), files)


def _replace(lake: Lake, table: Table, rows: pa.Table, stored: pa.Table) -> None:
    dates = distinct_dates(rows, stored)
    lake.replace_changed(table, rows, stored, dates=dates)
