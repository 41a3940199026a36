"""Update of gold.queue_history, gold.eod_transfers and gold.eod_sources from silver and the attempts.

A change of the inputs affects queues, each from some time on: the rows of these queues from then on are recomputed,
from the events since a little before (``history.ResumePoint``, ``eod_transfers.number_sent_since``). The commit of
gold.queue_history comes last: its provenance stands for all three tables, and keeps the names of queue managers that
they were computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from pipeline.concurrency import run_concurrently
from pipeline.lake.date_filters import distinct_dates
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate, KeptState, UnknownChangesError
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import PRE_IMAGES
from pipeline.queues import queue_rows, recompute_queues
from pipeline.queues.captured_transfers import NOT_CAPTURED, SPAN_INPUTS, CapturedTransfers, Span
from pipeline.queues.queue_managers import QueueManagerNames, renamed_queue_managers
from pipeline.queues.queue_rows import EventQuery, QueueNames, QueueSettings
from pipeline.queues.recompute_all import FullRecompute
from pipeline.queues.recompute_queues import QueueStateReader, RowDelta, RowDeltas
from pipeline.silver import queue_aliases
from pipeline.silver.queue_aliases import AliasIndex
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.calls import MANAGEMENT_CALLS
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.hosts import HOSTS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.table import Table
from schemas.transfers import MESSAGE_TRANSFERS
from udfs.call_results import QMMGMT_SUCCEEDED_SQL
from udfs.rows import RowDict

_HISTORIES: Final = DerivedTable(
    QUEUE_HISTORY,
    (
        QUEUE_SNAPSHOTS, MANAGEMENT_CALLS, QUEUE_ALIASES, RECEIVE_ATTEMPTS, QUEUE_OPERATIONS, MESSAGE_TRANSFERS, HOSTS,
        *SPAN_INPUTS,
    ),
    code_version="5", needs=(QUEUE_SNAPSHOTS, RECEIVE_ATTEMPTS, MESSAGE_TRANSFERS),
)  # fmt: skip
_OUTPUTS: Final = (EOD_TRANSFERS, EOD_SOURCES, QUEUE_HISTORY)
_EPOCH: Final = 0  # a time before all others
_FEEDS: Final = ("snapshots", "attempts", "transfers", "actions", "operations")  # rows with a queue and a time
_ASKED: Final = ("snapshots", "actions", "operations")  # those that make histories, with the queue manager

# The queues of changed rows of silver.queue_snapshots, by who asked whom, and since when they changed.
_CHANGED_SNAPSHOTS: Final = f"""
SELECT queue, source, queue_manager, min(unix_micros(observed_at)) AS `at`,
  bool_or(_change_type IN ({", ".join(map(repr, PRE_IMAGES))})) AS went
