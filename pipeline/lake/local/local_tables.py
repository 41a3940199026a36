"""The tables of a lake in a folder of this machine: asked in SQL, and changed, without Spark.

What is asked goes to DuckDB (``local_sql``), what is written to Parquet by Arrow (``table_writer``) and to the table by
Delta's own transaction (``transaction``); which files there are is read from the tables' logs (``table_files``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructType

from pipeline.lake.local import row_cache, transaction
from pipeline.lake.local.commits import commit_file
from pipeline.lake.local.deletion_vectors import Ints, rows_gone, vector_of
from pipeline.lake.local.local_sql import Given, LocalSql, Relation
from pipeline.lake.local.row_cache import CachedRows, RowCacheFiles
from pipeline.lake.local.table_files import File, Listing, changes, listing, path_of, rows_of
from pipeline.lake.local.table_reader import rows_at
from pipeline.lake.local.table_writer import write
from pipeline.lake.local.transaction import Action, ConflictError, Kind
from pipeline.lake.queries import CachedFilter
from pipeline.lake.schema_enforcement import arrow_schema, select_fields
from pipeline.lake.tasks import PartitionedRows, prefetch
from schemas.table import Table

_GOES: Final = ("path", "partitionValues", "size", "tags", "deletionVector", "baseRowId", "defaultRowCommitVersion")
ALL_ROWS: Final = "TRUE"  # the condition of all rows
_SAID: Final = "said"
_STANDING: Final = "_runs/standing"  # below the lake
_TRIES: Final = 5  # of a commit that others come before
_FOUND: Final = "SELECT _file, _row FROM {rows} WHERE "


class CommitCounts(NamedTuple):
    """How many rows a commit added and took out."""

    added: int = 0
    gone: int = 0


class LocalTables:
    """Tables of a folder; threads may use it side by side."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._sql = LocalSql()
        self._known: dict[Path, tuple[Listing, int]] = {}

    def folder(self, table: Table) -> Path:
        """Return the table's folder."""
        return self._root / table.layer / table.name

    def listing(self, table: Table) -> Listing | None:
        """Return the table as it is now; None where there is none, or its rows are not what its files tell alone."""
        folder = self.folder(table)
        log = folder / "_delta_log"
        known, written_ns = self._known.get(folder, (None, 0))
        if known is not None and _written_ns(log, known.version) != written_ns:  # another table was made in the folder
            known = None
        found = listing(log, known=known)
        if found is None or not found.is_plain:
            return None
        if found is not known:
            self._known[folder] = found, _written_ns(log, found.version)
        return found

    def rows(self, table: Table) -> Relation | None:
        """Return the table's rows as they are now; None as for ``listing``."""
        found = self.listing(table)
        return None if found is None else self._relation(table, found)

    def changes(self, table: Table, since: int, until: int) -> Relation:
        """Return the rows that changed after a version, up to another; ValueError where that is not told any more."""
        return Relation.of_changes(arrow_schema(table), changes(self.folder(table), since, until))

    def standing(self, wanted: CachedFilter, *, keep: bool) -> pa.Table | None:
        """Return rows that are kept, as they are now; None as for ``listing``.

        ``keep``: keep them as they are now for the next time. Jobs that only read do not write to the lake's folder.
        """
        found = self.listing(wanted.table)
        if found is None:
            return None
        keeper = RowCacheFiles(self._root / _STANDING, wanted, found.metadata["id"])
        before = keeper.newest(found.version)
        if before is not None and before.version == found.version:
            return before.rows
        now = None if before is None else self._up_to_date(wanted, before, found.version)
        if now is None:
            rows = self._relation(wanted.table, found)
            now = self.answer(row_cache.all_of_them(wanted), {"rows": rows}).cast(row_cache.schema(wanted))
        if keep:
            keeper.keep(CachedRows(now, found.version), before)
        return now

    def _up_to_date(self, wanted: CachedFilter, before: CachedRows, version: int) -> pa.Table | None:
        """Return rows that are kept as they are in a later version; None where nothing tells what changed."""
        try:
            feed = self.changes(wanted.table, before.version, version)
        except ValueError:
            return None
        changed = self.answer(row_cache.what_changed(wanted), {"feed": feed})
        return row_cache.brought_up_to_date(wanted, before.rows, changed)

    def answer(self, sql: str, of: Mapping[str, Given]) -> pa.Table:
        """Answer a question; names in braces stand for relations, Arrow tables, and lists of values."""
        return self._sql.answer(sql, of)

    def select(self, table: Table, condition: str, columns: Sequence[str], of: Mapping[str, Given]) -> pa.Table | None:
        """Return columns, as they are declared, of the rows that meet a SQL condition; None as for ``listing``.

        Which rows these are is asked first, and then their columns are read where such rows are: of calls the stubs are
        nearly all there is to read.
        """
        found = self.listing(table)
        if found is None:
            return None
        schema = select_fields(arrow_schema(table), columns)
        places = self._find(table, found, condition, of)
        parts = [rows_at(Path(name), numbers, schema) for name, numbers in sorted(places.items())]
        return pa.concat_tables([schema.empty_table(), *parts])

    def write(self, spark: SparkSession, table: Table, rows: pa.Table | PartitionedRows) -> list[File]:
        """Write rows to files of the table, here or in tasks of Spark; return what the log is to say of them."""
        folder = self.folder(table)
        if isinstance(rows, pa.Table):
            return write(folder, table, rows.to_batches())
        if rows.fits_in_driver:
            return write(folder, table, prefetch(rows.read_in_driver()))
        each = rows.rows

        def written(number: int) -> Iterator[pa.RecordBatch]:
            files = [json.dumps(file) for file in write(folder, table, each(number))]
            yield pa.record_batch({_SAID: pa.array(files, pa.string())})

        said = PartitionedRows(rows.row_count, rows.size, written).table(spark, StructType().add(_SAID, StringType()))
        return [json.loads(file) for file in said[_SAID].to_pylist()]

    def change(
        self, spark: SparkSession, table: Table, *, added: Sequence[File] = (), gone: str | None = None,
        of: Mapping[str, Given] | None = None, says: str | None = None,
    ) -> CommitCounts | None:  # fmt: skip
        """Add files that are written, and take out rows that meet a SQL condition, in one commit; return how many rows.

        ``of``: what the condition has names in braces for; ``says``: what the commit says of itself. Nothing is
        committed where only rows were to go and none is found. None: nothing was done, and Spark has to do it.
        ConflictError where others commit before it each time.
        """
        for _ in range(_TRIES - 1):
            with suppress(ConflictError):
                return self._change(spark, table, added, gone, of or {}, says)
        return self._change(spark, table, added, gone, of or {}, says)

    def _change(
        self, spark: SparkSession, table: Table, added: Sequence[File], gone: str | None, of: Mapping[str, Given],
        says: str | None,
    ) -> CommitCounts | None:  # fmt: skip
        folder, found = self.folder(table), self.listing(table)
        if found is None:
            return None
        leaving = {} if gone is None else self._find(table, found, gone, of)
        if not (leaving or added or gone is None):
            return CommitCounts()
        actions: list[Action] = [{"add": file} for file in added]
        files = {str(path_of(folder, file)): file for file in found.files.values()} if leaving else {}
        for name, numbers in leaving.items():
            actions += _marked(folder, files[name], numbers)
        came = sum(json.loads(file["stats"])["numRecords"] for file in added)
        went = sum(map(len, leaving.values()))
        vectors = sum("deletionVector" in action.get("add", ()) for action in actions)
        counts = {
            "numOutputRows": came, "numDeletedRows": went, "numFiles": len(added),
            "numOutputBytes": sum(file["size"] for file in added), "numDeletionVectorsAdded": vectors,
            "numRemovedFiles": sum("remove" in action for action in actions) - vectors,
        }  # fmt: skip
        kind: Kind = "WRITE" if added or not leaving else "DELETE"
        replacing = gone.format(**dict.fromkeys(of, "(...)")) if gone is not None and leaving else None
        transaction.commit(
            spark, folder, found.version, actions, kind=kind, counts=counts, says=says, replacing=replacing
        )
        return CommitCounts(came, went)

    def _relation(self, table: Table, found: Listing, *, numbered: bool = False) -> Relation:
        rows = rows_of(self.folder(table), list(found.files.values()))
        return Relation.of_rows(arrow_schema(table), rows, numbered=numbered)

    def _find(self, table: Table, found: Listing, condition: str, of: Mapping[str, Given]) -> dict[str, Ints]:
        """Return the numbers of the rows that meet a condition, by their file's path."""
        if condition == ALL_ROWS:
            return {
                str(rows.path): np.setdiff1d(
                    np.arange(_records(rows.path)), () if rows.without is None else rows.without
                )
                for rows in rows_of(self.folder(table), list(found.files.values()))
            }
        rows = self._relation(table, found, numbered=True)
        places = self.answer(_FOUND + condition, {**of, "rows": rows})
        several = places.group_by("_file").aggregate([("_row", "list")])
        return {
            name: numbers.values.to_numpy() for name, numbers in zip(several["_file"].to_pylist(), several["_row_list"],
                                                                     strict=True)
        }  # fmt: skip


