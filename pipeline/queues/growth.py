"""How much a number grew within a window, looked at again and again. Times are microseconds. No Spark."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Point(NamedTuple):
    """A number that was reported at a time, with its size and the row or key that tells it."""

    row: Any
    at: int
    number: int
    size: int | None = None


def with_least(points: Iterable[Point], window: int) -> Iterator[tuple[Point, Point]]:
    """Yield each of the points, which are in order of time, and the least one of the window that ends with it."""
    least: deque[Point] = deque()  # those that are the least of all since then
    for point in points:
        while least and least[0].at < point.at - window:
            least.popleft()
        while least and least[-1].number >= point.number:
            least.pop()
        least.append(point)
        yield point, least[0]
