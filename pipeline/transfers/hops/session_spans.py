"""The time spans that sessions last: what one shows tells nothing of times at which it does not exist."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from udfs.columns.absent import AFTER_ALL, BEFORE_ALL
from udfs.columns.arrays import to_times


class TimeSpan(NamedTuple):
    """A span from a first to a last time, microseconds, both included."""

    since: int
    until: int

    @staticmethod
    def of(first: pa.ChunkedArray, last: pa.ChunkedArray) -> TimeSpan:
        """Return the span from the earliest ``first`` to the latest ``last``; a null may be any time."""
        since, until = to_times(first, BEFORE_ALL), to_times(last, AFTER_ALL)
        return TimeSpan(int(since.min(initial=AFTER_ALL)), int(until.max(initial=BEFORE_ALL)))

    def widened(self, before_us: int, after_us: int) -> TimeSpan:
        """Return the span with so much before and after it."""
        return TimeSpan(self.since - before_us, self.until + after_us)

    def sessions_sql(self, rows: str = "rows") -> str:
        """Return a subquery over ``{rows}``, an input of another name, of silver.sessions: those that may exist then.

        Files tell when their rows end: of those whose rows all end before it nothing is read.
        """
        begun = f"(first_packet_at IS NULL OR first_packet_at <= timestamp_micros({self.until}))"
        lasts = f"(last_packet_at IS NULL OR last_packet_at >= timestamp_micros({self.since}))"
        return f"(SELECT * FROM {{{rows}}} WHERE {begun} AND {lasts})"
