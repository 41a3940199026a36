"""What is computed of groups: from answers in memory, or from files of answers by group (``Lake.map_groups``).

DuckDB answers each query once, in batches. Where all are few, they stay in memory. Else their rows are spread over
slices by a hash of their group, so that rows of one group are together; a task takes some slices of similar size in
all. Rows go from file to file without Java. Of tables that only Spark reads, Spark groups the rows itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipeline.arrow_rows import STAGED_ROWS, encode_texts, release_unused_memory
from pipeline.concurrency import run_concurrently
from pipeline.lake.engine.tasks import MIN_TASKS, PartitionedRows, balance_by_size
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.duckdb_sql import DuckDbSql, Given, quoted_for_duckdb
from pipeline.lake.queries.inputs import GroupedQuery, GroupFunction, MemoryLimits, QueryAnswers

_SLICES: Final = 128  # a few for each task
_SLICE: Final = "_slice"
_TASK_BYTES: Final = 96 << 20  # of a task's rows, where there is more than that for each: as objects they take more
_ANSWERS_AT_ONCE: Final = 2  # DuckDB computes each on all cores; each takes some hundred MB
_WRITTEN_BYTES: Final = 16 << 20  # of an answer that are spread over slices at a time
_READ_BYTES: Final = 32 << 20  # of columns that are read at a time, about


@dataclass(frozen=True, slots=True)
class _Part:
    """The file of one query's answer, whose batches have rows of one slice each: which ones, and how many bytes."""

    file: LakePath
    schema: pa.Schema
    batches: Mapping[int, Sequence[int]]
    sizes: Counter[int]

    def read(
        self, slices: Sequence[int], names: Sequence[str], distinct_texts: Collection[str] | None
    ) -> Iterator[pa.Table]:
        """Yield columns of the rows of some slices, of many rows a few at a time: only these are in memory twice.

        ``distinct_texts`` as for ``GroupedQuery``: other texts are dictionaries.
        """
        filesystem, file = self.file.filesystem_and_name
        numbers = sorted(number for each in slices for number in self.batches.get(each, ()))
        places, size = [*map(self.schema.get_field_index, names)], sum(self.sizes[each] for each in slices)
        at_once = max(len(self.schema) * _READ_BYTES // max(size, _READ_BYTES), 1)
        with filesystem.open_input_file(file) as source:
            for begin in range(0, len(places), at_once):
                some = pa.ipc.IpcReadOptions(use_threads=False, included_fields=places[begin : begin + at_once])
                with pa.ipc.open_file(source, options=some) as reader:
                    rows = pa.Table.from_batches(map(reader.get_batch, numbers), reader.schema).combine_chunks()
                yield rows if distinct_texts is None else encode_texts(rows, *distinct_texts)
        if size > _READ_BYTES:
            release_unused_memory()


class _PartsOfTask(QueryAnswers):
    """The rows of some slices, by part; they are read each time that one is looked up."""

    def __init__(
        self, parts: Mapping[str, _Part], slices: Sequence[int], distinct_texts: Collection[str] | None
    ) -> None:
        super().__init__(dict.fromkeys(parts))
        self._parts, self._slices, self._distinct_texts = parts, slices, distinct_texts

    def __getitem__(self, name: str) -> pa.Table:
        return self.select(name, self._parts[name].schema.names)

    def select(self, name: str, columns: Sequence[str]) -> pa.Table:
        found = [*self._parts[name].read(self._slices, columns, self._distinct_texts)]
        arrays = {column: rows[column] for rows in found for column in rows.column_names}
        return pa.table({column: arrays[column] for column in columns})

    def iter_column_chunks(self, name: str) -> Iterator[pa.Table]:
        part = self._parts[name]
        return part.read(self._slices, part.schema.names, self._distinct_texts)


BoundParts: TypeAlias = Mapping[str, tuple[str, Mapping[str, Given]]]
"""Queries by name, each with what its names in braces stand for."""


class _Answer:
    """The answer to one query, with a column for the slice: the batches read first, and a reader of the others."""

    def __init__(self, reader: pa.RecordBatchReader, limits: MemoryLimits) -> None:
        self._schema, self._first, self.is_whole = reader.schema, list[pa.RecordBatch](), False
        self._rest: Iterable[pa.RecordBatch] = reader
        rows = size = 0
        while rows <= limits.rows and size <= limits.bytes:
            batch = next(reader, None)
            if batch is None:
                self._rest, self.is_whole = (), True
                return
            self._first.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes

    def table(self) -> pa.Table:
        """Return the rows of an answer that was read as a whole."""
        rows = pa.Table.from_batches(self._first, self._schema).drop_columns([_SLICE])
        return rows.combine_chunks()

    def write(self, file: LakePath) -> _Part:
        """Write all rows to a new file."""
        schema = self._schema.remove(self._schema.get_field_index(_SLICE))
        batches: defaultdict[int, list[int]] = defaultdict(list)
        sizes: Counter[int] = Counter()
        first, self._first = self._first, []
        file.folder.make_folder()
        with file.open_output() as sink, pa.ipc.new_file(sink, schema, options=STAGED_ROWS) as writer:
            parts = chain.from_iterable(map(_by_slice, _joined(chain(first, self._rest))))
            for count, (number, rows) in enumerate(parts):
                writer.write_batch(rows)
                batches[number].append(count)
                sizes[number] += rows.nbytes
        return _Part(file, schema, dict(batches), sizes)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches joined to ones of about ``_WRITTEN_BYTES``: the rows of a slice are to be many in each."""
    waiting, size = list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _WRITTEN_BYTES:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def _by_slice(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each slice."""
    numbers = batch.column(_SLICE).to_numpy()
    order = np.argsort(numbers, kind="stable")
    rows = batch.drop_columns([_SLICE]).take(pa.array(order))
    slices, begins = np.unique(numbers[order], return_index=True)
    for number, begin, end in zip(slices.tolist(), begins, [*begins[1:], len(order)], strict=True):
        yield number, rows.slice(begin, end - begin)


def answer_groups(
    sql: DuckDbSql, parts: BoundParts, query: GroupedQuery, limits: MemoryLimits, folder: LakePath
) -> dict[str, pa.Table] | PartitionedRows:
    """Return the answers to ``parts`` where they are few, else what the function makes of their groups in tasks.

    Tasks read files in a folder that is made anew.
    """
    ask = {name: partial(_answer, sql, *part, query.keys, limits, folder / name) for name, part in parts.items()}
    answers = run_concurrently(ask, at_once=_ANSWERS_AT_ONCE)
    whole = {name: answer for name, answer in answers.items() if isinstance(answer, _Answer)}
    if len(whole) == len(answers):
        tables = {name: answer.table() for name, answer in whole.items()}
        if sum(rows.nbytes for rows in tables.values()) <= limits.bytes:
            return tables
    written = {name: _written(answer, folder / name) for name, answer in answers.items()}
    function, distinct_texts = query.function, query.distinct_texts
    sizes = sum((part.sizes for part in written.values()), Counter[int]())
    tasks = balance_by_size(list(sizes), sizes.__getitem__, max(MIN_TASKS, sizes.total() // _TASK_BYTES))

    def rows(number: int) -> Iterator[pa.RecordBatch]:
        for table in function(_PartsOfTask(written, tasks[number], distinct_texts)):
            yield from table.to_batches()

    return PartitionedRows(len(tasks), sizes.total(), rows, in_tasks=True)


def _answer(
    sql: DuckDbSql, query: str, of: Mapping[str, Given], keys: Sequence[str], limits: MemoryLimits, file: LakePath
) -> _Answer | _Part:
    """Return the answer to a query where it is few rows, else the new file that it is written to."""
    names = ", ".join(map(quoted_for_duckdb, keys))
    sliced = f"SELECT *, CAST(hash({names}) % {_SLICES} AS INTEGER) AS {_SLICE} FROM ({query})"

    def read() -> _Answer | _Part:
        with sql.read_answer(sliced, of) as reader:
            answer = _Answer(reader, limits)
            return answer if answer.is_whole else answer.write(file)

    return sql.with_enough_memory(read)


def _written(answer: _Answer | _Part, file: LakePath) -> _Part:
    return answer.write(file) if isinstance(answer, _Answer) else answer


def map_groups_in_spark(
    parts: Mapping[str, DataFrame],
    keys: Sequence[str],
    function: GroupFunction,
    schema: StructType,
) -> DataFrame:
    """Return what a function makes of each group: the rows of all parts that have the same values of the keys.

    Each row becomes one value, in a column named like its part: the parts keep columns of their own.
    """
    groups = [f"_group{place}" for place in range(len(keys))]
    packed = [
        frame.select(*(F.col(key).alias(group) for key, group in zip(keys, groups, strict=True)),
                     F.struct(*(F.col(f"`{name}`") for name in frame.columns)).alias(part))
        for part, frame in parts.items()
    ]  # fmt: skip
    names = tuple(parts)

    def of_group(rows: pa.Table) -> pa.Table:
        return pa.concat_tables(function(QueryAnswers({name: _unpacked(rows[name]) for name in names})))

    every = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), packed)
    return every.groupBy(*groups).applyInArrow(of_group, schema)


def _unpacked(packed: pa.ChunkedArray) -> pa.Table:
    """Return the values of a column of rows as a table; without the nulls, which stand for rows of other parts."""
    chunks = [chunk.filter(pc.is_valid(chunk)) for chunk in packed.chunks]
    batches = [pa.RecordBatch.from_struct_array(chunk) for chunk in chunks if len(chunk)]
    return pa.Table.from_batches(batches, pa.schema(list(packed.type)))
