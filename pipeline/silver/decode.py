"""Batches of bronze.rpc_calls to the rows of every silver table that is made call by call. No session is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS
from schemas.comqc import COMQC_CALLS
from schemas.messages import MESSAGES
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, PROPERTIES, QUEUE_SNAPSHOTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE, Table
from udfs.comqc import calls as comqc
from udfs.keys import keys_of
from udfs.messages import packets as messages
from udfs.properties import observations, snapshots
from udfs.stubs import calls as stubs

# In the order in which they are written. The last one's commit says that all of them are made.
BY_CALL: Final = (CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS)  # a row for each call of their interfaces
BY_ANSWER: Final = (PROPERTIES, MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS, COMQC_CALLS, MESSAGES)  # any number for an answer
TABLES: Final = (*BY_ANSWER, *BY_CALL)

INTERFACES: Final[dict[Table, tuple[str, ...]]] = {
    **dict.fromkeys((REMOTE_READ_CALLS, MESSAGES, COMQC_CALLS), tuple(stubs.METHODS)),
    **dict.fromkeys((MANAGEMENT_CALLS, PROPERTIES, QUEUE_SNAPSHOTS, MACHINE_SNAPSHOTS), tuple(stubs.MANAGEMENT)),
    CLIENT_CALLS: tuple(stubs.CLIENT),
}
"""The interfaces whose calls give a table its rows."""

VERSION: Final = (
    f"stubs {stubs.DECODER_VERSION}, messages {messages.DECODER_VERSION}, comqc {comqc.DECODER_VERSION}, "
    f"properties {observations.DECODER_VERSION}"
)
"""Changes when one of the decoders does: then all is made anew."""

READ: Final = (
    "interface_name", "opnum", "transfer_syntax", "byte_order", "outcome", "sealed", "opened_by", "request_stub",
    "response_stub", "call_key", "connection_id", "call_id", "client_address", "client_port", "server_address",
    "server_port", "request_at", "response_at", "run_id",
)  # fmt: skip
READ_IF_THERE: Final = ("response_byte_order",)
"""The columns of bronze.rpc_calls that are read."""

THROUGH: Final = (
    "call_key", "protocol", "interface_name", "opnum", "connection_id", "call_id", "client_address", "client_port",
    "server_address", "server_port", "requested_at", "responded_at", "event_date", "run_id", "queue_manager",
)  # fmt: skip
"""The columns of rows that stand for a call that are the call's own, not decoded."""

_RENAMED: Final = {"protocol": "interface_name", "requested_at": "request_at", "responded_at": "response_at"}
_LOOKUP_ID_BYTES: Final = 7  # of the message's own number; the highest of eight is not its
_MICROSECONDS_OF_A_DAY: Final = 86_400_000_000
_SCHEMAS: Final = {table: to_arrow_schema(table.struct()) for table in TABLES}
# Most batches have no call of some interfaces: the columns of their tables need not be made of nothing each time.
_NOTHING: Final = {
    str(table): pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    for table, schema in _SCHEMAS.items()
}

Columns = Mapping[str, pa.Array]
Rows = dict[str, pa.RecordBatch]


def decode(calls: pa.RecordBatch, *, packets: bool = False, bodies: bool = False) -> Rows:
    """Return the rows of each table of ``TABLES``, by its full name, of calls with the columns ``READ``.

    Each batch has exactly its table's columns. A qm2qm, RemoteRead, qmmgmt, qmcomm or qmcomm2 call is one row of its
    table, calls of other interfaces are left out; a message that came back is a row of silver.messages, a call
    recorded in its body one of silver.comqc_calls, a GetInfo that was answered a snapshot and a row for each property.
    ``packets`` keeps packets, ``bodies`` bodies and what components marshaled (store.packets, store.bodies). Stubs are
    decoded once. ``messages.queue`` is not known from one call alone and null here.
    """
    out = dict(_NOTHING)
    if (reading := _of(calls, stubs.METHODS)).num_rows:
        reads = remote_reads(reading)
        out |= _messages(reads, bodies=bodies)
        if not packets:
            reads = reads | {"packet": pa.nulls(reading.num_rows, pa.binary())}
        out[str(REMOTE_READ_CALLS)] = _table(REMOTE_READ_CALLS, reads)
    if (client := _of(calls, stubs.CLIENT)).num_rows:
        out[str(CLIENT_CALLS)] = _table(CLIENT_CALLS, _own(client) | stubs.decode_client_calls(client))
    if (management := _of(calls, stubs.MANAGEMENT)).num_rows:
        out |= _management(management)
    return out


