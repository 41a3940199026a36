"""Captures as a Spark data source: ``spark.read.format("msmq_capture").load(paths)``, with their decoded rows.

For a look at captures without a lake. Each file is read on its own: what several captures show of one conversation is
joined only in a lake, and so are the columns that need more than one call, such as ``queue`` of messages.

Options: ``rows`` names the rows to return, a table of bronze that the reader makes (``rpc_calls``, the default, in
short ``calls``; ``connections``, ``rpc_binds``, ``quarantine``, ``pending``, ``capture_files``, and ``pdus``, which no
lake has), or a table of silver that single calls give (``remote_read_calls``, ``management_calls``, ``client_calls``,
``messages``, ``comqc_calls``, ``properties``, ``queue_snapshots``, ``machine_snapshots``). ``keep_packets`` and
``keep_bodies`` (``true`` or ``false``) fill ``packet`` and ``body``. The others are those of the reader:
``reorder_window_s``, ``max_clock_skew_s``, ``tunnel_ports`` (JSON, kind by UDP port), ``block_bytes``,
``max_expansion``, ``max_expanded_bytes``. Files that cannot be read give no rows but one of ``capture_files``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pipeline.bronze.capture_tasks import (
    READ_OPTION_NAMES,
    CaptureSplit,
    group_by_task,
    read_options,
    read_split,
    whole_file_splits,
)
from pipeline.bronze.input_files import list_files
from pipeline.lake.staging_files import StagingWriter
from pipeline.silver.decode import DECODED_TABLES, DecodeFailure, decode_calls_safely
from udfs.capture.capture_reader import BRONZE_SCHEMAS

FORMAT_NAME: Final = "msmq_capture"
_CALLS: Final = "rpc_calls"
_DECODED: Final = {table.name: table for table in DECODED_TABLES}
_ROW_NAMES: Final = {name: name for name in (*BRONZE_SCHEMAS, *_DECODED)} | {"calls": _CALLS}
_PATHS: Final = ("path", "paths")  # set by Spark: one, or several as JSON
_FLAGS: Final = ("keep_packets", "keep_bodies")
_OPTION_NAMES: Final = ("rows", *_FLAGS, *READ_OPTION_NAMES)


class _Options:
    """The options of a read, checked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        texts = {name.lower(): text for name, text in options.items()}
        if unknown := sorted(texts.keys() - {*_OPTION_NAMES, *_PATHS}):
            raise ValueError(f"{FORMAT_NAME}: no option {unknown[0]}; one of {', '.join(_OPTION_NAMES)}")
        rows = texts.get("rows", _CALLS)
        if rows not in _ROW_NAMES:
            raise ValueError(f"{FORMAT_NAME}: rows={rows!r}; one of {', '.join(_ROW_NAMES)}")
        self.rows = _ROW_NAMES[rows]
        self.flags = {name: _flag(name, texts.get(name, "false")) for name in _FLAGS}
        self.paths = json.loads(texts["paths"]) if "paths" in texts else [texts["path"]] if "path" in texts else []
        for name in READ_OPTION_NAMES:
            try:
                read_options({each: text for each, text in texts.items() if each == name})
            except (ValueError, AttributeError) as error:
                raise ValueError(f"{FORMAT_NAME}: {name}={texts[name]!r}: {error}") from error
        self.reader = read_options(texts, all_pdus=self.rows == "pdus")

    @property
    def schema(self) -> StructType:
        """The schema of the rows."""
        if self.rows in _DECODED:
            return from_arrow_schema(to_arrow_schema(_DECODED[self.rows].struct()))
        return from_arrow_schema(BRONZE_SCHEMAS[self.rows])


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{FORMAT_NAME}: {name}={text!r}; true or false")
    return text.lower() == "true"


@dataclass(frozen=True)
class _CapturePartition(InputPartition):
    """The captures that one task reads."""

    splits: tuple[CaptureSplit, ...]


class CaptureDataSourceReader(DataSourceReader):
    """Lists capture files in the driver and reads them in the tasks."""

    def __init__(self, options: _Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return the files at the paths, grouped into tasks."""
        if not self._options.paths:
            raise ValueError(f"{FORMAT_NAME}: which captures? load(path), or load with a list of paths")
        files = list_files(self._options.paths)
        return [_CapturePartition(tuple(splits)) for splits in group_by_task(whole_file_splits(files))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the chosen rows of a task's captures."""
        rows = self._options.rows
        for split in partition.splits if isinstance(partition, _CapturePartition) else ():
            nowhere = StagingWriter(None, split.file.path)
            for kind, batch in read_split(split, self._options.reader, nowhere):
                if kind == rows:
                    yield batch
                elif kind == _CALLS and rows in _DECODED:
                    yield from self._decode(batch)

    def _decode(self, calls: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the decoded rows of calls; a call at which decoding fails has a row with an error."""
        calls = calls.append_column("run_id", pa.nulls(calls.num_rows, pa.string()))
        failures: list[DecodeFailure] = []
        for decoded in decode_calls_safely(calls, failures, **self._options.flags):
            if (
                rows := decoded.get(str(_DECODED[self._options.rows]))
            ) is not None:  # else not even its row could be made
                yield rows


class CaptureDataSource(DataSource):
    """The Spark data source ``msmq_capture``; the option ``rows`` decides its schema."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Return the schema of the rows that the option ``rows`` names."""
        return _Options(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - part of the interface
        """Return the reader for these options."""
        return CaptureDataSourceReader(_Options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - PySpark's interface
        """Refuse: captures that grow, and conversations that go on in the next file, need the state of a lake."""
        raise ValueError(
            f"{FORMAT_NAME}: no readStream; to follow a folder that fills, run ingest_captures or run_all again and"
            " again (each reads what is new), and stream from the lake's tables"
        )


def register_capture_source(spark: SparkSession) -> None:
    """Register the format ``msmq_capture`` with a session, classic or Spark Connect."""
    spark.dataSource.register(CaptureDataSource)
