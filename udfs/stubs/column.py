"""Vectors of cursors over a column of stubs, and what they read, still as numpy arrays.

``Cursors`` stands at one position per row; a read moves all of them at once. A row whose bytes do not fit gets its
first error and takes no further part: its position stays where nothing can be read out of bounds. All positions are
offsets into the one buffer that an Arrow binary array keeps its values in; nothing is copied to cut a stub out.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.errors import MALFORMED, TRUNCATED, UNSUPPORTED

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Column = npt.NDArray[Any]

CODES: Final = (None, TRUNCATED, MALFORMED, UNSUPPORTED)
_UNSIGNED: Final = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
_SAFE: Final = 64  # bytes: more than any single read, so that offset 0 can always be gathered from


def buffer_of(stubs: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return the bytes of a binary or large_binary array and its n + 1 offsets into them, without copying values."""
    wide = pa.types.is_large_binary(stubs.type)
    _, offsets, values = stubs.buffers()
    first, rows = stubs.offset, len(stubs)
    if not rows:
        return np.zeros(_SAFE, np.uint8), np.zeros(1, np.int64)
    at = np.frombuffer(offsets, np.int64 if wide else np.int32)[first : first + rows + 1].astype(np.int64)
    data = np.frombuffer(values, np.uint8) if values is not None else np.zeros(0, np.uint8)
    if len(data) < _SAFE:
        data = np.concatenate([data, np.zeros(_SAFE, np.uint8)])
    return data, at


