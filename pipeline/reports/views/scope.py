"""What an answer is about: certain hours, machines and queues, as a condition on the rows that a view reads."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from udfs.times import datetime_to_us

SCOPE_SETTING: Final = "setting.scope"
_CONDITION: Final = re.compile(rf"\s+(?:AND|WHERE) {re.escape(SCOPE_SETTING)}\b")


@dataclass(frozen=True, slots=True)
class ScopeColumns:
    """What says when, at which machines and in which queues the rows are that stand where a view has ``setting.scope``.

    Each is a column or a SQL expression that is valid at that place. ``first`` and ``last`` are the times of a row: a
    row belongs to the hours that it overlaps. A null ``last`` is that of a row that lasts. ``machines`` are addresses,
    names or GUIDs, ``queues`` names: a row belongs to a machine or a queue that any of them names. A view without
    them cannot be limited to a machine, or to a queue. ``everywhere``: a row that names no machine belongs to each.
    """

    first: str
    last: str
    machines: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """The hours from ``since`` to ``until``, both included, and all names of the machines and queues; None: all."""

    since: datetime | None = None
    until: datetime | None = None
    machines: Collection[str] | None = None
    queues: Collection[str] | None = None

    def condition(self, columns: ScopeColumns, machines: str, queues: str) -> str:
        """Return the SQL condition that a row belongs to it; ``machines`` and ``queues`` are the SQL of their lists.

        A row without any time belongs to no hours. ValueError if the columns cannot say whether a row belongs to it.
        """
        parts = []
        if self.until is not None:
            parts.append(f"{columns.first} <= {timestamp_sql(self.until)}")
        if self.since is not None:
            parts.append(f"coalesce({columns.last} >= {timestamp_sql(self.since)}, {columns.first} IS NOT NULL)")
        if self.machines is not None:
            nowhere = (f"coalesce({', '.join(columns.machines)}) IS NULL",) if columns.everywhere else ()
            parts.append(_is_one_of(columns.machines, machines, *nowhere))
        if self.queues is not None:
            parts.append(_is_one_of(columns.queues, queues))
        return f"({' AND '.join(parts)})" if parts else "TRUE"


EVERYTHING: Final = Scope()
"""All hours, machines and queues."""


def _is_one_of(columns: tuple[str, ...], names: str, *others: str) -> str:
    if not columns:
        raise ValueError("the view cannot be limited to a machine or to a queue")
    return f"({' OR '.join((*(f'{column} IN {names}' for column in columns), *others))})"


def timestamp_sql(when: datetime | None) -> str:
    """Return the SQL of a time; None: of a null that is a time."""
    return f"timestamp_micros({'CAST(NULL AS BIGINT)' if when is None else datetime_to_us(when)})"


def without_scope(sql: str) -> str:
    """Return the SQL of a view of all hours, machines and queues, to be read and run by people."""
    return _CONDITION.sub("", sql)
