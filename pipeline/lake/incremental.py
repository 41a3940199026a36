"""Derived tables: recompute what a change of the inputs affects, and nothing else.

A table that is computed from others is declared beside its computation (``DerivedTable``). Its newest commit keeps its
provenance: the versions of its inputs, the settings, the version of the code that its rows were computed with, and what
the next update must know (``KeptState``). An update compares this with what it would be now, and

1. does nothing where it is the same (``DerivedTable.begin`` gives None);
2. asks the change feeds of the inputs what changed since (``changes``), recomputes the affected rows, and replaces
   those that differ (``replace_changed``);
3. recomputes all rows (``replace_all``) where what changed is not known, and where the rows of before were computed
   with other settings or by other code (``same_code_and_settings``). No number of changes is a reason.

Which of these it is, ``IncrementalUpdate.recompute`` decides. Rows and provenance are one commit. A run that is killed
before that commit leaves the table as it was, and the next run repeats the work.

Several updates may write rows of one table, each those that meet a condition (``rows``), with a ``part`` of its
provenance: its names stand behind the name of the part and a space. The commit of one part carries on the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, Self, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from pipeline.lake.change import RowsToWrite
from pipeline.lake.date_filters import distinct_dates
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import CHANGE_FEED_ERRORS, ChangesSince, QueryInput
from pipeline.lake.staged_changes import write_changes
from pipeline.lake.staging_files import BatchTransform
from pipeline.lake.storage.log import TableCommit
from pipeline.lake.versions import versions_by_name
from schemas.table import Table
from udfs.rows import RowDict

CODE_VERSION: Final = "code_version"
"""In a provenance: the version of the code that computed the rows."""

NOTHING: Final[Mapping[str, Any]] = {}

Affected = TypeVar("Affected")
State = TypeVar("State", bound="KeptState")


@dataclass(frozen=True, slots=True)
class KeptState:
    """What the provenance of a table keeps for the next update, beside what its rows rest on.

    Each table declares its own, with fields of JSON values.
    """

    @classmethod
    def of(cls, provenance: Mapping[str, Any]) -> Self | None:
        """Return what a provenance keeps; None where it lacks a field, as that of another version of the program."""
        names = [each.name for each in fields(cls)]
        return cls(**{name: provenance[name] for name in names}) if all(name in provenance for name in names) else None

    def as_provenance(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


class UnknownChangesError(Exception):
    """What changed, or what that affects, is not known: all rows are recomputed."""


@dataclass(frozen=True, slots=True)
class DerivedTable:
    """A table that is computed from others.

    ``code_version`` is raised when rows are computed differently: then all are recomputed. Without any of the tables
    ``needs`` nothing is computed; by default these are the inputs. ``part`` names the update among several of a table,
    of which each computes the ``rows`` that meet a SQL condition.
    """

    target: Table
    inputs: tuple[Table, ...]
    code_version: str
    needs: tuple[Table, ...] = ()
    part: str = ""
    rows: str | None = None

    def begin(
        self, lake: Lake, settings: Mapping[str, Any] = NOTHING, also: Mapping[str, Any] = NOTHING
    ) -> IncrementalUpdate | None:
        """Begin an update as ``compare`` does; None where there is nothing to do."""
        step = self.compare(lake, settings, also)
        return None if step.is_current() or not step.exists(*(self.needs or self.inputs)) else step

    def compare(
        self, lake: Lake, settings: Mapping[str, Any] = NOTHING, also: Mapping[str, Any] = NOTHING
    ) -> IncrementalUpdate:
        """Compare what the rows rest on with what they would rest on now.

        ``settings`` and ``also`` are JSON values by name. With other settings all rows are recomputed; what a
        difference in ``also`` affects, the update of the table finds itself.
        """
        commits = lake.versions.newest_commits(*self.inputs, self.target)
        stored = commits[self.target].provenance() if self.target in commits else {}
        parts = _split_parts(stored)
        before = parts.pop(self.part, {})
        computed_by = {CODE_VERSION: self.code_version, **settings}
        now = {**versions_by_name(commits, self.inputs), **json.loads(json.dumps({**computed_by, **also}))}
        return IncrementalUpdate(lake, self, commits, before, now, frozenset(computed_by), parts)

    def provenance(self, lake: Lake) -> dict[str, Any]:
        """Return what the rows of the table in a lake rest on; empty where there is no such table."""
        return _split_parts(lake.versions.provenance(self.target)).get(self.part, {})


def _split_parts(provenance: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a provenance by part; without parts that do not say which code made them."""
    parts: dict[str, dict[str, Any]] = {}
    for each, value in provenance.items():
        part, _, name = each.rpartition(" ")
        parts.setdefault(part, {})[name] = value
    return {part: values for part, values in parts.items() if not part or CODE_VERSION in values}


