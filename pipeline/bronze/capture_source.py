"""Captures as a Spark data source: ``spark.read.format("msmq_capture").load(path)``.

Options: ``rows`` (which rows to return: ``rpc_calls``, the default, another table of the reader, or ``pdus``),
``staging_folder`` (where the rows of all tables go: one Parquet file for each capture and table, named by the capture's
path, so that a repeated task overwrites its own files), and the reader's ``reorder_window_s``, ``max_clock_skew_s``,
``tunnel_ports`` (JSON, kind by port), ``block_bytes``, ``max_expansion`` and ``max_expanded_bytes``. An ingest run
plans which part of which file to read and uses ``build_read_tasks`` instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pipeline.bronze.input_files import InputFile, list_files
from pipeline.bronze.ledger_entries import PlannedRead
from pipeline.lake.staging_files import StagingWriter
from pipeline.lake.tasks import MIN_TASKS, TASK_BYTES, PartitionedRows, balance_by_size
from udfs.capture.capture_reader import (
    BRONZE_SCHEMAS,
    CaptureReadRequest,
    ReadOptions,
    failed_capture_row,
    read_capture_batches,
)
from udfs.tcp.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from udfs.tcp.tunnels import TUNNEL_PORTS

FORMAT_NAME: Final = "msmq_capture"


@dataclass(frozen=True)
class CaptureSplit:
    """A capture file, or the part of it that one task reads."""

    file: InputFile
    part: CaptureReadRequest
    size: int  # bytes to read


@dataclass(frozen=True)
class CapturePartition(InputPartition):
    """The captures that one task reads."""

    splits: tuple[CaptureSplit, ...]


def pack_partitions(splits: list[CaptureSplit]) -> list[CapturePartition]:
    """Distribute captures over tasks of similar size. The bytes, not the files, decide how many tasks there are."""
    total = sum(split.size for split in splits)
    ordered = sorted(splits, key=lambda split: split.file.path)
    groups = balance_by_size(ordered, lambda split: split.size, max(MIN_TASKS, -(-total // TASK_BYTES)))
    return [CapturePartition(tuple(group)) for group in groups]


def whole_file_splits(files: list[InputFile]) -> list[CaptureSplit]:
    """Return splits that read files from beginning to end."""
    return [CaptureSplit(file, CaptureReadRequest(), file.size) for file in files]


def _split_of(read: PlannedRead) -> CaptureSplit:
    capture_id = read.capture_id if read.first_key is not None else None  # else the path's key
    part = CaptureReadRequest(capture_id, read.resume_state, read.reread_endpoints)
    return CaptureSplit(read.file, part, max(read.file.size - read.start_offset, 0))


def time_limits(options: Mapping[str, Any]) -> TimeLimits:
    """Return the limits of time among the options of the data source; defaults for those that are not there."""
    return TimeLimits(*(float(options.get(name, default)) for name, default in DEFAULT_TIME_LIMITS._asdict().items()))


def tunnel_ports(options: Mapping[str, Any]) -> dict[int, str]:
    """Return the kinds of tunnels by UDP port: the usual ones, and those of the data source's options."""
    more = json.loads(options.get("tunnel_ports", "{}"))
    return {**TUNNEL_PORTS, **{int(port): kind for port, kind in more.items()}}


class CaptureDataSourceReader(DataSourceReader):
    """Lists capture files in the driver and reads them in the tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = options.get("rows", "rpc_calls")
        self._staging_folder = options.get("staging_folder")
        self._path = options.get("path")
        defaults = ReadOptions()
        self._options = ReadOptions(
            time_limits(options),
            int(options.get("block_bytes", defaults.block_bytes)),
            int(options.get("max_expansion", defaults.max_expansion_ratio)),
            int(options.get("max_expanded_bytes", defaults.max_expanded_bytes)),
            all_pdus=self._rows == "pdus",
            tunnel_ports=tunnel_ports(options),
        )

    def partitions(self) -> list[CapturePartition]:
        """Return the files at the path, grouped into tasks."""
        if self._path is None:
            raise ValueError("msmq_capture: load(path) is needed")
        return pack_partitions(whole_file_splits(list_files([self._path])))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the chosen rows of a task's captures; write the rows of all tables to the staging folder."""
        for split in partition.splits if isinstance(partition, CapturePartition) else ():
            staging = StagingWriter(self._staging_folder, split.file.path)
            for kind, batch in self._read_split(split, staging):
                staging.add(kind, batch)
                if kind == self._rows:
                    yield batch
            staging.close()

    def _read_split(self, split: CaptureSplit, staging: StagingWriter) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of one capture. If reading it fails, its other rows go, and its row of the ledger says why."""
        source = split.file.capture_source()
        batches = read_capture_batches(source, self._options, split.part)
        while True:
            try:
                rows = next(batches, None)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other captures are read
                staging.discard()
                yield "capture_files", failed_capture_row(source, split.part, error)
                return
            if rows is None:
                return
            yield rows


class CaptureDataSource(DataSource):
    """The Spark data source ``msmq_capture``; the option ``rows`` decides its schema."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Return the schema of the rows that the option ``rows`` names."""
        rows = self.options.get("rows", "rpc_calls")
        if rows not in BRONZE_SCHEMAS:
            raise ValueError(f"msmq_capture: rows={rows!r}; one of {', '.join(BRONZE_SCHEMAS)}")
        return from_arrow_schema(BRONZE_SCHEMAS[rows])

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - part of the interface
        """Return the reader for these options."""
        return CaptureDataSourceReader(self.options)


def register_data_source(spark: SparkSession) -> None:
    """Register the format ``msmq_capture`` with a session."""
    spark.dataSource.register(CaptureDataSource)


def build_read_tasks(
    reads: Sequence[PlannedRead],
    task_file: Path,
    **options: Any,  # noqa: ANN401 - numbers and texts
) -> PartitionedRows:
    """Return the rows of planned reads, a part for each task; ``options`` as in this module's description.

    What each task reads is written to ``task_file``, one line of JSON for each. This replaces the data source: Spark
    asks a data source for its partitions in a Python process of its own, which takes 0.7 s of each run.
    """
    reads_by_path = {read.file.path: read for read in reads}
    partitions = pack_partitions([_split_of(read) for read in reads])
    lines = (
        json.dumps([reads_by_path[split.file.path].to_json_dict() for split in partition.splits])
        for partition in partitions
    )
    task_file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    texts = {name: str(value) for name, value in options.items()}

    def rows(number: int) -> Iterator[pa.RecordBatch]:
        with task_file.open(encoding="utf-8") as file:
            values = json.loads(next(islice(file, number, None)))
        splits = tuple(_split_of(PlannedRead.from_json_dict(each)) for each in values)
        return CaptureDataSourceReader(texts).read(CapturePartition(splits))

    size = sum(split.size for partition in partitions for split in partition.splits)
    return PartitionedRows(len(partitions), size, rows)
