"""Which calls attempts and operations are made of, in SQL: all, or those that a change affects.

A change affects calls (``RecomputeScope``): these are ``wanted``. Beside them are read, of the calls that they depend
on, those that may be elsewhere: what opened and closed queues by number at their servers, of all dates; calls with the
keys that wanted calls of ongoing associations require (``dependency_keys``); Starts and cancels that share a number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from pipeline.arrow_rows import distinct_texts
from pipeline.attempts import dependency_keys
from pipeline.attempts.affected_scope import IS_OPENING_SQL, SHARES_REQUEST_KEY_SQL, RecomputeScope
from pipeline.attempts.attempt_rows import (
    ATTEMPT_KEY_SQL,
    ATTEMPT_READ_COLUMNS,
    IS_CLIENT_CALL_SQL,
    IS_READ_SQL,
    IS_RPC_CONNECTION_SQL,
    OUTCOME_COLUMNS,
    servers_condition,
)
from pipeline.attempts.calls.decoded_call import CALL_ROLES
from pipeline.attempts.changed_rows import REQUEST_KEY_SQL
from pipeline.attempts.server_openings import OPENING_CALLS, methods_condition
from pipeline.lake.date_filters import dates_condition, not_before
from pipeline.lake.queries.inputs import QueryInput, RowsOfDates
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.table import Table

READ_COLUMNS: Final = f"{', '.join(ATTEMPT_READ_COLUMNS)}, {REQUEST_KEY_SQL} AS request"
"""The columns of silver.remote_read_calls that queries of ``server_slices`` name."""
_STARTS: Final = [method for method, role in CALL_ROLES.items() if role == "start"]
_ROW_KEYS: Final = {RECEIVE_ATTEMPTS: ATTEMPT_KEY_SQL, QUEUE_OPERATIONS: "call_key"}  # by the call's
_OUTCOMES: Final = f"SELECT {', '.join(OUTCOME_COLUMNS)} FROM {{calls}} WHERE {IS_CLIENT_CALL_SQL}"
_OTHER: Final = f"SELECT {READ_COLUMNS} FROM"
_PUBLISHED: Final = dependency_keys.keys_overlap(dependency_keys.PUBLISHED_KEYS, "(SELECT value FROM required)")
# The calls of ongoing associations with a key that a wanted call requires.
_PUBLISHING: Final = f"""
SELECT * FROM (WITH required AS (
  SELECT explode({dependency_keys.key_array(dependency_keys.REQUIRED_KEYS)}) AS value FROM wanted
  WHERE connection_id IN {{ongoing}}
)
{_OTHER} {{reads}} WHERE {IS_READ_SQL} AND connection_id IN {{ongoing}}
  AND {_PUBLISHED}"""
# They are in the slices of their associations; those that are wanted too are there already, in one slice.
_OF_ONGOING: Final = """
  UNION SELECT call_key, place AS slice FROM reads JOIN places ON places.connection_id = reads.connection_id
  WHERE reads.connection_id IN {ongoing} AND (
    call_key NOT IN (SELECT call_key FROM wanted) OR conversation IN (SELECT conversation FROM {large}))"""


class CallSource(NamedTuple):
    """What the queries of ``server_slices`` are filled in with: SQL by name, and its inputs.

    ``others`` are queries for calls that are read beside the wanted ones; ``has_clients``: queues may be used by
    number.
    """

    texts: dict[str, str]
    inputs: Mapping[str, QueryInput]
    others: Sequence[str] = ()
    has_clients: bool = True


def all_calls(servers: Collection[str | None] | None = None, *, starts: bool = True) -> CallSource:
    """Return all calls, or those of some servers; ``starts``: with Starts, on which no purge or move depends."""
    of_servers, inputs = servers_condition(servers)
    texts = {
        "is_wanted": f"{of_servers} AND {_methods('protocol', starts=starts)}",
        "of_ongoing": "", "found": "SELECT * FROM {reads}", "at_servers": "server_address IN {sliced}",
        "of_servers": of_servers, "is_connection": f"{IS_RPC_CONNECTION_SQL} AND {of_servers}",
        "known": f"{_OUTCOMES} AND {of_servers} AND {_methods('interface_name', starts=starts)}",
        "of_dates": "TRUE", "on_own_connection": "TRUE",
    }  # fmt: skip
    return CallSource(texts, inputs)


def calls_of_scope(scope: RecomputeScope, table: Table) -> CallSource:
    """Return the calls of a scope, and those that they depend on, for gold.receive_attempts or queue_operations."""
    starts = table is RECEIVE_ATTEMPTS
    here, methods = dates_condition(scope.dates), _methods("protocol", starts=starts)
    is_stored = affected = "connection_id IN {names}"
    known = _OUTCOMES
    others = []
    if scope.numbered:
        others.append(f"{_OTHER} {{openings}} WHERE {IS_OPENING_SQL}")
    if len(scope.ongoing_connections):
        affected = f"({affected} OR call_key IN {{ongoing_calls}})"
        made = f"SELECT {_ROW_KEYS[table]} FROM {{replaced_calls}}"
        is_stored = f"{is_stored} OR (connection_id IN {{ongoing}} AND {table.key[0]} IN ({made}))"
        others.append(f"{_PUBLISHING} AND {methods} AND {here}) AS publishing")
    if len(scope.cancelled_requests) and starts:
        shares = f"{SHARES_REQUEST_KEY_SQL} AND {REQUEST_KEY_SQL} IN (SELECT request FROM wanted)"
        others.append(f"{_OTHER} {{reads}} WHERE {shares}")
    else:
        known = f"{known} AND {here}"
        if scope.numbered:
            of_openings = f"{_OUTCOMES.replace('{calls}', '{outcomes}')} AND server_address IN {{numbered}}"
            known = f"{known} UNION ALL {of_openings} AND NOT {here}"
    is_wanted = f"{here} AND {not_before('requested_at', scope.since)} AND {affected} AND {methods}"
    texts = {  # ``found`` has these calls once more: kept for all who ask for them, with all columns, they go to files
        "is_wanted": is_wanted,
        "found": " UNION ALL ".join([f"{_OTHER} {{reads}} WHERE {IS_READ_SQL} AND {is_wanted}", *others]),
        "of_ongoing": _OF_ONGOING if len(scope.ongoing_connections) else "",
        "at_servers": "TRUE", "of_servers": "server_address IN {numbered}",
        "is_connection": "TRUE", "known": known,
        "of_dates": here,
        "on_own_connection": "connection_id IN (SELECT connection_id FROM {connections})",
        "is_stored": is_stored,
    }  # fmt: skip
    inputs: dict[str, QueryInput] = {
        "names": scope.connections, "ongoing": scope.ongoing_connections,
        "ongoing_calls": scope.ongoing_calls,
        "shared": scope.cancelled_requests, "numbered": scope.numbered,
        "openings": OPENING_CALLS[REMOTE_READ_CALLS], "clients": OPENING_CALLS[CLIENT_CALLS],
        "outcomes": OPENING_CALLS[RPC_CALLS], "connections": scope.connection_rows,
        "stored": RowsOfDates(table, scope.dates),
        "replaced_calls": pa.table({"call_key": distinct_texts(scope.ongoing_calls, scope.changed_calls)}),
    }  # fmt: skip
    return CallSource(texts, inputs, others, has_clients=bool(scope.numbered))


def _methods(interface: str, *, starts: bool) -> str:
    """Return the condition of calls, with Starts or without."""
    return "TRUE" if starts else f"NOT {methods_condition(_STARTS, interface)}"
