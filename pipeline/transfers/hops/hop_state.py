"""What the tables of transfers keep of captures and of queue managers, to find what another run affects. No Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pipeline.lake.incremental import KeptState


@dataclass(frozen=True, slots=True)
class HopState(KeptState):
    """``capture_ends``: by server, microseconds; ``clones``: identifiers of queue managers that two machines have.

    ``clock_places``: by capture the spans of time where its clock was set (``ClockSteps.places``).
    """

    capture_ends: dict[str, int]
    clones: list[str]
    clock_places: dict[str, list[list[int]]]

    def captures_with_other_places(self, before: HopState) -> set[str]:
        """Return the captures of which other places are known than before where their clocks were set."""
        then, now = before.clock_places, self.clock_places
        return {name for name in then.keys() | now.keys() if then.get(name) != now.get(name)}


NO_STATE: Final = HopState({}, [], {})