def _written_ns(log: Path, version: int) -> int:
    """Return when a version was written, nanoseconds; 0 where it is not there."""
    try:
        return commit_file(log, version).stat().st_mtime_ns
    except OSError:
        return 0


def _marked(folder: Path, file: File, rows: Ints) -> list[Action]:
    """Return the actions that take rows out of a file: all of it, where none is left, or with a vector that says which.

    Numbers are those of the file's rows, from 0.
    """
    gone = np.union1d(rows_gone(file.get("deletionVector"), folder), rows)
    stats = json.loads(file.get("stats") or "{}")
    if "numRecords" not in stats:
        stats["numRecords"] = _records(path_of(folder, file))
    removed: File = {part: file[part] for part in _GOES if part in file}
    removed |= {"deletionTimestamp": time.time_ns() // 1_000_000, "dataChange": True, "extendedFileMetadata": True}
    actions: list[Action] = [{"remove": {**removed, "stats": json.dumps({"numRecords": stats["numRecords"]})}}]
    if len(gone) < stats["numRecords"]:
        left = {"dataChange": True, "deletionVector": vector_of(gone, folder)}
        left["stats"] = json.dumps({**stats, "tightBounds": False})  # they may be of rows that are gone
        actions.append({"add": {**file, **left}})
    return actions


def _records(path: Path) -> int:
    """Return how many rows a file has, those that are gone among them."""
    return int(pq.read_metadata(path).num_rows)
