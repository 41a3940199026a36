"""Silences of a capture in which its clock was set forward, by the clocks of the hosts whose packets it has.

A step forward looks like a silence: nothing was captured, and times go on. The TSval that hosts put into their packets
(RFC 7323) goes on only as far as time did. Its tick is between 1 ms and 1 s (RFC 7323 4.2.2), and is estimated for each
direction of a connection from the direction's other packets. Packets count that bring their direction on, by sequence
or acknowledgement number. So what is sent again, and keep-alives whose TSval stands still, say nothing. Each connection
with packets on both sides of a silence has one vote; the majority decides, and a tie is no step.

A clock is set rarely. Where timestamps contradict several silences of a file, they count only if they agree with twice
as many: else its times are not those of a clock, as where pauses of a recording were made longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from udfs.array_types import Bools, Floats, Ints
from udfs.capture.record_order import CLOCK_SET, MAX_STEPS, RecordOrder, TimeStep
from udfs.columns.absent import NO_TIME
from udfs.files.capture_file import RecordBlock
from udfs.tcp.connections import MAX_SEQUENCE_JUMP, sequence_difference
from udfs.tcp.four_tuples import PackedEndpoint, group_by_four_tuple, packed_endpoints
from udfs.tcp.packet_decoder import ACK, FIN, RST, SYN, PacketDecoder, TcpSegments
from udfs.tcp.timestamps import timestamp_values

SILENCE_NS: Final = 1_000_000_000  # shorter ones are everywhere; the slowest TSval ticks once in it
_MIN_STEP_NS: Final = SILENCE_NS // 2  # by which time went on less than the capture's clock, for certain
LEAST_STEP_NS: Final = 30_000_000_000  # what is less is left as it is: no alert comes from so little
_AGREEING: Final = 2  # silences that timestamps agree with, for each of several that they contradict
_DELAY_NS: Final = 100_000_000  # by which the ways of two packets to the capture differ
_QUICKEST_NS, _SLOWEST_NS = 1_000_000, 1_000_000_000  # ticks (RFC 7323 4.2.2)
_MIN_TICKS: Final = 10  # from fewer no tick is estimated
_MIN_SILENCES: Final = 3  # a tick is that of most silences that a direction crosses, if there are as many
_NEAR: Final = 500  # records on each side of a silence that are looked at
_MOST_CROSSED: Final = 1000  # silences between two packets of a direction; it says nothing of more

_Direction = tuple[PackedEndpoint, PackedEndpoint, int]


class SetForwardError(Exception):
    """The clock of a capture was set forward, which is known when it was read: ``order`` says where."""

    def __init__(self, order: RecordOrder) -> None:
        super().__init__()
        self.order = order


@dataclass(frozen=True, slots=True)
class NearRecords:
    """Of records of a block: index, number of silences before it, and whether it is looked at now, or perhaps later.

    ``count``: the records of the whole block.
    """

    count: int
    index: Ints
    run: Ints
    now: Bools
    later: Bools

    def take(self, rows: Ints) -> NearRecords:
        """Return what is known of some records."""
        return NearRecords(self.count, self.index[rows], self.run[rows], self.now[rows], self.later[rows])


@dataclass(slots=True)
class _Samples:
    """Segments with their TSvals, and of each the index of its record and the number of silences before it.

    The index is below 0 in blocks before the one that is looked at. ``segments`` have no bytes.
    """

    segments: TcpSegments
    value: Ints
    index: Ints
    run: Ints

    def take(self, rows: Ints) -> _Samples:
        return _Samples(self.segments.take(rows), self.value[rows], self.index[rows], self.run[rows])


@dataclass(slots=True)
class _Last:
    """How far a direction is: its run of records and what it came to in it, its last TSval, and its numbers."""

    run: int
    first_ns: int
    ticks: int  # since the first packet of the run
    at_ns: int
    value: int
    end: int
    acknowledged: int


@dataclass(slots=True)
class _Clock:
    """What the TSvals of one direction show.

    ``pairs``: rows of the run of a packet, the run of the next one behind a silence, the time between them in ns, and
    the ticks. ``within``: the longest time within a run, ns, and its ticks.
    """

    last: _Last | None = None
    pairs: list[Ints] = field(default_factory=list)
    within: tuple[int, int] = (0, 0)
    is_clock: bool = True

    def add(self, time: Ints, value: Ints, run: Ints, ends: Ints, acks: Ints) -> None:
        """Add packets of a connection in their order; ``acks`` are 0 in those without one."""
        last = self.last
        if last is not None and abs(sequence_difference(int(ends[0]) - last.end)) > MAX_SEQUENCE_JUMP:
            last = None
        base = (int(ends[0]) - 1, 0) if last is None else (last.end, last.acknowledged)
        base = base[0], base[1] or int(acks[np.argmax(acks != 0)])
        end, ack = (sequence_difference(each - known) for each, known in zip((ends, acks), base, strict=True))
        ack = np.where(acks == 0, 0, ack)
        ahead = [np.maximum.accumulate(np.append(0, each)) for each in (end, ack)]
        rows = np.flatnonzero((end > ahead[0][:-1]) | (ack > ahead[1][:-1]))
        if not len(rows):
            return
        time, value, run = time[rows], value[rows], run[rows]
        first_ns, before = int(time[0]), 0
        if last is not None:
            time, value, run = np.append(last.at_ns, time), np.append(last.value, value), np.append(last.run, run)
            first_ns, before = last.first_ns, last.ticks
        ticks = np.append(before, before + np.cumsum(sequence_difference(np.diff(value))))
        self.is_clock &= bool((np.diff(ticks) >= 0).all())
        cross = np.flatnonzero(np.diff(run))
        self.pairs.append(np.stack([run[cross], run[cross + 1], np.diff(time)[cross], np.diff(ticks)[cross]], axis=1))
        begins, stops = np.append(0, cross + 1), np.append(cross, len(run) - 1)
        since_ns, since = time[begins], ticks[begins]
        since_ns[0], since[0] = first_ns, 0
        spans, passed = time[stops] - since_ns, ticks[stops] - since
        longest = int(np.argmax(spans))
        self.within = max(self.within, (int(spans[longest]), int(passed[longest])))
        self.last = _Last(
            int(run[-1]), int(since_ns[-1]), int(passed[-1]), int(time[-1]), int(value[-1]),
            (base[0] + int(ahead[0][-1])) & 0xFFFFFFFF, (base[1] + int(ahead[1][-1])) & 0xFFFFFFFF,
        )  # fmt: skip

    def decided_pairs(self) -> _Pairs | None:
        """Return the pairs with by how much the capture's clock went on more than time; None where nothing tells."""
        pairs = np.concatenate(self.pairs) if self.pairs else np.zeros((0, 4), np.int64)
        since, run, elapsed, ticks = pairs.T
        if not self.is_clock or not len(pairs) or not (self.within[1] + int(ticks.sum())):
            return None
        tick = self._tick(elapsed, ticks)
        low, usual, high = _Tick(_QUICKEST_NS, _QUICKEST_NS, _SLOWEST_NS) if tick is None else tick
        if high < _QUICKEST_NS or low > _SLOWEST_NS:
            return None
        low, high = max(low, _QUICKEST_NS), min(high, _SLOWEST_NS)
        usual = min(max(usual, low), high)
        return _Pairs(
            since, run,
            elapsed - _DELAY_NS - (ticks + 1) * high,
            elapsed + _DELAY_NS - np.maximum(ticks - 1, 0) * low,
            elapsed - ticks * usual,
        )  # fmt: skip

    def _tick(self, elapsed: Ints, ticks: Ints) -> _Tick | None:
        """Return how long a tick is: as in the longest run, and in most silences; None where that is not known."""
        within = _Tick.of(*self.within) if self.within[1] >= _MIN_TICKS else None
        rows = np.flatnonzero(ticks >= _MIN_TICKS)
        found = [_Tick.of(*each) for each in zip(elapsed[rows].tolist(), ticks[rows].tolist(), strict=True)]
        if within is not None:
            agree = [each.low <= within.high and within.low <= each.high for each in found]
            rows, found = rows[agree], [each for each, agrees in zip(found, agree, strict=True) if agrees]
        if len(rows) < _MIN_SILENCES:
            return within
        order = np.argsort(elapsed[rows] / ticks[rows], kind="stable")
        weight = np.cumsum(ticks[rows][order])
        return found[int(order[np.searchsorted(weight, weight[-1] / 2)])]


