"""Defines a view: a documented SQL query over the lake's tables that answers one of the 25 questions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """A documented SQL query that answers a question.

    ``sql`` names tables as ``layer.name``. ``setting.now`` is a relation with the time that counts as now (column
    ``now``), ``setting.quotas`` one with the quotas (``queue``, ``messages``, ``journal``; a null queue means any),
    ``setting.machine_quotas`` one with those of queue managers (``queue_manager``, ``bytes``; null means any), and
    ``setting.max_gap_s`` the setting history.max_gap in seconds.
    ``row_meaning`` completes "one row is"; ``how_to_read`` explains the columns; ``limitations`` says what the view
    cannot show. ``server_column`` holds the server address or the queue manager. The ``time_columns`` of an answer
    give the hours whose coverage is reported with it.
    """

    name: str
    question_number: int
    row_meaning: str
    how_to_read: str
    limitations: str
    sql: str
    server_column: str | None = None
    time_columns: tuple[str, ...] = ()
