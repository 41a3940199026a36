"""Update of gold.receive_attempts, gold.queue_operations and gold.queue_opens from silver.

Two tables of silver cannot be made call by call, and are updated here too: silver.queue_aliases before the attempts,
and the queues of silver.messages with them. The commit of gold.receive_attempts comes last: its provenance stands for
all five tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.attempts import (
    affected_scope,
    capture_gaps,
    changed_rows,
    message_queues,
    recompute_in_memory,
    update_opens,
)
from pipeline.attempts.affected_scope import RecomputeScope
from pipeline.attempts.attempt_rows import DISTINCT_TEXTS, attempts_function
from pipeline.attempts.changed_rows import MAX_CHANGES, RPC_CONNECTIONS_QUERY, InputChanges
from pipeline.attempts.client_identity import CHANGED_BINDS_QUERY, connections_with_other_claims
from pipeline.attempts.operation_rows import operation_queries, operations_function, servers_with_operations
from pipeline.attempts.server_slices import SLICE_KEYS, attempt_queries
from pipeline.bronze.across_captures.clock_steps import earlier_ends, read_clock_steps
from pipeline.concurrency import run_concurrently
from pipeline.lake.incremental import IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import GroupedQuery
from pipeline.silver import queue_aliases
from pipeline.silver.queue_aliases import AliasGroups, AliasIndex
from schemas.attempts import QUEUE_OPENS, QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_BINDS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.table import Table

INPUTS: Final = (
    REMOTE_READ_CALLS, CLIENT_CALLS, CONNECTIONS, RPC_BINDS, CAPTURE_FILES, QUEUE_SNAPSHOTS, QUEUE_ALIASES,
)  # fmt: skip
_FOLLOWED: Final = (REMOTE_READ_CALLS, CLIENT_CALLS, CONNECTIONS, RPC_BINDS, QUEUE_ALIASES)  # by their change feeds
_MAX_CALLS_IN_MEMORY: Final = 500_000  # of a scope; with more, all calls of its servers are read
_CODE_VERSION: Final = 10  # raised when attempts, operations or opens are computed differently: all rows are recomputed
_MAX_SERVERS: Final = 5000  # whose capture ends the provenance keeps; with more, all rows are recomputed
Capture: TypeAlias = tuple[list[str], int | None, int | None]


def update(lake: Lake, *, cleanup: timedelta, declared: AliasGroups = ()) -> int:
    """Update the attempts and operations that changes of silver affect; return how many rows of attempts are written.

    ``cleanup`` is the queue managers' clean-up timer of pending receives. ``declared`` are groups of names that the
    configuration declares to be one queue's.
    """
    settings = {"cleanup_s": cleanup.total_seconds(), "declared": list(map(list, declared)), "made_by": _CODE_VERSION}
    step = IncrementalUpdate.begin(lake, RECEIVE_ATTEMPTS, INPUTS, settings)
    if not step.exists(REMOTE_READ_CALLS) or step.is_current():
        return 0
    return _AttemptsUpdate(step, cleanup.total_seconds(), declared).run()


@dataclass(slots=True)
class _AttemptsUpdate:
    """One update of the attempts, with the settings that it goes by."""

    step: IncrementalUpdate
    cleanup_s: float
    declared: AliasGroups

    @property
    def lake(self) -> Lake:
        return self.step.lake

    def run(self) -> int:
        """Update aliases, operations, the messages' queues and attempts."""
        lake, step = self.lake, self.step
        queries: dict[str, Callable[[], Any]] = {
            "captures": lambda: _read_captures(lake),
            "aliases": lambda: AliasIndex.load(lake),
            "connections": partial(lake.query_at_most, RPC_CONNECTIONS_QUERY, MAX_CHANGES, connections=CONNECTIONS),
            "reads": partial(step.changes, REMOTE_READ_CALLS, changed_rows.CHANGED_READS_QUERY, MAX_CHANGES),
            "clients": partial(step.changes, CLIENT_CALLS, changed_rows.CHANGED_CLIENT_CALLS_QUERY, MAX_CHANGES),
            "moved": partial(step.changes, CONNECTIONS, changed_rows.CHANGED_CONNECTIONS_QUERY, MAX_CHANGES),
            "claims": partial(step.changes, RPC_BINDS, CHANGED_BINDS_QUERY, MAX_CHANGES),
            "steps": partial(read_clock_steps, lake),
            "expiring": partial(changed_rows.read_expiring_attempts, lake, self.cleanup_s),
            "keys": self._published_keys,
            **{
                f"opens of {table.name}": partial(
                    step.changes, table, update_opens.changed_servers_query(table), MAX_CHANGES
                )
                for table in (REMOTE_READ_CALLS, CLIENT_CALLS)
            },
        }
        found = run_concurrently(queries)
        every_end = capture_gaps.latest_by_server(
            (server, at) for servers, at, _ in found["captures"] for server in servers
        )
        every_end = earlier_ends(lake, every_end, found["steps"].shown_by_taps())  # by other clocks it may be earlier
        ends = every_end if len(every_end) <= _MAX_SERVERS else None
        step.provenance_now["lost"] = _possible_loss(lake, found["connections"], found["captures"])
        feeds = [found[name] for name in ("reads", "clients", "moved", "expiring", "claims")]
        opened = [found[f"opens of {table.name}"] for table in (REMOTE_READ_CALLS, CLIENT_CALLS)]
        incremental = None not in (*feeds, *opened) and ends is not None and self._is_comparable()
        changes = InputChanges(*feeds) if incremental else InputChanges()
        aliases: AliasIndex = found["aliases"]
        names_changed = changes.has_naming_calls or not step.has_same_inputs(str(QUEUE_SNAPSHOTS), "declared")
        if not incremental or names_changed or aliases.is_outdated_by(changes.remote_opens):
            if queue_aliases.update_queue_aliases(lake, self.declared):
                aliases = AliasIndex.load(lake)
            step.provenance_now[str(QUEUE_ALIASES)] = lake.version(QUEUE_ALIASES)
        renamed = queue_aliases.replaced_canonical_names(step.feeds) if incremental else None
        if renamed is None or ends is None:
            return self._recompute_all(every_end, aliases.canonical_names)
        earlier = {server for server, at in step.provenance_before["ends"].items() if ends.get(server, -1) < at}
        changes = replace(
            changes, published_keys=found["keys"], servers_with_earlier_capture_end=earlier, renamed_queues=renamed
        )
        if not changes.exceeds_limit:
            update_opens.update_servers(
                lake,
                update_opens.servers_of_changed_connections(changes.connections)
                .union(row["server_address"] for rows in opened for row in rows)
                .union(connections_with_other_claims(changes.claims).values()),
                renamed=renamed,
                aliases=aliases.canonical_names,
            )
        return self._recompute_affected(changes, found["connections"], ends, aliases.canonical_names)

    def _is_comparable(self) -> bool:
        """Whether the rows of before were computed by this code, with these settings, and say what an update needs."""
        before = self.step.provenance_before
        return (
            self.step.has_same_inputs("made_by", "cleanup_s")
            and before.get("ends") is not None
            and "numbered" in before
        )

    def _published_keys(self) -> pa.Table | None:
        """Return the dependency keys that changed calls publish; None where they are not known, or too many."""
        if not self.step.provenance_before:
            return None
        feeds = self.step.feeds
        if feeds.is_unchanged(REMOTE_READ_CALLS):
            return changed_rows.PUBLISHED_KEYS_SCHEMA.empty_table()
        return feeds.table(REMOTE_READ_CALLS, changed_rows.PUBLISHED_DEPENDENCY_KEYS_QUERY, MAX_CHANGES)

    # Some attempts, or all

    def _recompute_affected(
        self, changes: InputChanges, connections: pa.Table | None, ends: dict[str, int], aliases: Mapping[str, str]
    ) -> int:
        """Recompute what the changes affect; ``ends`` are the servers' last captured packets, microseconds."""
        lake, step = self.lake, self.step
        before: dict[str, int] = step.provenance_before["numbered"]
        starts = changes.latest_starts()
        # Of servers that no capture holds any more nothing is left to be recomputed either.
        numbered = {
            server: max(before.get(server, at), at) for server, at in (before | starts).items() if server in ends
        }
        cancels = step.provenance_before["cancels"] or changes.has_cancels
        scope = affected_scope.find_recompute_scope(lake, changes, connections, ends, numbered=before, cancels=cancels)
        if scope is None:
            return self._recompute_all(ends, aliases)
        step.provenance_now |= {"ends": ends, "numbered": numbered, "cancels": cancels}
        if not scope:
            step.note_provenance()
            return 0
        if scope.call_count > _MAX_CALLS_IN_MEMORY:
            return self._recompute_servers(scope, ends, aliases)
        found = recompute_in_memory.recompute(
            lake,
            scope,
            connections=connections,
            numbered=numbered,
            ends=ends,
            aliases=aliases,
            cleanup_s=self.cleanup_s,
        )
        rows = found.rows
        opened = dict(zip(rows["attempt_key"].to_pylist(), rows["opened_queue"].to_pylist(), strict=True))
        changed = message_queues.messages_with_changed_queue(found.messages, opened)
        message_queues.write_message_queues(lake, changed, dates=scope.dates)
        self._replace_operations(found.operations, found.stored_operations, scope)
        return step.replace_changed(rows, found.stored_rows, scope.dates)

    def _replace_operations(self, rows: pa.Table, current: pa.Table, scope: RecomputeScope) -> None:
        if rows.num_rows or current.num_rows:
            self.lake.replace_changed(QUEUE_OPERATIONS, rows, current, dates=scope.dates)

    def _recompute_servers(self, scope: RecomputeScope, ends: dict[str, int], aliases: Mapping[str, str]) -> int:
        """Recompute the scope of all calls of its servers."""
        lake = self.lake
        only = frozenset(scope.connections)
        stored = partial(lake.select_by_values, values=only, dates=scope.dates, column="connection_id")
        operations = lake.map_few_groups(self._operations(aliases, scope.servers, only))
        self._replace_operations(operations, stored(QUEUE_OPERATIONS), scope)
        rows = lake.map_few_groups(self._attempts(ends, aliases, scope.servers, only))
        message_queues.update(lake, rows, dates=scope.dates)
        return self.step.replace_changed(rows, stored(RECEIVE_ATTEMPTS), scope.dates)

    def _recompute_all(self, ends: dict[str, int], aliases: Mapping[str, str]) -> int:
        """Recompute all attempts and operations; ``ends`` are those of all servers, however many."""
        lake, step = self.lake, self.step
        step.prepare_full_reads(*_FOLLOWED)
        numbered, cancels = changed_rows.latest_start_by_server_and_any_cancel(lake)
        lake.add_missing_columns(RECEIVE_ATTEMPTS)
        steps: dict[Table, Callable[[], int]] = {
            QUEUE_OPENS: partial(_replace_all, lake, QUEUE_OPENS, update_opens.opens_query(None, aliases)),
            QUEUE_OPERATIONS: partial(_replace_all, lake, QUEUE_OPERATIONS, self._operations(aliases)),
            RECEIVE_ATTEMPTS: partial(self._replace_attempts, ends, aliases),
        }
        written = run_concurrently(steps)[RECEIVE_ATTEMPTS]
        known_ends = ends if len(ends) <= _MAX_SERVERS else None
        step.provenance_now |= {"ends": known_ends, "numbered": numbered, "cancels": cancels}
        step.note_provenance()
        return written

    def _replace_attempts(self, ends: dict[str, int], aliases: Mapping[str, str]) -> int:
        """Replace all attempts, and the queues of messages by what these say; return how many attempts there are."""
        written = _replace_all(self.lake, RECEIVE_ATTEMPTS, self._attempts(ends, aliases))
        message_queues.update(self.lake, RECEIVE_ATTEMPTS, dates=None)
        return written

    def _attempts(
        self, ends: dict[str, int], aliases: Mapping[str, str], servers: Collection[str | None] | None = None,
        only: frozenset[str] | None = None,
    ) -> GroupedQuery:  # fmt: skip
        """Return the query for attempts at some servers, or at all; over ``only`` some connections."""
        find = attempts_function(ends=ends, aliases=aliases, cleanup_s=self.cleanup_s, only=only)
        queries = attempt_queries(self.lake, servers, ends)
        return GroupedQuery(queries, SLICE_KEYS, find, RECEIVE_ATTEMPTS.struct(), DISTINCT_TEXTS)

    def _operations(
        self, aliases: Mapping[str, str], servers: Collection[str | None] | None = None,
        only: frozenset[str] | None = None,
    ) -> GroupedQuery:  # fmt: skip
        """Return the query for operations at some servers, or at all; over ``only`` some connections."""
        find = operations_function(aliases, only)
        queries = operation_queries(servers_with_operations(self.lake, servers))
        return GroupedQuery(queries, ("server_address",), find, QUEUE_OPERATIONS.struct())