class _Pairs(NamedTuple):
    """Pairs of packets around silences: the runs of both, and by how much the capture's clock went on more than time.

    That is at least ``low`` and at most ``high``, and probably ``size``; ns.
    """

    since: Ints
    run: Ints
    low: Floats
    high: Floats
    size: Floats


class _Tick(NamedTuple):
    """How long a tick is: at least, probably, and at most; ns."""

    low: float
    usual: float
    high: float

    @staticmethod
    def of(elapsed_ns: int, ticks: int) -> _Tick:
        """Return it from the time in which there were some ticks, more than one."""
        return _Tick((elapsed_ns - _DELAY_NS) / (ticks + 1), elapsed_ns / ticks, (elapsed_ns + _DELAY_NS) / (ticks - 1))


class Silences:
    """Collects the silences of a capture, block after block, and the TSvals around them."""

    def __init__(self, order: RecordOrder | None = None) -> None:
        """``order``: in which the records are given; None: that of the file, whose times do not go back."""
        self._order = order or RecordOrder()
        self._places: list[TimeStep] = []  # ``back_ns`` is how long the silence was, below 0
        self._latest = NO_TIME
        self._ahead = _NEAR  # records that are still to be looked at
        self._begin: list[_Samples] = []  # of the capture, until there is a silence
        self._tail: list[_Samples] = []
        self._clocks: defaultdict[_Direction, _Clock] = defaultdict(_Clock)

    def near(self, records: RecordBlock) -> NearRecords:
        """Note the silences of the next block; return which of its records are near to one."""
        count = len(records.time_ns)
        known = records.time_ns != NO_TIME
        time = np.where(known, records.time_ns + self._order.set_back_ns(records.packet_number), NO_TIME)
        before = np.maximum.accumulate(np.append(self._latest, time))
        self._latest, before = int(before[-1]), before[:-1]
        gap = np.where(known & (before != NO_TIME), time - before, 0)
        places = np.flatnonzero(gap > SILENCE_NS)
        run = len(self._places) + np.searchsorted(places, np.arange(count), side="right")
        self._places += [
            TimeStep(int(records.packet_number[each]), int(records.time_ns[each]), -int(gap[each]), CLOCK_SET)
            for each in places
        ]
        edges = np.zeros(count + 1, np.int64)
        np.add.at(edges, np.maximum(places - _NEAR, 0), 1)
        np.add.at(edges, np.minimum(places + _NEAR, count), -1)
        now = np.cumsum(edges[:-1]) > 0
        now[: self._ahead] = True
        self._ahead = max(self._ahead - count, int(places[-1]) + _NEAR - count if len(places) else 0, 0)
        if len(places):
            for samples in self._begin:
                self._learn(samples)
            self._begin = []
            self._use_tail(_NEAR - int(places[0]))
        later = ~now
        later[: max(count - _NEAR, 0)] = False
        return NearRecords(count, np.arange(count), run, now, later)

    def add(self, records: RecordBlock, segments: TcpSegments, near: NearRecords) -> None:
        """Add segments of a block, of which ``near`` is known; those of records that are not near may be missing."""
        wanted = (near.now | near.later)[segments.record_index] & (segments.tcp_flags & RST == 0)
        rows = np.flatnonzero(wanted & (segments.time_ns != NO_TIME))
        if len(rows):
            segments = segments.take(rows)
            value, there = timestamp_values(segments, records)
            segments.buffer = bytearray()
            record, rows = segments.record_index, np.flatnonzero(there)
            samples = _Samples(segments, value, near.index[record], near.run[record]).take(rows)
            is_now = near.now[record][rows]
            looked_at = samples.take(np.flatnonzero(is_now))
            if self._places:
                self._learn(looked_at)
            else:
                self._begin.append(looked_at)
            self._tail.append(samples.take(np.flatnonzero(~is_now)))
        self._trim_tail(near.count)

    def steps(self) -> list[TimeStep]:
        """Return the places where the clock was set forward, when all blocks were added."""
        gaps = np.array([-each.back_ns for each in self._places], np.int64)
        connections: defaultdict[frozenset[object], list[_Pairs]] = defaultdict(list)
        for (source, target, tunnel), clock in self._clocks.items():
            if (pairs := clock.decided_pairs()) is not None:
                connections[frozenset(((source, tunnel), (target, tunnel)))].append(pairs)
        votes, against = np.zeros(len(gaps), np.int64), np.zeros(len(gaps), np.int64)
        proofs: list[tuple[int, int, float, float]] = []
        for directions in connections.values():
            ranges = [each for pairs in directions for each in zip(*(c.tolist() for c in pairs), strict=True)]
            ranges = [each for each in ranges if each[1] - each[0] <= _MOST_CROSSED]
            if not ranges:
                continue
            first, last = min(each[0] for each in ranges), max(each[1] for each in ranges)
            least, most = np.zeros(last - first), np.full(last - first, np.inf)
            for since, run, low, high, size in ranges:
                part = slice(since - first, run - first)
                most[part] = np.minimum(most[part], high)
                if low > _MIN_STEP_NS:
                    least[part] = np.where(gaps[since:run] >= low, np.maximum(least[part], low), least[part])
                    proofs.append((since, run, low, size))
            denies = (most < _MIN_STEP_NS) | (most < least)
            votes[first:last] += (least > 0) & ~denies
            against[first:last] += denies
        found = votes > against
        several, agreeing = int(found.sum()), int((against > votes).sum())
        if several > MAX_STEPS or (several > 1 and agreeing < _AGREEING * several):
            return []
        sizes = _sizes(found, votes, gaps, proofs)
        steps = [self._places[each]._replace(back_ns=-sizes.get(each, 0)) for each in np.flatnonzero(found).tolist()]
        large = [step for step in steps if -step.back_ns >= LEAST_STEP_NS]
        return [step for step in steps if step in large or not step.back_ns] if large else []

    def _use_tail(self, count: int) -> None:
        """Look at those of the last ``count`` records before the block that were not looked at."""
        for samples in self._tail:
            self._learn(samples.take(np.flatnonzero(samples.index >= -count)))
        self._tail = []

    def _trim_tail(self, count: int) -> None:
        """Keep of the tail the records that may be near to a silence behind a block of ``count`` records."""
        for samples in self._tail:
            samples.index = samples.index - count
        tail = (samples.take(np.flatnonzero(samples.index >= -_NEAR)) for samples in self._tail)
        self._tail = [samples for samples in tail if len(samples.index)]

    def _learn(self, samples: _Samples) -> None:
        """Add segments to the clocks of their directions."""
        s = samples.segments
        pair, side, _ = group_by_four_tuple(s)
        direction = pair * 2 + side
        order = np.argsort(direction, kind="stable")
        time = s.time_ns + self._order.set_back_ns(s.packet_number)
        is_syn = (s.tcp_flags & SYN) != 0
        ends = (s.sequence + s.payload_length + is_syn + ((s.tcp_flags & FIN) != 0)) & 0xFFFFFFFF
        acks = np.where(s.tcp_flags & ACK, s.acknowledgement, 0)
        for rows in np.split(order, np.flatnonzero(np.diff(direction[order])) + 1) if len(order) else ():
            source, target = packed_endpoints(s, int(rows[0]))
            clock = self._clocks[source, target, int(s.tunnel_identifier[rows[0]])]
            bounds = [0, *np.flatnonzero(is_syn[rows]).tolist(), len(rows)]
            for begin, end in pairwise(bounds):
                if begin < end:
                    part = rows[begin:end]
                    if is_syn[part[0]]:
                        clock.last = None
                    clock.add(time[part], samples.value[part], samples.run[part], ends[part], acks[part])


