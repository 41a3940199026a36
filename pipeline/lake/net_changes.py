"""The net change of each key between two versions of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.lake.engine.frames import arrow_to_frame
from pipeline.lake.queries.inputs import POST_IMAGES, PRE_IMAGES
from udfs.rows import RowDict

MAX_ROWS_IN_DRIVER: Final = 200_000  # records of a feed, or keys, that the driver takes
_TYPE, _VERSION = "_change_type", "_commit_version"
_LAST, _DATES = "_last", "_dates"


@dataclass(frozen=True, slots=True)
class NetChanges:
    """The net change of each key in a change feed, however often it changed in between.

    ``rows`` are the rows of inserted or updated keys as they are now. ``changed_keys`` has a row for each key that
    was not simply inserted: the key, ``was`` (it existed before), ``present`` (it exists now), and the facts asked
    for, of the row before. ``keys_before`` are the keys that existed before, each with its row of ``changed_keys``;
    None if they are too many for the driver. ``dates`` are the event dates of these rows before, None among them for
    rows without one.
    """

    rows: DataFrame
    changed_keys: DataFrame
    keys_before: Mapping[str, RowDict] | None
    dates: frozenset[date | None]

    @property
    def has_earlier_keys(self) -> bool:
        """Whether any key existed before."""
        return self.keys_before is None or bool(self.keys_before)


def net_changes(feed: DataFrame, key: str, date_columns: Sequence[Column], facts: Mapping[str, Column]) -> NetChanges:
    """Return the net change of a feed (``Lake.changes``).

    ``date_columns`` and ``facts`` are computed from the rows before. Runs one Spark job over keys and facts; the
    driver takes the result where it is small. A commit can hold one key twice: before and after an update, or deleted
    and inserted again, as RESTORE does it.
    """
    known = {_DATES: F.array(*date_columns), **facts}
    before = F.col(_TYPE).isin(*PRE_IMAGES)
    records = feed.select(
        key,
        _VERSION,
        F.col(_TYPE).isin(*POST_IMAGES).alias("new"),
        (F.col(_TYPE) == "insert").alias("added"),
        *(F.when(before, fact).alias(name) for name, fact in known.items()),
    )
    changes = records.limit(MAX_ROWS_IN_DRIVER + 1).toArrow()
    keys_before: Mapping[str, RowDict] | None = None
    if changes.num_rows <= MAX_ROWS_IN_DRIVER:
        ends = _net_in_memory(changes, key, list(known))
        keys_before = {row[key]: row for row in ends.drop_columns([_LAST]).to_pylist() if row["was"]}
        dates = frozenset(day for row in keys_before.values() for day in row[_DATES])
        changed_keys = arrow_to_frame(feed.sparkSession, ends)
    else:
        changed_keys = _net_in_spark(records, key, list(known))
        days = changed_keys.where("was").select(F.explode(_DATES)).distinct()
        dates = frozenset(row[0] for row in days.collect())
    rows = feed.where(F.col(_TYPE).isin(*POST_IMAGES))
    if keys_before is None or ends.num_rows:
        rows = rows.join(changed_keys.select(key, "present", _LAST), key, "left")
        rows = rows.where(F.col(_LAST).isNull() | (F.col("present") & (F.col(_LAST) == F.col(_VERSION))))
        rows = rows.drop("present", _LAST)
    return NetChanges(rows.drop(_TYPE, _VERSION), changed_keys.drop(_LAST, _DATES), keys_before, dates)


def _net_in_memory(records: pa.Table, key: str, known: Sequence[str]) -> pa.Table:
    """Return what ``_net_in_spark`` does, computed in memory."""
    of_key: defaultdict[str, list[RowDict]] = defaultdict(list)
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
    types = {each.name: each.type for each in records.schema}
    schema = {key: types[key], "was": pa.bool_(), "present": pa.bool_(), _LAST: types[_VERSION]}
    return pa.Table.from_pylist(ends, pa.schema({**schema, **{fact: types[fact] for fact in known}}))


def _net_in_spark(records: DataFrame, key: str, known: Sequence[str]) -> DataFrame:
    """Return ``NetChanges.changed_keys``, with the version at which each key ended.

    Of inserted keys only the key is read, and only where other keys changed.
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
