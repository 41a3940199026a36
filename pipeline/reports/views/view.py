"""Defines a view: a documented SQL query over the lake's tables that answers one of the 28 questions."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.reports.views.evidence import EvidenceNeeds
from pipeline.reports.views.scope import ScopeColumns


@dataclass(frozen=True, slots=True)
class View:
    """A documented SQL query that answers a question.

    ``sql`` is valid for Spark and for DuckDB, and ends with the order of the rows. It names tables as ``layer.name``.
    ``setting.now`` is a relation with the time that counts as now (column ``now``),
    ``setting.quotas`` one with the quotas (``queue``, ``messages``, ``journal``; a null queue means any),
    ``setting.machine_quotas`` one with those of queue managers (``queue_manager``, ``bytes``; null means any),
    ``setting.max_gap_s`` the setting history.max_gap in seconds, and ``setting.since`` the beginning of the hours asked
    for, null without. ``setting.scope`` stands once, as a condition: of the rows there, those count that belong to the
    hours, machines and queues asked for, as ``scope`` says. What contradicts or explains them is not limited.
    ``row_meaning`` completes "one row is"; ``how_to_read`` explains the columns; ``limitations`` says what the view
    cannot show. Each of ``server_columns`` holds the address of a server or a queue manager. The ``time_columns`` of an
    answer give the hours whose coverage is reported with it. ``needs`` is what must have been seen: without it an empty
    answer does not mean "none".
    """

    name: str
    question_number: int
    row_meaning: str
    how_to_read: str
    limitations: str
    sql: str
    server_columns: tuple[str, ...]
    time_columns: tuple[str, ...]
    needs: EvidenceNeeds
    scope: ScopeColumns
