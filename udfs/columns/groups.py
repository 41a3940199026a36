"""Groups: rows with the same key. Where they begin, and the first, last, smallest and largest of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from udfs.array_types import Bools, Ints
from udfs.columns.absent import AFTER_ALL, NONE
from udfs.columns.arrays import to_ints

Numbers: TypeAlias = npt.NDArray[Any]
Value = TypeVar("Value", np.int64, np.bool_)


def is_group_start(*keys: Numbers) -> Bools:
    """Tell which rows begin a group: the first one, and each that differs from the one before in one of the keys.

    Rows of a group stand together.
    """
    found = np.ones(len(keys[0]), np.bool_)
    found[1:] = np.logical_or.reduce([each[1:] != each[:-1] for each in keys])
    return found


def group_starts(*keys: Numbers) -> Ints:
    """Return the rows that begin a group (``is_group_start``)."""
    return np.flatnonzero(is_group_start(*keys))


def group_bounds(owners: Ints, count: int) -> Ints:
    """Return where the rows of each of ``count`` owners begin, and the number of all rows; ``owners`` ascend."""
    return np.searchsorted(owners, np.arange(count + 1))


def expand_ranges(begins: Ints, counts: Ints) -> Ints:
    """Return the numbers of ranges, one range after the other: of each ``count`` numbers, from its begin on."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - ends + counts, counts)


def sorted_distinct(numbers: Ints) -> Ints:
    """Return the different numbers in order, as ``numpy.unique`` does: that takes far longer for very many of them."""
    ordered = np.sort(numbers)
    return ordered[is_group_start(ordered)]


def first_of(owners: Ints, items: Ints, count: int) -> Ints:
    """Return the first item of each owner, of ``count`` owners; ``NONE`` for those without."""
    return last_of(owners[::-1], items[::-1], count)


def last_of(owners: Ints, items: Ints, count: int) -> Ints:
    """Return the last item of each owner, of ``count`` owners; ``NONE`` for those without."""
    found = np.full(count, NONE, np.int64)
    found[owners] = items  # of several assignments to one place the last counts
    return found


def take_or(values: npt.NDArray[Value], rows: Ints, default: int) -> npt.NDArray[Value]:
    """Return the values at some rows, and a default for ``NONE``."""
    if not len(values):
        return np.full(rows.shape, default, values.dtype)
    return np.where(rows == NONE, np.asarray(default, values.dtype), values[rows])


def order_by(keys: Sequence[Ints], names: pa.Array) -> Ints:
    """Return the order of rows by some numbers, the most significant first, and then by name."""
    order: Ints = np.lexsort(keys[::-1])
    same = ~is_group_start(*(key[order] for key in keys))
    if same.any():  # names are compared where they decide
        places = np.flatnonzero(same | np.append(same[1:], False))
        rows = order[places]
        rank = np.empty(len(rows), np.int64)
        rank[to_ints(pc.sort_indices(names.take(pa.array(rows))))] = np.arange(len(rows))
        order[places] = rows[np.lexsort((rank, *(key[rows] for key in keys[::-1])))]
    return order


def largest_so_far(groups: Ints, values: Numbers) -> Numbers:
    """Return the largest whole number of each row and all before it in its group; ``groups`` are codes that ascend."""
    if not len(values):
        return values
    least = values.min()
    span = int(values.max()) - int(least) + 1
    if span * (int(groups[-1]) + 1) > AFTER_ALL:
        levels, ranks = np.unique(values, return_inverse=True)
        return levels[largest_so_far(groups, ranks)]
    base = groups * span  # all numbers of a group are above those of the group before
    found = np.maximum.accumulate(base + (values - least).astype(np.int64)) - base
    largest: Numbers = found.astype(values.dtype) + least
    return largest


def newest_open(keys: Ints, opens: Bools) -> Ints:
    """Return which row each row closes: the newest one of its key before it that is still open; ``NONE`` without one.

    Each row opens something, as ``opens`` says, or closes something. Rows of a key stand together, in order; ``keys``
    are codes that ascend.
    """
    outside = np.cumsum(np.where(opens, 1, -1)) - opens  # how many are open around each row, counted over all keys
    depth = outside + largest_so_far(keys, -outside)
    order = np.lexsort((depth, keys))  # of one key and depth, rows that open and rows that close take turns
    closes = np.flatnonzero(~is_group_start(keys[order], depth[order])[1:] & opens[order[:-1]]) + 1
    found = np.full(len(keys), NONE)
    found[order[closes]] = order[closes - 1]
    return found


class Groups:
    """Rows in groups, each in the order of ``order``; arrays given and returned are in the order of ``rows``.

    ``rows`` are positions in a table, ``keys`` the number of the group of each, not negative.
    """

    def __init__(self, rows: Numbers, keys: Numbers, *order: Numbers) -> None:
        self._sorted = np.lexsort((*reversed(order), keys))
        self.rows = rows[self._sorted]
        self.keys = keys[self._sorted]
        self.is_first = is_group_start(self.keys)
        self.number = np.cumsum(self.is_first) - 1
        self._starts = np.flatnonzero(self.is_first)

    def ordered(self, values: Numbers) -> Numbers:
        """Return values, which belong to the rows as they were given, in the order of ``rows``."""
        return values[self._sorted]

    def before(self, values: Numbers, default: Any) -> Numbers:  # noqa: ANN401 - as of an array
        """Return the value of the row before each in its group; ``default`` for the first."""
        found = np.empty_like(values)
        found[1:] = values[:-1]
        found[self.is_first] = default
        return found

    def after(self, values: Numbers, default: Any) -> Numbers:  # noqa: ANN401 - as of an array
        """Return the value of the row after each in its group; ``default`` for the last."""
        found = np.full_like(values, default)
        found[:-1] = np.where(self.is_first[1:], default, values[1:])
        return found

    def largest_before(self, values: Numbers, default: int) -> Numbers:
        """Return the largest value of all rows before each in its group; ``default`` for the first."""
        return self.before(self.largest_so_far(values), default)

    def largest_so_far(self, values: Numbers) -> Numbers:
        """Return the largest value of each row and all before it in its group."""
        return largest_so_far(self.number, values)

    def row_of_largest_so_far(self, values: Numbers) -> Ints:
        """Return which of each row and all before it in its group has the largest value; of several the first."""
        is_larger = self.is_first | (values > self.before(self.largest_so_far(values), 0))
        places: Ints = np.where(is_larger, np.arange(len(values)), 0)
        return self.rows[np.maximum.accumulate(places)]

    def largest(self, values: Numbers) -> Numbers:
        """Return the largest value of each row's group."""
        return np.maximum.reduceat(values, self._starts)[self.number] if len(values) else values

    def counts(self, mask: Bools) -> Ints:
        """Return for each row how many rows of its group meet a condition."""
        return np.add.reduceat(mask.astype(np.int64), self._starts)[self.number] if len(mask) else mask.astype(np.int64)

    def any(self, mask: Bools) -> Bools:
        """Tell for each row whether any row of its group meets a condition."""
        return self.counts(mask) > 0
