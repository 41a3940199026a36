"""Decode Arrow batches of ``bronze.rpc_calls`` to batches of the silver tables that single calls give; no Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.settings import ApplicationHeaders, StoreConfig
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.comqc import COMQC_CALLS
from schemas.messages import APPLICATION_COLUMNS, MESSAGES
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, PROPERTIES, QUEUE_SNAPSHOTS
from schemas.table import EVENT_DATE, Table
from udfs.application.columns import KeptColumns
from udfs.codes import RESULT_NAMES
from udfs.columns.arrays import to_times, utc_dates
from udfs.comqc import body_decoder as comqc
from udfs.comqc.declared_interfaces import NO_DECLARATIONS, Declarations
from udfs.errors import UNSUPPORTED, describe_failure
from udfs.keys import keys_of_texts
from udfs.messages import message_decoder as messages
from udfs.properties import observations, snapshot_rows
from udfs.stubs import call_decoder as stubs
from udfs.stubs import method_registry
from udfs.stubs.arrow_primitives import concat_lists

# One row for each call of the table's interfaces.
ROW_PER_CALL_TABLES: Final = (CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS)
# Any number of rows for a response.
ROWS_PER_RESPONSE_TABLES: Final = (PROPERTIES, MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS, COMQC_CALLS, MESSAGES)
# In the order of writing. The commit of the last one shows that all are written.
DECODED_TABLES: Final = (*ROWS_PER_RESPONSE_TABLES, *ROW_PER_CALL_TABLES)

INTERFACES_BY_TABLE: Final[dict[Table, tuple[str, ...]]] = {
    **dict.fromkeys((REMOTE_READ_CALLS, MESSAGES, COMQC_CALLS), tuple(method_registry.REMOTE_READ_METHODS)),
    **dict.fromkeys(
        (MANAGEMENT_CALLS, PROPERTIES, QUEUE_SNAPSHOTS, MACHINE_SNAPSHOTS), tuple(method_registry.MANAGEMENT_METHODS)
    ),
    CLIENT_CALLS: tuple(method_registry.CLIENT_METHODS),
}
"""The names of the interfaces whose calls give a table its rows."""

DECODER_VERSIONS: Final = (
    f"stubs {stubs.DECODER_VERSION}, messages {messages.DECODER_VERSION}, comqc {comqc.DECODER_VERSION}, "
    f"properties {observations.DECODER_VERSION}"
)
"""The versions of all decoders, as a text. When it changes, silver is recomputed."""

CALL_INPUT_COLUMNS: Final = (
    "interface_name", "opnum", "transfer_syntax", "byte_order", "outcome", "fault_status", "sealed", "opened_by",
    "request_stub", "response_stub", "call_key", "connection_id", "call_id", "client_address", "client_port",
    "server_address", "server_port", "request_at", "response_at", "clocks", "run_id",
)  # fmt: skip
"""The columns of ``bronze.rpc_calls`` that decoding reads."""

OPTIONAL_INPUT_COLUMNS: Final = ("response_byte_order", "capture_id")
"""Columns that it reads where they are present."""

PASSED_THROUGH_COLUMNS: Final = (
    "call_key", "protocol", "interface_name", "opnum", "connection_id", "call_id", "client_address", "client_port",
    "server_address", "server_port", "requested_at", "responded_at", "clocks", "event_date", "run_id", "queue_manager",
)  # fmt: skip
"""The columns of per-call tables that are copied from the call, not decoded from its stubs."""

BRONZE_NAMES: Final = {"protocol": "interface_name", "requested_at": "request_at", "responded_at": "response_at"}
"""What ``bronze.rpc_calls`` calls those of them that have other names there."""

_LOOKUP_ID_BYTES: Final = 7  # of SequenceId: its highest byte does not belong to the lookup id
_SCHEMAS: Final = {table: table.schema() for table in DECODED_TABLES}
# Reused: most batches have no calls of some interfaces.
_EMPTY_BATCHES: Final = {
    str(table): pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    for table, schema in _SCHEMAS.items()
}

ALL_COLUMNS: Final = {str(table): frozenset(table.names) for table in DECODED_TABLES}
"""All columns of all tables (``WantedColumns``)."""
_COMQC_OF_MESSAGES: Final = frozenset({"comqc_rejected", "comqc_deviations", "errors"})  # what decoding COM calls tells

_APPLICATION_NULLS: Final = {column.name: column.type for column in APPLICATION_COLUMNS}

ColumnArrays = Mapping[str, pa.Array]
WantedColumns = Mapping[str, Collection[str]]
"""By full name the tables whose rows are wanted, and the columns of these; what else a row has may be null."""
BatchesByTable = dict[str, pa.RecordBatch]
DecodeFunction = Callable[[pa.RecordBatch], BatchesByTable]


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """What is kept of messages: settings of ``store``; and how methods of COM+ calls are named (comqc.interfaces)."""

    packets: bool = StoreConfig.packets
    bodies: bool = StoreConfig.bodies
    application_headers: ApplicationHeaders = StoreConfig.application_headers
    declarations: Declarations = NO_DECLARATIONS

    def kept_application_columns(self) -> KeptColumns:
        """Return what is kept of what the application's headers and bodies say."""
        keeps_all = self.application_headers == "all"
        return KeptColumns(self.application_headers != "none", keeps_all, keeps_all and self.bodies)


