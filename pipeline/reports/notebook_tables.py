"""The tables of a lake in a notebook. Those that the lake does not have are there without rows."""

from __future__ import annotations

from tempfile import gettempdir
from typing import Final, Protocol

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from pipeline.lake.lake import Lake
from schemas.catalog import table as declared_table

_NOT_THERE: Final = {"TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST"}


class Widgets(Protocol):
    """The widgets of a notebook, as far as they name tables: ``dbutils.widgets``."""

    def get(self, name: str) -> str:
        """Return the value of a widget."""
        ...


class NotebookTables:
    """The tables that a notebook reads, by the widgets ``lake``, or ``catalog`` and ``prefix``.

    ``names`` are all that the notebook reads, as ``layer.table``. One that no run has written is a frame with the
    declared columns and without rows. AnalysisException if a table is there and cannot be read.
    """

    def __init__(self, spark: SparkSession, widgets: Widgets, *names: str) -> None:
        self._spark, self._widgets = spark, widgets
        found = {name: self._read(name) for name in names}
        self.missing = [name for name, frame in found.items() if frame is None]
        empty = {name: spark.createDataFrame([], declared_table(name).struct()) for name in self.missing}
        self._frames = {name: frame for name, frame in found.items() if frame is not None} | empty

    def __call__(self, name: str) -> DataFrame:
        """Return a table by its layer and name: ``gold.receive_attempts``."""
        return self._frames[name]

    @property
    def lake(self) -> Lake:
        """The lake of these tables, for functions that ask it; nothing is written to it."""
        if folder := self._widgets.get("lake"):
            return Lake(self._spark, folder)
        catalog, prefix = self._widgets.get("catalog"), self._widgets.get("prefix")
        # Spark is asked for logs: tables of a catalog may have places of their own.
        return Lake(self._spark, gettempdir(), catalog=catalog, prefix=prefix, read_log="spark", trusts_versions=True)

    def describe_missing(self) -> str:
        """Return one line that says which tables are not in the lake."""
        return f"Not in the lake, shown without rows: {', '.join(self.missing) or 'nothing'}."

    def _read(self, name: str) -> DataFrame | None:
        try:
            if folder := self._widgets.get("lake"):
                frame = self._spark.read.format("delta").load(f"{folder}/{name.replace('.', '/')}")
            else:
                frame = self._spark.table(f"{self._widgets.get('catalog')}.{self._widgets.get('prefix')}{name}")
            frame.columns  # noqa: B018 - over Spark Connect only this asks for the table
        except AnalysisException as error:
            if error.getCondition() in _NOT_THERE:
                return None
            raise
        return frame
