"""What tables were made of, kept beside them: maintenance and a cleanup of the log, by anybody, do not lose it.

A commit of this program has the provenance of its table in its metadata, so that rows and provenance change together.
At the end of a run ``bronze.watermarks`` takes, for each table, its version, its provenance, and how many rows it has.
The next run compares the newest version of each table with that:

* it is the same version, or there was only maintenance since: the table has the same rows and the same provenance, and
  what other tables say of the earlier version holds for the newest one;
* this program made a commit since: the run was killed before its end, and the commit has the provenance;
* somebody else changed rows since: what the table was made of is not known any more.

A session that refuses settings takes no provenance of a statement (MERGE, RESTORE, ADD COLUMNS): what that commit is
going to be is announced in ``bronze.watermarks`` before. A commit is the one announced only where its version, its
operation and its main parameter are, and a commit of others would be no different: the condition of a MERGE names the
run; whoever restores the same version, or adds declared columns, leaves the same rows. Any other commit is somebody
else's: rather is a run not undone than a change of others lost.

Where the log has lost commits since then, the number of rows tells whether any changed them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pipeline.lake.storage.log import TableCommit
from schemas.bronze import RUNS, WATERMARKS

WITHOUT_WATERMARK: Final = (WATERMARKS, RUNS)
"""Tables that only a run changes which holds the lake, and of which nothing is made."""

_MAX_KEPT: Final = 1000  # announced commits of a table


class Watermark(NamedTuple):
    """What a table was made of at the end of a run, and how many rows it had."""

    version: int
    provenance_json: str | None
    row_count: int


class Announced(NamedTuple):
    """What a commit was going to be: its version and operation, text in its main parameter, and its provenance."""

    version: int
    operation: str
    evidence: str
    provenance: str


class Watermarks(NamedTuple):
    """What ``bronze.watermarks`` holds, by the tables' names."""

    ends: dict[str, Watermark]
    announced: dict[str, tuple[Announced, ...]]

    def of_commit(self, table: str, commit: TableCommit) -> TableCommit:
        """Return a commit of a table with the provenance that was announced of it; as it is if it was not."""
        if commit.is_ours:
            return commit
        for each in reversed(self.announced.get(table, ())):  # of one that failed and was repeated, the last
            is_it = (each.version, each.operation) == (commit.version, commit.operation)
            if is_it and each.evidence in commit.parameter:
                return commit._replace(provenance_json=each.provenance)
        return commit

    def announce(self, table: str, commit: Announced) -> None:
        """Add what a commit of a table is going to be."""
        self.announced[table] = (*self.announced.get(table, ()), commit)

    def forget_announced(self) -> None:
        """Forget the commits of a run that ends, but for those that later runs look for: with a provenance in words."""
        for table, commits in self.announced.items():
            self.announced[table] = tuple(each for each in commits if not each.provenance.startswith("{"))[-_MAX_KEPT:]


class ResolvedCommit(NamedTuple):
    """The newest snapshot of a table, the earlier versions with the same rows, and a change by somebody else."""

    newest_commit: TableCommit
    same_versions: tuple[int, ...] = ()
    foreign: TableCommit | None = None


def read_watermarks(rows: pa.Table) -> Watermarks:
    """Return what the rows of ``bronze.watermarks`` say."""
    found = Watermarks({}, {})
    for row in rows.to_pylist():
        if row["version"] is not None:
            found.ends[row["table"]] = Watermark(row["version"], row["provenance"], row["rows"])
        for commit in row["announced"] or ():
            found.announce(row["table"], Announced(**commit))
    return found


def watermark_rows(watermarks: Watermarks) -> pa.Table:
    """Return the rows of ``bronze.watermarks``."""
    rows = []
    for name in sorted({*watermarks.ends, *watermarks.announced}):
        announced = [commit._asdict() for commit in watermarks.announced.get(name, ())]
        end = watermarks.ends.get(name, (None, None, None))
        rows.append(dict(zip(WATERMARKS.names, (name, *end, announced or None), strict=True)))
    return pa.Table.from_pylist(rows, WATERMARKS.schema())


def resolve_newest(
    newest: TableCommit, mark: Watermark | None, commits: Sequence[TableCommit], count_rows: Callable[[], int]
) -> ResolvedCommit:
    """Return what a table is made of whose newest commit is not of this program.

    ``commits`` are those after the watermark, or all without one, that the log still has, the oldest first.
    ``count_rows`` counts the rows of the table.
    """
    last = next((commit for commit in reversed(commits) if not commit.is_maintenance), None)
    if last is not None and last.is_ours:
        same = (last.version,)
        return ResolvedCommit(
            newest._replace(provenance_json=last.provenance_json, rows_written=last.rows_written), same
        )
    if mark is None:
        return ResolvedCommit(newest)
    is_complete = len(commits) == newest.version - mark.version
    if last is None and (is_complete or (mark.version < newest.version and count_rows() == mark.row_count)):
        return ResolvedCommit(newest._replace(provenance_json=mark.provenance_json), (mark.version,))
    return ResolvedCommit(newest, foreign=last or newest)


def replace_versions(provenance_json: str | None, same: Mapping[tuple[str, int], int]) -> str | None:
    """Return a provenance with later versions of tables that have the same rows.

    ``same`` has them by the table's name and the version named. In a provenance a table's name may stand behind another
    word. A provenance that is no JSON object is returned as it is.
    """
    if not same:  # a run asks for provenances many times, and some keep a value for each machine
        return provenance_json
    try:
        values = json.loads(provenance_json or "")
    except ValueError:
        return provenance_json
    if not isinstance(values, dict):
        return provenance_json
    replaced = {name: _later_version(name, value, same) for name, value in values.items()}
    return provenance_json if replaced == values else json.dumps(replaced)


def _later_version(name: str, value: Any, same: Mapping[tuple[str, int], int]) -> Any:  # noqa: ANN401 - as JSON has it
    return same.get((name.rpartition(" ")[2], value), value) if isinstance(value, int) else value
