"""Finds the bytes of a body: in silver, in what bronze keeps of its call or packet, or in the capture."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.lake import Lake
from pipeline.reports.packet_export.evidence import ExportRequest
from pipeline.reports.packet_export.pcapng_file import ExportLimits, write_packets
from pipeline.reports.packet_export.plan import plan_export
from pipeline.silver.decode import CALL_INPUT_COLUMNS, OPTIONAL_INPUT_COLUMNS, DecodeSettings, decode_calls
from schemas.bronze import RPC_CALLS
from schemas.messages import MESSAGES
from schemas.sessions import SESSION_PACKETS
from schemas.table import RUN_ID, Table
from udfs.capture.capture_reader import VOID, ReadOptions, read_capture_batches
from udfs.files.file_source import FileSource
from udfs.messages.header_layouts import PROTOCOL_BINARY
from udfs.messages.message_decoder import decode_messages
from udfs.rows import RowMapping

_CALL_COLUMNS: Final = (*CALL_INPUT_COLUMNS, *OPTIONAL_INPUT_COLUMNS)
_BODIES: Final = {str(MESSAGES): ("body", "body_sha256")}


class FoundBody(NamedTuple):
    """The bytes of a body that were captured, None if they are nowhere; as text where they are from, or why not."""

    data: bytes | None
    source: str


class _Shown(NamedTuple):
    """What shows a message: a row of bronze, by key; the column with its bytes; what decodes bodies of such rows."""

    table: Table
    key: str
    stored_in: str
    columns: tuple[str, ...]
    decode: Callable[[pa.RecordBatch], pa.RecordBatch]


def find_body(lake: Lake, row: RowMapping, options: ReadOptions) -> FoundBody:
    """Return the body of a row of silver.messages. ``options``: how captures are read.

    Bytes of bronze and of captures are a body only if their SHA-256 is that of the row.
    """
    if row["body"] is not None:
        return FoundBody(row["body"], f"in the lake, {MESSAGES}.body")
    if not row["body_bytes_seen"]:
        return FoundBody(None, "nothing of it was captured" if row["body_bytes"] else "it is empty")
    shown, sha256 = _BY_PACKET if row["packet_key"] is not None else _BY_CALL, row["body_sha256"]
    key = row[shown.key]
    stored = lake.select(shown.table, f"{shown.key} = {{key}}", shown.columns, key=key).combine_chunks()
    if (data := _body_with(sha256, shown, stored.to_batches())) is not None:
        return FoundBody(data, f"in the lake, {shown.table}.{shown.stored_in}")
    return _find_in_captures(lake, shown, key, sha256, options)


def _find_in_captures(lake: Lake, shown: _Shown, key: str, sha256: str, options: ReadOptions) -> FoundBody:
    """Return a body from the captures of its call or packet: their packets are read as a capture of their own."""
    request = ExportRequest(calls=[key]) if shown is _BY_CALL else ExportRequest(packets=[key])
    plan, packets = plan_export(lake, request), io.BytesIO()
    limits = ExportLimits(options.max_expansion_ratio, options.max_expanded_bytes)
    exported = write_packets(plan, packets, limits, lake.overflow_folder)
    data = _body_with(sha256, shown, _read(packets.getvalue(), shown, options))
    paths = ", ".join(plan.pieces_by_path)
    if data is not None:
        return FoundBody(data, f"from the capture {paths}")
    failures = "; ".join(f"{path}: {error}" for path, error in exported.unreadable.items())
    return FoundBody(None, f"not in the lake, and not found in {failures or paths or 'any capture'}")


def _read(capture: bytes, shown: _Shown, options: ReadOptions) -> list[pa.RecordBatch]:
    """Return the rows of a table of bronze that a capture gives."""
    found: list[pa.RecordBatch] = []
    for kind, batch in read_capture_batches(FileSource.from_bytes(capture, "packets"), options):
        if kind == VOID:
            found.clear()
        elif kind == shown.table.name:
            rows = batch.append_column(RUN_ID, pa.nulls(batch.num_rows, pa.string()))
            found.append(rows.select(shown.columns))
    return found


def _body_with(sha256: str, shown: _Shown, batches: list[pa.RecordBatch]) -> bytes | None:
    for bodies in map(shown.decode, batches):
        for body in bodies.filter(pc.equal(bodies["body_sha256"], sha256))["body"].to_pylist():
            if body is not None:
                return bytes(body)
    return None


def _bodies_of_calls(calls: pa.RecordBatch) -> pa.RecordBatch:
    return decode_calls(calls, DecodeSettings(bodies=True), _BODIES)[str(MESSAGES)]


def _bodies_of_packets(packets: pa.RecordBatch) -> pa.RecordBatch:
    protocols = pa.repeat(pa.scalar(PROTOCOL_BINARY), packets.num_rows)
    decoded = decode_messages(packets["packet"], protocols, bodies=True, keys=False)
    return pa.RecordBatch.from_pydict({name: decoded[name] for name in _BODIES[str(MESSAGES)]})


_BY_CALL: Final = _Shown(RPC_CALLS, "call_key", "response_stub", _CALL_COLUMNS, _bodies_of_calls)
_BY_PACKET: Final = _Shown(SESSION_PACKETS, "packet_key", "packet", ("packet",), _bodies_of_packets)
