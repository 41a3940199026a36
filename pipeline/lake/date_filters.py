"""SQL of dates: conditions on event_date, by which tables are laid out; files of other dates are not read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from schemas.table import EVENT_DATE
from udfs.times import DAY_US, us_to_datetime

MAX_DATES: Final = 500  # a condition names so many dates one by one, more of them as a span


@dataclass(frozen=True, slots=True)
class DateSpan:
    """The dates from a first to a last one."""

    first: date
    last: date = date.max

    @classmethod
    def of_times(cls, since_us: int, until_us: int | None = None) -> DateSpan:
        """Return the dates of the times from one to another, microseconds; None: all after it."""
        return cls(us_to_datetime(since_us).date(), date.max if until_us is None else us_to_datetime(until_us).date())


Dates: TypeAlias = Collection[date | None] | DateSpan
"""Dates of rows; None among them: rows without one."""


def distinct_dates(*rows: pa.Table) -> set[date | None]:
    """Return the dates of rows."""
    return {day for each in rows for day in pc.unique(each[EVENT_DATE]).to_pylist()}


def dates_condition(dates: Dates | None, column: str = EVENT_DATE) -> str:
    """Return the SQL condition that event_date is one of these dates (None among them: null); None: any date."""
    if dates is None:
        return "TRUE"
    if isinstance(dates, DateSpan):
        return f"{column} BETWEEN DATE'{dates.first}' AND DATE'{dates.last}'"
    days = sorted(day for day in dates if day is not None)
    conditions = [f"{column} IS NULL"] if None in dates else []
    if len(days) > MAX_DATES:
        conditions.append(dates_condition(DateSpan(days[0], days[-1]), column))
    elif days:
        named = ", ".join(f"DATE'{day}'" for day in days)
        conditions.append(f"{column} IN ({named})")
    return f"({' OR '.join(conditions)})" if conditions else "FALSE"


def not_before(column: str, since_us: int) -> str:
    """Return the SQL condition that a time is null, or not before another one, microseconds.

    Of a busy day only the parts of files with such times are read.
    """
    return f"({column} IS NULL OR {column} >= timestamp_micros({since_us}))"


def utc_date_sql(time: str) -> str:
    """Return the SQL of the UTC date of a time, given as SQL, whatever the session's time zone."""
    return f"date_from_unix_date(CAST(floor(unix_micros({time}) / {DAY_US}) AS int))"
