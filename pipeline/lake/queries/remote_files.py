"""Data files on an object store, as DuckDB asks for them: some columns, of the rows that meet a condition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.dataset as pads

from pipeline.lake.lake_path import LakePath

_FORMAT: Final = pads.ParquetFileFormat()


def remote_dataset(files: Sequence[LakePath], schema: pa.Schema) -> pads.Dataset:
    """Return the rows of files as a dataset for DuckDB; columns that files do not have are null."""
    return _RemoteFiles([*map(_fragment, files)], schema, _FORMAT, files[0].filesystem_and_name[0])


@lru_cache(maxsize=1000)
def _fragment(file: LakePath) -> pads.ParquetFileFragment:
    """Return a file, which keeps what it read of its metadata: files do not change, and a run asks for them often."""
    filesystem, name = file.filesystem_and_name
    return _FORMAT.make_fragment(name, filesystem)


class _RemoteFiles(pads.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """A dataset of which DuckDB asks ``scanner`` for rows.

    delta-rs writes texts and bytes as views, which Arrow does not compare. Where files have such columns, these are
    cast before the condition is looked at; in other files Arrow reads only the row groups that may meet it.
    """

    def scanner(
        self, columns: Sequence[str] | None = None, filter: pads.Expression | None = None  # noqa: A002
    ) -> _Scanner:  # fmt: skip
        """Return what reads columns, all by default, of the rows that meet a condition."""
        return _Scanner(self, columns or self.schema.names, filter)


class _Scanner(NamedTuple):
    """Reads rows in the thread that asks for them.

    A ``pads.Scanner`` would run this code in the threads that it waits for: several at once would wait for ever.
    """

    files: pads.FileSystemDataset
    columns: Sequence[str]
    condition: pads.Expression | None

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows, in batches."""
        schema = pa.schema([self.files.schema.field(name) for name in self.columns])
        return pa.RecordBatchReader.from_batches(schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        columns, condition = self.columns, self.condition
        fragments: dict[bool, list[pads.Fragment]] = {True: [], False: []}
        for fragment in self.files.get_fragments():
            fragments[condition is not None and _has_views(fragment.physical_schema)].append(fragment)
        yield from self._of(fragments[False]).scanner(columns=columns, filter=condition).to_batches()
        asked = str(condition)
        needed = [name for name in self.files.schema.names if name in columns or name in asked]
        for batch in self._of(fragments[True]).scanner(columns=needed).to_batches():
            yield from pa.table(batch).filter(condition).select(columns).to_batches()

    def _of(self, fragments: Sequence[pads.Fragment]) -> pads.Dataset:
        return pads.FileSystemDataset(fragments, self.files.schema, self.files.format, self.files.filesystem)


def _has_views(schema: pa.Schema) -> bool:
    return any(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) for kind in schema.types)
