"""Data source of generated rows, to measure how fast Spark and Delta can write: the limit for the capture reader."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from bench.traffic import BODY_POOL, EPOCH_US

FORMAT = "bench_limit"
BATCH_BYTES = 4 << 20
EVENT_DATE = dt.datetime.fromtimestamp(EPOCH_US // 1_000_000, dt.UTC).date()
UNIQUE_COLUMNS = ("call_key",)  # all other text columns have repeated values, as in a capture


@dataclass
class TaskRows(InputPartition):
    """Partition of one task: the number of rows to generate."""

    rows: int


def _binary_column(rows: int, size: int, shift: int) -> pa.Array:
    """Return ``rows`` values of ``size`` bytes from the body pool, without copying each."""
    pool = BODY_POOL[shift:] + BODY_POOL[:shift]
    data = (pool * (rows * size // len(pool) + 1))[: rows * size]
    offsets = pa.array(range(0, rows * size + 1, size) if size else [0] * (rows + 1), pa.int32())
    return pa.Array.from_buffers(pa.binary(), rows, [None, offsets.buffers()[1], pa.py_buffer(data)])


class LimitReader(DataSourceReader):
    """Generates rows of a schema, with given numbers of tasks, rows and stub bytes."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._schema = schema
        self._tasks, self._rows = int(options["tasks"]), int(options["rows"])
        self._sizes = {"request_stub": int(options["request_bytes"]), "response_stub": int(options["response_bytes"])}

    def partitions(self) -> list[InputPartition]:
        each, more = divmod(self._rows, self._tasks)
        return [TaskRows(each + (task < more)) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskRows)
        left = partition.rows
        size = sum(self._sizes.values()) + 400
        shift = int.from_bytes(os.urandom(2), "little")
        while left:
            rows = min(left, max(BATCH_BYTES // size, 1))
            left -= rows
            shift = (shift + 4099) % len(BODY_POOL)
            yield self._batch(rows, shift)

    def _batch(self, rows: int, shift: int) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        for field in self._schema.fields:
            name, kind = field.name, field.dataType
            if name in self._sizes:
                columns[name] = _binary_column(rows, self._sizes[name], shift)
            elif isinstance(kind, (BinaryType, ArrayType, StructType)):
                columns[name] = pa.nulls(rows, to_arrow_type(kind))
            elif name in UNIQUE_COLUMNS:
                columns[name] = pa.array([os.urandom(16).hex() for _ in range(rows)], pa.string())
            elif isinstance(kind, StringType):
                columns[name] = pa.array([f"{name}-{shift % 50}"] * rows, pa.string())
            elif isinstance(kind, TimestampType):
                at = EPOCH_US + shift * 1000
                columns[name] = pa.array(range(at, at + rows), pa.timestamp("us", tz="UTC"))
            elif isinstance(kind, DateType):
                columns[name] = pa.array([EVENT_DATE] * rows, pa.date32())
            elif isinstance(kind, BooleanType):
                columns[name] = pa.array([True] * rows, pa.bool_())
            elif isinstance(kind, (IntegerType, LongType)):
                arrow = pa.int32() if isinstance(kind, IntegerType) else pa.int64()
                columns[name] = pa.array(range(shift, shift + rows), arrow)
            else:
                raise TypeError(f"{name}: {kind}")
        return pa.RecordBatch.from_pydict(columns)


class LimitSource(DataSource):
    """Spark data source ``bench_limit``. Its options are tasks, rows, request_bytes and response_bytes."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        raise NotImplementedError("give the schema with schema()")

    def reader(self, schema: StructType) -> DataSourceReader:
        return LimitReader(schema, self.options)


def register_source(spark: SparkSession) -> None:
    """Register the data source in a session."""
    spark.dataSource.register(LimitSource)
