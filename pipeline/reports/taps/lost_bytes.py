"""The bytes and copies of bytes that one of two captures lacks, and why.

TCP says what became of bytes: what a receiver acknowledged has come, so a capture that has the acknowledgement lost the
bytes itself. What was sent again was lost on its way, or at least its sender did not know better. Of other bytes
nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from pipeline.reports.taps.tap_streams import NO_SEGMENTS, Segments
from udfs.array_types import Ints

Cause: TypeAlias = Literal["lost_by_capture", "on_the_way", "unknown"]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
_BY_CAPTURE, _ON_THE_WAY, _UNKNOWN, _NOT_LACKING = range(4)
_HALF: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class LackingBytes:
    """What of a direction one capture lacks that the other one has: ranges of bytes, with the cause of each.

    ``bounds``: one more than ranges; ``base`` is the sequence number of offset 0.
    """

    base: int = 0
    bounds: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    causes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    copies: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def count(self) -> dict[Cause, int]:
        """Return how many bytes are lacking by each cause; of bytes whose copies are lacking, each copy counts."""
        sizes = np.diff(self.bounds) * self.copies
        return {cause: int(sizes[self.causes == place].sum()) for place, cause in enumerate(CAUSES)}

    def cause_of(self, sequence: int, length: int) -> Cause | None:
        """Return why the first byte that is lacking among some is lacking; None if none is."""
        begin = int(_signed(np.array([sequence - self.base], np.int64))[0])
        for offset in range(begin, int(self.bounds[-1]), 2 * _HALF):  # sequence numbers count from 0 again
            first = max(int(np.searchsorted(self.bounds, offset, side="right")) - 1, 0)
            last = int(np.searchsorted(self.bounds, offset + max(length, 1), side="left"))
            lacking = self.causes[first:last]
            lacking = lacking[lacking != _NOT_LACKING]
            if len(lacking):
                return CAUSES[int(lacking[0])]
        return None


NOTHING_LACKING: Final = LackingBytes()


def lacking_bytes(here: Segments, there: Segments, acknowledging: Segments | None) -> LackingBytes:
    """Return what ``there`` has and ``here`` lacks, of one direction.

    ``acknowledging``: segments of the other direction of the capture that lacks them; None: there are none.
    """
    here, there = (each.take(np.flatnonzero(each.length > 0)) for each in (here, there))
    if not len(there.sequence):
        return NOTHING_LACKING
    base = int(there.sequence[0])
    seen, lacking_in = _ranges(there, base), _ranges(here, base)
    bounds = np.unique(np.concatenate([*seen, *lacking_in]))
    has, lacks = (_times_covered(bounds, *each) for each in (seen, lacking_in))
    acknowledged_until = _acknowledged_until(acknowledging or NO_SEGMENTS, base)
    causes = np.full(len(bounds) - 1, _NOT_LACKING, np.int64)
    causes[has > lacks] = _ON_THE_WAY
    wholly = (lacks == 0) & (has > 0)
    causes[wholly & (has == 1)] = _UNKNOWN
    if acknowledged_until is not None:
        causes[wholly & (bounds[1:] <= acknowledged_until)] = _BY_CAPTURE
    return LackingBytes(base, bounds, causes, np.where(wholly, 1, np.maximum(has - lacks, 0)))


def offsets(sequence: Ints, base: int) -> Ints:
    """Return TCP sequence numbers as distances from ``base``, also beyond 4 GiB; -1 and less lie before it."""
    if not len(sequence):
        return sequence
    first = int(_signed(sequence[:1] - base)[0])
    return first + np.concatenate([[0], np.cumsum(_signed(np.diff(sequence)))])


def _signed(difference: Ints) -> Ints:
    """Return differences of sequence numbers, which count from 0 again behind 2**32, as the smaller of both ways."""
    return (difference + _HALF) % (2 * _HALF) - _HALF


def _ranges(segments: Segments, base: int) -> tuple[Ints, Ints]:
    begin = offsets(segments.sequence, base)
    return begin, begin + segments.length


def _times_covered(bounds: Ints, begin: Ints, end: Ints) -> Ints:
    """Return how often each range between two bounds was seen."""
    change = np.zeros(len(bounds), np.int64)
    np.add.at(change, np.searchsorted(bounds, begin), 1)
    np.add.at(change, np.searchsorted(bounds, end), -1)
    return np.cumsum(change)[:-1]


def _acknowledged_until(segments: Segments, base: int) -> int | None:
    known = segments.acknowledgement[segments.acknowledgement >= 0]
    return int(offsets(known, base).max()) if len(known) else None
