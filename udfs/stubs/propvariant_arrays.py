"""Column reader of PROPVARIANT arrays ([MS-MQMQ] 2.2.13): the n-th elements of all rows are read together.

Values go to the elements "variants" of ``DecodedColumns``: row, vt, the number as 64 bits, whether it is negative, and
the value of any other type as a Python object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from udfs.array_types import Ints
from udfs.errors import DecodeError
from udfs.stubs import single_propvariant as one
from udfs.stubs.arrow_primitives import GUID_BIG_ENDIAN_ORDER, guid_strings
from udfs.stubs.column_cursors import ERROR_CODES, MALFORMED_CODE, AnyArray, ColumnCursors
from udfs.stubs.idl import Parameter
from udfs.stubs.ndr_types import read_strings
from udfs.stubs.single_cursor import StubCursor

# Elements per array that are read for all rows together: cp has range(1, 128), [MS-MQMR] 3.1.4.1. Longer arrays break
# that rule; they are read one by one.
_COLUMNWISE_ELEMENTS: Final = 128


class _Elements(NamedTuple):
    """The fixed parts of the elements at one index; ``owner`` holds the indices of their cursors."""

    owner: Ints
    vt: AnyArray
    number: npt.NDArray[np.uint64]
    negative: AnyArray
    referent: AnyArray


def read_propvariant_array(cursors: ColumnCursors, param: Parameter) -> None:
    """Read a top-level array of PROPVARIANTs; the values are stored unless ``column`` is None."""
    cursors.align_struct()
    at = cursors.position
    max_count = cursors.read_word(f"{param.name}.max_count")
    if param.size_is:
        announced = cursors.sizes[param.size_is].astype(np.uint64)
        cursors.fail(max_count.astype(np.uint64) != announced, MALFORMED_CODE, f"{param.name}.max_count", at)
    counts = np.where(cursors.live, np.minimum(max_count.astype(np.uint64), np.uint64(1 << 40)), 0).astype(np.int64)
    many = np.flatnonzero(counts > _COLUMNWISE_ELEMENTS).tolist()
    alone = {row: _read_long_array(cursors, param.name, row, int(counts[row])) for row in many}
    counts[many] = 0
    heads = [
        _read_fixed_parts(cursors, f"{param.name}[{place}]", counts > place)
        for place in range(int(counts.max(initial=0)))
    ]
    values = [_read_pointees(cursors, f"{param.name}[{place}]", head) for place, head in enumerate(heads)]
    if param.column is None:
        return
    cursors.store(param.column, np.zeros(len(counts), np.uint8))
    for head, objects in zip(heads, values, strict=True):
        keep = cursors.live[head.owner]
        rows = cursors.rows[head.owner[keep]]
        cursors.out.append_elements(
            "variants", rows, head.vt[keep], head.number[keep], head.negative[keep], objects[keep]
        )
    for row, items in alone.items():
        cursors.out.append_elements("variants", *_element_arrays(int(cursors.rows[row]), items))


def _element_arrays(row: int, items: list[one.PropVariant]) -> tuple[AnyArray, ...]:
    """Return the PROPVARIANTs of one row as arrays for ``append_elements``."""
    numbers = [item.value if isinstance(item.value, int) else 0 for item in items]
    objects = np.empty(len(items), object)
    objects[:] = [None if isinstance(item.value, int) else item.value for item in items]
    return (
        np.full(len(items), row),
        np.array([item.vt for item in items], np.int32),
        np.array([number % (1 << 64) for number in numbers], np.uint64),
        np.array([number < 0 for number in numbers], np.bool_),
        objects,
    )


def _read_fixed_parts(cursors: ColumnCursors, field: str, has: AnyArray) -> _Elements:
    """Read the fixed part of the next element, in the rows of ``has``."""
    index, part = cursors.subset(has)
    part.align(8)
    at = part.position
    vt = part.read_uint(2, f"{field}.vt").astype(np.int32)
    part.advance(6, f"{field}.wReserved1")
    at_tag = part.position
    tag = part.read_uint(2, f"{field}.tag")
    part.fail(tag != vt, MALFORMED_CODE, f"{field}.tag", at_tag)
    part.fail(~np.isin(vt, one.KNOWN_TYPES), MALFORMED_CODE, f"{field}.vt", at)
    if part.ndr64:
        part.align(8)
    number = np.zeros(len(index), np.uint64)
    negative = np.zeros(len(index), np.bool_)
    referent = np.zeros(len(index), np.uint64)
    for kind in np.unique(vt[part.live]).tolist():
        at_kind, arm = part.subset(vt == kind)
        if kind in one.NUMBER_SIZES:
            number[at_kind], negative[at_kind] = _read_numbers(arm, kind, f"{field}.value")
        elif kind not in one.EMPTY_TYPES:
            arm.align_struct()
            if kind in one.COUNTED_TYPES:
                number[at_kind] = arm.read_uint(4, f"{field}.cElems")
            referent[at_kind] = arm.read_word(f"{field}.pElems")
            if kind in one.COUNTED_TYPES:
                arm.fail((number[at_kind] != 0) & (referent[at_kind] == 0), MALFORMED_CODE, f"{field}.pElems")
        if arm.ndr64:
            arm.align(8)
        part.merge_subset(at_kind, arm)
    cursors.merge_subset(index, part)
    return _Elements(index, vt, number, negative, referent)


def _read_numbers(cursors: ColumnCursors, vt: int, field: str) -> tuple[npt.NDArray[np.uint64], AnyArray]:
    """Read numbers of one type: as 64 bits in two's complement, and the mask of the negative ones."""
    size = one.NUMBER_SIZES[vt]
    values = cursors.read_uint(size, field)
    if vt not in one.SIGNED_TYPES:
        return values.astype(np.uint64), np.zeros(len(values), np.bool_)
    signed = values.astype(f"u{size}").view(f"i{size}")
    return signed.astype(np.int64).view(np.uint64), signed < 0


