"""Limits of time for packets that belong together."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from udfs.array_types import Ints
from udfs.columns.absent import NO_TIME


class TimeLimits(NamedTuple):
    """How long a missing TCP segment is waited for, and how far the clocks of two captures of one conversation differ.

    Beyond ``max_clock_skew_s`` equal bytes are another conversation: they were sent, or replayed, again.
    """

    reorder_window_s: float = 2.0
    max_clock_skew_s: float = 300.0

    @property
    def reorder_window_ns(self) -> int:
        """The reorder window in ns."""
        return round(self.reorder_window_s * 1e9)

    @property
    def max_clock_skew_ns(self) -> int:
        """The largest difference of two clocks in ns."""
        return round(self.max_clock_skew_s * 1e9)

    @property
    def max_clock_skew_us(self) -> int:
        """The same in us."""
        return self.max_clock_skew_ns // 1000


DEFAULT_TIME_LIMITS: Final = TimeLimits()


def elapsed_ns(since: int, until: int) -> int:
    """Return the time between two packets in ns; 0 where one of them has no time."""
    return 0 if NO_TIME in (since, until) else until - since


def earliest_ns(*times: int) -> int:
    """Return the earliest of some times in ns, of those that are known; ``NO_TIME`` where none is."""
    return min((time for time in times if time != NO_TIME), default=NO_TIME)


def latest_ns(times: Ints, begins: Ints) -> Ints:
    """Return the latest time of each group of packets, as ``reduceat``; ``NO_TIME`` where one of them has none."""
    latest: Ints = np.maximum.reduceat(times, begins)
    if (times == NO_TIME).any():
        latest[np.minimum.reduceat(times, begins) == NO_TIME] = NO_TIME
    return latest
