"""Alert episodes: the periods in which a condition held for one subject. No Spark.

An observation says whether the condition holds, and until when that stays valid. An episode covers successive
observations that say it holds. Time without a valid observation does not end an episode that is long enough to report,
and does not make a short one long enough. So an alert ends only where an observation shows that the condition is over;
``last_seen_at`` is the time of the last observation that showed the condition.

Times are microseconds since the epoch (UTC). "Now" is the time of the newest packet or snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NamedTuple

from pipeline.alerts.conditions import CONDITIONS
from pipeline.arrow_rows import epoch_day
from pipeline.attempts.evidence import confidence_level
from udfs.keys import key
from udfs.rows import RowDict
from udfs.times import timedelta_to_us

ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITY_ORDER: Final = (INFO, WARNING, ERROR)  # ascending
NO_SNAPSHOT: Final = "no_snapshot"
_MAX_EVIDENCE: Final = 10


class Observation(NamedTuple):
    """Whether a condition holds for a subject at one time; valid until the next observation, at most ``valid_until``.

    ``since`` is the time when the observed situation began, where the source reports it. ``message``, ``severity`` and
    ``since`` are used only if the condition ``is_met``.
    """

    observed_at: int
    is_met: bool
    valid_until: int
    message: str = ""
    severity: str = WARNING
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    since: int | None = None


class EventCount(NamedTuple):
    """A number of equal events, the first at ``first_at`` and the last at ``last_at``."""

    first_at: int
    last_at: int
    occurrences: int = 1
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class Episode:
    """A period in which a condition held.

    ``known_until`` is the end of the last valid observation. ``until`` is the end of the period, None if the condition
    still holds. ``count`` is the number of events, in episodes that are made of events.
    """

    since: int
    last_seen_at: int
    known_until: int
    severity: str = INFO
    message: str = ""
    until: int | None = None
    count: int = 1
    evidence: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)

    def add_evidence(self, evidence: Iterable[str], missing: Iterable[str]) -> None:
        """Add evidence and codes of what is missing; of the evidence the first and the newest entries are kept."""
        every = list(dict.fromkeys((*self.evidence, *evidence)))
        self.evidence = every[:1] + every[1:][-(_MAX_EVIDENCE - 1) :]
        self.missing |= set(missing)


def episodes_from_observations(
    observations: Iterable[Observation],
    now: int,
    *,
    min_duration: timedelta = timedelta(0),
    error_after: timedelta | None = None,
    merge_within: timedelta | None = None,
) -> list[Episode]:
    """Return the episodes of one subject that last ``min_duration`` or longer, in order of time.

    A warning becomes an error once its episode lasts ``error_after``. An episode that begins within ``merge_within``
    after the end of the one before continues that one.
    """
    seen = sorted((each for each in observations if each.observed_at <= now), key=lambda each: each.observed_at)
    out: list[Episode] = []
    episode: Episode | None = None
    for place, observation in enumerate(seen):
        at = observation.observed_at
        known_until = min([observation.valid_until, now, *(each.observed_at for each in seen[place + 1 : place + 2])])
        if episode is not None and at > episode.known_until:  # a gap between observations
            if _observed_duration(episode) < timedelta_to_us(min_duration):
                episode = None
            else:
                episode.missing.add(NO_SNAPSHOT)
        if not observation.is_met:
            if episode is not None and _observed_duration(episode) >= timedelta_to_us(min_duration):
                episode.until = at
                _append_or_merge(out, episode, merge_within)
            episode = None
            continue
        if episode is None:
            episode = Episode(at if observation.since is None else observation.since, at, known_until)
        episode.last_seen_at, episode.known_until, episode.message = at, max(known_until, at), observation.message
        episode.add_evidence(observation.evidence, observation.missing)
        long = error_after is not None and _observed_duration(episode) >= timedelta_to_us(error_after)
        severity = ERROR if long and observation.severity == WARNING else observation.severity
        episode.severity = max(episode.severity, severity, key=SEVERITY_ORDER.index)
    if episode is not None and _observed_duration(episode) >= timedelta_to_us(min_duration):
        if episode.known_until < now:
            episode.missing.add(NO_SNAPSHOT)
        _append_or_merge(out, episode, merge_within)
    return out


def _append_or_merge(out: list[Episode], episode: Episode, merge_within: timedelta | None) -> None:
    """Append an episode to the list, or merge it into the last one if that ended shortly before."""
    ended = out[-1].until if out else None
    if merge_within is not None and ended is not None and episode.since - ended <= timedelta_to_us(merge_within):
        out[-1].until = None
        _merge(out[-1], episode)
        out[-1].until = episode.until
    else:
        out.append(episode)


def _observed_duration(episode: Episode) -> int:
    """Return the time up to the last observation of an episode, without the time for which that stays valid."""
    return episode.last_seen_at - episode.since


def episodes_from_events(
    events: Iterable[EventCount], now: int, *, window: timedelta, min_count: int = 1
) -> list[Episode]:
    """Return the episodes of at least ``min_count`` events; a gap longer than ``window`` begins another episode.

    An episode ends ``window`` after its last event.
    """
    out: list[Episode] = []
    for event in sorted(
        (each for each in events if each.first_at <= now), key=lambda each: (each.first_at, each.last_at, each.evidence)
    ):
        episode = out[-1] if out else None
        if episode is None or event.first_at - episode.last_seen_at > timedelta_to_us(window):
            episode = Episode(event.first_at, event.first_at, event.first_at, WARNING, count=0)
            out.append(episode)
        episode.last_seen_at = episode.known_until = max(episode.last_seen_at, min(event.last_at, now))
        episode.count += event.occurrences
        episode.add_evidence(event.evidence, event.missing)
    for episode in out:
        over = episode.last_seen_at + timedelta_to_us(window)
        episode.until = over if over <= now else None
    return [episode for episode in out if episode.count >= min_count]


class Ends(NamedTuple):
    """The machines that an alert is about, as the evidence names them: addresses, names or GUIDs."""

    from_machine: str | None = None
    to_machine: str | None = None


class Alert(NamedTuple):
    """An episode with its condition and subject.

    ``cause``: a code of what the evidence shows of the cause. ``suggestion`` takes the place of the condition's.
    """

    condition: str
    subject: str
    episode: Episode
    queue: str | None = None
    queue_manager: str | None = None
    queue_inferred: bool = False
    suggestion: str | None = None
    ends: Ends = Ends()
    cause: str | None = None


class ConditionHistory(NamedTuple):
    """The observations of one subject for one condition, and how to make episodes of them.

    ``mergeable``: episodes that follow one another closely are one alert.
    """

    condition: str
    subject: str
    observations: Iterable[Observation]
    min_duration: timedelta = timedelta(0)
    error_after: timedelta | None = None
    mergeable: bool = True

    def alerts(
        self, now: int, merge_within: timedelta, queue: str | None, queue_manager: str | None, ends: Ends
    ) -> Iterator[Alert]:
        """Yield the alerts of the subject, a queue at a queue manager, between two machines."""
        for episode in episodes_from_observations(
            self.observations,
            now,
            min_duration=self.min_duration,
            error_after=self.error_after,
            merge_within=merge_within if self.mergeable else None,
        ):
            yield Alert(self.condition, self.subject, episode, queue, queue_manager, ends=ends)


def alert_rows(alerts: Iterable[Alert]) -> list[RowDict]:
    """Return alerts as rows of gold.alerts without run_id; overlapping alerts of one subject become one row.

    They overlap, for instance, where captures and the collector both show the same queue.
    """
    by_subject: defaultdict[tuple[str, str], list[Alert]] = defaultdict(list)
    for alert in alerts:
        by_subject[alert.condition, alert.subject].append(alert)
    out: list[RowDict] = []
    for several in by_subject.values():
        several.sort(key=lambda alert: (alert.episode.since, alert.episode.last_seen_at, alert.episode.evidence))
        merged: list[Alert] = []
        for alert in several:
            last = merged[-1].episode if merged else None
            if last is not None and (last.until is None or alert.episode.since < last.until):
                _merge(last, alert.episode)
            else:
                merged.append(alert)
        out += map(_alert_row, merged)
    return sorted(out, key=lambda row: str(row["alert_key"]))


def _merge(episode: Episode, later: Episode) -> None:
    """Extend an episode by one that begins later."""
    if later.last_seen_at > episode.last_seen_at:
        episode.message = later.message
    episode.last_seen_at = max(episode.last_seen_at, later.last_seen_at)
    episode.until = None if episode.until is None or later.until is None else max(episode.until, later.until)
    episode.severity = max(episode.severity, later.severity, key=SEVERITY_ORDER.index)
    episode.add_evidence(later.evidence, later.missing)


def _alert_row(alert: Alert) -> RowDict:
    episode = alert.episode
    return {
        "alert_key": key(alert.condition, alert.subject, episode.since),
        "condition": alert.condition,
        "severity": episode.severity,
        "subject": alert.subject,
        "subject_text": None,  # when all names are known
        "queue": alert.queue,
        "queue_manager": alert.queue_manager,
        **alert.ends._asdict(),
        "cause": alert.cause,
        "since": episode.since,
        "until": episode.until,
        "last_seen_at": episode.last_seen_at,
        "message": episode.message,
        "suggestion": alert.suggestion or CONDITIONS[alert.condition].suggestion,
        "evidence": list(episode.evidence),
        "confidence": confidence_level(episode.missing, guessed=alert.queue_inferred),
        "missing": sorted(episode.missing),
        "errors": [],
        "event_date": epoch_day(episode.since),
    }
