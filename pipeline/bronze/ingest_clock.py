"""The clock of ingestion, and which times are ahead of it.

Packets and snapshots say when they were made, and a clock can be wrong by decades. "Now" is the newest of their times
(``event_time``), so that one wrong time would end everything that is waited for, and every state that is known. A time
is *ahead* if it is later than the clock of the machine that reads the file by more than ``ingest.max_time_ahead``. It
is not used anywhere: a packet is read without its time, as one that has none, and a snapshot, which is worth nothing
without its time, goes to ``bronze.quarantine``. ``packets_ahead`` of the ledger, and the reason there, say so.

The clock is recorded with what was read: ``ingested_at`` of the ledgers is the time when a file was first read as it
is. A capture that is read again is read by that clock. What is a time and what is not is therefore the same whenever
tables are recomputed, and in whatever order.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

from pipeline.settings import IngestConfig
from schemas.table import INGESTED_AT
from udfs.times import datetime_to_us, timedelta_to_us, us_to_datetime

"""Clocks that show local time in UTC's place are at most 14 hours ahead."""


@dataclass(frozen=True, slots=True)
class IngestClock:
    """The machine's clock when a run reads its files, and how much later a time may be."""

    max_time_ahead: dt.timedelta = IngestConfig.max_time_ahead
    now: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))

    def ingested_at(self, ingested_us: int | None = None) -> dt.datetime:
        """Return the clock of the run that read a file first; ``ingested_us`` is it, if that was an earlier run."""
        return self.now if ingested_us is None else us_to_datetime(ingested_us)

    def latest_us(self, ingested_us: int | None = None) -> int:
        """Return the latest time of a file that is not ahead, in microseconds since 1970."""
        return datetime_to_us(self.ingested_at(ingested_us)) + timedelta_to_us(self.max_time_ahead)


def is_ahead_sql(time_sql: str, max_time_ahead: dt.timedelta) -> str:
    """Return the SQL condition that a time of a row of bronze is ahead."""
    return f"unix_micros({time_sql}) > unix_micros({INGESTED_AT}) + {timedelta_to_us(max_time_ahead)}"
