"""gold: what became of messages on their way between queue managers ([MS-MQQB], TCP 1801)."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, StructField, StructType

from schemas.receive_attempts import EVIDENCE
from schemas.table import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    STRING,
    TIMESTAMP,
    UINT64,
    Column,
    Table,
    run_columns,
)

NUMBER_GAP = StructType(
    [StructField("first", BIGINT), StructField("last", BIGINT), StructField("bridged", BOOLEAN)]
)  # fmt: skip
STALL = StructType(
    [
        StructField("began_at", TIMESTAMP),
        StructField("ended_at", TIMESTAMP),
        StructField("first_number", BIGINT),
        StructField("waiting", BIGINT),
        StructField("sendings", BIGINT),
    ]
)

TRANSFER_SEQUENCES = Table(
    "gold",
    "transfer_sequences",
    "One row per exactly-once sequence of messages and hop: numbers, gaps, order acks, stalls, and its condition.",
    key=("sequence_key",),
    event_date_columns=("first_sent_at",),
    columns=(
        Column("sequence_key", STRING, "key of the next five columns"),
        Column("source_queue_manager", STRING, "GUID of the queue manager that first accepted its messages"),
        Column("destination_queue", STRING, "normal form of the destination queue, as in silver"),
        Column("transaction_sequence_id", UINT64, "TxSequenceID, the sequence at its source"),
        Column("sender_address", STRING, "IP address of the machine that sent on this hop, as text"),
        Column("receiver_address", STRING, "IP address of the machine that it sent to, as text"),
        Column(
            "sender_queue_manager",
            STRING,
            "GUID of the sender, of the first sending: by its session's handshake, else by the one that all handshakes "
            "of the address show at that time; null where not seen",
        ),
        Column("receiver_queue_manager", STRING, "GUID of the receiver, likewise"),
        Column(
            "sequence_ordinal", BIGINT, "lower half of the id: grows by 1 when all of the sender's sequence is received"
        ),
        Column(
            "sequence_epoch_at",
            TIMESTAMP,
            "upper half of the id, UTC: when the sender was installed or restored, not when the sequence began",
        ),
        Column("messages", BIGINT, "distinct numbers (TxSequenceNumber) that were sent"),
        Column("sendings", BIGINT, "packets that carried them"),
        Column("sent_bytes", BIGINT, "their length_bytes, bytes"),
        Column("resends", BIGINT, "sendings of a number that was sent before"),
        Column("resent_bytes", BIGINT, "length_bytes of these, bytes"),
        Column("first_number", BIGINT, "lowest number"),
        Column("last_number", BIGINT, "highest number"),
        Column("first_sent_at", TIMESTAMP, "sent_at of the first sending, UTC"),
        Column("last_sent_at", TIMESTAMP, "sent_at of the last sending, UTC"),
        Column("last_packet_at", TIMESTAMP, "time of the last sending or order ack, UTC"),
        Column(
            "gaps",
            ArrayType(NUMBER_GAP),
            "ranges of numbers between first_number and last_number that were not sent, the last 1,000; bridged: a "
            "sending of the number behind names a previous one below; null without a gap",
        ),
        Column("missing_numbers", BIGINT, "numbers in gaps that are not bridged"),
        Column("out_of_order", BIGINT, "first sendings of a number below one that was sent before"),
        Column(
            "refusals",
            BIGINT,
            "sendings that a receiver has to refuse ([MS-MQQB] 3.1.5.8.6); null where bytes of them may be missing",
        ),
        Column("order_acks", BIGINT, "order acks of the row, silver.order_acks"),
        Column("acknowledged_number", BIGINT, "highest number that they acknowledge; null without one"),
        Column("acknowledged_at", TIMESTAMP, "time of the first that says it, UTC"),
        Column("waiting", BIGINT, "distinct numbers above it; all without one"),
        Column("first_waiting_number", BIGINT, "the lowest of them; null where nothing waits"),
        Column(
            "stalls",
            ArrayType(STALL),
            "waits for an order ack that lasted transfers.stall_after or longer, the last 1,000; ended_at is null for "
            "the one that goes on; null without a stall",
        ),
        Column("longest_stall_s", DOUBLE, "the longest of all, seconds, until the capture ends; null without a stall"),
        Column("stalled_since", TIMESTAMP, "began_at of the stall that has not ended, UTC; null without one"),
        Column("previous_sequence_id", UINT64, "the sequence of its source, queue and hop before; null without one"),
        Column("began", STRING, "first, backwards, new_epoch, abandoned, emptied: compared with that one"),
        Column("condition", STRING, "acknowledged, refused, stalled, unknown, waiting: the first that holds"),
        *EVIDENCE,
        *run_columns("gold", "first_sent_at"),
    ),
)

TABLES = (TRANSFER_SEQUENCES,)
