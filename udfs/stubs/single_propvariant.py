"""Single-value reader of PROPVARIANT arrays ([MS-MQMQ] 2.2.13), and of the vectors in them.

The column reader uses ``read_vector`` too: vectors are rare and have no common shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from udfs.errors import MalformedError, TruncatedError
from udfs.stubs.single_cursor import StubCursor, guid_text, read_string

VT_LPWSTR: Final = 31
VT_BLOB: Final = 65
VT_CLSID: Final = 72
VT_VECTOR_VARIANT: Final = 0x100C
VT_VECTOR_LPWSTR: Final = 0x101F
VT_VECTOR_CLSID: Final = 0x1048
EMPTY_TYPES: Final = (0, 1)
SIGNED_TYPES: Final = (2, 3, 16, 20, 0x1003)
# Octets of a number by type, or of an element of a vector (CAL is signed by its IDL).
NUMBER_SIZES: Final = {16: 1, 17: 1, 2: 2, 18: 2, 11: 2, 3: 4, 19: 4, 20: 8, 21: 8}
VECTOR_ELEMENT_SIZES: Final = {0x1011: 1, 0x1012: 2, 0x1003: 4, 0x1013: 4, 0x1015: 8}
POINTER_TYPES: Final = (VT_LPWSTR, VT_CLSID)
COUNTED_TYPES: Final = (VT_BLOB, *VECTOR_ELEMENT_SIZES, VT_VECTOR_CLSID, VT_VECTOR_LPWSTR, VT_VECTOR_VARIANT)
KNOWN_TYPES: Final = (*EMPTY_TYPES, *NUMBER_SIZES, *POINTER_TYPES, *COUNTED_TYPES)

_MAX_DEPTH: Final = 4  # nesting of vectors of variants; the properties of [MS-MQMQ] 2.3 need two

PropVariantValue = int | str | bytes | Sequence["int | str | PropVariant | None"] | None


class PropVariant(NamedTuple):
    """A decoded PROPVARIANT: type, and value (number, text, GUID as text, bytes, or a list of these or of variants)."""

    vt: int
    value: PropVariantValue = None


class _FixedPart(NamedTuple):
    """The fixed part of a PROPVARIANT: a number, or a count and a referent."""

    vt: int
    number: int
    referent: int


def _read_number(cursor: StubCursor, size: int, field: str, *, signed: bool) -> int:
    value = cursor.read_uint(size, field)
    return value - (1 << 8 * size) if signed and value >> (8 * size - 1) else value


def _read_fixed_part(cursor: StubCursor, field: str) -> _FixedPart:
    cursor.align(8)
    at = cursor.position
    vt = cursor.read_uint(2, f"{field}.vt")
    cursor.read_bytes(6, f"{field}.wReserved1")
    at_tag = cursor.position
    if cursor.read_uint(2, f"{field}.tag") != vt:
        raise MalformedError(f"{field}.tag", at_tag)
    if vt not in KNOWN_TYPES:
        raise MalformedError(f"{field}.vt", at)
    if cursor.ndr64:
        cursor.align(8)
    number = referent = 0
    if vt in NUMBER_SIZES:
        number = _read_number(cursor, NUMBER_SIZES[vt], f"{field}.value", signed=vt in SIGNED_TYPES)
    elif vt not in EMPTY_TYPES:
        cursor.align_struct()
        if vt in COUNTED_TYPES:
            number = cursor.read_uint(4, f"{field}.cElems")
        referent = cursor.read_word(f"{field}.pElems")
        if vt in COUNTED_TYPES and number and not referent:
            raise MalformedError(f"{field}.pElems", cursor.position)
    if cursor.ndr64:
        cursor.align(8)
    return _FixedPart(vt, number, referent)


def read_array_count(cursor: StubCursor, field: str, count: int) -> None:
    """Read the max_count of an array and check that it is ``count``."""
    cursor.align_struct()
    at = cursor.position
    if cursor.read_word(f"{field}.max_count") != count:
        raise MalformedError(f"{field}.max_count", at)


def _read_pointee(cursor: StubCursor, fixed: _FixedPart, field: str, depth: int) -> PropVariantValue:
    vt, count, referent = fixed
    if vt in NUMBER_SIZES:
        return count
    if vt in EMPTY_TYPES or not referent:
        return [] if vt in COUNTED_TYPES and vt != VT_BLOB else b"" if vt == VT_BLOB else None
    if vt == VT_LPWSTR:
        cursor.align_struct()
        return read_string(cursor, field)
    if vt == VT_CLSID:
        cursor.align(4)
        return guid_text(cursor.read_bytes(16, field), cursor.order)
    read_array_count(cursor, field, count)
    return read_vector(cursor, vt, count, field, depth)


def read_vector(cursor: StubCursor, vt: int, count: int, field: str, depth: int = 0) -> PropVariantValue:
    """Read the elements of a vector or blob, after its max_count."""
    if vt == VT_BLOB:
        return cursor.read_bytes(count, field)
    if vt == VT_VECTOR_LPWSTR:
        return _read_string_vector(cursor, count, field)
    if vt == VT_VECTOR_VARIANT:
        if depth >= _MAX_DEPTH:
            raise MalformedError(f"{field}.vt", cursor.position)
        return list(read_elements(cursor, count, field, depth + 1))
    if vt == VT_VECTOR_CLSID:
        cursor.align(4)
        raw = cursor.read_bytes(16 * count, field)
        return [guid_text(raw[at : at + 16], cursor.order) for at in range(0, len(raw), 16)]
    size = VECTOR_ELEMENT_SIZES[vt]
    if count:
        cursor.align(size)
    raw = cursor.read_bytes(size * count, field)
    order: Literal["little", "big"] = "little" if cursor.order == "<" else "big"
    signed = vt in SIGNED_TYPES
    return [int.from_bytes(raw[at : at + size], order, signed=signed) for at in range(0, len(raw), size)]


def _read_string_vector(cursor: StubCursor, count: int, field: str) -> list[str | None]:
    if count * (8 if cursor.ndr64 else 4) > len(cursor.data) - cursor.position:
        raise TruncatedError(field, cursor.position)
    referents = [cursor.read_word(field) for _ in range(count)]
    out: list[str | None] = []
    for referent in referents:
        if referent:
            cursor.align_struct()
        out.append(read_string(cursor, field) if referent else None)
    return out


def read_elements(cursor: StubCursor, count: int, field: str, depth: int) -> list[PropVariant]:
    """Read ``count`` PROPVARIANTs: all fixed parts first, then their pointees, depth first (rule N13)."""
    # A large count ends with TruncatedError: each fixed part takes ten octets.
    fixed = [_read_fixed_part(cursor, f"{field}[{place}]") for place in range(count)]
    return [
        PropVariant(part.vt, _read_pointee(cursor, part, f"{field}[{place}]", depth))
        for place, part in enumerate(fixed)
    ]


def read_propvariants(cursor: StubCursor, field: str, count: int | None) -> list[PropVariant]:
    """Read a top-level array of PROPVARIANTs; ``count`` is its length by an earlier parameter, None if unknown."""
    cursor.align_struct()
    at = cursor.position
    max_count = cursor.read_word(f"{field}.max_count")
    if count is not None and max_count != count:
        raise MalformedError(f"{field}.max_count", at)
    return read_elements(cursor, max_count, field, 0)
