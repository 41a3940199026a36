"""SQL for the views of the estate: what was seen of messages, by queue and machine, and the time that was captured."""

from __future__ import annotations

from typing import Final

from pipeline.reports.views.machine_names import with_machines
from pipeline.silver.canonical_queues import with_canonical_queues

_MINUTE_US: Final = 60_000_000
_HOP_COLUMNS: Final = (
    "packet_key, sender_address AS hop_sender, receiver_address AS hop_receiver, "
    "receiver_queue_manager AS hop_receiver_guid, length_bytes AS sent_bytes"
)
_PLACE: Final = (
    "CASE WHEN rows.packet_key IS NULL THEN coalesce(rows.queue, rows.inferred_queue, rows.destination_queue) "
    "ELSE rows.destination_queue END"
)

_IPV4: Final = "'^[0-9]+[.][0-9]+[.][0-9]+[.][0-9]+[^0-9a-z.-]'"
_IPV6: Final = "'^[0-9a-f]*:[0-9a-f:.]+[^0-9a-f:.]'"
_GUID_AND_NUMBER: Final = f"'{'_' * 8}-____-____-____-{'_' * 21}%'"  # any sign for the backslash between the two

_FORMAT_NAME: Final = f"""CASE WHEN size(destination_list) > 1 OR destination_queue LIKE '%,%' THEN 'list'
              WHEN destination_queue LIKE 'direct=http%' THEN 'http'
              WHEN regexp_like(destination_queue, '^(public|machine|connector|multicast)=')
                THEN split_part(destination_queue, '=', 1)
              WHEN destination_queue LIKE 'dl=%' THEN 'distribution_list'
              WHEN destination_queue LIKE {_GUID_AND_NUMBER} THEN 'private'
              WHEN regexp_like(destination_queue, {_IPV4}) OR regexp_like(destination_queue, {_IPV6})
                THEN 'direct_address'
              WHEN destination_queue IS NOT NULL THEN 'direct_name' END"""
"""The kind of format name that a message was sent by, as its normal form shows it."""


def owning_queue(name: str) -> str:
    """Return the SQL of the queue that a name belongs to: of a journal or a subqueue the one whose it is.

    Journals and dead-letter queues of a whole machine are queues of their own. ``name`` is a SQL expression.
    """
    is_whole = f"regexp_like({name}, '^(machine|direct)=|system[$];|,')"
    return f"CASE WHEN {is_whole} THEN {name} ELSE split_part({name}, ';', 1) END"


def sightings_sql(columns: str) -> str:
    """Return a subquery over silver.messages: a row for each time that a message was sent (TCP 1801) or read remotely.

    ``columns`` are further columns of silver.messages. ``message`` is one text for all sightings of a message. ``place``
    is the queue that it was sent to or read from, ``queue`` the one that this belongs to, by canonical names.
    ``is_sent`` tells packets of TCP 1801 from reads; ``sent_bytes`` is null of reads. ``is_to_owner``: the hop ends at
    the queue's owner. ``format_name`` is the kind of name that the message was sent by. ``source``, ``sender`` and
    ``receiver`` are machines: of the queue manager that first accepted it, and of both ends of the hop. The query that
    it is part of has ``machine_names``.
    """
    sent = f"""(SELECT *, packet_key IS NOT NULL AS is_sent, coalesce(message_key, sighting_key) AS message,
            hop_receiver_guid = destination_queue_manager OR {_FORMAT_NAME} LIKE 'direct%' AS is_to_owner,
            {_FORMAT_NAME} AS format_name
          FROM silver.messages LEFT JOIN (SELECT {_HOP_COLUMNS} FROM silver.sendings) AS hops USING (packet_key))"""
    shared = (
        "message, is_sent, seen_at, sent_bytes, format_name, is_to_owner, source_queue_manager, hop_sender, "
        f"hop_receiver, {columns}"
    )
    placed = with_canonical_queues(sent, {"place": _PLACE}, shared)
    named = with_machines(
        placed,
        {"source": "rows.source_queue_manager", "sender": "rows.hop_sender", "receiver": "rows.hop_receiver"},
        f"{shared}, place",
    )
    return f"(SELECT *, {owning_queue('place')} AS queue FROM {named} AS sightings)"


def reads_sql(columns: str) -> str:
    """Return a subquery over gold.receive_attempts: those that returned a message; ``columns`` are further ones.

    ``queue`` is the one that was read, or whose journal or subqueue was. ``sender`` and ``receiver`` are machines: the
    queue's owner, and the reader. The query that it is part of has ``machine_names``.
    """
    named = with_machines(
        "(SELECT * FROM gold.receive_attempts WHERE message_key IS NOT NULL)",
        {"sender": "rows.server_address", "receiver": "rows.client_address"},
        "message_key AS message, is_receive, coalesce(queue, inferred_queue) AS place, "
        f"coalesce(started_at, returned_at, ended_at) AS first_at, coalesce(returned_at, started_at) AS last_at, {columns}",
    )
    return f"(SELECT *, {owning_queue('place')} AS queue FROM {named} AS reads)"


def _minute(time: str) -> str:
    return f"CAST(floor(unix_micros({time}) / {_MINUTE_US}) AS bigint)"


def captured_sql(where: str) -> str:
    """Return a subquery: each stretch of time in which captures ran without a gap, in whole minutes of UTC.

    It is the minutes since 1970 from ``first_minute`` up to ``end_minute``, which is no part of it, within the hours
    asked for and until now. ``where`` is a condition on captures.
    """
    return f"""(SELECT min(first_minute) AS first_minute, max(end_minute) AS end_minute FROM (
            SELECT *, sum(begins) OVER (ORDER BY first_minute, end_minute ROWS UNBOUNDED PRECEDING) AS stretch FROM (
              SELECT *, CASE WHEN first_minute <= max(end_minute) OVER (
                ORDER BY first_minute, end_minute ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
              ) THEN 0 ELSE 1 END AS begins
              FROM (
                SELECT {_minute("greatest(first_packet_at, setting.since)")} AS first_minute,
                  {_minute("least(last_packet_at, now)")} + 1 AS end_minute
                FROM bronze.capture_files CROSS JOIN setting.now
                WHERE packets > 0 AND first_packet_at <= now
                  AND (setting.since IS NULL OR last_packet_at >= setting.since) AND {where}
              ) AS captures
            ) AS ordered
          ) AS numbered GROUP BY stretch)"""
