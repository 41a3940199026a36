"""Computing the next item of an iterator while the present one is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetch(things: Iterable[Item]) -> Iterator[Item]:
    """Yield items; a thread computes the next one while the caller uses the present one."""
    each, nothing = iter(things), object()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, each, nothing)
        while (thing := following.result()) is not nothing:
            following = pool.submit(next, each, nothing)
            yield thing  # type: ignore[misc]
