"""What the change feed of a table comes to in the end, key by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

MOST_NAMED: Final = 200_000  # keys that are brought to the driver
_TYPE, _VERSION = "_change_type", "_commit_version"
_OLD = ("delete", "update_preimage")
_NEW = ("insert", "update_postimage")


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

    Runs one Spark job. What was only added is read here for its keys alone, and only where other keys were changed. A
    commit can hold one key twice: before and after an update, or deleted and added again, as RESTORE does it.
    """
    others = feed.where(F.col(_TYPE) != "insert")
    known = {"_dates": F.array(*dated), **facts}
    before = F.col(_TYPE).isin(*_OLD)
    facts_before = others.select(
        key, _VERSION, _TYPE, *(F.when(before, fact).alias(name) for name, fact in known.items())
    )
    added = feed.where(F.col(_TYPE) == "insert").select(key, _VERSION, _TYPE)
    records = facts_before.unionByName(
        added.join(others.select(key).distinct(), key, "left_semi"), allowMissingColumns=True
    )
    is_new = F.col(_TYPE).isin(*_NEW)
    ends = records.groupBy(key).agg(
        F.min(F.struct(_VERSION, is_new.alias("new"), *known)).alias("first"),
        F.max(F.struct(_VERSION, is_new.alias("new"))).alias("last"),
    )
    settled = ends.select(
        key,
        (~F.col("first.new")).alias("was"),
        F.col("last.new").alias("present"),
        F.col(f"last.{_VERSION}").alias("_last"),
        *(F.col(f"first.{name}").alias(name) for name in known),
    )
    told = settled.drop("_last").limit(MOST_NAMED + 1).collect()
    were: Mapping[str, Row] | None = None
    if len(told) <= MOST_NAMED:
        were = {row[0]: row for row in told if row["was"]}
        dates = frozenset(day for row in were.values() for day in row["_dates"])
    else:
        days = settled.where("was").select(F.explode("_dates")).distinct()
        dates = frozenset(row[0] for row in days.collect())
    rows = feed.where(F.col(_TYPE).isin(*_NEW))
    if told:
        rows = rows.join(settled.select(key, "present", "_last"), key, "left")
        rows = rows.where(F.col("_last").isNull() | (F.col("present") & (F.col("_last") == F.col(_VERSION))))
        rows = rows.drop("present", "_last")
    return Net(rows.drop(_TYPE, _VERSION), settled.drop("_last", "_dates"), were, dates)
