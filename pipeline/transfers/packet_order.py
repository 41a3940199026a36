"""Which of two packets of the binary protocol was certainly sent first, whatever the clocks of captures. No Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from pipeline.arrow_rows import table_to_rows
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES
from schemas.sessions import SESSION_PACKETS, SESSIONS
from udfs.capture.clock_steps import NO_STEPS, ClockSteps
from udfs.tcp.time_limits import DEFAULT_TIME_LIMITS

CLOCKS_APART_US: Final = DEFAULT_TIME_LIMITS.max_clock_skew_us
"""The most by which the clocks of captures that saw a connection side by side differ."""
_PACKETS: Final = """
SELECT packet_key, connection_id, sent_by, stream_offset, capture_id, packet_number, sent_at FROM {packets}
WHERE packet_key IN {keys}"""
_SPANS: Final = """
SELECT capture_id, first_packet_at, last_packet_at FROM {files}
WHERE capture_id IN {captures} AND first_packet_at IS NOT NULL"""
_SIDE_BY_SIDE: Final = """
SELECT DISTINCT pair.one AS one, pair.other AS other FROM (
  SELECT explode(overlapping_captures) AS pair FROM {sessions} WHERE overlapping_captures IS NOT NULL
)"""


@dataclass(frozen=True, slots=True)
class PacketOrder:
    """Packets by key, and what is known of the clocks of their captures.

    Two captures have one clock if they follow one another, as the files of a ring do, and no other capture saw a
    session of one of them side by side with it. ``spans``: from when to when a capture has packets, microseconds;
    ``taps``: captures that saw a session side by side with another one.
    """

    packets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    steps: ClockSteps = NO_STEPS
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    taps: Collection[str] = frozenset()

    @staticmethod
    def read(lake: Lake, keys: Collection[str]) -> PacketOrder:
        """Read what is known of some packets."""
        if not keys:
            return PacketOrder()
        packets = {
            row["packet_key"]: row for row in table_to_rows(lake.query(_PACKETS, packets=SESSION_PACKETS, keys=keys))
        }
        captures = {row["capture_id"] for row in packets.values()}
        files = lake.query(_SPANS, files=CAPTURE_FILES, captures=captures)
        spans = {row["capture_id"]: (row["first_packet_at"], row["last_packet_at"]) for row in table_to_rows(files)}
        pairs = lake.query(_SIDE_BY_SIDE, sessions=SESSIONS) if len(captures) > 1 else None
        taps = frozenset() if pairs is None else frozenset(pairs["one"].to_pylist() + pairs["other"].to_pylist())
        return PacketOrder(packets, read_clock_steps(lake), spans, taps)

    def clocks_apart_us(self, keys: Collection[str]) -> int:
        """Return by how much the clocks of some packets' captures may differ, microseconds.

        That is 0 where they have one, and it was not set.
        """
        captures = {self.packets[key]["capture_id"] for key in keys if key in self.packets}
        spans = sorted(self.spans[name] for name in captures if name in self.spans)
        have_one = len(captures) < 2 or (
            len(spans) == len(captures)
            and not any(name in self.taps for name in captures)
            and all(ends <= begins for (_, ends), (begins, _) in pairwise(spans))
        )
        set_by = sum(until - since for name, since, until in self.steps.set_by() if name in captures)
        return (0 if have_one else CLOCKS_APART_US) + set_by

    def is_certain(self, before: str, after: str) -> bool:
        """Whether a packet was certainly sent before another one, or in the same captured packet as it.

        In one direction of a session its bytes decide. Elsewhere times of one clock do, as if it had not been set back;
        those of several clocks must be further apart than these may be.
        """
        one, other = self.packets.get(before), self.packets.get(after)
        if one is None or other is None or None in (one["sent_at"], other["sent_at"]):
            return False
        if all(one[name] == other[name] for name in ("connection_id", "sent_by")):
            return bool(one["stream_offset"] <= other["stream_offset"])
        slack = CLOCKS_APART_US if self._clocks_may_differ(one["capture_id"], other["capture_id"]) else 0
        return self._at(one) + slack <= self._at(other)

    def _at(self, packet: Mapping[str, Any]) -> int:
        """Return when a packet was sent, as if the clock of its capture had not been set back; microseconds."""
        return int(packet["sent_at"]) + self.steps.before(packet["capture_id"], packet["packet_number"]).us

    def _clocks_may_differ(self, one: str, other: str) -> bool:
        if one == other:
            return False
        if one in self.taps or other in self.taps or one not in self.spans or other not in self.spans:
            return True
        (begins, ends), (other_begins, other_ends) = self.spans[one], self.spans[other]
        return begins < other_ends and other_begins < ends
