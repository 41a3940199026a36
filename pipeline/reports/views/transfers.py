"""Views of messages and sequences on their way between queue managers (TCP 1801)."""

from __future__ import annotations

from typing import Final

from pipeline.reports.views.evidence import READS, RECEIVER_REPORTS, SESSIONS_SEEN, TRANSFER_REPORTS, all_of, any_of
from pipeline.reports.views.read_twice import READ_TWICE_SQL
from pipeline.reports.views.refused import REFUSABLE_TRANSFERS_SQL, VIEW_EVIDENCE
from pipeline.reports.views.scope import ScopeColumns
from pipeline.reports.views.view import View
from pipeline.silver.canonical_queues import with_canonical_queues
from pipeline.transfers.hops.hop_sql import first_addresses, hop_rows_sql, last_of_hop
from pipeline.transfers.sequences.sequence_progress import accepted_sequences, acknowledged_after, with_progress

_HOP: Final = ("sender_address", "receiver_address")
_HOP_ENDS: Final = (*_HOP, "sender_queue_manager", "receiver_queue_manager")
_ONLY_1801: Final = (
    "Only what was captured of TCP 1801 counts: nothing of HTTP, multicast, IPsec, and of messages that stay on one "
    "machine."
)
_TRANSFERS: Final = "gold.message_transfers"
_SESSIONS: Final = "silver.sessions"
_ACCEPTED: Final = accepted_sequences(VIEW_EVIDENCE.sources, VIEW_EVIDENCE.now)
_ACKED_LATER: Final = acknowledged_after(
    VIEW_EVIDENCE.reports, "gold.transfer_sequences", VIEW_EVIDENCE.aliases, VIEW_EVIDENCE.now
)
_WITH_PROGRESS: Final = with_progress(last_of_hop("gold.transfer_sequences"), VIEW_EVIDENCE)
_DELIVERED: Final = (
    "sender_address, receiver_address, message_kind, message_key, message_id, sendings, sessions, "
    "acknowledged_sendings, outcome, first_sent_at, last_sent_at, transfer_key, confidence, missing"
)
_HOP_COLUMNS: Final = (
    "message_key, message_id, destination_queue, sender_address, receiver_address, sender_queue_manager, "
    "receiver_queue_manager, hop_count, sendings, first_sent_at, last_sent_at, session_acked_at, "
    "order_acked_at, outcome, refused, reports, transfer_key, confidence, missing"
)
_FIRST_ADDRESSES: Final = first_addresses("struct(first_sent_at, sender_address, receiver_address)")
_ONE_HOP: Final = (
    "What goes from one queue manager to another is one hop, whatever addresses they have (`hop_key`): it counts once, "
    "under the addresses of its first sending. "
)


def _canonical_destinations(table: str, columns: str) -> str:
    """Return a subquery: columns of a table of gold, and its destination queue by its canonical name as ``queue``."""
    return with_canonical_queues(table, {"queue": "rows.destination_queue"}, columns)


def _percentiles(*names: str) -> str:
    """Return the SQL of how many rows have a duration in milliseconds, and of three percentiles of each."""
    parts = []
    for name in names:
        parts.append(f"count({name}_ms) AS {name}_known")
        parts += [
            f"percentile_disc({at / 100}) WITHIN GROUP (ORDER BY {name}_ms) AS {name}_p{at}_ms" for at in (50, 95, 99)
        ]
    return ", ".join(parts)


