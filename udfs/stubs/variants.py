"""Arrays of PROPVARIANT a column at a time ([MS-MQMQ] 2.2.13): element by element, the same one of every row at once.

What was read goes to the flat list "variants" of ``Values``: row, vt, the number as 64 bits and whether it is negative,
and the value of any other type as a Python object; the elements of a row in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from udfs.errors import MALFORMED, TRUNCATED, DecodeError
from udfs.stubs import single_variants as one
from udfs.stubs.column import CODES, Column, Cursors, Ints
from udfs.stubs.cursor import Cursor
from udfs.stubs.method import Param
from udfs.stubs.text import GUID_BIG, guid_text
from udfs.stubs.types import strings

_CODE: Final = {TRUNCATED: CODES.index(TRUNCATED), MALFORMED: CODES.index(MALFORMED)}
_MALFORMED: Final = CODES.index(MALFORMED)
# What all rows walk together: cp has range(1, 128), [MS-MQMR] 3.1.4.1. Longer arrays break a rule, but can be read.
_TOGETHER: Final = 128


class _Elements(NamedTuple):
    """The fixed parts of the elements at one place: ``owner`` tells their rows among the cursors."""

    owner: Ints
    vt: Column
    number: npt.NDArray[np.uint64]
    negative: Column
    referent: Column


def variants(cursors: Cursors, param: Param) -> None:
    """Read a top-level array of variants; its values are kept where ``column`` is not None."""
    cursors.struct_align()
    at = cursors.position
    most = cursors.word(f"{param.name}.max_count")
    if param.size_is:
        announced = cursors.seen[param.size_is].astype(np.uint64)
        cursors.fail(most.astype(np.uint64) != announced, _MALFORMED, f"{param.name}.max_count", at)
    counts = np.where(cursors.live, np.minimum(most.astype(np.uint64), np.uint64(1 << 40)), 0).astype(np.int64)
    many = np.flatnonzero(counts > _TOGETHER).tolist()
    alone = {row: _array(cursors, param.name, row, int(counts[row])) for row in many}
    counts[many] = 0
    heads = [_fixed(cursors, f"{param.name}[{place}]", counts > place) for place in range(int(counts.max(initial=0)))]
    values = [_pointees(cursors, f"{param.name}[{place}]", head) for place, head in enumerate(heads)]
    if param.column is None:
        return
    cursors.put(param.column, np.zeros(len(counts), np.uint8))
    for head, objects in zip(heads, values, strict=True):
        keep = cursors.live[head.owner]
        rows = cursors.rows[head.owner[keep]]
        cursors.out.add("variants", rows, head.vt[keep], head.number[keep], head.negative[keep], objects[keep])
    for row, items in alone.items():
        cursors.out.add("variants", *_flat(int(cursors.rows[row]), items))


def _flat(row: int, items: list[one.Variant]) -> tuple[Column, ...]:
    """Return one row's variants as the parts of the flat list."""
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


def _fixed(cursors: Cursors, field: str, has: Column) -> _Elements:
    """Read the elements of the rows of ``has`` that stand next."""
    index, part = cursors.subset(has)
    part.align(8)
    at = part.position
    vt = part.uint(2, f"{field}.vt").astype(np.int32)
    part.take(6, f"{field}.wReserved1")
    at_tag = part.position
    tag = part.uint(2, f"{field}.tag")
    part.fail(tag != vt, _MALFORMED, f"{field}.tag", at_tag)
    part.fail(~np.isin(vt, one.KNOWN), _MALFORMED, f"{field}.vt", at)
    if part.ndr64:
        part.align(8)
    number = np.zeros(len(index), np.uint64)
    negative = np.zeros(len(index), np.bool_)
    referent = np.zeros(len(index), np.uint64)
    for kind in np.unique(vt[part.live]).tolist():
        at_kind, arm = part.subset(vt == kind)
        if kind in one.NUMBERS:
            number[at_kind], negative[at_kind] = _number(arm, kind, f"{field}.value")
        elif kind not in one.EMPTY:
            arm.struct_align()
            if kind in one.COUNTED:
                number[at_kind] = arm.uint(4, f"{field}.cElems")
            referent[at_kind] = arm.word(f"{field}.pElems")
            if kind in one.COUNTED:
                arm.fail((number[at_kind] != 0) & (referent[at_kind] == 0), _MALFORMED, f"{field}.pElems")
        if arm.ndr64:
            arm.align(8)
        part.join(at_kind, arm)
    cursors.join(index, part)
    return _Elements(index, vt, number, negative, referent)


