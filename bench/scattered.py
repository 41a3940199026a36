"""Rows scattered over a large bronze.rpc_calls are changed: time and memory of the process that does it.

Without deletion vectors a changed row makes its file be written again, so that here every file of the table is. The
time is compared with that of reading all files and writing them with Arrow, in another process of the same machine.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Measure, log_progress
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake import Lake
from pipeline.lake.storage.data_files import MAX_FILE_BYTES
from schemas.bronze import RPC_CALLS

_STUB_BYTES: Final = 5_000  # of a call; they are random, so that no compression makes them fewer
_FILE_ROWS: Final = MAX_FILE_BYTES // _STUB_BYTES
_BATCH_ROWS: Final = 1_000
_CHANGED_ROWS: Final = 1_000
_START: Final = datetime(2026, 1, 1, tzinfo=UTC)


def measure(folder: Path, size: int) -> list[Measure]:
    """Measure changing and replacing 1,000 scattered rows of a table of ``size`` bytes below ``folder``."""
    log_progress(f"scattered rows: a table of {size / 1e9:.1f} GB")
    lake = _lake(folder)
    for number in range(max(size // MAX_FILE_BYTES, 2)):
        lake.append(RPC_CALLS, PartitionedRows(1, 1, lambda _, number=number: _calls(number)))  # type: ignore[misc]
    log_progress("scattered rows: all files again")
    again, _ = _in_child(folder, "rewrite")
    out = [Measure("scattered rows: reading and writing all files", again, "s")]
    for name in ("change", "replace"):
        log_progress(f"scattered rows: {name}")
        seconds, peak = _in_child(folder, name)
        what = f"{name} {_CHANGED_ROWS} scattered rows of {size / 1e9:.1f} GB"
        out += [
            Measure(
                f"{what}: time against writing the files again", seconds / again, "x", 3, 2, higher_is_better=False
            ),
            Measure(f"{what}: peak memory", peak / 2**20, "MiB", 1536, 1024, higher_is_better=False),
        ]
    shutil.rmtree(folder)
    return out


def _lake(folder: Path) -> Lake:
    def no_session() -> None:
        raise AssertionError("no step of this needs Spark")

    return Lake(LazySession(no_session, engine="local"), str(folder / "lake"))  # type: ignore[arg-type]


def _key(number: int) -> str:
    return f"{number * 2654435761 % 2**64:016x}{number:016x}"


def _calls(file: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, a second apart."""
    schema = RPC_CALLS.schema()
    for first in range(file * _FILE_ROWS, (file + 1) * _FILE_ROWS, _BATCH_ROWS):
        numbers = range(first, first + _BATCH_ROWS)
        times = [_START + timedelta(seconds=number) for number in numbers]
        stubs = np.frombuffer(os.urandom(_BATCH_ROWS * _STUB_BYTES), dtype=f"V{_STUB_BYTES}")
        columns = {
            "call_key": pa.array(map(_key, numbers)),
            "connection_id": pa.array(f"{number // 500:032x}" for number in numbers),
            "request_at": pa.array(times, schema.field("request_at").type),
            "event_date": pa.array([time.date() for time in times]),
            "response_stub": pa.array([stub.tobytes() for stub in stubs], pa.binary()),
        }
        arrays = [columns.get(field.name, pa.nulls(_BATCH_ROWS, field.type)) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _in_child(folder: Path, step: str) -> tuple[float, int]:
    """Do a step in a process of its own; return its seconds, and the process's peak of resident bytes."""
    command = [sys.executable, "-m", "bench.scattered", step, str(folder)]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return answer["seconds"], answer["peak"]


def _rewrite(lake: Lake) -> None:
    for path in sorted(Path(lake.path(RPC_CALLS)).glob("*.parquet")):
        with (
            pq.ParquetFile(path) as file,
            pq.ParquetWriter(f"{path}.again", file.schema_arrow, compression="zstd") as to,
        ):
            for batch in file.iter_batches():
                to.write_batch(batch)
        Path(f"{path}.again").unlink()


def _scattered_keys(lake: Lake, first: int) -> list[str]:
    count = lake.query("SELECT count(*) AS n FROM {rows}", rows=RPC_CALLS).to_pylist()[0]["n"]
    return [_key(number) for number in range(first, count, max(count // _CHANGED_ROWS, 1))][:_CHANGED_ROWS]


def _change(lake: Lake) -> None:
    keys = _scattered_keys(lake, 3)
    changed = pa.table({"call_key": keys, "outcome": ["changed"] * len(keys)})
    lake.update_columns(RPC_CALLS, changed, dates=None)


def _replace(lake: Lake) -> None:
    keys = _scattered_keys(lake, 5)
    rows = lake.select_by_values(RPC_CALLS, keys)
    lake.delete_and_insert(RPC_CALLS, "call_key", keys, rows, dates=None)


_STEPS: Final[dict[str, Callable[[Lake], None]]] = {"rewrite": _rewrite, "change": _change, "replace": _replace}


def main() -> None:
    """Do one step in this process, and print its seconds and the peak of resident bytes."""
    step, folder = sys.argv[1:]
    begin = time.perf_counter()
    _STEPS[step](_lake(Path(folder)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": time.perf_counter() - begin, "peak": peak}))


if __name__ == "__main__":
    main()
