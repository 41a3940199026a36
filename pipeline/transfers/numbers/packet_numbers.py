"""Numbers of counted packets: session_number and recoverable_number. They are not in the packets.

Each side of a connection numbers its counted packets (user messages, order and final acks) 1, 2, 3, ..., and the
recoverable ones once more ([MS-MQQB] 3.1.1.4). Packets that follow each other without a byte between form a *stretch*;
within it packets are counted from its first *anchor*: the side's EstablishConnection packet, before which none was
sent, or a SessionHeader of the side, which says how many were sent (16 bits of it). No Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from udfs.array_types import Bools, Ints
from udfs.columns.absent import AFTER_ALL, BEFORE_ALL, NO_TIME, NONE

NO_NUMBER: Final = 0
"""Stands in arrays for a number that is not known: numbers begin with 1."""
NUMBER_BITS: Final = 16
_MODULUS: Final = 1 << NUMBER_BITS
_MOST_BACKWARDS: Final = _MODULUS - 1  # counted packets that an anchor numbers before it


@dataclass(frozen=True, slots=True)
class SidePackets:
    """All packets of some sides, each a row of every array; sorted by ``side``, then by ``offset``.

    ``side`` numbers the sides, ``offset`` and ``length`` are bytes in its stream, ``sent_at`` microseconds or
    ``NO_TIME``. ``counted``: user message, order ack or final ack. ``recoverable``: of counted packets 1 for DM = 1, 0
    for others, or ``NONE`` where UserHeader.Flags were not seen. ``establishes``: an EstablishConnection packet.
    ``has_header``: a SessionHeader was seen whole; only there the arrays from ``ack`` on have values: its fields in the
    order of [MS-MQMQ] 2.2.20.4.
    """

    side: Ints
    offset: Ints
    length: Ints
    sent_at: Ints
    counted: Bools
    recoverable: Ints
    establishes: Bools
    has_header: Bools
    ack: Ints
    recoverable_ack: Ints
    recoverable_ack_flags: Ints
    user_sequence: Ints
    recoverable_sequence: Ints
    window: Ints

    def __len__(self) -> int:
        return len(self.side)


@dataclass(frozen=True, slots=True)
class CountBefore:
    """How many packets were sent before the first row of a side that is not read from its beginning.

    Per side, by its number: ``counted`` and ``recoverable``, -1 where that is not known. The first row of the side
    then is an anchor, if it begins at ``offset``.
    """

    offset: Ints
    counted: Ints
    recoverable: Ints


@dataclass(frozen=True, slots=True)
class PacketNumbers:
    """The numbers of packets, ``NO_NUMBER`` where unknown and for packets that are not counted.

    ``stretch`` numbers the stretches of all sides from 0.
    """

    session: Ints
    recoverable: Ints
    stretch: Ints


def number_packets(packets: SidePackets, expire_us: int, before: CountBefore | None = None) -> PacketNumbers:
    """Number the packets. ``expire_us``: the setting pending.expire; an anchor reaches no further back."""
    breaks = _stretch_breaks(packets)
    stretch = np.cumsum(breaks) - 1
    anchors = np.where(packets.establishes, 0, np.where(packets.has_header, packets.user_sequence, -1))
    counted = packets.counted
    known = None if before is None else _carried(packets, before.offset, before.counted)
    session = _count_from_anchors(packets, breaks, counted, anchors, known, expire_us)
    # A packet that may be recoverable, or not, ends what is known of recoverable ones: the next stretch begins at it.
    unknown = counted & (packets.recoverable == NONE)
    anchors = np.where(packets.establishes, 0, np.where(packets.has_header, packets.recoverable_sequence, -1))
    # So it carries no count over to those behind it, either.
    known = None if before is None else np.where(unknown, -1, _carried(packets, before.offset, before.recoverable))
    recoverable = _count_from_anchors(
        packets, breaks | unknown, counted & (packets.recoverable == 1), anchors, known, expire_us
    )
    return PacketNumbers(session, recoverable, stretch)


def _stretch_breaks(packets: SidePackets) -> Bools:
    """Return which packets begin a stretch: the one before is of another side, or does not end where they begin."""
    breaks = np.ones(len(packets), np.bool_)
    ends = packets.offset[:-1] + packets.length[:-1]
    breaks[1:] = (packets.side[1:] != packets.side[:-1]) | (packets.offset[1:] != ends)
    return breaks


def _carried(packets: SidePackets, offset: Ints, count: Ints) -> Ints:
    """Return how many packets were sent before each row, where that is carried from an earlier run; -1 elsewhere."""
    found = np.full(len(packets), -1, np.int64)
    found[np.flatnonzero(packets.offset == offset[packets.side])] = 0
    return np.where(found == 0, count[packets.side], -1)


def _count_from_anchors(
    packets: SidePackets, breaks: Bools, numbered: Bools, anchors: Ints, carried: Ints | None, expire_us: int
) -> Ints:
    """Number the packets that ``numbered`` marks, 1 the first one, from the first anchor of each stretch.

    ``anchors``: how many were sent when the packet was, itself included, or -1 in packets that are no anchors;
    ``carried``: how many before it, exactly. Numbers from a SessionHeader are 16 bits at the anchor, and go on.
    """
    rows = len(packets)
    if not rows:
        return np.zeros(0, np.int64)
    starts = np.flatnonzero(breaks)
    stretch = np.cumsum(breaks) - 1
    before: Ints = np.cumsum(numbered) - numbered  # of those that are numbered, over all stretches
    value = np.where(anchors >= 0, anchors - numbered, -1)  # how many before the anchor, modulo 65536
    is_anchor, exact = anchors >= 0, packets.establishes
    if carried is not None:
        is_anchor, exact = is_anchor | (carried >= 0), exact | (carried >= 0)
        value = np.where(carried >= 0, carried, value)
    places = np.append(np.flatnonzero(is_anchor), rows)
    first = places[np.searchsorted(places, starts)]  # the first anchor from each stretch's beginning on
    ends = np.append(starts[1:], rows)
    anchored = (first < ends)[stretch]
    at = np.minimum(first, rows - 1)[stretch]
    number = value[at] + before - before[at] + 1
    back: Ints = before[at] - before
    ahead = np.arange(rows) < at
    old = (packets.sent_at < np.maximum(packets.sent_at[at], BEFORE_ALL) - expire_us) & (packets.sent_at != NO_TIME)
    out_of_reach = ahead & ((back > _MOST_BACKWARDS) | old | exact[at])
    known = numbered & anchored & ~out_of_reach
    lowest = np.minimum.reduceat(np.where(known, number, AFTER_ALL), starts)
    number += np.where(lowest < 1, _MODULUS, 0)[stretch]
    return np.where(known, number, NO_NUMBER)
