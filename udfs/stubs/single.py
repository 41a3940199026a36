"""The single-value reader: one stub to a dictionary. Slow and simple, for tests, notebooks and chasing a bug.

It shares the tables of ``method.py`` with the column reader and nothing else, so that each checks the other.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

from udfs.errors import DecodeError, MalformedError, TruncatedError
from udfs.stubs.method import PLAUSIBLE, QUEUE_FORMAT_ARMS, READ_DESC_MEMBERS, Kind, Method, Param
from udfs.stubs.queue_names import QueueFormat, format_name, queue_of

Row = dict[str, Any]


class Cursor:
    """A position in one stub that cannot run off its end."""

    def __init__(self, data: bytes, *, ndr64: bool = False, big_endian: bool = False, lenient: bool = False) -> None:
        self.data = data
        self.ndr64 = ndr64
        self.order = ">" if big_endian else "<"
        self.lenient = lenient
        self.missing_pad: tuple[str, int] | None = None
        self.pos = 0
        self.seen: dict[str, int] = {}

    def align(self, to: int) -> None:
        """Move to the next multiple of ``to``; what is skipped has no content (rule N19)."""
        self.pos += -self.pos % to

    def take(self, size: int, field: str) -> bytes:
        """Return the next ``size`` bytes, or raise TruncatedError."""
        if size > len(self.data) - self.pos:
            raise TruncatedError(field, self.pos)
        self.pos += size
        return self.data[self.pos - size : self.pos]

    def uint(self, size: int, field: str) -> int:
        """Return an aligned unsigned integer of ``size`` bytes."""
        self.align(size)
        code = {1: "B", 2: "H", 4: "I", 8: "Q"}[size]
        return int(struct.unpack(self.order + code, self.take(size, field))[0])

    def word(self, field: str) -> int:
        """Return a referent id or an array count: 4 bytes in NDR, 8 in NDR64 (rules N3, N4)."""
        return self.uint(8 if self.ndr64 else 4, field)

    def struct_align(self) -> None:
        """Align a structure that holds a pointer."""
        self.align(8 if self.ndr64 else 4)

    def struct_end(self, field: str) -> None:
        """Pad the end of a structure that holds a pointer, NDR64 only (rule N7, doubt D19)."""
        if self.ndr64 and self.pos % 8:
            if self.lenient:
                self.missing_pad = (f"{field} (padding)", self.pos)
            else:
                self.align(8)


def _guid(raw: bytes, order: str) -> str:
    return str(uuid.UUID(bytes_le=raw) if order == "<" else uuid.UUID(bytes=raw))


def _string(cursor: Cursor, field: str) -> str:
    """Read a conformant varying string of wchar_t with its NUL (rule N11)."""
    most = cursor.word(f"{field}.max_count")
    at = cursor.pos
    first = cursor.word(f"{field}.offset")
    count = cursor.word(f"{field}.actual_count")
    if first != 0 or count == 0 or count > most:
        raise MalformedError(f"{field}.actual_count", at)
    at = cursor.pos
    raw = cursor.take(2 * count, field)
    text = raw.decode("utf-16-le" if cursor.order == "<" else "utf-16-be", "replace")
    if text.find("\0") != len(text) - 1:
        raise MalformedError(field, at)
    return text[:-1]


def _primitive(cursor: Cursor, kind: Kind, field: str) -> int | bool | str | None:
    if kind in (Kind.U8, Kind.U16, Kind.U32, Kind.U64):
        return cursor.uint({Kind.U8: 1, Kind.U16: 2, Kind.U32: 4, Kind.U64: 8}[kind], field)
    if kind is Kind.BOOL:
        return cursor.uint(4, field) != 0
    if kind is Kind.ENUM:
        return cursor.uint(4 if cursor.ndr64 else 2, field)
    if kind is Kind.GUID:
        cursor.align(4)
        return _guid(cursor.take(16, field), cursor.order)
    if kind is Kind.UOW:
        raw = cursor.take(16, field)
        return _guid(raw, "<") if any(raw) else None
    cursor.align(4)  # a context handle
    raw = cursor.take(20, field)
    if cursor.order == ">":
        raw = raw[3::-1] + uuid.UUID(bytes=raw[4:]).bytes_le
    return raw.hex() if any(raw) else None


def _token(cursor: Cursor, param: Param, _: Row) -> None:
    size = cursor.seen[param.size_is or ""]
    cursor.struct_align()
    at = cursor.pos
    if cursor.word(f"{param.name}.max_count") != size:
        raise MalformedError(f"{param.name}.max_count", at)
    cursor.take(size, param.name)


def _queue_format(cursor: Cursor, param: Param, out: Row) -> None:
    name = param.name
    cursor.struct_align()
    at = cursor.pos
    qft = cursor.uint(1, f"{name}.m_qft")
    out["queue_format_type"] = qft
    suffix = cursor.uint(1, f"{name}.m_SuffixAndFlags")
    cursor.uint(2, f"{name}.m_reserved")
    if qft not in QUEUE_FORMAT_ARMS:
        raise MalformedError(f"{name}.m_qft", at)
    if cursor.ndr64:
        cursor.align(8)
    at = cursor.pos
    if cursor.uint(1, f"{name}.tag") != qft:
        raise MalformedError(f"{name}.tag", at)
    if cursor.ndr64:
        cursor.align(8)
    members, string = QUEUE_FORMAT_ARMS[qft]
    values = [_primitive(cursor, member.kind, f"{name}.{member.name}") for member in members]
    guid = next((value for value in values if isinstance(value, str)), None)
    numbers = [value for value in values if isinstance(value, int)] + [0, 0]
    text = None
    if string:
        referent = cursor.word(f"{name}.{string}")
        if referent:
            text = _string(cursor, f"{name}.{string}")
    else:
        cursor.struct_end(name)
    out["queue_format_name"] = format_name(QueueFormat(qft, suffix, guid, numbers[0], numbers[1], text))
    if param.column == "queue":
        out["queue"] = queue_of(out["queue_format_name"])


def _read_desc(cursor: Cursor, param: Param, out: Row) -> None:
    name = param.name
    cursor.struct_align()
    size = 0
    for member in READ_DESC_MEMBERS:
        value = _primitive(cursor, member.kind, f"{name}.{member.name}")
        if member.column:
            out[member.column] = value
        if member.name == "dwSize":
            size = int(value or 0)
    referent = cursor.word(f"{name}.lpBuffer")
    if not referent:
        return
    at = cursor.pos
    most = cursor.word(f"{name}.lpBuffer.max_count")
    first = cursor.word(f"{name}.lpBuffer.offset")
    count = cursor.word(f"{name}.lpBuffer.actual_count")
    if most != size or first != 0 or count != size:
        raise MalformedError(f"{name}.lpBuffer.max_count", at)
    out["packet"] = cursor.take(size, f"{name}.lpBuffer")
    out["packet_bytes"] = size


def _read_desc2(cursor: Cursor, param: Param, out: Row) -> None:
    cursor.align(8)
    referent = cursor.word(f"{param.name}.pRemoteReadDesc")
    out["sequence_id"] = cursor.uint(8, f"{param.name}.SequentialId")
    if referent:
        _read_desc(cursor, param, out)


def _sections(cursor: Cursor, param: Param, out: Row) -> None:
    name = param.name
    count = cursor.seen[param.size_is or ""]
    if not cursor.word(name):
        return
    at = cursor.pos
    if cursor.word(f"{name}.max_count") != count:
        raise MalformedError(f"{name}.max_count", at)
    if count * (24 if cursor.ndr64 else 16) > len(cursor.data) - cursor.pos:
        raise TruncatedError(f"{name}.SectionBufferType", cursor.pos)
    types, allocated, sizes, referents = [], [], [], []
    for _ in range(count):
        cursor.struct_align()
        types.append(cursor.uint(4 if cursor.ndr64 else 2, f"{name}.SectionBufferType"))
        allocated.append(cursor.uint(4, f"{name}.SectionSizeAlloc"))
        sizes.append(cursor.uint(4, f"{name}.SectionSize"))
        referents.append(cursor.word(f"{name}.pSectionBuffer"))
    packet = []
    for size, referent in zip(sizes, referents, strict=True):
        if not referent:
            continue
        cursor.struct_align()
        at = cursor.pos
        if cursor.word(f"{name}.pSectionBuffer.max_count") != size:
            raise MalformedError(f"{name}.pSectionBuffer.max_count", at)
        packet.append(cursor.take(size, f"{name}.pSectionBuffer"))
    out["section_types"], out["section_bytes"], out["section_allocated_bytes"] = types, sizes, allocated
    out["packet"] = b"".join(packet)
    out["packet_bytes"] = len(out["packet"])


_STRUCTURES: Final[dict[Kind, Callable[[Cursor, Param, Row], None]]] = {
    Kind.OCTETS: _token,
    Kind.QUEUE_FORMAT: _queue_format,
    Kind.READ_DESC: _read_desc,
    Kind.READ_DESC2: _read_desc2,
    Kind.SECTIONS: _sections,
}


def _read(cursor: Cursor, params: tuple[Param, ...], out: Row) -> None:
    for param in params:
        structure = _STRUCTURES.get(param.kind)
        if structure:
            structure(cursor, param, out)
            continue
        value = _primitive(cursor, param.kind, param.name)
        if isinstance(value, int):
            cursor.seen[param.name] = value
        if param.column:
            out[param.column] = value
    left = len(cursor.data) - cursor.pos
    if left < 0:
        raise TruncatedError("end of stub", cursor.pos)
    if left and left != -cursor.pos % 4:  # padding to 4 precedes a verification trailer, [MS-RPCE] 2.2.2.13
        raise MalformedError("end of stub", cursor.pos)


def _attempt(cursor: Cursor, params: tuple[Param, ...]) -> tuple[Row, DecodeError | None, tuple[str, int] | None]:
    out: Row = {}
    try:
        _read(cursor, params, out)
    except DecodeError as error:
        return out, error, cursor.missing_pad
    return out, None, cursor.missing_pad


def decode_stub(
    method: Method, direction: str, stub: bytes, *, ndr64: bool = False, big_endian: bool = False
) -> tuple[Row, list[tuple[str, str, int]]]:
    """Return what one stub holds, by column, and its errors as (code, field, offset).

    ``direction`` is "request" or "response". Values read before an error stay. 64-bit numbers are plain integers.
    """
    params = method.params(direction)
    out, error, _ = _attempt(Cursor(stub, ndr64=ndr64, big_endian=big_endian), params)
    if error is None:
        return out, []
    if ndr64:  # a peer may leave out the padding after a queue format (doubt D19)
        again, failed, pad = _attempt(Cursor(stub, ndr64=True, big_endian=big_endian, lenient=True), params)
        plausible = all(again[name] in most for name, most in PLAUSIBLE.items() if name in again)
        if failed is None and pad is not None and plausible:
            return again, [("malformed", *pad)]
    return out, [(error.code, error.field, error.offset)]
