"""Time reading captures into bronze and silver through Spark, and the limit of writing Delta, in one session."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench import limit
from bench.memory import PeakMemory
from jobs.session import PROJECT_ROOT, get_spark_session
from pipeline.bronze.capture_tasks import build_read_tasks, group_by_task, whole_file_splits
from pipeline.bronze.ingest_captures import ingest
from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.ingest_plan import plan_ingest
from pipeline.bronze.input_files import list_files
from pipeline.bronze.ledger import Ledger
from pipeline.bronze.write_tables import stamp_rows
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.silver import update as silver_update
from pipeline.silver.inline_decoders import Decoded, InlineDecoders
from pipeline.transfers import update as transfers_update
from schemas.bronze import RPC_CALLS
from schemas.sessions import SENDINGS, SESSION_PACKETS
from schemas.table import INGESTED_AT, RUN_ID


@dataclass(frozen=True)
class WriteResult:
    """Result of writing bronze.rpc_calls: seconds, rows and stub bytes written, tasks, and peak memory in bytes."""

    seconds: float
    rows: int
    request_bytes: int
    response_bytes: int
    tasks: int
    worker_peak: int
    jvm_peak: int


@dataclass(frozen=True)
class TransfersResult:
    """Result of writing captures of the binary protocol to silver: seconds, packets of bronze, messages sent."""

    seconds: float
    packets: int
    messages: int


# A separate executor process, so that its memory and the driver's can be measured separately.
SEPARATE_EXECUTOR = {
    "spark.master": "local-cluster[1,2,2048]",
    "spark.executor.memory": "2g",
    "spark.executorEnv.PYTHONPATH": str(PROJECT_ROOT),
}


def _stamped_rows(tasks: PartitionedRows, number: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task with the columns of the run."""
    return (stamp_rows(RPC_CALLS, batch, "bench", dt.datetime.now(dt.UTC)) for batch in tasks.read_part(number))


def _update_bronze_and_calls(lake: Lake, files: Sequence[Path]) -> Decoded:
    """Write captures to bronze, and their calls to silver, as the jobs do; return what was decoded on the way."""
    decoders = InlineDecoders.of(lake)
    done = ingest(
        lake, list_files([str(path) for path in files]), run_id="bench", reader_options={}, log=lambda _text: None,
        observers=decoders.observers(),
    )  # fmt: skip
    decoded = decoders.decoded(done.observed_writes)
    silver_update.update(lake, keep_stubs=True, decoded=decoded.calls)
    return decoded


class LakeBench:
    """Runs timed steps as a job does; its lakes are below ``folder``."""

    def __init__(self, folder: Path, *, separate_executor: bool = False) -> None:
        """Start the session. ``separate_executor``: Spark computes tasks on one core, in a process of its own."""
        self.folder = folder
        self.spark: SparkSession = get_spark_session(
            "bench", SEPARATE_EXECUTOR if separate_executor else {"spark.master": "local[2]"}
        )
        limit.register_source(self.spark)
        self._lakes = 0

    def stop(self) -> None:
        """Stop the Spark session."""
        self.spark.stop()

    def _lake(self) -> Lake:
        self._lakes += 1
        return Lake(self.spark, str(self.folder / f"lake{self._lakes}"))

    def write_rpc_calls(self, files: Sequence[Path]) -> WriteResult:
        """Write captures to bronze.rpc_calls only, without merging connections across captures."""
        lake = self._lake()
        listed = list_files([str(path) for path in files])
        LazySession.of(self.spark).expect_to_read(sum(file.size for file in listed))  # as ingest does
        with PeakMemory() as peak:
            begin = time.perf_counter()
            side = Path(lake.root) / "side"
            side.mkdir(parents=True)
            reads = plan_ingest(listed, Ledger(lake.query)).reads
            tasks = build_read_tasks(reads, LakePath(f"{side}/tasks.jsonl"), IngestClock())
            lake.append(RPC_CALLS, replace(tasks, read_part=partial(_stamped_rows, tasks)))
            seconds = time.perf_counter() - begin
        rows = lake.versions.rows_written(RPC_CALLS)
        request, response = self._sizes(lake)
        shutil.rmtree(lake.root)
        return WriteResult(
            seconds,
            rows,
            request,
            response,
            len(group_by_task(whole_file_splits(listed))),
            peak.worker_bytes,
            peak.jvm_bytes,
        )

    def time_bronze(self, files: Sequence[Path]) -> float:
        """Return the seconds to write captures to all tables of bronze."""
        lake = self._lake()
        begin = time.perf_counter()
        ingest(
            lake, list_files([str(path) for path in files]), run_id="bench", reader_options={}, log=lambda _text: None
        )
        seconds = time.perf_counter() - begin
        shutil.rmtree(lake.root)
        return seconds

    def time_silver(self, files: Sequence[Path]) -> float:
        """Return the seconds to write captures to bronze and silver, with exclusive access as in the jobs.

        Bodies and packets are not stored.
        """
        lake = self._lake()
        begin = time.perf_counter()
        with lake.hold_exclusive_access(lambda: None):
            _update_bronze_and_calls(lake, files)
        seconds = time.perf_counter() - begin
        shutil.rmtree(lake.root)
        return seconds

    def time_transfers(self, files: Sequence[Path]) -> TransfersResult:
        """Write captures of the binary protocol to bronze, and what follows in silver, with default settings."""
        lake = self._lake()
        begin = time.perf_counter()
        with lake.hold_exclusive_access(lambda: None):
            decoded = _update_bronze_and_calls(lake, files)
            transfers_update.update(lake, "bench", decoded=decoded.packets)
        seconds = time.perf_counter() - begin
        found = TransfersResult(
            seconds, lake.versions.rows_written(SESSION_PACKETS), lake.versions.rows_written(SENDINGS)
        )
        shutil.rmtree(lake.root)
        return found

    def time_write_limit(self, reference: WriteResult) -> float:
        """Return the seconds to write generated rows: as many rows, bytes and tasks as in ``reference``."""
        lake = self._lake()
        begin = time.perf_counter()
        options = {
            "tasks": reference.tasks,
            "rows": reference.rows,
            "request_bytes": reference.request_bytes // max(reference.rows, 1),
            "response_bytes": reference.response_bytes // max(reference.rows, 1),
        }
        plain = [field for field in RPC_CALLS.struct().fields if field.name not in (RUN_ID, INGESTED_AT)]
        schema = type(RPC_CALLS.struct())(plain)
        frame = self.spark.read.format(limit.FORMAT).schema(schema).options(**options).load()
        lake.append(RPC_CALLS, frame.withColumns({RUN_ID: F.lit("bench"), INGESTED_AT: F.current_timestamp()}))
        seconds = time.perf_counter() - begin
        shutil.rmtree(lake.root)
        return seconds

    def _sizes(self, lake: Lake) -> tuple[int, int]:
        row = (
            lake.read(RPC_CALLS)
            .agg(F.sum(F.length("request_stub")).alias("request"), F.sum(F.length("response_stub")).alias("response"))
            .first()
        )
        return (int(row["request"] or 0), int(row["response"] or 0)) if row is not None else (0, 0)
