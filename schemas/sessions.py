"""The binary protocol ([MS-MQQB], TCP 1801): packets and pings in bronze, sessions and acknowledgements in silver."""

from __future__ import annotations

import pyarrow as pa

from schemas.table import (
    BIGINT,
    BIGINTS,
    BINARY,
    BOOLEAN,
    DECODER_COLUMNS,
    DOUBLE,
    ENDPOINT_COLUMNS,
    INT,
    NOT_ESTABLISHED,
    STRING,
    STRINGS,
    TIMESTAMP,
    TUNNEL_IDENTIFIER,
    UINT64,
    Column,
    Table,
    list_of,
    run_columns,
)

SESSION_HEADER = pa.struct(
    [
        ("ack_sequence_number", INT),
        ("recoverable_ack_number", INT),
        ("recoverable_ack_flags", BIGINT),
        ("user_sequence_number", INT),
        ("recoverable_sequence_number", INT),
        ("window_size", INT),
    ]
)
"""SessionHeader ([MS-MQMQ] 2.2.20.4)."""

CAPTURE_PAIR = pa.struct([("one", STRING), ("other", STRING)])

_CHECKPOINT_SIDE = pa.struct(
    [
        *(
            (name, BIGINT)
            for name in (
                "packets", "end_offset", "settled_offset", "session_number", "recoverable_number",
                "messages", "bytes", "recoverable", "transactional", "order_acks", "final_acks", "session_acks",
                "piggybacked", "recoverable_sent", "stored", "seen_bytes", "bytes_between", "bytes_cut", "window",
                "window_full_us", "last_ack", "highest_ack",
            )
        ),
        ("in_flight", BIGINTS),
        (
            "not_stored",
            list_of(
                pa.struct(
                    [
                        ("packet_key", STRING),
                        ("recoverable_number", BIGINT),
                        ("sent_at_us", BIGINT),
                    ]
                )
            ),
        ),
    ]
)  # fmt: skip
_CHECKPOINT_CAPTURE = pa.struct([("capture_id", STRING), ("first_us", BIGINT), ("last_us", BIGINT)])
_CHECKPOINT_HOLE = pa.struct(
    [
        ("side", INT),
        ("since_us", BIGINT),
        ("until_us", BIGINT),
        ("size_bytes", BIGINT),
        ("is_gap", BOOLEAN),
    ]
)
HOLE = pa.struct([("since", TIMESTAMP), ("until", TIMESTAMP), ("size_bytes", BIGINT)])
_KEPT_PACKET = pa.struct([("packet_key", STRING), ("sent_at_us", BIGINT)])

PACKET_SIGHTING = pa.struct(
    [
        ("capture_id", STRING),
        ("packet_number", BIGINT),
        ("byte_offset", BIGINT),
        ("sent_at", TIMESTAMP),
        ("sent_done_at", TIMESTAMP),
    ]
)

