"""gold: what became of each message that was read remotely, and what else was done to its queue."""

from __future__ import annotations

from schemas.attempts import EVIDENCE
from schemas.table import (
    BOOLEAN,
    INT,
    STRING,
    STRINGS,
    TIMESTAMP,
    UINT64,
    Column,
    Table,
    run_columns,
)

ACK_SEQUENCES = Table(
    "gold",
    "ack_sequences",
    "One row per message of a queue that was received remotely at least once: its outcomes in order, and its fate.",
    key=("sequence_key",),
    event_date_columns=("first_attempt_at", "settled_at"),
    looked_up_by=("queue",),
    columns=(
        Column(
            "sequence_key",
            STRING,
            "key of queue, server_address and handle (both null where the queue is known), lookup_id, message_key",
        ),
        Column("queue", STRING, "canonical normal form of the queue; null when not known"),
        Column("inferred_queue", STRING, "queue guessed from the message's destination; never copied to queue"),
        Column("server_address", STRING, "where the queue is not known: IP address of its owner"),
        Column("handle", STRING, "where the queue is not known: context handle in hex, of qm2qm the queue's number"),
        Column("lookup_id", UINT64, "lookup identifier of the message, 56 bits; null where no read tells it"),
        Column("message_key", STRING, "silver.messages; null when its header was not seen whole"),
        Column("attempts", INT, "how many times it was received"),
        Column("peeks", INT, "how many times it was peeked"),
        Column(
            "outcomes",
            STRINGS,
            "of the receives, in the order in which the message was delivered; aborted: acked or rejected in a "
            "transaction that was aborted, as the message was seen again",
        ),
        Column("readers", STRINGS, "IP addresses of its receivers, in that order, each once"),
        Column("first_attempt_at", TIMESTAMP, "start of the first receive, UTC"),
        Column("settled_at", TIMESTAMP, "end of the last receive that was settled, UTC; null while it is held"),
        Column(
            "fate",
            STRING,
            "consumed, returned, rejected, held, unknown: by the last receive that was settled; moved or purged if "
            "that came later, moved also if a subqueue had it later; as of the captures' end",
        ),
        Column("redelivered", BOOLEAN, "it was delivered again after the first time"),
        Column(
            "loss_risk",
            STRING,
            "read_twice, ack_failed, ack_unanswered, reader_lost, poison: the first that holds; null if none does",
        ),
        Column("moved_to", STRING, "fate moved: canonical normal form of the queue moved to; null when not known"),
        Column("removed_at", TIMESTAMP, "fate moved or purged: request of the move or purge, UTC; null if not seen"),
        Column("attempt_keys", STRINGS, "gold.receive_attempts of the receives, in order of outcomes"),
        *EVIDENCE,
        *run_columns("gold", "first_attempt_at, else of settled_at"),
    ),
)

TABLES = (ACK_SEQUENCES,)
