"""Rows by key and time: the last one up to a time, the first one from a time on, for many keys and times at once."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from udfs.array_types import Ints
from udfs.columns.absent import BEFORE_ALL, NONE
from udfs.columns.groups import take_or

Side: TypeAlias = Literal["left", "right"]


class TimeIndex:
    """Rows in the order of key and time (``order``); those of one key and time in the order given.

    ``keys`` are codes; ``rows`` say which rows these are, else they are counted from 0. Rows without a key (``NONE``)
    are not in it, and nothing is found for ``NONE``. It is made in n log n steps; each look-up takes log n.
    """

    def __init__(self, keys: Ints, times: Ints, rows: Ints | None = None) -> None:
        known = np.flatnonzero(keys >= 0)
        keys, times, rows = keys[known], times[known], known if rows is None else rows[known]
        self._times = np.sort(times)
        places = self._place(keys, times, "right")
        order = np.argsort(places, kind="stable")
        self._places, self._keys = places[order], keys[order]
        self.order: Ints = rows[order]

    def latest(self, keys: Ints, times: Ints, *, inclusive: bool = True) -> Ints:
        """Return the last row of each key up to a time (``inclusive``), or before it; ``NONE`` without one."""
        return self._rows(self._end(keys, times, "right" if inclusive else "left") - 1, keys)

    def first_after(self, keys: Ints, times: Ints) -> Ints:
        """Return the first row of each key after a time; ``NONE`` without one."""
        return self._rows(self._end(keys, times, "right"), keys)

    def first_within(self, keys: Ints, since: Ints, until: Ints) -> Ints:
        """Return the first row of each key from one time to another, both included; ``NONE`` without one."""
        begin, end = self.span(keys, since, until)
        return take_or(self.order, np.where(begin < end, begin, NONE), NONE)

    def count(self, keys: Ints, until: Ints) -> Ints:
        """Return how many rows each key has up to a time."""
        begin, end = self.span(keys, np.full(len(keys), BEFORE_ALL), until)
        return end - begin

    def span(self, keys: Ints, since: Ints, until: Ints) -> tuple[Ints, Ints]:
        """Return where in ``order`` the rows of each key from one time to another begin, both included, and end."""
        begin = self._end(keys, since, "left")
        return begin, np.maximum(self._end(keys, until, "right"), begin)

    def _end(self, keys: Ints, times: Ints, side: Side) -> Ints:
        """Return where in ``order`` the rows of each key before a time end (``left``), or those up to it."""
        return np.searchsorted(self._places, self._place(keys, times, side), "right")

    def _place(self, keys: Ints, times: Ints, side: Side) -> Ints:
        """Return numbers in the order of key and time: a time is the number of rows before it, or up to it."""
        ranks: Ints = np.searchsorted(self._times, times, side)
        return keys * np.int64(len(self._times) + 1) + ranks

    def _rows(self, places: Ints, keys: Ints) -> Ints:
        """Return the rows at places of ``order``; ``NONE`` where that is none of the key."""
        if not len(self.order):
            return np.full(len(keys), NONE, np.int64)
        inside = np.clip(places, 0, len(self.order) - 1)
        return np.where((places == inside) & (self._keys[inside] == keys), self.order[inside], NONE)
