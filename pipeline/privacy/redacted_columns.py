"""What each column of bronze and silver is replaced by where names are not to be shown. No session is needed.

Every column with texts or bytes is named here, those too that stay as they are: a column that is new is not written
before somebody has decided what it holds (``tests/privacy``). Stubs, packets, bodies, samples and tokens are not
kept, whatever is redacted: names are in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.silver.decode import BY_ANSWER, BY_CALL
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW
from schemas.comqc import COMQC_CALLS
from schemas.messages import MESSAGES
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, PROPERTIES, QUEUE_SNAPSHOTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import Table
from udfs.keys import key
from udfs.pseudonyms import Pseudonyms, replaced

How = Callable[[Pseudonyms, pa.Array], pa.Array]
Said = Callable[[Pseudonyms, str], str]

BRONZE: Final = (CAPTURE_FILES, CONNECTIONS, RPC_BINDS, RPC_CALLS, QUARANTINE, PENDING, SNAPSHOTS_RAW, SNAPSHOT_FILES)
SILVER: Final = (*BY_ANSWER, *BY_CALL)


def stays(_by: Pseudonyms, array: pa.Array) -> pa.Array:
    """Leave a column as it is: codes, names of methods, GUIDs, the paths that captures were given."""
    return array


def gone(_by: Pseudonyms, array: pa.Array) -> pa.Array:
    """Keep nothing of a column."""
    return pa.nulls(len(array), array.type)


def _texts(said: Said) -> How:
    return lambda by, array: replaced(array, partial(said, by))


def _nested(said: Said, fields: tuple[str, ...] = ()) -> How:
    """Replace the texts of lists: all, or those in some fields of structs, texts or lists of texts themselves."""

    def told(by: Pseudonyms, value: Any) -> Any:  # noqa: ANN401 - whatever the column holds
        if isinstance(value, str):
            return said(by, value)
        if isinstance(value, list):
            return [told(by, each) for each in value]
        if isinstance(value, dict):
            return {name: told(by, each) if name in fields else each for name, each in value.items()}
        return value

    return lambda by, array: pa.array([told(by, value) for value in array.to_pylist()], array.type)


def _no_values(_by: Pseudonyms, array: pa.Array) -> pa.Array:
    """Keep the types of values and not the values: texts, numbers, JSON."""

    def told(each: Any) -> Any:  # noqa: ANN401 - a struct
        return {name: None if name in ("value", "value_json") else value for name, value in each.items()}

    rows = [None if row is None else [told(each) for each in row] for row in array.to_pylist()]
    return pa.array(rows, array.type)


_KEY: Final = _texts(Pseudonyms.key)
_KEYS: Final = _nested(Pseudonyms.key)
_ADDRESS: Final = _texts(Pseudonyms.address)
_MACHINE: Final = _texts(Pseudonyms.host)
_NAME: Final = _texts(Pseudonyms.name)
_QUEUE: Final = _texts(Pseudonyms.queue)
_SENDER: Final = _texts(Pseudonyms.sender)
_SNAPSHOT_FILE: Final = _texts(Pseudonyms.snapshot_file)
_TEXTS: Final = _nested(Pseudonyms.text)

# The same in every table that has them.
_EVERYWHERE: Final[Mapping[str, How]] = {
    **dict.fromkeys(("connection_id", "call_key", "bind_key", "snapshot_id", "pending_key", "quarantine_key"), _KEY),
    **dict.fromkeys(("client_address", "server_address"), _ADDRESS),
    **dict.fromkeys(("queue", "queue_format_name"), _NAME),
    "queue_manager": _MACHINE,
    **dict.fromkeys(
        ("capture_id", "response_capture_id", "run_id", "errors", "decoder_version", "interface_name",
         "interface_uuid", "transfer_syntax", "protocol", "method", "hresult_name", "source", "object_type",
         "client_id", "context_handle", "message_key", "status", "error", "property_states"),
        stays,
    ),
}  # fmt: skip
_OF_TABLES: Final[Mapping[Table, Mapping[str, How]]] = {
    CAPTURE_FILES: {
        **dict.fromkeys(
            ("path", "other_paths", "format", "compression", "damage", "first_key", "tail_key", "other_files"), stays
        ),
        "resume": gone,  # it holds addresses of open connections: a capture that has grown is read anew
        "servers": _nested(Pseudonyms.address),
        "server_connections": _nested(Pseudonyms.address, ("server_address",)),
        **dict.fromkeys(("learnt", "followed"), gone),  # what a port is for is told by the captures of one run
    },
    CONNECTIONS: dict.fromkeys(("kind", "closed_by"), stays),
    RPC_BINDS: {
        **dict.fromkeys(
            ("interface_version", "transfer_syntaxes_offered", "result", "secondary_address"), stays
        ),  # secondary_address: a port, or the name of a pipe
        "handshake": gone,
    },
    RPC_CALLS: {
        **dict.fromkeys(
            ("object_uuid", "byte_order", "response_byte_order", "outcome", "closed_reason", "sightings"), stays
        ),
        "opened_by": _SENDER,
        "verified_by": _SENDER,
        **dict.fromkeys(("request_stub", "response_stub", "request_pieces", "response_pieces"), gone),
    },
    QUARANTINE: {"reason": stays, "sample": gone, "source_path": _SNAPSHOT_FILE},
    PENDING: {
        **dict.fromkeys(("kind", "waits_for", "counted", "evidence"), stays),
        "learnt": stays,  # interfaces
        "counted_server": _ADDRESS,
        **dict.fromkeys(("call_keys", "quarantine_keys"), _KEYS),
        **dict.fromkeys(("segments", "runs", "told", "calls_made"), gone),
    },
    SNAPSHOTS_RAW: {
        "format_name": _NAME,
        "properties": _no_values,
        "collector_version": stays,
        "source_path": _SNAPSHOT_FILE,
    },
    SNAPSHOT_FILES: {"path": _SNAPSHOT_FILE},
    REMOTE_READ_CALLS: {
        **dict.fromkeys(("remote_read_handle", "action_name", "transaction_id", "ack_name"), stays),
        "packet": gone,
    },
    CLIENT_CALLS: {"remote_queue_name": _NAME, "client_name": _MACHINE},
    MANAGEMENT_CALLS: {"action": stays},
    MESSAGES: {
        **dict.fromkeys(
            ("seen_in", "source_queue_manager", "message_id", "delivery", "class_name", "correlation_id",
             "comqc_rejected", "header_sizes"),
            stays,
        ),
        **dict.fromkeys(
            ("inferred_queue", "destination_queue", "admin_queue", "response_queue", "dead_letter_queue"), _NAME
        ),
        **dict.fromkeys(("subqueue", "target_subqueue"), _QUEUE),
        "label": _texts(Pseudonyms.label),
        "sender_id": _SENDER,
        "sender_address": _ADDRESS,
        "body_sha256": _KEY,  # of a body that can be guessed, anybody could tell that it is the one
        **dict.fromkeys(("body", "extension"), gone),
    },
    COMQC_CALLS: {
        **dict.fromkeys(("header", "target_clsid", "partition_id", "interface_id"), stays),
        **dict.fromkeys(("target_text", "marshaled"), gone),
        "arguments": _no_values,
    },
    PROPERTIES: {
        **dict.fromkeys(("property_name", "vt_name", "state"), stays),
        **dict.fromkeys(("value_text", "value_texts", "value_json", "value_binary"), stays),  # by _properties
    },
    QUEUE_SNAPSHOTS: {
        **dict.fromkeys(("type", "location", "xact", "foreign", "state"), stays),
        **dict.fromkeys(("pathname", "formatname"), _NAME),
        "nexthops": _TEXTS,
        "eod_source_info": _nested(Pseudonyms.name, ("sender_format_name",)),
        "connection_history": _nested(Pseudonyms.text, ("addresses",)),
        "subqueue_names": _nested(Pseudonyms.queue),
    },
    MACHINE_SNAPSHOTS: {
        **dict.fromkeys(("connected", "type"), stays),
        **dict.fromkeys(("activequeues", "privateq"), _nested(Pseudonyms.name)),
        "dsserver": _MACHINE,
    },
}  # fmt: skip

# What the texts of a property are; of others that are known they are codes and stay, of unknown ones nothing is kept.
_PROPERTY_TEXTS: Final[Mapping[str, Said]] = {
    **dict.fromkeys(
        ("PROPID_MGMT_QUEUE_PATHNAME", "PROPID_MGMT_QUEUE_FORMATNAME", "PROPID_MGMT_MSMQ_ACTIVEQUEUES",
         "PROPID_MGMT_MSMQ_PRIVATEQ"),
        Pseudonyms.name,
    ),
    "PROPID_MGMT_MSMQ_DSSERVER": Pseudonyms.host,
    "PROPID_MGMT_QUEUE_SUBQUEUE_NAMES": Pseudonyms.queue,
    **dict.fromkeys(
        ("PROPID_MGMT_QUEUE_NEXTHOPS", "PROPID_MGMT_QUEUE_EOD_SOURCE_INFO", "PROPID_MGMT_QUEUE_CONNECTION_HISTORY"),
        Pseudonyms.text,
    ),
}  # fmt: skip
_PROPERTY_CODES: Final = frozenset(
    {f"PROPID_MGMT_QUEUE_{name}" for name in ("TYPE", "LOCATION", "XACT", "FOREIGN", "STATE")}
    | {f"PROPID_MGMT_QUEUE_EOD_{name}" for name in ("LAST_ACK", "FIRST_NON_ACK", "LAST_NON_ACK", "NEXT_SEQ")}
    | {"PROPID_MGMT_MSMQ_CONNECTED", "PROPID_MGMT_MSMQ_TYPE"}
)


def how(table: Table, column: str) -> How | None:
    """Return what is done to a column with texts or bytes; None where nobody has decided."""
    return _OF_TABLES[table].get(column) or _EVERYWHERE.get(column)


def holds_text(column: pa.DataType) -> bool:
    """Whether a column's type has texts or bytes anywhere in it."""
    if pa.types.is_nested(column):
        return any(holds_text(column.field(at).type) for at in range(column.num_fields))
    return bool(pa.types.is_string(column) or pa.types.is_binary(column))


