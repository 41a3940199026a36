"""When a queue gets messages: sendings by hour of the week, by the clocks of a time zone.

Clocks that go back show an hour twice, and clocks that go forward leave one out. So hours of the week differ in length,
and in how much of them was captured: ``captured_weeks`` says that of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

HOURS_OF_WEEK: Final = 7 * 24  # the first is that of Monday 00:00
STEP: Final = timedelta(minutes=15)
"""Every time zone has been a whole number of such steps away from UTC since 1972."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def hour_of_week(at: datetime, zone: tzinfo) -> int:
    """Return the hour of the week that the clocks of a zone show at a time."""
    local = at.astimezone(zone)
    return 24 * local.weekday() + local.hour


def heat_maps(hours: pa.Table, zone: tzinfo) -> dict[str, list[int]]:
    """Return the sendings of each queue by hour of the week, of rows of the view ``estate_hours``."""
    queues, starts = (hours[name].combine_chunks().dictionary_encode() for name in ("queue", "start_at"))
    place_of_start = np.array([hour_of_week(at, zone) for at in starts.dictionary.to_pylist()], np.int64)
    places = place_of_start[starts.indices.to_numpy()]
    counts = np.zeros((len(queues.dictionary), HOURS_OF_WEEK), np.int64)
    np.add.at(counts, (queues.indices.to_numpy(), places), hours["sendings"].to_numpy())
    return dict(zip(queues.dictionary.to_pylist(), counts.tolist(), strict=True))


def captured_weeks(coverage: pa.Table, zone: tzinfo) -> dict[str, tuple[float, ...]]:
    """Return the ``captured_seconds`` of each queue, of rows of the view ``estate_queue_coverage``."""
    stretches = defaultdict[str, list[tuple[datetime, datetime]]](list)
    for row in coverage.to_pylist():
        stretches[row["queue"]].append((row["first_at"], row["until_at"]))
    week_of = lru_cache(None)(lambda some: tuple(captured_seconds(some, zone)))  # queues that one tap shows share it
    return {queue: week_of(tuple(some)) for queue, some in stretches.items()}


def captured_seconds(stretches: Iterable[tuple[datetime, datetime]], zone: tzinfo) -> list[float]:
    """Return how many seconds of each hour of the week lie in stretches of time, which end before their second time."""
    seconds = [0.0] * HOURS_OF_WEEK
    for begin, until in stretches:
        at = begin
        while at < until:
            next_at = min(at + STEP - (at - _EPOCH) % STEP, until)
            seconds[hour_of_week(at, zone)] += (next_at - at).total_seconds()
            at = next_at
    return seconds
