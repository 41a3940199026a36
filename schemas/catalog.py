"""Every table, in order of creation: children of the ledger first, then what is made of them."""

from __future__ import annotations

from schemas import bronze, gold, silver
from schemas.table import Table

ALL: tuple[Table, ...] = (*bronze.TABLES, *silver.TABLES, *gold.TABLES)


def table(full_name: str) -> Table:
    """The table of that ``layer.name``; KeyError when there is none."""
    for each in ALL:
        if str(each) == full_name:
            return each
    raise KeyError(full_name)
