"""The order of a file's records where their times go back: what happened there, and the records in that order.

A file is read in the order of its records while times ascend, give or take ``JITTER_NS``. Where they go back further,
either the clock of the capturing machine was set, and the records are in order; or the records are out of order, as
files that were put behind one another or packets of several queues of a card are, and their times are right. The
connections with packets on both sides of such a place decide it by their sequence and acknowledgement numbers
(RFC 9293 3.4), each with one vote. Where none says that the clock was set, times are believed.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from udfs.array_types import Ints
from udfs.columns.absent import NO_TIME
from udfs.files.capture_file import BUFFER_PADDING_BYTES, RecordBlock
from udfs.rows import RowDict
from udfs.tcp.connections import farthest_number, sequence_difference
from udfs.tcp.four_tuples import group_by_four_tuple, packed_endpoints
from udfs.tcp.packet_decoder import ACK, FIN, RST, SYN, PacketDecoder, TcpSegments

JITTER_NS: Final = 5_000_000  # packets of several interfaces or queues are written in about the order of their times
CLOCK_SET: Final = "clock_set"  # TimeStep.cause
OUT_OF_ORDER: Final = "out_of_order"
MAX_STEPS: Final = 1000  # of a file; with more places where the clock seems to be set, times are believed everywhere
_MEMORY_BYTES: Final = 64 << 20  # of packets of a file out of order; more are in a temporary file
_MAX_GAP_BYTES: Final = 4 << 10  # between packets that are read from it together


class TimeStep(NamedTuple):
    """A place where times go back: before packet ``packet``, whose time is ``at_ns``, by ``back_ns``."""

    packet: int
    at_ns: int
    back_ns: int
    cause: str


class TimesGoBackError(Exception):
    """The times of a file go back, so that the order of its records has to be found first."""


class TimeWatch:
    """Looks for places where the times of a file go back, block after block."""

    def __init__(self) -> None:
        self._latest = NO_TIME  # since the last place

    def goes_back(self, time_ns: Ints) -> bool:
        """Whether times go back in a block, or from the blocks before it."""
        highest = np.maximum(np.maximum.accumulate(time_ns), self._latest)
        if len(highest):
            self._latest = int(highest[-1])
        return bool(((highest - JITTER_NS > time_ns) & (time_ns != NO_TIME)).any())

    def places(self, time_ns: Ints) -> list[tuple[int, int]]:
        """Return the indexes of a block's records at which times go back, each with how far in ns."""
        found, begin = [], 0
        while begin < len(time_ns):
            rest = time_ns[begin:]
            highest = np.maximum(np.maximum.accumulate(rest), self._latest)
            behind = np.flatnonzero((highest - JITTER_NS > rest) & (rest != NO_TIME))
            if not len(behind):
                self._latest = int(highest[-1])
                break
            place = int(behind[0])
            found.append((begin + place, int(highest[place] - rest[place])))
            self._latest = int(rest[place])
            begin += place
        return found


