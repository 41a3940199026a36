"""The verdict for a queue: its state, the cause of its trouble, what is not known, and what to do next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.entries import Entry, find_entries
from pipeline.alerts.episodes import SEVERITY_ORDER
from pipeline.alerts.update import current_alerts
from pipeline.bronze.event_time import newest_event_time_us
from pipeline.lake.lake import Lake
from pipeline.reports.export_keys import MAX_KEYS, find_export_options, keys_by_option
from pipeline.reports.queue_verdict.causes import Cause, find_cause
from pipeline.reports.queue_verdict.inputs import QUEUE_TABLES, QueueRows, read_queue_rows
from pipeline.reports.trace.missing_codes import MISSING_CODE_TEXTS
from pipeline.reports.views.catalog import LakeViews
from pipeline.reports.views.names import queues_meant, similar_queues
from pipeline.reports.views.scope import Scope
from pipeline.silver.machines import Machines
from pipeline.text import format_cell
from udfs.rows import RowDict
from udfs.times import us_to_datetime

_OF_MACHINES: Final = ("duplicate_queue_manager", "machine_disconnected", "machine_nearly_full", "sessions_refused")


@dataclass(frozen=True, slots=True)
class QueueVerdict:
    """The verdict for one queue.

    ``entries``: those of its active alerts, the worst first. ``keys``: at most ``MAX_KEYS`` of the evidence, by the
    option of ``msmq export_packets``. ``oldest_unread``: the row of that view. ``machines`` have the names that are
    shown.
    """

    facts: QueueRows
    entries: tuple[Entry, ...]
    cause: Cause | None
    machines: Machines
    keys: Mapping[str, list[str]] = field(default_factory=dict)
    oldest_unread: Mapping[str, Any] | None = None

    @property
    def is_in_trouble(self) -> bool:
        """Whether an alert of it is active, or its messages are rejected."""
        return self.cause is not None

    @property
    def rank(self) -> int:
        """How bad it is, to compare queues: by the severity of the alerts; 0 without trouble."""
        severities = (SEVERITY_ORDER.index(entry.severity) for entry in self.entries)
        return 1 + max(severities, default=0) if self.is_in_trouble else 0

    @property
    def evidence(self) -> list[str]:
        """The keys that the cause rests on, the first ``MAX_KEYS``."""
        return [] if self.cause is None else [*dict.fromkeys(self.cause.evidence)][:MAX_KEYS]

    @property
    def where(self) -> str:
        """Which machine has the queue, as far as it is known."""
        if self.facts.local:
            return f"on {' and '.join(self.name(row['queue_manager']) for row in self.facts.local)}, as reported there"
        owner, separator, _ = self.facts.queue.partition("\\")
        is_machine = separator and "=" not in owner
        return f"on {self.name(owner)}, as its name says" if is_machine else "not known: its name does not say it"

    @property
    def not_known(self) -> tuple[str, ...]:
        """What is not known of the queue, as sentences."""
        return tuple(self._not_known())

    def name(self, machine: str | None) -> str:
        """Return the name of a machine with its address, as far as they are known."""
        return "an unknown machine" if machine is None else self.machines.text(machine)

    def _not_known(self) -> Iterator[str]:
        facts = self.facts
        if not facts.local:
            yield "what is in the queue: no report of the machine that has it"
        elif self.oldest_unread is None and any(row["message_count"] for row in facts.local):
            yield "how old its oldest message is: none that is in it was read or peeked remotely"
        for row in facts.reports:
            if row["known_until"] is not None and row["known_until"] <= facts.as_of:
                at = self.name(row["queue_manager"])
                yield f"its state at {at} since {format_cell(row['known_until'])}: no later report"
        if not facts.senders:
            what = "when messages were sent to it: none" if facts.outgoing else "who sends to it: no message to it"
            yield f"{what} was captured on TCP 1801"
        if facts.last_read_at is None:
            yield "who reads it: no receive was captured; programs on its own machine read without one"
        for code in sorted({code for entry in self.entries for row in entry.alerts for code in row["missing"] or ()}):
            yield MISSING_CODE_TEXTS.get(code, code)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts for the queues that a text means. ``near``: the queues with similar names where there is none."""

    verdicts: tuple[QueueVerdict, ...]
    near: tuple[str, ...] = ()


class Situation(NamedTuple):
    """What holds in a lake, whatever the queue: the entries of its active alerts, its machines, and the time."""

    entries: Sequence[Entry]
    machines: Machines
    limits: Thresholds
    now: datetime

    @property
    def queues(self) -> list[str]:
        """The queues with an active alert by their canonical names, those of the worst entries first."""
        return [*dict.fromkeys(queue for entry in self.entries for queue in entry.queues)]


def find_verdicts(
    lake: Lake, text: str, limits: Thresholds, as_of: datetime | None = None, alerts: pa.Table | None = None
) -> Verdicts:
    """Return the verdicts for the queues that a text means (``queues_meant``).

    The worst come first. ``as_of`` overrides "now", the time of the newest packet or snapshot. ``alerts``: the rows of
    gold.alerts, where they are not to be those with these thresholds.
    """
    newest = newest_event_time_us(lake) if as_of is None else None
    now = as_of if newest is None else us_to_datetime(newest)
    if now is None:
        return Verdicts(())
    found_alerts = current_alerts(lake, limits, as_of, newest) if alerts is None else alerts
    machines = Machines.of(lake, limits.machine_names)
    active = [row for row in found_alerts.to_pylist() if row["until"] is None]
    situation = Situation(find_entries(active, machines), machines, limits, now)
    names = {queue: {queue} for queue in situation.queues} | LakeViews(lake).queue_names(QUEUE_TABLES)
    found = verdicts_for(lake, queues_meant(names, text), situation)
    return Verdicts(tuple(found), () if found else similar_queues(names, text))


