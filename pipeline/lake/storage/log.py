"""The logs of tables: versions, what commits say of themselves, files, numbers of rows, and what changed.

There are two: ``FileLog`` reads the log in a table's folder, whoever wrote it, in milliseconds and without Java;
``SparkLog`` asks Spark where this process does not reach the folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from pipeline.lake.queries.duckdb_sql import DataFiles
from schemas.table import Table, quoted

NO_PROVENANCE: Final = "{}"
"""The provenance in a commit of this program whose table has none, as those have that are read."""

UNKNOWN_VERSION: Final = -1
"""The version of a commit that was made where the session does not tell it."""

# Operations that change no row: what somebody does to keep a table fast and small.
MAINTENANCE: Final = frozenset({
    "CREATE TABLE", "OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "COMPUTE STATS", "CLUSTER BY",
    "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPGRADE PROTOCOL", "ROW TRACKING BACKFILL",
})  # fmt: skip


class TableCommit(NamedTuple):
    """A commit of a table: its version from 0, its provenance, and how many rows it wrote.

    ``operation`` is Delta's name of what was done, ``parameter`` says how (``main_parameter``). Commits of this program
    have a provenance, if only ``NO_PROVENANCE``; those of others have none.
    """

    version: int
    provenance_json: str | None
    rows_written: int = 0
    operation: str | None = None
    parameter: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether this program made it."""
        return self.provenance_json is not None

    @property
    def is_maintenance(self) -> bool:
        """Whether somebody else, or a library, made it, and changed no row."""
        return not self.is_ours and self.operation in MAINTENANCE

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


def main_parameter(parameters: Mapping[str, Any] | None) -> str:
    """Return which rows an operation is about, as the log says it: their condition, or ``version N;`` of a RESTORE."""
    known = parameters or {}
    version = known.get("version")
    return str(known.get("predicate") or ("" if version is None else version_parameter(version)))


def version_parameter(version: int | str) -> str:
    """Return the main parameter of a RESTORE to a version."""
    return f"version {version};"


class TableLocations(NamedTuple):
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

    def create_schema_sql(self, table: Table) -> str:
        """Return the SQL that creates the schema that a table of a catalog is in, if it does not exist."""
        return f"CREATE SCHEMA IF NOT EXISTS {self.sql_schema(table)}"


class TableLog(Protocol):
    """The logs of the tables of one lake; all tables but those of ``columns`` exist. Threads may share it."""

    def columns(self, table: Table) -> Mapping[str, str] | None:
        """Return the types of the stored columns by name, as Spark's simple strings; None when there is no table."""

    def newest_commit(self, table: Table) -> TableCommit:
        """Return the newest commit."""

    def commits_since(self, table: Table, version: int) -> list[TableCommit]:
        """Return the commits after a version that the log still has, the oldest first."""

    def size_bytes(self, table: Table) -> int:
        """Return the size of a table's files, in bytes."""

    def count_rows(self, table: Table) -> int | None:
        """Return the number of a table's rows; None where the log does not have it."""

    def files(self, table: Table) -> DataFiles | None:
        """Return the rows of the newest version as files; None where only Spark can read them."""

    def changes(self, table: Table, since: int, until: int, columns: Sequence[str]) -> pa.Table | None:
        """Return columns of the change feed after a version, up to a later one; None where only Spark can read it.

        ChangeFeedError where the changes are not known.
        """

    def properties(self, table: Table) -> Mapping[str, str]:
        """Return the properties of a table that are set."""

    def location(self, table: Table) -> str:
        """Return the URI of a table's folder."""