@dataclass(frozen=True, slots=True)
class ChangeFeeds:
    """The change feeds of input tables between two provenances.

    ``provenance_before`` and ``provenance_now`` have the tables' versions by their names. Whatever is wrong with a
    feed, the tables themselves can still be read: a feed that cannot be read gives None, and the caller recomputes
    all rows.
    """

    lake: Lake
    provenance_before: Mapping[str, Any]
    provenance_now: Mapping[str, Any]

    def rows(self, table: Table, sql: str, **inputs: QueryInput) -> list[RowDict] | None:
        """Return the answer to a query over what changed in a table, which ``{feed}`` stands for; [] without a change.

        None where the changes are not known.
        """
        if self.is_unchanged(table):
            return []
        found = self.table(table, sql, None, **inputs)
        rows: list[RowDict] | None = None if found is None else found.to_pylist()
        return rows

    def table(self, table: Table, sql: str, limit: int | None = None, **inputs: QueryInput) -> pa.Table | None:
        """Return the same as an Arrow table; None also without a change, for then no query is asked.

        None too where the answer has more rows than fit in memory, ``limit``.
        """
        if limit is None:
            return self._ask([(table, sql)], partial(self.lake.query, **inputs))
        return self._ask([(table, sql)], lambda sql, **feeds: self.lake.query_at_most(sql, limit, **feeds, **inputs))

    def shared(self, table: Table, sql: str) -> pa.Table | None:
        """Return the same of what several updates ask: the answer stays in memory for them."""
        return self._ask([(table, sql)], self.lake.query_shared)

    def union(self, queries: Iterable[tuple[Table, str]], **inputs: QueryInput) -> pa.Table | None:
        """Return the answers to queries as one table, with the same columns; ``{feed}`` is that of each one's table.

        None as for ``table``.
        """
        return self._ask(queries, partial(self.lake.query, **inputs))

    def _ask(self, queries: Iterable[tuple[Table, str]], ask: Callable[..., pa.Table | None]) -> pa.Table | None:
        """Return the answers to queries over the tables that changed; None where none did, or a feed is not known."""
        feeds, parts = dict[str, ChangesSince](), list[str]()
        for table, sql in queries:
            since, until = self.provenance_before.get(str(table)), self.provenance_now[str(table)]
            if since == until:
                continue
            if since is None:
                return None
            name = f"feed_{len(parts)}"
            feeds[name] = ChangesSince(table, since, until)
            parts.append(sql.replace("{feed}", f"{{{name}}}"))
        try:
            return ask(" UNION ALL ".join(parts), **feeds) if parts else None
        except CHANGE_FEED_ERRORS:
            return None

    def is_unchanged(self, table: Table) -> bool:
        """Whether a table has the version that it had before."""
        return bool(self.provenance_before.get(str(table)) == self.provenance_now[str(table)])


