"""Decode an Arrow column of stubs of one method and direction, by the method's declaration in ``idl.py``."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from udfs.array_types import Bools, Ints
from udfs.stubs import parameter_readers, to_arrow
from udfs.stubs.column_cursors import ERROR_CODES, ColumnCursors, DecodedColumns, binary_buffer
from udfs.stubs.idl import PADDED_TYPES, PLAUSIBLE_VALUES, Method, NdrType, Parameter

_STRUCTURE_COLUMNS: Final = {
    NdrType.READ_DESC: ("queue_handle", "cursor_handle", "action", "timeout_ms", "queue_descriptor", "request_id",
                     "arrive_time", "packet_bytes"),
    NdrType.QUEUE_FORMAT: ("queue_format_type", "queue_format_name"),
    NdrType.QUEUE_FORMAT_POINTER: ("queue_format_type", "queue_format_name"),
    NdrType.MANAGED_OBJECT: ("object_type", "queue_format_type", "queue_format_name"),
    NdrType.SECTIONS: (*to_arrow.SECTION_TYPES, "packet_bytes"),
}  # fmt: skip


class StubColumn:
    """A binary column of stubs: buffer, row offsets, the mask of rows that have a stub, the mask of big-endian rows."""

    def __init__(self, stubs: pa.Array, big: Bools) -> None:
        self.data, self.offsets = binary_buffer(stubs)
        self.present = np.asarray(stubs.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        self.big = big


def _read_stubs(
    method: Method, direction: str, at: StubColumn, rows: Ints, out: DecodedColumns, *, ndr64: bool, lenient: bool
) -> ColumnCursors:
    begin, end = at.offsets[rows], at.offsets[rows + 1]
    cursors = ColumnCursors(at.data, rows, begin, end, out, ndr64=ndr64, big=at.big[rows], lenient=lenient)
    parameter_readers.read_parameters(cursors, method.parameters(direction))
    return cursors


def read_stub_rows(
    method: Method, direction: str, stubs: StubColumn, rows: Ints, out: DecodedColumns, *, ndr64: bool
) -> None:
    """Decode the stubs of ``rows`` into ``out``; rows without a stub are skipped."""
    rows = rows[stubs.present[rows]]
    if not len(rows):
        return
    cursors = _read_stubs(method, direction, stubs, rows, out, ndr64=ndr64, lenient=False)
    pads = any(param.ndr_type in PADDED_TYPES for param in method.parameters(direction))
    if not ndr64 or not pads or cursors.all_live:
        return
    # Some peers leave out the padding behind a queue format: try without it, and record that as an error (doubt D19).
    failed = rows[~cursors.live]
    again = DecodedColumns(out.rows)
    lenient = _read_stubs(method, direction, stubs, failed, again, ndr64=True, lenient=True)
    if lenient.missing_padding is None:
        return
    missing = np.where(lenient.live, lenient.missing_padding, -1)
    for name, allowed in PLAUSIBLE_VALUES.items():
        if name in again.values:
            missing[~np.isin(again.values[name][failed], allowed)] = -1
    fits = failed[missing >= 0]
    again.error_code[fits] = ERROR_CODES.index("malformed")
    again.error_field[fits] = (
        next(p.name for p in method.parameters(direction) if p.ndr_type in PADDED_TYPES) + " (padding)"
    )
    again.error_offset[fits] = missing[missing >= 0]
    which = np.zeros(out.rows, np.bool_)
    which[fits] = True
    out.replace_rows_from(again, which)


def parameter_columns(params: tuple[Parameter, ...]) -> tuple[str, ...]:
    """Return the names of the columns that parameters fill, in order, without duplicates."""
    names: list[str] = []
    for param in params:
        if param.ndr_type is NdrType.READ_DESC2:
            names += ("sequence_id", *_STRUCTURE_COLUMNS[NdrType.READ_DESC])
        elif param.ndr_type in _STRUCTURE_COLUMNS:
            names += _STRUCTURE_COLUMNS[param.ndr_type]
            if param.column == "queue":
                names.append("queue")
        elif param.ndr_type is NdrType.TRANSFER_2 and param.column == "receive":
            names += ("timeout_ms", "action", "cursor_handle")
        elif param.column:
            names.append(param.column)
    return tuple(dict.fromkeys(names))


def decode_stubs(
    method: Method,
    direction: str,
    stubs: pa.Array,
    *,
    ndr64: bool = False,
    big_endian: bool | Bools = False,
    packets: bool = False,
) -> pa.StructArray:
    """Decode the stubs of one method and direction: one struct per stub.

    ``stubs`` is a binary or large_binary array, ``direction`` "request" or "response", ``big_endian`` a flag or a mask
    of rows. The struct holds the parameters by column (null where not decoded), ``packet`` if ``packets`` is set, and
    ``errors``, empty if the stub was decoded to its last byte. A null stub gives nulls and no error.
    """
    rows = len(stubs)
    column = StubColumn(stubs, np.broadcast_to(np.asarray(big_endian, np.bool_), rows))
    values = DecodedColumns(rows)
    read_stub_rows(method, direction, column, np.arange(rows), values, ndr64=ndr64)
    everywhere = np.ones(rows, np.bool_)
    out: dict[str, pa.Array] = {}
    for name in parameter_columns(method.parameters(direction)):
        if name in to_arrow.SECTION_TYPES:
            out.update(to_arrow.section_columns(values, everywhere))
        else:
            out[name] = decoded_column(values, name, everywhere)
    if packets:
        out["packet"] = to_arrow.packet_column(values, column.data, everywhere)
    out["errors"] = to_arrow.error_lists([("", values)], rows)
    return pa.StructArray.from_arrays(list(out.values()), names=list(out))


def decoded_column(values: DecodedColumns, name: str, keep: Bools) -> pa.Array:
    """Return one decoded column (none of the ``section_*`` ones) as an Arrow array; null where not ``keep``."""
    if name in to_arrow.LIST_TYPES:
        return to_arrow.number_lists(values, name, keep)
    if name == "values":
        return to_arrow.variant_lists(values, name, keep)
    if name in values.values:
        return to_arrow.value_array(name, values.values[name], values.valid[name] & keep)
    return pa.nulls(values.rows, to_arrow.COLUMN_TYPES[name])
