"""Time zones by their names."""

from __future__ import annotations

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from pipeline.text import similar_names


def find_time_zone(name: str) -> tzinfo:
    """Return the time zone of a name; ValueError if there is none. UTC needs no database of time zones."""
    if name.upper() == "UTC":
        return UTC
    known = available_timezones()
    if name not in known:
        raise ValueError(f"no such time zone: {name!r}{similar_names(name, known) or '; one is Europe/Berlin'}")
    return ZoneInfo(name)
