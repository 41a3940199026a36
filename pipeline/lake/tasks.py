"""Things of different sizes spread over tasks, so that these are alike in size, and the rows that tasks give.

Tasks run in Spark, or where they are little in this process: where that has just begun, Spark takes two seconds to
start tasks of Python.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

LEAST_TASKS: Final = 8  # where there is enough: a task for each core of a small machine, and some to balance
TASK_BYTES: Final = 64 << 20  # of one task, where there is more than that for each
HERE_BYTES: Final = 128 << 20  # of all tasks that are done in this process

Thing = TypeVar("Thing")


def spread(things: Sequence[Thing], size: Callable[[Thing], int], count: int) -> list[list[Thing]]:
    """Return so many lists of things, or fewer where there are fewer: the largest first to where there is least."""
    lists: list[list[Thing]] = [[] for _ in range(min(len(things), count))]
    least = [(0, 0, number) for number in range(len(lists))]  # bytes, things, number of a list; a heap
    for thing in sorted(things, key=size, reverse=True):
        held, several, number = least[0]
        lists[number].append(thing)
        heapq.heapreplace(least, (held + size(thing), several + 1, number))
    return lists


@dataclass(frozen=True, slots=True)
class Tasks:
    """Rows in so many parts, each given by a function of its number, from 0; ``size``: of about how many bytes."""

    count: int
    size: int
    rows: Callable[[int], Iterable[pa.RecordBatch]]

    @property
    def are_little(self) -> bool:
        """Whether they are done here sooner."""
        return self.size <= HERE_BYTES

    def here(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all parts, one after the other."""
        for number in range(self.count):
            yield from self.rows(number)

    def frame(self, spark: SparkSession, schema: StructType) -> DataFrame:
        """Return the rows as a frame, each part made by a task."""

        def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column("id").to_pylist():
                    yield from self.rows(number)

        return spark.range(0, self.count, 1, max(self.count, 1)).mapInArrow(read, schema)

    def table(self, spark: SparkSession, schema: StructType) -> pa.Table:
        """Return the rows, here."""
        if self.are_little:
            return pa.Table.from_batches(self.here(), to_arrow_schema(schema))
        return self.frame(spark, schema).toArrow()


def ahead(things: Iterable[Thing]) -> Iterator[Thing]:
    """Yield things as they are; the next one is made by a thread while one is used."""
    each, nothing = iter(things), object()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, each, nothing)
        while (thing := following.result()) is not nothing:
            following = pool.submit(next, each, nothing)
            yield thing  # type: ignore[misc]
