"""Rows of alerts, entries, and what becomes of them from call to call, without any target."""

from __future__ import annotations

import datetime as dt

from pipeline.alerts.by_clock import AlertsByClock
from pipeline.notices.changes import Told, find_changes
from pipeline.notices.notice import UNCHANGED
from pipeline.notices.tell import alerts_now
from pipeline.silver.machines import Machines
from udfs.keys import key

BEGIN = dt.datetime(2026, 3, 1, 9, 0, tzinfo=dt.UTC)
MACHINES = Machines([], {})
REPEAT_AFTER = dt.timedelta(hours=4)


def at(minute):
    return BEGIN + dt.timedelta(minutes=minute)


def alert(condition="queue_stuck", subject="queue a", *, since=0, until=None, last=None, severity="warning", **more):
    """A row of gold.alerts; times are minutes."""
    queue = more.pop("queue", f"srv\\private$\\{subject.rpartition(' ')[2]}")
    last = since if last is None else last
    return {
        "alert_key": key(condition, subject, since), "condition": condition, "severity": severity, "subject": subject,
        "queue": queue, "queue_manager": "srv", "from_machine": None, "to_machine": None, "cause": None,
        "since": at(since), "until": None if until is None else at(until), "last_seen_at": at(last),
        "message": f"{condition} observed", "suggestion": "Look.", "evidence": [], "confidence": "complete",
        "missing": [],
    } | more  # fmt: skip


def by_clock(*rows, minute, stopped=(), hold=24 * 60):
    """The alerts by a clock, of which some ended events are not older than ``hold`` minutes."""
    recent = {row["alert_key"] for row in rows if row["until"] is not None
              and at(minute) - row["last_seen_at"] <= dt.timedelta(minutes=hold)
              and row["condition"] in ("ends_refused", "containers_rejected")}  # fmt: skip
    return AlertsByClock(at(minute), at(minute), rows, tuple(stopped), frozenset(), frozenset(recent), frozenset())


class Listener:
    """A target that was told something or nothing, and remembers it as the lake would."""

    def __init__(self, repeat_after=REPEAT_AFTER):
        self.told, self.is_first_call, self.repeat_after = {}, True, repeat_after

    def call(self, minute, *rows, acknowledged=None, mutes=(), delivered=True, **more):
        """Return (action, notice key, reason) of what is told at this minute; sorted."""
        now = alerts_now(by_clock(*rows, minute=minute, **more), MACHINES, mutes)
        changes = find_changes(
            now, self.told, acknowledged or {}, repeat_after=self.repeat_after, is_first_call=self.is_first_call
        )
        self.is_first_call = False
        self.open = changes.open
        for notice in changes.to_tell:
            before = self.told.get(notice.notice_key)
            is_known = delivered or (before is not None and before.is_open and before.is_known)
            self.told[notice.notice_key] = Told(notice, now.now, not delivered, is_known)
        for notice in changes.to_keep:
            before = self.told.get(notice.notice_key)
            if notice.action == UNCHANGED:
                self.told[notice.notice_key] = before._replace(notice=notice.with_action(before.notice.action))
            else:
                self.told[notice.notice_key] = Told(notice, now.now)
        self.notices = changes.to_tell
        return sorted((each.action, each.notice_key, each.reason) for each in changes.to_tell)
