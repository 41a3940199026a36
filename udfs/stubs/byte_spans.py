"""Spans (offset and size per row) of one byte buffer to Arrow arrays: binary values and UTF-16 text."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.array_types import Bools, Ints, Octets

Utf16Units = npt.NDArray[np.uint16]

_INT32_MAX: Final = (1 << 31) - 1


def slice_spans(data: Octets, at: Ints, size: Ints, mask: Bools) -> pa.Array:
    """Return ``size`` bytes of ``data`` from ``at`` per row as binary or large_binary; null where not ``mask``.

    The spans of ``mask`` must be in row order and must not overlap. Then spans and gaps alternate in the buffer: an
    Arrow array over both needs no copy, and one ``take`` of every second element copies the spans.
    """
    rows = len(at)
    if not rows or not mask.any():
        return pa.nulls(rows, pa.binary())
    wide = len(data) > _INT32_MAX
    chosen = np.flatnonzero(mask)
    first = at if len(chosen) == rows else at[chosen]
    offsets = np.empty(2 * len(chosen) + 1, np.int64 if wide else np.int32)
    offsets[:-1:2] = first
    offsets[1::2] = first + (size if len(chosen) == rows else size[chosen])
    offsets[-1] = offsets[-2]
    kind = pa.large_binary() if wide else pa.binary()
    # Element 2k is span k, element 2k + 1 the gap behind it.
    both = pa.Array.from_buffers(kind, 2 * len(chosen), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    if len(chosen) == rows:
        return both.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32)))
    index = np.zeros(rows, np.int32)
    index[chosen] = np.arange(0, 2 * len(chosen), 2)
    return both.take(pa.array(index, mask=~mask))


def _utf16_units(raw: pa.Array) -> tuple[Utf16Units, Ints]:
    """Return the 16-bit units of a binary array that ``slice_spans`` made, and the unit offsets of its rows."""
    wide = pa.types.is_large_binary(raw.type)
    _, offsets, values = raw.buffers()
    at = np.frombuffer(offsets, np.int64 if wide else np.int32)[raw.offset : raw.offset + len(raw) + 1]
    first, last = int(at[0]), int(at[-1])
    units = np.frombuffer(values, np.uint8)[first:last].view("<u2") if last > first else np.zeros(0, "<u2")
    return units, (at.astype(np.int64) - first) >> 1


def _replace_lone_surrogates(units: Utf16Units, offsets: Ints) -> Utf16Units:
    """Return the units with U+FFFD in place of each surrogate that has no partner within its row."""
    high, low = units & 0xFC00 == 0xD800, units & 0xFC00 == 0xDC00
    pair = np.zeros(len(units), np.bool_)
    pair[:-1] = high[:-1] & low[1:]
    ends = offsets[1:-1] - 1
    pair[ends[ends >= 0]] = False  # the first unit of the next row is no partner
    second = np.zeros(len(units), np.bool_)
    second[1:] = pair[:-1]
    lone = (high & ~pair) | (low & ~second)
    return np.where(lone, 0xFFFD, units).astype("<u2")


def _bitmap(valid: Bools) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def first_utf16_unit(data: Octets, at: Ints, mask: Bools) -> Utf16Units:
    """Return the 16-bit unit at each offset; 0 in rows that are not ``mask``."""
    if not mask.any():
        return np.zeros(len(at), np.uint16)
    view = np.ndarray(len(data) - 1, "<u2", data, strides=(1,))
    return np.where(mask, view[np.where(mask, at, 0)], 0)


def decode_utf16(data: Octets, at: Ints, size: Ints, mask: Bools) -> pa.Array:
    """Decode UTF-16LE text of ``size`` bytes per row, up to the first NUL; null where not ``mask``.

    An odd last byte is ignored, a lone surrogate becomes U+FFFD.
    """
    if not mask.any():
        return pa.nulls(len(at), pa.string())
    size = np.where(mask, size & ~1, 0)
    last = np.where(size >= 2, at + size - 2, 0)
    view = np.ndarray(len(data) - 1, "<u2", data, strides=(1,))
    size = np.where((size >= 2) & (view[last] == 0), size - 2, size)
    raw = slice_spans(data, at, size, mask)
    units, offsets = _utf16_units(raw)
    zeros = np.flatnonzero(units == 0)
    if len(zeros):  # a NUL within the text: decode again, up to it
        place = np.append(zeros, len(units))[np.searchsorted(zeros, offsets[:-1])]
        ends = np.minimum(place, offsets[1:])
        return decode_utf16(data, at, np.where(mask, 2 * (ends - offsets[:-1]), 0), mask)
    if not len(units) or units.max() < 0x80:
        octets, ends = units.astype(np.uint8), offsets
    else:
        units = _replace_lone_surrogates(units, offsets)
        octets = np.frombuffer(units.tobytes().decode("utf-16-le").encode(), np.uint8)
        width = 1 + (units >= 0x80).astype(np.int64) + (units >= 0x800)
        width[units & 0xFC00 == 0xD800] = 4  # a surrogate pair takes 4 bytes, counted at its first half
        width[units & 0xFC00 == 0xDC00] = 0
        ends = np.concatenate([[0], np.cumsum(width)])[offsets]
    if ends[-1] > _INT32_MAX:
        kind = pa.large_string()
        text = pa.Array.from_buffers(kind, len(raw), [_bitmap(mask), pa.py_buffer(ends), pa.py_buffer(octets)])
        return text.cast(pa.string())
    parts = [_bitmap(mask), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(octets)]
    return pa.Array.from_buffers(pa.string(), len(raw), parts)
