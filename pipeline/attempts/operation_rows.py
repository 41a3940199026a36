"""Rows of gold.queue_operations, computed by ``operations.find_operations`` from each server's calls.

They rest on the same calls as attempts do (``attempt_rows``), and are computed beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import epoch_day, rows_to_table
from pipeline.attempts.affected_scope import RecomputeScope
from pipeline.attempts.attempt_rows import (
    IS_WANTED,
    connections_from_rows,
    decode_errors,
    iterate_servers,
    joined_parts,
    passthrough_columns,
)
from pipeline.attempts.calls.decoded_call import CALL_ROLES
from pipeline.attempts.columns.call_columns import calls_from_rows
from pipeline.attempts.operations import QueueOperation
from pipeline.attempts.operations import find_operations as operations_here
from pipeline.attempts.server_openings import methods_condition
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import GroupFunction, QueryInput, RowsOfDates
from schemas.attempts import QUEUE_OPERATIONS
from schemas.calls import REMOTE_READ_CALLS
from udfs.codes import result_name
from udfs.queues.alias_groups import canonical_queue_name

_SCHEMA: Final = QUEUE_OPERATIONS.schema()
_OPERATIONS: Final = [method for method, role in CALL_ROLES.items() if role in ("purge", "move")]
_IS_OPERATION: Final = methods_condition(_OPERATIONS, "protocol")


def servers_with_operations(lake: Lake, scope: RecomputeScope | None) -> set[str | None]:
    """Return the servers at which queues were purged or messages moved, over connections of a scope or over any.

    Of a scope also those where gold.queue_operations has some.
    """
    sql = f"SELECT DISTINCT server_address FROM {{reads}} WHERE {_IS_OPERATION}"
    inputs: dict[str, QueryInput] = {"reads": REMOTE_READ_CALLS}
    if scope is not None:
        of_scope = "connection_id IN {names}"
        sql = f"{sql} AND {of_scope} UNION SELECT server_address FROM {{stored}} WHERE {of_scope}"
        inputs = {
            "reads": RowsOfDates(REMOTE_READ_CALLS, scope.dates), "names": scope.all_connections,
            "stored": RowsOfDates(QUEUE_OPERATIONS, scope.dates),
        }  # fmt: skip
    return {*lake.query(sql, **inputs)["server_address"].to_pylist()}


def operations_function(aliases: Mapping[str, str]) -> GroupFunction:
    """Return the function that makes the operations from the answers to ``server_slices.operation_queries``."""

    def find(parts: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
        calls = joined_parts(parts)
        rows = queue_operations_table(calls, parts["connections"], aliases=aliases)
        yield rows.filter(pc.is_in(rows["call_key"], calls.filter(calls[IS_WANTED])["call_key"].combine_chunks()))

    return find


def queue_operations_table(facts: pa.Table, connections: pa.Table, *, aliases: Mapping[str, str]) -> pa.Table:
    """Return gold.queue_operations computed in memory from calls (``attempt_rows.joined_parts``)."""
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
    """Return the operations of one server's calls as rows; the calls are as for ``queue_operations_table``."""
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
