"""Decode the [in] parameters of one IDispatch::Invoke call in plain Python, with all VARIANT types, nested ones too.

[MS-OAUT] 2.2.29, 2.2.30, 2.2.33 and 3.1.4.4, in NDR 2.0, little-endian, aligned from the first byte. The column reader
in ``dispatch_arguments.py`` uses it for calls with arrays, objects, records or many arguments. Lengths are compared
with the bytes present before use, and the output is at most a small multiple of the input.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.comqc import variant_text
from udfs.comqc.variant_text import VALUE_SIZES, VT_ARRAY, VT_BYREF, VT_DECIMAL, VT_VARIANT
from udfs.errors import DecodeError, MalformedError, UnsupportedError
from udfs.stubs.single_cursor import StubCursor

_MAX_DEPTH: Final = 8  # nesting of VARIANTs in arrays; applications have one or two levels
_SF_HAVEIID: Final = 0x800D
_OBJECT_TYPES: Final = (variant_text.VT_DISPATCH, variant_text.VT_UNKNOWN)
_OBJECT_HEADER_BYTES: Final = 32
_CUSTOM_OBJREF: Final = b"MEOW\4\0\0\0"  # [MS-DCOM] 2.2.18.6
_OBJREF_BYTES: Final = 48  # of an OBJREF_CUSTOM before its object data
_RECORD_INFO: Final = struct.Struct("<16sI16sII")  # RecordInfoData, 2.2.31
# Element type of a SAFEARRAY without FADF_HAVEVARTYPE, by sfType, and the element size in bytes, 2.2.30.8.
_DEFAULT_ELEMENTS: Final = {0x10: (0x11, 1), 0x02: (0x02, 2), 0x03: (0x03, 4), 0x14: (0x14, 8)}
_SMALL_ARRAY: Final = 4096  # elements up to which Python lists are faster
_FADF_HAVEVARTYPE: Final = 0x80
_INTEGER_TYPES: Final = (*variant_text.SIGNED_DTYPES, 0x11, 0x12, 0x13, 0x15, 0x17)
# Types whose values are strings in JSON.
_TEXT_TYPES: Final = (variant_text.VT_ERROR, variant_text.VT_CY, variant_text.VT_DATE, VT_DECIMAL)
_NON_FINITE: Final = ("nan", "inf", "-inf")

ArgumentText = tuple[int, str | None]  # vt, value as text


@dataclass
class InvokeParameters:
    """Decoded parameters of an Invoke call; arguments in the order of the method's parameters, None: not decoded."""

    dispatch_id: int | None = None
    flags: int | None = None
    named_dispatch_ids: list[int] | None = None
    arguments: list[ArgumentText | None] | None = None
    error: DecodeError | None = None
    _found: dict[int, ArgumentText] = field(default_factory=dict)


class InvokeCursor(StubCursor):
    """A read position in the Marshaled Data; a read past its end raises TruncatedError."""

    def check_count(self, expected: int, name: str) -> None:
        """Read a max_count and check that it is ``expected``, the value of size_is."""
        self.align(4)
        at = self.position
        if self.read_uint(4, f"{name}.max_count") != expected:
            raise MalformedError(f"{name}.max_count", at)

    def read_uint32s(self, count: int, name: str, code: str = "I") -> tuple[int, ...]:
        """Read ``count`` numbers of 32 bits; ``code`` "i" for signed ones."""
        return struct.unpack(f"<{count}{code}", self.read_bytes(4 * count, name))


def read_invoke(data: bytes) -> InvokeParameters:
    """Decode the parameters of one call; values before an error are kept, bytes behind the parameters are ignored."""
    out = InvokeParameters()
    try:
        _read_parameters(InvokeCursor(data), out)
    except DecodeError as error:
        out.error = error
    if out.arguments is not None:
        for place, argument in out._found.items():  # noqa: SLF001  (its own)
            out.arguments[len(out.arguments) - 1 - place] = argument  # rgvarg is reversed, 3.1.4.4
    return out


