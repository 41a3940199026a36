"""Captures as a Spark data source: ``spark.read.format("msmq_capture").load(paths)``, with their decoded rows.

For a look at captures without a lake. Each file is read on its own, by one task: what several captures show of one
conversation is joined only in a lake, and so are the columns that need more than one capture's calls, such as ``queue``
of messages.

Options: ``rows`` names the rows to return: a table of bronze that the reader makes (``rpc_calls``, the default, in
short ``calls``; ``connections``, ``rpc_binds``, ``session_packets``, ``pings``, ``quarantine``, ``pending``,
``capture_files``, and ``pdus``, which no lake has), or a table of silver that one capture gives
(``remote_read_calls``, ``management_calls``, ``client_calls``, ``messages``, ``comqc_calls``, ``properties``,
``queue_snapshots``, ``machine_snapshots``; ``sessions``, ``sendings``, ``order_acks``). ``columns`` names the columns
to return, separated by commas; what only others need is not decoded. ``keep_packets`` and ``keep_bodies`` (``true`` or
``false``) fill ``packet`` and ``body``. The others are those of the reader: ``reorder_window_s``,
``max_clock_skew_s``, ``tunnel_ports`` (JSON, kind by UDP port), ``block_bytes``, ``max_expansion``,
``max_expanded_bytes``. Files that cannot be read give no rows but one of ``capture_files``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.data_source.capture_rows import capture_rows
from pipeline.data_source.file_stream import CaptureStreamReader
from pipeline.data_source.options import FORMAT_NAME, CaptureOptions
from pipeline.data_source.partitions import capture_partitions, read_rows_with_kind, splits_of


class CaptureDataSourceReader(DataSourceReader):
    """Lists capture files in the driver and reads them in the tasks."""

    def __init__(self, options: CaptureOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return the files at the paths, grouped into tasks."""
        return capture_partitions(self._options.files())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the chosen rows of a task's captures."""
        for split in splits_of(partition):
            yield from capture_rows(read_rows_with_kind(split, self._options.reader), self._options)


class CaptureDataSource(DataSource):
    """The Spark data source ``msmq_capture``; the options ``rows`` and ``columns`` decide its schema."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Return the schema of the rows that the options name."""
        return CaptureOptions(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - part of the interface
        """Return the reader for these options."""
        return CaptureDataSourceReader(CaptureOptions(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - PySpark's interface
        """Return the reader of a stream for these options."""
        return CaptureStreamReader(CaptureOptions(self.options))


def register_capture_source(spark: SparkSession) -> None:
    """Register the format ``msmq_capture`` with a session, classic or Spark Connect."""
    spark.dataSource.register(CaptureDataSource)
