"""numpy columns to Arrow arrays: hex text, GUID text, numbers, strings. Whole columns at a time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.array_types import Bools, Octets

# Index of each byte of the little-endian form within the big-endian form: of a GUID (u32, u16, u16, 8 octets), and of a
# context handle (a u32, then a GUID). Each order is its own inverse.
GUID_BIG_ENDIAN_ORDER: Final = [3, 2, 1, 0, 5, 4, 7, 6, *range(8, 16)]
HANDLE_BIG_ENDIAN_ORDER: Final = [3, 2, 1, 0, *(4 + place for place in GUID_BIG_ENDIAN_ORDER)]

_HEX: Final = np.array([list(f"{byte:02x}".encode()) for byte in range(256)], np.uint8).view("<u2").reshape(256)
_GUID_GROUPS: Final = ((0, 4), (4, 6), (6, 8), (8, 10), (10, 16))  # bytes of the big-endian form between two dashes


def _fixed_width_strings(characters: Octets, valid: Bools | None) -> pa.Array:
    """Return ASCII rows of one width, shape (rows, width), as a string array; null where not ``valid``."""
    rows, width = characters.shape
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    mask = None if valid is None or valid.all() else _bitmap(valid)
    data = pa.py_buffer(np.ascontiguousarray(characters))
    if offsets[-1] < 1 << 31:
        return pa.Array.from_buffers(pa.string(), rows, [mask, pa.py_buffer(offsets.astype(np.int32)), data])
    return pa.Array.from_buffers(pa.large_string(), rows, [mask, pa.py_buffer(offsets), data]).cast(pa.string())


def _bitmap(valid: Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def hex_strings(raw: Octets, valid: Bools | None = None) -> pa.Array:
    """Return bytes, shape (rows, width), as lower-case hex text; null where not ``valid``."""
    return _fixed_width_strings(_HEX[raw].view(np.uint8).reshape(len(raw), 2 * raw.shape[1]), valid)


def guid_strings(raw: Octets, valid: Bools | None = None) -> pa.Array:
    """Return GUIDs, little-endian bytes of shape (rows, 16), as text with dashes; null where not ``valid``."""
    digits = _HEX[raw[:, GUID_BIG_ENDIAN_ORDER]]
    out = np.full((len(raw), 36), ord("-"), np.uint8)
    at = 0
    for first, last in _GUID_GROUPS:
        width = 2 * (last - first)
        out[:, at : at + width] = np.ascontiguousarray(digits[:, first:last]).view(np.uint8).reshape(-1, width)
        at += width + 1
    return _fixed_width_strings(out, valid)


def number_array(values: npt.NDArray[Any], valid: Bools, to: pa.DataType) -> pa.Array:
    """Return unsigned numbers as int32, int64, decimal128(20, 0) or bool; null where not ``valid``."""
    rows = len(values)
    mask = None if valid.all() else _bitmap(valid)
    if pa.types.is_decimal(to):
        wide = np.zeros((rows, 2), "<u8")
        wide[:, 0] = values
        return pa.Array.from_buffers(to, rows, [mask, pa.py_buffer(wide)])
    if pa.types.is_boolean(to):
        return pa.Array.from_buffers(to, rows, [mask, _bitmap(values != 0)])
    narrow = np.ascontiguousarray(values.astype(to.to_pandas_dtype()))
    return pa.Array.from_buffers(to, rows, [mask, pa.py_buffer(narrow)])


def string_array(values: npt.NDArray[Any], valid: Bools) -> pa.Array:
    """Return Python strings as a string array; null where not ``valid``."""
    return pa.array(values, pa.string(), mask=~valid)


def concat_lists(first: pa.Array, second: pa.Array) -> pa.Array:
    """Concatenate two list columns row by row; null counts as an empty list."""
    if not len(second.flatten()):
        return first
    both = zip(first.to_pylist(), second.to_pylist(), strict=True)
    return pa.array([(one or []) + (two or []) for one, two in both], first.type)