SESSION_PACKETS = Table(
    "bronze",
    "session_packets",
    "One row per packet of the binary protocol, complete or not.",
    key=("packet_key",),
    event_date_columns=("sent_at",),
    looked_up_by=("connection_id",),
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
            "bytes from its side's first payload byte: SYN's number + 1, without a SYN what the other side's handshake"
            " acknowledges, without both the lowest byte seen",
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
            list_of(PACKET_SIGHTING),
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

PACKET_TABLES = (SESSION_PACKETS, PINGS)
"""The tables of bronze."""

_SIDE_COUNTS = (
    ("messages", "packets of kind user_message that the {side} sent"),
    ("bytes", "their length_bytes, bytes"),
    ("recoverable", "of these, the recoverable ones (DM = 1)"),
    ("transactional", "of these, those with a TransactionHeader (TH = 1)"),
    ("order_acks", "packets of kind order_ack that the {side} sent"),
    ("final_acks", "packets of kind final_ack that the {side} sent"),
    ("session_acks", "packets of kind session_ack that the {side} sent"),
    ("piggybacked", "counted packets of the {side} with a SessionHeader behind them"),
    ("numbered", "counted packets of the {side} whose session_number is known"),
    ("acknowledged", "of these, those that a SessionHeader of the other side acknowledged"),
    ("unacknowledged", "of these, all others"),
    ("stored", "counted packets of the {side} that a SessionHeader of the other side says are stored"),
    (
        "window_full_ms",
        "milliseconds in which the {side}'s unacknowledged packets were at least the smaller of both latest windows",
    ),
)


def _side_columns(side: str) -> tuple[Column, ...]:
    return tuple(Column(f"{side}_{name}", BIGINT, comment.format(side=side)) for name, comment in _SIDE_COUNTS)


SESSIONS = Table(
    "silver",
    "sessions",
    "One row per connection of the binary protocol: its handshake, what each side sent, how it ended.",
    key=("connection_id",),
    event_date_columns=("first_packet_at",),
    looked_up_by=("connection_id",),
    columns=(
        Column("connection_id", STRING, "bronze.connections"),
        *ENDPOINT_COLUMNS,
        Column("first_packet_at", TIMESTAMP, "time of the connection's first packet, UTC"),
        Column("last_packet_at", TIMESTAMP, "time of the connection's last packet, UTC"),
        Column(
            "closed_at",
            TIMESTAMP,
            "time of the first RST after which not both sides went on, or of the later of both directions' earliest "
            "FINs, UTC",
        ),
        Column("closed_by", STRING, "fin or rst; null while open or half open"),
        Column("initiator_queue_manager", STRING, "ClientGuid of the EstablishConnection request, else of its answer"),
        Column("acceptor_queue_manager", STRING, "ServerGuid of the answer, else of the request unless zero"),
        Column("asked_queue_manager", STRING, "ServerGuid of the request; null when zero"),
        Column("by_direct_name", BOOLEAN, "ServerGuid of the request is zero: a direct format name led here"),
        Column("establish_requested_at", TIMESTAMP, "first EstablishConnection packet of the client, UTC"),
        Column("parameters_requested_at", TIMESTAMP, "first ConnectionParameters packet of the client, UTC"),
        Column("establish_answered_at", TIMESTAMP, "first EstablishConnection packet of the server, UTC"),
        Column("parameters_answered_at", TIMESTAMP, "first ConnectionParameters packet of the server, UTC"),
        Column(
            "round_trip_ms",
            DOUBLE,
            "establish_answered_at - establish_requested_at, milliseconds; null where negative, or of two taps",
        ),
        Column("initiator_uptime_ms", BIGINT, "TimeStamp of the request: milliseconds since that machine's start"),
        Column("pinged", BOOLEAN, "the request says that a ping was sent first (SE = 0)"),
        Column("server_class", BOOLEAN, "the request says that the initiator runs a server-class system (OS)"),
        Column(
            "recoverable_ack_timeout_ms",
            BIGINT,
            "RecoverableAckTimeout of the answered ConnectionParameters, else of the asked ones, milliseconds",
        ),
        Column("ack_timeout_ms", BIGINT, "AckTimeout, likewise, milliseconds"),
        Column("client_window", INT, "WindowSize of the client's ConnectionParameters, packets"),
        Column("server_window", INT, "WindowSize of the server's ConnectionParameters, packets"),
        Column("outcome", STRING, "refused, open, unanswered, not_binary_protocol, not_established, unknown"),
        NOT_ESTABLISHED,
        Column("uncaptured_side", STRING, "bronze.connections: the side of which no packet was captured"),
        Column(
            "client_holes",
            list_of(HOLE),
            "where the client may have sent packets that were not captured, or not so far that it is known what they "
            "are: from when to when, UTC, and at most so many bytes; null without one",
        ),
        Column("server_holes", list_of(HOLE), "the same of the server"),
        Column(
            "missing",
            STRINGS,
            "what outcome and ended lack: capture_begins (the SYN was not captured), capture_loss (bytes are missing),"
            " one_direction (uncaptured_side), capture_ends (ended is null), clock_step (its packets, or they and its"
            " end, have times of several clocks: how long it was quiet before its end is not known)",
        ),
        Column(
            "ended",
            STRING,
            "refused, unopened, silent, ack_timeout, idle, reset, closed; null while no end is known: of a session "
            "that is open, or of a connection of another outcome that may yet become one",
        ),
        *_side_columns("client"),
        *_side_columns("server"),
        Column(
            "overlapping_captures",
            list_of(CAPTURE_PAIR),
            "captures that saw it side by side, in pairs: the spans of its packets in them overlap, their clocks may "
            "differ; null without one",
        ),
        *DECODER_COLUMNS,
        *run_columns("silver", "first_packet_at"),
    ),
)

ORDER_ACKS = Table(
    "silver",
    "order_acks",
    "One row per order acknowledgement and per final acknowledgement of a transactional message.",
    key=("packet_key",),
    event_date_columns=("sent_at",),
    looked_up_by=("connection_id",),
    columns=(
        Column("packet_key", STRING, "bronze.session_packets"),
        Column("connection_id", STRING, "bronze.connections"),
        *ENDPOINT_COLUMNS,
        Column("capture_id", STRING, "bronze.capture_files, where its first byte was captured"),
        Column("sent_by", STRING, "the end that sent it: client or server"),
        Column("sent_at", TIMESTAMP, "time of the captured packet with its first byte, UTC"),
        Column("kind", STRING, "order_ack or final_ack"),
        Column("class", INT, "MessageClass: 0x00FF of an order ack; 0x4000, or why a message was rejected"),
        Column("class_name", STRING, "name of class; 0x and hex when unknown"),
        Column("queue_manager", STRING, "SourceQueueManager: GUID of the queue manager that acknowledges"),
        Column(
            "acknowledged_queue_manager",
            STRING,
            "GUID of the acknowledged message's source: SourceGUID of a final ack; else QueueManagerAddress, or where "
            "that is zero the queue manager at the receiving end of the session; null where not seen",
        ),
        Column("destination_queue", STRING, "normal form of the order queue that it is sent to"),
        Column("transaction_sequence_id", UINT64, "TxSequenceID of the body: the acknowledged sequence"),
        Column("transaction_number", BIGINT, "TxSequenceNumber of the body: an order ack means all up to it"),
        Column("previous_transaction_number", BIGINT, "TxPreviousSequenceNumber of the body"),
        Column("acknowledged_ordinal", BIGINT, "MessageID of a final ack's body; null for order acks"),
        Column("acknowledged_message_id", STRING, "guid\\ordinal of the acknowledged message; null for order acks"),
        Column("session_number", BIGINT, "its number among the counted packets of its side, from 1; null if unknown"),
        Column("recoverable_number", BIGINT, "its number among the recoverable ones of its side; null likewise"),
        *DECODER_COLUMNS,
        *run_columns("silver", "sent_at"),
    ),
)

SENDINGS = Table(
    "silver",
    "sendings",
    "One row per user message packet: a message as it was sent in a session, and what acknowledged it there.",
    key=("packet_key",),
    event_date_columns=("sent_at",),
    looked_up_by=("connection_id",),
    columns=(
        Column("packet_key", STRING, "bronze.session_packets, also of its row in silver.messages"),
        Column("connection_id", STRING, "bronze.connections"),
        Column("capture_id", STRING, "bronze.capture_files, where its first byte was captured"),
        Column("server_address", STRING, "IP address of the connection's server, as text"),
        Column("sent_by", STRING, "the end that sent it: client or server"),
        Column("sender_address", STRING, "IP address of the end that sent it, as text"),
        Column("receiver_address", STRING, "IP address of the other end, as text"),
        Column("sender_queue_manager", STRING, "GUID of the sending end in the session's handshake; null if not seen"),
        Column("receiver_queue_manager", STRING, "GUID of the other end in the session's handshake; null likewise"),
        Column("stream_offset", BIGINT, "its place in its side's stream, bytes: a captured packet can begin several"),
        Column("sent_at", TIMESTAMP, "time of the captured packet with its first byte, UTC"),
        Column(
            "transmit_ms",
            DOUBLE,
            "time on the wire, from its first byte to its last, milliseconds; null unless complete, where negative, "
            "and where captures put it together that ran side by side",
        ),
        Column("length_bytes", BIGINT, "its length in the stream, with the SessionHeader behind it, bytes"),
        Column("complete", BOOLEAN, "all of its bytes were captured"),
        Column("session_number", BIGINT, "its number among the counted packets of its side, from 1; null if unknown"),
        Column("recoverable_number", BIGINT, "its number among the recoverable ones of its side; null likewise"),
        Column("session_acked_at", TIMESTAMP, "time of the first SessionHeader that acknowledges it, UTC"),
        Column("session_acked_by", STRING, "packet_key of the packet that carries this SessionHeader"),
        Column("session_acked_in", STRING, "bronze.capture_files, where this packet was captured"),
        Column("stored_at", TIMESTAMP, "time of the first SessionHeader that says that it is stored, UTC"),
        Column("stored_by", STRING, "packet_key of the packet that carries this SessionHeader"),
        Column("stored_in", STRING, "bronze.capture_files, where this packet was captured"),
        Column(
            "surely_acknowledged",
            BOOLEAN,
            "it has no number, and since it more was acknowledged than can have been in flight",
        ),
        Column(
            "acknowledgement_may_be_missing",
            BOOLEAN,
            "bytes of the other side that were not captured may hold its session acknowledgement, or an earlier one",
        ),
        Column(
            "unnumbered_by_loss",
            BOOLEAN,
            "it has no number, and its side lacks bytes, or has bytes that are no packet",
        ),
        Column("handshake_seen", BOOLEAN, "its side's EstablishConnection packet was captured"),
        *DECODER_COLUMNS,
        *run_columns("silver", "sent_at"),
    ),
)

_CHECKPOINT_COLUMNS = (
    Column("connection_id", STRING, "bronze.connections"),
    Column("counted_until", TIMESTAMP, "packets sent until then are counted here, and are not read again, UTC"),
    Column(
        "settled_until",
        TIMESTAMP,
        "what is counted here rests on packets sent until then, UTC: the session is computed anew when one of them "
        "changes, or another one is found",
    ),
    Column("last_counted_at", TIMESTAMP, "latest counted packet (user message, order or final ack) of both sides, UTC"),
    Column("largest_window", BIGINT, "largest WindowSize that either side said; -1 without one"),
    Column(
        "gaps_are_holes", BOOLEAN, "bytes between packets are missing; false: they were captured, and are no packets"
    ),
    Column(
        "sides",
        list_of(_CHECKPOINT_SIDE),
        "the client's side, then the server's: what silver.sessions counts, numbers of the last packets, and what is "
        "not over: times (microseconds since the epoch) at which packets in flight were acknowledged, and recoverable "
        "packets that are not stored",
    ),
    Column("captures", list_of(_CHECKPOINT_CAPTURE), "from when to when each capture saw these packets"),
    Column("kept_packets", list_of(_KEPT_PACKET), "packets that are read again: handshakes, and the last ones"),
    Column(
        "holes",
        list_of(_CHECKPOINT_HOLE),
        "where packets of the client's side (0) or the server's (1) may be missing; is_gap: between packets",
    ),
)

SESSION_CHECKPOINTS = Table(
    "silver",
    "session_checkpoints",
    "One row per long session: what its packets up to some time come to, for runs to go on from there.",
    key=("connection_id",),
    event_date_columns=("counted_until",),
    looked_up_by=("connection_id",),
    columns=(*_CHECKPOINT_COLUMNS, *run_columns("silver", "counted_until")),
)

FINDING_CHECKPOINTS = Table(
    "gold",
    "finding_checkpoints",
    "One row per long session: up to where its findings are final, for runs to go on from there.",
    key=("connection_id",),
    event_date_columns=("counted_until",),
    looked_up_by=("connection_id",),
    columns=(
        *_CHECKPOINT_COLUMNS,
        Column("client_whole", BOOLEAN, "the client's side was judged as captured completely"),
        Column("server_whole", BOOLEAN, "the server's side was judged as captured completely"),
        Column("time_out_us", BIGINT, "how long a packet may stay unacknowledged (rule T18), microseconds"),
        Column("not_packets", BIGINT, "rows of bronze.quarantine with reason not_a_packet up to settled_until"),
        *run_columns("gold", "counted_until"),
    ),
)

TABLES = (SESSIONS, ORDER_ACKS, SENDINGS)
"""The tables of silver."""

CHECKPOINT_TABLES = (SESSION_CHECKPOINTS, FINDING_CHECKPOINTS)
"""What runs keep of long sessions; where they are cut depends on the runs."""
