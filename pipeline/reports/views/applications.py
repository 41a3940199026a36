"""Views of what applications say in the headers of messages: what they could not process, and who sends which type."""

from __future__ import annotations

from typing import Final

from pipeline.queues.history import STATE_LOCAL
from pipeline.reports.views.emptied import EMPTIED_SQL
from pipeline.reports.views.evidence import QUEUE_REPORTS, READS, SESSIONS_SEEN, any_of
from pipeline.reports.views.scope import ScopeColumns
from pipeline.reports.views.view import View
from pipeline.silver.application_sql import FAILED_ENDPOINT_SQL, IS_FAILED_SQL, MESSAGE_TYPE_SQL
from pipeline.silver.canonical_queues import with_canonical_queues
from schemas.table import literal
from udfs.codes import RECEIVE_CLASS_BIT

_ONLY_WHAT_IS_SEEN: Final = (
    "Only messages that are read or peeked remotely, or captured on TCP 1801, are seen. Immediate retries, local reads "
    "and messages to a queue of the same machine make no traffic. Nothing is known of messages whose headers were not "
    "recognised (`framework` of silver.messages is null), are encrypted, or are not stored "
    "(`store.application_headers: none`)."
)
_TYPE: Final = (
    "`message_type` is the first of `sent_types`, without its assembly, else `body_root` of XML, SOAP and .NET's "
    "binary bodies. "
)
_SEEN: Final = (
    "max(packet_key IS NULL) AS was_read, max(packet_key IS NOT NULL) AS was_captured, min(seen_at) AS first_seen_at, "
    "max(seen_at) AS last_seen_at"
)
_SENDERS_AND_SOURCES: Final = (
    "array_sort(collect_set(source_queue_manager)) AS source_queue_managers, concat_ws(', ', "
    "CASE WHEN max(was_read) THEN 'reads' END, CASE WHEN max(was_captured) THEN 'transfers' END) AS sources"
)
_READ_FROM: Final = "coalesce(rows.queue, rows.inferred_queue)"


def _messages(where: str, columns: str) -> str:
    """Return a subquery over silver.messages: some columns, and canonical names of where it was seen and is sent to."""
    named = f"(SELECT *, coalesce(message_key, sighting_key) AS message FROM silver.messages WHERE {where})"
    queues = {"read_from": _READ_FROM, "sent_to": "rows.destination_queue"}
    shared = "message, sighting_key, framework, source_queue_manager, seen_at, packet_key"
    return with_canonical_queues(named, queues, f"{shared}, {MESSAGE_TYPE_SQL} AS message_type, {columns}")


