"""Gold's states follow silver and the attempts: queue histories, exactly-once transfers and their sources.

The commit of gold.queue_history comes last and stands for all three: it says of which versions of the tables below they
were made, with which settings, and what queue managers were called. What changed below names queues and times; of these
queues the rows from that time on are made again, of what is told of them since a little before (``queue_history.Cut``,
``eod.needs_since``), and put in the place of those that differ. Where that is not known, or too much, all is made anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from pipeline.attempts import affected_scope
from pipeline.lake.change_feeds import Feeds
from pipeline.lake.concurrency import gather
from pipeline.lake.lake import Lake, versions_of
from pipeline.lake.local.commits import Commit
from pipeline.lake.queries import WAS
from pipeline.queues import queue_rows, recompute_all, recompute_queues
from pipeline.queues.queue_managers import Machines
from pipeline.queues.queue_rows import Names, Settings
from pipeline.queues.recompute_queues import Made, Place, TooManyError
from pipeline.silver import queue_aliases
from pipeline.silver.queue_aliases import Known
from schemas.calls import MANAGEMENT_CALLS
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.hosts import HOSTS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.receive_attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.table import EVENT_DATE, Table

VERSION: Final = "1"
BELOW: Final = (
    QUEUE_SNAPSHOTS, MANAGEMENT_CALLS, HOSTS, QUEUE_ALIASES, RECEIVE_ATTEMPTS, QUEUE_OPERATIONS,
)  # fmt: skip
_MADE: Final = (EOD_TRANSFERS, EOD_SOURCES, QUEUE_HISTORY)
_FED: Final = tuple(table for table in BELOW if table is not HOSTS)
_ALWAYS: Final = 0  # a time before all others

# The queues of a feed of silver.queue_snapshots, by who asked whom, and since when they changed.
_SNAPSHOTS_CHANGED: Final = f"""
SELECT queue, source, queue_manager, min(unix_micros(observed_at)) AS `at`,
  bool_or(_change_type IN ({", ".join(map(repr, WAS))})) AS went
FROM {{feed}} WHERE hresult = 0 AND queue IS NOT NULL AND observed_at IS NOT NULL
GROUP BY queue, source, queue_manager"""
_ANSWERED: Final = "min(unix_micros(coalesce(responded_at, requested_at))) AS `at`"
# The queues of a feed of silver.management_calls that were paused or resumed, and since when.
_ACTIONS_CHANGED: Final = (
    f"SELECT queue, {_ANSWERED} FROM {{feed}} WHERE {queue_rows.ACTION} AND queue IS NOT NULL GROUP BY queue"
)
# The queues of a feed of gold.queue_operations, both of a move, and since when they changed.
_OPERATIONS_CHANGED: Final = f"""
SELECT queue, {_ANSWERED} FROM (
  SELECT explode(array(queue, target_queue)) AS queue, responded_at, requested_at FROM {{feed}}
) WHERE queue IS NOT NULL GROUP BY queue"""


def gold(lake: Lake, settings: Settings, run_id: str) -> dict[str, int]:
    """Bring gold's states to what silver and the attempts tell now; how many rows of each table were written."""
    newest = lake.newest(*BELOW, QUEUE_HISTORY)
    written = {str(table): 0 for table in _MADE}
    if QUEUE_SNAPSHOTS not in newest and RECEIVE_ATTEMPTS not in newest:
        return written
    rests_on: dict[str, Any] = {**versions_of(newest, BELOW), **settings.said(), "states": VERSION}
    made = newest.get(QUEUE_HISTORY, Commit(0, None)).made()
    if rests_on == {name: made.get(name) for name in rests_on}:
        return written
    return written | _Work(lake, settings, run_id, made, rests_on).follow()


