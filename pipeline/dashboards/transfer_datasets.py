"""SQL of the dashboard datasets of the binary protocol (TCP 1801): transfers, sequences, sessions (``Dataset``)."""

from __future__ import annotations

from typing import Final

from pipeline.dashboards.dashboard_data import NEVER_ARRIVED, NOT_READ
from pipeline.dashboards.dataset_definition import EVIDENCE_COLUMNS, Dataset, log_bucket_midpoint_sql
from pipeline.reports.views.refused import with_refusals
from pipeline.silver.canonical_queues import with_canonical_queues
from pipeline.transfers.hops.hop_sql import hop_rows_sql
from pipeline.transfers.sequences.sequence_progress import STALLED_SINCE_SQL, ProgressEvidence, with_progress
from udfs.codes import MQMSG_CLASS_NACK_RECEIVE_TIMEOUT_AT_SENDER as _AT_SENDER
from udfs.codes import NEGATIVE_CLASS_BIT, RECEIVE_CLASS_BIT

_HOP_COLUMNS: Final = "sender_queue_manager, receiver_queue_manager, sender_address, receiver_address"
_SESSION_COLUMNS: Final = (
    "initiator_queue_manager, acceptor_queue_manager, client_address, server_address, session_outcome, "
    "not_established, session_end"
)
_REPORTS: Final = ("gold.eod_transfers", "gold.eod_sources")
_LAST_ELEMENTS: Final = 20  # of the arrays of gaps and stalls of a sequence
_LATENCIES: Final = {"transmit_ms": "on the wire", "session_ack_ms": "session ack", "order_ack_ms": "order ack"}
"""The columns of durations whose percentiles are shown, with the names of their stages."""


def _with_canonical_queue(table: str) -> str:
    """Return a subquery over a table with the canonical name of its destination queue as ``queue``."""
    return with_canonical_queues(table, {"queue": "rows.destination_queue"}, "rows.*", "{queue_aliases}")


def _last(array: str) -> str:
    """Return SQL for the last elements of an array column, as its own name."""
    return f"slice({array}, greatest(1, size({array}) - {_LAST_ELEMENTS - 1}), {_LAST_ELEMENTS}) AS {array}"


# What is said of a message in its queue (receive classes, received, delivered) shows that it arrived, on any hop; an
# order ack does too, unless a negative class says that the receiver discarded the message. The sender's own class of a
# message whose time is over says nothing of where it was.
_IS_DISCARDED: Final = " OR ".join(
    f"coalesce({name} & {NEGATIVE_CLASS_BIT} <> 0 AND {name} & {RECEIVE_CLASS_BIT} = 0, FALSE)"
    for name in ("final_class", "arrival_class")
)
_LOST_IN_QUEUE: Final = NEGATIVE_CLASS_BIT | RECEIVE_CLASS_BIT
_HAS_ARRIVED: Final = f"""NOT ({_IS_DISCARDED}) AND (outcome IN ('received', 'delivered') OR order_acked_at IS NOT NULL
  OR coalesce(arrival_class & {NEGATIVE_CLASS_BIT} = 0, FALSE)
  OR coalesce(receive_class & {RECEIVE_CLASS_BIT} <> 0 AND receive_class <> {_AT_SENDER}, FALSE)
  OR coalesce(final_class & {RECEIVE_CLASS_BIT} <> 0 AND final_class <> {_AT_SENDER}, FALSE))"""
_OF_MESSAGE: Final = "PARTITION BY coalesce(message_key, transfer_key), destination_queue"
_IS_REMOVED: Final = " OR ".join(
    f"coalesce({name} & {_LOST_IN_QUEUE} = {_LOST_IN_QUEUE}, FALSE)" for name in ("final_class", "receive_class")
)
# A message of an application is judged once, by all of its hops and resends: by its newest row, or the one that shows a
# refusal; a later sending from another address may have got further.
_WITH_NOT_DELIVERED: Final = f"""(SELECT judged.*, CASE WHEN place > 1 OR NOT has_trouble OR was_received THEN NULL
    WHEN NOT has_arrived THEN '{NEVER_ARRIVED}' WHEN was_removed THEN '{NOT_READ}' END AS not_delivered
  FROM (SELECT refusable.*, max({_HAS_ARRIVED}) OVER ({_OF_MESSAGE}) AS has_arrived,
      max({_IS_REMOVED}) OVER ({_OF_MESSAGE}) AS was_removed,
      max(outcome = 'received') OVER ({_OF_MESSAGE}) AS was_received,
      message_kind = 'application' AND (refused OR outcome IN ('rejected', 'expired', 'unacknowledged')) AS has_trouble,
      row_number() OVER (
        {_OF_MESSAGE} ORDER BY refused OR outcome = 'rejected' DESC, last_sent_at DESC, transfer_key) AS place
    FROM {with_refusals("{message_transfers}", "{transfer_sequences}", ProgressEvidence())} AS refusable) AS judged)"""