def _read_parameters(cursor: InvokeCursor, out: InvokeParameters) -> None:
    out.dispatch_id = int.from_bytes(cursor.read_bytes(4, "dispIdMember"), "little", signed=True)
    cursor.read_bytes(16, "riid")  # must be zero; not checked, a one-way call has no response
    cursor.read_uint(4, "lcid")
    out.flags = cursor.read_uint(4, "dwFlags")
    arguments = cursor.read_uint(4, "rgvarg")
    named = cursor.read_uint(4, "rgdispidNamedArgs")
    at = cursor.position
    count = cursor.read_uint(4, "cArgs")
    named_count = cursor.read_uint(4, "cNamedArgs")
    if bool(arguments) < bool(count) or named_count > count or bool(named) < bool(named_count):
        raise MalformedError("cArgs", at)
    if arguments:
        cursor.check_count(count, "rgvarg")
        referents = cursor.read_uint32s(count, "rgvarg")
        out.arguments = [None] * count
        for place, referent in enumerate(referents):
            if referent:
                out._found[place] = read_variant(cursor, "rgvarg", 0)  # noqa: SLF001
    else:
        out.arguments = []
    names: tuple[int, ...] = ()
    if named:
        cursor.check_count(named_count, "rgdispidNamedArgs")
        names = cursor.read_uint32s(named_count, "rgdispidNamedArgs", "i")
    out.named_dispatch_ids = list(names)
    references = cursor.read_uint(4, "cVarRef")
    cursor.check_count(references, "rgVarRefIdx")
    at = cursor.position
    index = cursor.read_uint32s(references, "rgVarRefIdx")
    if any(place >= count for place in index):
        raise MalformedError("rgVarRefIdx", at)
    cursor.check_count(references, "rgVarRef")
    referents = cursor.read_uint32s(references, "rgVarRef")
    for place, referent in zip(index, referents, strict=True):
        if referent:
            out._found[place] = read_variant(cursor, "rgVarRef", 0)  # noqa: SLF001


def read_variant(cursor: InvokeCursor, name: str, depth: int) -> ArgumentText:
    """Read a VARIANT, 2.2.29.1; returns its type and its value as text."""
    cursor.align(8)
    start = cursor.position
    size = 8 * cursor.read_uint(4, f"{name}.clSize")
    cursor.read_bytes(4, f"{name}.rpcReserved")
    vt = cursor.read_uint(2, f"{name}.vt")
    cursor.read_bytes(6, f"{name}.wReserved1")
    at = cursor.position
    tag = cursor.read_uint(4, f"{name}.tag")
    if tag != (vt & (VT_ARRAY | VT_BYREF) if vt & VT_ARRAY else vt):
        raise MalformedError(f"{name}.tag", at)
    if vt & VT_ARRAY:
        return vt, _safearray_text(cursor, name, vt, start + size, depth)
    if vt & VT_BYREF and vt & ~VT_BYREF != variant_text.VT_RECORD and not cursor.read_uint(4, f"{name}.value"):
        return vt, None
    return vt, _scalar_text(cursor, name, vt, start + size, depth)


def read_automation_value(cursor: InvokeCursor, name: str, vt: int, store: Callable[[ArgumentText], None]) -> None:
    """Read a parameter of a method that is no dispatch call, of a type that is not a number of 1 to 8 bytes.

    ``vt`` is its declared type, ``store`` gets its type and text. A persisted object does not say where it ends, and
    neither does an array of objects: UnsupportedError after its CLSID.
    """
    if vt in _OBJECT_TYPES:
        clsid = _read_object_header(cursor, name)
        store((vt, clsid and _to_json({"clsid": clsid})))
        if clsid is not None:
            raise UnsupportedError(f"{name}.object", cursor.position)
    elif vt & VT_ARRAY:
        store((vt, _safearray_text(cursor, name, vt, None, 0)))
    elif vt == VT_VARIANT:
        store(read_variant(cursor, name, 0) if cursor.read_uint(4, name) else (vt, None))
    else:  # VT_BSTR, VT_DECIMAL
        store((vt, _scalar_text(cursor, name, vt, 0, 0)))


