"""Every table, in order of creation: children of the ledger first, then what is made of them."""

from __future__ import annotations

from schemas import (
    ack_sequences,
    alerts,
    attempts,
    bronze,
    calls,
    collected_snapshots,
    comqc,
    coverage,
    eod,
    findings,
    hosts,
    messages,
    quality,
    queue_aliases,
    queue_history,
    queue_snapshots,
    sessions,
    transfers,
)
from schemas.table import Table

SILVER: tuple[Table, ...] = (
    *calls.TABLES, *queue_aliases.TABLES, *messages.TABLES, *comqc.TABLES,
    *queue_snapshots.TABLES, *hosts.TABLES, *sessions.TABLES,
)  # fmt: skip
GOLD: tuple[Table, ...] = (
    *attempts.TABLES, *ack_sequences.TABLES, *queue_history.TABLES, *eod.TABLES, *transfers.TABLES,
    *findings.TABLES, *coverage.TABLES, *alerts.TABLES,
)  # fmt: skip
BRONZE: tuple[Table, ...] = (*bronze.TABLES, *sessions.PACKET_TABLES)
DATA_TABLES: tuple[Table, ...] = (*BRONZE, *collected_snapshots.TABLES, *SILVER, *GOLD)

# What runs say of themselves: alone not a function of what was read.
RUN_TABLES: tuple[Table, ...] = (*quality.TABLES, bronze.WATERMARKS, bronze.RUNS, *sessions.CHECKPOINT_TABLES)
ALL_TABLES: tuple[Table, ...] = (*DATA_TABLES, *RUN_TABLES)


def table(full_name: str) -> Table:
    """The table of that ``layer.name``; KeyError when there is none."""
    for each in ALL_TABLES:
        if str(each) == full_name:
            return each
    raise KeyError(full_name)