@dataclass(frozen=True, slots=True)
class RecordOrder:
    """The order of a file's records. ``steps``: the places where times go back, in the order of the file."""

    steps: tuple[TimeStep, ...] = ()

    @property
    def is_by_time(self) -> bool:
        """Whether records are read in the order of their times, because they are not in it."""
        return any(step.cause == OUT_OF_ORDER for step in self.steps)

    def rows(self) -> list[RowDict] | None:
        """Return the column ``times_go_back`` of ``capture_files``: of places out of order the first ones."""
        where_set = [step for step in self.steps if step.cause == CLOCK_SET]
        others = [step for step in self.steps if step.cause != CLOCK_SET][: MAX_STEPS - len(where_set)]
        return [
            {"packet": step.packet, "at": step.at_ns // 1000, "back_us": step.back_ns // 1000, "cause": step.cause}
            for step in sorted((*where_set, *others))
        ] or None

    def set_back_ns(self, packets: Ints) -> Ints:
        """Return how far the clock had been set back, in all, before each of some packets, given by number."""
        steps = [step for step in self.steps if step.cause == CLOCK_SET]
        total = np.cumsum([0, *(step.back_ns for step in steps)])
        return total[np.searchsorted([step.packet for step in steps], packets, side="right")]


class _Reached(NamedTuple):
    """How far a direction of a connection is: its latest time, the end of its bytes, when that came, its last ACK."""

    latest_ns: int
    end: int
    end_ns: int
    acknowledged: int | None


@dataclass(slots=True)
class _DirectionRuns:
    """A direction of a connection in the last two runs of records that have it; a run ends where times go back."""

    run: int
    now: _Reached
    run_before: int = -1
    before: _Reached | None = None

    def until(self, run: int) -> tuple[int, _Reached | None]:
        """Return what was reached before a run, and in which one."""
        return (self.run, self.now) if self.run < run else (self.run_before, self.before)


def find_record_order(blocks: Iterable[RecordBlock], decoder: PacketDecoder) -> RecordOrder:
    """Return the order of a file's records, given as blocks in the order of the file."""
    watch, study = TimeWatch(), _Study()
    for records in blocks:
        places = watch.places(records.time_ns)
        numbers = records.packet_number
        segments = decoder.decode_block(records)
        bounds = [0, *(place for place, _ in places), len(numbers)]
        for index, (begin, end) in enumerate(pairwise(bounds)):
            if index:
                study.begin_run(int(numbers[begin]), int(records.time_ns[begin]), places[index - 1][1])
            rows = np.flatnonzero((segments.record_index >= begin) & (segments.record_index < end))
            if len(rows):
                study.add(segments.take(rows))
    return study.order()


@dataclass(slots=True)
class _Study:
    """Collects what connections say of each place where times go back; run ``n`` begins at place ``n - 1``."""

    steps: list[TimeStep] = field(default_factory=list)
    _directions: dict[object, _DirectionRuns] = field(default_factory=dict)
    # By place: of each connection, packets behind it that go on from what was before it, less those that come before.
    _votes: defaultdict[int, Counter[object]] = field(default_factory=lambda: defaultdict(Counter))

    def begin_run(self, packet: int, at_ns: int, back_ns: int) -> None:
        """Note a place where times go back."""
        self.steps.append(TimeStep(packet, at_ns, back_ns, OUT_OF_ORDER))

    def order(self) -> RecordOrder:
        """Return the order, with the cause of each place."""
        steps = []
        for place, step in enumerate(self.steps):
            votes = self._votes[place].values()
            was_set = sum(vote > 0 for vote in votes) > sum(vote < 0 for vote in votes)
            steps.append(step._replace(cause=CLOCK_SET if was_set else OUT_OF_ORDER))
        if sum(step.cause == CLOCK_SET for step in steps) > MAX_STEPS:
            steps = [step._replace(cause=OUT_OF_ORDER) for step in steps]
        return RecordOrder(tuple(steps))

    def add(self, s: TcpSegments) -> None:
        """Add segments of the run that is read."""
        run = len(self.steps)
        s = s.take(np.flatnonzero((s.time_ns != NO_TIME) & (s.tcp_flags & RST == 0)))
        pair, side, _ = group_by_four_tuple(s)
        direction = pair * 2 + side
        order = np.argsort(direction, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(direction[order])) + 1) if len(order) else ():
            source, target = packed_endpoints(s, int(rows[0]))
            tunnel = int(s.tunnel_identifier[rows[0]])
            self._add_direction(s, rows, (source, target, tunnel), (target, source, tunnel), run)

    def _add_direction(self, s: TcpSegments, rows: Ints, name: object, opposite: object, run: int) -> None:
        """Add the segments of one direction in a run, and what they say of the place before it."""
        flags, time = s.tcp_flags[rows], s.time_ns[rows]
        has_ack = (flags & ACK) != 0
        ends = s.sequence[rows] + s.payload_length[rows] + ((flags & SYN) != 0) + ((flags & FIN) != 0)
        acks = s.acknowledgement[rows]
        known, other = self._directions.get(name), self._directions.get(opposite)
        if run:
            since, before = known.until(run) if known is not None else (-1, None)
            goes_on, comes_before = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
            if before is not None:
                earlier = time < before.latest_ns
                ahead = _distance(ends, before.end)
                acked = np.where(has_ack, _distance(acks, before.acknowledged), 0)
                goes_on = earlier & ((ahead > 0) | (acked > 0))
                comes_before = earlier & ~goes_on & ((ahead < 0) | (acked < 0))
            since_other, sent = other.until(run) if other is not None else (-1, None)
            if sent is not None:  # it acknowledges what was sent later, by the times
                answers = has_ack & (time < sent.end_ns) & (_distance(acks, sent.end) >= 0)
                goes_on, comes_before, since = goes_on | answers, comes_before & ~answers, max(since, since_other)
            if vote := int(goes_on.sum()) - int(comes_before.sum()):
                place = max(range(max(since, 0), run), key=lambda each: self.steps[each].back_ns)
                self._votes[place][frozenset((name, opposite))] += vote
        if known is not None and known.run == run:
            known.now = _furthest(known.now, time, ends, acks[has_ack])
            return
        now = _furthest(_Reached(int(time[0]), int(ends[0]), int(time[0]), None), time, ends, acks[has_ack])
        self._directions[name] = (
            _DirectionRuns(run, now) if known is None else _DirectionRuns(run, now, known.run, known.now)
        )


