"""silver: what queue managers and queues were found to be, property by property and observation by observation."""

from __future__ import annotations

import pyarrow as pa

from schemas.table import (
    BIGINT,
    BINARY,
    DECODER_COLUMNS,
    INT,
    STRING,
    STRINGS,
    TIMESTAMP,
    UINT64,
    Column,
    Table,
    list_of,
    run_columns,
)

_SEQUENCE = pa.struct(
    [
        ("sequence_id", UINT64),
        ("sequence_number", BIGINT),
        ("previous_number", BIGINT),
    ]
)
_SOURCES = list_of(
    pa.struct(
        [
            ("sender_format_name", STRING),
            ("sender_queue_manager", STRING),
            ("sequence_id", UINT64),
            ("last_number", BIGINT),
            ("last_access_at", TIMESTAMP),
            ("reject_count", BIGINT),
        ]
    )
)
_HISTORY = list_of(
    pa.struct(
        [
            ("status", BIGINT),
            ("status_name", STRING),
            ("changed_at", TIMESTAMP),
            ("error", BIGINT),
            ("error_name", STRING),
            ("addresses", STRINGS),
        ]
    )
)

_IDENTITY = (
    Column("snapshot_id", STRING, "bronze.snapshots_raw; of the wire the call key"),
    Column("call_key", STRING, "bronze.rpc_calls; null for a collector's"),
    Column("source", STRING, "wire or collector"),
    Column("queue_manager", STRING, "of the wire the server's address, of a collector the configured name"),
)
_QUEUE = (
    Column("queue", STRING, "normal form of the queue asked about"),
    Column("queue_format_name", STRING, "its format name as asked, part of an outgoing queue's identity"),
)
_OBSERVED = (
    Column("observed_at", TIMESTAMP, "time of the answer, UTC"),
    Column("hresult", BIGINT, "result of the question, unsigned; null for faults and what a collector did not get"),
)
_STATES = (
    Column("hresult_name", STRING, "name of hresult; 0x and hex when unknown"),
    Column(
        "property_states",
        pa.map_(STRING, STRING),
        "for each property asked, by its column's name or 0x and hex: value, null, error",
    ),
)
_CLOSING = (*DECODER_COLUMNS, *run_columns("silver", "observed_at"))

PROPERTIES = Table(
    "silver",
    "properties",
    "One row per property value of each observation; of a failed one a row per property asked.",
    key=("snapshot_id", "place"),
    event_date_columns=("observed_at",),
    columns=(
        *_IDENTITY,
        Column("object_type", STRING, "machine, queue, session"),
        *_QUEUE,
        *_OBSERVED,
        Column("place", INT, "place among the properties asked, from 0"),
        Column("property_id", INT, "number of the property"),
        Column("property_name", STRING, "PROPID_MGMT_MSMQ_* or PROPID_MGMT_QUEUE_*; 0x and hex when unknown"),
        Column("vt", INT, "type of the PROPVARIANT; null when the question failed"),
        Column("vt_name", STRING, "name of vt"),
        Column("state", STRING, "value; null: VT_NULL or VT_EMPTY; error: the question failed"),
        Column("value_decimal", UINT64, "value of a number"),
        Column("value_text", STRING, "text or GUID"),
        Column("value_binary", BINARY, "value of a blob"),
        Column("value_texts", STRINGS, "vector of texts or GUIDs"),
        Column("value_json", STRING, "any other vector, as JSON; nested variants as vt and value"),
        *_CLOSING,
    ),
)

MACHINE_SNAPSHOTS = Table(
    "silver",
    "machine_snapshots",
    "One row per queue manager per observation, failed ones too.",
    key=("snapshot_id",),
    event_date_columns=("observed_at",),
    columns=(
        *_IDENTITY,
        *_OBSERVED,
        *_STATES,
        Column("activequeues", STRINGS, "format names of active queues"),
        Column("privateq", STRINGS, "path names of all private queues"),
        Column("dsserver", STRING, "name of the directory server"),
        Column("connected", STRING, "CONNECTED or DISCONNECTED, as reported"),
        Column("type", STRING, "version of system and Message Queuing, as reported"),
        Column("bytes_in_all_queues", UINT64, "bytes in all queues"),
        *_CLOSING,
    ),
)

QUEUE_SNAPSHOTS = Table(
    "silver",
    "queue_snapshots",
    "One row per queue per observation, failed ones too.",
    key=("snapshot_id",),
    event_date_columns=("observed_at",),
    columns=(
        *_IDENTITY,
        *_QUEUE,
        *_OBSERVED,
        *_STATES,
        Column("pathname", STRING, "path name, as reported"),
        Column("formatname", STRING, "format name, as reported; some queue managers report a path name"),
        Column("type", STRING, "PUBLIC, PRIVATE, MACHINE, CONNECTOR, MULTICAST"),
        Column("location", STRING, "LOCAL, or REMOTE for an outgoing queue"),
        Column("xact", STRING, "whether transactional: YES, NO, UNKNOWN"),
        Column("foreign", STRING, "whether of a foreign system: YES, NO, UNKNOWN"),
        Column("message_count", BIGINT, "messages in the queue"),
        Column("bytes_in_queue", BIGINT, "bytes of these messages"),
        Column("journal_message_count", BIGINT, "messages in the journal"),
        Column("bytes_in_journal", BIGINT, "bytes in the journal"),
        Column("state", STRING, "state of the connection, as reported"),
        Column("nexthops", STRINGS, "addresses that messages are sent to next"),
        Column("eod_last_ack", _SEQUENCE, "last message acknowledged by order"),
        Column("eod_last_ack_time", TIMESTAMP, "when that came, UTC"),
        Column("eod_last_ack_count", BIGINT, "times that it came"),
        Column("eod_first_non_ack", _SEQUENCE, "oldest message not acknowledged"),
        Column("eod_last_non_ack", _SEQUENCE, "newest message not acknowledged"),
        Column("eod_next_seq", _SEQUENCE, "next message to be sent"),
        Column("eod_no_read_count", BIGINT, "messages acknowledged by order and not yet as received"),
        Column("eod_no_ack_count", BIGINT, "messages sent and not acknowledged by order"),
        Column("eod_resend_time", TIMESTAMP, "when the next resend is due, UTC"),
        Column("eod_resend_interval", BIGINT, "interval of resends, seconds"),
        Column("eod_resend_count", BIGINT, "times that the last message was sent"),
        Column("eod_source_info", _SOURCES, "incoming sequences of exactly-once delivery, one per sender"),
        Column("connection_history", _HISTORY, "changes of the connection's state, oldest first"),
        Column("subqueue_count", BIGINT, "number of its subqueues"),
        Column("subqueue_names", STRINGS, "their names"),
        *_CLOSING,
    ),
)

TABLES = (PROPERTIES, QUEUE_SNAPSHOTS, MACHINE_SNAPSHOTS)
