"""By how much the clock of one capture is ahead of the other one's, from packets that both have.

A packet takes no less than no time from one place to the other one. So packets that pass the other place first bound
the difference on one side, and those that come back on the other side. Where clocks drift or are set, the bounds of
one time do not fit those of another: the difference is then given for each time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from pipeline.reports.taps.lost_bytes import offsets
from pipeline.reports.taps.tap_items import Direction
from pipeline.reports.taps.tap_streams import NO_SEGMENTS, Segments
from udfs.array_types import Ints

_WINDOW_NS: Final = 60_000_000_000


class ClockDifference(NamedTuple):
    """How far the clock of B is ahead of A's, from a time of A on: between two bounds, in ns.

    ``is_interval``: packets of both directions bound it on both sides. Else ``least`` holds if the packets passed B
    first, ``most`` if they passed A first: which of both is the case is not known.
    """

    since_ns: int
    least_ns: int
    most_ns: int
    packets: int
    is_interval: bool


class CommonTimes(NamedTuple):
    """The times of packets that both captures have once: by A, and how much later by B, ns."""

    at_ns: Ints
    later_ns: Ints


def common_times(one: Segments, other: Segments) -> CommonTimes:
    """Return the times of the segments of one direction that each of both captures has exactly once."""
    one, other = (each.take(np.flatnonzero(each.length > 0)) for each in (one, other))
    if not len(one.sequence) or not len(other.sequence):
        return CommonTimes(NO_SEGMENTS.time_ns, NO_SEGMENTS.time_ns)
    base = int(one.sequence[0])
    places = [_once(offsets(each.sequence, base)) for each in (one, other)]
    _, here, there = np.intersect1d(places[0][0], places[1][0], assume_unique=True, return_indices=True)
    rows, other_rows = places[0][1][here], places[1][1][there]
    is_same = one.length[rows] == other.length[other_rows]
    at = one.time_ns[rows][is_same]
    return CommonTimes(at, other.time_ns[other_rows][is_same] - at)


def clock_differences(common: Mapping[Direction, CommonTimes]) -> list[ClockDifference]:
    """Return the difference of the clocks, in parts of the time in which it is the same; empty: nothing in common."""
    both = [part for window in _windows(common) if (part := _bound(window)) is not None]
    parts = [each for each in both if each.is_interval] or both
    joined: list[ClockDifference] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is not None and (together := _join(last, part)) is not None:
            joined[-1] = together
        else:
            joined.append(part)
    return joined


def usual_difference_ns(common: Iterable[CommonTimes]) -> int:
    """Return about how far the clock of B is ahead, ns; 0 without common packets."""
    every = [each.later_ns for each in common]
    return int(np.median(np.concatenate(every))) if sum(map(len, every)) else 0


_Hosts = tuple[str, str]
_Window = Mapping[_Hosts, tuple[Ints, Ints]]  # by hosts: how much later B has the packets of each direction


def _windows(common: Mapping[Direction, CommonTimes]) -> list[tuple[int, _Window]]:
    """Return, minute by minute, how much later B has packets: by the addresses of both hosts, in each direction."""
    found: dict[int, dict[_Hosts, tuple[list[Ints], list[Ints]]]] = defaultdict(lambda: defaultdict(lambda: ([], [])))
    first: dict[int, int] = {}
    for direction, times in common.items():
        hosts = (direction.source.address, direction.target.address)
        minutes = times.at_ns // _WINDOW_NS
        for minute in np.unique(minutes).tolist():
            some = minutes == minute
            ordered = (min(hosts), max(hosts))
            found[minute][ordered][hosts != ordered].append(times.later_ns[some])
            first[minute] = min(first.get(minute, int(times.at_ns[some].min())), int(times.at_ns[some].min()))
    return [
        (first[minute], {hosts: (_joined(both[0]), _joined(both[1])) for hosts, both in found[minute].items()})
        for minute in sorted(found)
    ]


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else NO_SEGMENTS.time_ns


def _bound(window: tuple[int, _Window]) -> ClockDifference | None:
    """Return the bounds of the difference in one minute; None where different packets contradict each other."""
    since, by_hosts = window
    found = [_bound_of_hosts(since, *both) for both in by_hosts.values()]
    intervals = [each for each in found if each is not None and each.is_interval]
    if not intervals:
        return max((each for each in found if each is not None), key=lambda each: each.packets, default=None)
    together: ClockDifference | None = intervals[0]
    for each in intervals[1:]:
        together = None if together is None else _join(together, each)
    return together


def _bound_of_hosts(since: int, toward: Ints, back: Ints) -> ClockDifference | None:
    count = len(toward) + len(back)
    if not len(toward) or not len(back):
        alone = toward if len(toward) else back
        return ClockDifference(since, int(alone.max()), int(alone.min()), count, is_interval=False)
    for first, second in ((toward, back), (back, toward)):  # whose packets pass A first, and B first
        if second.max() <= first.min():
            return ClockDifference(since, int(second.max()), int(first.min()), count, is_interval=True)
    return None


def _join(one: ClockDifference, other: ClockDifference) -> ClockDifference | None:
    """Return one difference for two that can be the same; None if they cannot."""
    count, since = one.packets + other.packets, min(one.since_ns, other.since_ns)
    if not one.is_interval:
        least, most = max(one.least_ns, other.least_ns), min(one.most_ns, other.most_ns)
        return ClockDifference(since, least, most, count, is_interval=False)
    least, most = max(one.least_ns, other.least_ns), min(one.most_ns, other.most_ns)
    return ClockDifference(since, least, most, count, is_interval=True) if least <= most else None


def _once(places: Ints) -> tuple[Ints, Ints]:
    """Return the values that occur once, and where."""
    values, first, counts = np.unique(places, return_index=True, return_counts=True)
    return values[counts == 1], first[counts == 1]
