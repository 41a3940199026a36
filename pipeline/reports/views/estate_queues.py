"""The view of the estate by queues: who uses each, how much, how large, and which features of Message Queuing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pipeline.queues.history import DEAD_LETTER_QUEUES_SQL, JOURNAL_SUFFIX, STATE_LOCAL, is_dead_letter
from pipeline.reports.views.estate_sightings import captured_sql, owning_queue, reads_sql, sightings_sql
from pipeline.reports.views.evidence import QUEUE_REPORTS, READS, SESSIONS_SEEN, any_of
from pipeline.reports.views.machine_names import MACHINE_NAMES_SQL, with_machines
from pipeline.reports.views.scope import ScopeColumns
from pipeline.reports.views.view import View
from pipeline.silver.application_sql import MESSAGE_TYPE_SQL
from pipeline.silver.canonical_queues import with_canonical_queues
from schemas.table import literal

MAX_EXACT_SIZES: Final = 100_000
"""Up to so many messages of a queue, percentiles of their sizes are exact."""
MAX_VALUES: Final = 20
"""So many senders, readers, types and other names of a queue are listed."""
_SIZE_BITS: Final = 5  # of larger queues, so many leading bits of a size count: it is rounded up by less than a 16th
_JOURNAL: Final = literal(JOURNAL_SUFFIX)
_SYSTEM_SUFFIX: Final = "'^;(journal|deadletter|deadxact)$'"
_SAID: Final = {
    "delivery": "delivery",
    "transactional": "transactional",
    "of_several": "NOT (first_in_transaction AND last_in_transaction)",
    "exactly_once_sequence": "source || ' ' || CAST(transaction_sequence_id AS string)",
    "priority": "priority",
    "live_s": "time_to_be_received_s",
    "reach_s": "time_to_reach_queue_s",
    "journaling": "journaling",
    "acks": "acknowledgement_requested",
    "correlation_id": "correlation_id",
    "authenticated": "authenticated",
    "signed": "signed",
    "certified": "sender_certificate_bytes > 0",
    "encrypted": "encrypted",
    "traced": "traced",
    "is_srmp": "is_srmp",
    "is_comqc": "is_comqc",
    "message_kind": "message_kind",
    "body_bytes": "body_bytes",
    "has_headers": "message_key IS NOT NULL",
    "is_decoded": "size(errors) = 0",
    "sender_name": "source",
    "format_name": "format_name",
    "dead_letter_queue": "dead_letter_queue",
    "admin_queue": "admin_queue",
    "response_queue": "response_queue",
    "hash_algorithm": "CASE WHEN signed THEN CAST(hash_algorithm AS string) END",
    "encryption_algorithm": "CASE WHEN encrypted THEN CAST(encryption_algorithm AS string) END",
    "framework": "framework",
    "body_format": "body_format",
    "message_type": MESSAGE_TYPE_SQL,
}
"""What a message says: SQL over its sightings, each of which says the same as far as it was captured."""
_SIGHTING_COLUMNS: Final = """message_key, message_kind, body_bytes, delivery, transactional, first_in_transaction,
            last_in_transaction, transaction_sequence_id, priority, time_to_be_received_s, time_to_reach_queue_s,
            journaling, acknowledgement_requested, dead_letter_queue, admin_queue, response_queue, correlation_id,
            authenticated, signed, sender_certificate_bytes, hash_algorithm, encrypted, encryption_algorithm, is_srmp,
            is_comqc, traced, framework, body_format, body_root, sent_types, errors, hop_count"""
_SUFFIX: Final = "nullif(substr(place, length(queue) + 1), '')"
_EVENT: Final = (
    "what", "queue", "message", "first_at", "last_at", "source", "sender", "receiver", "holder", "suffix", "hop",
    "packet_bytes", "in_transaction", "by_lookup", "depth_messages", "depth_bytes",
)  # fmt: skip


def _events(rows: str, **columns: str) -> str:
    """Return a query of events: ``rows`` with some columns of an event, given as SQL; the others are null."""
    selected = (f"{columns.get(name, 'NULL')} AS {name}" for name in (*_EVENT, *_SAID))
    return f"SELECT {', '.join(selected)} FROM {rows} AS events"


_DEAD: Final = with_canonical_queues(
    "(SELECT * FROM silver.messages WHERE packet_key IS NULL AND message_key IS NOT NULL)",
    {
        "read_from": "coalesce(rows.queue, rows.inferred_queue)",
        "destination": "rows.destination_queue",
        "own_queue": "rows.dead_letter_queue",
    },
    "message_key, seen_at",
)
_REFUSED: Final = with_canonical_queues(
    "(SELECT * FROM gold.message_transfers WHERE dead_letter_class IS NOT NULL)",
    {"destination": "rows.destination_queue"},
    "message_key, first_sent_at, last_sent_at",
)
_OPERATIONS: Final = with_machines(
    "(SELECT *, coalesce(queue, target_queue) AS place FROM gold.queue_operations WHERE outcome = 'done')",
    {"sender": "rows.server_address", "receiver": "rows.client_address"},
    "operation, place, target_queue, coalesce(requested_at, responded_at) AS first_at, "
    "coalesce(responded_at, requested_at) AS last_at",
)
_REPORTED: Final = with_machines(
    f"(SELECT * FROM gold.queue_history CROSS JOIN setting.now "
    f"WHERE state = {literal(STATE_LOCAL)} AND valid_from <= now)",
    {"holder": "lower(rows.queue_manager)"},
    "queue AS place, message_count, bytes, journal_count, valid_from, "
    "least(valid_to - INTERVAL 1 MICROSECOND, now) AS last_at",
)
_JOURNALED: Final = f"journal_count > 0 OR (place LIKE '%{JOURNAL_SUFFIX}' AND message_count > 0)"

_EVENTS_SQL: Final = " UNION ALL ".join((
    _events(
        sightings_sql(_SIGHTING_COLUMNS),
        what="CASE WHEN is_sent THEN 'sent' ELSE 'read' END", queue="queue", message="message", first_at="seen_at",
        last_at="seen_at", source="source", sender="sender", receiver="receiver", suffix=_SUFFIX,
        holder="CASE WHEN is_to_owner THEN receiver END", hop="CASE WHEN is_sent THEN coalesce(hop_count, 0) END", packet_bytes="sent_bytes", **_SAID,
    ),
    _events(
        reads_sql("transactional, action_name"),
        what="CASE WHEN is_receive THEN 'receive' ELSE 'peek' END", queue="queue", message="message",
        first_at="first_at", last_at="last_at", sender="sender", receiver="receiver", holder="sender", suffix=_SUFFIX,
        in_transaction="transactional", by_lookup="startswith(action_name, 'MQ_LOOKUP')",
    ),
    _events(
        f"(SELECT *, {owning_queue('place')} AS queue FROM {_OPERATIONS} AS operations)",
        what="operation", queue="queue", first_at="first_at", last_at="last_at", sender="sender", receiver="receiver",
        holder="sender", suffix=f"coalesce(nullif(substr(target_queue, length(queue) + 1), ''), {_SUFFIX})",
    ),
    _events(
        f"(SELECT *, {owning_queue('place')} AS queue FROM {_REPORTED} AS reports)",
        what=f"CASE WHEN {_JOURNALED} THEN 'journal' ELSE 'report' END", queue="queue", first_at="valid_from",
        last_at="last_at", receiver="holder", holder="holder", suffix=_SUFFIX,
        depth_messages="CASE WHEN place = queue THEN message_count END",
        depth_bytes="CASE WHEN place = queue THEN bytes END",
    ),
    _events(
        f"(SELECT * FROM {_DEAD} AS lying WHERE {is_dead_letter('read_from', 'own_queue')})",
        what="'dead'", queue=owning_queue("destination"), message="message_key", first_at="seen_at", last_at="seen_at",
    ),
    _events(
        _REFUSED, what="'dead'", queue=owning_queue("destination"), message="message_key", first_at="first_sent_at",
        last_at="last_sent_at",
    ),
))  # fmt: skip
"""Events of queues: messages sent and read, receives and peeks, operations, reports, and dead letters."""


def _said(condition: str) -> str:
    """Return the SQL of how many messages meet a condition; null where it is not known of any."""
    return f"CAST(sum(CAST({condition} AS int)) AS bigint)"


_ASKED_ACKS: Final = {"ack_arrival": 1, "ack_receive": 2, "ack_not_arrived": 4, "ack_not_received": 8}
_OF_MESSAGES: Final = {
    "messages": "count(*)",
    "sent_messages": "nullif(count_if(was_sent), 0)",
    "read_messages": "nullif(count_if(was_read), 0)",
    "largest_body_bytes": "max(body_bytes)",
    "largest_packet_bytes": "max(packet_bytes)",
    "headers_known": "count_if(has_headers)",
    "properties_known": "count(body_bytes)",
    "security_known": "count(authenticated)",
    "express": _said("delivery = 'express'"),
    "recoverable": _said("delivery = 'recoverable'"),
    "transactional": _said("transactional"),
    "in_larger_transactions": _said("transactional AND coalesce(of_several, FALSE)"),
    "sequences": "nullif(count(DISTINCT exactly_once_sequence), 0)",
    "priorities": "array_sort(collect_set(priority))",
    "smallest_time_to_live_s": "min(live_s)",
    "largest_time_to_live_s": "max(live_s)",
    "without_time_to_live": _said("CASE WHEN has_headers THEN live_s IS NULL END"),
    "smallest_time_to_reach_s": "min(reach_s)",
    "largest_time_to_reach_s": "max(reach_s)",
    "without_time_to_reach": _said("CASE WHEN has_headers THEN reach_s IS NULL END"),
    "source_journal": _said("journaling & 2 <> 0"),
    "dead_letter_asked": _said("journaling & 1 <> 0"),
    **{name: _said(f"acks & {bit} <> 0") for name, bit in _ASKED_ACKS.items()},
    "acks_asked": _said("acks <> 0"),
    "with_response_queue": _said("CASE WHEN has_headers THEN response_queue IS NOT NULL END"),
    "with_correlation": _said("CASE WHEN body_bytes IS NOT NULL THEN correlation_id IS NOT NULL END"),
    "authenticated": _said("authenticated"),
    "signed": _said("signed"),
    "with_certificate": _said("certified"),
    "encrypted": _said("encrypted"),
    "multicast_messages": _said("format_name = 'multicast'"),
    "list_messages": _said("format_name IN ('distribution_list', 'list')"),
    "http_messages": _said("is_srmp"),
    "comqc": _said("is_comqc"),
    "traced": _said("traced"),
    "acknowledgement_messages": _said("message_kind <> 'application'"),
    "undecoded_messages": "count_if(NOT is_decoded)",
}
"""Columns of the view over the messages of a queue."""
_LISTS: Final = {
    "senders": "sender_name",
    "format_names": "format_name",
    "dead_letter_queues": "dead_letter_queue",
    "admin_queues": "admin_queue",
    "response_queues": "response_queue",
    "hash_algorithms": "hash_algorithm",
    "encryption_algorithms": "encryption_algorithm",
    "frameworks": "framework",
    "body_formats": "body_format",
    "message_types": "message_type",
}
"""Lists of the view over the messages of a queue: of which column."""
_EVENT_LISTS: Final = {
    "holders": "holder",
    "readers": "CASE WHEN what IN ('receive', 'peek') THEN receiver END",
    "subqueues": f"CASE WHEN NOT regexp_like(suffix, {_SYSTEM_SUFFIX}) THEN substr(suffix, 2) END",
}
"""Lists of the view over the events of a queue."""


def _unpivot(lists: Mapping[str, str], rows: str) -> str:
    """Return a query of the values that make lists: ``queue``, ``list``, ``value`` and how many rows have it."""
    names = ", ".join(map(literal, lists))
    cases = " ".join(f"WHEN {literal(name)} THEN {value}" for name, value in lists.items())
    return f"""SELECT queue, list, CASE list {cases} END AS value, count(*) AS times
          FROM (SELECT *, explode(array({names})) AS list FROM {rows}) AS each
          GROUP BY queue, list, CASE list {cases} END"""


def _listed(name: str) -> str:
    """Return the SQL of the values of a list, those of most rows first."""
    ranked = f"collect_list(CASE WHEN list = {literal(name)} AND place <= {MAX_VALUES} THEN struct(place, value) END)"
    return f"transform(array_sort({ranked}), each -> each.value) AS {name}"


_QUEUE_LISTS: Final = ("dead_letter_queues", "admin_queues", "response_queues")
_NAMED_VALUES: Final = with_canonical_queues(
    "counted", {"named": f"CASE WHEN rows.list IN {_QUEUE_LISTS} THEN rows.value END"}, "rows.queue, list, value, times"
)
_SIZE_STEP: Final = f"CAST(pow(2, greatest(length(bin(body_bytes)) - {_SIZE_BITS}, 0)) AS bigint)"
_SIZES_SQL: Final = f"""sizes AS (
          SELECT queue, size, count(*) AS times FROM (
            SELECT queue, CASE WHEN count(*) OVER (PARTITION BY queue) <= {MAX_EXACT_SIZES} THEN body_bytes
                ELSE body_bytes + {_SIZE_STEP} - 1 - (body_bytes + {_SIZE_STEP} - 1) % {_SIZE_STEP} END AS size
            FROM messages WHERE body_bytes IS NOT NULL
          ) AS each GROUP BY queue, size
        ), of_sizes AS (
          SELECT queue, min(CASE WHEN upto * 100 >= total * 50 THEN size END) AS body_p50_bytes,
            min(CASE WHEN upto * 100 >= total * 99 THEN size END) AS body_p99_bytes,
            max(total) <= {MAX_EXACT_SIZES} AS body_sizes_exact
          FROM (
            SELECT *, sum(times) OVER (PARTITION BY queue ORDER BY size) AS upto,
              sum(times) OVER (PARTITION BY queue) AS total
            FROM sizes
          ) AS each GROUP BY queue
        )"""
_RATES_SQL: Final = f"""captured AS (
          SELECT sum(end_minute - first_minute) AS captured_minutes FROM {captured_sql("TRUE")} AS stretches
        ), minutes AS (
          SELECT queue, minute, count(*) AS times, sum(packet_bytes) AS bytes FROM (
            SELECT queue, date_trunc('minute', first_at) AS minute, packet_bytes,
              hop = max(hop) OVER (PARTITION BY queue, message) AS is_last_hop
            FROM events WHERE what = 'sent'
          ) AS sendings WHERE is_last_hop GROUP BY queue, minute
        ), of_rates AS (
          SELECT queue, CAST(sum(times) AS bigint) AS sendings, CAST(sum(bytes) AS bigint) AS sent_bytes,
            CAST(max(captured_minutes) AS bigint) AS captured_minutes,
            sum(times) / nullif(max(captured_minutes), 0) AS mean_per_minute,
            CASE WHEN max(captured_minutes) > 0
              THEN coalesce(max(CASE WHEN place = floor(captured_minutes / 20) + 1 THEN times END), 0)
              END AS p95_per_minute,
            max(CASE WHEN place = 1 THEN times END) AS peak_per_minute, max(CASE WHEN place = 1 THEN minute END) AS peak_at
          FROM (
            SELECT *, CASE WHEN minute IS NOT NULL
              THEN row_number() OVER (PARTITION BY queue ORDER BY minute IS NULL, times DESC, minute) END AS place
            FROM minutes
          ) AS ranked CROSS JOIN captured GROUP BY queue
        )"""
_LISTS_SQL: Final = f"""counted AS (
          {_unpivot(_LISTS, "messages")}
          UNION ALL
          {_unpivot(_EVENT_LISTS, "events")}
        ), named_values AS (
          SELECT queue, list, coalesce(named, value) AS value, sum(times) AS times FROM {_NAMED_VALUES} AS named
          WHERE value IS NOT NULL GROUP BY queue, list, coalesce(named, value)
        ), of_lists AS (
          SELECT queue, {", ".join(_listed(name) for name in (*_LISTS, *_EVENT_LISTS))},
            nullif(count_if(list = 'senders'), 0) AS sender_count, nullif(count_if(list = 'readers'), 0) AS reader_count
          FROM (
            SELECT *, row_number() OVER (PARTITION BY queue, list ORDER BY times DESC, value) AS place FROM named_values
          ) AS ranked GROUP BY queue
        )"""


def _columns(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{sql} AS {name}" for name, sql in columns.items())


_READS_SEEN: Final = "count_if(what IN ('receive', 'peek')) > 0"
_OF_EVENTS: Final = {
    "receives": f"CASE WHEN {_READS_SEEN} THEN count_if(what = 'receive') END",
    "transactional_receives": _said("CASE WHEN what = 'receive' THEN in_transaction END"),
    "peeks": f"CASE WHEN {_READS_SEEN} THEN count_if(what = 'peek') END",
    "lookups": _said("CASE WHEN what IN ('receive', 'peek') THEN by_lookup END"),
    "purges": "nullif(count_if(what = 'purge'), 0)",
    "moves": "nullif(count_if(what = 'move'), 0)",
    "target_journal": "CASE WHEN count_if(what = 'journal' OR (what = 'read' AND suffix = ';journal')) > 0 THEN TRUE END",
    "dead_lettered": "nullif(count(DISTINCT CASE WHEN what = 'dead' THEN message END), 0)",
    "largest_depth_messages": "max(depth_messages)",
    "largest_depth_bytes": "max(depth_bytes)",
    "first_seen_at": "min(first_at)",
    "last_seen_at": "max(last_at)",
}

ESTATE_QUEUES: Final = View(
    "estate_queues", 28,
    "a queue",
    "TODO",
    "TODO",
    f"""
        WITH {MACHINE_NAMES_SQL}, events AS (
          SELECT every.* FROM ({_EVENTS_SQL}) AS every CROSS JOIN setting.now
          WHERE queue IS NOT NULL AND coalesce(first_at <= now, TRUE) AND setting.scope
        ), messages AS (
          SELECT queue, message, max(what = 'sent') AS was_sent, max(what = 'read') AS was_read,
            max(packet_bytes) AS packet_bytes, {", ".join(f"max({name}) AS {name}" for name in _SAID)}
          FROM events WHERE what IN ('sent', 'read') GROUP BY queue, message
        ), of_messages AS (
          SELECT queue, {_columns(_OF_MESSAGES)} FROM messages GROUP BY queue
        ), of_events AS (
          SELECT queue, {_columns(_OF_EVENTS)} FROM events GROUP BY queue
        ), {_SIZES_SQL}, {_RATES_SQL}, {_LISTS_SQL}
        SELECT queue, holders, senders, sender_count, readers, reader_count, messages, sent_messages, read_messages,
          sendings, sendings - sent_messages AS resendings, sent_bytes, receives, transactional_receives, peeks, lookups,
          purges, moves, captured_minutes, mean_per_minute, p95_per_minute, peak_per_minute, peak_at, body_p50_bytes,
          body_p99_bytes, body_sizes_exact, largest_body_bytes, largest_packet_bytes, headers_known, properties_known,
          security_known, express, recoverable, transactional, in_larger_transactions, sequences, priorities,
          smallest_time_to_live_s, largest_time_to_live_s, without_time_to_live, smallest_time_to_reach_s,
          largest_time_to_reach_s, without_time_to_reach, source_journal, target_journal, dead_letter_asked,
          dead_lettered, dead_letter_queues, {", ".join(_ASKED_ACKS)}, acks_asked, admin_queues, response_queues,
          with_response_queue, with_correlation, authenticated, signed, with_certificate, hash_algorithms, encrypted,
          encryption_algorithms, format_names, multicast_messages, list_messages, http_messages, subqueues, comqc,
          frameworks, body_formats, message_types, traced, acknowledgement_messages, largest_depth_messages,
          largest_depth_bytes, undecoded_messages, first_seen_at, last_seen_at
        FROM of_events LEFT JOIN of_messages USING (queue) LEFT JOIN of_rates USING (queue)
          LEFT JOIN of_sizes USING (queue) LEFT JOIN of_lists USING (queue)
        ORDER BY messages DESC NULLS LAST, queue
        """,
    (), ("first_seen_at", "last_seen_at"), any_of(SESSIONS_SEEN, READS, QUEUE_REPORTS),
    ScopeColumns("first_at", "last_at", ("source", "sender", "receiver"), ("queue",)),
)  # fmt: skip
"""The view of the estate by queues."""
