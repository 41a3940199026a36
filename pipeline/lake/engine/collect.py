"""Answers of Spark as Arrow tables and batches: the one way in, since what Spark sends may end who looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame


def collect(rows: DataFrame) -> pa.Table:
    """Return a frame's rows as an Arrow table."""
    return whole_lists(rows.toArrow())


def stream(rows: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield a frame's rows in batches; those of one task at a time are in memory."""

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            some, sink = whole_lists(pa.Table.from_batches([batch])), pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, some.schema) as writer:
                writer.write_table(some)
            yield pa.record_batch({"packed": pa.array([sink.getvalue().to_pybytes()], pa.binary())})

    for row in rows.mapInArrow(pack, "packed binary").toLocalIterator():
        yield from pa.ipc.open_stream(row["packed"])


def whole_lists(rows: pa.Table) -> pa.Table:
    """Return rows whose lists have offsets: columns with lists are copied.

    Java sends none for lists of which there is none: those within lists that are all empty, and over Spark Connect
    those of an answer without rows. What reads them, such as ``nbytes`` and ``combine_chunks``, ends the process.
    """
    for place, field in enumerate(rows.schema):
        if pa.types.is_nested(field.type):
            chunks = [chunk.take(pa.array(np.arange(len(chunk)))) for chunk in rows.column(place).chunks]
            rows = rows.set_column(place, field, pa.chunked_array(chunks, field.type))
    return rows
