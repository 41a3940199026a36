"""What alerts are made of: looks at a subject, and since when and until when a condition held of it. No Spark.

A look is one observation: the condition holds, or does not, and that is believed for a while. A spell is a time through
which it held. What nobody looked at ends no spell that was long enough to be told of, and makes none long enough: an
alert ends where something shows that it is over, and its ``last_seen_at`` says how old the last sign of it is.

Times are microseconds since the epoch, UTC, spans microseconds. "Now" is that of the newest packet or snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple

from pipeline.alerts.conditions import CONDITIONS
from pipeline.attempts.evidence import confidence
from pipeline.lake.arrow_rows import day_of, us
from udfs.keys import key

Row = dict[str, Any]

ERROR, WARNING, INFO = "error", "warning", "info"
GRAVITY: Final = (INFO, WARNING, ERROR)  # from the least
NO_SNAPSHOT: Final = "no_snapshot"
_MOST_EVIDENCE: Final = 10


class Look(NamedTuple):
    """One observation of a subject; what it shows is believed up to ``to``, if no other comes before.

    ``since``: when what it shows began, where it tells that itself. What is said is of use where it ``holds``.
    """

    at: int
    holds: bool
    to: int
    message: str = ""
    severity: str = WARNING
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    since: int | None = None


class Event(NamedTuple):
    """Something that happened so many ``times`` from ``at`` to ``last``."""

    at: int
    last: int
    times: int = 1
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class Spell:
    """A time through which a condition held; ``known_to``: up to when that is known, ``until`` None: it holds still."""

    since: int
    last_seen_at: int
    known_to: int
    severity: str = INFO
    message: str = ""
    until: int | None = None
    count: int = 1
    evidence: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)

    def add(self, evidence: Iterable[str], missing: Iterable[str]) -> None:
        """Add what shows it: the first and the newest of it are kept."""
        every = list(dict.fromkeys((*self.evidence, *evidence)))
        self.evidence = every[:1] + every[1:][-(_MOST_EVIDENCE - 1) :]
        self.missing |= set(missing)


def spells(
    looks: Iterable[Look],
    now: int,
    *,
    after: timedelta = timedelta(0),
    error_after: timedelta | None = None,
    rejoin: timedelta | None = None,
) -> list[Spell]:
    """Return the times, ``after`` or longer, through which looks at one subject hold, in order of time.

    A warning of one that is ``error_after`` long is an error. One that begins again so soon as ``rejoin`` is the same.
    """
    seen = sorted((look for look in looks if look.at <= now), key=lambda look: look.at)
    out: list[Spell] = []
    spell: Spell | None = None
    for place, look in enumerate(seen):
        known_to = min([look.to, now, *(each.at for each in seen[place + 1 : place + 2])])
        if spell is not None and look.at > spell.known_to:  # nobody looked in between
            if _held(spell) < us(after):
                spell = None
            else:
                spell.missing.add(NO_SNAPSHOT)
        if not look.holds:
            if spell is not None and _held(spell) >= us(after):
                spell.until = look.at
                _put(out, spell, rejoin)
            spell = None
            continue
        if spell is None:
            spell = Spell(look.at if look.since is None else look.since, look.at, known_to)
        spell.last_seen_at, spell.known_to, spell.message = look.at, max(known_to, look.at), look.message
        spell.add(look.evidence, look.missing)
        long = error_after is not None and _held(spell) >= us(error_after)
        worse = ERROR if long and look.severity == WARNING else look.severity
        spell.severity = max(spell.severity, worse, key=GRAVITY.index)
    if spell is not None and _held(spell) >= us(after):
        if spell.known_to < now:
            spell.missing.add(NO_SNAPSHOT)
        _put(out, spell, rejoin)
    return out


def _put(out: list[Spell], spell: Spell, rejoin: timedelta | None) -> None:
    """Put a spell behind those before it, or make it one with the last of them."""
    ended = out[-1].until if out else None
    if rejoin is not None and ended is not None and spell.since - ended <= us(rejoin):
        out[-1].until = None
        _join(out[-1], spell)
        out[-1].until = spell.until
    else:
        out.append(spell)


def _held(spell: Spell) -> int:
    """Return for how long it was seen to hold: what the last look shows is believed for longer."""
    return spell.last_seen_at - spell.since


def runs(events: Iterable[Event], now: int, *, window: timedelta, least: int = 1) -> list[Spell]:
    """Return the runs of ``least`` events or more, none further than ``window`` from the one before.

    A run is over when none came for so long.
    """
    out: list[Spell] = []
    for event in sorted(
        (each for each in events if each.at <= now), key=lambda each: (each.at, each.last, each.evidence)
    ):
        run = out[-1] if out else None
        if run is None or event.at - run.last_seen_at > us(window):
            run = Spell(event.at, event.at, event.at, WARNING, count=0)
            out.append(run)
        run.last_seen_at = run.known_to = max(run.last_seen_at, min(event.last, now))
        run.count += event.times
        run.add(event.evidence, event.missing)
    for run in out:
        over = run.last_seen_at + us(window)
        run.until = over if over <= now else None
    return [run for run in out if run.count >= least]


class Alert(NamedTuple):
    """A spell, and what it is a spell of."""

    condition: str
    subject: str
    spell: Spell
    queue: str | None = None
    queue_manager: str | None = None
    guessed: bool = False  # its queue is


def rows(alerts: Iterable[Alert]) -> list[Row]:
    """Return alerts as rows of gold.alerts without run_id; those of one subject that overlap are one.

    What the wire showed and what the collector was told are two series of one subject, for instance.
    """
    together: defaultdict[tuple[str, str], list[Alert]] = defaultdict(list)
    for alert in alerts:
        together[alert.condition, alert.subject].append(alert)
    out: list[Row] = []
    for several in together.values():
        several.sort(key=lambda alert: (alert.spell.since, alert.spell.last_seen_at, alert.spell.evidence))
        joined: list[Alert] = []
        for alert in several:
            last = joined[-1].spell if joined else None
            if last is not None and (last.until is None or alert.spell.since < last.until):
                _join(last, alert.spell)
            else:
                joined.append(alert)
        out += map(_row, joined)
    return sorted(out, key=lambda row: str(row["alert_key"]))


def _join(spell: Spell, other: Spell) -> None:
    """Make one of two spells, of which the other begins later."""
    if other.last_seen_at > spell.last_seen_at:
        spell.message = other.message
    spell.last_seen_at = max(spell.last_seen_at, other.last_seen_at)
    spell.until = None if spell.until is None or other.until is None else max(spell.until, other.until)
    spell.severity = max(spell.severity, other.severity, key=GRAVITY.index)
    spell.add(other.evidence, other.missing)


def _row(alert: Alert) -> Row:
    spell = alert.spell
    return {
        "alert_key": key(alert.condition, alert.subject, spell.since),
        "condition": alert.condition,
        "severity": spell.severity,
        "subject": alert.subject,
        "queue": alert.queue,
        "queue_manager": alert.queue_manager,
        "since": spell.since,
        "until": spell.until,
        "last_seen_at": spell.last_seen_at,
        "message": spell.message,
        "suggestion": CONDITIONS[alert.condition].suggestion,
        "evidence": list(spell.evidence),
        "confidence": confidence(spell.missing, guessed=alert.guessed),
        "missing": sorted(spell.missing),
        "errors": [],
        "event_date": day_of(spell.since),
    }
