"""The single-value reader: one stub to a dictionary. Slow and simple, for tests, notebooks and chasing a bug.

It shares the tables of ``method.py`` with the column reader and nothing else, so that each checks the other.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final

from udfs.errors import DecodeError, MalformedError, TruncatedError
from udfs.queues.format_names import QueueFormat, format_name
from udfs.queues.normal_form import normal_text
from udfs.stubs.cursor import Cursor, guid, string
from udfs.stubs.method import OBJECT_TYPES, PADDED, PLAUSIBLE, QUEUE_FORMAT_ARMS, READ_DESC_MEMBERS, Kind, Method, Param
from udfs.stubs.single_variants import array_count, variants
from udfs.stubs.transfer import ARMS, Member, members_after

Row = dict[str, Any]


def _primitive(cursor: Cursor, kind: Kind, field: str) -> int | bool | str | None:
    if kind in (Kind.U8, Kind.U16, Kind.U32, Kind.U64):
        return cursor.uint({Kind.U8: 1, Kind.U16: 2, Kind.U32: 4, Kind.U64: 8}[kind], field)
    if kind is Kind.BOOL:
        return cursor.uint(4, field) != 0
    if kind is Kind.ENUM:
        return cursor.uint(4 if cursor.ndr64 else 2, field)
    if kind is Kind.GUID:
        cursor.align(4)
        return guid(cursor.take(16, field), cursor.order)
    if kind is Kind.UOW:
        raw = cursor.take(16, field)
        return guid(raw, "<") if any(raw) else None
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
    members, pointer = QUEUE_FORMAT_ARMS[qft]
    values = [_primitive(cursor, member.kind, f"{name}.{member.name}") for member in members]
    guid = next((value for value in values if isinstance(value, str)), None)
    numbers = [value for value in values if isinstance(value, int)] + [0, 0]
    text = None
    if pointer:
        referent = cursor.word(f"{name}.{pointer}")
        if referent:
            text = string(cursor, f"{name}.{pointer}")
    else:
        cursor.struct_end(name)
    out["queue_format_name"] = format_name(QueueFormat(qft, suffix, guid, numbers[0], numbers[1], text))
    if param.column == "queue":
        out["queue"] = normal_text(out["queue_format_name"])


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
        types.append(_int32(cursor.uint(4 if cursor.ndr64 else 2, f"{name}.SectionBufferType")))
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


def _put_string(cursor: Cursor, param: Param, out: Row, field: str) -> None:
    text = string(cursor, field)
    if param.column:
        out[param.column] = text


def _in_line_string(cursor: Cursor, param: Param, out: Row) -> None:
    cursor.struct_align()
    _put_string(cursor, param, out, param.name)


def _action(cursor: Cursor, param: Param, out: Row) -> None:
    if len(cursor.data) - cursor.pos != 2:
        _in_line_string(cursor, param, out)
        return
    cursor.noted.append((f"{param.name} (one character)", cursor.pos))  # doubt D1
    unit = cursor.uint(2, param.name)
    out[param.column or ""] = "\ufffd" if 0xD800 <= unit < 0xE000 else chr(unit)  # half a surrogate pair is no text


def _name(cursor: Cursor, param: Param, out: Row) -> None:
    if not cursor.word(param.name):
        return
    word, at = (8 if cursor.ndr64 else 4), cursor.pos
    ahead = [bytes(cursor.data[place : place + word]) for place in range(at, at + 3 * word, word)]
    if len(ahead[2]) == word and any(ahead[0]) and not any(ahead[1]) and ahead[0] == ahead[2]:
        _put_string(cursor, param, out, f"**{param.name}")
        cursor.noted.append((f"{param.name} (one pointer)", at))  # doubt D32
    elif cursor.word(f"*{param.name}"):
        _put_string(cursor, param, out, f"**{param.name}")


def _queue_format_pointer(cursor: Cursor, param: Param, out: Row) -> None:
    if cursor.word(param.name):
        _queue_format(cursor, param, out)


def _managed_object(cursor: Cursor, param: Param, out: Row) -> None:
    name, size = param.name, 4 if cursor.ndr64 else 2
    cursor.struct_align()
    at = cursor.pos
    kind = cursor.uint(size, f"{name}.type")
    if kind not in OBJECT_TYPES:
        raise MalformedError(f"{name}.type", at)
    if cursor.ndr64:
        cursor.align(8)
    at = cursor.pos
    if cursor.uint(size, f"{name}.tag") != kind:
        raise MalformedError(f"{name}.tag", at)
    out["object_type"] = OBJECT_TYPES[kind]
    cursor.struct_align()
    if OBJECT_TYPES[kind] == "queue":
        if cursor.word(f"{name}.pQueueFormat"):
            _queue_format(cursor, param, out)
        return
    cursor.uint(4, f"{name}.Reserved")
    if cursor.ndr64:
        cursor.align(8)


def _int32(number: int) -> int:
    """Return 32 bits as the signed number that a column of int32 shows (an enum of NDR64 is one: rule N5)."""
    return number - (1 << 32) if number >> 31 else number


def _numbers(cursor: Cursor, param: Param, out: Row) -> None:
    count = cursor.seen[param.size_is or ""]
    array_count(cursor, param.name, count)
    at = cursor.pos
    cursor.take(4 * count, param.name)
    end, cursor.pos = cursor.pos, at
    values = [_int32(cursor.uint(4, param.name)) for _ in range(count)]
    cursor.pos = end
    if param.column:
        out[param.column] = values


def _variants(cursor: Cursor, param: Param, out: Row) -> None:
    values = variants(cursor, param.name, cursor.seen[param.size_is] if param.size_is else None)
    if param.column:
        out[param.column] = values


def _transfer_buffer(cursor: Cursor, param: Param, out: Row) -> None:
    """Read a CACTransferBuffer; all members in place, then what they point to."""
    name = param.name
    cursor.struct_align()
    at = cursor.pos
    kind = cursor.uint(4, f"{name}.uTransferType")
    if kind not in ARMS:
        raise MalformedError(f"{name}.uTransferType", at)
    cursor.struct_align()
    at = cursor.pos
    if cursor.uint(4, f"{name}.tag") != kind:
        raise MalformedError(f"{name}.tag", at)
    cursor.struct_align()
    members = (*ARMS[kind], *members_after(param.kind))
    values: dict[str, int] = {}
    for member in members:
        field = f"{name}.{member.name}"
        values[member.name] = cursor.word(field) if member.depth else cursor.uint(member.size, field)
        if member.column and param.column == "receive":
            out[member.column] = values[member.name]
    for member in members:
        if member.depth and values[member.name]:
            _pointee(cursor, f"{name}.{member.name}", member, values)


def _pointee(cursor: Cursor, field: str, member: Member, values: dict[str, int]) -> None:
    if not member.size:
        _queue_format(cursor, Param(field, Kind.QUEUE_FORMAT), {})
        return
    if member.depth == 2:
        field = f"*{field}"
        if not cursor.word(field):
            return
    field = f"*{field}"
    if member.counted_by is None:
        cursor.align(member.align)
        cursor.take(member.size, field)
        return
    count = member.counted_by if isinstance(member.counted_by, int) else values[member.counted_by]
    cursor.struct_align()
    at = cursor.pos
    most = sent = cursor.word(f"{field}.max_count")
    good = most == count
    if member.sent_by is not None:
        length = member.sent_by if isinstance(member.sent_by, int) else values[member.sent_by]
        first = cursor.word(f"{field}.offset")
        sent = cursor.word(f"{field}.actual_count")
        good = good and first == 0 and sent == length <= most
    if not good:
        raise MalformedError(f"{field}.max_count", at)
    cursor.take(sent * member.size, field)


def _rest(cursor: Cursor, param: Param, _: Row) -> None:
    if param.name == "in":
        cursor.pos = len(cursor.data)
        return
    if len(cursor.data) < 4:
        raise TruncatedError(param.name, cursor.pos)
    cursor.pos = len(cursor.data) - 4
    if len(cursor.data) % 4:
        raise MalformedError(param.name, cursor.pos)


_STRUCTURES: Final[dict[Kind, Callable[[Cursor, Param, Row], None]]] = {
    Kind.OCTETS: _token,
    Kind.QUEUE_FORMAT: _queue_format,
    Kind.READ_DESC: _read_desc,
    Kind.READ_DESC2: _read_desc2,
    Kind.SECTIONS: _sections,
    Kind.STRING: _in_line_string,
    Kind.NAME: _name,
    Kind.ACTION: _action,
    Kind.QUEUE_FORMAT_POINTER: _queue_format_pointer,
    Kind.MANAGED_OBJECT: _managed_object,
    Kind.NUMBERS: _numbers,
    Kind.VARIANTS: _variants,
    Kind.TRANSFER_1: _transfer_buffer,
    Kind.TRANSFER_2: _transfer_buffer,
    Kind.REST: _rest,
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
    cursor = Cursor(stub, ndr64=ndr64, big_endian=big_endian)
    out, error, _ = _attempt(cursor, params)
    if error is None:
        return out, [("malformed", *noted) for noted in cursor.noted[:1]]
    if ndr64 and any(
        param.kind in PADDED for param in params
    ):  # a peer may leave out the padding after a queue format (doubt D19)
        again, failed, pad = _attempt(Cursor(stub, ndr64=True, big_endian=big_endian, lenient=True), params)
        plausible = all(again[name] in most for name, most in PLAUSIBLE.items() if name in again)
        if failed is None and pad is not None and plausible:
            return again, [("malformed", *pad)]
    return out, [(error.code, error.field, error.offset)]
