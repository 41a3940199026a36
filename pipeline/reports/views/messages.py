"""Views of messages, as remote reads and the sessions of TCP 1801 show them."""

from __future__ import annotations

from typing import Final

from pipeline.reports.views.emptied import EMPTIED_SQL
from pipeline.reports.views.evidence import READS, SESSIONS_SEEN, all_of, any_of
from pipeline.reports.views.read_twice import READ_TWICE_SQL
from pipeline.reports.views.scope import ScopeColumns
from pipeline.reports.views.view import View
from pipeline.silver.canonical_queues import with_canonical_queues
from pipeline.transfers.hops.hop_sql import hop_rows_sql
from pipeline.transfers.messages.sender_clocks import LONG_TRANSIT
from udfs.codes import NEGATIVE_CLASS_BIT, RECEIVE_CLASS_BIT
from udfs.times import timedelta_to_us

_LONG_TRANSIT: Final = str(timedelta_to_us(LONG_TRANSIT))
_WHOLE_SECONDS: Final = "2000000"  # times in messages are whole seconds: a smaller difference is none
_READ_FROM: Final = "coalesce(rows.queue, rows.inferred_queue)"

_COPIES: Final = "';journal$|;dead(letter|xact)$'"
_LEFT_ITS_QUEUE: Final = NEGATIVE_CLASS_BIT | RECEIVE_CLASS_BIT

_REMOTE_READS_ONLY: Final = "Only messages that are read or peeked remotely are seen; nothing is known of others."
_READ_OR_CAPTURED: Final = (
    "Only messages that are read or peeked remotely, or captured on TCP 1801, are seen; nothing is known of others."
)

