"""Reads captures as Spark's processes do through the data source msmq_capture."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.data_source.capture_source import CaptureDataSource


def rows_of(capture, **options):
    """Return the rows of a capture; ``options`` are those of the data source."""
    made = CaptureDataSource({"path": str(capture), **options})
    reader = made.reader(made.schema())
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return pa.Table.from_batches(batches, to_arrow_schema(made.schema()))