def _scalar_text(cursor: InvokeCursor, name: str, vt: int, end: int, depth: int) -> str | None:
    kind, field_name = vt & ~VT_BYREF, f"{name}.value"
    if kind in _OBJECT_TYPES:
        return _object_text(cursor, name, end)
    if kind == variant_text.VT_RECORD:
        return _to_json(_read_record(cursor, field_name, end)) if cursor.read_uint(4, field_name) else None
    if kind == variant_text.VT_BSTR:
        return _read_bstr(cursor, name) if cursor.read_uint(4, field_name) else None
    if kind == VT_VARIANT and vt & VT_BYREF:
        if not cursor.read_uint(4, field_name):
            return None
        if depth >= _MAX_DEPTH:
            raise UnsupportedError(field_name, cursor.position)
        return str(_variant_json(read_variant(cursor, name, depth + 1)))
    size = VALUE_SIZES.get(kind)
    if size is None or (size == 0 and vt & VT_BYREF):
        raise MalformedError(f"{name}.vt", cursor.position - 4)
    if kind == VT_DECIMAL:
        cursor.align(8)
        at = cursor.position
        text = variant_text.decimal_text(cursor.read_bytes(16, field_name))
        if text is None:
            raise MalformedError(field_name, at)
        return text
    raw = cursor.read_uint(size, field_name) if size else 0
    if kind in _INTEGER_TYPES:
        return str(raw - (1 << 8 * size) if kind in variant_text.SIGNED_DTYPES and raw >> (8 * size - 1) else raw)
    texts: list[str | None] = variant_text.fixed_size_texts(kind, np.array([raw], np.uint64)).to_pylist()
    return texts[0]


