"""A column of message packets, and functions by which cursors read header records of fixed layout from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from udfs.array_types import Bools, Ints, Octets
from udfs.stubs.column_cursors import MALFORMED_CODE, AnyArray, ColumnCursors, DecodedColumns


@dataclass
class PacketColumn:
    """A column of message packets: bounds in ``data``, protocol, and truncation by the reader's size limit.

    ``is_in_sections``: the packet came in two sections or as the first of two; the first one ends at
    ``first_section_end`` and lacks ``missing_bytes``. ``srmp_limited``: the limit was on the compound message, not on
    the body.
    """

    data: Octets
    start: Ints
    end: Ints
    is_from_remote_read: Bools
    over_rpc: Bools
    is_in_sections: Bools
    srmp_limited: Bools
    first_section_end: Ints
    missing_bytes: Ints


def write_values(cursors: ColumnCursors, name: str, values: AnyArray) -> None:
    """Store values of the live rows; without a copy if all rows of the column are live."""
    if cursors.all_live and len(cursors.rows) == cursors.out.rows:
        cursors.out.values[name], cursors.out.valid[name] = values, np.ones(len(values), np.bool_)
    else:
        cursors.store(name, values)


def read_record(cursors: ColumnCursors, name: str, kind: np.dtype[np.void]) -> AnyArray:
    """Read a record of type ``kind`` per row; undefined in rows with an error."""
    at = cursors.advance(kind.itemsize, name)
    view = np.ndarray(len(cursors.data) - kind.itemsize + 1, f"V{kind.itemsize}", cursors.data, strides=(1,))
    return view[at].view(kind)


def mark_header_start(cursors: ColumnCursors, name: str) -> None:
    """Store the start offset of a header, in rows with at least one byte of it."""
    begun = cursors.position < cursors.end
    if begun.all():
        write_values(cursors, f"@{name}", cursors.position.copy())
    else:
        begun &= cursors.live
        cursors.out.store(f"@{name}", cursors.rows[begun], cursors.position[begun])


def read_header(cursors: ColumnCursors, name: str, kind: np.dtype[np.void]) -> AnyArray:
    """Read the fixed part of the header ``name`` and store it, with its start offset."""
    mark_header_start(cursors, name)
    records = read_record(cursors, name, kind)
    write_values(cursors, name, records)
    return records


def align_to_4(cursors: ColumnCursors, base: Ints) -> None:
    """Skip to the next multiple of 4 bytes from ``base``, at most to the end: the last padding may be missing."""
    cursors.position = np.minimum(
        cursors.position + (base - cursors.position) % 4, np.maximum(cursors.end, cursors.position)
    )


def peek_uint16(cursors: ColumnCursors, at: Ints, there: Bools) -> AnyArray:
    """Return the 16-bit number at a buffer offset without moving the cursors; 0 in rows that are not ``there``."""
    view = np.ndarray(len(cursors.data) - 1, "<u2", cursors.data, strides=(1,))
    return view[at] if there.all() else np.where(there, view[np.where(there, at, 0)], 0)


def peek_uint32(cursors: ColumnCursors, at: Ints, there: Bools) -> Ints:
    """Return the 32-bit number at a buffer offset without moving the cursors; 0 in rows that are not ``there``."""
    view = np.ndarray(len(cursors.data) - 3, "<u4", cursors.data, strides=(1,))
    return np.where(there, view[np.where(there, at, 0)], 0).astype(np.int64)


def note_wrong_size(soft: DecodedColumns, cursors: ColumnCursors, which: Bools, field: str, at: Ints) -> None:
    """Record the error of a size that reading does not need, at a buffer offset: the row is read on."""
    index = np.flatnonzero(which & cursors.live)
    record_first_error(soft, cursors.rows[index], MALFORMED_CODE, field, (at - cursors.start)[index])


def record_first_error(soft: DecodedColumns, rows: Ints, code: int, field: str, offset: int | Ints) -> None:
    """Record an error in ``rows``, unless they already have one."""
    free = soft.error_code[rows] == 0
    soft.error_offset[rows[free]] = offset if isinstance(offset, int) else offset[free]
    soft.error_field[rows[free]] = field
    soft.error_code[rows[free]] = code


def values_written(out: DecodedColumns, name: str, rows: Ints) -> Ints:
    """Return the offsets or sizes stored under ``name`` for ``rows``; 0 where there is none."""
    if name not in out.values:
        return np.zeros(len(rows), np.int64)
    return np.where(out.valid[name][rows], out.values[name][rows], 0)
