"""silver and bronze -> gold.receive_attempts: one grouped function per server over ``pipeline.attempts``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pipeline import attempts
from pipeline.associations import Connection
from schemas.gold import RECEIVE_ATTEMPTS
from udfs.keys import key

# Columns of the calls that the state machine takes under their own names, and those that gold hands through.
_FACTS: Final = (
    "call_key", "protocol", "opnum", "connection_id", "requested_at", "responded_at", "queue", "context_handle",
    "remote_read_handle", "queue_handle", "action", "timeout_ms", "request_id", "lookup_id", "sequence_id",
    "transaction_id", "acknowledgement_class", "ack", "hresult", "errors", "outcome", "fault_status", "closed",
    "bind_seen", "cancelled_at", "orphaned_at",
)  # fmt: skip
_THROUGH: Final = ("client_address", "client_port", "server_address", "server_port", "run_id")
_MESSAGE: Final = ("message_key", "message_bytes")
_CONNECTION: Final = (
    "connection_id", "client_address", "first_packet_at", "last_packet_at", "closed_at", "association_group_id",
    "syn_seen", "server_bytes", "missing_bytes",
)  # fmt: skip
_TIMES: Final = frozenset(
    {"requested_at", "responded_at", "cancelled_at", "orphaned_at", "first_packet_at", "last_packet_at", "closed_at",
     "capture_ends_at"}
)  # fmt: skip
_NOT_NULL: Final[dict[str, Any]] = {"bind_seen": True, "closed": False, "outcome": "ok", "syn_seen": False,
                                    "server_bytes": 0, "missing_bytes": 0}  # fmt: skip


def receive_attempts(
    reads: DataFrame,
    connections: DataFrame,
    calls: DataFrame,
    captures: DataFrame | None = None,
    *,
    ends: DataFrame | None = None,
    messages: DataFrame | None = None,
    cleanup_s: float = attempts.CLEANUP_US / 1e6,
) -> DataFrame:
    """Return ``gold.receive_attempts`` of silver.remote_read_calls, bronze.connections and bronze.rpc_calls.

    ``captures`` (bronze.capture_files) tells when the capture of a server ends, unless ``ends`` (``server_ends``) does
    already; without both that is the newest packet of the server's connections. ``cleanup_s`` is the clean-up timer of
    pending receives (the setting timers.cleanup). The calls may be some of a server's only: whole associations, and
    the qm2qm Starts and cancels that share queue handle and number with theirs (``pipeline.touched``).
    ``messages`` (silver.messages) gives ``message_key`` and ``message_bytes``, which are null without it;
    ``inferred_queue`` is null, and so is the queue of qm2qm attempts, which is named on the client's qmcomm connection.
    Rows keep their Start's run_id.
    """
    schema = RECEIVE_ATTEMPTS.struct()
    ends = server_ends(connections, captures) if ends is None else ends
    facts = _with_call_facts(reads, calls)
    if messages is not None:
        came = messages.select("call_key", "message_key", F.col("body_bytes").alias("message_bytes"))
        facts = facts.join(came, "call_key", "left")
    facts = facts.join(F.broadcast(ends), "server_address", "left")
    servers = connections.where(F.col("kind") == "rpc").select(*_CONNECTION, "server_address")
    settle = _settler(schema, cleanup_us=round(cleanup_s * 1e6))
    return facts.groupBy("server_address").cogroup(servers.groupBy("server_address")).applyInArrow(settle, schema)


def server_ends(connections: DataFrame, captures: DataFrame | None = None) -> DataFrame:
    """Return when the capture of each server ends: server_address, capture_ends_at.

    That is the newest packet of captures (bronze.capture_files) that hold packets of it, and of its own connections.
    """
    ends = connections.where("kind = 'rpc'").select("server_address", F.col("last_packet_at").alias("at"))
    if captures is not None:
        ends = ends.union(captures.select(F.explode("servers"), "last_packet_at"))
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


def _with_call_facts(reads: DataFrame, calls: DataFrame) -> DataFrame:
    """Join what bronze knows of each call that attempts need: its outcome, fault, security, cancellation."""
    known = calls.select(
        "call_key",
        "outcome",
        "fault_status",
        "bind_seen",
        "cancelled_at",
        "orphaned_at",
        (F.col("sealed") & F.col("opened_by").isNull()).alias("closed"),
    )
    ours: Column = F.lit(False)  # noqa: FBT003
    for protocol, opnum in attempts.ROLES:
        ours |= (F.col("protocol") == protocol) & (F.col("opnum") == opnum)
    return reads.where(ours).join(known, "call_key", "left").select(*_FACTS, *_THROUGH)


def _settler(schema: StructType, *, cleanup_us: int) -> Callable[[pa.Table, pa.Table], pa.Table]:
    types = to_arrow_schema(schema)

    def settle(calls: pa.Table, connections: pa.Table) -> pa.Table:
        handed = (*_THROUGH, *(name for name in _MESSAGE if name in calls.column_names))
        through = {row["call_key"]: row for row in calls.select(["call_key", *handed]).to_pylist()}
        ends_at = pc.max(_plain(calls.column("capture_ends_at"))).as_py()
        settled = attempts.receive_attempts(
            [_call(row) for row in _rows(calls, _FACTS)],
            [Connection(**row) for row in _rows(connections, _CONNECTION)],
            capture_ends_at=ends_at,
            cleanup_us=cleanup_us,
        )
        rows = [_row(attempt, through[attempt.start.call_key]) for attempt in settled]
        return pa.Table.from_arrays([_array([row[f.name] for row in rows], f.type) for f in types], schema=types)

    return settle


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times as microseconds since the epoch, decimals as they are."""
    return column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())


