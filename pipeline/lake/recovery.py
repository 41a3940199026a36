"""Runs that did not end: a marker says of which versions of the tables a run began, and the next run goes back there.

Delta has no transaction over several tables. A run therefore writes the ledger last, and a run that never came so far
is undone as a whole, whatever it had appended, merged or deleted: every table is restored to the version noted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import functions as F

from pipeline.lake.lake import Lake
from schemas.table import RUN_ID, Table

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Runs:
    """The folder of the lake where runs keep their work: a marker for each that is not finished, and side files."""

    root: Path

    @staticmethod
    def of(lake: Lake) -> Runs:
        """Return the folder of a lake."""
        return Runs(Path(lake.root) / "_runs")

    def begin(self, run_id: str, versions: dict[str, int | None]) -> Path:
        """Mark a run as begun at these versions of its tables; return the folder for its side files."""
        side = self.root / run_id
        side.mkdir(parents=True, exist_ok=True)
        marker = json.dumps({"run_id": run_id, "versions": versions})
        temporary = self.root / f".{run_id}.json"
        temporary.write_text(marker, encoding="utf-8")
        temporary.replace(self.root / f"{run_id}.json")
        return side

    def end(self, run_id: str) -> None:
        """Take away a run's side files, then its marker."""
        shutil.rmtree(self.root / run_id, ignore_errors=True)
        (self.root / f"{run_id}.json").unlink(missing_ok=True)

    def note_again(self, captures: Mapping[str, Collection[str]]) -> None:
        """Note captures that are to be read again, each for connections to some places; none: it is done."""
        note = self.root / "again"
        if not captures:
            note.unlink(missing_ok=True)
            return
        temporary = self.root / ".again"
        temporary.write_text(json.dumps({name: sorted(captures[name]) for name in captures}), encoding="utf-8")
        temporary.replace(note)

    def again(self) -> dict[str, list[str]]:
        """Return what ``note_again`` noted."""
        note = self.root / "again"
        found: dict[str, list[str]] = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
        return found

    def unfinished(self) -> dict[str, dict[str, int | None]]:
        """Return the runs that began and did not end, with the versions that they began at."""
        found = {}
        for path in sorted(self.root.glob("*.json")) if self.root.is_dir() else ():
            if not path.name.startswith("."):
                found[path.stem] = json.loads(path.read_text(encoding="utf-8"))["versions"]
        return found


def recover(lake: Lake, tables: Sequence[Table], ledger: Table, say: Say) -> None:
    """Undo the runs that did not end, unless the ledger shows that only their end was missing.

    Call it only while holding the lake's lease: another run's work would be undone.
    """
    runs = Runs.of(lake)
    for run_id, versions in runs.unfinished().items():
        before = versions.get(str(ledger))
        written = lake.version(ledger) not in (None, before)
        if not written or not lake.read(ledger).where(F.col(RUN_ID) == run_id).limit(1).count():
            say(f"an earlier run did not end: its work is undone ({run_id})")
            for table in tables:
                lake.restore(table, versions.get(str(table)))
        runs.end(run_id)
