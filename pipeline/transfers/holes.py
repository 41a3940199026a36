"""Holes of a side: bytes that no capture has, and whether one may hold a packet's session acknowledgement. No Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from udfs.array_types import Bools, Ints
from udfs.columns.absent import AFTER_ALL, NONE
from udfs.columns.groups import take_or
from udfs.sessions.packet_layouts import SESSION_ACK_BYTES

END_OF_SIDE: Final = AFTER_ALL
"""Bytes: behind all of a side."""


@dataclass(frozen=True, slots=True)
class Holes:
    """Where bytes of one side are missing, ascending, and inside which of its packets, ``NONE`` between packets.

    ``begins`` are bytes in the side's stream; ``END_OF_SIDE`` stands for what is missing behind its last packet.
    ``sizes`` are bytes: of a hole between packets all up to the next one, captured ones of no packet too.
    """

    begins: Ints
    inside: Ints
    sizes: Ints

    @staticmethod
    def none() -> Holes:
        """Return no hole."""
        return Holes(*(np.zeros(0, np.int64) for _ in range(3)))

    def keep(self, chosen: Bools) -> Holes:
        """Return some of the holes."""
        return Holes(self.begins[chosen], self.inside[chosen], self.sizes[chosen])

    def __len__(self) -> int:
        return len(self.begins)


def find_holes(offset: Ints, length: Ints, seen: Ints, held: Ints, *, at_end: int, at_begin: int = 0) -> Holes:
    """Return the holes of a side, from its packets in stream order.

    ``held`` are the bytes of each packet up to its first missing one. What lies between packets counts as a hole,
    whether it is missing or was captured and is no packet: ``bronze.session_packets`` does not tell. ``at_end``: how
    many bytes are missing behind the last packet; ``at_begin``: before its first byte.
    """
    index = np.arange(len(offset))
    cut = seen < length
    ends = offset + length
    gap = np.flatnonzero(offset[1:] > ends[:-1]) if len(offset) else np.zeros(0, np.int64)
    begins = [ends[gap], (offset + np.minimum(held, length))[cut]]
    inside = [np.full(len(gap), NONE), index[cut]]
    sizes = [(offset[1:] - ends[:-1])[gap] if len(gap) else gap, (length - seen)[cut]]
    for begin, size in ((0, at_begin + (int(offset[0]) if len(offset) else 0)), (END_OF_SIDE, at_end)):
        if size > 0:
            for values, value in ((begins, begin), (inside, NONE), (sizes, size)):
                values.append(np.full(1, value))
    where, which, bytes_of = (np.concatenate(each) for each in (begins, inside, sizes))
    order = np.argsort(where, kind="stable")
    return Holes(where[order], which[order], bytes_of[order])


def may_hold_acknowledgement(
    sent_at: Ints, acknowledged_by: Ints, packet_sent_at: Ints, offset: Ints, length: Ints, headers: Ints,
    may_have_header: Bools, holes: Holes,
) -> Bools:  # fmt: skip
    """Return for each sending whether a hole of the other side may hold its session acknowledgement.

    ``sent_at`` and ``acknowledged_by`` (an index of ``headers``, or ``NONE``) are of the sendings. Of the other
    side's packets, in stream order: ``packet_sent_at``, ``offset``, ``length``, ``may_have_header`` (flag SH is set, or
    was not seen); ``headers`` are the indices of those that carry a SessionHeader. Such a hole lies behind the other
    side's last packet before the sending, before the header that acknowledged it, or behind the last one if none did.
    One between packets has as many bytes as a packet with a SessionHeader at least.
    """
    if not len(holes):
        return np.zeros(len(sent_at), np.bool_)
    earliest = np.minimum.accumulate(packet_sent_at[::-1])[::-1]
    last = np.searchsorted(earliest, sent_at) - 1  # the other side's last packet before the sending
    ends = np.append(offset + length, 0)
    begin = np.where(last >= 0, ends[last], 0)
    acked = acknowledged_by != NONE
    carrier = headers[np.maximum(acknowledged_by, 0)] if len(headers) else np.zeros(len(sent_at), np.int64)
    end = np.where(acked, np.append(offset, END_OF_SIDE)[carrier], END_OF_SIDE + 1)
    if len(headers):
        begin = np.where(acked, begin, np.maximum(begin, ends[headers[-1]]))
    between = (holes.inside == NONE) & (holes.sizes >= SESSION_ACK_BYTES)
    possible = between | (holes.inside != NONE) & take_or(may_have_header, holes.inside, default=True)
    count = np.concatenate([[0], np.cumsum(possible)])
    low, high = np.searchsorted(holes.begins, begin), np.searchsorted(holes.begins, end)
    return count[np.maximum(high, low)] > count[low]