def _rows(table: pa.Table, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return rows as dictionaries: times as integers, what must not be null with its default."""
    columns = [(_plain(table.column(name)) if name in _TIMES else table.column(name)).to_pylist() for name in names]
    for place, name in enumerate(names):
        if name in _NOT_NULL:
            columns[place] = [_NOT_NULL[name] if value is None else value for value in columns[place]]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _call(row: dict[str, Any]) -> attempts.Call:
    for name in ("lookup_id", "sequence_id"):
        row[name] = None if row[name] is None else int(row[name])
    row["errors"] = tuple((error["code"], error["field"], error["offset"]) for error in row["errors"] or ())
    return attempts.Call(**row)


def _difference_ms(later: int | None, earlier: int | None) -> float | None:
    return None if later is None or earlier is None else (later - earlier) / 1000


def _row(attempt: attempts.Attempt, through: Mapping[str, Any]) -> dict[str, Any]:
    start = attempt.start
    times = (start.requested_at, start.responded_at, attempt.ended_at)
    first = next((time for time in times if time is not None), None)
    return {
        **dict.fromkeys(_MESSAGE),
        **through,
        "attempt_key": key(start.call_key),
        "protocol": start.protocol,
        "queue": attempt.queue,
        "inferred_queue": None,
        "connection_id": start.connection_id,
        "context_handle": start.context_handle,
        "remote_read_handle": start.remote_read_handle,
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
        "evidence": attempt.evidence,
        "confidence": attempt.confidence,
        "missing": sorted(attempt.missing),
        "errors": [dict(zip(("code", "field", "offset"), error, strict=True)) for error in attempt.errors],
        "event_date": None if first is None else first // 86_400_000_000,
    }


def _array(values: list[Any], to: pa.DataType) -> pa.Array:
    """Return values as Arrow; times come as microseconds and dates as days since the epoch."""
    if pa.types.is_timestamp(to):
        return pa.array(values, pa.int64()).cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC")).cast(to)
    if pa.types.is_date(to):
        return pa.array(values, pa.int32()).cast(to)
    return pa.array(values, to)
