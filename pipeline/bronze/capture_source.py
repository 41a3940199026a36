"""Captures as rows in Spark, one task per file or pack of small ones: ``spark.read.format("msmq_capture").load(path)``.

Options: ``rows`` (what the rows are: ``rpc_calls``, the default, or another table of the reader, or ``pdus``), ``side``
(a folder for the rows of all tables: one Parquet file for each capture and table, named by the capture's path, so that
a repeated task does no harm), and the reader's ``reorder_window_s``, ``block_bytes``, ``max_expansion``,
``max_expanded_bytes``. A run of the pipeline, which knows what it reads of which file, uses ``read_captures``.
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

from pipeline.bronze.input_files import Listed, list_files
from pipeline.bronze.ledger_entries import Read
from pipeline.lake.staging_files import SideFiles
from pipeline.lake.tasks import LEAST_TASKS, TASK_BYTES, Tasks, spread
from udfs.capture.reader import SCHEMAS, Options, Part, capture_batches

FORMAT: Final = "msmq_capture"


@dataclass(frozen=True)
class Reading:
    """One capture to be read: its file, and the part of it where not all is read."""

    file: Listed
    part: Part
    size: int  # bytes that are read


@dataclass(frozen=True)
class Pack(InputPartition):
    """The captures of one task."""

    readings: tuple[Reading, ...]


def pack(readings: list[Reading]) -> list[Pack]:
    """Spread files over tasks, the largest first to where there is least, so that tasks are alike in size.

    There are as many tasks as the bytes ask for, not as many as small files.
    """
    total = sum(reading.size for reading in readings)
    in_order = sorted(readings, key=lambda reading: reading.file.path)
    packs = spread(in_order, lambda reading: reading.size, max(LEAST_TASKS, -(-total // TASK_BYTES)))
    return [Pack(tuple(several)) for several in packs]


def whole(files: list[Listed]) -> list[Reading]:
    """Return readings of whole files."""
    return [Reading(file, Part(), file.size) for file in files]


def _reading(read: Read) -> Reading:
    # A file that cannot be read has no packet: its key is that of its path, whatever it may become.
    capture_id = read.capture_id if read.first_key is not None else None
    return Reading(read.file, Part(capture_id, read.resume, read.followed), max(read.file.size - read.start, 0))


class CaptureReader(DataSourceReader):
    """Reads captures in the tasks; the driver only lists files."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = options.get("rows", "rpc_calls")
        self._side = options.get("side")
        self._path = options.get("path")
        defaults = Options()
        self._options = Options(
            float(options.get("reorder_window_s", defaults.reorder_window_s)),
            int(options.get("block_bytes", defaults.block_bytes)),
            int(options.get("max_expansion", defaults.max_expansion)),
            int(options.get("max_expanded_bytes", defaults.max_expanded_bytes)),
            all_pdus=self._rows == "pdus",
        )

    def partitions(self) -> list[Pack]:
        """Return the tasks: packs of the files that the path names."""
        if self._path is None:
            raise ValueError("msmq_capture: load(path) is needed")
        return pack(whole(list_files([self._path])))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's captures; those of all tables go to the side folder."""
        for reading in partition.readings if isinstance(partition, Pack) else ():
            side = SideFiles(self._side, reading.file.path)
            for kind, batch in capture_batches(reading.file.source(), self._options, reading.part):
                side.add(kind, batch)
                if kind == self._rows:
                    yield batch
            side.close()


class CaptureSource(DataSource):
    """The data source; its schema is that of the table that ``rows`` names."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the rows asked for."""
        rows = self.options.get("rows", "rpc_calls")
        if rows not in SCHEMAS:
            raise ValueError(f"msmq_capture: rows={rows!r}; one of {', '.join(SCHEMAS)}")
        return from_arrow_schema(SCHEMAS[rows])

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - the interface gives it
        """Return the reader of these options."""
        return CaptureReader(self.options)


def register(spark: SparkSession) -> None:
    """Make ``msmq_capture`` known to a session."""
    spark.dataSource.register(CaptureSource)


def read_captures(reads: Sequence[Read], tasks: Path, **options: Any) -> Tasks:  # noqa: ANN401 - numbers and texts
    """Return the tasks that give the rows of what a run reads; ``options`` as in this module's description.

    ``tasks`` is the file to write what each task reads to, a line of JSON for each. Spark asks a data source for its
    tasks in a Python of its own, which loads all modules first: 0.7 s of each run.
    """
    known = {read.file.path: read for read in reads}
    packs = pack([_reading(read) for read in reads])
    lines = (json.dumps([known[reading.file.path].values() for reading in each.readings]) for each in packs)
    tasks.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    chosen = {name: str(value) for name, value in options.items()}

    def rows(number: int) -> Iterator[pa.RecordBatch]:
        with tasks.open(encoding="utf-8") as file:
            several = json.loads(next(islice(file, number, None)))
        return CaptureReader(chosen).read(Pack(tuple(_reading(Read.of(values)) for values in several)))

    return Tasks(len(packs), sum(reading.size for each in packs for reading in each.readings), rows)
