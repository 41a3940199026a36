"""A run's side files: rows that tasks write to plain Parquet beside the tables, to be read once by what comes next."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark import TaskContext

from pipeline.lake.tasks import LEAST_TASKS, TASK_BYTES, spread
from udfs.files.stores import place
from udfs.keys import key

Batches = Iterable[pa.RecordBatch]
Through = Callable[[Batches], Batches]
_LEAST_BYTES: Final = 4 << 20  # of one task
_GROUP_BYTES: Final = 4 << 20  # of a row group at least, but for the last one


class SideFiles:
    """One capture's side files: ``<folder>/<kind>/<key of its path>.parquet``, each there whole or not at all.

    Rows are written as they come, small batches together: a row group costs whoever reads it some time for each of its
    columns. They are read once, soon: little is done to make them small, by what Java has as native code (its LZ4 is a
    class).
    """

    def __init__(self, folder: str | None, path: str) -> None:
        """``folder`` is a path or URI; None: nothing is written."""
        self._folder = folder
        self._name = f"{key(path)}.parquet"
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._waiting: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        self._bytes: Counter[str] = Counter()  # of what waits

    def add(self, kind: str, rows: pa.RecordBatch) -> None:
        """Add rows of a kind."""
        if self._folder is None or not rows.num_rows:
            return
        if kind not in self._writers:
            self._writers[kind] = self._writer(self._folder, kind, rows.schema)
        self._waiting[kind].append(rows)
        self._bytes[kind] += rows.nbytes
        if self._bytes[kind] >= _GROUP_BYTES:
            self._write(kind)

    def close(self) -> None:
        """Let the files appear; the ledger's row is the last: whoever counts these sees what is done."""
        for kind, writer in sorted(self._writers.items(), key=lambda entry: entry[0] == "capture_files"):
            self._write(kind)
            writer.close()
            if "://" not in str(self._folder):
                place = Path(str(self._folder)) / kind
                (place / self._temporary).replace(place / self._name)

    def _write(self, kind: str) -> None:
        """Write what waits, as one row group."""
        if waiting := self._waiting.pop(kind, None):
            self._writers[kind].write_table(pa.Table.from_batches(waiting))
        self._bytes[kind] = 0

    @property
    def _temporary(self) -> str:
        return f".{self._name}.{os.getpid()}"

    def _writer(self, folder: str, kind: str, schema: pa.Schema) -> pq.ParquetWriter:
        if "://" in folder:
            filesystem, root = place(folder)
            name = f"{root}/{kind}/{self._name}"  # an object appears when it is whole
        else:
            filesystem, root = pafs.LocalFileSystem(), folder
            name = f"{root}/{kind}/{self._temporary}"
        filesystem.create_dir(f"{root}/{kind}", recursive=True)
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        return pq.ParquetWriter(
            name, schema, filesystem=filesystem, compression="snappy", use_dictionary=texts, write_statistics=False
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a side file: some of its row groups; None: all of them."""

    path: str
    size: int  # bytes, about
    groups: range | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows, a row group at a time."""
        with pq.ParquetFile(self.path, memory_map=True) as file:
            for group in range(file.num_row_groups) if self.groups is None else self.groups:
                yield from file.read_row_group(group, use_threads=False).combine_chunks().to_batches()


def tasks_of(*folders: Path) -> list[list[Piece]]:
    """Return what tasks are to read of the side files in folders: each file, and each row group, in one of them.

    The more bytes there are the more a task reads, up to a limit; a file is cut only where it is more than that.
    """
    sizes = {file: file.stat().st_size for folder in folders for file in _files(folder)}
    total = sum(sizes.values())
    most = min(max(total // LEAST_TASKS, _LEAST_BYTES), TASK_BYTES)
    pieces = [piece for file, size in sizes.items() for piece in _cut(file, size, most)]
    return spread(pieces, lambda piece: piece.size, -(-total // most))


def _cut(file: Path, size: int, most: int) -> list[Piece]:
    """Return a file in pieces of about so many bytes at most, or in fewer where it has fewer row groups."""
    if size <= most:
        return [Piece(str(file), size)]
    groups = pq.read_metadata(file).num_row_groups
    step = -(-groups // -(-size // most))
    parts = [range(first, min(first + step, groups)) for first in range(0, groups, step)]
    return [Piece(str(file), size // len(parts), part) for part in parts]


def rows_in(folder: Path) -> int:
    """Return how many rows the side files in a folder hold."""
    return sum(pq.read_metadata(file).num_rows for file in _files(folder))


def _files(folder: Path) -> list[Path]:
    """Return the files in a folder that are whole; without a row there is none, and no folder."""
    return sorted(folder.glob("[!.]*.parquet")) if folder.is_dir() else []


def number_of_task() -> str:
    """Return the number of the task that asks, to name its side files by: a repeated one does no harm."""
    task = TaskContext.get()
    return str(task.partitionId() if task is not None else 0)
