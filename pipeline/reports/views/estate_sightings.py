"""SQL for the views of the estate: what was seen of messages, by queue and machine, and the time that was captured."""

from __future__ import annotations

from typing import Final

from pipeline.silver.canonical_queues import with_canonical_queues

_MINUTE_US: Final = 60_000_000
_DATED_FOLDERS: Final = 4  # parts of a path: year, month, day, hour
_HOPS: Final = """SELECT packet_key, sender_address AS hop_sender, receiver_address AS hop_receiver,
            receiver_queue_manager AS hop_receiver_guid, length_bytes AS sent_bytes
          FROM silver.sendings"""
_CALLS: Final = "SELECT call_key, server_address AS owner, packet_bytes AS read_bytes FROM silver.remote_read_calls"
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


SIGHTINGS_SQL: Final = f"""(
          SELECT *, packet_key IS NOT NULL AS is_sent, coalesce(message_key, sighting_key) AS message,
            CASE WHEN packet_key IS NULL THEN coalesce(queue, inferred_queue, destination_queue)
              ELSE destination_queue END AS found_in,
            coalesce(sent_bytes, read_bytes + greatest(body_bytes - body_bytes_seen, 0)) AS packet_bytes,
            {_FORMAT_NAME} AS format_name,
            coalesce(hop_receiver_guid = destination_queue_manager, {_FORMAT_NAME} LIKE 'direct%') AS is_to_owner
          FROM silver.messages LEFT JOIN ({_HOPS}) AS hops USING (packet_key)
            LEFT JOIN ({_CALLS}) AS calls USING (call_key)
        )"""
"""A subquery: silver.messages, a row for each time that a message was sent (TCP 1801) or read remotely.

Further columns: ``is_sent``, ``message`` (one text for all sightings of a message), ``found_in`` (the queue that it was
sent to or read from, not by its canonical name), ``format_name`` (the kind of name that it was sent by); of a packet
``hop_sender`` and ``hop_receiver`` (addresses) and ``is_to_owner``, the hop ends at the queue's owner; of a read
``owner``, the address of the queue's owner. ``packet_bytes`` is the size of the message with all of its headers.
"""
READS_SQL: Final = """(
          SELECT *, message_key AS message, coalesce(queue, inferred_queue) AS found_in,
            coalesce(started_at, returned_at, ended_at) AS first_at,
            coalesce(returned_at, ended_at, started_at) AS last_at
          FROM gold.receive_attempts WHERE message_key IS NOT NULL
        )"""
"""A subquery: the attempts of gold.receive_attempts that returned a message, with ``message`` and ``found_in``."""


def by_queue(rows: str, columns: str) -> str:
    """Return a subquery over ``rows``: some ``columns``, ``place`` and ``queue``.

    ``place`` is the canonical name of ``found_in``. ``queue`` is the queue that it belongs to: of a journal or a
    subqueue the one whose it is. Journals and dead-letter queues of a whole machine are queues of their own.
    """
    placed = with_canonical_queues(rows, {"place": "rows.found_in"}, columns)
    is_whole = "regexp_like(place, '^(machine|direct)=|system[$];|,')"
    own = f"CASE WHEN {is_whole} THEN place ELSE split_part(place, ';', 1) END"
    return f"(SELECT *, {own} AS queue FROM {placed} AS placed)"


def _minute(time: str) -> str:
    return f"CAST(floor(unix_micros({time}) / {_MINUTE_US}) AS bigint)"


def _source() -> str:
    """Return the SQL of where a capture is from: its folder; folders of days and hours are one, as in alerts."""
    folder = "regexp_replace(replace(coalesce(path, ''), chr(92), '/'), '/[^/]*$', '/')"
    for _ in range(_DATED_FOLDERS):
        folder = f"regexp_replace({folder}, '/([A-Za-z_]+=)?[0-9][0-9_-]*/', '/*/')"
    return folder


def _captures(where: str) -> str:
    """Return a query of the captures within the hours asked for and until now, in minutes since 1970."""
    return f"""SELECT {_source()} AS source, {_minute("greatest(first_packet_at, setting.since)")} AS first_minute,
              {_minute("least(last_packet_at, now)")} + 1 AS end_minute
            FROM bronze.capture_files CROSS JOIN setting.now
            WHERE packets > 0 AND first_packet_at <= now
              AND (setting.since IS NULL OR last_packet_at >= setting.since) AND {where}"""


def _stretches(spans: str, of: str) -> str:
    """Return a subquery: the stretches without a gap of all spans that have one value of the column ``of``.

    Spans and stretches are from ``first_minute`` up to ``end_minute``, which is no part of them.
    """
    order = f"PARTITION BY {of} ORDER BY first_minute, end_minute"
    return f"""(SELECT {of}, min(first_minute) AS first_minute, max(end_minute) AS end_minute FROM (
            SELECT *, sum(begins) OVER ({order} ROWS UNBOUNDED PRECEDING) AS stretch FROM (
              SELECT *, CASE WHEN first_minute <= max(end_minute) OVER (
                {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
              ) THEN 0 ELSE 1 END AS begins FROM ({spans}) AS spans
            ) AS ordered
          ) AS numbered GROUP BY {of}, stretch)"""


def captured_sql(where: str) -> str:
    """Return a subquery: each stretch of time in which any capture ran, in minutes of UTC since 1970.

    It is from ``first_minute`` up to ``end_minute``, which is no part of it, within the hours asked for and until now.
    ``where`` is a condition on captures.
    """
    return _stretches(f"SELECT 1 AS every, first_minute, end_minute FROM ({_captures(where)}) AS captures", "every")


_SEEN_BY: Final = by_queue(
    f"""(
            SELECT DISTINCT destination_queue AS found_in, source
            FROM (SELECT packet_key, destination_queue FROM silver.messages WHERE packet_key IS NOT NULL) AS sent
              JOIN (SELECT packet_key, capture_id FROM silver.sendings) AS hops USING (packet_key)
              JOIN (SELECT capture_id, {_source()} AS source FROM bronze.capture_files) AS sources USING (capture_id)
          )""",
    "source",
)
QUEUE_STRETCHES_SQL: Final = _stretches(
    f"SELECT DISTINCT queue, first_minute, end_minute FROM {_SEEN_BY} AS seen_by "
    f"JOIN {_stretches(_captures('TRUE'), 'source')} AS captured USING (source)",
    "queue",
)
"""A subquery: the same of each ``queue``, of captures in folders that any capture of a message sent to it is in."""