APPLICATION_VIEWS: Final = (
    View(
        "failed_messages", 26,
        "an endpoint, a type of message and an exception, of failed messages in one queue",
        "A failed message is one whose headers name the queue in which processing failed, or an exception, whatever "
        "the queue is called in which it was seen. It counts once, however often and on however many hops it was seen. "
        "`endpoint` is the one that could not process it, else the queue that this one reads. " + _TYPE + "`queue` is "
        "where they were seen last, or are sent to. Of the `messages`, `still_there` are in that queue as far as is "
        "known: none was seen to be read or moved, and the last report of the queue, which came later, is above 0. "
        "`gone` are those that were seen to be read or moved, that an acknowledgement on TCP 1801 says were received "
        "or rejected, or whose queue was purged or reported to be empty since. Of the others (`not_known`) nothing is "
        "known. `immediate_retries` and `delayed_retries` are the most that the headers of one name. "
        "`source_queue_managers` sent them to the queue. `sources` says where they were seen: `reads` (read or peeked "
        "remotely), `transfers` (captured on TCP 1801).",
        _ONLY_WHAT_IS_SEEN + " A queue that holds messages may hold others than these.",
        """
        WITH emptied AS (
          SELECT * FROM """ + EMPTIED_SQL + """ AS every
        ), reported AS (
          SELECT queue, max_by(message_count, struct(reported_at, valid_from)) AS message_count,
            max(reported_at) AS reported_at
          FROM gold.queue_history CROSS JOIN setting.now
          WHERE message_count IS NOT NULL AND state = """ + literal(STATE_LOCAL) + f""" AND reported_at <= now
          GROUP BY queue
        ), reads AS (
          SELECT coalesce(queue, inferred_queue) AS queue, message_key AS message,
            max(fate NOT IN ('returned', 'held', 'unknown')) AS was_taken, max(fate = 'unknown') AS may_be_gone
          FROM gold.ack_sequences WHERE message_key IS NOT NULL GROUP BY coalesce(queue, inferred_queue), message_key
        ), transfers AS (
          SELECT message_key AS message, queue, max(outcome IN ('received', 'rejected')
              OR coalesce((final_class & {RECEIVE_CLASS_BIT}) <> 0, FALSE)
              OR coalesce((receive_class & {RECEIVE_CLASS_BIT}) <> 0, FALSE)) AS was_received,
            max_by(outcome, struct(last_sent_at, transfer_key)) IN ('expired', 'in_flight', 'unacknowledged')
              AS may_lack
          FROM """ + with_canonical_queues(
              "gold.message_transfers",
              {"queue": "rows.destination_queue"},
              "message_key, outcome, final_class, receive_class, last_sent_at, transfer_key",
          ) + """ GROUP BY message_key, queue
        ), failed AS (
          SELECT message, max_by(coalesce(read_from, sent_to), struct(seen_at, sighting_key)) AS queue,
            max(framework) AS framework, max(endpoint) AS endpoint, max(failed_queue) AS failed_queue,
            max(message_type) AS message_type, max(exception_type) AS exception_type,
            max(immediate_retries) AS immediate_retries, max(delayed_retries) AS delayed_retries,
            max(source_queue_manager) AS source_queue_manager, """ + _SEEN + """
          FROM """ + _messages(
              IS_FAILED_SQL,
              f"failed_queue, exception_type, immediate_retries, delayed_retries, {FAILED_ENDPOINT_SQL} AS endpoint",
          ) + """ GROUP BY message
        ), placed AS (
          SELECT failed.*, CASE
              WHEN coalesce(was_taken, FALSE) OR coalesce(was_received, FALSE)
                OR coalesce(emptied_at >= last_seen_at, FALSE) THEN 'gone'
              WHEN message_count > 0 AND reported_at >= last_seen_at AND NOT coalesce(may_be_gone, FALSE)
                AND NOT coalesce(may_lack, FALSE) THEN 'still_there'
              ELSE 'not_known' END AS place
          FROM failed LEFT JOIN emptied USING (queue) LEFT JOIN reported USING (queue)
            LEFT JOIN reads USING (queue, message) LEFT JOIN transfers USING (queue, message)
        )
        SELECT endpoint, message_type, exception_type, queue, framework, count(*) AS messages,
          min(first_seen_at) AS first_seen_at, max(last_seen_at) AS last_seen_at,
          count_if(place = 'still_there') AS still_there, count_if(place = 'gone') AS gone,
          count_if(place = 'not_known') AS not_known, array_sort(collect_set(failed_queue)) AS failed_queues,
          max(immediate_retries) AS immediate_retries, max(delayed_retries) AS delayed_retries,
          """ + _SENDERS_AND_SOURCES + """
        FROM placed
        WHERE setting.scope
        GROUP BY endpoint, message_type, exception_type, queue, framework
        ORDER BY messages DESC, endpoint, message_type, exception_type, queue, framework
        """,
        (), ("first_seen_at", "last_seen_at"), any_of(READS, SESSIONS_SEEN, beside=(QUEUE_REPORTS,)),
        ScopeColumns("first_seen_at", "last_seen_at", ("source_queue_manager",), ("queue",)),
    ),
    View(
        "message_type_flows", 27,
        "a type of message that an endpoint sends to a queue",
        "`sender` is the endpoint or address that sent them, as their headers say, and null where these do not; "
        "`source_queue_managers` are those of its machines. " + _TYPE + "A message counts once for each queue "
        "that it is sent to, however often and on however many hops it was seen; failed messages, which their "
        "processor sends to another queue, do not count (view failed_messages). `every_s` is the mean time between "
        "two, null of one. Bytes are those that the messages declare for their bodies: the sum, the mean and the "
        "largest. `sources` is as in failed_messages.",
        _ONLY_WHAT_IS_SEEN,
        """
        WITH sent AS (
          SELECT message, coalesce(sent_to, read_from) AS destination_queue, max(framework) AS framework,
            max(originating_endpoint) AS sender, max(source_queue_manager) AS source_queue_manager,
            max(message_type) AS message_type, max(intent) AS intent, max(body_bytes) AS body_bytes,
            """ + _SEEN + """
          FROM """ + _messages(
              f"message_kind = 'application' AND NOT {IS_FAILED_SQL}", "originating_endpoint, intent, body_bytes"
          ) + """
          WHERE message_type IS NOT NULL
          GROUP BY message, coalesce(sent_to, read_from)
        )
        SELECT sender, message_type, destination_queue, intent, framework, count(*) AS messages,
          min(first_seen_at) AS first_seen_at, max(last_seen_at) AS last_seen_at,
          CASE WHEN count(*) > 1 THEN
            (unix_micros(max(first_seen_at)) - unix_micros(min(first_seen_at))) / 1e6 / (count(*) - 1) END AS every_s,
          CAST(sum(body_bytes) AS bigint) AS body_bytes, avg(body_bytes) AS mean_body_bytes,
          max(body_bytes) AS largest_body_bytes, """ + _SENDERS_AND_SOURCES + """
        FROM sent
        WHERE setting.scope
        GROUP BY sender, message_type, destination_queue, intent, framework
        ORDER BY messages DESC, sender, message_type, destination_queue, intent, framework
        """,
        (), ("first_seen_at", "last_seen_at"), any_of(READS, SESSIONS_SEEN),
        ScopeColumns("first_seen_at", "last_seen_at", ("source_queue_manager",), ("destination_queue",)),
    ),
)  # fmt: skip
"""The views of what applications say."""
