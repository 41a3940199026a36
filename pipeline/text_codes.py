"""Texts of Arrow columns as small numbers: equal texts, equal numbers. No Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from udfs.array_types import Ints

NO_CODE: Final = -1
"""The code of null."""
_MOST: Final = 1 << 62


def text_codes(column: pa.ChunkedArray | pa.Array) -> Ints:
    """Return a code from 0 on for each text of a column, ``NO_CODE`` for null."""
    encoded = (column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column).dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return np.asarray(encoded.indices.cast(pa.int64()).fill_null(NO_CODE), np.int64)


def codes_of_both(one: pa.ChunkedArray, other: pa.ChunkedArray) -> tuple[Ints, Ints]:
    """Return the codes of two columns: equal texts have one code in both."""
    both = text_codes(pa.chunked_array([*one.chunks, *other.chunks], pa.string()))
    return both[: len(one)], both[len(one) :]


def row_codes(table: pa.Table, columns: Sequence[str]) -> Ints:
    """Return a number from 0 on for each row: rows that are equal in these columns have one, nulls are equal."""
    codes, most = np.zeros(table.num_rows, np.int64), 1
    for name in columns:
        more = text_codes(table[name]) + 1
        count = int(more.max(initial=0)) + 1
        if most * count > _MOST:
            codes = np.unique(codes, return_inverse=True)[1]
            most = int(codes.max(initial=0)) + 1
        codes, most = codes * count + more, most * count
    return np.unique(codes, return_inverse=True)[1].astype(np.int64)
