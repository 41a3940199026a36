"""Measured values and the report that is printed of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One measured value. ``floor`` and ``goal`` are the project's requirement and its target for the value."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    goal: float | None = None
    higher_is_better: bool = True

    @property
    def verdict(self) -> str:
        """Return ``goal`` or ``floor``, whichever is reached, ``missed``, or an empty text without bounds."""
        if self.floor is None:
            return ""
        for bound, word in ((self.goal, "goal"), (self.floor, "floor")):
            if bound is not None and (self.value >= bound if self.higher_is_better else self.value <= bound):
                return word
        return "missed"


def log_progress(text: str) -> None:
    """Print a line of progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def format_report(measures: Sequence[Measure]) -> str:
    """Format the measures as a table."""
    lines = [f"{'measure':<46}{'value':>12} {'unit':<6}{'floor':>8}{'goal':>8}  met"]
    for each in measures:
        bounds = [f"{bound:.1f}" if bound is not None else "" for bound in (each.floor, each.goal)]
        lines.append(f"{each.name:<46}{each.value:>12.2f} {each.unit:<6}{bounds[0]:>8}{bounds[1]:>8}  {each.verdict}")
    return "\n".join(lines)
