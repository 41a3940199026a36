"""Times as numbers: microseconds since the epoch in tables, nanoseconds in captures; the units, and conversions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, overload

SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US
DAY_NS: Final = 1_000 * DAY_US

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_DATETIME: Final = datetime.min.replace(tzinfo=UTC)
"""The first time that ``datetime`` can hold: in sort keys it stands for no time."""

_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST_US: Final = (FIRST_DATETIME - EPOCH) // _MICROSECOND
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND


def timedelta_to_us(span: timedelta) -> int:
    """Return a time span in microseconds."""
    return span // _MICROSECOND


@overload
def datetime_to_us(moment: datetime) -> int: ...
@overload
def datetime_to_us(moment: datetime | None) -> int | None: ...
def datetime_to_us(moment: datetime | None) -> int | None:
    """Return a time in microseconds since the epoch, None for None; one without a zone is taken as UTC."""
    if moment is None:
        return None
    return timedelta_to_us((moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment) - EPOCH)


@overload
def us_to_datetime(at: int) -> datetime: ...
@overload
def us_to_datetime(at: int | None) -> datetime | None: ...
def us_to_datetime(at: int | None) -> datetime | None:
    """Return microseconds since the epoch as a UTC datetime, limited to the years that ``datetime`` can hold.

    A capture can hold any time. None for None.
    """
    return None if at is None else EPOCH + timedelta(microseconds=min(max(at, _FIRST_US), _LAST_US))
