"""Rows of gold.receive_attempts, computed by ``receive_attempts.find_attempts`` from each server's calls.

``server_slices`` reads what they are made of, for all calls, and ``recompute_in_memory`` for some.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.attempts.associations import RpcConnection
from pipeline.attempts.calls import CALL_ROLES, ONE_CLOCK, Clocks, DecodedCall, DecodeErrorFields
from pipeline.attempts.client_identity import IDENTITIES_SQL, IDENTITY_COLUMNS
from pipeline.attempts.evidence import CallConclusion
from pipeline.attempts.receive_attempts import ReceiveAttempt, find_attempts
from pipeline.lake.arrow_rows import epoch_day, is_in, table_to_rows, times_to_us, unique_rows, values_to_array
from pipeline.lake.queries import BoundQuery, FilteredTable, QueryInput
from schemas.bronze import CONNECTIONS, RPC_BINDS
from schemas.receive_attempts import RECEIVE_ATTEMPTS
from schemas.table import Table
from udfs.codes import result_name
from udfs.keys import keys_of_texts
from udfs.queues.alias_groups import canonical_queue_name

# Columns of the calls that the state machine takes under their own names, and those that gold takes over unchanged.
_READ: Final = (
    "call_key", "protocol", "opnum", "connection_id", "requested_at", "responded_at", "clocks", "queue",
    "context_handle", "remote_read_handle", "queue_handle", "queue_descriptor", "open_context", "action", "timeout_ms",
    "request_id", "lookup_id", "sequence_id", "transaction_id", "acknowledgement_class", "ack", "move_context",
    "hresult", "errors",
)  # fmt: skip
_OF_START: Final = (
    "protocol", "connection_id", "context_handle", "remote_read_handle", "queue_handle", "request_id", "timeout_ms",
    "transaction_id",
)  # fmt: skip
_RENAMED: Final = {"started_at": "requested_at", "returned_at": "responded_at", "start_hresult": "hresult"}
# Columns of gold that are attributes of ``ReceiveAttempt``.
_COMPUTED: Final = (
    "action_name", "is_receive", "transactional", "lookup_id", "end_hresult", "outcome", "ack_refused",
    "ack_unanswered", "reader_gone_at", "gaps", "evidence", "confidence",
)  # fmt: skip
# How far ahead the clock of each time is, as ``clocks`` has it.
_AHEAD: Final = {
    **dict.fromkeys(("requested_at", "cancelled_at", "orphaned_at"), "request_ahead_us"),
    "responded_at": "response_ahead_us",
}
_CLIENT: Final = (
    "call_key", "protocol", "opnum", "connection_id", "requested_at", "responded_at", "clocks", "queue",
    "context_handle", "queue_handle", "queue_descriptor", "open_context", "hresult", "errors", "outcome",
)  # fmt: skip
OUTCOME_FACTS: Final = (
    "opened_by", "outcome", "fault_status", "bind_seen", "cancelled_at", "orphaned_at", "encrypted",
)  # fmt: skip
"""What ``OUTCOME_COLUMNS`` tell of each call."""
_PASSTHROUGH: Final = ("client_address", "client_port", "server_address", "server_port", "queue_format_name", "run_id")
_IDENTITY: Final = ("opened_by", *IDENTITY_COLUMNS)
MESSAGE_FACTS: Final = ("message_key", "message_bytes", "abort_count", "destination_queue")
MESSAGE_ERRORS: Final = "message_errors"
QUEUE_COLUMNS: Final = ("queue", "inferred_queue")  # of silver.messages
CONNECTION_FIELDS: Final = (
    "connection_id", "client_address", "first_packet_at", "last_packet_at", "closed_at", "association_group_id",
    "syn_seen", "server_bytes", "missing_bytes", "closed_by",
)  # fmt: skip
IS_RPC_CONNECTION_SQL: Final = "kind = 'rpc'"
CONNECTION_DEFAULTS: Final[dict[str, Any]] = {"syn_seen": False, "server_bytes": 0, "missing_bytes": 0}


_SCHEMA: Final = to_arrow_schema(RECEIVE_ATTEMPTS.struct())


def _has_role(interface: str) -> str:
    """Return the SQL condition that a call has a role in remote reads."""
    opnums: defaultdict[str, list[str]] = defaultdict(list)
    for protocol, opnum in CALL_ROLES:
        opnums[protocol].append(str(opnum))
    ours = (f"({interface} = '{name}' AND opnum IN ({', '.join(opnums[name])}))" for name in sorted(opnums))
    return f"({' OR '.join(ours)})"


IS_READ_SQL: Final = _has_role("protocol")
"""The condition of calls of silver.remote_read_calls that play a part in attempts."""
READ_COLUMNS: Final = (*_READ, *_PASSTHROUGH)
"""What is read of them."""

IS_CLIENT_CALL_SQL: Final = _has_role("interface_name")
"""The same of silver.client_calls: what opens and lets go queues by number."""
CLIENT_CALL_COLUMNS: Final = (
    *(name for name in (*_CLIENT, *_PASSTHROUGH) if name not in ("protocol", "outcome")),
    "interface_name AS protocol",
    "CASE WHEN responded_at IS NOT NULL AND response_bytes IS NULL THEN 'fault' ELSE 'ok' END AS outcome",
)

OUTCOME_COLUMNS: Final = (
    "call_key", *(name for name in OUTCOME_FACTS if name != "encrypted"),
    "sealed AND opened_by IS NULL AS encrypted",
)  # fmt: skip
"""What bronze.rpc_calls knows of each call: its outcome, fault, security, cancellation."""

MESSAGE_COLUMNS: Final = (
    "call_key", "message_key", "body_bytes AS message_bytes", "abort_count", "destination_queue",
    "errors AS message_errors", "sighting_key", *QUEUE_COLUMNS,
)  # fmt: skip
"""Columns of attempts on the message that a call returned, and on its queue."""


def select_of_servers(
    table: Table | FilteredTable, columns: Sequence[str], where: str, servers: Collection[str | None] | None
) -> BoundQuery:
    """Return the query for columns and server_address of the rows of some servers, or of all (None)."""
    names = columns if "server_address" in columns else (*columns, "server_address")
    of_servers, inputs = servers_condition(servers)
    sql = f"SELECT {', '.join(names)} FROM {{rows}} WHERE {where} AND {of_servers}"
    return BoundQuery(sql, {"rows": table, **inputs})


def servers_condition(servers: Collection[str | None] | None) -> tuple[str, dict[str, QueryInput]]:
    """Return the condition of rows of some servers, or of all (None), and its values."""
    if servers is None:
        return "TRUE", {}
    unknown = " OR server_address IS NULL" if None in servers else ""
    known = {server for server in servers if server is not None}
    return f"(server_address IN {{servers}}{unknown})", {"servers": known}


def connection_query(servers: Collection[str | None] | None) -> BoundQuery:
    """Return the query for the RPC connections of some servers, or of all (None)."""
    return select_of_servers(CONNECTIONS, CONNECTION_FIELDS, IS_RPC_CONNECTION_SQL, servers)


def identity_query(servers: Collection[str | None] | None) -> BoundQuery:
    """Return the query for what clients of the connections of some servers claim, or of all (None)."""
    binds = select_of_servers(RPC_BINDS, ("connection_id", "auth_principal", "auth_workstation"), "TRUE", servers)
    return binds.wrap(f"{IDENTITIES_SQL.replace('{rows}', '{answer} AS binds')} GROUP BY connection_id")


def attempts_function(
    *, ends: Mapping[str, int], aliases: Mapping[str, str], cleanup_s: float, only: frozenset[str] | None = None
) -> Callable[[Mapping[str, pa.Table]], pa.Table]:
    """Return the function that makes the attempts from the answers to ``server_slices.attempt_queries``.

    Parameters as for ``receive_attempts_table``; ``only``: the connections whose attempts are wanted, None for all.
    """

    def find(parts: Mapping[str, pa.Table]) -> pa.Table:
        own = parts["calls"]
        others = (parts[name] for name in ("shared", "clients") if name in parts)
        every = pa.concat_tables([own, *others], promote_options="default")
        wanted = set(own["connection_id"].unique().to_pylist())
        if only is not None:
            wanted &= only
        rows = receive_attempts_table(
            unique_rows(every, "call_key"), parts["connections"], ends=ends, aliases=aliases, cleanup_s=cleanup_s
        )
        return rows.filter(is_in(rows, "connection_id", wanted))

    return find


def call_facts_table(
    reads: pa.Table,
    clients: pa.Table | None,
    *,
    known: pa.Table,
    messages: pa.Table,
    identities: pa.Table | None = None,
) -> pa.Table:
    """Return the calls that have a role in remote reads, joined with what bronze, binds and messages know of them.

    ``identities``: who the clients of connections claim to be (``identities_table``).
    """
    facts = join_by_key(reads, known)
    if identities is not None:
        facts = join_by_key(facts, identities, "connection_id")
    if clients is not None:
        facts = pa.concat_tables([facts, clients], promote_options="default")
    return join_by_key(facts, messages.select(["call_key", *MESSAGE_FACTS, MESSAGE_ERRORS]))


def receive_attempts_table(
    facts: pa.Table, connections: pa.Table, *, ends: Mapping[str, int], aliases: Mapping[str, str], cleanup_s: float
) -> pa.Table:
    """Return gold.receive_attempts computed in memory from ``call_facts_table``.

    ``ends`` is the end of each server's capture, microseconds since the epoch.
    """
    cleanup_us = round(cleanup_s * 1e6)
    parts = [_SCHEMA.empty_table()]
    for server, ours, theirs in iterate_servers(facts, connections):
        parts.append(attempts_of_server(ours, theirs, ends.get(server or ""), aliases=aliases, cleanup_us=cleanup_us))
    return pa.concat_tables(parts)


def iterate_servers(facts: pa.Table, connections: pa.Table) -> Iterator[tuple[str | None, pa.Table, pa.Table]]:
    """Yield each server of the calls, with its calls and connections."""
    for server in facts.column("server_address").unique().to_pylist():
        ours, theirs = (_of_server(rows, server) for rows in (facts, connections))
        yield server, ours, theirs


def _of_server(rows: pa.Table, server: str | None) -> pa.Table:
    column = rows.column("server_address")
    return rows.filter(pc.is_null(column) if server is None else pc.equal(column, server))


def join_by_key(calls: pa.Table, more: pa.Table, key: str = "call_key") -> pa.Table:
    """Return calls with the columns of the row that has the same key; null where there is none."""
    places = pc.index_in(calls.column(key), more.column(key).combine_chunks())
    for name in more.column_names:
        if name != key:
            calls = calls.append_column(name, more.column(name).take(places))
    return calls


def with_deleted_keys(now: DataFrame, before: DataFrame) -> DataFrame:
    """Return rows of gold.receive_attempts with the column ``gone``: true for keys that no longer exist."""
    old = before.select(F.col("attempt_key").alias("_old"))
    both = now.join(old, F.col("attempt_key") == F.col("_old"), "full").withColumn(
        "gone", F.col("attempt_key").isNull()
    )
    return both.withColumn("attempt_key", F.coalesce("attempt_key", "_old")).drop("_old")


def attempts_of_server(
    calls: pa.Table, connections: pa.Table, ends_at: int | None, *, aliases: Mapping[str, str], cleanup_us: int
) -> pa.Table:
    """Return the attempts of one server's calls as rows; the calls have the columns of ``call_facts_table``."""
    made = find_attempts(
        calls_from_rows(calls), connections_from_rows(connections), capture_ends_at=ends_at, cleanup_us=cleanup_us
    )
    places = pc.index_in(
        pa.array([each.call.call_key for each in made], pa.string()), calls["call_key"].combine_chunks()
    )
    return _attempts_table(made, calls.take(places), aliases)


