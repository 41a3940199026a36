"""What changed in the tables below since a table's last commit, which said of which of their versions it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.lake.lake import Lake
from pipeline.lake.queries import UNTOLD, Since, Source
from schemas.table import Table


@dataclass(frozen=True, slots=True)
class Feeds:
    """``made``: what the last commit said, versions by the tables' names; ``rests_on``: what this one's will say.

    Whatever is wrong with a feed, the tables themselves can be read: what it cannot tell is None, and all made anew.
    """

    lake: Lake
    made: Mapping[str, Any]
    rests_on: Mapping[str, Any]

    def rows(self, table: Table, sql: str, most: int, **of: Source) -> list[dict[str, Any]] | None:
        """Return the rows that a question finds in what changed in a table, ``{feed}``; none where nothing did.

        None when that is not told, or there are more than ``most``.
        """
        found = self.table(table, sql, most, **of)
        if found is None:
            return [] if self.is_unchanged(table) else None
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows

    def table(self, table: Table, sql: str, most: int, **of: Source) -> pa.Table | None:
        """Return the same as an Arrow table; None also where nothing changed, for then nothing is asked."""
        since, until = self.made.get(str(table)), self.rests_on[str(table)]
        if since is None or self.is_unchanged(table):
            return None
        try:
            found = self.lake.query(f"{sql} LIMIT {most + 1}", feed=Since(table, since, until), **of)
        except UNTOLD:
            return None
        return found if found.num_rows <= most else None

    def is_unchanged(self, table: Table) -> bool:
        """Tell whether a table is of the version that it was of."""
        return bool(self.made.get(str(table)) == self.rests_on[str(table)])
