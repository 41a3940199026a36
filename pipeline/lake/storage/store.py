"""What a lake needs of the library that stores its tables. There are two: ``delta_rs`` and ``spark_store``.

Which one stores a lake is fixed when the lake is made (``lake_record``). Both make Delta tables with the same columns
and rows. A lake whose tables are folders is stored by delta-rs, without Java; one whose tables are in a catalog by
Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.queries.inputs import GroupedQuery, MemoryLimits, QueryInput, Values
from pipeline.lake.writes import Dates
from schemas.table import Column, Table, quoted

StoreName = Literal["delta-rs", "spark"]
RowsToWrite: TypeAlias = DataFrame | pa.Table | PartitionedRows
"""Rows to be written."""

NO_PROVENANCE: Final = "{}"
"""The provenance in a commit of this program whose table has none, as those have that are read."""

# Operations that change no row: what somebody does to keep a table fast and small.
_MAINTENANCE: Final = frozenset({
    "CREATE TABLE", "OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "COMPUTE STATS", "CLUSTER BY",
    "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPGRADE PROTOCOL", "ROW TRACKING BACKFILL",
})  # fmt: skip


class Snapshot(NamedTuple):
    """A commit of a table: its version from 0, its provenance, and how many rows it wrote.

    ``operation`` is Delta's name of what was done. Commits of this program have a provenance, if only
    ``NO_PROVENANCE``; those of others have none.
    """

    version: int
    provenance_json: str | None
    rows_written: int = 0
    operation: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this program made it."""
        return self.provenance_json is not None

    @property
    def is_maintenance(self) -> bool:
        """Whether somebody else, or a library, made it, and changed no row."""
        return not self.is_ours and self.operation in _MAINTENANCE

    @property
    def is_foreign(self) -> bool:
        """Whether somebody else made it, and changed rows or columns."""
        return not self.is_ours and not self.is_maintenance

    def provenance(self) -> dict[str, Any]:
        """Return the provenance, read as JSON; empty if there is none, or it is not a JSON object."""
        try:
            made = json.loads(self.provenance_json or "")
        except ValueError:
            return {}
        return made if isinstance(made, dict) else {}


class TablePlaces(NamedTuple):
    """Where the tables of a lake are: below a folder, or in a catalog, in schemas whose names begin with a prefix."""

    root: str
    catalog: str | None
    prefix: str

    def path(self, table: Table) -> str:
        """Return a table's folder, or its full name in the catalog."""
        if self.catalog is None:
            return f"{self.root}/{table.layer}/{table.name}"
        return ".".join((self.catalog, f"{self.prefix}{table.layer}", table.name))

    def sql_name(self, table: Table) -> str:
        """Return a table's name for Spark's SQL, quoted."""
        if self.catalog is None:
            return f"delta.{quoted(self.path(table))}"
        return f"{self.sql_schema(table)}.{quoted(table.name)}"

    def sql_schema(self, table: Table) -> str:
        """Return the name for SQL of the schema that a table of a catalog is in, quoted."""
        return f"{quoted(self.catalog or '')}.{quoted(self.prefix + table.layer)}"


class CommitNote(NamedTuple):
    """The provenance of a commit's table, and that of the first commit where two are needed.

    ``check`` is called before each commit, and raises where none may be made.
    """

    provenance: str | None
    check: Callable[[], None]
    previous_provenance: str | None = None

    @property
    def metadata(self) -> str:
        """What the commit says of the table's provenance."""
        return self.provenance or NO_PROVENANCE


class MergeOptions(NamedTuple):
    """How rows are merged (``Lake.merge``): by which keys, at which dates, which are deleted, which stay."""

    keys: Sequence[str]
    dates: Dates | None
    delete_when: str | None
    unless_same: bool


