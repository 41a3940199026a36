"""Where a session can be cut by a checkpoint, and what its packets up to the cut come to. No Spark.

Packets up to the cut are final where nothing that is sent behind can change what is said of them: they have numbers,
counted from an anchor that is not behind the cut, and are session-acknowledged; each side's packets up to the cut are
the first ones of its stream. Times tell what is behind, so all have times. A session whose packets have no numbers, or
whose clocks go back and forth all the time, has no checkpoint: it is computed anew with each file. While packets are
not read yet, nothing that a checkpoint rests on lies behind one of them: it holds when they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.transfers.checkpoints import Checkpoint, Hole, KeptPacket, NotStored, SideCheckpoint
from pipeline.transfers.connection_packets import (
    CLIENT,
    HANDSHAKE_KINDS,
    SERVER,
    ConnectionPackets,
    SideRows,
    window_sizes,
)
from pipeline.transfers.numbers.flow_control import times_of
from pipeline.transfers.numbers.packet_numbers import NO_NUMBER
from pipeline.transfers.numbers.session_acknowledgements import ack_steps, ambiguous_from
from pipeline.transfers.session_totals import count_side_packets, said_windows, side_window_full_us
from pipeline.transfers.side_by_side import capture_spans
from pipeline.transfers.side_losses import holes_of, joined
from udfs.array_types import Ints
from udfs.columns.absent import AFTER_ALL, NO_TIME, NONE

MIN_PACKETS: Final = 4096  # that a checkpoint adds to what is counted: few packets are sooner read again
_MAX_HANDSHAKES: Final = 64  # packets that are kept; of a session that has more, no checkpoint is made
_MAX_TRIES: Final = 64
_MODULUS: Final = 1 << 16
_HALF: Final = 1 << 15


class Cut(NamedTuple):
    """Packets sent ``until`` then are counted; what is said of them rests on those up to ``settled``, microseconds."""

    until: int
    settled: int


def latest_checkpoints(
    found: ConnectionPackets, gaps_are_holes: Mapping[str, bool], margin_us: int = 0
) -> list[Checkpoint]:
    """Return the checkpoints of connections: a new one where enough packets are final, else the one there is.

    ``gaps_are_holes``: by connection_id, whether bytes between its packets are missing. ``margin_us``: packets are
    final so long after they were sent, at the earliest.
    """
    sizes = window_sizes(found)
    out = []
    for place, name in enumerate(found.connection_ids):
        made = _Maker(found, place, sizes, margin_us).checkpoint(gaps_are_holes=gaps_are_holes[name])
        there = found.checkpoint(place)
        if made is not None or there is not None:
            out.append(made or there)
    return [each for each in out if each is not None]


def checkpoints_of_round(found: ConnectionPackets, checkpoints: Iterable[Checkpoint]) -> dict[str, Checkpoint]:
    """Return those of ``latest_checkpoints`` by connection_id that are new, and of connections with later packets."""
    return {
        each.connection_id: each
        for each in checkpoints
        if each.connection_id in found.later and each is not found.checkpoints.get(each.connection_id)
    }


class _Maker:
    """Makes the checkpoint of one connection. Arrays are of its packets that no checkpoint has counted."""

    def __init__(self, found: ConnectionPackets, place: int, sizes: Ints, margin_us: int) -> None:
        self.found, self.place, self.sizes, self.margin = found, place, sizes, margin_us
        sides = [found.rows_of(place, side) for side in (CLIENT, SERVER)]
        first = sides[CLIENT].first
        self.rows = first + np.flatnonzero(~found.kept[first : sides[SERVER].end])
        self.side = found.packets.side[self.rows] % 2
        self.sent_at = found.packets.sent_at[self.rows]
        acknowledged = found.acknowledged_at[self.rows]
        stored = times_of(found.stored_by[self.rows], found.packets.sent_at)
        known = [np.where(each == AFTER_ALL, NO_TIME, each) for each in (acknowledged, stored)]
        self.settled = np.maximum(self.sent_at + margin_us, np.maximum(*known))
        self.later = found.later_of(place)

    def checkpoint(self, *, gaps_are_holes: bool) -> Checkpoint | None:
        """Return a checkpoint that counts ``MIN_PACKETS`` more than there are counted; None where there is none."""
        if len(self.rows) < MIN_PACKETS or self.found.clocks_differ(self.place):
            return None
        if self.found.captures_apart_us(self.place):  # how the session ended depends on it
            return None
        cut = self._cut()
        if cut is None or int((self.sent_at <= cut.until).sum()) < MIN_PACKETS or self._says_more_of_all(cut):
            return None
        kept = self._kept_packets(cut)
        if kept is None:
            return None
        found, before = self.found, self.found.checkpoint(self.place)
        chosen = self.rows[self.sent_at <= cut.until]
        counted = found.packets.sent_at[chosen[found.packets.counted[chosen]]]
        captures = found.table["capture_id"].take(pa.array(chosen)).combine_chunks()
        spans = capture_spans(captures, found.packets.sent_at[chosen], () if before is None else before.captures)
        window = int(self.sizes[chosen].max(initial=NONE))
        return Checkpoint(
            found.connection_ids[self.place], cut.until, cut.settled,
            int(counted.max(initial=NO_TIME if before is None else before.last_counted_at)),
            window if before is None else max(window, before.largest_window), gaps_are_holes,
            (self._side(CLIENT, cut), self._side(SERVER, cut)), tuple(spans), kept,
            (self._holes(CLIENT, cut), self._holes(SERVER, cut)),
        )  # fmt: skip

    # Where

    def _cut(self) -> Cut | None:
        """Return the latest cut at which all packets are final; None where none was found."""
        packets, numbers = self.found.packets, self.found.numbers
        counted, recoverable = packets.counted[self.rows], packets.recoverable[self.rows]
        going_on = (numbers.session[self.rows] == NO_NUMBER) | (self.found.acknowledged_at[self.rows] == AFTER_ALL)
        going_on |= recoverable == NONE
        going_on |= (recoverable == 1) & (numbers.recoverable[self.rows] == NO_NUMBER)
        open_ = (counted & going_on) | (self.sent_at == NO_TIME) | (self.settled > self._final_until())
        until = int(self.sent_at.max()) - self.margin
        until = min(until, int(self.sent_at[open_].min(initial=AFTER_ALL)) - 1)
        for _ in range(_MAX_TRIES):
            chosen = self.sent_at <= until
            if not chosen.any():
                return None
            cut = Cut(until, int(self.settled[chosen].max()))
            earlier = [each for side in (CLIENT, SERVER) if (each := self._earlier_cut(side, cut)) is not None]
            if not earlier:
                return cut
            until = min(earlier) - 1
        return None

    def _final_until(self) -> int:
        """Return until when the packets are all there, and are the first ones of each side's stream; not after its end.

        Packets that are not read yet may lie before some of them in the stream.
        """
        if self.later is None:
            return AFTER_ALL
        packets, until = self.found.packets, min(self.later.read_until, self.later.closed_at - 1)
        for side in (CLIENT, SERVER):
            rows = self.rows[self.side == side]
            ahead = packets.offset[rows] + packets.length[rows] > self.later.sides[side].first_offset
            until = min(until, int(packets.sent_at[rows[ahead]].min(initial=AFTER_ALL)) - 1)
        return until

    def _says_more_of_all(self, cut: Cut) -> bool:
        """Whether a packet behind the cut, of those that later rounds read, says something of all packets."""
        if self.later is None:
            return False
        behind = self.rows[self.sent_at > cut.until]
        return self.later.has_handshakes or bool(self.found.is_kind(*HANDSHAKE_KINDS)[behind].any())

    def _earlier_cut(self, side: int, cut: Cut) -> int | None:
        """Return a time before which the cut must lie, as far as one side tells; None where it may stay."""
        rows, sent_at = self.rows[self.side == side], self.sent_at[self.side == side]
        chosen = sent_at <= cut.until
        count = int(chosen.sum())
        if not chosen[:count].all():  # a later packet of the stream was sent earlier
            first = int(np.argmin(chosen))
            return int(sent_at[first:][chosen[first:]].min())
        stretch = self.found.numbers.stretch[rows]
        if count and not self._is_anchored(side, rows[:count][stretch[:count] == stretch[count - 1]]):
            return int(sent_at[np.argmax(stretch == stretch[count - 1]) :].min())
        # What the cut rests on: without a gap, so that no other anchor and no other packet comes between.
        settled = np.flatnonzero(sent_at <= cut.settled)
        end = int(settled[-1]) + 1 if len(settled) else 0
        packets = self.found.packets
        begins = np.append(not self._goes_on(side, rows), np.diff(stretch) != 0) if len(rows) else np.zeros(0, np.bool_)
        begins |= packets.counted[rows] & (packets.recoverable[rows] == NONE)
        gaps = count + np.flatnonzero(begins[count:end])
        if len(gaps):
            return int(self.sent_at[self.settled >= sent_at[gaps[0] :].min()].min())
        return None

    def _goes_on(self, side: int, rows: Ints) -> bool:
        """Whether the first of a side's rows begins where its packets up to the checkpoint end."""
        before = self.found.side_before(self.place, side)
        return before.packets > 0 and bool(self.found.packets.offset[rows[0]] == before.end_offset)

    def _is_anchored(self, side: int, rows: Ints) -> bool:
        """Whether packets that begin a stretch tell how many were sent: by an anchor, or by the checkpoint."""
        packets = self.found.packets
        return self._goes_on(side, rows) or bool((packets.has_header[rows] | packets.establishes[rows]).any())

    # What

    def _side(self, side: int, cut: Cut) -> SideCheckpoint:
        """Return what the packets of a side up to the cut come to."""
        found, packets, before = self.found, self.found.packets, self.found.side_before(self.place, side)
        mine = self.side == side
        rows = self.rows[mine & (self.sent_at <= cut.until)]
        settled = self.rows[mine & (self.sent_at <= cut.settled)]
        ends = packets.offset + packets.length
        settled_offset = int(ends[settled].max(initial=before.settled_offset))
        numbered = rows[found.numbers.session[rows] != NO_NUMBER]
        in_flight = np.append(np.array(before.in_flight, np.int64), found.acknowledged_at[numbered])
        out = replace(
            before,
            settled_offset=max(settled_offset, before.end_offset),
            window_full_us=side_window_full_us(found, self.place, side, self.sizes, cut.until),
            window=self._window(side, cut),
            in_flight=tuple(np.sort(in_flight[in_flight > cut.until]).tolist()),
            not_stored=self._not_stored(side, rows, cut),
            stored=before.stored + len(self._now_stored(side, cut)),
        )
        return self._with_packets(out, side, rows, numbered) if len(rows) else out

    def _holes(self, side: int, cut: Cut) -> tuple[Hole, ...]:
        """Return where packets of a side may be missing up to the cut."""
        before = self.found.checkpoint(self.place)
        rows = self.rows[(self.side == side) & (self.sent_at <= cut.until)]
        holes = holes_of(self.found, rows, self.found.side_before(self.place, side))
        return tuple(joined([*(() if before is None else before.holes[side]), *holes]))

    def _with_packets(self, before: SideCheckpoint, side: int, rows: Ints, numbered: Ints) -> SideCheckpoint:
        """Return what a side comes to with ``rows``, of which ``numbered`` have numbers, behind the packets before."""
        found, packets, span = self.found, self.found.packets, self.found.rows_of(self.place, side)
        chosen = np.zeros(span.end - span.first, np.bool_)
        chosen[rows - span.first] = True
        counts = count_side_packets(found, span, chosen)
        names = ("messages", "bytes", "recoverable", "transactional", "order_acks", "final_acks", "session_acks")
        sums: dict[str, Any] = {
            name: getattr(before, name) + counts[name] for name in (*names, "piggybacked", "stored")
        }
        recoverable = rows[found.numbers.recoverable[rows] != NO_NUMBER]
        seen = np.asarray(found.table["seen_bytes"].take(pa.array(rows)).combine_chunks(), np.int64)
        last = int(rows[-1])
        end = int(packets.offset[last] + packets.length[last])
        acks: dict[str, Any] = self._acks(rows, span, before)
        return replace(
            before, **sums, **acks,
            packets=before.packets + len(rows), end_offset=end,
            settled_offset=max(before.settled_offset, end),
            session_number=self._sent_before(side, rows, numbered, found.numbers.session, packets.user_sequence),
            recoverable_number=self._sent_before(
                side, rows, recoverable, found.numbers.recoverable, packets.recoverable_sequence
            ),
            recoverable_sent=before.recoverable_sent + len(recoverable),
            seen_bytes=before.seen_bytes + int(seen.sum()),
            bytes_between=before.bytes_between + self._bytes_between(rows, before),
            bytes_cut=before.bytes_cut + self._bytes_cut(rows, seen, span, before),
        )  # fmt: skip

    def _sent_before(self, side: int, rows: Ints, numbered: Ints, numbers: Ints, sequence: Ints) -> int:
        """Return how many packets a side had sent at the end of ``rows``, of which ``numbered`` have ``numbers``."""
        found, stretch = self.found, self.found.numbers.stretch
        last = rows[stretch[rows] == stretch[rows[-1]]]
        ours = numbered[numbered >= last[0]]
        if len(ours):
            return int(numbers[ours[-1]])
        if self._goes_on(side, last):
            before = found.side_before(self.place, side)
            return before.session_number if numbers is found.numbers.session else before.recoverable_number
        anchor = last[np.argmax(found.packets.has_header[last] | found.packets.establishes[last])]
        return 0 if found.packets.establishes[anchor] else int(sequence[anchor])

    def _bytes_between(self, rows: Ints, before: SideCheckpoint) -> int:
        packets = self.found.packets
        ends = np.append(before.end_offset, (packets.offset + packets.length)[rows[:-1]])
        return int(np.maximum(packets.offset[rows] - ends, 0).sum())

    def _bytes_cut(self, rows: Ints, seen: Ints, span: SideRows, before: SideCheckpoint) -> int:
        """Return the missing bytes inside of packets, without the last of ``rows``, with the one before them."""
        cut = int((self.found.packets.length[rows] - seen)[:-1].sum())
        if before.packets:
            last = span.first + int(self.found.kept[span.first : span.end].sum()) - 1
            cut += int(self.found.packets.length[last]) - int(self.found.table["seen_bytes"][last].as_py())
        return cut

    def _window(self, side: int, cut: Cut) -> int:
        """Return the latest WindowSize that a side said up to the cut."""
        at, said = said_windows(self.found, self.place, side, self.sizes)
        known = np.flatnonzero((at <= cut.until) & (at != NO_TIME))
        return int(said[known[np.argsort(at[known], kind="stable")[-1]]]) if len(known) else NONE

    def _acks(self, rows: Ints, span: SideRows, before: SideCheckpoint) -> dict[str, int]:
        """Return how many packets the SessionHeaders of ``rows`` acknowledge, counted on: by the last, and the most."""
        packets = self.found.packets
        kept = span.first + np.flatnonzero(self.found.kept[span.first : span.end])
        earlier = kept[packets.has_header[kept]][-1:]
        carriers = np.append(earlier, rows[packets.has_header[rows]])
        if not len(carriers):
            return {}
        steps = ack_steps(packets.ack[carriers])
        first = before.last_ack if len(earlier) else int(packets.ack[carriers[0]])
        acknowledged = first + np.cumsum(np.where(steps < _HALF, steps, steps - _MODULUS))
        return {"last_ack": int(acknowledged[-1]), "highest_ack": max(before.highest_ack, int(acknowledged.max()))}

    def _not_stored(self, side: int, rows: Ints, cut: Cut) -> tuple[NotStored, ...]:
        """Return the recoverable packets up to the cut that are not stored, and may be said to be later.

        The 16 bits of a SessionHeader that comes later mean another packet where ``ambiguous_from`` has passed.
        """
        found, packets = self.found, self.found.packets
        before = found.side_before(self.place, side).not_stored
        every = self.rows[(self.side == side) & (found.numbers.recoverable[self.rows] != NO_NUMBER)]
        numbers = np.append(np.array([each.recoverable_number for each in before], np.int64),
                            found.numbers.recoverable[every])  # fmt: skip
        sent_at = np.append(np.array([each.sent_at_us for each in before], np.int64), packets.sent_at[every])
        until = ambiguous_from(numbers, sent_at)
        done = self._now_stored(side, cut)
        waiting = [
            each
            for each, end in zip(before, until[: len(before)].tolist(), strict=True)
            if each.packet_key not in done and end > cut.settled
        ]
        lacking = (found.stored_by[every] == NONE) & (until[len(before) :] > cut.settled)
        new = every[lacking & np.isin(every, rows)]
        keys = found.table["packet_key"].take(pa.array(new)).to_pylist()
        of = zip(keys, found.numbers.recoverable[new].tolist(), packets.sent_at[new].tolist(), strict=True)
        return (*waiting, *(NotStored(*each) for each in of))

    def _now_stored(self, side: int, cut: Cut) -> set[str]:
        """Return the packets that were not stored up to the checkpoint, and are now, as far as that is settled."""
        now = self.found.now_stored.get(2 * self.place + side, ())
        return {each.packet.packet_key for each in now if self.found.packets.sent_at[each.carrier] <= cut.settled}

    def _kept_packets(self, cut: Cut) -> tuple[KeptPacket, ...] | None:
        """Return the packets up to the cut that are to be read again; None where they are too many.

        Those of handshakes; of each side the last one, the latest one, and the last one with a SessionHeader.
        """
        found, packets = self.found, self.found.packets
        kept: set[int] = set()
        for side in (CLIENT, SERVER):
            span = found.rows_of(self.place, side)
            rows = np.arange(span.first, span.end)
            rows = rows[packets.sent_at[span.first : span.end] <= cut.until]
            handshakes = rows[found.is_kind_in(slice(span.first, span.end), *HANDSHAKE_KINDS)[rows - span.first]]
            if len(handshakes) > _MAX_HANDSHAKES:
                return None
            kept |= {*handshakes.tolist(), *rows[packets.has_header[rows]][-1:].tolist()}
            if len(rows):
                kept |= {int(rows[-1]), int(rows[np.argmax(packets.sent_at[rows])])}
        order = sorted(kept)
        keys = found.table["packet_key"].take(pa.array(order, pa.int64())).to_pylist()
        return tuple(KeptPacket(name, int(packets.sent_at[row])) for name, row in zip(keys, order, strict=True))
