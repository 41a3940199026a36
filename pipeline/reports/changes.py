"""What changed since a time: in alerts, queues, machines, and flows of messages. One line each, in order of time.

Each thing is compared with how it was at that time: what went back to how it was has not changed. *Gone silent* and
*stopped* mean: seen in as long a time before, and not since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from pipeline.alerts.by_clock import AlertsByClock
from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.entries import AlertRow
from pipeline.alerts.episodes import SEVERITY_ORDER
from pipeline.alerts.update import current_alerts
from pipeline.concurrency import run_concurrently
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import FilteredTable
from pipeline.queues.history import STATE_UNKNOWN
from pipeline.silver.canonical_queues import with_canonical_queues
from pipeline.silver.machines import Machines
from pipeline.text import escape_as_hex, format_cell, format_count
from schemas.hosts import HOSTS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import QUEUE_HISTORY
from schemas.queue_snapshots import MACHINE_SNAPSHOTS
from schemas.transfers import MESSAGE_TRANSFERS
from udfs.times import datetime_to_us

CHANGE_KINDS: Final = ("alert", "queue", "machine", "flow")
_MAX_LINES: Final = 40  # of each kind
_FLOW_MEMORY: Final = timedelta(days=30)  # a flow that nobody saw for so long is new

_OF_QUEUE: Final = "PARTITION BY queue_manager, queue, queue_format_name"
# Each queue as it was known at the beginning of the rows and at their end, and when it became so.
_QUEUES_SQL: Final = f"""
WITH every AS (SELECT *, min(valid_from) OVER ({_OF_QUEUE}) AS first_at FROM {{history}} AS history),
known AS (
  SELECT *, lag(state) OVER ({_OF_QUEUE} ORDER BY valid_from) AS state_before,
    lag(message_count) OVER ({_OF_QUEUE} ORDER BY valid_from) AS count_before
  FROM every WHERE state <> '{STATE_UNKNOWN}'
)
SELECT queue_manager, queue, queue_format_name, first_at,
  min_by(state, valid_from) AS state_then, max_by(state, valid_from) AS state_now,
  min_by(message_count, valid_from) AS count_then, max_by(message_count, valid_from) AS count_now,
  max(CASE WHEN state <> state_before THEN valid_from END) AS state_at,
  max(CASE WHEN (message_count = 0) <> (count_before = 0) THEN valid_from END) AS count_at
FROM known GROUP BY queue_manager, queue, queue_format_name, first_at"""
_HOSTS_SQL: Final = """
SELECT queue_manager_id, host_name, address, min(first_seen_at) AS first_at, max(last_seen_at) AS last_at
FROM {hosts} AS hosts GROUP BY queue_manager_id, host_name, address"""
_VERSIONS_SQL: Final = """
SELECT queue_manager, type, min(observed_at) AS first_at, max(observed_at) AS last_at
FROM {snapshots} AS snapshots GROUP BY queue_manager, type"""
_SENT: Final = with_canonical_queues(
    "{transfers}",
    {"queue": "rows.destination_queue"},
    "rows.sender_address, rows.receiver_address, rows.first_sent_at, rows.last_sent_at",
    "{queue_aliases}",
)
_FLOWS_SQL: Final = f"""
SELECT sender_address, receiver_address, queue, min(first_sent_at) AS first_at, max(last_sent_at) AS last_at,
  count(*) AS messages
