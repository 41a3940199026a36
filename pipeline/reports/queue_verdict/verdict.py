"""The verdict for a queue: its state, the cause of its trouble, what is not known, and what to do next."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.entries import Entry, find_entries
from pipeline.alerts.update import current_alerts
from pipeline.arrow_rows import us_to_datetime
from pipeline.bronze.event_time import newest_event_time_us
from pipeline.lake.lake import Lake
from pipeline.reports.queue_verdict.causes import Cause, find_cause
from pipeline.reports.queue_verdict.inputs import QueueRows, read_queue_rows
from pipeline.reports.trace.missing_codes import MISSING_CODE_TEXTS
from pipeline.reports.views.catalog import LakeViews
from pipeline.reports.views.names import is_called, similar_names
from pipeline.reports.views.scope import Scope
from pipeline.silver.machines import UNNAMED, Machines
from pipeline.text import format_cell
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.sessions import SESSION_PACKETS

MAX_KEYS: Final = 20
_OF_MACHINES: Final = ("duplicate_queue_manager", "machine_disconnected", "machine_nearly_full", "sessions_refused")
_KEYS: Final = {"call": (RPC_CALLS, "call_key"), "packet": (SESSION_PACKETS, "packet_key"),
                "session": (CONNECTIONS, "connection_id")}  # fmt: skip
"""What packets can be exported by: the option of ``msmq export_packets``, and where its keys are."""


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
    not_known: tuple[str, ...]
    keys: Mapping[str, list[str]]
    oldest_unread: Mapping[str, Any] | None = None
    machines: Machines = UNNAMED

    @property
    def is_in_trouble(self) -> bool:
        """Whether an alert of it is active, or its messages are rejected."""
        return self.cause is not None


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts for the queues that a text means. ``near``: similar names where there is none."""

    verdicts: tuple[QueueVerdict, ...]
    near: tuple[str, ...] = ()


def find_verdicts(lake: Lake, text: str, limits: Thresholds, as_of: datetime | None = None) -> Verdicts:
    """Return the verdicts for the queues of one of whose names a text is a part, whatever the case.

    Those in trouble come first. ``as_of`` overrides "now", the time of the newest packet or snapshot.
    """
    newest = newest_event_time_us(lake) if as_of is None else None
    now = as_of if newest is None else us_to_datetime(newest)
    views = LakeViews(lake, as_of)
    every = views.queue_names()
    meant = {queue: names for queue, names in every.items() if is_called(names, text)}
    if not meant or now is None:
        return Verdicts((), similar_names(text, set().union(*every.values())))
    machines = Machines.of(lake, limits.machine_names)
    alerts = [row for row in current_alerts(lake, limits, as_of).to_pylist() if row["until"] is None]
    entries = find_entries(alerts, machines)
    asked = replace(views, scope=Scope(queues=set().union(*meant.values())))
    unread = {row["queue"]: row for row in asked.answer("oldest_unread").to_pylist()}
    found = []
    for queue, names in sorted(meant.items()):
        facts = read_queue_rows(lake, queue, names, now)
        if facts.is_captured:
            found.append(_verdict(lake, facts, unread.get(queue), entries, machines, limits))
    return Verdicts(tuple(sorted(found, key=lambda each: (not each.is_in_trouble, each.facts.queue))))


def _verdict(
    lake: Lake, facts: QueueRows, oldest_unread: Mapping[str, Any] | None, entries: Sequence[Entry],
    machines: Machines, limits: Thresholds,
) -> QueueVerdict:  # fmt: skip
    own = tuple(entry for entry in entries if facts.queue in entry.queues)
    own += tuple(entry for entry in entries if entry not in own and _is_of_machines(entry, facts, machines))
    cause = find_cause(own[0] if own else None, facts, machines, limits.failure_window)
    keys = _exportable(lake, () if cause is None else cause.evidence)
    not_known = tuple(_not_known(facts, own, machines))
    return QueueVerdict(facts, own, cause, not_known, keys, oldest_unread, machines)


def _is_of_machines(entry: Entry, facts: QueueRows, machines: Machines) -> bool:
    """Whether an entry is about the machine that has a queue, or one that sends to it, and not about certain queues."""
    row = entry.leading
    if row["condition"] not in _OF_MACHINES or entry.queues:
        return False
    owners = {facts.queue.partition("\\")[0], *(each["receiver_address"] for each in facts.senders)}
    owners |= set() if facts.local is None else {facts.local["queue_manager"]}
    senders = {each["sender_address"] for each in facts.senders} | {each["queue_manager"] for each in facts.outgoing}

    def is_any(machine: str | None, of: Collection[str | None]) -> bool:
        return any(machines.is_same(machine, each) for each in of)

    if row["from_machine"] is not None:
        return is_any(row["from_machine"], senders) and is_any(row["to_machine"], owners)
    return is_any(row["to_machine"], owners | senders)


def _not_known(facts: QueueRows, entries: Sequence[Entry], machines: Machines) -> Iterator[str]:
    """Yield what is not known of a queue, as sentences."""
    if facts.local is None:
        yield "what is in the queue: no report of the machine that has it"
    for row in facts.reports:
        if row["known_until"] is not None and row["known_until"] <= facts.as_of:
            where = machines.text(row["queue_manager"] or "an unknown machine")
            yield f"its state at {where} since {format_cell(row['known_until'])}: no later report"
    if not facts.senders:
        yield "who sends to it: no message to it was captured on TCP 1801"
    if facts.last_read_at is None:
        yield "who reads it: no receive was captured; programs on its own machine read without one"
    missing = sorted({code for entry in entries for row in entry.alerts for code in row["missing"] or ()})
    for code in missing:
        yield MISSING_CODE_TEXTS.get(code, code)


def _exportable(lake: Lake, evidence: Sequence[str]) -> dict[str, list[str]]:
    """Return the keys of evidence whose packets can be exported, the first ``MAX_KEYS``, by option."""
    wanted = [*dict.fromkeys(evidence)][:MAX_KEYS]
    if not wanted:
        return {}
    found = {}
    for option, (table, column) in _KEYS.items():
        sql = f"SELECT DISTINCT {column} AS key FROM {{rows}} WHERE {column} IN {{wanted}}"
        keys = {*lake.query(sql, rows=table, wanted=wanted)["key"].to_pylist()}
        if keys:
            found[option] = [key for key in wanted if key in keys]
    return found
