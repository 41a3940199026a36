"""What each column holds that is private, and how bronze and silver are redacted. No Spark.

A column is kept, emptied, or its names are replaced by pseudonyms. Every column that holds text or bytes is declared
here, also those that are kept: a new column is not written before somebody has decided about it (``tests/privacy``).
Stubs, packets, bodies, samples and tokens are never kept, whatever is redacted: all of them hold names. Other tables
are made of redacted ones: what their columns hold is declared in the same way, for who may read them (``governance``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.silver.decode import ROW_PER_CALL_TABLES, ROWS_PER_RESPONSE_TABLES
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW
from schemas.comqc import COMQC_CALLS
from schemas.eod import EOD_SOURCES
from schemas.messages import MESSAGES
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, PROPERTIES, QUEUE_SNAPSHOTS
from schemas.sessions import ORDER_ACKS, PINGS, SENDINGS, SESSION_PACKETS, SESSIONS
from schemas.table import Column, Table
from udfs.columns.arrays import over_distinct
from udfs.errors import remove_failure_values
from udfs.keys import key
from udfs.properties.property_names import (
    MACHINE_ACTIONS,
    PROPERTY_TEXTS,
    QUEUE_ACTIONS,
    property_column_name,
    property_name,
)
from udfs.pseudonyms import (
    KIND_ADDRESSES,
    KIND_HOSTS,
    KIND_LABELS,
    KIND_QUEUES,
    KIND_SENDERS,
    PSEUDONYM_KINDS,
    Pseudonymizer,
)

TextRedactor = Callable[[Pseudonymizer, str], str]

REDACTED_BRONZE_TABLES: Final = (
    CAPTURE_FILES,
    CONNECTIONS,
    RPC_BINDS,
    RPC_CALLS,
    SESSION_PACKETS,
    PINGS,
    QUARANTINE,
    PENDING,
    SNAPSHOTS_RAW,
    SNAPSHOT_FILES,
)
REDACTED_SILVER_TABLES: Final = (*ROWS_PER_RESPONSE_TABLES, *ROW_PER_CALL_TABLES, ORDER_ACKS, SENDINGS, SESSIONS)


@dataclass(frozen=True, slots=True)
class ColumnRedactor:
    """How a column is redacted, and what it holds.

    ``name_kinds`` are the kinds of names (``PSEUDONYM_KINDS``) that its values are, or that are in its texts. The names
    and addresses of machines in a queue's name count as names of queues. ``holds_content`` is true for what was sent
    itself, as stubs and bodies, and for what confirms a guess of it.
    """

    redact: Callable[[Pseudonymizer, pa.Array], pa.Array]
    name_kinds: frozenset[str] = frozenset()
    holds_content: bool = False

    def __call__(self, pseudonyms: Pseudonymizer, array: pa.Array) -> pa.Array:
        """Return the redacted values of the column."""
        return self.redact(pseudonyms, array)


def _keep_values(_pseudonyms: Pseudonymizer, array: pa.Array) -> pa.Array:
    return array


def _drop_values(_pseudonyms: Pseudonymizer, array: pa.Array) -> pa.Array:
    return pa.nulls(len(array), array.type)


def _redact_texts(redactor: TextRedactor, *name_kinds: str) -> ColumnRedactor:
    """Return a redactor for a column of texts that hold names of these kinds."""
    return ColumnRedactor(
        lambda pseudonyms, array: over_distinct(array, partial(redactor, pseudonyms), pa.string()),
        frozenset(name_kinds),
    )


def _redact_nested(*name_kinds: str, each: TextRedactor | None = None, **fields: TextRedactor) -> ColumnRedactor:
    """Return a redactor for lists of texts (``each``), or for ``fields`` of structs: texts or lists of texts."""

    def redacted(pseudonyms: Pseudonymizer, value: Any, by: TextRedactor | None) -> Any:  # noqa: ANN401 - of the column
        if isinstance(value, str) and by is not None:
            return by(pseudonyms, value)
        if isinstance(value, list):
            return [redacted(pseudonyms, item, by) for item in value]
        if isinstance(value, dict):
            return {name: redacted(pseudonyms, item, fields.get(name)) for name, item in value.items()}
        return value

    return ColumnRedactor(
        lambda pseudonyms, array: pa.array(
            [redacted(pseudonyms, value, each) for value in array.to_pylist()], array.type
        ),
        frozenset(name_kinds),
    )


def _keep_known(known: Callable[[str], object]) -> TextRedactor:
    """Return a redactor that keeps the texts of a vocabulary, or of a form, and replaces others by pseudonyms."""
    return lambda pseudonyms, text: pseudonyms.known_text(text, known)


def _keep_words(texts: Iterable[str]) -> TextRedactor:
    """Return a redactor that keeps texts of a vocabulary, which is in upper case, however they are written."""
    words = frozenset(texts)
    return _keep_known(lambda text: text.upper() in words)


def _redact_version(pseudonyms: Pseudonymizer, text: str) -> str:
    """Redact the version of a system and of Message Queuing, word by word: other words and addresses are replaced."""
    return _WORD.sub(lambda word: pseudonyms.known_text(word[0], _VERSION_WORD.fullmatch), text)


def _null_values(_pseudonyms: Pseudonymizer, array: pa.Array) -> pa.Array:
    """Keep the types of variants and remove their values: texts, numbers, JSON."""

    def without_value(variant: Any) -> Any:  # noqa: ANN401 - a struct
        return {name: None if name in ("value", "value_json") else each for name, each in variant.items()}

    rows = [None if row is None else [without_value(each) for each in row] for row in array.to_pylist()]
    return pa.array(rows, array.type)


_SIGHTING_KEY: Final = "sighting_key"
_WORD: Final = re.compile(r"[^\s,;()]+")
# As PROPID_MGMT_MSMQ_TYPE has them: "Windows 2000 Server, MSMQ 3.0". Four numbers would be an address.
_VERSION_WORD: Final = re.compile(
    r"microsoft|windows|nt|xp|vista|server|workstation|professional|datacenter|standard|enterprise|edition|r2|msmq|"
    r"message|queuing|independent|dependent|client|version|build|service|pack|sp[0-9]|[0-9]{1,5}(\.[0-9]{1,5}){0,2}",
    re.IGNORECASE,
)
_INTENTS: Final = frozenset({"Send", "Publish", "Subscribe", "Unsubscribe", "Reply", "p2p", "pub"})  # of frameworks
_PORT: Final = re.compile(r"[0-9]{1,5}")
_COLLECTOR_VERSION: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){0,2}")
_SNAPSHOT_ERROR: Final = re.compile(
    r"timeout|refused|unresolved|unauthenticated|cut|malformed|limit_(answer|objects|bytes|seconds)|fault:0x[0-9A-F]{8}"
)

# Texts that this program makes (names of codes, hex digits, GUIDs), and paths of captures. No text that a capture or a
# snapshot file contains may be in such a column of bronze and silver (tests/privacy/redaction/test_planted.py).
_KEPT: Final = ColumnRedactor(_keep_values)
_CONTENT: Final = ColumnRedactor(_drop_values, holds_content=True)
_VALUES: Final = ColumnRedactor(_drop_values, frozenset(PSEUDONYM_KINDS))
_ENDPOINTS: Final = ColumnRedactor(_drop_values, frozenset({KIND_ADDRESSES}))
_KEY: Final = _redact_texts(Pseudonymizer.row_key)
_KEYS: Final = _redact_nested(each=Pseudonymizer.row_key)
_ADDRESS: Final = _redact_texts(Pseudonymizer.address, KIND_ADDRESSES)
_ADDRESSES: Final = _redact_nested(KIND_ADDRESSES, each=Pseudonymizer.address)
_ENDPOINT: Final = _redact_texts(Pseudonymizer.application_address, KIND_QUEUES, KIND_HOSTS)
_APPLICATION_ID: Final = _redact_texts(Pseudonymizer.application_id, KIND_LABELS)  # the application chooses them
_LABEL: Final = _redact_texts(Pseudonymizer.label, KIND_LABELS)
_MESSAGE_TYPES: Final = _redact_nested(KIND_LABELS, each=Pseudonymizer.label)
_MACHINE: Final = _redact_texts(Pseudonymizer.host_name, KIND_HOSTS)
_NAME: Final = _redact_texts(Pseudonymizer.queue_name, KIND_QUEUES)
_NAMES: Final = _redact_nested(KIND_QUEUES, each=Pseudonymizer.queue_name)
_QUEUE: Final = _redact_texts(Pseudonymizer.queue_part, KIND_QUEUES)
_SENDER: Final = _redact_texts(Pseudonymizer.sender_name, KIND_SENDERS)
_SNAPSHOT_FILE: Final = _redact_texts(Pseudonymizer.snapshot_path, KIND_HOSTS)
_TEXT: Final = _redact_texts(Pseudonymizer.any_text, *PSEUDONYM_KINDS)
_TEXTS: Final = _redact_nested(*PSEUDONYM_KINDS, each=Pseudonymizer.any_text)

# In every table that has them.
_COMMON_COLUMNS: Final[Mapping[str, ColumnRedactor]] = {
    **dict.fromkeys(("connection_id", "call_key", "bind_key", "snapshot_id", "pending_key", "quarantine_key",
                     "packet_key", "ping_key"), _KEY),
    **dict.fromkeys(("client_address", "server_address"), _ADDRESS),
    **dict.fromkeys(("queue", "queue_format_name"), _NAME),
    "queue_manager": _MACHINE,
    **dict.fromkeys(
        ("capture_id", "response_capture_id", "run_id", "errors", "decoder_version", "interface_name",
         "interface_uuid", "transfer_syntax", "protocol", "method", "hresult_name", "fault_name", "source",
         "object_type", "client_id", "context_handle", "message_key", "status", "property_states", "clocks"),
        _KEPT,
    ),
    "error": _redact_texts(lambda _pseudonyms, text: remove_failure_values(text), *PSEUDONYM_KINDS),
}  # fmt: skip
_TABLE_COLUMNS: Final[Mapping[Table, Mapping[str, ColumnRedactor]]] = {
    CAPTURE_FILES: {
        **dict.fromkeys(
            ("path", "other_paths", "format", "compression", "damage", "first_key", "tail_key", "other_files"),
            _KEPT,
        ),
        "resume": _ENDPOINTS,  # it holds addresses: a capture that has grown is read from its beginning
        "servers": _ADDRESSES,
        "server_connections": _redact_nested(KIND_ADDRESSES, server_address=Pseudonymizer.address),
        **dict.fromkeys(("learned_endpoints", "reread_endpoints"), _ENDPOINTS),  # captures of one run show them
        "tunnels": _redact_nested(KIND_ADDRESSES, source=Pseudonymizer.address, destination=Pseudonymizer.address),
        **dict.fromkeys(("packets_not_read", "times_go_back", "tap_steps"), _KEPT),
        "host_names": _redact_nested(
            KIND_HOSTS, KIND_ADDRESSES, address=Pseudonymizer.address, name=Pseudonymizer.host_name
        ),
    },
    CONNECTIONS: dict.fromkeys(("kind", "closed_by", "not_established", "uncaptured_side"), _KEPT),
    RPC_BINDS: {
        **dict.fromkeys(
            ("interface_version", "transfer_syntaxes_offered", "result"), _KEPT
        ),
        "secondary_address": _redact_texts(_keep_known(_PORT.fullmatch), KIND_HOSTS),  # else a pipe, or any text
        "handshake": _CONTENT,
        "auth_principal": _SENDER,
        "auth_workstation": _MACHINE,
        "auth_service": _SENDER,
    },
    RPC_CALLS: {
        **dict.fromkeys(
            ("object_uuid", "byte_order", "response_byte_order", "outcome", "closed_reason", "sightings"), _KEPT
        ),
        "opened_by": _SENDER,
        "verified_by": _SENDER,
        **dict.fromkeys(
            ("request_stub", "response_stub", "request_signed_bytes", "response_signed_bytes"), _CONTENT
        ),
    },
    SESSION_PACKETS: {**dict.fromkeys(("sent_by", "kind", "sightings"), _KEPT), "packet": _CONTENT},
    PINGS: dict.fromkeys(("client_queue_manager", "server_queue_manager"), _KEPT),  # GUIDs
    QUARANTINE: {"reason": _KEPT, "sample": _CONTENT, "source_path": _SNAPSHOT_FILE},
    PENDING: {
        **dict.fromkeys(("kind", "waits_for", "counted", "evidence", "over_limit", "opening"), _KEPT),
        "learned_interfaces": _KEPT,  # interfaces
        "counted_server": _ADDRESS,
        **dict.fromkeys(("call_keys", "quarantine_keys", "packet_keys"), _KEYS),
        **dict.fromkeys(("segments", "runs", "merge_digest", "calls_made"), _CONTENT),
    },
    SNAPSHOTS_RAW: {
        "format_name": _NAME,
        "properties": ColumnRedactor(_null_values, frozenset(PSEUDONYM_KINDS)),
        "error": _redact_texts(_keep_known(_SNAPSHOT_ERROR.fullmatch)),
        "collector_version": _redact_texts(_keep_known(_COLLECTOR_VERSION.fullmatch)),
        "source_path": _SNAPSHOT_FILE,
    },
    SNAPSHOT_FILES: {"path": _SNAPSHOT_FILE},
    REMOTE_READ_CALLS: {
        **dict.fromkeys(("remote_read_handle", "action_name", "transaction_id", "ack_name"), _KEPT),
        "packet": _CONTENT,
    },
    CLIENT_CALLS: {"remote_queue_name": _NAME, "client_name": _MACHINE},
    MANAGEMENT_CALLS: {"action": _redact_texts(_keep_words(MACHINE_ACTIONS | QUEUE_ACTIONS))},
    MESSAGES: {
        **dict.fromkeys(
            ("seen_in", "source_queue_manager", "message_id", "delivery", "class_name", "correlation_id",
             "comqc_rejected", "comqc_deviations", "header_sizes", "queue_manager_address", "connector_type",
             "connector_queue_manager", "destination_queue_manager", "message_kind"),
            _KEPT,
        ),
        **dict.fromkeys(
            ("inferred_queue", "destination_queue", "admin_queue", "response_queue", "dead_letter_queue",
             "report_queue"),
            _NAME,
        ),
        **dict.fromkeys(("destination_list", "admin_list", "response_list"), _NAMES),
        **dict.fromkeys(("subqueue", "target_subqueue"), _QUEUE),
        **dict.fromkeys(("label", "body_root", "exception_type"), _LABEL),
        "sent_types": _MESSAGE_TYPES,
        **dict.fromkeys(("framework", "framework_evidence", "body_format", "application_errors"), _KEPT),
        "intent": _redact_texts(_keep_known(_INTENTS.__contains__)),
        **dict.fromkeys(("application_message_id", "conversation_id", "related_to"), _APPLICATION_ID),
        **dict.fromkeys(("originating_endpoint", "processing_endpoint", "reply_to", "failed_queue"), _ENDPOINT),
        "report": _redact_nested(KIND_ADDRESSES, next_hop=Pseudonymizer.address),
        "sender_id": _SENDER,
        "sender_address": _ADDRESS,
        "body_sha256": replace(_KEY, holds_content=True),  # a plain hash would confirm a guessed body
        **dict.fromkeys(
            ("body", "extension", "soap_header", "application_headers", "exception_message"), _CONTENT
        ),
    },
    SESSIONS: dict.fromkeys(
        ("closed_by", "initiator_queue_manager", "acceptor_queue_manager", "asked_queue_manager", "outcome", "ended",
         "not_established", "overlapping_captures", "uncaptured_side", "missing"),
        _KEPT,
    ),
    SENDINGS: {
        **dict.fromkeys(
            ("sent_by", "sender_queue_manager", "receiver_queue_manager", "session_acked_in", "stored_in"), _KEPT
        ),
        **dict.fromkeys(("sender_address", "receiver_address"), _ADDRESS),
        **dict.fromkeys(("session_acked_by", "stored_by"), _KEY),
    },
    ORDER_ACKS: {
        **dict.fromkeys(
            ("sent_by", "kind", "class_name", "queue_manager", "acknowledged_queue_manager", "acknowledged_message_id"),
            _KEPT,
        ),
        "destination_queue": _NAME,
    },
    COMQC_CALLS: {
        **dict.fromkeys(
            ("header", "target_clsid", "partition_id", "interface_id", "interface_name", "method", "argument_names"),
            _KEPT,
        ),
        **dict.fromkeys(("target_text", "marshaled", "security_data"), _CONTENT),
        **dict.fromkeys(("caller_sid", "caller_name"), _SENDER),
        "callers": _redact_nested(
            KIND_SENDERS,
            **dict.fromkeys(("sid", "name", "application_sid", "application_name"), Pseudonymizer.sender_name),
        ),
        "arguments": ColumnRedactor(_null_values, holds_content=True),
    },
    PROPERTIES: {
        **dict.fromkeys(("property_name", "vt_name", "state"), _KEPT),
        **dict.fromkeys(("value_text", "value_texts", "value_json"), _VALUES),  # filled by _redact_property_values
        "value_binary": _VALUES,  # silver.queue_snapshots has what it says, as numbers
    },
    QUEUE_SNAPSHOTS: {
        **{
            property_column_name("queue", number): _redact_texts(_keep_words(texts))
            for (kind, number), texts in PROPERTY_TEXTS.items()
            if kind == "queue"
        },
        **dict.fromkeys(("pathname", "formatname"), _NAME),
        "nexthops": _TEXTS,
        "eod_source_info": _redact_nested(
            KIND_QUEUES,
            KIND_HOSTS,
            sender_format_name=Pseudonymizer.queue_name,
            sender_queue_manager=Pseudonymizer.host_name,  # of the wire a GUID, of a snapshot file any text
        ),
        "connection_history": _redact_nested(*PSEUDONYM_KINDS, addresses=Pseudonymizer.any_text),
        "subqueue_names": _redact_nested(KIND_QUEUES, each=Pseudonymizer.queue_part),
    },
    MACHINE_SNAPSHOTS: {
        "connected": _redact_texts(_keep_words(PROPERTY_TEXTS["machine", 4])),
        "type": _redact_texts(_redact_version),
        **dict.fromkeys(("activequeues", "privateq"), _NAMES),
        "dsserver": _MACHINE,
    },
    EOD_SOURCES: {"sender_queue_manager": _MACHINE},  # as in eod_source_info
}  # fmt: skip

# In every table that is made of redacted ones, and in those of runs.
_MADE_COLUMNS: Final[Mapping[str, ColumnRedactor]] = {
    **_COMMON_COLUMNS,
    **dict.fromkeys(
        ("acknowledged_on", "attempt_key", "attempt_keys", "blocked_by", "blocks", "captures", "evidence", "hop_key",
         "host_key", "interval_key", "kept_packets", "missing", "outcomes", "remote_open", "sequence_key", "sides",
         "source_key", "steps", "transfer_key", "alert_key", "coverage_key", "finding_key", "result_key",
         "access_name", "action", "action_name", "arrival_class_name", "auth_level_name", "began", "cause",
         "class_name", "condition", "confidence", "delivery", "destination_queue_manager", "disagrees_with_sender",
         "end_hresult_name", "ended_by", "fate", "final_class_name", "handle", "layer", "loss_risk", "measure",
         "message_id", "message_kind", "named_as", "operation", "outcome", "queue_manager_id", "receive_class_name",
         "receiver_queue_manager", "remote_read_handle", "result_name", "rule_id", "scope", "sender_queue_manager",
         "severity", "share_mode_name", "source_queue_manager", "start_hresult_name", "state", "state_after",
         "state_before", "suggestion", "transaction_id", "description", "expectation", "key_column", "limits",
         "suite", "table", "unit", "command", "program_version", "stage_seconds", "engine", "master", "rows_written"),
        _KEPT,
    ),
    **dict.fromkeys(
        ("canonical_queue", "destination_queue", "inferred_queue", "moved_to", "opened_queue", "other_queue",
         "sender_format_name", "sender_queue", "target_queue"),
        _NAME,
    ),
    **dict.fromkeys(("directory_server", "from_machine", "host_name", "to_machine", "workstation"), _MACHINE),
    **dict.fromkeys(("address", "receiver_address", "sender_address"), _ADDRESS),
    "principal": _SENDER,
    "readers": _ADDRESSES,
    **dict.fromkeys(("application_message_id", "conversation_id"), _APPLICATION_ID),
    "sent_types": _MESSAGE_TYPES,
    "reports": _redact_nested(KIND_ADDRESSES, next_hop=Pseudonymizer.address),
    # Sentences, values of any column, and settings.
    "announced": _redact_nested(*PSEUDONYM_KINDS, provenance=Pseudonymizer.any_text),
    **dict.fromkeys(
        ("actual", "expected", "message", "observed", "provenance", "subject", "subject_text"), _TEXT
    ),
    "failed_keys": _TEXTS,
}  # fmt: skip
_REDACTED_TABLES: Final = frozenset((*REDACTED_BRONZE_TABLES, *REDACTED_SILVER_TABLES))

# How the texts of properties are redacted; those of others are emptied.
_PROPERTY_REDACTORS: Final[Mapping[str, TextRedactor]] = {
    **{property_name(kind, number): _keep_words(texts) for (kind, number), texts in PROPERTY_TEXTS.items()},
    "PROPID_MGMT_MSMQ_TYPE": _redact_version,
    **dict.fromkeys(
        ("PROPID_MGMT_QUEUE_PATHNAME", "PROPID_MGMT_QUEUE_FORMATNAME", "PROPID_MGMT_MSMQ_ACTIVEQUEUES",
         "PROPID_MGMT_MSMQ_PRIVATEQ"),
        Pseudonymizer.queue_name,
    ),
    "PROPID_MGMT_MSMQ_DSSERVER": Pseudonymizer.host_name,
    "PROPID_MGMT_QUEUE_SUBQUEUE_NAMES": Pseudonymizer.queue_part,
    **dict.fromkeys(
        ("PROPID_MGMT_QUEUE_NEXTHOPS", "PROPID_MGMT_QUEUE_EOD_SOURCE_INFO", "PROPID_MGMT_QUEUE_CONNECTION_HISTORY"),
        Pseudonymizer.any_text,
    ),
}  # fmt: skip


def column_redactor(table: Table, column: str) -> ColumnRedactor | None:
    """Return the redactor of a column that holds text or bytes; None if none is declared."""
    in_all_tables = _COMMON_COLUMNS if table in _REDACTED_TABLES else _MADE_COLUMNS
    return _TABLE_COLUMNS.get(table, {}).get(column) or in_all_tables.get(column)


def private_content(table: Table, column: Column) -> ColumnRedactor:
    """Return what a column of any table holds; KeyError for one with text or bytes that is not declared.

    Row keys hold nothing private: they are hashes. ``docs/guides/privacy.md`` says what they confirm.
    """
    if column.name == _SIGHTING_KEY or not contains_text_or_bytes(column.type):
        return _KEPT
    return _declared(table, column.name)


def _declared(table: Table, column: str) -> ColumnRedactor:
    if (redactor := column_redactor(table, column)) is None:
        raise KeyError(f"{table}.{column}: what it holds is not declared in {__name__}")
    return redactor


def contains_text_or_bytes(column: pa.DataType) -> bool:
    """Whether a type has text or bytes anywhere in it."""
    if pa.types.is_nested(column):
        return any(contains_text_or_bytes(column.field(at).type) for at in range(column.num_fields))
    return bool(pa.types.is_string(column) or pa.types.is_binary(column))


def columns_to_read(table: Table) -> list[str]:
    """Return the names of the columns that are not just emptied, as those of stubs are."""
    return [name for name in table.names if table == PROPERTIES or not _is_emptied(column_redactor(table, name))]


def _is_emptied(redactor: ColumnRedactor | None) -> bool:
    return redactor is not None and redactor.redact is _drop_values


def with_all_columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with all columns of a schema: those that were not read are null."""
    arrays = [
        rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def redact_rows(table: Table, rows: pa.RecordBatch, pseudonyms: Pseudonymizer) -> pa.RecordBatch:
    """Redact rows of a table of bronze or silver. KeyError for a column with text or bytes that is not declared."""
    out = {}
    for field, array in zip(rows.schema, rows.columns, strict=True):
        if field.name == _SIGHTING_KEY:  # the key of the call_key, or of the packet_key
            seen = pc.coalesce(rows.column("call_key"), rows.column("packet_key"))
            out[field.name] = over_distinct(seen, lambda row_key: key(pseudonyms.row_key(row_key)), pa.string())
        elif not contains_text_or_bytes(field.type):
            out[field.name] = array
        else:
            out[field.name] = _declared(table, field.name)(pseudonyms, array)
    if table == PROPERTIES:
        out |= _redact_property_values(rows, pseudonyms)
    return pa.RecordBatch.from_arrays(
        [out[name].cast(rows.schema.field(name).type) for name in out], schema=rows.schema
    )


def _redact_property_values(rows: pa.RecordBatch, pseudonyms: Pseudonymizer) -> dict[str, pa.Array]:
    """Redact the values of properties, each by its property."""
    names = rows.column("property_name").to_pylist()
    redacted: dict[str, pa.Array] = {}
    for column in ("value_text", "value_texts", "value_json"):
        values = [
            None if value is None else _redact_property_value(pseudonyms, name, value, column)
            for name, value in zip(names, rows.column(column).to_pylist(), strict=True)
        ]
        redacted[column] = pa.array(values, rows.column(column).type)
    return redacted


def _redact_property_value(
    pseudonyms: Pseudonymizer,
    name: str | None,
    value: Any,  # noqa: ANN401 - a text or texts
    column: str,
) -> Any:  # noqa: ANN401
    redactor = _PROPERTY_REDACTORS.get(name or "")
    if redactor is None:
        return None
    if isinstance(value, list):
        return [None if each is None else redactor(pseudonyms, each) for each in value]
    if isinstance(value, str):
        return pseudonyms.json_text(value) if column == "value_json" else redactor(pseudonyms, value)
    return None
