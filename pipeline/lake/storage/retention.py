"""How long a table keeps what its newest version does not need, by its properties.

https://docs.databricks.com/tables/history, https://docs.databricks.com/delta/vacuum.html.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from pipeline.lake.errors import StoreError

FILES_PROPERTY: Final = "delta.deletedFileRetentionDuration"
LOG_PROPERTY: Final = "delta.logRetentionDuration"
_PART: Final = re.compile(r"(\d+)\s+(week|day|hour|minute|second)s?", re.IGNORECASE)


class Retention(NamedTuple):
    """``files`` that left the table stay for so long at least, entries of its ``log`` likewise."""

    files: timedelta = timedelta(days=7)
    log: timedelta = timedelta(days=30)


def read_retention(properties: Mapping[str, str]) -> Retention:
    """Return the retention of a table with these properties; StoreError for a duration that is not understood."""
    given = {name: _duration(properties[name]) for name in (FILES_PROPERTY, LOG_PROPERTY) if name in properties}
    default = Retention()
    return Retention(given.get(FILES_PROPERTY, default.files), given.get(LOG_PROPERTY, default.log))


def _duration(text: str) -> timedelta:
    """Return an interval of Spark's SQL, as Delta takes it: without months, whose length varies."""
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).lower().replace("interval", "").strip():
        raise StoreError(f"not a duration of weeks, days, hours, minutes and seconds: {text!r}")
    return sum((timedelta(**{f"{unit.lower()}s": int(number)}) for number, unit in parts), timedelta())
