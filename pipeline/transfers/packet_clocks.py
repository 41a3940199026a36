"""Times of packets as one clock would have shown them, for their order: corrected where clocks are known to differ.

A capture whose clock was set back shows times again. Captures that have one direction of a connection each have two
clocks: the four packets of the handshake, each sent after the one before it, show by how much they differ. The times in
tables stay those of the captured packets. No Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.transfers.packet_numbers import NO_TIME
from udfs.array_types import Ints
from udfs.capture.clock_steps import ClockSteps

SET_BACK: Final = "set_back_us"
"""How far the clock of a packet's capture had been set back before it, in all, microseconds."""
_HANDSHAKE: Final = ("establish_connection", "connection_parameters")


def with_set_back(packets: pa.Table, steps: ClockSteps) -> pa.Table:
    """Return packets with the column ``SET_BACK``; ``packets`` has capture_id and packet_number."""
    if not steps:
        return packets.append_column(SET_BACK, pa.array(np.zeros(packets.num_rows, np.int64)))
    places = zip(packets["capture_id"].to_pylist(), packets["packet_number"].to_pylist(), strict=True)
    return packets.append_column(SET_BACK, pa.array([steps.before(*place).us for place in places], pa.int64()))


def ordered_times(table: pa.Table, side: Ints, sent_at: Ints) -> Ints:
    """Return the times of packets in microseconds, on one clock for each connection; ``NO_TIME`` stays.

    ``table`` is sorted by ``side`` (2 k is the client's of connection k, 2 k + 1 the server's) and stream offset.
    """
    if SET_BACK in table.column_names:
        back = np.asarray(table[SET_BACK].combine_chunks(), np.int64)
        sent_at = np.where(sent_at == NO_TIME, NO_TIME, sent_at + back)
    captures = np.asarray(table["capture_id"].combine_chunks().dictionary_encode().indices.fill_null(-1), np.int64)
    if len(captures) == 0 or (captures == captures[0]).all():
        return sent_at
    kinds = table["kind"]
    bounds = np.searchsorted(side, np.arange(0, int(side[-1]) + 3))
    for client in range(0, int(side[-1]) + 1, 2):
        ours, theirs = slice(bounds[client], bounds[client + 1]), slice(bounds[client + 1], bounds[client + 2])
        if ours.start == ours.stop or theirs.start == theirs.stop:
            continue
        if np.isin(captures[ours], captures[theirs]).any():
            continue
        firsts = [_handshake(kinds, sent_at, rows) for rows in (ours, theirs)]
        ahead = _ahead(*firsts)
        if ahead:
            shown = sent_at[theirs]
            sent_at = sent_at.copy()
            sent_at[theirs] = np.where(shown == NO_TIME, NO_TIME, shown - ahead)
    return sent_at


def _handshake(kinds: pa.ChunkedArray, sent_at: Ints, rows: slice) -> Mapping[str, int]:
    """Return when a side sent its two packets of the handshake, which are its first ones."""
    first = range(rows.start, min(rows.start + len(_HANDSHAKE), rows.stop))
    found = {kinds[row].as_py(): int(sent_at[row]) for row in first}
    return {kind: at for kind, at in found.items() if kind in _HANDSHAKE and at != NO_TIME}


def _ahead(client: Mapping[str, int], server: Mapping[str, int]) -> int:
    """Return by how much the clock of the server's captures is ahead of that of the client's, at least; us.

    An answer comes after its request, and the second request after the first answer. 0 where the times agree with that.
    """
    most = min((server[kind] - client[kind] for kind in _HANDSHAKE if kind in client and kind in server), default=0)
    establish, parameters = _HANDSHAKE
    known = establish in server and parameters in client
    least = server[establish] - client[parameters] if known else min(most, 0)
    return 0 if least <= 0 <= most else (least + most) // 2
