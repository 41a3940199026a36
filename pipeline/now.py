"""What counts as now: the time of the newest packet or snapshot that was read, whatever a machine's clock says."""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.lake import Lake
from schemas.bronze import CAPTURE_FILES
from schemas.snapshots import SNAPSHOTS_RAW

_NEWEST: Final = {CAPTURE_FILES: "max(last_packet_at)", SNAPSHOTS_RAW: "max(coalesce(collected_at, asked_at))"}

_EACH: Final = " UNION ALL ".join(f"SELECT {newest} AS at FROM {table}" for table, newest in _NEWEST.items())  # noqa: S608
NOW: Final = f"(SELECT max(at) AS now FROM ({_EACH}))"  # noqa: S608 - names of ours
"""As a query with a column ``now``, over tables named as ``layer.name``."""


def newest_at(lake: Lake) -> int | None:
    """Return it in microseconds since the epoch; None where nothing with a time was read."""
    each = [lake.read(table).select(F.expr(newest).alias("at")) for table, newest in _NEWEST.items()]
    found = reduce(DataFrame.unionAll, each).agg(F.unix_micros(F.max("at"))).first()
    return None if found is None else found[0]
