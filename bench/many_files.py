"""A hundred thousand small captures: listing them, telling what is new, and what a run costs that knows them all."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

from bench.lake_speed import Bench
from bench.measure import Measure, say
from bench.traffic import generate
from pipeline.bronze.capture_source import pack, whole
from pipeline.bronze.ingest_plan import plan
from pipeline.bronze.input_files import list_files
from pipeline.bronze.ledger_entries import Read
from pipeline.lake.lake import Lake
from pipeline.lake.schema_enforcement import conformed, schema_of
from schemas.bronze import CAPTURE_FILES

SMALL = 3_000  # bytes of each
FOLDER = 1_000  # files of each folder
_HEADER, _RECORD = 24, 16  # bytes of a pcap file's header, and of a record's


def make(folder: Path, count: int) -> None:
    """Write so many captures of one conversation, each a second later than the one before."""
    (template,) = generate(folder.with_name("template"), SMALL)
    data = bytearray(template.read_bytes())
    seconds, at = [], _HEADER
    while at < len(data):
        seconds.append(at)
        at += _RECORD + struct.unpack_from("<I", data, at + 8)[0]
    for number in range(count):
        for place in seconds:
            struct.pack_into("<I", data, place, struct.unpack_from("<I", data, place)[0] + 1)
        path = folder / f"{number // FOLDER:03}" / f"{number:06}.pcap"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def measure(folder: Path, count: int) -> list[Measure]:
    """What it takes to list, plan and pack so many files that are new, and a run that knows them; below ``folder``."""
    captures = folder / "captures"
    say(f"files: making {count}")
    make(captures, count)
    begin = time.perf_counter()
    say("files: listing and planning")
    listed = list_files([str(captures)])
    listing = time.perf_counter() - begin
    planned = plan(listed, [])
    planning = time.perf_counter() - begin - listing
    tasks = [sum(reading.size for reading in each.readings) for each in pack(whole(listed))]
    packing = time.perf_counter() - begin - listing - planning
    if len(planned.read) != count:
        raise SystemExit(f"files: {len(planned.read)} of {count} are new")
    lake = folder / "lake"
    remember(lake, planned.read)
    say("files: a run that knows them")
    command = [sys.executable, "-m", "jobs.ingest_captures", "--lake", str(lake), "--captures", str(captures)]
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    known = time.perf_counter() - begin
    shutil.rmtree(folder)
    name = f"{count} files of {SMALL / 1000:.0f} KB: "
    return [
        Measure(f"{name}listing", listing, "s"),
        Measure(f"{name}planning, all new", planning, "s"),
        Measure(f"{name}packing", packing, "s"),
        Measure(f"{name}listing to tasks", listing + planning + packing, "s", 60, 60, least=False),
        Measure(f"{name}a run that knows all", known, "s", 60, 60, least=False),
        Measure(f"{name}largest task against the mean", max(tasks) * len(tasks) / sum(tasks), "x"),
    ]


def remember(lake: Path, reads: list[Read]) -> None:
    """Write a ledger that knows these captures."""
    bench = Bench(lake.parent)
    rows = [
        {
            "capture_id": read.capture_id, "first_key": read.first_key, "status": "complete",
            "content_bytes": read.file.size, **read.names.columns(),
        }
        for read in reads
    ]  # fmt: skip
    for row in rows:
        row["modified_at"] = row.pop("modified_us")
    schema = schema_of(CAPTURE_FILES)
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    ledger = pa.Table.from_arrays(columns, schema=schema).drop_columns(["event_date"])
    Lake(bench.spark, str(lake)).append(CAPTURE_FILES, conformed(CAPTURE_FILES, ledger))
    bench.stop()
