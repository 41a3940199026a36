"""Views of acknowledgements, and of dead letters: of messages read remotely, and of those captured on TCP 1801."""

from __future__ import annotations

from typing import Final

from pipeline.queues.history import DEAD_LETTER_QUEUES_SQL, is_dead_letter
from pipeline.reports.views.emptied import EMPTIED_SQL
from pipeline.reports.views.evidence import QUEUE_REPORTS, READS, SESSIONS_SEEN, any_of
from pipeline.reports.views.refused import REFUSABLE_TRANSFERS_SQL
from pipeline.reports.views.scope import ScopeColumns
from pipeline.reports.views.view import View
from pipeline.silver.canonical_queues import with_canonical_queues
from schemas.table import literal
from udfs.codes import NEGATIVE_CLASS_BIT, NEGATIVE_CLASS_TEXTS, RECEIVE_CLASS_BIT, message_class_name

_READ_FROM: Final = "coalesce(rows.queue, rows.inferred_queue)"
_BOTH_SOURCES: Final = (
    "`source` is `transfers` where the message was captured on TCP 1801, else `reads`: it was read or peeked remotely."
)
_NOTHING_ELSE: Final = (
    "Only messages on TCP 1801 and those that are read or peeked remotely are seen; nothing is known of others."
)

_DEAD_LETTERS: Final = (
    "`source` is `reads` for messages that were read or peeked remotely in a dead-letter queue, and `transfers` for "
    "those that TCP 1801 shows to be dead letters: they were sent to a dead-letter queue and arrived, or they asked "
    "for dead letters, and a negative acknowledgement came, or (`presumed` true) their time was over before any "
    "acknowledgement was captured. A message counts once, and not where it was taken from its dead-letter queue since, "
    "was seen in another queue later, or where that queue was purged or reported to be empty since; presumed is no "
    "message that was read from a queue."
)
_REASONS: Final = {
    **{message_class_name(code): text for code, text in NEGATIVE_CLASS_TEXTS.items()},
    message_class_name(0): "its retries are used up",
    "expired": "its time to reach its queue was over, by the clock of its sender",
}
_REASONS_SQL: Final = " ".join(f"WHEN '{name}' THEN {literal(text)}" for name, text in _REASONS.items())
_IS_NEGATIVE: Final = f"class & {NEGATIVE_CLASS_BIT} <> 0"
_IS_REJECTED: Final = f"final_class & {NEGATIVE_CLASS_BIT} <> 0"
_ADMINISTRATION_ACKS_SQL: Final = (
    """
        WITH sightings AS (
          SELECT * FROM """
    + with_canonical_queues(
        "silver.messages",
        {
            "read_from": _READ_FROM,
            "sent_to": "rows.destination_queue",
            "wanted_dead_letter_queue": "rows.dead_letter_queue",
        },
        "message_key, sighting_key, class, class_name, source_queue_manager, correlation_id, seen_at, packet_key",
    )
    + f"""
          WHERE {_IS_NEGATIVE} OR class IN (2, {RECEIVE_CLASS_BIT})
        ), administration_acks AS (
          SELECT coalesce(message_key, sighting_key) AS acknowledgement, class, class_name, source_queue_manager,
            coalesce(max(read_from), max(sent_to)) AS admin_queue, max(correlation_id) AS correlation_id,
            CASE WHEN max(packet_key) IS NULL THEN 'reads' ELSE 'transfers' END AS source,
            min(seen_at) AS first_seen_at, max(seen_at) AS last_seen_at
          FROM sightings
          WHERE NOT {is_dead_letter("read_from", "wanted_dead_letter_queue")}
          GROUP BY coalesce(message_key, sighting_key), class, class_name, source_queue_manager
        )
"""
)
"""Common table expression ``administration_acks``: each acknowledgement once, wherever and however often it was seen.

A dead letter has the class of an acknowledgement too: what is read from a dead-letter queue is none.
"""

