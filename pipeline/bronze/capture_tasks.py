"""Read capture files in tasks of similar size: all rows of the reader, from whole files or parts of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.input_files import InputFile
from pipeline.bronze.ledger_entries import PlannedRead
from pipeline.bronze.read_progress import MarkedSource, mark_path
from pipeline.lake.engine.tasks import MIN_TASKS, TASK_BYTES, PartitionedRows, balance_by_size
from pipeline.lake.lake_path import LakePath
from pipeline.lake.staging_files import StagingWriter
from udfs.capture.capture_reader import (
    VOID,
    CaptureReadRequest,
    ReadOptions,
    failed_capture_row,
    read_capture_batches,
)
from udfs.errors import is_resource_failure
from udfs.files.file_source import FileSource
from udfs.prefetch import prefetch
from udfs.tcp.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from udfs.tcp.tunnels import TUNNEL_PORTS


@dataclass(frozen=True)
class CaptureSplit:
    """A capture file, or a part of it, that one task reads; ``name`` tells it from the others, ``size``: in bytes."""

    file: InputFile
    part: CaptureReadRequest
    size: int
    name: str

    def capture_source(self) -> FileSource:
        """Return a source that opens the file; in the ledger's row of the split, ``path`` is its name."""
        return replace(self.file.capture_source(), path=self.name)


def group_by_task(splits: list[CaptureSplit]) -> list[list[CaptureSplit]]:
    """Distribute captures over tasks of similar size. The bytes, not the files, decide how many tasks there are."""
    total = sum(split.size for split in splits)
    ordered = sorted(splits, key=lambda split: split.name)
    return balance_by_size(ordered, lambda split: split.size, max(MIN_TASKS, -(-total // TASK_BYTES)))


def whole_file_splits(files: list[InputFile]) -> list[CaptureSplit]:
    """Return splits that read files from beginning to end."""
    return [CaptureSplit(file, CaptureReadRequest(), file.size, file.path) for file in files]


def split_of(read: PlannedRead, clock: IngestClock) -> CaptureSplit:
    """Return the split that a planned read means; times that are ahead of ``clock`` are not used."""
    capture_id = read.capture_id if read.first_key is not None else None  # else the path's key
    latest_ns = clock.latest_us(read.ingested_us) * 1000
    part = CaptureReadRequest(capture_id, read.resume_state, read.reread_endpoints, latest_ns, read.end_offset)
    return CaptureSplit(read.file, part, read.size, read.name)


def time_limits(options: Mapping[str, Any]) -> TimeLimits:
    """Return the limits of time among the reader's options (``read_options``)."""
    return TimeLimits(*(float(options.get(name, default)) for name, default in DEFAULT_TIME_LIMITS._asdict().items()))


def read_options(options: Mapping[str, Any], *, all_pdus: bool = False) -> ReadOptions:
    """Return the reader's options from numbers or texts by name; defaults for those that are not there.

    The names are ``READ_OPTION_NAMES``; ``tunnel_ports`` is JSON, kinds of tunnels by UDP port, beside the usual ones.
    """
    defaults = ReadOptions()
    more = json.loads(options.get("tunnel_ports", "{}"))
    return ReadOptions(
        time_limits(options),
        int(options.get("block_bytes", defaults.block_bytes)),
        int(options.get("max_expansion", defaults.max_expansion_ratio)),
        int(options.get("max_expanded_bytes", defaults.max_expanded_bytes)),
        all_pdus=all_pdus,
        tunnel_ports={**TUNNEL_PORTS, **{int(port): kind for port, kind in more.items()}},
    )


READ_OPTION_NAMES: Final = (
    *DEFAULT_TIME_LIMITS._fields, "tunnel_ports", "block_bytes", "max_expansion", "max_expanded_bytes"
)  # fmt: skip


def read_split(
    split: CaptureSplit,
    options: ReadOptions,
    staging: StagingWriter,
    source: FileSource | None = None,
    *,
    may_be_read_again: bool = False,
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of one capture, each batch with its kind; write those of all kinds to the staging files.

    ``source``: by default the split's file. Where the capture's times go back, rows are yielded again; whoever needs
    them once asks for ``ReadOptions.order_first``.
    If reading it or writing its rows fails, these are removed from the staging files, and its row of the ledger says
    why. With ``may_be_read_again`` there is no such row for want of memory, disk or time.
    """
    source = source or split.capture_source()
    try:
        for kind_and_rows in prefetch(read_capture_batches(source, options, split.part)):  # it is written meanwhile
            if kind_and_rows[0] == VOID:
                staging.discard()
                continue
            staging.add(*kind_and_rows)
            yield kind_and_rows
        staging.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other captures are read
        staging.discard()
        if may_be_read_again and is_resource_failure(error):
            return
        yield "capture_files", stage_failure(split, staging, error)


def stage_failure(split: CaptureSplit, staging: StagingWriter, error: Exception) -> pa.RecordBatch:
    """Publish the row of the ledger that says why a capture could not be read, and return it."""
    failed = failed_capture_row(split.capture_source(), split.part, error)
    staging.add("capture_files", failed)
    staging.close()
    return failed


def build_read_tasks(
    reads: Sequence[PlannedRead],
    task_file: LakePath,
    clock: IngestClock,
    *,
    rows: str = "rpc_calls",
    staging_folder: str | None = None,
    marks: LakePath | None = None,
    **options: Any,  # noqa: ANN401 - numbers and texts
) -> PartitionedRows:
    """Return the rows of planned reads, a part for each task; ``options`` as ``read_options`` takes them.

    Tasks read captures whatever their size: what is tried with a small one is what runs with large ones.

    ``rows`` is the kind that is returned. Those of all kinds go to ``staging_folder``: one Parquet file for each read
    and kind, named by the read, so that a repeated task overwrites its own files; ``path`` in the ledger's rows is the
    read's name too. What each task reads is written to ``task_file``, one line of JSON for each. A capture is marked in
    the folder ``marks`` while it is read; it stays marked, without rows, if that fails for want of memory, disk or
    time. Times that are ahead of ``clock`` are not used.
    """
    reads_by_name = {read.name: read for read in reads}
    tasks = group_by_task([split_of(read, clock) for read in reads])
    lines = (json.dumps([reads_by_name[split.name].to_json_dict() for split in task]) for task in tasks)
    task_file.write_text("".join(f"{line}\n" for line in lines))
    texts = {name: str(value) for name, value in options.items()}

    def rows_of_task(number: int) -> Iterator[pa.RecordBatch]:
        values = json.loads(task_file.read_text().split("\n")[number])
        for read in map(PlannedRead.from_json_dict, values):
            split, staging = split_of(read, clock), StagingWriter(staging_folder, read.name)
            if marks is None:
                batches = read_split(split, read_options(texts), staging)
                yield from (batch for kind, batch in batches if kind == rows)
                continue
            mark = mark_path(marks, read.name)
            with MarkedSource(split.capture_source(), mark, read.start_offset) as source:
                batches = read_split(split, read_options(texts), staging, source, may_be_read_again=True)
                yield from (batch for kind, batch in batches if kind == rows)
            if staging.is_published:
                mark.remove_file()

    size = sum(split.size for task in tasks for split in task)
    return PartitionedRows(len(tasks), size, rows_of_task, in_tasks=True)
