"""One method's stubs, a column at a time: bytes to values by the tables of ``method.py``."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from udfs.stubs import arrays, structures
from udfs.stubs.column import CODES, Bools, Cursors, Ints, Values, buffer_of
from udfs.stubs.method import PADDED, PLAUSIBLE, Kind, Method, Param

_STRUCTURE_COLUMNS: Final = {
    Kind.READ_DESC: ("queue_handle", "cursor_handle", "action", "timeout_ms", "queue_descriptor", "request_id",
                     "arrive_time", "packet_bytes"),
    Kind.QUEUE_FORMAT: ("queue_format_type", "queue_format_name"),
    Kind.QUEUE_FORMAT_POINTER: ("queue_format_type", "queue_format_name"),
    Kind.MANAGED_OBJECT: ("object_type", "queue_format_type", "queue_format_name"),
    Kind.SECTIONS: (*arrays.SECTION_TYPES, "packet_bytes"),
}  # fmt: skip


class Stubs:
    """A column of stubs: its buffer, offsets, which rows have one, and which are big-endian."""

    def __init__(self, stubs: pa.Array, big: Bools) -> None:
        self.data, self.offsets = buffer_of(stubs)
        self.present = np.asarray(stubs.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        self.big = big


def _attempt(
    method: Method, direction: str, at: Stubs, rows: Ints, out: Values, *, ndr64: bool, lenient: bool
) -> Cursors:
    begin, end = at.offsets[rows], at.offsets[rows + 1]
    cursors = Cursors(at.data, rows, begin, end, out, ndr64=ndr64, big=at.big[rows], lenient=lenient)
    structures.read(cursors, method.params(direction))
    return cursors


def read_rows(method: Method, direction: str, stubs: Stubs, rows: Ints, out: Values, *, ndr64: bool) -> None:
    """Read the stubs of ``rows`` into ``out``; rows without a stub stay as they are."""
    rows = rows[stubs.present[rows]]
    if not len(rows):
        return
    cursors = _attempt(method, direction, stubs, rows, out, ndr64=ndr64, lenient=False)
    pads = any(param.kind in PADDED for param in method.params(direction))
    if not ndr64 or not pads or cursors.whole:
        return
    # Peers are known that leave out the padding after a queue format: read so where it makes sense, and say it (D19).
    failed = rows[~cursors.live]
    again = Values(out.rows)
    lenient = _attempt(method, direction, stubs, failed, again, ndr64=True, lenient=True)
    if lenient.missing_pad is None:
        return
    missing = np.where(lenient.live, lenient.missing_pad, -1)
    for name, most in PLAUSIBLE.items():
        if name in again.values:
            missing[~np.isin(again.values[name][failed], most)] = -1
    fits = failed[missing >= 0]
    again.code[fits] = CODES.index("malformed")
    again.field[fits] = next(p.name for p in method.params(direction) if p.kind in PADDED) + " (padding)"
    again.offset[fits] = missing[missing >= 0]
    which = np.zeros(out.rows, np.bool_)
    which[fits] = True
    out.take_from(again, which)


def columns_of(params: tuple[Param, ...]) -> tuple[str, ...]:
    """Return the columns that parameters fill, in order, each once."""
    names: list[str] = []
    for param in params:
        if param.kind is Kind.READ_DESC2:
            names += ("sequence_id", *_STRUCTURE_COLUMNS[Kind.READ_DESC])
        elif param.kind in _STRUCTURE_COLUMNS:
            names += _STRUCTURE_COLUMNS[param.kind]
            if param.column == "queue":
                names.append("queue")
        elif param.kind is Kind.TRANSFER_2 and param.column == "receive":
            names += ("timeout_ms", "action", "cursor_handle")
        elif param.column:
            names.append(param.column)
    return tuple(dict.fromkeys(names))


def decode(
    method: Method,
    direction: str,
    stubs: pa.Array,
    *,
    ndr64: bool = False,
    big_endian: bool | Bools = False,
    packets: bool = False,
) -> pa.StructArray:
    """Decode the stubs of one method and direction: one struct row out per row in.

    ``stubs`` is a binary or large_binary array, ``direction`` "request" or "response", ``big_endian`` a flag or a
    mask of rows. The struct holds the parameters by column (null where not read), ``packet`` when asked for, and
    ``errors``: empty when the stub was used up to its last byte. A null stub gives nulls and no error.
    """
    rows = len(stubs)
    column = Stubs(stubs, np.broadcast_to(np.asarray(big_endian, np.bool_), rows))
    values = Values(rows)
    read_rows(method, direction, column, np.arange(rows), values, ndr64=ndr64)
    everywhere = np.ones(rows, np.bool_)
    out: dict[str, pa.Array] = {}
    for name in columns_of(method.params(direction)):
        if name in arrays.SECTION_TYPES:
            out.update(arrays.sections(values, everywhere))
        else:
            out[name] = column_of(values, name, everywhere)
    if packets:
        out["packet"] = arrays.packets(values, column.data, everywhere)
    out["errors"] = arrays.errors([("", values)], rows)
    return pa.StructArray.from_arrays(list(out.values()), names=list(out))


def column_of(values: Values, name: str, keep: Bools) -> pa.Array:
    """Return what was read of a column that is not of sections, null where not ``keep``."""
    if name in arrays.LIST_TYPES:
        return arrays.numbers(values, name, keep)
    if name == "values":
        return arrays.variants(values, name, keep)
    if name in values.values:
        return arrays.column(name, values.values[name], values.valid[name] & keep)
    return pa.nulls(values.rows, arrays.COLUMN_TYPES[name])
