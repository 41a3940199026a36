"""The current time of a lake: that of the newest packet or snapshot read, independent of the machine's clock."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES
from schemas.collected_snapshots import SNAPSHOTS_RAW
from udfs.times import datetime_to_us

_NEWEST_TIME_OF: Final = {CAPTURE_FILES: "max(last_packet_at)", SNAPSHOTS_RAW: "max(coalesce(collected_at, asked_at))"}

_NEWEST_TIMES: Final = " UNION ALL ".join(
    f"SELECT {newest} AS newest FROM {table}" for table, newest in _NEWEST_TIME_OF.items()
)
NEWEST_EVENT_TIME_QUERY: Final = f"(SELECT max(newest) AS now FROM ({_NEWEST_TIMES}))"
"""A subquery with the one column ``now``, over tables named as ``layer.name``."""


def newest_event_time_us(lake: Lake) -> int | None:
    """Return ``newest_event_time`` in microseconds since 1970."""
    return datetime_to_us(newest_event_time(lake))


def newest_event_time(lake: Lake) -> datetime | None:
    """Return the time of the newest packet or snapshot; None where none has a time."""
    times = " UNION ALL ".join(f"SELECT {newest} AS newest FROM {{{t.name}}}" for t, newest in _NEWEST_TIME_OF.items())
    tables = {table.name: table for table in _NEWEST_TIME_OF}
    found = lake.query_shared(f"SELECT max(newest) AS newest FROM ({times})", **tables)
    newest: datetime | None = found["newest"][0].as_py()
    return newest
