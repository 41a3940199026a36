"""Which queue manager an address is, by the handshakes that were seen at about a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pipeline.lake.arrow_rows import times_to_us
from pipeline.lake.lake import Lake
from schemas.sessions import SESSIONS

HANDSHAKES_SQL: Final = """
SELECT client_address AS address, initiator_queue_manager AS queue_manager,
  coalesce(establish_requested_at, establish_answered_at) AS `at`
FROM {rows}
UNION ALL
SELECT server_address AS address, acceptor_queue_manager AS queue_manager,
  coalesce(establish_answered_at, establish_requested_at) AS `at`
FROM {rows}"""
"""What handshakes show of both ends, from rows of silver.sessions; null where one did not show it."""
_OF_ADDRESSES: Final = f"""
SELECT address, queue_manager, `at` FROM ({HANDSHAKES_SQL})
WHERE address IN {{addresses}} AND queue_manager IS NOT NULL AND `at` IS NOT NULL
ORDER BY address, `at`, queue_manager"""


@dataclass(frozen=True, slots=True)
class _Handshakes:
    """Handshakes of one address in order of time, and where the run of those of one queue manager ends."""

    times: list[int]
    queue_managers: list[str]
    run_ends: list[int]


@dataclass(frozen=True, slots=True)
class HandshakeQueueManagers:
    """The queue managers that handshakes show, by address; a handshake counts for ``expire_us`` before and after it."""

    by_address: dict[str, _Handshakes]
    expire_us: int

    @staticmethod
    def read(lake: Lake, addresses: Collection[str], expire_us: int) -> HandshakeQueueManagers:
        """Read the handshakes of some addresses from silver.sessions. ``expire_us`` is the setting pending.expire."""
        found = lake.query(_OF_ADDRESSES, rows=SESSIONS, addresses=addresses) if addresses else pa.table({})
        by_address: dict[str, _Handshakes] = {}
        if found.num_rows:
            columns = (
                found["address"].to_pylist(),
                found["queue_manager"].to_pylist(),
                times_to_us(found["at"]).to_pylist(),
            )
            for address, queue_manager, at in zip(*columns, strict=True):
                ours = by_address.setdefault(address, _Handshakes([], [], []))
                ours.times.append(at)
                ours.queue_managers.append(queue_manager)
        for ours in by_address.values():
            ours.run_ends.extend(_run_ends(ours.queue_managers))
        return HandshakeQueueManagers(by_address, expire_us)

    def at(self, address: str, moment_us: int) -> str | None:
        """Return the one queue manager that all handshakes of an address show at about a time; None if not one."""
        ours = self.by_address.get(address)
        if ours is None:
            return None
        first = bisect_left(ours.times, moment_us - self.expire_us)
        end = bisect_right(ours.times, moment_us + self.expire_us)
        return ours.queue_managers[first] if first < end <= ours.run_ends[first] else None


def _run_ends(texts: list[str]) -> list[int]:
    """Return for each place where the run of equal texts that it is in ends."""
    ends = [len(texts)] * len(texts)
    for place in range(len(texts) - 2, -1, -1):
        ends[place] = ends[place + 1] if texts[place] == texts[place + 1] else place + 1
    return ends