def _sizes(found: Bools, votes: Ints, gaps: Ints, proofs: Iterable[tuple[int, int, float, float]]) -> dict[int, int]:
    """Return how far the clock was set at places, ns: as most say of those who cross the fewest silences with it.

    What is said of several silences together counts for one of them: for that with most votes, then the longest.
    """
    said: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for since, run, low, size in proofs:
        places = since + np.flatnonzero(found[since:run] & (gaps[since:run] >= low))
        if len(places):
            place = max(places.tolist(), key=lambda each: (votes[each], gaps[each]))
            said[place].append((run - since, size))
    sizes = {}
    for place, each in said.items():
        nearest = min(crossed for crossed, _ in each)
        size = float(np.median([size for crossed, size in each if crossed == nearest]))
        sizes[place] = min(round(size), int(gaps[place]))  # what is behind stays behind what was before
    return sizes


def find_steps_forward(
    blocks: Iterable[RecordBlock], decoder: PacketDecoder, order: RecordOrder | None = None
) -> list[TimeStep]:
    """Return the places where the clock was set forward in a file, given as blocks in the order of its records."""
    silences = Silences(order)
    for _ in look_for_silences(blocks, decoder, silences):
        pass
    return silences.steps()


def look_for_silences(
    blocks: Iterable[RecordBlock], decoder: PacketDecoder, silences: Silences
) -> Iterator[RecordBlock]:
    """Yield blocks, and add to ``silences`` what they show; only records near to silences are decoded."""
    for records in blocks:
        if len(records.time_ns):
            near = silences.near(records)
            rows = np.flatnonzero(near.now | near.later)
            part = records.take(rows)
            silences.add(part, decoder.decode_block(part), near.take(rows))
        yield records
