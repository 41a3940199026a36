"""What has changed for a target since it was told last: pure functions over entries and what it was told. No Spark.

A notice goes on as long as one alert that it told of is active. So it keeps its key where another alert of the entry
leads now, and nobody is called twice for one cause. Of notices whose entries have become one, the first goes on, and
the others end as "joined".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pipeline.alerts.conditions import EVIDENCE_STOPPED
from pipeline.alerts.entries import AlertRow, Entry
from pipeline.alerts.episodes import SEVERITY_ORDER
from pipeline.notices.notice import (
    BEGAN,
    ENDED,
    HAPPENED,
    JOINED,
    MUTED,
    REPEATED,
    UNCHANGED,
    UPDATED,
    WITHDRAWN,
    WORSENED,
    Notice,
    entry_facts,
    entry_keys,
    episode_facts,
    notice_key,
)
from pipeline.text import json_default

_TOLD_AGAIN: Final = ("condition", "severity", "subject", "since")  # another value is an update


class Notification(NamedTuple):
    """What a target was told last of a notice.

    ``is_waiting``: it could not be told yet. ``is_known``: it was told something of this notice before.
    """

    notice: Notice
    told_at: datetime
    is_waiting: bool = False
    is_known: bool = True

    @property
    def is_open(self) -> bool:
        """Whether the target takes the entry for one that is still there, or will when it is told."""
        return self.notice.is_open or (self.notice.action == ENDED and self.is_waiting)


class Acknowledgement(NamedTuple):
    """That somebody looks after a notice: from when until when, and how severe it was when that was said."""

    at: datetime
    until: datetime
    severity: str

    def holds(self, notified: Notification, severity: str, now: datetime) -> bool:
        """Whether it still counts for a notice that is now so severe."""
        is_worse = SEVERITY_ORDER.index(severity) > SEVERITY_ORDER.index(self.severity)
        return now < self.until and not is_worse and self.at >= as_time(notified.notice.begun_at)


@dataclass(frozen=True, slots=True)
class AlertsNow:
    """The alerts at the time of a call, without those that are muted.

    ``entries`` are those of active alerts, ``ended`` the rows of ended ones, ``events`` those of them that are told
    although they are over. ``muted_keys`` are the keys of condition and subject of active alerts that are muted.
    """

    now: datetime
    entries: Sequence[Entry]
    ended: Sequence[AlertRow] = ()
    events: Sequence[AlertRow] = ()
    muted_keys: frozenset[str] = frozenset()


@dataclass(slots=True)
class Changes:
    """Notices ``to_send``; what else is to be kept, for the next call; all that are open."""

    to_send: list[Notice] = field(default_factory=list)
    to_keep: list[Notice] = field(default_factory=list)
    open: list[Notice] = field(default_factory=list)


def find_target_changes(
    alerts: AlertsNow,
    notified: Mapping[str, Notification],
    acknowledged: Mapping[str, Acknowledgement],
    *,
    repeat_after: timedelta | None,
    is_first_call: bool,
) -> Changes:
    """Return what a target is to be told, by what it was ``notified`` of each notice key.

    What is still there after ``repeat_after`` is told again; None: never. The first call tells what is active, and
    takes earlier single events for known.
    """
    changes = Changes()
    keys = _match(alerts.entries, notified)
    for own_key, entry in zip(keys, alerts.entries, strict=True):
        before = notified.get(own_key)
        is_due = _is_due(before, acknowledged.get(own_key), entry.severity, alerts.now, repeat_after)
        notice = _open_notice(own_key, entry, before, alerts.now, is_repetition_due=is_due)
        changes.open.append(notice)
        if notice.action != UNCHANGED:
            changes.to_send.append(notice)
        elif notice.alert_keys != notified[own_key].notice.alert_keys:
            changes.to_keep.append(notice)
    happened = [notice for notice in _events(alerts, notified) if notice.notice_key not in keys]
    (changes.to_keep if is_first_call else changes.to_send).extend(happened)
    joined_in = {
        each: own_key for own_key, entry in zip(keys, alerts.entries, strict=True) for each in entry_keys(entry)
    }
    for own_key in notified.keys() - {*keys} - {notice.notice_key for notice in happened}:
        before = notified[own_key]
        if before.notice.is_open:
            changes.to_send.append(_ended(before.notice, alerts, joined_in))
        elif before.is_waiting:
            changes.to_send.append(before.notice)
    changes.to_send.sort(key=lambda notice: (-notice.rank, notice.begun_at or "", notice.notice_key))
    return changes


def _match(entries: Sequence[Entry], notified: Mapping[str, Notification]) -> list[str]:
    """Return the key of each entry's notice: of the one that goes on in it, else that of its leading alert."""
    leading = [notice_key(entry.leading) for entry in entries]
    out = dict(enumerate(leading))
    goes_on = {place for place, own_key in out.items() if own_key in notified and notified[own_key].is_open}
    place_of = {each: place for place, entry in enumerate(entries) for each in entry_keys(entry)}
    others = [own_key for own_key, before in notified.items() if before.is_open and own_key not in {*leading}]
    for own_key in sorted(others, key=lambda each: (notified[each].notice.begun_at or "", each)):  # the oldest first
        places = (place_of.get(each) for each in (own_key, *notified[own_key].notice.alert_keys))
        place = next((each for each in places if each is not None and each not in goes_on), None)
        if place is not None:
            out[place] = own_key
            goes_on.add(place)
    return [*out.values()]