def _read_bstr(cursor: InvokeCursor, name: str) -> str | None:
    """Read a FLAGGED_WORD_BLOB, 2.2.23.1."""
    cursor.align(4)
    at = cursor.position
    max_count = cursor.read_uint(4, f"{name}.bstr.max_count")
    size = cursor.read_uint(4, f"{name}.bstr.cBytes")
    units = cursor.read_uint(4, f"{name}.bstr.clSize")
    null = size == 0xFFFFFFFF
    if max_count != units or units != (0 if null else (size + 1) // 2):
        raise MalformedError(f"{name}.bstr.max_count", at)
    raw = cursor.read_bytes(2 * units, f"{name}.bstr")
    return None if null else variant_text.bstr_text(raw[:size])


def _skip_to_end(cursor: InvokeCursor, name: str, end: int | None) -> int:
    """Skip data without a length of its own, up to ``end`` as given by clSize (D26); returns the bytes skipped.

    UnsupportedError without an ``end``: nothing says where the next value begins.
    """
    start = cursor.position
    if end is None:
        raise UnsupportedError(name, start)
    if end < start:
        raise MalformedError(f"{name}.clSize", start)
    cursor.read_bytes(end - start, name)
    return end - start


def _object_text(cursor: InvokeCursor, name: str, end: int) -> str | None:
    """Return CLSID and size of a persisted object, [MC-COMQC] 2.2.6.1.5, as JSON; None for a NULL pointer."""
    clsid = _read_object_header(cursor, name)
    return clsid and _to_json({"clsid": clsid, "bytes": _skip_to_end(cursor, f"{name}.object", end)})


def _read_object_header(cursor: InvokeCursor, name: str) -> str | None:
    """Read a pointer to a persisted object, and its header; returns the CLSID, None for a NULL pointer."""
    if not cursor.read_uint(4, f"{name}.value"):
        return None
    cursor.read_bytes(4, f"{name}.object.Reserved1")
    at = cursor.position
    size = cursor.read_uint(4, f"{name}.object.Size")
    if size != _OBJECT_HEADER_BYTES:
        raise MalformedError(f"{name}.object.Size", at)
    cursor.read_bytes(4, f"{name}.object.Reserved2")
    clsid = variant_text.little_endian_guid_text(cursor.read_bytes(16, f"{name}.object.ObjectID"))
    cursor.read_bytes(4, f"{name}.object.Padding")
    return clsid


def _read_record(cursor: InvokeCursor, name: str, end: int | None) -> dict[str, Any]:
    """Read a BRECORD behind its pointer, 2.2.28.2.1, up to ``end``: what says its type, and its fields as hex.

    pRecord is the last of it, with its size twice before it; this finds it whatever the form of pRecInfo, for
    [MC-COMQC] does not say whether that is an object reference. Without it the result has the number of bytes only.
    """
    start = cursor.position
    cursor.read_uint(4, f"{name}.fFlags")
    size = cursor.read_uint(4, f"{name}.clSize")
    has_info = cursor.read_uint(4, f"{name}.pRecInfo")
    has_fields = cursor.read_uint(4, f"{name}.pRecord")
    begin = cursor.position
    pointees = bytes(cursor.data[begin : begin + _skip_to_end(cursor, name, end)])
    prefix = 2 * size.to_bytes(4, "little")  # max_count, and the prefix that counts itself
    last = len(pointees) - 4 - size
    places = (place for place in range(max(last - 7, 0), last + 1) if (begin + place) % 4 == 0)
    found = next((place for place in places if size >= 4 and pointees.startswith(prefix, place)), None)
    record, info_bytes = _record_type(pointees[:found]) if has_info else ({}, 0)
    if has_fields and found is not None:
        cursor.position = begin + found + 4 + size
        return record | {"fields": pointees[found + 8 : found + 4 + size].hex()}
    if has_fields or info_bytes is None:
        return record | {"bytes": cursor.position - start}
    cursor.position = begin + info_bytes
    return record | {"fields": None}


def _record_type(info: bytes) -> tuple[dict[str, Any], int | None]:
    """Return what pRecInfo says of a record's type, and its size in bytes, None if it does not say that.

    It is an MInterfacePointer or a persisted object; nothing is said of others.
    """
    data, size = info[8:], int.from_bytes(info[:4], "little")
    if info[:4] == info[4:8] and data.startswith(_CUSTOM_OBJREF) and len(data) >= _OBJREF_BYTES + _RECORD_INFO.size:
        library, major, guid, minor, _ = _RECORD_INFO.unpack_from(data, _OBJREF_BYTES)
        texts = {
            "type": variant_text.little_endian_guid_text(guid),
            "library": variant_text.little_endian_guid_text(library),
        }
        return texts | {"version": f"{major}.{minor}"}, 8 + size if size <= len(data) else None
    if len(info) >= _OBJECT_HEADER_BYTES and info[4:8] == _OBJECT_HEADER_BYTES.to_bytes(4, "little"):
        return {"clsid": variant_text.little_endian_guid_text(info[12:28])}, None
    return {}, None


def _safearray_text(cursor: InvokeCursor, name: str, vt: int, end: int | None, depth: int) -> str | None:
    """Read a SAFEARRAY behind two pointers (three if by reference), 2.2.30.10, as JSON; None for a NULL pointer."""
    name = f"{name}.array"
    for _ in range(3 if vt & VT_BYREF else 2):
        if not cursor.read_uint(4, name):
            return None
    cursor.align(4)
    at = cursor.position
    dimensions = cursor.read_uint(4, f"{name}.max_count")
    if cursor.read_uint(2, f"{name}.cDims") != dimensions or not dimensions:
        raise MalformedError(f"{name}.cDims", at)
    features = cursor.read_uint(2, f"{name}.fFeatures")
    cursor.read_uint(4, f"{name}.cbElements")
    locks = cursor.read_uint(4, f"{name}.cLocks")
    at = cursor.position
    kind = cursor.read_uint(4, f"{name}.sfType")
    count = cursor.read_uint(4, f"{name}.Size")
    data = cursor.read_uint(4, f"{name}.data")
    if kind == _SF_HAVEIID:
        cursor.read_bytes(16, f"{name}.iid")
    bounds = struct.unpack(f"<{2 * dimensions}I", cursor.read_bytes(8 * dimensions, f"{name}.rgsabound"))
    element = locks >> 16 if features & _FADF_HAVEVARTYPE else vt & 0x0FFF
    if kind == variant_text.VT_RECORD:
        cursor.check_count(count, name)  # one BRECORD has the fields of all elements, 2.2.30.6
        if count != 1 or not cursor.read_uint(4, name):
            return _to_json({"bytes": _skip_to_end(cursor, name, end)})
        return _to_json({"sizes": list(bounds[-2::-2])} | _read_record(cursor, name, end))
    if kind in (*_OBJECT_TYPES, _SF_HAVEIID):
        return _to_json({"elements": count, "bytes": _skip_to_end(cursor, name, end)})
    if kind in _DEFAULT_ELEMENTS and not data and not count:
        found: Any = []  # numbers are behind a unique pointer, which may be NULL (2.2.30.8); others behind a [ref] one
    elif kind in _DEFAULT_ELEMENTS:
        found = _fixed_size_elements_json(cursor, name, count, kind, element)
    elif kind in (variant_text.VT_BSTR, VT_VARIANT):
        cursor.check_count(count, name)
        referents = cursor.read_uint32s(count, name)
        if depth >= _MAX_DEPTH:
            raise UnsupportedError(name, cursor.position)
        found = [_referent_json(cursor, name, kind, depth) if referent else None for referent in referents]
    else:
        raise MalformedError(f"{name}.sfType", at)
    if dimensions == 1 and not bounds[1]:
        return _to_json(found)
    # Bounds are in reverse order on the wire (2.2.30.10); elements keep the order of the wire.
    lower = [low - (1 << 32) if low >> 31 else low for low in bounds[1::2]]
    return _to_json({"sizes": list(bounds[-2::-2]), "lower_bounds": lower[::-1], "elements": found})


def _referent_json(cursor: InvokeCursor, name: str, kind: int, depth: int) -> Any:  # noqa: ANN401  (of JSON)
    if kind == variant_text.VT_BSTR:
        return _read_bstr(cursor, name)
    return _variant_json(read_variant(cursor, name, depth + 1))


def _fixed_size_elements_json(cursor: InvokeCursor, name: str, count: int, kind: int, element: int) -> _JsonText:
    """Read array elements of fixed size, all at once: applications pass large data as octet arrays."""
    default, width = _DEFAULT_ELEMENTS[kind]
    if VALUE_SIZES.get(element) != width:
        element = default
    cursor.check_count(count, name)
    cursor.align(width)
    numbers = np.frombuffer(
        cursor.read_bytes(width * count, name), variant_text.SIGNED_DTYPES.get(element, f"<u{width}")
    )
    if element in _INTEGER_TYPES and count < _SMALL_ARRAY:
        return _JsonText(str(numbers.tolist()).replace(" ", ""))
    texts = variant_text.fixed_size_texts(element, numbers.view(f"<u{width}").astype(np.uint64))
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    if element not in _TEXT_TYPES:
        quoted = pc.if_else(pc.is_in(texts, pa.array(_NON_FINITE)), quoted, texts)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), quoted), ",")
    return _JsonText(f"[{joined[0].as_py()}]")


