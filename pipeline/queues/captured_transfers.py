"""When the messages that queue managers hand to one another (TCP 1801) were captured, by queue manager. No Spark.

A capture is of a queue manager if it has connections of the binary protocol that end at it. Two captures that follow
each other are one span of time if they overlap, or if one of these connections goes on from the one to the other
without a missing byte. Nothing else shows that no file is missing between them. Times are microseconds, UTC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pipeline.lake.lake import Lake
from pipeline.queues.queue_managers import QueueManagerNames
from schemas.bronze import CAPTURE_FILES, CONNECTIONS

Span: TypeAlias = tuple[int, int]
"""Beginning and end."""
SPAN_INPUTS: Final = (CONNECTIONS, CAPTURE_FILES)
_CONNECTIONS: Final = """
SELECT client_address, server_address, unix_micros(first_packet_at) AS begins, unix_micros(last_packet_at) AS ends,
  missing_bytes = 0 AS whole
FROM {connections} WHERE kind = 'binary_protocol' AND first_packet_at IS NOT NULL"""
_CAPTURES: Final = """
SELECT explode(servers) AS server, unix_micros(first_packet_at) AS begins, unix_micros(last_packet_at) AS ends
FROM {captures} WHERE servers IS NOT NULL AND first_packet_at IS NOT NULL"""


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
    connections = lake.query(_CONNECTIONS, connections=CONNECTIONS)
    if not connections.num_rows:
        return NOT_CAPTURED
    servers: defaultdict[str, set[str]] = defaultdict(set)
    lasting: defaultdict[str, list[Span]] = defaultdict(list)
    for client, server, begins, ends, whole in zip(
        *(column.to_pylist() for column in connections.columns), strict=True
    ):
        for name in {names.name_by_address.get(address, address) for address in (client, server)}:
            servers[name].add(server)
            if whole:
                lasting[name].append((begins, ends))
    captures: defaultdict[str, list[Span]] = defaultdict(list)
    for row in lake.query(_CAPTURES, captures=CAPTURE_FILES).to_pylist():
        captures[row["server"]].append((row["begins"], row["ends"]))
    return CapturedTransfers(
        {
            name: join_spans({span for server in theirs for span in captures[server]}, lasting[name])
            for name, theirs in servers.items()
        }
    )


def join_spans(captures: Iterable[Span], lasting: Iterable[Span]) -> list[Span]:
    """Join the spans of captures that overlap, or between which one of the ``lasting`` connections went on."""
    bridges = sorted(lasting)
    place, reach = 0, -1  # the latest end of the connections that began up to a time
    joined: list[Span] = []
    for begin, end in sorted(captures):
        if not joined:
            joined.append((begin, end))
            continue
        first, last = joined[-1]
        while place < len(bridges) and bridges[place][0] <= last:
            reach = max(reach, bridges[place][1])
            place += 1
        if begin <= max(last, reach):
            joined[-1] = (first, max(last, end))
        else:
            joined.append((begin, end))
    return joined
