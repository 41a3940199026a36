"""Benchmark of messages on their way: captures of TCP 1801 to bronze and silver, beside tshark's list of segments."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import transfers
from bench.measure import Measure, log_progress

RING: Final = 20  # files
_FLOOR, _GOAL = 2.0, 4.0
_TSHARK: Final = (
    "-Y", "tcp.len>0", "-T", "fields", "-e", "frame.number", "-e", "tcp.stream", "-e", "tcp.len",
)  # fmt: skip


def time_tshark(files: Sequence[Path]) -> tuple[float, int]:
    """Return the seconds that tshark takes to list the segments with data of the files, and how many there are."""
    begin, lines = time.perf_counter(), 0
    for path in files:
        command = ["tshark", "-n", "-r", str(path), *_TSHARK]
        lines += subprocess.run(command, capture_output=True, check=True).stdout.count(b"\n")
    return time.perf_counter() - begin, lines


def measure(folder: Path, size: int, repeat: int, *, ring: int = RING) -> list[Measure]:
    """Measure a ring of ``ring`` captures of ``size`` bytes together; each measure is the best of ``repeat`` runs.

    Bounds are those of the speed to silver against tshark, where it is installed.
    """
    from bench.lake_speed import LakeBench  # noqa: PLC0415 (Spark, which the other commands do not need)

    name = f"transfers, {size / 1e6:.0f} MB ring"
    log_progress(f"{name}: warm-up")
    bench = LakeBench(folder)
    bench.time_bronze(transfers.generate_captures(folder / "warm", 10_000_000, ring=4))
    files = transfers.generate_captures(folder / "captures", size, ring=ring)
    log_progress(f"{name}: bronze")
    bronze = min(bench.time_bronze(files) for _ in range(repeat))
    log_progress(f"{name}: bronze and silver")
    runs = [bench.time_transfers(files) for _ in range(repeat)]
    silver = min(run.seconds for run in runs)
    bench.stop()
    out = [
        Measure(f"{name}: packets", runs[0].packets, ""),
        Measure(f"{name}: messages", runs[0].messages, ""),
        Measure(f"{name}: to bronze", bronze, "s"),
        Measure(f"{name}: to silver", silver, "s"),
        Measure(f"{name}: speed to silver", size / 1e6 / silver, "MB/s"),
    ]
    if shutil.which("tshark") is not None:
        log_progress(f"{name}: tshark")
        listing = min(time_tshark(files)[0] for _ in range(repeat))
        out += [
            Measure(f"{name}: tshark", listing, "s"),
            Measure(f"{name}: to bronze, against tshark", listing / bronze, "x"),
            Measure(f"{name}: to silver, against tshark", listing / silver, "x", _FLOOR, _GOAL),
        ]
    shutil.rmtree(folder)
    return out