def _replace_all(lake: Lake, table: Table, query: GroupedQuery) -> int:
    """Replace all rows of a table; return how many there are."""
    with lake.map_groups(query) as rows:
        lake.replace(table, rows)
    return lake.versions.rows_written(table)


def _read_captures(lake: Lake) -> list[Capture]:
    """Return of each capture its servers, its last packet in microseconds, and how many packets were dropped."""
    sql = (
        "SELECT servers, unix_micros(last_packet_at) AS `at`, packets_dropped FROM {captures} WHERE servers IS NOT NULL"
    )
    rows = lake.query(sql, captures=CAPTURE_FILES)
    return [*zip(*(column.to_pylist() for column in rows.columns), strict=True)]


def _possible_loss(lake: Lake, connections: pa.Table | None, captures: list[Capture]) -> dict[str, int]:
    """Return until when calls at each server may have been lost, microseconds; ``connections``: None if too many."""
    columns = ["server_address", "last_packet_at", "missing_bytes"]
    if connections is None:
        lossy = f"SELECT * FROM ({RPC_CONNECTIONS_QUERY}) WHERE missing_bytes > 0"
        last = "max(last_packet_at) AS `at`, max(missing_bytes) AS missing"
        sql = f"SELECT server_address, {last} FROM ({lossy}) GROUP BY server_address"
        rows = lake.query(sql, connections=CONNECTIONS)
    else:
        rows = connections.filter(pc.greater(connections["missing_bytes"], 0)).select(columns)
    values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    return capture_gaps.possible_loss_until(values, captures)
