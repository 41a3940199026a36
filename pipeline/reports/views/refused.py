"""SQL that joins messages on a hop with what their sequence shows: that the receiver refuses them for ever."""

from __future__ import annotations

from typing import Final

from pipeline.transfers.sequences.sequence_progress import ProgressEvidence, with_progress

VIEW_EVIDENCE: Final = ProgressEvidence(
    "gold.message_transfers",
    "gold.eod_transfers",
    "gold.eod_sources",
    "silver.queue_aliases",
    "(SELECT now FROM setting.now)",
)
"""What views know of sequences."""


def with_refusals(transfers: str, sequences: str, evidence: ProgressEvidence) -> str:
    """Return a subquery over gold.message_transfers: its columns, and ``refused``.

    ``refused`` is true where the message waits for its order acknowledgement in a sequence that is `refused`, and no
    report contradicts it (``condition_now`` of ``with_progress``): the next machine has its bytes (``outcome`` may be
    `transferred`), and its queue never gets it. ``transfers`` and ``sequences`` are SQL names of the tables. The SQL is
    valid for Spark and for DuckDB.
    """
    refused = with_progress(f"(SELECT * FROM {sequences} WHERE condition = 'refused')", evidence)
    return f"""(SELECT sent.*, coalesce(sent.transaction_number >= refusing.first_waiting_number
      AND sent.outcome NOT IN ('received', 'delivered', 'rejected'), FALSE) AS refused
    FROM {transfers} AS sent LEFT JOIN (
      SELECT sequence_key, min(first_waiting_number) AS first_waiting_number FROM {refused} AS sequences
      WHERE condition_now = 'refused' GROUP BY sequence_key
    ) AS refusing ON refusing.sequence_key = sent.sequence_key)"""


REFUSABLE_TRANSFERS_SQL: Final = with_refusals("gold.message_transfers", "gold.transfer_sequences", VIEW_EVIDENCE)
"""A subquery of views over gold.message_transfers: its columns, and ``refused``."""
