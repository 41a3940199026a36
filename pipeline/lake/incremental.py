"""Incremental updates of derived tables: recompute what a change of the inputs affects, and nothing else.

The newest commit of a derived table keeps its provenance: the versions of its input tables, the settings, and the
version of the code that its rows were computed with. An update compares this with what it would be now, and

1. does nothing where it is the same (``is_current``);
2. asks the change feeds of the inputs what changed since (``changes``), recomputes the affected rows in memory where
   they are few and in Spark where they are many, and replaces those that differ (``replace_changed``);
3. recomputes all rows (``prepare_full_reads``, ``replace_all``) where what changed is not known, or is too much.

Rows and provenance are one commit. A run that is killed before that commit leaves the table as it was, and the next
run repeats the work.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from pipeline.lake.change import RowsToWrite
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import CHANGE_FEED_ERRORS, ChangesSince, QueryInput
from pipeline.lake.storage.log import Snapshot
from pipeline.lake.versions import versions_by_name
from schemas.table import EVENT_DATE, Table
from udfs.rows import RowDict


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

    def rows(self, table: Table, sql: str, limit: int, **inputs: QueryInput) -> list[RowDict] | None:
        """Return the answer to a query over what changed in a table, which ``{feed}`` stands for; [] without a change.

        None where the changes are not known, or where the answer has more than ``limit`` rows.
        """
        if self.is_unchanged(table):
            return []
        found = self.table(table, sql, limit, **inputs)
        rows: list[RowDict] | None = None if found is None else found.to_pylist()
        return rows

    def table(self, table: Table, sql: str, limit: int, **inputs: QueryInput) -> pa.Table | None:
        """Return the same as an Arrow table; None also without a change, for then no query is asked."""
        since, until = self.provenance_before.get(str(table)), self.provenance_now[str(table)]
        if since is None or self.is_unchanged(table):
            return None
        try:
            return self.lake.query_at_most(sql, limit, feed=ChangesSince(table, since, until), **inputs)
        except CHANGE_FEED_ERRORS:
            return None

    def is_unchanged(self, table: Table) -> bool:
        """Whether a table has the version that it had before."""
        return bool(self.provenance_before.get(str(table)) == self.provenance_now[str(table)])


@dataclass(slots=True)
class IncrementalUpdate:
    """One update of a derived table: what its rows rest on, before (``before``) and from this update on (``now``)."""

    lake: Lake
    target: Table
    snapshots: Mapping[Table, Snapshot]  # of the inputs and the target, as they were when the update began
    provenance_before: dict[str, Any]
    provenance_now: dict[str, Any]

    @staticmethod
    def begin(
        lake: Lake, target: Table, inputs: Collection[Table], settings: Mapping[str, Any], *also: Table
    ) -> IncrementalUpdate:
        """Read the versions of all tables. ``settings``: whatever else the rows rest on, JSON values by name.

        ``also`` are tables whose provenance the caller reads (``provenance_of``): the rows do not rest on their
        versions.
        """
        snapshots = lake.versions.snapshots(*inputs, target, *also)
        before = snapshots[target].provenance() if target in snapshots else {}
        now = {**versions_by_name(snapshots, inputs), **json.loads(json.dumps(settings))}
        return IncrementalUpdate(lake, target, snapshots, before, now)

    def exists(self, *tables: Table) -> bool:
        """Whether any of the tables existed when the update began."""
        return any(table in self.snapshots for table in tables)

    def provenance_of(self, table: Table) -> dict[str, Any]:
        """Return the provenance of another derived table."""
        return self.snapshots[table].provenance() if table in self.snapshots else {}

    def is_current(self) -> bool:
        """Whether the table rests on just this already."""
        return bool(self.provenance_before) and self.has_same_inputs(*self.provenance_now)

    def has_same_inputs(self, *names: str) -> bool:
        """Whether these parts of the provenance are as before."""
        return all(self.provenance_before.get(name) == self.provenance_now[name] for name in names)

    # What changed

    @property
    def feeds(self) -> ChangeFeeds:
        """The change feeds of the inputs since the table's last commit."""
        return ChangeFeeds(self.lake, self.provenance_before, self.provenance_now)

    def changes(self, table: Table, sql: str, limit: int, **inputs: QueryInput) -> list[RowDict] | None:
        """Return what changed in an input, as ``ChangeFeeds.rows``; None in a first run too."""
        return self.feeds.rows(table, sql, limit, **inputs) if self.provenance_before else None

    def changed_inputs(self, tables: Iterable[Table]) -> list[Table]:
        """Return those of some inputs that have another version than before."""
        return [table for table in tables if not self.has_same_inputs(str(table))]

    # What is written

    def replace_changed(self, rows: pa.Table, current: pa.Table, dates: Collection[date | None] | None = None) -> int:
        """Replace the rows that differ; return how many are written.

        ``current`` are the table's rows of everything that was recomputed; ``dates`` their event dates, by default
        those that they have.
        """
        found = set(current[EVENT_DATE].to_pylist()) if dates is None else dates
        before = self.snapshots[self.target].provenance_json if self.target in self.snapshots else None
        return self.lake.replace_changed(
            self.target, rows, current, dates=found, provenance=self._provenance_json, previous_provenance=before
        )

    def replace_all(self, rows: RowsToWrite) -> int:
        """Make these all rows of the table; return how many are written."""
        self.lake.replace(self.target, rows, provenance=self._provenance_json)
        return self.lake.versions.rows_written(self.target)

    def append(self, rows: DataFrame | pa.Table) -> int:
        """Add rows; return how many are written."""
        self.lake.append(self.target, rows, provenance=self._provenance_json)
        return self.lake.versions.rows_written(self.target)

    def note_provenance(self) -> None:
        """Commit the provenance alone: no row comes out differently."""
        self.lake.note_provenance(self.target, self._provenance_json)

    def prepare_full_reads(self, *tables: Table) -> None:
        """Prepare inputs to be read as a whole, to recompute all rows; from now on their changes are known."""
        for table in tables:
            self.provenance_now[str(table)] = self.lake.version(table)

    @property
    def _provenance_json(self) -> str:
        return json.dumps(self.provenance_now)


def commits_with_provenance(lake: Lake, table: Table, since: int | None, provenance: str) -> list[int]:
    """Return the versions after ``since`` whose commits have this provenance; none without ``since``."""
    found = {} if since is None else lake.versions.provenance_since(table, since)
    return [version for version, each in found.items() if each == provenance]
