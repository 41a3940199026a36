"""BSON documents: members that are texts, numbers, truth values, lists or documents. Others are skipped."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from udfs.application.application_message import MAX_DEPTH, MAX_HEADERS, ByteReader, TooLargeError
from udfs.errors import DecodeError, MalformedError, TruncatedError

_DOUBLE, _STRING, _DOCUMENT, _ARRAY, _BINARY = 1, 2, 3, 4, 5
_BOOLEAN, _NULL, _INT32, _INT64 = 8, 10, 16, 18
_SKIPPED_SIZES: Final = {6: 0, 7: 12, 9: 8, 17: 8, 19: 16, 127: 0, 255: 0}  # types of a fixed size
_TEXT_TYPES: Final = frozenset({_STRING, 13, 14})  # also code and symbol
_GUID_BYTES: Final = 16


class BsonDocument(NamedTuple):
    """The members of a document by name, and what ended it too early."""

    members: dict[str, Any]
    error: DecodeError | None


def read_bson(data: bytes) -> BsonDocument:
    """Read a document; of one that is cut, the members before. GUIDs are texts; inner documents are dictionaries."""
    members: dict[str, Any] = {}
    try:
        _read_document(ByteReader(data), members, 1)
    except DecodeError as error:
        return BsonDocument(members, error)
    return BsonDocument(members, None)


def _read_document(reader: ByteReader, members: dict[str, Any], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise TooLargeError("depth", reader.at)
    start = reader.at
    size = reader.number(4, "size")
    if size < 5:
        raise MalformedError("size", start)
    while kind := reader.number(1, "type"):
        if len(members) == MAX_HEADERS:
            raise TooLargeError("members", reader.at)
        name = _name(reader)
        members[name] = _value(reader, kind, depth)
    if reader.at != start + size:
        raise MalformedError("size", start)


def _value(reader: ByteReader, kind: int, depth: int) -> Any:  # noqa: ANN401 - of any type
    at = reader.at
    if kind in _TEXT_TYPES:
        size = reader.number(4, "string")
        return reader.take(size, "string")[:-1].decode("utf-8", "replace")
    if kind in (_DOCUMENT, _ARRAY):
        inner: dict[str, Any] = {}
        _read_document(reader, inner, depth + 1)
        return [*inner.values()] if kind == _ARRAY else inner
    if kind == _BINARY:
        size = reader.number(4, "binary")
        subtype, raw = reader.number(1, "binary"), reader.take(size, "binary")
        return _guid_text(raw) if subtype in (3, 4) and size == _GUID_BYTES else None
    if kind == _DOUBLE:
        return struct.unpack("<d", reader.take(8, "double"))[0]
    if kind == _BOOLEAN:
        return bool(reader.number(1, "boolean"))
    if kind == _NULL:
        return None
    if kind in (_INT32, _INT64):
        return reader.number(4 if kind == _INT32 else 8, "number", signed=True)
    if kind in _SKIPPED_SIZES:
        reader.take(_SKIPPED_SIZES[kind], "value")
        return None
    raise MalformedError("type", at)


def _name(reader: ByteReader) -> str:
    end = reader.data.find(b"\0", reader.at)
    if end < 0:
        raise TruncatedError("name", reader.at)
    name = reader.take(end - reader.at, "name").decode("utf-8", "replace")
    reader.at += 1
    return name


def _guid_text(raw: bytes) -> str:
    """Return a GUID as .NET writes it: the first three numbers little-endian."""
    first, second, third = struct.unpack("<IHH", raw[:8])
    rest = raw[8:].hex()
    return f"{first:08x}-{second:04x}-{third:04x}-{rest[:4]}-{rest[4:]}"
