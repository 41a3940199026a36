"""Steps that are killed before their commits, and repeated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

from pipeline.lake.lake import Lake


class KilledError(Exception):
    """The run was killed: nothing between here and the test catches it."""


@contextmanager
def dying(lake: Lake, commits: int):
    """The same lake, held by a run that is killed when it has made so many commits and is about to make another."""
    left = commits

    def check() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KilledError

    held = Lake(lake.spark, lake.root, store=lake.store_name)
    with held.hold_exclusive_access(check):
        yield held


def killed_and_repeated(lake: Lake, step: Callable[[Lake], object]) -> int:
    """Kill a step before its first commit, repeat it and kill it before its second, and so on until it is through.

    Returns how often it was killed.
    """
    for commits in range(100):
        try:
            with dying(lake, commits) as held:
                step(held)
        except KilledError:
            continue
        return commits
    raise AssertionError("a step that makes a hundred commits, or none of which stays")
