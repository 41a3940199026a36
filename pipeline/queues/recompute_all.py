"""Recompute all rows of gold's queue tables: in memory, or queue after queue in tasks (``Lake.map_groups``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias

import pyarrow as pa

from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, GroupedQuery
from pipeline.queues import queue_rows
from pipeline.queues.captured_transfers import CapturedTransfers, read_captured_transfers
from pipeline.queues.eod_transfers import IS_TRANSFER_SNAPSHOT_SQL
from pipeline.queues.queue_rows import EventQuery, QueueNames, QueueSettings
from schemas.attempts import QUEUE_OPERATIONS
from schemas.calls import MANAGEMENT_CALLS
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.queue_history import QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.table import Table
from schemas.transfers import MESSAGE_TRANSFERS
from udfs.rows import RowDict

Parts: TypeAlias = Mapping[str, pa.Table]

# The names of all queues that may have a history: messages that come and go make none.
_QUEUE_NAMES: Final = f"""
SELECT queue FROM {{snapshots}}
UNION SELECT queue FROM {{actions}} WHERE {queue_rows.PAUSE_OR_RESUME_SQL}
UNION SELECT queue FROM {{operations}}
UNION SELECT target_queue FROM {{operations}}"""
# The queue managers of these queues, as silver calls them.
_QUEUE_MANAGERS: Final = f"""
SELECT source, queue_manager FROM {{snapshots}}
UNION SELECT 'wire', queue_manager FROM {{actions}} WHERE {queue_rows.PAUSE_OR_RESUME_SQL}
UNION SELECT 'wire', server_address FROM {{operations}}"""
_DESTINATIONS: Final = "SELECT DISTINCT destination_queue AS queue FROM {transfers} WHERE destination_queue IS NOT NULL"
_HAS_SOURCES: Final = "size(eod_source_info) > 0"
# What receivers say of the senders of their incoming sequences.
_SENDER_NAMES: Final = f"""
SELECT DISTINCT queue, incoming.sender_format_name AS sender_format_name
FROM (SELECT queue, explode(eod_source_info) AS incoming FROM {{snapshots}} WHERE {_HAS_SOURCES})"""
_SENDERS: Final = """
SELECT transfers.*, pairs.receiver AS canonical_queue
FROM {transfers} AS transfers JOIN {pairs} AS pairs ON pairs.sender = transfers.queue"""


@dataclass(frozen=True, slots=True)
class FullRecompute:
    """All rows of the queue tables. ``queues`` are those that may have a history (``QueueNames.as_table``)."""

    lake: Lake
    names: QueueNames
    settings: QueueSettings
    captured: CapturedTransfers
    run_id: str
    queues: pa.Table

    @staticmethod
    def begin(lake: Lake, names: QueueNames, settings: QueueSettings, run_id: str) -> FullRecompute:
        """Read which queues there are, and when transfers of their queue managers were captured."""
        tables = {"snapshots": QUEUE_SNAPSHOTS, "actions": MANAGEMENT_CALLS, "operations": QUEUE_OPERATIONS}
        texts = set(lake.query(_QUEUE_NAMES, **tables)["queue"].to_pylist())
        known = {names.canonical_queue(text) for text in texts}
        arrivals = lake.query(_DESTINATIONS, transfers=MESSAGE_TRANSFERS)["queue"].to_pylist()
        texts |= {text for text in arrivals if names.canonical_queue(text) in known}
        rows = lake.query(_QUEUE_MANAGERS, **tables).to_pylist()
        managers = names.queue_managers
        captured = read_captured_transfers(lake, managers, managers.canonical_names(rows))
        return FullRecompute(lake, names, settings, captured, run_id, names.as_table(texts))

    def history(self) -> GroupedQuery:
        """Return all rows of gold.queue_history."""
        names, settings, captured = self.names, self.settings, self.captured

        def find(parts: Parts) -> list[RowDict]:
            return queue_rows.history_rows(_named(parts, names), settings, captured=captured)

        events = {f"{each.table.name}_{each.queue_column}": self._events(each) for each in queue_rows.EVENT_QUERIES}
        return self._map(QUEUE_HISTORY, events, find)

    def transfers(self) -> GroupedQuery:
        """Return all rows of gold.eod_transfers."""
        names, settings = self.names, self.settings

        def find(parts: Parts) -> list[RowDict]:
            return queue_rows.eod_transfer_rows(queue_rows.snapshot_observations(_named(parts, names)), settings)

        snapshots = self._events(queue_rows.SNAPSHOT_EVENT_QUERY, IS_TRANSFER_SNAPSHOT_SQL)
        return self._map(EOD_TRANSFERS, {"snapshots": snapshots}, find)

    def sources(self) -> GroupedQuery:
        """Return all rows of gold.eod_sources, compared with the stored rows of gold.eod_transfers."""
        names, settings = self.names, self.settings

        def find(parts: Parts) -> list[RowDict]:
            observed = queue_rows.snapshot_observations(_named({"snapshots": parts["snapshots"]}, names))
            receivers = queue_rows.with_sender_queues(observed, names)
            return queue_rows.eod_source_rows(receivers, queue_rows.from_gold_table(parts["senders"]), names, settings)

        snapshots = self._events(queue_rows.SNAPSHOT_EVENT_QUERY, _HAS_SOURCES)
        senders = BoundQuery(_SENDERS, {"transfers": EOD_TRANSFERS, "pairs": self._senders_of_receivers()})
        return self._map(EOD_SOURCES, {"snapshots": snapshots, "senders": senders}, find)

    def _map(
        self, table: Table, parts: Mapping[str, BoundQuery], find: Callable[[Parts], list[RowDict]]
    ) -> GroupedQuery:
        """Return the query for the rows of a table that ``find`` gives for whole queues."""
        run_id = self.run_id

        def make_rows(parts: Parts) -> Iterator[pa.Table]:
            yield queue_rows.to_gold_table(table, find(parts), run_id)

        return GroupedQuery(parts, ("canonical_queue",), make_rows, table.struct())

    def _events(self, query: EventQuery, where: str = "TRUE") -> BoundQuery:
        """Return the query for events with the canonical names of their queues."""
        events = query.build_sql(self.settings, 0, where)
        sql = f"""
SELECT events.*, queues.canonical_queue
FROM ({events}) AS events JOIN {{queues}} AS queues ON queues.queue = events.queue"""
        return BoundQuery(sql, {"rows": query.table, "queues": self.queues})

    def _senders_of_receivers(self) -> pa.Table:
        """Return the queues whose transfers each receiver is compared with: its own, and those that senders name."""
        pairs: set[tuple[str | None, str | None]] = set()
        for row in self.lake.query(_SENDER_NAMES, snapshots=QUEUE_SNAPSHOTS).to_pylist():
            receiver = self.names.canonical_queue(row["queue"])
            pairs |= {(receiver, receiver), (receiver, queue_rows.sender_queue(row, self.names))}
        schema = pa.schema({"receiver": pa.string(), "sender": pa.string()})
        return pa.Table.from_pylist([{"receiver": to, "sender": sender} for to, sender in pairs], schema)


def _named(events: Parts, names: QueueNames) -> list[RowDict]:
    """Return events as uniform rows, with the names of queues and queue managers in gold."""
    rows = chain.from_iterable(part.to_pylist() for part in events.values())
    return queue_rows.with_canonical_names(queue_rows.to_uniform_rows(rows), names)