_DEAD_LETTERS_SQL: Final = (
    """
        WITH emptied AS (
          SELECT * FROM """ + EMPTIED_SQL + """ AS every
        ), headers AS (
          SELECT coalesce(message_key, sighting_key) AS message, max(own_queue) AS own_queue, max(label) AS label,
            max(message_id) AS message_id
          FROM """ + with_canonical_queues(
              "silver.messages", {"own_queue": "rows.dead_letter_queue"}, "message_key, sighting_key, label, message_id"
          ) + """
          GROUP BY coalesce(message_key, sighting_key)
        ), seen AS (
          SELECT queue, class_name, coalesce(message_key, sighting_key) AS message, min(sent_at) AS sent_at,
            min(seen_at) AS first_seen_at, max(seen_at) AS last_seen_at, max(destination_queue) AS destination_queue,
            max(source_queue_manager) AS sender
          FROM """ + with_canonical_queues(
              "silver.messages",
              {"queue": _READ_FROM, "destination_queue": "rows.destination_queue"},
              "class_name, message_key, sighting_key, sent_at, seen_at, source_queue_manager",
          ) + f"""
          WHERE queue IS NOT NULL GROUP BY ALL
        ), found AS (
          SELECT seen.* FROM seen LEFT JOIN headers USING (message) WHERE {is_dead_letter("queue", "own_queue")}
        ), lying AS (
          SELECT found.* FROM found LEFT JOIN emptied USING (queue)
            LEFT JOIN (SELECT message, max(last_seen_at) AS seen_at FROM seen GROUP BY message) AS last USING (message)
            ANTI JOIN (
              SELECT coalesce(queue, inferred_queue) AS queue, message_key AS message FROM gold.ack_sequences
              WHERE fate NOT IN ('returned', 'held')
            ) AS taken USING (queue, message)
          WHERE NOT coalesce(emptied_at >= found.last_seen_at, FALSE) AND NOT coalesce(seen_at > last_seen_at, FALSE)
        ), machines AS (
          SELECT queue_manager_id, host_name AS name FROM silver.hosts WHERE queue_manager_id IS NOT NULL
          UNION
          SELECT queue_manager_id, address FROM silver.hosts WHERE queue_manager_id IS NOT NULL
        ), emptied_systems AS (
          SELECT queue_manager_id AS source_queue_manager, is_transactional, max(emptied_at) AS emptied_at
          FROM (
            SELECT split_part(queue, ';', 1) AS owner, queue LIKE '%;deadxact' AS is_transactional, emptied_at
            FROM emptied WHERE regexp_like(queue, ';dead(letter|xact)$')
          ) AS systems JOIN machines ON owner = 'machine=' || queue_manager_id
            OR (left(owner, length(name)) = name AND substr(owner, length(name) + 2) = 'system$')
          GROUP BY queue_manager_id, is_transactional
        ), known AS (
          SELECT message_key AS message, source_queue_manager, queue AS destination_queue, min(sent_at) AS sent_at,
            min(first_sent_at) AS first_seen_at, max(last_sent_at) AS last_seen_at,
            max(CASE dead_letter_class WHEN final_class THEN final_class_name WHEN arrival_class THEN arrival_class_name
              WHEN receive_class THEN receive_class_name END) AS died_of,
            max(class_name) AS class_name, max(message_id) AS sent_id,
            max_by(outcome, struct(last_sent_at, transfer_key)) AS last_outcome,
            max(outcome IN ('received', 'delivered')) AS is_there, max(journaling) & 1 = 1 AS is_wanted,
            max(outcome = 'delivered') AND NOT max(outcome = 'received') AS is_unread,
            max(greatest(order_acked_at, arrival_acked_at)) AS arrived_at,
            coalesce(max(transactional), FALSE) AS is_transactional,
            max(coalesce(greatest(final_acked_at, arrival_acked_at, receive_acked_at), expires_at, last_sent_at))
              AS died_at
          FROM """ + with_canonical_queues(
              "gold.message_transfers",
              {"queue": "rows.destination_queue"},
              "message_key, source_queue_manager, sent_at, first_sent_at, last_sent_at, dead_letter_class, "
              "final_class, final_class_name, arrival_class, arrival_class_name, receive_class, receive_class_name, "
              "outcome, journaling, transfer_key, transactional, final_acked_at, arrival_acked_at, receive_acked_at, "
              "expires_at, class_name, message_id, order_acked_at",
          ) + f"""
          GROUP BY message_key, source_queue_manager, queue
        ), dead AS (
          SELECT queue, CAST(NULL AS STRING) AS source_queue_manager, class_name AS reason, FALSE AS presumed,
            'reads' AS source, sent_at, first_seen_at, last_seen_at, destination_queue, sender, message,
            CAST(NULL AS TIMESTAMP) AS died_at, CAST(NULL AS STRING) AS sent_id
          FROM lying
          UNION ALL
          SELECT destination_queue, CAST(NULL AS STRING), class_name, FALSE, 'transfers', sent_at, first_seen_at,
            last_seen_at, destination_queue, source_queue_manager, message, arrived_at, sent_id
          FROM known ANTI JOIN seen USING (message) LEFT JOIN emptied ON emptied.queue = destination_queue
          WHERE is_unread AND died_of IS NULL AND regexp_like(destination_queue, {DEAD_LETTER_QUEUES_SQL})
            AND NOT coalesce(emptied_at >= arrived_at, FALSE)
          UNION ALL
          SELECT CAST(NULL AS STRING), source_queue_manager, coalesce(died_of, 'expired'), died_of IS NULL,
            'transfers', sent_at, first_seen_at, last_seen_at, destination_queue, source_queue_manager, message,
            died_at, sent_id
          FROM known ANTI JOIN found USING (message)
            LEFT JOIN (SELECT DISTINCT message, TRUE AS was_read FROM seen) AS reads USING (message)
            LEFT JOIN headers USING (message) LEFT JOIN emptied ON emptied.queue = own_queue
            LEFT JOIN emptied_systems AS systems USING (source_queue_manager, is_transactional)
          WHERE (died_of IS NOT NULL
              OR (last_outcome = 'expired' AND is_wanted AND NOT is_there AND was_read IS NULL))
            AND NOT coalesce(
              CASE WHEN own_queue IS NULL THEN systems.emptied_at ELSE emptied.emptied_at END >= died_at, FALSE
            )
        )"""
)  # fmt: skip

