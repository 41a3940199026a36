"""Answers to queries in files by group, for tasks that compute some groups each (``Lake.map_groups``).

DuckDB answers each query once, in batches. Its rows are spread over slices by a hash of their group, so that rows of
one group are together; a task takes some slices of similar size in all. Rows go from file to file without Java.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.dataset as pads

from pipeline.lake.concurrency import run_concurrently
from pipeline.lake.delta_rs.duckdb_sql import DuckDbSql, Given, quoted
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries import GroupedQuery
from pipeline.lake.tasks import MIN_TASKS, PartitionedRows, balance_by_size

_SLICES: Final = 128  # a few for each task
_SLICE: Final = "_slice"
_TASK_BYTES: Final = 32 << 20  # of a task's files, where there is more than that for each: rows take ten times as much
_FORMAT: Final = pads.IpcFileFormat()
_OPTIONS: Final = _FORMAT.make_write_options(compression="lz4")


@dataclass(frozen=True, slots=True)
class _Part:
    """The files of one query's answer, in a folder for each slice that has rows."""

    folder: LakePath
    schema: pa.Schema

    def sizes(self) -> Counter[int]:
        """Return the bytes of each slice."""
        return Counter({int(each.name): sum(each.files().values()) for each in self.folder.entries()})

    def read(self, numbers: Sequence[int]) -> pa.Table:
        """Return the rows of some slices."""
        files = [file for number in numbers for file in (self.folder / str(number)).files()]
        if not files:
            return self.schema.empty_table()
        rows = pads.dataset([file.place[1] for file in files], self.schema, _FORMAT, files[0].place[0])
        return rows.to_table()


def rows_of_groups(
    sql: DuckDbSql, parts: Mapping[str, tuple[str, Mapping[str, Given]]], query: GroupedQuery, folder: LakePath
) -> PartitionedRows:
    """Return what the function makes of the groups of the answers to ``parts``, whose files are in a new folder."""
    write = {name: partial(_write, sql, *part, query.keys, folder / name) for name, part in parts.items()}
    written, function = run_concurrently(write), query.function
    sizes = sum((part.sizes() for part in written.values()), Counter[int]())
    tasks = balance_by_size(list(sizes), sizes.__getitem__, max(MIN_TASKS, sizes.total() // _TASK_BYTES))

    def rows(number: int) -> Iterator[pa.RecordBatch]:
        yield from function({name: part.read(tasks[number]) for name, part in written.items()}).to_batches()

    return PartitionedRows(len(tasks), sizes.total(), rows, in_tasks=True)


def _write(sql: DuckDbSql, query: str, of: Mapping[str, Given], keys: Sequence[str], folder: LakePath) -> _Part:
    """Write the answer to a query to files."""
    sliced = f"SELECT *, CAST(hash({', '.join(map(quoted, keys))}) % {_SLICES} AS INTEGER) AS {_SLICE} FROM ({query})"
    filesystem, name = folder.place
    folder.make_folder()
    with sql.read_answer(sliced, of) as reader:
        schema = reader.schema
        slices = pads.partitioning(pa.schema([schema.field(_SLICE)]))
        pads.write_dataset(
            reader, name, filesystem=filesystem, format=_FORMAT, file_options=_OPTIONS, partitioning=slices,
            existing_data_behavior="overwrite_or_ignore",
        )  # fmt: skip
    return _Part(folder, schema.remove(schema.get_field_index(_SLICE)))
