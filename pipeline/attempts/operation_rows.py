"""Rows of gold.queue_operations, computed by ``operations.find_operations`` from each server's calls.

They rest on the same calls as attempts do (``attempt_rows``), and are computed beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.attempts.attempt_rows import (
    apply_per_server,
    calls_from_rows,
    connections_from_rows,
    decode_errors,
    iterate_servers,
    join_call_facts,
    passthrough_columns,
)
from pipeline.attempts.calls import CALL_ROLES
from pipeline.attempts.operations import QueueOperation
from pipeline.attempts.operations import find_operations as operations_here
from pipeline.lake.arrow_rows import epoch_day, rows_to_table
from schemas.receive_attempts import QUEUE_OPERATIONS
from udfs.codes import result_name
from udfs.queues.alias_groups import canonical_queue_name

_SCHEMA: Final = to_arrow_schema(QUEUE_OPERATIONS.struct())
_OPERATIONS: Final = [method for method, role in CALL_ROLES.items() if role in ("purge", "move")]
_STARTS: Final = [method for method, role in CALL_ROLES.items() if role == "start"]


def queue_operations_frame(
    reads: DataFrame,
    connections: DataFrame,
    calls: DataFrame,
    *,
    clients: DataFrame | None = None,
    aliases: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return gold.queue_operations computed in Spark; parameters as for ``attempt_rows.receive_attempts_frame``."""
    facts = join_call_facts(reads, calls, clients)
    servers = reads.where(_among(reads, _OPERATIONS)).select("server_address").distinct()
    facts = facts.where(~_among(facts, _STARTS)).join(
        F.broadcast(servers.withColumnRenamed("server_address", "_server")),
        F.col("server_address").eqNullSafe(F.col("_server")),
        "left_semi",
    )
    return apply_per_server(facts, connections, partial(operations_of_server, aliases=aliases or {}), QUEUE_OPERATIONS)


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
    """Return the operations of one server's calls as rows; the calls have the columns of ``join_call_facts``."""
    through = passthrough_columns(calls)
    made = operations_here(calls_from_rows(calls), connections_from_rows(connections))
    return rows_to_table([_row(operation, through, aliases) for operation in made], _SCHEMA)


def _among(calls: DataFrame, methods: list[tuple[str, int]]) -> Any:  # noqa: ANN401 - a Column, however it is made
    method = F.concat_ws(" ", calls["protocol"], calls["opnum"])
    return method.isin(*(f"{protocol} {opnum}" for protocol, opnum in methods))


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
        "hresult": call.hresult,
        "hresult_name": None if call.hresult is None else result_name(call.hresult),
        "outcome": operation.outcome,
        "evidence": operation.evidence,
        "confidence": operation.confidence,
        "missing": sorted(operation.missing),
        "errors": decode_errors(operation),
        "event_date": epoch_day(call.captured_request_at, call.captured_response_at),
    }
