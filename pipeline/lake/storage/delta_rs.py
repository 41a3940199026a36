"""Commits to tables in folders, by delta-rs: no Java, and no Spark but for rows that Spark's tasks compute.

New rows are files, which this process or the tasks write (``data_files``), and one commit of them. Changed and deleted
rows are one merge: it writes their files again, and its change feed has these rows alone. Which rows these are is found
in SQL (``duckdb_sql``) and handed to the merge as a table of keys: no value stands in a condition as text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import (
    BloomFilterProperties,
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    Field,
    Schema,
    WriterProperties,
)
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType

from pipeline.lake.change import Change, CommitNote, MakeChange, RowsGone, RowsToWrite
from pipeline.lake.date_filters import dates_condition, distinct_dates
from pipeline.lake.engine.collect import collect
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.errors import ConflictError, RestoreError
from pipeline.lake.queries.duckdb_sql import DataFiles, DuckDbSql, quoted_for_duckdb
from pipeline.lake.schema_enforcement import conform_table
from pipeline.lake.storage.data_files import (
    MAX_FILE_BYTES,
    DataFile,
    bloom_filter_values,
    max_file_rows,
    write_data_files,
)
from pipeline.lake.storage.emptied_files import EmptiedFiles, find_emptied_files
from pipeline.lake.storage.file_log import PROVENANCE_FIELD, ROWS_WRITTEN, FileLog, folder_uri, storage_options
from pipeline.lake.storage.merge_conditions import near_times, same_value
from pipeline.lake.storage.parquet import (
    BLOOM_ERROR_RATE,
    MAX_ROW_GROUP_ROWS,
    MAX_ROW_GROUP_ROWS_WITH_BYTES,
    STUB_COLUMNS,
)
from pipeline.lake.storage.store import StoreName, statistics_property, table_properties
from schemas.table import BINARY, EVENT_DATE, Column, Table
from udfs.array_types import Bools
from udfs.columns.codes import row_codes_of_both
from udfs.prefetch import prefetch

Made = TypeVar("Made")

_TRIES: Final = 5  # of a commit that others come before
_DELETED: Final = "_deleted"
_STUB_PROPERTIES: Final = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
_FILE_COLUMNS: Final = (  # of ``DataFile``
    StructType()
    .add("name", StringType())
    .add("size", LongType())
    .add("row_count", LongType())
    .add("statistics_json", StringType())
)


class DeltaRsStore:
    """Commits to the tables below a folder."""

    name: StoreName = "delta-rs"

    def __init__(self, log: FileLog, session: LazySession, sql: DuckDbSql) -> None:
        """``sql`` sorts what tasks have written."""
        self._log, self._session, self._sql = log, session, sql

    def create(self, table: Table) -> None:
        """Create a table with a change feed, without deletion vectors, which few readers know."""
        folder = self._log.folder(table)
        if not folder.is_remote:
            folder.make_folder()
        DeltaTable.create(
            folder_uri(folder), Schema.from_json(table.struct().json()), mode="ignore", description=table.comment,
            storage_options=storage_options(folder),
            configuration={**table_properties(table), "delta.targetFileSize": str(MAX_FILE_BYTES)},
        )  # fmt: skip

    def set_layout(self, table: Table, note: CommitNote) -> None:
        """Have files of a table have statistics as declared; their order needs no mark."""
        wanted = statistics_property(table)
        if not wanted.items() <= self._log.properties(table).items():
            noted = _properties(note)
            self._retry(table, note, lambda delta: delta.alter.set_table_properties(wanted, commit_properties=noted))

    def add_columns(self, table: Table, columns: Sequence[Column], note: CommitNote) -> None:
        """Add columns to a table."""
        fields = StructType([column.field() for column in columns])
        new: list[Field] = Schema.from_json(fields.json()).fields
        self._retry(table, note, lambda delta: delta.alter.add_columns(new, commit_properties=_properties(note)))

    def commit(self, table: Table, change: Change | MakeChange, note: CommitNote, *, is_new: bool) -> None:
        """Change the rows of a table.

        Rows in memory that have the keys of rows that leave replace these in the same commit. The others are added by
        a second one, so the first one has the previous provenance. A merge would write them into the files of the rows
        that it changes: each run would write those of the run before again.
        """
        if is_new:
            self.create(table)
        if isinstance(change, Change) and not isinstance(change.gone, RowsGone):
            mode = "append" if change.gone is None else "overwrite"
            self._commit_files(table, self._write(table, change.rows), mode, note)
            return

        def replace(delta: DeltaTable) -> None:
            rows, gone = change if isinstance(change, Change) else change()
            if isinstance(gone, RowsGone):
                self._replace(delta, table, gone, rows, note)
            elif files := self._write(table, rows):
                self._add_files(delta, files, "append", note)

        self._retry(table, note, replace)

    def _replace(self, delta: DeltaTable, table: Table, gone: RowsGone, rows: RowsToWrite, note: CommitNote) -> None:
        """Delete rows of a version, by a merge or with the files that they are in, and add others."""
        deleted, emptied = gone.find(), None
        files, added = self._write_many(table, rows)
        is_merged = _have_keys_of(added, deleted, table.key)
        changed = added.filter(pa.array(is_merged))
        if deleted.num_rows and (known := self._log.files(table)) is not None:
            emptied = find_emptied_files(self._sql, table, delta, known, gone, deleted)
        if emptied is not None:
            in_emptied = _have_keys_of(changed, emptied.keys, table.key)
            is_merged[is_merged] = ~in_emptied
            changed = changed.filter(pa.array(~in_emptied))
            deleted = deleted.filter(pa.array(~_have_keys_of(deleted, emptied.keys, table.key)))
        files += self._write(table, _in_order_of_time(table, added, ~is_merged))
        is_more = emptied is not None or len(files) > 0
        if deleted.num_rows:
            note.check()
            first = note._replace(provenance=note.previous_provenance) if is_more else note
            self._merge(delta, table, gone, deleted, changed, first)
        if is_more:
            note.check()
            self._add_files(delta, files, "append", note, changed.num_rows, emptied)

    def _write_many(self, table: Table, rows: RowsToWrite) -> tuple[list[DataFile], pa.Table]:
        """Return the files that many rows are written to, or rows in memory."""
        nothing = table.schema().empty_table()
        if not isinstance(rows, pa.Table) and not (isinstance(rows, PartitionedRows) and rows.fits_in_driver):
            return self._write(table, rows), nothing
        batches = [*rows.read_in_driver()] if isinstance(rows, PartitionedRows) else rows.to_batches()
        return [], conform_table(table, pa.Table.from_batches(batches)) if batches else nothing

    @staticmethod
    def _merge(
        delta: DeltaTable, table: Table, gone: RowsGone, deleted: pa.Table, changed: pa.Table, note: CommitNote
    ) -> None:
        """Delete rows, and add others with their keys. Lists, which a merge does not compare, are left to the key."""
        source = pa.concat_tables(
            [_marked(deleted, is_deleted=True), _marked(changed, is_deleted=False)], promote_options="default"
        )
        found = [
            f"s.{_DELETED}",
            *(same_value(name, can_be_null=bool(deleted[name].null_count)) for name in gone.compared),
        ]
        if EVENT_DATE in gone.compared:
            found.append(dates_condition(distinct_dates(deleted), f"t.{EVENT_DATE}"))
        found += near_times(table, deleted)
        delta.merge(
            source, " AND ".join(found), source_alias="s", target_alias="t", writer_properties=_writer(table),
            commit_properties=_properties(note, changed.num_rows),
        ).when_matched_delete().when_not_matched_insert(
            {name: f"s.{name}" for name in map(quoted_for_duckdb, table.names)}, predicate=f"NOT s.{_DELETED}"
        ).execute()  # fmt: skip

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
        self._retry(table, note, lambda delta: self._add_files(delta, (), "append", note))
        with self._log.newest(table) as delta:
            delta.create_checkpoint()

    def rewrite(self, table: Table, note: CommitNote) -> None:
        """Do nothing: files hold no deleted rows."""

    def vacuum_expired(self, table: Table) -> None:
        """Delete the files that no version within the table's own retention needs."""
        with self._log.newest(table) as delta:
            delta.vacuum(dry_run=False, full=True)

    def vacuum(self, table: Table) -> None:
        """Delete all files that the newest version does not need."""
        with self._log.newest(table) as delta:
            delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    def maintain(self, table: Table, retain_hours: int, note: CommitNote) -> None:
        """Join small files, delete those that no version of the last hours needs, and begin the log again."""
        self._retry(table, note, lambda delta: self._join_files(delta, table, note))
        with self._log.newest(table) as delta:
            delta.vacuum(retain_hours, dry_run=False, enforce_retention_duration=False, full=True)
            delta.create_checkpoint()
            delta.cleanup_metadata()

    def _join_files(self, delta: DeltaTable, table: Table, note: CommitNote) -> None:
        """Write the rows of small files to large ones, in the order of the table's layout.

        delta-rs joins files in any order of their rows, or orders the whole table again each time. It is left to it
        where files have columns or deletion vectors of others, which nothing here knows.
        """
        has_others = {field.name for field in delta.schema().fields} - set(table.names)
        if has_others or self._log.files(table) is None:
            delta.optimize.compact(target_size=MAX_FILE_BYTES, writer_properties=_writer(table))
            return
        folder, now = self._log.folder(table), time.time_ns() // 1_000_000
        small = {
            file["path"]: file["size_bytes"]
            for file in pa.table(delta.get_add_actions()).to_pylist()
            if file["size_bytes"] < MAX_FILE_BYTES and (file["num_records"] or 0) < max_file_rows(table)
        }
        if len(small) < 2:
            return
        given = DataFiles(table.schema(), {folder / unquote(path): size for path, size in small.items()})
        order = dict.fromkeys((*table.layout, *table.event_date_columns, *table.key))
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.name, file.size, {}, now, data_change=False, stats=file.statistics_json)
            for file in self._write_in_order(table, given, order)
        ]
        actions += (
            RemoveAction(unquote(path), data_change=False, deletion_timestamp=now, size=size, partition_values={})
            for path, size in small.items()
        )
        delta.create_write_transaction(actions, "append", delta.schema(), commit_properties=_properties(note))

    # -- files and commits -----------------------------------------------------------------------------------------

    def _write(self, table: Table, rows: RowsToWrite) -> list[DataFile]:
        """Write rows to files of a table, in this process or in Spark's tasks; those of groups are laid out by time."""
        folder = self._log.folder(table)
        if isinstance(rows, DataFrame):

            def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                yield _file_rows(write_data_files(folder, table, batches))

            return _files_of(collect(rows.mapInArrow(write, _FILE_COLUMNS)))
        if isinstance(rows, pa.Table):
            return write_data_files(folder, table, rows.to_batches())
        if isinstance(rows, pa.RecordBatchReader):
            return write_data_files(folder, table, rows)
        if rows.fits_in_driver:
            return write_data_files(folder, table, prefetch(rows.read_in_driver()))
        part = rows.read_part

        def write_part(number: int) -> Iterator[pa.RecordBatch]:
            yield _file_rows(write_data_files(folder, table, part(number)))

        parts = PartitionedRows(rows.part_count, rows.size, write_part, in_tasks=True)
        files = _files_of(parts.table(self._session, _FILE_COLUMNS))
        return self._sort_by_time(table, files) if rows.in_tasks and len(files) > 1 else files

    def _sort_by_time(self, table: Table, files: Sequence[DataFile]) -> list[DataFile]:
        """Replace data files, before they are committed, by files with the same rows in the order of time.

        Each group has rows of all times. What a later capture changes is of the last hours: in files by group it would
        be in nearly all of them, and each would be written again.
        """
        unsorted = {self._log.folder(table) / file.name: file.size for file in files}
        written = self._write_in_order(table, DataFiles(table.schema(), unsorted), table.event_date_columns)
        for file in unsorted:
            file.remove_file()
        return written

    def _write_in_order(self, table: Table, given: DataFiles, columns: Iterable[str]) -> list[DataFile]:
        """Write the rows of data files to others, in the order of some columns."""
        sql = f"SELECT * FROM {{rows}} ORDER BY {', '.join(map(quoted_for_duckdb, columns))}"

        def write() -> list[DataFile]:
            with self._sql.read_answer(sql, {"rows": given}) as rows:
                return write_data_files(self._log.folder(table), table, rows)

        return self._sql.with_enough_memory(write)

    def _commit_files(self, table: Table, files: Sequence[DataFile], mode: str, note: CommitNote) -> None:
        if files or mode == "overwrite":
            self._retry(table, note, lambda delta: self._add_files(delta, files, mode, note))

    @staticmethod
    def _add_files(
        delta: DeltaTable, files: Sequence[DataFile], mode: str, note: CommitNote, written_before: int = 0,
        emptied: EmptiedFiles | None = None,
    ) -> None:  # fmt: skip
        """Commit files that are added, and others that leave; ``written_before``: rows of the commit before."""
        now = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.name, file.size, {}, now, data_change=True, stats=file.statistics_json) for file in files
        ]
        actions += () if emptied is None else emptied.remove_actions(now)
        rows = sum(file.row_count for file in files) + written_before
        delta.create_write_transaction(actions, mode, delta.schema(), commit_properties=_properties(note, rows))

    def _retry(self, table: Table, note: CommitNote, change: Callable[[DeltaTable], Made]) -> Made:
        """Change a table in its newest version; again, if others commit before. ConflictError if they always do."""
        for _ in range(_TRIES):
            note.check()
            with self._log.newest(table) as delta:
                try:
                    return change(delta)
                except CommitFailedError as error:
                    failed = error
        raise ConflictError(f"{self._log.folder(table)}: others change this table all the time") from failed


