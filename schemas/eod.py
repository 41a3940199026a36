"""gold: exactly-once delivery as both ends report it, observation by observation."""

from __future__ import annotations

from schemas.attempts import EVIDENCE
from schemas.table import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    NAMED_QUEUE_MANAGER,
    STRING,
    TIMESTAMP,
    UINT64,
    Column,
    Table,
    run_columns,
)

EOD_TRANSFERS = Table(
    "gold",
    "eod_transfers",
    "One row per observation of an outgoing transactional queue, compared with the previous one of the same source.",
    key=("snapshot_id",),
    event_date_columns=("observed_at",),
    looked_up_by=("queue",),
    columns=(
        Column("snapshot_id", STRING, "silver.queue_snapshots"),
        Column("queue", STRING, "canonical normal form of the queue"),
        Column("queue_format_name", STRING, "its format name as asked, part of its identity"),
        NAMED_QUEUE_MANAGER,
        Column("source", STRING, "wire or collector"),
        Column("observed_at", TIMESTAMP, "time of the answer, UTC"),
        Column("sequence_id", UINT64, "sequence of the next message, else of those not acknowledged ([MS-MQMQ] 2.2.5)"),
        Column(
            "last_acked_number", BIGINT, "last number acknowledged in order, of this sequence; null when not reported"
        ),
        Column("first_unacked_number", BIGINT, "oldest number sent and not acknowledged"),
        Column("last_unacked_number", BIGINT, "newest number sent and not acknowledged"),
        Column("next_number", BIGINT, "number of the next message"),
        Column(
            "first_unacked_previous_number",
            BIGINT,
            "number that the oldest unacknowledged message names as its predecessor",
        ),
        Column("unacked_count", BIGINT, "messages sent and not acknowledged in order"),
        Column("unread_count", BIGINT, "messages acknowledged in order and not yet as received"),
        Column("last_ack_at", TIMESTAMP, "time of the last acknowledgement in order, UTC"),
        Column("resend_count", BIGINT, "times that the last message was sent, or place on the ladder (MS-MQQB)"),
        Column("resend_interval_s", BIGINT, "interval of resends as reported, seconds"),
        Column("next_resend_at", TIMESTAMP, "when the next resend is due, as reported, UTC"),
        Column("ladder_step", INT, "step of the resend ladder that resend_count has reached, from 1; null at 0"),
        Column("ladder_interval_s", DOUBLE, "interval of that step by the setting eod.resend_ladder, seconds"),
        Column("acked_per_s", DOUBLE, "acknowledged numbers per second since the previous observation"),
        Column("sent_per_s", DOUBLE, "numbers assigned per second since the previous observation"),
        Column(
            "in_flight_s", DOUBLE, "seconds since the first observation that showed the oldest not acknowledged as sent"
        ),
        Column("stalled_since", TIMESTAMP, "first observation of the stall, UTC; null while there is none"),
        Column(
            "sequence_reset", BOOLEAN, "a new sequence was started, or the sequence or one of its numbers went back"
        ),
        Column(
            "condition", STRING, "reset, stalled, resending, slow, flowing, idle; null when not enough was reported"
        ),
        *EVIDENCE,
        *run_columns("gold", "observed_at"),
    ),
)

EOD_SOURCES = Table(
    "gold",
    "eod_sources",
    "One row per sender of an incoming transactional queue and observation, compared with what the sender reported.",
    key=("source_key",),
    event_date_columns=("observed_at",),
    looked_up_by=("queue",),
    columns=(
        Column("source_key", STRING, "key of snapshot_id and the sender's place in it, from 0"),
        Column("snapshot_id", STRING, "silver.queue_snapshots"),
        Column("queue", STRING, "canonical normal form of the incoming queue"),
        Column("queue_format_name", STRING, "its format name as asked"),
        NAMED_QUEUE_MANAGER,
        Column("source", STRING, "wire or collector"),
        Column("observed_at", TIMESTAMP, "time of the answer, UTC"),
        Column("sender_queue_manager", STRING, "GUID of the sender's queue manager, lower case"),
        Column("sender_format_name", STRING, "format name that the sender used for this queue"),
        Column("sender_queue", STRING, "canonical normal form of that: the sender's outgoing queue"),
        Column("sequence_id", UINT64, "last sequence from that sender"),
        Column("last_number", BIGINT, "number of the last message accepted of it"),
        Column("last_access_at", TIMESTAMP, "when a message of it was last accepted or rejected, UTC"),
        Column("reject_count", BIGINT, "messages rejected since the last one accepted"),
        Column(
            "disagrees_with_sender",
            STRING,
            "how: sequence_behind, number_behind, gap or sequence_unknown, and the numbers; null when both ends agree "
            "or the sender was not observed",
        ),
        *EVIDENCE,
        *run_columns("gold", "observed_at"),
    ),
)

TABLES = (EOD_TRANSFERS, EOD_SOURCES)
