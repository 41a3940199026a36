"""Arrow tables and Parquet files as Spark frames.

All Arrow data goes to Spark this way, to avoid a fault of Spark 4.1. Files on an object store are read and written by
Spark's tasks with pyarrow: Spark itself would need jars of Hadoop for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pipeline.lake.engine.tasks import PartitionedRows, balance_by_size, task_bytes
from pipeline.lake.lake_path import LakePath, parquet_dataset
from pipeline.lake.queries.duckdb_sql import DataFiles
from pipeline.lake.schema_enforcement import select_fields
from pipeline.lake.storage.log import TableLocations
from schemas.table import Table

_BATCH_ROWS: Final = 10_000  # of those that a task reads at once
# Of rows that this process gives to Spark: serverless compute takes 128 MB (docs.databricks.com, "Serverless compute
# limitations": of createDataFrame).
_MAX_GIVEN_BYTES: Final = 96 << 20
_BROADCAST_BYTES: Final = 10 << 20  # as Spark does with what it knows the size of
_PATTERN_SIGNS: Final = re.compile(r"([\\{}\[\]*?])")


def arrow_to_frame(spark: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return an Arrow table as a Spark frame with all its rows: Spark 4.1 stops reading at the first empty batch.

    A table without rows needs an explicit schema: Spark Connect does not take it from the table.
    """
    batches = [batch for batch in rows.to_batches() if batch.num_rows]
    whole = pa.Table.from_batches(batches, rows.schema) if batches else rows.schema.empty_table()
    if schema is None and not batches:
        schema = from_arrow_schema(rows.schema)
    frames = (
        spark.createDataFrame(part, schema)  # type: ignore[arg-type, call-overload, unused-ignore]  # Arrow since Spark 4
        for part in _parts(whole)
    )
    return reduce(DataFrame.union, frames)


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows, a part of them at a time: as few as Spark takes from this process."""
    if rows.nbytes <= _MAX_GIVEN_BYTES or rows.num_rows < 2:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _parts(rows.slice(0, half))
    yield from _parts(rows.slice(half))


def files_to_frame(spark: SparkSession, files: DataFiles, schema: StructType | None = None) -> DataFrame:
    """Return the rows of data files, which Spark reads without asking Delta for them; ``schema``: with comments."""
    schema = schema or from_arrow_schema(select_fields(files.schema, files.column_names))
    if not files.files:
        rows = spark.createDataFrame([], schema).limit(0)  # of which Spark knows the size
    elif any(file.is_remote for file in files.files):
        rows = _read_in_tasks(spark, files.files, schema)
    else:
        rows = spark.read.schema(schema).parquet(*(_escaped(file.location) for file in files.files))
    return rows if files.where is None else rows.where(files.where)


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


def read_table(
    spark: SparkSession, locations: TableLocations, table: Table, feed: tuple[int, int] | None = None
) -> DataFrame:
    """Return the stored columns of a Delta table, as Spark reads it.

    ``feed``: what changed after its first version, up to its last one, with ``CHANGE_COLUMNS``.
    """
    reader = spark.read.format("delta")
    if feed is not None:
        since, until = feed
        reader = reader.option("readChangeFeed", "true")
        reader = reader.option("startingVersion", since + 1).option("endingVersion", until)
    return reader.load(locations.path(table)) if locations.catalog is None else reader.table(locations.sql_name(table))


def _escaped(path: str) -> str:
    return _PATTERN_SIGNS.sub(r"\\\1", path)
