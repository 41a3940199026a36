"""silver: decoded facts, each row with the keys of what it came from.

Numbers are as sent. A parameter is null where its method has none or where it could not be decoded; then
``errors`` says so.
"""

from __future__ import annotations

from schemas.table import (
    BIGINT,
    BIGINTS,
    BINARY,
    BOOLEAN,
    ERRORS,
    FOUR_TUPLE,
    INT,
    INTS,
    STRING,
    TIMESTAMP,
    UINT64,
    Column,
    Table,
    closing_columns,
)

DECODING = (
    Column("errors", ERRORS, "what did not decode: code, field, offset in the stub in bytes; empty when all is well"),
    Column("decoder_version", STRING, "version of the decoders that made the row"),
)

REMOTE_READ_CALLS = Table(
    "silver",
    "remote_read_calls",
    "One row per qm2qm or RemoteRead call, with its parameters of both directions.",
    key=("call_key",),
    dated_by=("requested_at", "responded_at"),
    columns=(
        Column("call_key", STRING, "bronze.rpc_calls"),
        Column("protocol", STRING, "qm2qm ([MS-MQQP]) or RemoteRead ([MS-MQRR])"),
        Column("method", STRING, "the IDL's name of the operation; null when the opnum is not known"),
        Column("opnum", INT, "operation number"),
        Column("connection_id", STRING, "bronze.connections"),
        Column("call_id", BIGINT, "call id of the PDUs"),
        *FOUR_TUPLE,
        Column("requested_at", TIMESTAMP, "time of the request's first byte, UTC"),
        Column("responded_at", TIMESTAMP, "time of the response's first byte, UTC"),
        Column("queue_format_type", INT, "QUEUE_FORMAT.m_qft, the kind of format name"),
        Column("queue_format_name", STRING, "format name of the queue asked for, as text"),
        Column("queue", STRING, "normal form of the queue opened; R_OpenQueue and R_OpenQueueForMove alone"),
        Column("access", BIGINT, "access mode asked for, as sent"),
        Column("share_mode", BIGINT, "share mode asked for, as sent"),
        Column("client_id", STRING, "GUID of the client's queue manager, also pLicGuid, lower case"),
        Column("non_routing_server", BOOLEAN, "the client says that it is no routing server"),
        Column("workgroup", BOOLEAN, "the client says that it is in workgroup mode"),
        Column("version_major", INT, "major version, of the client or as answered"),
        Column("version_minor", INT, "minor version, of the client or as answered"),
        Column("build_number", INT, "build number, of the client or as answered"),
        Column("returned_port", BIGINT, "TCP port that a port-asking method answered"),
        Column("port_type", BIGINT, "kind of port that was asked for"),
        Column("context_handle", STRING, "context handle given, or for opening methods returned, hex of 20 bytes"),
        Column("remote_read_handle", STRING, "qm2qm: PCTX_REMOTEREAD_HANDLE that Start returned or End gave, hex"),
        Column("queue_handle", BIGINT, "hQueue, hRemoteQueue"),
        Column("queue_descriptor", BIGINT, "pQueue, dwQueue"),
        Column("open_context", BIGINT, "dwpContext"),
        Column("mqs", BIGINT, "dwMQS, kind and version of the client's queue manager"),
        Column("cursor_handle", BIGINT, "cursor, 0 without one"),
        Column("action", BIGINT, "ulAction of a Start: receive or peek, and where"),
        Column("action_name", STRING, "name of action, MQ_ACTION_... or MQ_LOOKUP_...; 0x and hex when unknown"),
        Column("timeout_ms", BIGINT, "how long the server may wait, milliseconds; 4294967295 is for ever"),
        Column("request_id", BIGINT, "dwRequestID, the client's number of a Start, unique in its context"),
        Column("lookup_id", UINT64, "LookupId as sent, 0 included"),
        Column("sequence_id", UINT64, "SequentialId, pSequenceId as sent, 0 included"),
        Column("max_body_bytes", BIGINT, "most bytes of the body that the client takes"),
        Column("max_compound_message_bytes", BIGINT, "most bytes of a compound message that the client takes"),
        Column("transaction_id", STRING, "transaction identifier (XACTUOW) as GUID text; null when zero"),
        Column("propagation_token_bytes", BIGINT, "size of the transaction propagation token, bytes"),
        Column("acknowledgement_class", BIGINT, "class of R_SetUserAcknowledgementClass"),
        Column("ack", BIGINT, "dwAck of an End: whether the message was taken"),
        Column("ack_name", STRING, "RR_ACK, RR_NACK, RR_UNKNOWN; 0x and hex when unknown"),
        Column("move_context", UINT64, "context of a move: of opnum 11, and ullContextTo"),
        Column("hresult", BIGINT, "result of the call, unsigned; null for methods without one and for faults"),
        Column("hresult_name", STRING, "name of hresult; 0x and hex when unknown"),
        Column("arrived_at", TIMESTAMP, "ArriveTime of the message that came back, UTC"),
        Column("section_types", INTS, "SectionType of each section that came back, in order"),
        Column("section_bytes", BIGINTS, "bytes of each section that came back, in order"),
        Column("section_allocated_bytes", BIGINTS, "SectionSizeAlloc of each section, bytes, in order"),
        Column("packet_bytes", BIGINT, "bytes of the message packet that came back"),
        Column("packet", BINARY, "its sections one after the other, no filler; only with store.packets"),
        *DECODING,
        *closing_columns("silver", "requested_at, else of responded_at"),
    ),
)

TABLES = (REMOTE_READ_CALLS,)
