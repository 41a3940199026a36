"""Which connections of the binary protocol have changed, for what is computed connection by connection.

A connection has changed with its packets and its row of bronze.connections; also where captures of its server end at
another time, while it is open, and where the clock of a capture with its packets is known to have been set elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import NO_TEXTS, distinct_texts
from pipeline.bronze.across_captures.capture_ends import changed_ends, read_capture_ends
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.lake.incremental import IncrementalUpdate, KeptState, UnknownChangesError
from pipeline.lake.lake import Lake
from pipeline.transfers.checkpoint_use import changed_packets
from pipeline.transfers.inputs import BINARY_PROTOCOL
from schemas.bronze import CAPTURE_FILES, CONNECTIONS
from schemas.sessions import SESSION_PACKETS, SESSIONS
from schemas.table import Table

CONNECTION_INPUTS: Final[tuple[Table, ...]] = (SESSION_PACKETS, CONNECTIONS, CAPTURE_FILES)
"""The inputs that a table needs whose update calls ``changed_connections``."""
_CHANGED: Final = f"SELECT DISTINCT connection_id FROM {{feed}} WHERE kind = '{BINARY_PROTOCOL}'"
_IN_CAPTURES: Final = "SELECT DISTINCT connection_id FROM {rows} WHERE capture_id IN {captures}"
_OPEN: Final = """
SELECT connection_id FROM {rows} WHERE closed_at IS NULL
  AND ((ended IS NULL AND server_address IN {later}) OR server_address IN {earlier})"""


@dataclass(frozen=True, slots=True)
class CaptureState(KeptState):
    """By server the ends of captures, microseconds; by capture a fingerprint of where its clock was set."""

    capture_ends: dict[str, int]
    clock_steps: dict[str, str]

    @classmethod
    def read(cls, lake: Lake) -> CaptureState:
        """Return how it is in a lake."""
        return cls(read_capture_ends(lake), read_clock_steps(lake).fingerprints())


class ChangedConnections(NamedTuple):
    """The ``names`` of all that changed, connection_id; ``packets``: as ``changed_packets`` returns them.

    ``stepped``: those in captures of which other places are known than before where their clocks were set.
    """

    names: pa.Array
    packets: pa.Table
    stepped: pa.Array

    @property
    def going_on(self) -> pa.Array:
        """The ones that are in no such capture: their checkpoints may hold."""
        return self.names.filter(pc.invert(pc.is_in(self.names, self.stepped)))


def changed_connections(step: IncrementalUpdate, now: CaptureState) -> ChangedConnections:
    """Return what changed since a step's last commit, which kept a ``CaptureState``; UnknownChangesError."""
    before, packets = step.kept(CaptureState), changed_packets(step)
    if packets is None:
        raise UnknownChangesError
    stepped = _in_captures_with_other_steps(step.lake, before.clock_steps, now.clock_steps)
    names = [packets["connection_id"], stepped, _open_at_other_ends(step.lake, before, now)]
    if (rows := step.shared_changed_rows(CONNECTIONS, _CHANGED)) is not None:
        names.append(rows["connection_id"])
    return ChangedConnections(distinct_texts(*names), packets, stepped)


def _in_captures_with_other_steps(lake: Lake, before: Mapping[str, str], now: Mapping[str, str]) -> pa.Array:
    captures = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    return connections_in_captures(lake, captures) if captures else NO_TEXTS


def connections_in_captures(lake: Lake, captures: Collection[str]) -> pa.Array:
    """Return the connections with packets in some captures."""
    return distinct_texts(lake.query(_IN_CAPTURES, rows=SESSION_PACKETS, captures=captures)["connection_id"])


def _open_at_other_ends(lake: Lake, before: CaptureState, now: CaptureState) -> pa.Array:
    """Return the sessions without an end whose captures end at another time than before.

    A later end makes open sessions silent; only an earlier one makes others open.
    """
    later, earlier = changed_ends(before.capture_ends, now.capture_ends)
    if not later and not earlier:
        return NO_TEXTS
    return distinct_texts(lake.query(_OPEN, rows=SESSIONS, later=later, earlier=earlier)["connection_id"])
