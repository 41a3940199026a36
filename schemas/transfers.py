"""gold: what became of messages on their way between queue managers ([MS-MQQB], TCP 1801)."""

from __future__ import annotations

import pyarrow as pa

from schemas.attempts import EVIDENCE
from schemas.table import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
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

NUMBER_GAP = pa.struct(
    [("first", BIGINT), ("last", BIGINT), ("bridged", BOOLEAN)]
)  # fmt: skip
STALL = pa.struct(
    [
        ("began_at", TIMESTAMP),
        ("ended_at", TIMESTAMP),
        ("first_number", BIGINT),
        ("waiting", BIGINT),
        ("sendings", BIGINT),
    ]
)

REPORT_SIGHTING = pa.struct(
    [
        ("at", TIMESTAMP),
        ("queue_manager", STRING),
        ("hop_count", INT),
        ("next_hop", STRING),
    ]
)


def _latency(name: str, what: str) -> Column:
    text = f"{what} - first_sent_at, milliseconds; null where negative, or where captures side by side saw the two"
    return Column(name, DOUBLE, text)


MESSAGE_TRANSFERS = Table(
    "gold",
    "message_transfers",
    "One row per message, destination queue and hop: its sendings, what acknowledged it, and what became of it.",
    key=("transfer_key",),
    event_date_columns=("first_sent_at",),
    looked_up_by=("sender_queue_manager", "receiver_queue_manager"),
    columns=(
        Column("transfer_key", STRING, "key of message_key, destination_queue, sender_address, receiver_address"),
        Column("message_key", STRING, "silver.messages"),
        Column("message_id", STRING, "guid\\ordinal: source_queue_manager, and a number that it counts"),
        Column(
            "message_kind",
            STRING,
            "report (class 0x0001), administration_ack (0x0002, 0x4000, bit 0x8000), application",
        ),
        Column("class", INT, "MessageClass: an application's message, an acknowledgement, a report"),
        Column("class_name", STRING, "name of class; 0x and hex when unknown"),
        Column("source_queue_manager", STRING, "GUID of the queue manager that first accepted the message"),
        Column("destination_queue", STRING, "normal form of the destination queue, as in silver"),
        Column("destination_queue_manager", STRING, "QueueManagerAddress, its GUID; null when zero"),
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
            "hop_key",
            STRING,
            "key of both queue managers where both are known and no finding O07 names one, else of both addresses: a "
            "message counts once for each",
        ),
        Column("delivery", STRING, "express, recoverable; null for a mode that is not defined"),
        Column("transactional", BOOLEAN, "it was sent in a transaction"),
        Column("sequence_key", STRING, "gold.transfer_sequences; null when not transactional"),
        Column("transaction_sequence_id", UINT64, "TxSequenceID; null when not transactional"),
        Column("transaction_number", BIGINT, "TxSequenceNumber, its place in the sequence, from 1; null likewise"),
        Column("body_bytes", BIGINT, "declared size of the whole body, bytes"),
        Column("acknowledgement_requested", INT, "acknowledgements asked for: 1 arrival, 2 receive, 4, 8 their lack"),
        Column("journaling", INT, "0 none, 1 dead letter, 2 journal, 3 both"),
        Column("hop_count", INT, "RC, the number of routing servers that it passed before"),
        Column("sent_at", TIMESTAMP, "SentTime, when its source sent it, by its source's clock, UTC, whole seconds"),
        Column("expires_at", TIMESTAMP, "sent_at + time to reach queue, UTC; null when that is infinite"),
        Column("packet_bytes", BIGINT, "length_bytes of the first sending, bytes"),
        Column("resent_bytes", BIGINT, "length_bytes of all other sendings, bytes"),
        Column(
            "transmit_ms",
            DOUBLE,
            "the first sending's time on the wire, milliseconds; null unless complete, and as in silver.sendings",
        ),
        Column("sendings", INT, "packets that carried it on this hop"),
        Column("sessions", INT, "connections that they went over"),
        Column("first_sent_at", TIMESTAMP, "sent_at of the first sending, UTC"),
        Column("last_sent_at", TIMESTAMP, "sent_at of the last sending, UTC"),
        Column("session_acked_at", TIMESTAMP, "earliest session acknowledgement of a sending, UTC"),
        Column("stored_at", TIMESTAMP, "earliest time at which the receiver says that it has a sending on disk, UTC"),
        Column("acknowledged_sendings", INT, "session-acknowledged sendings; above 1: delivered twice on the wire"),
        Column("order_acked_at", TIMESTAMP, "first order ack, UTC: the message is in its queue"),
        Column("order_acked_elsewhere", BOOLEAN, "that order ack is of another hop; null without one"),
        Column("final_acked_at", TIMESTAMP, "first final ack, UTC"),
        Column("final_class", INT, "its class: 0x4000 received, with bit 0x8000 rejected"),
        Column("final_class_name", STRING, "name of final_class; 0x and hex when unknown"),
        Column("arrival_acked_at", TIMESTAMP, "first administration ack without bit 0x4000, UTC"),
        Column("arrival_class", INT, "its class: 0x0002 it reached its queue, with bit 0x8000 it did not"),
        Column("arrival_class_name", STRING, "name of arrival_class; 0x and hex when unknown"),
        Column("receive_acked_at", TIMESTAMP, "first administration ack with bit 0x4000, UTC"),
        Column("receive_class", INT, "its class: 0x4000 it was received, with bit 0x8000 it will not be"),
        Column("receive_class_name", STRING, "name of receive_class; 0x and hex when unknown"),
        _latency("session_ack_ms", "session_acked_at"),
        _latency("store_ms", "stored_at"),
        _latency("order_ack_ms", "order_acked_at"),
        _latency("final_ack_ms", "final_acked_at"),
        _latency("arrival_ack_ms", "arrival_acked_at"),
        _latency("receive_ack_ms", "receive_acked_at"),
        Column(
            "dead_letter_class",
            INT,
            "first of final_class, arrival_class and receive_class with bit 0x8000, if journaling has 1; else null",
        ),
        Column(
            "reports",
            list_of(REPORT_SIGHTING),
            "reports on its route by time, the last 1,000: when they were first seen, who reported, hop count, and the "
            "address that it went to next; null without one",
        ),
        Column(
            "outcome",
            STRING,
            "rejected, received, delivered, transferred, unknown, expired, in_flight, unacknowledged: the first that "
            "holds",
        ),
        Column(
            "acknowledged_on",
            STRING,
            "transfer_key of the row of its message, queue and hop_key whose acknowledgement it takes, having none of "
            "its own; else null",
        ),
        Column(
            "counts_on_hop",
            BOOLEAN,
            "true in one row of its message, queue and hop_key: in that whose own acknowledgement came first; what "
            "counts messages by hop looks at it",
        ),
        Column("application_message_id", STRING, "the application's own id of the message, as in silver.messages"),
        Column("conversation_id", STRING, "what all messages of a conversation have in common, likewise"),
        Column("sent_types", STRINGS, "types of the message, as its framework writes them, likewise"),
        *EVIDENCE,
        *run_columns("gold", "first_sent_at"),
    ),
)

