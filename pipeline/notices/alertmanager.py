"""Alertmanager, API v2: each call sends all alerts that are active, and when they count as ended without another call.

Alertmanager knows an alert by its labels. Where these change, the alert with the old ones is ended in the same call.
No Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Final

from pipeline.notices.https_post import Endpoint
from pipeline.notices.notice import HAPPENED, Notice
from pipeline.notices.target import Call, NoticeRequest, Target
from pipeline.text import json_default

_INTERVALS_AHEAD: Final = 3
_LABELS: Final = ("queue", "queue_manager", "from_machine", "to_machine")


@dataclass(frozen=True)
class Alertmanager(Target):
    """An Alertmanager; ``interval`` is the time between two calls of this program."""

    is_reminded: ClassVar[bool] = False  # each call has all alerts
    endpoint: Endpoint
    interval: timedelta

    def requests(self, call: Call) -> Iterator[NoticeRequest]:
        """Yield one request with all alerts; none where nothing is active or was."""
        ends_at = call.now + _INTERVALS_AHEAD * self.interval
        active = [*call.open, *(notice for notice in call.to_send if notice.action == HAPPENED)]
        now = [_alert(notice, call.now, ends_at) for notice in active]
        labels = [alert["labels"] for alert in now]
        before = (_alert(notice, call.now, call.now) for notice in call.before.values())
        alerts = [*now, *(alert for alert in before if alert["labels"] not in labels)]
        if alerts:
            told = frozenset(notice.notice_key for notice in (*call.to_send, *call.open))
            yield NoticeRequest(told, partial(self.endpoint.post, alerts))


def _alert(notice: Notice, now: datetime, ends_at: datetime) -> dict[str, Any]:
    facts = notice.facts
    labels = {"alertname": facts["condition"], "severity": notice.severity, "notice_key": notice.notice_key}
    said = {"summary": facts["subject"], "description": facts["message"], "suggestion": facts["suggestion"]}
    others = ", ".join(f"{row['condition']}: {row['subject']}" for row in facts["alerts"][1:])
    return {
        "labels": labels | {name: facts[name] for name in _LABELS if facts[name]},
        "annotations": {name: text for name, text in {**said, "also": others}.items() if text},
        "startsAt": facts["since"] or json_default(now),
        "endsAt": json_default(ends_at),
    }
