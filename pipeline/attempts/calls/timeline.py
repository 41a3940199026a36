"""Items by key, in order of time."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable
from typing import Generic, TypeVar

TimelineItem = TypeVar("TimelineItem")


class Timeline(Generic[TimelineItem]):
    """Items by key, in order of time; lookups by bisection."""

    def __init__(self) -> None:
        self._items: defaultdict[Hashable, list[TimelineItem]] = defaultdict(list)
        self._times: defaultdict[Hashable, list[int]] = defaultdict(list)

    def add(self, key: Hashable, item: TimelineItem, at: int) -> None:
        """Add an item, at a time not before the last one added under the key."""
        self._items[key].append(item)
        self._times[key].append(at)

    def after(self, key: Hashable, at: int, limit: int) -> list[TimelineItem]:
        """Return the first items after a time, ``limit`` at most."""
        if key not in self._items:
            return []
        place = bisect_right(self._times[key], at)
        return self._items[key][place : place + limit]

    def between(self, key: Hashable, after: int, until: int) -> list[TimelineItem]:
        """Return the items after a time, up to and at another."""
        items, low, high = self.span(key, after, until)
        return items[low:high]

    def span(self, key: Hashable, after: int, until: int) -> tuple[list[TimelineItem], int, int]:
        """Return all items of a key, and the places of those after a time, up to and at another: begin and end."""
        if key not in self._items:
            return [], 0, 0
        times = self._times[key]
        return self._items[key], bisect_right(times, after), bisect_right(times, until)

    def latest(self, key: Hashable, at: int) -> TimelineItem | None:
        """Return the last item up to and at a time."""
        if key not in self._items:
            return None
        place = bisect_right(self._times[key], at)
        return self._items[key][place - 1] if place else None

    def first_after(self, key: Hashable, at: int) -> TimelineItem | None:
        """Return the first item after a time."""
        if key not in self._items:
            return None
        place = bisect_right(self._times[key], at)
        return self._items[key][place] if place < len(self._items[key]) else None

    def nearest(self, key: Hashable, at: int) -> TimelineItem | None:
        """Return the last item up to and at a time, else the first one after."""
        found = self.latest(key, at)
        return self.first_after(key, at) if found is None else found
