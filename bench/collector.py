"""Benchmark of the collector and of snapshots: collection from one queue manager, and ingestion to bronze and silver.

Run from the project's folder: ``python -m bench.collector [queues] [rounds]``. The test queue manager is a separate
process, over loopback.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.measure import Measure, format_report, log_progress

EPOCH = datetime(2024, 5, 1, tzinfo=UTC)
QUEUES_QUERIED = 300  # number of queues of the test queue manager
ROUNDS = 4

SERVER_SCRIPT = """
import sys
from peer.estate import Estate, Machine, main
from peer import estate
from peer.manager import Manager

QUEUES = int(sys.argv.pop())

def machines():
    one = Machine(Manager("bench1", ports={"remoteread": 0, "qm2qm": 0, "epm": 0}))
    for number in range(QUEUES):
        outgoing = number % 3 == 0
        path = f"far\\\\private$\\\\q{number}" if outgoing else f"private$\\\\q{number}"
        one.queue(path, estate.flowing if outgoing else estate.still, outgoing=outgoing)
    return [one]

estate.machines = machines
sys.exit(main(sys.argv[1:]))
"""


def measure_collection(folder: Path) -> list[Measure]:
    """Collect the queues of a queue manager; measure snapshots per second and the share of time spent waiting."""
    folder.mkdir(parents=True, exist_ok=True)
    conf = folder / "collector.yml"
    command = [sys.executable, "-c", SERVER_SCRIPT, "--conf", str(conf), "--every", "60", str(QUEUES_QUERIED)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ".:tests/support"})
    try:
        while not conf.exists() or not conf.stat().st_size:
            if server.poll() is not None:
                raise RuntimeError("the test queue manager does not start")
            time.sleep(0.1)
        done = subprocess.run(
            [sys.executable, "-m", "jobs.collect_snapshots", "--conf", str(conf), "--out", str(folder / "out"),
             "--set", f"collector.rounds={ROUNDS}", "--set", "collector.interval=1ms"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    finally:
        server.terminate()
        server.wait(10)
    counts = json.loads(done.stdout.splitlines()[-1])["snapshots"]
    assert counts["answered"] == ROUNDS * (QUEUES_QUERIED + 1), counts
    return [
        Measure("collector: snapshots from one queue manager", counts["asked"] / counts["busy_s"], "1/s"),
        Measure("collector: share of the time spent waiting", 100 * counts["waited_s"] / counts["busy_s"], "%"),
    ]


def write_snapshot_files(folder: Path, queues: int, rounds: int) -> list[Path]:
    """Write one snapshot file per round, a minute apart, for a machine with the given number of queues."""
    folder.mkdir(parents=True)
    names = [f"DIRECT=OS:bench1\\private$\\q{number}" for number in range(queues)]
    out = []
    for turn in range(rounds):
        at = EPOCH + timedelta(minutes=turn)
        lines = [
            json.dumps(snapshot_line(name, at + timedelta(microseconds=place), turn))
            for place, name in enumerate(names)
        ]
        out.append(folder / f"{turn:04}.jsonl")
        out[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return out


def snapshot_line(format_name: str, at: datetime, turn: int) -> dict[str, Any]:
    """Return a snapshot of an outgoing queue as the collector writes it, with 27 properties."""
    path = format_name.removeprefix("DIRECT=OS:")
    texts = {1: path, 2: format_name, 3: "PRIVATE", 4: "REMOTE", 5: "YES", 6: "NO", 11: "CONNECTED"}
    blob = (1 << 32 | 7).to_bytes(8, "little") + turn.to_bytes(4, "little") + bytes(4)
    values: dict[int, tuple[int, Any]] = {number: (31, text) for number, text in texts.items()}
    values |= dict.fromkeys((7, 8, 9, 10, 15, 19, 20, 22, 23, 26), (19, turn))
    values |= dict.fromkeys((13, 16, 17, 18), (65, blob.hex()))
    values |= {12: (0x101F, ["IP=10.0.0.7:1801"]), 14: (3, 1_700_000_000), 21: (3, 1_700_000_030), 27: (0x101F, [])}
    return {
        "version": 1, "queue_manager": "bench1", "server_address": "10.0.0.1", "object_type": "queue",
        "format_name": format_name, "asked_at": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "collected_at": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "hresult": 0, "error": None,
        "properties": [
            {"property_id": number, "vt": vt, "value_json": json.dumps(value)}
            for number, (vt, value) in sorted(values.items())
        ],
        "collector_version": "1",
    }  # fmt: skip


def measure_ingestion(folder: Path, queues: int, rounds: int) -> list[Measure]:
    """Measure ingestion to bronze and silver, first of all rounds but one, then of the last; the session is warm."""
    from jobs.session import get_spark_session  # noqa: PLC0415 (Spark, which collecting does not need)
    from pipeline.bronze import ingest_snapshots  # noqa: PLC0415
    from pipeline.bronze.input_files import list_files  # noqa: PLC0415
    from pipeline.lake.lake import Lake  # noqa: PLC0415
    from pipeline.silver import hosts  # noqa: PLC0415

    files = write_snapshot_files(folder / "landed", queues, rounds)
    spark = get_spark_session("bench")

    def run(lake: Lake, paths: list[Path]) -> tuple[float, float]:
        begun = time.perf_counter()
        ingest_snapshots.ingest(lake, list_files(map(str, paths)), run_id="bench", log=lambda _: None)
        between = time.perf_counter()
        _, says = hosts.update_collected_snapshots(lake, {})
        if says is not None:
            hosts.update_hosts(lake, "bench", says)
        return between - begun, time.perf_counter() - between

    warm = Lake(spark, str(folder / "warm"))
    run(warm, write_snapshot_files(folder / "little", 10, 2))
    lake = Lake(spark, str(folder / "lake"))
    size = sum(path.stat().st_size for path in files[:-1])
    bronze, silver = run(lake, files[:-1])
    more = sum(run(lake, files))
    spark.stop()
    count = queues * (rounds - 1)
    what = f"{queues} queues x {rounds - 1} rounds"
    return [
        Measure(f"{what}: to bronze", bronze, "s"),
        Measure(f"{what}: to silver", silver, "s"),
        Measure(f"{what}: both", count / (bronze + silver), "1/s"),
        Measure(f"{what}: snapshot files", size / 1e6, "MB"),
        Measure(f"{what}: one round more", more, "s"),
    ]


def measure(folder: Path, queues: int, rounds: int) -> list[Measure]:
    """Measure collection and ingestion; files and lakes are made and removed below ``folder``."""
    log_progress("collector: one queue manager over loopback")
    out = measure_collection(folder)
    log_progress(f"collector: {queues} queues x {rounds} rounds through bronze and silver")
    out += measure_ingestion(folder, queues, rounds)
    shutil.rmtree(folder)
    return out


def main() -> None:
    """Run the benchmark and print the report."""
    import tempfile  # noqa: PLC0415 (only here)

    numbers = [int(text) for text in sys.argv[1:]]
    queues, rounds = (*numbers, *(1000, 100)[len(numbers) :])
    with tempfile.TemporaryDirectory(prefix="msmq-bench-") as folder:
        print(format_report(measure(Path(folder) / "collector", queues, rounds)))


if __name__ == "__main__":
    main()
