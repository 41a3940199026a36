"""Rows of gold.machine_history from silver: queries for the events of queue managers, and the rows made of them.

Times are microseconds since the epoch (UTC).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pipeline.queues.history import SOURCE_OPERATIONS
from pipeline.queues.machine_history import STATES_BY_ACTION, MachineEvent, compute_history
from pipeline.queues.queue_managers import with_machine_sql
from schemas.calls import MANAGEMENT_CALLS
from schemas.queue_snapshots import MACHINE_SNAPSHOTS
from schemas.table import Table
from udfs.call_results import QMMGMT_SUCCEEDED_SQL
from udfs.keys import key
from udfs.rows import RowDict

_ANSWERED: Final = "coalesce(responded_at, requested_at)"
_SNAPSHOTS_SQL: Final = f"""
SELECT queue_manager, source, snapshot_id AS key, unix_micros(observed_at) AS `at`, property_states, connected,
  dsserver, bytes_in_all_queues, CASE WHEN activequeues IS NOT NULL THEN size(activequeues) END AS active_queues,
  CASE WHEN privateq IS NOT NULL THEN size(privateq) END AS private_queues, errors
FROM {{rows}}
WHERE {QMMGMT_SUCCEEDED_SQL} AND observed_at IS NOT NULL"""
_ACTIONS_SQL: Final = f"""
SELECT queue_manager, '{SOURCE_OPERATIONS}' AS source, call_key AS key, unix_micros({_ANSWERED}) AS `at`,
  upper(action) AS action, requested_at IS NULL AS no_request, hresult IS NULL AS no_response, errors
FROM {{rows}}
WHERE object_type = 'machine' AND upper(action) IN ('CONNECT', 'DISCONNECT') AND {_ANSWERED} IS NOT NULL
  AND (hresult IS NULL OR {QMMGMT_SUCCEEDED_SQL}) AND fault_name IS NULL"""
_TIMES: Final = {MACHINE_SNAPSHOTS: ("observed_at",), MANAGEMENT_CALLS: ("responded_at", "requested_at")}
EVENT_TABLES: Final = tuple(_TIMES)
"""The tables that report events of queue managers."""


def events_sql(table: Table, since: int | None = None) -> str:
    """Return the SQL for the events in a table since a time (None: all), with the queue manager's name in gold.

    Failed snapshots are no evidence; an action without an answer is in doubt. ``{rows}`` stands for the table's rows,
    ``{names}`` for ``names_table`` of their queue managers.
    """
    sql = _SNAPSHOTS_SQL if table is MACHINE_SNAPSHOTS else _ACTIONS_SQL
    if since is not None:
        sql += f" AND ({' OR '.join(f'{name} >= timestamp_micros({since})' for name in _TIMES[table])})"
    return with_machine_sql(f"{sql} AND queue_manager IS NOT NULL")


_PROPERTIES: Final = {  # columns of the history: the properties that report them
    "state": "connected",
    "directory_server": "dsserver",
    "bytes_in_all_queues": "bytes_in_all_queues",
    "active_queues": "activequeues",
    "private_queues": "privateq",
}
_VALUES: Final = _PROPERTIES | {"active_queues": "active_queues", "private_queues": "private_queues"}


def events_by_machine(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[MachineEvent]]:
    """Return rows of ``events_sql`` as events, by queue manager."""
    found: defaultdict[str, list[MachineEvent]] = defaultdict(list)
    for row in rows:
        found[row["machine"]].append(_action(row) if row["source"] == SOURCE_OPERATIONS else _snapshot(row))
    return found


def _snapshot(row: Mapping[str, Any]) -> MachineEvent:
    requested = dict(row["property_states"] or {})
    values = {name: row[column] for name, column in _VALUES.items() if _PROPERTIES[name] in requested}
    if values.get("state") is not None:
        values["state"] = values["state"].upper()
    if values.get("bytes_in_all_queues") is not None:
        values["bytes_in_all_queues"] = int(values["bytes_in_all_queues"])
    return MachineEvent(row["at"], row["key"], row["source"], values, errors=tuple(row["errors"] or ()))


def _action(row: Mapping[str, Any]) -> MachineEvent:
    missing = tuple(code for code in ("no_request", "no_response") if row[code])
    errors = tuple(row["errors"] or ())
    values = {} if row["no_response"] or errors else {"state": STATES_BY_ACTION[row["action"]]}
    return MachineEvent(row["at"], row["key"], values=values, missing=missing, errors=errors)


def machine_history_rows(events: Mapping[str, Iterable[MachineEvent]], max_gap: int) -> list[RowDict]:
    """Return the rows of gold.machine_history from all events of some queue managers."""
    return [
        {"interval_key": key(manager, row["valid_from"]), "queue_manager": manager, **row}
        for manager, found in events.items()
        for row in compute_history(found, max_gap)
    ]