DEFAULT_SETTINGS: Final = DecodeSettings()


def decode_calls(
    calls: pa.RecordBatch, settings: DecodeSettings = DEFAULT_SETTINGS, wanted: WantedColumns = ALL_COLUMNS
) -> BatchesByTable:
    """Decode calls with ``CALL_INPUT_COLUMNS``; return a batch for each of ``DECODED_TABLES``, by full name.

    Each batch has exactly its table's columns. A qm2qm, RemoteRead, qmmgmt, qmcomm or qmcomm2 call gives one row of its
    table; other calls give none. A returned message gives a row of ``silver.messages``, a COM call recorded in its body
    a row of ``silver.comqc_calls``, an answered GetInfo a snapshot and a row for each property. Stubs are decoded once.
    ``messages.queue`` is null here: a single call does not show it. Tables
    that are not ``wanted`` have no rows, and what only their columns need is not decoded.
    """
    out = dict(_EMPTY_BATCHES)
    interfaces = {name for table in DECODED_TABLES if str(table) in wanted for name in INTERFACES_BY_TABLE[table]}

    def calls_of(methods: Collection[str]) -> pa.RecordBatch:
        return _calls_of(calls, interfaces.intersection(methods))

    if (read_calls := calls_of(method_registry.REMOTE_READ_METHODS)).num_rows:
        has_messages = str(MESSAGES) in wanted or str(COMQC_CALLS) in wanted
        reads = remote_read_columns(read_calls, keep_packets=has_messages or settings.packets)
        if has_messages:
            out |= _message_batches(reads, settings, wanted)
        if str(REMOTE_READ_CALLS) in wanted:
            if not settings.packets:
                reads = reads | {"packet": pa.nulls(read_calls.num_rows, pa.binary())}
            out[str(REMOTE_READ_CALLS)] = _table_batch(REMOTE_READ_CALLS, reads)
    if (client := calls_of(method_registry.CLIENT_METHODS)).num_rows:
        out[str(CLIENT_CALLS)] = _table_batch(CLIENT_CALLS, _call_columns(client) | stubs.decode_client_calls(client))
    if (management := calls_of(method_registry.MANAGEMENT_METHODS)).num_rows:
        out |= _management_batches(management, wanted)
    return out


class DecodeFailure(NamedTuple):
    """A call or collected snapshot at which decoding raised an exception, and what was raised where."""

    row_key: str  # call_key, or snapshot_id
    source: str  # capture_id, or the path of the snapshot file
    error: str


class _RowKind(NamedTuple):
    """Names of a kind of rows that are decoded."""

    key: str
    source: str
    undecoded: tuple[str, ...]  # the columns whose values are decoded
    flagged_tables: tuple[Table, ...]  # of rows that show a failure
    error_field: str  # in the errors of these


_CALL_ROWS: Final = _RowKind(
    "call_key", "capture_id", ("request_stub", "response_stub"), tuple(ROW_PER_CALL_TABLES), "stub"
)
_COLLECTED_ROWS: Final = _RowKind(
    "snapshot_id", "source_path", ("properties",), (QUEUE_SNAPSHOTS, MACHINE_SNAPSHOTS), "properties"
)


