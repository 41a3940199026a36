"""Tables in folders, stored by delta-rs: no Java, and no Spark but for rows that Spark's tasks compute.

New rows are files, which this process or the tasks write (``data_files``), and one commit of them. Changed and deleted
rows are one merge: it writes their files again, and its change feed has these rows alone. Which rows these are is found
in SQL (``duckdb_sql``) and handed to the merge as a table of keys: no value stands in a condition as text.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from deltalake import (
    BloomFilterProperties,
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    Field,
    Schema,
    WriterProperties,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.table import TableMerger
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from pipeline.lake.date_filters import dates_condition
from pipeline.lake.engine.frames import arrow_to_frame, change_feed, read_parquet_files, write_parquet_folder
from pipeline.lake.engine.groups import answer_groups
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.engine.tasks import MAX_DRIVER_BYTES, PartitionedRows
from pipeline.lake.errors import ConflictError, RestoreError
from pipeline.lake.lake_path import LakePath, parquet_dataset
from pipeline.lake.queries.duckdb_sql import DataFiles, DuckDbSql, Given, quoted
from pipeline.lake.queries.inputs import (
    CHANGE_COLUMNS,
    MAX_ROWS_IN_MEMORY,
    ChangeFeedError,
    ChangesSince,
    FilteredTable,
    GroupedQuery,
    MemoryLimits,
    QueryInput,
    Values,
    values_array,
)
from pipeline.lake.schema_enforcement import (
    arrow_schema,
    columns_with_statistics,
    conform_frame,
    conform_table,
    select_fields,
)
from pipeline.lake.storage.data_files import MAX_FILE_BYTES, DataFile, max_file_rows, write_data_files
from pipeline.lake.storage.merge_conditions import at_dates, near_times, same_value, values_of_source
from pipeline.lake.storage.parquet import (
    BLOOM_ERROR_RATE,
    LOOKED_UP_COLUMNS,
    MAX_ROW_GROUP_ROWS,
    MAX_ROW_GROUP_ROWS_WITH_BYTES,
    STUB_COLUMNS,
)
from pipeline.lake.storage.store import (
    CommitNote,
    MergeOptions,
    RowsToWrite,
    Snapshot,
    StoreName,
    TablePlaces,
)
from pipeline.lake.writes import Dates
from schemas.table import EVENT_DATE, INGESTED_AT, RUN_ID, Column, Table
from udfs.files.filesystems import s3_endpoint_and_region, split_s3_uri
from udfs.prefetch import prefetch

_ALL_COLUMNS: Final = re.compile(r"(SELECT|DISTINCT|\.|,)\s*\*")  # in a query; count(*) names none
_TRIES: Final = 5  # of a commit that others come before
_MAX_SHARED_BYTES: Final = 64 << 20  # of rows that are kept for several queries (``FilteredTable``)
_DELETED: Final = "_deleted"
_ROWS_WRITTEN: Final = "rowsWritten"  # in a commit's metadata, beside the provenance
_PROVENANCE: Final = "userMetadata"  # as Delta names it
_BLOOM_FILTER: Final = BloomFilterProperties(True, BLOOM_ERROR_RATE, MAX_ROW_GROUP_ROWS)  # noqa: FBT003
_COLUMN_PROPERTIES: Final = {
    **dict.fromkeys(STUB_COLUMNS, ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")),
    **dict.fromkeys(LOOKED_UP_COLUMNS, ColumnProperties(bloom_filter_properties=_BLOOM_FILTER)),
}
_FILE_COLUMNS: Final = (  # of ``DataFile``
    StructType()
    .add("name", StringType())
    .add("size", LongType())
    .add("row_count", LongType())
    .add("statistics_json", StringType())
)
_CHANGE_FIELDS: Final = (pa.field(CHANGE_COLUMNS[0], pa.string()), pa.field(CHANGE_COLUMNS[1], pa.int64()))


class _SharedRows(NamedTuple):
    """The rows of a table that several queries ask for; None where they are too many for memory.

    ``state``: the table's ``identity`` (``_OpenTable``) and version.
    """

    state: tuple[tuple[int, ...], int]
    rows: pa.Table | None


class _OpenTable(NamedTuple):
    """A table that was read before: its log is read on. Another table made in its folder has another ``identity``."""

    delta: DeltaTable
    identity: tuple[int, ...]


class DeltaRsStore:
    """The tables below a folder."""

    name: StoreName = "delta-rs"
    max_values = sys.maxsize

    def __init__(self, places: TablePlaces, session: LazySession, overflow_folder: Path | None = None) -> None:
        self._places, self.session = places, session
        self._sql = DuckDbSql(overflow_folder)
        self._known: dict[LakePath, _OpenTable] = {}
        self._locks: dict[LakePath, RLock] = {}
        self._lock = Lock()
        self._shared: dict[FilteredTable, _SharedRows] = {}
        self._shared_lock = Lock()

    def with_session(self, session: LazySession) -> DeltaRsStore:
        """Return the same store for another session."""
        other = copy(self)
        other.session = session
        return other

    # -- tables ----------------------------------------------------------------------------------------------------

    def stored_columns(self, table: Table) -> Mapping[str, str] | None:
        """Return the types of the stored columns by name; None when there is no table."""
        folder = self._folder(table)
        if not folder.is_remote and not (folder / "_delta_log").is_folder():
            return None
        try:
            with self._newest(table) as delta:
                schema = StructType.fromJson(json.loads(delta.schema().to_json()))
        except TableNotFoundError:
            return None
        return {field.name: field.dataType.simpleString() for field in schema.fields}

    def create(self, table: Table) -> None:
        """Create a table with a change feed, without deletion vectors, which few readers know, and not clustered."""
        folder = self._folder(table)
        if not folder.is_remote:
            folder.make_folder()
        DeltaTable.create(
            _uri(folder), Schema.from_json(table.struct().json()), mode="ignore", description=table.comment,
            storage_options=_storage_options(folder),
            configuration={
                "delta.enableChangeDataFeed": "true",
                "delta.dataSkippingStatsColumns": ",".join(columns_with_statistics(table)),
                "delta.targetFileSize": str(MAX_FILE_BYTES),
            },
        )  # fmt: skip

    def add_columns(self, table: Table, columns: Sequence[Column], note: CommitNote) -> None:
        """Add columns to a table."""
        fields = StructType([column.field() for column in columns])
        new: list[Field] = Schema.from_json(fields.json()).fields
        self._retry(table, note, lambda delta: delta.alter.add_columns(new, commit_properties=_properties(note)))

    @contextmanager
    def _newest(self, table: Table) -> Iterator[DeltaTable]:
        """Yield a table's newest version, which no other thread uses meanwhile; TableNotFoundError without a table."""
        folder = self._folder(table)
        with self._lock:
            lock = self._locks.setdefault(folder, RLock())
        with lock:
            known, identity = self._known.get(folder), _identity(folder)
            if known is None or known.identity != identity:
                known = self._known[folder] = _OpenTable(_open(folder), identity)
            else:
                known.delta.update_incremental()
            yield known.delta

    # -- versions --------------------------------------------------------------------------------------------------

    def snapshot(self, table: Table) -> Snapshot:
        """Return the newest commit."""
        with self._newest(table) as delta:
            return _snapshot(delta.history(1)[0])

    def snapshots_since(self, table: Table, version: int) -> list[Snapshot]:
        """Return the commits after a version that the log still has, the oldest first."""
        with self._newest(table) as delta:
            commits = map(_snapshot, delta.history(max(delta.version() - version, 1)))
            return sorted((commit for commit in commits if commit.version > version), key=lambda each: each.version)

    def size(self, table: Table) -> int:
        """Return the size of a table's files, in bytes."""
        with self._newest(table) as delta:
            return sum(pa.table(delta.get_add_actions())["size_bytes"].to_pylist())

    def count_rows(self, table: Table) -> int:
        """Return the number of a table's rows: the log has that of each file, unless somebody else left it out."""
        with self._newest(table) as delta:
            counts = pa.table(delta.get_add_actions())["num_records"]
        if counts.null_count:
            return int(self.query("SELECT count(*) FROM {rows}", {"rows": table}).column(0)[0].as_py())
        return pc.sum(counts).as_py() or 0

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, table: Table) -> DataFrame:
        """Return a table's rows as a frame over its files, which Spark reads without asking Delta for them."""
        with self._newest(table) as delta:
            sizes = self._sizes(delta, table)
        if not sizes:
            return self.session.spark.createDataFrame([], table.struct()).limit(0)  # of which Spark knows the size
        return read_parquet_files(self.session.spark, sizes, table.struct())

    def read_changes(self, table: Table, since: int, until: int) -> DataFrame:
        """Return what changed after a version, up to a later one."""
        folder = self._folder(table)
        if folder.is_remote:
            return arrow_to_frame(self.session.spark, self._changes(ChangesSince(table, since, until), "*"))
        rows = change_feed(self.session.spark, since, until).load(folder.location)
        return rows.select(*table.names, *CHANGE_COLUMNS)

    def query(self, sql: str, inputs: Mapping[str, QueryInput]) -> pa.Table:
        """Return the answer to a query."""
        return self._sql.answer(sql, self._all_given(sql, inputs))

    def query_at_most(
        self, sql: str, inputs: Mapping[str, QueryInput], max_rows: int, max_bytes: int
    ) -> pa.Table | None:
        """Return the answer to a query; None where it has more rows or bytes."""
        return self._sql.answer_at_most(sql, self._all_given(sql, inputs), max_rows, max_bytes)

    @contextmanager
    def read_answer(self, sql: str, inputs: Mapping[str, QueryInput]) -> Iterator[PartitionedRows]:
        """Yield the answer to a query, which is computed as it is written."""
        with self._sql.read_answer(sql, self._all_given(sql, inputs)) as batches:
            yield PartitionedRows(1, 0, lambda _: batches)

    @contextmanager
    def map_groups(self, query: GroupedQuery, limits: MemoryLimits) -> Iterator[dict[str, pa.Table] | PartitionedRows]:
        """Yield the answers to the queries where they are few, else what the function makes of groups in tasks."""
        folder = LakePath(self._places.root) / "_runs" / f".groups-{uuid4().hex}"
        parts = {name: (part.sql, self._all_given(*part)) for name, part in query.parts.items()}
        try:
            yield answer_groups(self._sql, parts, query, limits, folder)
        finally:
            folder.remove_folder()

    def _all_given(self, sql: str, inputs: Mapping[str, QueryInput]) -> dict[str, Given]:
        return {name: self._given(sql, source) for name, source in inputs.items()}

    def _given(self, sql: str, source: QueryInput) -> Given:
        """Return what a name in a query stands for."""
        if isinstance(source, Table):
            return self._files(source)
        if isinstance(source, FilteredTable):
            return self._filtered(source)
        if isinstance(source, ChangesSince):
            return self._changes(source, sql)
        return source if isinstance(source, pa.Table) else values_array(source)

    def _filtered(self, source: FilteredTable) -> Given:
        """Return the rows of a table that meet a condition: shared ones as they were read for the first query."""
        with self._newest(source.table) as delta:
            state = self._known[self._folder(source.table)].identity, delta.version()
            files = self._data_files(delta, source.table)
        schema = select_fields(files.schema, source.column_names)
        given = files._replace(schema=schema, where=source.where)
        if not source.is_shared:
            return given
        with self._shared_lock:
            known = self._shared.get(source)
            if known is None or known.state != state:
                limits = MAX_ROWS_IN_MEMORY, _MAX_SHARED_BYTES
                rows = self._sql.answer_at_most("SELECT * FROM {rows}", {"rows": given}, *limits)
                known = _SharedRows(state, None if rows is None else rows.cast(schema))
                self._shared[source] = known
        return given if known.rows is None else known.rows

    def _files(self, table: Table) -> DataFiles:
        with self._newest(table) as delta:
            return self._data_files(delta, table)

    def _data_files(self, delta: DeltaTable, table: Table) -> DataFiles:
        return DataFiles(arrow_schema(table), list(self._sizes(delta, table)))

    def _sizes(self, delta: DeltaTable, table: Table) -> dict[LakePath, int]:
        """Return the data files of a version, and their bytes."""
        files, folder = pa.table(delta.get_add_actions()), self._folder(table)
        names = (folder / unquote(name) for name in files["path"].to_pylist())
        return dict(zip(names, files["size_bytes"].to_pylist(), strict=True))

    def _changes(self, source: ChangesSince, sql: str) -> pa.Table:
        """Return the change feed that a query asks for, without columns that the query does not name."""
        table, since, until = source
        takes_all = sql == "*" or _ALL_COLUMNS.search(sql) is not None
        columns = [field for field in arrow_schema(table) if takes_all or field.name in sql]
        schema = pa.schema([*columns, *_CHANGE_FIELDS])
        if since >= until:
            return schema.empty_table()
        try:
            with self._newest(table) as delta:
                feed = pa.RecordBatchReader.from_stream(delta.load_cdf(since + 1, until, columns=schema.names))
            return feed.read_all().select(schema.names).cast(schema)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise ChangeFeedError(f"{table}: what changed after version {since} is not known: {error}") from error

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, table: Table, rows: RowsToWrite, note: CommitNote) -> None:
        """Add rows."""
        self._commit_files(table, self._write(table, rows), "append", note)

    def replace(self, table: Table, rows: RowsToWrite, note: CommitNote) -> None:
        """Make these all rows of a table."""
        self._commit_files(table, self._write(table, rows), "overwrite", note)

    def commit_note(self, table: Table, note: CommitNote) -> None:
        """Commit a note alone."""
        self._commit_files(table, (), "append", note)

    def delete(self, table: Table, condition: str, values: Mapping[str, Values], note: CommitNote) -> None:
        """Delete the rows that meet a condition."""
        self._replace_rows(table, condition, values, arrow_schema(table).empty_table(), note)

    def delete_and_insert(
        self, table: Table, condition: str, values: Mapping[str, Values], rows: pa.Table | PartitionedRows,
        note: CommitNote,
    ) -> None:  # fmt: skip
        """Delete and add rows. Rows in memory that have the keys of deleted ones replace these in the same commit.

        The others are added by a second commit, so the first one has the previous provenance. A merge would write them
        into the files of the rows that it changes: each run would write those of the run before again.
        """
        if isinstance(rows, PartitionedRows) and not rows.fits_in_driver:
            files = self._write(table, rows)
            self.delete(table, condition, values, note._replace(provenance=note.previous_provenance))
            self._commit_files(table, files, "append", note)
            return
        batches = list(rows.read_in_driver() if isinstance(rows, PartitionedRows) else rows.to_batches())
        added = conform_table(table, pa.Table.from_batches(batches)) if batches else arrow_schema(table).empty_table()
        self._replace_rows(table, condition, values, added, note)

    def _replace_rows(
        self, table: Table, condition: str, values: Mapping[str, Values], added: pa.Table, note: CommitNote
    ) -> None:
        """Delete the rows that meet a condition, and add others."""
        self._retry(table, note, lambda delta: self._replace_in(delta, table, condition, values, added, note))

    def _replace_in(
        self, delta: DeltaTable, table: Table, condition: str, values: Mapping[str, Values], added: pa.Table,
        note: CommitNote,
    ) -> None:  # fmt: skip
        """Delete the rows of a version that meet a condition, and add others.

        Of the rows to delete their key is taken, and the columns that the condition names: whatever else has the same
        values meets the condition too. Lists and the like, which a merge does not compare, are left to the key.
        """
        plain = [field.name for field in arrow_schema(table) if not pa.types.is_nested(field.type)]
        names = [name for name in plain if name in table.key or name == EVENT_DATE or name in condition]
        columns = [*dict.fromkeys((*names, *table.event_date_columns))]
        deleted = self._select(delta, table, f"DISTINCT {', '.join(map(quoted, columns))}", condition, values)
        deleted = deleted.cast(select_fields(arrow_schema(table), columns))
        changed, new = _split_by_key(added, deleted, table.key)
        if deleted.num_rows:
            source = pa.concat_tables(
                [_marked(deleted, is_deleted=True), _marked(changed, is_deleted=False)], promote_options="default"
            )
            found = [f"s.{_DELETED}", *(same_value(name, can_be_null=bool(deleted[name].null_count)) for name in names)]
            if EVENT_DATE in names:
                found += at_dates(table, set(deleted[EVENT_DATE].to_pylist()))
            found += near_times(table, deleted)
            first = note._replace(provenance=note.previous_provenance) if new.num_rows else note
            merger = _merger(table, delta, found, source, first, changed.num_rows)
            merger.when_matched_delete().when_not_matched_insert(
                values_of_source(table.names), predicate=f"NOT s.{_DELETED}"
            ).execute()
        if new.num_rows:
            note.check()
            self._add_files(delta, self._write(table, new), "append", note, changed.num_rows)

    def _select(
        self, delta: DeltaTable, table: Table, columns: str, condition: str, values: Mapping[str, Values]
    ) -> pa.Table:
        """Return columns, in SQL, of the rows of a version that meet a condition."""
        given: dict[str, Given] = {name: values_array(found) for name, found in values.items()}
        files = self._data_files(delta, table)
        return self._sql.answer(f"SELECT {columns} FROM {{rows}} WHERE {condition}", {**given, "rows": files})

    def delete_values(
        self, table: Table, column: str, values: DataFrame, dates: Dates | None, note: CommitNote
    ) -> None:
        """Delete the rows whose column has a value of a frame of one column."""
        wanted = values.toArrow().column(0).combine_chunks().drop_null()
        condition = f"{quoted(column)} IN {{values}} AND {dates_condition(dates)}"
        self.delete(table, condition, {"values": wanted.to_pylist()}, note)

    def update(
        self, table: Table, assignments: Mapping[str, str], condition: str, values: Mapping[str, Values],
        note: CommitNote,
    ) -> None:  # fmt: skip
        """Set columns to expressions in the rows that meet a condition."""
        selected = ", ".join(f"{assignments.get(name, quoted(name))} AS {quoted(name)}" for name in table.names)

        def change(delta: DeltaTable) -> None:
            rows = self._select(delta, table, selected, condition, values).cast(arrow_schema(table))
            if rows.num_rows:
                self._replace_in(delta, table, condition, values, rows, note)

        self._retry(table, note, change)

    def update_columns(
        self, table: Table, rows: DataFrame | pa.Table, dates: Dates | None, deleted: str | None, note: CommitNote
    ) -> None:
        """Set columns in the rows that have the keys of others, or delete them."""
        with self._staged(rows) as source:
            columns = values_of_source([name for name in source.schema.names if name not in (*table.key, deleted)])
            count = source.count_rows()
            if not count:
                return

            def change(delta: DeltaTable) -> None:
                found = self._matching(table, delta, source, table.key, dates)
                merger = _merger(table, delta, found, source.scanner().to_reader(), note, count)
                if deleted is not None:
                    merger = merger.when_matched_delete(f"s.{quoted(deleted)}")
                merger.when_matched_update(columns).execute()

            self._retry(table, note, change)

    def merge(self, table: Table, rows: DataFrame, options: MergeOptions, note: CommitNote) -> None:
        """Upsert a frame's rows by key."""
        gone = options.delete_when
        marked = rows.withColumnRenamed(gone, _DELETED) if gone else rows.selectExpr("*", f"false AS {_DELETED}")
        columns = values_of_source(table.names)
        with self._staged(conform_frame(table, marked, more=(_DELETED,))) as source:

            def change(delta: DeltaTable) -> None:
                changes = self._changing(table, delta, source, options)
                if changes.num_rows:
                    found = self._matching(table, delta, changes, options.keys, options.dates)
                    written = changes.num_rows - (pc.sum(changes[_DELETED]).as_py() or 0)
                    merger = _merger(table, delta, found, changes, note, written)
                    merger.when_matched_delete(f"s.{_DELETED}").when_matched_update(columns).when_not_matched_insert(
                        columns, predicate=f"NOT s.{_DELETED}"
                    ).execute()

            self._retry(table, note, change)

    def _matching(
        self, table: Table, delta: DeltaTable, rows: pads.Dataset | pa.Table, keys: Sequence[str], dates: Dates | None
    ) -> list[str]:
        """Return the conditions of a merge that rows of the table have the keys of others."""
        found = [*map(same_value, keys), *at_dates(table, dates)]
        times = table.event_date_columns
        if not times:
            return found
        fresh = rows.to_table(columns=list(keys)) if isinstance(rows, pads.Dataset) else rows.select(list(keys))
        sql = f"SELECT DISTINCT {', '.join(f't.{quoted(name)}' for name in times)} FROM {{rows}} AS t"
        sql += f" WHERE EXISTS (SELECT 1 FROM {{fresh}} AS s WHERE {' AND '.join(found)})"
        there = self._sql.answer(sql, {"fresh": fresh, "rows": self._data_files(delta, table)})
        return found + near_times(table, there.cast(select_fields(arrow_schema(table), times)))

    def _changing(self, table: Table, delta: DeltaTable, rows: pads.Dataset, options: MergeOptions) -> pa.Table:
        """Return the rows of a merge that change the table: of deleted ones those that are there."""
        facts = [name for name in table.names if name not in (RUN_ID, INGESTED_AT)]
        same = " AND ".join(same_value(name, can_be_null=True) for name in facts)
        found = " AND ".join([*map(same_value, options.keys), *at_dates(table, options.dates)])
        there = f"FROM {{rows}} AS t WHERE {found}"
        exists = f"EXISTS (SELECT 1 {there})"
        changes = "TRUE"
        if options.unless_same:
            changes = f"(NOT {exists} OR EXISTS (SELECT 1 {there} AND NOT ({same})))"
        sql = f"SELECT s.* FROM {{fresh}} AS s WHERE CASE WHEN s.{_DELETED} THEN {exists} ELSE {changes} END"
        answer = self._sql.answer(sql, {"fresh": rows.to_table(), "rows": self._data_files(delta, table)})
        return answer.cast(rows.schema)

    def restore(self, table: Table, version: int, note: CommitNote) -> None:
        """Restore a table to a version; RestoreError where its files or its log are gone."""
        try:
            self._retry(table, note, lambda delta: delta.restore(version, commit_properties=_properties(note)))
        except CommitFailedError:
            raise
        except DeltaError as error:
            raise RestoreError(f"{table} has no version {version} any more: {error}") from error

    def purge(self, table: Table, note: CommitNote) -> None:
        """Begin the log again: files hold no deleted rows."""
        self.commit_note(table, note)
        with self._newest(table) as delta:
            delta.create_checkpoint()

    def vacuum(self, table: Table) -> None:
        """Delete all files that the newest version does not need."""
        with self._newest(table) as delta:
            delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    def maintain(self, table: Table, retain_hours: int, note: CommitNote) -> None:
        """Join small files, delete those that no version of the last hours needs, and begin the log again."""
        note.check()
        with self._newest(table) as delta:
            delta.optimize.compact(target_size=_file_bytes(table, delta), writer_properties=_writer(table))
            delta.vacuum(retain_hours, dry_run=False, enforce_retention_duration=False, full=True)
            delta.create_checkpoint()
            delta.cleanup_metadata()

    def location(self, table: Table) -> str:
        """Return the URI of a table's folder."""
        return _uri(self._folder(table))

    # -- files and commits -----------------------------------------------------------------------------------------

    def _write(self, table: Table, rows: RowsToWrite) -> list[DataFile]:
        """Write rows to files of a table, in this process or in Spark's tasks; those of groups are laid out by time."""
        folder = self._folder(table)
        if isinstance(rows, DataFrame):

            def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                yield _file_rows(write_data_files(folder, table, batches))

            return _files_of(rows.mapInArrow(write, _FILE_COLUMNS).toArrow())
        if isinstance(rows, pa.Table):
            return write_data_files(folder, table, rows.to_batches())
        if rows.fits_in_driver:
            return write_data_files(folder, table, prefetch(rows.read_in_driver()))
        if rows.in_tasks and rows.size <= MAX_DRIVER_BYTES:
            return write_data_files(folder, table, self._collect_by_time(table, rows).to_batches())
        part = rows.rows

        def write_part(number: int) -> Iterator[pa.RecordBatch]:
            yield _file_rows(write_data_files(folder, table, part(number)))

        parts = PartitionedRows(rows.row_count, rows.size, write_part, in_tasks=True)
        files = _files_of(parts.table(self.session, _FILE_COLUMNS))
        return self._sort_by_time(table, files) if rows.in_tasks and len(files) > 1 else files

    def _collect_by_time(self, table: Table, rows: PartitionedRows) -> pa.Table:
        """Return rows that tasks compute, in the order of time."""
        part = rows.rows

        def conformed(number: int) -> Iterator[pa.RecordBatch]:
            for batch in part(number):
                yield from conform_table(table, pa.Table.from_batches([batch])).to_batches()

        found = PartitionedRows(rows.row_count, rows.size, conformed, in_tasks=True).table(self.session, table.struct())
        return found.sort_by([(name, "ascending") for name in table.event_date_columns])

    def _sort_by_time(self, table: Table, files: Sequence[DataFile]) -> list[DataFile]:
        """Replace data files, before they are committed, by files with the same rows in the order of time.

        Each group has rows of all times. What a later capture changes is of the last hours: in files by group it would
        be in nearly all of them, and each would be written again.
        """
        unsorted = [self._folder(table) / file.name for file in files]
        given = DataFiles(arrow_schema(table), unsorted)
        sql = f"SELECT * FROM {{rows}} ORDER BY {', '.join(map(quoted, table.event_date_columns))}"

        def write() -> list[DataFile]:
            with self._sql.read_answer(sql, {"rows": given}) as rows:
                return write_data_files(self._folder(table), table, rows)

        with self._sql.little_memory():
            written = self._sql.with_enough_memory(write)
        for file in unsorted:
            file.remove_file()
        return written

    def _commit_files(self, table: Table, files: Sequence[DataFile], mode: str, note: CommitNote) -> None:
        if files or mode == "overwrite" or note.provenance is not None:
            self._retry(table, note, lambda delta: self._add_files(delta, files, mode, note))

    @staticmethod
    def _add_files(
        delta: DeltaTable, files: Sequence[DataFile], mode: str, note: CommitNote, written_before: int = 0
    ) -> None:
        now = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.name, file.size, {}, now, data_change=True, stats=file.statistics_json) for file in files
        ]
        rows = sum(file.row_count for file in files) + written_before
        delta.create_write_transaction(actions, mode, delta.schema(), commit_properties=_properties(note, rows))

    def _retry(self, table: Table, note: CommitNote, change: Callable[[DeltaTable], object]) -> None:
        """Change a table in its newest version; again, if others commit before. ConflictError if they always do."""
        for _ in range(_TRIES):
            note.check()
            with self._newest(table) as delta:
                try:
                    change(delta)
                except CommitFailedError as error:
                    failed = error
                else:
                    return
        raise ConflictError(f"{self._places.path(table)}: others change this table all the time") from failed

    @contextmanager
    def _staged(self, rows: DataFrame | pa.Table) -> Iterator[pads.Dataset]:
        """Yield rows that can be read several times, in batches: those of a frame are written to files."""
        if isinstance(rows, pa.Table):
            yield pads.dataset(rows)
            return
        folder = LakePath(self._places.root) / "_runs" / f".merge-{uuid4().hex}"
        try:
            write_parquet_folder(rows, folder / "rows")
            yield parquet_dataset([*(folder / "rows").files(".parquet")], to_arrow_schema(rows.schema))
        finally:
            folder.remove_folder()

    def _folder(self, table: Table) -> LakePath:
        return LakePath(self._places.path(table))


