"""Changes of tables that tasks stage: rows that are new or came out differently, and what names those that are gone.

A task compares what it made with what the tables have (``stage_changes``); then there is one commit for each table
(``write_changes``). So this process has no rows, but keys and times of those that go.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from pipeline.arrow_rows import is_in
from pipeline.lake.change import RowsToWrite, leaving_columns
from pipeline.lake.date_filters import distinct_dates
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.schema_enforcement import changed_keys, select_fields
from pipeline.lake.staging_files import (
    BatchTransform,
    StagingWriter,
    count_staged_rows,
    read_staged,
    staged_files,
    staged_rows,
)
from schemas.table import Table

_GONE: Final = "-gone"  # behind the name of a table: the folder of the rows that go, with ``leaving_columns``


def stage_changes(staging: StagingWriter, table: Table, rows: pa.Table, there: pa.Table) -> None:
    """Stage how rows differ from those in a table that they replace; as ``Lake.replace_changed`` takes both."""
    (name,) = table.key
    fresh, stale = changed_keys(rows, there, name)
    gone = there.select(leaving_columns(table))
    staging.add_table(table.name, rows.filter(is_in(rows, name, fresh)))
    staging.add_table(f"{table.name}{_GONE}", gone.filter(is_in(gone, name, stale)))


def write_changes(
    lake: Lake, folder: LakePath, table: Table, changes: BatchTransform | None = None, also: pa.Table | None = None, *,
    provenance: str | None = None, previous_provenance: str | None = None,
) -> int:  # fmt: skip
    """Write the changes of a table that were staged in a folder; return how many rows are written.

    ``changes``: what is changed in them, as ``staged_rows`` takes it. ``also``: other rows of the table as they are
    now. ``provenance`` and ``previous_provenance`` as for ``Lake.replace_changed``.
    """
    (name,), columns = table.key, leaving_columns(table)
    written = count_staged_rows(staged_files(folder / table.name))
    gone = read_staged(folder / f"{table.name}{_GONE}", select_fields(table.schema(), columns))
    rows: RowsToWrite = staged_rows(folder / table.name, table, changes)
    if also is not None and also.num_rows:
        written += also.num_rows
        rows, gone = lake.concat(rows, also), pa.concat_tables([gone, also.select(columns)])
    if written or gone.num_rows:
        lake.delete_and_insert(
            table, name, gone, rows, dates=distinct_dates(gone),
            provenance=provenance, previous_provenance=previous_provenance,
        )  # fmt: skip
    if provenance is not None:
        lake.note_provenance(table, provenance)
    return written
