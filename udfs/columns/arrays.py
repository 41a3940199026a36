"""Columns of Arrow as arrays of numpy, and back. All take one pass; nulls become a number that the caller chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.table import TIMESTAMP
from udfs.array_types import Bools, Ints
from udfs.columns.absent import NO_TIME, NONE
from udfs.times import DAY_US

Column: TypeAlias = pa.ChunkedArray | pa.Array


def one_array(column: Column) -> pa.Array:
    """Return a column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def to_ints(column: Column, absent: int = 0) -> Ints:
    """Return whole numbers, or flags, as 64-bit numbers; ``absent`` for null."""
    return np.asarray(one_array(pc.fill_null(column.cast(pa.int64()), absent)), np.int64)


def to_flags(column: Column, *, default: bool = False) -> Bools:
    """Return flags; ``default`` for null."""
    return np.asarray(one_array(pc.fill_null(column.cast(pa.bool_()), default)), np.bool_)


def to_times(column: Column, absent: int = NO_TIME) -> Ints:
    """Return times as microseconds since the epoch; ``absent`` for null."""
    return to_ints(column.cast(TIMESTAMP), absent)


def is_one_of(column: Column, values: Iterable[Any]) -> Bools:
    """Tell which rows have one of some values, of the column's type; False for null."""
    return np.asarray(one_array(pc.is_in(column, pa.array([*values], column.type))), np.bool_)


def from_ints(numbers: Ints, absent: int = NONE) -> pa.Array:
    """Return numbers, null for ``absent``. So also rows to ``take`` from a column, which gives null for no row."""
    return pa.array(numbers, pa.int64(), mask=numbers == absent)


def from_times(times: Ints, absent: int = NO_TIME) -> pa.Array:
    """Return microseconds since the epoch as timestamps in UTC; null for ``absent``."""
    return from_ints(times, absent).cast(pa.timestamp("us")).cast(TIMESTAMP)


def utc_dates(times: Ints) -> pa.Array:
    """Return the dates, in UTC, of microseconds since the epoch, also before 1970; null for ``NO_TIME``."""
    return pa.array((times // DAY_US).astype(np.int32), mask=times == NO_TIME).cast(pa.date32())


def from_groups(bounds: Ints, values: pa.Array, *, empty: bool = True) -> pa.Array:
    """Return lists of values, of which each begins at one of ``bounds`` and ends before the next.

    ``bounds`` is one longer than there are lists (``group_bounds``). Without ``empty`` lists of no value are null.
    """
    mask = None if empty else pa.array(bounds[1:] == bounds[:-1])
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), values, mask=mask)


def over_distinct(column: Column, function: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """Return what a function makes of each value; null for null. It is called once for each different value."""
    encoded = one_array(column).dictionary_encode()
    return pa.array([*map(function, encoded.dictionary.to_pylist())], kind).take(encoded.indices)
