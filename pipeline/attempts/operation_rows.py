"""silver and bronze -> gold.queue_operations: what ``operations`` makes of each server's calls, as a table.

They come of the same facts as attempts do (``pipeline.attempts.attempt_rows``), and are settled beside them.
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
    by_server,
    calls_of,
    connections_of,
    each_server,
    errors_of,
    facts_of,
    through_of,
)
from pipeline.attempts.calls import ROLES
from pipeline.attempts.operations import Operation
from pipeline.attempts.operations import queue_operations as operations_here
from pipeline.lake.arrow_rows import day_of, table_of
from schemas.receive_attempts import QUEUE_OPERATIONS
from udfs.queues.aliases import canonical_text

_SCHEMA: Final = to_arrow_schema(QUEUE_OPERATIONS.struct())
_OPERATIONS: Final = [method for method, role in ROLES.items() if role in ("purge", "move")]
_STARTS: Final = [method for method, role in ROLES.items() if role == "start"]


def queue_operations(
    reads: DataFrame,
    connections: DataFrame,
    calls: DataFrame,
    *,
    clients: DataFrame | None = None,
    aliases: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return ``gold.queue_operations``; the parameters are those of ``attempt_rows.receive_attempts``."""
    facts = facts_of(reads, calls, clients)
    servers = reads.where(_among(reads, _OPERATIONS)).select("server_address").distinct()
    facts = facts.where(~_among(facts, _STARTS)).join(
        F.broadcast(servers.withColumnRenamed("server_address", "_server")),
        F.col("server_address").eqNullSafe(F.col("_server")),
        "left_semi",
    )
    return each_server(facts, connections, partial(settled, aliases=aliases or {}), QUEUE_OPERATIONS)


def operations_of(facts: pa.Table, connections: pa.Table, *, aliases: Mapping[str, str]) -> pa.Table:
    """Return the same, of facts that are here (``pipeline.attempts.attempt_rows.facts_here``)."""
    parts = [_SCHEMA.empty_table()]
    ours = pa.array([f"{protocol} {opnum}" for protocol, opnum in _OPERATIONS])
    done = pc.is_in(_method(facts), ours)
    if pc.any(done).as_py():
        servers = facts.filter(done)["server_address"].unique().to_pylist()
        parts += [
            settled(theirs, connected, aliases=aliases)
            for server, theirs, connected in by_server(facts, connections)
            if server in servers
        ]
    return pa.concat_tables(parts)


def settled(calls: pa.Table, connections: pa.Table, *, aliases: Mapping[str, str]) -> pa.Table:
    """Return the operations of one server's calls, which have the columns of facts."""
    through = through_of(calls)
    made = operations_here(calls_of(calls), connections_of(connections))
    return table_of([_row(operation, through, aliases) for operation in made], _SCHEMA)


def _among(calls: DataFrame, methods: list[tuple[str, int]]) -> Any:  # noqa: ANN401 - a Column, however it is made
    method = F.concat_ws(" ", calls["protocol"], calls["opnum"])
    return method.isin(*(f"{protocol} {opnum}" for protocol, opnum in methods))


def _method(facts: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(facts["protocol"], facts["opnum"].cast(pa.string()), " ")


def _row(operation: Operation, through: Mapping[str, Mapping[str, Any]], aliases: Mapping[str, str]) -> dict[str, Any]:
    call = operation.call
    names = (through[each.call_key]["queue_format_name"] for each in operation.opens)
    return {
        **through[call.call_key],
        "call_key": call.call_key,
        "operation": operation.kind,
        "protocol": call.protocol,
        "queue": canonical_text(operation.queue, aliases),
        "opened_queue": operation.queue,
        "queue_format_name": next((name for name in names if name is not None), None),
        "target_queue": canonical_text(operation.target, aliases),
        "connection_id": call.connection_id,
        "context_handle": call.context_handle,
        "queue_handle": call.queue_handle,
        "lookup_id": operation.lookup_id,
        "transaction_id": call.transaction_id,
        "requested_at": call.requested_at,
        "responded_at": call.responded_at,
        "hresult": call.hresult,
        "outcome": operation.outcome,
        "evidence": operation.evidence,
        "confidence": operation.confidence,
        "missing": sorted(operation.missing),
        "errors": errors_of(operation),
        "event_date": day_of(call.requested_at, call.responded_at),
    }
