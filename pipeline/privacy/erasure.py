"""Erase deleted rows from the files of Delta tables: old versions, change feeds, deletion vectors and log entries.

A deleted row stays in Delta's files: behind a deletion vector, in older versions, in the change feed, and in the log,
whose entries hold smallest and largest values of files and conditions of deletes. Therefore each table is written
without its deleted rows (``Lake.purge``), a checkpoint starts its log again, all other files are removed (VACUUM
without retention), and so are the log entries before the checkpoint.

Where a catalog owns the files of its tables (``Lake.owns_files``), only the first step is done here: files that hold
deleted rows are written again. What it keeps of the others, and until when, is in ``retained_history``.

The commits made here change no row: the watermarks of tables get the new versions of their inputs, so that the next run
finds nothing to do. The watermarks' own table is written and purged last, since what it says of a table holds names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow.fs as pafs

from pipeline.bronze import decryption
from pipeline.concurrency import run_concurrently
from pipeline.lake.lake import Lake
from pipeline.lake.storage.log import TableCommit
from pipeline.runs.recovery import RunMarkers
from pipeline.silver.update import STUBS_EMPTIED_PROVENANCE
from schemas import catalog
from schemas.bronze import RPC_CALLS, WATERMARKS
from schemas.table import Table
from udfs.files.filesystems import resolve_filesystem

_LOG_FILE: Final = re.compile(r"\.?(\d{20})\.")  # with the version; a dot before it: a checksum file
_CHECKPOINT_FILE: Final = re.compile(r"(\d{20})\.checkpoint\..*parquet")
_LOCAL_PATH: Final = re.compile(r"file:(?://)?(/.*)", re.DOTALL)
_CACHED_REPORTS: Final = ("summary", "queues")  # files in ``_runs``, by versions that are gone
_MAX_PARALLEL: Final = 4


def erase_history(lake: Lake) -> int:
    """Leave only current rows in the files of every table; return the number of tables. Requires exclusive access.

    Where a catalog owns the files, those of earlier versions stay: ``retained_history.remove_history``.
    """
    purge = lake.purge if lake.owns_files else lake.rewrite
    tables = [table for table in catalog.ALL_TABLES if lake.exists(table) and table is not WATERMARKS]
    before = lake.versions.newest_commits(*tables)
    same = {table: {found.version} for table, found in before.items()}
    same.setdefault(RPC_CALLS, set()).update(_versions_before_stubs_were_emptied(lake, before))
    run_concurrently(
        {table: partial(purge, table, before[table].provenance_json) for table in tables}, at_once=_MAX_PARALLEL
    )
    lake.versions.note_same_versions(same)
    if RPC_CALLS in before:
        decryption.keep_state(lake, before[RPC_CALLS].version)
    lake.keep_watermarks()
    purge(WATERMARKS, None)
    if lake.owns_files:
        run_concurrently(
            {table: partial(_remove_old_files, table, lake) for table in (*tables, WATERMARKS)}, at_once=_MAX_PARALLEL
        )
    return len(tables)


def remove_leftover_files(lake: Lake) -> None:
    """Remove files of killed runs, and cached reports, from the lake's folder ``_runs``."""
    for path in RunMarkers.of(lake).root.entries():
        if path.is_folder():
            path.remove_folder()
        elif path.name.startswith(".") or path.name in _CACHED_REPORTS:
            path.remove_file()


def _versions_before_stubs_were_emptied(lake: Lake, newest: Mapping[Table, TableCommit]) -> set[int]:
    """Return versions of bronze.rpc_calls that others name, and after which commits only emptied stubs."""
    named = {snapshot.provenance().get(str(RPC_CALLS)) for snapshot in newest.values()}
    return {
        version
        for version in named
        if isinstance(version, int)
        and {*lake.versions.provenance_since(RPC_CALLS, version).values()} == {STUBS_EMPTIED_PROVENANCE}
    }


def _remove_old_files(table: Table, lake: Lake) -> None:
    lake.vacuum(table)
    location = lake.path(table) if lake.catalog is None else lake.location(table)
    if local := _LOCAL_PATH.fullmatch(location):  # not escaped as a URI has to be
        filesystem, root = pafs.LocalFileSystem(), local[1]
    else:
        filesystem, root = resolve_filesystem(location)
    files = filesystem.get_file_info(pafs.FileSelector(f"{root}/_delta_log", recursive=True, allow_not_found=True))
    for path in log_files_before_checkpoint([(info.base_name, info.path) for info in files if info.is_file]):
        filesystem.delete_file(path)


def log_files_before_checkpoint(files: Sequence[tuple[str, str]]) -> list[str]:
    """Return the paths of log files that are older than the newest checkpoint; ``files`` are names and paths."""
    checkpoints = [int(found[1]) for name, _ in files if (found := _CHECKPOINT_FILE.fullmatch(name))]
    if not checkpoints:
        return []
    return [path for name, path in files if (found := _LOG_FILE.match(name)) and int(found[1]) < max(checkpoints)]
