"""Commits to tables that Spark stores, through delta-spark: in a catalog, behind Spark Connect, on Databricks.

Only the DataFrame API and SQL are used, so that all works alike in classic sessions and over Spark Connect. Each commit
has a session of its own, in which Delta leaves the version of the commit. A write takes the provenance as an option; a
statement has no options, and takes it from its session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

from pipeline.arrow_rows import distinct_texts
from pipeline.lake.change import EVERY_ROW, Change, CommitNote, MakeChange, RowsGone, RowsToWrite
from pipeline.lake.date_filters import dates_condition, distinct_dates
from pipeline.lake.engine import session_settings
from pipeline.lake.engine.frames import arrow_to_frame
from pipeline.lake.engine.sessions import LazySession, own_session
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.errors import RestoreError
from pipeline.lake.queries.inputs import MAX_IN_LIST, sql_list
from pipeline.lake.storage.data_files import MAX_FILE_BYTES
from pipeline.lake.storage.log import MAINTENANCE, UNKNOWN_VERSION, TableCommit, TableLocations, version_parameter
from pipeline.lake.storage.store import StoreName, statistics_property, table_properties
from schemas.table import EVENT_DATE, Column, Table, quoted

_GONE: Final = "_gone"
_NOTE_OF_WRITE: Final = "userMetadata"
_NOTE_OF_STATEMENT: Final = "spark.databricks.delta.commitInfo.userMetadata"
_LAST_VERSION: Final = "spark.databricks.delta.lastCommitVersionInSession"
_CHECKPOINTS: Final = "delta.checkpointInterval"
_RETENTION: Final = "delta.deletedFileRetentionDuration"
_TOO_SHORT: Final = "DELTA_VACUUM_RETENTION_PERIOD_TOO_SHORT"
# While files are removed the check that old versions are kept for a week is off; so are commits that tell of the
# removal. A table's folder is listed by as many tasks as the last setting says: by 10,000 unless told.
_LISTING_TASKS: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_VACUUM: Final = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    _LISTING_TASKS: "16",
}


class _Transaction(NamedTuple):
    """The session of one commit, and what the commit says of itself; whether the session tells the commit's version."""

    spark: SparkSession
    note: CommitNote
    tells_version: bool

    @property
    def version(self) -> int | None:
        """The version of the commit; None where none was made."""
        version = session_settings.read(self.spark, _LAST_VERSION) if self.tells_version else UNKNOWN_VERSION
        return None if version is None else int(version)

    @contextmanager
    def statement(self, operation: str, evidence: str = "") -> Iterator[SparkSession]:
        """Yield the session for a statement, which takes the note from it; else the commit is announced.

        ``evidence``: what its main parameter in the log contains. Spark replaces ``${...}`` in settings: ``$`` is
        spelled as JSON may spell it.
        """
        note = {_NOTE_OF_STATEMENT: self.note.metadata.replace("$", "\\u0024")}
        with session_settings.within(self.spark, note) as is_taken:
            if not is_taken and operation not in MAINTENANCE:
                self.note.announce(operation, evidence)
            yield self.spark


