"""Conditions of merges by delta-rs: which rows of a table (``t``) are meant by those that are merged (``s``).

delta-rs reads all columns of every file that conditions on ``t`` alone do not exclude by the file's statistics. So
conditions name dates and times of the rows that are looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.arrow_rows import times_to_us
from pipeline.lake.queries.duckdb_sql import quoted_for_duckdb
from schemas.table import Table
from udfs.columns.groups import sorted_distinct
from udfs.times import datetime_to_us, us_to_datetime

_MAX_SPANS: Final = 16  # of times that a condition names
_SLACK: Final = timedelta(seconds=1)  # some writers cut times in statistics off to milliseconds
# What every reader of times takes, also as nanoseconds.
_FIRST_US, _LAST_US = (datetime_to_us(datetime(year, 1, 1, tzinfo=UTC)) for year in (1678, 2262))


def same_value(name: str, *, can_be_null: bool = False) -> str:
    """Return the condition that two rows have the same value in a column."""
    return f"(t.{quoted_for_duckdb(name)} {'IS NOT DISTINCT FROM' if can_be_null else '='} s.{quoted_for_duckdb(name)})"


def near_times(table: Table, rows: pa.Table) -> list[str]:
    """Return conditions that rows of the table meet which have the same times as one of ``rows``.

    The times are those that give ``event_date``: their columns have statistics.
    """
    return [_is_near(f"t.{quoted_for_duckdb(name)}", rows[name]) for name in table.event_date_columns]


def _is_near(column: str, times: pa.ChunkedArray) -> str:
    known = sorted_distinct(times_to_us(times.drop_null()).to_numpy())
    if len(known) and not _FIRST_US <= known[0] <= known[-1] < _LAST_US:
        return "TRUE"
    spans = [f"{column} BETWEEN '{first - _SLACK}' AND '{last + _SLACK}'" for first, last in _spans(known)]
    if times.null_count:
        spans.append(f"{column} IS NULL")
    return f"({' OR '.join(spans) or 'FALSE'})"


def _spans(times: np.ndarray) -> Iterator[tuple[datetime, datetime]]:
    """Yield a few spans that hold all of some times, microseconds in order; they are parted where these lie apart."""
    apart = np.sort(np.argsort(np.diff(times))[1 - _MAX_SPANS :])
    for part in np.split(times, apart + 1):
        if len(part):
            yield us_to_datetime(int(part[0])), us_to_datetime(int(part[-1]))