@dataclass(slots=True)
class _Work:
    """One run's work: what the last commit said, and what this one's will say."""

    lake: Lake
    settings: Settings
    run_id: str
    made: dict[str, Any]
    rests_on: dict[str, Any]
    names: Names = field(default_factory=lambda: Names(Machines(), {}))
    configured: set[str] = field(default_factory=set)
    written: dict[str, int] = field(default_factory=dict)

    def follow(self) -> dict[str, int]:
        """Bring the tables to what there is now."""
        asked: dict[str, Callable[[], Any]] = {
            "hosts": partial(self.lake.select, HOSTS, "TRUE", ("queue_manager_id", "host_name", "address")),
            "texts": lambda: Known.of(self.lake).texts,
            "snapshots": partial(self._changes, QUEUE_SNAPSHOTS, _SNAPSHOTS_CHANGED),
            "attempts": self._attempted,
            "actions": partial(self._changes, MANAGEMENT_CALLS, _ACTIONS_CHANGED),
            "operations": partial(self._changes, QUEUE_OPERATIONS, _OPERATIONS_CHANGED),
            "renamed": self._renamed,
        }
        found = gather(asked)
        feeds = [found[name] for name in ("snapshots", "attempts", "actions", "operations")]
        if None in feeds or found["renamed"] is None or not self._comparable():
            return self._anew(found["hosts"], found["texts"])
        self._configure(found["snapshots"])
        self.names = self._called(found["hosts"], found["texts"])
        changed = self._touched(found)
        if changed is None:
            return self._anew(found["hosts"], found["texts"])
        try:
            return self._bring(changed)
        except TooManyError:
            return self._anew(found["hosts"], found["texts"])

    def _comparable(self) -> bool:
        """Whether the last commit's rows are of these settings."""
        same = (*self.settings.said(), "states")
        told = ("names", "managers", "configured")
        return all(self.made.get(name) == self.rests_on[name] for name in same) and all(n in self.made for n in told)

    # What is called how, and what changed

    def _called(self, hosts: pa.Table, texts: Mapping[str, str]) -> Names:
        return Names(Machines.of(hosts.to_pylist(), self.configured, self.settings.declared), texts)

    def _configure(self, snapshots: Iterable[queue_rows.Row] | None) -> None:
        """Learn what collectors called queue managers: as before and in what is new, or where rows went in all."""
        if snapshots is not None and not any(row["went"] for row in snapshots):
            new = {row["queue_manager"] for row in snapshots if row["source"] == "collector" and row["queue_manager"]}
            self.configured = {*self.made["configured"], *new}
            return
        called = "SELECT DISTINCT queue_manager FROM {rows} WHERE source = 'collector' AND queue_manager IS NOT NULL"
        self.configured = set(self.lake.query(called, rows=QUEUE_SNAPSHOTS)["queue_manager"].to_pylist())

    @property
    def _feeds(self) -> Feeds:
        return Feeds(self.lake, self.made, self.rests_on)

    def _changes(self, table: Table, sql: str) -> list[queue_rows.Row] | None:
        """Return what a table's feed tells; None when it cannot tell, or of too much."""
        return self._feeds.rows(table, sql, affected_scope.MOST) if self.made else None

    def _attempted(self) -> list[queue_rows.Row] | None:
        """Return the queues that attempts changed; none while no queue has a history: reads alone make none."""
        if self.made and not self.made.get("histories"):
            return []
        told = queue_rows.attempts_told(self.settings, 0, "TRUE").replace("{rows}", "{feed}")
        return self._changes(RECEIVE_ATTEMPTS, f"SELECT queue, min(`at`) AS `at` FROM ({told}) GROUP BY queue")

    def _renamed(self) -> set[str] | None:
        return queue_aliases.renamed(self._feeds)

    def _touched(self, found: Mapping[str, Any]) -> dict[str, int] | None:
        """Return the queues of which something changed, and since when; None if queue managers are called otherwise."""
        machines = self.names.machines
        old: dict[str, str] = self.made["names"]
        others = {
            old.get(address, address)
            for address in old.keys() | machines.names.keys()
            if old.get(address, address) != machines.names.get(address, address)
        }
        if others and self._has(others):
            return None
        changed: dict[str, int] = {}
        for row in chain(*(found[name] for name in ("snapshots", "attempts", "actions", "operations"))):
            _touch(changed, self.names.queue(row["queue"]), row["at"])
        for text in found["renamed"]:
            _touch(changed, text, _ALWAYS)
            _touch(changed, self.names.queue(text), _ALWAYS)
        if machines.managers != self.made["managers"]:
            before: dict[str, list[str]] = self.made["managers"]
            rows = self.lake.query("SELECT DISTINCT queue, sender_queue_manager FROM {rows}", rows=EOD_SOURCES)
            for queue, guid in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                if guid not in machines.managers or machines.managers[guid] != before.get(guid):
                    _touch(changed, queue, _ALWAYS)
        return changed

    def _has(self, managers: Collection[str]) -> bool:
        """Whether gold has rows of any of these queue managers."""
        some = "SELECT queue_manager FROM {rows} WHERE queue_manager IN {managers} LIMIT 1"
        return bool(self.lake.query(some, rows=QUEUE_HISTORY, managers=managers).num_rows)

    # Some queues, or all

    def _bring(self, changed: dict[str, int]) -> dict[str, int]:
        """Make rows of the queues that are touched again, and put them in the place of those that differ."""
        made: Made = {table: Place() for table in _MADE}
        late = {queue: at for queue, at in changed.items() if at > _ALWAYS}
        for queues, since in ((changed.keys() - late.keys(), _ALWAYS), (late.keys(), min(late.values(), default=0))):
            if queues:
                recompute_queues.make(self.lake, self.names, self.settings, queues, since, made)
        histories = bool(self.made.get("histories") or made[QUEUE_HISTORY].rows)
        return self._put(made, self._says(histories=histories))

    def _says(self, *, histories: bool) -> str:
        """Return what the commit says."""
        machines = self.names.machines
        called = {"names": machines.names, "managers": machines.managers, "configured": sorted(self.configured)}
        return json.dumps(self.rests_on | called | {"histories": histories})

    def _put(self, made: Made, says: str) -> dict[str, int]:
        """Write what differs, the history last."""

        def put(table: Table, **says: str) -> int:
            place = made[table]
            if not place.there:
                return 0
            there = pa.concat_tables(place.there)
            rows = queue_rows.table_of(table, place.rows, self.run_id)
            return self.lake.put(table, rows, there, dates=set(there.column(EVENT_DATE).to_pylist()), **says)

        self.written |= gather({str(table): partial(put, table) for table in _MADE if table is not QUEUE_HISTORY})
        was = json.dumps(self.made)
        self.written[str(QUEUE_HISTORY)] = put(QUEUE_HISTORY, made_of=says, was_made_of=was)
        if self.lake.made_of(QUEUE_HISTORY) != says:
            self.lake.stamp(QUEUE_HISTORY, says)
        return self.written

    def _anew(self, hosts: pa.Table, texts: Mapping[str, str]) -> dict[str, int]:
        """Make all rows of all there is."""
        lake = self.lake
        for table in _FED:
            lake.begin_with(table)
        self.rests_on |= {str(table): lake.version(table) for table in _FED}
        self._configure(None)
        self.names = self._called(hosts, texts)
        most = recompute_queues.MOST

        def ask(told: queue_rows.Told) -> pa.Table:
            return lake.query(f"{told.sql(self.settings, 0, 'TRUE')} LIMIT {most + 1}", rows=told.table)

        found = gather({place: partial(ask, told) for place, told in enumerate(queue_rows.TELLING)})
        count = sum(rows.num_rows for rows in found.values())
        says = self._says(histories=count > 0)
        if count > most:
            self.written |= recompute_all.make(lake, self.names, self.settings, self.run_id, says)
            return self.written
        every = chain.from_iterable(rows.to_pylist() for rows in found.values())
        told = queue_rows.named(queue_rows.as_told(every), self.names)
        observed = queue_rows.observations(told)
        transfers = queue_rows.transfer_rows(observed, self.settings)
        receivers = queue_rows.with_senders(observed, self.names)
        sources = queue_rows.source_rows(receivers, transfers, self.names, self.settings)

        def replace(table: Table, rows: list[queue_rows.Row], **says: str) -> None:
            self.written[str(table)] = len(rows)
            lake.replace(table, queue_rows.table_of(table, rows, self.run_id), **says)

        parts = ((EOD_TRANSFERS, transfers), (EOD_SOURCES, sources))
        gather({table: partial(replace, table, rows) for table, rows in parts})
        replace(QUEUE_HISTORY, queue_rows.history_rows(told, self.settings), made_of=says)
        return self.written


def _touch(changed: dict[str, int], queue: str | None, at: int | None) -> None:
    """Note that something changed of a queue at a time."""
    if queue is not None:
        at = max(at or _ALWAYS, _ALWAYS)
        changed[queue] = min(at, changed.get(queue, at))