def _rows(table: pa.Table, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return rows as dictionaries: times as integers, defaults for columns that must not be null."""
    defaults = {name: pa.scalar(CONNECTION_DEFAULTS[name]) for name in names if name in CONNECTION_DEFAULTS}
    columns = [pc.fill_null(table[name], defaults[name]) if name in defaults else table[name] for name in names]
    return table_to_rows(pa.table(columns, names))


def calls_from_rows(rows: pa.Table) -> list[DecodedCall]:
    """Return rows as ``DecodedCall`` objects; their errors include those of the messages that they returned.

    Times become those of one clock. Columns that the rows do not have are as in a call of which nothing is known.
    """
    return [*map(DecodedCall, *(_call_values(rows, name) for name in DecodedCall._fields))]


def _call_values(rows: pa.Table, name: str) -> Iterable[Any]:
    """Return the values of one field of ``DecodedCall``."""
    default = DecodedCall._field_defaults.get(name)
    if name == "errors":
        return _errors_of_calls(rows)
    if name not in rows.column_names:
        return repeat(default, rows.num_rows)
    column = rows[name]
    if name == "clocks" and column.null_count < rows.num_rows:
        return [ONE_CLOCK if clocks is None else Clocks(**clocks) for clocks in column.to_pylist()]
    if name in _AHEAD:
        column = times_to_us(column)
        if rows["clocks"].null_count < rows.num_rows:
            column = pc.subtract(column, pc.fill_null(pc.struct_field(rows["clocks"], _AHEAD[name]), 0))
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.uint64())
    if column.null_count == rows.num_rows:
        return repeat(default, rows.num_rows)
    return (column.fill_null(default) if default is not None else column).to_pylist()  # type: ignore[no-any-return]


def _errors_of_calls(rows: pa.Table) -> Iterable[tuple[DecodeErrorFields, ...]]:
    """Return the errors of each call, and of the message that it returned."""
    columns = [rows[name] for name in ("errors", MESSAGE_ERRORS) if name in rows.column_names]
    if not any(len(pc.list_flatten(column)) for column in columns):
        return repeat((), rows.num_rows)
    every = (
        chain.from_iterable(filter(None, some)) for some in zip(*(one.to_pylist() for one in columns), strict=True)
    )
    return [tuple((error["code"], error["field"], error["offset"]) for error in errors) for errors in every]


def connections_from_rows(rows: pa.Table) -> list[RpcConnection]:
    """Return rows of bronze.connections as ``RpcConnection`` objects."""
    return [RpcConnection.of(row) for row in _rows(rows, CONNECTION_FIELDS)]


def passthrough_columns(calls: pa.Table) -> dict[str, dict[str, Any]]:
    """Return, by call, the columns that gold takes over unchanged."""
    handed = (*_PASSTHROUGH, *(name for name in (*MESSAGE_FACTS, *_IDENTITY) if name in calls.column_names))
    rows = calls.select(["call_key", *handed]).to_pylist()
    return {row.pop("call_key"): row for row in rows}


def decode_errors(answer: CallConclusion) -> list[dict[str, Any]]:
    """Return the decode errors of a call's conclusion as the table has them."""
    return [dict(zip(("code", "field", "offset"), error, strict=True)) for error in answer.errors]


def _result_name(hresult: int | None) -> str | None:
    return None if hresult is None else result_name(hresult)


def _to_ms(span_us: int | None) -> float | None:
    return None if span_us is None else span_us / 1000


def _attempts_table(attempts: Sequence[ReceiveAttempt], starts: pa.Table, aliases: Mapping[str, str]) -> pa.Table:
    """Return attempts as rows of gold.receive_attempts; ``starts`` are the rows of their Starts."""
    for attempt, destination in zip(attempts, _column(starts, "destination_queue").to_pylist(), strict=True):
        attempt.infer_queue(destination)
    found = {queue for attempt in attempts for queue in (attempt.queue, attempt.inferred_queue)}
    names = {queue: canonical_queue_name(queue, aliases) for queue in found}
    ended = [attempt.ended_at for attempt in attempts]
    times = (times_to_us(starts[name]).to_pylist() for name in ("requested_at", "responded_at"))
    computed: dict[str, list[Any]] = {
        **{name: [*map(attrgetter(name), attempts)] for name in _COMPUTED},
        "attempt_key": keys_of_texts(starts["call_key"].to_pylist()),
        "queue": [names[attempt.queue] for attempt in attempts],
        "inferred_queue": [names[attempt.inferred_queue] for attempt in attempts],
        "opened_queue": [attempt.queue for attempt in attempts],
        "ended_at": ended,
        "wait_ms": [_to_ms(attempt.wait_us) for attempt in attempts],
        "hold_ms": [_to_ms(attempt.hold_us) for attempt in attempts],
        "start_hresult_name": [*map(_result_name, starts["hresult"].to_pylist())],
        "end_hresult_name": [_result_name(attempt.end_hresult) for attempt in attempts],
        "missing": [sorted(attempt.missing) for attempt in attempts],
        "errors": [*map(decode_errors, attempts)],
        "event_date": [*map(epoch_day, *times, ended)],
    }
    taken = {
        **{name: _column(starts, name) for name in (*_PASSTHROUGH, *MESSAGE_FACTS, *_OF_START)},
        **{name: starts[column] for name, column in _RENAMED.items()},
        "principal": pc.coalesce(_column(starts, "opened_by"), _column(starts, "claimed_principal")),
        "workstation": _column(starts, "claimed_workstation"),
    }
    columns = [
        values_to_array(computed[field.name], field.type)
        if field.name in computed
        else taken[field.name].cast(field.type)
        for field in _SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column; texts that are all null where the rows have none."""
    return rows[name] if name in rows.column_names else pa.chunked_array([pa.nulls(rows.num_rows, pa.string())])
