"""Who answers a query: DuckDB in this process where it has the rows or reaches their files, else Spark.

This is the only place that chooses. A table whose files this process does not reach is fetched as a whole where it is
small, and kept (``held_rows``): a run asks a hundred queries of a few small tables, and each job of Spark takes longer
than all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeAlias, cast
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.lake.change import RowsToWrite
from pipeline.lake.date_filters import Dates, dates_condition
from pipeline.lake.engine.collect import collect
from pipeline.lake.engine.frames import arrow_to_frame, files_to_frame, read_table
from pipeline.lake.engine.groups import answer_groups, map_groups_in_spark
from pipeline.lake.engine.sessions import LazySession, session_for_groups
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.duckdb_sql import DataFiles, DuckDbSql, Given, quoted_for_duckdb
from pipeline.lake.queries.held_rows import HeldRows
from pipeline.lake.queries.inputs import (
    CHANGE_COLUMNS,
    CHANGE_FIELDS,
    MAX_IN_LIST,
    MAX_ROWS_IN_MEMORY,
    ChangeFeedError,
    ChangesSince,
    FilteredTable,
    GroupedQuery,
    MemoryLimits,
    QueryInput,
    RowsOfDates,
    RowsOfFiles,
    Values,
    double_braces,
    named_columns,
    sql_list,
    values_array,
)
from pipeline.lake.schema_enforcement import select_fields
from pipeline.lake.storage.log import TableLocations, TableLog
from pipeline.lake.versions import Versions
from pipeline.lake.watermarks import WITHOUT_WATERMARK
from schemas.table import BINARY, Table

MAX_HELD_ROWS: Final = 50_000  # of a table that is fetched as a whole
MAX_HELD_BYTES: Final = 8 << 20  # of the files of such a table
_MAX_SHARED_BYTES: Final = 64 << 20  # of rows that are kept for several queries (``FilteredTable``)
_RESULT_LIMIT: Final = "spark.driver.maxResultSize"  # in the error where an answer is larger

Bound: TypeAlias = DataFiles | pa.Table | DataFrame | Values
"""What a name in a query stands for, as it was found."""


class Answers:
    """Answers queries over the tables of one lake. Threads may use it side by side."""

    def __init__(
        self, locations: TableLocations, log: TableLog, versions: Versions, session: LazySession, sql: DuckDbSql,
        held: HeldRows,
    ) -> None:  # fmt: skip
        self._locations, self._log, self._versions, self._session = locations, log, versions, session
        self._sql, self._held = sql, held
        self._known_files: dict[Table, tuple[int, DataFiles | None]] = {}  # by table, of a version

    def with_session(self, spark: SparkSession) -> Answers:
        """Return the same for another session."""
        session = LazySession.of(spark)
        return Answers(self._locations, self._log, self._versions, session, self._sql, self._held)

    def forget_files(self) -> None:
        """Forget which files tables have: another run begins."""
        self._known_files.clear()

    # -- answers ---------------------------------------------------------------------------------------------------

    def query(self, sql: str, inputs: Mapping[str, QueryInput]) -> pa.Table:
        """Return the answer to a query."""
        bound = self._bind(sql, inputs)
        given = _all_given(bound)
        return (
            collect(query_in_spark(self._session.spark, sql, bound)) if given is None else self._sql.answer(sql, given)
        )

    def query_shared(self, sql: str, inputs: Mapping[str, Table | ChangesSince]) -> pa.Table:
        """Return the answer to a query over tables and changes, as it was while they had the same versions."""
        tables, versions = list[Table](), list[object]()
        for source in inputs.values():
            table, *between = [source] if isinstance(source, Table) else source
            tables.append(table)
            versions.append((*between,) or self._versions.version_to_read(table))
        found = self._held.get((sql, *tables), (*versions,), partial(self.query, sql, inputs))
        return cast("pa.Table", found)

    def query_at_most(
        self, sql: str, inputs: Mapping[str, QueryInput], max_rows: int, max_bytes: int
    ) -> pa.Table | None:
        """Return the answer to a query; None where it has more rows or bytes."""
        bound = self._bind(sql, inputs)
        if (given := _all_given(bound)) is not None:
            return self._sql.answer_at_most(sql, given, max_rows, max_bytes)
        try:
            found = collect(query_in_spark(self._session.spark, f"{sql} LIMIT {max_rows + 1}", bound))
        except (PySparkException, Py4JJavaError) as error:  # Spark itself ends a query whose answer is too large
            if _RESULT_LIMIT not in str(error):
                raise
            return None
        return found if found.num_rows <= max_rows and found.nbytes <= max_bytes else None

    def frame(self, sql: str, inputs: Mapping[str, QueryInput]) -> DataFrame:
        """Return Spark's answer as a frame."""
        return query_in_spark(self._session.spark, sql, self._bind(sql, inputs))

    @contextmanager
    def read_answer(self, sql: str, inputs: Mapping[str, QueryInput]) -> Iterator[DataFrame | pa.RecordBatchReader]:
        """Yield the answer to a query, which is computed as it is written, and never all in memory."""
        bound = self._bind(sql, inputs)
        given = _all_given(bound)
        if given is None:
            yield query_in_spark(self._session.spark, sql, bound)
            return
        with self._sql.read_answer(sql, given) as batches:
            yield batches

    @contextmanager
    def map_groups(self, query: GroupedQuery, limits: MemoryLimits) -> Iterator[dict[str, pa.Table] | RowsToWrite]:
        """Yield the answers to the queries where they are few, else what the function makes of groups in tasks."""
        parts = {name: (part.sql, self._bind(part.sql, part.inputs)) for name, part in query.parts.items()}
        given = {name: (sql, _all_given(bound)) for name, (sql, bound) in parts.items()}
        known = {name: (sql, each) for name, (sql, each) in given.items() if each is not None}
        if len(known) < len(given):
            with session_for_groups(self._session.spark) as own:
                answers = self.with_session(own)
                frames = {name: answers.frame(*part) for name, part in query.parts.items()}
                yield map_groups_in_spark(frames, query.keys, query.function, query.schema)
            return
        folder = LakePath(self._locations.root) / "_runs" / f".groups-{uuid4().hex}"
        try:
            yield answer_groups(self._sql, known, query, limits, folder)
        finally:
            folder.remove_folder()

    def count_rows(self, table: Table) -> int:
        """Return the number of a table's rows."""
        counted = self._log.count_rows(table)
        if counted is None:
            counted = self.query("SELECT count(*) FROM {rows}", {"rows": table}).column(0)[0].as_py()
        return int(counted)

    # -- inputs ----------------------------------------------------------------------------------------------------

    def _bind(self, sql: str, inputs: Mapping[str, QueryInput]) -> dict[str, Bound]:
        found = {name: self._bound(sql, source) for name, source in inputs.items()}
        return {name: each.for_query(sql) if isinstance(each, DataFiles) else each for name, each in found.items()}

    def _bound(self, sql: str, source: QueryInput) -> Bound:
        """Return what a name in a query stands for: no rows where there is no table."""
        if isinstance(source, Table):
            return self.rows(source) if self._versions.exists(source) else source.schema().empty_table()
        if isinstance(source, RowsOfDates):
            return self._of_dates(source.table, source.dates)
        if isinstance(source, RowsOfFiles):
            return DataFiles(source.schema, source.files)
        if isinstance(source, FilteredTable):
            schema = select_fields(source.table.schema(), source.column_names)
            return self._filtered(source, schema) if self._versions.exists(source.table) else schema.empty_table()
        if isinstance(source, ChangesSince):
            return self._changes(sql, source)
        return source

    def rows(self, table: Table) -> DataFiles | pa.Table | DataFrame:
        """Return the rows of a table that exists, from wherever they are read soonest."""
        files = self._files(table)
        if files is not None:
            return files
        rows = self._held.get(table, self._versions.version_to_read(table), partial(self._fetch, table))
        return self.stored_frame(table) if rows is None else rows

    def _files(self, table: Table) -> DataFiles | None:
        """Return a table's files; in a run those of the version that it knows, without another look at the log."""
        if not self._versions.is_exclusive or table in WITHOUT_WATERMARK:
            return self._log.files(table)
        version = self._versions.version_to_read(table)
        known = self._known_files.get(table)
        if known is None or known[0] != version:
            known = self._known_files[table] = (version, self._log.files(table))
        return known[1]

    def _fetch(self, table: Table) -> pa.Table | None:
        """Return all rows of a table; None if they are many.

        How large a table is Spark says as slowly as it reads a small one: it is asked only where rows hold bytes.
        """
        mark = self._versions.watermarks.ends.get(str(table))
        if mark is not None and mark.row_count > MAX_HELD_ROWS:
            return None
        has_bytes = any(column.type == BINARY for column in table.columns)
        if has_bytes and self._log.size_bytes(table) > MAX_HELD_BYTES:
            return None
        rows = collect(self.stored_frame(table).limit(MAX_HELD_ROWS + 1))
        return rows.select(table.names).cast(table.schema()) if rows.num_rows <= MAX_HELD_ROWS else None

    def stored_frame(self, table: Table) -> DataFrame:
        """Return a table's rows as Spark reads them; declared columns that it does not have are null."""
        rows = read_table(self._session.spark, self._locations, table)
        missing = [column for column in table.columns if column.name not in rows.columns]
        nulls = {column.name: F.lit(None).cast(column.spark_type) for column in missing}
        return rows.withColumns(nulls) if missing else rows

    def _of_dates(self, table: Table, dates: Dates | None) -> DataFiles | pa.Table | DataFrame:
        """Return the rows of a table that are of some dates: of files those that may have some."""
        if not self._versions.exists(table):
            return table.schema().empty_table()
        rows = self.rows(table)
        if dates is None:
            return rows
        condition = dates_condition(dates)
        if isinstance(rows, DataFiles):
            return rows.of_dates(dates)._replace(where=condition)
        if isinstance(rows, DataFrame):
            return rows.where(condition)
        return self._sql.answer(f"SELECT * FROM {{rows}} WHERE {condition}", {"rows": rows}).cast(rows.schema)

    def _filtered(self, source: FilteredTable, schema: pa.Schema) -> Bound:
        """Return the rows of a table that meet a condition: shared ones as they were read for the first query."""
        rows = self.rows(source.table)
        if isinstance(rows, DataFrame):
            return rows.where(source.where).select(*source.column_names)
        if isinstance(rows, pa.Table):
            sql = f"SELECT {', '.join(map(quoted_for_duckdb, schema.names))} FROM {{rows}} WHERE {source.where}"
            return self._sql.answer(sql, {"rows": rows}).cast(schema)
        files = rows._replace(names=schema.names, where=source.where)
        if not source.is_shared:
            return files

        def fetch() -> pa.Table | None:
            limits = MAX_ROWS_IN_MEMORY, _MAX_SHARED_BYTES
            found = self._sql.answer_at_most("SELECT * FROM {rows}", {"rows": files}, *limits)
            return None if found is None else found.cast(schema)

        shared = self._held.get(source, tuple(files.files), fetch)
        return files if shared is None else shared

    def _changes(self, sql: str, source: ChangesSince) -> pa.Table | DataFrame:
        """Return the change feed that a query asks for, without columns that the query does not name."""
        table, since, until = check_feed(*source)
        columns = tuple(named_columns(sql, table.names))
        schema = pa.schema([*select_fields(table.schema(), columns), *CHANGE_FIELDS])
        if since >= until:
            return schema.empty_table()
        found = self._log.changes(table, since, until, columns)
        if found is not None:
            return found
        frame = read_table(self._session.spark, self._locations, table, (since, until)).select(
            *columns, *CHANGE_COLUMNS
        )

        def fetch() -> pa.Table | None:
            rows = collect(frame.limit(MAX_HELD_ROWS + 1))
            small = rows.num_rows <= MAX_HELD_ROWS and rows.nbytes <= _MAX_SHARED_BYTES
            return rows.cast(schema) if small else None

        few = self._held.get((table, columns), (since, until), fetch)
        return frame if few is None else few


