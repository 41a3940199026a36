"""silver and bronze -> gold.receive_attempts: what ``receive_attempts`` makes of each server's calls, as a table.

Many calls are settled in Spark, one grouped function per server (``receive_attempts``); few are brought here, with what
is known of them, and settled by the same function (``attempts_of``): a second plan costs more than they do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.attempts import receive_attempts as attempts_receive_attempts
from pipeline.attempts.associations import Connection
from pipeline.attempts.calls import ROLES, Call
from pipeline.attempts.evidence import Answer
from pipeline.lake.arrow_rows import day_of, microseconds, table_of
from schemas.receive_attempts import RECEIVE_ATTEMPTS
from schemas.table import Table
from udfs.keys import key
from udfs.queues.aliases import canonical_text

# Columns of the calls that the state machine takes under their own names, and those that gold hands through.
_READ: Final = (
    "call_key", "protocol", "opnum", "connection_id", "requested_at", "responded_at", "queue", "context_handle",
    "remote_read_handle", "queue_handle", "queue_descriptor", "open_context", "action", "timeout_ms", "request_id",
    "lookup_id", "sequence_id", "transaction_id", "acknowledgement_class", "ack", "move_context", "hresult", "errors",
)  # fmt: skip
_CLIENT: Final = (
    "call_key", "protocol", "opnum", "connection_id", "requested_at", "responded_at", "queue", "context_handle",
    "queue_handle", "queue_descriptor", "open_context", "hresult", "errors", "outcome",
)  # fmt: skip
_KNOWN: Final = ("outcome", "fault_status", "bind_seen", "cancelled_at", "orphaned_at", "closed")
_FACTS: Final = (*_READ, *_KNOWN)
_THROUGH: Final = ("client_address", "client_port", "server_address", "server_port", "queue_format_name", "run_id")
_MESSAGE: Final = ("message_key", "message_bytes", "destination_queue")
QUEUES: Final = ("queue", "inferred_queue")  # of silver.messages
CONNECTION: Final = (
    "connection_id", "client_address", "first_packet_at", "last_packet_at", "closed_at", "association_group_id",
    "syn_seen", "server_bytes", "missing_bytes",
)  # fmt: skip
_TIMES: Final = frozenset(
    {"requested_at", "responded_at", "cancelled_at", "orphaned_at", "first_packet_at", "last_packet_at", "closed_at",
     "capture_ends_at"}
)  # fmt: skip
NOT_NULL: Final[dict[str, Any]] = {"bind_seen": True, "closed": False, "outcome": "ok", "syn_seen": False,
                                    "server_bytes": 0, "missing_bytes": 0}  # fmt: skip


_SCHEMA: Final = to_arrow_schema(RECEIVE_ATTEMPTS.struct())


def receive_attempts(
    reads: DataFrame,
    connections: DataFrame,
    calls: DataFrame,
    captures: DataFrame | None = None,
    *,
    ends: DataFrame | None = None,
    messages: DataFrame | None = None,
    clients: DataFrame | None = None,
    aliases: Mapping[str, str] | None = None,
    cleanup_s: float = attempts_receive_attempts.CLEANUP_US / 1e6,
) -> DataFrame:
    """Return ``gold.receive_attempts`` of silver.remote_read_calls, bronze.connections and bronze.rpc_calls.

    ``captures`` (bronze.capture_files) tells when the capture of a server ends, unless ``ends`` (``server_ends``) does
    already; without both that is the newest packet of the server's connections. ``cleanup_s`` is the clean-up timer of
    pending receives (the setting timers.cleanup). The calls may be some of a server's only: whole associations, the
    qm2qm Starts and cancels that share queue handle and number with theirs, and what opens and closes queues by number.
    ``messages`` (silver.messages) gives ``message_key``, ``message_bytes`` and ``inferred_queue``, ``clients``
    (silver.client_calls) the queues of qm2qm attempts, ``aliases`` the canonical text of a normal form. Rows keep
    their Start's run_id.
    """
    ends = server_ends(connections, captures) if ends is None else ends
    facts = facts_of(reads, calls, clients)
    if messages is not None:
        facts = facts.join(messages.selectExpr(*MESSAGE_COLUMNS).select("call_key", *_MESSAGE), "call_key", "left")
    facts = facts.join(F.broadcast(ends), "server_address", "left")
    settle = _settler(aliases or {}, cleanup_us=round(cleanup_s * 1e6))
    return each_server(facts, connections, settle, RECEIVE_ATTEMPTS)


def facts_of(reads: DataFrame, calls: DataFrame, clients: DataFrame | None = None) -> DataFrame:
    """Return the calls that play a part, with what is known of them."""
    ours = reads.where(READ).selectExpr(*READ_COLUMNS)
    facts = ours.join(calls.selectExpr(*KNOWN_COLUMNS), "call_key", "left")
    if clients is None:
        return facts
    return facts.unionByName(clients.where(CLIENT).selectExpr(*CLIENT_COLUMNS), allowMissingColumns=True)


def each_server(
    facts: DataFrame, connections: DataFrame, settle: Callable[[pa.Table, pa.Table], pa.Table], table: Table
) -> DataFrame:
    """Return what a function makes of each server's facts and connections: rows of a table."""
    servers = connections.where(F.col("kind") == "rpc").select(*CONNECTION, "server_address")
    grouped = facts.groupBy("server_address").cogroup(servers.groupBy("server_address"))
    return grouped.applyInArrow(settle, table.struct())


