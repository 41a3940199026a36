"""SQL of what shows that messages of a captured sequence got further than its order acknowledgements say.

Valid for Spark and for DuckDB.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pipeline.silver.canonical_queues import with_canonical_queues

ANY_TIME: Final = "timestamp_micros(253402214400000000)"
"""The SQL of a "now" before which everything is: of the year 9999."""
STALLED_SINCE_SQL: Final = "CASE WHEN progress_at IS NULL THEN stalled_since END"
"""When the stall began that goes on, of a row of ``with_progress``; null where something shows that it ended."""


class ProgressEvidence(NamedTuple):
    """The SQL names of tables that show how far sequences got, and the SQL of the time until which they count."""

    transfers: str = "{message_transfers}"
    reports: str = "{eod_transfers}"
    sources: str = "{eod_sources}"
    aliases: str = "{queue_aliases}"
    now: str = ANY_TIME


def accepted_sequences(sources: str, now: str) -> str:
    """Return a subquery: what receivers have accepted of each incoming sequence, by their last report until ``now``.

    Its columns are queue, sender_queue, sender_queue_manager, sequence_id, accepted_number and reported_at. A receiver
    has all messages of the sequence up to ``accepted_number`` that did not expire ([MS-MQQB] 3.1.5.8.6). Sequences are
    left out whose sender went back, by its own reports: it gives numbers again that the receiver has had.
    ``sources`` is the SQL name of gold.eod_sources, ``now`` a SQL expression.
    """
    return f"""(SELECT queue, max(sender_queue) AS sender_queue, sender_queue_manager, sequence_id,
      max_by(last_number, struct(observed_at, source_key)) AS accepted_number, max(observed_at) AS reported_at
    FROM {sources} WHERE observed_at <= {now} GROUP BY queue, sender_queue_manager, sequence_id
    HAVING max_by(disagrees_with_sender, struct(observed_at, source_key)) IS NULL)"""


def acknowledged_after(reports: str, sequences: str, aliases: str, now: str) -> str:
    """Return a subquery: what order acknowledgements on TCP 1801 acknowledged after reports of outgoing queues.

    Its columns are snapshot_id; ``next_unacked``, the number behind the last one acknowledged; ``acknowledged_at``,
    when the report's oldest unacknowledged number was acknowledged at the latest, until ``now``, null if it was not.
    ``reports``, ``sequences`` and ``aliases`` are the SQL names of gold.eod_transfers, gold.transfer_sequences and
    silver.queue_aliases.
    """
    columns = "transaction_sequence_id, acknowledged_number, acknowledged_at"
    named = with_canonical_queues(sequences, {"queue": "rows.destination_queue"}, columns, aliases)
    return f"""(SELECT snapshot_id, max(acknowledged_number) + 1 AS next_unacked,
      min(CASE WHEN acknowledged_number >= first_unacked_number THEN acknowledged_at END) AS acknowledged_at
    FROM {reports} AS reports
      JOIN {named} AS acks ON transaction_sequence_id = sequence_id AND acks.queue = reports.queue
    WHERE acknowledged_at > observed_at AND acknowledged_at <= {now} GROUP BY snapshot_id)"""


def with_progress(sequences: str, evidence: ProgressEvidence) -> str:
    """Return a subquery over gold.transfer_sequences: its columns, and what else shows that its messages got further.

    ``queue`` is the canonical name of its destination. ``waiting_from`` is the first number that nothing shows to be
    acknowledged: not order acknowledgements, not a report of the sender's queue after the last packet, and, unless the
    sequence is refused, no acknowledgement of another kind that a message arrived; above ``last_number`` where all are.
    ``progress_at`` is when one of the latter two first showed that ``first_waiting_number`` is acknowledged; null if
    none does. ``accepted_number`` is the highest captured number that was sent before the receiver's last report, at
    ``accepted_reported_at``, and that it says to have accepted: the message is delivered, whatever was acknowledged.
    ``refused_until`` is when a report first showed that the receiver of a refused sequence takes its first waiting
    number: the sender's, or the receiver's own after the last packet; null if none does. ``condition_now`` is
    ``condition`` as all this leaves it: `refused` is what no report contradicts, `stalled` likewise.

    ``sequences`` is the SQL of the table; what was reported after ``now`` of the evidence does not count.
    """
    transfers, reports, sources, aliases, now = evidence
    named = with_canonical_queues(sequences, {"queue": "rows.destination_queue"}, "rows.*", aliases)
    arrived_at = "least(final_acked_at, arrival_acked_at, receive_acked_at)"  # without what is null
    return f"""(WITH progressing AS (
      SELECT * FROM {named} AS named
    ), reported_progress AS (
      SELECT sequence_key, max(next_unacked) AS next_unacked,
        min(CASE WHEN next_unacked > first_waiting_number THEN observed_at END) AS progress_at
      FROM progressing JOIN (
        SELECT sequence_id, queue AS reported_queue, observed_at,
          CASE WHEN first_unacked_number IS NOT NULL THEN first_unacked_number
            WHEN unacked_count = 0 THEN next_number ELSE last_acked_number + 1 END AS next_unacked
        FROM {reports} WHERE observed_at <= {now}
      ) AS reports ON sequence_id = transaction_sequence_id AND reported_queue = queue AND observed_at > last_packet_at
      WHERE waiting > 0 GROUP BY sequence_key
    ), captured_progress AS (
      SELECT progressing.sequence_key,
        max(CASE WHEN has_arrived THEN number + 1 END) AS next_unacked,
        min(CASE WHEN has_arrived AND number >= first_waiting_number THEN arrived_at END) AS progress_at,
        max(CASE WHEN sent_at <= reported_at AND number <= accepted.accepted_number THEN number END) AS accepted_number,
        max(CASE WHEN sent_at <= reported_at AND number <= accepted.accepted_number THEN reported_at END)
          AS accepted_reported_at
      FROM progressing JOIN (
        SELECT sequence_key AS of_sequence, transaction_number AS number, first_sent_at AS sent_at,
          {arrived_at} AS arrived_at, outcome IN ('delivered', 'received') AS has_arrived
        FROM {transfers} WHERE sequence_key IS NOT NULL
      ) AS sent ON of_sequence = progressing.sequence_key
      LEFT JOIN {accepted_sequences(sources, now)} AS accepted ON accepted.queue = progressing.queue
        AND accepted.sender_queue_manager = source_queue_manager AND accepted.sequence_id = transaction_sequence_id
      WHERE waiting > 0 GROUP BY progressing.sequence_key
    ), progressed AS (
      SELECT progressing.*, accepted_number, accepted_reported_at,
        greatest(first_waiting_number, reported.next_unacked,
          CASE WHEN condition <> 'refused' THEN captured.next_unacked END) AS waiting_from,
        least(reported.progress_at, CASE WHEN condition <> 'refused' THEN captured.progress_at END) AS progress_at
      FROM progressing LEFT JOIN reported_progress AS reported ON reported.sequence_key = progressing.sequence_key
        LEFT JOIN captured_progress AS captured ON captured.sequence_key = progressing.sequence_key
    ), judged AS (
      SELECT *, CASE WHEN condition = 'refused' THEN least(progress_at,
          CASE WHEN accepted_number >= first_waiting_number AND accepted_reported_at >= last_packet_at
            THEN accepted_reported_at END) END AS refused_until
      FROM progressed
    )
    SELECT *, CASE WHEN waiting_from > last_number THEN 'acknowledged'
        WHEN condition = 'refused' AND refused_until IS NULL THEN 'refused'
        WHEN condition = 'stalled' OR (condition = 'refused' AND stalled_since IS NOT NULL) THEN
          CASE WHEN progress_at IS NULL THEN 'stalled' ELSE 'waiting' END
        WHEN condition = 'refused' THEN 'waiting'
        ELSE condition END AS condition_now
    FROM judged)"""