ACKNOWLEDGEMENT_VIEWS: Final = (
    View(
        "negative_acknowledgements", 14,
        "a class of negative acknowledgements from one queue manager, in one administration queue",
        "Each acknowledgement counts once, however often and on however many hops it was seen. `kind` is "
        "`administration` for those that the sender asked for, `final` for those of transactional messages, which go "
        "from queue manager to queue manager and have no administration queue. `source_queue_manager` sent the "
        "acknowledgement. `destinations` are the queues of the messages that it refers to, if these were seen too. "
        + _BOTH_SOURCES,
        _NOTHING_ELSE + " Windows since Vista SP1 and Server 2008 sends no administration acknowledgement of the "
        "classes 0x8000, 0x8004, 0x8006, 0x8007 and 0x800B by default. Final acknowledgements are seen on TCP 1801 "
        "only.",
        _ADMINISTRATION_ACKS_SQL + f""", negative AS (
          SELECT 'administration' AS kind, class_name, source_queue_manager, admin_queue, source, correlation_id,
            first_seen_at, last_seen_at
          FROM administration_acks WHERE {_IS_NEGATIVE}
          UNION ALL
          SELECT 'final', class_name, queue_manager, CAST(NULL AS STRING), 'transfers', max(acknowledged_message_id),
            min(sent_at), max(sent_at)
          FROM silver.order_acks WHERE kind = 'final_ack' AND {_IS_NEGATIVE}
          GROUP BY class_name, queue_manager, transaction_sequence_id, transaction_number,
            coalesce(acknowledged_message_id, packet_key)
        ), originals AS (
          SELECT message_id AS correlation_id, max(destination_queue) AS destination_queue
          FROM """ + with_canonical_queues(
              "silver.messages", {"destination_queue": "rows.destination_queue"}, "message_id"
          ) + """ WHERE message_id IS NOT NULL GROUP BY message_id
        )
        SELECT kind, class_name, source_queue_manager, admin_queue, source, count(*) AS messages,
          min(first_seen_at) AS first_seen_at, max(last_seen_at) AS last_seen_at,
          array_sort(collect_set(destination_queue)) AS destinations
        FROM negative LEFT JOIN originals USING (correlation_id)
        WHERE setting.scope
        GROUP BY kind, class_name, source_queue_manager, admin_queue, source
        ORDER BY messages DESC, class_name, kind, source, source_queue_manager, admin_queue
        """,
        (), ("first_seen_at", "last_seen_at"), any_of(SESSIONS_SEEN, READS),
        ScopeColumns("first_seen_at", "last_seen_at", ("source_queue_manager",), ("admin_queue", "destination_queue")),
    ),
    View(
        "acknowledgements_missing", 15,
        "a message that asked for a positive acknowledgement which was not seen",
        "`wanted` is a sum: 1 for arrival, 2 for receive, 4 and 8 for the failure of each; those of failures do not "
        "come if all goes well and are not missed here. `lacks` names which of arrival and receive was not seen and is "
        "due: after a negative acknowledgement, also a final one, no positive one is, and none of the receive of a "
        "message that remote reads show to be in its queue still, or to be purged. `answer` is `missing` where "
        "the administration queue got acknowledgements of other messages, and `cannot be known` where it was never "
        "seen to get one: they may take a way that is not captured. If `admin_queue_read` is false, nobody was seen to "
        "read that queue remotely: the acknowledgement may still be there. `outcome` is that of "
        "gold.message_transfers, of the last hop; `refused` is true where the queue does not accept the message's "
        "number in its sequence, and no later report of either end says that it does: no acknowledgement can come. "
        + _BOTH_SOURCES,
        _NOTHING_ELSE + " An acknowledgement of the receive does not come before an application receives the message.",
        _ADMINISTRATION_ACKS_SQL + f""", answered AS (
          SELECT DISTINCT admin_queue FROM administration_acks
        ), acknowledged AS (
          SELECT correlation_id AS message_id, max(class & {RECEIVE_CLASS_BIT} = 0) AS arrival,
            max(class & {RECEIVE_CLASS_BIT} <> 0) AS receive,
            max({_IS_NEGATIVE} AND class & {RECEIVE_CLASS_BIT} = 0) AS not_arrived
          FROM administration_acks WHERE correlation_id IS NOT NULL GROUP BY correlation_id
        ), messages AS (
          SELECT message_id, message_key, destination_queue, admin_queue, acknowledgement_requested, sent_at, seen_at,
            class
          FROM """ + with_canonical_queues(
              "silver.messages",
              {"destination_queue": "rows.destination_queue", "admin_queue": "rows.admin_queue"},
              "message_id, message_key, acknowledgement_requested, sent_at, seen_at, class",
          ) + f"""
        ), admin_queues AS (
          SELECT message_key, max(admin_queue) AS admin_queue FROM messages
          WHERE message_key IS NOT NULL GROUP BY message_key
        ), captured AS (
          SELECT message_id, message_key, queue AS destination_queue, max(acknowledgement_requested) AS wanted,
            count(arrival_acked_at) > 0
              OR max(coalesce({_IS_REJECTED} AND final_class & {RECEIVE_CLASS_BIT} = 0, FALSE)) AS arrival,
            count(receive_acked_at) > 0 OR max(coalesce({_IS_REJECTED}, FALSE)) AS receive,
            max(coalesce(arrival_class & {NEGATIVE_CLASS_BIT} <> 0, FALSE)) AS not_arrived, min(sent_at) AS sent_at,
            min(first_sent_at) AS first_seen_at, max_by(outcome, struct(last_sent_at, transfer_key)) AS outcome,
            max(refused) AS refused
          FROM """ + with_canonical_queues(
              REFUSABLE_TRANSFERS_SQL,
              {"queue": "rows.destination_queue"},
              "message_id, message_key, acknowledgement_requested, arrival_acked_at, receive_acked_at, arrival_class, "
              "final_class, sent_at, first_sent_at, last_sent_at, outcome, refused, transfer_key, class",
          ) + """
          WHERE class = 0
          GROUP BY message_id, message_key, queue
        ), requests AS (
          SELECT 'transfers' AS source, message_id, message_key, destination_queue, admin_queue, wanted, arrival,
            receive, not_arrived, sent_at, first_seen_at, outcome, refused
          FROM captured LEFT JOIN admin_queues USING (message_key)
          UNION ALL
          SELECT 'reads', message_id, max(message_key), max(destination_queue), max(admin_queue),
            max(acknowledgement_requested), coalesce(max(arrival), FALSE), coalesce(max(receive), FALSE),
            coalesce(max(not_arrived), FALSE), min(sent_at), min(seen_at), CAST(NULL AS STRING),
            FALSE
          FROM messages ANTI JOIN captured USING (message_id) LEFT JOIN acknowledged USING (message_id)
          WHERE message_id IS NOT NULL AND class = 0
          GROUP BY message_id
        ), unread AS (
          SELECT message_key, TRUE AS is_unread FROM gold.ack_sequences
          WHERE message_key IS NOT NULL
          GROUP BY message_key HAVING min(fate IN ('returned', 'held', 'purged'))
        ), lacking AS (
          SELECT requests.*, concat_ws(', ', CASE WHEN wanted & 1 <> 0 AND NOT arrival THEN 'arrival' END,
            CASE WHEN wanted & 2 <> 0 AND NOT receive AND NOT not_arrived AND is_unread IS NULL THEN 'receive' END)
              AS lacks
          FROM requests LEFT JOIN unread USING (message_key)
        ), reads AS (
          SELECT DISTINCT queue FROM gold.receive_attempts WHERE queue IS NOT NULL
        )
        SELECT message_id, message_key, destination_queue, lacking.admin_queue, wanted, lacks,
          CASE WHEN answered.admin_queue IS NULL THEN 'cannot be known' ELSE 'missing' END AS answer, source, outcome,
          sent_at, first_seen_at, reads.queue IS NOT NULL AS admin_queue_read,
          refused
        FROM lacking LEFT JOIN answered ON answered.admin_queue = lacking.admin_queue
          LEFT JOIN reads ON reads.queue = lacking.admin_queue
        WHERE lacks <> '' AND setting.scope
        ORDER BY answer DESC, admin_queue_read DESC, sent_at, message_id, destination_queue
        """,
        (), ("first_seen_at",), any_of(SESSIONS_SEEN, READS),
        # A message's identifier begins with the GUID of the queue manager that sent it.
        ScopeColumns("first_seen_at", "first_seen_at", ("split_part(message_id, chr(92), 1)",),
                     ("destination_queue", "lacking.admin_queue")),
    ),
    View(
        "dead_letters", 16,
        "a reason for messages that are dead letters",
        "`reason` is the class of a dead letter (`MQMSG_CLASS_NORMAL` in the dead queue of a queued component: its "
        "retries are used up), or `expired`. " + _DEAD_LETTERS + " In the dead-letter queue `queue` are those that "
        "were read, peeked or sent there; the others are in one of `source_queue_manager`. `oldest_sent_at` and "
        "`age_s` are those of the oldest message, until now.",
        _NOTHING_ELSE + " The least that there is: the total number of dead letters and its growth are in the view "
        "dead_letter_growth.",
        _DEAD_LETTERS_SQL + """
        SELECT queue, source_queue_manager, reason, presumed, source, count(*) AS messages,
          min(sent_at) AS oldest_sent_at, (unix_micros(max(now)) - unix_micros(min(sent_at))) / 1e6 AS age_s,
          min(first_seen_at) AS first_seen_at, max(last_seen_at) AS last_seen_at,
          array_sort(collect_set(destination_queue)) AS destinations
        FROM dead CROSS JOIN setting.now
        WHERE setting.scope
        GROUP BY queue, source_queue_manager, reason, presumed, source
        ORDER BY messages DESC, source, reason, queue, source_queue_manager, presumed
        """,
        (), ("first_seen_at", "last_seen_at"), any_of(SESSIONS_SEEN, READS, beside=(QUEUE_REPORTS,)),
        ScopeColumns("first_seen_at", "last_seen_at", ("sender",), ("queue", "destination_queue")),
    ),
    View(
        "dead_letter_messages", 16,
        "a message that is a dead letter, of one destination",
        "The newest first; the messages that dead_letters counts. `reason` is its class, or `expired`, `reason_text` "
        "what that says. " + _DEAD_LETTERS + " `queue` is the dead-letter queue, null where it is one of the system "
        "of `source_queue_manager`, which sent the message; `server_address` is the machine that it was read from "
        "there. `died_at` is when the acknowledgement came or the time was over, of one that was sent to `queue` when "
        "it arrived; null for `reads`. `msmq trace_message --id` with `message_id` tells more.",
        _NOTHING_ELSE + " The total number of dead letters is in the view dead_letter_growth.",
        _DEAD_LETTERS_SQL + f""", servers AS (
          SELECT coalesce(queue, inferred_queue) AS queue, message_key AS message, max(server_address) AS server_address
          FROM gold.receive_attempts WHERE message_key IS NOT NULL
          GROUP BY coalesce(queue, inferred_queue), message_key
        ), listed AS (
          SELECT coalesce(message_id, sent_id) AS message_id, label, sender AS source_queue_manager, destination_queue,
            reason, CASE reason {_REASONS_SQL} END AS reason_text, presumed, source,
            coalesce(queue, own_queue) AS queue, server_address, sent_at, died_at, first_seen_at, last_seen_at, message
          FROM dead LEFT JOIN headers USING (message) LEFT JOIN servers USING (queue, message)
        )
        SELECT message_id, label, source_queue_manager, destination_queue, reason, reason_text, presumed, source, queue,
          server_address, sent_at, died_at, first_seen_at, last_seen_at
        FROM listed
        WHERE setting.scope
        ORDER BY first_seen_at DESC NULLS LAST, message_id, message, queue, destination_queue, reason
        """,
        (), ("first_seen_at", "last_seen_at"), any_of(SESSIONS_SEEN, READS, beside=(QUEUE_REPORTS,)),
        ScopeColumns("first_seen_at", "last_seen_at", ("source_queue_manager", "server_address"),
                     ("queue", "destination_queue")),
    ),
)  # fmt: skip
"""The views of acknowledgements and dead letters."""
