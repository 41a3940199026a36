"""Limits of time for packets that belong together."""

from __future__ import annotations

from typing import Final, NamedTuple


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