def _distance(numbers: Ints, known: int | None) -> Ints:
    """Return how far sequence numbers are behind a known one; 0 where none is known."""
    return np.zeros(len(numbers), np.int64) if known is None else sequence_difference(numbers - known)


def _furthest(reached: _Reached, time: Ints, ends: Ints, acks: Ints) -> _Reached:
    """Return how far a direction is with more segments."""
    ahead = _distance(ends, reached.end)
    last = int(np.argmax(ahead))
    end, end_ns = (int(ends[last]), int(time[last])) if ahead[last] > 0 else (reached.end, reached.end_ns)
    acknowledged = farthest_number(reached.acknowledged, acks) if len(acks) else reached.acknowledged
    return _Reached(max(reached.latest_ns, int(time.max())), end & 0xFFFFFFFF, end_ns, acknowledged)


def records_by_time(blocks: Iterator[RecordBlock], order: RecordOrder, block_bytes: int) -> Iterator[RecordBlock]:
    """Yield the records of a file in the order of their times, in blocks of about ``block_bytes`` bytes.

    Times behind places where the clock was set back count as if it had not been. A record without a time stays behind
    the one before it. The packets are copied to a temporary file.
    """
    with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as spool:
        columns, size = [], 0
        for records in blocks:
            memory = memoryview(records.buffer)
            for start, length in zip(records.packet_start.tolist(), records.captured_length.tolist(), strict=True):
                spool.write(memory[start : start + length])
            at = size + np.cumsum(records.captured_length) - records.captured_length
            size += int(records.captured_length.sum())
            columns.append(
                (at, records.captured_length, records.original_length, records.time_ns, records.link_type,
                 records.packet_number, records.packet_offset)
            )  # fmt: skip
        if not columns:
            return
        at, captured, original, time, link, number, offset = map(np.concatenate, zip(*columns, strict=True))
        del columns
        known = time != NO_TIME
        placed = np.where(known, time + order.set_back_ns(number), NO_TIME)
        last_known = np.maximum.accumulate(np.where(known, np.arange(len(time)), 0))
        rows = np.argsort(placed[last_known], kind="stable")
        block_of = (np.cumsum(captured[rows]) - 1) // max(block_bytes, 1)
        for chosen in np.split(rows, np.flatnonzero(np.diff(block_of)) + 1):
            buffer, starts = _gather(spool, at[chosen], captured[chosen])
            yield RecordBlock(
                buffer, starts, captured[chosen], original[chosen], time[chosen], link[chosen], number[chosen],
                offset[chosen],
            )  # fmt: skip


def _gather(spool: tempfile.SpooledTemporaryFile[bytes], at: Ints, size: Ints) -> tuple[bytearray, Ints]:
    """Read packets at offsets of a file into one buffer; return it, and where each packet begins in it."""
    order = np.argsort(at, kind="stable")
    first, ends = at[order], at[order] + size[order]
    cuts = np.flatnonzero(first[1:] - ends[:-1] > _MAX_GAP_BYTES) + 1
    buffer, starts = bytearray(), np.zeros(len(at), np.int64)
    for rows in np.split(np.arange(len(order)), cuts):
        begin = int(first[rows[0]])
        starts[order[rows]] = len(buffer) + first[rows] - begin
        spool.seek(begin)
        buffer += spool.read(int(ends[rows[-1]]) - begin)
    return buffer + bytes(BUFFER_PADDING_BYTES), starts
