"""Tables that Spark stores, through delta-spark: in a catalog, behind Spark Connect, on Databricks.

Only the DataFrame API and SQL are used, so that all works alike in classic sessions and over Spark Connect. Options of
a write are given with the write, since serverless compute allows few session settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql import functions as F

from pipeline.lake.concurrency import run_concurrently
from pipeline.lake.date_filters import dates_condition
from pipeline.lake.engine.frames import arrow_to_frame, change_feed
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.engine.settings import fixed_row_batches, spark_conf
from pipeline.lake.engine.spark_groups import map_groups_in_spark
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.errors import RestoreError
from pipeline.lake.queries.inputs import (
    CHANGE_COLUMNS,
    MAX_IN_LIST,
    ChangesSince,
    FilteredTable,
    GroupedQuery,
    MemoryLimits,
    QueryInput,
    Values,
    query_in_spark,
    sql_list,
)
from pipeline.lake.schema_enforcement import columns_with_statistics, conform_frame
from pipeline.lake.storage.store import (
    CommitNote,
    MergeOptions,
    RowsToWrite,
    Snapshot,
    StoreName,
    TablePlaces,
    TableStore,
)
from pipeline.lake.writes import Dates
from schemas.table import EVENT_DATE, INGESTED_AT, RUN_ID, Column, Table, literal, quoted

# Error conditions of Delta and Spark for a table that does not exist; any other error is raised.
MISSING_TABLE_CONDITIONS: Final = frozenset({
    "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND",
})  # fmt: skip
_GONE: Final = "_gone"
_RESULT_LIMIT: Final = "spark.driver.maxResultSize"  # in the error where an answer is larger
_KEY: Final = "_key"
_NEW: Final = "_new_"
_USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"  # MERGE and UPDATE take no options
_CHECKPOINTS: Final = "delta.checkpointInterval"
_COMMIT: Final = ("version", "userMetadata", "operationMetrics", "operation")  # columns of DESCRIBE HISTORY
# While files are removed the check that old versions are kept for a week is off; so are commits that tell of the
# removal. A table's folder is listed by as many tasks as the last setting says: by 10,000 unless told.
_VACUUM: Final = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
}


class SparkStore:
    """The tables below a folder, or in a catalog."""

    name: StoreName = "spark"
    max_values = MAX_IN_LIST

    def __init__(self, places: TablePlaces, session: LazySession) -> None:
        self._places, self.session = places, session

    def with_session(self, session: LazySession) -> SparkStore:
        """Return the same store for another session."""
        other = copy(self)
        other.session = session
        return other

    # -- tables ----------------------------------------------------------------------------------------------------

    def stored_columns(self, table: Table) -> Mapping[str, str] | None:
        """Return the types of the stored columns by name; None when there is no table."""
        if self._is_in_catalog and not self.session.spark.catalog.tableExists(self._sql_name(table)):
            return None
        try:
            schema = self._stored(table).schema
        except AnalysisException as error:
            if error.getCondition() not in MISSING_TABLE_CONDITIONS:
                raise
            return None
        return {field.name: field.dataType.simpleString() for field in schema.fields}

    def create(self, table: Table) -> None:
        """Create a table, empty, with its comments, if it does not exist.

        It is clustered by ``event_date``, not partitioned: a hostile capture can hold as many dates as packets, each
        of which would be a folder. Statistics are kept for columns that are looked up, not for stubs. Every table has
        a change feed, which incremental updates read, and deletion vectors, so that a few changed rows do not rewrite
        whole files.
        """
        if self._is_in_catalog:
            self.session.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {self._places.sql_schema(table)}")
        self.session.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._sql_name(table)} (\n  {table.columns_ddl()}\n) USING DELTA\n"
            + (f"CLUSTER BY ({EVENT_DATE})\n" if table.event_date_columns else "")
            + f"COMMENT {table.comment_literal()}\n"
            + "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true', "
            + f"'delta.dataSkippingStatsColumns' = '{','.join(columns_with_statistics(table))}')"
        )

    def add_columns(self, table: Table, columns: Sequence[Column], note: CommitNote) -> None:
        """Add columns to a table."""
        added = ", ".join(column.ddl() for column in columns)
        self._run(f"ALTER TABLE {self._sql_name(table)} ADD COLUMNS ({added})", note)

    # -- versions --------------------------------------------------------------------------------------------------

    def snapshot(self, table: Table) -> Snapshot:
        """Return the newest commit."""
        (newest,) = self._history(table, 1)
        return newest

    def snapshots_since(self, table: Table, version: int) -> list[Snapshot]:
        """Return the commits after a version that the log still has, the oldest first."""
        return [commit for commit in self._history(table)[::-1] if commit.version > version]

    def _history(self, table: Table, count: int | None = None) -> list[Snapshot]:
        """Return the newest commits, the newest first: so many of them, or all."""
        limit = "" if count is None else f" LIMIT {count}"
        history = self.session.spark.sql(f"DESCRIBE HISTORY {self._sql_name(table)}{limit}")
        return [
            Snapshot(version, provenance, int((metrics or {}).get("numOutputRows", 0)), operation)
            for version, provenance, metrics, operation in history.select(*_COMMIT).collect()
        ]

    def _detail(self, table: Table, name: str) -> Any:  # noqa: ANN401 - whatever Delta tells
        row = self.session.spark.sql(f"DESCRIBE DETAIL {self._sql_name(table)}").select(name).first()
        return None if row is None else row[0]

    def size(self, table: Table) -> int:
        """Return the size of a table's files, in bytes."""
        return int(self._detail(table, "sizeInBytes") or 0)

    def count_rows(self, table: Table) -> int:
        """Return the number of a table's rows."""
        return self.read(table).count()

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def _is_in_catalog(self) -> bool:
        return self._places.catalog is not None

    def _sql_name(self, table: Table) -> str:
        return self._places.sql_name(table)

    def _stored(self, table: Table, reader: DataFrameReader | None = None) -> DataFrame:
        """Return a table's stored columns, as a reader reads them."""
        reader = reader or self.session.spark.read.format("delta")
        return reader.table(self._sql_name(table)) if self._is_in_catalog else reader.load(self._places.path(table))

    def read(self, table: Table) -> DataFrame:
        """Return a table's rows as a frame; declared columns that it does not have are null."""
        rows = self._stored(table)
        missing = [column for column in table.columns if column.name not in rows.columns]
        return rows.withColumns({column.name: F.lit(None).cast(column.type) for column in missing}) if missing else rows

    def read_changes(self, table: Table, since: int, until: int) -> DataFrame:
        """Return what changed after a version, up to a later one, with ``CHANGE_COLUMNS``."""
        rows = self._stored(table, change_feed(self.session.spark, since, until))
        return rows.select(*table.names, *CHANGE_COLUMNS)

    def query(self, sql: str, inputs: Mapping[str, QueryInput]) -> pa.Table:
        """Return the answer to a query."""
        return query_tables(self, sql, inputs).toArrow()

    def query_at_most(
        self, sql: str, inputs: Mapping[str, QueryInput], max_rows: int, max_bytes: int
    ) -> pa.Table | None:
        """Return the answer to a query; None where it has more rows or bytes.

        Spark itself ends a query whose answer is larger than the driver takes.
        """
        try:
            found = self.query(f"{sql} LIMIT {max_rows + 1}", inputs)
        except (PySparkException, Py4JJavaError) as error:
            if _RESULT_LIMIT not in str(error):
                raise
            return None
        return found if found.num_rows <= max_rows and found.nbytes <= max_bytes else None

    @contextmanager
    def read_answer(self, sql: str, inputs: Mapping[str, QueryInput]) -> Iterator[DataFrame]:
        """Yield the answer to a query, which is computed as it is written."""
        yield query_tables(self, sql, inputs)

    @contextmanager
    def map_groups(self, query: GroupedQuery, limits: MemoryLimits) -> Iterator[dict[str, pa.Table] | DataFrame]:
        """Yield the answers to the queries where they are few, else what the function makes of groups in tasks."""
        ask = {name: partial(self.query_at_most, *part, *limits) for name, part in query.parts.items()}
        answers = {name: rows for name, rows in run_concurrently(ask).items() if rows is not None}
        if len(answers) == len(query.parts) and sum(rows.nbytes for rows in answers.values()) <= limits.bytes:
            yield answers
            return
        frames = {name: query_tables(self, *part) for name, part in query.parts.items()}
        with fixed_row_batches(self.session.spark):
            yield map_groups_in_spark(frames, query.keys, query.function, query.schema)

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, table: Table, rows: RowsToWrite, note: CommitNote) -> None:
        """Add rows."""
        self._write(table, rows, note, replace=False)

    def replace(self, table: Table, rows: RowsToWrite, note: CommitNote) -> None:
        """Make these all rows of a table.

        Delta makes no commit where there is no row before and after: then a second one keeps the provenance.
        """
        self._write(table, rows, note, replace=True)
        if note.provenance is not None and self.snapshot(table).provenance_json != note.provenance:
            self.commit_note(table, note)

    def _write(self, table: Table, rows: RowsToWrite, note: CommitNote, *, replace: bool) -> None:
        spark = self.session.spark
        if isinstance(rows, PartitionedRows):
            rows = rows.frame(spark, table.struct())
        elif isinstance(rows, pa.Table):
            rows = arrow_to_frame(spark, rows)
        writer = rows.write.format("delta").mode("append").option("compression", "zstd")
        writer = writer.option("userMetadata", note.metadata)
        if replace:  # a plain overwrite takes the clustering away, replacing all rows does not
            writer = writer.mode("overwrite").option("replaceWhere", "true")
        note.check()
        if self._is_in_catalog:
            writer.saveAsTable(self._sql_name(table))
        else:
            writer.save(self._places.path(table))

    def commit_note(self, table: Table, note: CommitNote) -> None:
        """Commit a note alone: no row changes."""
        said = literal(note.provenance or "")
        self._run(f"ALTER TABLE {self._sql_name(table)} SET TBLPROPERTIES ('provenance' = {said})", note)

    def delete(self, table: Table, condition: str, values: Mapping[str, Values], note: CommitNote) -> None:
        """Delete the rows that meet a condition."""
        spelled = condition.format(**{name: sql_list(given) for name, given in values.items()})
        self._run(f"DELETE FROM {self._sql_name(table)} WHERE {spelled}", note)  # takes no named parameters

    def delete_and_insert(
        self, table: Table, condition: str, values: Mapping[str, Values], rows: pa.Table | PartitionedRows,
        note: CommitNote,
    ) -> None:  # fmt: skip
        """Delete the rows that meet a condition, and add others, in two commits."""
        self.delete(table, condition, values, note._replace(provenance=note.previous_provenance))
        if isinstance(rows, PartitionedRows) or rows.num_rows:
            self.append(table, rows, note)

    def delete_values(
        self, table: Table, column: str, values: DataFrame, dates: Dates | None, note: CommitNote
    ) -> None:
        """Delete the rows whose column has a value of a frame of one column, without duplicates."""
        found = F.expr(f"{quoted(column)} = {_KEY} AND {dates_condition(dates)}")
        with self._says(note):
            values.toDF(_KEY).mergeInto(self._sql_name(table), found).whenMatched().delete().merge()

    def update(
        self, table: Table, assignments: Mapping[str, str], condition: str, values: Mapping[str, Values],
        note: CommitNote,
    ) -> None:  # fmt: skip
        """Set columns to expressions in the rows that meet a condition."""
        to = ", ".join(f"{quoted(column)} = {expression}" for column, expression in assignments.items())
        spelled = f"SET {to} WHERE {condition}".format(**{name: sql_list(given) for name, given in values.items()})
        self._run(f"UPDATE {self._sql_name(table)} {spelled}", note)

    def update_columns(
        self, table: Table, rows: DataFrame | pa.Table, dates: Dates | None, deleted: str | None, note: CommitNote
    ) -> None:
        """Set the columns of ``rows`` in the rows that have their keys, or delete those."""
        frame = rows if isinstance(rows, DataFrame) else arrow_to_frame(self.session.spark, rows)
        new = frame.withColumnsRenamed({name: _NEW + name for name in frame.columns})
        found = [f"{quoted(name)} = {quoted(_NEW + name)}" for name in table.key] + [dates_condition(dates)]
        merger = new.mergeInto(self._sql_name(table), F.expr(" AND ".join(found)))
        if deleted is not None:
            merger = merger.whenMatched(F.col(_NEW + deleted)).delete()
        values = {name: F.col(_NEW + name) for name in frame.columns if name not in (*table.key, deleted)}
        with self._says(note):
            (merger.whenMatched().update(values) if values else merger).merge()

    def merge(self, table: Table, rows: DataFrame, options: MergeOptions, note: CommitNote) -> None:
        """Upsert a frame's rows by key."""
        keys, dates, delete_when, unless_same = options
        gone = F.lit(False) if delete_when is None else F.col(delete_when)  # noqa: FBT003
        marked = rows.withColumn(_GONE, gone)
        new = conform_frame(table, marked.drop(delete_when) if delete_when else marked, more=(_GONE,))
        # mergeInto gives the table no alias: the names alone must tell which side is meant.
        values = {name: F.col(_NEW + name) for name in table.names}
        found = [f"{quoted(name)} = {quoted(_NEW + name)}" for name in keys]
        if table.event_date_columns:
            found.append(dates_condition(dates))
        differs = F.lit(not unless_same)
        for name in table.names if unless_same else ():
            if name not in (RUN_ID, INGESTED_AT):
                differs |= ~F.col(name).eqNullSafe(values[name])
        with self._says(note):
            (
                new.withColumnsRenamed({name: _NEW + name for name in table.names})
                .mergeInto(self._sql_name(table), F.expr(" AND ".join(found)))
                .whenMatched(F.col(_GONE)).delete()
                .whenMatched(differs).update(values)
                .whenNotMatched(~F.col(_GONE)).insert(values)
                .merge()
            )  # fmt: skip

    # -- maintenance -----------------------------------------------------------------------------------------------

    def restore(self, table: Table, version: int, note: CommitNote) -> None:
        """Restore a table to a version, by a commit of its own; RestoreError where its files or its log are gone."""
        try:
            self._run(f"RESTORE TABLE {self._sql_name(table)} TO VERSION AS OF {version}", note)
        except (PySparkException, Py4JJavaError) as error:
            raise RestoreError(f"{table} has no version {version} any more: {error}") from error

    def purge(self, table: Table, note: CommitNote) -> None:
        """Write the files again without deleted rows, and the log so that older entries are not needed."""
        name, provenance = self._sql_name(table), note.provenance
        # A commit without rows leaves its provenance in the table's properties too, where it outlives the commit.
        also_set = "" if provenance is None else f", 'provenance' = {literal(provenance)}"
        also_unset = ", 'provenance'" if provenance is None else ""
        self._run(f"REORG TABLE {name} APPLY (PURGE)", note)
        self._run(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_CHECKPOINTS}' = '1'{also_set})", note)
        self._run(f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ('{_CHECKPOINTS}'{also_unset})", note)

    def vacuum(self, table: Table) -> None:
        """Delete all files that the newest version does not need."""
        self._vacuum(table, 0)

    def _vacuum(self, table: Table, retain_hours: int) -> None:
        with spark_conf(self.session.spark, _VACUUM):
            self.session.spark.sql(f"VACUUM {self._sql_name(table)} RETAIN {retain_hours} HOURS")

    def maintain(self, table: Table, retain_hours: int, note: CommitNote) -> None:
        """Join small files, and delete those that no version of the last hours needs."""
        self._run(f"OPTIMIZE {self._sql_name(table)}", note)
        self._vacuum(table, retain_hours)

    def location(self, table: Table) -> str:
        """Return the URI of the table's folder."""
        return str(self._detail(table, "location"))

    def _run(self, sql: str, note: CommitNote) -> None:
        with self._says(note):
            self.session.spark.sql(sql)

    @contextmanager
    def _says(self, note: CommitNote) -> Iterator[None]:
        """Give the commit within the block its provenance, once it may be made.

        MERGE, UPDATE and DELETE take it from the session only, and Spark replaces ``${...}`` in settings: ``$`` is
        spelled as JSON may spell it.
        """
        note.check()
        with spark_conf(self.session.spark, {_USER_METADATA: note.metadata.replace("$", "\\u0024")}):
            yield


def query_tables(store: TableStore, sql: str, inputs: Mapping[str, QueryInput]) -> DataFrame:
    """Return Spark's answer to a query over a store's tables as a frame; tables among the inputs exist."""
    given: dict[str, DataFrame | pa.Table | Values] = {}
    for name, source in inputs.items():
        if isinstance(source, ChangesSince):
            given[name] = read_feed(store, *source)
        elif isinstance(source, FilteredTable):
            given[name] = store.read(source.table).where(source.where).select(*source.column_names)
        else:
            given[name] = store.read(source) if isinstance(source, Table) else source
    return query_in_spark(store.session.spark, sql, given)


def read_feed(store: TableStore, table: Table, since: int, until: int) -> DataFrame:
    """Return what changed in a table after a version, up to another or the same, with ``CHANGE_COLUMNS``."""
    if since < until:
        return store.read_changes(table, since, until)
    kind, version = CHANGE_COLUMNS
    return store.session.spark.createDataFrame([], table.struct().add(kind, "string").add(version, "long")).limit(0)