_LATENCY_COLUMNS: Final = f"transfer_key, destination_queue, first_sent_at, message_kind, {_HOP_COLUMNS}"
_LATENCIES_SQL: Final = " UNION ALL ".join(
    f"""SELECT transfer_key, first_sent_at, {_HOP_COLUMNS}, queue, destination_queue,
       message_kind, '{stage}' AS stage, {column} AS latency_ms
FROM {_with_canonical_queue(hop_rows_sql("{message_transfers}", f"{_LATENCY_COLUMNS}, {column}"))}
WHERE {column} IS NOT NULL"""
    for column, stage in _LATENCIES.items()
)
# Each number of a sequence when it was sent, sent again, and acknowledged by an order ack from the same hop.
_POINTS_SQL: Final = """SELECT sequence_key, packet_key, observed_at, number, event, array(packet_key) AS evidence
FROM (
  SELECT q.sequence_key, m.packet_key, m.seen_at AS observed_at, m.transaction_number AS number,
    CASE WHEN row_number() OVER (
      PARTITION BY q.sequence_key, m.transaction_number ORDER BY m.seen_at, m.packet_key) = 1
      THEN 'sent' ELSE 'resent' END AS event
  FROM {messages} m JOIN {session_packets} p ON m.packet_key = p.packet_key
  JOIN {transfer_sequences} q ON m.transaction_sequence_id = q.transaction_sequence_id
    AND m.source_queue_manager = q.source_queue_manager AND m.destination_queue = q.destination_queue
    AND m.sender_address = q.sender_address
    AND CASE WHEN p.sent_by = 'client' THEN p.server_address ELSE p.client_address END = q.receiver_address
  UNION ALL
  SELECT q.sequence_key, a.packet_key, a.sent_at AS observed_at, a.transaction_number AS number, 'acknowledged' AS event
  FROM {order_acks} a JOIN {transfer_sequences} q ON a.transaction_sequence_id = q.transaction_sequence_id
    AND CASE WHEN a.sent_by = 'client' THEN a.client_address ELSE a.server_address END = q.receiver_address
    AND CASE WHEN a.sent_by = 'client' THEN a.server_address ELSE a.client_address END = q.sender_address
  WHERE a.kind = 'order_ack' AND a.transaction_number IS NOT NULL
    AND coalesce(a.acknowledged_queue_manager, q.source_queue_manager) = q.source_queue_manager)"""

_MESSAGE_COLUMNS: Final = f"""transfer_key, message_key, message_id, message_kind, class_name, source_queue_manager,
  destination_queue, delivery, transactional, body_bytes, journaling, hop_count, {_HOP_COLUMNS}, hop_key, sequence_key,
  transaction_number, sent_at, expires_at, packet_bytes, resent_bytes, sendings, sessions, acknowledged_sendings,
  first_sent_at, last_sent_at, session_acked_at, order_acked_at, final_acked_at, final_class_name, arrival_acked_at,
  arrival_class_name, receive_acked_at, receive_class_name, transmit_ms, session_ack_ms, store_ms, order_ack_ms,
  final_ack_ms, dead_letter_class, outcome, refused, not_delivered"""
_EVIDENCE: Final = "confidence, missing, evidence"  # of which EVIDENCE_COLUMNS are made