TRANSFER_VIEWS: Final = (
    View(
        "never_acknowledged", 8,
        "a range of message numbers of one sequence, of a source that shows it",
        "`pending` numbers were not acknowledged when the sequence was last observed. `given_up` numbers were not "
        "acknowledged when another sequence took the place of theirs: messages sent again after that have other "
        "numbers. `source` is `transfers` where the messages were captured on TCP 1801, else `collector` or `wire`: a "
        "snapshot of the sender's queue. What transfers show is not repeated from snapshots. What either shows to be "
        "acknowledged later does not count, nor what an acknowledgement of another kind says to have arrived. "
        "`accepted_number` is the highest of the numbers that the receiver later reported to have accepted "
        "(gold.eod_sources, at `accepted_reported_at`): up to it messages were delivered, and the acknowledgement was "
        "not seen. It is null where no report of the receiver says so. With "
        "`transfers`, `condition` is that of gold.transfer_sequences as far as no later report of either end "
        "contradicts it, a routed sequence has a row for each hop (`sender_address`, `receiver_address`), and "
        "`sequence_key` leads to its row.",
        "Numbers of snapshots come from observations: what was given up between two observations is not counted. Of "
        "captured sequences, those are left out whose order acknowledgements took a way that was not captured "
        "(`condition` `unknown`): theirs cannot be known.",
        """
        WITH seen AS (
          SELECT *, lead(observed_at) OVER series AS next_at,
            lead(sequence_reset) OVER series AND (
              coalesce(lead(sequence_id) OVER series <> sequence_id, FALSE)
              OR coalesce(lead(next_number) OVER series < next_number, FALSE)
              OR coalesce(lead(last_acked_number) OVER series < last_acked_number, FALSE)
              OR coalesce(lead(first_unacked_number) OVER series < first_unacked_number, FALSE)
            ) AS reset_next  -- not where another source shows the new sequence too
          FROM gold.eod_transfers
          WINDOW series AS (
            PARTITION BY queue_manager, queue, lower(queue_format_name) ORDER BY observed_at, snapshot_id
          )
        ), reported AS (
          SELECT snapshot_id, queue_manager, queue, queue_format_name, source, sequence_id,
            first_unacked_number AS from_number, last_unacked_number AS to_number, unacked_count AS messages,
            CASE WHEN next_at IS NULL THEN 'pending' ELSE 'given_up' END AS what, observed_at,
            next_at AS reset_seen_at
          FROM seen
          WHERE first_unacked_number IS NOT NULL AND (next_at IS NULL OR reset_next)
        ), captured AS (
          SELECT *, transaction_sequence_id AS sequence_id, last_packet_at AS observed_at
          FROM """ + _WITH_PROGRESS + """ AS sequences
        ), accepted AS (
          SELECT snapshot_id, max(accepted_number) AS accepted_number, max(reported_at) AS accepted_reported_at
          FROM reported JOIN """ + _ACCEPTED + """ AS incoming ON incoming.sequence_id = reported.sequence_id
            AND reported.queue IN (incoming.queue, incoming.sender_queue) AND reported_at >= observed_at
          GROUP BY snapshot_id HAVING min(sender_queue_manager) = max(sender_queue_manager)
        ), followers AS (
          SELECT captured.sequence_key, min(later.first_sent_at) AS followed_at,
            max(later.began = 'emptied') AS emptied
          FROM captured JOIN gold.transfer_sequences AS later ON later.previous_sequence_id = captured.sequence_id
            AND later.source_queue_manager = captured.source_queue_manager
            AND later.destination_queue = captured.destination_queue
            AND (later.hop_key = captured.hop_key OR (later.sender_address = captured.sender_address
              AND later.receiver_address = captured.receiver_address))
          GROUP BY captured.sequence_key
        )
        SELECT * FROM (
        SELECT queue_manager, queue, queue_format_name, source, sequence_id,
          greatest(reported.from_number, later.next_unacked) AS from_number, to_number,
          CASE WHEN later.next_unacked > reported.from_number THEN to_number - later.next_unacked + 1 ELSE messages END
            AS messages, what,
          CASE WHEN accepted_number >= greatest(reported.from_number, later.next_unacked)
            THEN least(accepted_number, to_number) END AS accepted_number,
          CASE WHEN accepted_number >= greatest(reported.from_number, later.next_unacked) THEN accepted_reported_at END
            AS accepted_reported_at,
          CAST(NULL AS STRING) AS condition, observed_at, reset_seen_at, CAST(NULL AS STRING) AS source_queue_manager,
          CAST(NULL AS STRING) AS sender_address, CAST(NULL AS STRING) AS receiver_address,
          CAST(NULL AS STRING) AS sequence_key, NULL AS missing
        FROM reported LEFT JOIN """ + _ACKED_LATER + """ AS later USING (snapshot_id)
          LEFT JOIN accepted USING (snapshot_id) ANTI JOIN captured
          ON captured.sequence_id = reported.sequence_id AND captured.queue = reported.queue
            AND captured.condition <> 'unknown' AND reported.from_number >= first_number AND to_number <= last_number
            AND reported.observed_at <= captured.observed_at
        WHERE later.next_unacked IS NULL OR later.next_unacked <= to_number
        UNION ALL
        SELECT CAST(NULL AS STRING), queue, CAST(NULL AS STRING), 'transfers', sequence_id, waiting_from,
          last_number, least(waiting, last_number - waiting_from + 1),
          CASE WHEN followed_at IS NULL THEN 'pending' ELSE 'given_up' END,
          CASE WHEN accepted_number >= waiting_from THEN accepted_number END,
          CASE WHEN accepted_number >= waiting_from THEN accepted_reported_at END, condition_now,
          observed_at, followed_at, source_queue_manager, sender_address, receiver_address, sequence_key, missing
        FROM captured LEFT JOIN followers USING (sequence_key)
        WHERE waiting > 0 AND waiting_from <= last_number AND condition <> 'unknown' AND NOT coalesce(emptied, FALSE)
        ) AS found
        WHERE setting.scope
        ORDER BY what, observed_at, sequence_key, queue_manager, queue, queue_format_name, from_number
        """,
        ("queue_manager", *_HOP), ("observed_at",), any_of(SESSIONS_SEEN, TRANSFER_REPORTS, beside=(RECEIVER_REPORTS,)),
        ScopeColumns("observed_at", "coalesce(reset_seen_at, observed_at)",
                     ("queue_manager", "source_queue_manager", *_HOP), ("queue", "queue_format_name")),
    ),
    View(
        "gaps_on_the_wire", 9,
        "a sequence on one hop, with numbers that were not sent or that were sent out of order",
        "`missing_numbers` lie in `gaps`, ranges between the numbers that were sent; a gap whose next message names a "
        "number before it as its predecessor is bridged and is not shown. `out_of_order` counts messages that were "
        "first sent after a message of a higher number. `may_be_the_capture` is true where the captures lack bytes of "
        "a connection that carried the sequence: the gap may be theirs. `refused_sendings` are those that the "
        "receiver has to refuse, repeated ones among them (null where it cannot be known). `source` is `transfers`.",
        "What came before the first captured number, and after the last one, is not known. The view sequence_gaps "
        "has what receivers report. " + _ONLY_1801,
        """
        SELECT queue, source_queue_manager, sender_address, receiver_address, sequence_id, 'transfers' AS source,
          first_number, last_number, missing_numbers, filter(gaps, gap -> NOT gap.bridged) AS gaps, out_of_order,
          array_contains(missing, 'capture_loss') OR array_contains(missing, 'damaged') AS may_be_the_capture,
          refusals AS refused_sendings, first_sent_at AS first_seen_at, last_sent_at AS last_seen_at, sequence_key,
          confidence, missing
        FROM """ + _canonical_destinations(
            "gold.transfer_sequences",
            "source_queue_manager, sender_address, receiver_address, transaction_sequence_id AS sequence_id, "
            "first_number, last_number, missing_numbers, gaps, out_of_order, refusals, first_sent_at, last_sent_at, "
            "sequence_key, confidence, missing",
        ) + """
        WHERE (missing_numbers > 0 OR out_of_order > 0) AND setting.scope
        ORDER BY may_be_the_capture, missing_numbers DESC, out_of_order DESC, first_seen_at, sequence_key
        """,
        _HOP, ("first_seen_at", "last_seen_at"), all_of(SESSIONS_SEEN),
        ScopeColumns("first_sent_at", "last_sent_at", ("source_queue_manager", *_HOP), ("queue",)),
    ),
    View(
        "delivered_twice", 10,
        "a message on one hop that the next machine acknowledged more than once",
        _ONE_HOP
        + "The next machine got the message `acknowledged_sendings` times. It drops identifiers that it remembers "
        "(Windows: the last 10,000, for 30 minutes), so this does not mean that an application has it twice: "
        "`read_twice` says whether two remote reads of it were acknowledged, also of two copies in its queue, null "
        "where no remote read of it was captured. `source` is `transfers`.",
        "Sendings without a number (`missing` contains capture_begins or capture_loss) are not known to be "
        "acknowledged: more messages may have been delivered twice. " + _ONLY_1801,
        """
        WITH reads AS (
          SELECT message_key, max(coalesce(read_twice, FALSE)) AS read_twice
          FROM """ + READ_TWICE_SQL + """ AS sequences
          WHERE message_key IS NOT NULL GROUP BY message_key
        )
        SELECT queue, sender_address, receiver_address, message_kind, message_key, message_id, 'transfers' AS source,
          sendings, sessions, acknowledged_sendings, read_twice, outcome, first_sent_at, last_sent_at, transfer_key,
          confidence, missing
        FROM """ + _canonical_destinations(
            hop_rows_sql(_TRANSFERS, f"{_DELIVERED}, destination_queue"), _DELIVERED,
        ) + """ LEFT JOIN reads USING (message_key)
        WHERE acknowledged_sendings > 1 AND setting.scope
        ORDER BY read_twice DESC NULLS LAST, acknowledged_sendings DESC, first_sent_at, transfer_key
        """,
        _HOP, ("first_sent_at", "last_sent_at"), all_of(SESSIONS_SEEN, beside=(READS,)),
        ScopeColumns("first_sent_at", "last_sent_at", _HOP, ("queue",)),
    ),
    View(
        "transfer_latency", 12,
        "a pair of machines and a size of messages",
        _ONE_HOP
        + "Percentiles in milliseconds; `..._known` is how many messages have the time. `transmit` is a message's time "
        "on the wire, from its first byte to its last. `session_ack` is the time from its first sending until the next "
        "machine acknowledged it, `order_ack` until the receiver's order acknowledgement of a transactional message. "
        "Acknowledgements wait at the receiver, so both are upper bounds: a session acknowledgement up to half of its "
        "time-out (10 to 60 s) in thin traffic, an order acknowledgement 0.5 to 10 s. `size` is that of the whole "
        "packet. `source` is `transfers`.",
        "Messages without an acknowledgement have no time: the alert order_acks_stalled and the view "
        "never_acknowledged have them. Times between captures that saw the connection side by side are null: their "
        "clocks may differ. " + _ONLY_1801,
        """
        SELECT """ + _FIRST_ADDRESSES + """, max(sender_queue_manager) AS sender_queue_manager,
          max(receiver_queue_manager) AS receiver_queue_manager, size, 'transfers' AS source, count(*) AS messages,
          """ + _percentiles("transmit", "session_ack", "order_ack") + """,
          min(first_sent_at) AS first_at, max(first_sent_at) AS last_at
        FROM (
          SELECT *, CASE WHEN packet_bytes < 4096 THEN 'below 4 KiB' WHEN packet_bytes < 65536 THEN 'below 64 KiB'
            WHEN packet_bytes < 1048576 THEN 'below 1 MiB' WHEN packet_bytes IS NOT NULL THEN '1 MiB and above' END
            AS size
          FROM """ + hop_rows_sql(
              _TRANSFERS,
              "hop_key, sender_address, receiver_address, sender_queue_manager, receiver_queue_manager, packet_bytes, "
              "transmit_ms, session_ack_ms, order_ack_ms, first_sent_at, destination_queue",
          ) + """
          WHERE setting.scope
        )
        GROUP BY hop_key, size
        ORDER BY sender_address, receiver_address, hop_key, min(packet_bytes), size
        """,
        _HOP, ("first_at", "last_at"), all_of(SESSIONS_SEEN),
        ScopeColumns("first_sent_at", "first_sent_at", _HOP_ENDS, ("destination_queue",)),
    ),
    View(
        "resent_messages", 13,
        "a day of a hop and kind of message",
        _ONE_HOP
        + "A message counts on the day of its first sending, with all its sendings. `resends` are the sendings behind "
        "the first one, `share` their share of all `sendings`; `resent_bytes` and `bytes_share` likewise of `bytes`. "
        "`message_kind` separates messages of applications from administration acknowledgements and reports. "
        "`source` is `transfers`.",
        "The first captured sending of a message may be a resend itself where the capture begins later: the counts "
        "are lower bounds. What TCP retransmits is in the view retransmitted. " + _ONLY_1801,
        """
        SELECT date_trunc('day', first_sent_at) AS day, """ + _FIRST_ADDRESSES + """, message_kind,
          'transfers' AS source, count(*) AS messages, count_if(sendings > 1) AS resent_messages,
          sum(sendings) AS sendings, sum(sendings - 1) AS resends,
          sum(sendings - 1) / nullif(sum(sendings), 0) AS share,
          sum(packet_bytes + resent_bytes) AS bytes, sum(resent_bytes) AS resent_bytes,
          sum(resent_bytes) / nullif(sum(packet_bytes + resent_bytes), 0) AS bytes_share,
          min(first_sent_at) AS first_at, max(last_sent_at) AS last_at
        FROM """ + hop_rows_sql(
            _TRANSFERS,
            "hop_key, sender_address, receiver_address, message_kind, sendings, packet_bytes, resent_bytes, "
            "first_sent_at, last_sent_at, destination_queue",
        ) + """
        WHERE setting.scope
        GROUP BY date_trunc('day', first_sent_at), hop_key, message_kind
        ORDER BY day, share DESC, sender_address, receiver_address, hop_key, message_kind
        """,
        _HOP, ("first_at", "last_at"), all_of(SESSIONS_SEEN),
        ScopeColumns("first_sent_at", "first_sent_at", _HOP, ("destination_queue",)),
    ),
    View(
        "message_hops", 24,
        "a hop of a message that was routed, that was traced, or that carries recorded COM+ calls",
        _ONE_HOP
        + "`hop` counts the hops of the message in order of time; `hop_count` is how many routing servers it had "
        "passed by then, as its packet says. `reports` are those of queue managers on its route, for messages that are "
        "traced. `calls` is the number of recorded COM+ calls. `refused` is true where the queue does not "
        "accept the message's number in its sequence, whatever `outcome` says of the hop, and no later report of "
        "either end says that it does. `source` is `transfers`.",
        "A hop that was not captured is not shown: `hop_count` tells that there was one. Windows traces no message to "
        "several queues. " + _ONLY_1801,
        """
        WITH hops AS (
          SELECT *, row_number() OVER (PARTITION BY message_key, destination_queue ORDER BY first_sent_at, transfer_key)
              AS hop,
            count(*) OVER (PARTITION BY message_key, destination_queue) AS hops,
            min(first_sent_at) OVER (PARTITION BY message_key, destination_queue) AS began_at
          FROM """ + _canonical_destinations(
              hop_rows_sql(REFUSABLE_TRANSFERS_SQL, _HOP_COLUMNS), _HOP_COLUMNS,
          ) + """
        ), labels AS (
          SELECT message_key, max(label) AS label FROM silver.messages WHERE packet_key IS NOT NULL GROUP BY message_key
        ), recorded AS (
          SELECT message_key, count(DISTINCT call_index) AS calls FROM silver.comqc_calls GROUP BY message_key
        )
        SELECT message_key, message_id, label, queue, hop, hops, sender_address, receiver_address, sender_queue_manager,
          receiver_queue_manager, hop_count, 'transfers' AS source, sendings, first_sent_at, last_sent_at,
          session_acked_at, order_acked_at, outcome, refused, reports, calls, transfer_key, confidence, missing
        FROM hops LEFT JOIN labels USING (message_key) LEFT JOIN recorded USING (message_key)
        WHERE (hops > 1 OR size(reports) > 0 OR calls > 0 OR hop_count > 0) AND setting.scope
        ORDER BY began_at, message_key, queue, hop, transfer_key
        """,
        _HOP, ("first_sent_at", "last_sent_at"), all_of(SESSIONS_SEEN),
        ScopeColumns("first_sent_at", "last_sent_at", _HOP_ENDS, ("queue",)),
    ),
)  # fmt: skip
"""The views of transfers."""
