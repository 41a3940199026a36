"""The reader through Spark into Delta, and the limit beside it, timed in one session."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from bench import limit
from bench.memory import PeakMemory
from jobs.session import PROJECT, session
from pipeline.bronze.capture_source import pack, read_captures, whole
from pipeline.bronze.ingest_captures import ingest
from pipeline.bronze.ingest_plan import plan
from pipeline.bronze.input_files import list_files
from pipeline.lake import codegen
from pipeline.lake.lake import Lake
from pipeline.silver import update as silver_update
from pipeline.silver.decode_tasks import Decoded
from schemas.bronze import RPC_CALLS
from schemas.table import INGESTED_AT, RUN_ID
from udfs.capture.reader import SCHEMAS


@dataclass(frozen=True)
class Written:
    """One way of filling bronze.rpc_calls: seconds, what was written, and the peaks of memory in bytes."""

    seconds: float
    rows: int
    request_bytes: int
    response_bytes: int
    tasks: int
    worker_peak: int
    jvm_peak: int


# The executor in a process of its own, so that the driver's memory can be told from it.
APART = {
    "spark.master": "local-cluster[1,2,2048]",
    "spark.executor.memory": "2g",
    "spark.executorEnv.PYTHONPATH": str(PROJECT),
}


class Bench:
    """One local session of two cores, as the measure asks; its lakes lie below ``folder``."""

    def __init__(self, folder: Path, *, apart: bool = False) -> None:
        """``apart``: the executor in a process of its own."""
        self.folder = folder
        self.spark: SparkSession = session("bench", APART if apart else {"spark.master": "local[2]"})
        limit.register(self.spark)
        self._lakes = 0

    def stop(self) -> None:
        self.spark.stop()

    def _lake(self) -> Lake:
        self._lakes += 1
        return Lake(self.spark, str(self.folder / f"lake{self._lakes}"))

    def calls(self, files: Sequence[Path]) -> Written:
        """Captures -> bronze.rpc_calls, straight from the captures; ``job`` joins them and writes the rest too."""
        lake = self._lake()
        listed = list_files([str(path) for path in files])
        codegen.expect(self.spark, sum(file.size for file in listed))  # as ingest does
        with PeakMemory() as peak:
            begin = time.perf_counter()
            side = Path(lake.root) / "side"
            side.mkdir(parents=True)
            reads = plan(listed, []).read
            tasks = read_captures(reads, side / "tasks.jsonl")
            frame = tasks.frame(self.spark, from_arrow_schema(SCHEMAS["rpc_calls"]))
            lake.append(RPC_CALLS, frame.withColumns({RUN_ID: F.lit("bench"), INGESTED_AT: F.current_timestamp()}))
            seconds = time.perf_counter() - begin
        rows = lake.rows_written(RPC_CALLS)
        request, response = self._sizes(lake)
        shutil.rmtree(lake.root)
        return Written(seconds, rows, request, response, len(pack(whole(listed))), peak.worker, peak.jvm)

    def job(self, files: Sequence[Path]) -> float:
        """Seconds of the whole of bronze: all five tables with their commits."""
        lake = self._lake()
        begin = time.perf_counter()
        ingest(
            lake, list_files([str(path) for path in files]), run_id="bench", reader_options={}, say=lambda _text: None
        )
        seconds = time.perf_counter() - begin
        shutil.rmtree(lake.root)
        return seconds

    def silver(self, files: Sequence[Path]) -> float:
        """Seconds of captures -> silver: bronze, and all tables that are made call by call; no bytes stored twice.

        The lake is held, as the jobs hold it.
        """
        lake = self._lake()
        begin = time.perf_counter()
        with lake.held(lambda: None):
            decoder = silver_update.decoder(lake, keep_packets=False)
            done = ingest(
                lake,
                list_files([str(path) for path in files]),
                run_id="bench",
                reader_options={},
                say=lambda _text: None,
                tap=decoder,
            )
            decoded = Decoded.of(decoder, done.tapped)
            silver_update.silver(lake, keep_packets=False, keep_stubs=True, decoded=decoded)
        seconds = time.perf_counter() - begin
        shutil.rmtree(lake.root)
        return seconds

    def limit(self, like: Written) -> float:
        """Seconds to write as many rows with as many bytes, made up, in as many tasks."""
        lake = self._lake()
        begin = time.perf_counter()
        options = {
            "tasks": like.tasks,
            "rows": like.rows,
            "request_bytes": like.request_bytes // max(like.rows, 1),
            "response_bytes": like.response_bytes // max(like.rows, 1),
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
