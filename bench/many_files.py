"""Measure many small captures: listing, planning and packing them, and a run in which none is new."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

from bench.lake_speed import LakeBench
from bench.measure import Measure, log_progress
from bench.sequences import no_spark
from bench.traffic import generate_captures
from pipeline.bronze.capture_tasks import group_by_task, whole_file_splits
from pipeline.bronze.ingest_plan import plan_ingest
from pipeline.bronze.input_files import list_files
from pipeline.bronze.ledger import Ledger
from pipeline.bronze.ledger_entries import PlannedRead
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.lake import Lake
from pipeline.lake.schema_enforcement import conform_table
from schemas.bronze import CAPTURE_FILES

CAPTURE_BYTES = 3_000  # bytes of each
FILES_PER_FOLDER = 1_000  # files of each folder
_HEADER, _RECORD = 24, 16  # bytes of a pcap file's header, and of a record's


def write_captures(folder: Path, count: int) -> None:
    """Write captures of the same conversation; the times of each are a second later than those of the one before."""
    (template,) = generate_captures(folder.with_name("template"), CAPTURE_BYTES)
    data = bytearray(template.read_bytes())
    seconds, at = [], _HEADER
    while at < len(data):
        seconds.append(at)
        at += _RECORD + struct.unpack_from("<I", data, at + 8)[0]
    for number in range(count):
        for place in seconds:
            struct.pack_into("<I", data, place, struct.unpack_from("<I", data, place)[0] + 1)
        path = folder / f"{number // FILES_PER_FOLDER:03}" / f"{number:06}.pcap"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def measure(folder: Path, count: int) -> list[Measure]:
    """Measure listing, planning and packing ``count`` new files, and a run in which all are known.

    All files are made below ``folder`` and removed.
    """
    captures = folder / "captures"
    log_progress(f"files: making {count}")
    write_captures(captures, count)
    begin = time.perf_counter()
    log_progress("files: listing and planning")
    listed = list_files([str(captures)])
    listing = time.perf_counter() - begin
    planned = plan_ingest(listed, Ledger(Lake(LazySession(no_spark), str(folder / "lake")).query))
    planning = time.perf_counter() - begin - listing
    tasks = [sum(reading.size for reading in each) for each in group_by_task(whole_file_splits(listed))]
    packing = time.perf_counter() - begin - listing - planning
    if len(planned.reads) != count:
        raise SystemExit(f"files: {len(planned.reads)} of {count} are new")
    lake = folder / "lake"
    write_ledger(lake, planned.reads)
    log_progress("files: a run that knows them")
    command = [sys.executable, "-m", "jobs.ingest_captures", "--lake", str(lake), "--captures", str(captures)]
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    known = time.perf_counter() - begin
    shutil.rmtree(folder)
    name = f"{count} files of {CAPTURE_BYTES / 1000:.0f} KB: "
    return [
        Measure(f"{name}listing", listing, "s"),
        Measure(f"{name}planning, all new", planning, "s"),
        Measure(f"{name}packing", packing, "s"),
        Measure(f"{name}listing to tasks", listing + planning + packing, "s", 60, 60, higher_is_better=False),
        Measure(f"{name}a run that knows all", known, "s", 60, 60, higher_is_better=False),
        Measure(f"{name}largest task against the mean", max(tasks) * len(tasks) / sum(tasks), "x"),
    ]


def write_ledger(lake: Path, reads: list[PlannedRead]) -> None:
    """Write a ledger in which these captures are already read."""
    bench = LakeBench(lake.parent)
    rows = [
        {
            "capture_id": read.capture_id, "first_key": read.first_key, "status": "complete",
            "content_bytes": read.file.size, **read.capture_files.ledger_columns(),
        }
        for read in reads
    ]  # fmt: skip
    for row in rows:
        row["modified_at"] = row.pop("modified_us")
    schema = CAPTURE_FILES.schema()
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    ledger = pa.Table.from_arrays(columns, schema=schema).drop_columns(["event_date"])
    Lake(bench.spark, str(lake)).append(CAPTURE_FILES, conform_table(CAPTURE_FILES, ledger))
    bench.stop()
