"""Staging files: rows that tasks write as plain Parquet for the next step of the same run, which reads them once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

from pipeline.lake.engine.tasks import PartitionedRows, balance_by_size, task_bytes
from pipeline.lake.lake_path import LakePath, open_parquet, parquet_dataset
from schemas.table import Table
from udfs.keys import key

Batches = Iterable[pa.RecordBatch]
BatchTransform = Callable[[Batches], Batches]
_SUFFIX: Final = ".parquet"
_GROUP_BYTES: Final = 16 << 20  # of a row group at least, but for the last one


def staging_file_name(path: str) -> str:
    """Return the name of the staging files of what is read from a path."""
    return f"{key(path)}{_SUFFIX}"


class StagingWriter:
    """Writes the staging files of one task: ``<folder>/<kind>/<key of its path>.parquet``, each complete or absent.

    Another attempt at the same task, before, after or beside this one, writes the same rows to temporary files of its
    own and puts them in the same places.

    Small batches are written together, since each row group costs its reader some time for each column. The files are
    read once and soon, so compression is light: LZ4, which Java has as native code.
    """

    def __init__(self, folder: str | None, path: str) -> None:
        """``folder`` is a path or URI; None: nothing is written."""
        self._folder = folder
        self._name = staging_file_name(path)
        self._attempt = attempt_name()
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._waiting: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        self._bytes: Counter[str] = Counter()  # buffered
        self.is_published = False

    def add(self, kind: str, rows: pa.RecordBatch) -> None:
        """Add rows of a kind."""
        if self._folder is None or not rows.num_rows:
            return
        if kind not in self._writers:
            self._writers[kind] = self._writer(kind, rows.schema)
        self._waiting[kind].append(rows)
        self._bytes[kind] += rows.nbytes
        if self._bytes[kind] >= _GROUP_BYTES:
            self._write(kind)

    def add_table(self, kind: str, rows: pa.Table) -> None:
        """Add the rows of a table, of a kind."""
        for batch in rows.combine_chunks().to_batches():
            self.add(kind, batch)

    def discard(self) -> None:
        """Remove the rows that were added so far; a full disk does not hinder it."""
        for kind, writer in self._writers.items():
            with suppress(OSError):
                writer.close()
            with suppress(OSError):
                self._files(kind)[1].remove_file()
        self._writers.clear()
        self._waiting.clear()
        self._bytes.clear()

    def close(self) -> None:
        """Publish the files, when all are written; the ledger's row comes last, since progress is counted by it."""
        kinds = sorted(self._writers, key=lambda kind: kind == "capture_files")
        for kind in kinds:
            self._write(kind)
            self._writers[kind].close()
        for kind in kinds:
            file, temporary = self._files(kind)
            file.publish(temporary)
        self.is_published = True

    def _write(self, kind: str) -> None:
        """Write the buffered rows as one row group."""
        if waiting := self._waiting.pop(kind, None):
            self._writers[kind].write_table(pa.Table.from_batches(waiting))
        self._bytes[kind] = 0

    def _files(self, kind: str) -> tuple[LakePath, LakePath]:
        """Return the file of a kind of rows, and where it is written until it is complete."""
        file = LakePath(str(self._folder)) / kind / self._name
        return file, file.temporary(self._attempt)

    def _writer(self, kind: str, schema: pa.Schema) -> pq.ParquetWriter:
        _, file = self._files(kind)
        file.folder.make_folder()
        filesystem, name = file.filesystem_and_name
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        return pq.ParquetWriter(
            name, schema, filesystem=filesystem, compression="snappy", use_dictionary=texts, write_statistics=False
        )


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A part of a staging file: some of its row groups, or all (None)."""

    path: str
    size: int  # bytes, about
    groups: range | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, a row group at a time."""
        with open_parquet(LakePath(self.path)) as file:
            for group in range(file.num_row_groups) if self.groups is None else self.groups:
                yield from file.read_row_group(group, use_threads=False).combine_chunks().to_batches()


def staged_files(folder: LakePath) -> dict[LakePath, int]:
    """Return the staging files in a folder that are complete, and their bytes; nothing without a folder."""
    return folder.files(_SUFFIX)


def plan_tasks(sizes: Mapping[LakePath, int]) -> list[list[StagedPart]]:
    """Return the parts of staging files of these bytes, distributed to tasks: each row group to one of them.

    Tasks grow with the bytes up to a limit; only a file larger than that is split.
    """
    total = sum(sizes.values())
    most = task_bytes(total)
    pieces = [piece for file, size in sizes.items() for piece in _cut(file, size, most)]
    return balance_by_size(pieces, lambda piece: piece.size, -(-total // most))


def _cut(file: LakePath, size: int, most: int) -> list[StagedPart]:
    """Return a file in parts of at most so many bytes; fewer where it has fewer row groups."""
    if size <= most:
        return [StagedPart(str(file), size)]
    groups = _metadata(file).num_row_groups
    step = -(-groups // -(-size // most))
    parts = [range(first, min(first + step, groups)) for first in range(0, groups, step)]
    return [StagedPart(str(file), size // len(parts), part) for part in parts]


def staged_rows(folder: LakePath, table: Table, transform: BatchTransform | None = None) -> PartitionedRows:
    """Return the columns of a table from the staging files of a folder, as ``transform`` changes the rows of a task.

    A part for each task (``plan_tasks``).
    """
    tasks, names = plan_tasks(staged_files(folder)), list(table.names)

    def rows(number: int) -> Batches:
        batches = (batch.select(names) for part in tasks[number] for batch in part.read())
        return batches if transform is None else transform(batches)

    return PartitionedRows(len(tasks), sum(part.size for task in tasks for part in task), rows)


def read_staged(folder: LakePath, schema: pa.Schema) -> pa.Table:
    """Return columns of the staging files of a folder."""
    return parquet_dataset([*staged_files(folder)], schema).to_table()


def count_staged_rows(files: Iterable[LakePath]) -> int:
    """Return the number of rows in staging files."""
    return sum(_metadata(file).num_rows for file in files)


def _metadata(file: LakePath) -> pq.FileMetaData:
    with open_parquet(file) as opened:
        return opened.metadata


def attempt_name() -> str:
    """Return a name that no other attempt at the running task has, on any machine: its number, and a random part."""
    task = TaskContext.get()
    return f"{task.taskAttemptId() if task is not None else 0}-{uuid4().hex}"
