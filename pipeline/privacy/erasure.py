"""What is gone from the tables, gone from their files: old versions, changes they told, and what logs say of them.

A deleted row stays in Delta's files: behind a deletion vector, in older versions, in the change feed, and in the log,
whose entries hold the smallest and largest keys of files and the conditions of deletes. So each table is written
without its deleted rows (``Lake.purge``), its log begun anew by a checkpoint, the other files removed (VACUUM without
retention), and the log's entries before the checkpoint as well.

A table's commit says of which versions of others it was made. The commits made here change no row, so what is said is
said anew, of the new versions: the next run finds nothing to do. A table comes after all those that it names, so that a
run killed anywhere leaves none that names a version to come.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow.fs as pafs

from pipeline.lake.lake import Lake, beside
from pipeline.lake.recovery import Runs
from pipeline.silver.update import EMPTIED
from schemas import catalog
from schemas.table import Table

_ENTRY: Final = re.compile(r"\.?(\d{20})\.")  # the version that a file of the log is of; a dot before: its checksum
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\..*parquet")
_CACHES: Final = ("summary", "queues")  # of ``_runs``: what was last printed, by versions that are no more
_AT_ONCE: Final = 4


def erase(lake: Lake) -> int:
    """Leave of every table its newest rows alone; returns how many tables there are. The lake must be held."""
    tables = [table for table in catalog.EVERY if lake.exists(table)]
    newest = lake.newest(*tables)
    before = {str(table): commit.version for table, commit in newest.items()}
    made = {table: commit.made() for table, commit in newest.items()}
    passed = _passed_over(lake, made, before)
    after: dict[str, int] = {}
    for level in levels({table: _names(made[table], before) for table in tables}):
        for begin in range(0, len(level), _AT_ONCE):
            part = level[begin : begin + _AT_ONCE]
            says = {table: restated(newest[table].made_of, before, after, passed) for table in part}
            # Each through a session of its own: what a commit says is a setting of the session.
            beside(lake, {table: partial(_purge, table, says[table]) for table in part})
            after |= {str(table): lake.version(table) or 0 for table in part}
    _note_of_opening(lake, before, after)
    for begin in range(0, len(tables), _AT_ONCE):
        beside(lake, {table: partial(_remove, table) for table in tables[begin : begin + _AT_ONCE]})
    return len(tables)


def leftovers(lake: Lake) -> None:
    """Remove what killed runs left in the lake's folder of runs, and what was last printed."""
    root = Runs.of(lake).root
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith(".") or path.name in _CACHES:
            path.unlink(missing_ok=True)


def levels(names: Mapping[Table, Collection[str]]) -> list[list[Table]]:
    """Return tables in groups, each behind those that its tables name; what names each other in a circle comes last."""
    left, done, found = list(names), set[str](), []
    there = {str(table) for table in left}
    while left:
        ready = [table for table in left if not {*names[table]} & there - done - {str(table)}] or left
        found.append(ready)
        done |= {str(table) for table in ready}
        left = [table for table in left if table not in ready]
    return found


def _table_of(name: str, tables: Mapping[str, Any]) -> str | None:
    """Return the table whose version a fact of a commit is: by its name, before which something may stand."""
    last = name.rpartition(" ")[2]
    return last if last in tables else None


def _names(made: Mapping[str, Any], tables: Mapping[str, Any]) -> set[str]:
    return {table for table in (_table_of(name, tables) for name in made) if table is not None}


def restated(
    made_of: str | None, before: Mapping[str, int], after: Mapping[str, int], passed: Collection[tuple[str, int]]
) -> str | None:
    """Return what a commit said with the versions that tables have now, where it was of those that they had."""
    try:
        made = json.loads(made_of or "")
    except ValueError:
        return made_of
    if not isinstance(made, dict):
        return made_of
    for name, value in made.items():
        table = _table_of(name, after)
        if table is None or not isinstance(value, int):
            continue
        if value == before[table] or (table, value) in passed:
            made[name] = after[table]
    return json.dumps(made)


def _passed_over(
    lake: Lake, made: Mapping[Table, Mapping[str, Any]], before: Mapping[str, int]
) -> set[tuple[str, int]]:
    """Return versions of tables that are as good as the newest: behind them stubs were emptied, and nothing else."""
    found = set()
    for name in _named(made.values(), before):
        table, since = catalog.table(name[0]), name[1]
        if since < before[name[0]] and {*lake.said(table, since).values()} == {EMPTIED}:
            found.add(name)
    return found


def _named(made: Iterable[Mapping[str, Any]], tables: Mapping[str, int]) -> set[tuple[str, int]]:
    found = set()
    for each in made:
        for name, value in each.items():
            table = _table_of(name, tables)
            if table is not None and isinstance(value, int):
                found.add((table, value))
    return found


def _purge(table: Table, made_of: str | None, lake: Lake) -> None:
    lake.purge(table, made_of)


def _remove(table: Table, lake: Lake) -> None:
    lake.vacuum(table)
    filesystem, root = pafs.FileSystem.from_uri(lake.location(table))
    files = filesystem.get_file_info(pafs.FileSelector(f"{root}/_delta_log", recursive=True, allow_not_found=True))
    for path in old_entries([(info.base_name, info.path) for info in files if info.is_file]):
        filesystem.delete_file(path)


def old_entries(files: Sequence[tuple[str, str]]) -> list[str]:
    """Return the paths of a log's files that are older than its newest checkpoint; given are names and paths."""
    checkpoints = [int(found[1]) for name, _ in files if (found := _CHECKPOINT.fullmatch(name))]
    if not checkpoints:
        return []
    return [path for name, path in files if (found := _ENTRY.match(name)) and int(found[1]) < max(checkpoints)]


def _note_of_opening(lake: Lake, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Have opening go on from the newest version of the calls, if it had come there (``opening``)."""
    note = Runs.of(lake).root / "opening"
    if not note.exists():
        return
    told = json.loads(note.read_text(encoding="utf-8"))
    calls = "bronze.rpc_calls"
    if calls in after and told["version"] == before[calls]:
        temporary = note.with_name(".opening")
        temporary.write_text(json.dumps({**told, "version": after[calls]}), encoding="utf-8")
        temporary.replace(note)
