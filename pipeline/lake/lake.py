"""The lake: creates, reads and writes the declared tables in Delta. The only module that writes them.

A lake is a folder (any URI that Spark can write to) with ``<layer>/<table>``, or a catalog with
``<prefix><layer>.<table>``. Only the DataFrame API and SQL are used, so that all works alike in classic sessions and
over Spark Connect. Options of a write are given with the write, since serverless compute allows few session settings.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipeline.lake import codegen, sessions
from pipeline.lake.arrow_rows import is_in
from pipeline.lake.concurrency import Result, TaskName, run_concurrently
from pipeline.lake.date_filters import dates_condition
from pipeline.lake.errors import LakeNameError, SchemaError
from pipeline.lake.frames import arrow_to_frame, values_to_frame
from pipeline.lake.local import row_cache, transaction
from pipeline.lake.local.commits import CommitHistory, Snapshot
from pipeline.lake.local.local_sql import Given
from pipeline.lake.local.local_tables import ALL_ROWS, CommitCounts, LocalTables
from pipeline.lake.local.pinned import Pinned, Pins
from pipeline.lake.local.table_writer import columns_with_statistics
from pipeline.lake.queries import (
    CHANGE_COLUMNS,
    MAX_IN_LIST,
    CachedFilter,
    ChangeFeedError,
    ChangesSince,
    QueryInput,
    Values,
    query_in_spark,
    sql_list,
    values_array,
)
from pipeline.lake.schema_enforcement import arrow_schema, changed_keys, conform_frame, select_fields
from pipeline.lake.settings import spark_conf
from pipeline.lake.tasks import PartitionedRows
from pipeline.lake.writes import Append, ReplaceAll, ReplaceChanged, Write
from pipeline.text import is_utf8
from schemas.table import EVENT_DATE, INGESTED_AT, RUN_ID, Table, literal, quoted

# Error conditions of Delta and Spark for a table that does not exist; any other error is raised.
MISSING_TABLE_VERSION = {
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_MISSING_DELTA_TABLE",
    "PATH_NOT_FOUND",
}

_GONE: Final = "_gone"
_KEY: Final = "_key"
_NEW: Final = "_new_"
_USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"  # MERGE and UPDATE take no options
_CHECKPOINTS: Final = "delta.checkpointInterval"
# The checksum file of a commit lists all files of a small table, for which Delta runs a Spark job. A new table needs
# none: without it, it is created in two thirds of the time. Not in a catalog, whose
# session may not allow the setting.
_CREATIONS: Final = {"spark.databricks.delta.allFilesInCrc.enabled": "false"}
# While files are removed the check that old versions are kept for a week is off; so are commits that tell of the
# removal, behind which nobody would find what the one before says that the table is made of. A table's folder is listed
# by as many tasks as the last of them says: by 10,000 unless told, ten minutes for the tables of a small lake.
_VACUUMS: Final = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
}


def versions_by_name(snapshots: Mapping[Table, Snapshot], tables: Iterable[Table]) -> dict[str, int | None]:
    """Return the versions of tables by their names, None for a table that does not exist."""
    return {str(table): snapshots[table].version if table in snapshots else None for table in tables}


RowsToWrite: TypeAlias = DataFrame | pa.Table | PartitionedRows
"""Rows to be written."""


class Lake:
    """The declared tables in one place. A table is created when it is first written."""

    def __init__(self, spark: SparkSession, root: str, *, catalog: str | None = None, prefix: str = "") -> None:
        """``root`` is a folder or URI; with ``catalog`` the tables live there, and ``root`` holds only work files.

        LakeNameError for names that Spark cannot take, or would replace: it does so with ``${...}`` in SQL.
        """
        for name in filter(None, (root, catalog, prefix)):
            if "${" in name or not is_utf8(name):
                raise LakeNameError(f"{name!r}: Spark takes no name with ${{, or that is not UTF-8; rename the lake")
        self.spark = spark
        self.root = root.rstrip("/") if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", root) else os.path.abspath(root)  # noqa: PTH100
        self.catalog = catalog
        self.prefix = prefix
        self._seen: set[str] = set()  # tables known to exist: they do not go away under a run
        self._missing: set[str] = set()  # tables known not to exist, while nobody else creates any
        self._narrow: dict[str, Table] = {}  # of these, those made before some of their columns were declared
        self._pins = Pins()
        self._local: LocalTables | None = None  # where tables are folders of this machine, and Java is at hand
        if catalog is None and transaction.is_possible(spark, self.root):
            self._local = LocalTables(self.root)
        self._check: Callable[[], None] = lambda: None  # asked before each commit: it raises where none may be
        self._commits: dict[str, Snapshot] | None = None  # the newest of each table, while nobody else makes any

    @contextmanager
    def hold_exclusive_access(self, check: Callable[[], None]) -> Iterator[None]:
        """Hold exclusive write access within the block. Cached table versions stay valid.

        ``check`` runs before every commit; it raises if the lease is lost.
        """
        self._check, self._commits = check, {}
        self._missing.clear()
        try:
            for table in list(self._narrow.values()):
                self.add_missing_columns(table)
            yield
        finally:
            self._commits = None

    @contextmanager
    def with_own_session(self) -> Iterator[Lake]:
        """Yield the lake with a session of its own: concurrent steps do not see its commit messages."""
        other = copy(self)
        with sessions.own_session(self.spark) as other.spark:
            yield other

    @contextmanager
    def commit_message(self, provenance: str) -> Iterator[None]:
        """Give all commits within the block this provenance; concurrent commits share it.

        MERGE, UPDATE and DELETE take the message of their commit from the session only, and Spark replaces ``${...}``
        in settings: ``$`` is spelled as JSON may spell it.
        """
        with spark_conf(self.spark, {_USER_METADATA: provenance.replace("$", "\\u0024")}):
            yield

    def path(self, table: Table) -> str:
        """Return where the table is: its folder, or its full name in the catalog."""
        if self.catalog is None:
            return f"{self.root}/{table.layer}/{table.name}"
        return ".".join((self.catalog, f"{self.prefix}{table.layer}", table.name))

    def sql_name(self, table: Table) -> str:
        """Return the table's name for SQL, quoted."""
        if self.catalog is None:
            return f"delta.{quoted(self.path(table))}"
        return ".".join(quoted(part) for part in (self.catalog, f"{self.prefix}{table.layer}", table.name))

    def exists(self, table: Table) -> bool:
        """Whether the table has been created."""
        if str(table) in self._seen:
            return True
        if self._commits is not None and str(table) in self._missing:
            return False
        schema = self._schema(table)
        if schema is None:
            self._missing.add(str(table))
            return False
        self._seen.add(str(table))
        self._check_schema(table, schema)
        return True

    def _schema(self, table: Table) -> StructType | None:
        """Return the schema of the table as stored; None when there is no table."""
        if self._local is not None:
            if not (self._local.folder(table) / "_delta_log").is_dir():
                return None
            if (listing := self._local.listing(table)) is not None:
                return StructType.fromJson(json.loads(listing.metadata["schemaString"]))
        if self.catalog is not None and not self.spark.catalog.tableExists(self.sql_name(table)):
            return None
        try:
            return self._open(table).schema
        except AnalysisException as error:
            if error.getCondition() not in MISSING_TABLE_VERSION:
                raise
            return None

    def _check_schema(self, table: Table, schema: StructType) -> None:
        """Compare a stored table with its declaration; a difference other than missing columns is a SchemaError.

        Missing columns are added; without exclusive access they read as null.
        """
        there = {field.name: field.dataType.simpleString() for field in schema.fields}
        declared = {column.name: column.type.simpleString() for column in table.columns}
        unknown = sorted(there.keys() - declared.keys())
        differs = [
            f"{name} is {kind}, not {declared[name]}"
            for name, kind in there.items()
            if name in declared and kind != declared[name]
        ]
        if unknown:
            raise SchemaError(
                f"{table} in {self.root} was written by a later version of this program (columns {', '.join(unknown)}):"
                " run that version"
            )
        if differs:
            raise SchemaError(
                f"{table} in {self.root} was written by a version whose tables cannot be taken over"
                f" ({'; '.join(differs)}): have run_all read the captures into a new lake"
            )
        if declared.keys() - there.keys():
            self._narrow[str(table)] = table
            if self._commits is not None:
                self.add_missing_columns(table)

    def create(self, table: Table) -> None:
        """Create the table, empty, with its comments, if it does not exist.

        It is clustered by ``event_date``, not partitioned: a hostile capture can hold as many dates as packets, each
        of which would be a folder. Statistics are kept for columns that are looked up, not for stubs. Every table has
        a change feed, which incremental updates read, and deletion vectors, so that a few changed rows do not rewrite
        whole files.
        """
        if self.exists(table):
            return
        if self.catalog is not None:
            schema = ".".join(quoted(part) for part in (self.catalog, f"{self.prefix}{table.layer}"))
            self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        with spark_conf(self.spark, _CREATIONS if self.catalog is None else {}):
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.sql_name(table)} (\n  {table.columns_ddl()}\n) USING DELTA\n"
                + (f"CLUSTER BY ({EVENT_DATE})\n" if table.event_date_columns else "")
                + f"COMMENT {table.comment_literal()}\n"
                + "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true', "
                + f"'delta.dataSkippingStatsColumns' = '{','.join(columns_with_statistics(table))}')"
            )
        self._seen.add(str(table))

    def prepare_commit(self, table: Table) -> None:
        """Create the table, or load what its next commit needs if it exists."""
        if self._local is not None and self.exists(table):
            transaction.prepare(self.spark, self._local.folder(table))
        else:
            self.create(table)

    def add_missing_columns(self, table: Table) -> None:
        """Add the declared columns that a table made by an earlier version does not have."""
        if not self.exists(table):
            return
        schema = self._schema(table)
        there = set() if schema is None else set(schema.names)
        more = [column.ddl() for column in table.columns if column.name not in there]
        if more:
            with self._commit(table):
                self.spark.sql(f"ALTER TABLE {self.sql_name(table)} ADD COLUMNS ({', '.join(more)})")
        self._narrow.pop(str(table), None)

    def read(self, table: Table) -> DataFrame:
        """Return the table's rows as a frame; an empty frame with the table's schema if it does not exist yet."""
        if not self.exists(table):
            return self.spark.createDataFrame([], table.struct()).limit(0)  # by the limit Spark knows it without asking
        pinned = self._pinned(table)
        rows = self._open(table) if pinned is None else pinned.frame(self.spark)
        if str(table) in self._narrow:
            there = {*rows.columns}
            rows = rows.withColumns(
                {column.name: F.lit(None).cast(column.type) for column in table.columns if column.name not in there}
            )
        return rows

    @property
    def can_read_without_spark(self) -> bool:
        """Whether queries and small commits are done in this process rather than by Spark."""
        return self._local is not None

    def query(self, sql: str, /, **of: QueryInput) -> pa.Table:
        """Return the answer to a SQL query whose inputs stand in it as names in braces.

        An input is a table, the rows of a table under a fixed condition (``CachedFilter``), the changes of a table
        (``ChangesSince``, with the columns of ``changes``), an Arrow table, or values for ``IN``: a collection of
        texts or numbers, or one text. The SQL must be understood by both Spark and DuckDB (``local/local_sql.py``),
        either of which may answer; types of computed columns may differ, so cast where the type matters.
        ChangeFeedError where changes are not known.
        """
        here = None if self._local is None else self._local_inputs(self._local, of)
        if self._local is None or here is None:
            return self.frame(sql, **of).toArrow()
        return self._local.answer(sql, here)

    def cache_rows(self, *filters: CachedFilter) -> None:
        """Cache the rows of these filters where files are local: the next query reads only what changed since."""
        if self._local is not None:
            run_concurrently({each: partial(self._local_inputs, self._local, {"rows": each}) for each in filters})

    def frame(self, sql: str, /, **of: QueryInput) -> DataFrame:
        """Return Spark's answer to a query, as for ``query``, as a frame."""
        return query_in_spark(self.spark, sql, {name: self._spark_input(source) for name, source in of.items()})

    def _local_inputs(self, local: LocalTables, of: Mapping[str, QueryInput]) -> dict[str, Given] | None:
        """Return the inputs as files of this machine; None where a table cannot be read from its files alone."""
        found: dict[str, Given] = {}
        for name, source in of.items():
            if isinstance(source, Table):
                rows = local.rows(source) if self.exists(source) else arrow_schema(source).empty_table()
                if rows is None:
                    return None
                found[name] = rows
            elif isinstance(source, CachedFilter):
                kept = (
                    local.standing(source, keep=self._commits is not None)
                    if self.exists(source.table)
                    else row_cache.schema(source).empty_table()
                )
                if kept is None:
                    return None
                found[name] = kept
            elif isinstance(source, ChangesSince):
                if local.listing(source.table) is None:
                    return None
                try:
                    found[name] = local.changes(*source)
                except ValueError as error:
                    raise ChangeFeedError(str(error)) from error
            else:
                found[name] = source if isinstance(source, pa.Table) else values_array(source)
        return found

    def _spark_input(self, source: QueryInput) -> DataFrame | pa.Table | Values:
        """Return an input for Spark."""
        if isinstance(source, ChangesSince):
            return self.changes(*source)
        if isinstance(source, CachedFilter):
            return self.read(source.table).where(source.where).select(*source.column_names)
        return self.read(source) if isinstance(source, Table) else source

    def append(self, table: Table, rows: RowsToWrite, *, provenance: str | None = None) -> None:
        """Add rows in one commit. They have the table's columns in any order; event_date may be left out."""
        if isinstance(rows, DataFrame) or self._commit_locally(table, rows=rows, says=provenance) is None:
            self._write(table, self._as_frame(table, rows), replace=False, provenance=provenance)

    def _as_frame(self, table: Table, rows: RowsToWrite) -> DataFrame:
        if isinstance(rows, PartitionedRows):
            return rows.frame(self.spark, table.struct())
        return rows if isinstance(rows, DataFrame) else arrow_to_frame(self.spark, rows)

    def replace(self, table: Table, rows: DataFrame | pa.Table, *, provenance: str | None = None) -> None:
        """Make these all rows of the table, in one commit; a frame may have been read from the table.

        The commit keeps the provenance. Delta makes no commit where there is no row before and after: then a second
        one keeps it.
        """
        if (
            isinstance(rows, DataFrame)
            or self._commit_locally(table, rows=rows, gone=ALL_ROWS, says=provenance) is None
        ):
            self._write(table, self._as_frame(table, rows), replace=True, provenance=provenance)
        if provenance is not None and self.provenance_json(table) != provenance:
            self.commit_provenance(table, provenance)

    def merge(
        self,
        table: Table,
        rows: DataFrame,
        *,
        dates: Collection[date | None] | None,
        keys: Sequence[str] = (),
        delete_when: str | None = None,
        unless_same: bool = False,
        provenance: str | None = None,
    ) -> None:
        """Upsert rows by key, in one commit, by Spark.

        ``dates`` are the event dates (None among them for rows without one) at which the table may hold rows with
        these keys: files of other dates are not read; None: all dates. ``keys`` are the table's own by default; no
        two rows may share them. ``rows`` has the table's columns, event_date may be left out, and with
        ``delete_when`` one more, boolean and never null: where it is true the table's row is deleted. With
        ``unless_same`` rows that are equal apart from the run's columns are not written. Without any date it is an
        append. No commit is made where no key is found or added.
        """
        if table.event_date_columns and dates is not None and not dates:
            added = rows if delete_when is None else rows.where(~F.col(delete_when)).drop(delete_when)
            self.append(table, added, provenance=provenance)
            return
        self.create(table)
        gone = F.lit(False) if delete_when is None else F.col(delete_when)  # noqa: FBT003
        marked = rows.withColumn(_GONE, gone)
        new = conform_frame(table, marked.drop(delete_when) if delete_when else marked, more=(_GONE,))
        # mergeInto gives the table no alias: the names alone must tell which side is meant.
        values = {name: F.col(_NEW + name) for name in table.names}
        found = [f"{quoted(name)} = {quoted(_NEW + name)}" for name in keys or table.key]
        if table.event_date_columns:
            found.append(dates_condition(dates))
        differs = F.lit(not unless_same)
        for name in table.names if unless_same else ():
            if name not in (RUN_ID, INGESTED_AT):
                differs |= ~F.col(name).eqNullSafe(values[name])
        with self._commit(table, provenance):
            (
                new.withColumnsRenamed({name: _NEW + name for name in table.names})
                .mergeInto(self.sql_name(table), F.expr(" AND ".join(found)))
                .whenMatched(F.col(_GONE)).delete()
                .whenMatched(differs).update(values)
                .whenNotMatched(~F.col(_GONE)).insert(values)
                .merge()
            )  # fmt: skip

    def select_by_values(
        self, table: Table, values: Collection[str], *, dates: Collection[date | None] | None = None,
        column: str | None = None, columns: Sequence[str] = (),
    ) -> pa.Table:  # fmt: skip
        """Return the rows whose key, a single column, is one of these; ``dates`` as for ``merge``, None for all.

        ``column``: another column than the key; ``columns``: those that are read, all by default.
        """
        where = f"{quoted(column or table.key[0])} IN {{values}} AND {dates_condition(dates)}"
        return self.select(table, where, columns, values=values)

    def select(self, table: Table, where: str, columns: Sequence[str] = (), /, **of: Values) -> pa.Table:
        """Return the rows that meet a SQL condition, as for ``query``, with the declared types of the columns.

        ``columns``: those that are read, all by default.
        """
        names = columns or table.names
        if self._local is not None and self.exists(table):
            here = self._local.select(table, where, names, {name: values_array(given) for name, given in of.items()})
            if here is not None:
                return here
        found = self.query(f"SELECT {', '.join(map(quoted, names))} FROM {{rows}} WHERE {where}", rows=table, **of)
        return found.cast(select_fields(arrow_schema(table), names))

    def replace_changed(
        self, table: Table, rows: pa.Table, there: pa.Table, *, dates: Collection[date | None],
        provenance: str | None = None, previous_provenance: str | None = None,
    ) -> int:  # fmt: skip
        """Replace the rows that differ from those in the table; return how many are written.

        For tables with one key column, and rows that fit in memory: one or two small commits cost a fraction of a
        MERGE. ``rows`` has the table's columns, those of the run included; ``there`` at least all others, of all rows
        that ``rows`` replace; ``dates`` as for ``merge``. A commit that only deletes keeps ``previous_provenance``,
        so that a run killed after it is not taken for complete. In the end the table has ``provenance``, also where
        no row differs.
        """
        name = table.key[0]
        fresh, stale = changed_keys(rows, there, name)
        if fresh or stale:
            chosen = rows.filter(is_in(rows, name, fresh))
            self.delete_and_insert(
                table, name, stale, chosen, dates=dates, provenance=provenance, previous_provenance=previous_provenance
            )
        if provenance is not None and self.provenance_json(table) != provenance:
            self.commit_provenance(table, provenance)
        return len(fresh)

    def delete_and_insert(
        self, table: Table, column: str, gone: Collection[str], rows: pa.Table | PartitionedRows, *,
        dates: Collection[date | None] | None, also: str | None = None, provenance: str | None = None,
        previous_provenance: str | None = None,
    ) -> None:  # fmt: skip
        """Delete rows as ``delete_values`` does, and insert others, in one commit where that is possible.

        Elsewhere these are two commits: the first one keeps ``previous_provenance``.
        """
        conditions = [f"({quoted(column)} IN {{gone}} AND {dates_condition(dates)})"] if gone else []
        conditions += [] if also is None else [f"({also})"]
        leaving = " OR ".join(conditions) or None
        if self._commit_locally(table, rows=rows, gone=leaving, of={"gone": gone}, says=provenance) is not None:
            return
        self.delete_values(table, column, gone, dates=dates, also=also, provenance=previous_provenance)
        if isinstance(rows, PartitionedRows) or rows.num_rows:
            self.append(table, rows, provenance=provenance)

    def _commit_locally(
        self, table: Table, *, rows: pa.Table | PartitionedRows | None = None, gone: str | None = None,
        of: Mapping[str, Values] | None = None, says: str | None = None,
    ) -> CommitCounts | None:  # fmt: skip
        """Insert and delete rows in one commit of this process; None where Spark has to do it.

        ``gone``: a SQL condition of the rows to delete, in which names in braces stand for the values ``of``.
        """
        if self._local is None:
            return None
        self.create(table)
        values = {name: values_array(names) for name, names in (of or {}).items()}
        added = () if rows is None else self._local.write(self.spark, table, rows)
        with self._commit(table):
            return self._local.change(self.spark, table, added=added, gone=gone, of=values, says=says)

    def delete_values(
        self, table: Table, column: str, values: Collection[str] | DataFrame, *, dates: Collection[date | None] | None,
        also: str | None = None, provenance: str | None = None,
    ) -> None:  # fmt: skip
        """Delete the rows whose column has one of these values, or that meet another SQL condition, in one commit.

        ``values`` may be a frame of one column without duplicates. ``dates`` as for ``merge``. Nothing happens
        without values and condition, or without a table.
        """
        if not self.exists(table):
            return
        with nullcontext() if provenance is None else self.commit_message(provenance):
            if isinstance(values, DataFrame) or (self._local is None and len(values) > MAX_IN_LIST):
                wanted = (
                    values.toDF(_KEY) if isinstance(values, DataFrame) else values_to_frame(self.spark, values, _KEY)
                )
                found = F.expr(f"{quoted(column)} = {_KEY} AND {dates_condition(dates)}")
                with self._commit(table):
                    wanted.mergeInto(self.sql_name(table), found).whenMatched().delete().merge()
                values = ()
            conditions = [f"({quoted(column)} IN {{values}} AND {dates_condition(dates)})"] if values else []
            conditions += [] if also is None else [f"({also})"]
            if conditions:
                self.delete(table, " OR ".join(conditions), values=values)

    def update_matched(
        self,
        table: Table,
        source: DataFrame,
        on: str,
        *,
        update: Mapping[str, str],
        delete: str,
    ) -> None:
        """Delete or update the rows that match a frame's rows, in one commit.

        ``on``, ``delete`` and the values of ``update`` are SQL over the columns of both sides, whose names must
        differ. No row of the table may match twice; nothing happens where there is no table.
        """
        if not self.exists(table):
            return
        merge = source.mergeInto(self.sql_name(table), F.expr(on)).whenMatched(F.expr(delete)).delete()
        values = {column: F.expr(expression) for column, expression in update.items()}
        with self._commit(table):
            merge.whenMatched().update(values).merge()

    def update(
        self,
        table: Table,
        assignments: Mapping[str, str],
        condition: str,
        *,
        provenance: str | None = None,
        **of: Values,
    ) -> None:
        """Set columns to SQL expressions in the rows that meet a condition, in one commit; no commit without a row.

        Names in braces stand for values of an ``IN``, or for one text.
        """
        if not self.exists(table):
            return
        if self._local is not None:
            values = ", ".join(assignments.get(name, quoted(name)) + f" AS {quoted(name)}" for name in table.names)
            found = self.query(f"SELECT {values} FROM {{rows}} WHERE {condition}", rows=table, **of)
            rows = found.cast(arrow_schema(table))
            if self._commit_locally(table, rows=rows, gone=condition, of=of, says=provenance) is not None:
                return
        to = ", ".join(f"{quoted(column)} = {expression}" for column, expression in assignments.items())
        spelled = f"SET {to} WHERE {condition}".format(**{name: sql_list(values) for name, values in of.items()})
        with self._commit(table, provenance):
            self.spark.sql(f"UPDATE {self.sql_name(table)} {spelled}")

    def delete(self, table: Table, condition: str, **of: Values) -> None:
        """Delete the rows that meet a SQL condition; nothing happens where there is no table or no such row.

        Names in braces stand for values of an ``IN``.
        """
        if self.exists(table) and self._commit_locally(table, gone=condition, of=of) is None:
            spelled = condition.format(**{name: sql_list(values) for name, values in of.items()})
            with self._commit(table):
                # Delta's DELETE does not take named parameters.
                self.spark.sql(f"DELETE FROM {self.sql_name(table)} WHERE {spelled}")

    def version(self, table: Table) -> int | None:
        """Return the table's Delta version, from 0; None when it does not exist."""
        newest = self.snapshot(table)
        return None if newest is None else newest.version

    def restore(self, table: Table, version: int | None) -> None:
        """Restore a table to a version, by a commit of its own; None: to the empty table.

        The change feed has the changes there and back.
        """
        wanted, there = version or 0, self.version(table)
        if there is not None and there != wanted:
            with self._commit(table):
                self.spark.sql(f"RESTORE TABLE {self.sql_name(table)} TO VERSION AS OF {wanted}")

    def commit(self, table: Table, write: Write, *, provenance: str, read: Snapshot | None) -> Snapshot:
        """Change the rows of a table, and keep in the same commit what they were computed from, the provenance.

        ``read`` is the snapshot that the rows were computed against. Where a change takes two commits, the first one
        keeps its provenance, so that the next run repeats what a killed one began. The snapshot returned counts the
        rows written.
        """
        if isinstance(write, ReplaceAll):
            self.replace(table, write.rows, provenance=provenance)
            return self._written(table, self.count_rows_written(table))
        written = 0
        if isinstance(write, Append):
            self.append(table, write.rows, provenance=provenance)
            written = self.count_rows_written(table)
        elif isinstance(write, ReplaceChanged):
            self.create(table)
            before = None if read is None else read.provenance_json
            written = self.replace_changed(
                table, write.rows, write.current, dates=write.dates, provenance=provenance, previous_provenance=before
            )
        elif self.provenance_json(table) != provenance:
            self.commit_provenance(table, provenance)
        return self._written(table, written)

    def _written(self, table: Table, rows: int) -> Snapshot:
        snapshot = self.snapshot(table)
        return Snapshot(0, None, rows) if snapshot is None else snapshot._replace(rows_written=rows)

    def snapshot(self, table: Table) -> Snapshot | None:
        """Return the table as it is now: its version and provenance; None when there is no table."""
        if not self.exists(table):
            return None
        known = None if self._commits is None else self._commits.get(str(table))
        if known is None:
            known = self._history(table).newest()
            if self._commits is not None:
                self._commits[str(table)] = known
        return known

    def snapshots(self, *tables: Table) -> dict[Table, Snapshot]:
        """Return the snapshot of each table, read concurrently; tables that do not exist are left out."""
        found = run_concurrently({table: partial(self.snapshot, table) for table in tables})
        return {table: commit for table, commit in found.items() if commit is not None}

    def changes(self, table: Table, since: int, until: int | None = None) -> DataFrame:
        """Return the rows inserted, deleted and updated after a version, up to ``until`` or the newest, as a frame.

        It has the table's columns, ``_change_type`` (insert, delete, update_preimage, update_postimage) and
        ``_commit_version``. A key can occur several times: once or twice (before, after) for each version that
        changed it. ChangeFeedError when there is no such version. That the feed was off, or its files are gone, shows
        when the frame is first used (``CHANGE_FEED_ERRORS``).
        """
        newest = self.version(table) if until is None else until
        if newest is None or since > newest:
            raise ChangeFeedError(f"{table} has no version {since}: it is at {newest}")
        until = newest
        if since >= until:
            none = self._open(table).limit(0)
            return none.withColumns({"_change_type": F.lit(""), "_commit_version": F.lit(0).cast("bigint")})
        feed = self.spark.read.format("delta").option("readChangeFeed", "true")
        feed = feed.option("startingVersion", since + 1).option("endingVersion", until)
        rows = feed.table(self.sql_name(table)) if self.catalog is not None else feed.load(self.path(table))
        return rows.select(*table.names, *CHANGE_COLUMNS)

    def prepare_table_scan(self, table: Table) -> None:
        """Prepare a table to be read as a whole, for a recomputation; from now on its changes are known.

        The change feed of a table that was made without one is turned on; it begins at this commit.
        """
        if not self.exists(table):
            return
        name = self.sql_name(table)
        detail = self.spark.sql(f"DESCRIBE DETAIL {name}").select("properties", "sizeInBytes").first()
        if detail is not None:
            codegen.enable_for_sizes(self.spark, detail["sizeInBytes"])
        if detail is None or detail["properties"].get("delta.enableChangeDataFeed") != "true":
            with self._commit(table):
                self.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")

    def count_rows_written(self, table: Table) -> int:
        """Return how many rows the table's last commit wrote, by Delta's count."""
        newest = self.snapshot(table)
        return 0 if newest is None else newest.rows_written

    def provenance_json(self, table: Table) -> str | None:
        """Return the provenance in the table's last commit as text; None if it has none, or there is no table."""
        newest = self.snapshot(table)
        return None if newest is None else newest.provenance_json

    def provenance(self, table: Table) -> dict[str, Any]:
        """Return the provenance in the table's last commit; empty if it has none, or no JSON."""
        return Snapshot(0, self.provenance_json(table)).provenance()

    def versions_text(self, *tables: Table) -> str:
        """Return the Delta versions of tables as one text, which changes when one of them does."""
        return " ".join(f"{table}={self.version(table)}" for table in tables)

    def update_columns(
        self, table: Table, rows: DataFrame | pa.Table, *, dates: Collection[date | None],
        provenance: str | None = None,
    ) -> None:  # fmt: skip
        """Set columns in the rows of some keys, in one commit; ``dates`` as for ``merge``.

        ``rows`` has the table's key, a single column without duplicates, and the columns to set; keys that the table
        does not have are skipped. Old values stay in older versions until VACUUM.
        """
        (key,) = table.key
        if self.can_read_without_spark and isinstance(rows, pa.Table):
            keys = rows[key].to_pylist()
            now = self.select_by_values(table, keys, dates=dates)
            places = pc.index_in(now[key], rows[key].combine_chunks())
            for name in rows.column_names:
                now = now.set_column(table.names.index(name), name, rows[name].take(places))
            leaving = f"{quoted(key)} IN {{keys}} AND {dates_condition(dates)}"
            if self._commit_locally(table, rows=now, gone=leaving, of={"keys": keys}, says=provenance) is not None:
                return
        rows = rows if isinstance(rows, DataFrame) else arrow_to_frame(self.spark, rows)
        renamed = rows.withColumnsRenamed({name: _NEW + name for name in rows.columns})
        found = F.expr(f"{quoted(key)} = {quoted(_NEW + key)} AND {dates_condition(dates)}")
        values = {name: F.col(_NEW + name) for name in rows.columns if name != key}
        with self._commit(table, provenance):
            renamed.mergeInto(self.sql_name(table), found).whenMatched().update(values).merge()

    def commit_provenance(self, table: Table, provenance: str) -> None:
        """Keep a new provenance in a commit that changes no row."""
        self.create(table)
        if self._commit_locally(table, says=provenance) is not None:
            return
        with self._commit(table, provenance):
            self.spark.sql(
                f"ALTER TABLE {self.sql_name(table)} SET TBLPROPERTIES ('provenance' = {literal(provenance)})"
            )

    def purge(self, table: Table, provenance: str | None) -> None:
        """Rewrite the table's files without deleted rows, and its log so that older entries are not needed.

        No row changes. The last commit has this provenance, as the one before.
        """
        name = self.sql_name(table)
        # Stamps leave what they said in the table's properties, where it outlives the commit.
        said = "" if provenance is None else f", 'provenance' = {literal(provenance)}"
        unsaid = ", 'provenance'" if provenance is None else ""
        steps = [
            f"REORG TABLE {name} APPLY (PURGE)",
            f"ALTER TABLE {name} SET TBLPROPERTIES ('{_CHECKPOINTS}' = '1'{said})",
            f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ('{_CHECKPOINTS}'{unsaid})",
        ]
        for step in steps:
            with self._commit(table, provenance):
                self.spark.sql(step)

    def vacuum(self, table: Table) -> None:
        """Delete all files that the newest version does not need: no older version can be read from then on.

        Only with exclusive access: files that another run is about to commit would be deleted too.
        """
        self._check()
        with spark_conf(self.spark, _VACUUMS):
            self.spark.sql(f"VACUUM {self.sql_name(table)} RETAIN 0 HOURS")

    def location(self, table: Table) -> str:
        """Return the URI of the table's folder."""
        row = self.spark.sql(f"DESCRIBE DETAIL {self.sql_name(table)}").select("location").first()
        return "" if row is None else str(row[0])

    def provenance_since(self, table: Table, since: int) -> dict[int, str | None]:
        """Return the provenance of each commit after a version, by version; maintenance is left out."""
        newest = self.version(table)
        if newest is None or newest <= since:
            return {}
        commits = self._history(table).since(since, newest)
        return {commit.version: commit.provenance_json for commit in commits if not commit.keeps_provenance}

    def _open(self, table: Table) -> DataFrame:
        if self.catalog is not None:
            return self.spark.read.table(self.sql_name(table))
        return self.spark.read.format("delta").load(self.path(table))

    def _write(self, table: Table, df: DataFrame, *, replace: bool, provenance: str | None = None) -> None:
        rows, is_new = conform_frame(table, df), not self.exists(table)
        self.create(table)
        writer = rows.write.format("delta").mode("append").option("compression", "zstd")
        if replace and not is_new:  # a plain overwrite takes the clustering away, replacing all rows does not
            writer = writer.mode("overwrite").option("replaceWhere", "true")
        if provenance is not None:
            writer = writer.option("userMetadata", provenance)
        with self._commit(table):
            if self.catalog is not None:
                writer.saveAsTable(self.sql_name(table))
            else:
                writer.save(self.path(table))

    @contextmanager
    def _commit(self, table: Table, provenance: str | None = None) -> Iterator[None]:
        """Make a commit within the block: checks the lease before, and sets the provenance."""
        self._check()
        try:
            with nullcontext() if provenance is None else self.commit_message(provenance):
                yield
        finally:
            if self._commits is not None:
                self._commits.pop(str(table), None)

    def _history(self, table: Table) -> CommitHistory:
        return CommitHistory(self.spark, self.sql_name(table), self._log(table))

    def _pinned(self, table: Table) -> Pinned | None:
        """Return the table's file list, if it is short and known."""
        log = self._log(table)
        return None if log is None else self._pins.pinned(self.spark, log)

    def _log(self, table: Table) -> Path | None:
        """Return the folder of the table's log; None in a catalog, a path that does not exist for an object store."""
        return None if self.catalog is not None else Path(self.path(table)) / "_delta_log"


def run_in_parallel(lake: Lake, steps: Mapping[TaskName, Callable[[Lake], Result]]) -> dict[TaskName, Result]:
    """Run steps that write different tables concurrently, each with its own session; return each result by its name."""
    if len(steps) < 2:
        return {name: step(lake) for name, step in steps.items()}

    def alone(step: Callable[[Lake], Result]) -> Result:
        with lake.with_own_session() as other:
            return step(other)

    return run_concurrently({name: partial(alone, step) for name, step in steps.items()})
