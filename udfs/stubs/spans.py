"""Spans of a column's buffer as Arrow arrays: bytes cut out, UTF-16 as text. No loop over rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.stubs.column import Bools, Ints

Units = npt.NDArray[np.uint16]

_INT32_MOST = (1 << 31) - 1


def cut(data: npt.NDArray[np.uint8], at: Ints, size: Ints, which: Bools) -> pa.Array:
    """Return ``size`` bytes of ``data`` from ``at`` per row as binary or large_binary; null where not ``which``.

    The spans of ``which`` do not overlap and stand in the order of rows. Arrow copies them: spans and the gaps
    between them are an array without copying, of which every second element is taken.
    """
    rows = len(at)
    if not rows or not which.any():
        return pa.nulls(rows, pa.binary())
    wide = len(data) > _INT32_MOST
    chosen = np.flatnonzero(which)
    first = at if len(chosen) == rows else at[chosen]
    offsets = np.empty(2 * len(chosen) + 1, np.int64 if wide else np.int32)
    offsets[:-1:2] = first
    offsets[1::2] = first + (size if len(chosen) == rows else size[chosen])
    offsets[-1] = offsets[-2]
    kind = pa.large_binary() if wide else pa.binary()
    # Element 2k is span k, element 2k + 1 the gap after it.
    both = pa.Array.from_buffers(kind, 2 * len(chosen), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    if len(chosen) == rows:
        return both.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32)))
    index = np.zeros(rows, np.int32)
    index[chosen] = np.arange(0, 2 * len(chosen), 2)
    return both.take(pa.array(index, mask=~which))


def _flat(raw: pa.Array) -> tuple[Units, Ints]:
    """Return the 16-bit units of a binary array made by ``cut``, and each row's offset among them."""
    wide = pa.types.is_large_binary(raw.type)
    _, offsets, values = raw.buffers()
    at = np.frombuffer(offsets, np.int64 if wide else np.int32)[raw.offset : raw.offset + len(raw) + 1]
    first, last = int(at[0]), int(at[-1])
    units = np.frombuffer(values, np.uint8)[first:last].view("<u2") if last > first else np.zeros(0, "<u2")
    return units, (at.astype(np.int64) - first) >> 1


def _whole_pairs(units: Units, offsets: Ints) -> Units:
    """Return the units with every surrogate that has no partner in its own row replaced by U+FFFD."""
    high, low = units & 0xFC00 == 0xD800, units & 0xFC00 == 0xDC00
    pair = np.zeros(len(units), np.bool_)
    pair[:-1] = high[:-1] & low[1:]
    ends = offsets[1:-1] - 1
    pair[ends[ends >= 0]] = False  # the last unit of a row has no partner in the next one
    second = np.zeros(len(units), np.bool_)
    second[1:] = pair[:-1]
    lone = (high & ~pair) | (low & ~second)
    return np.where(lone, 0xFFFD, units).astype("<u2")


def _bitmap(valid: Bools) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def first_unit(data: npt.NDArray[np.uint8], at: Ints, which: Bools) -> Units:
    """Return the 16-bit unit at each offset of ``which``, 0 in the other rows."""
    if not which.any():
        return np.zeros(len(at), np.uint16)
    view = np.ndarray(len(data) - 1, "<u2", data, strides=(1,))
    return np.where(which, view[np.where(which, at, 0)], 0)


def utf16(data: npt.NDArray[np.uint8], at: Ints, size: Ints, which: Bools) -> pa.Array:
    """Return UTF-16LE text of ``size`` bytes (an odd one is left out) to the first NUL; null where not ``which``."""
    if not which.any():
        return pa.nulls(len(at), pa.string())
    size = np.where(which, size & ~1, 0)
    last = np.where(size >= 2, at + size - 2, 0)
    view = np.ndarray(len(data) - 1, "<u2", data, strides=(1,))
    size = np.where((size >= 2) & (view[last] == 0), size - 2, size)
    raw = cut(data, at, size, which)
    units, offsets = _flat(raw)
    zeros = np.flatnonzero(units == 0)
    if len(zeros):  # text after a NUL: cut again, now where the text ends
        place = np.append(zeros, len(units))[np.searchsorted(zeros, offsets[:-1])]
        ends = np.minimum(place, offsets[1:])
        return utf16(data, at, np.where(which, 2 * (ends - offsets[:-1]), 0), which)
    if not len(units) or units.max() < 0x80:
        octets, ends = units.astype(np.uint8), offsets
    else:
        units = _whole_pairs(units, offsets)
        octets = np.frombuffer(units.tobytes().decode("utf-16-le").encode(), np.uint8)
        width = 1 + (units >= 0x80).astype(np.int64) + (units >= 0x800)
        width[units & 0xFC00 == 0xD800] = 4  # a pair is 4 bytes, counted with its first half
        width[units & 0xFC00 == 0xDC00] = 0
        ends = np.concatenate([[0], np.cumsum(width)])[offsets]
    if ends[-1] > _INT32_MOST:
        kind = pa.large_string()
        text = pa.Array.from_buffers(kind, len(raw), [_bitmap(which), pa.py_buffer(ends), pa.py_buffer(octets)])
        return text.cast(pa.string())
    parts = [_bitmap(which), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(octets)]
    return pa.Array.from_buffers(pa.string(), len(raw), parts)