TRANSFER_SEQUENCES = Table(
    "gold",
    "transfer_sequences",
    "One row per exactly-once sequence of messages and hop: numbers, gaps, order acks, stalls, and its condition.",
    key=("sequence_key",),
    event_date_columns=("first_sent_at",),
    looked_up_by=("sender_queue_manager", "receiver_queue_manager"),
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
            "hop_key",
            STRING,
            "key of both queue managers where both are known and no finding O07 names one, else of both addresses: one "
            "hop of a sequence may have rows of several addresses",
        ),
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
            list_of(NUMBER_GAP),
            "ranges of numbers between first_number and last_number that were not sent on the hop, by whatever "
            "addresses of hop_key, the last 1,000; bridged: a sending of the number behind names a previous one below; "
            "null without a gap",
        ),
        Column("missing_numbers", BIGINT, "numbers in gaps that are not bridged"),
        Column(
            "out_of_order",
            BIGINT,
            "first sendings on the hop, by whatever addresses of hop_key, of a number below one that was sent before",
        ),
        Column(
            "refusals",
            BIGINT,
            "sendings that a receiver has to refuse ([MS-MQQB] 3.1.5.8.6), whatever addresses of hop_key it got them "
            "from; null where some of the hop may be missing, handshakes do not tell whose they are, or packets have "
            "times of clocks that differ",
        ),
        Column("order_acks", BIGINT, "order acks of the row, silver.order_acks"),
        Column("acknowledged_number", BIGINT, "highest number that they acknowledge; null without one"),
        Column("acknowledged_at", TIMESTAMP, "time of the first that says it, UTC"),
        Column("waiting", BIGINT, "distinct numbers above it; all without one"),
        Column("first_waiting_number", BIGINT, "the lowest of them; null where nothing waits"),
        Column(
            "stalls",
            list_of(STALL),
            "waits for an order ack that lasted transfers.stall_after or longer, the last 1,000; ended_at is null for "
            "the one that goes on; null without a stall",
        ),
        Column(
            "longest_stall_s",
            DOUBLE,
            "the longest of all, seconds, until the capture ends; null without a stall, and where it is not known how "
            "long a wait lasted (clock_step)",
        ),
        Column("stalled_since", TIMESTAMP, "began_at of the stall that has not ended, UTC; null without one"),
        Column(
            "previous_sequence_id", UINT64, "the sequence of its source, queue and hop_key before; null without one"
        ),
        Column("began", STRING, "first, backwards, new_epoch, abandoned, emptied: compared with that one"),
        Column("condition", STRING, "acknowledged, refused, stalled, unknown, waiting: the first that holds"),
        *EVIDENCE,
        *run_columns("gold", "first_sent_at"),
    ),
)

TABLES = (MESSAGE_TRANSFERS, TRANSFER_SEQUENCES)
