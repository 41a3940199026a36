"""Things of different sizes spread over tasks, so that these are alike in size, and the rows that such tasks give."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

LEAST_TASKS: Final = 8  # where there is enough: a task for each core of a small machine, and some to balance
TASK_BYTES: Final = 64 << 20  # of one task, where there is more than that for each

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


def in_tasks(
    spark: SparkSession, count: int, schema: StructType, rows: Callable[[int], Iterable[pa.RecordBatch]]
) -> DataFrame:
    """Return the rows of so many tasks as a frame: each gives those of its number, from 0."""

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                yield from rows(number)

    return spark.range(0, count, 1, max(count, 1)).mapInArrow(read, schema)
