"""Lines of snapshot files (JSON lines, version 1) to rows of ``bronze.snapshots_raw``; what is broken is a row too.

Every line stands for itself: one that is broken, half a record or of another version is told with its number, its
place in the file and the reason, and the rest is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from udfs.files.container import Readable
from udfs.keys import key
from udfs.properties.observations import loads

VERSION: Final = 1
MOST_LINE_BYTES: Final = 64 << 20
_BLOCK: Final = 1 << 20
_SAMPLE: Final = 256
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NOT_JSON, UNKNOWN_VERSION, MALFORMED, TOO_LONG = "not_json", "unknown_version", "malformed", "line_too_long"
_TIME: Final = pa.timestamp("us", tz="UTC")
ROWS: Final = pa.schema(
    {
        "snapshot_id": pa.string(),
        "queue_manager": pa.string(),
        "server_address": pa.string(),
        "object_type": pa.string(),
        "format_name": pa.string(),
        "asked_at": _TIME,
        "collected_at": _TIME,
        "hresult": pa.int64(),
        "error": pa.string(),
        "properties": pa.list_(pa.struct({"property_id": pa.int32(), "vt": pa.int32(), "value_json": pa.string()})),
        "collector_version": pa.string(),
        "source_path": pa.string(),
        "source_line": pa.int64(),
    }
)
BROKEN: Final = pa.schema(
    {
        "quarantine_key": pa.string(),
        "byte_offset": pa.int64(),
        "size_bytes": pa.int64(),
        "source_path": pa.string(),
        "source_line": pa.int64(),
        "reason": pa.string(),
        "sample": pa.binary(),
    }
)
Row = dict[str, Any]


class BrokenLineError(ValueError):
    """A line that is no snapshot; the message is the reason, a short code."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file: its number from 1, its place and length in bytes, and its bytes, None where too many."""

    number: int
    offset: int
    size: int
    data: bytes | None
    head: bytes


def lines(stream: Readable) -> Iterator[Line]:
    """Yield the lines that are not empty; of one longer than ``MOST_LINE_BYTES`` its beginning only."""
    number, start, held = 1, 0, bytearray()
    size = 0  # of the line so far; held is shorter where it is too long
    buffer = memoryview(bytearray(_BLOCK))
    while True:
        block = bytes(buffer[: stream.readinto(buffer) or 0])
        at = 0
        while (end := block.find(b"\n", at)) >= 0:
            held += block[at:end] if size <= MOST_LINE_BYTES else b""
            size += end - at
            yield from _line(number, start, size, held)
            number, start, size, held, at = number + 1, start + size + 1, 0, bytearray(), end + 1
        if not block:
            yield from _line(number, start, size, held)
            return
        size += len(block) - at
        if size <= MOST_LINE_BYTES:
            held += block[at:]
        else:
            del held[_SAMPLE:]


def _line(number: int, offset: int, size: int, held: bytearray) -> Iterator[Line]:
    whole = size <= MOST_LINE_BYTES
    data = bytes(held)
    if number == 1 and data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    if data.strip() or not whole:
        yield Line(number, offset, size, data if whole else None, data[:_SAMPLE])


def read_lines(stream: Readable, path: str) -> Iterator[Row]:
    """Yield a row of ``ROWS`` for each snapshot, and one of ``BROKEN`` (it has a ``reason``) for each other line."""
    for line in lines(stream):
        place = {"source_path": path, "source_line": line.number}
        try:
            yield {**snapshot(line.data), **place}
        except BrokenLineError as error:
            yield {
                "quarantine_key": key(path, line.number),
                "byte_offset": line.offset,
                "size_bytes": line.size,
                **place,
                "reason": str(error),
                "sample": line.head,
            }


def snapshot(line: bytes | None) -> Row:
    """Return a line as a row of ``bronze.snapshots_raw``, without its place; BrokenLineError with the reason.

    None is a line that is too long to be one.
    """
    if line is None:
        raise BrokenLineError(TOO_LONG)
    try:
        record = loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BrokenLineError(NOT_JSON) from error
    if not isinstance(record, dict):
        raise BrokenLineError(NOT_JSON)
    version = record.get("version")
    if type(version) is not int or version != VERSION:
        raise BrokenLineError(UNKNOWN_VERSION)
    return _row(record)


def _row(record: Row) -> Row:
    object_type, format_name = record.get("object_type"), _text(record, "format_name")
    manager = _text(record, "queue_manager")
    asked_at, collected_at = _time(record, "asked_at"), _time(record, "collected_at")
    if not manager or asked_at is None or object_type not in ("machine", "queue"):
        raise BrokenLineError(MALFORMED)
    if bool(format_name) != (object_type == "queue"):
        raise BrokenLineError(MALFORMED)
    hresult, error = record.get("hresult"), _text(record, "error")
    if hresult is not None:
        hresult = _whole(hresult, -(1 << 31), (1 << 32) - 1) % (1 << 32)
    properties = record.get("properties")
    if not isinstance(properties, list | None):
        raise BrokenLineError(MALFORMED)
    micros = (asked_at - _EPOCH) // datetime.resolution
    return {
        # The object is told by its format name; a machine has none, and is the only one without.
        "snapshot_id": key(manager, format_name or None, micros),
        "queue_manager": manager,
        "server_address": _text(record, "server_address"),
        "object_type": object_type,
        "format_name": format_name or None,
        "asked_at": asked_at,
        "collected_at": collected_at,
        "hresult": hresult,
        "error": error,
        "properties": None if properties is None else [_property(each) for each in properties],
        "collector_version": _text(record, "collector_version"),
    }


def _property(each: Any) -> Row:  # noqa: ANN401 - any JSON
    if not isinstance(each, dict):
        raise BrokenLineError(MALFORMED)
    number = _whole(each.get("property_id"), 0, (1 << 32) - 1)
    vt, value = each.get("vt"), each.get("value_json")
    if value is not None and not isinstance(value, str):  # JSON that was not put into a text: what it means is clear
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return {
        "property_id": number - (1 << 32) if number >> 31 else number,  # 32 bits, as on the wire
        "vt": None if vt is None else _whole(vt, 0, (1 << 16) - 1),
        "value_json": value,
    }


def _whole(value: Any, least: int, most: int) -> int:  # noqa: ANN401 - any JSON
    if type(value) is not int or not least <= value <= most:
        raise BrokenLineError(MALFORMED)
    return value


def _text(record: Row, name: str) -> str | None:
    value = record.get(name)
    if not isinstance(value, str | None):
        raise BrokenLineError(MALFORMED)
    return value


def _time(record: Row, name: str) -> datetime | None:
    """An ISO 8601 time with its offset; without one nobody can tell which moment is meant."""
    text = _text(record, name)
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            raise BrokenLineError(MALFORMED)
        when = when.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise BrokenLineError(MALFORMED) from error
    if when.year < _EPOCH.year:
        raise BrokenLineError(MALFORMED)
    return when
