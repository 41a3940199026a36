"""One line of the report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
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


def report(measures: Sequence[Measure]) -> str:
    """The measures as a table."""
    lines = [f"{'measure':<46}{'value':>12} {'unit':<6}{'floor':>8}{'goal':>8}  met"]
    for each in measures:
        bounds = [f"{bound:.1f}" if bound is not None else "" for bound in (each.floor, each.goal)]
        lines.append(f"{each.name:<46}{each.value:>12.2f} {each.unit:<6}{bounds[0]:>8}{bounds[1]:>8}  {each.verdict}")
    return "\n".join(lines)
