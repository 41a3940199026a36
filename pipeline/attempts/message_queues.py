"""``queue`` and ``inferred_queue`` of silver.messages, as far as they are known now.

A message was read from the queue that its Start's handle was opened with, as gold.receive_attempts found it
(``opened_queue``); the two have one key. Where that is not known the message's destination is the guess. Written are
the rows that differ, whatever wrote them: an open can be captured long after the message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date
from typing import Final

import pyarrow as pa
from pyspark.sql import functions as F

from pipeline.attempts.attempt_rows import QUEUES
from pipeline.lake.date_filters import on_dates
from pipeline.lake.lake import Lake
from pipeline.lake.queries import MOST_NAMED
from schemas.messages import MESSAGES
from schemas.receive_attempts import RECEIVE_ATTEMPTS

Dates = Collection[date | None]

_SAYS: Final = pa.schema([(name, pa.string()) for name in ("sighting_key", *QUEUES)])


def differing(messages: pa.Table, opened: Mapping[str, str | None]) -> pa.Table:
    """Return what messages that were brought here should say and do not: sighting_key, queue, inferred_queue.

    ``messages`` has these columns and destination_queue; ``opened`` the queue opened, by sighting_key.
    """
    names = (*_SAYS.names, "destination_queue")
    found = []
    for name, queue, inferred, destination in zip(*(messages[n].to_pylist() for n in names), strict=True):
        now = opened.get(name)
        wanted = (now, None if now is not None else destination)
        if name in opened and wanted != (queue, inferred):
            found.append(dict(zip(_SAYS.names, (name, *wanted), strict=True)))
    return pa.Table.from_pylist(found, _SAYS)


def write(lake: Lake, wanted: pa.Table, *, dates: Dates) -> None:
    """Write what ``differing`` found, in one commit; ``dates`` as for ``Lake.merge``."""
    if wanted.num_rows:
        lake.fill(MESSAGES, wanted, dates=dates, made_of=lake.made_of(MESSAGES))


def follow_gold(lake: Lake, *, dates: Dates | None) -> None:
    """Bring the rows of some dates, None for all, to what gold.receive_attempts says; many, and in Spark."""
    attempts = lake.read(RECEIVE_ATTEMPTS).select(F.col("attempt_key").alias("sighting_key"), "opened_queue")
    messages = lake.read(MESSAGES)
    if dates is not None:
        attempts, messages = attempts.where(on_dates(dates)), messages.where(on_dates(dates))
    wanted = {
        "queue": F.col("opened_queue"),
        "inferred_queue": F.when(F.col("opened_queue").isNull(), F.col("destination_queue")),
    }
    known = messages.join(attempts, "sighting_key")
    differs = ~(
        F.col("queue").eqNullSafe(wanted["queue"]) & F.col("inferred_queue").eqNullSafe(wanted["inferred_queue"])
    )
    rows = known.where(differs).select("sighting_key", *(column.alias(name) for name, column in wanted.items()))
    few = rows.limit(MOST_NAMED + 1).toArrow()
    if few.num_rows <= MOST_NAMED:
        write(lake, few.cast(_SAYS), dates=_dates(lake, dates))
    elif dates is None:  # nearly all: written anew they take less time than looked for
        anew = messages.join(attempts, "sighting_key", "left").withColumns(wanted)
        lake.replace(MESSAGES, anew.drop("opened_queue"), made_of=lake.made_of(MESSAGES))
    else:
        lake.fill(MESSAGES, rows, dates=dates, made_of=lake.made_of(MESSAGES))


def _dates(lake: Lake, dates: Dates | None) -> Dates:
    if dates is not None:
        return dates
    return [row[0] for row in lake.read(MESSAGES).select("event_date").distinct().collect()]
