"""What one commit does to the rows of a table, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.queries.inputs import Values
from pipeline.lake.storage.log import NO_PROVENANCE
from schemas.table import EVENT_DATE, Table

RowsToWrite: TypeAlias = DataFrame | pa.Table | PartitionedRows | pa.RecordBatchReader
"""Rows to be written, with the table's columns in any order; event_date may be left out. A reader is read once."""


class RowsGone(NamedTuple):
    """The rows that meet a condition, in SQL; names in braces stand for ``values``.

    ``find`` returns them as they are in the newest version, without duplicates: the columns ``compared``, which are the
    key and those that the condition names, and the times that give ``event_date``. Whatever else has the same values of
    the columns compared meets the condition too.
    """

    condition: str
    values: Mapping[str, Values]
    compared: Sequence[str]
    find: Callable[[], pa.Table]


def leaving_columns(table: Table) -> list[str]:
    """Return the columns of rows that leave, for who knows these: the key, the date, the times that give it."""
    names = dict.fromkeys((*table.key, EVENT_DATE, *table.event_date_columns))
    return [name for name in names if name in table.names]


class EveryRow(NamedTuple):
    """All rows that the table has."""


EVERY_ROW: Final = EveryRow()


class Change(NamedTuple):
    """The change of a table in one commit: ``gone`` leave, ``rows`` are added.

    Among the rows added can be some with the keys of those that leave. A folder's store may need a second commit.
    """

    rows: RowsToWrite
    gone: RowsGone | EveryRow | None = None


MakeChange: TypeAlias = Callable[[], Change]
"""Reads a table, and returns the change of what it read: it is called again if others commit meanwhile."""


class CommitNote(NamedTuple):
    """The provenance of a commit's table, and that of the first commit where two are needed.

    ``check`` is called before each commit, and raises where none may be made. ``announce`` is called before one that
    cannot say its provenance, with its operation and what its main parameter contains in the log.
    """

    provenance: str | None
    check: Callable[[], None]
    announce: Callable[[str, str], None]
    previous_provenance: str | None = None

    @property
    def metadata(self) -> str:
        """What the commit says of the table's provenance."""
        return self.provenance or NO_PROVENANCE