class TableStore(Protocol):
    """Stores the tables of one lake. All tables but those of ``stored_columns`` and ``create`` exist.

    A commit is made only where it changes something. Conditions and expressions are Spark's SQL; names in braces stand
    for values. Threads may use it for different tables at once.
    """

    name: StoreName
    session: LazySession
    max_values: int
    """How many values a condition may name; more are deleted by ``delete_values``."""

    def stored_columns(self, table: Table) -> Mapping[str, str] | None:
        """Return the types of the stored columns by name, as Spark's simple strings; None when there is no table."""

    def create(self, table: Table) -> None:
        """Create a table, empty, with its comments, if it does not exist."""

    def add_columns(self, table: Table, columns: Sequence[Column], note: CommitNote) -> None:
        """Add columns to a table."""

    def snapshot(self, table: Table) -> Snapshot:
        """Return the newest commit."""

    def snapshots_since(self, table: Table, version: int) -> list[Snapshot]:
        """Return the commits after a version that the log still has, the oldest first."""

    def size(self, table: Table) -> int:
        """Return the size of a table's files, in bytes."""

    def count_rows(self, table: Table) -> int:
        """Return the number of a table's rows."""

    def read(self, table: Table) -> DataFrame:
        """Return a table's rows as a frame; declared columns that it does not have are null."""

    def read_changes(self, table: Table, since: int, until: int) -> DataFrame:
        """Return what changed after a version, up to a later one, with ``CHANGE_COLUMNS``."""

    def query(self, sql: str, inputs: Mapping[str, QueryInput]) -> pa.Table:
        """Return the answer to a query; tables among the inputs exist."""

    def query_at_most(
        self, sql: str, inputs: Mapping[str, QueryInput], max_rows: int, max_bytes: int
    ) -> pa.Table | None:
        """Return the answer to a query; None where it has more rows or bytes."""

    def read_answer(self, sql: str, inputs: Mapping[str, QueryInput]) -> AbstractContextManager[RowsToWrite]:
        """Yield the answer to a query, which is computed as it is written, and never all in memory."""

    def append(self, table: Table, rows: RowsToWrite, note: CommitNote) -> None:
        """Add rows."""

    def map_groups(
        self, query: GroupedQuery, limits: MemoryLimits
    ) -> AbstractContextManager[dict[str, pa.Table] | DataFrame | PartitionedRows]:
        """Yield the answers to the queries where they are few; else what the function makes of groups.

        Tasks compute it when it is used. Tables in the queries exist.
        """

    def replace(self, table: Table, rows: RowsToWrite, note: CommitNote) -> None:
        """Make these all rows of a table; a frame may have been read from it."""

    def delete(self, table: Table, condition: str, values: Mapping[str, Values], note: CommitNote) -> None:
        """Delete the rows that meet a condition."""

    def delete_and_insert(
        self, table: Table, condition: str, values: Mapping[str, Values], rows: pa.Table | PartitionedRows,
        note: CommitNote,
    ) -> None:  # fmt: skip
        """Delete the rows that meet a condition, and add others: in one commit, or in two."""

    def delete_values(
        self, table: Table, column: str, values: DataFrame, dates: Dates | None, note: CommitNote
    ) -> None:
        """Delete the rows whose column has a value of a frame of one column, without duplicates."""

    def update(
        self, table: Table, assignments: Mapping[str, str], condition: str, values: Mapping[str, Values],
        note: CommitNote,
    ) -> None:  # fmt: skip
        """Set columns to expressions in the rows that meet a condition."""

    def update_columns(
        self, table: Table, rows: DataFrame | pa.Table, dates: Dates | None, deleted: str | None, note: CommitNote
    ) -> None:
        """Set the columns of ``rows`` in the rows that have their keys, or delete those (``Lake.update_columns``)."""

    def merge(self, table: Table, rows: DataFrame, options: MergeOptions, note: CommitNote) -> None:
        """Upsert a frame's rows by key."""

    def commit_note(self, table: Table, note: CommitNote) -> None:
        """Commit a note alone: no row changes."""

    def restore(self, table: Table, version: int, note: CommitNote) -> None:
        """Restore a table to a version, by a commit of its own; RestoreError where that cannot be done."""

    def purge(self, table: Table, note: CommitNote) -> None:
        """Write the files again without deleted rows, and begin the log again. No row changes."""

    def vacuum(self, table: Table) -> None:
        """Delete all files that the newest version does not need."""

    def maintain(self, table: Table, retain_hours: int, note: CommitNote) -> None:
        """Join small files, and delete files that no version of the last hours needs. No row changes."""

    def location(self, table: Table) -> str:
        """Return the URI of the table's folder."""
