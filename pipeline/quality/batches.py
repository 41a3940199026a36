"""Batches of rows that a suite is checked on: the rows that changed since the last check, with derived columns.

Delta's change feed gives the changed values of the suite's key column. A row can also fail without a change of its own,
when the rows of another table that it refers to are deleted. So rows that look up deleted rows are checked too.
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
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.concurrency import run_concurrently
from pipeline.lake.date_filters import MAX_DATES, dates_condition, utc_date_sql
from pipeline.lake.engine.collect import collect
from pipeline.lake.incremental import ChangeFeeds
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import CHANGE_COLUMNS, POST_IMAGES, BoundQuery, UnknownSqlError, double_braces
from pipeline.quality.suites import Lookup, Suite, SuiteError
from schemas.table import EVENT_DATE, Table, quoted
from udfs.times import datetime_to_us

MAX_ROWS_IN_MEMORY: Final = 100_000  # of a suite; more are checked in Spark


@dataclass(slots=True)
class ChangedValues:
    """The values of a column in changed rows, those with fewer rows than before, and the dates of the rows."""

    changed: set[str | None] = field(default_factory=set)
    removed: set[str | None] = field(default_factory=set)
    dates: set[date | None] = field(default_factory=set)


ColumnChanges = Mapping[tuple[Table, str], ChangedValues | None]
"""The changed values by table and column; None: unknown."""


def read_column_changes(feeds: ChangeFeeds, suites: Collection[Suite]) -> ColumnChanges:
    """Return the changes since the last check of all key columns that suites use."""
    wanted = {(suite.table, suite.key) for suite in suites}
    wanted |= {(each.table, each.key_column) for suite in suites for each in suite.lookups}
    return run_concurrently({each: partial(_changed_values, feeds, *each) for each in sorted(wanted, key=str)})


def _changed_values(feeds: ChangeFeeds, table: Table, column: str) -> ChangedValues | None:
    added = f"{CHANGE_COLUMNS[0]} IN ({', '.join(map(repr, POST_IMAGES))})"
    net = f"CAST(sum(CASE WHEN {added} THEN 1 ELSE -1 END) AS bigint) AS net"
    sql = f"SELECT {_value_and_day(table, column)}, {net} FROM {{feed}} GROUP BY ALL"
    rows = feeds.rows(table, sql)
    if rows is None:
        return None
    found = ChangedValues()
    for row in rows:
        found.changed.add(row["value"])
        found.dates.add(row["day"])
        if row["net"] < 0:
            found.removed.add(row["value"])
    return found


def _value_and_day(table: Table, column: str) -> str:
    day = EVENT_DATE if table.event_date_columns else "CAST(NULL AS date)"
    return f"CAST({quoted(column)} AS string) AS value, {day} AS day"


@dataclass(frozen=True, slots=True)
class CheckBatch:
    """The rows that a suite is checked on: an Arrow table if they are few. ``selection`` None means all rows."""

    suite: Suite
    rows: DataFrame | pa.Table
    selection: ChangedValues | None

    @property
    def scope(self) -> str:
        """The scope as in gold.quality_results: ``changed`` or ``all`` rows."""
        return "all" if self.selection is None else "changed"


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How the rows of a suite are selected.

    ``all_rows`` selects all rows instead of the changed ones. ``now`` and ``machines`` are parameters of suites with
    their own SQL. More than ``max_rows_in_memory`` rows stay in Spark.
    """

    all_rows: bool
    now: datetime
    machines: Sequence[str] = ()
    max_rows_in_memory: int = MAX_ROWS_IN_MEMORY


def select_batch(lake: Lake, suite: Suite, changes: ColumnChanges, options: BatchOptions) -> CheckBatch | None:
    """Return the rows that a suite must be checked on, None without any.

    Rows in memory lack the columns from other tables (``add_lookup_columns`` adds these). Raises SuiteError if the
    suite's SQL does not fit the tables.
    """
    try:
        return _select_batch(lake, suite, changes, options)
    except AnalysisException as error:
        raise SuiteError(f"suite {suite.name}: {' '.join(str(error).split())[:400]}") from error


