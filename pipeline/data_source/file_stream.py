"""Captures as a stream: a micro-batch reads all files that are new, and the offsets name the files that were read.

What was read cannot be taken back: a stream whose files change or go away does not show them any more. So it fails,
before the next micro-batch is begun, and goes on when the files are as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pipeline.bronze.input_files import InputFile, find_file
from pipeline.data_source.capture_rows import ReaderRows, capture_rows
from pipeline.data_source.options import FORMAT_NAME, CaptureOptions
from pipeline.data_source.partitions import capture_partitions, read_rows_with_kind, splits_of
from schemas.bronze import CAPTURE_FILES

MAX_FILES: Final = 100_000
"""Files that an offset names. Spark keeps the offsets of its latest micro-batches, each with all names."""
_NOT_READ: Final = ("unreadable", "resource_limit")  # damage of bronze.capture_files: another time it may be read

Offset: TypeAlias = dict[str, Any]
"""``{"files": {path: [size in bytes, modification time in microseconds since 1970 or None]}}``, sorted by path."""


class CaptureStreamReader(DataSourceStreamReader):
    """Lists new files in the driver, and reads them in the tasks, each exactly as it was listed."""

    def __init__(self, options: CaptureOptions) -> None:
        self._options = options
        self._read: Offset = self.initialOffset()

    def initialOffset(self) -> Offset:  # noqa: N802 - PySpark's interface
        """Return the offset before the first micro-batch."""
        return {"files": {}}

    def latestOffset(self) -> Offset:  # noqa: N802 - PySpark's interface
        """Return what is at the paths now; ValueError if a file that was read has changed or is gone, or for too many.

        Spark tells before how far the checkpoint is, by ``partitions`` with that offset as beginning and end.
        """
        found = _offset_of(self._options.files())
        _refuse_changes(self._read, found)
        return found

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the files that are new at the end, grouped into tasks."""
        _refuse_changes(start, end)
        self._read = end
        new = [
            InputFile(path, size, modified_us)
            for path, (size, modified_us) in end["files"].items()
            if path not in start["files"]
        ]
        return capture_partitions(new) if new else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the chosen rows of a task's files; ValueError for one that has changed, is gone or cannot be read."""
        for split in splits_of(partition):
            _require_unchanged(split.file)
            yield from capture_rows(_read_for_sure(read_rows_with_kind(split, self._options.reader)), self._options)
            _require_unchanged(split.file)


def _offset_of(files: Iterable[InputFile]) -> Offset:
    names = {file.path: [file.size, file.modified_us] for file in files}
    if len(names) > MAX_FILES:
        raise ValueError(
            f"{FORMAT_NAME}: {len(names):,} files, and a stream can tell {MAX_FILES:,} apart: read folders of fewer"
            " files by streams of their own, or fill a lake"
        )
    return {"files": names}


def _refuse_changes(before: Offset, now: Offset) -> None:
    """Raise ValueError for the first file that was read before and has changed, or is gone."""
    for path, state in before["files"].items():
        if path not in now["files"]:
            raise ValueError(_refusal(path, "is gone"))
        if now["files"][path] != state:
            raise ValueError(_refusal(path, "has changed"))


def _require_unchanged(file: InputFile) -> None:
    now = find_file(file.path)
    if now != file:
        raise ValueError(_refusal(file.path, "is gone" if now is None else "has changed"))


def _refusal(path: str, what: str) -> str:
    return f"{FORMAT_NAME}: {path} {what} since the stream listed it; put it back, or begin with a new checkpoint"


def _read_for_sure(read: ReaderRows) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield what is read of a capture; ValueError if it could not be opened, or for want of memory, disk or time."""
    for kind, batch in read:
        if kind == CAPTURE_FILES.name and batch["damage"][0].as_py() in _NOT_READ:
            raise ValueError(f"{FORMAT_NAME}: {batch['path'][0].as_py()} cannot be read: {batch['error'][0].as_py()}")
        yield kind, batch
