"""Parse snapshot files (JSON lines, version 1) into rows of ``bronze.snapshots_raw``, broken lines into quarantine.

Each line stands for itself: one that is broken, incomplete or of another version gives a quarantine row with line
number, offset and reason; the other lines are used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from schemas.bronze import QUARANTINE
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.table import EVENT_DATE, RUN_COLUMNS
from udfs.files.capture_file import ReadableStream
from udfs.keys import key
from udfs.properties.observations import parse_json
from udfs.times import EPOCH, datetime_to_us

FORMAT_VERSION: Final = 1
MAX_LINE_BYTES: Final = 64 << 20
_BLOCK_BYTES: Final = 1 << 20
_SAMPLE_BYTES: Final = 256
NOT_JSON, UNKNOWN_VERSION, MALFORMED, TOO_LONG = "not_json", "unknown_version", "malformed", "line_too_long"
TIME_AHEAD: Final = "time_ahead"
SNAPSHOT_SCHEMA: Final = SNAPSHOTS_RAW.schema(without=(EVENT_DATE, *RUN_COLUMNS))
BROKEN_LINE_SCHEMA: Final = QUARANTINE.schema(
    only=("quarantine_key", "byte_offset", "size_bytes", "source_path", "source_line", "reason", "sample")
)
JsonObject = dict[str, Any]


class BrokenLineError(ValueError):
    """A line that is not a valid snapshot; the message is the reason code."""


@dataclass(frozen=True, slots=True)
class FileLine:
    """A line of a file: number (from 1), offset and size in bytes, its bytes (None if too long), and the first ones."""

    number: int
    offset: int
    size: int
    data: bytes | None
    head: bytes


def iterate_lines(stream: ReadableStream) -> Iterator[FileLine]:
    """Yield the lines that are not empty; ``data`` is None for a line longer than ``MAX_LINE_BYTES``."""
    number, start, buffered = 1, 0, bytearray()
    size = 0  # of the line so far; of a line that is too long, held has only the first bytes
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    while True:
        block = bytes(buffer[: stream.readinto(buffer) or 0])
        at = 0
        while (end := block.find(b"\n", at)) >= 0:
            buffered += block[at:end] if size <= MAX_LINE_BYTES else b""
            size += end - at
            yield from _make_line(number, start, size, buffered)
            number, start, size, buffered, at = number + 1, start + size + 1, 0, bytearray(), end + 1
        if not block:
            yield from _make_line(number, start, size, buffered)
            return
        size += len(block) - at
        if size <= MAX_LINE_BYTES:
            buffered += block[at:]
        else:
            del buffered[_SAMPLE_BYTES:]


def _make_line(number: int, offset: int, size: int, buffered: bytearray) -> Iterator[FileLine]:
    whole = size <= MAX_LINE_BYTES
    data = bytes(buffered)
    if number == 1 and data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    if data.strip() or not whole:
        yield FileLine(number, offset, size, data if whole else None, data[:_SAMPLE_BYTES])


def read_snapshot_rows(stream: ReadableStream, path: str, latest: datetime | None = None) -> Iterator[JsonObject]:
    """Yield a row of ``SNAPSHOT_SCHEMA`` per valid line, and of ``BROKEN_LINE_SCHEMA`` (has ``reason``) per other.

    A snapshot that says that it was made later than ``latest`` is not valid; None: it may have any time.
    """
    for line in iterate_lines(stream):
        place = {"source_path": path, "source_line": line.number}
        try:
            yield {**parse_snapshot_line(line.data, latest), **place}
        except BrokenLineError as error:
            yield {
                "quarantine_key": key(path, line.number),
                "byte_offset": line.offset,
                "size_bytes": line.size,
                **place,
                "reason": str(error),
                "sample": line.head,
            }


def parse_snapshot_line(line: bytes | None, latest: datetime | None = None) -> JsonObject:
    """Return a line as a row of ``bronze.snapshots_raw``, without source path and line; raises BrokenLineError.

    None is a line that is too long. ``latest`` is as for ``read_snapshot_rows``.
    """
    if line is None:
        raise BrokenLineError(TOO_LONG)
    try:
        record = parse_json(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BrokenLineError(NOT_JSON) from error
    if not isinstance(record, dict):
        raise BrokenLineError(NOT_JSON)
    version = record.get("version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise BrokenLineError(UNKNOWN_VERSION)
    row = _snapshot_row(record)
    if latest is not None and max(row["asked_at"], row["collected_at"] or row["asked_at"]) > latest:
        raise BrokenLineError(TIME_AHEAD)
    return row


def _snapshot_row(record: JsonObject) -> JsonObject:
    object_type, format_name = record.get("object_type"), _optional_text(record, "format_name")
    manager = _optional_text(record, "queue_manager")
    asked_at, collected_at = _optional_time(record, "asked_at"), _optional_time(record, "collected_at")
    if not manager or asked_at is None or object_type not in ("machine", "queue"):
        raise BrokenLineError(MALFORMED)
    if bool(format_name) != (object_type == "queue"):
        raise BrokenLineError(MALFORMED)
    hresult, error = record.get("hresult"), _optional_text(record, "error")
    if hresult is not None:
        hresult = _checked_int(hresult, -(1 << 31), (1 << 32) - 1) % (1 << 32)
    properties = record.get("properties")
    if not isinstance(properties, list | None):
        raise BrokenLineError(MALFORMED)
    micros = datetime_to_us(asked_at)
    return {
        # The format name identifies the object; only a machine has none.
        "snapshot_id": key(manager, format_name or None, micros),
        "queue_manager": manager,
        "server_address": _optional_text(record, "server_address"),
        "object_type": object_type,
        "format_name": format_name or None,
        "asked_at": asked_at,
        "collected_at": collected_at,
        "hresult": hresult,
        "error": error,
        "properties": None if properties is None else [_parse_property(prop) for prop in properties],
        "collector_version": _optional_text(record, "collector_version"),
    }


def _parse_property(prop: Any) -> JsonObject:  # noqa: ANN401 - any JSON
    if not isinstance(prop, dict):
        raise BrokenLineError(MALFORMED)
    number = _checked_int(prop.get("property_id"), 0, (1 << 32) - 1)
    vt, value = prop.get("vt"), prop.get("value_json")
    if value is not None and not isinstance(value, str):  # JSON instead of JSON text: unambiguous, so accept it
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return {
        "property_id": number - (1 << 32) if number >> 31 else number,  # 32 bits, as on the wire
        "vt": None if vt is None else _checked_int(vt, 0, (1 << 16) - 1),
        "value_json": value,
    }


def _checked_int(value: Any, least: int, most: int) -> int:  # noqa: ANN401 - any JSON
    if type(value) is not int or not least <= value <= most:
        raise BrokenLineError(MALFORMED)
    return value


def _optional_text(record: JsonObject, name: str) -> str | None:
    value = record.get(name)
    if not isinstance(value, str | None):
        raise BrokenLineError(MALFORMED)
    return value


def _optional_time(record: JsonObject, name: str) -> datetime | None:
    """Return an ISO 8601 time in UTC; one without a UTC offset is rejected."""
    text = _optional_text(record, name)
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            raise BrokenLineError(MALFORMED)
        when = when.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise BrokenLineError(MALFORMED) from error
    if when.year < EPOCH.year:
        raise BrokenLineError(MALFORMED)
    return when
