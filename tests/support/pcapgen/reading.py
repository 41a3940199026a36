"""Reads bytes with the reader and returns plain rows: times in microseconds, in a defined order."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from pcapgen.containers import CaptureFile
from udfs.capture.capture_reader import read_capture
from udfs.rows import RowDict


def to_rows(table: pa.Table) -> list[RowDict]:
    """Return the rows of a table, timestamps as microseconds since 1970."""
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        columns[name] = column.to_pylist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


# The columns of which the first that is not null gives event_date (tables.md, "Layout").
DATED_BY = {
    "capture_files": ("first_packet_at",),
    "connections": ("first_packet_at",),
    "rpc_binds": ("bound_at",),
    "rpc_calls": ("request_at", "request_done_at", "response_at", "response_done_at", "cancelled_at", "orphaned_at"),
    "quarantine": ("seen_at",),
}
COLUMNS_BEYOND_CONTRACT = {
    "rpc_calls": (
        "response_byte_order",
        "request_sequence",
        "response_sequence",
        "sightings",
        "clocks",
        "tunnel_identifier",
        "request_signed_bytes",
        "response_signed_bytes",
        "request_span",
        "response_span",
    ),
    "rpc_binds": ("handshake",),
    "connections": (
        "lost_by_capture_bytes",
        "packets",
        "tunnel_identifier",
        "uncaptured_side",
        "client_missing_bytes",
        "server_missing_bytes",
    ),
    "capture_files": (
        "damage",
        "first_key",
        "content_bytes",
        "tail_key",
        "other_files",
        "resume",
        "decoder_version",
        "packets_not_read",
    ),
}  # columns that tables.md does not define


def _dated(name: str, row: RowDict) -> RowDict:
    """Check and remove event_date, and remove columns that are not in tables.md."""
    date = row.pop("event_date", None)
    first = next((row[column] for column in DATED_BY[name] if row[column] is not None), None)
    assert date == (None if first is None else dt.datetime.fromtimestamp(first // 1_000_000, dt.UTC).date())
    return {column: value for column, value in row.items() if column not in COLUMNS_BEYOND_CONTRACT.get(name, ())}


def read_rows(source: CaptureFile | bytes, **options: Any) -> dict[str, list[RowDict]]:
    """Return all tables of a capture as rows."""
    data = source.data if isinstance(source, CaptureFile) else source
    return tables_to_rows(read_capture(data, path="memory.pcap", **options))


def tables_to_rows(read_tables: dict[str, pa.Table]) -> dict[str, list[RowDict]]:
    """Convert the reader's tables to rows with the columns of tables.md."""
    tables = {name: to_rows(table) for name, table in read_tables.items()}
    return {name: [_dated(name, row) if name in DATED_BY else row for row in rows] for name, rows in tables.items()}


def capture_files_row(tables: dict[str, list[RowDict]]) -> RowDict:
    """Return the one ``capture_files`` row, after a check that the packet counts add up."""
    (row,) = tables["capture_files"]
    assert row["packets"] == sum(
        row[name] for name in ("packets_used", "packets_binary_protocol", "packets_damaged", "packets_other")
    )
    return row


def sort_rows(rows: list[RowDict], *names: str) -> list[RowDict]:
    """Sort rows by some columns."""
    return sorted(rows, key=lambda row: tuple((row[name] is None, row[name]) for name in names))


def calls(tables: dict[str, list[RowDict]]) -> list[RowDict]:
    """Return the ``rpc_calls`` rows by connection and call id."""
    return sort_rows(tables["rpc_calls"], "client_address", "client_port", "connection_id", "call_id", "request_at")


def drop_columns(rows: list[RowDict], *names: str) -> list[RowDict]:
    """Return rows without some columns."""
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def binds(tables: dict[str, list[RowDict]]) -> list[RowDict]:
    """Return the ``rpc_binds`` rows by time and context, without their keys, which must be unique."""
    rows = tables["rpc_binds"]
    assert len({row["bind_key"] for row in rows}) == len(rows)
    return drop_columns(sort_rows(rows, "bound_at", "packet_number", "context_id"), "bind_key")
