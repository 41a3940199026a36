"""Calls by key, in order of time, as columns: many lookups at once."""

from __future__ import annotations

import numpy as np

from pipeline.attempts.columns.arrays import NOTHING, Ints


class ColumnTimeline:
    """Indexes of calls by the code of a key, in order of time; of several at one time, in the order given.

    ``Timeline`` is the same for one lookup at a time. Calls without a key, whose code is -1, are not in it, and are
    not found.
    """

    def __init__(self, keys: Ints, times: Ints, calls: Ints) -> None:
        there = keys >= 0
        keys, times, calls = keys[there], times[there], calls[there]
        self._times = np.sort(times)
        places = self._place(keys, times)
        order = np.argsort(places, kind="stable")
        self._places, self._keys, self._calls = places[order], keys[order], calls[order]

    def latest(self, keys: Ints, times: Ints) -> Ints:
        """Return the last call of each key up to and at a time; -1 where there is none."""
        return self._at(np.searchsorted(self._places, self._place(keys, times), "right") - 1, keys)

    def first_after(self, keys: Ints, times: Ints) -> Ints:
        """Return the first call of each key after a time; -1 where there is none."""
        return self._at(np.searchsorted(self._places, self._place(keys, times), "right"), keys)

    def _place(self, keys: Ints, times: Ints) -> Ints:
        """Return numbers that are in the order of key and time."""
        ranks: Ints = np.searchsorted(self._times, times, "right")
        return keys * (len(self._times) + 1) + ranks

    def _at(self, places: Ints, keys: Ints) -> Ints:
        if not len(self._calls):
            return np.full(len(keys), NOTHING, np.int64)
        inside = np.clip(places, 0, len(self._calls) - 1)
        found = (places == inside) & (self._keys[inside] == keys)  # keys that are absent are not in it
        return np.where(found, self._calls[inside], NOTHING)
