"""What a view is: a documented SQL query over the lake's tables that answers a question of docs/questions.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """A query. ``sql`` names tables as ``layer.name``, the time that counts as now as ``setting.now`` (a column
    ``now``), quotas as ``setting.quotas`` (columns ``queue``, ``messages``, ``journal``; a queue that is null is any).

    ``row``: what one row is; ``read``: how to read it; ``unknown``: what it cannot tell. ``server`` is the column with
    the server's address or the queue manager, ``times`` are those that say which hours an answer is of.
    """  # noqa: D205

    name: str
    question: int
    row: str
    read: str
    unknown: str
    sql: str
    server: str | None = None
    times: tuple[str, ...] = ()