def verdicts_for(lake: Lake, queues: Collection[str], situation: Situation) -> list[QueueVerdict]:
    """Return the verdicts for queues, by their canonical names; queues of which nothing was captured have none.

    The worst come first. Spark gets as many queries for many queues as for one.
    """
    judged = [
        _find_verdict(facts, situation) for facts in read_queue_rows(lake, sorted(queues), situation.now).values()
    ]
    known = [each for each in judged if each.facts.is_captured or each.entries]
    options = _find_options(lake, known)
    unread = _oldest_unread(lake, [each.facts for each in known], situation.now)
    verdicts = (
        replace(each, keys=keys_by_option(each.evidence, options), oldest_unread=unread.get(each.facts.queue))
        for each in known
    )
    return sorted(verdicts, key=lambda each: (-each.rank, each.facts.queue))


def verdicts_of_entries(lake: Lake, situation: Situation, verdicts: Iterable[QueueVerdict]) -> list[QueueVerdict]:
    """Return a verdict for each entry, in their order: why it is, by its alerts and by what is known of its queue.

    ``verdicts`` are those for queues. ``entries`` of each result is the one entry that it is for.
    """
    facts: dict[str, QueueRows] = {}  # by leading alert, what is known of the entry's first queue
    for verdict in verdicts:
        for entry in verdict.entries:
            facts.setdefault(entry.leading["alert_key"], verdict.facts)
    nothing = QueueRows("", situation.now)
    found = []
    for entry in situation.entries:
        known = facts.get(entry.leading["alert_key"], nothing)
        cause = find_cause(entry, known, situation.machines, situation.limits.failure_window)
        found.append(QueueVerdict(known, (entry,), cause, situation.machines))
    options = _find_options(lake, found)
    return [replace(each, keys=keys_by_option(each.evidence, options)) for each in found]


def _find_verdict(facts: QueueRows, situation: Situation) -> QueueVerdict:
    """Return a verdict without what is asked for all queues at once."""
    entries = _entries_of(facts, situation)
    leading = entries[0] if entries else None
    cause = find_cause(leading, facts, situation.machines, situation.limits.failure_window)
    return QueueVerdict(facts, entries, cause, situation.machines)


def _entries_of(facts: QueueRows, situation: Situation) -> tuple[Entry, ...]:
    """Return the entries of a queue, then those of its machines, and of the rejections of its messages."""
    own = tuple(entry for entry in situation.entries if facts.queue in entry.queues)
    return own + tuple(
        entry for entry in situation.entries
        if _is_of_machines(entry, facts, situation.machines) or _is_of_rejections(entry, facts, situation.machines)
    )  # fmt: skip


def _is_of_rejections(entry: Entry, facts: QueueRows, machines: Machines) -> bool:
    """Whether an entry is about acknowledgements of a class that messages of a queue got, from a machine they go to."""
    row = entry.leading
    if row["condition"] != "negative_acknowledgements" or row["cause"] not in {
        each["class_name"] for each in facts.rejections
    }:
        return False
    return any(machines.is_same(row["from_machine"], each["receiver_address"]) for each in facts.senders)


def _oldest_unread(lake: Lake, every: Collection[QueueRows], now: datetime) -> dict[str, RowDict]:
    """Return the rows of that view by queue, of queues that were read remotely: others have none."""
    queues = [facts.queue for facts in every if facts.readers]
    if not queues:
        return {}
    rows = LakeViews(lake, now, scope=Scope(queues=queues)).answer("oldest_unread")
    return {row["queue"]: row for row in rows.to_pylist()}


def _is_of_machines(entry: Entry, facts: QueueRows, machines: Machines) -> bool:
    """Whether an entry is about the machine that has a queue, or one that sends to it, and not about certain queues."""
    row = entry.leading
    if row["condition"] not in _OF_MACHINES or entry.queues:
        return False
    owners = {facts.queue.partition("\\")[0], *(each["receiver_address"] for each in facts.senders)}
    owners |= {row["queue_manager"] for row in facts.local}
    senders = {each["sender_address"] for each in facts.senders} | {each["queue_manager"] for each in facts.outgoing}

    def is_any(machine: str | None, of: Collection[str | None]) -> bool:
        return any(machines.is_same(machine, each) for each in of)

    if row["from_machine"] is not None:
        return is_any(row["from_machine"], senders) and is_any(row["to_machine"], owners)
    return is_any(row["to_machine"], owners | senders)


def _find_options(lake: Lake, verdicts: Collection[QueueVerdict]) -> dict[str, str]:
    """Return the option of ``msmq export_packets`` that takes each key of evidence, of those that it can export."""
    found = {key: option for each in verdicts for key, option in each.facts.options.items()}
    asked = (
        (each.entries[0].leading["condition"], {*each.evidence} - found.keys()) for each in verdicts if each.entries
    )
    return found | find_export_options(lake, asked)
