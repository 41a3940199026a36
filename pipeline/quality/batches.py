"""The rows that a suite of expectations is asked of: those that changed since the last check, with facts made of each.

What changed is told by Delta's change feed, as values of the suite's key. A row that lost what stands beside it did not
change itself: where rows of another table are gone, the rows that look them up are looked at too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.lake.arrow_rows import us_of
from pipeline.lake.change_feeds import Feeds
from pipeline.lake.concurrency import gather
from pipeline.lake.date_filters import MOST_DATES, on_dates
from pipeline.lake.lake import Lake
from pipeline.lake.queries import CHANGE, IS, only
from pipeline.lake.schema_enforcement import event_date
from pipeline.quality.suites import Beside, Suite, SuiteError
from schemas.table import EVENT_DATE, Table, literal

MOST: Final = 100_000  # changed values that are brought to the driver; of more, the whole table is looked at


@dataclass(slots=True)
class Values:
    """Values of a column: those of rows that changed, those of which rows are gone, and the dates of both."""

    changed: set[str | None] = field(default_factory=set)
    gone: set[str | None] = field(default_factory=set)
    dates: set[date | None] = field(default_factory=set)


Changes = Mapping[tuple[Table, str], Values | None]  # by table and column; None: not known, or too many


def changes(feeds: Feeds, suites: Collection[Suite]) -> Changes:
    """Return what became of the columns that suites follow, since the last check."""
    wanted = {(suite.table, suite.key) for suite in suites}
    wanted |= {(each.table, each.theirs) for suite in suites for each in suite.beside}
    return gather({each: partial(_values, feeds, *each) for each in sorted(wanted, key=str)})


def _values(feeds: Feeds, table: Table, column: str) -> Values | None:
    net = f"CAST(sum(CASE WHEN {CHANGE[0]} IN ({', '.join(map(repr, IS))}) THEN 1 ELSE -1 END) AS bigint) AS net"
    day = EVENT_DATE if table.dated_by else "CAST(NULL AS date)"
    sql = f"SELECT CAST({column} AS string) AS value, {day} AS day, {net} FROM {{feed}} GROUP BY ALL"
    rows = feeds.rows(table, sql, MOST)
    if rows is None:
        return None
    found = Values()
    for row in rows:
        found.changed.add(row["value"])
        found.dates.add(row["day"])
        if row["net"] < 0:
            found.gone.add(row["value"])
    return found


def _day(table: Table) -> Column:
    return (F.col(EVENT_DATE) if table.dated_by else F.lit(None).cast("date")).alias("day")


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows that a suite is asked of, with its columns: here, where they are few; ``chosen``: None, all rows."""

    suite: Suite
    rows: DataFrame | pa.Table
    chosen: Values | None

    @property
    def scope(self) -> str:
        """Which rows these are: changed or all."""
        return "all" if self.chosen is None else "changed"


@dataclass(frozen=True, slots=True)
class Asking:
    """How rows are chosen: ``everything``, whatever changed; ``now`` and ``machines`` for suites with SQL of their own.

    Of more than ``most`` rows the facts are made by Spark, and not here.
    """

    everything: bool
    now: datetime
    machines: Sequence[str] = ()
    most: int = MOST


def slice_of(lake: Lake, suite: Suite, told: Changes, how: Asking) -> Slice | None:
    """Return the rows of a table that a suite has to be asked of; None when there are none.

    Few are without what stands beside them (``complete`` adds it). SuiteError when SQL does not fit the tables.
    """
    try:
        return _slice(lake, suite, told, how)
    except AnalysisException as error:
        raise SuiteError(f"suite {suite.name}: {' '.join(str(error).split())[:400]}") from error


def _slice(lake: Lake, suite: Suite, told: Changes, how: Asking) -> Slice | None:
    if suite.rows is not None:
        return Slice(suite, _facts(suite, _made(lake, suite, how)).toArrow(), None)
    if not lake.exists(suite.table):
        return None
    table = lake.read(suite.table)
    chosen = None if how.everything else _chosen(table, suite, told)
    if chosen is not None:
        if not chosen.changed:
            return None
        table = only(table.where(on_dates(_dates(suite, chosen))), suite.key, chosen.changed)
    here = _facts(suite, table).limit(how.most + 1).toArrow()
    rows = _in_spark(lake, suite, table) if here.num_rows > how.most else here
    return Slice(suite, rows, chosen)


def _chosen(table: DataFrame, suite: Suite, told: Changes) -> Values | None:
    """Return the values of the key whose rows are looked at; None: all."""
    own = told.get((suite.table, suite.key))
    if own is None:
        return None
    values = Values(set(own.changed), dates=set(own.dates))
    for each in suite.beside:
        theirs = told.get((each.table, each.theirs))
        if theirs is None:
            return None
        if theirs.gone:
            bereft = only(table.withColumn("_ours", F.expr(each.ours)), "_ours", theirs.gone)
            for value, day in bereft.select(F.col(suite.key).cast("string"), _day(suite.table)).distinct().collect():
                values.changed.add(value)
                values.dates.add(day)
    return values


def _dates(suite: Suite, chosen: Values | None) -> set[date | None] | None:
    """Return the dates of the rows looked at; None: any.

    Where rows are compared, those between the first and the last are: one that is left out would be a hole.
    """
    if chosen is None or not suite.table.dated_by:
        return None
    return chosen.dates if suite.key == suite.table.key[0] else _through(chosen.dates, 0)


