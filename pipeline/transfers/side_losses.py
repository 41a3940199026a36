"""What the two sides of a session lack: the holes in their streams, with how many bytes and when. No Spark.

``bronze.session_packets`` does not say whether bytes between two packets are missing, or were captured and are no
packet: where a side lacks more bytes than its packets do, all of them count as missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from pipeline.silver.decode_packets import USER_MESSAGE
from pipeline.transfers.checkpoints import Hole, SideCheckpoint
from pipeline.transfers.connection_packets import (
    CLIENT,
    FINAL_ACK,
    ORDER_ACK,
    SERVER,
    SESSION_ACK,
    SIDES,
    ConnectionPackets,
    SideRows,
)
from pipeline.transfers.holes import END_OF_SIDE, Holes, find_holes
from udfs.array_types import Bools, Ints
from udfs.columns.absent import AFTER_ALL, NO_TIME, NONE
from udfs.columns.arrays import to_flags

LOSS_COLUMNS: Final = (
    "connection_id", "client_bytes", "server_bytes", "missing_bytes", "client_missing_bytes", "server_missing_bytes",
    "uncaptured_side", "syn_seen",
)  # fmt: skip
"""The columns of ``bronze.connections`` that say what a session lacks."""
MAX_HOLES: Final = 1000  # of a side that are told apart; of more, they are one that lasts as long as the session
UNLIMITED: Final = 1 << 40  # bytes: of a side, or of its beginning, that was not captured
_LOST_BEGINNING: Final = UNLIMITED >> 1  # bytes: some are missing, and nobody knows how many
_SESSION_HEADER_FLAG: Final = 16  # SH of BaseHeader.Flags


@dataclass(slots=True)
class SideLoss:
    """One side of a connection: its packets, and the bytes that it lacks.

    With a checkpoint ``rows`` begin with the last packet up to it. ``before``: what all up to it come to; ``captured``:
    bytes of packets; ``between``: bytes before and between its packets; ``cut``: missing ones inside of packets but the
    last, which lacks ``last_cut`` and ends at ``end``; ``outside``: all other missing ones, ``at_end`` those behind its
    last packet; ``at_begin``: before its first byte, which no connection counts. ``has_loss``: it has a hole, or bytes
    that are no packet. Packets that are not read yet count, but not in ``between`` and ``at_end``; the last one may be
    one of them: then it is not ``ends_here``.
    """

    side: int
    rows: SideRows
    before: SideCheckpoint
    offset: Ints
    length: Ints
    seen: Ints
    held: Ints
    sent_at: Ints
    may_have_header: Bools
    carriers: Ints  # rows of the packets with a SessionHeader
    captured: int
    between: int
    cut: int
    last_cut: int
    end: int
    ends_here: bool
    outside: int = 0
    at_end: int = 0
    at_begin: int = 0
    holes: Holes = field(default_factory=Holes.none)
    has_loss: bool = False

    @staticmethod
    def of(found: ConnectionPackets, place: int, side: int) -> SideLoss:
        """Return the packets of a side of a connection; ``find_holes`` says what it lacks."""
        before, rows = found.side_before(place, side), found.rows_of(place, side)
        kept = int(found.kept[rows.first : rows.end].sum())  # they come first
        rows = SideRows(rows.first + max(kept - 1, 0), rows.end)
        span = slice(rows.first, rows.end)
        offset, length = found.packets.offset[span], found.packets.length[span]
        seen, held = found.ints("seen_bytes")[span], found.ints("packet_bytes")[span]
        flags = found.ints("flags", _SESSION_HEADER_FLAG)[span]
        may_have_header = (flags & _SESSION_HEADER_FLAG != 0) | found.is_kind_in(span, SESSION_ACK)
        sent_at = np.where(found.packets.sent_at[span] == NO_TIME, AFTER_ALL, found.packets.sent_at[span])
        carriers = rows.first + np.flatnonzero(found.packets.has_header[span])
        ends = np.concatenate([[0], (offset + length)[:-1]])
        gaps = np.maximum(offset - ends[: len(offset)], 0)
        behind, later = min(kept, 1), found.side_later(place, side)
        end = int(offset[-1] + length[-1]) if len(offset) else before.end_offset
        last_cut = int(length[-1] - seen[-1]) if len(length) else 0
        ends_here = later.end_offset < end
        if not ends_here:
            end, last_cut = later.end_offset, later.last_cut
        return SideLoss(
            side, rows, before, offset, length, seen, held, sent_at, may_have_header, carriers,
            captured=before.seen_bytes + int(seen[behind:].sum()) + later.seen_bytes,
            between=before.bytes_between + int(gaps[behind:].sum()),
            cut=before.bytes_cut + int((length - seen).sum()) + later.bytes_cut - last_cut,
            last_cut=last_cut, end=end, ends_here=ends_here,
        )  # fmt: skip

    def find_holes(self, loss: Mapping[str, Any]) -> None:
        """Set what it lacks; ``loss``: the connection's row with ``LOSS_COLUMNS``.

        The bytes that a side captured and lacks are all up to where its stream was seen to reach: inside of the last
        packet, if the capture ends there, or behind it. Of a side of which no packet was captured, and of a connection
        of a lake that does not say which side lacks bytes, more may be missing at the end.
        """
        name = SIDES[self.side]
        own = loss[f"{name}_missing_bytes"]
        missing, stored = (loss["missing_bytes"] if own is None else own) or 0, loss[f"{name}_bytes"] or 0
        behind = stored + missing - self.end if own is not None else 0
        cut_at_end = 0 if own is None else max(self.last_cut + min(behind, 0), 0)
        self.cut += cut_at_end
        self.outside = max(missing - self.cut, 0)
        stray = max(stored - self.captured, 0)  # bytes of no packet
        unexplained = self.outside - max(self.between - (stray if own is None else 0), 0)
        self.at_end = max(behind if self.outside else 0, unexplained, 0)
        if loss["uncaptured_side"] == name:
            self.at_end = UNLIMITED
        seen = self.seen.copy()
        if len(seen) and self.ends_here and not cut_at_end and not (own is None and self.at_end):
            seen[-1] = self.length[-1]  # its capture ends inside of the last packet: nothing tells of more bytes
        holes = find_holes(self.offset, self.length, seen, self.held, at_end=self.at_end, at_begin=self.at_begin)
        if self.before.packets:
            holes = holes.keep(holes.begins >= self.offset[0])  # what is not read is no hole
        if not self.outside:
            holes = holes.keep((holes.inside != NONE) | (holes.begins == END_OF_SIDE) | (holes.begins < self.at_begin))
        self.holes = holes
        earlier = self.before.bytes_cut > 0 or (self.outside > 0 and self.before.bytes_between > 0)
        self.has_loss = stray > 0 or len(holes) > 0 or earlier or self.at_begin > 0


def side_losses(found: ConnectionPackets, place: int, loss: Mapping[str, Any]) -> list[SideLoss]:
    """Return what both sides of a connection lack; ``loss``: its row with ``LOSS_COLUMNS``. It is found once."""
    return found.once(("losses", place), lambda: _find_losses(found, place, loss))


def _find_losses(found: ConnectionPackets, place: int, loss: Mapping[str, Any]) -> list[SideLoss]:
    sides = [SideLoss.of(found, place, side) for side in (CLIENT, SERVER)]
    if server_began_unseen(found, place, loss):
        sides[SERVER].at_begin = _LOST_BEGINNING
    for side in sides:
        side.find_holes(loss)
    return sides


def server_began_unseen(found: ConnectionPackets, place: int, loss: Mapping[str, Any]) -> bool:
    """Whether the server of a connection whose SYN was captured may have sent bytes before its first captured one.

    Where its stream begins is known from its SYN, or from the first bytes of the client, which acknowledge it. So it is
    not where these are missing, and no side's EstablishConnection was captured. ``loss``: as in ``side_losses``.
    """
    if not loss["syn_seen"] or loss["uncaptured_side"] == SIDES[SERVER]:
        return False  # neither side's beginning is known, or nothing of the server
    sides = [found.rows_of(place, side) for side in (CLIENT, SERVER)]
    if found.packets.establishes[sides[CLIENT].first : sides[SERVER].end].any():
        return False
    own = loss["client_missing_bytes"]
    if not (loss["missing_bytes"] if own is None else own):
        return False
    before, first = found.side_before(place, CLIENT), sides[CLIENT]
    if before.packets:
        return before.bytes_between > 0
    return first.first == first.end or bool(found.packets.offset[first.first] > 0)


def gaps_are_holes(found: ConnectionPackets, place: int, loss: Mapping[str, Any]) -> bool:
    """Whether bytes between packets of a connection count as missing; ``loss``: its row with ``LOSS_COLUMNS``."""
    return any(side.outside > 0 for side in side_losses(found, place, loss))


def unidentified(found: ConnectionPackets) -> Bools:
    """Return which packets lack so many bytes that it is not known which message, or acknowledgement, each of them is.

    A message of class 0 whose headers were seen up to its class is known; acknowledgements say at their end what they
    acknowledge.
    """
    unknown = to_flags(pc.not_equal(found.table["message_class"], 0), default=True)
    of_queues = found.is_kind(USER_MESSAGE, ORDER_ACK, FINAL_ACK)
    return ~to_flags(found.table["complete"], default=True) & unknown & of_queues


def holes_of(found: ConnectionPackets, rows: Ints, before: SideCheckpoint) -> list[Hole]:
    """Return where packets may be missing among some packets of a side, and which of these may be such a packet.

    ``rows`` are in stream order, behind what ``before`` counts.
    """
    packets = found.packets
    sent_at, length = packets.sent_at[rows], packets.length[rows]
    begins = np.append(before.end_offset, packets.offset[rows] + length)[: len(rows)]
    gaps = np.maximum(packets.offset[rows] - begins, 0)
    earliest, latest = np.minimum.accumulate(sent_at[::-1])[::-1], np.maximum.accumulate(sent_at)
    first = packets.sent_at[rows[0] - 1] if before.packets and len(rows) else NO_TIME  # its last one is kept
    since = np.minimum(np.append(first, earliest)[: len(rows)], earliest)
    out = [
        Hole(int(since[place]), int(latest[place]), int(gaps[place]), is_gap=True)
        for place in np.flatnonzero(gaps).tolist()
    ]
    out += [
        Hole(int(sent_at[place]), int(latest[place]), int(length[place]), is_gap=False)
        for place in np.flatnonzero(found.once("unidentified", lambda: unidentified(found))[rows]).tolist()
    ]
    return joined(out)


def joined(holes: list[Hole]) -> list[Hole]:
    """Return holes of a side, of each kind one for all where there are too many."""
    if len(holes) <= MAX_HOLES:
        return holes
    out = []
    for is_gap in (False, True):
        some = [each for each in holes if each.is_gap == is_gap]
        if some:
            since, until = min(each.since_us for each in some), max(each.until_us for each in some)
            out.append(Hole(since, until, max(each.size_bytes for each in some), is_gap=is_gap))
    return out


def missing_packets(
    found: ConnectionPackets, place: int, side: SideLoss, span: tuple[int, int], *, one_clock: bool
) -> list[Hole]:
    """Return where packets of a side may be missing: from when to when, and how many bytes.

    ``span``: when the first and the last packet of the connection were captured. Without ``one_clock`` captures saw it
    side by side, and times of one tell nothing of the other's: each hole may be anywhere in it.
    """
    every, checkpoint = found.rows_of(place, side.side), found.checkpoint(place)
    rows = np.arange(every.first, every.end)[~found.kept[every.first : every.end]]
    earlier = () if checkpoint is None else checkpoint.holes[side.side]
    holes = [each for each in (*earlier, *holes_of(found, rows, side.before)) if side.outside or not each.is_gap]
    if side.at_end:
        is_some = side.at_end != UNLIMITED and every.end > every.first
        since = int(found.packets.sent_at[every.end - 1]) if is_some else span[0]
        holes.append(Hole(since, span[1], side.at_end, is_gap=True))
    if side.at_begin:
        holes.append(Hole(*span, side.at_begin, is_gap=True))

    def within(hole: Hole) -> Hole:
        if NO_TIME in (hole.since_us, hole.until_us) or not one_clock:
            return replace(hole, since_us=span[0], until_us=span[1])
        return replace(hole, since_us=max(hole.since_us, span[0]), until_us=min(hole.until_us, span[1]))

    return joined([within(each) for each in holes])
