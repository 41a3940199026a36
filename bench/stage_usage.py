"""One run over all layers, and what each of its stages used: ``python -m bench.stage_usage FILE ARGUMENTS...``.

The file gets a JSON object by stage. The arguments are those of ``run_all``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from bench.memory import PeakMemory
from jobs import run_all
from jobs.cli import Stages
from jobs.command_line.engine_summary import EngineSummary, count_work

_BEFORE: Final = "the start"
_END: Final = "the end"


class _Note(NamedTuple):
    """What was used when a stage began."""

    stage: str
    at: float
    cpu_s: float
    peak_bytes: int
    read_bytes: int
    executions: int
    touched: frozenset[Path]


class StageUsage:
    """Notes what was used when each stage begins."""

    def __init__(self, lake: Path) -> None:
        self._lake, self._memory = lake, PeakMemory()
        self._spark: SparkSession | None = None
        self._notes: list[_Note] = []

    def watch(self) -> None:
        """Have the stages of runs in this process noted from now on."""
        has_started, begin = EngineSummary.has_started, Stages.begin

        def note_session(summary: EngineSummary, spark: SparkSession) -> str:
            self._spark = spark
            return has_started(summary, spark)

        def note_stage(stages: Stages, name: str) -> None:
            self.note(name)
            begin(stages, name)

        setattr(EngineSummary, "has_started", note_session)  # noqa: B010 - a type checker wants no assignment
        setattr(Stages, "begin", note_stage)  # noqa: B010

    def note(self, stage: str) -> None:
        """Note what was used so far: a stage begins now."""
        work = None if self._spark is None else count_work(self._spark)
        touched = frozenset(path for path in self._lake.rglob("*.parquet") if path.stat().st_atime > 0)
        memory = self._memory
        memory.look()
        used = sum(memory.cpu_s.values()), memory.driver_bytes, memory.read_bytes
        self._notes.append(_Note(stage, time.perf_counter(), *used, work.executions if work else 0, touched))

    def by_stage(self) -> dict[str, dict[str, Any]]:
        """Return what each stage used; the last note is of the end. Files count in the first stage that opens them."""
        return {
            now.stage: {
                "seconds": then.at - now.at,
                "processor time": then.cpu_s - now.cpu_s,
                "driver, MB": then.peak_bytes / 1e6,
                "read, MB": (then.read_bytes - now.read_bytes) / 1e6,
                "files touched": len(then.touched - now.touched),
                "executions of Spark": then.executions - now.executions,
            }
            for now, then in pairwise(self._notes)
        }


def main(arguments: Sequence[str]) -> int:
    """Run, and write the file; return the exit code of the run."""
    out, given = Path(arguments[0]), list(arguments[1:])
    usage = StageUsage(Path(given[given.index("--lake") + 1]))
    usage.watch()
    usage.note(_BEFORE)
    code = run_all.main(given)
    usage.note(_END)
    out.write_text(json.dumps(usage.by_stage()), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
