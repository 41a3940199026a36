"""What counts as now: the time of the newest packet or snapshot that was read, whatever a machine's clock says."""

from __future__ import annotations

from typing import Final

from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES
from schemas.collected_snapshots import SNAPSHOTS_RAW

_NEWEST: Final = {CAPTURE_FILES: "max(last_packet_at)", SNAPSHOTS_RAW: "max(coalesce(collected_at, asked_at))"}

_EACH: Final = " UNION ALL ".join(f"SELECT {newest} AS at FROM {table}" for table, newest in _NEWEST.items())
NOW: Final = f"(SELECT max(at) AS now FROM ({_EACH}))"
"""As a query with a column ``now``, over tables named as ``layer.name``."""


def newest_at(lake: Lake) -> int | None:
    """Return it in microseconds since the epoch; None where nothing with a time was read."""
    each = " UNION ALL ".join(f"SELECT {newest} AS newest FROM {{{t.name}}}" for t, newest in _NEWEST.items())
    of = {table.name: table for table in _NEWEST}
    found = lake.query(f"SELECT unix_micros(max(newest)) AS newest FROM ({each})", **of)
    newest: int | None = found["newest"][0].as_py()
    return newest