def _uri(folder: LakePath) -> str:
    """Return a folder as delta-rs takes it: a URI with its escapes."""
    if not folder.is_remote:
        return Path(folder.location).as_uri()
    return f"s3://{quote(split_s3_uri(folder.location)[1])}"


def _storage_options(folder: LakePath) -> dict[str, str] | None:
    """Return how delta-rs reaches the object store that a folder is on; its credentials it takes from the environment.

    Commits are put only where there is none of their version yet.
    """
    if not folder.is_remote:
        return None
    endpoint, region = s3_endpoint_and_region(split_s3_uri(folder.location)[0])
    options = {"aws_region": region, "aws_conditional_put": "etag"}
    if endpoint is not None:
        options |= {"aws_endpoint": endpoint, "aws_allow_http": str(endpoint.startswith("http://")).lower()}
    return options


def _open(folder: LakePath) -> DeltaTable:
    return DeltaTable(_uri(folder), storage_options=_storage_options(folder))


def _identity(folder: LakePath) -> tuple[int, ...]:
    """Return what another table, made in the same folder later, has otherwise.

    () where the first commit is gone, and on an object store, where it is not looked at: each look takes a while.
    """
    if folder.is_remote:
        return ()
    try:
        first = Path(folder.location, "_delta_log", f"{0:020}.json").stat()
    except OSError:
        return ()
    return first.st_ino, first.st_mtime_ns


