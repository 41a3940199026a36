"""Clocks of senders that differ from that of the captures, by what their messages say.

A message says when it was sent, by the clock of the queue manager that sent it first, in whole seconds. Captured before
that, it shows that this clock is ahead. Where all messages of a day were sent long before they were captured, the clock
is behind, or they waited.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.date_filters import Dates
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import RowsOfDates
from schemas.messages import MESSAGES
from udfs.array_types import Bools
from udfs.columns.arrays import to_ints
from udfs.times import timedelta_to_us

LONG_TRANSIT: Final = timedelta(days=30)
"""A least transit of so much is remarked: a message that is so late shows a wrong clock, as for rules R10 and Q64."""
CHANGED_CLOCKS_SQL: Final = """
SELECT DISTINCT source_queue_manager AS id, event_date FROM {feed}
WHERE packet_key IS NOT NULL AND sent_at IS NOT NULL AND source_queue_manager IS NOT NULL AND event_date IS NOT NULL"""
_LEAST_TRANSIT_SQL: Final = """
SELECT source_queue_manager, event_date, min(unix_micros(seen_at) - unix_micros(sent_at)) AS least_transit_us
FROM {messages} WHERE packet_key IS NOT NULL AND sent_at IS NOT NULL AND seen_at IS NOT NULL
  AND source_queue_manager IN {managers}
GROUP BY source_queue_manager, event_date"""


def read_clocks(lake: Lake, managers: pa.ChunkedArray | pa.Array, dates: Dates | None) -> pa.Table:
    """Return the least transit of some queue managers' messages for each of some dates; None: for each there is.

    That is the least time from when a message says that it was sent to when it was captured, microseconds.
    """
    names = pc.unique(managers).drop_null().cast(pa.string())
    return lake.query(_LEAST_TRANSIT_SQL, messages=RowsOfDates(MESSAGES, dates), managers=names)


def clocks_differ(least_transit_us: pa.ChunkedArray | pa.Array, at_least: timedelta) -> Bools:
    """Return whether clocks are ahead by ``at_least`` a time, or their messages took very long; not where null."""
    known = to_ints(least_transit_us)
    found: Bools = (known <= -timedelta_to_us(at_least)) | (known >= timedelta_to_us(LONG_TRANSIT))
    return found
