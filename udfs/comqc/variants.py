"""The [in] parameters of one IDispatch::Invoke in plain Python: every kind of VARIANT, nested ones included.

[MS-OAUT] 2.2.29, 2.2.30, 2.2.33 and 3.1.4.4, in NDR 2.0, little-endian, aligned from the first byte. The column reader
of ``dispatch.py`` gives it the calls that hold arrays, objects, records or more arguments than others; alone it serves
for chasing a bug. No length is believed before the bytes are there, and the result is a small multiple of the input.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.comqc import values
from udfs.comqc.values import ARRAY, BYREF, DECIMAL, SIZES, VARIANT
from udfs.errors import DecodeError, MalformedError, TruncatedError, UnsupportedError

_DEPTH: Final = 8  # arrays of VARIANTs within one another; applications have one or two
_HAVE_IID: Final = 0x800D
_OBJECTS: Final = (values.DISPATCH, values.UNKNOWN)
_OBJECT_HEADER: Final = 32
# Element types of a SAFEARRAY that does not say them (no FADF_HAVEVARTYPE), by sfType; bytes of an element, 2.2.30.8.
_ELEMENTS: Final = {0x10: (0x11, 1), 0x02: (0x02, 2), 0x03: (0x03, 4), 0x14: (0x14, 8)}
_FEW: Final = 4096  # elements for which Python's own lists are faster and small enough
_HAVE_VARTYPE: Final = 0x80
_WHOLE: Final = (*values.SIGNED, 0x11, 0x12, 0x13, 0x15, 0x17)  # whole numbers
_TEXTS: Final = (values.ERROR, values.CY, values.DATE, DECIMAL)  # in JSON these are strings
_NO_NUMBERS: Final = ("nan", "inf", "-inf")

Argument = tuple[int, str | None]  # vt, value as text


@dataclass
class Invoke:
    """What a dispatch call says. Arguments are in the order of the method's parameters; None is one not decoded."""

    dispatch_id: int | None = None
    flags: int | None = None
    named: list[int] | None = None
    arguments: list[Argument | None] | None = None
    error: DecodeError | None = None
    _found: dict[int, Argument] = field(default_factory=dict)


