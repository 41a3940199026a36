"""What the change feed of a table comes to in the end, key by key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.lake.frames import frame
from pipeline.lake.queries import IS, WAS

Row = dict[str, Any]

MOST_NAMED: Final = 200_000  # records of a feed, or keys, that are brought to the driver
_TYPE, _VERSION = "_change_type", "_commit_version"
_LAST, _DATES = "_last", "_dates"


@dataclass(frozen=True, slots=True)
class Net:
    """What became of the keys of a feed, whatever happened to them on the way.

    ``rows`` are the table's rows as they are now, of keys that were added or changed. ``settled`` has a row for each
    key that was not simply added: the key, ``was`` (it was there before), ``present`` (it is there now), and the facts
    asked for, of the row as it was before. ``were`` are the keys that were there before, each with its row of
    ``settled``, None if they are too many to be named; ``dates`` are the dates of these rows as they were, None for
    those without.
    """

    rows: DataFrame
    settled: DataFrame
    were: Mapping[str, Row] | None
    dates: frozenset[date | None]

    @property
    def replaces(self) -> bool:
        """Whether any key was there before."""
        return self.were is None or bool(self.were)


def net_changes(feed: DataFrame, key: str, dated: Sequence[Column], facts: Mapping[str, Column]) -> Net:
    """Return the net change of a feed (``Lake.changes``); ``dated`` and ``facts`` are computed from rows as they were.

    Runs one Spark job, over keys and facts alone, whose records are put together here if they are few. A commit can
    hold one key twice: before and after an update, or deleted and added again, as RESTORE does it.
    """
    known = {_DATES: F.array(*dated), **facts}
    before = F.col(_TYPE).isin(*WAS)
    records = feed.select(
        key,
        _VERSION,
        F.col(_TYPE).isin(*IS).alias("new"),
        (F.col(_TYPE) == "insert").alias("added"),
        *(F.when(before, fact).alias(name) for name, fact in known.items()),
    )
    told = records.limit(MOST_NAMED + 1).toArrow()
    were: Mapping[str, Row] | None = None
    if told.num_rows <= MOST_NAMED:
        ends = _ends_here(told, key, list(known))
        were = {row[key]: row for row in ends.drop_columns([_LAST]).to_pylist() if row["was"]}
        dates = frozenset(day for row in were.values() for day in row[_DATES])
        settled = frame(feed.sparkSession, ends)
    else:
        settled = _ends(records, key, list(known))
        days = settled.where("was").select(F.explode(_DATES)).distinct()
        dates = frozenset(row[0] for row in days.collect())
    rows = feed.where(F.col(_TYPE).isin(*IS))
    if were is None or ends.num_rows:
        rows = rows.join(settled.select(key, "present", _LAST), key, "left")
        rows = rows.where(F.col(_LAST).isNull() | (F.col("present") & (F.col(_LAST) == F.col(_VERSION))))
        rows = rows.drop("present", _LAST)
    return Net(rows.drop(_TYPE, _VERSION), settled.drop(_LAST, _DATES), were, dates)


def _ends_here(records: pa.Table, key: str, known: Sequence[str]) -> pa.Table:
    """Return what ``_ends`` does, of records that were brought here."""
    of_key: defaultdict[str, list[Row]] = defaultdict(list)
    for row in records.to_pylist():
        of_key[row[key]].append(row)
    ends = []
    for name, changes in of_key.items():
        if all(row["added"] for row in changes):
            continue
        changes.sort(key=lambda row: (row[_VERSION], row["new"]))
        first, last = changes[0], changes[-1]
        facts = {fact: first[fact] for fact in known}
        ends.append({key: name, "was": not first["new"], "present": last["new"], _LAST: last[_VERSION], **facts})
    told = {each.name: each.type for each in records.schema}
    schema = {key: told[key], "was": pa.bool_(), "present": pa.bool_(), _LAST: told[_VERSION]}
    return pa.Table.from_pylist(ends, pa.schema({**schema, **{fact: told[fact] for fact in known}}))


def _ends(records: DataFrame, key: str, known: Sequence[str]) -> DataFrame:
    """Return a row for each key that was not simply added, as ``Net.settled``; with ``_last``, the version it ended at.

    What was only added is read for its keys alone, and only where other keys were changed.
    """
    others = records.where(~F.col("added"))
    added = records.where("added").join(others.select(key).distinct(), key, "left_semi")
    ends = (
        others.unionByName(added)
        .groupBy(key)
        .agg(
            F.min(F.struct(_VERSION, "new", *known)).alias("first"),
            F.max(F.struct(_VERSION, "new")).alias("last"),
        )
    )
    return ends.select(
        key,
        (~F.col("first.new")).alias("was"),
        F.col("last.new").alias("present"),
        F.col(f"last.{_VERSION}").alias(_LAST),
        *(F.col(f"first.{name}").alias(name) for name in known),
    )
