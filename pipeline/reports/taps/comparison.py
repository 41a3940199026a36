"""Compares what two captures, A and B, have of the same traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from pipeline.reports.taps.clock_difference import (
    ClockDifference,
    clock_differences,
    common_times,
    usual_difference_ns,
)
from pipeline.reports.taps.lost_bytes import CAUSES, NOTHING_LACKING, Cause, LackingBytes, lacking_bytes
from pipeline.reports.taps.tap_items import KINDS, Direction, Item, Key, Kind, TapItems, items_of
from pipeline.reports.taps.tap_streams import NO_SEGMENTS, Segments
from udfs.times import datetime_to_us, us_to_datetime

Streams: TypeAlias = Mapping[Direction, Segments]
Reason: TypeAlias = Cause | Literal["other_hours", "not_read"]
REASONS: Final[Mapping[Reason, str]] = {
    "lost_by_capture": "lost by the capture: it has the acknowledgement",
    "on_the_way": "sent again: lost on the way",
    "unknown": "not known",
    "other_hours": "it did not capture then",
    "not_read": "its bytes are there, but were not read",
}
"""Why a capture lacks something, in words."""
_BEFORE_ALL: Final = us_to_datetime(0)


class Tap(NamedTuple):
    """One capture: what the reader found in it, and its TCP segments."""

    found: TapItems
    streams: Streams


class LackingItem(NamedTuple):
    """Something that one capture has and the other one lacks, or has in part, and why."""

    item: Item
    reason: Reason


@dataclass(frozen=True, slots=True)
class Lacking:
    """What one capture lacks: items in order of time by the other one's clock, and bytes by cause."""

    items: list[LackingItem]
    bytes: dict[Cause, int]

    def count(self, kind: Kind) -> int:
        """Return how many items of a kind are lacking."""
        return sum(each.item.kind == kind for each in self.items)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What A and B lack, how many items of each kind both have, and how far the clock of B is ahead of A's."""

    lacking_in_a: Lacking
    lacking_in_b: Lacking
    in_both: dict[Kind, int]
    clocks: list[ClockDifference]


def compare_taps(a: Tap, b: Tap) -> Comparison:
    """Compare two captures of the same traffic."""
    directions = a.found.directions | b.found.directions
    common = {
        direction: common_times(a.streams.get(direction, NO_SEGMENTS), b.streams.get(direction, NO_SEGMENTS))
        for direction in directions
    }
    usual_us = usual_difference_ns(common.values()) // 1000
    in_both = {kind: sum(_has(b.found, kind, key, item) for key, item in a.found.items[kind].items()) for kind in KINDS}
    return Comparison(_lacking(a, b, usual_us), _lacking(b, a, -usual_us), in_both, clock_differences(common))


def _has(found: TapItems, kind: Kind, key: Key, item: Item) -> bool:
    """Whether a capture has something, whole if it is whole elsewhere."""
    same = found.items[kind].get(key)
    return same is not None and (same.is_whole or not item.is_whole)


def _lacking(here: Tap, there: Tap, ahead_us: int) -> Lacking:
    """Return what ``here`` lacks of what ``there`` has, whose clock is ahead of it by about ``ahead_us``."""
    begin_us, end_us = (
        datetime_to_us(here.found.file[name] or _BEFORE_ALL) + ahead_us  # of a capture without packets
        for name in ("first_packet_at", "last_packet_at")
    )
    lacking: dict[Direction, LackingBytes] = {}
    for direction, segments in there.streams.items():
        micros = segments.time_ns // 1000
        then = (micros >= begin_us) & (micros <= end_us)
        seen = here.streams.get(direction, NO_SEGMENTS)
        lacking[direction] = lacking_bytes(seen, segments.take(np.flatnonzero(then)), here.streams.get(direction.back))
    items = []
    for kind, key, item in items_of(there.found):
        if not _has(here.found, kind, key, item):
            of = lacking.get(item.place.direction, NOTHING_LACKING)
            cause = of.cause_of(item.place.sequence, item.place.length)
            is_then = item.place.at_us is None or begin_us <= item.place.at_us <= end_us
            items.append(LackingItem(item, (cause or "not_read") if is_then else "other_hours"))
    items.sort(key=lambda each: (each.item.place.at_us or 0, each.item))
    counts = [each.count() for each in lacking.values()]
    return Lacking(items, {cause: sum(count[cause] for count in counts) for cause in CAUSES})
