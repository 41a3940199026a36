"""Which connections of the binary protocol have changed, for what is computed connection by connection.

A connection has changed with its packets and its row of bronze.connections; also where captures of its server end at
another time, while it is open, and where the clock of a capture with its packets is known to have been set elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from pipeline.bronze.across_captures.capture_ends import changed_ends, read_capture_ends
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.lake.incremental import IncrementalUpdate, KeptState, UnknownChangesError
from pipeline.lake.lake import Lake
from pipeline.transfers.checkpoint_use import ChangedPackets, changed_packets
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

    ``changes``: where these packets are; ``stepped``: those in captures of which other places are known than
    before where their clocks were set.
    """

    names: set[str]
    packets: pa.Table
    changes: ChangedPackets
    stepped: set[str]


def changed_connections(step: IncrementalUpdate, now: CaptureState) -> ChangedConnections:
    """Return what changed since a step's last commit, which kept a ``CaptureState``; UnknownChangesError."""
    before, packets = step.kept(CaptureState), changed_packets(step)
    if packets is None:
        raise UnknownChangesError
    rows = step.changes(CONNECTIONS, _CHANGED)
    names = {*packets["connection_id"].to_pylist()}
    stepped = _in_captures_with_other_steps(step.lake, before.clock_steps, now.clock_steps)
    names |= {row["connection_id"] for row in rows} | stepped
    names |= _open_at_other_ends(step.lake, before, now)
    return ChangedConnections(names, packets, ChangedPackets.of(packets), stepped)


def _in_captures_with_other_steps(lake: Lake, before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    captures = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    return connections_in_captures(lake, captures) if captures else set()


def connections_in_captures(lake: Lake, captures: Collection[str]) -> set[str]:
    """Return the connections with packets in some captures."""
    return {*lake.query(_IN_CAPTURES, rows=SESSION_PACKETS, captures=captures)["connection_id"].to_pylist()}


def _open_at_other_ends(lake: Lake, before: CaptureState, now: CaptureState) -> set[str]:
    """Return the sessions without an end whose captures end at another time than before.

    A later end makes open sessions silent; only an earlier one makes others open.
    """
    later, earlier = changed_ends(before.capture_ends, now.capture_ends)
    if not later and not earlier:
        return set()
    return {*lake.query(_OPEN, rows=SESSIONS, later=later, earlier=earlier)["connection_id"].to_pylist()}