def _number_json(vt: int, text: str | None) -> Any:  # noqa: ANN401  (of JSON)
    """Return a value for JSON: numbers and booleans as such, values that JSON cannot express as text."""
    if text is None or vt & ~VT_BYREF in _TEXT_TYPES or text in _NON_FINITE:
        return text
    return _JsonText(text)  # digits, true, false


def _variant_json(argument: ArgumentText) -> _JsonText:
    """Return a nested VARIANT for JSON: an object of its type name and value."""
    vt, text = argument
    kind = vt & ~VT_BYREF
    if text is not None and (vt & VT_ARRAY or kind in (VT_VARIANT, variant_text.VT_RECORD, *_OBJECT_TYPES)):
        return _JsonText(_to_json({variant_text.variant_type_name(vt): _JsonText(text)}))
    return _JsonText(
        _to_json({variant_text.variant_type_name(vt): _number_json(vt, text) if kind in VALUE_SIZES else text})
    )


class _JsonText(str):
    """Text that is already JSON."""

    __slots__ = ()


def _to_json(value: Any) -> str:  # noqa: ANN401  (of JSON)
    """Return a value as JSON without spaces; ``_JsonText`` parts are inserted unchanged."""
    if isinstance(value, _JsonText):
        return str(value)
    if isinstance(value, list):
        return f"[{','.join(map(_to_json, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(name)}:{_to_json(part)}' for name, part in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
