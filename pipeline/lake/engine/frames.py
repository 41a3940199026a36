"""Arrow tables and Parquet files as Spark frames.

All Arrow data goes to Spark this way, to avoid a fault of Spark 4.1. Files on an object store are read and written by
Spark's tasks with pyarrow: Spark itself would need jars of Hadoop for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pipeline.lake.engine.tasks import PartitionedRows, balance_by_size, task_bytes
from pipeline.lake.lake_path import LakePath, parquet_dataset
from pipeline.lake.staging_files import StagingWriter, task_number

_BATCH_ROWS: Final = 10_000  # of those that a task reads at once
_BROADCAST_BYTES: Final = 10 << 20  # as Spark does with what it knows the size of
_PATTERN_SIGNS: Final = re.compile(r"([\\{}\[\]*?])")


def arrow_to_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return an Arrow table as a Spark frame with all its rows: Spark 4.1 stops reading at the first empty batch.

    A table without rows needs an explicit schema: Spark Connect does not take it from the table.
    """
    batches = [batch for batch in rows.to_batches() if batch.num_rows]
    whole = pa.Table.from_batches(batches, rows.schema) if batches else rows.schema.empty_table()
    schema = None if batches else from_arrow_schema(rows.schema)
    return spark.createDataFrame(whole, schema)  # type: ignore[arg-type, call-overload, unused-ignore]  # Arrow since Spark 4


def values_to_frame(spark: SparkSession, values: Iterable[str], name: str) -> DataFrame:
    """Return texts as a frame of one sorted column."""
    return arrow_to_frame(spark, pa.table({name: pa.array(sorted(values), pa.string())}))


def read_parquet_files(spark: SparkSession, sizes: Mapping[LakePath, int], schema: StructType) -> DataFrame:
    """Return the rows of Parquet files, told with their bytes; columns that a file does not have are null."""
    if any(file.is_remote for file in sizes):
        return _read_in_tasks(spark, sizes, schema)
    return spark.read.schema(schema).parquet(*(_escaped(file.location) for file in sizes))


def _read_in_tasks(spark: SparkSession, sizes: Mapping[LakePath, int], schema: StructType) -> DataFrame:
    """Return the rows of files that tasks read with pyarrow, each some of them."""
    total, wanted = sum(sizes.values()), to_arrow_schema(schema)
    tasks = balance_by_size(list(sizes), sizes.__getitem__, -(-total // task_bytes(total)))

    def rows(number: int) -> Iterator[pa.RecordBatch]:
        batches = parquet_dataset(tasks[number], wanted).to_batches(
            batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1
        )
        return (batch for batch in batches if batch.num_rows)

    frame = PartitionedRows(len(tasks), total, rows).frame(spark, schema)
    # Spark does not know how large it is, and would send it to all tasks where it is joined.
    return frame if total <= _BROADCAST_BYTES else frame.hint("merge")


def write_parquet_folder(rows: DataFrame, folder: LakePath) -> None:
    """Write a frame's rows to Parquet files in a new folder."""
    if not folder.is_remote:
        rows.write.mode("overwrite").option("compression", "snappy").parquet(folder.location)
        return

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        staging = StagingWriter(str(folder.folder), task_number())
        for batch in batches:
            staging.add(folder.name, batch)
        staging.close()
        yield from ()

    rows.mapInArrow(write, "nothing int").collect()


def change_feed(spark: SparkSession, since: int, until: int) -> DataFrameReader:
    """Return Spark's reader of the changes of a Delta table after a version, up to a later one."""
    feed = spark.read.format("delta").option("readChangeFeed", "true")
    return feed.option("startingVersion", since + 1).option("endingVersion", until)


def _escaped(path: str) -> str:
    return _PATTERN_SIGNS.sub(r"\\\1", path)
