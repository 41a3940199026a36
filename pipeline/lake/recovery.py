"""Recovery from runs that were killed: tables go back to the versions at which the run began.

Delta has no transaction over several tables. So a run notes the versions of the tables in a marker when it begins,
and writes the ledger last. A run without a ledger entry is undone as a whole by the next run: every table is restored
to the version noted, whatever was appended, merged or deleted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.lake.lake import Lake
from schemas.table import RUN_ID, Table

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunMarkers:
    """The folder ``_runs`` of a lake: a marker for each run that has not finished, and the runs' staging files."""

    root: Path

    @staticmethod
    def of(lake: Lake) -> RunMarkers:
        """Return the folder of a lake."""
        return RunMarkers(Path(lake.root) / "_runs")

    def begin(self, run_id: str, versions: dict[str, int | None]) -> Path:
        """Mark a run as begun at these versions of its tables; return the folder for its staging files."""
        side = self.root / run_id
        side.mkdir(parents=True, exist_ok=True)
        marker = json.dumps({"run_id": run_id, "versions": versions})
        temporary = self.root / f".{run_id}.json"
        temporary.write_text(marker, encoding="utf-8")
        temporary.replace(self.root / f"{run_id}.json")
        return side

    def end(self, run_id: str) -> None:
        """Delete a run's staging files, then its marker."""
        shutil.rmtree(self.root / run_id, ignore_errors=True)
        (self.root / f"{run_id}.json").unlink(missing_ok=True)

    def set_captures_to_reread(self, captures: Mapping[str, Collection[str]]) -> None:
        """Set which captures are to be read again, each for connections to some endpoints; none: done."""
        note = self.root / "again"
        if not captures:
            note.unlink(missing_ok=True)
            return
        temporary = self.root / ".again"
        temporary.write_text(json.dumps({name: sorted(captures[name]) for name in captures}), encoding="utf-8")
        temporary.replace(note)

    def captures_to_reread(self) -> dict[str, list[str]]:
        """Return which captures are to be read again."""
        note = self.root / "again"
        found: dict[str, list[str]] = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
        return found

    def unfinished_folders(self) -> list[Path]:
        """Return the folders of the staging files of runs that have begun and not finished."""
        return [self.root / run_id for run_id in self.unfinished()]

    def unfinished(self) -> dict[str, dict[str, int | None]]:
        """Return the runs that have begun and not finished, with the table versions at which they began."""
        found = {}
        for path in sorted(self.root.glob("*.json")) if self.root.is_dir() else ():
            if not path.name.startswith("."):
                found[path.stem] = json.loads(path.read_text(encoding="utf-8"))["versions"]
        return found


def undo_unfinished_runs(lake: Lake, tables: Sequence[Table], ledger: Table, say: Say) -> None:
    """Undo the runs that did not finish, unless the ledger shows that only removing the marker was missing.

    Only while holding the lake's lease: another run's work would be undone.
    """
    runs = RunMarkers.of(lake)
    for run_id, versions in runs.unfinished().items():
        before = versions.get(str(ledger))
        written = lake.version(ledger) not in (None, before)
        if not written or not lake.select(ledger, f"{RUN_ID} = {{run}}", [RUN_ID], run=run_id).num_rows:
            say(f"an earlier run did not end: its work is undone ({run_id})")
            for table in tables:
                lake.restore(table, versions.get(str(table)))
        runs.end(run_id)
