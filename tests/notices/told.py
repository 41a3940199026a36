"""Rows of alerts, entries, and what becomes of them from call to call, without any target."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from types import SimpleNamespace

from pipeline.alerts.by_clock import AlertsByClock
from pipeline.lake.lake_path import LakePath
from pipeline.notices.kept_lines import KeptLines
from pipeline.notices.notify import alerts_now, notify_targets
from pipeline.notices.target import NotDeliveredError, NoticeRequest, Target
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
    return AlertsByClock(
        at(minute), at(minute), rows, tuple(stopped), frozenset(), frozenset(recent), frozenset(), MACHINES
    )


@dataclass(frozen=True)
class _Recorder(Target):
    """Takes what it is told, or not, and remembers it."""

    heard: SimpleNamespace

    def requests(self, call):
        self.heard.notices, self.heard.open = [*call.to_send], [*call.open]
        yield NoticeRequest(frozenset(each.notice_key for each in call.to_send), self.take)

    def take(self, _):
        if not self.heard.is_up:
            raise NotDeliveredError("down", is_down=True)


class _NotReminded(_Recorder):
    is_reminded = False


class Listener:
    """A target that is called again and again, and what a lake keeps of it.

    ``notices`` and ``open`` are what it was told last and what is open; ``told`` what it had been told before.
    """

    def __init__(self, folder=None, name="listener", *, is_reminded=True):
        self.heard = SimpleNamespace()
        self.target = (_Recorder if is_reminded else _NotReminded)(name, self.heard)
        self.temporary = TemporaryDirectory()
        self.folder = folder or LakePath(self.temporary.name)

    @property
    def notices(self):
        return self.heard.notices

    @property
    def open(self):
        return self.heard.open

    def call(self, minute, *rows, acknowledged=(), mutes=(), delivered=True, **more):
        """Return (action, notice key, reason) of what is told at this minute; sorted."""
        kept, self.heard.is_up = KeptLines(self.folder), delivered
        self.told = kept.told(self.target.name)
        kept.add(acknowledged, at(minute))
        now = alerts_now(by_clock(*rows, minute=minute, **more), mutes)
        notify_targets(kept, [self.target], now, repeat_after=REPEAT_AFTER)
        return sorted((each.action, each.notice_key, each.reason) for each in self.notices)
