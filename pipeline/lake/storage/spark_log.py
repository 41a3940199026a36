"""Logs of tables that this process does not reach, as Spark tells them: of a catalog, behind Spark Connect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException

from pipeline.lake.engine.frames import read_table
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.queries.duckdb_sql import DataFiles
from pipeline.lake.storage.log import TableCommit, TableLocations, main_parameter
from schemas.table import Table

# Error conditions of Delta and Spark for a table that does not exist; any other error is raised.
MISSING_TABLE_CONDITIONS: Final = frozenset({
    "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND",
})  # fmt: skip


class SparkLog:
    """The logs of the tables of a catalog, or below a folder. Each look-up takes Spark some hundred milliseconds."""

    def __init__(self, locations: TableLocations, session: LazySession) -> None:
        self._locations, self._session = locations, session

    def columns(self, table: Table) -> Mapping[str, str] | None:
        """Return the types of the stored columns by name; None when there is no table."""
        spark = self._session.spark
        if self._locations.catalog is not None and not spark.catalog.tableExists(self._locations.sql_name(table)):
            return None
        try:
            schema = read_table(spark, self._locations, table).schema
        except AnalysisException as error:
            if error.getCondition() not in MISSING_TABLE_CONDITIONS:
                raise
            return None
        return {field.name: field.dataType.simpleString() for field in schema.fields}

    def newest_commit(self, table: Table) -> TableCommit:
        """Return the newest commit."""
        (newest,) = self._history(table, " LIMIT 1")
        return newest

    def commits_since(self, table: Table, version: int) -> list[TableCommit]:
        """Return the commits after a version that the log still has, the oldest first."""
        return [commit for commit in self._history(table)[::-1] if commit.version > version]

    def _history(self, table: Table, limit: str = "") -> list[TableCommit]:
        """Return the newest commits, the newest first."""
        history = self._session.spark.sql(f"DESCRIBE HISTORY {self._locations.sql_name(table)}{limit}")
        return [
            TableCommit(
                row["version"],
                row["userMetadata"],
                int((row["operationMetrics"] or {}).get("numOutputRows", 0)),
                row["operation"],
                main_parameter(row["operationParameters"]),
            )
            for row in history.collect()
        ]

    def _detail(self, table: Table, name: str) -> Any:  # noqa: ANN401 - whatever Delta tells
        (row,) = self._session.spark.sql(f"DESCRIBE DETAIL {self._locations.sql_name(table)}").collect()
        return row[name]

    def size_bytes(self, table: Table) -> int:
        """Return the size of a table's files, in bytes."""
        return int(self._detail(table, "sizeInBytes") or 0)

    def count_rows(self, table: Table) -> None:
        """Leave it to a query."""

    def files(self, table: Table) -> DataFiles | None:
        """Leave the files to Spark."""

    def changes(self, table: Table, since: int, until: int, columns: Sequence[str]) -> pa.Table | None:
        """Leave the change feed to Spark."""

    def properties(self, table: Table) -> Mapping[str, str]:
        """Return the properties of a table that are set."""
        return dict(self._detail(table, "properties") or {})

    def location(self, table: Table) -> str:
        """Return the URI of a table's folder."""
        return str(self._detail(table, "location"))
