"""Rows that Spark computes group by group, of tables that it stores (``Lake.map_groups``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipeline.lake.queries.inputs import GroupFunction, Parts


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
        return pa.concat_tables(function(Parts({name: _unpacked(rows[name]) for name in names})))

    every = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), packed)
    return every.groupBy(*groups).applyInArrow(of_group, schema)


def _unpacked(packed: pa.ChunkedArray) -> pa.Table:
    """Return the values of a column of rows as a table; without the nulls, which stand for rows of other parts."""
    chunks = [chunk.filter(pc.is_valid(chunk)) for chunk in packed.chunks]
    batches = [pa.RecordBatch.from_struct_array(chunk) for chunk in chunks if len(chunk)]
    return pa.Table.from_batches(batches, pa.schema(list(packed.type)))
