"""Update of gold.management_actions from silver and the authentication of calls in bronze.

An action rests on snapshots and other actions up to ``max_gap`` before and after it: what changed names a time, and the
actions since ``max_gap`` before it are recomputed. Where a queue manager or a queue got another name, all
actions at the queue managers concerned are. Administrators' actions are few, so this is done in memory, the snapshots
being selected where they are stored. The names of queue managers are those of gold.queue_history, which is updated
before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from pipeline.lake.incremental import DerivedTable, UnknownChangesError
from pipeline.lake.lake import Lake
from pipeline.queues.management_actions import ManagementAction, StateReport, action_rows
from pipeline.queues.queue_manager_table_update import QueueManagerTableUpdate, begin_update_with_machine_names
from pipeline.queues.queue_managers import with_machine_sql
from pipeline.queues.queue_rows import QueueSettings, since_sql, to_gold_table
from pipeline.silver import queue_aliases
from pipeline.silver.queue_aliases import AliasIndex
from schemas.bronze import RPC_CALLS
from schemas.calls import MANAGEMENT_CALLS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import MANAGEMENT_ACTIONS
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS
from schemas.table import Table
from udfs.call_results import QMMGMT_SUCCEEDED_SQL
from udfs.columns.absent import BEFORE_ALL
from udfs.dcerpc.interfaces import QMMGMT_NAME
from udfs.queues.alias_groups import canonical_queue_name
from udfs.rows import RowDict

ACTIONS_PER_QUERY: Final = 5_000  # whose snapshots are read at once
_ACTION_OPNUM: Final = 1
_FIRST_TIME: Final = "unix_micros(coalesce(requested_at, responded_at))"
_SNAPSHOTS_SQL: Final = f"SELECT min(unix_micros(observed_at)) AS `at` FROM {{feed}} WHERE {QMMGMT_SUCCEEDED_SQL}"
_CHANGES: Final = {  # the earliest time of what changed
    MANAGEMENT_CALLS: (f"SELECT min({_FIRST_TIME}) AS `at` FROM {{feed}} WHERE opnum = {_ACTION_OPNUM}"),
    RPC_CALLS: (
        "SELECT min(unix_micros(coalesce(request_at, response_at))) AS `at` FROM {feed}"
        f" WHERE interface_name = '{QMMGMT_NAME}' AND opnum = {_ACTION_OPNUM}"
    ),
    MACHINE_SNAPSHOTS: f"{_SNAPSHOTS_SQL} AND connected IS NOT NULL",
    QUEUE_SNAPSHOTS: f"{_SNAPSHOTS_SQL} AND state IS NOT NULL",
}
_CALL_COLUMNS: Final = (
    "call_key", "object_type", "queue_format_name", "queue", "connection_id", "client_address", "client_port",
    "server_address", "server_port", "action", "hresult", "hresult_name", "fault_name", "errors",
)  # fmt: skip
# The states that successful snapshots reported, with a name of what they are about.
_REPORTS: Final = {
    MACHINE_SNAPSHOTS: ("connected", "''"),
    QUEUE_SNAPSHOTS: ("state", "lower(queue_format_name)"),
}


_ACTIONS: Final = DerivedTable(
    MANAGEMENT_ACTIONS, (*_CHANGES, QUEUE_ALIASES), code_version="1", needs=(MANAGEMENT_CALLS,)
)


def update(lake: Lake, settings: QueueSettings, run_id: str) -> int:
    """Update the actions; return how many rows are written."""
    step = begin_update_with_machine_names(_ACTIONS, lake, {"max_gap_us": settings.max_gap_us})
    return 0 if step is None else _ActionsUpdate(step, settings.max_gap_us, run_id).run()


class _Scope(NamedTuple):
    """Actions since a time, microseconds; ``machines``: at these queue managers only."""

    since: int = BEFORE_ALL
    machines: Collection[str] | None = None

    def since_sql(self, *times: str, before: int = 0) -> str:
        """Return the SQL condition that one of the times is in the scope, or up to ``before`` earlier."""
        return "TRUE" if self.since == BEFORE_ALL else since_sql(self.since - before, *times)

    def machines_sql(self, name: str) -> str:
        """Return the SQL condition that a queue manager is one of the scope, as ``inputs`` name them."""
        return "TRUE" if self.machines is None else f"{name} IN {{machines}}"

    @property
    def inputs(self) -> dict[str, Collection[str]]:
        """The values that ``machines_sql`` names."""
        return {} if self.machines is None else {"machines": self.machines}


class _ActionsUpdate(QueueManagerTableUpdate):
    """One update of the actions."""

    def run(self) -> int:
        """Recompute the actions that changes of the inputs affect, or all, and replace those that differ."""
        return self.step.recompute(self._affected, self._recompute)

    def _affected(self) -> list[_Scope]:
        """Return which actions changes affect; UnknownChangesError."""
        found = self.step.all_changed_rows([*_CHANGES.items()])
        changed = [] if found is None else found["at"].drop_null().to_pylist()
        times = [at - self.max_gap for at in changed]
        return [*([_Scope(min(times))] if times else []), *self._renamed()]

    def _renamed(self) -> list[_Scope]:
        """Return the actions at queue managers with rows whose queue manager or queue has another name now."""
        machines = {name for pair in self.renamed() for name in pair}
        queues = queue_aliases.replaced_canonical_names(self.step.feeds)
        if queues is None:
            raise UnknownChangesError
        sql = f"""