def _snapshot(commit: Mapping[str, Any]) -> Snapshot:
    written = commit.get(_ROWS_WRITTEN) or 0
    return Snapshot(commit["version"], commit.get(_PROVENANCE), int(written), commit.get("operation"))


def _properties(note: CommitNote, rows_written: int = 0) -> CommitProperties:
    """Return the properties of a commit that fails where another one came before."""
    metadata = {_ROWS_WRITTEN: str(rows_written), _PROVENANCE: note.metadata}
    return CommitProperties(custom_metadata=metadata, max_commit_retries=0)


def _writer(table: Table) -> WriterProperties:
    """Return how delta-rs writes files. It holds row groups in memory, and limits them by rows, not by bytes."""
    has_bytes = any(isinstance(column.type, BinaryType) for column in table.columns)
    rows = MAX_ROW_GROUP_ROWS_WITH_BYTES if has_bytes else MAX_ROW_GROUP_ROWS
    return WriterProperties(compression="ZSTD", max_row_group_size=rows, column_properties=_COLUMN_PROPERTIES)


def _file_bytes(table: Table, delta: DeltaTable) -> int:
    """Return how large the files of a table may be, so that they have no more rows than others may."""
    files = pa.table(delta.get_add_actions())
    size, rows = (pc.sum(files[name]).as_py() or 0 for name in ("size_bytes", "num_records"))
    return min(MAX_FILE_BYTES, size * max_file_rows(table) // rows) if rows else MAX_FILE_BYTES


def _merger(
    table: Table, delta: DeltaTable, conditions: Sequence[str], source: pa.Table | pa.RecordBatchReader,
    note: CommitNote, rows_written: int,
) -> TableMerger:  # fmt: skip
    """Return a merge of rows (``s``) into a table (``t``)."""
    return delta.merge(
        source, " AND ".join(conditions), source_alias="s", target_alias="t", writer_properties=_writer(table),
        commit_properties=_properties(note, rows_written),
    )  # fmt: skip


def _split_by_key(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return the rows that have the key of one of others, and the rows that do not."""
    theirs = set(zip(*(others[name].to_pylist() for name in key), strict=True))
    found = pa.array(
        [each in theirs for each in zip(*(rows[name].to_pylist() for name in key), strict=True)], pa.bool_()
    )
    return rows.filter(found), rows.filter(pc.invert(found))


def _marked(rows: pa.Table, *, is_deleted: bool) -> pa.Table:
    return rows.append_column(_DELETED, pa.repeat(is_deleted, rows.num_rows))


def _file_rows(files: Sequence[DataFile]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([file._asdict() for file in files], to_arrow_schema(_FILE_COLUMNS))


def _files_of(rows: pa.Table) -> list[DataFile]:
    return [DataFile(**row) for row in rows.to_pylist()]
