"""How far the clocks of captures that have the same packets of a connection are ahead of one another.

A packet that two captures have passed one of them sooner. Where one shows the packets of both directions later than the
other one, its clock is ahead by more than the way between them; it counts as ahead by the mean of both. Where it does
not, the times of both are in the order of events as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import permutations

import numpy as np

from udfs.array_types import Ints
from udfs.capture.tap_clocks import NEAREST


class TapOffsets:
    """The clocks of the captures of one connection, each against that of one of them, ``reference``."""

    def __init__(self, packets: Iterable[tuple[int, Mapping[str, int]]], reference: str) -> None:
        """``packets``: of each that several captures have its side, 0 or 1, and its times by capture, us."""
        pairs: dict[tuple[str, str], tuple[list[tuple[int, int]], ...]] = defaultdict(lambda: ([], []))
        for side, times in packets:
            for (one, at), (other, other_at) in permutations(times.items(), 2):
                pairs[one, other][side].append((at, at - other_at))
        self._common = {
            pair: [np.array(sorted(found), np.int64).T for found in by_side if found] for pair, by_side in pairs.items()
        }
        self._toward: dict[str, str] = {}  # by capture the one that it is compared with, up to the reference
        known = {reference}
        while near := [pair for pair in self._common if pair[0] not in known and pair[1] in known]:
            name, other = max(near, key=lambda pair: (sum(each.shape[1] for each in self._common[pair]), pair))
            self._toward[name] = other
            known.add(name)

    def ahead(self, name: str, at: Ints) -> Ints:
        """Return by how much a capture's clock was ahead of the reference at some times by it, us.

        0 for a capture that has nothing in common with it, or with another one that has.
        """
        total = np.zeros(len(at), np.int64)
        while name in self._toward:
            ahead = _ahead(self._common[name, self._toward[name]], at - total)
            total, name = total + ahead, self._toward[name]
        return total


def _ahead(common: Iterable[Ints], at: Ints) -> Ints:
    """Return by how much one clock was ahead of another one; ``common``: of each direction, times and differences."""
    each = [_nearest(times, differences, at) for times, differences in common]
    least, most = np.minimum.reduce(each), np.maximum.reduce(each)
    return np.where((least <= 0) & (most >= 0), 0, (least + most) // 2)


def _nearest(times: Ints, differences: Ints, at: Ints) -> Ints:
    """Return the median of the differences nearest to some times; single packets are lost and sent again."""
    width = min(NEAREST, len(times))
    medians = np.median(np.lib.stride_tricks.sliding_window_view(differences, width), axis=1).astype(np.int64)
    return np.asarray(medians[np.clip(np.searchsorted(times, at) - width // 2, 0, len(times) - width)])