class _Cursor:
    """A position in the Marshaled Data that cannot run off its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0

    def align(self, to: int) -> None:
        self.pos += -self.pos % to

    def take(self, size: int, name: str) -> bytes:
        if size > len(self.data) - self.pos:
            raise TruncatedError(name, self.pos)
        self.pos += size
        return self.data[self.pos - size : self.pos]

    def uint(self, size: int, name: str) -> int:
        self.align(size)
        return int.from_bytes(self.take(size, name), "little")

    def count(self, expected: int, name: str) -> None:
        """Read a max_count, which must be what the size_is says."""
        self.align(4)
        at = self.pos
        if self.uint(4, f"{name}.max_count") != expected:
            raise MalformedError(f"{name}.max_count", at)

    def numbers(self, count: int, name: str, code: str = "I") -> tuple[int, ...]:
        return struct.unpack(f"<{count}{code}", self.take(4 * count, name))


def read_invoke(data: bytes) -> Invoke:
    """Read the parameters of one call; what was read before an error stays, bytes behind them are ignored."""
    out = Invoke()
    try:
        _invoke(_Cursor(data), out)
    except DecodeError as error:
        out.error = error
    if out.arguments is not None:
        for place, argument in out._found.items():  # noqa: SLF001  (its own)
            out.arguments[len(out.arguments) - 1 - place] = argument  # rgvarg is reversed, 3.1.4.4
    return out


def _invoke(cursor: _Cursor, out: Invoke) -> None:
    out.dispatch_id = int.from_bytes(cursor.take(4, "dispIdMember"), "little", signed=True)
    cursor.take(16, "riid")  # must be zero; the server's answer to another would never be seen
    cursor.uint(4, "lcid")
    out.flags = cursor.uint(4, "dwFlags")
    arguments = cursor.uint(4, "rgvarg")
    named = cursor.uint(4, "rgdispidNamedArgs")
    at = cursor.pos
    count = cursor.uint(4, "cArgs")
    named_count = cursor.uint(4, "cNamedArgs")
    if bool(arguments) < bool(count) or named_count > count or bool(named) < bool(named_count):
        raise MalformedError("cArgs", at)
    if arguments:
        cursor.count(count, "rgvarg")
        referents = cursor.numbers(count, "rgvarg")
        out.arguments = [None] * count
        for place, referent in enumerate(referents):
            if referent:
                out._found[place] = variant(cursor, "rgvarg", 0)  # noqa: SLF001
    else:
        out.arguments = []
    names: tuple[int, ...] = ()
    if named:
        cursor.count(named_count, "rgdispidNamedArgs")
        names = cursor.numbers(named_count, "rgdispidNamedArgs", "i")
    out.named = list(names)
    references = cursor.uint(4, "cVarRef")
    cursor.count(references, "rgVarRefIdx")
    at = cursor.pos
    index = cursor.numbers(references, "rgVarRefIdx")
    if any(place >= count for place in index):
        raise MalformedError("rgVarRefIdx", at)
    cursor.count(references, "rgVarRef")
    referents = cursor.numbers(references, "rgVarRef")
    for place, referent in zip(index, referents, strict=True):
        if referent:
            out._found[place] = variant(cursor, "rgVarRef", 0)  # noqa: SLF001


def variant(cursor: _Cursor, name: str, depth: int) -> Argument:
    """Read what a VARIANT pointer refers to, 2.2.29.1."""
    cursor.align(8)
    start = cursor.pos
    size = 8 * cursor.uint(4, f"{name}.clSize")
    cursor.take(4, f"{name}.rpcReserved")
    vt = cursor.uint(2, f"{name}.vt")
    cursor.take(6, f"{name}.wReserved1")
    at = cursor.pos
    tag = cursor.uint(4, f"{name}.tag")
    if tag != (vt & (ARRAY | BYREF) if vt & ARRAY else vt):
        raise MalformedError(f"{name}.tag", at)
    if vt & ARRAY:
        return vt, _array_text(cursor, name, vt, start + size, depth)
    if vt & BYREF and vt & ~BYREF != values.RECORD and not cursor.uint(4, f"{name}.value"):
        return vt, None
    return vt, _scalar_text(cursor, name, vt, start + size, depth)


def _scalar_text(cursor: _Cursor, name: str, vt: int, end: int, depth: int) -> str | None:
    kind, field_name = vt & ~BYREF, f"{name}.value"
    if kind in _OBJECTS:
        return _object_text(cursor, name, end)
    if kind == values.RECORD:
        return _opaque_text(cursor, name, end) if cursor.uint(4, field_name) else None
    if kind == values.BSTR:
        return _bstr(cursor, name) if cursor.uint(4, field_name) else None
    if kind == VARIANT and vt & BYREF:
        if not cursor.uint(4, field_name):
            return None
        if depth >= _DEPTH:
            raise UnsupportedError(field_name, cursor.pos)
        return str(_element(variant(cursor, name, depth + 1)))
    size = SIZES.get(kind)
    if size is None or (size == 0 and vt & BYREF):
        raise MalformedError(f"{name}.vt", cursor.pos - 4)
    if kind == DECIMAL:
        cursor.align(8)
        at = cursor.pos
        text = values.decimal_text(cursor.take(16, field_name))
        if text is None:
            raise MalformedError(field_name, at)
        return text
    raw = cursor.uint(size, field_name) if size else 0
    if kind in _WHOLE:
        return str(raw - (1 << 8 * size) if kind in values.SIGNED and raw >> (8 * size - 1) else raw)
    texts: list[str | None] = values.texts_of(kind, np.array([raw], np.uint64)).to_pylist()
    return texts[0]


def _bstr(cursor: _Cursor, name: str) -> str | None:
    """Read a FLAGGED_WORD_BLOB, 2.2.23.1."""
    cursor.align(4)
    at = cursor.pos
    most = cursor.uint(4, f"{name}.bstr.max_count")
    size = cursor.uint(4, f"{name}.bstr.cBytes")
    units = cursor.uint(4, f"{name}.bstr.clSize")
    null = size == 0xFFFFFFFF
    if most != units or units != (0 if null else (size + 1) // 2):
        raise MalformedError(f"{name}.bstr.max_count", at)
    raw = cursor.take(2 * units, f"{name}.bstr")
    return None if null else values.bstr_text(raw[:size])


def _skip(cursor: _Cursor, name: str, end: int) -> int:
    """Pass over what has no length of its own to the end that clSize gives (D26); return how many bytes that is."""
    start = cursor.pos
    if end < start:
        raise MalformedError(f"{name}.clSize", start)
    cursor.take(end - start, name)
    return end - start


def _object_text(cursor: _Cursor, name: str, end: int) -> str | None:
    """Recognise a persisted object, [MC-COMQC] 2.2.6.1.5: its CLSID and the bytes behind its header."""
    if not cursor.uint(4, f"{name}.value"):
        return None
    cursor.take(4, f"{name}.object.Reserved1")
    at = cursor.pos
    size = cursor.uint(4, f"{name}.object.Size")
    if size != _OBJECT_HEADER:
        raise MalformedError(f"{name}.object.Size", at)
    cursor.take(4, f"{name}.object.Reserved2")
    clsid = values.guid(cursor.take(16, f"{name}.object.ObjectID"))
    cursor.take(4, f"{name}.object.Padding")
    return _json({"clsid": clsid, "bytes": _skip(cursor, f"{name}.object", end)})


def _opaque_text(cursor: _Cursor, name: str, end: int) -> str:
    return _json({"bytes": _skip(cursor, f"{name}.value", end)})


def _array_text(cursor: _Cursor, name: str, vt: int, end: int, depth: int) -> str | None:
    """Read a SAFEARRAY behind its two pointers (three when by reference), 2.2.30.10; None for no array."""
    name = f"{name}.array"
    for _ in range(3 if vt & BYREF else 2):
        if not cursor.uint(4, name):
            return None
    cursor.align(4)
    at = cursor.pos
    dimensions = cursor.uint(4, f"{name}.max_count")
    if cursor.uint(2, f"{name}.cDims") != dimensions or not dimensions:
        raise MalformedError(f"{name}.cDims", at)
    features = cursor.uint(2, f"{name}.fFeatures")
    cursor.uint(4, f"{name}.cbElements")
    locks = cursor.uint(4, f"{name}.cLocks")
    at = cursor.pos
    kind = cursor.uint(4, f"{name}.sfType")
    count = cursor.uint(4, f"{name}.Size")
    data = cursor.uint(4, f"{name}.data")
    if kind == _HAVE_IID:
        cursor.take(16, f"{name}.iid")
    bounds = struct.unpack(f"<{2 * dimensions}I", cursor.take(8 * dimensions, f"{name}.rgsabound"))
    element = locks >> 16 if features & _HAVE_VARTYPE else vt & 0x0FFF
    if kind in (*_OBJECTS, _HAVE_IID, values.RECORD):
        return _json({"elements": count, "bytes": _skip(cursor, name, end)})
    if kind in _ELEMENTS and not data and not count:
        found: Any = []  # numbers stand behind a unique pointer, 2.2.30.8, that may be null; the others' is [ref]
    elif kind in _ELEMENTS:
        found = _fixed_elements(cursor, name, count, kind, element)
    elif kind in (values.BSTR, VARIANT):
        cursor.count(count, name)
        referents = cursor.numbers(count, name)
        if depth >= _DEPTH:
            raise UnsupportedError(name, cursor.pos)
        found = [_referent(cursor, name, kind, depth) if referent else None for referent in referents]
    else:
        raise MalformedError(f"{name}.sfType", at)
    if dimensions == 1 and not bounds[1]:
        return _json(found)
    # Bounds stand in reverse on the wire (2.2.30.10); elements stay in the order of the wire.
    lower = [low - (1 << 32) if low >> 31 else low for low in bounds[1::2]]
    return _json({"sizes": list(bounds[-2::-2]), "lower_bounds": lower[::-1], "elements": found})


def _referent(cursor: _Cursor, name: str, kind: int, depth: int) -> Any:  # noqa: ANN401  (of JSON)
    if kind == values.BSTR:
        return _bstr(cursor, name)
    return _element(variant(cursor, name, depth + 1))


def _fixed_elements(cursor: _Cursor, name: str, count: int, kind: int, element: int) -> _Raw:
    """Read elements of fixed size, all at once: arrays of octets are how applications pass what is large."""
    default, width = _ELEMENTS[kind]
    if SIZES.get(element) != width:
        element = default
    cursor.count(count, name)
    cursor.align(width)
    numbers = np.frombuffer(cursor.take(width * count, name), values.SIGNED.get(element, f"<u{width}"))
    if element in _WHOLE and count < _FEW:
        return _Raw(str(numbers.tolist()).replace(" ", ""))
    texts = values.texts_of(element, numbers.view(f"<u{width}").astype(np.uint64))
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    if element not in _TEXTS:
        quoted = pc.if_else(pc.is_in(texts, pa.array(_NO_NUMBERS)), quoted, texts)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), quoted), ",")
    return _Raw(f"[{joined[0].as_py()}]")


def _number(vt: int, text: str | None) -> Any:  # noqa: ANN401  (of JSON)
    """Return an element for JSON: numbers and truth as such, what is no number there as its text."""
    if text is None or vt & ~BYREF in _TEXTS or text in _NO_NUMBERS:
        return text
    return _Raw(text)  # digits, true, false


def _element(argument: Argument) -> _Raw:
    """Return a VARIANT within another for JSON: its value under the name of its type."""
    vt, text = argument
    kind = vt & ~BYREF
    if text is not None and (vt & ARRAY or kind in (VARIANT, values.RECORD, *_OBJECTS)):
        return _Raw(_json({values.type_name(vt): _Raw(text)}))
    return _Raw(_json({values.type_name(vt): _number(vt, text) if kind in SIZES else text}))


class _Raw(str):
    """Text that is JSON already."""

    __slots__ = ()


def _json(value: Any) -> str:  # noqa: ANN401  (of JSON)
    """Return JSON without spaces; parts that are JSON already are taken as they are."""
    if isinstance(value, _Raw):
        return str(value)
    if isinstance(value, list):
        return f"[{','.join(map(_json, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(name)}:{_json(part)}' for name, part in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