def _select_batch(lake: Lake, suite: Suite, changes: ColumnChanges, options: BatchOptions) -> CheckBatch | None:
    if suite.rows_sql is not None:
        return CheckBatch(suite, _ask(lake, _suite_rows(suite, options)), None)
    if not lake.exists(suite.table):
        return None
    selection = None if options.all_rows else _select_values(lake, suite, changes)
    rows = BoundQuery("SELECT * FROM {rows}", {"rows": suite.table})
    if selection is not None:
        if not selection.changed:
            return None
        condition = f"{dates_condition(_dates(suite, selection))} AND {_is_among(suite.key, 'keys', selection.changed)}"
        rows = BoundQuery(f"{rows.sql} WHERE {condition}", {**rows.inputs, "keys": selection.changed - {None}})
    derived = rows.wrap(_derived_rows_sql(suite))
    in_memory = _ask(lake, derived.wrap(f"SELECT * FROM {{answer}} LIMIT {options.max_rows_in_memory + 1}"))
    is_small = in_memory.num_rows <= options.max_rows_in_memory
    return CheckBatch(suite, in_memory if is_small else _complete_in_spark(lake, suite, derived), selection)


def _ask(lake: Lake, query: BoundQuery) -> pa.Table:
    """Return the answer to a query with SQL of a suite: from Spark where this process does not know the SQL."""
    try:
        return lake.query(query.sql, **query.inputs)
    except UnknownSqlError:
        return collect(lake.frame(query.sql, **query.inputs))


def _is_among(sql: str, name: str, values: Collection[str | None]) -> str:
    """Return the condition that an expression has one of the values that ``name`` stands for; null may be one."""
    return f"({sql} IN {{{name}}} OR {sql} IS NULL)" if None in values else f"{sql} IN {{{name}}}"


def _select_values(lake: Lake, suite: Suite, changes: ColumnChanges) -> ChangedValues | None:
    """Return the values of the suite's key whose rows are checked; None: all."""
    own = changes.get((suite.table, suite.key))
    if own is None:
        return None
    values = ChangedValues(set(own.changed), dates=set(own.dates))
    for each in suite.lookups:
        theirs = changes.get((each.table, each.key_column))
        if theirs is None:
            return None
        if theirs.removed:
            refers = _is_among(f"({double_braces(each.key_sql)})", "removed", theirs.removed)
            sql = f"SELECT DISTINCT {_value_and_day(suite.table, suite.key)} FROM {{rows}} WHERE {refers}"
            inputs = {"rows": suite.table, "removed": theirs.removed - {None}}
            for row in _ask(lake, BoundQuery(sql, inputs)).to_pylist():
                values.changed.add(row["value"])
                values.dates.add(row["day"])
    return values


def _dates(suite: Suite, selection: ChangedValues) -> set[date | None] | None:
    """Return the dates of the rows to check; None: any.

    Suites with a key of their own compare rows with one another and need all dates from the first to the last.
    """
    if not suite.table.event_date_columns:
        return None
    return selection.dates if suite.key == suite.table.key[0] else _date_range(selection.dates, 0)


def _date_range(dates: Collection[date | None], margin_days: int) -> set[date | None] | None:
    """Return the dates from the first to the last with a margin, and None for undated rows; None if too many."""
    days = [day.toordinal() for day in dates if day is not None]
    if not days:
        return {None}
    first, last = max(min(days) - margin_days, 1), min(max(days) + margin_days, date.max.toordinal())
    return None if last - first >= MAX_DATES else {None, *map(date.fromordinal, range(first, last + 1))}


def _suite_rows(suite: Suite, options: BatchOptions) -> BoundQuery:
    """Ask for the rows that a suite's own SQL derives from its table."""
    now = f"timestamp_micros({datetime_to_us(options.now)})"
    machines = pa.table({"names": pa.array([list(options.machines)], pa.list_(pa.string()))})
    sql = (suite.rows_sql or "").replace("{now}", now).replace("{machines}", "(SELECT names FROM {machines})")
    return BoundQuery(sql, {"table": suite.table, "machines": machines}).wrap(_derived_rows_sql(suite))


