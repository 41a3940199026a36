"""The captures that one task of Spark reads, and what the reader yields of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pipeline.bronze.capture_tasks import CaptureSplit, group_by_task, read_split, whole_file_splits
from pipeline.bronze.input_files import InputFile
from pipeline.lake.staging_files import StagingWriter
from udfs.capture.capture_reader import ReadOptions


@dataclass(frozen=True)
class CapturePartition(InputPartition):
    """The captures that one task reads, each from beginning to end."""

    splits: tuple[CaptureSplit, ...]


def capture_partitions(files: list[InputFile]) -> list[InputPartition]:
    """Return files grouped into tasks. No file is cut: one task reads a large one alone."""
    return [CapturePartition(tuple(splits)) for splits in group_by_task(whole_file_splits(files))]


def splits_of(partition: InputPartition) -> tuple[CaptureSplit, ...]:
    """Return the captures of one of ``capture_partitions``."""
    return partition.splits if isinstance(partition, CapturePartition) else ()


def read_rows_with_kind(split: CaptureSplit, options: ReadOptions) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield all rows of a capture, each batch with its kind; of one that cannot be read its row of capture_files."""
    return read_split(split, replace(options, order_first=True), StagingWriter(None, split.file.path))
