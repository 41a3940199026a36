"""Records of a fixed layout out of a binary column: what was captured of each, field by field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.array_types import Bools, Octets
from udfs.stubs import arrow_primitives
from udfs.stubs.column_cursors import binary_buffer


@dataclass(frozen=True, slots=True)
class FixedRecords:
    """Records read at one offset of each value of a column; bytes that are not there are zero.

    ``records`` has shape (rows,). ``bytes_seen`` says how many bytes of each were there: a field counts as seen when
    all of its bytes were.
    """

    records: npt.NDArray[Any]
    bytes_seen: npt.NDArray[np.int64]

    @staticmethod
    def read(values: pa.Array, kind: np.dtype[np.void], offset: int = 0) -> FixedRecords:
        """Read a record of type ``kind`` at a byte offset of each value of a binary or large_binary array."""
        data, offsets = binary_buffer(values)
        raw = np.zeros((len(values), kind.itemsize), np.uint8)
        start, end = offsets[:-1] + offset, offsets[1:]
        present = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        seen = np.where(present, np.clip(end - start, 0, kind.itemsize), 0)
        whole = np.flatnonzero(seen == kind.itemsize)
        if len(whole):
            view = np.ndarray(len(data) - kind.itemsize + 1, f"V{kind.itemsize}", data, strides=(1,))
            raw[whole] = view[start[whole]].view(np.uint8).reshape(-1, kind.itemsize)
        for row in np.flatnonzero((seen > 0) & (seen < kind.itemsize)).tolist():
            raw[row, : seen[row]] = data[start[row] : start[row] + seen[row]]
        return FixedRecords(raw.reshape(-1).view(kind), seen)

    def has(self, field: str) -> Bools:
        """Return the mask of rows in which all bytes of a field were there."""
        fields = self.records.dtype.fields
        if fields is None:
            raise TypeError("records without fields")
        kind, at = fields[field][:2]
        return np.asarray(self.bytes_seen >= at + kind.itemsize, np.bool_)

    def numbers(self, field: str, to: pa.DataType, valid: Bools | None = None) -> pa.Array:
        """Return a field as a column of numbers; null where it was not seen, or not ``valid``."""
        has = self.has(field) if valid is None else self.has(field) & valid
        return arrow_primitives.number_array(np.ascontiguousarray(self.records[field]), has, to)

    def flags(self, field: str, mask: int, valid: Bools | None = None) -> pa.Array:
        """Return whether any bit of ``mask`` is set in a field, as booleans; null likewise."""
        has = self.has(field) if valid is None else self.has(field) & valid
        return arrow_primitives.number_array(self.records[field] & mask, has, pa.bool_())

    def guids(self, field: str, valid: Bools | None = None, *, zero: bool = False) -> pa.Array:
        """Return a field of 16 bytes as GUIDs; null likewise, and where it is zero, unless ``zero``."""
        raw: Octets = np.ascontiguousarray(self.records[field])
        has = self.has(field) if valid is None else self.has(field) & valid
        return arrow_primitives.guid_strings(raw, has if zero else has & raw.any(axis=1))
