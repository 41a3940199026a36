"""What a catalog still keeps of rows that were deleted, and until when.

In Unity Catalog the files of tables and their logs are the catalog's: nothing below a table's location is touched by
path. There rows leave the tables by statements (DELETE, REORG ... APPLY (PURGE)). Their bytes stay for a while:

* in files of earlier versions and of the change feed, which VACUUM removes when each table's own retention is over
  (``delta.deletedFileRetentionDuration``); until then time travel finds the rows;
* in entries of the log: conditions of deletes, smallest and largest values. Delta removes them after
  ``delta.logRetentionDuration``, whole days of them, when it next writes a checkpoint.

A file in ``_runs`` says since when, so that a later job can tell that nothing is left. Documented at
https://docs.databricks.com/delta/vacuum.html, https://docs.databricks.com/tables/history and
https://learn.microsoft.com/azure/databricks/ldp/gdpr.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import partial
from typing import Final

from pipeline.concurrency import run_concurrently
from pipeline.lake.lake import Lake
from pipeline.lake.storage.retention import Retention
from pipeline.runs.recovery import RunMarkers
from schemas import catalog
from schemas.bronze import WATERMARKS
from schemas.table import Table

_STATE: Final = "erasing"  # in the folder of the runs
_MAX_PARALLEL: Final = 4


@dataclass(frozen=True, slots=True)
class Deletion:
    """The last time at which older rows left the tables, and the version of each table behind that."""

    at: datetime
    versions: Mapping[str, int]

    def files_until(self, retention: Retention) -> datetime:
        """Until when files with the rows stay, if somebody removes them then."""
        return self.at + retention.files

    def log_until(self, retention: Retention) -> datetime:
        """Until when entries of the log stay: Delta removes those of whole days."""
        return datetime.combine(self.at.date() + timedelta(days=1), time(), UTC) + retention.log


@dataclass(slots=True)
class DeletionNote:
    """The note of one ``forget`` job: from before its first deletion until it is known what left the tables."""

    lake: Lake
    earlier: Deletion | None
    is_first: bool
    versions: dict[Table, int | None]

    @staticmethod
    def begin(lake: Lake) -> DeletionNote:
        """Note that rows are about to leave the tables: a job that is killed after this has deleted some, or none."""
        runs = RunMarkers.of(lake)
        said = runs.read_state(_STATE)
        found = DeletionNote(lake, _parsed(said), said is None, _versions(lake))
        runs.write_state(_STATE, {})
        return found

    def end(self, now: datetime) -> None:
        """Note when the last rows left the tables: now, unless this job changed none and an earlier one is known."""
        is_unchanged = _versions(self.lake) == self.versions
        deletion = self.earlier
        if deletion is None or not is_unchanged:
            found = {str(table): self.lake.version(table) for table in _tables(self.lake)}
            deletion = Deletion(now, {name: version for name, version in found.items() if version is not None})
        nothing_left = self.is_first and is_unchanged
        state = {"at": deletion.at.isoformat(), "versions": dict(deletion.versions)}
        RunMarkers.of(self.lake).write_state(_STATE, None if nothing_left else state)


def is_noted(lake: Lake) -> bool:
    """Whether a catalog may still keep rows that were deleted."""
    return RunMarkers.of(lake).read_state(_STATE) is not None


def remove_history(lake: Lake, now: datetime) -> list[str]:
    """Remove what may be removed by now, by VACUUM and by a checkpoint; return lines on what stays until when.

    Requires exclusive access. ``now`` is the time before the first statement. Once nothing is left, the note goes.
    """
    tables = _tables(lake)
    run_concurrently({table: partial(lake.vacuum_expired, table) for table in tables}, at_once=_MAX_PARALLEL)
    runs = RunMarkers.of(lake)
    said = runs.read_state(_STATE)
    deletion = _parsed(said)
    if said is None:
        return ["done: nothing that was deleted is in files or logs of the tables"]
    if deletion is None:
        return ["a job that deleted rows was killed: run forget again with the same date"]
    found = run_concurrently({table: partial(lake.retention, table) for table in tables}, at_once=_MAX_PARALLEL)
    longest = Retention(max(each.files for each in found.values()), max(each.log for each in found.values()))
    files_until, log_until = deletion.files_until(longest), deletion.log_until(longest)
    lines = []
    if now < files_until:
        lines.append(
            f"files of earlier versions, which time travel reads: until {_text(files_until)} ({_days(longest.files)})"
        )
    if now < log_until:
        lines.append(
            f"conditions and bounds of values in the tables' history: until {_text(log_until)} ({_days(longest.log)})"
        )
    elif left := _remove_log_entries(lake, deletion):
        lines.append(f"the history of {len(left)} tables, which the catalog has not removed yet: {', '.join(left)}")
    if lines:
        again = "then run forget with the same date again, or maintain: they remove it, and say when it is done"
        return ["no table has the deleted rows any more. Of them stay", *(f"  {line}" for line in lines), again]
    runs.write_state(_STATE, None)
    return ["done: nothing that was deleted is in files or logs of the tables"]


def _remove_log_entries(lake: Lake, deletion: Deletion) -> list[str]:
    """Let the catalog remove older entries of logs, by a checkpoint; return the tables that still have some."""
    for table in _with_older_entries(lake, deletion):
        lake.purge(table, lake.versions.provenance_json(table))
    lake.keep_watermarks()
    return [str(table) for table in _with_older_entries(lake, deletion)]


def _with_older_entries(lake: Lake, deletion: Deletion) -> list[Table]:
    """Return the tables whose log has entries of versions that the deletion made, or earlier ones."""
    oldest = run_concurrently(
        {table: partial(lake.oldest_version, table) for table in _tables(lake)}, at_once=_MAX_PARALLEL
    )
    return [table for table, version in oldest.items() if version <= deletion.versions.get(str(table), -1)]


def _tables(lake: Lake) -> list[Table]:
    return [table for table in catalog.ALL_TABLES if lake.exists(table)]


def _versions(lake: Lake) -> dict[Table, int | None]:
    """Return the versions of the tables; that of the watermarks follows the others."""
    return {table: lake.version(table) for table in _tables(lake) if table is not WATERMARKS}


def _parsed(said: Mapping[str, object] | None) -> Deletion | None:
    """Return the deletion of a note; None without one, or while it is not known when the last rows left."""
    if not said:
        return None
    versions = said["versions"]
    return Deletion(datetime.fromisoformat(str(said["at"])), versions if isinstance(versions, dict) else {})


def _days(duration: timedelta) -> str:
    return f"{duration / timedelta(days=1):g} days"


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")