def _derived_rows_sql(suite: Suite) -> str:
    """Ask for the columns to check, the key, and the keys of lookups, of the rows that ``{answer}`` stands for."""
    derived = {name: double_braces(sql) for name, sql in suite.derived_columns.items()}
    counted = {name for each in suite.lookups for name in each.count_expressions}
    for each in suite.lookups:
        ours = f"CAST({double_braces(each.key_sql)} AS string)"
        applies = None if each.applies_sql is None else double_braces(each.applies_sql)
        derived[f"_{each.name}"] = ours if applies is None else f"CASE WHEN {applies} THEN {ours} END"
        for place, time in enumerate(each.time_span_sql or ()):
            derived[f"_{each.name}_{place}"] = utc_date_sql(double_braces(time))
    names = dict.fromkeys((suite.row_key, *(name for name in suite.checked_columns if name not in counted)))
    columns = [quoted(name) for name in names if name not in derived]
    columns += [f"{sql} AS {quoted(name)}" for name, sql in derived.items()]
    return f"SELECT {', '.join(columns)} FROM {{answer}}"


def add_lookup_columns(lake: Lake, batch: CheckBatch, whole_tables: Mapping[Table, pa.Table]) -> CheckBatch:
    """Return a batch in memory with the columns from other tables.

    ``whole_tables`` are tables of which all rows are in memory: lookups use these instead of the lake.
    """
    suite, rows = batch.suite, batch.rows
    if isinstance(rows, DataFrame) or not rows.num_rows or suite.rows_sql is not None:
        return batch
    for each in suite.lookups:
        ours = rows[f"_{each.name}"].to_pylist()
        counted = _look_up(lake, each, batch, set(ours) - {None}, whole_tables)
        for name in each.count_expressions:
            counts = [None if value is None else counted[value][name] if value in counted else 0 for value in ours]
            rows = rows.append_column(name, pa.array(counts, pa.int64()))
    return CheckBatch(suite, rows, batch.selection)


def _look_up(
    lake: Lake, each: Lookup, batch: CheckBatch, values: set[str], whole_tables: Mapping[Table, pa.Table]
) -> Mapping[str, Mapping[str, int]]:
    """Return the counts of a lookup by key, for some values of the key."""
    rows, counts = whole_tables.get(each.table), tuple(each.count_expressions)
    if not values:
        return {}
    if rows is not None and len(counts) == 1 and each.where_sql is None and each.key_column in rows.column_names:
        there = Counter(rows[each.key_column].to_pylist())
        return {value: {counts[0]: there[value]} for value in values if value in there}
    days: set[date | None] | None = None
    if batch.selection is not None and isinstance(batch.rows, pa.Table):
        # A margin of one day: of partly captured calls the layers take the date from different packets.
        days = _date_range(batch.selection.dates, 1) if each.same_dates else _span_dates(batch.rows, each)
    condition = f"{dates_condition(days)} AND {quoted(each.key_column)} IN {{keys}}"
    counted = _ask(lake, BoundQuery(_count_by_key_sql(each, condition), {"rows": each.table, "keys": values}))
    return {row["_of"]: row for row in counted.to_pylist()}


def _span_dates(rows: pa.Table, each: Lookup) -> set[date | None] | None:
    """Return the dates of the time spans in which the rows of a lookup lie; None: any."""
    if each.time_span_sql is None:
        return None
    first, last = (pc.min(rows[f"_{each.name}_0"]).as_py(), pc.max(rows[f"_{each.name}_1"]).as_py())
    if first is None or last is None:
        return None
    return _date_range([first, last], 0)


def _count_by_key_sql(each: Lookup, condition: str = "TRUE") -> str:
    """Ask for the counts of a lookup by key (column ``_of``)."""
    counts = ", ".join(f"CAST({sql} AS bigint) AS {name}" for name, sql in each.count_expressions.items())
    where = f"{condition} AND ({double_braces(each.where_sql or 'TRUE')})"
    return f"SELECT CAST({quoted(each.key_column)} AS string) AS _of, {counts} FROM {{rows}} WHERE {where} GROUP BY 1"


def _complete_in_spark(lake: Lake, suite: Suite, derived: BoundQuery) -> DataFrame:
    """Return the rows with all derived and lookup columns, as a Spark frame."""
    rows = lake.frame(derived.sql, **derived.inputs)
    for each in suite.lookups:
        counted = lake.frame(_count_by_key_sql(each), rows=each.table)
        joined = rows.join(counted, F.col(f"_{each.name}") == F.col("_of"), "left").drop("_of")
        there = F.col(f"_{each.name}").isNotNull()
        rows = joined.withColumns(
            {name: F.when(there, F.coalesce(F.col(name), F.lit(0).cast("bigint"))) for name in each.count_expressions}
        )
    return rows
