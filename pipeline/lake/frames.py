"""Arrow tables as Spark frames. All that is given to Spark goes this way, for it leaves out what it should not."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema


def frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return a table as a frame, whole: Spark (4.1) reads an Arrow table no further than its first empty batch.

    One without rows needs its schema said: Spark Connect does not take it from the table.
    """
    batches = [batch for batch in rows.to_batches() if batch.num_rows]
    whole = pa.Table.from_batches(batches, rows.schema) if batches else rows
    schema = None if batches else from_arrow_schema(rows.schema)
    return spark.createDataFrame(whole, schema)  # type: ignore[arg-type, call-overload, unused-ignore]  # Arrow since Spark 4


def column_of(spark: SparkSession, values: Iterable[str], name: str) -> DataFrame:
    """Return values as a frame of one column, sorted."""
    return frame(spark, pa.table({name: pa.array(sorted(values), pa.string())}))
