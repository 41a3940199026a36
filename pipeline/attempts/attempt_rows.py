"""Rows of gold.receive_attempts, computed by ``receive_attempts.find_attempts`` from each server's calls.

``server_slices`` reads what they are made of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import encode_texts, table_to_rows, times_to_us, unique_rows
from pipeline.attempts.calls.associations import RpcConnection
from pipeline.attempts.calls.decoded_call import CALL_ROLES, DecodeErrorFields
from pipeline.attempts.client_identity import IDENTITIES_SQL, IDENTITY_COLUMNS
from pipeline.attempts.columns.call_columns import OrderedCallColumns
from pipeline.attempts.columns.call_evidence import CallEvidence, EvidenceCalls
from pipeline.attempts.columns.missing_codes import codes_of_bits
from pipeline.attempts.evidence import CallConclusion, confidence_level
from pipeline.attempts.receive_attempts import ATTEMPT_OUTCOMES, TRANSACTIONAL_OPNUM, ReceiveAttempts, find_attempts
from pipeline.lake.queries.inputs import BoundQuery, FilteredTable, GroupFunction, QueryInput
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS, RPC_BINDS
from schemas.table import Table
from udfs.array_types import Ints
from udfs.codes import ACTION_NAMES, code_name, is_peek_action, result_name
from udfs.columns.absent import ABSENT
from udfs.columns.arrays import from_groups, from_ints, over_distinct, to_flags, to_ints, utc_dates
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
# The columns of Starts that rows of gold are made of.
_TAKEN: Final = (
    "call_key", "opnum", "action", *_OF_START, *_RENAMED.values(), *_PASSTHROUGH, *_IDENTITY, *MESSAGE_FACTS,
)  # fmt: skip
_ATTEMPTS_AT_ONCE: Final = 1 << 17  # made into rows
IS_WANTED: Final = "is_wanted"
"""Of a call: its attempt, purge or move is asked for; others are read because these depend on them."""
DISTINCT_TEXTS: Final = ("call_key", "message_key", "attempt_key")
"""The texts of which each call, or attempt, has one of its own."""
ATTEMPT_KEY_SQL: Final = (
    "left(sha2(unhex(rpad(lpad(hex(octet_length(to_binary(call_key, 'utf-8'))), 2, '0'), 8, '0'))"
    " || to_binary(call_key, 'utf-8'), 256), 32)"
)
"""The key of an attempt by the ``call_key`` of its Start, up to 255 bytes, as ``udfs.keys.key`` makes it."""
CONNECTION_FIELDS: Final = (
    "connection_id", "client_address", "first_packet_at", "last_packet_at", "closed_at", "association_group_id",
    "association_joined", "syn_seen", "server_bytes", "missing_bytes", "closed_by", "uncaptured_side",
)  # fmt: skip
IS_RPC_CONNECTION_SQL: Final = "kind = 'rpc' AND not_established IS NULL"  # others carried nothing
CONNECTION_DEFAULTS: Final[dict[str, Any]] = {"syn_seen": False, "server_bytes": 0, "missing_bytes": 0}


_SCHEMA: Final = RECEIVE_ATTEMPTS.schema()


def _has_role(interface: str) -> str:
    """Return the SQL condition that a call has a role in remote reads."""
    opnums: defaultdict[str, list[str]] = defaultdict(list)
    for protocol, opnum in CALL_ROLES:
        opnums[protocol].append(str(opnum))
    ours = (f"({interface} = '{name}' AND opnum IN ({', '.join(opnums[name])}))" for name in sorted(opnums))
    return f"({' OR '.join(ours)})"


IS_READ_SQL: Final = _has_role("protocol")
"""The condition of calls of silver.remote_read_calls that play a part in attempts."""
ATTEMPT_READ_COLUMNS: Final = (*_READ, *_PASSTHROUGH)
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

READ_MESSAGE_COLUMNS: Final = (
    "call_key", "message_key", "body_bytes AS message_bytes", "abort_count", "destination_queue",
    "errors AS message_errors",
)  # fmt: skip
"""Columns of attempts on the message that a call returned."""


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
    if not servers:
        return ("TRUE" if servers is None else "FALSE"), {}
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


def joined_parts(parts: Mapping[str, pa.Table]) -> pa.Table:
    """Return the calls in the answers to ``server_slices.attempt_queries``, each once."""
    own = join_by_key(join_by_key(parts["calls"], parts["outcomes"]), parts["messages"])
    more = (parts[name] for name in ("shared", "clients") if name in parts)
    return unique_rows(pa.concat_tables([own, *more], promote_options="default"), "call_key")


def attempts_function(*, ends: Mapping[str, int], aliases: Mapping[str, str], cleanup_s: float) -> GroupFunction:
    """Return the function that makes the attempts from the answers to ``server_slices.attempt_queries``.

    Parameters as for ``iterate_attempts``.
    """

    def find(parts: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
        yield from iterate_attempts(
            joined_parts(parts), parts["connections"], ends=ends, aliases=aliases, cleanup_s=cleanup_s
        )

    return find


def iterate_attempts(
    facts: pa.Table,
    connections: pa.Table,
    *,
    ends: Mapping[str, int],
    aliases: Mapping[str, str],
    cleanup_s: float,
) -> Iterator[pa.Table]:
    """Yield gold.receive_attempts, some at a time, computed in memory from calls (``joined_parts``).

    ``ends`` is the end of each server's capture, microseconds since the epoch. Attempts of calls that are not wanted
    are not made into rows.
    """
    facts = encode_texts(facts, *DISTINCT_TEXTS)
    evidence = CallEvidence(facts, connections_from_rows(connections))
    every = find_attempts(evidence, ends, cleanup_us=round(cleanup_s * 1e6))
    started = evidence.calls.places[every.started]
    wanted = (
        np.flatnonzero(to_flags(facts[IS_WANTED])[started])
        if IS_WANTED in facts.column_names
        else np.arange(len(started))
    )
    columns = [name for name in _TAKEN if name in facts.column_names]
    for begin in range(0, max(len(wanted), 1), _ATTEMPTS_AT_ONCE):
        made = every.take(wanted[begin : begin + _ATTEMPTS_AT_ONCE])
        rows = facts.select(columns).take(pa.array(evidence.calls.places[made.started]))
        starts = pa.RecordBatch.from_arrays([column.combine_chunks() for column in rows.columns], rows.schema.names)
        yield _attempts_table(made, evidence.calls, starts, aliases)


def iterate_servers(facts: pa.Table, connections: pa.Table) -> Iterator[tuple[str | None, pa.Table, pa.Table]]:
    """Yield each server of the calls, with its calls and connections."""
    for server in facts.column("server_address").unique().to_pylist():
        ours, theirs = (_of_server(rows, server) for rows in (facts, connections))
        yield server, ours, theirs


def _of_server(rows: pa.Table, server: str | None) -> pa.Table:
    column = rows.column("server_address")
    return rows.filter(pc.is_null(column) if server is None else pc.equal(column, server))


def join_by_key(calls: pa.Table, more: pa.Table, key: str = "call_key") -> pa.Table:
    """Return calls with the other columns of the row that has the same key; null where there is none."""
    places = pc.index_in(calls.column(key), more.column(key).combine_chunks())
    for name in more.column_names:
        if name not in calls.column_names:
            calls = calls.append_column(name, more.column(name).take(places))
    return calls


def _rows(table: pa.Table, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return rows as dictionaries: times as integers, defaults for columns that must not be null."""
    defaults = {name: pa.scalar(CONNECTION_DEFAULTS[name]) for name in names if name in CONNECTION_DEFAULTS}
    columns = [pc.fill_null(table[name], defaults[name]) if name in defaults else table[name] for name in names]
    return table_to_rows(pa.table(columns, names))


