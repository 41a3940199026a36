"""Alerts from rows of gold.machine_history (questions 1, 3). No Spark.

Rows are dictionaries with times in microseconds: for each queue manager its whole history from some time on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import ERROR, WARNING, Alert, ConditionHistory, Ends, Observation
from pipeline.queues.history import STATE_UNKNOWN
from pipeline.queues.machine_history import STATE_DISCONNECTED
from udfs.rows import RowDict

MACHINE_COLUMNS: Final = (
    "queue_manager", "valid_from", "valid_to", "state", "bytes_in_all_queues", "evidence", "missing",
)  # fmt: skip
"""The columns of gold.machine_history that ``machine_alerts`` needs."""


def machine_alerts(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int) -> Iterator[Alert]:
    """Yield the alerts of queue managers, from rows of gold.machine_history (``MACHINE_COLUMNS``)."""
    ordered = sorted(rows, key=itemgetter("queue_manager", "valid_from"))
    for manager, series in groupby(ordered, key=itemgetter("queue_manager")):
        history = [dict(row) for row in series if row["valid_from"] <= now]
        subject = f"queue manager {manager}"
        for check in (
            ConditionHistory(
                "machine_disconnected",
                subject,
                _disconnected(history),
                limits.machine_disconnected_after,
                limits.error_after,
            ),
            ConditionHistory("machine_nearly_full", subject, _filling(manager, history, limits)),
        ):
            yield from check.alerts(now, limits.merge_within, None, manager, Ends(to_machine=manager))


def _disconnected(history: Iterable[RowDict]) -> Iterator[Observation]:
    for row in history:
        if row["state"] != STATE_UNKNOWN:
            message = "disconnected from network and directory"
            yield _observation(row, holds=row["state"] == STATE_DISCONNECTED, message=message)


def _filling(manager: str, history: Sequence[RowDict], limits: Thresholds) -> Iterator[Observation]:
    quota = limits.machine_quotas.get(manager, limits.machine_quota_bytes)
    for row in history:
        if not quota or row["bytes_in_all_queues"] is None:
            continue
        held = int(row["bytes_in_all_queues"])
        used = held / quota
        severity = ERROR if held >= quota else WARNING
        message = f"{held} of {quota} bytes ({used:.0%})"
        yield _observation(row, holds=used >= limits.machine_full_share, message=message, severity=severity)


def _observation(row: RowDict, *, holds: bool, message: str, severity: str = WARNING) -> Observation:
    evidence, missing = tuple(row["evidence"] or ())[-1:], tuple(row["missing"] or ())
    return Observation(row["valid_from"], holds, row["valid_to"], message, severity, evidence, missing)
