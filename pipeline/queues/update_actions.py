"""Update of gold.management_actions from silver and the authentication of calls in bronze.

An action rests on snapshots and other actions up to ``max_gap`` before and after it: what changed names a time, and the
actions since ``max_gap`` before it are recomputed. Administrators' actions are few, so this is done in memory, the
snapshots being selected where they are stored. The names of queue managers are those of gold.queue_history, which is
updated before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from pipeline.lake.incremental import DerivedTable, UnknownChangesError
from pipeline.lake.lake import Lake
from pipeline.queues.management_actions import ManagementAction, StateReport, action_rows
from pipeline.queues.queue_manager_table_update import QueueManagerTableUpdate, begin_update_with_machine_names
from pipeline.queues.queue_managers import with_machine_sql
from pipeline.queues.queue_rows import QueueSettings, to_gold_table
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
_SNAPSHOTS_SQL: Final = f"SELECT min(unix_micros(observed_at)) AS `at` FROM {{feed}} WHERE {QMMGMT_SUCCEEDED_SQL}"
_CHANGES: Final = {  # the earliest time of what changed
    MANAGEMENT_CALLS: (
        "SELECT min(unix_micros(coalesce(requested_at, responded_at))) AS `at` FROM {feed}"
        f" WHERE opnum = {_ACTION_OPNUM}"
    ),
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


class _ActionsUpdate(QueueManagerTableUpdate):
    """One update of the actions."""

    def run(self) -> int:
        """Recompute the actions that changes of the inputs affect, or all, and replace those that differ."""
        return self.step.recompute(self._changed_since, self._recompute)

    def _changed_since(self) -> list[int]:
        """Return the time since which actions are affected, microseconds; empty where none is; UnknownChangesError."""
        if self._is_renamed():
            raise UnknownChangesError
        found = [row["at"] for table, sql in _CHANGES.items() for row in self.step.changes(table, sql)]
        times = [at - self.max_gap for at in found if at is not None]
        return [min(times)] if times else []

    def _is_renamed(self) -> bool:
        """Whether rows have names of queue managers or queues that are no longer used, or this is not known."""
        machines = {old for old, _ in self.renamed()}
        queues = queue_aliases.replaced_canonical_names(self.step.feeds)
        if queues is None:
            return True
        sql = "SELECT call_key FROM {rows} WHERE queue_manager IN {machines} OR queue IN {queues} LIMIT 1"
        found = self.lake.query(sql, rows=MANAGEMENT_ACTIONS, machines=machines or {""}, queues=queues or {""})
        return bool(found.num_rows)

    def _recompute(self, changed_since: list[int] | None) -> int:
        """Recompute all actions, or those since a time."""
        since = BEFORE_ALL if changed_since is None else changed_since[0]
        there = self.lake.select(MANAGEMENT_ACTIONS, _since_sql(since, "responded_at", "requested_at"))
        rows = to_gold_table(MANAGEMENT_ACTIONS, list(self._rows(since)), self.run_id)
        return self.step.replace_changed(rows, there)

    def _rows(self, since: int) -> Iterator[RowDict]:
        """Yield the rows of actions since a time."""
        canonical = AliasIndex.load(self.lake).canonical_names
        actions = [ManagementAction(call) for call in self._read_calls(since)]
        wanted = [each for each in actions if each.end >= since]
        reports: dict[str, list[StateReport]] = {}
        for first in range(0, len(wanted), ACTIONS_PER_QUERY):
            reports |= self._read_reports(wanted[first : first + ACTIONS_PER_QUERY])
        for row in action_rows(actions, reports, self.max_gap):
            times = (at for at in (row["responded_at"], row["requested_at"]) if at is not None)
            if max(times, default=BEFORE_ALL) >= since:
                yield {**row, "queue": canonical_queue_name(row["queue"], canonical)}

    def _read_calls(self, since: int) -> list[RowDict]:
        """Return the calls from ``max_gap`` before a time on, times in microseconds."""
        names = ", ".join(f"calls.{name}" for name in _CALL_COLUMNS)
        begin = since if since == BEFORE_ALL else since - self.max_gap
        calls = f"""
SELECT {names}, unix_micros(requested_at) AS requested_at, unix_micros(responded_at) AS responded_at,
  calls.queue_manager, 'wire' AS source, pdus.auth_level, coalesce(pdus.bind_seen, FALSE) AS bind_seen,
  pdus.outcome AS call_outcome
FROM {{calls}} AS calls LEFT JOIN (
  SELECT call_key, auth_level, bind_seen, outcome FROM {{pdus}}
  WHERE interface_name = '{QMMGMT_NAME}' AND opnum = {_ACTION_OPNUM}
    AND {_since_sql(begin, "response_at", "request_at")}
) AS pdus ON pdus.call_key = calls.call_key
WHERE calls.opnum = {_ACTION_OPNUM} AND {_since_sql(begin, "responded_at", "requested_at")}"""
        found = self.lake.query(with_machine_sql(calls), calls=MANAGEMENT_CALLS, pdus=RPC_CALLS, names=self.names)
        rows: list[RowDict] = found.to_pylist()
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


def _since_sql(since: int, *times: str) -> str:
    """Return the SQL condition that one of the times is at or after ``since``; it lets Delta skip files."""
    if since == BEFORE_ALL:
        return "TRUE"
    return f"({' OR '.join(f'{name} >= timestamp_micros({since})' for name in times)})"