def connections_from_rows(rows: pa.Table) -> list[RpcConnection]:
    """Return rows of bronze.connections as ``RpcConnection`` objects."""
    return [RpcConnection.of(row) for row in _rows(rows, (*CONNECTION_FIELDS, "server_address"))]


def passthrough_columns(calls: pa.Table) -> dict[str, dict[str, Any]]:
    """Return, by call, the columns that gold takes over unchanged."""
    handed = (*_PASSTHROUGH, *(name for name in (*MESSAGE_FACTS, *_IDENTITY) if name in calls.column_names))
    rows = calls.select(["call_key", *handed]).to_pylist()
    return {row.pop("call_key"): row for row in rows}


def decode_errors(answer: CallConclusion) -> list[dict[str, Any]]:
    """Return the decode errors of a call's conclusion as the table has them."""
    return [*map(_decode_error, answer.errors)]


def _decode_error(error: DecodeErrorFields) -> dict[str, Any]:
    return dict(zip(("code", "field", "offset"), error, strict=True))


def _attempts_table(
    made: ReceiveAttempts, calls: OrderedCallColumns, starts: pa.RecordBatch, aliases: Mapping[str, str]
) -> pa.Table:
    """Return attempts as rows of gold.receive_attempts; ``starts`` are the rows of their Starts."""
    action, opened = starts["action"], calls.field("queue").take(from_ints(made.named))
    inferred = pc.if_else(pc.is_null(opened), _column(starts, "destination_queue"), None)
    accepted = calls.succeeded[0][made.started]
    ended_at, end_hresult = from_ints(made.ended_at, ABSENT), from_ints(made.end_hresult, ABSENT)
    times = pc.coalesce(*(times_to_us(starts[name]) for name in ("requested_at", "responded_at")), ended_at)
    columns = {
        **{name: _column(starts, name) for name in (*_PASSTHROUGH, *MESSAGE_FACTS, *_OF_START)},
        **{name: starts[column] for name, column in _RENAMED.items()},
        **{name: over_distinct(queue, partial(canonical_queue_name, known=aliases), pa.string())
           for name, queue in (("queue", opened), ("inferred_queue", inferred))},
        **{f"{name}_name": over_distinct(result, result_name, pa.string())
           for name, result in (("start_hresult", starts["hresult"]), ("end_hresult", end_hresult))},
        "attempt_key": pa.array(keys_of_texts(starts["call_key"].to_pylist()), pa.string()),
        "opened_queue": opened,
        "principal": pc.coalesce(_column(starts, "opened_by"), _column(starts, "claimed_principal")),
        "workstation": _column(starts, "claimed_workstation"),
        "action_name": over_distinct(action, partial(code_name, ACTION_NAMES), pa.string()),
        "is_receive": pc.invert(over_distinct(action, is_peek_action, pa.bool_())),
        "transactional": _are_transactional(starts),
        "ended_at": ended_at,
        "started_ahead_us": _or_null_if_none(calls.ahead_us("request")[made.started]),
        "returned_ahead_us": _or_null_if_none(calls.ahead_us("response")[made.started]),
        "ended_ahead_us": _or_null_if_none(made.ended_ahead_us),
        "wait_ms": _to_ms(made.wait_us),
        "hold_ms": _to_ms(made.hold_us),
        "lookup_id": from_ints(np.where(accepted, calls.identifiers("sequence_id")[made.started], ABSENT), ABSENT),
        "end_hresult": end_hresult,
        "outcome": pa.array(ATTEMPT_OUTCOMES).take(pa.array(made.outcome)),
        "ack_refused": pa.array(made.ack_refused),
        "ack_unanswered": pa.array(made.ack_unanswered),
        "reader_gone_at": from_ints(made.reader_gone_at, ABSENT),
        "gaps": pa.array(made.gaps),
        "evidence": from_groups(made.evidence.begins, calls.key.take(pa.array(made.evidence.calls))),
        "confidence": _confidence(made.missing, pc.is_valid(inferred)),
        "missing": over_distinct(pa.array(made.missing), codes_of_bits, pa.list_(pa.string())),
        "errors": _errors_of_attempts(made.evidence, calls),
        "event_date": utc_dates(to_ints(times, ABSENT)),
    }  # fmt: skip
    return pa.table([columns[field.name].cast(field.type) for field in _SCHEMA], _SCHEMA)