def redact(table: Table, rows: pa.RecordBatch, by: Pseudonyms) -> pa.RecordBatch:
    """Return rows of a table of bronze or silver with pseudonyms in the place of names, and no bytes of messages.

    A column that is nowhere decided about is a KeyError.
    """
    out = {}
    for field, array in zip(rows.schema, rows.columns, strict=True):
        if field.name == "sighting_key":  # a key of the call's key, and so it stays
            out[field.name] = replaced(rows.column("call_key"), lambda call: key(by.key(call)))
        elif not holds_text(field.type):
            out[field.name] = array
        elif (done := how(table, field.name)) is None:
            raise KeyError(f"{table}.{field.name}: what it holds is not declared in {__name__}")
        else:
            out[field.name] = done(by, array)
    if table == PROPERTIES:
        out |= _properties(rows, by)
    return pa.RecordBatch.from_arrays(
        [out[name].cast(rows.schema.field(name).type) for name in out], schema=rows.schema
    )


def _properties(rows: pa.RecordBatch, by: Pseudonyms) -> dict[str, pa.Array]:
    """Return the values of properties: what a text is hangs on the property."""
    names = rows.column("property_name").to_pylist()
    told: dict[str, list[Any]] = {}
    columns = ("value_text", "value_texts", "value_json", "value_binary")
    for column in columns:
        values = rows.column(column).to_pylist()
        told[column] = [
            None if value is None else _value(by, name, value, column)
            for name, value in zip(names, values, strict=True)
        ]
    codes = rows.column("value_binary")
    kept = pc.is_in(rows.column("property_name"), pa.array(sorted(_PROPERTY_CODES)))
    told_arrays = {column: pa.array(told[column], rows.column(column).type) for column in columns[:3]}
    return {**told_arrays, "value_binary": pc.if_else(kept, codes, pa.nulls(len(codes), codes.type))}


def _value(by: Pseudonyms, name: str | None, value: Any, column: str) -> Any:  # noqa: ANN401 - text, texts, or bytes
    said = _PROPERTY_TEXTS.get(name or "")
    if said is None:
        return value if name in _PROPERTY_CODES else None
    if isinstance(value, list):
        return [None if each is None else said(by, each) for each in value]
    if isinstance(value, str):
        return by.json(value) if column == "value_json" else said(by, value)
    return None
