"""PROPVARIANT ([MS-MQMQ] 2.2.13), one after the other: arrays of them, and the vectors that they hold.

Vectors of strings and of variants are read here for the column reader too: they come in a few properties of a few
calls, and have no shape that rows share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from udfs.errors import MalformedError, TruncatedError
from udfs.stubs.cursor import Cursor, guid, string

VT_LPWSTR: Final = 31
VT_BLOB: Final = 65
VT_CLSID: Final = 72
VT_VARIANTS: Final = 0x100C
VT_STRINGS: Final = 0x101F
VT_CLSIDS: Final = 0x1048
EMPTY: Final = (0, 1)
SIGNED: Final = (2, 3, 16, 20, 0x1003)
# Octets of the number that a type holds, or of each element of a vector (CAL is signed by its IDL).
NUMBERS: Final = {16: 1, 17: 1, 2: 2, 18: 2, 11: 2, 3: 4, 19: 4, 20: 8, 21: 8}
VECTORS: Final = {0x1011: 1, 0x1012: 2, 0x1003: 4, 0x1013: 4, 0x1015: 8}
POINTERS: Final = (VT_LPWSTR, VT_CLSID)
COUNTED: Final = (VT_BLOB, *VECTORS, VT_CLSIDS, VT_STRINGS, VT_VARIANTS)
KNOWN: Final = (*EMPTY, *NUMBERS, *POINTERS, *COUNTED)

_DEEPEST: Final = 4  # vectors of variants inside each other; the properties of [MS-MQMQ] 2.3 need two

Value = int | str | bytes | Sequence["int | str | Variant | None"] | None


class Variant(NamedTuple):
    """A PROPVARIANT: its type, and a number, a text (GUIDs too), bytes, or a list of these or of variants."""

    vt: int
    value: Value = None


class _Fixed(NamedTuple):
    """The part of a variant that stands in the array: a number, or a referent with a count."""

    vt: int
    number: int
    referent: int


def _number(cursor: Cursor, size: int, field: str, *, signed: bool) -> int:
    value = cursor.uint(size, field)
    return value - (1 << 8 * size) if signed and value >> (8 * size - 1) else value


def _fixed(cursor: Cursor, field: str) -> _Fixed:
    cursor.align(8)
    at = cursor.pos
    vt = cursor.uint(2, f"{field}.vt")
    cursor.take(6, f"{field}.wReserved1")
    at_tag = cursor.pos
    if cursor.uint(2, f"{field}.tag") != vt:
        raise MalformedError(f"{field}.tag", at_tag)
    if vt not in KNOWN:
        raise MalformedError(f"{field}.vt", at)
    if cursor.ndr64:
        cursor.align(8)
    number = referent = 0
    if vt in NUMBERS:
        number = _number(cursor, NUMBERS[vt], f"{field}.value", signed=vt in SIGNED)
    elif vt not in EMPTY:
        cursor.struct_align()
        if vt in COUNTED:
            number = cursor.uint(4, f"{field}.cElems")
        referent = cursor.word(f"{field}.pElems")
        if vt in COUNTED and number and not referent:
            raise MalformedError(f"{field}.pElems", cursor.pos)
    if cursor.ndr64:
        cursor.align(8)
    return _Fixed(vt, number, referent)


def array_count(cursor: Cursor, field: str, count: int) -> None:
    """Read the max_count of an array that was announced with ``count`` elements."""
    cursor.struct_align()
    at = cursor.pos
    if cursor.word(f"{field}.max_count") != count:
        raise MalformedError(f"{field}.max_count", at)


def _pointee(cursor: Cursor, fixed: _Fixed, field: str, depth: int) -> Value:
    vt, count, referent = fixed
    if vt in NUMBERS:
        return count
    if vt in EMPTY or not referent:
        return [] if vt in COUNTED and vt != VT_BLOB else b"" if vt == VT_BLOB else None
    if vt == VT_LPWSTR:
        cursor.struct_align()
        return string(cursor, field)
    if vt == VT_CLSID:
        cursor.align(4)
        return guid(cursor.take(16, field), cursor.order)
    array_count(cursor, field, count)
    return vector(cursor, vt, count, field, depth)


def vector(cursor: Cursor, vt: int, count: int, field: str, depth: int = 0) -> Value:
    """Read the elements of a vector or blob behind its max_count."""
    if vt == VT_BLOB:
        return cursor.take(count, field)
    if vt == VT_STRINGS:
        return _strings(cursor, count, field)
    if vt == VT_VARIANTS:
        if depth >= _DEEPEST:
            raise MalformedError(f"{field}.vt", cursor.pos)
        return list(elements(cursor, count, field, depth + 1))
    if vt == VT_CLSIDS:
        cursor.align(4)
        raw = cursor.take(16 * count, field)
        return [guid(raw[at : at + 16], cursor.order) for at in range(0, len(raw), 16)]
    size = VECTORS[vt]
    if count:
        cursor.align(size)
    raw = cursor.take(size * count, field)
    order: Literal["little", "big"] = "little" if cursor.order == "<" else "big"
    signed = vt in SIGNED
    return [int.from_bytes(raw[at : at + size], order, signed=signed) for at in range(0, len(raw), size)]


def _strings(cursor: Cursor, count: int, field: str) -> list[str | None]:
    if count * (8 if cursor.ndr64 else 4) > len(cursor.data) - cursor.pos:
        raise TruncatedError(field, cursor.pos)
    referents = [cursor.word(field) for _ in range(count)]
    out: list[str | None] = []
    for referent in referents:
        if referent:
            cursor.struct_align()
        out.append(string(cursor, field) if referent else None)
    return out


def elements(cursor: Cursor, count: int, field: str, depth: int) -> list[Variant]:
    """Read variants: all their fixed parts, then what these point to, depth first (rule N13)."""
    # No more of them are made than there are bytes: every one takes ten.
    fixed = [_fixed(cursor, f"{field}[{place}]") for place in range(count)]
    return [Variant(part.vt, _pointee(cursor, part, f"{field}[{place}]", depth)) for place, part in enumerate(fixed)]


def variants(cursor: Cursor, field: str, count: int | None) -> list[Variant]:
    """Read a top-level array of variants, of ``count`` elements where that was said before."""
    cursor.struct_align()
    at = cursor.pos
    most = cursor.word(f"{field}.max_count")
    if count is not None and most != count:
        raise MalformedError(f"{field}.max_count", at)
    return elements(cursor, most, field, 0)