class SparkStore:
    """Commits to the tables below a folder, or in a catalog."""

    name: StoreName = "spark"

    def __init__(self, locations: TableLocations, session: LazySession) -> None:
        self._locations, self._session = locations, session
        self._schemas: set[str] = set()  # of the catalog, that are there
        self._new = f"_new_{uuid4().hex}_"  # prefix of columns in a MERGE: no commit of others has it

    # -- tables ----------------------------------------------------------------------------------------------------

    def create(self, table: Table) -> None:
        """Create a table, empty, with its comments, if it does not exist.

        It is clustered by its layout, not partitioned: a hostile capture can hold as many dates as packets, each of
        which would be a folder.
        """
        self._create(self._session.spark, table)

    def _create(self, spark: SparkSession, table: Table) -> None:
        schema = self._locations.sql_schema(table)
        if self._locations.catalog is not None and schema not in self._schemas:
            spark.sql(self._locations.create_schema_sql(table))
            self._schemas.add(schema)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._sql_name(table)} (\n  {table.columns_ddl()}\n) USING DELTA\n"
            + (f"{_cluster_by(table)}\n" if table.layout else "")
            + f"COMMENT {table.comment_literal()}\n{_properties(table_properties(table))}"
        )

    def set_layout(self, table: Table, note: CommitNote) -> None:
        """Have a table be clustered as declared: its next OPTIMIZE orders new files so. Nothing happens where it is.

        Columns have statistics before a table is clustered by them: Delta insists on it.
        """
        name = self._sql_name(table)
        (detail,) = self._session.spark.sql(f"DESCRIBE DETAIL {name}").select("clusteringColumns").collect()
        if tuple(detail[0]) != table.layout:
            self._run("SET TBLPROPERTIES", f"ALTER TABLE {name} SET {_properties(statistics_property(table))}", note)
            self._run("CLUSTER BY", f"ALTER TABLE {name} {_cluster_by(table)}", note)

    def add_columns(self, table: Table, columns: Sequence[Column], note: CommitNote) -> None:
        """Add columns to a table."""
        added = ", ".join(column.ddl() for column in columns)
        self._run("ADD COLUMNS", f"ALTER TABLE {self._sql_name(table)} ADD COLUMNS ({added})", note)

    # -- rows ------------------------------------------------------------------------------------------------------

    def commit(
        self, table: Table, change: Change | MakeChange, note: CommitNote, *, is_new: bool
    ) -> TableCommit | None:
        """Change the rows of a table, in one commit.

        Few rows that leave are named in the condition of an overwrite: files without them are not read. Many are the
        source of a MERGE.
        """
        rows, gone = change if isinstance(change, Change) else change()
        few = rows if isinstance(rows, pa.Table) else None
        found = gone.find() if isinstance(gone, RowsGone) else None
        nobody_leaves = gone is None or (found is not None and not found.num_rows)
        if few is not None and not few.num_rows and not is_new and nobody_leaves:
            return None
        with self._transaction(note, rows) as transaction:
            frame = _frame(transaction.spark, table, rows if few is None else few)
            if isinstance(gone, RowsGone) and found is not None and found.num_rows:
                where = None if few is None else _overwritten(table, gone, found, few)
                if where is None:
                    with transaction.statement("MERGE", self._new):
                        self._merge(table, frame, found)
                else:
                    self._overwrite(table, frame, where, transaction)
            elif gone is EVERY_ROW:
                self._overwrite(table, frame, "true", transaction)
            else:
                is_empty = few is not None and not few.num_rows
                self._append(table, frame, transaction, is_new=is_new, is_empty=is_empty)
            version = transaction.version
        return None if version is None or few is None else TableCommit(version, note.metadata, few.num_rows)

    def _append(
        self, table: Table, frame: DataFrame, transaction: _Transaction, *, is_new: bool, is_empty: bool
    ) -> None:
        """Add rows; the table is created with them. One of a folder has no comment then, and is not clustered.

        In a catalog it is created before. That commit says what the table is made of only where no rows follow.
        """
        writer = frame.write.format("delta").mode("append")
        if is_new and self._locations.catalog is None:
            self._save(table, writer.options(**table_properties(table)), transaction)
        elif is_new and is_empty:
            with transaction.statement("CREATE TABLE") as spark:
                self._create(spark, table)
        else:
            if is_new:
                self._create(self._session.spark, table)
            if not is_empty:
                self._save(table, writer, transaction)

    def _overwrite(self, table: Table, frame: DataFrame, where: str, transaction: _Transaction) -> None:
        """Replace the rows that meet a condition. A plain overwrite would take the clustering away."""
        self._save(table, frame.write.format("delta").mode("overwrite").option("replaceWhere", where), transaction)

    def _save(self, table: Table, writer: DataFrameWriter, transaction: _Transaction) -> None:
        writer = writer.option("compression", "zstd").option(_NOTE_OF_WRITE, transaction.note.metadata)
        if self._locations.catalog is not None:
            writer.saveAsTable(self._sql_name(table))
        else:
            writer.save(self._locations.path(table))

    def _merge(self, table: Table, frame: DataFrame, found: pa.Table) -> None:
        """Replace the rows with some keys by those of a frame, and add the others of the frame."""
        spark, names, new = frame.sparkSession, table.names, self._new
        keys = arrow_to_frame(spark, found.select(list(table.key)).group_by(list(table.key)).aggregate([]))
        left = keys.join(frame.select(*table.key), list(table.key), "left_anti").withColumn(_GONE, F.lit(True))  # noqa: FBT003
        source = frame.withColumn(_GONE, F.lit(False)).unionByName(left, allowMissingColumns=True)  # noqa: FBT003
        # mergeInto gives the table no alias: the names alone must tell which side is meant.
        same = [f"{quoted(name)} = {quoted(new + name)}" for name in table.key]
        if EVENT_DATE in found.column_names:
            same.append(dates_condition(distinct_dates(found)))
        values = {name: F.col(new + name) for name in names}
        (
            source.withColumnsRenamed({name: new + name for name in names})
            .mergeInto(self._sql_name(table), F.expr(" AND ".join(same)))
            .whenMatched(F.col(_GONE)).delete()
            .whenMatched().update(values)
            .whenNotMatched(~F.col(_GONE)).insert(values)
            .merge()
        )  # fmt: skip

    # -- maintenance -----------------------------------------------------------------------------------------------

    def rewrite(self, table: Table, note: CommitNote) -> None:
        """Write the files again that hold deleted rows, behind deletion vectors. No row changes."""
        self._run("REORG", f"REORG TABLE {self._sql_name(table)} APPLY (PURGE)", note)

    def vacuum_expired(self, table: Table) -> None:
        """Delete the files that no version within the table's own retention needs."""
        listing = {_LISTING_TASKS: _VACUUM[_LISTING_TASKS]}
        with own_session(self._session.spark) as spark, session_settings.within(spark, listing):
            spark.sql(f"VACUUM {self._sql_name(table)}")

    def restore(self, table: Table, version: int, note: CommitNote) -> None:
        """Restore a table to a version, by a commit of its own; RestoreError where its files or its log are gone."""
        try:
            sql = f"RESTORE TABLE {self._sql_name(table)} TO VERSION AS OF {version}"
            self._run("RESTORE", sql, note, version_parameter(version))
        except (PySparkException, Py4JJavaError) as error:
            raise RestoreError(f"{table} has no version {version} any more: {error}") from error

    def purge(self, table: Table, note: CommitNote) -> None:
        """Write the files again without deleted rows, and the log so that older entries are not needed."""
        name = self._sql_name(table)
        self.rewrite(table, note)
        self._run("SET TBLPROPERTIES", f"ALTER TABLE {name} SET TBLPROPERTIES ('{_CHECKPOINTS}' = '1')", note)
        # Earlier versions kept a provenance in the table's properties too, where it outlives the commit.
        unset = f"UNSET TBLPROPERTIES IF EXISTS ('{_CHECKPOINTS}', 'provenance')"
        self._run("UNSET TBLPROPERTIES", f"ALTER TABLE {name} {unset}", note)

    def vacuum(self, table: Table) -> None:
        """Delete all files that the newest version does not need.

        Where the session does not take settings the table's own retention is none meanwhile.
        """
        if not self._vacuum(table, 0):
            sql, name = self._session.spark.sql, self._sql_name(table)
            sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_RETENTION}' = 'interval 0 hours')")
            try:
                sql(f"VACUUM {name}")
            finally:
                sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ('{_RETENTION}')")

    def _vacuum(self, table: Table, retain_hours: int) -> bool:
        """Delete older files; return False where the table's own retention is longer, and the session insists on it."""
        with own_session(self._session.spark) as spark, session_settings.within(spark, _VACUUM):
            try:
                spark.sql(f"VACUUM {self._sql_name(table)} RETAIN {retain_hours} HOURS")
            except PySparkException as error:
                if error.getCondition() != _TOO_SHORT:
                    raise
                return False
            return True

    def maintain(self, table: Table, retain_hours: int, note: CommitNote) -> None:
        """Join small files, and delete files that no version of the last hours needs, nor the table's own retention."""
        note.check()
        self._session.spark.sql(f"OPTIMIZE {self._sql_name(table)}")
        if not self._vacuum(table, retain_hours):
            self.vacuum_expired(table)

    # -- commits ---------------------------------------------------------------------------------------------------

    def _sql_name(self, table: Table) -> str:
        return self._locations.sql_name(table)

    def _run(self, operation: str, sql: str, note: CommitNote, evidence: str = "") -> None:
        with self._transaction(note) as transaction, transaction.statement(operation, evidence) as spark:
            spark.sql(sql)

    @contextmanager
    def _transaction(self, note: CommitNote, rows: RowsToWrite | None = None) -> Iterator[_Transaction]:
        """Yield the session for a commit, once one may be made; that of ``rows`` if they have one."""
        note.check()
        with ExitStack() as stack:
            if isinstance(rows, DataFrame):
                spark = rows.sparkSession
            else:
                spark = stack.enter_context(own_session(self._session.spark))
            tells_version = session_settings.unset(spark, _LAST_VERSION)  # that of the commit before, of another table
            yield _Transaction(spark, note, tells_version)