def _number(cursors: Cursors, vt: int, field: str) -> tuple[npt.NDArray[np.uint64], Column]:
    """Return numbers of one type, the negative ones as their 64-bit two's complement."""
    size = one.NUMBERS[vt]
    values = cursors.uint(size, field)
    if vt not in one.SIGNED:
        return values.astype(np.uint64), np.zeros(len(values), np.bool_)
    signed = values.astype(f"u{size}").view(f"i{size}")
    return signed.astype(np.int64).view(np.uint64), signed < 0


def _pointees(cursors: Cursors, field: str, head: _Elements) -> npt.NDArray[Any]:
    """Follow the pointers of the elements at one place; the values that are not numbers, as objects."""
    objects: npt.NDArray[Any] = np.full(len(head.owner), None, object)
    for kind in np.unique(head.vt).tolist():
        ours = head.vt == kind
        if kind in one.COUNTED:
            for place in np.flatnonzero(ours).tolist():
                objects[place] = b"" if kind == one.VT_BLOB else []
        ours &= (head.referent != 0) & cursors.live[head.owner]
        if not ours.any():
            continue
        places = np.flatnonzero(ours)
        which = np.zeros(len(cursors.rows), np.bool_)
        which[head.owner[places]] = True
        index, part = cursors.subset(which)  # in the order of head.owner, which ascends
        for place, value in zip(places.tolist(), _read(part, field, kind, head.number[places]), strict=True):
            objects[place] = value
        cursors.join(index, part)
    return objects


def _read(cursors: Cursors, field: str, vt: int, counts: npt.NDArray[np.uint64]) -> list[Any]:
    """Read what a pointer of one type points to: one value per row, anything for rows that fail."""
    if vt == one.VT_LPWSTR:
        cursors.struct_align()
        return list(strings(cursors, field))
    if vt == one.VT_CLSID:
        cursors.align(4)
        raw = cursors.raw(16, field)
        if cursors.big is not None:
            raw = np.where(cursors.big[:, None], raw[:, GUID_BIG], raw)
        texts: list[Any] = guid_text(raw).to_pylist()
        return texts
    cursors.struct_align()
    at = cursors.position
    most = cursors.word(f"{field}.max_count")
    cursors.fail(most.astype(np.uint64) != counts, _MALFORMED, f"{field}.max_count", at)
    values: list[Any] = [None] * len(counts)
    if vt == one.VT_BLOB:
        start = cursors.take(counts, field)
        for row in np.flatnonzero(cursors.live).tolist():
            values[row] = cursors.data[start[row] : start[row] + int(counts[row])].tobytes()
        return values
    for row in np.flatnonzero(cursors.live).tolist():
        count = int(counts[row])
        values[row] = _alone(cursors, row, lambda cursor, n=count: one.vector(cursor, vt, n, field))  # type: ignore[misc]
    return values


def _array(cursors: Cursors, field: str, row: int, count: int) -> list[one.Variant]:
    """Read a long array of one row."""
    items: list[one.Variant] | None = _alone(cursors, row, lambda cursor: one.elements(cursor, count, field, 0))
    return items or []


def _alone(cursors: Cursors, row: int, read: Callable[[Cursor], Any]) -> Any:  # noqa: ANN401  (any variant's value)
    """Read from where one row's cursor stands with a reader of single values; None where that fails."""
    start = int(cursors.start[row])
    big = cursors.big is not None and bool(cursors.big[row])
    stub = memoryview(cursors.data[start : int(cursors.end[row])].data)
    cursor = Cursor(stub, ndr64=cursors.ndr64, big_endian=big)
    cursor.pos = int(cursors.position[row]) - start
    try:
        return read(cursor)
    except DecodeError as error:
        at = np.full(len(cursors.rows), start + error.offset)
        cursors.fail(np.arange(len(cursors.rows)) == row, _CODE[error.code], error.field, at)
        return None
    finally:
        cursors.position[row] = start + cursor.pos