def _has_role(interface: str) -> str:
    """Return the condition that a call plays a part in remote reads."""
    opnums: defaultdict[str, list[str]] = defaultdict(list)
    for protocol, opnum in ROLES:
        opnums[protocol].append(str(opnum))
    ours = (f"({interface} = '{name}' AND opnum IN ({', '.join(opnums[name])}))" for name in sorted(opnums))
    return f"({' OR '.join(ours)})"


READ: Final = _has_role("protocol")
"""The condition of calls of silver.remote_read_calls that play a part in attempts."""
READ_COLUMNS: Final = (*_READ, *_THROUGH)
"""What is read of them."""

CLIENT: Final = _has_role("interface_name")
"""The same of silver.client_calls: what opens and lets go queues by number."""
CLIENT_COLUMNS: Final = (
    *(name for name in (*_CLIENT, *_THROUGH) if name not in ("protocol", "outcome")),
    "interface_name AS protocol",
    "CASE WHEN responded_at IS NOT NULL AND response_bytes IS NULL THEN 'fault' ELSE 'ok' END AS outcome",
)

KNOWN_COLUMNS: Final = (
    "call_key", *(name for name in _KNOWN if name != "closed"), "sealed AND opened_by IS NULL AS closed",
)  # fmt: skip
"""What bronze.rpc_calls knows of each call: its outcome, fault, security, cancellation."""

MESSAGE_COLUMNS: Final = (
    "call_key", "message_key", "body_bytes AS message_bytes", "destination_queue", "sighting_key", *QUEUES,
)  # fmt: skip
"""What attempts tell of the message that a call brought, and what it says of its queue."""


def facts_here(reads: pa.Table, clients: pa.Table | None, *, known: pa.Table, messages: pa.Table) -> pa.Table:
    """Return what ``facts_of`` does, with the messages, of rows that were brought here: columns as above."""
    facts = _beside(reads, known)
    if clients is not None:
        facts = pa.concat_tables([facts, clients], promote_options="default")
    return _beside(facts, messages.select(["call_key", *_MESSAGE]))


def attempts_of(
    facts: pa.Table, connections: pa.Table, *, ends: Mapping[str, int], aliases: Mapping[str, str], cleanup_s: float
) -> pa.Table:
    """Return what ``receive_attempts`` does, of facts that are here (``facts_here``).

    ``ends`` tells when the capture of a server ends, in microseconds since the epoch.
    """
    cleanup_us = round(cleanup_s * 1e6)
    parts = [_SCHEMA.empty_table()]
    for server, ours, theirs in by_server(facts, connections):
        parts.append(settled(ours, theirs, ends.get(server or ""), aliases=aliases, cleanup_us=cleanup_us))
    return pa.concat_tables(parts)


def by_server(facts: pa.Table, connections: pa.Table) -> Iterator[tuple[str | None, pa.Table, pa.Table]]:
    """Yield each server of facts, with its facts and connections."""
    for server in facts.column("server_address").unique().to_pylist():
        ours, theirs = (_of_server(rows, server) for rows in (facts, connections))
        yield server, ours, theirs


def _of_server(rows: pa.Table, server: str | None) -> pa.Table:
    column = rows.column("server_address")
    return rows.filter(pc.is_null(column) if server is None else pc.equal(column, server))


def _beside(calls: pa.Table, more: pa.Table) -> pa.Table:
    """Return calls with the columns of the rows that have the same call_key; null where there is none."""
    places = pc.index_in(calls.column("call_key"), more.column("call_key").combine_chunks())
    for name in more.column_names:
        if name != "call_key":
            calls = calls.append_column(name, more.column(name).take(places))
    return calls


def server_ends(connections: DataFrame, captures: DataFrame | None = None) -> DataFrame:
    """Return when the capture of each server ends: server_address, capture_ends_at.

    That is the newest packet of captures (bronze.capture_files) that hold packets of it, else of its connections.
    """
    if captures is None:
        ends = connections.where("kind = 'rpc'").select("server_address", F.col("last_packet_at").alias("at"))
    else:
        ends = captures.select(F.explode("servers").alias("server_address"), F.col("last_packet_at").alias("at"))
    return (
        ends.where("server_address IS NOT NULL AND at IS NOT NULL")
        .groupBy("server_address")
        .agg(F.max("at").alias("capture_ends_at"))
    )


