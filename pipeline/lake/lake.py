"""The lake: creates, reads and writes the declared tables in Delta. The only module that writes them.

A lake is a folder with ``<layer>/<table>``, or a catalog with ``<prefix><layer>.<table>``. Its tables are stored by one
of two libraries (``TableStore``); which one is fixed when the lake is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipeline.lake.arrow_rows import is_in
from pipeline.lake.concurrency import Result, TaskName, run_concurrently
from pipeline.lake.date_filters import dates_condition
from pipeline.lake.engine.frames import arrow_to_frame, values_to_frame
from pipeline.lake.engine.sessions import LazySession, is_remote
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.errors import ConflictError, LakeNameError, SchemaError, StoreError
from pipeline.lake.lake_path import LakePath
from pipeline.lake.lake_record import choose_store, record_store
from pipeline.lake.local_paths import absolute_location
from pipeline.lake.queries.inputs import (
    MAX_BYTES_IN_MEMORY,
    MAX_ROWS_IN_MEMORY,
    ChangeFeedError,
    ChangesSince,
    FilteredTable,
    GroupedQuery,
    MemoryLimits,
    Parts,
    QueryInput,
    Values,
)
from pipeline.lake.schema_enforcement import (
    arrow_schema,
    changed_keys,
    conform_frame,
    conform_table,
    select_fields,
)
from pipeline.lake.storage.delta_rs import DeltaRsStore
from pipeline.lake.storage.delta_spark import SparkStore, query_tables, read_feed
from pipeline.lake.storage.store import (
    CommitNote,
    MergeOptions,
    RowsToWrite,
    Snapshot,
    StoreName,
    TablePlaces,
)
from pipeline.lake.watermarks import Watermark, read_watermarks, replace_versions, settle, watermark_rows
from pipeline.lake.writes import Append, Dates, ReplaceAll, ReplaceChanged, Write
from pipeline.text import is_utf8
from schemas.bronze import WATERMARKS
from schemas.catalog import ALL_TABLES
from schemas.table import Table, quoted

# What delta-rs does not take in the name of a folder: it takes the path for a URL, and decodes it twice.
_NOT_IN_FOLDERS: Final = re.compile(r"[#?\[\]\\^|\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")


def versions_by_name(snapshots: Mapping[Table, Snapshot], tables: Iterable[Table]) -> dict[str, int | None]:
    """Return the versions of tables by their names, None for a table that does not exist."""
    return {str(table): snapshots[table].version if table in snapshots else None for table in tables}


class Changers(NamedTuple):
    """Who changed a table since some version: this program, others. A log with gaps counts as others."""

    ours: bool
    others: bool


class Lake:
    """The declared tables in one place. A table is created when it is first written."""

    def __init__(
        self, session: SparkSession | LazySession, root: str, *, catalog: str | None = None, prefix: str = "",
        store: StoreName | None = None, overflow_folder: Path | None = None,
    ) -> None:  # fmt: skip
        """``root`` is a folder; with ``catalog`` the tables live there, and ``root`` holds only work files.

        ``store``: what stores the tables of a new lake; by default Spark in a catalog, behind Spark Connect and on
        Databricks, else delta-rs. StoreError if they are stored otherwise. LakeNameError for names that the store does
        not take, and for those that Spark would replace: it does so with ``${...}`` in SQL. ``overflow_folder``: where
        this process writes what does not fit in its memory; by default a private folder that it makes.
        """
        for name in filter(None, (root, catalog, prefix)):
            if "${" in name or not is_utf8(name):
                raise LakeNameError(f"{name!r}: Spark takes no name with ${{, or that is not UTF-8; rename the lake")
        self.session = session if isinstance(session, LazySession) else LazySession.of(session)
        self.root = absolute_location(root)
        self.folder = LakePath(self.root)
        self.catalog, self.prefix, self.overflow_folder = catalog, prefix, overflow_folder
        self._places = TablePlaces(self.root, catalog, prefix)
        default: StoreName = "delta-rs" if catalog is None and not is_remote(session) else "spark"
        self.store_name = choose_store(self.folder, wanted=store, default=default, in_catalog=catalog is not None)
        self.store: DeltaRsStore | SparkStore
        if self.store_name == "delta-rs":
            if found := _NOT_IN_FOLDERS.search(self.root):
                raise LakeNameError(f"{root!r}: delta-rs takes no folder with {found[0]!r} in its name; rename it")
            self.store = DeltaRsStore(self._places, self.session, overflow_folder)
        else:
            if self.folder.is_remote:
                raise StoreError(f"{self.root}: Spark needs a folder; set lake.store to delta-rs, without a catalog")
            self.store = SparkStore(self._places, self.session)
        self._seen: set[str] = set()  # tables known to exist: they do not go away under a run
        self._missing: set[str] = set()  # tables known not to exist, while nobody else creates any
        self._narrow: dict[str, Table] = {}  # of these, those made before some of their columns were declared
        self._check: Callable[[], None] = lambda: None  # asked before each commit: it raises where none may be
        self._commits: dict[str, Snapshot] | None = None  # the newest of each table, while nobody else makes any
        self._known: dict[str, int] = {}  # the version of each table that was read last, with exclusive access
        self._watermarks: dict[str, Watermark] = {}  # with exclusive access
        self._same: dict[tuple[str, int], int] = {}  # versions of tables, and later ones with the same rows
        self._provenance: str | None = None  # of commits that have none of their own

    @property
    def spark(self) -> SparkSession:
        """The Spark session; it starts when it is first used."""
        return self.session.spark

    @contextmanager
    def hold_exclusive_access(
        self, check: Callable[[], None], say: Callable[[str], object] = lambda _: None
    ) -> Iterator[None]:
        """Hold exclusive write access within the block. Cached table versions stay valid.

        ``check`` runs before every commit; it raises if the lease is lost. A commit is a ConflictError if somebody else
        has changed its table since its version was last read here. ``say`` takes a line on each table that somebody
        else has changed since the last run.
        """
        self._check, self._commits = check, {}
        self._missing.clear()
        self._known.clear()
        try:
            for table in list(self._narrow.values()):
                self.add_missing_columns(table)
            self._watermarks = self._read_watermarks()
            self._settle_tables(say)
            yield
            self.keep_watermarks()
        finally:
            self._commits = None

    def _settle_tables(self, say: Callable[[str], object]) -> None:
        """Read the newest version of every table, and what it was made of."""
        for table, snapshot in self.snapshots(*ALL_TABLES).items():
            mark = self._watermarks.get(str(table))
            if mark is not None and mark.version < snapshot.version and snapshot.is_foreign:
                say(f"{table}: somebody else changed it after version {mark.version} ({snapshot.operation})")

    def keep_watermarks(self) -> None:
        """Keep what each table is made of now, in ``bronze.watermarks``; only with exclusive access."""
        tables = [table for table in ALL_TABLES if str(table) in self._seen and table is not WATERMARKS]
        kept = {name: (mark.version, mark.provenance_json) for name, mark in self._watermarks.items()}
        found = {table: (now.version, now.provenance_json) for table, now in self.snapshots(*tables).items()}
        changed = [table for table, now in found.items() if now != kept.get(str(table))]
        if changed:
            counts = self._count_rows(changed)
            self._watermarks |= {str(table): Watermark(*found[table], counts[table]) for table in changed}
            self.replace(WATERMARKS, watermark_rows(self._watermarks))

    def note_same_versions(self, same: Mapping[Table, Iterable[int]]) -> None:
        """Note versions of tables that have the same rows as the newest ones: tables made of those are up to date."""
        for table, versions in same.items():
            newest = self.version(table)
            if newest is not None:
                self._same |= {(str(table), version): newest for version in versions if version != newest}

    def _read_watermarks(self) -> dict[str, Watermark]:
        return read_watermarks(self.select(WATERMARKS, "TRUE")) if self.exists(WATERMARKS) else {}

    def _count_rows(self, tables: Sequence[Table]) -> dict[Table, int]:
        """Return the number of rows of tables."""
        return run_concurrently({table: partial(self.store.count_rows, table) for table in tables})

    @contextmanager
    def with_own_session(self) -> Iterator[Lake]:
        """Yield the lake with a session of its own: concurrent steps do not see its settings and commit messages."""
        other = copy(self)
        with self.session.own() as other.session:
            other.store = self.store.with_session(other.session)
            yield other

    @contextmanager
    def commit_message(self, provenance: str) -> Iterator[None]:
        """Give all commits within the block that have none of their own this provenance; threads share it."""
        before, self._provenance = self._provenance, provenance
        try:
            yield
        finally:
            self._provenance = before

    def path(self, table: Table) -> str:
        """Return where the table is: its folder, or its full name in the catalog."""
        return self._places.path(table)

    def sql_name(self, table: Table) -> str:
        """Return the table's name for SQL, quoted."""
        return self._places.sql_name(table)

    # -- tables ----------------------------------------------------------------------------------------------------

    def exists(self, table: Table) -> bool:
        """Whether the table has been created."""
        if str(table) in self._seen:
            return True
        if self._commits is not None and str(table) in self._missing:
            return False
        stored = self.store.stored_columns(table)
        if stored is None:
            self._missing.add(str(table))
            return False
        self._seen.add(str(table))
        self._check_schema(table, stored)
        return True

    def _check_schema(self, table: Table, stored: Mapping[str, str]) -> None:
        """Compare a stored table with its declaration; a difference other than missing columns is a SchemaError.

        Missing columns are added; without exclusive access they read as null.
        """
        declared = {column.name: column.type.simpleString() for column in table.columns}
        unknown = sorted(stored.keys() - declared.keys())
        differs = [
            f"{name} is {kind}, not {declared[name]}"
            for name, kind in stored.items()
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
        if declared.keys() - stored.keys():
            self._narrow[str(table)] = table
            if self._commits is not None:
                self.add_missing_columns(table)

    def create(self, table: Table) -> None:
        """Create the table, empty, with its comments and a change feed, if it does not exist."""
        if not self.exists(table):
            record_store(self.folder, self.store_name)
            self.store.create(table)
            self._seen.add(str(table))

    def add_missing_columns(self, table: Table) -> None:
        """Add the declared columns that a table made by an earlier version does not have."""
        if not self.exists(table):
            return
        stored = self.store.stored_columns(table) or {}
        missing = [column for column in table.columns if column.name not in stored]
        if missing:
            with self._commit(table) as note:
                self.store.add_columns(table, missing, note)
        self._narrow.pop(str(table), None)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, table: Table) -> DataFrame:
        """Return the table's rows as a frame; an empty frame with the table's schema if it does not exist yet."""
        if not self.exists(table):
            return self.spark.createDataFrame([], table.struct()).limit(0)  # by the limit Spark knows it without asking
        return self.store.read(table)

    def query(self, sql: str, /, **of: QueryInput) -> pa.Table:
        """Return the answer to a SQL query whose inputs stand in it as names in braces.

        An input is a table, the rows of a table under a fixed condition (``FilteredTable``), the changes of a table
        (``ChangesSince``, with the columns of ``changes``), an Arrow table, or values for ``IN``: a collection of
        texts or numbers, or one text. The SQL is Spark's, as far as DuckDB knows it too; types of computed columns may
        differ, so cast where the type matters. ChangeFeedError where changes are not known.
        """
        return self.store.query(sql, self._existing(of))

    def frame(self, sql: str, /, **of: QueryInput) -> DataFrame:
        """Return Spark's answer to a query, as for ``query``, as a frame."""
        return query_tables(self.store, sql, self._existing(of))

    def query_at_most(self, sql: str, limit: int, /, **of: QueryInput) -> pa.Table | None:
        """Return the answer as ``query`` does; None where it has more rows, or more than ``MAX_BYTES_IN_MEMORY``."""
        return self.store.query_at_most(sql, self._existing(of), limit, MAX_BYTES_IN_MEMORY)

    @contextmanager
    def map_groups(self, query: GroupedQuery) -> Iterator[RowsToWrite]:
        """Yield what a function makes of the answers to queries: an Arrow table where they are few rows.

        Else tasks compute it when it is used within the block. Of rows that have the same values of the keys one call
        gets all: in memory it gets all rows there are, in tasks those of as many groups as it happens; so it may look
        at rows of several groups, but not compare them.
        """
        existing = {name: part._replace(inputs=self._existing(part.inputs)) for name, part in query.parts.items()}
        limits = MemoryLimits(MAX_ROWS_IN_MEMORY, MAX_BYTES_IN_MEMORY)
        with self.store.map_groups(query._replace(parts=existing), limits) as found:
            if isinstance(found, dict) or self.session.engine == "local":
                self.session.note_in_driver(query.function)
            yield pa.concat_tables(query.function(Parts(found))) if isinstance(found, dict) else found

    def map_few_groups(self, query: GroupedQuery) -> pa.Table:
        """Return the same as an Arrow table: what the function makes are few rows, however many it is made of."""
        with self.map_groups(query) as rows:
            return self.collect(rows, query.schema)

    def to_frame(self, rows: RowsToWrite, schema: StructType) -> DataFrame:
        """Return rows as a frame."""
        if isinstance(rows, PartitionedRows):
            return rows.frame(self.spark, schema)
        return arrow_to_frame(self.spark, rows) if isinstance(rows, pa.Table) else rows

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
        return rows if isinstance(rows, pa.Table) else rows.toArrow()

    def _existing(self, inputs: Mapping[str, QueryInput]) -> dict[str, QueryInput]:
        """Return the inputs of a query, with an empty Arrow table in the place of each table that does not exist."""
        found = dict(inputs)
        for name, source in inputs.items():
            if isinstance(source, Table) and not self.exists(source):
                found[name] = arrow_schema(source).empty_table()
            elif isinstance(source, FilteredTable) and not self.exists(source.table):
                found[name] = select_fields(arrow_schema(source.table), source.column_names).empty_table()
            elif isinstance(source, ChangesSince):
                _check_feed(*source)
        return found

    def select_by_values(
        self, table: Table, values: Collection[str], *, dates: Dates | None = None,
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
        found = self.query(f"SELECT {', '.join(map(quoted, names))} FROM {{rows}} WHERE {where}", rows=table, **of)
        return found.cast(select_fields(arrow_schema(table), names))

    def changes(self, table: Table, since: int, until: int | None = None) -> DataFrame:
        """Return the rows inserted, deleted and updated after a version, up to ``until`` or the newest, as a frame.

        It has the table's columns, ``_change_type`` (insert, delete, update_preimage, update_postimage) and
        ``_commit_version``. A key can occur several times: once or twice (before, after) for each version that
        changed it. ChangeFeedError when there is no such version. That the feed was off, or its files are gone, shows
        when the frame is first used (``CHANGE_FEED_ERRORS``).
        """
        return read_feed(self.store, *_check_feed(table, since, self.version(table) if until is None else until))

    def prepare_table_scan(self, table: Table) -> None:
        """Prepare Spark to read a table as a whole, for a recomputation."""
        if self.exists(table):
            self.session.expect_to_read(self.store.size(table))

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, table: Table, rows: RowsToWrite, *, provenance: str | None = None) -> None:
        """Add rows in one commit. They have the table's columns in any order; event_date may be left out."""
        conformed = _conformed(table, rows)
        self.create(table)
        with self._commit(table, provenance) as note:
            self.store.append(table, conformed, note)

    def replace(self, table: Table, rows: RowsToWrite, *, provenance: str | None = None) -> None:
        """Make these all rows of the table, in one commit; a frame may have been read from the table."""
        if not self.exists(table):
            self.append(table, rows, provenance=provenance)
            return
        conformed = _conformed(table, rows)
        with self._commit(table, provenance) as note:
            self.store.replace(table, conformed, note)

    def replace_by_query(self, table: Table, sql: str, /, *, provenance: str | None = None, **of: QueryInput) -> None:
        """Make the answer to a query, as for ``query``, all rows of the table, in one commit; it may ask the table."""
        with self.store.read_answer(sql, self._existing(of)) as rows:
            self.replace(table, rows, provenance=provenance)

    def merge(
        self, table: Table, rows: DataFrame, *, dates: Dates | None, keys: Sequence[str] = (),
        delete_when: str | None = None, unless_same: bool = False, provenance: str | None = None,
    ) -> None:  # fmt: skip
        """Upsert a frame's rows by key, in one commit.

        ``dates`` are the event dates (None among them for rows without one) at which the table may hold rows with
        these keys: files of other dates are not read; None: all dates. ``keys`` are the table's own by default; no
        two rows may share them. ``rows`` has the table's columns, event_date may be left out, and with
        ``delete_when`` one more, boolean and never null: where it is true the table's row is deleted. With
        ``unless_same`` rows that are equal apart from the run's columns are not written. Without any date it is an
        append.
        """
        if table.event_date_columns and dates is not None and not dates:
            added = rows if delete_when is None else rows.where(~F.col(delete_when)).drop(delete_when)
            self.append(table, added, provenance=provenance)
            return
        self.create(table)
        options = MergeOptions(keys or table.key, dates, delete_when, unless_same)
        with self._commit(table, provenance) as note:
            self.store.merge(table, rows, options, note)

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
        dates: Dates | None, provenance: str | None = None, previous_provenance: str | None = None,
    ) -> None:  # fmt: skip
        """Delete rows as ``delete_values`` does, and insert others, in one commit or in two.

        In delta-rs rows in memory replace those of the same keys in one commit. Of two the first keeps
        ``previous_provenance``.
        """
        self.create(table)
        if len(gone) > self.store.max_values:
            self.delete_values(table, column, gone, dates=dates, provenance=previous_provenance)
            gone = ()
        if not gone:
            if isinstance(rows, PartitionedRows) or rows.num_rows:
                self.append(table, rows, provenance=provenance)
            return
        with self._commit(table, provenance, previous_provenance) as note:
            self.store.delete_and_insert(table, _values_condition(column, dates), {"values": gone}, rows, note)

    def delete_values(
        self, table: Table, column: str, values: Collection[str] | DataFrame, *, dates: Dates | None,
        provenance: str | None = None,
    ) -> None:  # fmt: skip
        """Delete the rows whose column has one of these values, in one commit.

        ``values`` may be a frame of one column without duplicates. ``dates`` as for ``merge``. Nothing happens
        without values, or without a table.
        """
        if not self.exists(table):
            return
        if isinstance(values, DataFrame) or len(values) > self.store.max_values:
            wanted = values if isinstance(values, DataFrame) else values_to_frame(self.spark, values, "value")
            with self._commit(table, provenance) as note:
                self.store.delete_values(table, column, wanted, dates, note)
        elif values:
            with self._commit(table, provenance) as note:
                self.store.delete(table, _values_condition(column, dates), {"values": values}, note)

    def delete(self, table: Table, condition: str, **of: Values) -> None:
        """Delete the rows that meet a SQL condition; nothing happens where there is no table or no such row.

        Names in braces stand for values of an ``IN``.
        """
        if self.exists(table):
            with self._commit(table) as note:
                self.store.delete(table, condition, of, note)

    def update(
        self, table: Table, assignments: Mapping[str, str], condition: str, *, provenance: str | None = None,
        **of: Values,
    ) -> None:  # fmt: skip
        """Set columns to SQL expressions in the rows that meet a condition, in one commit; no commit without a row.

        Names in braces stand for values of an ``IN``, or for one text.
        """
        if self.exists(table):
            with self._commit(table, provenance) as note:
                self.store.update(table, assignments, condition, of, note)

    def update_columns(
        self, table: Table, rows: DataFrame | pa.Table, *, dates: Dates | None, deleted: str | None = None,
        provenance: str | None = None,
    ) -> None:  # fmt: skip
        """Set columns in the rows of some keys, in one commit; ``dates`` as for ``merge``.

        ``rows`` has the table's key, without duplicates, and the columns to set; keys that the table does not have are
        skipped. ``deleted`` names a boolean column of ``rows``, never null: where it is true the table's row is
        deleted. Old values stay in older versions until VACUUM.
        """
        if self.exists(table):
            with self._commit(table, provenance) as note:
                self.store.update_columns(table, rows, dates, deleted, note)

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

    def commit_provenance(self, table: Table, provenance: str) -> None:
        """Keep a new provenance in a commit that changes no row."""
        self.create(table)
        with self._commit(table, provenance) as note:
            self.store.commit_note(table, note)

    # -- versions --------------------------------------------------------------------------------------------------

    def version(self, table: Table) -> int | None:
        """Return the table's version, from 0; None when it does not exist."""
        newest = self.snapshot(table)
        return None if newest is None else newest.version

    def snapshot(self, table: Table) -> Snapshot | None:
        """Return the table as it is now: its version and provenance; None when there is no table."""
        if not self.exists(table):
            return None
        known = None if self._commits is None else self._commits.get(str(table))
        if known is None:
            known = self._read_snapshot(table)
            if self._commits is not None:
                self._commits[str(table)] = known
                self._known[str(table)] = known.version
        return self._with_later_versions(known)

    def _with_later_versions(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot whose provenance names the newest versions with the same rows, as far as they are known."""
        return snapshot._replace(provenance_json=replace_versions(snapshot.provenance_json, self._same))

    def _read_snapshot(self, table: Table) -> Snapshot:
        """Return the newest commit of a table, with the provenance of its rows, whoever made the commit."""
        newest, name = self.store.snapshot(table), str(table)
        if table is WATERMARKS:
            return newest
        exclusive = self._commits is not None
        if newest.is_ours and not exclusive:
            return newest
        mark = (self._watermarks if exclusive else self._read_watermarks()).get(name)
        if mark is not None and mark.version == newest.version:
            return newest._replace(provenance_json=mark.provenance_json)
        if newest.is_ours:
            return newest
        commits = self.store.snapshots_since(table, -1 if mark is None else mark.version)
        settled = settle(newest, mark, commits, lambda: self._count_rows([table])[table])
        if exclusive:
            if settled.foreign is not None and name in self._known:
                raise _conflict(table, settled.foreign)
            self._same |= {(name, version): newest.version for version in settled.same_versions}
        return settled.snapshot

    def snapshots(self, *tables: Table) -> dict[Table, Snapshot]:
        """Return the snapshot of each table, read concurrently; tables that do not exist are left out."""
        found = run_concurrently({table: partial(self.snapshot, table) for table in tables})
        # Only now it is known of each of them which earlier versions have the same rows.
        return {table: self._with_later_versions(commit) for table, commit in found.items() if commit is not None}

    def count_rows_written(self, table: Table) -> int:
        """Return how many rows the table's last commit wrote."""
        newest = self.snapshot(table)
        return 0 if newest is None else newest.rows_written

    def provenance_json(self, table: Table) -> str | None:
        """Return the provenance in the table's last commit as text; None if it has none, or there is no table."""
        newest = self.snapshot(table)
        return None if newest is None else newest.provenance_json

    def provenance(self, table: Table) -> dict[str, Any]:
        """Return the provenance in the table's last commit; empty if it has none, or no JSON."""
        return Snapshot(0, self.provenance_json(table)).provenance()

    def provenance_since(self, table: Table, since: int) -> dict[int, str | None]:
        """Return the provenance of each commit after a version, by version; maintenance is left out."""
        newest = self.version(table)
        if newest is None or newest <= since:
            return {}
        commits = self.store.snapshots_since(table, since)
        return {commit.version: commit.provenance_json for commit in commits if not commit.is_maintenance}

    def versions_text(self, *tables: Table) -> str:
        """Return the Delta versions of tables as one text, which changes when one of them does."""
        return " ".join(f"{table}={self.version(table)}" for table in tables)

    # -- maintenance -----------------------------------------------------------------------------------------------

    def restore(self, table: Table, version: int | None) -> None:
        """Restore a table to a version, by a commit of its own; None: to the empty table.

        The change feed has the changes there and back. RestoreError where the version's files or log are gone.
        """
        wanted, there = version or 0, self.version(table)
        if there is not None and there != wanted:
            with self._commit(table) as note:
                self.store.restore(table, wanted, note)

    def changed_since(self, table: Table, version: int | None) -> Changers:
        """Return who changed a table after a version; None: after it was made."""
        since, newest = version or 0, self.version(table)
        if newest is None or newest <= since:
            return Changers(ours=False, others=False)
        commits = self.store.snapshots_since(table, since)
        return Changers(
            ours=any(commit.is_ours for commit in commits),
            others=len(commits) < newest - since or any(commit.is_foreign for commit in commits),
        )

    def purge(self, table: Table, provenance: str | None) -> None:
        """Rewrite the table's files without deleted rows, and its log so that older entries are not needed.

        No row changes. The last commit has this provenance, as the one before.
        """
        with self._commit(table, provenance) as note:
            self.store.purge(table, note)

    def vacuum(self, table: Table) -> None:
        """Delete all files that the newest version does not need: no older version can be read from then on.

        Only with exclusive access: files that another run is about to commit would be deleted too.
        """
        self._check()
        self.store.vacuum(table)

    def maintain(self, table: Table, retain: timedelta) -> None:
        """Join small files, and delete those that no version younger than ``retain`` needs. No row changes.

        Only with exclusive access, like ``vacuum``.
        """
        with self._commit(table) as note:
            self.store.maintain(table, int(retain / timedelta(hours=1)), note)

    def location(self, table: Table) -> str:
        """Return the URI of the table's folder."""
        return self.store.location(table)

    def _check_commit(self, table: Table, known: int | None) -> None:
        """Raise where no commit may be made: the lease is lost, or somebody else changed the table.

        ``known`` is the version that was read last.
        """
        self._check()
        if known is None or self.store.snapshot(table).version == known:
            return
        foreign = next((each for each in self.store.snapshots_since(table, known) if each.is_foreign), None)
        if foreign is not None:
            raise _conflict(table, foreign)

    @contextmanager
    def _commit(
        self, table: Table, provenance: str | None = None, previous_provenance: str | None = None
    ) -> Iterator[CommitNote]:
        """Yield what is to be said of the commits within the block; the lease is checked before each of them."""
        now, before = (self._provenance if each is None else each for each in (provenance, previous_provenance))
        try:
            yield CommitNote(now, partial(self._check_commit, table, self._known.get(str(table))), before)
        finally:
            if self._commits is not None:
                self._commits.pop(str(table), None)


def _conflict(table: Table, foreign: Snapshot) -> ConflictError:
    what = f"version {foreign.version}, {foreign.operation}"
    return ConflictError(f"{table}: somebody else changed it while this run worked ({what})")


def _check_feed(table: Table, since: int, until: int | None) -> ChangesSince:
    """Return the changes between two versions; ChangeFeedError if there is no such version."""
    if until is None or since > until:
        raise ChangeFeedError(f"{table} has no version {since}: it is at {until}")
    return ChangesSince(table, since, until)


def _conformed(table: Table, rows: RowsToWrite) -> Any:  # noqa: ANN401 - the kind of rows that was given
    """Return rows with exactly the table's columns, in order; SchemaError for others. Tasks check their own rows."""
    if isinstance(rows, PartitionedRows):
        return rows
    return conform_frame(table, rows) if isinstance(rows, DataFrame) else conform_table(table, rows)


def _values_condition(column: str, dates: Dates | None) -> str:
    """Return the SQL condition of the rows on some dates that have one of ``{values}`` in a column."""
    return f"{quoted(column)} IN {{values}} AND {dates_condition(dates)}"


def run_in_parallel(lake: Lake, steps: Mapping[TaskName, Callable[[Lake], Result]]) -> dict[TaskName, Result]:
    """Run steps that write different tables concurrently, each with its own session; return each result by its name."""
    if len(steps) < 2:
        return {name: step(lake) for name, step in steps.items()}

    def alone(step: Callable[[Lake], Result]) -> Result:
        with lake.with_own_session() as other:
            return step(other)

    return run_concurrently({name: partial(alone, step) for name, step in steps.items()})
