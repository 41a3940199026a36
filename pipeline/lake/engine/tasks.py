"""Work split into parts of similar size, and the rows of such parts, computed by tasks or in this process.

Who computes tasks is decided here (``PartitionedRows.table``): Spark; or this process, one after the other, where the
engine is ``local``, and where they are small.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pipeline.lake.engine.collect import collect
from pipeline.lake.engine.sessions import LazySession

MIN_TASKS: Final = 8  # where the work suffices: the cores of a small machine, and some to balance
TASK_BYTES: Final = 64 << 20  # of one task, where there is more than that for each
_LEAST_TASK_BYTES: Final = 4 << 20
MAX_DRIVER_BYTES: Final = 128 << 20  # of all tasks that are done in this process

Item = TypeVar("Item")


def balance_by_size(things: Sequence[Item], size: Callable[[Item], int], count: int) -> list[list[Item]]:
    """Return items in at most ``count`` lists of similar size: the largest item first, each to the smallest list."""
    lists: list[list[Item]] = [[] for _ in range(min(len(things), count))]
    least = [(0, 0, number) for number in range(len(lists))]  # bytes, things, number of a list; a heap
    for thing in sorted(things, key=size, reverse=True):
        held, several, number = least[0]
        lists[number].append(thing)
        heapq.heapreplace(least, (held + size(thing), several + 1, number))
    return lists


def task_bytes(total: int) -> int:
    """Return how many bytes a task takes, of so many in all."""
    return min(max(total // MIN_TASKS, _LEAST_TASK_BYTES), TASK_BYTES)


@dataclass(frozen=True, slots=True)
class PartitionedRows:
    """Rows in numbered parts, each given by a function of its number from 0; ``size`` is about their bytes.

    ``in_tasks``: they are computed by tasks, however few bytes they have.
    """

    part_count: int
    size: int
    read_part: Callable[[int], Iterable[pa.RecordBatch]]
    in_tasks: bool = False

    @property
    def fits_in_driver(self) -> bool:
        """Whether they are small: whatever the engine, the driver computes them in one go."""
        return self.size <= MAX_DRIVER_BYTES and not self.in_tasks

    def followed_by(self, more: pa.Table) -> PartitionedRows:
        """Return these rows with a part more."""
        last, batches, read = self.part_count, more.to_batches(), self.read_part
        return replace(self, part_count=last + 1, read_part=lambda number: batches if number == last else read(number))

    def read_in_driver(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all parts, one after the other."""
        for number in range(self.part_count):
            yield from self.read_part(number)

    def frame(self, spark: SparkSession, schema: StructType) -> DataFrame:
        """Return the rows as a Spark frame; each part is computed by a task."""

        def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column("id").to_pylist():
                    yield from self.read_part(number)

        return spark.range(0, self.part_count, 1, max(self.part_count, 1)).mapInArrow(read, schema)

    def table(self, session: LazySession, schema: StructType) -> pa.Table:
        """Return the rows as an Arrow table in the driver, computed by whoever computes tasks."""
        if self.fits_in_driver or session.engine == "local":
            return pa.Table.from_batches(self.read_in_driver(), to_arrow_schema(schema))
        return collect(self.frame(session.spark, schema))
