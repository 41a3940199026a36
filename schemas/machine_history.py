"""gold: how each queue manager went on, interval by interval."""

from __future__ import annotations

from schemas.receive_attempts import EVIDENCE
from schemas.table import BIGINT, STRING, TIMESTAMP, UINT64, Column, Table, run_columns

MACHINE_HISTORY = Table(
    "gold",
    "machine_history",
    "One row per interval of a queue manager's life; intervals are half-open, do not overlap and leave no hole between "
    "the first and the last evidence. Where nothing is known the state is UNKNOWN and the values are null.",
    key=("interval_key",),
    event_date_columns=("valid_from", "valid_to"),
    columns=(
        Column("interval_key", STRING, "key of queue_manager and valid_from"),
        Column(
            "queue_manager",
            STRING,
            "configured name of the queue manager, if one is known for its address, else the address",
        ),
        Column("valid_from", TIMESTAMP, "beginning of the interval, UTC"),
        Column("valid_to", TIMESTAMP, "end of the interval, UTC; no longer part of it"),
        Column(
            "state",
            STRING,
            "CONNECTED; DISCONNECTED: taken off the network and the directory; as reported (upper case) or by a "
            "CONNECT or DISCONNECT since; UNKNOWN when the last report has expired",
        ),
        Column("directory_server", STRING, "name of the directory server, as last reported; null when it has none"),
        Column("bytes_in_all_queues", UINT64, "bytes of the messages in all its queues, as last reported"),
        Column("active_queues", BIGINT, "number of its active queues, as last reported"),
        Column("private_queues", BIGINT, "number of its private queues, as last reported"),
        Column(
            "source",
            STRING,
            "evidence that it begins with or continues from: wire, collector, operations; null when UNKNOWN",
        ),
        Column(
            "reported_at",
            TIMESTAMP,
            "time of the newest report of one of its values that holds in it, UTC; null without one",
        ),
        *EVIDENCE,
        *run_columns("gold", "valid_from"),
    ),
)

TABLES = (MACHINE_HISTORY,)
