"""The lake: creating, reading and writing the declared tables in Delta. The only module that writes.

A lake is a folder (any URI Spark can write to) with ``<layer>/<table>``, or a catalog with ``<prefix><layer>.<table>``.
DataFrame API and SQL only, so that it works alike in classic sessions and over Spark Connect; what a write needs is
given as the write's option, since serverless compute lets few session settings through.
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
from pipeline.lake.arrow_rows import one_of
from pipeline.lake.concurrency import Answer, Name, gather
from pipeline.lake.date_filters import on_dates
from pipeline.lake.errors import SchemaError
from pipeline.lake.frames import column_of, frame
from pipeline.lake.local import row_cache, transaction
from pipeline.lake.local.commits import Commit, History
from pipeline.lake.local.local_sql import Given
from pipeline.lake.local.local_tables import ALL, Changed, LocalTables
from pipeline.lake.local.pinned import Pinned, Pins
from pipeline.lake.local.table_writer import looked_up
from pipeline.lake.queries import (
    CHANGE,
    MOST_NAMED,
    FeedError,
    Names,
    Since,
    Source,
    Standing,
    in_spark,
    listed,
    values_of,
)
from pipeline.lake.schema_enforcement import conform, differing, part_of, schema_of
from pipeline.lake.settings import having
from pipeline.lake.tasks import Tasks
from schemas.table import EVENT_DATE, INGESTED_AT, RUN_ID, Table, literal, quoted

# What Delta and Spark say when there is no table yet; everything else is a failure and stays one.
NO_TABLE = {"DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND"}

_GONE: Final = "_gone"
_KEY: Final = "_key"
_NEW: Final = "_new_"
_COMMIT_SAYS: Final = "spark.databricks.delta.commitInfo.userMetadata"  # MERGE and UPDATE take no options
_CHECKPOINTS: Final = "delta.checkpointInterval"
# The checksum beside a commit names all files of a small table, for which Delta asks Spark. A new table has none: it is
# made in two thirds of the time without that question, and the next commit asks it. Not so in a catalog, whose session
# may let nobody set that.
_CREATIONS: Final = {"spark.databricks.delta.allFilesInCrc.enabled": "false"}
# While files are removed the check that old versions are kept for a week is off; so are commits that tell of the
# removal, behind which nobody would find what the one before says that the table is made of. A table's folder is listed
# by as many tasks as the last of them says: by 10,000 unless told, ten minutes for the tables of a small lake.
_VACUUMS: Final = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
}


def versions_of(newest: Mapping[Table, Commit], tables: Iterable[Table]) -> dict[str, int | None]:
    """The versions of tables by their names, of what ``Lake.newest`` found; None for those that do not exist."""
    return {str(table): newest[table].version if table in newest else None for table in tables}


Made: TypeAlias = DataFrame | pa.Table | Tasks
"""Rows to be written."""


class Lake:
    """The declared tables of one place. Creates a table when it is first written."""

    def __init__(self, spark: SparkSession, root: str, *, catalog: str | None = None, prefix: str = "") -> None:
        """``root`` is a folder or URI; with ``catalog`` the tables live there, and ``root`` holds only work files."""
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
        self._commits: dict[str, Commit] | None = None  # the newest of each table, while nobody else makes any

    @contextmanager
    def held(self, check: Callable[[], None]) -> Iterator[None]:
        """Have the lake to oneself: what is known of its tables' newest commits stays true until one's own.

        ``check`` is asked before each commit; it raises when the lake is no longer held.
        """
        self._check, self._commits = check, {}
        self._missing.clear()
        try:
            for table in list(self._narrow.values()):
                self.widen(table)
            yield
        finally:
            self._commits = None

    @contextmanager
    def apart(self) -> Iterator[Lake]:
        """The same lake through a session of its own: what its commits say is not what others say at the same time."""
        other = copy(self)
        with sessions.beside(self.spark) as other.spark:
            yield other

    @contextmanager
    def saying(self, made_of: str) -> Iterator[None]:
        """Have all commits within say what they were made of; they may be made side by side, this is set around them.

        MERGE, UPDATE and DELETE take what a commit says from the session only.
        """
        with having(self.spark, {_COMMIT_SAYS: made_of}):
            yield

    def path(self, table: Table) -> str:
        """Where the table is: its folder, or its full name in the catalog."""
        if self.catalog is None:
            return f"{self.root}/{table.layer}/{table.name}"
        return ".".join((self.catalog, f"{self.prefix}{table.layer}", table.name))

    def sql_name(self, table: Table) -> str:
        """The table as it stands in SQL, quoted."""
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
        self._adapt(table, schema)
        return True

    def _schema(self, table: Table) -> StructType | None:
        """The table's schema as it is there; None when there is no table."""
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
            if error.getCondition() not in NO_TABLE:
                raise
            return None

    def _adapt(self, table: Table, schema: StructType) -> None:
        """See that a table that is there is as declared: columns declared since are added; SchemaError for all else.

        Who does not hold the lake adds none: for them these columns are null.
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
                self.widen(table)

    def create(self, table: Table) -> None:
        """Create the table, empty, with its comments, if it does not exist.

        It is clustered by ``event_date`` and not partitioned: a hostile capture holds as many dates as packets, and
        a folder for each would be a folder for each packet. Statistics are kept for what is looked up, not for stubs.
        Every table tells its changes, which the layers above follow, and marks rows as gone (deletion vectors)
        rather than write their whole files anew for a few rows that changed.
        """
        if self.exists(table):
            return
        if self.catalog is not None:
            schema = ".".join(quoted(part) for part in (self.catalog, f"{self.prefix}{table.layer}"))
            self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        with having(self.spark, _CREATIONS if self.catalog is None else {}):
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.sql_name(table)} (\n  {table.columns_ddl()}\n) USING DELTA\n"
                + (f"CLUSTER BY ({EVENT_DATE})\n" if table.dated_by else "")
                + f"COMMENT {table.comment_sql()}\n"
                + "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true', "
                + f"'delta.dataSkippingStatsColumns' = '{','.join(looked_up(table))}')"
            )
        self._seen.add(str(table))

    def prepare(self, table: Table) -> None:
        """Create the table if it does not exist; have all ready that its next commit needs if it does."""
        if self._local is not None and self.exists(table):
            transaction.prepare(self.spark, self._local.folder(table))
        else:
            self.create(table)

    def widen(self, table: Table) -> None:
        """Add the columns that the declaration has and the table does not: it was made before they were declared."""
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
        """The table's rows as they are now; none, with the table's schema, when it does not exist yet."""
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
    def is_here(self) -> bool:
        """Whether tables are asked and changed in this process where nothing stands against it."""
        return self._local is not None

    def query(self, sql: str, /, **of: Source) -> pa.Table:
        """Answer a question in SQL, in which names in braces stand for rows, or for what a column may be ``IN``.

        Rows are those of a table as they are now, those of one that meet a condition which is always the same
        (``Standing``), what changed in one (``Since``) with the columns of ``changes``, or those of an Arrow table;
        values are a collection of texts or numbers, or one text. The SQL is Spark's as far as DuckDB has it too
        (``local/local_sql.py``), for one of them answers. Types of what is computed may differ between them: whoever
        needs one casts to it. FeedError where changes are not told.
        """
        here = None if self._local is None else self._here(self._local, of)
        if self._local is None or here is None:
            return self.frame(sql, **of).toArrow()
        return self._local.answer(sql, here)

    def keep(self, *standing: Standing) -> None:
        """Have rows kept where tables are at hand: whoever asks for them next has to ask what changed alone."""
        if self._local is not None:
            gather({each: partial(self._here, self._local, {"rows": each}) for each in standing})

    def frame(self, sql: str, /, **of: Source) -> DataFrame:
        """Return what Spark answers to a question, as for ``query``, as a frame."""
        return in_spark(self.spark, sql, {name: self._there(source) for name, source in of.items()})

    def _here(self, local: LocalTables, of: Mapping[str, Source]) -> dict[str, Given] | None:
        """Return what names stand for on this machine; None where a table is not told by its files alone."""
        found: dict[str, Given] = {}
        for name, source in of.items():
            if isinstance(source, Table):
                rows = local.rows(source) if self.exists(source) else schema_of(source).empty_table()
                if rows is None:
                    return None
                found[name] = rows
            elif isinstance(source, Standing):
                kept = local.standing(source) if self.exists(source.table) else row_cache.schema(source).empty_table()
                if kept is None:
                    return None
                found[name] = kept
            elif isinstance(source, Since):
                if local.listing(source.table) is None:
                    return None
                try:
                    found[name] = local.changes(*source)
                except ValueError as error:
                    raise FeedError(str(error)) from error
            else:
                found[name] = source if isinstance(source, pa.Table) else values_of(source)
        return found

    def _there(self, source: Source) -> DataFrame | pa.Table | Names:
        """Return the same for Spark."""
        if isinstance(source, Since):
            return self.changes(*source)
        if isinstance(source, Standing):
            return self.read(source.table).where(source.where).select(*source.names)
        return self.read(source) if isinstance(source, Table) else source

    def append(self, table: Table, rows: Made, *, made_of: str | None = None) -> None:
        """Add the rows in one commit. They have the table's columns in any order; event_date may be left out."""
        if isinstance(rows, DataFrame) or self._change(table, rows=rows, says=made_of) is None:
            self._write(table, self._made(table, rows), replace=False, made_of=made_of)

    def _made(self, table: Table, rows: Made) -> DataFrame:
        if isinstance(rows, Tasks):
            return rows.frame(self.spark, table.struct())
        return rows if isinstance(rows, DataFrame) else frame(self.spark, rows)

    def replace(self, table: Table, rows: DataFrame | pa.Table, *, made_of: str | None = None) -> None:
        """Make rows all there is, in one commit; a frame may have been read from the table.

        ``made_of`` is kept with the commit: what the rows were computed from, for ``made_of`` to tell. Where there is
        no row, and was none, Delta commits nothing: then another commit says so.
        """
        if isinstance(rows, DataFrame) or self._change(table, rows=rows, gone=ALL, says=made_of) is None:
            self._write(table, self._made(table, rows), replace=True, made_of=made_of)
        if made_of is not None and self.made_of(table) != made_of:
            self.stamp(table, made_of)

    def merge(
        self,
        table: Table,
        rows: DataFrame,
        *,
        dates: Collection[date | None] | None,
        keys: Sequence[str] = (),
        delete_when: str | None = None,
        unless_same: bool = False,
        made_of: str | None = None,
    ) -> None:
        """Put rows in the place of those with their keys, and add those whose keys are not there, in one commit.

        ``dates`` are the event dates (None among them for rows without one) at which the table may hold rows with
        these keys: a row elsewhere is not found, and its file is not read; None: anywhere. ``keys`` are the table's
        own unless given; no two rows may share them. ``rows`` has the table's columns, event_date may be left out, and
        where ``delete_when`` names one more, boolean and never null: where it is true the table's row goes, and none
        is added. With ``unless_same`` a row that is there already is not written, be it by another run. Without any
        date it is an append; nothing is committed where no key is found or added.
        """
        if table.dated_by and dates is not None and not dates:
            added = rows if delete_when is None else rows.where(~F.col(delete_when)).drop(delete_when)
            self.append(table, added, made_of=made_of)
            return
        self.create(table)
        gone = F.lit(False) if delete_when is None else F.col(delete_when)  # noqa: FBT003
        marked = rows.withColumn(_GONE, gone)
        new = conform(table, marked.drop(delete_when) if delete_when else marked, more=(_GONE,))
        # mergeInto gives the table no alias: the names alone must tell which side is meant.
        values = {name: F.col(_NEW + name) for name in table.names}
        found = [f"{quoted(name)} = {quoted(_NEW + name)}" for name in keys or table.key]
        if table.dated_by:
            found.append(on_dates(dates))
        differs = F.lit(not unless_same)
        for name in table.names if unless_same else ():
            if name not in (RUN_ID, INGESTED_AT):
                differs |= ~F.col(name).eqNullSafe(values[name])
        with self._commit(table, made_of):
            (
                new.withColumnsRenamed({name: _NEW + name for name in table.names})
                .mergeInto(self.sql_name(table), F.expr(" AND ".join(found)))
                .whenMatched(F.col(_GONE)).delete()
                .whenMatched(differs).update(values)
                .whenNotMatched(~F.col(_GONE)).insert(values)
                .merge()
            )  # fmt: skip

    def with_keys(
        self, table: Table, values: Collection[str], *, dates: Collection[date | None] | None = None,
        column: str | None = None, columns: Sequence[str] = (),
    ) -> pa.Table:  # fmt: skip
        """Return the rows whose key, a single column, is one of these; ``dates`` as for ``merge``, None for all.

        ``column``: another column than the key; ``columns``: those that are read, all by default.
        """
        where = f"{quoted(column or table.key[0])} IN {{values}} AND {on_dates(dates)}"
        return self.select(table, where, columns, values=values)

    def select(self, table: Table, where: str, columns: Sequence[str] = (), /, **of: Names) -> pa.Table:
        """Return the rows of a table that meet a condition, in SQL as for ``query``, with the columns' declared types.

        ``columns``: those that are read, all by default.
        """
        names = columns or table.names
        if self._local is not None and self.exists(table):
            here = self._local.select(table, where, names, {name: values_of(given) for name, given in of.items()})
            if here is not None:
                return here
        found = self.query(f"SELECT {', '.join(map(quoted, names))} FROM {{rows}} WHERE {where}", rows=table, **of)
        return found.cast(part_of(schema_of(table), names))

    def put(
        self, table: Table, rows: pa.Table, there: pa.Table, *, dates: Collection[date | None],
        made_of: str | None = None, was_made_of: str | None = None,
    ) -> int:  # fmt: skip
        """Put rows in the place of those that are there, as far as they differ; return how many are written.

        For tables with one key column, and rows that fit in memory: two small commits at most cost a fraction of a
        MERGE. ``rows`` has the table's columns, those of the run (run_id, ingested_at) included, ``there`` at least
        all others, of all rows in whose place ``rows`` come; ``dates`` as for ``merge``. What goes is taken out by a
        commit that says ``was_made_of``, as the one before did: a run killed behind it is not believed to be done. In
        the end the table says ``made_of``, also where no row differed.
        """
        name = table.key[0]
        fresh, stale = differing(rows, there, name)
        if fresh or stale:
            chosen = rows.filter(one_of(rows, name, fresh))
            self.exchange(table, name, stale, chosen, dates=dates, made_of=made_of, was_made_of=was_made_of)
        if made_of is not None and self.made_of(table) != made_of:
            self.stamp(table, made_of)
        return len(fresh)

    def exchange(
        self, table: Table, column: str, gone: Collection[str], rows: pa.Table | Tasks, *,
        dates: Collection[date | None] | None, also: str | None = None, made_of: str | None = None,
        was_made_of: str | None = None,
    ) -> None:  # fmt: skip
        """Take out rows as ``remove`` does, and add others, in one commit where that is done here.

        Elsewhere these are two commits: the first one says ``was_made_of``.
        """
        conditions = [f"({quoted(column)} IN {{gone}} AND {on_dates(dates)})"] if gone else []
        conditions += [] if also is None else [f"({also})"]
        leaving = " OR ".join(conditions) or None
        if self._change(table, rows=rows, gone=leaving, of={"gone": gone}, says=made_of) is not None:
            return
        self.remove(table, column, gone, dates=dates, also=also, made_of=was_made_of)
        if isinstance(rows, Tasks) or rows.num_rows:
            self.append(table, rows, made_of=made_of)

    def _change(
        self, table: Table, *, rows: pa.Table | Tasks | None = None, gone: str | None = None,
        of: Mapping[str, Names] | None = None, says: str | None = None,
    ) -> Changed | None:  # fmt: skip
        """Add rows and take out others in one commit, where that is done here; None where Spark has to.

        ``gone``: a SQL condition of rows, in which names in braces stand for values of ``of``.
        """
        if self._local is None:
            return None
        self.create(table)
        values = {name: values_of(names) for name, names in (of or {}).items()}
        added = () if rows is None else self._local.write(self.spark, table, rows)
        with self._commit(table):
            return self._local.change(self.spark, table, added=added, gone=gone, of=values, says=says)

    def remove(
        self, table: Table, column: str, values: Collection[str] | DataFrame, *, dates: Collection[date | None] | None,
        also: str | None = None, made_of: str | None = None,
    ) -> None:  # fmt: skip
        """Take out the rows whose column has one of these values, and those of a further SQL condition, in one commit.

        ``values`` may be a frame of one column, no value twice. ``dates`` as for ``merge``. Without values and
        condition nothing happens, nor where there is no table.
        """
        if not self.exists(table):
            return
        with nullcontext() if made_of is None else self.saying(made_of):
            if isinstance(values, DataFrame) or (self._local is None and len(values) > MOST_NAMED):
                wanted = values.toDF(_KEY) if isinstance(values, DataFrame) else column_of(self.spark, values, _KEY)
                found = F.expr(f"{quoted(column)} = {_KEY} AND {on_dates(dates)}")
                with self._commit(table):
                    wanted.mergeInto(self.sql_name(table), found).whenMatched().delete().merge()
                values = ()
            conditions = [f"({quoted(column)} IN {{values}} AND {on_dates(dates)})"] if values else []
            conditions += [] if also is None else [f"({also})"]
            if conditions:
                self.delete(table, " OR ".join(conditions), values=values)

    def merge_into(
        self,
        table: Table,
        source: DataFrame,
        on: str,
        *,
        update: Mapping[str, str],
        delete: str,
    ) -> None:
        """Change the rows that a frame's rows meet, in one commit: delete some, set columns of others.

        ``on``, ``delete`` and the values of ``update`` are SQL over the columns of both sides, whose
        names must differ. No row of the table may be met twice; nothing happens where there is no table.
        """
        if not self.exists(table):
            return
        merge = source.mergeInto(self.sql_name(table), F.expr(on)).whenMatched(F.expr(delete)).delete()
        values = {column: F.expr(expression) for column, expression in update.items()}
        with self._commit(table):
            merge.whenMatched().update(values).merge()

    def update(
        self, table: Table, assignments: Mapping[str, str], condition: str, *, made_of: str | None = None, **of: Names
    ) -> None:
        """Set columns to SQL expressions in the rows that meet a condition, in one commit; without a row, none.

        Names in braces stand for values that a column may be ``IN``, or for one text.
        """
        if not self.exists(table):
            return
        if self._local is not None:
            values = ", ".join(assignments.get(name, quoted(name)) + f" AS {quoted(name)}" for name in table.names)
            found = self.query(f"SELECT {values} FROM {{rows}} WHERE {condition}", rows=table, **of)
            rows = found.cast(schema_of(table))
            if self._change(table, rows=rows, gone=condition, of=of, says=made_of) is not None:
                return
        to = ", ".join(f"{quoted(column)} = {expression}" for column, expression in assignments.items())
        spelled = f"SET {to} WHERE {condition}".format(**{name: listed(values) for name, values in of.items()})
        with self._commit(table, made_of):
            self.spark.sql(f"UPDATE {self.sql_name(table)} {spelled}")

    def delete(self, table: Table, condition: str, **of: Names) -> None:
        """Take out the rows that meet a SQL condition; nothing happens where there is no table or no such row.

        Names in braces stand for values that a column may be ``IN``.
        """
        if self.exists(table) and self._change(table, gone=condition, of=of) is None:
            spelled = condition.format(**{name: listed(values) for name, values in of.items()})
            with self._commit(table):
                # Delta's DELETE does not take named parameters.
                self.spark.sql(f"DELETE FROM {self.sql_name(table)} WHERE {spelled}")

    def version(self, table: Table) -> int | None:
        """The Delta version of the table as it is now, from 0; None when it does not exist."""
        newest = self._newest(table)
        return None if newest is None else newest.version

    def restore(self, table: Table, version: int | None) -> None:
        """Take back what was written after a version, by a commit of its own; None: after the table was made.

        The change feed then tells the way there and back.
        """
        wanted, there = version or 0, self.version(table)
        if there is not None and there != wanted:
            with self._commit(table):
                self.spark.sql(f"RESTORE TABLE {self.sql_name(table)} TO VERSION AS OF {wanted}")

    def newest(self, *tables: Table) -> dict[Table, Commit]:
        """The newest commit of each table, asked for side by side; tables that do not exist are left out."""
        found = gather({table: partial(self._newest, table) for table in tables})
        return {table: commit for table, commit in found.items() if commit is not None}

    def changes(self, table: Table, since: int, until: int | None = None) -> DataFrame:
        """The rows inserted, deleted and updated after a version, up to the newest or ``until``.

        With the table's columns come ``_change_type`` (insert, delete, update_preimage, update_postimage) and
        ``_commit_version``. A key can be there several times, once or twice (before, after) for each version that
        changed it. FeedError when there is no such version. That the feed was off, or what it needs is gone, shows
        when the frame is first used (``UNTOLD``).
        """
        newest = self.version(table) if until is None else until
        if newest is None or since > newest:
            raise FeedError(f"{table} has no version {since}: it is at {newest}")
        until = newest
        if since >= until:
            none = self._open(table).limit(0)
            return none.withColumns({"_change_type": F.lit(""), "_commit_version": F.lit(0).cast("bigint")})
        feed = self.spark.read.format("delta").option("readChangeFeed", "true")
        feed = feed.option("startingVersion", since + 1).option("endingVersion", until)
        rows = feed.table(self.sql_name(table)) if self.catalog is not None else feed.load(self.path(table))
        return rows.select(*table.names, *CHANGE)

    def begin_with(self, table: Table) -> None:
        """Make ready a table that another is made anew of: all of it is read, and from now on its changes.

        The change feed of one that was made without is turned on; it reaches back to this commit.
        """
        if not self.exists(table):
            return
        name = self.sql_name(table)
        detail = self.spark.sql(f"DESCRIBE DETAIL {name}").select("properties", "sizeInBytes").first()
        if detail is not None:
            codegen.expect(self.spark, detail["sizeInBytes"])
        if detail is None or detail["properties"].get("delta.enableChangeDataFeed") != "true":
            with self._commit(table):
                self.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")

    def rows_written(self, table: Table) -> int:
        """How many rows the table's last commit wrote, as it counted them."""
        newest = self._newest(table)
        return 0 if newest is None else newest.rows

    def made_of(self, table: Table) -> str | None:
        """What the table's last commit said it was computed from; None if it said nothing or there is no table."""
        newest = self._newest(table)
        return None if newest is None else newest.made_of

    def made(self, table: Table) -> dict[str, Any]:
        """What ``made_of`` tells, read as JSON; nothing when the last commit said nothing, or in other words."""
        return Commit(0, self.made_of(table)).made()

    def versions(self, *tables: Table) -> str:
        """The Delta versions of tables, as a text that changes when one of them does."""
        return " ".join(f"{table}={self.version(table)}" for table in tables)

    def fill(
        self, table: Table, rows: DataFrame | pa.Table, *, dates: Collection[date | None], made_of: str | None = None,
    ) -> None:  # fmt: skip
        """Set columns in the rows of some keys, in one commit; ``dates`` as for ``merge``.

        ``rows`` has the table's key, a single column, no key twice, and the columns to be set; keys that are not there
        are passed over. What rows held before stays in older versions until VACUUM.
        """
        (key,) = table.key
        if self.is_here and isinstance(rows, pa.Table):
            keys = rows[key].to_pylist()
            now = self.with_keys(table, keys, dates=dates)
            places = pc.index_in(now[key], rows[key].combine_chunks())
            for name in rows.column_names:
                now = now.set_column(table.names.index(name), name, rows[name].take(places))
            leaving = f"{quoted(key)} IN {{keys}} AND {on_dates(dates)}"
            if self._change(table, rows=now, gone=leaving, of={"keys": keys}, says=made_of) is not None:
                return
        rows = rows if isinstance(rows, DataFrame) else frame(self.spark, rows)
        renamed = rows.withColumnsRenamed({name: _NEW + name for name in rows.columns})
        found = F.expr(f"{quoted(key)} = {quoted(_NEW + key)} AND {on_dates(dates)}")
        values = {name: F.col(_NEW + name) for name in rows.columns if name != key}
        with self._commit(table, made_of):
            renamed.mergeInto(self.sql_name(table), found).whenMatched().update(values).merge()

    def stamp(self, table: Table, made_of: str) -> None:
        """Say what the table's rows are made of, by a commit that changes none."""
        self.create(table)
        if self._change(table, says=made_of) is not None:
            return
        with self._commit(table, made_of):
            self.spark.sql(f"ALTER TABLE {self.sql_name(table)} SET TBLPROPERTIES ('made_of' = {literal(made_of)})")

    def purge(self, table: Table, made_of: str | None) -> None:
        """Write the table's files without the rows that are gone, and its log so that older entries are not needed.

        No row changes. The last commit says ``made_of``, as the one before did.
        """
        name = self.sql_name(table)
        # Stamps leave what they said in the table's properties, where it outlives the commit.
        said = "" if made_of is None else f", 'made_of' = {literal(made_of)}"
        unsaid = ", 'made_of'" if made_of is None else ""
        steps = [
            f"REORG TABLE {name} APPLY (PURGE)",
            f"ALTER TABLE {name} SET TBLPROPERTIES ('{_CHECKPOINTS}' = '1'{said})",
            f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ('{_CHECKPOINTS}'{unsaid})",
        ]
        for step in steps:
            with self._commit(table, made_of):
                self.spark.sql(step)

    def vacuum(self, table: Table) -> None:
        """Remove all files that the table's newest version does not need: no other can be read from then on.

        Only for who holds the lake, for files that another run is about to commit would go too.
        """
        self._check()
        with having(self.spark, _VACUUMS):
            self.spark.sql(f"VACUUM {self.sql_name(table)} RETAIN 0 HOURS")

    def location(self, table: Table) -> str:
        """Return the URI of the table's folder."""
        row = self.spark.sql(f"DESCRIBE DETAIL {self.sql_name(table)}").select("location").first()
        return "" if row is None else str(row[0])

    def said(self, table: Table, since: int) -> dict[int, str | None]:
        """What each commit after a version said that it was made of."""
        newest = self.version(table)
        if newest is None or newest <= since:
            return {}
        return {commit.version: commit.made_of for commit in self._history(table).since(since, newest)}

    def _open(self, table: Table) -> DataFrame:
        if self.catalog is not None:
            return self.spark.read.table(self.sql_name(table))
        return self.spark.read.format("delta").load(self.path(table))

    def _write(self, table: Table, df: DataFrame, *, replace: bool, made_of: str | None = None) -> None:
        rows, is_new = conform(table, df), not self.exists(table)
        self.create(table)
        writer = rows.write.format("delta").mode("append").option("compression", "zstd")
        if replace and not is_new:  # a plain overwrite takes the clustering away, replacing all rows does not
            writer = writer.mode("overwrite").option("replaceWhere", "true")
        if made_of is not None:
            writer = writer.option("userMetadata", made_of)
        with self._commit(table):
            if self.catalog is not None:
                writer.saveAsTable(self.sql_name(table))
            else:
                writer.save(self.path(table))

    @contextmanager
    def _commit(self, table: Table, made_of: str | None = None) -> Iterator[None]:
        """Make a commit within, if the lake may still be written, and have it say what it was made of."""
        self._check()
        try:
            with nullcontext() if made_of is None else self.saying(made_of):
                yield
        finally:
            if self._commits is not None:
                self._commits.pop(str(table), None)

    def _newest(self, table: Table) -> Commit | None:
        """The newest commit; None when there is no table."""
        if not self.exists(table):
            return None
        known = None if self._commits is None else self._commits.get(str(table))
        if known is None:
            known = self._history(table).newest()
            if self._commits is not None:
                self._commits[str(table)] = known
        return known

    def _history(self, table: Table) -> History:
        return History(self.spark, self.sql_name(table), self._log(table))

    def _pinned(self, table: Table) -> Pinned | None:
        """The table as it is now, if it is of few files that are known."""
        log = self._log(table)
        return None if log is None else self._pins.pinned(self.spark, log)

    def _log(self, table: Table) -> Path | None:
        """The folder of the table's log; None in a catalog, and a path that is not there for an object store."""
        return None if self.catalog is not None else Path(self.path(table)) / "_delta_log"


def beside(lake: Lake, steps: Mapping[Name, Callable[[Lake], Answer]]) -> dict[Name, Answer]:
    """Do steps that write different tables side by side, each on a lake ``apart``; what each returned, by its name."""
    if len(steps) < 2:
        return {name: step(lake) for name, step in steps.items()}

    def alone(step: Callable[[Lake], Answer]) -> Answer:
        with lake.apart() as other:
            return step(other)

    return gather({name: partial(alone, step) for name, step in steps.items()})
