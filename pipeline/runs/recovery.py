"""Recovery from runs that were killed: tables go back to the versions at which the run began.

Delta has no transaction over several tables. So a run notes the versions of the tables in a marker when it begins,
and writes the ledger last. A run without a ledger entry is undone as a whole by the next run: every table is restored
to the version noted, whatever was appended, merged or deleted. A run that cannot be undone is brought forward: the
captures that it changed are read again, and rows of captures that the ledger does not have are deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.lake.errors import RestoreError
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from schemas.table import RUN_ID, Table

Say = Callable[[str], None]


class UnfinishedRun(NamedTuple):
    """A run that has begun and not finished: the table versions at which it began, and the captures it changes."""

    versions: dict[str, int | None]
    captures: list[str]


@dataclass(frozen=True, slots=True)
class RunMarkers:
    """The folder ``_runs`` of a lake: a marker for each run that has not finished, and the runs' staging files."""

    root: LakePath

    @staticmethod
    def of(lake: Lake) -> RunMarkers:
        """Return the folder of a lake."""
        return RunMarkers(lake.folder / "_runs")

    def begin(self, run_id: str, versions: dict[str, int | None], captures: Iterable[str] = ()) -> LakePath:
        """Mark a run as begun at these versions of its tables; return the folder for its staging files.

        ``captures`` are those whose rows it changes (``add_captures``).
        """
        side = self.root / run_id
        side.make_folder()
        self.write_state(f"{run_id}.json", UnfinishedRun(versions, sorted(captures))._asdict())
        return side

    def add_captures(self, run_id: str, captures: Iterable[str]) -> None:
        """Add captures whose rows a run is about to change to its marker."""
        run = self.unfinished()[run_id]
        self.write_state(f"{run_id}.json", run._replace(captures=sorted({*run.captures, *captures}))._asdict())

    def end(self, run_id: str) -> None:
        """Delete a run's staging files, then its marker."""
        (self.root / run_id).remove_folder()
        (self.root / f"{run_id}.json").remove_file()

    def set_captures_to_reread(self, captures: Mapping[str, Collection[str]]) -> None:
        """Set which captures are to be read again, each for connections to some endpoints; none: done."""
        self.write_state("again", {name: sorted(captures[name]) for name in captures} or None)

    def captures_to_reread(self) -> dict[str, list[str]]:
        """Return which captures are to be read again."""
        found: dict[str, list[str]] = self.read_state("again") or {}
        return found

    def set_captures_to_replace(self, captures: Iterable[str] | None) -> None:
        """Set which captures are to be read again because a run was killed and cannot be undone; None: done."""
        self.write_state("replace", None if captures is None else sorted(captures))

    def captures_to_replace(self) -> frozenset[str] | None:
        """Return the captures whose rows are to be replaced, and those of captures without a ledger row; None: none."""
        found = self.read_state("replace")
        return None if found is None else frozenset(found)

    def write_state(self, name: str, value: Any) -> None:  # noqa: ANN401 - whatever JSON has
        """Write a file of this folder, as JSON, in one step; None: delete it."""
        path = self.root / name
        if value is None:
            path.remove_file()
        else:
            path.write_text(json.dumps(value))

    def read_state(self, name: str) -> Any:  # noqa: ANN401 - whatever JSON has
        """Return what is in a file of this folder; None without one."""
        try:
            return json.loads((self.root / name).read_text())
        except FileNotFoundError:
            return None

    @contextmanager
    def staging_folder(self, step: str) -> Iterator[LakePath]:
        """Yield an empty folder for the staging files of a step; it is removed in the end."""
        folder = self.root / f".{step}"
        folder.remove_folder()
        try:
            yield folder
        finally:
            folder.remove_folder()

    def remove_staging_folders(self) -> None:
        """Remove the staging files of single steps (``Lake.map_groups`` too), which a killed run left."""
        for path in self.root.entries():
            if path.name.startswith(".") and path.is_folder():
                path.remove_folder()

    def unfinished_folders(self) -> list[LakePath]:
        """Return the folders of the staging files of runs that have begun and not finished."""
        return [self.root / run_id for run_id in self.unfinished()]

    def unfinished(self) -> dict[str, UnfinishedRun]:
        """Return the runs that have begun and not finished."""
        found = {file.name.removesuffix(".json"): self.read_state(file.name) for file in self.root.files(".json")}
        return {run_id: UnfinishedRun(each["versions"], each.get("captures", [])) for run_id, each in found.items()}


def undo_unfinished_runs(lake: Lake, tables: Sequence[Table], ledger: Table, say: Say) -> None:
    """Undo the runs that did not finish, unless the ledger shows that only removing the marker was missing.

    Where somebody else has changed a table since, or removed the files of its earlier version, it is not undone: the
    captures that it was reading, and those that these share connections with, are to be read again
    (``captures_to_replace``). Only while holding the lake's lease: another run's
    work would be undone.
    """
    runs = RunMarkers.of(lake)
    runs.remove_staging_folders()
    for run_id, (versions, captures) in runs.unfinished().items():
        before = versions.get(str(ledger))
        written = lake.version(ledger) not in (None, before)
        if not written or not lake.select(ledger, f"{RUN_ID} = {{run}}", [RUN_ID], run=run_id).num_rows:
            say(f"an earlier run did not end: its work is undone ({run_id})")
            try:
                _restore(lake, {table: versions.get(str(table)) for table in tables})
            except RestoreError as error:
                say(f"it cannot be undone ({error}): the captures that it was reading are read again")
                runs.set_captures_to_replace({*captures, *(runs.captures_to_replace() or ())})
        runs.end(run_id)


def _restore(lake: Lake, versions: Mapping[Table, int | None]) -> None:
    """Restore the tables that a run has changed since their versions; RestoreError if others have changed them too."""
    changers = {table: lake.versions.changed_since(table, version) for table, version in versions.items()}
    changed = [table for table, by in changers.items() if by.ours]
    if others := [str(table) for table in changed if changers[table].others]:
        raise RestoreError(f"somebody else has changed {', '.join(others)} since")
    for table in changed:
        lake.restore(table, versions[table])
