"""Sets of indexes that are joined step by step."""

from __future__ import annotations

from collections import defaultdict


class DisjointSets:
    """The indexes from 0 to ``count`` - 1, at first each in a set of its own."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, index: int) -> int:
        """Return the index that stands for the set of an index."""
        parent = self._parent
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    def join(self, index: int, other: int) -> None:
        """Join the sets of two indexes; what stands for that of ``other`` stands for both."""
        self._parent[self.root(index)] = self.root(other)

    def groups(self) -> list[list[int]]:
        """Return the sets, each in ascending order, in the order of their first indexes."""
        found: dict[int, list[int]] = defaultdict(list)
        for index in range(len(self._parent)):
            found[self.root(index)].append(index)
        return list(found.values())
