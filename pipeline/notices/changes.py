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

SINGLE_EVENTS: Final = ("ends_refused", "containers_rejected")
_TOLD_AGAIN: Final = ("condition", "severity", "subject", "since")  # another value is an update


class Told(NamedTuple):
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

    def holds(self, told: Told, severity: str, now: datetime) -> bool:
        """Whether it still counts for a notice that is now so severe."""
        is_worse = SEVERITY_ORDER.index(severity) > SEVERITY_ORDER.index(self.severity)
        return now < self.until and not is_worse and self.at >= as_time(told.notice.begun_at)


@dataclass(frozen=True, slots=True)
class AlertsNow:
    """The alerts at the time of a call: entries of what is active and not muted, and what explains what is gone.

    ``rows`` are all rows of gold.alerts that are not muted, also of ended alerts; ``muted_keys`` are the keys of
    condition and subject of active alerts that are muted.
    """

    entries: Sequence[Entry]
    rows: Sequence[AlertRow]
    now: datetime
    muted_keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Timing:
    """How long something is still there before it is told again, and how old a single event may be to be told."""

    repeat_after: timedelta
    event_hold: timedelta


@dataclass(slots=True)
class Changes:
    """Notices ``to_tell``; what else is to be kept, for the next call; all that are open."""

    to_tell: list[Notice] = field(default_factory=list)
    to_keep: list[Notice] = field(default_factory=list)
    open: list[Notice] = field(default_factory=list)


def find_changes(
    alerts: AlertsNow,
    told: Mapping[str, Told],
    acknowledged: Mapping[str, Acknowledgement],
    timing: Timing,
    *,
    is_first_call: bool,
) -> Changes:
    """Return what a target is to be told, by what it was ``told`` of each notice key.

    The first call tells what is active, and takes earlier single events for known.
    """
    changes = Changes()
    keys = _match(alerts.entries, told)
    for own_key, entry in zip(keys, alerts.entries, strict=True):
        notice = _open_notice(own_key, entry, told.get(own_key), acknowledged.get(own_key), alerts.now, timing)
        changes.open.append(notice)
        if notice.action != UNCHANGED:
            changes.to_tell.append(notice)
        elif notice.alert_keys != told[own_key].notice.alert_keys:
            changes.to_keep.append(notice)
    told_in = {each: own_key for own_key, entry in zip(keys, alerts.entries, strict=True) for each in entry_keys(entry)}
    for own_key in told.keys() - {*keys}:
        before = told[own_key]
        if before.notice.is_open:
            changes.to_tell.append(_ended(before.notice, alerts, told_in))
        elif before.is_waiting:
            changes.to_tell.append(before.notice)
    happened = [each for each in _events(alerts, told, timing) if each.notice_key not in keys]
    (changes.to_keep if is_first_call else changes.to_tell).extend(happened)
    return changes


def _match(entries: Sequence[Entry], told: Mapping[str, Told]) -> list[str]:
    """Return the key of each entry's notice: of the one that goes on in it, else that of its leading alert."""
    leading = [notice_key(entry.leading) for entry in entries]
    out = dict(enumerate(leading))
    goes_on = {place for place, own_key in out.items() if own_key in told and told[own_key].is_open}
    place_of = {each: place for place, entry in enumerate(entries) for each in entry_keys(entry)}
    others = [own_key for own_key, before in told.items() if before.is_open and own_key not in {*leading}]
    for own_key in sorted(others, key=lambda each: (told[each].notice.begun_at or "", each)):  # the oldest first
        places = (place_of.get(each) for each in (own_key, *told[own_key].notice.alert_keys))
        place = next((each for each in places if each is not None and each not in goes_on), None)
        if place is not None:
            out[place] = own_key
            goes_on.add(place)
    return [*out.values()]


def _open_notice(
    own_key: str,
    entry: Entry,
    told: Told | None,
    acknowledged: Acknowledgement | None,
    now: datetime,
    timing: Timing,
) -> Notice:
    facts, keys = entry_facts(entry), entry_keys(entry)
    if told is None or not told.is_open:
        return Notice(own_key, BEGAN, facts, keys, begun_at=str(json_default(now)))
    is_held = acknowledged is not None and acknowledged.holds(told, facts["severity"], now)
    due = now - told.told_at >= timing.repeat_after and not is_held
    action = _next_action(told, facts, is_repetition_due=due)
    return Notice(own_key, action, facts, keys, begun_at=told.notice.begun_at)


def _next_action(told: Told, facts: Mapping[str, Any], *, is_repetition_due: bool) -> str:
    """Return what there is to tell of an entry that was told before and is still there."""
    before = told.notice
    if not told.is_known:
        return BEGAN
    if before.action == ENDED:  # which the target does not know
        return UPDATED
    if SEVERITY_ORDER.index(facts["severity"]) > before.rank:
        return WORSENED
    if told.is_waiting:
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
    leading = before.alert_keys[0] if before.alert_keys else before.notice_key
    over = [
        row
        for row in alerts.rows
        if row["until"] is not None and notice_key(row) == leading
        and row["until"] >= as_time(before.facts["since"])
    ]  # fmt: skip
    if not over:
        return before.with_action(ENDED, reason=WITHDRAWN)
    newest = max(over, key=lambda row: row["until"])
    return before.with_action(ENDED, reason=None, facts={**before.facts, **episode_facts(newest)})


def _events(alerts: AlertsNow, told: Mapping[str, Told], timing: Timing) -> Iterable[Notice]:
    """Return single events that are over and were not told: of each condition and subject the newest."""
    newest: dict[str, AlertRow] = {}
    for row in alerts.rows:
        if row["condition"] in SINGLE_EVENTS and row["until"] is not None:
            own_key = notice_key(row)
            if own_key not in newest or newest[own_key]["since"] < row["since"]:
                newest[own_key] = row
    begun_at = str(json_default(alerts.now))
    for own_key, row in newest.items():
        facts = entry_facts(Entry(row))
        before = told.get(own_key)
        is_told = before is not None and as_time(before.notice.facts["last_seen_at"]) >= row["since"]
        if not is_told and row["last_seen_at"] >= alerts.now - timing.event_hold:
            yield Notice(own_key, HAPPENED, facts, [own_key], begun_at)


def as_time(text: str | None) -> datetime:
    """Return a time of a notice's facts, or of a kept line; the earliest there is where it has none."""
    return datetime.min.replace(tzinfo=UTC) if text is None else datetime.fromisoformat(text)
