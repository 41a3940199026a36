"""One read position per row of a binary column, and the decoded values as numpy arrays.

A read of ``ColumnCursors`` moves the cursors of all rows at once. A row whose bytes do not fit the layout gets its
first error and is then left out of further reads: its position stays within bounds. Positions are offsets into the
values buffer of the Arrow binary array; no stub is copied.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.array_types import Bools, Ints, Octets
from udfs.errors import MALFORMED, TRUNCATED, UNSUPPORTED

AnyArray = npt.NDArray[Any]

ERROR_CODES: Final = (None, TRUNCATED, MALFORMED, UNSUPPORTED)
TRUNCATED_CODE: Final = 1  # indices into ERROR_CODES
MALFORMED_CODE: Final = 2
UNSUPPORTED_CODE: Final = 3
_UNSIGNED: Final = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
_MIN_BUFFER_BYTES: Final = 64  # more than any single read: rows with an error read at offset 0


def binary_buffer(stubs: pa.Array) -> tuple[Octets, Ints]:
    """Return the values buffer of a binary or large_binary array and the n + 1 row offsets into it, without a copy."""
    wide = pa.types.is_large_binary(stubs.type)
    _, offsets, values = stubs.buffers()
    first, rows = stubs.offset, len(stubs)
    if not rows:
        return np.zeros(_MIN_BUFFER_BYTES, np.uint8), np.zeros(1, np.int64)
    at = np.frombuffer(offsets, np.int64 if wide else np.int32)[first : first + rows + 1].astype(np.int64)
    data = np.frombuffer(values, np.uint8) if values is not None else np.zeros(0, np.uint8)
    if len(data) < _MIN_BUFFER_BYTES:
        data = np.concatenate([data, np.zeros(_MIN_BUFFER_BYTES, np.uint8)])
    return data, at


class DecodedColumns:
    """Decoded values by column, a validity mask for each, and at most one error per row."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.values: dict[str, AnyArray] = {}
        self.valid: dict[str, Bools] = {}
        self.error_code = np.zeros(rows, np.int8)  # an index into ERROR_CODES
        self.error_field = np.full(rows, None, object)
        self.error_offset = np.zeros(rows, np.int64)
        # Values of which a row has any number, by name: arrays of one length, the first holds the row of each element.
        # "sections": row, type, allocated, size. "spans" (packets in the buffer): row, start, bytes.
        self.elements: dict[str, list[tuple[AnyArray, ...]]] = {}
        self.deviations: list[tuple[Ints, str, Ints]] = []  # rows, field, offsets of tolerated departures from the IDL

    def store(self, name: str, rows: Ints, values: AnyArray) -> None:
        """Store ``values`` of the column ``name`` in ``rows``."""
        if name not in self.values:
            self.values[name] = np.zeros((self.rows, *values.shape[1:]), values.dtype)
            self.valid[name] = np.zeros(self.rows, np.bool_)
        if values.dtype.itemsize > self.values[name].dtype.itemsize:
            self.values[name] = self.values[name].astype(values.dtype)
        self.values[name][rows] = values
        self.valid[name][rows] = True

    def append_elements(self, name: str, *parts: AnyArray) -> None:
        """Append elements of a column with any number of values per row; ``parts[0]`` holds their rows."""
        self.elements.setdefault(name, []).append(parts)

    def note_deviation(self, rows: Ints, field: str, at: Ints) -> None:
        """Record that ``rows`` depart from the IDL at the offsets ``at`` in a known, tolerated way."""
        if len(rows):
            self.deviations.append((rows, field, at))

    def report_deviations(self, live: Bools) -> None:
        """Turn the first recorded deviation of each row without an error into its error; ``live`` is a mask of rows."""
        for rows, field, at in self.deviations:
            first = live[rows] & (self.error_code[rows] == 0)
            self.error_code[rows[first]] = ERROR_CODES.index(MALFORMED)
            self.error_field[rows[first]] = field
            self.error_offset[rows[first]] = at[first]
        self.deviations = []

    def discard(self, rows: Bools, name: str | None = None) -> None:
        """Discard one column of ``rows``, or all their values and errors."""
        if name is not None:
            if name in self.valid:
                self.valid[name][rows] = False
            return
        for valid in self.valid.values():
            valid[rows] = False
        self.error_code[rows] = 0
        for flats in self.elements.values():
            flats[:] = [tuple(part[~rows[flat[0]]] for part in flat) for flat in flats]

    def replace_rows_from(self, other: DecodedColumns, rows: Bools) -> None:
        """Replace all values and errors of ``rows`` by those of ``other``."""
        self.discard(rows)
        for name, values in other.values.items():
            at = np.flatnonzero(rows & other.valid[name])
            if len(at):
                self.store(name, at, values[at])
        at = np.flatnonzero(rows)
        self.error_code[at], self.error_field[at], self.error_offset[at] = (
            other.error_code[at],
            other.error_field[at],
            other.error_offset[at],
        )
        for name, flats in other.elements.items():
            for flat in flats:
                self.append_elements(name, *(part[rows[flat[0]]] for part in flat))


