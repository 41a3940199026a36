"""Growth of a count within a sliding window. Times are microseconds. No Spark."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class CountSample(NamedTuple):
    """The number of messages reported at a time, their size, and the row (or its key) that reports it."""

    row: Any
    at: int
    message_count: int
    size_bytes: int | None = None


def pair_with_window_minimum(
    samples: Iterable[CountSample], window_us: int
) -> Iterator[tuple[CountSample, CountSample]]:
    """Yield each sample with the lowest sample of the window that ends with it; samples are in order of time."""
    minima: deque[CountSample] = deque()  # monotonic queue: each is the lowest of all samples since
    for sample in samples:
        while minima and minima[0].at < sample.at - window_us:
            minima.popleft()
        while minima and minima[-1].message_count >= sample.message_count:
            minima.pop()
        minima.append(sample)
        yield sample, minima[0]
