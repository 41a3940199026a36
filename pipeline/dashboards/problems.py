"""Counts the problems that a dashboard shows, by section: for the console output at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from pipeline.dashboards.dashboard_data import (
    FAILED_SESSION_OUTCOMES,
    NEVER_ARRIVED,
    NOT_READ,
    STUCK_CONDITIONS,
    DashboardData,
    current_state,
)
from pipeline.queues.eod_transfers import TROUBLED_CONDITIONS
from pipeline.queues.history import NOT_CONNECTED_STATES
from udfs.capture.openings import FAILED
from udfs.rows import RowDict


def _is_failed_session(row: RowDict) -> bool:
    return row["session_outcome"] in FAILED_SESSION_OUTCOMES or row["not_established"] in FAILED


# Dataset, section of the page, filter of its problem rows, what they are.
_CHECKS: Final[tuple[tuple[str, str, Callable[[RowDict], bool], str], ...]] = (
    ("alerts", "alerts", lambda row: row["until"] is None, "active alerts"),
    ("queues", "queues", lambda row: row["state"] in NOT_CONNECTED_STATES, "queues not connected"),
    ("message_transfers", "transfers", lambda row: row["not_delivered"] == NEVER_ARRIVED, "messages not delivered"),
    ("message_transfers", "transfers", lambda row: row["not_delivered"] == NOT_READ, "messages delivered, not read"),
    ("transfer_sequences", "transfers", lambda row: row["condition"] in STUCK_CONDITIONS, "sequences stuck"),
    ("sessions", "transfers", _is_failed_session, "sessions refused"),
    ("transfers", "eod", lambda row: row["condition"] in TROUBLED_CONDITIONS, "transfers with problems"),
    (
        "sources",
        "eod",
        lambda row: bool(row["reject_count"] or row["disagrees_with_sender"]),
        "rejected senders",
    ),
    ("sequences", "reads", lambda row: row["loss_risk"] is not None, "messages at risk"),
    ("calls", "calls", lambda row: bool(row["failed"]), "failed calls"),
    ("findings", "findings", lambda row: row["severity"] == "error", "rule violations"),
    ("quality", "quality", lambda row: row["success"] is False, "failed quality checks"),
    ("captures", "coverage", lambda row: row["status"] != "complete", "captures not read whole"),
)


def count_problems(dashboard: DashboardData) -> Iterator[tuple[str, str]]:
    """Yield section and count (``3 failed calls``) of each problem that occurs, over all rows of its dataset."""
    for name, section, is_problem, label in _CHECKS:
        data = dashboard.datasets.get(name)
        if data is None or data.rows is None:
            continue
        rows = (data.summary if data.summary is not None else data.rows).to_pylist()
        if name == "queues":
            rows = [row | {"state": current_state(row, dashboard.as_of)} for row in rows]
        if number := sum(row.get("n", 1) for row in rows if is_problem(row)):
            yield section, f"{number} {label}"