class ColumnCursors:
    """One read position per row of a column of stubs.

    ``rows`` are row numbers in the column, ``start`` and ``end`` the bounds of their stubs in ``data``. ``big_endian``
    is a mask, or None when all rows are little-endian. ``live`` is the mask of rows without an error.
    """

    def __init__(
        self,
        data: Octets,
        rows: Ints,
        start: Ints,
        end: Ints,
        out: DecodedColumns,
        *,
        ndr64: bool = False,
        big: Bools | None = None,
        lenient: bool = False,
    ) -> None:
        self.data = data
        self.rows = rows
        self.start = start
        self.end = end
        self.out = out
        self.ndr64 = ndr64
        self.big_endian = big if big is not None and big.any() else None
        self.lenient = lenient
        self.position = start.copy()
        self.live = np.ones(len(rows), np.bool_)
        self.all_live = True  # then no masks are needed
        self.sizes: dict[str, AnyArray] = {}
        self.missing_padding: Ints | None = None  # by row: the offset at which padding is missing, or -1

    def subset(self, which: Bools) -> tuple[Ints, ColumnCursors]:
        """Return indices and cursors of the live rows of ``which``; give both to ``merge_subset`` afterwards."""
        index = np.flatnonzero(which & self.live)
        big = None if self.big_endian is None else self.big_endian[index]
        part = ColumnCursors(
            self.data, self.rows[index], self.start[index], self.end[index], self.out,
            ndr64=self.ndr64, big=big, lenient=self.lenient,
        )  # fmt: skip
        part.position = self.position[index]
        return index, part

    def merge_subset(self, index: Ints, part: ColumnCursors) -> None:
        """Copy positions and errors of a subset back."""
        self.position[index] = part.position
        if not part.all_live:
            self.live[index] = part.live
            self.all_live = False
        if part.missing_padding is not None:
            if self.missing_padding is None:
                self.missing_padding = np.full(len(self.rows), -1, np.int64)
            self.missing_padding[index] = np.maximum(self.missing_padding[index], part.missing_padding)

    def fail(self, which: Bools, code: int, field: str, at: Ints | None = None) -> None:
        """Set the error ``ERROR_CODES[code]`` for the live rows of ``which``.

        ``at`` holds buffer offsets; without it the error is at the cursors.
        """
        which = which & self.live
        if not which.any():
            return
        index = np.flatnonzero(which)
        rows = self.rows[index]
        self.out.error_code[rows] = code
        self.out.error_field[rows] = field
        self.out.error_offset[rows] = (self.position if at is None else at)[index] - self.start[index]
        self.live &= ~which
        self.all_live = False

    def align(self, to: int) -> None:
        """Skip to the next multiple of ``to``, counted from the first byte of the stub (rule N19)."""
        if to > 1:
            self.position += (self.start - self.position) % to

    def advance(self, size: int | AnyArray, field: str) -> Ints:
        """Skip ``size`` bytes and return their start offsets; rows that have fewer get an error and offset 0."""
        left = self.end - self.position
        step: int | AnyArray
        if isinstance(size, int) or size.dtype.kind == "i":
            short, step = left < size, size
        else:  # an unsigned length from the wire: compare it before use, so that nothing overflows
            short = (left < 0) | (size.astype(np.uint64) > np.maximum(left, 0).astype(np.uint64))
            step = size.astype(np.int64)
        if short.any():
            self.fail(short, TRUNCATED_CODE, field)
        at = self.position if self.all_live else np.where(self.live, self.position, 0)
        self.position = self.position + step if self.all_live else np.where(self.live, self.position + step, self.end)
        return at

    def read_uint(self, size: int, field: str) -> AnyArray:
        """Read an aligned unsigned integer of ``size`` bytes per row; 0 in rows with an error."""
        self.align(size)
        at = self.advance(size, field)
        # A view with stride 1: every offset of the buffer read as an integer. Unaligned gathers are as fast as aligned.
        view = np.ndarray(len(self.data) - size + 1, _UNSIGNED[size], self.data, strides=(1,))
        values: AnyArray = view[at]
        if self.big_endian is not None and size > 1:
            values = np.where(self.big_endian, values.byteswap(), values)
        return values if self.all_live else np.where(self.live, values, 0).astype(values.dtype)

    def read_bytes(self, size: int, field: str) -> Octets:
        """Read ``size`` bytes per row; returns shape (rows, size)."""
        at = self.advance(size, field)
        view = np.ndarray(len(self.data) - size + 1, f"V{size}", self.data, strides=(1,))
        return view[at].view(np.uint8).reshape(-1, size)

    def read_word(self, field: str) -> AnyArray:
        """Read a referent id or an array count: 4 bytes in NDR, 8 in NDR64 (rules N3, N4)."""
        return self.read_uint(8 if self.ndr64 else 4, field)

    def align_struct(self) -> None:
        """Align a structure that holds a pointer."""
        self.align(8 if self.ndr64 else 4)

    def skip_struct_padding(self) -> None:
        """Skip the padding at the end of a structure that holds a pointer, NDR64 only (rule N7).

        In lenient mode nothing is skipped; ``missing_padding`` gets the offsets instead (doubt D19).
        """
        if not self.ndr64:
            return
        if not self.lenient:
            self.align(8)
            return
        short = (self.position - self.start) % 8 != 0
        self.missing_padding = np.where(short, self.position - self.start, -1)

    def store(self, name: str | None, values: AnyArray) -> None:
        """Store values of the live rows in the column ``name``; None discards them."""
        if name is None:
            return
        if self.all_live:
            self.out.store(name, self.rows, values)
        else:
            self.out.store(name, self.rows[self.live], values[self.live])
