"""The columns ``queue`` and ``inferred_queue`` of silver.messages.

A message was read from the queue whose handle its Start used, as gold.receive_attempts has it (``opened_queue``);
both have the same key. Where that is not known the message's destination is a guess. Rows are written where they
differ: an open can be captured long after the message. Messages on their way between queue managers are in no queue.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date
from functools import partial
from typing import Final

import pyarrow as pa

from pipeline.lake.date_filters import distinct_dates
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import MAX_IN_LIST, QueryInput, RowsOfDates
from schemas.messages import MESSAGES
from schemas.table import EVENT_DATE

_WANTED: Final = {
    "queue": "attempts.opened_queue",
    "inferred_queue": (
        "CASE WHEN attempts.opened_queue IS NULL AND messages.call_key IS NOT NULL THEN messages.destination_queue END"
    ),
}
_DIFFERS: Final = " OR ".join(f"messages.{name} IS DISTINCT FROM {sql}" for name, sql in _WANTED.items())
# The messages of some dates whose queues must change.
_CHANGED_SQL: Final = f"""
SELECT messages.sighting_key, messages.{EVENT_DATE}, {", ".join(f"{sql} AS {name}" for name, sql in _WANTED.items())}
FROM {{messages}} AS messages JOIN {{attempts}} AS attempts ON attempts.attempt_key = messages.sighting_key
WHERE {_DIFFERS}"""
# All messages with the queues that they must have.
_ALL_SQL: Final = f"""
SELECT {", ".join(f"{_WANTED.get(name, f'messages.{name}')} AS {name}" for name in MESSAGES.names)}
FROM {{messages}} AS messages LEFT JOIN {{attempts}} AS attempts ON attempts.attempt_key = messages.sighting_key"""
_SAYS: Final = pa.schema([(name, pa.string()) for name in ("sighting_key", *_WANTED)])


def update(lake: Lake, attempts: QueryInput, *, dates: Collection[date | None] | None) -> None:
    """Update the rows of some dates, None for all, to what ``attempts`` say: attempt_key and opened_queue of each."""
    inputs = {"messages": RowsOfDates(MESSAGES, dates), "attempts": attempts}
    ask = partial(lake.query_at_most, _CHANGED_SQL, MAX_IN_LIST) if dates is None else partial(lake.query, _CHANGED_SQL)
    changed = ask(**inputs)
    if changed is None:  # nearly all: rewriting is faster than finding them
        lake.replace_by_query(MESSAGES, _ALL_SQL, **inputs, provenance=lake.versions.provenance_json(MESSAGES))
    else:
        wanted, found = changed.select(_SAYS.names).cast(_SAYS), distinct_dates(changed)
        lake.update_columns(MESSAGES, wanted, dates=found, provenance=lake.versions.provenance_json(MESSAGES))
