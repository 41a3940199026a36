"""Update of gold.receive_attempts, gold.queue_operations and gold.queue_opens from silver.

Two tables of silver cannot be made call by call, and are updated here too: silver.queue_aliases before the attempts,
and the queues of silver.messages with them. The commit of gold.receive_attempts comes last: its provenance stands for
all five tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.attempts import affected_scope, changed_rows, message_queues, update_opens
from pipeline.attempts.affected_scope import RecomputeScope
from pipeline.attempts.attempt_rows import DISTINCT_TEXTS, attempts_function
from pipeline.attempts.attempts_state import AttemptsState
from pipeline.attempts.capture_gaps import latest_by_server
from pipeline.attempts.changed_rows import InputChanges
from pipeline.attempts.client_identity import CHANGED_CLAIMS_QUERY, CHANGED_CLAIMS_SCHEMA
from pipeline.attempts.operation_rows import operations_function, servers_with_operations
from pipeline.attempts.server_slices import SLICE_KEYS, attempt_queries, operation_queries
from pipeline.bronze.across_captures.capture_ends import changed_ends, read_capture_ends, read_lossy_capture_ends
from pipeline.concurrency import run_concurrently
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate, UnknownChangesError
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import GroupedQuery, QueryAnswers, RowsOfFiles
from pipeline.lake.schema_enforcement import cast_to, select_fields
from pipeline.lake.stage_groups import stage_groups
from pipeline.lake.staged_changes import stage_changes, write_changes
from pipeline.lake.staging_files import StagingWriter, staged_files
from pipeline.runs.recovery import RunMarkers
from pipeline.silver import queue_aliases
from pipeline.silver.queue_aliases import NO_ALIASES, AliasGroups, AliasIndex
from schemas.attempts import QUEUE_OPENS, QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_BINDS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.table import Table

_ATTEMPTS: Final = DerivedTable(
    RECEIVE_ATTEMPTS,
    (REMOTE_READ_CALLS, CLIENT_CALLS, CONNECTIONS, RPC_BINDS, CAPTURE_FILES, QUEUE_SNAPSHOTS, QUEUE_ALIASES),
    code_version="10",
    needs=(REMOTE_READ_CALLS,),
)

_QUEUES: Final = "opened_queues"  # the folder of what staged attempts say of the queues of messages
_OPENED_QUEUES: Final = select_fields(RECEIVE_ATTEMPTS.schema(), ("attempt_key", "opened_queue"))
_COUNT: Final = StructType([StructField("rows", LongType())])


def update(lake: Lake, *, cleanup: timedelta, declared: AliasGroups = ()) -> int:
    """Update the attempts and operations that changes of silver affect; return how many rows of attempts are written.

    ``cleanup`` is the queue managers' clean-up timer of pending receives. ``declared`` are groups of names that the
    configuration declares to be one queue's.
    """
    settings, names = {"cleanup_s": cleanup.total_seconds()}, {"declared": list(map(list, declared))}
    step = _ATTEMPTS.begin(lake, settings, names)
    return 0 if step is None else _AttemptsUpdate(step, cleanup.total_seconds(), declared).run()


@dataclass(slots=True)
class _AttemptsUpdate:
    """One update of the attempts, with the settings that it goes by.

    By server, microseconds: ``ends``, the last captured packet, and ``lossy_ends``, that of captures that dropped
    packets.
    """

    step: IncrementalUpdate
    cleanup_s: float
    declared: AliasGroups
    ends: dict[str, int] = field(default_factory=dict)
    lossy_ends: dict[str, int] = field(default_factory=dict)
    aliases: AliasIndex = NO_ALIASES
    has_current_aliases: bool = False

    @property
    def lake(self) -> Lake:
        return self.step.lake

    def run(self) -> int:
        """Update aliases, operations, the messages' queues and attempts."""
        lake, feeds = self.lake, self.step.feeds
        queries: dict[str, Callable[[], Any]] = {
            "ends": partial(read_capture_ends, lake),
            "lossy": partial(read_lossy_capture_ends, lake),
            "aliases": lambda: AliasIndex.load(lake),
            "reads": partial(
                self._changed, REMOTE_READ_CALLS, changed_rows.CHANGED_READS_QUERY, changed_rows.CHANGED_READS_SCHEMA
            ),
            "clients": partial(
                self._changed,
                CLIENT_CALLS,
                changed_rows.CHANGED_CLIENT_CALLS_QUERY,
                changed_rows.CHANGED_CLIENT_CALLS_SCHEMA,
            ),
            "moved": partial(feeds.rows, CONNECTIONS, changed_rows.CHANGED_CONNECTIONS_QUERY),
            "claims": partial(self._changed, RPC_BINDS, CHANGED_CLAIMS_QUERY, CHANGED_CLAIMS_SCHEMA),
            "expiring": partial(changed_rows.read_expiring_attempts, lake, self.cleanup_s),
            **{
                f"opens of {table.name}": partial(feeds.rows, table, update_opens.changed_servers_query(table))
                for table in (REMOTE_READ_CALLS, CLIENT_CALLS)
            },
        }
        found = run_concurrently(queries)
        self.ends, self.lossy_ends, self.aliases = found["ends"], found["lossy"], found["aliases"]
        return self.step.recompute(partial(self._find_scope, found), self._recompute)

    def _find_scope(self, found: Mapping[str, Any]) -> RecomputeScope:
        """Return which attempts changes affect, and update the aliases and what was opened; UnknownChangesError.

        ``found``: what changed.
        """
        lake, step, before = self.lake, self.step, self.step.kept(AttemptsState)
        feeds = [found[name] for name in ("reads", "clients", "moved", "expiring", "claims")]
        opened = [found[f"opens of {table.name}"] for table in (REMOTE_READ_CALLS, CLIENT_CALLS)]
        if any(each is None for each in (*feeds, *opened)) or before.ends is None:
            raise UnknownChangesError
        changes = InputChanges(*feeds)
        names_changed = changes.has_naming_calls or not step.has_same_inputs(str(QUEUE_SNAPSHOTS), "declared")
        if names_changed or self.aliases.is_outdated_by(changes.remote_opens):
            self._update_aliases()
        self.has_current_aliases = True
        renamed = queue_aliases.replaced_canonical_names(step.feeds)
        if renamed is None:
            raise UnknownChangesError
        changes = replace(
            changes,
            servers_with_earlier_capture_end=changed_ends(before.ends, self.ends).earlier,
            renamed_queues=renamed,
        )
        update_opens.update_servers(
            lake,
            update_opens.servers_of_changed_connections(changes.connections)
            .union(row["server_address"] for rows in opened for row in rows)
            .union(changes.other_claims["server_address"].to_pylist()),
            renamed=renamed,
            aliases=self.aliases.canonical_names,
        )
        cancels = before.cancels or changes.has_cancels
        scope = affected_scope.find_recompute_scope(
            lake, changes, self._published_keys, self.ends, numbered=before.numbered, cancels=cancels
        )
        starts = changes.latest_starts()
        # Of servers that no capture holds any more nothing is left to be recomputed either.
        numbered = {
            server: max(before.numbered.get(server, at), at)
            for server, at in (before.numbered | starts).items()
            if server in self.ends
        }
        incomplete = changed_rows.incomplete_until(lake, before.incomplete, changes.connections)
        self._keep(numbered, incomplete, cancels=cancels)
        return scope

    def _keep(self, numbered: dict[str, int], incomplete: dict[str, int], *, cancels: bool) -> None:
        """Have the next update know what this one knows; parameters as the fields of ``AttemptsState``."""
        lost = latest_by_server([*incomplete.items(), *self.lossy_ends.items()])
        self.step.keep(AttemptsState(self.ends, numbered, cancels, lost, incomplete))

    def _update_aliases(self) -> None:
        """Update silver.queue_aliases; from now on its changes are known."""
        if queue_aliases.update_queue_aliases(self.lake, self.declared):
            self.aliases = AliasIndex.load(self.lake)
        self.step.renew_versions(QUEUE_ALIASES)

    def _changed(self, table: Table, sql: str, schema: pa.Schema) -> pa.Table | None:
        """Return what a query tells of the changes of a table; None where they are not known."""
        feeds = self.step.feeds
        return schema.empty_table() if feeds.is_unchanged(table) else feeds.table(table, sql)

    def _published_keys(self, connections: pa.Array) -> pa.Table:
        """Return the dependency keys that changed calls on some connections publish; UnknownChangesError."""
        sql = changed_rows.PUBLISHED_DEPENDENCY_KEYS_QUERY
        found = self.step.changed_rows(REMOTE_READ_CALLS, sql, names=connections)
        return changed_rows.PUBLISHED_KEYS_SCHEMA.empty_table() if found is None else found

    # Some attempts, or all

    def _recompute(self, scope: RecomputeScope | None) -> int:
        """Recompute the attempts and operations of a scope, or all."""
        if scope is None:
            return self._recompute_all()
        lake = self.lake
        with RunMarkers.of(lake).staging_folder("attempts") as folder:
            if servers := servers_with_operations(lake, scope):
                self._stage(folder, QUEUE_OPERATIONS, self._operations(scope, servers))
                write_changes(lake, folder, QUEUE_OPERATIONS)
            self._stage(folder, RECEIVE_ATTEMPTS, self._attempts(scope))
            queues = RowsOfFiles(_OPENED_QUEUES, staged_files(folder / _QUEUES))
            message_queues.update(lake, queues, dates=scope.dates)
            return self.step.write_changes(folder)

    def _stage(self, folder: LakePath, table: Table, query: GroupedQuery) -> None:
        """Stage how the rows of a table that a query gives differ from the stored ones."""
        make = query.function

        def stage(parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
            rows = pa.concat_tables(make(parts))
            stage_changes(staging, table, rows, cast_to(table, parts["stored"]))
            if table is RECEIVE_ATTEMPTS:
                staging.add_table(_QUEUES, rows.select(_OPENED_QUEUES.names))
            return pa.table({_COUNT.names[0]: [rows.num_rows]})

        stage_groups(
            self.lake, folder, query.parts, stage, _COUNT, keys=query.keys, distinct_texts=query.distinct_texts
        )

    def _recompute_all(self) -> int:
        """Recompute all aliases, attempts and operations."""
        lake, step = self.lake, self.step
        if not self.has_current_aliases:
            self._update_aliases()
        numbered, cancels = changed_rows.latest_start_by_server_and_any_cancel(lake)
        lake.add_missing_columns(RECEIVE_ATTEMPTS)
        opens = update_opens.opens_query(None, self.aliases.canonical_names)
        operations = self._operations(None, servers_with_operations(lake, None))
        steps: dict[Table, Callable[[], int]] = {
            QUEUE_OPENS: partial(_replace_all, lake, QUEUE_OPENS, opens),
            QUEUE_OPERATIONS: partial(_replace_all, lake, QUEUE_OPERATIONS, operations),
            RECEIVE_ATTEMPTS: self._replace_attempts,
        }
        written = run_concurrently(steps)[RECEIVE_ATTEMPTS]
        self._keep(numbered, changed_rows.read_incomplete_until(lake), cancels=cancels)
        step.note_provenance()
        return written

    def _replace_attempts(self) -> int:
        """Replace all attempts, and the queues of messages by what these say; return how many attempts there are."""
        written = _replace_all(self.lake, RECEIVE_ATTEMPTS, self._attempts(None))
        message_queues.update(self.lake, RECEIVE_ATTEMPTS, dates=None)
        return written

    def _attempts(self, scope: RecomputeScope | None) -> GroupedQuery:
        """Return the query for the attempts of a scope, or for all."""
        find = attempts_function(ends=self.ends, aliases=self.aliases.canonical_names, cleanup_s=self.cleanup_s)
        queries = attempt_queries(self.lake, scope, self.ends)
        return GroupedQuery(queries, SLICE_KEYS, find, RECEIVE_ATTEMPTS.struct(), DISTINCT_TEXTS)

    def _operations(self, scope: RecomputeScope | None, servers: Collection[str | None]) -> GroupedQuery:
        """Return the query for the operations of a scope, or for all, at some servers."""
        find = operations_function(self.aliases.canonical_names)
        return GroupedQuery(operation_queries(scope, servers), SLICE_KEYS, find, QUEUE_OPERATIONS.struct())


def _replace_all(lake: Lake, table: Table, query: GroupedQuery) -> int:
    """Replace all rows of a table; return how many there are."""
    with lake.map_groups(query) as rows:
        lake.replace(table, rows)
    return lake.versions.rows_written(table)
