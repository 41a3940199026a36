"""bronze: what the collector landed, and the ledger of its files."""

from __future__ import annotations

import pyarrow as pa

from schemas.table import BIGINT, INT, STRING, TIMESTAMP, Column, Table, list_of, run_columns

_PROPERTY = pa.struct([("property_id", INT), ("vt", INT), ("value_json", STRING)])

SNAPSHOTS_RAW = Table(
    "bronze",
    "snapshots_raw",
    "One row per object per collection, as landed by the collector; what failed too.",
    key=("snapshot_id",),
    event_date_columns=("asked_at", "collected_at"),
    columns=(
        Column("snapshot_id", STRING, "key of queue_manager, format_name (null for a machine) and asked_at"),
        Column("queue_manager", STRING, "the configured name of the queue manager"),
        Column("server_address", STRING, "IP address that was asked; null when there was no connection"),
        Column("object_type", STRING, "machine or queue"),
        Column("format_name", STRING, "format name of the queue asked about; null for a machine"),
        Column("asked_at", TIMESTAMP, "when it was asked, by the collector's clock, UTC"),
        Column("collected_at", TIMESTAMP, "when the answer was there, UTC; null without one"),
        Column("hresult", BIGINT, "result of the question, unsigned; null without an answer"),
        Column(
            "error",
            STRING,
            "timeout, refused, unresolved, unauthenticated, cut, malformed, fault:0x..., limit_...; else null",
        ),
        Column(
            "properties",
            list_of(_PROPERTY),
            "what was asked for, in order, with the PROPVARIANT's type and its value as JSON; both null if it failed",
        ),
        Column("collector_version", STRING, "version of the collector that asked"),
        Column("source_path", STRING, "the snapshot file; of several that hold the row the smallest path"),
        Column("source_line", BIGINT, "its line in that file, from 1"),
        *run_columns("bronze", "asked_at"),
    ),
)

SNAPSHOT_FILES = Table(
    "bronze",
    "snapshot_files",
    "The ledger of snapshot files: one row per file that was read, with what became of its lines.",
    key=("path",),
    event_date_columns=("first_asked_at",),
    columns=(
        Column("path", STRING, "absolute path, or URI with its scheme"),
        Column("size_bytes", BIGINT, "size of the file when it was read, bytes"),
        Column("modified_at", TIMESTAMP, "when the file was last modified, UTC, as the file system says"),
        Column("lines", BIGINT, "lines that are not empty: snapshots + quarantined"),
        Column("snapshots", BIGINT, "lines that are snapshots, also those that another file holds too"),
        Column("quarantined", BIGINT, "lines in bronze.quarantine"),
        Column("status", STRING, "complete, or unreadable"),
        Column("error", STRING, "why it could not be read; null when it was"),
        Column("first_asked_at", TIMESTAMP, "earliest asked_at in it, UTC"),
        Column("last_asked_at", TIMESTAMP, "latest asked_at in it, UTC"),
        *run_columns("bronze", "first_asked_at"),
    ),
)

TABLES = (SNAPSHOTS_RAW, SNAPSHOT_FILES)
