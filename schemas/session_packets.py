"""bronze: packets of the binary protocol ([MS-MQQB], TCP 1801), and its pings (UDP 3527)."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, StructField, StructType

from schemas.table import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DOUBLE,
    ENDPOINT_COLUMNS,
    INT,
    STRING,
    TIMESTAMP,
    TUNNEL_IDENTIFIER,
    Column,
    Table,
    run_columns,
)

SESSION_HEADER = StructType(
    [
        StructField("ack_sequence_number", INT),
        StructField("recoverable_ack_number", INT),
        StructField("recoverable_ack_flags", BIGINT),
        StructField("user_sequence_number", INT),
        StructField("recoverable_sequence_number", INT),
        StructField("window_size", INT),
    ]
)
"""SessionHeader ([MS-MQMQ] 2.2.20.4)."""

PACKET_SIGHTING = StructType(
    [
        StructField("capture_id", STRING),
        StructField("packet_number", BIGINT),
        StructField("byte_offset", BIGINT),
        StructField("sent_at", TIMESTAMP),
        StructField("sent_done_at", TIMESTAMP),
    ]
)

SESSION_PACKETS = Table(
    "bronze",
    "session_packets",
    "One row per packet of the binary protocol, complete or not.",
    key=("packet_key",),
    event_date_columns=("sent_at",),
    columns=(
        Column(
            "packet_key",
            STRING,
            "key of the sender's address and port, the receiver's address and port, tcp_sequence, sent_at",
        ),
        Column("connection_id", STRING, "bronze.connections"),
        *ENDPOINT_COLUMNS,
        Column("sent_by", STRING, "the end that sent it: client or server"),
        Column("tcp_sequence", BIGINT, "TCP sequence number of its first byte"),
        Column(
            "stream_offset",
            BIGINT,
            "bytes from its side's first payload byte: SYN's number + 1, without a SYN the lowest byte seen",
        ),
        Column("capture_id", STRING, "bronze.capture_files, where its first byte was captured"),
        Column("packet_number", BIGINT, "captured packet of its first byte, from 1"),
        Column("byte_offset", BIGINT, "of its first byte in the decompressed capture, bytes"),
        Column("sent_at", TIMESTAMP, "time of the captured packet with its first byte, UTC"),
        Column(
            "sent_done_at",
            TIMESTAMP,
            "latest time of the captured packets with first copies of its bytes, UTC; null unless complete",
        ),
        Column(
            "kind",
            STRING,
            "establish_connection, connection_parameters, session_ack, unknown; order_ack, final_ack, user_message",
        ),
        Column("version", INT, "BaseHeader.VersionNumber"),
        Column("flags", INT, "BaseHeader.Flags"),
        Column("packet_size", BIGINT, "BaseHeader.PacketSize, bytes"),
        Column("length_bytes", BIGINT, "its length in the stream, with the SessionHeader behind it, bytes"),
        Column("seen_bytes", BIGINT, "of length_bytes, those that were captured"),
        Column("complete", BOOLEAN, "all of its bytes were captured"),
        Column("message_class", INT, "MessagePropertiesHeader.MessageClass; null where not seen and for other kinds"),
        Column(
            "session_header",
            SESSION_HEADER,
            "of a session_ack, and of other packets with flag SH, in their last 16 bytes; null unless all were seen",
        ),
        Column("packet", BINARY, "its bytes up to the first one that is missing; kept as stubs are (store.stubs)"),
        Column("observations", INT, "captures with any byte of it; a copy of a file is not one more"),
        Column(
            "sightings",
            ArrayType(PACKET_SIGHTING),
            "captures that have it whole, the first one first; null where one capture alone has bytes of it, and where "
            "none has it whole",
        ),
        TUNNEL_IDENTIFIER,
        *run_columns("bronze", "sent_at"),
    ),
)

PINGS = Table(
    "bronze",
    "pings",
    "One row per ping of the binary protocol (UDP 3527): a request with its answer, or one of them.",
    key=("ping_key",),
    event_date_columns=("requested_at", "responded_at"),
    columns=(
        Column(
            "ping_key",
            STRING,
            "key of client address, client port, server address, cookie, requested_at (responded_at without a request)",
        ),
        Column("client_address", STRING, "IP address of the one who asks, as text"),
        Column("client_port", INT, "UDP port of the one who asks"),
        Column("server_address", STRING, "IP address of the one who is asked, as text"),
        Column("requested_at", TIMESTAMP, "time of the request, UTC; null when it was not seen"),
        Column("responded_at", TIMESTAMP, "time of the answer, UTC; null when it was not seen"),
        Column("cookie", BIGINT, "Cookie: ties an answer to its request"),
        Column("client_queue_manager", STRING, "QMGuid of the request"),
        Column("server_queue_manager", STRING, "QMGuid of the answer"),
        Column("refused", BOOLEAN, "the answer refuses a connection (RF)"),
        Column("workstation", BOOLEAN, "RC of the request, else of the answer"),
        Column("round_trip_ms", DOUBLE, "responded_at - requested_at, milliseconds"),
        Column("capture_id", STRING, "bronze.capture_files, of the request"),
        Column("packet_number", BIGINT, "packet of the request, from 1"),
        Column("response_capture_id", STRING, "bronze.capture_files, of the answer"),
        Column("response_packet", BIGINT, "packet of the answer, from 1"),
        *run_columns("bronze", "the first of the row's times that is known, requested_at first"),
    ),
)

TABLES = (SESSION_PACKETS, PINGS)