def _read_pointees(cursors: ColumnCursors, field: str, head: _Elements) -> npt.NDArray[Any]:
    """Read the pointees of the elements at one index; returns the values that are not numbers, as objects."""
    objects: npt.NDArray[Any] = np.full(len(head.owner), None, object)
    for kind in np.unique(head.vt).tolist():
        ours = head.vt == kind
        if kind in one.COUNTED_TYPES:
            for place in np.flatnonzero(ours).tolist():
                objects[place] = b"" if kind == one.VT_BLOB else []
        ours &= (head.referent != 0) & cursors.live[head.owner]
        if not ours.any():
            continue
        places = np.flatnonzero(ours)
        which = np.zeros(len(cursors.rows), np.bool_)
        which[head.owner[places]] = True
        index, part = cursors.subset(which)  # in the order of head.owner, which is ascending
        for place, value in zip(
            places.tolist(), _read_pointee_type(part, field, kind, head.number[places]), strict=True
        ):
            objects[place] = value
        cursors.merge_subset(index, part)
    return objects


def _read_pointee_type(cursors: ColumnCursors, field: str, vt: int, counts: npt.NDArray[np.uint64]) -> list[Any]:
    """Read the pointees of one type: one value per row; undefined in rows that fail."""
    if vt == one.VT_LPWSTR:
        cursors.align_struct()
        return list(read_strings(cursors, field))
    if vt == one.VT_CLSID:
        cursors.align(4)
        raw = cursors.read_bytes(16, field)
        if cursors.big_endian is not None:
            raw = np.where(cursors.big_endian[:, None], raw[:, GUID_BIG_ENDIAN_ORDER], raw)
        texts: list[Any] = guid_strings(raw).to_pylist()
        return texts
    cursors.align_struct()
    at = cursors.position
    max_count = cursors.read_word(f"{field}.max_count")
    cursors.fail(max_count.astype(np.uint64) != counts, MALFORMED_CODE, f"{field}.max_count", at)
    values: list[Any] = [None] * len(counts)
    if vt == one.VT_BLOB:
        start = cursors.advance(counts, field)
        for row in np.flatnonzero(cursors.live).tolist():
            values[row] = cursors.data[start[row] : start[row] + int(counts[row])].tobytes()
        return values
    for row in np.flatnonzero(cursors.live).tolist():
        count = int(counts[row])
        values[row] = _read_one_row(cursors, row, lambda cursor, n=count: one.read_vector(cursor, vt, n, field))  # type: ignore[misc]
    return values


def _read_long_array(cursors: ColumnCursors, field: str, row: int, count: int) -> list[one.PropVariant]:
    """Read an array of one row with more than ``_COLUMNWISE_ELEMENTS`` elements."""
    items: list[one.PropVariant] | None = _read_one_row(
        cursors, row, lambda cursor: one.read_elements(cursor, count, field, 0)
    )
    return items or []


def _read_one_row(cursors: ColumnCursors, row: int, read: Callable[[StubCursor], Any]) -> Any:  # noqa: ANN401  (any variant's value)
    """Read at the cursor of one row with a single-value reader; returns None and sets the row's error if it fails."""
    start = int(cursors.start[row])
    big = cursors.big_endian is not None and bool(cursors.big_endian[row])
    stub = memoryview(cursors.data[start : int(cursors.end[row])].data)
    cursor = StubCursor(stub, ndr64=cursors.ndr64, big_endian=big)
    cursor.position = int(cursors.position[row]) - start
    try:
        return read(cursor)
    except DecodeError as error:
        at = np.full(len(cursors.rows), start + error.offset)
        cursors.fail(np.arange(len(cursors.rows)) == row, ERROR_CODES.index(error.code), error.field, at)
        return None
    finally:
        cursors.position[row] = start + cursor.position