def _properties(note: CommitNote, rows_written: int = 0) -> CommitProperties:
    """Return the properties of a commit that fails where another one came before."""
    metadata = {ROWS_WRITTEN: str(rows_written), PROVENANCE_FIELD: note.metadata}
    return CommitProperties(custom_metadata=metadata, max_commit_retries=0)


def _writer(table: Table) -> WriterProperties:
    """Return how delta-rs writes files. It holds row groups in memory, and limits them by rows, not by bytes."""
    has_bytes = any(column.type == BINARY for column in table.columns)
    rows = MAX_ROW_GROUP_ROWS_WITH_BYTES if has_bytes else MAX_ROW_GROUP_ROWS
    columns = dict.fromkeys(STUB_COLUMNS, _STUB_PROPERTIES)
    for name, most in bloom_filter_values(table).items():
        bloom_filter = BloomFilterProperties(True, BLOOM_ERROR_RATE, most)  # noqa: FBT003
        columns[name] = ColumnProperties(bloom_filter_properties=bloom_filter)
    return WriterProperties(compression="ZSTD", max_row_group_size=rows, column_properties=columns)


def _have_keys_of(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> Bools:
    """Return for each row whether another table has its key. Nulls are equal."""
    found: Bools = pc.is_in(rows[key[0]], others[key[0]]).to_numpy()
    if len(key) > 1 and found.any():
        some = rows.filter(pa.array(found))
        found[found] = np.isin(*row_codes_of_both(*(each.select(list(key)).columns for each in (some, others))))
    return found


def _in_order_of_time(table: Table, rows: pa.Table, chosen: Bools) -> pa.Table:
    """Return the chosen rows, in the order of time; they are copied once."""
    order = pc.sort_indices(rows, [(name, "ascending") for name in table.event_date_columns]).to_numpy()
    return rows.take(pa.array(order[chosen[order]]))


def _marked(rows: pa.Table, *, is_deleted: bool) -> pa.Table:
    return rows.append_column(_DELETED, pa.repeat(is_deleted, rows.num_rows))


def _file_rows(files: Sequence[DataFile]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([file._asdict() for file in files], to_arrow_schema(_FILE_COLUMNS))


def _files_of(rows: pa.Table) -> list[DataFile]:
    return [DataFile(**row) for row in rows.to_pylist()]
