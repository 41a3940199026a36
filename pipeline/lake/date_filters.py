"""SQL of dates: conditions on event_date, by which tables are laid out; files of other dates are not read."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date
from typing import Final

from schemas.table import EVENT_DATE
from udfs.times import DAY_US

MAX_DATES: Final = 500  # a condition names so many dates one by one, more of them as a range


def dates_condition(dates: Collection[date | None] | None, column: str = EVENT_DATE) -> str:
    """Return the SQL condition that event_date is one of these dates (None among them: null); None: any date."""
    if dates is None:
        return "TRUE"
    days = sorted(day for day in dates if day is not None)
    conditions = [f"{column} IS NULL"] if None in dates else []
    if len(days) > MAX_DATES:
        conditions.append(f"{column} BETWEEN DATE'{days[0]}' AND DATE'{days[-1]}'")
    elif days:
        named = ", ".join(f"DATE'{day}'" for day in days)
        conditions.append(f"{column} IN ({named})")
    return f"({' OR '.join(conditions)})" if conditions else "FALSE"


def utc_date_sql(time: str) -> str:
    """Return the SQL of the UTC date of a time, given as SQL, whatever the session's time zone."""
    return f"date_from_unix_date(CAST(floor(unix_micros({time}) / {DAY_US}) AS int))"
