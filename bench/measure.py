"""One line of the report."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One line of the report; ``floor`` and ``goal`` are what the project asks, ``least`` whether more is better."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    goal: float | None = None
    least: bool = True

    @property
    def verdict(self) -> str:
        if self.floor is None:
            return ""
        for bound, word in ((self.goal, "goal"), (self.floor, "floor")):
            if bound is not None and (self.value >= bound if self.least else self.value <= bound):
                return word
        return "missed"


def say(text: str) -> None:
    """Tell how far the bench has come."""
    print(text, file=sys.stderr, flush=True)
