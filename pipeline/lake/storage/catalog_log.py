"""Logs of tables of Spark's own catalog whose folders this process reaches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.lake_path import LakePath
from pipeline.lake.storage.file_log import FileLog
from pipeline.lake.storage.log import TableLocations
from schemas.table import Table

_LOCAL: Final = re.compile(r"file:(?://)?(/.*)", re.DOTALL)


class CatalogFileLog(FileLog):
    """The logs of the tables of a catalog, in the folders of its schemas: no table has a place of its own."""

    def __init__(self, locations: TableLocations, session: LazySession) -> None:
        super().__init__(locations)
        self._session = session
        self._schemas: dict[str, str] = {}

    def folder(self, table: Table) -> LakePath:
        """Return a table's folder."""
        schema = self._locations.sql_schema(table)
        if schema not in self._schemas:
            location = self._session.spark.catalog.getDatabase(schema).locationUri
            found = _LOCAL.fullmatch(location)
            self._schemas[schema] = unquote(found[1]) if found else location
        return LakePath(self._schemas[schema]) / table.name

    def columns(self, table: Table) -> Mapping[str, str] | None:
        """Return the types of the stored columns by name; None when the catalog has no such table."""
        exists = self._session.spark.catalog.tableExists(self._locations.sql_name(table))
        return super().columns(table) if exists else None