TRANSFER_DATASETS: Final = (
    Dataset(
        "message_transfers",
        "gold.message_transfers",
        f"""SELECT queue, {_MESSAGE_COLUMNS}, {EVIDENCE_COLUMNS}
FROM {_with_canonical_queue(hop_rows_sql(_WITH_NOT_DELIVERED, f"{_MESSAGE_COLUMNS}, {_EVIDENCE}"))}""",
        order_by="first_sent_at DESC, transfer_key",
        selection="the newest of each pair of queue managers, queue, outcome and what was not delivered",
        partition_by=f"{_HOP_COLUMNS}, queue, outcome, not_delivered",
        time_column="first_sent_at",
        group_by=f"{_HOP_COLUMNS}, queue, message_kind, outcome, not_delivered",
        aggregates=(
            "count(*) AS n, CAST(sum(packet_bytes) AS bigint) AS packet_bytes, "
            "CAST(sum(resent_bytes) AS bigint) AS resent_bytes, CAST(sum(sendings) AS bigint) AS sendings"
        ),
        other_tables=("silver.queue_aliases", "gold.transfer_sequences"),
        beside=_REPORTS,
    ),
    Dataset(
        "transfer_latencies",
        "gold.message_transfers",
        _LATENCIES_SQL,
        order_by="first_sent_at DESC, transfer_key, stage",
        selection="the newest of each pair of queue managers and stage",
        partition_by=f"{_HOP_COLUMNS}, stage",
        time_column="first_sent_at",
        group_by=f"{_HOP_COLUMNS}, stage, {log_bucket_midpoint_sql('latency_ms')} AS latency_ms",
        aggregates="count(*) AS n",
        other_tables=("silver.queue_aliases",),
    ),
    Dataset(
        "transfer_sequences",
        "gold.transfer_sequences",
        f"""SELECT sequence_key, source_queue_manager, queue, destination_queue, transaction_sequence_id,
       sequence_ordinal, {_HOP_COLUMNS}, condition_now AS condition, waiting, first_waiting_number, acknowledged_number,
       acknowledged_at, messages, sendings, sent_bytes, resends, resent_bytes, first_number, last_number,
       first_sent_at, last_sent_at, missing_numbers, out_of_order, refusals, order_acks, {_last("gaps")},
       {_last("stalls")}, CASE WHEN stalls IS NULL THEN 0 ELSE size(stalls) END AS stall_count, longest_stall_s,
       {STALLED_SINCE_SQL} AS stalled_since, began, previous_sequence_id, {EVIDENCE_COLUMNS}
FROM {with_progress("{transfer_sequences}", ProgressEvidence())} AS sequences""",
        order_by="waiting = 0, stalled_since IS NULL, waiting DESC, last_sent_at DESC, sequence_key",
        selection="sequences with waiting numbers first, then the newest",
        time_column="first_sent_at",
        group_by=f"{_HOP_COLUMNS}, source_queue_manager, queue, condition",
        aggregates=(
            "count(*) AS n, CAST(sum(waiting) AS bigint) AS waiting, CAST(sum(messages) AS bigint) AS messages, "
            "CAST(sum(sendings) AS bigint) AS sendings, CAST(sum(resends) AS bigint) AS resends, "
            "CAST(sum(stall_count) AS bigint) AS stall_count, max(longest_stall_s) AS longest_stall_s, "
            "min(stalled_since) AS stalled_since"
        ),
        other_tables=("silver.queue_aliases",),
        beside=("gold.message_transfers", *_REPORTS),
    ),
    Dataset(
        "sequence_points",
        "gold.transfer_sequences",
        _POINTS_SQL,
        order_by="observed_at DESC, packet_key",
        selection="the newest of each sequence",
        partition_by="sequence_key",
        time_column="observed_at",
        group_by="sequence_key, event",
        aggregates="max(number) AS number, count(*) AS n",
        other_tables=("silver.messages", "silver.order_acks", "bronze.session_packets"),
    ),
    Dataset(
        "sessions",
        "silver.sessions",
        """SELECT s.connection_id, initiator_queue_manager, acceptor_queue_manager, client_address, client_port,
       server_address, server_port, first_packet_at, last_packet_at, closed_at, outcome AS session_outcome,
       not_established,
       CASE WHEN ended IS NOT NULL THEN ended WHEN outcome = 'open' THEN 'still_open' ELSE 'not_open' END
         AS session_end,
       by_direct_name, pinged, round_trip_ms, ack_timeout_ms, recoverable_ack_timeout_ms, client_window, server_window,
       client_messages + server_messages AS messages, client_bytes + server_bytes AS message_bytes,
       client_unacknowledged + server_unacknowledged AS unacknowledged, client_window_full_ms, server_window_full_ms,
       size(errors) AS decode_errors, first_packets.evidence
FROM {sessions} s LEFT JOIN (
  SELECT connection_id, array_agg(packet_key) AS evidence FROM (
    SELECT connection_id, packet_key,
      row_number() OVER (PARTITION BY connection_id ORDER BY sent_at, packet_key) AS place
    FROM {session_packets}) WHERE place <= 6 GROUP BY connection_id) first_packets
  ON s.connection_id = first_packets.connection_id""",
        order_by="first_packet_at DESC, connection_id",
        selection="the newest of each pair of machines, outcome and end",
        partition_by=_SESSION_COLUMNS,
        time_column="first_packet_at",
        group_by=_SESSION_COLUMNS,
        aggregates=(
            "count(*) AS n, CAST(sum(messages) AS bigint) AS messages, "
            "CAST(sum(message_bytes) AS bigint) AS message_bytes, "
            "CAST(sum(client_window_full_ms) AS bigint) AS client_window_full_ms, "
            "CAST(sum(server_window_full_ms) AS bigint) AS server_window_full_ms"
        ),
        other_tables=("bronze.session_packets",),
    ),
)  # fmt: skip
