"""What the packets of one side of a session come to: counts, and how long its window was full. No Spark.

Of a session with a checkpoint: what the packets up to it come to, and those behind it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pipeline.silver.decode_packets import USER_MESSAGE
from pipeline.transfers.connection_packets import (
    CLIENT,
    FINAL_ACK,
    ORDER_ACK,
    SERVER,
    SESSION_ACK,
    ConnectionPackets,
    SideRows,
)
from pipeline.transfers.numbers.flow_control import window_full_us
from pipeline.transfers.numbers.packet_numbers import NO_NUMBER
from udfs.array_types import Bools, Ints
from udfs.columns.absent import AFTER_ALL, NONE

COUNTS: Final = (
    "messages", "bytes", "recoverable", "transactional", "order_acks", "final_acks", "session_acks", "piggybacked",
    "numbered", "acknowledged", "unacknowledged", "stored",
)  # fmt: skip
"""Columns of silver.sessions, for each side, that count packets."""


def count_side_packets(found: ConnectionPackets, rows: SideRows, chosen: Bools) -> dict[str, int]:
    """Return ``COUNTS`` of some packets: ``chosen`` has an element for each of ``rows``, of one side."""
    span = slice(rows.first, rows.end)
    kinds = {each: found.is_kind_in(span, each) & chosen for each in (USER_MESSAGE, ORDER_ACK, FINAL_ACK, SESSION_ACK)}
    messages = kinds[USER_MESSAGE]
    numbered = chosen & (found.numbers.session[span] != NO_NUMBER)
    acknowledged = numbered & (found.acknowledged_at[span] != AFTER_ALL)
    return {
        "messages": int(messages.sum()),
        "bytes": int(found.packets.length[span][messages].sum()),
        "recoverable": int((messages & (found.packets.recoverable[span] == 1)).sum()),
        "transactional": int((messages & found.transactional[span]).sum()),
        "order_acks": int(kinds[ORDER_ACK].sum()),
        "final_acks": int(kinds[FINAL_ACK].sum()),
        "session_acks": int(kinds[SESSION_ACK].sum()),
        "piggybacked": int((chosen & found.packets.counted[span] & found.packets.has_header[span]).sum()),
        "numbered": int(numbered.sum()),
        "acknowledged": int(acknowledged.sum()),
        "unacknowledged": int(numbered.sum() - acknowledged.sum()),
        "stored": int((numbered & (found.stored_by[span] != NONE)).sum()),
    }


def side_counts(found: ConnectionPackets, place: int, side: int) -> dict[str, int]:
    """Return ``COUNTS`` of all packets of a side of the connection with that place in ``found.connection_ids``."""
    rows, before = found.rows_of(place, side), found.side_before(place, side)
    counts = count_side_packets(found, rows, ~found.kept[rows.first : rows.end])
    for name in COUNTS:
        counts[name] += getattr(before, name)
    counts["stored"] += len(found.now_stored.get(2 * place + side, ()))
    return counts


def side_window_full_us(found: ConnectionPackets, place: int, side: int, sizes: Ints, end: int) -> int:
    """Return how long a side's window was full, up to a time, microseconds.

    ``sizes``: the WindowSize that each packet of ``found`` says, or -1.
    """
    checkpoint, before = found.checkpoint(place), found.side_before(place, side)
    rows = found.rows_of(place, side)
    numbered = rows.first + np.flatnonzero(found.numbers.session[rows.first : rows.end] != NO_NUMBER)
    sent_at, acknowledged_at = found.packets.sent_at[numbered], found.acknowledged_at[numbered]
    windows = tuple(said_windows(found, place, each, sizes) for each in (CLIENT, SERVER))
    begin = None
    if checkpoint is not None and before.counted:
        begin = checkpoint.counted_until
        in_flight = np.array(before.in_flight, np.int64)
        sent_at = np.concatenate([np.full(len(in_flight), begin), sent_at])
        acknowledged_at = np.concatenate([in_flight, acknowledged_at])
    return before.window_full_us + window_full_us(sent_at, acknowledged_at, (windows[0], windows[1]), end, begin)


def said_windows(found: ConnectionPackets, place: int, side: int, sizes: Ints) -> tuple[Ints, Ints]:
    """Return times and values of the WindowSizes that a side said, in stream order; ``sizes`` as above.

    The latest one up to a checkpoint stands for all up to it.
    """
    rows = found.rows_of(place, side)
    said = rows.first + np.flatnonzero((sizes[rows.first : rows.end] >= 0) & ~found.kept[rows.first : rows.end])
    checkpoint, before = found.checkpoint(place), found.side_before(place, side)
    known = [] if checkpoint is None or before.window == NONE else [(checkpoint.counted_until, before.window)]
    first = np.array(known, np.int64).reshape(-1, 2)
    return np.concatenate([first[:, 0], found.packets.sent_at[said]]), np.concatenate([first[:, 1], sizes[said]])
