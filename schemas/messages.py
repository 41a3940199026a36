"""silver.messages: what message packets say, one row per sighting of a message."""

from __future__ import annotations

import pyarrow as pa

from schemas.table import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DECODER_COLUMNS,
    ERRORS,
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

DEVIATIONS = list_of(pa.struct([("rule", STRING), ("offset", BIGINT), ("places", INT)]))

REPORT = pa.struct(
    [
        ("source_prefix", STRING),
        ("message_ordinal", BIGINT),
        ("hop_count", INT),
        ("next_hop", STRING),
    ]
)
"""What a report message says of a traced message ([MS-MQQB] 3.1.5.8.9, 3.1.7.1.7)."""

APPLICATION_COLUMNS = (
    Column("framework", STRING, "NServiceBus, Rebus, MassTransit, WCF, System.Messaging; null where nothing decides"),
    Column("framework_evidence", STRING, "what decided framework: a part of the extension, the body or its type"),
    Column(
        "body_format",
        STRING,
        "xml, soap, json, text, gzip, nrbf ([MS-NRBF]), nbfs, nbfse, mtom (SOAP in binary records, with a dictionary, "
        "in MIME), or the VT code of a body of one value; null for others",
    ),
    Column("body_root", STRING, "root element, of SOAP the body's; of JSON the top keys; class and assembly of nrbf"),
    Column("application_message_id", STRING, "the application's own id of the message"),
    Column("conversation_id", STRING, "what all messages of a conversation have in common"),
    Column("related_to", STRING, "id of the message that caused this one, or that it answers"),
    Column("sent_types", STRINGS, "types of the message, as the framework writes them; of WCF the action"),
    Column("originating_endpoint", STRING, "endpoint or address that sent it"),
    Column("processing_endpoint", STRING, "endpoint that processed it; of WCF and MassTransit the one it is sent to"),
    Column("reply_to", STRING, "address for replies"),
    Column("intent", STRING, "Send, Publish, Subscribe, Unsubscribe, Reply; of Rebus p2p, pub"),
    Column("failed_queue", STRING, "queue in which processing failed, of a message that was moved to an error queue"),
    Column("exception_type", STRING, "class of the exception at which processing failed"),
    Column("exception_message", STRING, "what that exception said; only with store.application_headers all and bodies"),
    Column("immediate_retries", INT, "how often processing was tried again at once, as the headers say"),
    Column("delayed_retries", INT, "how often processing was put off, as the headers say"),
    Column("application_sent_at", TIMESTAMP, "when it was sent, as the headers say, UTC"),
    Column("application_messages", INT, "envelopes in the body of a WCF message"),
    Column(
        "application_headers",
        pa.map_(STRING, STRING),
        "all headers of the framework by name; only with store.application_headers all",
    ),
    Column(
        "application_errors",
        ERRORS,
        "truncated, malformed, unsupported, too_large: what of extension or body could not be read, with the offset in "
        "it; null without",
    ),
)
"""What the application's headers and body say (``udfs.application``)."""

