"""Rows of gold.queue_opens, computed by ``queue_opens.find_opens`` from each server's calls that open and close queues.

These calls are few: those of a server are processed together (``opens_function``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from pipeline.arrow_rows import epoch_day, rows_to_table
from pipeline.attempts.attempt_rows import (
    OUTCOME_COLUMNS,
    connection_query,
    connections_from_rows,
    decode_errors,
    identity_query,
    iterate_servers,
    join_by_key,
    select_of_servers,
)
from pipeline.attempts.calls.decoded_call import OPEN_ROLES
from pipeline.attempts.client_identity import IDENTITY_COLUMNS, client_identity
from pipeline.attempts.columns.call_columns import calls_from_rows
from pipeline.attempts.queue_opens import QueueOpen, find_opens
from pipeline.attempts.server_openings import OPENING_CALLS, methods_condition
from pipeline.lake.queries.inputs import BoundQuery, GroupFunction
from schemas.attempts import QUEUE_OPENS
from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.table import Table
from udfs.codes import SHARE_MODE_NAMES, access_name, code_name, result_name
from udfs.dcerpc.interfaces import QM2QM_NAME, REMOTE_READ_NAME
from udfs.queues.alias_groups import canonical_queue_name

_SCHEMA: Final = QUEUE_OPENS.schema()
_SILVER: Final = (
    "call_key", "opnum", "connection_id", "requested_at", "responded_at", "clocks", "queue", "context_handle",
    "queue_handle", "queue_descriptor", "open_context", "access", "share_mode", "returned_port", "hresult", "errors",
)  # fmt: skip
_PASSTHROUGH: Final = (
    "method", "client_address", "client_port", "server_address", "server_port", "queue_format_name", "client_id",
    "run_id",
)  # fmt: skip

OPEN_READ_COLUMNS: Final = ("protocol", *_SILVER, *_PASSTHROUGH)
"""What is read of silver.remote_read_calls."""
CLIENT_COLUMNS: Final = ("interface_name AS protocol", *_SILVER, *_PASSTHROUGH)
"""The same of silver.client_calls."""

_READS: Final = [method for method in OPEN_ROLES if method[0] in (QM2QM_NAME, REMOTE_READ_NAME)]
_CLIENTS: Final = [method for method in OPEN_ROLES if method not in _READS]
IS_OPEN_CALL_SQL: Final = {
    REMOTE_READ_CALLS: methods_condition(_READS, "protocol"),
    CLIENT_CALLS: methods_condition(_CLIENTS),
    RPC_CALLS: methods_condition(OPEN_ROLES),
}
"""The condition of the calls that open and close queues, ask for ports and create cursors, by their table."""


def open_queries(servers: Collection[str] | None) -> dict[str, BoundQuery]:
    """Return the queries for what the opens of some servers, or of all (None), are made of, with server_address."""
    return {
        "reads": _calls_of_servers(REMOTE_READ_CALLS, OPEN_READ_COLUMNS, servers),
        "clients": _calls_of_servers(CLIENT_CALLS, CLIENT_COLUMNS, servers),
        "known": _calls_of_servers(RPC_CALLS, OUTCOME_COLUMNS, servers),
        "identities": identity_query(servers),
        "connections": connection_query(servers),
    }


def _calls_of_servers(table: Table, columns: Sequence[str], servers: Collection[str] | None) -> BoundQuery:
    return select_of_servers(OPENING_CALLS[table], columns, IS_OPEN_CALL_SQL[table], servers)


def opens_function(aliases: Mapping[str, str]) -> GroupFunction:
    """Return the function that makes the opens from the answers to ``open_queries``.

    ``aliases`` are the canonical name of each queue name.
    """

    def find(parts: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
        facts = pa.concat_tables([parts["reads"], parts["clients"]], promote_options="default")
        facts = join_by_key(join_by_key(facts, parts["known"]), parts["identities"], "connection_id")
        servers = iterate_servers(facts, parts["connections"])
        yield _SCHEMA.empty_table()
        for _, ours, theirs in servers:
            yield opens_of_server(ours, theirs, aliases=aliases)

    return find


def opens_of_server(calls: pa.Table, connections: pa.Table, *, aliases: Mapping[str, str]) -> pa.Table:
    """Return the opens of one server's calls as rows; the calls have the columns above, and ``OUTCOME_COLUMNS``."""
    rows = calls.select(["call_key", *_PASSTHROUGH, "opened_by", *IDENTITY_COLUMNS]).to_pylist()
    through = {row.pop("call_key"): row for row in rows}
    found = find_opens(
        calls_from_rows(calls),
        connections_from_rows(connections),
        ports=lambda call: through[call.call_key]["server_port"],
        canonical=lambda queue: canonical_queue_name(queue, aliases),
    )
    return rows_to_table([_row(each, through, aliases) for each in found], _SCHEMA)


def _row(opened: QueueOpen, through: Mapping[str, Mapping[str, Any]], aliases: Mapping[str, str]) -> dict[str, Any]:
    call, asked = opened.call, opened.asked
    access, share_mode = (None, None) if asked is None else (asked.access, asked.share_mode)
    return {
        **through[call.call_key],
        **client_identity(through[call.call_key]),
        "call_key": call.call_key,
        "protocol": call.protocol,
        "queue": canonical_queue_name(opened.queue, aliases),
        "opened_queue": opened.queue,
        "queue_format_name": None if asked is None else through[asked.call_key]["queue_format_name"],
        "connection_id": call.connection_id,
        "access": access,
        "access_name": None if access is None else access_name(access),
        "share_mode": share_mode,
        "share_mode_name": None if share_mode is None else code_name(SHARE_MODE_NAMES, share_mode),
        "context_handle": call.context_handle,
        "queue_handle": call.queue_handle,
        "remote_open": None if opened.remote_open is None else opened.remote_open.call_key,
        "requested_at": call.captured_request_at,
        "responded_at": call.captured_response_at,
        "outcome": opened.outcome,
        "result": call.result,
        "result_name": None if call.result is None else result_name(call.result),
        "opened_at": call.captured_response_at if opened.outcome == "opened" else None,
        "closed_at": opened.closed_at,
        "ended_by": opened.ended_by,
        "cursors": opened.cursors,
        "blocked_by": [each.call.call_key for each in opened.blocked_by] or None,
        "blocks": [each.call.call_key for each in opened.blocks],
        "steps": None if opened.steps is None else [step._asdict() for step in opened.steps],
        "evidence": opened.evidence,
        "confidence": opened.confidence,
        "missing": sorted(opened.missing),
        "errors": decode_errors(opened),
        "event_date": epoch_day(call.captured_request_at, call.captured_response_at),
    }
