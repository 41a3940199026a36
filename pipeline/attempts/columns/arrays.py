"""Arrays of numbers and codes: what steps over columns are made of.

Numbers and times are int64, ``ABSENT`` where there is none. Codes are numbers from 0 that stand for values, -1 where
there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

Value = TypeVar("Value", np.int64, np.bool_)

ABSENT: Final = np.iinfo(np.int64).min
NOTHING: Final = -1
"""The index that stands for no call, and the code of no value."""


def to_numbers(column: pa.Array) -> Ints:
    """Return whole numbers of any type; ``ABSENT`` for null."""
    return _to_numpy(column.cast(pa.int64()).fill_null(ABSENT))


def to_column(numbers: Ints, absent: int = ABSENT) -> pa.Array:
    """Return numbers with null for those that are absent."""
    return pa.array(numbers, mask=numbers == absent)


def to_lists(begins: Ints, values: pa.Array) -> pa.Array:
    """Return lists of values: from each begin to the next one."""
    return pa.ListArray.from_arrays(pa.array(begins, pa.int32()), values)


def to_flags(column: pa.Array, *, default: bool) -> Flags:
    """Return flags, with a default for null."""
    return column.cast(pa.bool_()).fill_null(default).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def to_codes(column: pa.Array) -> tuple[Ints, list[Any]]:
    """Return the codes of values, and the values that they stand for."""
    encoded = column.dictionary_encode()
    return _to_numpy(encoded.indices.fill_null(NOTHING).cast(pa.int64())), encoded.dictionary.to_pylist()


def codes_of_numbers(numbers: Ints) -> Ints:
    """Return the codes of numbers; -1 for ``ABSENT``."""
    return to_codes(to_column(numbers))[0]


def combine_codes(first: Ints, *others: Ints) -> Ints:
    """Return the codes of combinations of values; -1 where one of them is absent."""
    for other in others:
        joined = first * (other.max(initial=0) + 1) + other
        first = to_codes(pa.array(joined, mask=(first < 0) | (other < 0)))[0]
    return first


def either(condition: Flags, yes: Ints, no: Ints) -> Ints:
    """Return one of two codes, so that no value of the one kind is one of the other."""
    code = np.where(condition, 2 * yes + 1, 2 * no)
    return np.where(np.where(condition, yes, no) < 0, NOTHING, code)


def over_distinct(column: pa.Array, function: Callable[[Any], Any], to: pa.DataType) -> pa.Array:
    """Return what a function makes of each value, null included; it is called once for each that there is."""
    codes, values = to_codes(column)
    made = [function(value) for value in values]
    if (codes < 0).any():
        made.append(function(None))  # at -1
        codes = np.where(codes < 0, len(values), codes)
    return pa.array(made, to).take(pa.array(codes))


def take_or(values: npt.NDArray[Value], indexes: Ints, default: int) -> npt.NDArray[Value]:
    """Return the values at indexes, and a default where these are -1."""
    if not len(values):
        return np.full(indexes.shape, default, values.dtype)
    return np.where(indexes == NOTHING, np.asarray(default, values.dtype), values[indexes])


def first_of(owners: Ints, items: Ints, count: int) -> Ints:
    """Return the first item of each owner, of ``count`` owners; -1 for those without."""
    return last_of(owners[::-1], items[::-1], count)


def last_of(owners: Ints, items: Ints, count: int) -> Ints:
    """Return the last item of each owner, of ``count`` owners; -1 for those without."""
    found = np.full(count, NOTHING, np.int64)
    found[owners] = items  # of several assignments to one place the last counts
    return found


def order_by(keys: Sequence[Ints], names: pa.Array) -> Ints:
    """Return the order of rows by some numbers, the most significant first, and then by name."""
    order: Ints = np.lexsort(keys[::-1])
    same = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
    if same.any():  # names are compared where they decide
        places = np.flatnonzero(np.r_[False, same] | np.r_[same, False])
        rows = order[places]
        rank = np.empty(len(rows), np.int64)
        rank[_to_numpy(pc.sort_indices(names.take(pa.array(rows))).cast(pa.int64()))] = np.arange(len(rows))
        order[places] = rows[np.lexsort((rank, *(key[rows] for key in keys[::-1])))]
    return order


def _to_numpy(column: pa.Array) -> Ints:
    return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
