"""What changes the tables of a lake. There are two stores: ``delta_rs`` for folders, ``delta_spark`` for all others.

Which one stores a lake is fixed when the lake is made (``lake_record``). Both make Delta tables with the same columns
and rows. What reads them is the same for both (``log``, ``pipeline.lake.queries``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from pipeline.lake.change import Change, CommitNote, MakeChange
from pipeline.lake.schema_enforcement import columns_with_statistics
from pipeline.lake.storage.log import TableCommit
from schemas.table import Column, Table

StoreName = Literal["delta-rs", "spark"]


def table_properties(table: Table) -> Mapping[str, str]:
    """Return the properties that a table is created with.

    It has a change feed, which incremental updates read; statistics of the columns that are looked up, not of stubs;
    and no deletion vectors, with which only Spark would read its files (decision 057).
    """
    return {
        "delta.enableChangeDataFeed": "true",
        "delta.enableDeletionVectors": "false",
        **statistics_property(table),
    }


def statistics_property(table: Table) -> dict[str, str]:
    """Return the property that says which columns files have statistics of."""
    return {"delta.dataSkippingStatsColumns": ",".join(columns_with_statistics(table))}


class TableStore(Protocol):
    """Commits to the tables of one lake. Threads may use it for different tables at once."""

    name: StoreName

    def create(self, table: Table) -> None:
        """Create a table, empty, with its comments, if it does not exist."""

    def commit(
        self, table: Table, change: Change | MakeChange, note: CommitNote, *, is_new: bool
    ) -> TableCommit | None:
        """Change the rows of a table; return the commit if it is known without a look at the log.

        No commit is made where no row changes. ``is_new``: there is no table yet, it is created with
        these rows. ConflictError if others change it all the time.
        """

    def add_columns(self, table: Table, columns: Sequence[Column], note: CommitNote) -> None:
        """Add columns to a table."""

    def set_layout(self, table: Table, note: CommitNote) -> None:
        """Have a table be laid out as declared, from the next ``maintain`` on. Nothing happens where it is."""

    def restore(self, table: Table, version: int, note: CommitNote) -> None:
        """Restore a table to a version, by a commit of its own; RestoreError where that cannot be done."""

    def purge(self, table: Table, note: CommitNote) -> None:
        """Write the files again without deleted rows, and begin the log again. No row changes."""

    def rewrite(self, table: Table, note: CommitNote) -> None:
        """Write the files again that hold deleted rows. No row changes."""

    def vacuum(self, table: Table) -> None:
        """Delete all files that the newest version does not need."""

    def vacuum_expired(self, table: Table) -> None:
        """Delete the files that no version within the table's own retention needs."""

    def maintain(self, table: Table, retain_hours: int, note: CommitNote) -> None:
        """Join small files, and delete files that no version of the last hours needs. No row changes."""
