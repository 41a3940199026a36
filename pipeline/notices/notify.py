"""One call of all targets: find what each is to be told, deliver it, and keep what it was told. No Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pipeline.alerts.by_clock import AlertsByClock
from pipeline.alerts.entries import AlertRow, find_entries
from pipeline.notices.changes import AlertsNow, Changes, Notification, find_target_changes
from pipeline.notices.delivery import Delivery, deliver
from pipeline.notices.kept_lines import KeptLines, Line, Mute, notification_line, target_line
from pipeline.notices.notice import UNCHANGED, Notice, notice_key
from pipeline.notices.target import Call, Target


@dataclass(frozen=True, slots=True)
class TargetOutcome:
    """How many notices a target got, how many wait for the next call, and why."""

    sent: int
    waiting: int
    failures: Sequence[str]


def alerts_now(alerts: AlertsByClock, mutes: Sequence[Mute]) -> AlertsNow:
    """Return the alerts that are told. Muted ones are left out before entries are made of the others."""
    told, muted_keys = list[AlertRow](), set[str]()
    for row in alerts.every:
        if not any(mute.covers(row) for mute in mutes):
            told.append(row)
        elif row["until"] is None:
            muted_keys.add(notice_key(row))
    ended = [row for row in told if row["until"] is not None]
    return AlertsNow(
        alerts.clock,
        find_entries((row for row in told if row["until"] is None), alerts.machines),
        ended,
        [row for row in ended if row["alert_key"] in alerts.recent_events],
        frozenset(muted_keys),
    )


def notify_targets(
    kept: KeptLines, targets: Sequence[Target], alerts: AlertsNow, *, repeat_after: timedelta
) -> dict[str, TargetOutcome]:
    """Tell each target what has changed for it, and write what it was told; return the outcome by target. OSError."""
    acknowledged = kept.acknowledged()
    told = {target.name: kept.told(target.name) for target in targets}
    changes = {
        target.name: find_target_changes(
            alerts,
            told[target.name],
            acknowledged,
            repeat_after=repeat_after if target.is_reminded else None,
            is_first_call=not kept.is_known(target.name),
        )
        for target in targets
    }
    requests = {
        target.name: [*target.requests(_call(changes[target.name], told[target.name], alerts.now))]
        for target in targets
    }
    deliveries = deliver(requests)
    lines = [
        line
        for name, before in told.items()
        for line in _lines(name, changes[name], before, deliveries[name], alerts.now)
    ]
    kept.add([*(target_line(name, alerts.now) for name in told if not kept.is_known(name)), *lines], alerts.now)
    return {name: _outcome(changes[name], delivery) for name, delivery in deliveries.items()}


def _call(changes: Changes, told: Mapping[str, Notification], now: datetime) -> Call:
    before = {own_key: each.notice for own_key, each in told.items() if each.is_open}
    return Call(changes.to_send, changes.open, before, now)


def _lines(
    target: str, changes: Changes, told: Mapping[str, Notification], delivery: Delivery, now: datetime
) -> Iterator[Line]:
    """Yield the lines to keep of what a target was told, is still to be told, or need not be told."""
    for notice in changes.to_send:
        before = told.get(notice.notice_key)
        is_delivered = notice.notice_key in delivery.delivered
        is_known = is_delivered or (before is not None and before.is_open and before.is_known)
        if is_delivered or before is None or not _is_waiting_alike(before, notice):
            yield notification_line(target, Notification(notice, now, not is_delivered, is_known))
    for notice in changes.to_keep:
        before = told.get(notice.notice_key)
        if before is not None and notice.action == UNCHANGED:
            yield notification_line(target, before._replace(notice=notice.with_action(before.notice.action)))
        else:
            yield notification_line(target, Notification(notice, now))


def _is_waiting_alike(before: Notification, notice: Notice) -> bool:
    """Whether a notice waits already: what else it says is found again in the next call."""
    same = (notice.action, notice.severity, list(notice.alert_keys))
    return before.is_waiting and same == (before.notice.action, before.notice.severity, list(before.notice.alert_keys))


def _outcome(changes: Changes, delivery: Delivery) -> TargetOutcome:
    keys = {notice.notice_key for notice in changes.to_send}
    return TargetOutcome(len(keys & delivery.delivered), len(keys - delivery.delivered), delivery.failures)