FROM {_SENT} AS sent GROUP BY sender_address, receiver_address, queue"""


class ReportedChange(NamedTuple):
    """One thing that changed: when, one of ``CHANGE_KINDS``, what became of it, its name, and more about it."""

    at: datetime
    kind: str
    what: str
    name: str
    text: str = ""


class _Period(NamedTuple):
    """The time since when changes are asked for, until the clock."""

    since: datetime
    until: datetime

    @property
    def before(self) -> datetime:
        """The beginning of as long a time before."""
        return self.since - (self.until - self.since)

    def began_in(self, at: datetime) -> bool:
        return self.since < at <= self.until

    def ended_before(self, at: datetime) -> bool:
        return self.before <= at <= self.since


def find_changes(lake: Lake, limits: Thresholds, found: AlertsByClock, since: datetime) -> list[ReportedChange]:
    """Return what changed since a time until the clock of the alerts, in order of time."""
    period, machines = _Period(since, found.clock), found.machines
    changes: Mapping[str, Sequence[ReportedChange]] = run_concurrently(
        {
            "alert": lambda: [*alert_changes(current_alerts(lake, limits, since).to_pylist(), found.every, period)],
            "queue": partial(_queue_changes, lake, period),
            "machine": partial(_machine_changes, lake, period, machines),
            "flow": partial(_flow_changes, lake, period, machines),
        }
    )
    return sorted(change for of_kind in changes.values() for change in of_kind)


def alert_changes(then: Iterable[AlertRow], now: Iterable[AlertRow], period: _Period) -> Iterator[ReportedChange]:
    """Yield the alerts that began, worsened or ended, from the rows as of the beginning and those as of the clock."""
    before = {row["alert_key"]: row for row in then}
    for row in now:
        name, text = f"{row['severity']} {row['condition']}", row.get("subject_text") or row["subject"]
        old = before.get(row["alert_key"])
        is_active, was_active = row["until"] is None, old is not None and old["until"] is None
        if not was_active and (is_active or period.began_in(row["since"])):
            yield ReportedChange(row["since"] if old is None else row["last_seen_at"], "alert", "began", name, text)
        elif old is not None and was_active and _rank(row) > _rank(old):
            yield ReportedChange(row["last_seen_at"], "alert", "worsened", name, text)
        if not is_active and (was_active or period.began_in(row["until"])):
            yield ReportedChange(row["until"], "alert", "ended", name, text)


def _rank(row: AlertRow) -> int:
    return SEVERITY_ORDER.index(row["severity"])


def _queue_changes(lake: Lake, period: _Period) -> list[ReportedChange]:
    where = f"valid_to >= {_sql(period.since)} AND valid_from <= {_sql(period.until)}"
    rows = lake.query(_QUEUES_SQL, history=FilteredTable(QUEUE_HISTORY, where)).to_pylist()
    return [change for row in rows for change in queue_changes(row, period)]


def queue_changes(row: Mapping[str, Any], period: _Period) -> Iterator[ReportedChange]:
    """Yield what changed of a queue: it appeared, its state is another one, it was emptied or filled."""
    name = f"{row['queue']} at {row['queue_manager'] or 'an unknown machine'}"
    count = row["count_now"]
    messages = "" if count is None else f", {format_count(count, 'message')}"
    if period.began_in(row["first_at"]):
        yield ReportedChange(row["first_at"], "queue", "appeared", name, f"{row['state_now']}{messages}")
        return
    if row["state_at"] is not None and row["state_then"] != row["state_now"]:
        yield ReportedChange(row["state_at"], "queue", "state", name, f"from {row['state_then']} to {row['state_now']}")
    if row["count_at"] is None or row["count_then"] is None or count is None:
        return
    if bool(row["count_then"]) != bool(count):
        what = "filled" if count else "emptied"
        yield ReportedChange(row["count_at"], "queue", what, name, f"from {row['count_then']} to {count} messages")


def _machine_changes(lake: Lake, period: _Period, machines: Machines) -> list[ReportedChange]:
    hosts = lake.query(_HOSTS_SQL, hosts=FilteredTable(HOSTS, f"first_seen_at <= {_sql(period.until)}")).to_pylist()
    where = f"type IS NOT NULL AND observed_at BETWEEN {_sql(period.before)} AND {_sql(period.until)}"
    versions = lake.query(_VERSIONS_SQL, snapshots=FilteredTable(MACHINE_SNAPSHOTS, where)).to_pylist()
    return [*host_changes(hosts, period, machines), *version_changes(versions, period, machines)]


def host_changes(hosts: Sequence[Mapping[str, Any]], period: _Period, machines: Machines) -> Iterator[ReportedChange]:
    """Yield the machines that are new, have gone silent, or have another address. Rows are those of ``_HOSTS_SQL``.

    What several machines share, a cloned GUID or an address behind NAT, says nothing of one of them.
    """
    done = set[str]()
    for host in hosts:
        is_candidate = period.began_in(host["first_at"]) or period.ended_before(host["last_at"])
        if not is_candidate or host["host_name"] in done:
            continue
        called = machines.known_as({each for each in _identifiers(host) if each is not None})
        own = [row for row in hosts if called.intersection(_identifiers(row))]
        own = [row for row in own if row["host_name"] is None or row["host_name"] in called]
        names = {row["host_name"] for row in own} - {None}
        if host["host_name"] is None and len(names) > 1:
            continue
        name = host["host_name"] or min(names, default=None) or machines.text(min(called))
        if name not in done:
            done.add(name)
            yield from _changes_of_machine(name, own, period)


def _identifiers(host: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    return host["host_name"], host["address"], host["queue_manager_id"]


def _changes_of_machine(name: str, own: Sequence[Mapping[str, Any]], period: _Period) -> Iterator[ReportedChange]:
    """Yield what changed of one machine, given all that was seen of it."""
    first, last = min(row["first_at"] for row in own), max(row["last_at"] for row in own)
    if period.began_in(first):
        yield ReportedChange(first, "machine", "new", name)
        return
    if period.ended_before(last):
        yield ReportedChange(last, "machine", "silent", name, "seen last at this time")
    addresses: dict[str, datetime] = {}
    for row in own:
        if row["address"] is not None:
            addresses[row["address"]] = min(row["first_at"], addresses.get(row["address"], row["first_at"]))
    known = sorted(address for address, at in addresses.items() if not period.began_in(at))
    for address, at in addresses.items():
        if known and address not in known:
            yield ReportedChange(at, "machine", "address", name, f"{address}, before {', '.join(known)}")


def version_changes(rows: Iterable[Mapping[str, Any]], period: _Period, machines: Machines) -> Iterator[ReportedChange]:
    """Yield the queue managers that report another version. Rows are those of ``_VERSIONS_SQL``."""
    latest: dict[str, Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda each: each["first_at"]):
        before = latest.get(row["queue_manager"])
        latest[row["queue_manager"]] = row
        if before is not None and period.began_in(row["first_at"]):
            text = f"{row['type']}, before {before['type']}"
            yield ReportedChange(row["first_at"], "machine", "version", machines.text(row["queue_manager"]), text)


def _flow_changes(lake: Lake, period: _Period, machines: Machines) -> list[ReportedChange]:
    since = min(period.before, period.since - _FLOW_MEMORY)
    where = f"destination_queue IS NOT NULL AND first_sent_at BETWEEN {_sql(since)} AND {_sql(period.until)}"
    transfers = FilteredTable(MESSAGE_TRANSFERS, where)
    rows = lake.query(_FLOWS_SQL, transfers=transfers, queue_aliases=QUEUE_ALIASES).to_pylist()
    return [*flow_changes(rows, period, machines)]


def flow_changes(rows: Iterable[Mapping[str, Any]], period: _Period, machines: Machines) -> Iterator[ReportedChange]:
    """Yield the flows of messages that are new or have stopped. Rows are those of ``_FLOWS_SQL``."""
    for row in rows:
        sender, receiver = (machines.text(row[name]) for name in ("sender_address", "receiver_address"))
        name, text = row["queue"], f"from {sender} to {receiver}, {format_count(row['messages'], 'message')}"
        if period.began_in(row["first_at"]):
            yield ReportedChange(row["first_at"], "flow", "new", name, text)
        elif period.ended_before(row["last_at"]):
            yield ReportedChange(row["last_at"], "flow", "stopped", name, text)


def _sql(at: datetime) -> str:
    return f"timestamp_micros({datetime_to_us(at)})"


def format_changes(changes: Sequence[ReportedChange], since: datetime) -> list[str]:
    """Return a line for each change, of each kind the newest ``_MAX_LINES``. Names from the wire are escaped."""
    lines = [f"since {format_cell(since)}:"]
    for kind in CHANGE_KINDS:
        own = [change for change in changes if change.kind == kind]
        lines += [f"  ... {len(own) - _MAX_LINES} earlier ones of kind {kind}"] if len(own) > _MAX_LINES else []
        lines += [_line(change) for change in own[-_MAX_LINES:]]
    return lines if changes else [f"nothing changed since {format_cell(since)}"]


def _line(change: ReportedChange) -> str:
    text = f"{change.name}: {change.text}" if change.text else change.name
    return f"  {format_cell(change.at)}  {change.kind:<8} {change.what:<9} {escape_as_hex(text)}"