def with_gone(now: DataFrame, before: DataFrame) -> DataFrame:
    """Return rows of gold.receive_attempts, and ``gone``: true of rows with only a key, of what was and is no more."""
    old = before.select(F.col("attempt_key").alias("_old"))
    both = now.join(old, F.col("attempt_key") == F.col("_old"), "full").withColumn(
        "gone", F.col("attempt_key").isNull()
    )
    return both.withColumn("attempt_key", F.coalesce("attempt_key", "_old")).drop("_old")


def _settler(aliases: Mapping[str, str], *, cleanup_us: int) -> Callable[[pa.Table, pa.Table], pa.Table]:
    def settle(calls: pa.Table, connections: pa.Table) -> pa.Table:
        ends_at = pc.max(microseconds(calls.column("capture_ends_at"))).as_py()
        return settled(calls, connections, ends_at, aliases=aliases, cleanup_us=cleanup_us)

    return settle


def settled(
    calls: pa.Table, connections: pa.Table, ends_at: int | None, *, aliases: Mapping[str, str], cleanup_us: int
) -> pa.Table:
    """Return the attempts of one server's calls, which have the columns of ``receive_attempts``' facts."""
    through = through_of(calls)
    made = attempts_receive_attempts.receive_attempts(
        calls_of(calls), connections_of(connections), capture_ends_at=ends_at, cleanup_us=cleanup_us
    )
    return table_of([_row(attempt, through[attempt.start.call_key], aliases) for attempt in made], _SCHEMA)


def _rows(table: pa.Table, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return rows as dictionaries: times as integers, what must not be null with its default."""
    columns = [
        (microseconds(table.column(name)) if name in _TIMES else table.column(name)).to_pylist() for name in names
    ]
    for place, name in enumerate(names):
        if name in NOT_NULL:
            columns[place] = [NOT_NULL[name] if value is None else value for value in columns[place]]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def calls_of(rows: pa.Table) -> list[Call]:
    """Return the calls of facts."""
    return [_call(row) for row in _rows(rows, _FACTS)]


def connections_of(rows: pa.Table) -> list[Connection]:
    """Return the connections of rows of bronze.connections."""
    return [Connection(**row) for row in _rows(rows, CONNECTION)]


def through_of(calls: pa.Table) -> dict[str, dict[str, Any]]:
    """Return what gold hands through of each call of facts."""
    handed = (*_THROUGH, *(name for name in _MESSAGE if name in calls.column_names))
    rows = calls.select(["call_key", *handed]).to_pylist()
    return {row.pop("call_key"): row for row in rows}


def errors_of(answer: Answer) -> list[dict[str, Any]]:
    """Return decode errors as a table has them."""
    return [dict(zip(("code", "field", "offset"), error, strict=True)) for error in answer.errors]


def _call(row: dict[str, Any]) -> Call:
    for name in ("lookup_id", "sequence_id", "move_context"):
        row[name] = None if row[name] is None else int(row[name])
    row["errors"] = tuple((error["code"], error["field"], error["offset"]) for error in row["errors"] or ())
    return Call(**row)


def _difference_ms(later: int | None, earlier: int | None) -> float | None:
    return None if later is None or earlier is None else (later - earlier) / 1000


def _row(
    attempt: attempts_receive_attempts.Attempt, through: Mapping[str, Any], aliases: Mapping[str, str]
) -> dict[str, Any]:
    start = attempt.start
    attempt.infer_queue(through.get("destination_queue"))
    times = (start.requested_at, start.responded_at, attempt.ended_at)
    return {
        **dict.fromkeys(_MESSAGE),
        **through,
        "attempt_key": key(start.call_key),
        "protocol": start.protocol,
        "queue": canonical_text(attempt.queue, aliases),
        "inferred_queue": canonical_text(attempt.inferred_queue, aliases),
        "opened_queue": attempt.queue,
        "connection_id": start.connection_id,
        "context_handle": start.context_handle,
        "remote_read_handle": start.remote_read_handle,
        "queue_handle": start.queue_handle,
        "request_id": start.request_id,
        "action_name": attempt.action_name,
        "timeout_ms": start.timeout_ms,
        "is_receive": attempt.is_receive,
        "transactional": attempt.transactional,
        "transaction_id": start.transaction_id,
        "started_at": start.requested_at,
        "returned_at": start.responded_at,
        "ended_at": attempt.ended_at,
        "wait_ms": _difference_ms(start.responded_at, start.requested_at),
        "hold_ms": _difference_ms(attempt.ended_at, start.responded_at),
        "lookup_id": attempt.lookup_id,
        "start_hresult": start.hresult,
        "end_hresult": attempt.end_hresult,
        "outcome": attempt.outcome,
        "ack_refused": attempt.ack_refused,
        "ack_unanswered": attempt.ack_unanswered,
        "reader_gone_at": attempt.reader_gone_at,
        "gaps": attempt.gaps,
        "evidence": attempt.evidence,
        "confidence": attempt.confidence,
        "missing": sorted(attempt.missing),
        "errors": errors_of(attempt),
        "event_date": day_of(*times),
    }
