"""The columns ``queue`` and ``inferred_queue`` of silver.messages.

A message was read from the queue whose handle its Start used, as gold.receive_attempts has it (``opened_queue``);
both have the same key. Where that is not known the message's destination is a guess. Rows are written where they
differ: an open can be captured long after the message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date
from typing import Final

import pyarrow as pa
from pyspark.sql import functions as F

from pipeline.attempts.attempt_rows import QUEUE_COLUMNS
from pipeline.lake.date_filters import dates_condition
from pipeline.lake.lake import Lake
from pipeline.lake.queries import MAX_IN_LIST
from schemas.messages import MESSAGES
from schemas.receive_attempts import RECEIVE_ATTEMPTS

Dates = Collection[date | None]

_SAYS: Final = pa.schema([(name, pa.string()) for name in ("sighting_key", *QUEUE_COLUMNS)])


def messages_with_changed_queue(messages: pa.Table, opened: Mapping[str, str | None]) -> pa.Table:
    """Return the messages whose queue columns must change: sighting_key, queue, inferred_queue.

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


def write_message_queues(lake: Lake, wanted: pa.Table, *, dates: Dates) -> None:
    """Write the rows of ``messages_with_changed_queue`` in one commit; ``dates`` as for ``Lake.merge``."""
    if wanted.num_rows:
        lake.update_columns(MESSAGES, wanted, dates=dates, provenance=lake.provenance_json(MESSAGES))


def update_in_spark(lake: Lake, *, dates: Dates | None) -> None:
    """Update the rows of some dates, None for all, to what gold.receive_attempts has; for many rows, in Spark."""
    attempts = lake.read(RECEIVE_ATTEMPTS).select(F.col("attempt_key").alias("sighting_key"), "opened_queue")
    messages = lake.read(MESSAGES)
    if dates is not None:
        attempts, messages = attempts.where(dates_condition(dates)), messages.where(dates_condition(dates))
    wanted = {
        "queue": F.col("opened_queue"),
        "inferred_queue": F.when(F.col("opened_queue").isNull(), F.col("destination_queue")),
    }
    known = messages.join(attempts, "sighting_key")
    differs = ~(
        F.col("queue").eqNullSafe(wanted["queue"]) & F.col("inferred_queue").eqNullSafe(wanted["inferred_queue"])
    )
    rows = known.where(differs).select("sighting_key", *(column.alias(name) for name, column in wanted.items()))
    few = rows.limit(MAX_IN_LIST + 1).toArrow()
    if few.num_rows <= MAX_IN_LIST:
        write_message_queues(lake, few.cast(_SAYS), dates=_dates(lake, dates))
    elif dates is None:  # nearly all: rewriting is faster than finding them
        joined = messages.join(attempts, "sighting_key", "left").withColumns(wanted)
        lake.replace(MESSAGES, joined.drop("opened_queue"), provenance=lake.provenance_json(MESSAGES))
    else:
        lake.update_columns(MESSAGES, rows, dates=dates, provenance=lake.provenance_json(MESSAGES))


def _dates(lake: Lake, dates: Dates | None) -> Dates:
    if dates is not None:
        return dates
    return [row[0] for row in lake.read(MESSAGES).select("event_date").distinct().collect()]