FROM {{feed}} WHERE {QMMGMT_SUCCEEDED_SQL} AND queue IS NOT NULL AND observed_at IS NOT NULL
GROUP BY queue, source, queue_manager"""
_FIRST_ANSWER: Final = "min(unix_micros(coalesce(responded_at, requested_at))) AS `at`"
# The queues of changed rows of silver.management_calls that pause or resume, and since when.
_CHANGED_ACTIONS: Final = f"""
SELECT queue, 'wire' AS source, queue_manager, {_FIRST_ANSWER} FROM {{feed}}
WHERE {queue_rows.PAUSE_OR_RESUME_SQL} AND queue IS NOT NULL GROUP BY queue, queue_manager"""
# The queues of changed rows of gold.queue_operations, both queues of a move, and since when.
_CHANGED_OPERATIONS: Final = f"""
SELECT queue, 'wire' AS source, server_address AS queue_manager, {_FIRST_ANSWER} FROM (
  SELECT explode(array(queue, target_queue)) AS queue, server_address, responded_at, requested_at FROM {{feed}}
) WHERE queue IS NOT NULL GROUP BY queue, server_address"""


def update(lake: Lake, settings: QueueSettings, run_id: str) -> dict[str, int]:
    """Update the queue histories and exactly-once state; return how many rows of each table are written."""
    written = {str(table): 0 for table in _OUTPUTS}
    step = _HISTORIES.begin(lake, settings.as_provenance())
    return written if step is None else written | _QueuesUpdate(step, settings, run_id).run()


@dataclass(frozen=True, slots=True)
class _KeptNames(KeptState):
    """The names that the rows are computed with, and when transfers were captured.

    ``names`` by address and ``managers`` by GUID are of queue managers, ``configured`` what collectors call them.
    ``captured`` are spans of time and ``captured_at`` servers (``CapturedTransfers``), of queue managers that may have
    histories. Without ``histories`` no queue has one.
    """

    names: Mapping[str, str]
    managers: Mapping[str, list[str]]
    configured: list[str]
    captured: Mapping[str, Sequence[Span]]
    captured_at: Mapping[str, Sequence[str]]
    histories: bool


@dataclass(slots=True)
class _QueuesUpdate:
    """One update of the queues' tables, with the names of queues and queue managers that it goes by."""

    step: IncrementalUpdate
    settings: QueueSettings
    run_id: str
    names: QueueNames = field(default_factory=lambda: QueueNames(QueueManagerNames(), {}))
    captured: CapturedTransfers = NOT_CAPTURED
    configured: set[str] = field(default_factory=set)  # what collectors call queue managers
    written: dict[str, int] = field(default_factory=dict)

    @property
    def lake(self) -> Lake:
        return self.step.lake

    def run(self) -> dict[str, int]:
        """Recompute what changes of the inputs affect, or all rows."""
        feeds = self.step.feeds
        queries: dict[str, Callable[[], Any]] = {
            "hosts": partial(self.lake.select, HOSTS, "TRUE", ("queue_manager_id", "host_name", "address")),
            "aliases": lambda: AliasIndex.load(self.lake).canonical_names,
            "snapshots": partial(feeds.rows, QUEUE_SNAPSHOTS, _CHANGED_SNAPSHOTS),
            "attempts": partial(self._changed_traffic, queue_rows.READ_EVENT_QUERY),
            "transfers": partial(self._changed_traffic, queue_rows.TRANSFER_EVENT_QUERY),
            "actions": partial(feeds.rows, MANAGEMENT_CALLS, _CHANGED_ACTIONS),
            "operations": partial(feeds.rows, QUEUE_OPERATIONS, _CHANGED_OPERATIONS),
            "renamed": lambda: queue_aliases.replaced_canonical_names(feeds),
        }
        found = run_concurrently(queries)
        self.written[str(QUEUE_HISTORY)] = self.step.recompute(
            partial(self._affected_queues, found), partial(self._recompute, found["hosts"], found["aliases"])
        )
        return self.written

    # Names, and what changed

    def _read_names(
        self, hosts: pa.Table, aliases: Mapping[str, str], snapshots: Iterable[RowDict] | None = None
    ) -> None:
        """Set the names of queues and queue managers."""
        self.configured = self._configured_names(snapshots)
        managers = QueueManagerNames.from_hosts(hosts.to_pylist(), self.configured, self.settings.configured_names)
        self.names = QueueNames(managers, aliases)

    def _configured_names(self, snapshots: Iterable[RowDict] | None) -> set[str]:
        """Return what collectors call queue managers: those of before and new ones, or all where rows were deleted."""
        if snapshots is not None and not any(row["went"] for row in snapshots):
            new = {row["queue_manager"] for row in snapshots if row["source"] == "collector" and row["queue_manager"]}
            return {*self.step.kept(_KeptNames).configured, *new}
        sql = "SELECT DISTINCT queue_manager FROM {rows} WHERE source = 'collector' AND queue_manager IS NOT NULL"
        return set(self.lake.query(sql, rows=QUEUE_SNAPSHOTS)["queue_manager"].to_pylist())

    def _changed_traffic(self, query: EventQuery) -> list[RowDict] | None:
        """Return the queues of messages that came or went; none while no queue has a history: traffic makes none."""
        before = _KeptNames.of(self.step.provenance_before)
        if before is not None and not before.histories:
            return []
        events = query.build_sql(self.settings, 0, "TRUE").replace("{rows}", "{feed}")
        sql = f"SELECT queue, min(`at`) AS `at` FROM ({events}) GROUP BY queue"
        return self.step.feeds.rows(query.table, sql)

    def _affected_queues(self, found: Mapping[str, Any]) -> dict[str, int]:
        """Return the queues with changes (``found``), and since when, microseconds; UnknownChangesError."""
        before = self.step.kept(_KeptNames)
        if any(found[name] is None for name in (*_FEEDS, "renamed")):
            raise UnknownChangesError
        self._read_names(found["hosts"], found["aliases"], found["snapshots"])
        managers, old = self.names.queue_managers, before.names
        renamed = {name for pair in renamed_queue_managers(old, managers.name_by_address) for name in pair}
        self._update_captured(before, renamed, chain.from_iterable(found[name] for name in _ASKED))
        affected = dict.fromkeys(self._queues_at(renamed), _EPOCH)
        for row in chain(*(found[name] for name in _FEEDS)):
            _add_affected(affected, self.names.canonical_queue(row["queue"]), row["at"])
        for text in found["renamed"]:
            _add_affected(affected, text, _EPOCH)
            _add_affected(affected, self.names.canonical_queue(text), _EPOCH)
        if managers.names_by_guid != before.managers:
            rows = self.lake.query("SELECT DISTINCT queue, sender_queue_manager FROM {rows}", rows=EOD_SOURCES)
            for queue, guid in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                if guid not in managers.names_by_guid or managers.names_by_guid[guid] != before.managers.get(guid):
                    _add_affected(affected, queue, _EPOCH)
        self._add_by_captured_transfers(affected, before.captured)
        self._keep_names(has_histories=before.histories)
        return affected

    def _update_captured(self, before: _KeptNames, renamed: set[str], asked: Iterable[RowDict]) -> None:
        """Set when transfers were captured; ``asked``: changed rows with queue managers that may have histories now."""
        names, known = self.names.queue_managers, before.captured_at.keys()
        managers = {*known, *names.canonical_names(asked), *(renamed if known & renamed else ())}
        kept = CapturedTransfers(before.captured, before.captured_at).of(known - renamed)
        self.captured = kept.updated(self.lake, self.step.feeds, names, managers)

    def _add_by_captured_transfers(self, affected: dict[str, int], before: Mapping[str, Sequence[Span]]) -> None:
        """Add the queues with a history at queue managers whose transfers were captured at other times than before."""
        since = self.captured.changed_since(before)
        if not since:
            return
        sql = "SELECT DISTINCT queue, queue_manager FROM {rows} WHERE queue_manager IN {managers}"
        rows = self.lake.query(
            f"{sql} AND valid_to > timestamp_micros({min(since.values())})", rows=QUEUE_HISTORY, managers=since
        )
        for row in rows.to_pylist():
            _add_affected(affected, row["queue"], since[row["queue_manager"]])

    def _queues_at(self, managers: Collection[str]) -> list[str]:
        """Return the queues with a history at some queue managers."""
        sql = "SELECT DISTINCT queue FROM {rows} WHERE queue_manager IN {managers}"
        return self.lake.query(sql, rows=QUEUE_HISTORY, managers=managers)["queue"].to_pylist() if managers else []

    # Some queues, or all

    def _recompute(self, hosts: pa.Table, aliases: Mapping[str, str], affected: dict[str, int] | None) -> int:
        return self._recompute_all(hosts, aliases) if affected is None else self._recompute_affected(affected)

    def _recompute_affected(self, affected: dict[str, int]) -> int:
        """Recompute the rows of the affected queues, and replace those that differ."""
        deltas: RowDeltas = {table: RowDelta() for table in _OUTPUTS}
        recent = {queue: at for queue, at in affected.items() if at > _EPOCH}
        whole = affected.keys() - recent.keys()
        reader = QueueStateReader(self.lake, self.names, self.settings, self.captured)
        for queues, since in ((whole, _EPOCH), (recent.keys(), min(recent.values(), default=0))):
            if queues:
                recompute_queues.recompute(reader, queues, since, deltas)
        if deltas[QUEUE_HISTORY].rows:
            self._keep_names(has_histories=True)

        def replace(table: Table) -> int:
            current = deltas[table].existing
            if not current:
                return self.step.note_provenance() if table is QUEUE_HISTORY else 0
            rows = queue_rows.to_gold_table(table, deltas[table].rows, self.run_id)
            there = pa.concat_tables(current)
            if table is QUEUE_HISTORY:
                return self.step.replace_changed(rows, there)
            return self.lake.replace_changed(table, rows, there, dates=distinct_dates(there))

        others = {str(table): partial(replace, table) for table in (EOD_TRANSFERS, EOD_SOURCES)}
        self.written |= run_concurrently(others)
        return replace(QUEUE_HISTORY)

    def _keep_names(self, *, has_histories: bool) -> None:
        """Have the provenance keep the names that the rows are computed with, and when transfers were captured."""
        managers, configured = self.names.queue_managers, sorted(self.configured)
        names = managers.name_by_address, managers.names_by_guid
        captured = self.captured.spans, self.captured.servers
        self.step.keep(_KeptNames(*names, configured, *captured, has_histories))

    def _recompute_all(self, hosts: pa.Table, aliases: Mapping[str, str]) -> int:
        """Recompute all rows."""
        lake, step = self.lake, self.step
        self._read_names(hosts, aliases)
        every = FullRecompute.begin(lake, self.names, self.settings, self.run_id)
        self.captured = every.captured
        self._keep_names(has_histories=every.queues.num_rows > 0)
        for table, query in ((EOD_TRANSFERS, every.transfers), (EOD_SOURCES, every.sources)):
            with lake.map_groups(query()) as rows:
                lake.replace(table, rows)
            self.written[str(table)] = lake.versions.rows_written(table)
        with lake.map_groups(every.history()) as rows:
            return step.replace_all(rows)


def _add_affected(affected: dict[str, int], queue: str | None, at: int | None) -> None:
    """Note that something of a queue changed at a time, microseconds."""
    if queue is not None:
        since = max(at or _EPOCH, _EPOCH)
        affected[queue] = min(since, affected.get(queue, since))
