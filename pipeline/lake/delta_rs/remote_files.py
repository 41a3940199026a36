"""Data files on an object store, as DuckDB asks for them: some columns, of the rows that meet a condition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as pads

from pipeline.lake.lake_path import LakePath

_FORMAT: Final = pads.ParquetFileFormat()


def remote_dataset(files: Sequence[LakePath], schema: pa.Schema) -> pads.Dataset:
    """Return the rows of files as a dataset for DuckDB; columns that files do not have are null."""
    return _RemoteFiles([*map(_fragment, files)], schema, _FORMAT, files[0].place[0])


@lru_cache(maxsize=1000)
def _fragment(file: LakePath) -> pads.ParquetFileFragment:
    """Return a file, which keeps what it read of its metadata: files do not change, and a run asks for them often."""
    filesystem, name = file.place
    return _FORMAT.make_fragment(name, filesystem)


class _RemoteFiles(pads.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """A dataset of which DuckDB asks ``scanner`` for rows.

    delta-rs writes texts and bytes as views, which Arrow does not compare. Where files have such columns, these are
    cast before the condition is looked at; in other files Arrow reads only the row groups that may meet it.
    """

    def scanner(
        self, columns: Sequence[str] | None = None, filter: pads.Expression | None = None  # noqa: A002
    ) -> pads.Scanner:  # fmt: skip
        """Return a reader of columns, all by default, of the rows that meet a condition."""
        columns = columns or self.schema.names
        if filter is None:
            return super().scanner(columns=columns)
        schema = pa.schema([self.schema.field(name) for name in columns])
        return pads.Scanner.from_batches(self._filtered(columns, filter), schema=schema)

    def _filtered(self, columns: Sequence[str], condition: pads.Expression) -> Iterator[pa.RecordBatch]:
        fragments = list(self.get_fragments())
        have_views = [_has_views(each.physical_schema) for each in fragments]
        plain, others = (
            self._of([each for each, has_views in zip(fragments, have_views, strict=True) if has_views == wanted])
            for wanted in (False, True)
        )
        yield from plain.scanner(columns=columns, filter=condition).to_batches()
        asked = str(condition)
        needed = [name for name in self.schema.names if name in columns or name in asked]
        for batch in others.scanner(columns=needed).to_batches():
            yield from pa.table(batch).filter(condition).select(columns).to_batches()

    def _of(self, fragments: Sequence[Any]) -> pads.Dataset:
        return pads.FileSystemDataset(fragments, self.schema, self.format, self.filesystem)


def _has_views(schema: pa.Schema) -> bool:
    return any(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) for kind in schema.types)