def _is_due(
    notified: Notification | None,
    acknowledged: Acknowledgement | None,
    severity: str,
    now: datetime,
    repeat_after: timedelta | None,
) -> bool:
    """Return whether what was told, and is still there, is to be told again."""
    if notified is None or repeat_after is None or now - notified.told_at < repeat_after:
        return False
    return acknowledged is None or not acknowledged.holds(notified, severity, now)


def _open_notice(
    own_key: str, entry: Entry, notified: Notification | None, now: datetime, *, is_repetition_due: bool
) -> Notice:
    facts, keys = entry_facts(entry), entry_keys(entry)
    if notified is None or not notified.is_open:
        return Notice(own_key, BEGAN, facts, keys, begun_at=str(json_default(now)))
    action = _next_action(notified, facts, is_repetition_due=is_repetition_due)
    return Notice(own_key, action, facts, keys, begun_at=notified.notice.begun_at)


def _next_action(notified: Notification, facts: Mapping[str, Any], *, is_repetition_due: bool) -> str:
    """Return what there is to tell of an entry that was told before and is still there."""
    before = notified.notice
    if not notified.is_known:
        return BEGAN
    if before.action == ENDED:  # which the target does not know
        return UPDATED
    if SEVERITY_ORDER.index(facts["severity"]) > before.rank:
        return WORSENED
    if notified.is_waiting:
        return before.action
    if any(facts[name] != before.facts[name] for name in _TOLD_AGAIN):
        return UPDATED
    return REPEATED if is_repetition_due else UNCHANGED


def _ended(before: Notice, alerts: AlertsNow, joined: Mapping[str, str]) -> Notice:
    """Return the end of a notice: when its alert ended, else why nothing more is told of it."""
    for own_key in (before.notice_key, *before.alert_keys):
        if own_key in joined:
            return before.with_action(ENDED, reason=JOINED, joined_to=joined[own_key])
    if not alerts.muted_keys.isdisjoint((before.notice_key, *before.alert_keys)):
        return before.with_action(ENDED, reason=MUTED)
    if before.facts["condition"] == EVIDENCE_STOPPED:  # no row of gold.alerts: the clock alone shows it
        return before.with_action(ENDED, facts={**before.facts, "until": json_default(alerts.now)})
    leading = before.alert_keys[0] if before.alert_keys else before.notice_key
    since = as_time(before.facts["since"])
    over = [row for row in alerts.ended if row["until"] >= since and notice_key(row) == leading]
    if not over:
        return before.with_action(ENDED, reason=WITHDRAWN)
    newest = max(over, key=lambda row: row["until"])
    return before.with_action(ENDED, reason=None, facts={**before.facts, **episode_facts(newest)})


def _events(alerts: AlertsNow, notified: Mapping[str, Notification]) -> Iterable[Notice]:
    """Yield single events that are over and were not told: of each condition and subject the newest."""
    begun_at = str(json_default(alerts.now))
    newest = {notice_key(row): row for row in sorted(alerts.events, key=lambda row: row["since"])}
    for own_key, row in newest.items():
        before = notified.get(own_key)
        if before is None or as_time(before.notice.facts["last_seen_at"]) < row["since"]:
            yield Notice(own_key, HAPPENED, entry_facts(Entry(row)), [own_key], begun_at)


def as_time(text: str | None) -> datetime:
    """Return a time of a notice's facts, or of a kept line; the earliest there is where it has none."""
    return datetime.min.replace(tzinfo=UTC) if text is None else datetime.fromisoformat(text)