def remote_reads(calls: pa.RecordBatch, *, packets: bool = True) -> dict[str, pa.Array]:
    """Return the columns of silver.remote_read_calls of qm2qm and RemoteRead calls."""
    return _own(calls) | stubs.decode_calls(calls, packets=packets)


def _of(calls: pa.RecordBatch, interfaces: Mapping[str, Any]) -> pa.RecordBatch:
    """Return the calls of some interfaces."""
    ours = pc.is_in(calls.column("interface_name"), pa.array(list(interfaces), pa.string()))
    return calls if pc.all(ours, min_count=0).as_py() else calls.filter(ours)


def _own(calls: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return what the calls have themselves, under silver's names."""
    through = (name for name in THROUGH if name not in (EVENT_DATE, "queue_manager"))
    own = {name: calls.column(_RENAMED.get(name, name)) for name in through}
    return own | {EVENT_DATE: _dates(pc.coalesce(calls.column("request_at"), calls.column("response_at")))}


def _dates(times: pa.Array) -> pa.Array:
    """Return the UTC dates of times, those before 1970 too."""
    micros = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    days = np.asarray(pc.fill_null(micros, 0)) // _MICROSECONDS_OF_A_DAY
    return pa.array(days.astype(np.int32), mask=np.asarray(micros.is_null())).cast(pa.date32())


def _table(table: Table, columns: Columns) -> pa.RecordBatch:
    """Return the table's columns of those given, in its order and of its types."""
    schema = _SCHEMAS[table]
    arrays = [columns[field.name] for field in schema]
    arrays = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(arrays, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _messages(reads: Columns, *, bodies: bool) -> Rows:
    """Return the messages that calls brought back, and what components recorded in their bodies."""
    there = pc.indices_nonzero(pc.fill_null(pc.greater(pc.binary_length(reads["packet"]), 0), False))  # noqa: FBT003
    names = (
        "packet", "protocol", "section_types", "section_bytes", "section_allocated_bytes", "call_key", "responded_at",
        "sequence_id", "arrived_at", "run_id",
    )  # fmt: skip
    came = {name: reads[name].take(there) for name in names}
    sections = {name: came[name] for name in names if name.startswith("section_")}
    decoded = messages.decode_messages(came["packet"], came["protocol"], **sections, bodies=bodies)
    rows, nothing = len(there), pa.nulls(len(there), pa.string())
    columns = {"body": pa.nulls(rows, pa.binary())} | decoded | {
        "sighting_key": pa.array(keys_of(came["call_key"].to_pylist()), pa.string()),
        "seen_in": came["protocol"],
        "call_key": came["call_key"],
        "seen_at": came["responded_at"],
        "queue": nothing,
        "inferred_queue": nothing,
        "lookup_id": _lookup_ids(came["sequence_id"]),
        "arrived_at": came["arrived_at"],
        "comqc_rejected": nothing,
        EVENT_DATE: _dates(came["responded_at"]),
        "run_id": came["run_id"],
    }  # fmt: skip
    # What components recorded is read of few: bodies are cut out of these packets alone.
    recorded = pc.and_(columns["is_comqc"], pc.invert(pc.fill_null(columns["encrypted"], False)))  # noqa: FBT003
    chosen = pc.indices_nonzero(pc.fill_null(recorded, False))  # noqa: FBT003
    few = {name: array.take(chosen) for name, array in columns.items() if name != "body"}
    if bodies:
        few["body"] = columns["body"].take(chosen)
    else:
        again = {name: array.take(chosen) for name, array in sections.items()}
        packets, protocols = came["packet"].take(chosen), came["protocol"].take(chosen)
        few["body"] = messages.decode_messages(packets, protocols, **again, bodies=True, hashes=False, keys=False).get(
            "body", pa.nulls(len(chosen), pa.binary())
        )
    found = comqc.decode_comqc(few["body"], few["extension"], few["body_bytes"], marshaled=bodies)
    if len(chosen):
        back = pa.array(np.searchsorted(chosen, np.arange(rows)), mask=~np.isin(np.arange(rows), chosen))
        columns["comqc_rejected"] = found.column("comqc_rejected").take(back)
        columns["errors"] = _joined(columns["errors"], found.column("errors").take(back))
    return {str(MESSAGES): _table(MESSAGES, columns), str(COMQC_CALLS): _recorded(few, found)}


def _lookup_ids(numbers: pa.Array) -> pa.Array:
    """Return the low 56 bits of numbers as sent; null for 0, which is none."""
    most = 1 << 8 * _LOOKUP_ID_BYTES
    own = [None if number is None else int(number) % most or None for number in numbers.to_pylist()]
    return pa.array(own, pa.decimal128(20, 0))


def _joined(first: pa.Array, then: pa.Array) -> pa.Array:
    """Return lists one after the other, row by row; a null is an empty one."""
    if not len(then.flatten()):
        return first
    both = zip(first.to_pylist(), then.to_pylist(), strict=True)
    return pa.array([(one or []) + (two or []) for one, two in both], first.type)


def _recorded(sightings: Columns, found: pa.RecordBatch) -> pa.RecordBatch:
    """Return the calls that components recorded, with the keys of the messages that hold them."""
    parents, flat = comqc.explode(found)
    names = ("sighting_key", "message_key", "call_key", "seen_at", EVENT_DATE, "run_id")
    columns = {name: sightings[name].take(parents) for name in names}
    columns |= dict(zip(flat.schema.names, flat.columns, strict=True))
    columns["decoder_version"] = pa.repeat(pa.scalar(comqc.DECODER_VERSION), len(parents))
    return _table(COMQC_CALLS, columns)


def _management(calls: pa.RecordBatch) -> Rows:
    """Return management calls, and what queue managers answered: property by property, and as snapshots."""
    columns = _own(calls) | stubs.decode_management_calls(calls)
    facts = pa.table({**columns, "outcome": calls.column("outcome")})
    seen = observations.observations_of_calls(facts)
    out = {str(MANAGEMENT_CALLS): _table(MANAGEMENT_CALLS, columns)}
    run_ids = dict(zip(calls.column("call_key").to_pylist(), calls.column("run_id").to_pylist(), strict=True))
    return out | _observed(seen, run_ids)


def decode_collected(snapshots_raw: pa.RecordBatch) -> Rows:
    """Return the rows of silver of rows of bronze.snapshots_raw: property by property, and as snapshots."""
    seen = observations.observations_of_collected(pa.Table.from_batches([snapshots_raw]))
    ids = snapshots_raw.column("snapshot_id").to_pylist()
    return _observed(seen, dict(zip(ids, snapshots_raw.column("run_id").to_pylist(), strict=True)))


def _observed(seen: pa.Table, run_ids: Mapping[str, str]) -> Rows:
    """Return the rows of the tables of what was observed; ``run_ids`` by snapshot."""
    out = {}
    for table, made in (
        (PROPERTIES, observations.properties(seen)),
        (QUEUE_SNAPSHOTS, snapshots.queue_snapshots(seen)),
        (MACHINE_SNAPSHOTS, snapshots.machine_snapshots(seen)),
    ):
        rows = {name: made.column(name).combine_chunks() for name in made.column_names}
        rows["run_id"] = pa.array([run_ids[name] for name in rows["snapshot_id"].to_pylist()], pa.string())
        rows[EVENT_DATE] = _dates(rows["observed_at"])
        out[str(table)] = _table(table, rows)
    return out
