"""Erase deleted rows from the files of Delta tables: old versions, change feeds, deletion vectors and log entries.

A deleted row stays in Delta's files: behind a deletion vector, in older versions, in the change feed, and in the log,
whose entries hold smallest and largest values of files and conditions of deletes. Therefore each table is written
without its deleted rows (``Lake.purge``), a checkpoint starts its log again, all other files are removed (VACUUM
without retention), and so are the log entries before the checkpoint.

The provenance in a table's commit names versions of its input tables. The commits made here change no row: they repeat
the provenance with the new versions, so that the next run finds nothing to do. A table comes after all tables that it
names, so that a killed run leaves no table that names a future version.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow.fs as pafs

from pipeline.lake.lake import Lake, run_in_parallel
from pipeline.lake.recovery import RunMarkers
from pipeline.silver.update import STUBS_EMPTIED_PROVENANCE
from schemas import catalog
from schemas.table import Table

_LOG_FILE: Final = re.compile(r"\.?(\d{20})\.")  # with the version; a dot before it: a checksum file
_CHECKPOINT_FILE: Final = re.compile(r"(\d{20})\.checkpoint\..*parquet")
_LOCAL_PATH: Final = re.compile(r"file:(?://)?(/.*)", re.DOTALL)
_CACHED_REPORTS: Final = ("summary", "queues")  # files in ``_runs``, by versions that are gone
_MAX_PARALLEL: Final = 4


def erase_history(lake: Lake) -> int:
    """Leave only current rows in the files of every table; return the number of tables. Requires exclusive access."""
    tables = [table for table in catalog.ALL_TABLES if lake.exists(table)]
    newest = lake.snapshots(*tables)
    before = {str(table): snapshot.version for table, snapshot in newest.items()}
    provenance = {table: snapshot.provenance() for table, snapshot in newest.items()}
    equivalent = _equivalent_versions(lake, provenance, before)
    after: dict[str, int] = {}
    for level in dependency_levels({table: _tables_named_in(provenance[table], before) for table in tables}):
        for begin in range(0, len(level), _MAX_PARALLEL):
            batch = level[begin : begin + _MAX_PARALLEL]
            updated = {
                table: update_provenance_versions(newest[table].provenance_json, before, after, equivalent)
                for table in batch
            }
            # Each table in a session of its own: a commit's provenance is a setting of the session.
            run_in_parallel(lake, {table: partial(_purge_table, table, updated[table]) for table in batch})
            after |= {str(table): lake.version(table) or 0 for table in batch}
    _update_decryption_state(lake, before, after)
    for begin in range(0, len(tables), _MAX_PARALLEL):
        batch = tables[begin : begin + _MAX_PARALLEL]
        run_in_parallel(lake, {table: partial(_remove_old_files, table) for table in batch})
    return len(tables)


def remove_leftover_files(lake: Lake) -> None:
    """Remove files of killed runs, and cached reports, from the lake's folder ``_runs``."""
    root = RunMarkers.of(lake).root
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith(".") or path.name in _CACHED_REPORTS:
            path.unlink(missing_ok=True)


def dependency_levels(names: Mapping[Table, Collection[str]]) -> list[list[Table]]:
    """Group tables into levels, each after the tables that its tables name. Circular references are in the last one."""
    left, done, found = list(names), set[str](), []
    there = {str(table) for table in left}
    while left:
        ready = [table for table in left if not {*names[table]} & there - done - {str(table)}] or left
        found.append(ready)
        done |= {str(table) for table in ready}
        left = [table for table in left if table not in ready]
    return found


def _table_named_in(name: str, tables: Mapping[str, Any]) -> str | None:
    """Return the table that a key of a provenance names, maybe after a prefix; None if it names none."""
    last = name.rpartition(" ")[2]
    return last if last in tables else None


def _tables_named_in(provenance: Mapping[str, Any], tables: Mapping[str, Any]) -> set[str]:
    return {table for table in (_table_named_in(name, tables) for name in provenance) if table is not None}


def update_provenance_versions(
    provenance: str | None, before: Mapping[str, int], after: Mapping[str, int], equivalent: Collection[tuple[str, int]]
) -> str | None:
    """Replace the versions of tables in a provenance by those ``after``, where they were up to date ``before``.

    ``equivalent`` are tables and versions that count as up to date. A provenance that is no JSON object is not changed.
    """
    try:
        values = json.loads(provenance or "")
    except ValueError:
        return provenance
    if not isinstance(values, dict):
        return provenance
    for name, value in values.items():
        table = _table_named_in(name, after)
        if table is None or not isinstance(value, int):
            continue
        if value == before[table] or (table, value) in equivalent:
            values[name] = after[table]
    return json.dumps(values)


def _equivalent_versions(
    lake: Lake, provenance: Mapping[Table, Mapping[str, Any]], before: Mapping[str, int]
) -> set[tuple[str, int]]:
    """Return tables and versions after which commits only removed stubs: they are as good as the newest version."""
    found = set()
    for name, version in _versions_named_in(provenance.values(), before):
        messages = lake.provenance_since(catalog.table(name), version) if version < before[name] else {}
        if {*messages.values()} == {STUBS_EMPTIED_PROVENANCE}:
            found.add((name, version))
    return found


def _versions_named_in(provenance: Iterable[Mapping[str, Any]], tables: Mapping[str, int]) -> set[tuple[str, int]]:
    found = set()
    for values in provenance:
        for name, value in values.items():
            table = _table_named_in(name, tables)
            if table is not None and isinstance(value, int):
                found.add((table, value))
    return found


def _purge_table(table: Table, provenance: str | None, lake: Lake) -> None:
    lake.purge(table, provenance)


def _remove_old_files(table: Table, lake: Lake) -> None:
    lake.vacuum(table)
    location = lake.location(table)
    if local := _LOCAL_PATH.fullmatch(location):  # not escaped as a URI has to be
        filesystem, root = pafs.LocalFileSystem(), local[1]
    else:
        filesystem, root = pafs.FileSystem.from_uri(location)
    files = filesystem.get_file_info(pafs.FileSelector(f"{root}/_delta_log", recursive=True, allow_not_found=True))
    for path in log_files_before_checkpoint([(info.base_name, info.path) for info in files if info.is_file]):
        filesystem.delete_file(path)


def log_files_before_checkpoint(files: Sequence[tuple[str, str]]) -> list[str]:
    """Return the paths of log files that are older than the newest checkpoint; ``files`` are names and paths."""
    checkpoints = [int(found[1]) for name, _ in files if (found := _CHECKPOINT_FILE.fullmatch(name))]
    if not checkpoints:
        return []
    return [path for name, path in files if (found := _LOG_FILE.match(name)) and int(found[1]) < max(checkpoints)]


def _update_decryption_state(lake: Lake, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Set the version in the state file of decryption to the newest one, if it was up to date."""
    path = RunMarkers.of(lake).root / "opening"
    if not path.exists():
        return
    state = json.loads(path.read_text(encoding="utf-8"))
    calls = "bronze.rpc_calls"
    if calls in after and state["version"] == before[calls]:
        temporary = path.with_name(".opening")
        temporary.write_text(json.dumps({**state, "version": after[calls]}), encoding="utf-8")
        temporary.replace(path)
