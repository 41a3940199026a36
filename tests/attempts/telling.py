"""Calls of a story -> rows of gold, by the functions that the pipeline calls, without Spark."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace

import pyarrow as pa

from memory_lake import MemoryLake
from pipeline.arrow_rows import table_to_rows
from pipeline.attempts.attempt_rows import CONNECTION_FIELDS, iterate_attempts
from pipeline.attempts.calls.decoded_call import ONE_CLOCK, DecodedCall
from pipeline.attempts.capture_gaps import NO_LOSS
from pipeline.attempts.operation_rows import queue_operations_table
from pipeline.sequences.sequence_rows import (
    REMOVALS_SQL,
    ack_sequence_rows,
    read_attempts_sql,
    to_read_attempts,
    to_removals,
)
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from udfs.codes import MQ_OK
from udfs.keys import key
from udfs.rpc.call_schema import CLOCKS_STRUCT

TIME = pa.timestamp("us", tz="UTC")
PLACES = ("client_address", "client_port", "server_address", "server_port", "queue_format_name", "run_id")
SERVER = "10.0.0.1"
_KINDS = {
    "int | None": pa.int64(),
    "int": pa.int64(),
    "str": pa.string(),
    "str | None": pa.string(),
    "bool": pa.bool_(),
    "Clocks": CLOCKS_STRUCT,
}
_ERRORS = pa.list_(pa.struct({"code": pa.string(), "field": pa.string(), "offset": pa.int64()}))
_TIMES = {"requested_at", "responded_at", "cancelled_at", "orphaned_at"}


def _kind(name, annotation):
    if name in _TIMES:
        return TIME
    return _ERRORS if name == "errors" else _KINDS[annotation.__forward_arg__]


_FACTS = pa.schema(
    [(name, _kind(name, annotation)) for name, annotation in DecodedCall.__annotations__.items()]
    + [(name, pa.int32() if name.endswith("port") else pa.string()) for name in PLACES]
    + [("message_key", pa.string()), ("message_bytes", pa.int64()), ("abort_count", pa.int32())]
    + [("destination_queue", pa.string())]
    + [("message_errors", _ERRORS)]
)
_CONNECTIONS = pa.schema(
    [
        (name, TIME if name.endswith("_at") else pa.string())
        for name in CONNECTION_FIELDS
        if name.endswith(("_at", "address"))
    ]
    + [("connection_id", pa.string()), ("association_group_id", pa.int64()), ("syn_seen", pa.bool_())]
    + [("association_joined", pa.bool_())]
    + [("server_bytes", pa.int64()), ("missing_bytes", pa.int64()), ("closed_by", pa.string())]
    + [("server_address", pa.string()), ("uncaptured_side", pa.string())]
)


def key_of(call):
    """The message_key of the message that a call brought: its number in the queue says which message it is."""
    return f"message {call.sequence_id}" if call.sequence_id and call.hresult == MQ_OK else None


def facts_of(calls, connections, *, message_key=key_of, destination=None, message_errors=(), abort_counts=None):
    """Calls and connections as the tables that gold is made of."""
    clients = {each.connection_id: each.client_address for each in connections}
    rows = []
    for call in calls:
        errors = [{"code": code, "field": name, "offset": offset} for code, name, offset in call.errors]
        name = None if call.queue is None else f"DIRECT=OS:{call.queue}"
        place = {"client_address": clients.get(call.connection_id), "client_port": 50000, "server_address": SERVER,
                 "server_port": 2103, "queue_format_name": name, "run_id": "run"}  # fmt: skip
        name_of_message = message_key(call)
        brought = destination if name_of_message else None
        message = {"message_key": name_of_message, "message_bytes": None, "destination_queue": brought}
        message["abort_count"] = (abort_counts or {}).get(call.call_key)
        message["message_errors"] = [
            dict(zip(("code", "field", "offset"), each, strict=True)) for each in message_errors
        ]
        if not name_of_message:
            message["message_errors"] = None
        clocks = None if call.clocks == ONE_CLOCK else call.clocks._asdict()
        rows.append(call._replace(errors=())._asdict() | {"errors": errors, "clocks": clocks} | place | message)
    connected = [asdict(each) | {"server_address": SERVER} for each in connections]
    return pa.Table.from_pylist(rows, _FACTS), pa.Table.from_pylist(connected, _CONNECTIONS)


def receive_attempts_table(facts, connections, **settings):
    """Rows of gold.receive_attempts."""
    return pa.concat_tables(iterate_attempts(facts, connections, **settings))


def gold_of(calls, connections, *, until, aliases=None, **options):
    """Rows of gold.receive_attempts and gold.queue_operations; ``until`` in microseconds."""
    facts, connected = facts_of(calls, connections, **options)
    made = receive_attempts_table(facts, connected, ends={SERVER: until}, aliases=aliases or {}, cleanup_s=300)
    return made, queue_operations_table(facts, connected, aliases=aliases or {})


def attempts_of(calls, connections, *, capture_ends_at=None, destination=None):
    """Rows of gold.receive_attempts as objects, with times in microseconds, and the calls that they are about."""
    by_key = {key(call.call_key): call for call in calls}
    facts, connected = facts_of(by_key.values(), connections, destination=destination)
    ends = {} if capture_ends_at is None else {SERVER: capture_ends_at}
    rows = table_to_rows(receive_attempts_table(facts, connected, ends=ends, aliases={}, cleanup_s=300))
    return [SimpleNamespace(call=by_key[row["attempt_key"]], **row) for row in rows]


def sequences_here(attempts, operations, *, lost_after=60, poison_after=3, unseen=NO_LOSS):
    """Rows of gold.ack_sequences, as dictionaries."""
    lake = MemoryLake({RECEIVE_ATTEMPTS: attempts, QUEUE_OPERATIONS: operations})
    return ack_sequence_rows(
        to_read_attempts(lake.query(read_attempts_sql(), attempts=RECEIVE_ATTEMPTS)),
        to_removals(lake.query(REMOVALS_SQL, operations=QUEUE_OPERATIONS)),
        lost_after_us=lost_after * 1_000_000,
        poison_after=poison_after,
        possible_loss=unseen,
    ).to_pylist()
