"""Groups of rows by key, in an order, and what lies before or after each row in its group. No Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]


def encode(values: Numbers) -> tuple[Numbers, Numbers]:
    """Return the place of each number among the different ones, and these, as they come first."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary.to_numpy(zero_copy_only=False)


def combine_codes(*codes: Numbers) -> Numbers:
    """Return a number for each combination of numbers: from 0 on, the same for the same combination."""
    found = encode(codes[0])[0]
    for each in codes[1:]:
        places, values = encode(each)
        found = encode(found.astype(np.int64) * len(values) + places)[0]
    return found


class Groups:
    """Rows in groups, each in the order of ``order``; arrays given and returned are in the order of ``rows``.

    ``rows`` are positions in a table, ``keys`` the number of the group of each, not negative.
    """

    def __init__(self, rows: Numbers, keys: Numbers, *order: Numbers) -> None:
        self._sorted = np.lexsort((*reversed(order), keys))
        self.rows = rows[self._sorted]
        self.keys = keys[self._sorted]
        new = np.ones(len(rows), np.bool_)
        new[1:] = self.keys[1:] != self.keys[:-1]
        self.is_first = new
        self.number = np.cumsum(new) - 1
        self._starts = np.nonzero(new)[0]

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

    def smallest_from(self, values: Numbers) -> Numbers:
        """Return the smallest value of each row and all after it in its group."""
        levels, ranks = np.unique(values, return_inverse=True)
        backward = (len(levels) - 1 - ranks)[::-1]
        numbers = (self.number[-1] - self.number[::-1]) if len(values) else self.number
        found = np.maximum.accumulate(numbers * np.int64(len(levels) + 1) + backward) % np.int64(len(levels) + 1)
        return levels[(len(levels) - 1 - found)[::-1]] if len(values) else values

    def largest_so_far(self, values: Numbers) -> Numbers:
        """Return the largest value of each row and all before it in its group."""
        levels, ranks = np.unique(values, return_inverse=True)
        steps = np.int64(len(levels) + 1)
        return levels[np.maximum.accumulate(self.number * steps + ranks) % steps] if len(values) else values

    def smallest(self, values: Numbers) -> Numbers:
        """Return the smallest value of each row's group."""
        return np.minimum.reduceat(values, self._starts)[self.number] if len(values) else values

    def largest(self, values: Numbers) -> Numbers:
        """Return the largest value of each row's group."""
        return np.maximum.reduceat(values, self._starts)[self.number] if len(values) else values

    def counts(self, mask: Mask) -> Numbers:
        """Return for each row how many rows of its group meet a condition."""
        return np.add.reduceat(mask.astype(np.int64), self._starts)[self.number] if len(mask) else mask.astype(np.int64)

    def any(self, mask: Mask) -> Mask:
        """Tell for each row whether any row of its group meets a condition."""
        return self.counts(mask) > 0


def latest_until(
    keys: Numbers, times: Numbers, asked_keys: Numbers, asked_times: Numbers, *, inclusive: bool = True
) -> Numbers:
    """Return the place of the latest event with a key until a time (``inclusive``) or before it; -1 without one.

    Of events with the same key and time it is the last one.
    """
    if not len(keys) or not len(asked_keys):
        return np.full(len(asked_keys), -1)
    levels = np.sort(times)
    steps = np.int64(len(levels) + 1)
    order = np.lexsort((times, keys))
    events = keys[order] * steps + np.searchsorted(levels, times[order]) + 1
    ranks = np.searchsorted(levels, asked_times, side="right" if inclusive else "left")
    places = np.searchsorted(events, asked_keys * steps + ranks, side="right") - 1
    found = order[np.maximum(places, 0)]
    return np.where((places >= 0) & (keys[found] == asked_keys), found, -1)