class Values:
    """What was read, by column and row: numpy values, and whether the row has one. And each row's error, if any."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.values: dict[str, Column] = {}
        self.valid: dict[str, Bools] = {}
        self.code = np.zeros(rows, np.int8)  # index into CODES
        self.field = np.full(rows, None, object)
        self.offset = np.zeros(rows, np.int64)
        # What a row has any number of, by name: equally long arrays, the first the row of each element. "sections":
        # row, type, allocated, size; "spans" of packets in the buffer: row, start, bytes; and others of their readers.
        self.flats: dict[str, list[tuple[Column, ...]]] = {}
        self.noted: list[tuple[Ints, str, Ints]] = []  # rows, field, offsets of what was read against the layout

    def put(self, name: str, rows: Ints, values: Column) -> None:
        """Store ``values`` of the column ``name`` in ``rows``."""
        if name not in self.values:
            self.values[name] = np.zeros((self.rows, *values.shape[1:]), values.dtype)
            self.valid[name] = np.zeros(self.rows, np.bool_)
        if values.dtype.itemsize > self.values[name].dtype.itemsize:
            self.values[name] = self.values[name].astype(values.dtype)
        self.values[name][rows] = values
        self.valid[name][rows] = True

    def add(self, name: str, *parts: Column) -> None:
        """Store elements that rows have any number of: ``parts[0]`` are their rows."""
        self.flats.setdefault(name, []).append(parts)

    def note(self, rows: Ints, field: str, at: Ints) -> None:
        """Remember that ``rows`` departed from the layout in a known way at the offsets ``at`` and were read on."""
        if len(rows):
            self.noted.append((rows, field, at))

    def settle(self, live: Bools) -> None:
        """Make what was noted of rows that had no error their error, the first of each; ``live`` by row."""
        for rows, field, at in self.noted:
            first = live[rows] & (self.code[rows] == 0)
            self.code[rows[first]] = CODES.index(MALFORMED)
            self.field[rows[first]] = field
            self.offset[rows[first]] = at[first]
        self.noted = []

    def drop(self, rows: Bools, name: str | None = None) -> None:
        """Forget the values (of one column or of all) and the errors of ``rows``."""
        if name is not None:
            if name in self.valid:
                self.valid[name][rows] = False
            return
        for valid in self.valid.values():
            valid[rows] = False
        self.code[rows] = 0
        for flats in self.flats.values():
            flats[:] = [tuple(part[~rows[flat[0]]] for part in flat) for flat in flats]

    def take_from(self, other: Values, rows: Bools) -> None:
        """Replace everything known of ``rows`` by what ``other`` knows of them."""
        self.drop(rows)
        for name, values in other.values.items():
            at = np.flatnonzero(rows & other.valid[name])
            if len(at):
                self.put(name, at, values[at])
        at = np.flatnonzero(rows)
        self.code[at], self.field[at], self.offset[at] = other.code[at], other.field[at], other.offset[at]
        for name, flats in other.flats.items():
            for flat in flats:
                self.add(name, *(part[rows[flat[0]]] for part in flat))


class Cursors:
    """One position per row of a column of stubs.

    ``rows`` are the row numbers in the column, ``start`` and ``end`` their stubs' bounds in ``data``. ``big`` is a
    mask, or None when all rows are little-endian. ``live`` tells the rows without an error.
    """

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        rows: Ints,
        start: Ints,
        end: Ints,
        out: Values,
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
        self.big = big if big is not None and big.any() else None
        self.lenient = lenient
        self.position = start.copy()
        self.live = np.ones(len(rows), np.bool_)
        self.whole = True  # all rows are live: no masks needed
        self.seen: dict[str, Column] = {}
        self.missing_pad: Ints | None = None  # by row: the offset of padding that is not there, or -1

    def subset(self, which: Bools) -> tuple[Ints, Cursors]:
        """Return the cursors of the live rows of ``which``, with their indices here; hand them back to ``join``."""
        index = np.flatnonzero(which & self.live)
        big = None if self.big is None else self.big[index]
        part = Cursors(
            self.data, self.rows[index], self.start[index], self.end[index], self.out,
            ndr64=self.ndr64, big=big, lenient=self.lenient,
        )  # fmt: skip
        part.position = self.position[index]
        return index, part

    def join(self, index: Ints, part: Cursors) -> None:
        """Take positions and errors of a subset back."""
        self.position[index] = part.position
        if not part.whole:
            self.live[index] = part.live
            self.whole = False
        if part.missing_pad is not None:
            if self.missing_pad is None:
                self.missing_pad = np.full(len(self.rows), -1, np.int64)
            self.missing_pad[index] = np.maximum(self.missing_pad[index], part.missing_pad)

    def fail(self, which: Bools, code: int, field: str, at: Ints | None = None) -> None:
        """Give the live rows of ``which`` the error ``CODES[code]`` at the buffer offset ``at``, else at the cursor."""
        which = which & self.live
        if not which.any():
            return
        index = np.flatnonzero(which)
        rows = self.rows[index]
        self.out.code[rows] = code
        self.out.field[rows] = field
        self.out.offset[rows] = (self.position if at is None else at)[index] - self.start[index]
        self.live &= ~which
        self.whole = False

    def align(self, to: int) -> None:
        """Move to the next multiple of ``to`` from the stub's first byte; what is skipped has no content (N19)."""
        if to > 1:
            self.position += (self.start - self.position) % to

    def take(self, size: int | Column, field: str) -> Ints:
        """Pass over ``size`` bytes and return where they begin; in rows without them an error, and offset 0."""
        left = self.end - self.position
        step: int | Column
        if isinstance(size, int) or size.dtype.kind == "i":
            short, step = left < size, size
        else:  # a length from the wire: compared before it is believed, so that nothing can overflow
            short = (left < 0) | (size.astype(np.uint64) > np.maximum(left, 0).astype(np.uint64))
            step = size.astype(np.int64)
        if short.any():
            self.fail(short, 1, field)
        at = self.position if self.whole else np.where(self.live, self.position, 0)
        self.position = self.position + step if self.whole else np.where(self.live, self.position + step, self.end)
        return at

    def uint(self, size: int, field: str) -> Column:
        """Return an aligned unsigned integer of ``size`` bytes per row, 0 in rows that have none."""
        self.align(size)
        at = self.take(size, field)
        # Every offset of the buffer as one integer: numpy gathers unaligned values as fast as aligned ones.
        view = np.ndarray(len(self.data) - size + 1, _UNSIGNED[size], self.data, strides=(1,))
        values: Column = view[at]
        if self.big is not None and size > 1:
            values = np.where(self.big, values.byteswap(), values)
        return values if self.whole else np.where(self.live, values, 0).astype(values.dtype)

    def raw(self, size: int, field: str) -> npt.NDArray[np.uint8]:
        """Return ``size`` bytes per row as they are, shape (rows, size)."""
        at = self.take(size, field)
        view = np.ndarray(len(self.data) - size + 1, f"V{size}", self.data, strides=(1,))
        return view[at].view(np.uint8).reshape(-1, size)

    def word(self, field: str) -> Column:
        """Return a referent id or an array count: 4 bytes in NDR, 8 in NDR64 (rules N3, N4)."""
        return self.uint(8 if self.ndr64 else 4, field)

    def struct_align(self) -> None:
        """Align a structure that holds a pointer."""
        self.align(8 if self.ndr64 else 4)

    def struct_end(self) -> None:
        """Pad the end of a structure that holds a pointer, NDR64 only (rule N7); remember it when reading leniently."""
        if not self.ndr64:
            return
        if not self.lenient:
            self.align(8)
            return
        short = (self.position - self.start) % 8 != 0
        self.missing_pad = np.where(short, self.position - self.start, -1)

    def put(self, name: str | None, values: Column) -> None:
        """Store what the live rows have read under the column ``name``; nothing when it is None."""
        if name is None:
            return
        if self.whole:
            self.out.put(name, self.rows, values)
        else:
            self.out.put(name, self.rows[self.live], values[self.live])
