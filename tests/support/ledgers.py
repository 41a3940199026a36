"""A ledger of entries that a test makes, in no lake."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

import pyarrow as pa

from memory_lake import MemoryLake
from pipeline.bronze.ledger import Ledger
from pipeline.bronze.ledger_entries import LedgerEntry
from schemas.bronze import CAPTURE_FILES

_SCHEMA = CAPTURE_FILES.schema()


def ledger_of(entries: Iterable[LedgerEntry] = ()) -> Ledger:
    """Return a ledger with these entries."""
    return Ledger(MemoryLake({CAPTURE_FILES: pa.Table.from_pylist([*map(_row, entries)], schema=_SCHEMA)}).query)


def _row(entry: LedgerEntry) -> dict[str, object]:
    """Return the row of the table that ``LedgerEntry.from_row`` gives the entry for."""
    file = entry.file
    return {
        "capture_id": entry.capture_id, "path": file.path, "size_bytes": file.size, "modified_at": file.modified_us,
        "content_bytes": file.content_bytes, "tail_key": file.tail_key, "compression": file.compression,
        "first_key": entry.first_key, "other_paths": list(entry.other_paths) or None,
        "other_files": json.dumps([*map(asdict, entry.other_files)]) if entry.other_files else None,
        "status": entry.status, "damage": entry.damage, "resume": entry.resume,
        "decoder_version": entry.decoder_version,
        "first_packet_at": entry.first_us, "last_packet_at": entry.last_us, "ingested_at": entry.ingested_us,
        "reread_endpoints": list(entry.reread_endpoints) or None,
        "learned_endpoints": list(entry.learned_endpoints) or None,
    }  # fmt: skip
