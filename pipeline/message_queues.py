"""``queue`` and ``inferred_queue`` of silver.messages, as far as they are known now.

A message was read from the queue that its Start's handle was opened with, as gold.receive_attempts found it
(``opened_queue``); the two have one key. Where that is not known the message's destination is the guess. Written are
the rows that differ, whatever wrote them: an open can be captured long after the message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import date

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.asking import MOST_NAMED, Names
from pipeline.dates import on_dates
from pipeline.frames import frame
from pipeline.gold import QUEUES
from pipeline.lake import Lake
from schemas.gold import RECEIVE_ATTEMPTS
from schemas.messages import MESSAGES

Dates = Collection[date | None]
Queues = tuple[str | None, str | None]  # queue, inferred_queue


def differing(messages: pa.Table, opened: Mapping[str, str | None]) -> dict[str, Queues]:
    """Return what messages that were brought here should say and do not, by sighting_key.

    ``messages`` has sighting_key, queue, inferred_queue and destination_queue; ``opened`` the queue opened, likewise.
    """
    names = ("sighting_key", *QUEUES, "destination_queue")
    found: dict[str, Queues] = {}
    for name, queue, inferred, destination in zip(*(messages.column(n).to_pylist() for n in names), strict=True):
        wanted = _wanted(opened.get(name), destination)
        if name in opened and wanted != (queue, inferred):
            found[name] = wanted
    return found


def _wanted(opened: str | None, destination: str | None) -> Queues:
    return (opened, None) if opened is not None else (None, destination)


def write(lake: Lake, wanted: Mapping[str, Queues], *, dates: Dates) -> None:
    """Write what ``differing`` found, in one commit; ``dates`` as for ``Lake.merge``."""
    if not wanted:
        return
    if len(wanted) > MOST_NAMED and not lake.is_here:
        keys = sorted(wanted)
        columns = {f"_{name}": [wanted[key][place] for key in keys] for place, name in enumerate(QUEUES)}
        rows = pa.table({"_key": keys} | {name: pa.array(values, pa.string()) for name, values in columns.items()})
        _merge(lake, frame(lake.spark, rows), dates)
        return
    of: dict[str, Names] = {"wanted": wanted.keys()}
    values = {name: _case(wanted, place, of) for place, name in enumerate(QUEUES)}
    met = f"sighting_key IN {{wanted}} AND {on_dates(dates)}"
    lake.update(MESSAGES, values, met, made_of=lake.made_of(MESSAGES), **of)


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
    rows = known.where(differs).select(F.col("sighting_key").alias("_key"), *(wanted[n].alias(f"_{n}") for n in QUEUES))
    few = rows.limit(MOST_NAMED + 1).collect()
    if len(few) <= MOST_NAMED:
        write(lake, {row[0]: (row[1], row[2]) for row in few}, dates=_dates(lake, dates))
    elif dates is None:  # nearly all: written anew they take less time than looked for
        anew = messages.join(attempts, "sighting_key", "left").withColumns(wanted)
        lake.replace(MESSAGES, anew.drop("opened_queue"), made_of=lake.made_of(MESSAGES))
    else:
        _merge(lake, rows, dates)


def _dates(lake: Lake, dates: Dates | None) -> Dates:
    if dates is not None:
        return dates
    return [row[0] for row in lake.read(MESSAGES).select("event_date").distinct().collect()]


def _merge(lake: Lake, rows: DataFrame, dates: Dates) -> None:
    met = f"sighting_key = _key AND {on_dates(dates)}"
    says = lake.made_of(MESSAGES)
    lake.merge_into(MESSAGES, rows, met, update={name: f"_{name}" for name in QUEUES}, made_of=says)


def _case(wanted: Mapping[str, Queues], place: int, of: dict[str, Names]) -> str:
    """Return the SQL value of a column, with names for what it is made of: the queues are few, the calls many."""
    calls: defaultdict[str, list[str]] = defaultdict(list)
    for key, queues in wanted.items():
        if (queue := queues[place]) is not None:
            calls[queue].append(key)
    cases = []
    for number, queue in enumerate(sorted(calls)):
        name = f"{QUEUES[place]}_{number}"
        of |= {name: queue, f"of_{name}": calls[queue]}
        cases.append(f"WHEN sighting_key IN {{of_{name}}} THEN {{{name}}}")
    return f"CASE {' '.join(cases)} END" if cases else "CAST(NULL AS string)"
