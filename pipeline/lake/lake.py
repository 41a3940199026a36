"""The lake: reads and writes the declared tables in Delta. The only module through which they change.

A lake is a folder with ``<layer>/<table>``, or a catalog with ``<prefix><layer>.<table>``. It joins what its parts do:
a store commits (``storage``), a log tells versions (``versions``), queries are answered (``queries.answer``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.arrow_rows import distinct_texts, is_in
from pipeline.concurrency import run_concurrently
from pipeline.lake.change import (
    EVERY_ROW,
    Change,
    CommitNote,
    MakeChange,
    RowsGone,
    RowsToWrite,
    leaving_columns,
)
from pipeline.lake.date_filters import Dates, dates_condition
from pipeline.lake.engine.collect import collect, stream
from pipeline.lake.engine.frames import arrow_to_frame, files_to_frame
from pipeline.lake.engine.sessions import LazySession, is_remote_session, own_session
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.errors import LakeNameError, StoreError
from pipeline.lake.lake_path import LakePath, absolute_location
from pipeline.lake.lake_record import choose_store, read_layouts, record_layouts, record_store
from pipeline.lake.queries.answer import Answers
from pipeline.lake.queries.duckdb_sql import DuckDbSql
from pipeline.lake.queries.held_rows import HeldRows
from pipeline.lake.queries.inputs import (
    MAX_BYTES_IN_MEMORY,
    MAX_COLUMN_ROWS_IN_MEMORY,
    MAX_ROWS_IN_MEMORY,
    ChangesSince,
    GroupedQuery,
    MemoryLimits,
    QueryAnswers,
    QueryInput,
    RowsOfDates,
    Values,
)
from pipeline.lake.run_notes import RunNote, UnfinishedRuns, run_rows
from pipeline.lake.schema_enforcement import changed_keys, conform_frame, conform_table, select_fields
from pipeline.lake.storage.catalog_log import CatalogFileLog
from pipeline.lake.storage.delta_rs import DeltaRsStore
from pipeline.lake.storage.delta_spark import SparkStore
from pipeline.lake.storage.file_log import FileLog
from pipeline.lake.storage.log import NO_PROVENANCE, TableCommit, TableLocations, TableLog
from pipeline.lake.storage.retention import Retention, read_retention
from pipeline.lake.storage.spark_log import SparkLog
from pipeline.lake.storage.store import StoreName, TableStore
from pipeline.lake.versions import Versions
from pipeline.lake.watermarks import (
    WITHOUT_WATERMARK,
    Announced,
    Watermark,
    Watermarks,
    read_watermarks,
    watermark_rows,
)
from pipeline.settings import LakeConfig, LakeReadLog
from pipeline.text import is_utf8
from schemas.bronze import RUNS, WATERMARKS
from schemas.catalog import ALL_TABLES
from schemas.table import EVENT_DATE, RUN_ID, Table, quoted
from udfs.columns.arrays import one_array

# What delta-rs does not take in the name of a folder: it takes the path for a URL, and decodes it twice.
_NOT_IN_FOLDERS: Final = re.compile(r"[#?\[\]\\^|\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")


class Lake:
    """The declared tables in one place. A table is created when it is first written."""

    def __init__(
        self, session: SparkSession | LazySession, root: str, *, catalog: str | None = None, prefix: str = "",
        store: StoreName | None = None, read_log: LakeReadLog = LakeConfig.read_log, trusts_versions: bool = False,
        overflow_folder: Path | None = None,
    ) -> None:  # fmt: skip
        """``root`` is a folder; with ``catalog`` the tables live there, and ``root`` holds only work files.

        ``store``: what stores the tables of a new lake; by default Spark in a catalog, behind Spark Connect and on
        Databricks, else delta-rs. StoreError if they are stored otherwise. LakeNameError for names that the store does
        not take, and for those that Spark would replace: it does so with ``${...}`` in SQL. ``read_log``: whether this
        process reads the logs of tables itself, or asks Spark. ``trusts_versions``: where Spark is asked, tables that a
        run does not read are as the last run left them, and who only reads gets the rows of the first time.
        ``overflow_folder``: where this process writes what does not fit in its memory; by default a private folder that
        it makes.
        """
        for name in filter(None, (root, catalog, prefix)):
            if "${" in name or not is_utf8(name):
                raise LakeNameError(f"{name!r}: Spark takes no name with ${{, or that is not UTF-8; rename the lake")
        self.session = session if isinstance(session, LazySession) else LazySession.of(session)
        self.root = absolute_location(root)
        self.folder = LakePath(self.root)
        self.catalog, self.prefix, self.overflow_folder = catalog, prefix, overflow_folder
        self.locations = TableLocations(self.root, catalog, prefix)
        default: StoreName = "delta-rs" if catalog is None and not is_remote_session(session) else "spark"
        self.store_name = choose_store(self.folder, wanted=store, default=default, in_catalog=catalog is not None)
        sql = DuckDbSql(overflow_folder)
        self._log: TableLog
        self._store: TableStore
        if self.store_name == "delta-rs":
            if found := _NOT_IN_FOLDERS.search(self.root):
                raise LakeNameError(f"{root!r}: delta-rs takes no folder with {found[0]!r} in its name; rename it")
            self._log = file_log = FileLog(self.locations)
            self._store = DeltaRsStore(file_log, self.session, sql)
        else:
            if self.folder.is_remote:
                raise StoreError(f"{self.root}: Spark needs a folder; set lake.store to delta-rs, without a catalog")
            self._log = self._log_of_spark(read_log)
            self._store = SparkStore(self.locations, self.session)
        trusts = trusts_versions and isinstance(self._log, SparkLog)
        self.versions = Versions(self._log, self.root, self._read_watermarks, self._count_rows, trusts_versions=trusts)
        self._held = HeldRows()
        self._unfinished = UnfinishedRuns(self.folder)
        self._has_changed = False  # a table that is made of something, by the run that holds exclusive access
        self._announcing = Lock()
        self._answers = Answers(self.locations, self._log, self.versions, self.session, sql, self._held)

    def _log_of_spark(self, read_log: LakeReadLog) -> TableLog:
        """Return what reads the logs of tables that Spark stores."""
        is_reached = self.is_in_own_spark and (self.catalog is not None or not _NOT_IN_FOLDERS.search(self.root))
        if read_log == "spark" or (read_log == "auto" and not is_reached):
            return SparkLog(self.locations, self.session)
        return FileLog(self.locations) if self.catalog is None else CatalogFileLog(self.locations, self.session)

    @property
    def is_in_own_spark(self) -> bool:
        """Whether Spark runs in this process, and all commits are in folders: those of other catalogs may not be."""
        return not is_remote_session(self.session) and self.catalog in (None, "spark_catalog")

    @property
    def spark(self) -> SparkSession:
        """The Spark session; it starts when it is first used."""
        return self.session.spark

    def start_spark_soon(self) -> None:
        """Let Spark start beside what this thread does next, where it computes or stores the tables."""
        if self.session.engine == "spark" or self.store_name == "spark":
            self.session.start_soon()

    @contextmanager
    def hold_exclusive_access(
        self, check: Callable[[], None], say: Callable[[str], object] = lambda _: None, run: RunNote | None = None
    ) -> Iterator[None]:
        """Hold exclusive write access within the block. Cached table versions stay valid.

        ``check`` runs before every commit; it raises if the lease is lost. A commit is a ConflictError if somebody else
        has changed its table since its version was last read here. ``say`` takes a line on each table that somebody
        else has changed since the last run. ``run`` is added to ``bronze.runs`` in the end, if it has changed a table.
        """
        for table in WITHOUT_WATERMARK:
            self._held.drop(table)
        self._answers.forget_files()
        self._has_changed = False
        with self.versions.hold(check, is_unfinished=self._unfinished.begin(run)):
            for table in list(self.versions.narrow.values()):
                self.add_missing_columns(table)
            for table, snapshot in self._data_commits().items():
                mark = self.versions.watermarks.ends.get(str(table))
                if mark is not None and mark.version < snapshot.version and snapshot.is_foreign:
                    say(f"{table}: somebody else changed it after version {mark.version} ({snapshot.operation})")
            self._add_unfinished_runs()
            try:
                yield
                self.keep_watermarks()
                if run is not None and self._has_changed:
                    self.append(RUNS, run_rows([{**run.begun, **run.ended(None)}]))
            except BaseException as error:
                self._unfinished.note_end(error, check)
                raise
            self._unfinished.remove()

    def trust_watermarks(self) -> None:
        """Take tables to be as the last run left them, for who only reads: where Spark is asked, look-ups take long.

        Not while a run is at work, and not after one that did not get to its end.
        """
        if not self._unfinished.is_any():
            self.versions.trust_watermarks()

    def _add_unfinished_runs(self) -> None:
        """Add the runs that did not get to their end to ``bronze.runs``, unless only the end of their note is missing.

        A run after them may have been killed between its commit and that.
        """
        if others := self._unfinished.others:
            there = self.select_by_values(RUNS, [row[RUN_ID] for row in others], columns=[RUN_ID])[RUN_ID].to_pylist()
            if missing := [row for row in others if row[RUN_ID] not in there]:
                self.append(RUNS, run_rows(missing))
            self._unfinished.forget_others()

    def keep_watermarks(self) -> None:
        """Keep what each table is made of now, in ``bronze.watermarks``; only with exclusive access."""
        marks = self.versions.watermarks.ends
        found = {table: (now.version, now.provenance_json) for table, now in self._data_commits().items()}
        changed = {table: now for table, now in found.items() if marks.get(str(table), (None,))[:2] != now}
        if changed:
            count = {table: partial(self._row_count, table, version) for table, (version, _) in changed.items()}
            counts = run_concurrently(count)
            marks |= {str(table): Watermark(*now, counts[table]) for table, now in changed.items()}
            self._has_changed |= not self.versions.committed.isdisjoint(map(str, changed))
            self.versions.watermarks.forget_announced()
            self.replace(WATERMARKS, watermark_rows(self.versions.watermarks))

    def _data_commits(self) -> dict[Table, TableCommit]:
        """Return the snapshots of all tables that watermarks tell of."""
        return self.versions.newest_commits(*(table for table in ALL_TABLES if table not in WITHOUT_WATERMARK))

    def _read_watermarks(self) -> Watermarks:
        rows = self.select(WATERMARKS, "TRUE") if self.exists(WATERMARKS) else WATERMARKS.schema().empty_table()
        return read_watermarks(rows)

    def _announce(self, table: Table, provenance: str | None, operation: str, evidence: str) -> None:
        """Keep in ``bronze.watermarks`` what the next commit of another table is going to be."""
        if table in WITHOUT_WATERMARK:
            return
        with self._announcing:
            watermarks, version = self.versions.kept_watermarks(), self.version(table)
            commit = Announced(-1 if version is None else version, operation, evidence, provenance or NO_PROVENANCE)
            watermarks.announce(str(table), commit._replace(version=commit.version + 1))
            self.replace(WATERMARKS, watermark_rows(watermarks))

    def _count_rows(self, table: Table) -> int:
        return self._answers.count_rows(table)

    def _row_count(self, table: Table, version: int) -> int:
        """Return how many rows a table has; they are counted unless its watermark has the same version."""
        mark = self.versions.watermarks.ends.get(str(table))
        return mark.row_count if mark is not None and mark.version == version else self._count_rows(table)

    def path(self, table: Table) -> str:
        """Return where the table is: its folder, or its full name in the catalog."""
        return self.locations.path(table)

    def sql_name(self, table: Table) -> str:
        """Return the table's name for SQL, quoted."""
        return self.locations.sql_name(table)

    # -- tables ----------------------------------------------------------------------------------------------------

    def exists(self, table: Table) -> bool:
        """Whether the table has been created."""
        found = self.versions.exists(table)
        if found and self.versions.is_exclusive and str(table) in self.versions.narrow:
            self.add_missing_columns(table)
        return found

    def create(self, table: Table) -> None:
        """Create the table, empty, with its comments and a change feed, if it does not exist.

        Only where no rows follow: the first commit of rows creates it too, in less time.
        """
        if not self.exists(table):
            record_store(self.folder, self.store_name)
            self._store.create(table)
            self.versions.note_commit(table, None)

    def add_missing_columns(self, table: Table) -> None:
        """Add the declared columns that a table made by an earlier version does not have."""
        self.versions.narrow.pop(str(table), None)
        if not self.versions.exists(table):
            return
        stored = self._log.columns(table) or {}
        if missing := [column for column in table.columns if column.name not in stored]:
            with self._commit(table) as note:
                self._store.add_columns(table, missing, note)
            self.versions.narrow.pop(str(table), None)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, table: Table) -> DataFrame:
        """Return the table's rows as a frame; an empty frame with the table's schema if it does not exist yet."""
        if not self.exists(table):
            return self.spark.createDataFrame([], table.struct()).limit(0)  # by the limit Spark knows it without asking
        if self.versions.is_exclusive:
            self.versions.version_to_read(table)
        rows = self._log.files(table)
        return self._answers.stored_frame(table) if rows is None else files_to_frame(self.spark, rows, table.struct())

    def query(self, sql: str, /, **of: QueryInput) -> pa.Table:
        """Return the answer to a SQL query whose inputs stand in it as names in braces.

        An input is a table, the rows of a table under a fixed condition (``FilteredTable``), the changes of a table
        (``ChangesSince``, with the columns of ``changes``), an Arrow table, or values for ``IN``: a collection of
        texts or numbers, or one text. The SQL is Spark's, as far as DuckDB knows it too; types of computed columns may
        differ, so cast where the type matters. ChangeFeedError where changes are not known.
        """
        return self._answers.query(sql, of)

    @contextmanager
    def read_batches(self, sql: str, /, **of: QueryInput) -> Iterator[Iterable[pa.RecordBatch]]:
        """Yield the answer to a query, as for ``query``, in batches that are computed as they are read."""
        with self._answers.read_answer(sql, of) as rows:
            yield rows if isinstance(rows, pa.RecordBatchReader) else stream(rows)

    def query_shared(self, sql: str, /, **of: Table | ChangesSince) -> pa.Table:
        """Return the answer as ``query`` does, to what several steps of a run ask: it stays in memory for them.

        It is asked again when one of the tables has another version, or for changes between other versions.
        """
        return self._answers.query_shared(sql, of)

    def frame(self, sql: str, /, **of: QueryInput) -> DataFrame:
        """Return Spark's answer to a query, as for ``query``, as a frame."""
        return self._answers.frame(sql, of)

    def query_at_most(self, sql: str, limit: int, /, **of: QueryInput) -> pa.Table | None:
        """Return the answer as ``query`` does; None where it has more rows, or more than ``MAX_BYTES_IN_MEMORY``."""
        return self._answers.query_at_most(sql, of, limit, MAX_BYTES_IN_MEMORY)

    @contextmanager
    def map_groups(self, query: GroupedQuery) -> Iterator[RowsToWrite]:
        """Yield what a function makes of the answers to queries: an Arrow table where they are few rows.

        Else tasks compute it when it is used within the block. Of rows that have the same values of the keys one call
        gets all: in memory it gets all rows there are, in tasks those of as many groups as it happens; so it may look
        at rows of several groups, but not compare them.
        """
        rows = MAX_COLUMN_ROWS_IN_MEMORY if query.as_columns else MAX_ROWS_IN_MEMORY
        with self._answers.map_groups(query, MemoryLimits(rows, MAX_BYTES_IN_MEMORY)) as found:
            if isinstance(found, dict) or self.session.engine == "local":
                self.session.note_in_driver(query.function)
            yield pa.concat_tables(query.function(QueryAnswers(found))) if isinstance(found, dict) else found

    def map_few_groups(self, query: GroupedQuery) -> pa.Table:
        """Return the same as an Arrow table: what the function makes are few rows, however many it is made of."""
        with self.map_groups(query) as rows:
            return self.collect(rows, query.schema)

    def concat(self, rows: RowsToWrite, more: pa.Table) -> RowsToWrite:
        """Return rows and a few more."""
        if isinstance(rows, PartitionedRows):
            return rows.followed_by(more)
        if isinstance(rows, pa.Table):
            return pa.concat_tables([rows, more])
        return rows.unionByName(arrow_to_frame(self.spark, more))

    def collect(self, rows: RowsToWrite, schema: StructType) -> pa.Table:
        """Return rows as an Arrow table."""
        if isinstance(rows, PartitionedRows):
            return rows.table(self.session, schema)
        return rows if isinstance(rows, pa.Table) else collect(rows)

    def select_by_values(
        self, table: Table, values: Values, *, dates: Dates | None = None,
        column: str | None = None, columns: Sequence[str] = (),
    ) -> pa.Table:  # fmt: skip
        """Return the rows whose key, a single column, is one of these; ``dates`` as for ``merge``, None for all.

        ``column``: another column than the key; ``columns``: those that are read, all by default.
        """
        return self.select(table, f"{quoted(column or table.key[0])} IN {{values}}", columns, dates, values=values)

    def select(
        self, table: Table, where: str, columns: Sequence[str] = (), dates: Dates | None = None, /, **of: QueryInput
    ) -> pa.Table:
        """Return the rows that meet a SQL condition, as for ``query``, with the declared types of the columns.

        ``columns``: those that are read, all by default; ``dates`` as for ``RowsOfDates``.
        """
        names, rows = columns or table.names, RowsOfDates(table, dates)
        found = self.query(f"SELECT {', '.join(map(quoted, names))} FROM {{rows}} WHERE {where}", rows=rows, **of)
        return found.cast(select_fields(table.schema(), names))

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, table: Table, rows: RowsToWrite, *, provenance: str | None = None) -> None:
        """Add rows in one commit. They have the table's columns in any order; event_date may be left out."""
        self._change(table, Change(rows), provenance)

    def replace(
        self, table: Table, rows: RowsToWrite, *, of: str | None = None, provenance: str | None = None,
        previous_provenance: str | None = None,
    ) -> None:  # fmt: skip
        """Make these all rows of the table, in one commit; a frame may have been read from the table.

        ``of``: all that meet a SQL condition; of many rows in a folder in two commits, as for ``delete_and_insert``.
        """
        gone = EVERY_ROW if of is None else self._gone(table, of, {})
        self._change(table, Change(rows, gone if self.exists(table) else None), provenance, previous_provenance)

    def replace_by_query(self, table: Table, sql: str, /, *, provenance: str | None = None, **of: QueryInput) -> None:
        """Make the answer to a query, as for ``query``, all rows of the table, in one commit; it may ask the table."""
        with self._read_answer(sql, of) as rows:
            self.replace(table, rows, provenance=provenance)

    @contextmanager
    def _read_answer(self, sql: str, of: Mapping[str, QueryInput]) -> Iterator[RowsToWrite]:
        """Yield the answer to a query as rows to be written, never all in memory: what Spark stores it computes too."""
        if self.store_name == "spark":
            with own_session(self.spark) as spark:
                yield self._answers.with_session(spark).frame(sql, of)
            return
        with self._answers.read_answer(sql, of) as rows:
            yield rows

    def replace_changed(
        self, table: Table, rows: pa.Table, there: pa.Table, *, dates: Dates,
        provenance: str | None = None, previous_provenance: str | None = None,
    ) -> int:  # fmt: skip
        """Replace the rows that differ from those in the table; return how many are written.

        For tables with one key column, and rows that fit in memory. ``rows`` has the table's columns, those of the run
        included; ``there`` at least all others, of all rows that ``rows`` replace; ``dates`` as for ``merge``. A
        commit that only deletes keeps ``previous_provenance``, so that a run killed after it is not taken for
        complete. In the end the table has ``provenance``, also where no row differs.
        """
        name = table.key[0]
        fresh, stale = changed_keys(rows, there, name)
        if len(fresh) or len(stale):
            chosen, gone = rows.filter(is_in(rows, name, fresh)), there.filter(is_in(there, name, stale))
            self.delete_and_insert(
                table, name, gone, chosen, dates=dates, provenance=provenance, previous_provenance=previous_provenance
            )
        if provenance is not None:
            self.note_provenance(table, provenance)
        return len(fresh)

    def delete_and_insert(
        self, table: Table, column: str, gone: Values | pa.Table, rows: pa.Table | PartitionedRows, *,
        dates: Dates | None, provenance: str | None = None, previous_provenance: str | None = None,
    ) -> None:  # fmt: skip
        """Delete rows as ``delete_values`` does, and insert others, in one commit; of many rows in a folder in two.

        Of two the first keeps ``previous_provenance``. ``gone`` may be the rows that leave, where these are known: with
        ``leaving_columns``, and a single key as the column.
        """
        found: RowsGone | None = None
        if isinstance(gone, pa.Table) and gone.num_rows:
            columns = leaving_columns(table)
            leaving = gone.select(columns).cast(select_fields(table.schema(), columns))
            compared = [name for name in columns if name in (column, EVENT_DATE)]
            values = {"values": distinct_texts(gone[column])}
            found = RowsGone(_values_condition(column, dates), values, compared, lambda: leaving)
        elif not isinstance(gone, pa.Table) and len(gone):
            found = self._gone(table, _values_condition(column, dates), {"values": gone}, dates)
        self._change(table, Change(rows, found), provenance, previous_provenance)

    def delete_values(
        self, table: Table, column: str, values: Values, *, dates: Dates | None,
        provenance: str | None = None,
    ) -> None:  # fmt: skip
        """Delete the rows whose column has one of these values, in one commit; ``dates`` as for ``replace_changed``.

        Nothing happens without values, or without a table.
        """
        if len(values):
            self._delete(table, _values_condition(column, dates), {"values": values}, provenance, dates)

    def delete(self, table: Table, condition: str, **of: Values) -> None:
        """Delete the rows that meet a SQL condition; nothing happens where there is no table or no such row.

        Names in braces stand for values of an ``IN``.
        """
        self._delete(table, condition, of, None)

    def _delete(
        self, table: Table, condition: str, of: Mapping[str, Values], provenance: str | None, dates: Dates | None = None
    ) -> None:
        if self.exists(table):
            nothing = table.schema().empty_table()
            self._change(table, Change(nothing, self._gone(table, condition, of, dates)), provenance)

    def update(
        self, table: Table, assignments: Mapping[str, str], condition: str, *, provenance: str | None = None,
        **of: Values,
    ) -> None:  # fmt: skip
        """Set columns to SQL expressions in the rows that meet a condition, in one commit; no commit without a row.

        Names in braces stand for values of an ``IN``, or for one text.
        """
        columns = ", ".join(f"{assignments.get(name, quoted(name))} AS {quoted(name)}" for name in table.names)
        rows_sql = f"SELECT {columns} FROM {{_table}} WHERE {condition}"
        self._replace_by_query(table, rows_sql, {**of, "_table": table}, condition, of, provenance)

    def update_columns(
        self, table: Table, rows: DataFrame | pa.Table, *, dates: Dates | None, deleted: str | None = None,
        provenance: str | None = None,
    ) -> None:  # fmt: skip
        """Set columns in the rows of some keys, in one commit; ``dates`` as for ``replace_changed``.

        ``rows`` has the table's key, a single column, without duplicates, and the columns to set; keys that the table
        does not have are skipped. ``deleted`` names a boolean column of ``rows``, never null: where it is true the
        table's row is deleted. Old values stay in older versions until VACUUM.
        """
        rows, (key,) = collect(rows) if isinstance(rows, DataFrame) else rows, table.key
        new = {*rows.column_names} - {key, deleted}
        columns = ", ".join(f"{'s' if name in new else 't'}.{quoted(name)} AS {quoted(name)}" for name in table.names)
        where = f" WHERE NOT s.{quoted(deleted)}" if deleted else ""
        same = f"t.{quoted(key)} = s.{quoted(key)}"
        sql = f"SELECT {columns} FROM {{_table}} AS t JOIN {{_rows}} AS s ON {same}{where}"
        gone = {"values": one_array(rows[key])}
        if rows.num_rows:
            inputs = {"_table": RowsOfDates(table, dates), "_rows": rows}
            self._replace_by_query(table, sql, inputs, _values_condition(key, dates), gone, provenance, dates)

    def _replace_by_query(
        self, table: Table, sql: str, inputs: Mapping[str, QueryInput], condition: str, values: Mapping[str, Values],
        provenance: str | None, dates: Dates | None = None,
    ) -> None:  # fmt: skip
        """Replace the rows that meet a condition by the answer to a query, which has the table's columns."""
        if not self.exists(table):
            return
        gone = self._gone(table, condition, values, dates)
        with ExitStack() as stack:

            def make() -> Change:
                few = self._answers.query_at_most(sql, inputs, MAX_ROWS_IN_MEMORY, MAX_BYTES_IN_MEMORY)
                if few is not None:
                    return Change(few.cast(table.schema()), gone)
                return Change(stack.enter_context(self._read_answer(sql, inputs)), gone)

            self._change(table, make, provenance, self.versions.provenance_json(table))

    def note_provenance(self, table: Table, provenance: str) -> None:
        """Note what a table rests on now, though no row changes; a table that does not exist is created.

        No commit tells it: ``bronze.watermarks`` keeps it at the end of the run. A run that is killed before does the
        work again.
        """
        self.create(table)
        self.versions.note_provenance(table, provenance)

    def _gone(self, table: Table, condition: str, values: Mapping[str, Values], dates: Dates | None = None) -> RowsGone:
        """Return the rows of a table that meet a condition; ``dates``: all that such rows have, where that is known."""
        plain = [field.name for field in table.schema() if not pa.types.is_nested(field.type)]
        compared = [name for name in plain if name in table.key or name == EVENT_DATE or name in condition]
        columns = [*dict.fromkeys((*compared, *table.event_date_columns))]
        sql = f"SELECT DISTINCT {', '.join(map(quoted, columns))} FROM {{_table}} WHERE {condition}"

        def find() -> pa.Table:
            found = self._answers.query(sql, {**values, "_table": RowsOfDates(table, dates)})
            return found.cast(select_fields(table.schema(), columns))

        return RowsGone(condition, values, compared, find)

    def _change(
        self, table: Table, change: Change | MakeChange, provenance: str | None = None,
        previous_provenance: str | None = None,
    ) -> None:  # fmt: skip
        """Change the rows of a table; rows of it that are in memory change likewise."""
        is_new = not self.exists(table)
        if is_new:
            record_store(self.folder, self.store_name)
            self.versions.note_created(table)
        if not isinstance(change, Change) and self.store_name == "spark":
            change = change()
        before: pa.Table | None = None
        if isinstance(change, Change):
            change = change._replace(rows=self._conformed(table, change.rows))
            if is_new:
                before = table.schema().empty_table()
            elif isinstance(change.rows, pa.Table) and self._log.files(table) is None:
                before = self._held.known(table, self.versions.version_to_read(table))
        with self._commit(table, provenance, previous_provenance) as note:
            made = self._store.commit(table, change, note, is_new=is_new)
        made = self.versions.note_commit(table, made)
        if made is None and provenance is not None:  # no row changed, or more was written than is known here
            self.versions.note_provenance(table, provenance)
        if made is not None and before is not None and isinstance(change, Change):
            self._held.put(table, made.version, self._changed(before, change))

    def _changed(self, before: pa.Table, change: Change) -> pa.Table:
        """Return rows in memory as a change leaves them."""
        if isinstance(change.gone, RowsGone):
            condition, values, *_ = change.gone
            sql = f"SELECT * FROM {{_rows}} WHERE ({condition}) IS NOT TRUE"
            before = self._answers.query(sql, {**values, "_rows": before}).cast(before.schema)
        return change.rows if change.gone is EVERY_ROW else pa.concat_tables([before, change.rows])

    def _conformed(self, table: Table, rows: RowsToWrite) -> RowsToWrite:
        """Return rows with exactly the table's columns, in order; SchemaError for others. Tasks check their own."""
        if isinstance(rows, PartitionedRows):
            if self.store_name != "spark" or not (rows.fits_in_driver or self.session.engine == "local"):
                return rows
            batches = [*rows.read_in_driver()]  # Spark takes few rows from here sooner than from a task
            rows = pa.Table.from_batches(batches) if batches else table.schema().empty_table()
        if isinstance(rows, DataFrame):
            return conform_frame(table, rows)
        return conform_table(table, rows) if isinstance(rows, pa.Table) else rows

    @contextmanager
    def _commit(
        self, table: Table, provenance: str | None = None, previous_provenance: str | None = None
    ) -> Iterator[CommitNote]:
        """Yield what is to be said of the commits within the block; the lease is checked before each of them."""
        if self.versions.is_exclusive and table not in WITHOUT_WATERMARK:
            self._unfinished.note_commit()
        try:
            check, announce = partial(self.versions.check_commit, table), partial(self._announce, table, provenance)
            yield CommitNote(provenance, check, announce, previous_provenance)
        finally:
            self.versions.note_commit(table, None)

    # -- versions --------------------------------------------------------------------------------------------------

    def version(self, table: Table) -> int | None:
        """Return the table's version, from 0; None when it does not exist."""
        return self.versions.version(table)

    # -- maintenance -----------------------------------------------------------------------------------------------

    def restore(self, table: Table, version: int | None) -> None:
        """Restore a table to a version, by a commit of its own; None: to the empty table.

        The change feed has the changes there and back. RestoreError where the version's files or log are gone.
        """
        there = self.version(table)
        if there is None or there == version:
            return
        if version is None:
            self.replace(table, table.schema().empty_table())
            return
        with self._commit(table) as note:
            self._store.restore(table, version, note)

    def purge(self, table: Table, provenance: str | None) -> None:
        """Rewrite the table's files without deleted rows, and its log so that older entries are not needed.

        No row changes. The last commit has this provenance, as the one before.
        """
        with self._commit(table, provenance) as note:
            self._store.purge(table, note)
        if provenance is not None:  # not every session lets the commit say it
            self.versions.note_provenance(table, provenance)

    @property
    def owns_files(self) -> bool:
        """Whether the tables' files and logs are this program's to remove; else they are the catalog's."""
        return self.catalog in (None, "spark_catalog")

    def rewrite(self, table: Table, provenance: str | None) -> None:
        """Write the files again that hold deleted rows. No row changes; the provenance stays."""
        with self._commit(table, provenance) as note:
            self._store.rewrite(table, note)

    def vacuum_expired(self, table: Table) -> None:
        """Delete the files that no version within the table's own retention needs; only with exclusive access."""
        self.versions.check_commit(table)
        self._store.vacuum_expired(table)

    def retention(self, table: Table) -> Retention:
        """Return how long the table keeps what its newest version does not need; StoreError if that is not clear."""
        return read_retention(self._log.properties(table))

    def oldest_version(self, table: Table) -> int:
        """Return the oldest version of which the table's log has an entry."""
        return self._log.commits_since(table, -1)[0].version

    def vacuum(self, table: Table) -> None:
        """Delete all files that the newest version does not need: no older version can be read from then on.

        Only with exclusive access: files that another run is about to commit would be deleted too.
        """
        self.versions.check_commit(table)
        self._store.vacuum(table)

    def maintain(self, table: Table, retain: timedelta) -> None:
        """Join small files, and delete those that no version younger than ``retain`` needs. No row changes.

        A table of a lake that an earlier version made is laid out as this one declares it, once.
        Only with exclusive access, like ``vacuum``.
        """
        with self._commit(table, self.versions.provenance_json(table)) as note:
            layouts = read_layouts(self.folder)
            if table.layout and layouts.get(str(table)) != [*table.layout]:
                self._store.set_layout(table, note)
                record_layouts(self.folder, {**layouts, str(table): [*table.layout]})
            self._store.maintain(table, int(retain / timedelta(hours=1)), note)

    def location(self, table: Table) -> str:
        """Return the URI of the table's folder."""
        return self._log.location(table)


def _values_condition(column: str, dates: Dates | None) -> str:
    """Return the SQL condition of the rows on some dates that have one of ``{values}`` in a column."""
    return f"{quoted(column)} IN {{values}} AND {dates_condition(dates)}"
