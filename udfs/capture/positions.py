"""Places of remainders without a time among those of their four-tuple, by TCP sequence numbers.

Remainders (rows of ``bronze.pending``) are joined in the order of time. Where all packets of one have no time, or times
ahead of the clock, its sequence numbers show which others it follows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf

from udfs.columns.absent import NO_TIME
from udfs.rows import RowDict
from udfs.tcp.connections import sequence_difference


def order_of_remainders(rows: Sequence[RowDict]) -> list[int]:
    """Return the indexes of the remainders of one four-tuple in order; ``rows`` are sorted by time.

    One without a time comes behind the last one with a time that begins at the same position or before it. Positions
    are those of the direction that most of them have.
    """
    timed = [index for index, row in enumerate(rows) if row["first_time_ns"] != NO_TIME]
    if len(timed) == len(rows):
        return timed
    begins = [[_first_sequence(row, side) for row in rows] for side in (0, 1)]
    of_side = min(begins, key=lambda each: each.count(None))
    origin = next((of_side[index] for index in (*timed, *range(len(rows))) if of_side[index] is not None), None)
    if origin is None:
        return list(range(len(rows)))
    places = [-inf if begin is None else sequence_difference(begin - origin) for begin in of_side]
    reached = list(accumulate((places[index] for index in timed), max))
    ranks = {index: (rank + 1, -inf) for rank, index in enumerate(timed)}
    return sorted(
        range(len(rows)), key=lambda index: ranks.get(index) or (bisect_right(reached, places[index]), places[index])
    )


def _first_sequence(row: RowDict, side: int) -> int | None:
    """Return the sequence number of the first byte that a remainder has of one direction."""
    own = [segment["sequence"] for segment in row["segments"] if segment["side"] == side]
    return (own[0] + min(sequence_difference(each - own[0]) for each in own)) & 0xFFFFFFFF if own else None