def decode_calls_safely(
    calls: pa.RecordBatch, failures: list[DecodeFailure], settings: DecodeSettings = DEFAULT_SETTINGS,
    wanted: WantedColumns = ALL_COLUMNS,
) -> Iterator[BatchesByTable]:  # fmt: skip
    """Yield what ``decode_calls`` returns; a call at which it raises an exception is noted in ``failures``.

    Such a call gives its row without anything decoded, with an error. ``calls`` have the column ``capture_id`` too.
    """
    decode = partial(decode_calls, settings=settings, wanted=wanted)
    return _decode_safely(calls, failures, decode, _CALL_ROWS)


def decode_snapshots_safely(snapshots_raw: pa.RecordBatch, failures: list[DecodeFailure]) -> Iterator[BatchesByTable]:
    """Yield what ``decode_collected_snapshots`` returns; snapshots at which it fails as in ``decode_calls_safely``.

    ``snapshots_raw`` have the column ``source_path`` too.
    """
    return _decode_safely(snapshots_raw, failures, decode_collected_snapshots, _COLLECTED_ROWS)


def _decode_safely(
    rows: pa.RecordBatch, failures: list[DecodeFailure], decode: DecodeFunction, kind: _RowKind
) -> Iterator[BatchesByTable]:
    """Yield decoded rows; search by halves for the rows at which decoding raises an exception."""
    try:
        decoded = decode(rows)
    except Exception as error:  # noqa: BLE001 - it is the error of one row: the others are decoded
        if rows.num_rows > 1:
            half = rows.num_rows // 2
            for part in (rows.slice(0, half), rows.slice(half)):
                yield from _decode_safely(part, failures, decode, kind)
            return
        row_key, source = (rows.column(name)[0].as_py() for name in (kind.key, kind.source))
        failures.append(DecodeFailure(row_key, source, describe_failure(error)))
        decoded = _undecoded_rows(rows, decode, kind)
    yield decoded


def _undecoded_rows(row: pa.RecordBatch, decode: DecodeFunction, kind: _RowKind) -> BatchesByTable:
    """Return what one row gives without the values that are decoded, with an error; nothing if that fails too."""
    for name in kind.undecoded:
        place = row.schema.get_field_index(name)
        row = row.set_column(place, row.schema.field(place), pa.nulls(1, row.schema.field(place).type))
    try:
        decoded = decode(row)
    except Exception:  # noqa: BLE001 - the failure is noted already
        return {}
    for table in map(str, kind.flagged_tables):
        if decoded[table].num_rows:
            place = decoded[table].schema.get_field_index("errors")
            field = decoded[table].schema.field(place)
            errors = pa.array([[{"code": UNSUPPORTED, "field": kind.error_field, "offset": 0}]], field.type)
            decoded[table] = decoded[table].set_column(place, field, errors)
    return decoded


def remote_read_columns(calls: pa.RecordBatch, *, keep_packets: bool = True) -> dict[str, pa.Array]:
    """Decode qm2qm and RemoteRead calls to the columns of ``silver.remote_read_calls``."""
    return _call_columns(calls) | stubs.decode_remote_read_calls(calls, packets=keep_packets)


def _calls_of(calls: pa.RecordBatch, interfaces: Collection[str]) -> pa.RecordBatch:
    """Return the calls of the given interfaces."""
    ours = pc.is_in(calls.column("interface_name"), pa.array(sorted(interfaces), pa.string()))
    return calls if pc.all(ours, min_count=0).as_py() else calls.filter(ours)


