"""Benchmark of one association with very many calls: the memory that gold takes, and how it grows with the calls.

Each run is a process with a new lake. The messages are short, so that a capture of 0.4 GB has a million calls.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.measure import Measure, log_progress
from bench.runs import memory_measures, run_all
from bench.traffic import generate_packets, write_pcaps

CALLS = 1_000_000
_BYTES_PER_CALL = 404
_BODY_BYTES = (60, 60)


def measure(folder: Path, calls: int) -> list[Measure]:
    """Measure runs over a quarter of the calls, and over all."""
    out: list[Measure] = []
    for count in (calls // 4, calls):
        file = folder / "captures" / "association.pcap"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_pcaps(generate_packets(single=True, body_bytes=_BODY_BYTES), [file], count * _BYTES_PER_CALL)
        name = f"{count / 1000:.0f} thousand calls"
        log_progress(f"one association: {name}")
        run = run_all(folder / "lake", [file])
        calls_read = run["tables"]["bronze.rpc_calls"]["rows_out"]
        out += [
            *(
                Measure(f"{name}: {stage}, per second", calls_read / run["stages"][stage], "calls")
                for stage in ("attempts", "sequences", "findings")
            ),
            *memory_measures(name, run, tasks=1024),
        ]
        shutil.rmtree(folder)
    return out
