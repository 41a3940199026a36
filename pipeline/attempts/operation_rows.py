"""Rows of gold.queue_operations, computed by ``operations.find_operations`` from each server's calls.

They rest on the same calls as attempts do (``attempt_rows``), and are computed beside them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import epoch_day, is_in, rows_to_table
from pipeline.attempts.attempt_rows import (
    ATTEMPT_READ_COLUMNS,
    CLIENT_CALL_COLUMNS,
    CONNECTION_FIELDS,
    IS_CLIENT_CALL_SQL,
    IS_READ_SQL,
    IS_RPC_CONNECTION_SQL,
    OUTCOME_COLUMNS,
    connections_from_rows,
    decode_errors,
    iterate_servers,
    join_by_key,
    passthrough_columns,
    select_of_servers,
)
from pipeline.attempts.calls.decoded_call import CALL_ROLES
from pipeline.attempts.columns.call_columns import calls_from_rows
from pipeline.attempts.operations import QueueOperation
from pipeline.attempts.operations import find_operations as operations_here
from pipeline.attempts.server_openings import methods_condition
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, GroupFunction
from schemas.attempts import QUEUE_OPERATIONS
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from udfs.codes import result_name
from udfs.queues.alias_groups import canonical_queue_name

_SCHEMA: Final = QUEUE_OPERATIONS.schema()
_OPERATIONS: Final = [method for method, role in CALL_ROLES.items() if role in ("purge", "move")]
_STARTS: Final = [method for method, role in CALL_ROLES.items() if role == "start"]


def servers_with_operations(lake: Lake, servers: Collection[str | None] | None) -> set[str | None]:
    """Return those of some servers, or of all (None), at which queues were purged or messages moved."""
    done = methods_condition(_OPERATIONS, "protocol")
    calls = select_of_servers(REMOTE_READ_CALLS, ("server_address",), done, servers)
    query = calls.wrap("SELECT DISTINCT server_address FROM {answer}")
    return {*lake.query(query.sql, **query.inputs)["server_address"].to_pylist()}


def operation_queries(servers: Collection[str | None] | None) -> dict[str, BoundQuery]:
    """Return the queries for what operations at some servers, or at all (None), are made of, with server_address.

    They have no Starts, of which most calls are.
    """
    reads = f"{IS_READ_SQL} AND NOT {methods_condition(_STARTS, 'protocol')}"
    known = f"{IS_CLIENT_CALL_SQL} AND NOT {methods_condition(_STARTS)}"
    return {
        "reads": select_of_servers(REMOTE_READ_CALLS, ATTEMPT_READ_COLUMNS, reads, servers),
        "clients": select_of_servers(CLIENT_CALLS, CLIENT_CALL_COLUMNS, IS_CLIENT_CALL_SQL, servers),
        "known": select_of_servers(RPC_CALLS, OUTCOME_COLUMNS, known, servers),
        "connections": select_of_servers(CONNECTIONS, CONNECTION_FIELDS, IS_RPC_CONNECTION_SQL, servers),
    }


def operations_function(aliases: Mapping[str, str], only: frozenset[str] | None = None) -> GroupFunction:
    """Return the function that makes the operations from the answers to ``operation_queries``.

    ``only``: the connections whose operations are wanted, None for all.
    """

    def find(parts: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
        facts = join_by_key(parts["reads"], parts["known"].drop_columns(["server_address"]))
        facts = pa.concat_tables([facts, parts["clients"]], promote_options="default")
        rows = queue_operations_table(facts, parts["connections"], aliases=aliases)
        yield rows if only is None else rows.filter(is_in(rows, "connection_id", only))

    return find


def queue_operations_table(facts: pa.Table, connections: pa.Table, *, aliases: Mapping[str, str]) -> pa.Table:
    """Return gold.queue_operations computed in memory from ``attempt_rows.call_facts_table``."""
    parts = [_SCHEMA.empty_table()]
    ours = pa.array([f"{protocol} {opnum}" for protocol, opnum in _OPERATIONS])
    done = pc.is_in(_method(facts), ours)
    if pc.any(done).as_py():
        servers = facts.filter(done)["server_address"].unique().to_pylist()
        parts += [
            operations_of_server(theirs, connected, aliases=aliases)
            for server, theirs, connected in iterate_servers(facts, connections)
            if server in servers
        ]
    return pa.concat_tables(parts)


def operations_of_server(calls: pa.Table, connections: pa.Table, *, aliases: Mapping[str, str]) -> pa.Table:
    """Return the operations of one server's calls as rows; the calls have the columns of ``call_facts_table``."""
    through = passthrough_columns(calls)
    made = operations_here(calls_from_rows(calls), connections_from_rows(connections))
    return rows_to_table([_row(operation, through, aliases) for operation in made], _SCHEMA)


def _method(facts: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(facts["protocol"], facts["opnum"].cast(pa.string()), " ")


def _row(
    operation: QueueOperation, through: Mapping[str, Mapping[str, Any]], aliases: Mapping[str, str]
) -> dict[str, Any]:
    call = operation.call
    names = (through[each.call_key]["queue_format_name"] for each in operation.opens)
    return {
        **through[call.call_key],
        "call_key": call.call_key,
        "operation": operation.kind,
        "protocol": call.protocol,
        "queue": canonical_queue_name(operation.queue, aliases),
        "opened_queue": operation.queue,
        "queue_format_name": next((name for name in names if name is not None), None),
        "target_queue": canonical_queue_name(operation.target, aliases),
        "connection_id": call.connection_id,
        "context_handle": call.context_handle,
        "queue_handle": call.queue_handle,
        "lookup_id": operation.lookup_id,
        "transaction_id": call.transaction_id,
        "requested_at": call.captured_request_at,
        "responded_at": call.captured_response_at,
        "requested_ahead_us": call.clocks.request_ahead_us or None,
        "hresult": call.hresult,
        "hresult_name": None if call.hresult is None else result_name(call.hresult),
        "outcome": operation.outcome,
        "evidence": operation.evidence,
        "confidence": operation.confidence,
        "missing": sorted(operation.missing),
        "errors": decode_errors(operation),
        "event_date": epoch_day(call.captured_request_at, call.captured_response_at),
    }