def _are_transactional(starts: pa.RecordBatch) -> pa.Array:
    """Return which Starts are within a transaction; null where the method that can be was not readable."""
    unread = pc.and_(pc.equal(starts["opnum"], TRANSACTIONAL_OPNUM), pc.is_null(starts["action"]))
    return pc.or_kleene(pc.is_valid(starts["transaction_id"]), pc.if_else(unread, None, unread))


def _or_null_if_none(ahead_us: Ints) -> pa.Array:
    """Return how far clocks are ahead, null where they are not."""
    return pa.array(ahead_us, mask=ahead_us == 0)


def _to_ms(spans_us: Ints) -> pa.Array:
    return pc.divide(from_ints(spans_us, ABSENT).cast(pa.float64()), 1000)


def _confidence(missing: Ints, guessed: pa.Array) -> pa.Array:
    """Return how certain attempts are, by what is missing, as bits; ``guessed``: their queues are guesses."""
    both = pa.array(missing * 2 + to_flags(guessed, default=False))
    return over_distinct(both, lambda bits: confidence_level(codes_of_bits(bits // 2), guessed=bits % 2), pa.string())


def _errors_of_attempts(evidence: EvidenceCalls, calls: OrderedCallColumns) -> pa.Array:
    """Return the decode errors of the calls that attempts rest on, in order of time."""
    errors = calls.errors
    found = [errors[call] for call in evidence.calls.tolist()] if errors else [()] * len(evidence.calls)
    places = np.concatenate([[0], np.cumsum([len(each) for each in found], dtype=np.int64)])
    rows = [*map(_decode_error, chain.from_iterable(found))]
    return from_groups(places[evidence.begins], pa.array(rows, _SCHEMA.field("errors").type.value_type))


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column; texts that are all null where the rows have none."""
    return rows[name] if name in rows.schema.names else pa.nulls(rows.num_rows, pa.string())
