"""What alerts are made of: looks at a subject, and since when and until when a condition held of it. No Spark.

A look is one observation: the condition holds, or does not, and that is believed for a while. A spell is a time through
which it held. What nobody looked at ends no spell that was long enough to be told of, and makes none long enough: an
alert ends where something shows that it is over, and its ``last_seen_at`` says how old the last sign of it is.

Times are microseconds since the epoch, UTC, spans microseconds. "Now" is that of the newest packet or snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pipeline.evidence import confidence
from pipeline.rows import day_of
from udfs.keys import key

Row = dict[str, Any]

ERROR, WARNING, INFO = "error", "warning", "info"
GRAVITY: Final = (INFO, WARNING, ERROR)  # from the least
NO_SNAPSHOT: Final = "no_snapshot"
_MOST_EVIDENCE: Final = 10


class Condition(NamedTuple):
    """What alerts of a condition tell: the ``question`` that it answers (of docs/questions.md), and what to do."""

    question: int
    meaning: str
    suggestion: str


CONDITIONS: Final = {
    "queue_disconnected": Condition(
        1,
        "an outgoing queue has no connection to its next hop (WAITING, NEED VALIDATION, DISCONNECTED, DISCONNECTING, "
        "LOCKED) for alerts.disconnected_after; info without messages, error with messages after alerts.error_after",
        "Look at the connection's last error and next hops (connection_history); see whether the next hop's name "
        "resolves, its service runs and TCP 1801 reaches it.",
    ),
    "queue_on_hold": Condition(
        1,
        "an outgoing queue with messages is on hold (ONHOLD) for alerts.on_hold_after",
        "Somebody paused it: resume it when the reason is gone.",
    ),
    "queue_stuck": Condition(
        4,
        "messages wait in a local queue, and for alerts.stuck_after nothing shows that any is read: no captured "
        "receive, move or purge, and neither their number nor their bytes ever fall; error after alerts.error_after",
        "See whether the reader runs, and whether it fails (receives_not_ended, calls_failing); a message that comes "
        "back again and again is in gold.ack_sequences (loss_risk poison).",
    ),
    "messages_unacknowledged": Condition(
        6,
        "the oldest message sent and not acknowledged is alerts.unacked_after old or older",
        "See whether the receiver is reachable, and what gold.eod_sources says of the same sequence there.",
    ),
    "messages_unread": Condition(
        6,
        "messages arrived and are not read for alerts.unread_after, as the sender knows it by acknowledgements: their "
        "number never falls",
        "See whether the receiving application runs; at the receiver the queue is then stuck too.",
    ),
    "transfer_stalled": Condition(
        7,
        "an exactly-once transfer stands still for alerts.stalled_after: messages wait, none is acknowledged; error on "
        "the third step of the resend ladder, or after alerts.error_after",
        "Until the next try nothing moves: EOD_RESEND asks for one now. If tries fail, look at the receiver: its "
        "queue, its quota, and whether it disagrees about the next number (ends_disagree).",
    ),
    "sequence_gap": Condition(
        9,
        "a receiver rejected alerts.rejected messages or more of one sequence since it last took one: they do not "
        "follow what it has",
        "Compare what the sender has (gold.eod_transfers, ends_disagree); a sender that was set up anew or restored "
        "goes on with other numbers.",
    ),
    "ends_disagree": Condition(
        11,
        "sender and receiver of a sequence disagree about the next number, so that the receiver rejects for good",
        "Nothing gets better by waiting. Save the outgoing messages, then have the sender begin a new sequence (purge "
        "its outgoing queue) or restore the end that went back.",
    ),
    "negative_acknowledgements": Condition(
        14,
        "alerts.negative acknowledgements or more of one class and sender, no further apart than alerts.window",
        "The class says why (MQMSG_CLASS_NACK_...); the messages meant are those of correlation_id.",
    ),
    "dead_letters_growing": Condition(
        16,
        "a dead-letter queue, or the dead queue of a queued component, grew by alerts.dead_letters within "
        "alerts.slow_window",
        "Read a dead letter: its class or the reason of its sender's queue manager says why it died. Then remove them: "
        "they count against the machine's quota.",
    ),
    "journal_growing": Condition(
        17,
        "a journal grew by alerts.journal_messages within alerts.slow_window",
        "Nothing empties a journal by itself: remove what is no longer needed, or turn journaling off.",
    ),
    "nearly_full": Condition(
        17,
        "a journal or queue holds nine tenths of its quota (error), or will be full within alerts.full_within at the "
        "rate of alerts.slow_window; asked where quotas.* or quotas.queues say what the quota is",
        "Empty the journal or have the queue read, or raise the quota: messages that find it full are refused.",
    ),
    "receives_not_ended": Condition(
        19,
        "a reader got a message and for alerts.held_after neither acknowledged it nor gave it back, or was gone with "
        "it",
        "See whether the reader hangs or crashes; the message is locked meanwhile and is read again afterwards.",
    ),
    "ends_refused": Condition(
        19,
        "the end of a receive was refused after the message had been handed out",
        "The application may have done its work, and the message may come again: see gold.ack_sequences (loss_risk).",
    ),
    "calls_failing": Condition(
        21,
        "a method at a server fails with one result alerts.failures times or more, no further apart than "
        "alerts.window; results of alerts.ignored_results are none",
        "The result says why; the view failures lists clients and queues.",
    ),
    "duplicate_queue_manager": Condition(
        22,
        "two machines answer to one identifier of a queue manager",
        "One of them was cloned: give it an identifier of its own (remove QMId and set Message Queuing up again).",
    ),
    "clocks_differ": Condition(
        23,
        "the clocks of two machines differ by alerts.clock_difference at least",
        "Set the clocks: times to reach a queue and to be received, and tickets of Kerberos, depend on them.",
    ),
    "capture_lost": Condition(
        25,
        "in an hour captures lack alerts.lost_share of a server's bytes or more",
        "What is not captured is not known: capture whole packets (-s 0), on a machine that can follow.",
    ),
    "snapshots_missing": Condition(
        25,
        "in an hour half of a queue manager's snapshots or more were not answered",
        "See bronze.snapshots_raw.error; until it answers the state of its queues is not known.",
    ),
}
"""Every condition, by its name in gold.alerts."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The settings of alerts, and those others that they rest on; sizes in bytes, None: not known."""

    rejoin: timedelta = timedelta(minutes=5)
    error_after: timedelta = timedelta(hours=1)
    disconnected_after: timedelta = timedelta(minutes=5)
    on_hold_after: timedelta = timedelta(minutes=30)
    stuck_after: timedelta = timedelta(minutes=15)
    unacked_after: timedelta = timedelta(minutes=30)
    unread_after: timedelta = timedelta(hours=4)
    stalled_after: timedelta = timedelta(minutes=2)
    rejected: int = 3
    window: timedelta = timedelta(hours=1)
    negative: int = 1
    slow_window: timedelta = timedelta(days=1)
    dead_letters: int = 1
    journal_messages: int = 1000
    full_within: timedelta = timedelta(days=7)
    held_after: timedelta = timedelta(minutes=5)
    failures: int = 5
    ignored_results: tuple[int, ...] = (0xC00E001B, 0xC00E0004, 0xC00E0008, 0xC00E0088, 0xC0000225, 0x1C00000D)
    clock_difference: timedelta = timedelta(seconds=5)
    lost_share: float = 0.01
    max_gap: timedelta = timedelta(minutes=15)
    cleanup: timedelta = timedelta(minutes=5)
    queue_quota: int | None = None
    journal_quota: int | None = None
    quotas: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)  # of a queue, and its journal

    def said(self) -> dict[str, Any]:
        """Return them as a commit tells what rows are made of."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            found[each.name] = us(value) if isinstance(value, timedelta) else value
        found["ignored_results"] = sorted(self.ignored_results)
        found["quotas"] = {queue: list(sizes) for queue, sizes in sorted(self.quotas.items())}
        return found


def us(span: timedelta) -> int:
    """Return a span in microseconds."""
    return span // timedelta(microseconds=1)


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


def clock(at: int) -> str:
    """Return a time for a sentence, to the second."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).strftime("%Y-%m-%d %H:%M:%S")


def counted(count: int, thing: str) -> str:
    """Return a number of things for a sentence."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