MESSAGE_VIEWS: Final = (
    View(
        "oldest_unread", 5,
        "a queue with a message that was seen and, as far as is known, not received",
        "`age_s` is the age of the oldest such message: from its arrival in the queue (if that is unknown, from when "
        "it was sent) until now. `seen_at` is when it was last seen there. Messages that were given back, are held or "
        "were only peeked count; those received, moved or purged do not, nor those that an acknowledgement on TCP "
        "1801 or a dead letter says were received, purged or expired in their queue, or whose queue was reported to be "
        "empty after they were seen, nor those whose time to be received (from when they were sent) is over: they "
        "expired, other than copies in a journal or dead-letter queue. Where messages of the day show that the "
        "sender's clock differs, these count, and `may_have_expired` is how many they are. A message is in one queue: "
        "where it was seen last. It counts in several where it was sent to several (a list of queues, multicast), and "
        "beside its queue in a journal or dead-letter queue: these have copies.",
        _REMOTE_READS_ONLY + " An application on the machine itself may have received one since `seen_at`. The clocks "
        "of sender and owner may differ (view clock_differences).",
        """
        WITH seen AS (
          SELECT coalesce(queue, inferred_queue) AS queue, message_key, max(server_address) AS server_address,
            max(returned_at) AS seen_at
          FROM gold.receive_attempts
          WHERE message_key IS NOT NULL AND coalesce(queue, inferred_queue) IS NOT NULL
          GROUP BY coalesce(queue, inferred_queue), message_key
        ), taken AS (
          SELECT DISTINCT coalesce(queue, inferred_queue) AS queue, message_key FROM gold.ack_sequences
          WHERE message_key IS NOT NULL AND fate NOT IN ('returned', 'held')
        ), acknowledged AS (
          SELECT DISTINCT message_key, queue AS destination FROM """ + with_canonical_queues(
              "gold.message_transfers",
              {"queue": "rows.destination_queue"},
              "message_key, outcome, final_class, receive_class",
          ) + f"""
          WHERE outcome = 'received' OR final_class & {RECEIVE_CLASS_BIT} <> 0
            OR receive_class & {RECEIVE_CLASS_BIT} <> 0
        ), clocks AS (
          SELECT source_queue_manager AS source, CAST(coalesce(arrived_at, seen_at) AS date) AS day
          FROM silver.messages WHERE sent_at IS NOT NULL AND source_queue_manager IS NOT NULL
          GROUP BY source_queue_manager, CAST(coalesce(arrived_at, seen_at) AS date)
          HAVING min(unix_micros(coalesce(arrived_at, seen_at)) - unix_micros(sent_at)) < -{_WHOLE_SECONDS}
            OR min(unix_micros(coalesce(arrived_at, seen_at)) - unix_micros(sent_at)) >= {_LONG_TRANSIT}
        ), headers AS (
          SELECT message_key, min(coalesce(arrived_at, sent_at)) AS since, min(sent_at) AS sent_at, max(label) AS label,
            coalesce(max(size(destination_list) > 1 OR regexp_like(destination_queue, '^(multicast|dl)=|,')), FALSE)
              OR count(DISTINCT destination_queue) > 1 AS has_copies,
            coalesce(min(class) = 0 AND max(class) >= {_LEFT_ITS_QUEUE}, FALSE) AS died_in_queue,
            max(unix_micros(sent_at) + time_to_be_received_s * 1000000) AS expires_us,
            max(clocks.day IS NOT NULL) AS clocks_differ
          FROM silver.messages AS sightings LEFT JOIN clocks
            ON clocks.source = source_queue_manager AND clocks.day = CAST(coalesce(arrived_at, seen_at) AS date)
          WHERE message_key IS NOT NULL GROUP BY message_key
        ), last_seen AS (
          SELECT *, row_number() OVER (
            PARTITION BY message_key, CASE WHEN is_copy OR has_copies THEN queue END
            ORDER BY seen_at DESC NULLS LAST, queue
          ) AS recency
          FROM (SELECT *, regexp_like(queue, {_COPIES}) AS is_copy FROM seen) AS places
            LEFT JOIN headers USING (message_key)
        ), unread AS (
          SELECT last_seen.*, now, CASE WHEN since IS NOT NULL THEN struct(since, message_key) END AS place,
            NOT is_copy AND coalesce(expires_us < unix_micros(now), FALSE) AS is_over
          FROM last_seen CROSS JOIN setting.now ANTI JOIN taken USING (queue, message_key)
            LEFT JOIN """ + EMPTIED_SQL + """ AS emptied USING (queue)
            ANTI JOIN acknowledged ON acknowledged.message_key = last_seen.message_key AND NOT is_copy
              AND (NOT has_copies OR destination = last_seen.queue)
          WHERE recency = 1 AND (emptied_at IS NULL OR emptied_at < seen_at)
            AND (is_copy OR NOT coalesce(died_in_queue, FALSE))
        )
        SELECT queue, max(server_address) AS server_address, count(*) AS messages, min(since) AS since,
          min_by(sent_at, place) AS sent_at, min_by(message_key, place) AS message_key, min_by(label, place) AS label,
          min_by(seen_at, place) AS seen_at, (unix_micros(max(now)) - unix_micros(min(since))) / 1e6 AS age_s,
          count_if(is_over) AS may_have_expired
        FROM unread
        WHERE (NOT is_over OR clocks_differ) AND setting.scope
        GROUP BY queue
        ORDER BY age_s DESC, queue
        """,
        ("server_address",), ("seen_at",), all_of(READS),
        ScopeColumns("least(since, seen_at)", "seen_at", ("server_address",), ("queue",)),
    ),
    View(
        "read_twice", 10,
        "a message that was handed out more than once, or that two receives acknowledged",
        "`read_twice` is true if two receives of the message were acknowledged, also of two copies in its queue, each "
        "of which has a row: applications have it twice. Otherwise it was only handed out again; `loss_risk` names "
        "another risk if there is one, `outcomes` lists the outcome "
        "of each receive. `delivered_twice` says whether the queue managers on its way delivered it twice (view "
        "delivered_twice), null where what was captured of TCP 1801 does not tell. `source` is `reads`.",
        _REMOTE_READS_ONLY + " A reinstalled queue manager numbers its messages from the beginning: messages of equal "
        "number are taken for the same.",
        """
        WITH transfers AS (
          SELECT message_key, CASE WHEN max(acknowledged_sendings > 1) THEN TRUE
            WHEN min(confidence = 'complete') THEN FALSE END AS delivered_twice
          FROM """ + hop_rows_sql("gold.message_transfers", "message_key, acknowledged_sendings, confidence") + """
          WHERE message_key IS NOT NULL GROUP BY message_key
        )
        SELECT queue, inferred_queue, server_address, lookup_id, message_key, read_twice,
          delivered_twice, 'reads' AS source, attempts, outcomes, readers, first_attempt_at, settled_at, fate,
          loss_risk, confidence, missing
        FROM """ + READ_TWICE_SQL + """ AS sequences LEFT JOIN transfers USING (message_key)
        WHERE (redelivered OR read_twice) AND setting.scope
        ORDER BY read_twice DESC NULLS LAST, attempts DESC, first_attempt_at, sequence_key
        """,
        (), ("first_attempt_at", "settled_at"), all_of(READS, beside=(SESSIONS_SEEN,)),
        ScopeColumns("coalesce(first_attempt_at, settled_at)", "settled_at", queues=("queue", "inferred_queue")),
    ),
    View(
        "clock_differences", 23,
        "a day of a sender's queue manager, of one source",
        "`sender_ahead_s` is how far at least the sender's clock is ahead. With `source` `transfers` it is compared "
        "with the clock of the capture: the greatest time by which a message was sent (as it says) after it was first "
        "captured on TCP 1801. With `reads` it is compared with the clock of the queue's owner at `server_address`: a "
        "message arrived before it was sent; and `owner_ahead_s` is how far the owner's clock is ahead of the "
        "capture's: a message was read before it arrived. Both are null if nothing shows a difference. "
        "`least_transit_s` is the shortest time from sent to arrived, or to captured; `may_be_behind` says that it is "
        "30 days or more: the sender's clock is behind, or its messages waited.",
        "Times in messages are whole seconds: with `reads`, differences below 2 s are not detected. A clock that is "
        "behind cannot be proved, because the messages may have been in transit for so long.",
        """
        WITH reads AS (
          SELECT m.source_queue_manager, r.server_address, m.seen_at, unix_micros(m.sent_at) AS sent,
            unix_micros(m.arrived_at) AS arrived, unix_micros(m.seen_at) AS seen
          FROM silver.messages AS m JOIN silver.remote_read_calls AS r USING (call_key)
          WHERE m.sent_at IS NOT NULL AND m.arrived_at IS NOT NULL
        ), transfers AS (
          SELECT source_queue_manager, message_key, min(first_sent_at) AS seen_at,
            unix_micros(min(sent_at)) - unix_micros(min(first_sent_at)) AS ahead
          FROM gold.message_transfers WHERE sent_at IS NOT NULL GROUP BY source_queue_manager, message_key
        ), compared AS (
          SELECT source_queue_manager, 'reads' AS source, server_address, seen_at, arrived - sent AS transit,
            CASE WHEN sent - arrived > """ + _WHOLE_SECONDS + """ THEN sent - arrived END AS sender_ahead,
            CASE WHEN arrived - seen > """ + _WHOLE_SECONDS + """ THEN arrived - seen END AS owner_ahead
          FROM reads
          UNION ALL
          SELECT source_queue_manager, 'transfers', CAST(NULL AS STRING), seen_at, -ahead,
            CASE WHEN ahead > 0 THEN ahead END, CAST(NULL AS BIGINT)
          FROM transfers
        )
        SELECT source_queue_manager, date_trunc('day', seen_at) AS day, source, server_address, count(*) AS messages,
          max(sender_ahead) / 1e6 AS sender_ahead_s, max(owner_ahead) / 1e6 AS owner_ahead_s,
          min(transit) / 1e6 AS least_transit_s, min(transit) >= """ + _LONG_TRANSIT + """ AS may_be_behind,
          min(seen_at) AS first_seen_at, max(seen_at) AS last_seen_at
        FROM compared
        WHERE setting.scope
        GROUP BY source_queue_manager, date_trunc('day', seen_at), source, server_address
        ORDER BY greatest(sender_ahead_s, owner_ahead_s) DESC NULLS LAST, messages DESC, day, source,
          source_queue_manager, server_address
        """,
        ("server_address",), ("first_seen_at", "last_seen_at"), any_of(READS, SESSIONS_SEEN),
        ScopeColumns("seen_at", "seen_at", ("source_queue_manager", "server_address")),
    ),
    View(
        "comqc_methods", 24,
        "a method of a COM+ component that was called through queues",
        "`calls` is the number of calls recorded in `messages`. Of these messages, `retried` were seen in one of the "
        "component's retry queues (name_0 to name_4), `dead` in its dead queue, and `poison` were given back "
        "`reads.poison_after` times. A method with dead or poison messages fails permanently. `interface_name` and "
        "`method` are the names that `comqc.interfaces` declares. `sources` says where the calls were seen: `reads` "
        "(messages read or peeked remotely), `transfers` (captured on TCP 1801).",
        _READ_OR_CAPTURED + " Methods in bodies that were cut, encrypted or rejected (messages.comqc_rejected) are "
        "unknown.",
        """
        WITH places AS (
          SELECT message_key, max(CAST(regexp_like(queue, '_[0-4]$') AS int)) AS retried,
            max(CAST(regexp_like(queue, '_deadqueue$') AS int)) AS dead
          FROM """ + with_canonical_queues("silver.messages", {"queue": _READ_FROM}, "message_key, is_comqc") + """
          WHERE is_comqc AND message_key IS NOT NULL GROUP BY message_key
        ), poison AS (
          SELECT DISTINCT message_key, 1 AS poison FROM gold.ack_sequences
          WHERE loss_risk = 'poison' AND message_key IS NOT NULL
        ), calls AS (
          SELECT DISTINCT message_key, call_index, interface_id, opnum, dispatch_id, target_clsid,
            max(interface_name) OVER (PARTITION BY message_key, call_index) AS interface_name,
            max(method) OVER (PARTITION BY message_key, call_index) AS method,
            max(call_key IS NOT NULL) OVER (PARTITION BY message_key) AS was_read,
            max(call_key IS NULL) OVER (PARTITION BY message_key) AS was_captured,
            first_value(seen_at) OVER (PARTITION BY message_key, call_index ORDER BY seen_at) AS seen_at
          FROM silver.comqc_calls WHERE message_key IS NOT NULL
        )
        SELECT interface_id, opnum, dispatch_id, target_clsid, max(interface_name) AS interface_name,
          max(method) AS method, count(*) AS calls,
          count(DISTINCT message_key) AS messages,
          count(DISTINCT CASE WHEN retried = 1 THEN message_key END) AS retried,
          count(DISTINCT CASE WHEN dead = 1 THEN message_key END) AS dead,
          count(DISTINCT CASE WHEN poison = 1 THEN message_key END) AS poison,
          concat_ws(', ', CASE WHEN max(was_read) THEN 'reads' END, CASE WHEN max(was_captured) THEN 'transfers' END)
            AS sources,
          min(seen_at) AS first_seen_at, max(seen_at) AS last_seen_at
        FROM calls LEFT JOIN places USING (message_key) LEFT JOIN poison USING (message_key)
        WHERE setting.scope
        GROUP BY interface_id, opnum, dispatch_id, target_clsid
        ORDER BY dead DESC, poison DESC, calls DESC, interface_id, opnum, dispatch_id, target_clsid
        """,
        (), ("first_seen_at", "last_seen_at"), any_of(READS, SESSIONS_SEEN), ScopeColumns("seen_at", "seen_at"),
    ),
    View(
        "comqc_paths", 24,
        "a message with recorded calls",
        "`path` lists the queues where the message was seen, in order of time: the component's own queue, its retry "
        "queues, its dead queue; on TCP 1801 a message is in no queue (view message_hops). `rejected` is why its "
        "container violates the format, null if it does not. `sources` says where it was seen: `reads` (read or peeked "
        "remotely), `transfers` (captured on TCP 1801).",
        _READ_OR_CAPTURED + " The listener of the component reads on its own machine: what happened between two "
        "sightings is unknown.",
        """
        WITH sightings AS (
          SELECT message_key, queue, min(seen_at) AS first_at, max(seen_at) AS last_at,
            max(comqc_rejected) AS rejected, max(label) AS label, count(*) AS seen, count(packet_key) AS captured
          FROM """ + with_canonical_queues(
              "silver.messages",
              {"queue": _READ_FROM},
              "message_key, is_comqc, seen_at, comqc_rejected, label, packet_key",
          ) + """
          WHERE is_comqc AND message_key IS NOT NULL GROUP BY message_key, queue
        ), calls AS (
          SELECT message_key, count(DISTINCT call_index) AS calls FROM silver.comqc_calls GROUP BY message_key
        )
        SELECT message_key, max(label) AS label, max(calls) AS calls,
          transform(
            array_sort(collect_list(CASE WHEN queue IS NOT NULL THEN struct(first_at, queue) END)), each -> each.queue
          ) AS path,
          sum(seen) AS sightings,
          concat_ws(', ', CASE WHEN sum(seen) > sum(captured) THEN 'reads' END,
            CASE WHEN sum(captured) > 0 THEN 'transfers' END) AS sources,
          min(first_at) AS first_seen_at, max(last_at) AS last_seen_at, max(rejected) AS rejected
        FROM sightings LEFT JOIN calls USING (message_key)
        WHERE message_key IN (SELECT message_key FROM sightings WHERE setting.scope)
        GROUP BY message_key
        ORDER BY size(path) DESC, first_seen_at, message_key
        """,
        (), ("first_seen_at", "last_seen_at"), any_of(READS, SESSIONS_SEEN),
        ScopeColumns("first_at", "last_at", queues=("queue",)),
    ),
)  # fmt: skip
