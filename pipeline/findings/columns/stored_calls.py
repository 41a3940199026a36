"""Very many calls as a table whose columns are in files: only those are in memory that are looked at. No Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from pipeline.arrow_rows import STAGED_ROWS

_BATCH_ROWS: Final = 1 << 17


class StoredCalls:
    """Calls in files of a folder, one for each column, with what conditions and rows of calls use of ``pa.Table``.

    A column is read each time that it is asked for.
    """

    def __init__(self, folder: Path, num_rows: int, files: dict[str, Path] | None = None) -> None:
        """``files``: those of columns that are there, of so many calls or more."""
        self.num_rows = num_rows
        self._folder = folder
        self._files = {} if files is None else files

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return [*self._files]

    def __setitem__(self, name: str, column: pa.ChunkedArray) -> None:
        """Write a column."""
        rows = pa.table({name: column})
        file = self._files.setdefault(name, self._folder / f"{len(self._files)}.arrow")
        with pa.ipc.new_file(file, rows.schema, options=STAGED_ROWS) as writer:
            writer.write_table(rows.combine_chunks(), max_chunksize=_BATCH_ROWS)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        """Return a column."""
        return self._part(name, 0, self.num_rows)

    column = __getitem__

    def get(self, name: str) -> pa.ChunkedArray | None:
        """Return a column; None where it is not there."""
        return self[name] if name in self._files else None

    def first(self, count: int) -> StoredCalls:
        """Return the first of the calls."""
        return StoredCalls(self._folder, count, self._files)

    def select(self, names: Sequence[str]) -> pa.Table:
        """Return some columns."""
        return pa.table({name: self[name] for name in names})

    def slice(self, begin: int, count: int) -> pa.Table:
        """Return some of the calls; no others are read."""
        end = min(begin + count, self.num_rows)
        return pa.table({name: self._part(name, begin, end) for name in self._files})

    def take(self, places: pa.Array) -> pa.Table:
        """Return the calls at some places."""
        return pa.table({name: self[name].take(places) for name in self._files})

    def _part(self, name: str, begin: int, end: int) -> pa.ChunkedArray:
        first, last = begin // _BATCH_ROWS, -(-end // _BATCH_ROWS)
        with pa.ipc.open_file(self._files[name]) as reader:
            rows = pa.Table.from_batches(map(reader.get_batch, range(first, last)), reader.schema)
        return rows.slice(begin - first * _BATCH_ROWS, end - begin).combine_chunks().column(0)
