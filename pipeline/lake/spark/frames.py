"""Arrow tables as Spark frames. All Arrow data goes to Spark this way, to avoid a fault of Spark 4.1."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

_PATTERN_SIGNS: Final = re.compile(r"([\\{}\[\]*?])")


def arrow_to_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return an Arrow table as a Spark frame with all its rows: Spark 4.1 stops reading at the first empty batch.

    A table without rows needs an explicit schema: Spark Connect does not take it from the table.
    """
    batches = [batch for batch in rows.to_batches() if batch.num_rows]
    whole = pa.Table.from_batches(batches, rows.schema) if batches else rows
    schema = None if batches else from_arrow_schema(rows.schema)
    return spark.createDataFrame(whole, schema)  # type: ignore[arg-type, call-overload, unused-ignore]  # Arrow since Spark 4


def values_to_frame(spark: SparkSession, values: Iterable[str], name: str) -> DataFrame:
    """Return texts as a frame of one sorted column."""
    return arrow_to_frame(spark, pa.table({name: pa.array(sorted(values), pa.string())}))


def read_parquet_folder(spark: SparkSession, folder: str, schema: StructType | None = None) -> DataFrame:
    """Return the rows of Parquet files in a folder; its name is no pattern, which it is for Spark's reader."""
    reader = spark.read if schema is None else spark.read.schema(schema)
    return reader.parquet(_escaped(folder))


def read_parquet_files(spark: SparkSession, files: Iterable[str], schema: StructType) -> DataFrame:
    """Return the rows of Parquet files; columns that a file does not have are null."""
    return spark.read.schema(schema).parquet(*map(_escaped, files))


def change_feed(spark: SparkSession, since: int, until: int) -> DataFrameReader:
    """Return Spark's reader of the changes of a Delta table after a version, up to a later one."""
    feed = spark.read.format("delta").option("readChangeFeed", "true")
    return feed.option("startingVersion", since + 1).option("endingVersion", until)


def _escaped(path: str) -> str:
    return _PATTERN_SIGNS.sub(r"\\\1", path)
