"""SQL that counts messages and sequences once for each hop: between two queue managers, whatever their addresses."""

from __future__ import annotations

import re
from typing import Final

# A row without a hop_key, of a version before this column, is its own hop until the next run.
_OF_MESSAGE: Final = "PARTITION BY message_key, destination_queue, coalesce(hop_key, transfer_key)"
# Of all rows of a hop together; other columns are those of the row that was sent first, which sees all that came later.
_OF_HOP: Final = {
    "sendings": "CAST(sum(sendings) OVER hop AS int)",
    "sessions": "CAST(sum(sessions) OVER hop AS int)",
    "acknowledged_sendings": "CAST(sum(acknowledged_sendings) OVER hop AS int)",
    "resent_bytes": "CAST((sum(packet_bytes + resent_bytes) OVER hop) - packet_bytes AS bigint)",
    "last_sent_at": "max(last_sent_at) OVER hop",
    "refused": "max(refused) OVER hop",
    "not_delivered": "max(not_delivered) OVER hop",
}
_NAMES: Final = re.compile(r"\w+")


def first_addresses(place: str) -> str:
    """Return the SQL of both addresses of the row that comes first by ``place``, a SQL expression: by name."""
    return ", ".join(f"min_by({end}_address, {place}) AS {end}_address" for end in ("sender", "receiver"))


def hop_rows_sql(transfers: str, columns: str) -> str:
    """Return a subquery over gold.message_transfers: ``columns`` of one row for each message, queue and ``hop_key``.

    ``columns`` are names between commas. Sendings, sessions and bytes sent again are those of all rows of the hop: what
    was sent again from another address is a resend. ``transfers`` is the SQL name of the table, or a subquery over it
    with more columns. The SQL is valid for Spark and for DuckDB.
    """
    names = _NAMES.findall(columns)
    selected = ", ".join(f"{_OF_HOP[name]} AS {name}" if name in _OF_HOP else name for name in names)
    return f"""(SELECT {", ".join(names)} FROM (SELECT {selected},
      row_number() OVER ({_OF_MESSAGE} ORDER BY first_sent_at, transfer_key) AS place_on_hop
    FROM {transfers} AS rows WINDOW hop AS ({_OF_MESSAGE})) WHERE place_on_hop = 1)"""


def last_of_hop(sequences: str) -> str:
    """Return a subquery over gold.transfer_sequences: of each sequence and ``hop_key`` the row of the latest packet.

    ``sequences`` is the SQL name of the table. The SQL is valid for Spark and for DuckDB.
    """
    return f"""(SELECT * FROM (SELECT *, row_number() OVER (
        PARTITION BY source_queue_manager, destination_queue, transaction_sequence_id, hop_key
        ORDER BY last_packet_at DESC, sequence_key) AS place_on_hop
      FROM {sequences}) WHERE place_on_hop = 1)"""