def query_in_spark(spark: SparkSession, sql: str, bound: Mapping[str, Bound]) -> DataFrame:
    """Return Spark's answer as a frame."""
    frames: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name, given in bound.items():
        texts[name] = f"{{{name}}}"
        if isinstance(given, DataFrame):
            frames[name] = given
        elif isinstance(given, DataFiles):
            frames[name] = files_to_frame(spark, given)
        elif isinstance(given, pa.Table):
            frames[name] = arrow_to_frame(spark, given)
        elif isinstance(given, str) or len(given) <= MAX_IN_LIST:
            texts[name] = double_braces(sql_list(given))
        else:
            frames[name] = arrow_to_frame(spark, pa.table({"value": values_array(given)}))
            texts[name] = f"(SELECT value FROM {{{name}}})"
    asked = sql.replace("{{", "{{{{").replace("}}", "}}}}").format(**texts)  # Spark formats it once more
    return spark.sql(asked, **frames)  # which gives frames names of their own, as long as it needs them


def check_feed(table: Table, since: int, until: int | None) -> ChangesSince:
    """Return the changes between two versions; ChangeFeedError if there is no such version."""
    if until is None or since > until:
        raise ChangeFeedError(f"{table} has no version {since}: it is at {until}")
    return ChangesSince(table, since, until)


def _all_given(bound: Mapping[str, Bound]) -> dict[str, Given] | None:
    """Return what DuckDB answers from; None where something is a frame."""
    given: dict[str, Given] = {}
    for name, each in bound.items():
        if isinstance(each, DataFrame):
            return None
        given[name] = each if isinstance(each, DataFiles | pa.Table) else values_array(each)
    return given
