"""Views of messages, as remote reads show them. RPC captures show messages nowhere else."""

from __future__ import annotations

from typing import Final

from pipeline.reports.views.canonical import with_canonical_queues
from pipeline.reports.views.view import View

_READ_FROM: Final = "coalesce(rows.queue, rows.inferred_queue)"

_REMOTE_READS_ONLY: Final = "Only messages that are read or peeked remotely are seen; nothing is known of others."

MESSAGE_VIEWS: Final = (
    View(
        "oldest_unread", 5,
        "a queue with a message that was seen and, as far as is known, not received",
        "`age_s` is the age of the oldest such message: from its arrival in the queue (if that is unknown, from when "
        "it was sent) until now. `seen_at` is when it was last seen there. Messages that were given back, are held or "
        "were only peeked count; those received, moved or purged do not.",
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
        ), purges AS (
          SELECT queue, max(responded_at) AS purged_at FROM gold.queue_operations
          WHERE operation = 'purge' AND outcome = 'done' AND queue IS NOT NULL GROUP BY queue
        ), headers AS (
          SELECT message_key, min(coalesce(arrived_at, sent_at)) AS since, min(sent_at) AS sent_at, max(label) AS label
          FROM silver.messages WHERE message_key IS NOT NULL GROUP BY message_key
        ), unread AS (
          SELECT seen.*, headers.since, headers.sent_at, headers.label
          FROM seen LEFT ANTI JOIN taken USING (queue, message_key)
          LEFT JOIN purges USING (queue) LEFT JOIN headers USING (message_key)
          WHERE purged_at IS NULL OR purged_at < seen_at
        )
        SELECT queue, max(server_address) AS server_address, count(*) AS messages, min(since) AS since,
          min_by(sent_at, since) AS sent_at, min_by(message_key, since) AS message_key, min_by(label, since) AS label,
          min_by(seen_at, since) AS seen_at, (unix_micros(max(now)) - unix_micros(min(since))) / 1e6 AS age_s
        FROM unread CROSS JOIN setting.now
        GROUP BY queue
        ORDER BY age_s DESC
        """,
        "server_address", ("seen_at",),
    ),
    View(
        "read_twice", 10,
        "a message that was handed out more than once, or that two receives acknowledged",
        "`read_twice` is true if two receives of the message were acknowledged: applications have it twice. Otherwise "
        "it was only handed out again; `loss_risk` names another risk if there is one, `outcomes` lists the outcome "
        "of each receive.",
        _REMOTE_READS_ONLY + " Whether a message was delivered twice between queue managers is visible on TCP 1801 "
        "only. A reinstalled queue manager numbers its messages from the beginning: messages of equal number are "
        "taken for the same.",
        """
        SELECT queue, inferred_queue, server_address, lookup_id, message_key, loss_risk = 'read_twice' AS read_twice,
          attempts, outcomes, readers, first_attempt_at, settled_at, fate, loss_risk, confidence, missing
        FROM gold.ack_sequences
        WHERE redelivered OR loss_risk = 'read_twice'
        ORDER BY loss_risk = 'read_twice' DESC NULLS LAST, attempts DESC, first_attempt_at
        """,
        None, ("first_attempt_at", "settled_at"),
    ),
    View(
        "negative_acknowledgements", 14,
        "a class of negative acknowledgements from one queue manager in one administration queue",
        "Each message counts once, however often it was seen. `source_queue_manager` sent the acknowledgement. "
        "`destinations` are the queues of the messages that it refers to, if these were seen too.",
        "Only administration queues that are read remotely show them. " + _REMOTE_READS_ONLY,
        """
        WITH negative AS (
          SELECT message_key, class_name, source_queue_manager, admin_queue,
            min(correlation_id) AS correlation_id, min(seen_at) AS first_seen_at, max(seen_at) AS last_seen_at
          FROM """ + with_canonical_queues(
              "silver.messages",
              {"admin_queue": _READ_FROM},
              "message_key, class, class_name, source_queue_manager, correlation_id, seen_at",
          ) + """ WHERE class >= 32768 GROUP BY ALL
        ), originals AS (
          SELECT message_id AS correlation_id, max(destination_queue) AS destination_queue
          FROM """ + with_canonical_queues(
              "silver.messages", {"destination_queue": "rows.destination_queue"}, "message_id"
          ) + """ WHERE message_id IS NOT NULL GROUP BY message_id
        )
        SELECT class_name, source_queue_manager, admin_queue, count(*) AS messages, min(first_seen_at) AS first_seen_at,
          max(last_seen_at) AS last_seen_at, sort_array(collect_set(destination_queue)) AS destinations
        FROM negative LEFT JOIN originals USING (correlation_id)
        GROUP BY class_name, source_queue_manager, admin_queue
        ORDER BY messages DESC, class_name
        """,
        None, ("first_seen_at", "last_seen_at"),
    ),
    View(
        "acknowledgements_missing", 15,
        "a message that asked for an acknowledgement, of which none was seen",
        "`wanted` is a sum: 1 for arrival, 2 for receive, 4 and 8 for the failure of each. If `admin_queue_read` is "
        "false, nobody was seen to read that queue: the acknowledgement may still be there. Acknowledgements of "
        "failures (4, 8) do not come if all goes well.",
        _REMOTE_READS_ONLY + " An administration queue that is read on its own machine shows nothing.",
        """
        WITH requests AS (
          SELECT message_id, max(message_key) AS message_key, max(destination_queue) AS destination_queue,
            max(admin_queue) AS admin_queue, max(acknowledgement_requested) AS wanted, min(sent_at) AS sent_at,
            min(seen_at) AS first_seen_at
          FROM """ + with_canonical_queues(
              "silver.messages",
              {"destination_queue": "rows.destination_queue", "admin_queue": "rows.admin_queue"},
              "message_id, message_key, acknowledgement_requested, sent_at, seen_at, class",
          ) + """
          WHERE acknowledgement_requested > 0 AND message_id IS NOT NULL AND class = 0 GROUP BY message_id
        ), acknowledgements AS (
          SELECT DISTINCT correlation_id AS message_id FROM silver.messages
          WHERE class <> 0 AND correlation_id IS NOT NULL
        ), reads AS (
          SELECT DISTINCT queue FROM gold.receive_attempts WHERE queue IS NOT NULL
        )
        SELECT requests.message_id, requests.message_key, requests.destination_queue, requests.admin_queue,
          requests.wanted, requests.sent_at, requests.first_seen_at, reads.queue IS NOT NULL AS admin_queue_read
        FROM requests LEFT ANTI JOIN acknowledgements USING (message_id)
          LEFT JOIN reads ON reads.queue = requests.admin_queue
        ORDER BY admin_queue_read DESC, requests.sent_at
        """,
        None, ("first_seen_at",),
    ),
    View(
        "dead_letters", 16,
        "a reason for messages in a dead-letter queue",
        "The class of a dead letter is the reason (`MQMSG_CLASS_NORMAL` in the dead queue of a queued component: its "
        "retries are used up). `oldest_sent_at` and `age_s` are those of the oldest message, until now.",
        _REMOTE_READS_ONLY + " The total number of dead letters and its growth are in the view dead_letter_growth.",
        """
        WITH dead AS (
          SELECT queue, class_name, coalesce(message_key, sighting_key) AS message, min(sent_at) AS sent_at,
            min(seen_at) AS first_seen_at, max(seen_at) AS last_seen_at, max(destination_queue) AS destination_queue
          FROM """ + with_canonical_queues(
              "silver.messages",
              {"queue": _READ_FROM, "destination_queue": "rows.destination_queue"},
              "class_name, message_key, sighting_key, sent_at, seen_at",
          ) + """
          WHERE queue RLIKE ';dead(letter|xact)$|_deadqueue$' GROUP BY ALL
        )
        SELECT queue, class_name, count(*) AS messages, min(sent_at) AS oldest_sent_at,
          (unix_micros(max(now)) - unix_micros(min(sent_at))) / 1e6 AS age_s, min(first_seen_at) AS first_seen_at,
          max(last_seen_at) AS last_seen_at, sort_array(collect_set(destination_queue)) AS destinations
        FROM dead CROSS JOIN setting.now
        GROUP BY queue, class_name
        ORDER BY messages DESC
        """,
        None, ("first_seen_at", "last_seen_at"),
    ),
    View(
        "clock_differences", 23,
        "a sender's queue manager and a server from which its messages were read",
        "`sender_ahead_s` is how far at least the sender's clock is ahead of the owner's (a message arrived before it "
        "was sent), `owner_ahead_s` how far the owner's clock is ahead of the capture's (a message was read before it "
        "arrived). Both are null if nothing shows a difference. `least_transit_s` is the shortest time from sent to "
        "arrived: a long one may mean that the sender's clock is behind.",
        "Times in messages are whole seconds: differences below 2 s are not detected. A clock that is behind cannot "
        "be proved, because the messages may have been in transit for so long.",
        """
        WITH times AS (
          SELECT m.source_queue_manager, r.server_address, m.seen_at, unix_micros(m.sent_at) AS sent,
            unix_micros(m.arrived_at) AS arrived, unix_micros(m.seen_at) AS seen
          FROM silver.messages AS m JOIN silver.remote_read_calls AS r USING (call_key)
          WHERE m.sent_at IS NOT NULL AND m.arrived_at IS NOT NULL
        )
        SELECT source_queue_manager, server_address, count(*) AS messages,
          max(CASE WHEN sent - arrived > 2000000 THEN sent - arrived END) / 1e6 AS sender_ahead_s,
          max(CASE WHEN arrived - seen > 2000000 THEN arrived - seen END) / 1e6 AS owner_ahead_s,
          min(arrived - sent) / 1e6 AS least_transit_s, min(seen_at) AS first_seen_at, max(seen_at) AS last_seen_at
        FROM times
        GROUP BY source_queue_manager, server_address
        ORDER BY greatest(sender_ahead_s, owner_ahead_s) DESC NULLS LAST, messages DESC
        """,
        "server_address", ("first_seen_at", "last_seen_at"),
    ),
    View(
        "comqc_methods", 24,
        "a method of a COM+ component that was called through queues",
        "`calls` is the number of calls recorded in `messages`. Of these messages, `retried` were seen in one of the "
        "component's retry queues (name_0 to name_4), `dead` in its dead queue, and `poison` were given back "
        "`reads.poison_after` times. A method with dead or poison messages fails permanently. `interface_name` and "
        "`method` are the names that `comqc.interfaces` declares.",
        _REMOTE_READS_ONLY + " Methods in bodies that were cut, encrypted or rejected (messages.comqc_rejected) are "
        "unknown.",
        """
        WITH places AS (
          SELECT message_key, max(int(queue RLIKE '_[0-4]$')) AS retried, max(int(queue RLIKE '_deadqueue$')) AS dead
          FROM """ + with_canonical_queues("silver.messages", {"queue": _READ_FROM}, "message_key, is_comqc") + """
          WHERE is_comqc AND message_key IS NOT NULL GROUP BY message_key
        ), poison AS (
          SELECT DISTINCT message_key, 1 AS poison FROM gold.ack_sequences
          WHERE loss_risk = 'poison' AND message_key IS NOT NULL
        ), calls AS (
          SELECT DISTINCT message_key, call_index, interface_id, opnum, dispatch_id, target_clsid,
            max(interface_name) OVER (PARTITION BY message_key, call_index) AS interface_name,
            max(method) OVER (PARTITION BY message_key, call_index) AS method,
            first_value(seen_at) OVER (PARTITION BY message_key, call_index ORDER BY seen_at) AS seen_at
          FROM silver.comqc_calls WHERE message_key IS NOT NULL
        )
        SELECT interface_id, opnum, dispatch_id, target_clsid, max(interface_name) AS interface_name,
          max(method) AS method, count(*) AS calls,
          count(DISTINCT message_key) AS messages,
          count(DISTINCT CASE WHEN retried = 1 THEN message_key END) AS retried,
          count(DISTINCT CASE WHEN dead = 1 THEN message_key END) AS dead,
          count(DISTINCT CASE WHEN poison = 1 THEN message_key END) AS poison,
          min(seen_at) AS first_seen_at, max(seen_at) AS last_seen_at
        FROM calls LEFT JOIN places USING (message_key) LEFT JOIN poison USING (message_key)
        GROUP BY interface_id, opnum, dispatch_id, target_clsid
        ORDER BY dead DESC, poison DESC, calls DESC
        """,
        None, ("first_seen_at", "last_seen_at"),
    ),
    View(
        "comqc_paths", 24,
        "a message with recorded calls",
        "`path` lists the queues where the message was seen, in order of time: the component's own queue, its retry "
        "queues, its dead queue. `rejected` is why its container violates the format, null if it does not.",
        _REMOTE_READS_ONLY + " The listener of the component reads on its own machine: what happened between two "
        "sightings is unknown.",
        """
        WITH sightings AS (
          SELECT message_key, queue, min(seen_at) AS first_at, max(seen_at) AS last_at,
            max(comqc_rejected) AS rejected, max(label) AS label, count(*) AS seen
          FROM """ + with_canonical_queues(
              "silver.messages", {"queue": _READ_FROM}, "message_key, is_comqc, seen_at, comqc_rejected, label"
          ) + """
          WHERE is_comqc AND message_key IS NOT NULL GROUP BY message_key, queue
        ), calls AS (
          SELECT message_key, count(DISTINCT call_index) AS calls FROM silver.comqc_calls GROUP BY message_key
        )
        SELECT message_key, max(label) AS label, max(calls) AS calls,
          transform(array_sort(collect_list(struct(first_at, queue))), each -> each.queue) AS path,
          sum(seen) AS sightings,
          min(first_at) AS first_seen_at, max(last_at) AS last_seen_at, max(rejected) AS rejected
        FROM sightings LEFT JOIN calls USING (message_key)
        GROUP BY message_key
        ORDER BY size(path) DESC, first_seen_at
        """,
        None, ("first_seen_at", "last_seen_at"),
    ),
)  # fmt: skip