SELECT queue_manager, min({_FIRST_TIME}) AS `at` FROM {{rows}}
WHERE queue_manager IN {{machines}} OR queue IN {{queues}} GROUP BY queue_manager"""
        rows = self.lake.query(sql, rows=MANAGEMENT_ACTIONS, machines=machines or {""}, queues=queues or {""})
        found = {row["queue_manager"]: row["at"] for row in rows.to_pylist()}
        if not found:
            return []
        return [_Scope(min(found.values()), None if None in found else machines | found.keys())]

    def _recompute(self, scopes: list[_Scope] | None) -> int:
        """Recompute all actions, or those of some scopes."""
        there, rows = list[pa.Table](), dict[str, RowDict]()
        for scope in scopes or [_Scope()]:
            of_scope = f"{scope.since_sql('responded_at', 'requested_at')} AND {scope.machines_sql('queue_manager')}"
            there.append(self.lake.select(MANAGEMENT_ACTIONS, of_scope, **scope.inputs))
            rows |= {row["call_key"]: row for row in self._rows(scope)}
        now = to_gold_table(MANAGEMENT_ACTIONS, [*rows.values()], self.run_id)
        return self.step.replace_changed(now, pa.concat_tables(there))

    def _rows(self, scope: _Scope) -> Iterator[RowDict]:
        """Yield the rows of the actions of a scope."""
        canonical, since = AliasIndex.load(self.lake).canonical_names, scope.since
        actions = [ManagementAction(call) for call in self._read_calls(scope)]
        wanted = [each for each in actions if each.end >= since]
        reports: dict[str, list[StateReport]] = {}
        for first in range(0, len(wanted), ACTIONS_PER_QUERY):
            reports |= self._read_reports(wanted[first : first + ACTIONS_PER_QUERY])
        for row in action_rows(actions, reports, self.max_gap):
            times = (at for at in (row["responded_at"], row["requested_at"]) if at is not None)
            if max(times, default=BEFORE_ALL) >= since:
                yield {**row, "queue": canonical_queue_name(row["queue"], canonical)}

    def _read_calls(self, scope: _Scope) -> list[RowDict]:
        """Return the calls of a scope, and of ``max_gap`` before it, times in microseconds."""
        names = ", ".join(f"calls.{name}" for name in _CALL_COLUMNS)
        calls = f"""
SELECT {names}, unix_micros(requested_at) AS requested_at, unix_micros(responded_at) AS responded_at,
  calls.queue_manager, 'wire' AS source, pdus.auth_level, coalesce(pdus.bind_seen, FALSE) AS bind_seen,
  pdus.outcome AS call_outcome
FROM {{calls}} AS calls LEFT JOIN (
  SELECT call_key, auth_level, bind_seen, outcome FROM {{pdus}}
  WHERE interface_name = '{QMMGMT_NAME}' AND opnum = {_ACTION_OPNUM}
    AND {scope.since_sql("response_at", "request_at", before=self.max_gap)}
) AS pdus ON pdus.call_key = calls.call_key
WHERE calls.opnum = {_ACTION_OPNUM} AND {scope.since_sql("responded_at", "requested_at", before=self.max_gap)}"""
        sql = f"SELECT * FROM ({with_machine_sql(calls)}) AS every WHERE {scope.machines_sql('machine')}"
        tables = {"calls": MANAGEMENT_CALLS, "pdus": RPC_CALLS, "names": self.names}
        rows: list[RowDict] = self.lake.query(sql, **tables, **scope.inputs).to_pylist()
        return rows

    def _read_reports(self, actions: Sequence[ManagementAction]) -> dict[str, list[StateReport]]:
        """Return the states reported near actions, by the actions' call keys."""
        near: defaultdict[Table, list[RowDict]] = defaultdict(list)
        for each in actions:
            about = each.object_key
            if about is not None:
                table = MACHINE_SNAPSHOTS if about[1] is None else QUEUE_SNAPSHOTS
                begin, end = each.begin - self.max_gap, each.end + self.max_gap
                row = {"call_key": each.call["call_key"], "machine": about[0], "name": about[1] or ""}
                near[table].append(row | {"begin": begin, "until": end})
        found: defaultdict[str, list[StateReport]] = defaultdict(list)
        for table, rows in near.items():
            for row in self._near_snapshots(table, rows):
                found[row["call_key"]].append(StateReport(row["at"], row["snapshot_id"], row["state"]))
        return found

    def _near_snapshots(self, table: Table, near: Sequence[RowDict]) -> list[RowDict]:
        state, name = _REPORTS[table]
        first, last = min(row["begin"] for row in near), max(row["until"] for row in near)
        snapshots = with_machine_sql(f"""
SELECT snapshot_id, unix_micros(observed_at) AS `at`, upper({state}) AS state, {name} AS name, queue_manager, source
FROM {{rows}}
WHERE {QMMGMT_SUCCEEDED_SQL} AND {state} IS NOT NULL
  AND observed_at BETWEEN timestamp_micros({first}) AND timestamp_micros({last})""")
        sql = f"""
SELECT near.call_key, found.snapshot_id, found.`at`, found.state
FROM {{near}} AS near JOIN ({snapshots}) AS found
  ON found.machine = near.machine AND found.name = near.name AND found.`at` BETWEEN near.begin AND near.until"""
        wanted = pa.Table.from_pylist(near)
        found: list[RowDict] = self.lake.query(sql, rows=table, near=wanted, names=self.names).to_pylist()
        return found
