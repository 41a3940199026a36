"""Decode one stub in plain Python: where there is one at a time (the collector, a rule of qmmgmt, COM+ arguments).

Tests compare it with the column decoder. The two share the declarations of methods (``idl.py``, ``transfer_buffer.py``)
and, for PROPVARIANTs, the readers of one value (``single_cursor.py``, ``single_propvariant.py``); the column decoder
reads all else in its own way.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from udfs.errors import DecodeError, MalformedError, TruncatedError
from udfs.queues.normal_form import normalize_queue_name
from udfs.queues.queue_format import QueueFormat, build_format_name
from udfs.stubs.idl import (
    OBJECT_TYPES,
    PADDED_TYPES,
    PLAUSIBLE_VALUES,
    QUEUE_FORMAT_ARMS,
    READ_DESC_MEMBERS,
    Method,
    NdrType,
    Parameter,
)
from udfs.stubs.single_cursor import StubCursor, guid_text, read_string
from udfs.stubs.single_propvariant import read_array_count, read_propvariants
from udfs.stubs.transfer_buffer import UNION_ARMS, TransferMember, members_after_union

StubValues = dict[str, Any]


def _read_primitive(cursor: StubCursor, kind: NdrType, field: str) -> int | bool | str | None:
    if kind in (NdrType.U8, NdrType.U16, NdrType.U32, NdrType.U64):
        return cursor.read_uint({NdrType.U8: 1, NdrType.U16: 2, NdrType.U32: 4, NdrType.U64: 8}[kind], field)
    if kind is NdrType.BOOL:
        return cursor.read_uint(4, field) != 0
    if kind is NdrType.ENUM:
        return cursor.read_uint(4 if cursor.ndr64 else 2, field)
    if kind is NdrType.GUID:
        cursor.align(4)
        return guid_text(cursor.read_bytes(16, field), cursor.order)
    if kind is NdrType.UOW:
        raw = cursor.read_bytes(16, field)
        return guid_text(raw, "<") if any(raw) else None
    cursor.align(4)  # a context handle
    raw = cursor.read_bytes(20, field)
    if cursor.order == ">":
        raw = raw[3::-1] + uuid.UUID(bytes=raw[4:]).bytes_le
    return raw.hex() if any(raw) else None


def _skip_octets(cursor: StubCursor, param: Parameter, _: StubValues) -> None:
    size = cursor.sizes[param.size_is or ""]
    cursor.align_struct()
    at = cursor.position
    if cursor.read_word(f"{param.name}.max_count") != size:
        raise MalformedError(f"{param.name}.max_count", at)
    cursor.read_bytes(size, param.name)


def _read_queue_format(cursor: StubCursor, param: Parameter, out: StubValues) -> None:
    name = param.name
    cursor.align_struct()
    at = cursor.position
    qft = cursor.read_uint(1, f"{name}.m_qft")
    out["queue_format_type"] = qft
    suffix = cursor.read_uint(1, f"{name}.m_SuffixAndFlags")
    cursor.read_uint(2, f"{name}.m_reserved")
    if qft not in QUEUE_FORMAT_ARMS:
        raise MalformedError(f"{name}.m_qft", at)
    if cursor.ndr64:
        cursor.align(8)
    at = cursor.position
    if cursor.read_uint(1, f"{name}.tag") != qft:
        raise MalformedError(f"{name}.tag", at)
    if cursor.ndr64:
        cursor.align(8)
    members, pointer = QUEUE_FORMAT_ARMS[qft]
    values = [_read_primitive(cursor, member.ndr_type, f"{name}.{member.name}") for member in members]
    guid = next((value for value in values if isinstance(value, str)), None)
    numbers = [value for value in values if isinstance(value, int)] + [0, 0]
    text = None
    if pointer:
        referent = cursor.read_word(f"{name}.{pointer}")
        if referent:
            text = read_string(cursor, f"{name}.{pointer}")
    else:
        cursor.skip_struct_padding(name)
    out["queue_format_name"] = build_format_name(QueueFormat(qft, suffix, guid, numbers[0], numbers[1], text))
    if param.column == "queue":
        out["queue"] = normalize_queue_name(out["queue_format_name"])


def _read_remote_read_desc(cursor: StubCursor, param: Parameter, out: StubValues) -> None:
    name = param.name
    cursor.align_struct()
    size = 0
    for member in READ_DESC_MEMBERS:
        value = _read_primitive(cursor, member.ndr_type, f"{name}.{member.name}")
        if member.column:
            out[member.column] = value
        if member.name == "dwSize":
            size = int(value or 0)
    referent = cursor.read_word(f"{name}.lpBuffer")
    if not referent:
        return
    at = cursor.position
    max_count = cursor.read_word(f"{name}.lpBuffer.max_count")
    first = cursor.read_word(f"{name}.lpBuffer.offset")
    count = cursor.read_word(f"{name}.lpBuffer.actual_count")
    if max_count != size or first != 0 or count != size:
        cursor.deviations.append((f"{name}.lpBuffer.max_count", at))
    out["packet"] = cursor.read_bytes(count, f"{name}.lpBuffer")
    out["packet_bytes"] = count


def _read_remote_read_desc2(cursor: StubCursor, param: Parameter, out: StubValues) -> None:
    cursor.align(8)
    referent = cursor.read_word(f"{param.name}.pRemoteReadDesc")
    out["sequence_id"] = cursor.read_uint(8, f"{param.name}.SequentialId")
    if referent:
        _read_remote_read_desc(cursor, param, out)


def _read_sections(cursor: StubCursor, param: Parameter, out: StubValues) -> None:
    name = param.name
    count = cursor.sizes[param.size_is or ""]
    if not cursor.read_word(name):
        return
    at = cursor.position
    if cursor.read_word(f"{name}.max_count") != count:
        raise MalformedError(f"{name}.max_count", at)
    if count * (24 if cursor.ndr64 else 16) > len(cursor.data) - cursor.position:
        raise TruncatedError(f"{name}.SectionBufferType", cursor.position)
    types, allocated, sizes, referents = [], [], [], []
    for _ in range(count):
        cursor.align_struct()
        types.append(_as_int32(cursor.read_uint(4 if cursor.ndr64 else 2, f"{name}.SectionBufferType")))
        allocated.append(cursor.read_uint(4, f"{name}.SectionSizeAlloc"))
        sizes.append(cursor.read_uint(4, f"{name}.SectionSize"))
        referents.append(cursor.read_word(f"{name}.pSectionBuffer"))
    packet = []
    for size, referent in zip(sizes, referents, strict=True):
        if not referent:
            continue
        cursor.align_struct()
        at = cursor.position
        max_count = cursor.read_word(f"{name}.pSectionBuffer.max_count")
        if max_count != size:
            cursor.deviations.append((f"{name}.pSectionBuffer.max_count", at))
        packet.append(cursor.read_bytes(max_count, f"{name}.pSectionBuffer")[:size])
    out["section_types"], out["section_bytes"], out["section_allocated_bytes"] = types, sizes, allocated
    out["packet"] = b"".join(packet)
    out["packet_bytes"] = len(out["packet"])


def _store_string(cursor: StubCursor, param: Parameter, out: StubValues, field: str) -> None:
    text = read_string(cursor, field)
    if param.column:
        out[param.column] = text


def _read_inline_string(cursor: StubCursor, param: Parameter, out: StubValues) -> None:
    cursor.align_struct()
    _store_string(cursor, param, out, param.name)


def _read_action(cursor: StubCursor, param: Parameter, out: StubValues) -> None:
    if len(cursor.data) - cursor.position != 2:
        _read_inline_string(cursor, param, out)
        return
    cursor.deviations.append((f"{param.name} (one character)", cursor.position))  # doubt D1
    unit = cursor.read_uint(2, param.name)
    out[param.column or ""] = "\ufffd" if 0xD800 <= unit < 0xE000 else chr(unit)  # half a surrogate pair is no text


def _read_double_pointer_string(cursor: StubCursor, param: Parameter, out: StubValues) -> None:
    if not cursor.read_word(param.name):
        return
    word, at = (8 if cursor.ndr64 else 4), cursor.position
    ahead = [bytes(cursor.data[place : place + word]) for place in range(at, at + 3 * word, word)]
    if len(ahead[2]) == word and any(ahead[0]) and not any(ahead[1]) and ahead[0] == ahead[2]:
        _store_string(cursor, param, out, f"**{param.name}")
        cursor.deviations.append((f"{param.name} (one pointer)", at))  # doubt D32
    elif cursor.read_word(f"*{param.name}"):
        _store_string(cursor, param, out, f"**{param.name}")


def _read_queue_format_pointer(cursor: StubCursor, param: Parameter, out: StubValues) -> None:
    if cursor.read_word(param.name):
        _read_queue_format(cursor, param, out)


def _read_managed_object(cursor: StubCursor, param: Parameter, out: StubValues) -> None:
    name, size = param.name, 4 if cursor.ndr64 else 2
    cursor.align_struct()
    at = cursor.position
    kind = cursor.read_uint(size, f"{name}.type")
    if kind not in OBJECT_TYPES:
        raise MalformedError(f"{name}.type", at)
    if cursor.ndr64:
        cursor.align(8)
    at = cursor.position
    if cursor.read_uint(size, f"{name}.tag") != kind:
        raise MalformedError(f"{name}.tag", at)
    out["object_type"] = OBJECT_TYPES[kind]
    cursor.align_struct()
    if OBJECT_TYPES[kind] == "queue":
        if cursor.read_word(f"{name}.pQueueFormat"):
            _read_queue_format(cursor, param, out)
        return
    cursor.read_uint(4, f"{name}.Reserved")
    if cursor.ndr64:
        cursor.align(8)


def _as_int32(number: int) -> int:
    """Return an unsigned 32-bit number as a signed one, as an int32 column holds it (an NDR64 enum: rule N5)."""
    return number - (1 << 32) if number >> 31 else number


def _read_number_array(cursor: StubCursor, param: Parameter, out: StubValues) -> None:
    count = cursor.sizes[param.size_is or ""]
    read_array_count(cursor, param.name, count)
    at = cursor.position
    cursor.read_bytes(4 * count, param.name)
    end, cursor.position = cursor.position, at
    values = [_as_int32(cursor.read_uint(4, param.name)) for _ in range(count)]
    cursor.position = end
    if param.column:
        out[param.column] = values


def _read_propvariant_array(cursor: StubCursor, param: Parameter, out: StubValues) -> None:
    values = read_propvariants(cursor, param.name, cursor.sizes[param.size_is] if param.size_is else None)
    if param.column:
        out[param.column] = values


def _read_transfer_buffer(cursor: StubCursor, param: Parameter, out: StubValues) -> None:
    """Read a CACTransferBuffer: all members in place, then their pointees."""
    name = param.name
    cursor.align_struct()
    at = cursor.position
    kind = cursor.read_uint(4, f"{name}.uTransferType")
    if kind not in UNION_ARMS:
        raise MalformedError(f"{name}.uTransferType", at)
    cursor.align_struct()
    at = cursor.position
    if cursor.read_uint(4, f"{name}.tag") != kind:
        raise MalformedError(f"{name}.tag", at)
    cursor.align_struct()
    members = (*UNION_ARMS[kind], *members_after_union(param.ndr_type))
    values: dict[str, int] = {}
    for member in members:
        field = f"{name}.{member.name}"
        values[member.name] = cursor.read_word(field) if member.depth else cursor.read_uint(member.size, field)
        if member.column and param.column == "receive":
            out[member.column] = values[member.name]
    for member in members:
        if member.depth and values[member.name]:
            _skip_pointee(cursor, f"{name}.{member.name}", member, values)


def _skip_pointee(cursor: StubCursor, field: str, member: TransferMember, values: dict[str, int]) -> None:
    if not member.size:
        _read_queue_format(cursor, Parameter(field, NdrType.QUEUE_FORMAT), {})
        return
    if member.depth == 2:
        field = f"*{field}"
        if not cursor.read_word(field):
            return
    field = f"*{field}"
    if member.counted_by is None:
        cursor.align(member.align)
        cursor.read_bytes(member.size, field)
        return
    count = member.counted_by if isinstance(member.counted_by, int) else values[member.counted_by]
    cursor.align_struct()
    at = cursor.position
    max_count = sent = cursor.read_word(f"{field}.max_count")
    good = max_count == count
    if member.sent_by is not None:
        length = member.sent_by if isinstance(member.sent_by, int) else values[member.sent_by]
        first = cursor.read_word(f"{field}.offset")
        sent = cursor.read_word(f"{field}.actual_count")
        good = good and first == 0 and sent == length <= max_count
    if not good:
        raise MalformedError(f"{field}.max_count", at)
    cursor.read_bytes(sent * member.size, field)


def _skip_rest(cursor: StubCursor, param: Parameter, _: StubValues) -> None:
    if param.name == "in":
        cursor.position = len(cursor.data)
        return
    if len(cursor.data) < 4:
        raise TruncatedError(param.name, cursor.position)
    cursor.position = len(cursor.data) - 4
    if len(cursor.data) % 4:
        raise MalformedError(param.name, cursor.position)


SingleReader = Callable[[StubCursor, Parameter, StubValues], None]
_PARAMETER_READERS: Final[dict[NdrType, SingleReader]] = {
    NdrType.OCTETS: _skip_octets,
    NdrType.QUEUE_FORMAT: _read_queue_format,
    NdrType.READ_DESC: _read_remote_read_desc,
    NdrType.READ_DESC2: _read_remote_read_desc2,
    NdrType.SECTIONS: _read_sections,
    NdrType.STRING: _read_inline_string,
    NdrType.NAME: _read_double_pointer_string,
    NdrType.ACTION: _read_action,
    NdrType.QUEUE_FORMAT_POINTER: _read_queue_format_pointer,
    NdrType.MANAGED_OBJECT: _read_managed_object,
    NdrType.NUMBERS: _read_number_array,
    NdrType.VARIANTS: _read_propvariant_array,
    NdrType.TRANSFER_1: _read_transfer_buffer,
    NdrType.TRANSFER_2: _read_transfer_buffer,
    NdrType.REST: _skip_rest,
}


def read_single_parameters(
    cursor: StubCursor,
    params: tuple[Parameter, ...],
    out: StubValues,
    further_readers: Mapping[NdrType, SingleReader] | None = None,
) -> None:
    """Read the parameters of one stub into ``out`` by column, and check that no octets are left; raises DecodeError.

    ``further_readers`` are those of types that the stubs of MSMQ do not have.
    """
    readers = {**_PARAMETER_READERS, **(further_readers or {})}
    for param in params:
        structure = readers.get(param.ndr_type)
        if structure:
            structure(cursor, param, out)
            continue
        value = _read_primitive(cursor, param.ndr_type, param.name)
        if isinstance(value, int):
            cursor.sizes[param.name] = value
        if param.column:
            out[param.column] = value
    left = len(cursor.data) - cursor.position
    if left < 0:
        raise TruncatedError("end of stub", cursor.position)
    if left and left != -cursor.position % 4:  # padding to 4 precedes a verification trailer, [MS-RPCE] 2.2.2.13
        raise MalformedError("end of stub", cursor.position)


def _read_stub(
    cursor: StubCursor, params: tuple[Parameter, ...]
) -> tuple[StubValues, DecodeError | None, tuple[str, int] | None]:
    out: StubValues = {}
    try:
        read_single_parameters(cursor, params, out)
    except DecodeError as error:
        return out, error, cursor.missing_padding
    return out, None, cursor.missing_padding


def decode_single_stub(
    method: Method, direction: str, stub: bytes, *, ndr64: bool = False, big_endian: bool = False
) -> tuple[StubValues, list[tuple[str, str, int]]]:
    """Decode one stub: returns its values by column, and its errors as (code, field, offset).

    ``direction`` is "request" or "response". Values decoded before an error are kept. 64-bit numbers are plain
    integers.
    """
    params = method.parameters(direction)
    cursor = StubCursor(stub, ndr64=ndr64, big_endian=big_endian)
    out, error, _ = _read_stub(cursor, params)
    if error is None:
        return out, [("malformed", *noted) for noted in cursor.deviations[:1]]
    # Some peers leave out the padding behind a queue format (doubt D19).
    if ndr64 and any(param.ndr_type in PADDED_TYPES for param in params):
        again, failed, pad = _read_stub(StubCursor(stub, ndr64=True, big_endian=big_endian, lenient=True), params)
        plausible = all(again[name] in allowed for name, allowed in PLAUSIBLE_VALUES.items() if name in again)
        if failed is None and pad is not None and plausible:
            return again, [("malformed", *pad)]
    return out, [(error.code, error.field, error.offset)]
