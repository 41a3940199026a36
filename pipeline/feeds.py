"""What changed in the tables below since a table's last commit, which said of which of their versions it was made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, Row

from pipeline.lake import UNTOLD, Lake
from schemas.table import Table

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Feeds:
    """``made``: what the last commit said, versions by the tables' names; ``rests_on``: what this one's will say.

    Whatever is wrong with a feed, the tables themselves can be read: what it cannot tell is None, and all made anew.
    """

    lake: Lake
    made: Mapping[str, Any]
    rests_on: Mapping[str, Any]

    def told(self, table: Table, ask: Callable[[DataFrame], Answer], unchanged: Answer) -> Answer | None:
        """Return what ``ask`` finds in a table's feed, ``unchanged`` where there is none; None when it cannot tell."""
        since, until = self.made.get(str(table)), self.rests_on[str(table)]
        if since == until:
            return unchanged
        if since is None:
            return None
        try:
            return ask(self.lake.changes(table, since, until))
        except UNTOLD:
            return None

    def rows(self, table: Table, ask: Callable[[DataFrame], DataFrame], most: int) -> list[Row] | None:
        """Return the rows that ``ask`` makes of a table's feed; None when it cannot tell, or of more than ``most``."""
        nothing: list[Row] = []
        found = self.told(table, lambda feed: ask(feed).limit(most + 1).collect(), nothing)
        return found if found is not None and len(found) <= most else None

    def table(
        self, table: Table, ask: Callable[[DataFrame], DataFrame], most: int, unchanged: pa.Table
    ) -> pa.Table | None:
        """Return what ``rows`` does as an Arrow table, ``unchanged`` where there is no feed."""
        found = self.told(table, lambda feed: ask(feed).limit(most + 1).toArrow(), unchanged)
        return found if found is not None and found.num_rows <= most else None