MESSAGES = Table(
    layer="silver",
    name="messages",
    comment="One row per sighting of a message: what its packet says, and where it was seen.",
    key=("sighting_key",),
    event_date_columns=("seen_at",),
    looked_up_by=("connection_id",),
    columns=(
        Column(
            "message_key",
            STRING,
            "key of source_queue_manager, message_ordinal, sent_at; null when the UserHeader is not whole",
        ),
        Column("sighting_key", STRING, "key of call_key, in the binary protocol of packet_key: of this sighting"),
        Column("seen_in", STRING, "RemoteRead, qm2qm, binary_protocol"),
        Column("call_key", STRING, "the bronze.rpc_calls row whose response brought the message; null without RPC"),
        Column("connection_id", STRING, "bronze.connections, the connection that carried it"),
        Column("packet_key", STRING, "the bronze.session_packets row that is the message; null for RPC"),
        Column("seen_at", TIMESTAMP, "when it was seen: responded_at of the call, sent_at of the packet, UTC"),
        Column(
            "session_number",
            BIGINT,
            "its number among its side's counted packets, from 1; null if unknown, and for RPC",
        ),
        Column("recoverable_number", BIGINT, "its number among the recoverable ones of these; null likewise"),
        Column("queue", STRING, "normal form of the queue it was read from; null when not known"),
        Column("inferred_queue", STRING, "the queue as guessed from the message's destination"),
        Column("lookup_id", UINT64, "the message's number in its queue, 56 bits: SequenceId, SequentialId"),
        Column("source_queue_manager", STRING, "GUID of the queue manager that first accepted the message"),
        Column("message_ordinal", BIGINT, "MessageID, a number that the source queue manager counts"),
        Column("message_id", STRING, "guid\\ordinal of both"),
        Column(
            "queue_manager_address",
            STRING,
            "QueueManagerAddress: GUID of the destination's queue manager, with RemoteRead of the host it came from; "
            "null when zero, or when RemoteRead has sender_address there",
        ),
        Column(
            "destination_queue_manager",
            STRING,
            "QueueManagerAddress, GUID of the destination's queue manager; null when zero, and for RPC",
        ),
        Column("priority", INT, "0 to 7, 7 the highest; 0 for transactional messages"),
        Column("delivery", STRING, "express, recoverable; null for a mode that is not defined"),
        Column("class", INT, "MessageClass: an application's message, an acknowledgement, a report"),
        Column("class_name", STRING, "name of class; 0x and hex when unknown"),
        Column(
            "message_kind",
            STRING,
            "report (class 0x0001), administration_ack (0x0002, 0x4000, bit 0x8000), application",
        ),
        Column("label", STRING, "the label to its first NUL; null without one"),
        Column("body_type", BIGINT, "VT code of the body"),
        Column("body_bytes", BIGINT, "declared size of the whole body, bytes: MessageSize, for SRMP MsgBodySize"),
        Column("body_bytes_seen", BIGINT, "bytes of the body that were seen"),
        Column("body_sha256", STRING, "SHA-256 of the bytes seen, 64 hex digits"),
        Column("body", BINARY, "the bytes seen; only with store.bodies"),
        Column("body_complete", BOOLEAN, "the whole body was seen; false without an error: the reader's limit cut it"),
        Column("correlation_id", STRING, "guid\\ordinal, of an acknowledgement the message_id; null when all zero"),
        Column("app_specific", BIGINT, "ApplicationTag, a number of the application's"),
        Column("sent_at", TIMESTAMP, "SentTime, when the sender sent it, UTC"),
        Column("arrived_at", TIMESTAMP, "when it was put in the queue it was read from, UTC"),
        Column("time_to_reach_queue_s", BIGINT, "seconds allowed from sent_at to its queue; null when infinite"),
        Column("time_to_be_received_s", BIGINT, "seconds allowed until it is received; null when infinite"),
        Column("destination_queue", STRING, "normal form of the destination queue"),
        Column("admin_queue", STRING, "normal form of the administration queue, where acknowledgements go"),
        Column("destination_list", STRINGS, "normal forms of all destinations; null when the packet has no lists"),
        Column("admin_list", STRINGS, "normal forms of all administration queues; null when the packet has no lists"),
        Column("response_list", STRINGS, "normal forms of all response queues; null when the packet has no lists"),
        Column("report_queue", STRING, "normal form of the queue for reports on its route, DebugHeader"),
        Column("admin_queue_type", INT, "AQ, how the packet names the administration queue; 0: it names none"),
        Column("response_queue", STRING, "normal form of the response queue"),
        Column("acknowledgement_requested", INT, "acknowledgements asked for: 1 arrival, 2 receive, 4, 8 their lack"),
        Column("journaling", INT, "0 none, 1 dead letter, 2 journal, 3 both"),
        Column("hop_count", INT, "RC, the number of routing servers that it passed"),
        Column("traced", BOOLEAN, "TR bit, reports on its route are asked for"),
        Column("transactional", BOOLEAN, "it was sent in a transaction"),
        Column("transaction_sequence_id", UINT64, "TxSequenceID of a transactional message"),
        Column("transaction_number", BIGINT, "TxSequenceNumber, the place in its sequence, from 1"),
        Column("previous_transaction_number", BIGINT, "PreviousTxSequenceNumber, 0 without one"),
        Column("transaction_index", BIGINT, "20-bit number of the transaction at its sender"),
        Column("connector_queue_manager", STRING, "ConnectorQMGuid, GUID of the connector of a transactional message"),
        Column(
            "final_acknowledgement_requested",
            BOOLEAN,
            "it asks for a final acknowledgement (FA of the TransactionHeader); null when not transactional",
        ),
        Column("first_in_transaction", BOOLEAN, "the transaction's first message; null when not transactional"),
        Column("last_in_transaction", BOOLEAN, "the transaction's last message; null when not transactional"),
        Column("authenticated", BOOLEAN, "AU bit; false without a SecurityHeader"),
        Column("signed", BOOLEAN, "a signature is there; false without a SecurityHeader"),
        Column("encrypted", BOOLEAN, "EB bit, the body is encrypted; false without a SecurityHeader"),
        Column("sender_id", STRING, "SID of the sender, S-1-..., or a queue manager's GUID"),
        Column("sender_certificate_bytes", BIGINT, "size of the sender's certificate in bytes; 0 without one"),
        Column("privacy_level", BIGINT, "PrivacyLevel: 0 none; body encrypted with 40 bits (1), 128 bits (3), AES (5)"),
        Column("hash_algorithm", BIGINT, "HashAlgorithm of the signature"),
        Column("encryption_algorithm", BIGINT, "EncryptionAlgorithm, filled without encryption too"),
        Column("connector_type", STRING, "ConnectorType, GUID of the foreign messaging system; null without one"),
        Column("extension", BINARY, "ExtensionData; null when empty"),
        Column("is_comqc", BOOLEAN, "the extension carries the marker of a COM+ queued component"),
        Column("comqc_rejected", STRING, "why its container must be rejected, with the rule's section; or null"),
        Column(
            "comqc_deviations",
            DEVIATIONS,
            "recommendations that its container does not follow: the rule with its section, where first in the body,"
            " and in how many places; of what was captured. Null without a container, or where it must be rejected",
        ),
        Column("is_srmp", BOOLEAN, "it came over HTTP: SOAP envelope and compound message (AH bit)"),
        Column("soap_header", STRING, "text of the SOAP header, to its first NUL; null without one"),
        Column("soap_body_bytes", BIGINT, "size of the SOAP body in bytes, UTF-16 with its NUL; null without one"),
        Column("subqueue", STRING, "subqueue that it is in; null when in none"),
        Column("target_subqueue", STRING, "target of a move whose transaction is open; null without one"),
        Column("abort_count", INT, "AbortCounter: reads or moves that failed in a row, as found"),
        Column("move_count", INT, "MoveCounter: times moved, as found"),
        Column(
            "subqueue_acknowledgement_class",
            INT,
            "AcknowledgementClass: 0, or the class that its reader set, such as a rejection; as found",
        ),
        Column("last_moved_raw", BIGINT, "LastMoveTime, the server's local time, unit in doubt; null when 0"),
        Column("dead_letter_queue", STRING, "normal form of the dead-letter queue that the sender asked for"),
        Column("dead_letter_queue_invalid", BOOLEAN, "DI bit, that queue cannot be used; null without that queue"),
        Column(
            "report",
            REPORT,
            "what a report's label says: first 4 hex digits of the traced message's source, its ordinal and hop count; "
            "next_hop, an address, of the body. Null for other messages and other labels",
        ),
        Column("sender_address", STRING, "IP address of the host it came from, as text"),
        Column(
            "header_sizes",
            pa.map_(STRING, INT),
            "bytes by header: from its first byte to the next one's, or to the packet's end",
        ),
        *APPLICATION_COLUMNS,
        *DECODER_COLUMNS,
        *run_columns("silver", "seen_at"),
    ),
)

TABLES = (MESSAGES,)
