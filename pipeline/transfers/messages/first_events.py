"""The first event of a row whose value is not below the row's, and the earlier of two events. No Spark."""

from __future__ import annotations

import numpy as np

from udfs.array_types import Ints
from udfs.columns.absent import NONE
from udfs.columns.groups import take_or
from udfs.columns.time_index import TimeIndex


def first_at_least(index: TimeIndex, values: Ints, span: tuple[Ints, Ints], wanted: Ints) -> Ints:
    """Return for each row the first event within a span whose value is not below the row's, or ``NONE``.

    ``values`` are of all events, ``span`` is what ``TimeIndex.span`` returns, ``wanted`` the least value for each row.
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
    return take_or(index.order, np.where(place < end, place, NONE), NONE)


def earliest(one: Ints, other: Ints) -> Ints:
    """Return for each row the earlier of two events, either of which may be ``NONE``; events are in order."""
    return np.where((one >= 0) & ((other < 0) | (one < other)), one, other)
