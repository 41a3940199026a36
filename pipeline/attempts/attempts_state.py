"""What the provenance of gold.receive_attempts keeps: its next update reads it, and what is computed of attempts."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.lake.incremental import KeptState
from pipeline.lake.lake import Lake
from schemas.attempts import RECEIVE_ATTEMPTS


@dataclass(frozen=True, slots=True)
class AttemptsState(KeptState):
    """Times by server, microseconds, and whether a qm2qm cancel exists.

    ``ends``: the last captured packet, None where an earlier version found too many servers; ``numbered``: the latest
    call that names a queue by its number; ``lost``: until when calls may have been lost; ``incomplete``: the last
    packet of connections of which bytes are missing.
    """

    ends: dict[str, int] | None
    numbered: dict[str, int]
    cancels: bool
    lost: dict[str, int]
    incomplete: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def read(lake: Lake) -> AttemptsState | None:
        """Return what the table in a lake keeps; None where there is none, or an earlier version wrote it."""
        return AttemptsState.of(lake.versions.provenance(RECEIVE_ATTEMPTS))
