"""What the reader makes of bytes, as plain rows: times in microseconds, in an order that does not depend on it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from pcapgen.containers import CaptureFile
from udfs.capture.reader import read_capture

Row = dict[str, Any]


def plain(table: pa.Table) -> list[Row]:
    """Rows of a table, timestamps as microseconds since 1970."""
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        columns[name] = column.to_pylist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


# The times whose first that is not null gives a row's event_date (tables.md, "Layout").
DATED_BY = {
    "capture_files": ("first_packet_at",),
    "connections": ("first_packet_at",),
    "rpc_binds": ("bound_at",),
    "rpc_calls": ("request_at", "request_done_at", "response_at", "response_done_at", "cancelled_at", "orphaned_at"),
    "quarantine": ("seen_at",),
}
FURTHER = {
    "rpc_calls": (
        "response_byte_order",
        "request_sequence",
        "response_sequence",
        "sightings",
        "request_pieces",
        "response_pieces",
        "request_span",
        "response_span",
    ),
    "rpc_binds": ("handshake",),
    "connections": ("lost_by_capture_bytes", "packets"),
    "capture_files": (
        "damage",
        "first_key",
        "content_bytes",
        "tail_key",
        "other_files",
        "resume",
        "decoder_version",
    ),
}  # beyond tables.md


def _dated(name: str, row: Row) -> Row:
    """The row without event_date, which is checked, and without columns that are not in tables.md."""
    date = row.pop("event_date", None)
    first = next((row[column] for column in DATED_BY[name] if row[column] is not None), None)
    assert date == (None if first is None else dt.datetime.fromtimestamp(first // 1_000_000, dt.UTC).date())
    return {column: value for column, value in row.items() if column not in FURTHER.get(name, ())}


def read(source: CaptureFile | bytes, **options: Any) -> dict[str, list[Row]]:
    """All tables of a capture as rows."""
    data = source.data if isinstance(source, CaptureFile) else source
    return rows_of(read_capture(data, path="memory.pcap", **options))


def rows_of(read_tables: dict[str, pa.Table]) -> dict[str, list[Row]]:
    """The reader's tables as rows with the columns of tables.md."""
    tables = {name: plain(table) for name, table in read_tables.items()}
    return {name: [_dated(name, row) if name in DATED_BY else row for row in rows] for name, rows in tables.items()}


def ledger(tables: dict[str, list[Row]]) -> Row:
    """The file's one row of capture_files."""
    (row,) = tables["capture_files"]
    assert row["packets"] == sum(
        row[name] for name in ("packets_used", "packets_binary_protocol", "packets_damaged", "packets_other")
    )
    return row


def ordered(rows: list[Row], *names: str) -> list[Row]:
    """Rows by some of their columns."""
    return sorted(rows, key=lambda row: tuple((row[name] is None, row[name]) for name in names))


def calls(tables: dict[str, list[Row]]) -> list[Row]:
    """rpc_calls by connection and call id."""
    return ordered(tables["rpc_calls"], "client_address", "client_port", "connection_id", "call_id", "request_at")


def without(rows: list[Row], *names: str) -> list[Row]:
    """Rows without columns that a transformation changes."""
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def binds(tables: dict[str, list[Row]]) -> list[Row]:
    """rpc_binds by time and context, without their keys, which must be unique."""
    rows = tables["rpc_binds"]
    assert len({row["bind_key"] for row in rows}) == len(rows)
    return without(ordered(rows, "bound_at", "packet_number", "context_id"), "bind_key")