def _properties(properties: Mapping[str, str]) -> str:
    values = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    return f"TBLPROPERTIES ({values})"


def _cluster_by(table: Table) -> str:
    return f"CLUSTER BY ({', '.join(map(quoted, table.layout))})"


def _frame(spark: SparkSession, table: Table, rows: RowsToWrite) -> DataFrame:
    """Return rows as a frame: few rows become one file, with the comments of the columns."""
    if isinstance(rows, PartitionedRows):
        return rows.frame(spark, table.struct())
    if isinstance(rows, pa.Table):
        return arrow_to_frame(spark, rows, table.struct()).coalesce(1 + rows.nbytes // MAX_FILE_BYTES)
    return rows


def _overwritten(table: Table, gone: RowsGone, found: pa.Table, rows: pa.Table) -> str | None:
    """Return the condition that those rows meet that leave, and those that are added; None where it is long.

    An overwrite fails where a row added does not meet the condition.
    """
    lists = [values for values in gone.values.values() if not isinstance(values, str)]
    if sum(map(len, lists)) + rows.num_rows > MAX_IN_LIST or (rows.num_rows and len(table.key) > 1):
        return None
    where = gone.condition.format(**{name: sql_list(values) for name, values in gone.values.items()})
    if EVENT_DATE in found.column_names:
        where = f"({where}) AND {dates_condition(distinct_dates(found))}"
    if rows.num_rows:
        where = f"({where}) OR {quoted(table.key[0])} IN {sql_list(distinct_texts(rows[table.key[0]]))}"
    return where
