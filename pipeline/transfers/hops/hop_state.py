"""What the tables of transfers keep of captures and of queue managers, to find what another run affects. No Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pipeline.lake.incremental import KeptState


@dataclass(frozen=True, slots=True)
class HopState(KeptState):
    """``capture_ends``: by server, microseconds; ``clones``: identifiers of queue managers that two machines have.

    ``clock_steps``: a fingerprint of where clocks of captures were set; None where none was.
    """

    capture_ends: dict[str, int]
    clones: list[str]
    clock_steps: str | None


NO_STATE: Final = HopState({}, [], None)