def _call_columns(calls: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns that are copied from the calls, under their names in silver, and the name of the fault."""
    through = (name for name in PASSED_THROUGH_COLUMNS if name not in (EVENT_DATE, "queue_manager"))
    own = {name: calls.column(BRONZE_NAMES.get(name, name)) for name in through}
    own["fault_name"] = stubs.code_name_column(calls.column("fault_status"), RESULT_NAMES)
    return own | {EVENT_DATE: utc_dates(to_times(pc.coalesce(calls.column("request_at"), calls.column("response_at"))))}


def _table_batch(table: Table, columns: ColumnArrays) -> pa.RecordBatch:
    """Return a batch with the table's columns, in its order and with its types."""
    schema = _SCHEMAS[table]
    arrays = [columns[field.name] for field in schema]
    arrays = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(arrays, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _message_batches(reads: ColumnArrays, settings: DecodeSettings, wanted: WantedColumns) -> BatchesByTable:
    """Return batches of the messages that calls returned, and of the COM calls recorded in their bodies.

    A packet of no bytes is a message too: its row has the error.
    """
    returned = pc.indices_nonzero(reads["packet"].is_valid())
    names = (
        "packet", "protocol", "section_types", "section_bytes", "section_allocated_bytes", "call_key", "connection_id",
        "responded_at", "sequence_id", "arrived_at", "run_id",
    )  # fmt: skip
    calls = {name: reads[name].take(returned) for name in names}
    sections = {name: calls[name] for name in names if name.startswith("section_")}
    rows, nulls = len(returned), pa.nulls(len(returned), pa.string())
    sightings = {
        "sighting_key": pa.array(keys_of_texts(calls["call_key"].to_pylist()), pa.string()),
        "seen_in": calls["protocol"],
        "call_key": calls["call_key"],
        "connection_id": calls["connection_id"],
        "packet_key": nulls,
        **dict.fromkeys(("session_number", "recoverable_number"), pa.nulls(rows, pa.int64())),
        "seen_at": calls["responded_at"],
        "queue": nulls,
        "inferred_queue": nulls,
        "lookup_id": _lookup_ids(calls["sequence_id"]),
        "arrived_at": calls["arrived_at"],
        "run_id": calls["run_id"],
    }
    return message_batches(calls["packet"], sightings, settings, wanted, sections=sections)


def message_batches(
    packets: pa.Array, sightings: ColumnArrays, settings: DecodeSettings, wanted: WantedColumns = ALL_COLUMNS, *,
    sections: ColumnArrays = {},  # noqa: B006 - it is only read
) -> BatchesByTable:  # fmt: skip
    """Return batches of messages, and of the COM calls recorded in their bodies, by full table name.

    ``packets`` are their packets, binary. ``sightings`` has the columns of ``silver.messages`` that say how each was
    seen, ``seen_in`` among them; they replace decoded ones. ``sections``: the ``section_*`` columns of RemoteRead.
    ``wanted`` as ``decode_calls`` has it.
    """
    protocols, rows = sightings["seen_in"], len(packets)
    names, wants_calls = wanted.get(str(MESSAGES), ()), str(COMQC_CALLS) in wanted
    keep_all = settings.bodies and "body" in names
    decoded = messages.decode_messages(
        packets, protocols, **sections, bodies=keep_all, hashes="body_sha256" in names,
        keys="message_key" in names or wants_calls,
        application=None if _APPLICATION_NULLS.keys().isdisjoint(names) else settings.kept_application_columns(),
    )  # fmt: skip
    columns = {
        **{name: pa.nulls(rows, kind) for name, kind in _APPLICATION_NULLS.items()},
        "body": pa.nulls(rows, pa.binary()),
        **dict.fromkeys(("body_sha256", "message_key"), pa.nulls(rows, pa.string())),
    } | decoded | {
        "comqc_rejected": pa.nulls(rows, pa.string()),
        "comqc_deviations": pa.nulls(rows, comqc.DEVIATIONS_TYPE),
        EVENT_DATE: utc_dates(to_times(sightings["seen_at"])),
    } | dict(sightings)  # fmt: skip
    # Few messages hold recorded COM calls: bodies are extracted from these alone.
    recorded = pc.and_(columns["is_comqc"], pc.invert(pc.fill_null(columns["encrypted"], False)))  # noqa: FBT003
    if not (wants_calls or _COMQC_OF_MESSAGES.intersection(names)):
        recorded = pa.repeat(pa.scalar(False), rows)  # noqa: FBT003
    chosen = pc.indices_nonzero(pc.fill_null(recorded, False))  # noqa: FBT003
    recorders = {name: array.take(chosen) for name, array in columns.items() if name != "body"}
    if keep_all:
        recorders["body"] = columns["body"].take(chosen)
    else:
        chosen_sections = {name: array.take(chosen) for name, array in sections.items()}
        recorders["body"] = messages.decode_messages(
            packets.take(chosen), protocols.take(chosen), **chosen_sections, bodies=True, hashes=False, keys=False
        ).get("body", pa.nulls(len(chosen), pa.binary()))
    found = comqc.decode_bodies(
        recorders["body"], recorders["extension"], recorders["body_bytes"], marshaled=settings.bodies,
        declarations=settings.declarations,
    )  # fmt: skip
    if len(chosen):
        positions = pa.array(np.searchsorted(chosen, np.arange(rows)), mask=~np.isin(np.arange(rows), chosen))
        columns |= {name: found.column(name).take(positions) for name in ("comqc_rejected", "comqc_deviations")}
        columns["errors"] = concat_lists(columns["errors"], found.column("errors").take(positions))
    return {str(MESSAGES): _table_batch(MESSAGES, columns), str(COMQC_CALLS): _comqc_call_batch(recorders, found)}


def _lookup_ids(numbers: pa.Array) -> pa.Array:
    """Return the low 56 bits of SequenceIds; null for 0."""
    limit = 1 << 8 * _LOOKUP_ID_BYTES
    ids = [None if number is None else int(number) % limit or None for number in numbers.to_pylist()]
    return pa.array(ids, pa.decimal128(20, 0))


def _comqc_call_batch(sightings: ColumnArrays, found: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch of ``silver.comqc_calls``: recorded COM calls with the keys of the messages that hold them."""
    parents, flat = comqc.explode_calls(found)
    names = ("sighting_key", "message_key", "call_key", "packet_key", "seen_at", EVENT_DATE, "run_id")
    columns = {name: sightings[name].take(parents) for name in names}
    columns |= dict(zip(flat.schema.names, flat.columns, strict=True))
    columns["decoder_version"] = pa.repeat(pa.scalar(comqc.DECODER_VERSION), len(parents))
    return _table_batch(COMQC_CALLS, columns)


def _management_batches(calls: pa.RecordBatch, wanted: WantedColumns) -> BatchesByTable:
    """Return batches of management calls, and of the properties and snapshots that queue managers answered."""
    columns = _call_columns(calls) | stubs.decode_management_calls(calls)
    out = {str(MANAGEMENT_CALLS): _table_batch(MANAGEMENT_CALLS, columns)} if str(MANAGEMENT_CALLS) in wanted else {}
    if wanted.keys().isdisjoint(map(str, (PROPERTIES, QUEUE_SNAPSHOTS, MACHINE_SNAPSHOTS))):
        return out
    facts = pa.table({**columns, "outcome": calls.column("outcome")})
    seen = observations.observations_from_calls(facts)
    run_ids = dict(zip(calls.column("call_key").to_pylist(), calls.column("run_id").to_pylist(), strict=True))
    return out | _snapshot_batches(seen, run_ids)


def decode_collected_snapshots(snapshots_raw: pa.RecordBatch) -> BatchesByTable:
    """Decode rows of ``bronze.snapshots_raw`` to batches of properties and snapshots, by full table name."""
    seen = observations.observations_from_snapshots(pa.Table.from_batches([snapshots_raw]))
    ids = snapshots_raw.column("snapshot_id").to_pylist()
    return _snapshot_batches(seen, dict(zip(ids, snapshots_raw.column("run_id").to_pylist(), strict=True)))


def _snapshot_batches(seen: pa.Table, run_ids: Mapping[str, str]) -> BatchesByTable:
    """Return batches of properties and snapshots; ``run_ids`` are by snapshot_id."""
    out = {}
    for table, columns in (
        (PROPERTIES, observations.property_rows(seen)),
        (QUEUE_SNAPSHOTS, snapshot_rows.queue_snapshot_rows(seen)),
        (MACHINE_SNAPSHOTS, snapshot_rows.machine_snapshot_rows(seen)),
    ):
        rows = {name: columns.column(name).combine_chunks() for name in columns.column_names}
        rows["run_id"] = pa.array([run_ids[name] for name in rows["snapshot_id"].to_pylist()], pa.string())
        rows[EVENT_DATE] = utc_dates(to_times(rows["observed_at"]))
        out[str(table)] = _table_batch(table, rows)
    return out
