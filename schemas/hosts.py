"""silver: machines by the names, addresses and identifiers that were seen together."""

from __future__ import annotations

from schemas.table import BIGINT, DECODER_COLUMNS, STRING, TIMESTAMP, Column, Table, run_columns

HOSTS = Table(
    "silver",
    "hosts",
    "One row per combination of queue manager identifier, host name and address seen together, and per place of it.",
    key=("host_key",),
    event_date_columns=("first_seen_at",),
    columns=(
        Column("host_key", STRING, "key of queue_manager_id, host_name, address and source"),
        Column(
            "queue_manager_id", STRING, "GUID of the queue manager, lower case; null where it was not seen with these"
        ),
        Column(
            "host_name", STRING, "name of the machine, lower case; of a collector's machine also the configured one"
        ),
        Column("address", STRING, "IP address of the machine; null where it was not seen with these"),
        Column(
            "source", STRING, "where they were seen together: snapshot, message, format_name, endpoint_mapper, session"
        ),
        Column("first_seen_at", TIMESTAMP, "earliest time that they were, UTC"),
        Column("last_seen_at", TIMESTAMP, "latest time that they were, UTC"),
        Column("sightings", BIGINT, "snapshots, messages, opened queues, answers or handshakes that show it"),
        *DECODER_COLUMNS,
        *run_columns("silver", "first_seen_at"),
    ),
)

TABLES = (HOSTS,)