def _through(dates: Collection[date | None], more: int) -> set[date | None] | None:
    """Return the dates from the first to the last, and some before and after; None, any, where these are too many."""
    days = [day.toordinal() for day in dates if day is not None]
    if not days:
        return {None}
    first, last = max(min(days) - more, 1), min(max(days) + more, date.max.toordinal())
    return None if last - first >= MOST_DATES else {None, *map(date.fromordinal, range(first, last + 1))}


def _made(lake: Lake, suite: Suite, how: Asking) -> DataFrame:
    """Return the rows that a suite's own SQL makes of its table."""
    names = f"cast(array({', '.join(map(literal, how.machines))}) AS array<string>)"
    sql = (suite.rows or "").replace("{now}", f"timestamp_micros({us_of(how.now)})").replace("{machines}", names)
    return lake.spark.sql(sql, table=lake.read(suite.table))


def _facts(suite: Suite, rows: DataFrame) -> DataFrame:
    """Return what is asked about, the key, and what rows of other tables are sought by; one look at the rows."""
    made = {name: F.expr(sql) for name, sql in suite.columns.items()}
    for each in suite.beside:
        ours = F.expr(each.ours).cast("string")
        made[f"_{each.name}"] = ours if each.applies is None else F.when(F.expr(each.applies), ours)
        for place, name in enumerate(each.spans or ()):
            made[f"_{each.name}_{place}"] = event_date(name)
    plain = (suite.table.key[0], *suite.unique) if suite.rows is None else (suite.key,)
    names = dict.fromkeys((*plain, *(name for name in suite.asked if name in rows.columns)))
    return rows.select(*(name for name in names if name not in made), *(made[name].alias(name) for name in made))


def complete(lake: Lake, found: Slice, whole: Mapping[Table, pa.Table]) -> Slice:
    """Return few rows with how many share what is to be unique, and what stands beside them in other tables.

    ``whole`` are tables of which all rows are here: their keys are looked up there.
    """
    suite, rows = found.suite, found.rows
    if isinstance(rows, DataFrame) or not rows.num_rows or suite.rows is not None:
        return found
    uniques = list(zip(*(rows[name].to_pylist() for name in suite.unique), strict=True))
    copies = Counter(uniques)
    made = rows.append_column("copies", pa.array([copies[each] for each in uniques], pa.int64()))
    for each in suite.beside:
        ours = rows[f"_{each.name}"].to_pylist()
        counted = _beside(lake, each, found, set(ours) - {None}, whole)
        for name in each.counts:
            counts = [None if value is None else counted[value][name] if value in counted else 0 for value in ours]
            made = made.append_column(name, pa.array(counts, pa.int64()))
    return Slice(suite, made, found.chosen)


def _beside(
    lake: Lake, each: Beside, found: Slice, values: set[str], whole: Mapping[Table, pa.Table]
) -> Mapping[str, Mapping[str, int]]:
    """Return what is counted of their rows, by the values that are sought."""
    rows, counts = whole.get(each.table), tuple(each.counts)
    if not values:
        return {}
    if rows is not None and len(counts) == 1 and each.where is None and each.theirs in rows.column_names:
        there = Counter(rows[each.theirs].to_pylist())
        return {value: {counts[0]: there[value]} for value in values if value in there}
    theirs = lake.read(each.table).where(each.where or "TRUE")
    if found.chosen is not None and isinstance(found.rows, pa.Table):
        # A day more: of what was seen in part the layers take the date from different packets.
        days = _through(found.chosen.dates, 1) if each.same_dates else _span(found.rows, each)
        theirs = theirs.where(on_dates(days))
    return {row["_of"]: row for row in _counted(each, only(theirs, each.theirs, values)).toArrow().to_pylist()}


def _span(rows: pa.Table, each: Beside) -> set[date | None] | None:
    """Return the dates of a stretch of time; None: any."""
    if each.spans is None:
        return None
    first, last = (pc.min(rows[f"_{each.name}_0"]).as_py(), pc.max(rows[f"_{each.name}_1"]).as_py())
    if first is None or last is None:
        return None
    return _through([first, last], 0)


def _counted(each: Beside, theirs: DataFrame) -> DataFrame:
    """Return by key (``_of``) what is counted of their rows."""
    of = F.col(each.theirs).cast("string").alias("_of")
    return theirs.groupBy(of).agg(*(F.expr(sql).cast("bigint").alias(name) for name, sql in each.counts.items()))


def _in_spark(lake: Lake, suite: Suite, table: DataFrame) -> DataFrame:
    """Return many rows with the same facts, made by Spark."""
    rows = _facts(suite, table)
    rows = rows.withColumn("copies", F.count("*").over(Window.partitionBy(*suite.unique)))
    for each in suite.beside:
        counted = _counted(each, lake.read(each.table).where(each.where or "TRUE"))
        joined = rows.join(counted, F.col(f"_{each.name}") == F.col("_of"), "left").drop("_of")
        there = F.col(f"_{each.name}").isNotNull()
        rows = joined.withColumns(
            {name: F.when(there, F.coalesce(F.col(name), F.lit(0).cast("bigint"))) for name in each.counts}
        )
    return rows
