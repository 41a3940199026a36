"""The first event of a kind from a time on, for many rows at once. No Spark.

Events are acknowledgements and the like: each has the names of what it is about, and a time. They are sorted once;
then each row finds its event by binary search, however many events have the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from pipeline.text_codes import text_codes
from udfs.array_types import Bools, Ints

NO_EVENT: Final = -1
_MOST: Final = 1 << 62

Texts: TypeAlias = pa.ChunkedArray | pa.Array


def common_codes(rows: Sequence[Texts], events: Sequence[Texts]) -> tuple[Ints, Ints]:
    """Return a code for each row and each event: those with equal texts in all columns have one; nulls are equal.

    ``rows`` and ``events`` are columns, the first one of rows beside the first one of events.
    """
    count = len(rows[0])
    codes, most = np.zeros(count + len(events[0]), np.int64), 1
    for one, other in zip(rows, events, strict=True):
        more = text_codes(pa.chunked_array([*_chunks(one), *_chunks(other)], pa.string())) + 1
        values = int(more.max(initial=0)) + 1
        if most * values > _MOST:
            codes = np.unique(codes, return_inverse=True)[1]
            most = int(codes.max(initial=0)) + 1
        codes, most = codes * values + more, most * values
    return codes[:count], codes[count:]


def _chunks(column: Texts) -> list[pa.Array]:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [chunk.cast(pa.string()) for chunk in chunks]


@dataclass(frozen=True, slots=True)
class EventIndex:
    """Events by code, then time; those of equal times in the order in which they were given.

    ``order`` are the events in this order, ``times`` all times there are, ascending, ``keys`` code and time as one
    number in that order.
    """

    codes: Ints  # those there are, ascending
    order: Ints
    times: Ints
    keys: Ints

    @staticmethod
    def of(codes: Ints, at: Ints) -> EventIndex:
        """Sort events; ``at`` are their times."""
        known, place = np.unique(codes, return_inverse=True)
        times, rank = np.unique(at, return_inverse=True)
        keys = place * (len(times) + 1) + rank
        order = np.argsort(keys, kind="stable")
        return EventIndex(known, order, times, keys[order])

    def span(self, codes: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Return for each row where in ``order`` the events of its code begin that are from ``first`` on, and end.

        Those later than ``last`` are left out.
        """
        place, known = self._places(codes)
        base = place * (len(self.times) + 1)
        low = np.searchsorted(self.keys, base + np.searchsorted(self.times, first))
        high = np.searchsorted(self.keys, base + np.searchsorted(self.times, last, side="right"))
        return np.where(known, low, 0), np.where(known, np.maximum(high, low), 0)

    def first(self, codes: Ints, first: Ints, last: Ints) -> Ints:
        """Return for each row the first event of its code from ``first`` to ``last``, or ``NO_EVENT``."""
        low, high = self.span(codes, first, last)
        return np.append(self.order, NO_EVENT)[np.where(low < high, low, len(self.order))]

    def _places(self, codes: Ints) -> tuple[Ints, Bools]:
        """Return for each row the place of its code among those there are, and whether it is there."""
        if not len(self.codes):
            return np.zeros(len(codes), np.int64), np.zeros(len(codes), np.bool_)
        place = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return place, self.codes[place] == codes


def first_at_least(index: EventIndex, values: Ints, span: tuple[Ints, Ints], wanted: Ints) -> Ints:
    """Return for each row the first event within a span whose value is not below the row's, or ``NO_EVENT``.

    ``values`` are of all events, ``span`` is what ``EventIndex.span`` returns, ``wanted`` the least value for each row.
    """
    place, end = span[0].copy(), span[1]
    ordered = values[index.order]
    highest = [ordered]  # of 1, 2, 4, ... events from each one on
    while 2 * (width := 1 << (len(highest) - 1)) <= len(ordered):
        below = highest[-1]
        highest.append(np.maximum(below[:-width], below[width:]))
    for level in range(len(highest) - 1, -1, -1):
        width, of_level = 1 << level, highest[level]
        if not len(of_level):
            continue
        fits = place + width <= end
        skip = fits & (of_level[np.minimum(place, len(of_level) - 1)] < wanted)
        place[skip] += width
    # Widths are tried once each: what is left after the widest was skipped is shorter than it.
    return np.append(index.order, NO_EVENT)[np.where(place < end, place, len(index.order))]


def earliest(one: Ints, other: Ints) -> Ints:
    """Return for each row the earlier of two events, either of which may be ``NO_EVENT``; events are in order."""
    return np.where((one >= 0) & ((other < 0) | (one < other)), one, other)