@dataclass(slots=True)
class IncrementalUpdate:
    """One update of a derived table: what its rows rest on, before (``before``) and from this update on (``now``)."""

    lake: Lake
    table: DerivedTable
    commits: Mapping[Table, TableCommit]  # of the inputs and the target, as they were when the update began
    provenance_before: dict[str, Any]
    provenance_now: dict[str, Any]
    computed_by: frozenset[str]  # the names of the settings, and of the version of the code
    other_parts: dict[str, dict[str, Any]]  # of the provenance

    @property
    def target(self) -> Table:
        """The table."""
        return self.table.target

    def exists(self, *tables: Table) -> bool:
        """Whether any of the tables existed when the update began."""
        return any(table in self.commits for table in tables)

    def is_current(self) -> bool:
        """Whether the table rests on just this already."""
        return bool(self.provenance_before) and self.has_same_inputs(*self.provenance_now)

    def has_same_inputs(self, *names: str) -> bool:
        """Whether these parts of the provenance are as before."""
        return all(self.provenance_before.get(name) == self.provenance_now[name] for name in names)

    @property
    def same_code_and_settings(self) -> bool:
        """Whether the rows of before were computed by this code with these settings, so that they can be kept."""
        return CODE_VERSION in self.provenance_before and self.has_same_inputs(*self.computed_by)

    # What changed

    @property
    def feeds(self) -> ChangeFeeds:
        """The change feeds of the inputs since the table's last commit."""
        return ChangeFeeds(self.lake, self.provenance_before, self.provenance_now)

    def changes(self, table: Table, sql: str, **inputs: QueryInput) -> list[RowDict]:
        """Return what changed in an input, as ``ChangeFeeds.rows``; UnknownChangesError in place of None."""
        found = self.changed_rows(table, sql, **inputs)
        rows: list[RowDict] = [] if found is None else found.to_pylist()
        return rows

    def changed_rows(self, table: Table, sql: str, **inputs: QueryInput) -> pa.Table | None:
        """Return the same as an Arrow table, None without a change; UnknownChangesError."""
        return self._known_changes([table], lambda: self.feeds.table(table, sql, None, **inputs))

    def shared_changed_rows(self, table: Table, sql: str) -> pa.Table | None:
        """Return the same of what several updates ask, as ``ChangeFeeds.shared``."""
        return self._known_changes([table], lambda: self.feeds.shared(table, sql))

    def all_changed_rows(self, queries: Collection[tuple[Table, str]], **inputs: QueryInput) -> pa.Table | None:
        """Return the same of several inputs, as ``ChangeFeeds.union``."""
        return self._known_changes([table for table, _ in queries], lambda: self.feeds.union(queries, **inputs))

    def _known_changes(self, tables: Iterable[Table], ask: Callable[[], pa.Table | None]) -> pa.Table | None:
        """Return an answer about what changed in inputs; UnknownChangesError where there is none though one changed."""
        if all(map(self.feeds.is_unchanged, tables)):
            return None
        if (found := ask()) is None:
            raise UnknownChangesError
        return found

    def changed_inputs(self, tables: Iterable[Table]) -> list[Table]:
        """Return those of some inputs that have another version than before."""
        return [table for table in tables if not self.has_same_inputs(str(table))]

    def kept(self, state: type[State]) -> State:
        """Return what the last update kept for this one; UnknownChangesError where it kept nothing."""
        found = state.of(self.provenance_before)
        if found is None:
            raise UnknownChangesError
        return found

    def keep(self, state: KeptState) -> None:
        """Have the provenance keep a state for the next update."""
        self.provenance_now |= state.as_provenance()

    # What is written

    def recompute(self, find_affected: Callable[[], Affected], recompute: Callable[[Affected | None], int]) -> int:
        """Recompute what changes affect, or all rows; return how many are written.

        ``find_affected`` returns what changes affect: something empty where that is nothing. It is called where rows
        of before can be kept. ``recompute`` gets what is affected, or None for all rows. Where one of them raises
        UnknownChangesError, all rows are recomputed.
        """
        try:
            affected = find_affected() if self.same_code_and_settings else None
            if affected is not None:
                return recompute(affected) if affected else self.note_provenance()
        except UnknownChangesError:
            pass
        self.renew_versions(*self.table.inputs)
        return recompute(None)

    def replace_changed(self, rows: pa.Table, current: pa.Table) -> int:
        """Replace the rows that differ; return how many are written.

        ``current`` are the table's rows of everything that was recomputed.
        """
        dates = distinct_dates(current)
        return self.lake.replace_changed(self.target, rows, current, dates=dates, **self._provenances)

    def write_changes(
        self, folder: LakePath, changes: BatchTransform | None = None, also: pa.Table | None = None
    ) -> int:
        """Write the changes of the table that were staged in a folder, as ``staged_changes.write_changes``."""
        return write_changes(self.lake, folder, self.target, changes, also, **self._provenances)

    def replace_all(self, rows: RowsToWrite) -> int:
        """Make these all rows of the table, or of this part of it; return how many are written."""
        self.lake.replace(self.target, rows, of=self.table.rows, **self._provenances)
        return self.lake.versions.rows_written(self.target)

    def append(self, rows: DataFrame | pa.Table) -> int:
        """Add rows; return how many are written."""
        self.lake.append(self.target, rows, provenance=self._provenance_json)
        return self.lake.versions.rows_written(self.target)

    def note_provenance(self) -> int:
        """Commit the provenance alone: no row comes out differently. Return 0, the number of rows written."""
        self.lake.note_provenance(self.target, self._provenance_json)
        return 0

    def renew_versions(self, *tables: Table) -> None:
        """Have the rows rest on the newest versions of inputs, which are read only now."""
        for table in tables:
            self.provenance_now[str(table)] = self.lake.version(table)

    @property
    def _provenances(self) -> dict[str, str | None]:
        """What the table rests on from now on, and what it rested on before."""
        before = self.commits[self.target].provenance_json if self.target in self.commits else None
        return {"provenance": self._provenance_json, "previous_provenance": before}

    @property
    def _provenance_json(self) -> str:
        parts = {**self.other_parts, self.table.part: self.provenance_now}
        return json.dumps(
            {f"{part} {name}".lstrip(): value for part, each in parts.items() for name, value in each.items()}
        )


def commits_with_provenance(lake: Lake, table: Table, since: int | None, provenance: str) -> list[int]:
    """Return the versions after ``since`` whose commits have this provenance; none without ``since``."""
    found = {} if since is None else lake.versions.provenance_since(table, since)
    return [version for version, each in found.items() if each == provenance]
