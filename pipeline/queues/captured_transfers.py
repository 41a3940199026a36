"""When the messages that queue managers hand to one another (TCP 1801) were captured, by queue manager. No Spark.

A capture is of a queue manager if it has connections of the binary protocol that end at it. Two captures that follow
each other are one span of time if they overlap, or if one of these connections goes on from the one to the other
without a missing byte. Nothing else shows that no file is missing between them. Times are microseconds, UTC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pipeline.lake.lake import Lake
from pipeline.queues.queue_managers import QueueManagerNames, names_table
from schemas.bronze import CAPTURE_FILES, CONNECTIONS

Span: TypeAlias = tuple[int, int]
"""Beginning and end."""
SPAN_INPUTS: Final = (CONNECTIONS, CAPTURE_FILES)
# The connections of the binary protocol, by the queue managers at their ends.
_ENDS: Final = """
ends AS (
  SELECT coalesce(named.name, sides.address) AS machine, server_address, unix_micros(first_packet_at) AS begins,
    unix_micros(last_packet_at) AS ends, missing_bytes = 0 AS whole
  FROM (
    SELECT *, explode(array(client_address, server_address)) AS address
    FROM {connections} WHERE kind = 'binary_protocol' AND first_packet_at IS NOT NULL
  ) AS sides LEFT JOIN {names} AS named ON named.address = sides.address
)"""
# Captures that overlap, joined; the last end of those before, in their order.
_OVERLAPPING: Final = """
captures AS (
  SELECT machine, files.begins, files.ends, max(files.ends) OVER (
    PARTITION BY machine ORDER BY files.begins, files.ends ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS reach
  FROM (SELECT DISTINCT machine, server_address FROM ends) AS pairs JOIN (
    SELECT explode(servers) AS server, unix_micros(first_packet_at) AS begins, unix_micros(last_packet_at) AS ends
    FROM {captures} WHERE servers IS NOT NULL AND first_packet_at IS NOT NULL
  ) AS files ON files.server = pairs.server_address
), overlapping AS (
  SELECT machine, min(begins) AS begins, max(ends) AS ends FROM (
    SELECT *, sum(CASE WHEN begins <= reach THEN 0 ELSE 1 END) OVER (
      PARTITION BY machine ORDER BY begins, ends ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS place FROM captures
  ) AS placed GROUP BY machine, place
)"""
# Those between which a connection goes on, joined: the latest end of the whole connections that began up to their end.
_SPANS: Final = f"""
WITH {_ENDS}, {_OVERLAPPING}, reached AS (
  SELECT *, max(connection_ends) OVER (
    PARTITION BY machine ORDER BY moment, is_capture ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  ) AS reach
  FROM (
    SELECT machine, ends AS moment, 1 AS is_capture, begins, CAST(NULL AS bigint) AS connection_ends FROM overlapping
    UNION ALL SELECT machine, begins, 0, NULL, ends FROM ends WHERE whole
  ) AS events
), followed AS (
  SELECT machine, begins, moment AS ends, lag(reach) OVER (PARTITION BY machine ORDER BY begins) AS reach
  FROM reached WHERE is_capture = 1
)
SELECT machine, min(begins) AS begins, max(ends) AS ends FROM (
  SELECT *, sum(CASE WHEN begins <= reach THEN 0 ELSE 1 END) OVER (
    PARTITION BY machine ORDER BY begins ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  ) AS place FROM followed
) AS placed WHERE machine IS NOT NULL GROUP BY machine, place ORDER BY machine, begins"""


@dataclass(frozen=True, slots=True)
class CapturedTransfers:
    """The spans of time in which each queue manager's transfers were captured: ascending, apart from each other."""

    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)

    def cover(self, queue_manager: str | None, begin: int, end: int) -> bool:
        """Whether they were captured all the time from ``begin`` to ``end``."""
        spans = self.spans.get(queue_manager, ()) if queue_manager is not None else ()
        return any(first <= begin and end <= last for first, last in spans)

    def changed_since(self, before: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, int]:
        """Return the queue managers whose spans were others before, and the time until which both are the same."""
        found = {}
        for name in self.spans.keys() | before.keys():
            now, then = [[*each] for each in self.spans.get(name, ())], [[*each] for each in before.get(name, ())]
            if now != then:
                alike = next((i for i, both in enumerate(zip(now, then, strict=False)) if both[0] != both[1]), None)
                place = min(len(now), len(then)) if alike is None else alike
                bounds = [each[place] for each in (now, then) if place < len(each)]
                begins, ends = zip(*bounds, strict=True)
                found[name] = min(ends) if len(bounds) > 1 and len({*begins}) == 1 else min(begins)
        return found


NOT_CAPTURED: Final = CapturedTransfers()
"""No transfers were captured."""


def read_captured_transfers(lake: Lake, names: QueueManagerNames) -> CapturedTransfers:
    """Return when transfers were captured, by the names of queue managers in gold."""
    found = lake.query(
        _SPANS, connections=CONNECTIONS, captures=CAPTURE_FILES, names=names_table(names.name_by_address)
    )
    spans: defaultdict[str, list[Span]] = defaultdict(list)
    for machine, begins, ends in zip(*(column.to_pylist() for column in found.columns), strict=True):
        spans[machine].append((begins, ends))
    return CapturedTransfers(dict(spans))
