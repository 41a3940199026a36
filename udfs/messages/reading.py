"""A column of packets and how cursors read headers of it: records of a fixed layout, and where they begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from udfs.stubs.column import Bools, Column, Cursors, Ints, Values

TRUNCATED: Final = 1  # indices into CODES of udfs.stubs.column
MALFORMED: Final = 2
UNSUPPORTED: Final = 3


@dataclass
class Packets:
    """A column of packets, per row: bounds in ``data``, protocol, and where a section was cut short.

    ``split``: the packet came in sections; its first one ends at ``first`` and lacks ``missing`` bytes that the
    reader's limit left out; ``srmp`` tells a limit on the compound message from one on the body.
    """

    data: npt.NDArray[np.uint8]
    start: Ints
    end: Ints
    remote_read: Bools
    rpc: Bools
    split: Bools
    srmp: Bools
    first: Ints
    missing: Ints


def keep(c: Cursors, name: str, values: Column) -> None:
    """Store what the live rows have read; as it is, without scattering it over rows, when those are all rows."""
    if c.whole and len(c.rows) == c.out.rows:
        c.out.values[name], c.out.valid[name] = values, np.ones(len(values), np.bool_)
    else:
        c.put(name, values)


def record(c: Cursors, name: str, kind: np.dtype[np.void]) -> Column:
    """Read and return a record of ``kind`` per row; rows without one get whatever stands at offset 0."""
    at = c.take(kind.itemsize, name)
    view = np.ndarray(len(c.data) - kind.itemsize + 1, f"V{kind.itemsize}", c.data, strides=(1,))
    return view[at].view(kind)


def begin(c: Cursors, name: str) -> None:
    """Keep where a header begins, if any of it is there."""
    begun = c.position < c.end
    if begun.all():
        keep(c, f"@{name}", c.position.copy())
    else:
        begun &= c.live
        c.out.put(f"@{name}", c.rows[begun], c.position[begun])


def header(c: Cursors, name: str, kind: np.dtype[np.void]) -> Column:
    """Read the fixed part of the header ``name`` and keep it, with where it begins."""
    begin(c, name)
    records = record(c, name, kind)
    keep(c, name, records)
    return records


def align(c: Cursors, base: Ints) -> None:
    """Move on to the next multiple of 4 bytes from ``base``; padding that the packet ends before is not asked for."""
    c.position = np.minimum(c.position + (base - c.position) % 4, np.maximum(c.end, c.position))


def u16(c: Cursors, at: Ints, there: Bools) -> Column:
    """Return the 16-bit number at an offset of the buffer, 0 where it is not ``there``."""
    view = np.ndarray(len(c.data) - 1, "<u2", c.data, strides=(1,))
    return view[at] if there.all() else np.where(there, view[np.where(there, at, 0)], 0)


def u32(c: Cursors, at: Ints, there: Bools) -> Ints:
    """Return the 32-bit number at an offset of the buffer, 0 where it is not ``there``."""
    view = np.ndarray(len(c.data) - 3, "<u4", c.data, strides=(1,))
    return np.where(there, view[np.where(there, at, 0)], 0).astype(np.int64)


def note(soft: Values, rows: Ints, code: int, field: str, offset: int | Ints) -> None:
    """Keep an error that ends no chain, the first one of each row."""
    free = soft.code[rows] == 0
    soft.offset[rows[free]] = offset if isinstance(offset, int) else offset[free]
    soft.field[rows[free]] = field
    soft.code[rows[free]] = code


def values_of(out: Values, name: str, rows: Ints) -> Ints:
    """Return what was kept under ``name`` in ``rows``, 0 where nothing was."""
    if name not in out.values:
        return np.zeros(len(rows), np.int64)
    return np.where(out.valid[name][rows], out.values[name][rows], 0)
