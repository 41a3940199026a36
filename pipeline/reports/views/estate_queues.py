"""The view of the estate by queues: who uses each, how much, how large, and which features of Message Queuing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pipeline.queues.history import JOURNAL_SUFFIX, STATE_LOCAL, is_dead_letter
from pipeline.reports.views.estate_sightings import QUEUE_STRETCHES_SQL, READS_SQL, SIGHTINGS_SQL, by_queue
from pipeline.reports.views.evidence import QUEUE_REPORTS, READS, SESSIONS_SEEN, any_of
from pipeline.reports.views.machine_names import with_machines
from pipeline.reports.views.scope import ScopeColumns
from pipeline.reports.views.view import View
from pipeline.silver.application_sql import MESSAGE_TYPE_SQL
from pipeline.silver.canonical_queues import with_canonical_queues
from schemas.table import literal

MAX_VALUES: Final = 20
"""So many senders, readers, types and other names of a queue are listed."""
_TEXT_FORMATS: Final = ("xml", "soap", "json", "text", "VT_BSTR", "VT_LPSTR", "VT_LPWSTR")
_SYSTEM_SUFFIX: Final = "'^;(journal|deadletter|deadxact)$'"
_SAID: Final = {
    "delivery": "delivery",
    "transactional": "transactional",
    "of_several": "NOT (first_in_transaction AND last_in_transaction)",
    "exactly_once_sequence": "source_queue_manager || ' ' || CAST(transaction_sequence_id AS string)",
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
    "body_was_seen": "body_bytes_seen > 0",
    "has_headers": "message_key IS NOT NULL",
    "is_decoded": "size(errors) = 0",
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
_SUFFIX: Final = "CASE WHEN startswith({0}, queue || ';') THEN substr({0}, length(queue) + 1) END"
_EVENT: Final = (
    "what", "found_in", "message", "first_at", "last_at", "source", "sender", "receiver", "holder", "hop",
    "packet_bytes", "in_transaction", "by_lookup", "depth_messages", "depth_bytes", "target_queue",
)  # fmt: skip


def _events(rows: str, **columns: str) -> str:
    """Return a query of events: ``rows`` with some columns of an event, given as SQL; the others are null."""
    selected = (f"{columns.get(name, 'NULL')} AS {name}" for name in (*_EVENT, *_SAID))
    return f"SELECT {', '.join(selected)} FROM {rows} AS events"


_EVERY_EVENT: Final = " UNION ALL ".join((
    _events(
        SIGHTINGS_SQL,
        what="CASE WHEN is_sent THEN 'sent' ELSE 'read' END", found_in="found_in", message="message",
        first_at="seen_at", last_at="seen_at", source="source_queue_manager", sender="hop_sender",
        receiver="hop_receiver", holder="CASE WHEN is_to_owner THEN hop_receiver END",
        hop="CASE WHEN is_sent THEN coalesce(hop_count, 0) END", packet_bytes="packet_bytes", **_SAID,
    ),
    _events(
        READS_SQL,
        what="CASE WHEN is_receive THEN 'receive' ELSE 'peek' END", found_in="found_in", message="message",
        first_at="first_at", last_at="last_at", sender="server_address", receiver="client_address",
        holder="server_address", in_transaction="transactional", by_lookup="startswith(action_name, 'MQ_LOOKUP')",
    ),
    _events(
        "(SELECT * FROM gold.queue_operations WHERE outcome = 'done')",
        what="operation", found_in="coalesce(queue, target_queue)", first_at="coalesce(requested_at, responded_at)",
        last_at="coalesce(responded_at, requested_at)", sender="server_address", receiver="client_address",
        holder="server_address", target_queue="target_queue",
    ),
    _events(
        f"(SELECT * FROM gold.queue_history CROSS JOIN setting.now "
        f"WHERE state = {literal(STATE_LOCAL)} AND valid_from <= now)",
        what=f"CASE WHEN journal_count > 0 OR (queue LIKE '%{JOURNAL_SUFFIX}' AND message_count > 0) THEN 'journal' "
        "ELSE 'report' END",
        found_in="queue", first_at="valid_from", last_at="least(valid_to - INTERVAL 1 MICROSECOND, now)",
        receiver="queue_manager", holder="lower(queue_manager)",
        depth_messages="CASE WHEN queue NOT LIKE '%;%' THEN message_count END",
        depth_bytes="CASE WHEN queue NOT LIKE '%;%' THEN bytes END",
    ),
    _events(
        "(SELECT * FROM silver.messages WHERE packet_key IS NULL "
        f"AND {is_dead_letter('coalesce(queue, inferred_queue)', 'dead_letter_queue')})",
        what="'dead'", found_in="destination_queue", message="coalesce(message_key, sighting_key)", first_at="seen_at",
        last_at="seen_at", source="source_queue_manager",
    ),
    _events(
        "(SELECT * FROM gold.message_transfers WHERE dead_letter_class IS NOT NULL)",
        what="'dead'", found_in="destination_queue", message="message_key", first_at="first_sent_at",
        last_at="last_sent_at", source="source_queue_manager", sender="sender_address", receiver="receiver_address",
    ),
))  # fmt: skip
_EVENTS_SQL: Final = by_queue(f"({_EVERY_EVENT})", ", ".join(name for name in (*_EVENT, *_SAID) if name != "found_in"))
"""Events of queues: messages sent and read, receives and peeks, operations, reports, and dead letters."""


def _said(condition: str) -> str:
    """Return the SQL of how many messages meet a condition; null where it is not known of any."""
    return f"CAST(sum(CAST({condition} AS int)) AS bigint)"


_ASKED_ACKS: Final = {"ack_arrival": 1, "ack_receive": 2, "ack_not_arrived": 4, "ack_not_received": 8}
_OF_MESSAGES: Final = {
    "messages": "nullif(count_if(was_sent OR was_read), 0)",
    "sent_messages": "nullif(count_if(was_sent), 0)",
    "read_messages": "nullif(count_if(was_read), 0)",
    "receives": "CASE WHEN max(was_asked_for) THEN CAST(sum(receives) AS bigint) END",
    "transactional_receives": "CAST(sum(transactional_receives) AS bigint)",
    "peeks": "CASE WHEN max(was_asked_for) THEN CAST(sum(peeks) AS bigint) END",
    "lookups": "CAST(sum(lookups) AS bigint)",
    "purges": "nullif(CAST(sum(purges) AS bigint), 0)",
    "moves": "nullif(CAST(sum(moves) AS bigint), 0)",
    "target_journal": "CASE WHEN max(is_journaled) THEN TRUE END",
    "dead_lettered": "nullif(count_if(is_dead), 0)",
    "largest_depth_messages": "max(depth_messages)",
    "largest_depth_bytes": "max(depth_bytes)",
    "first_seen_at": "min(first_at)",
    "last_seen_at": "max(last_at)",
    "body_p50_bytes": "min(CASE WHEN size_place * 2 >= sizes THEN body_bytes END)",
    "body_p99_bytes": "min(CASE WHEN size_place * 100 >= sizes * 99 THEN body_bytes END)",
    "largest_body_bytes": "max(body_bytes)",
    "largest_packet_bytes": "max(packet_bytes)",
    "headers_known": _said("has_headers"),
    "properties_known": _said("CASE WHEN was_sent OR was_read THEN body_bytes IS NOT NULL END"),
    "security_known": _said("CASE WHEN was_sent OR was_read THEN authenticated IS NOT NULL END"),
    "bodies_known": _said("CASE WHEN was_sent OR was_read THEN coalesce(body_was_seen, FALSE) END"),
    "binary_bodies": _said(f"CASE WHEN body_was_seen THEN NOT coalesce(body_format IN {_TEXT_FORMATS}, FALSE) END"),
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
    "undecoded_messages": _said("NOT is_decoded"),
}
"""Columns of the view over the messages of a queue."""
_OF_EVENTS: Final = {
    "was_sent": "max(what = 'sent')",
    "was_read": "max(what = 'read')",
    "was_asked_for": "max(what IN ('receive', 'peek'))",
    "receives": "count_if(what = 'receive')",
    "transactional_receives": "sum(CASE WHEN what = 'receive' THEN CAST(in_transaction AS int) END)",
    "peeks": "count_if(what = 'peek')",
    "lookups": "sum(CAST(by_lookup AS int))",
    "purges": "count_if(what = 'purge')",
    "moves": "count_if(what = 'move')",
    "is_journaled": "max(what = 'journal' OR (what = 'read' AND coalesce(suffix = ';journal', FALSE)))",
    "is_dead": "max(what = 'dead')",
    "depth_messages": "max(depth_messages)",
    "depth_bytes": "max(depth_bytes)",
    "packet_bytes": "max(packet_bytes)",
    "first_at": "min(first_at)",
    "last_at": "max(last_at)",
}
"""Of the events of a message, and of those of a queue that are of no message."""
_LISTS: Final = {
    "senders": "CASE WHEN what IN ('sent', 'read') THEN source END",
    "holders": "holder",
    "readers": "CASE WHEN what IN ('receive', 'peek') THEN receiver END",
    "subqueues": f"CASE WHEN NOT regexp_like(suffix, {_SYSTEM_SUFFIX}) THEN substr(suffix, 2) END",
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
"""Lists of the view, each of a column of events."""
_MACHINE_LISTS: Final = ("senders", "holders", "readers")
_QUEUE_LISTS: Final = ("dead_letter_queues", "admin_queues", "response_queues")


def _values() -> str:
    """Return a query of the values that make lists: ``queue``, ``list``, ``value`` and how many events have it."""
    names = ", ".join(map(literal, _LISTS))
    cases = " ".join(f"WHEN {literal(name)} THEN {value}" for name, value in _LISTS.items())
    return f"""SELECT queue, list, value, count(*) AS times FROM (
            SELECT queue, list, CASE list {cases} END AS value
            FROM (SELECT *, explode(array({names})) AS list FROM events) AS each
          ) AS every WHERE value IS NOT NULL GROUP BY queue, list, value"""


def _listed(name: str) -> str:
    """Return the SQL of the values of a list, those of most rows first."""
    ranked = f"collect_list(CASE WHEN list = {literal(name)} AND place <= {MAX_VALUES} THEN struct(place, value) END)"
    return f"transform(array_sort({ranked}), each -> each.value) AS {name}"


_NAMED_VALUES: Final = with_machines(
    with_canonical_queues(
        f"({_values()})",
        {"named": f"CASE WHEN rows.list IN {_QUEUE_LISTS} THEN rows.value END"},
        "rows.queue, list, value, times",
    ),
    {"machine": f"CASE WHEN rows.list IN {_MACHINE_LISTS} THEN rows.value END"},
    "rows.*",
)
_RATES_SQL: Final = f"""captured AS (
          SELECT queue, CAST(sum(end_minute - first_minute) AS bigint) AS captured_minutes
          FROM {QUEUE_STRETCHES_SQL} AS stretches GROUP BY queue
        ), minutes AS (
          SELECT queue, minute, count(*) AS times, sum(packet_bytes) AS bytes FROM (
            SELECT queue, date_trunc('minute', first_at) AS minute, packet_bytes,
              hop = max(hop) OVER (PARTITION BY queue, message) AS is_last_hop
            FROM events WHERE what = 'sent'
          ) AS sendings WHERE is_last_hop GROUP BY queue, minute
        ), of_rates AS (
          SELECT queue, CAST(sum(times) AS bigint) AS sendings, CAST(sum(bytes) AS bigint) AS sent_bytes,
            sum(times) / nullif(max(captured_minutes), 0) AS mean_per_minute,
            CASE WHEN max(captured_minutes) > 0
              THEN coalesce(max(CASE WHEN place = floor(captured_minutes / 20) + 1 THEN times END), 0)
              END AS p95_per_minute,
            max(CASE WHEN place = 1 THEN times END) AS peak_per_minute,
            max(CASE WHEN place = 1 THEN minute END) AS peak_at
          FROM (
            SELECT *, CASE WHEN minute IS NOT NULL
              THEN row_number() OVER (PARTITION BY queue ORDER BY minute IS NULL, times DESC, minute) END AS place
            FROM minutes
          ) AS ranked LEFT JOIN captured USING (queue) GROUP BY queue
        )"""
_LISTS_SQL: Final = f"""named_values AS (
          SELECT queue, list, coalesce(machine, named, value) AS value, sum(times) AS times
          FROM {_NAMED_VALUES} AS named GROUP BY queue, list, coalesce(machine, named, value)
        ), of_lists AS (
          SELECT queue, {", ".join(map(_listed, _LISTS))}, nullif(count_if(list = 'senders'), 0) AS sender_count,
            nullif(count_if(list = 'readers'), 0) AS reader_count
          FROM (
            SELECT *, row_number() OVER (PARTITION BY queue, list ORDER BY times DESC, value) AS place FROM named_values
          ) AS ranked GROUP BY queue
        )"""


def _columns(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{sql} AS {name}" for name, sql in columns.items())


ESTATE_QUEUES: Final = View(
    "estate_queues", 28,
    "a queue",
    "What is null was not seen; 0 says that messages were seen, and none was so. A message counts once for each "
    "queue that it was sent to or read from, however often and on however many hops it was seen. `senders` are the "
    "machines whose queue managers first accepted its messages, `readers` those that received or peeked remotely, "
    "`holders` those that hold it, as reports, remote reads and last hops show. A machine has its host name, else "
    f"its GUID, else its address. Lists have at most {MAX_VALUES} values, the most frequent first; `sender_count` and "
    "`reader_count` count all. Journals and subqueues belong to their queue. `sendings` are packets on the last hop "
    "of each message that was captured, `resendings` those after the first of their message. Rates are of `sendings` "
    "in a minute of UTC: the mean and the 95th percentile rest on `captured_minutes`, in which captures ran in "
    "folders that ever had one of its messages; a captured minute without a sending counts as 0. Percentiles of "
    "sizes are exact. `largest_packet_bytes` is a whole message with all of its headers. Counts of features are of "
    "messages: those of security rest on `security_known` messages, of correlation on `properties_known`, "
    "`binary_bodies` (bodies that are no text) on `bodies_known`, others on `headers_known`. "
    "`in_larger_transactions` are in a transaction of several messages, `sequences` are those of exactly-once "
    "delivery. Time to live is the time to be received, `..._to_reach_s` that to reach the queue; `without_...` are "
    "messages that have none. `source_journal`, `dead_letter_asked` and `ack_...` are messages that ask for it; "
    "`dead_lettered` were refused after they asked, or lay in a dead-letter queue. `target_journal` is true where a "
    "message lay in the queue's own journal. `lookups` are receives and peeks by lookup identifier. "
    "`largest_depth_...` is the most that reports of the queue show. `format_names` are the kinds of names that "
    "messages were sent by: `direct_address`, `direct_name`, `http`, `public`, `private`, `machine`, `connector`, "
    "`multicast`, `distribution_list`, `list` (several queues in one name).",
    "Local reads, and messages that stay on one machine, are never seen. What a tap of a folder did not see while it "
    "ran is not known either (view not_known). Names of the direct kind are told apart by whether they have an "
    "address, since tables do not keep the protocol. The provider of a signature is not decoded.",
    f"""
        WITH events AS (
          SELECT *, coalesce({_SUFFIX.format("target_queue")}, {_SUFFIX.format("place")}) AS suffix
          FROM {_EVENTS_SQL} AS every CROSS JOIN setting.now
          WHERE queue IS NOT NULL AND coalesce(first_at <= now, TRUE) AND setting.scope
        ), messages AS (
          SELECT queue, message, {_columns(_OF_EVENTS)}, {", ".join(f"max({name}) AS {name}" for name in _SAID)}
          FROM events GROUP BY queue, message
        ), of_messages AS (
          SELECT queue, {_columns(_OF_MESSAGES)} FROM (
            SELECT *, row_number() OVER (PARTITION BY queue ORDER BY body_bytes NULLS LAST) AS size_place,
              count(body_bytes) OVER (PARTITION BY queue) AS sizes
            FROM messages
          ) AS ranked GROUP BY queue
        ), {_RATES_SQL}, {_LISTS_SQL}
        SELECT queue, holders, senders, sender_count, readers, reader_count, messages, sent_messages, read_messages,
          sendings, sendings - sent_messages AS resendings, sent_bytes, receives, transactional_receives, peeks,
          lookups, purges, moves, captured_minutes, mean_per_minute, p95_per_minute, peak_per_minute, peak_at,
          body_p50_bytes, body_p99_bytes, largest_body_bytes, largest_packet_bytes, headers_known, properties_known,
          security_known, express, recoverable, transactional, in_larger_transactions, sequences, priorities,
          smallest_time_to_live_s, largest_time_to_live_s, without_time_to_live, smallest_time_to_reach_s,
          largest_time_to_reach_s, without_time_to_reach, source_journal, target_journal, dead_letter_asked,
          dead_lettered, dead_letter_queues, {", ".join(_ASKED_ACKS)}, acks_asked, admin_queues, response_queues,
          with_response_queue, with_correlation, authenticated, signed, with_certificate, hash_algorithms, encrypted,
          encryption_algorithms, format_names, multicast_messages, list_messages, http_messages, subqueues, comqc,
          frameworks, body_formats, bodies_known, binary_bodies, message_types, traced, acknowledgement_messages,
          largest_depth_messages, largest_depth_bytes, undecoded_messages, first_seen_at, last_seen_at
        FROM of_messages LEFT JOIN captured USING (queue) LEFT JOIN of_rates USING (queue)
          LEFT JOIN of_lists USING (queue)
        ORDER BY messages DESC NULLS LAST, queue
        """,
    (), ("first_seen_at", "last_seen_at"), any_of(SESSIONS_SEEN, READS, QUEUE_REPORTS),
    ScopeColumns("first_at", "last_at", ("source", "sender", "receiver"), ("queue",)),
)  # fmt: skip
"""The view of the estate by queues."""
