"""State of a TCP connection: its endpoints, how it opened and closed, and the ordered bytes of both directions.

In each direction, stream offset 0 is the byte after the SYN, which the other side's part of the handshake shows too; or
the first byte seen where neither was. Offsets are 64-bit and do not wrap. In-order segments are delivered as runs,
without a look at each one; only segments that are out of order, repeated or truncated go through ``_insert``. Where
overlapping bytes differ, the first captured wins. When the reorder window ends, the stream continues behind the missing
bytes, with a ``StreamGap`` in their place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from udfs.array_types import Ints
from udfs.columns.absent import NO_TIME
from udfs.dcerpc.interfaces import BINARY_PROTOCOL_PORT, EPM_PORT, MSMQ_RPC_PORTS
from udfs.tcp.capture_budget import CaptureBudget
from udfs.tcp.time_limits import earliest_ns, elapsed_ns

_MASK: Final = 0xFFFFFFFF
MAX_SEQUENCE_JUMP: Final = 16 << 20  # bytes; sequence numbers farther apart are not of one connection
# A direction without its SYN is held back until its order is certain, up to these limits. What comes out of order later
# than that was lost and sent again: a busy connection, held for the whole reorder window, would not begin in its file.
MAX_START_HOLD_BYTES: Final = 16 << 10
MAX_START_HOLD_NS: Final = 100_000_000
_MAX_HELD_BYTES: Final = 16 << 20  # out of order in one direction; receive windows are rarely larger
_MAX_HELD_SEGMENTS: Final = 1 << 16
_MAX_UNACKNOWLEDGED_GAPS: Final = 1 << 12  # of one direction; of further ones it is not known who lost them
_NEAREST_HELD_SEGMENTS: Final = 64  # held segments whose times determine ``held_since_ns``
MAX_REMEMBERED_GAPS: Final = 1 << 10  # of a direction, the last ones; enough for the bytes that are retained of it
_MAX_EARLY_BYTES: Final = 64 << 10  # of a direction, kept of segments before its start
_MAX_UNCHECKED_REPEATS: Final = 4096  # repeated segments waiting for comparison, per direction
MAX_SKIPPED_BYTES_KEPT: Final = 16 << 10  # of one connection; more than most PDU fragments have
MAX_HISTORY_BYTES: Final = 64 << 10  # of a stream, kept to compare repeated bytes with


_Difference = TypeVar("_Difference", int, Ints)


def sequence_difference(difference: _Difference) -> _Difference:
    """Reduce differences of two 32-bit sequence numbers to -2^31 .. 2^31 - 1 (RFC 9293 3.4)."""
    return ((difference + 0x80000000) & _MASK) - 0x80000000


def farther_number(one: int | None, two: int | None) -> int | None:
    """Return the one of two sequence numbers that lies farther; the known one where only one is."""
    if one is None or two is None:
        return two if one is None else one
    return two if sequence_difference(two - one) > 0 else one


def farthest_number(known: int | None, numbers: Ints) -> int:
    """Return the sequence number that lies farthest of some, and of a known one."""
    start = int(numbers[0]) if known is None else known
    return (start + max(int(sequence_difference(numbers - start).max()), 0)) & _MASK


GAP_FRAMED_BEFORE: Final = "framed"  # StreamGap.cause: the bytes were framed into PDUs before, up to a PDU's end
GAP_FRAMED_ELSEWHERE: Final = "framed_elsewhere"  # the same, but not in all captures that saw the bytes around it


class BufferedSegment(NamedTuple):
    """Payload bytes of one packet at a stream offset, kept beyond their block, with the packet's metadata."""

    stream_offset: int
    data: bytes
    time_ns: int
    packet_number: int
    file_offset: int
    acknowledgement: int
    cut_off_bytes: int  # payload bytes behind ``data`` that the capture did not store
    gap_cause: str = "truncated"  # StreamGap.cause of these


class StreamGap(NamedTuple):
    """Stream offsets [start, end) of a direction without data to frame."""

    start: int
    end: int
    cause: str  # "loss", "truncated"; in a remainder also CAUSE_FRAMED, CAUSE_FRAMED_ELSEWHERE, "skipped"

    @property
    def is_hole(self) -> bool:
        """Whether the capture lacks these bytes. Otherwise they were framed when the capture was read, and left out."""
        return self.cause in ("loss", "truncated")

    @property
    def separates_fragments(self) -> bool:
        """Whether a fragment may be missing here, so that the fragments on both sides may not be complete."""
        return self.is_hole or self.cause == GAP_FRAMED_ELSEWHERE


class SegmentRun(NamedTuple):
    """Consecutive in-order data segments of one direction, by index in the block; both ends are included.

    ``byte_count``: their bytes in total. If the run is a single segment, ``skipped_bytes`` at its start are left out.
    """

    first_segment: int
    last_segment: int
    skipped_bytes: int
    byte_count: int


class SkippedSegment(NamedTuple):
    """A segment that was not reassembled, because its connection did not look like MSMQ at that time."""

    side: int
    time_ns: int
    packet_number: int
    file_offset: int
    sequence: int
    acknowledgement: int
    payload_length: int
    data: bytes


class DataSegment(NamedTuple):
    """One data segment for ``StreamDirection.add_segment``; ``block_index`` is its index in the block."""

    block_index: int
    time_ns: int
    packet_number: int
    file_offset: int
    sequence: int
    acknowledgement: int
    captured_length: int
    payload_length: int
    payload: memoryview
    gap_cause: str = "truncated"  # StreamGap.cause of bytes that were not captured
    header: memoryview | bytes = b""  # the TCP header, if it is known


class ConnectionKind(Enum):
    """The protocol of a connection, as far as known."""

    UNDECIDED = 1  # no data seen yet
    COLD = 2  # opened before the capture began; nothing looked like RPC so far
    RPC = 3
    BINARY = 4  # MSMQ binary protocol, TCP 1801
    OTHER = 5


@dataclass(slots=True)
class StreamDirection:
    """One direction of a TCP connection: reordering, gaps and byte counts.

    Its bytes are delivered up to the stream offset ``next_offset``.
    """

    syn_sequence: int | None = None  # sequence number of the SYN
    base_sequence: int | None = None  # sequence number of stream offset 0
    started: bool = False
    first_offset: int = 0  # stream offset of the first delivered byte
    next_offset: int = 0
    fin_time_ns: int | None = None
    fin_sequence: int | None = None  # sequence number of the end of the stream, by its FIN
    held_segments: list[BufferedSegment] = field(default_factory=list)  # out of order, by stream offset
    held_bytes: int = 0
    held_since_ns: int = NO_TIME
    delivered: list[SegmentRun | BufferedSegment | StreamGap] = field(default_factory=list)  # in this block, in order
    partial_pdu: list[BufferedSegment] = field(default_factory=list)  # delivered, not a whole PDU yet
    early_segments: list[BufferedSegment] = field(default_factory=list)  # came after the start, but lie before it
    early_bytes: int = 0
    # Repeated bytes to be compared with the first copy: stream offset, bytes, the whole segment where it is known.
    unchecked_repeats: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    differing_repeats: list[tuple[int, int, bytes]] = field(default_factory=list)  # stream offset, size, segment
    history: bytes = b""  # the last bytes before stream offset ``history_end``
    history_end: int = 0
    gap_count: int = 0
    recent_gaps: deque[StreamGap] | None = None  # created with the first gap: in a SYN flood most connections have none
    missing_bytes: int = 0  # of all gaps
    lost_by_capture_bytes: int = 0  # of these, acknowledged by the receiver: the capture lost them
    unacknowledged_gaps: list[StreamGap] = field(
        default_factory=list
    )  # gaps that the receiver has not acknowledged yet
    distinct_bytes: int = 0
    retransmitted_bytes: int = 0
    conflicting_bytes: int = 0
    first_ack: tuple[int, int, int] | None = None  # time in ns, sequence number, acknowledgement; not of a SYN
    first_syn_ns: int | None = None  # of its SYNs that acknowledge none: it asked for the connection
    last_syn_ns: int | None = None
    reset_ns: int | None = None  # of its first RST
    syn_acknowledgement: int | None = None  # of the SYN with ACK: the number of the other side's first byte
    last_sequence: int | None = None
    last_acknowledgement: int | None = None
    sent_until: int | None = None  # sequence number behind the farthest byte, SYN or FIN that it sent
    acknowledged_until: int | None = None  # its farthest acknowledgement; not of an RST
    unrecognised_bytes: int = 0  # payload seen before the connection was recognised as RPC
    framing_state: object = None

    @property
    def has_spoken(self) -> bool:
        """Whether it sent anything but SYNs that ask for a connection, and RSTs."""
        answered = self.syn_sequence is not None and self.first_syn_ns is None
        sent = self.first_ack is not None or self.fin_time_ns is not None or bool(self.distinct_bytes)
        return answered or sent or bool(self.unrecognised_bytes)

    def note_numbers(self, sent: Ints, acknowledged: Ints) -> None:
        """Note sequence numbers behind what it sent, and acknowledgements that it sent."""
        if len(sent):
            self.sent_until = farthest_number(self.sent_until, sent)
        if len(acknowledged):
            self.acknowledged_until = farthest_number(self.acknowledged_until, acknowledged)

    def reached(self, before: Reached) -> Reached:
        """Return how far it had come; where that is not known, how far it has."""
        sent, acknowledged = before
        return Reached(
            self.sent_until if sent is None else sent,
            self.acknowledged_until if acknowledged is None else acknowledged,
        )

    def is_beyond(self, reached: Reached) -> bool:
        """Whether it has sent or acknowledged more than it had."""
        return any(
            now is not None and before is not None and sequence_difference(now - before) > 0
            for now, before in zip((self.sent_until, self.acknowledged_until), reached, strict=True)
        )

    def stream_offset_of(self, sequence: int) -> int:
        """Return the stream offset of a sequence number near the current position."""
        base = self.base_sequence or 0
        return self.next_offset + sequence_difference(sequence - base - self.next_offset)

    def begin_at_syn(self, syn: int) -> None:
        """Start the stream behind the SYN with sequence number ``syn``."""
        if not self.begins_behind(syn):
            self.begin_at((syn + 1) & _MASK)
        self.syn_sequence = syn

    def begin_at(self, first: int) -> None:
        """Start the stream at the sequence number of its first byte."""
        if self.base_sequence is not None and not self.started:
            shift = sequence_difference(first - self.base_sequence)
            self.held_segments = [
                segment._replace(stream_offset=segment.stream_offset - shift) for segment in self.held_segments
            ]
        self.base_sequence, self.started = first, True
        self.first_offset = self.next_offset = 0

    def begins_behind(self, syn: int) -> bool:
        """Whether the stream was started at the byte after a SYN with sequence number ``syn``."""
        return self.started and self.first_offset == 0 and self.base_sequence == (syn + 1) & _MASK

    def start_at(self, sequence: int) -> None:
        """Start a stream without a SYN at a sequence number, the lowest that was seen."""
        if self.base_sequence is None:
            self.base_sequence = sequence & _MASK
        self.started, self.next_offset = True, self.stream_offset_of(sequence)
        self.first_offset = self.next_offset

    def move_start_back_to(self, sequence: int) -> None:
        """Start the stream at its lowest held byte, or at a sequence number if that is lower."""
        if self.held_segments and self.held_segments[0].stream_offset <= self.stream_offset_of(sequence):
            self.release_held(None, once=True)
        else:
            self.start_at(sequence)

    def add_segment(self, packet: DataSegment, window: int) -> None:
        """Insert a data segment that may be out of order, repeated or truncated; ``window``: reorder window in ns."""
        if self.base_sequence is None:
            self.base_sequence = packet.sequence
        waited = elapsed_ns(self.held_since_ns, packet.time_ns) if self.held_segments else 0
        if not self.started and waited > (hold := min(window, MAX_START_HOLD_NS)):
            self.release_held(packet.time_ns - hold, once=True)  # gaps behind the start are waited for as usual
        if self.held_segments and elapsed_ns(self.held_since_ns, packet.time_ns) > window:
            self.release_held(packet.time_ns - window)
        self._insert(packet)
        if not self.held_segments:
            return
        if not self.started:
            if self.held_bytes > MAX_START_HOLD_BYTES:
                self.release_held(None, once=True)  # gaps behind the start are waited for as usual
        elif self.held_bytes > _MAX_HELD_BYTES or len(self.held_segments) > _MAX_HELD_SEGMENTS:
            self.release_held(None, once=True)

    def release_held(self, before: int | None, *, once: bool = False) -> None:
        """Deliver held segments that came before a time in ns (None: all), with gaps for what is still missing.

        ``once``: only up to the next missing bytes.
        """
        while self.held_segments and (before is None or elapsed_ns(self.held_since_ns, before) > 0):
            lowest = self.held_segments[0].stream_offset
            if not self.started:
                self.started, self.first_offset, self.next_offset = True, lowest, lowest
            elif lowest > self.next_offset:
                self._add_gap(lowest, "loss")
            self._deliver_held()
            if once:
                return

    def note_missing_end(self, receiver: StreamDirection) -> None:
        """At the end of a capture, add a gap for bytes that must lie behind the last delivered one.

        The FIN shows where the stream ends. Without a FIN, the last acknowledgement that its ``receiver`` sent or the
        sequence number of the sender's last segment (an RST or a bare ACK) shows it (RFC 9293 3.10.7.4). Of a stream
        of which no byte was captured the receiver's first acknowledgement shows where it was then.
        """
        acknowledged = receiver.last_acknowledgement
        shown = (acknowledged, self.last_sequence) if self.fin_sequence is None else (self.fin_sequence,)
        if not self.started:
            if receiver.first_ack is None or self.unrecognised_bytes:
                return
            self.start_at(receiver.first_ack[2])
        # A single byte may be a FIN that was not captured, so it is not counted.
        least = 1 if self.fin_sequence is None else 0
        behind = (self.stream_offset_of(number) for number in shown if number is not None)
        end = max(
            (number for number in behind if least < number - self.next_offset <= MAX_SEQUENCE_JUMP),
            default=self.next_offset,
        )
        if end > self.next_offset:
            self._add_gap(end, "loss")

    def _add_gap(self, end: int, cause: str) -> None:
        """Deliver a gap from ``next_offset`` to ``end``."""
        gap = StreamGap(self.next_offset, end, cause)
        self.delivered.append(gap)
        self.next_offset = end
        self.gap_count += gap.separates_fragments
        if not gap.is_hole:
            self.distinct_bytes += gap.end - gap.start
            return
        if self.recent_gaps is None:
            self.recent_gaps = deque(maxlen=MAX_REMEMBERED_GAPS)
        self.recent_gaps.append(gap)
        if len(self.unacknowledged_gaps) < _MAX_UNACKNOWLEDGED_GAPS:
            self.unacknowledged_gaps.append(gap)
        self.missing_bytes += gap.end - gap.start

    def _insert(self, packet: DataSegment) -> None:
        """Deliver a segment if it is next in order, else hold it. Repeated bytes are only compared."""
        at, captured, length = self.stream_offset_of(packet.sequence), packet.captured_length, packet.payload_length
        if self.started and length <= 1 and at == self.next_offset - 1:
            return  # a keep-alive repeats the last byte or sends an arbitrary one (RFC 9293 3.8.4)
        skip = 0
        if self.started and at < self.next_offset:
            skip = min(self.next_offset - at, length)
            self._note_repeat(at, packet, 0, min(skip, captured))
            if at < self.first_offset and self.syn_sequence is None:
                self._keep_early(at, packet)
            if skip == length:
                return
        if (
            self.started
            and at + skip == self.next_offset
            and (not self.held_segments or self.held_segments[0].stream_offset >= at + length)
        ):
            if captured > skip:
                self.delivered.append(SegmentRun(packet.block_index, packet.block_index, skip, captured - skip))
                self.next_offset += captured - skip
                self.distinct_bytes += captured - skip
            if captured < length:
                self._add_gap(at + length, packet.gap_cause)
            self._deliver_held()
            return
        self._hold(packet, at, skip)
        if self.started:
            self._deliver_held()

    def _hold(self, packet: DataSegment, at: int, skip: int) -> None:
        """Hold the bytes of a segment that no held segment has; note the others as repeats."""
        if not self.held_segments:
            self.held_since_ns = packet.time_ns
        self.held_since_ns = earliest_ns(self.held_since_ns, packet.time_ns)
        begin, end = at + skip, at + packet.captured_length
        lost = packet.payload_length - packet.captured_length
        if not self.held_segments or self.held_segments[-1].stream_offset + len(self.held_segments[-1].data) <= begin:
            self._insert_held(len(self.held_segments), packet, begin - at, packet.captured_length, lost)
            return
        index = bisect_left(
            self.held_segments, begin, key=lambda segment: segment.stream_offset + len(segment.data) - 1
        )
        while True:
            other = self.held_segments[index] if index < len(self.held_segments) else None
            stop = end if other is None else min(end, other.stream_offset)
            if stop > begin or (lost and begin == end and (other is None or other.stream_offset > end)):
                self._insert_held(index, packet, begin - at, stop - at, lost if stop == end else 0)
                index += 1
            if other is None or stop >= end:
                return
            again = min(end, other.stream_offset + len(other.data))
            self._note_repeat(at, packet, max(begin, other.stream_offset) - at, again - at)
            begin = again
            index += 1
            if begin >= end and not lost:
                return

    def _insert_held(self, index: int, packet: DataSegment, begin: int, end: int, lost: int) -> None:
        data = bytes(packet.payload[begin:end])
        segment = BufferedSegment(
            self.stream_offset_of(packet.sequence) + begin, data, packet.time_ns, packet.packet_number,
            packet.file_offset + begin, packet.acknowledgement, lost, packet.gap_cause,
        )  # fmt: skip
        self.held_segments.insert(index, segment)
        self.held_bytes += len(data)
        self.distinct_bytes += len(data)

    def _keep_early(self, at: int, packet: DataSegment) -> None:
        """Keep bytes from before the start of the stream: an earlier capture file may lack them."""
        data = bytes(packet.payload[: min(self.first_offset - at, packet.captured_length)])
        if data and self.early_bytes + len(data) <= _MAX_EARLY_BYTES:
            self.early_bytes += len(data)
            self.early_segments.append(
                BufferedSegment(
                    at, data, packet.time_ns, packet.packet_number, packet.file_offset, packet.acknowledgement, 0
                )
            )

    def _note_repeat(self, at: int, packet: DataSegment, begin: int, end: int) -> None:
        if end <= begin:
            return
        self.retransmitted_bytes += end - begin
        if len(self.unchecked_repeats) < _MAX_UNCHECKED_REPEATS:
            whole = len(packet.header) > 0 and packet.captured_length == packet.payload_length
            segment = bytes(packet.header) + bytes(packet.payload) if whole else b""
            self.unchecked_repeats.append((at + begin, bytes(packet.payload[begin:end]), segment))

    def _deliver_held(self) -> None:
        """Deliver the held segments that are in order now."""
        held, count = self.held_segments, 0
        while count < len(held) and held[count].stream_offset <= self.next_offset:
            segment = held[count]
            count += 1
            self.held_bytes -= len(segment.data)
            behind = self.next_offset - segment.stream_offset
            if behind > 0:  # only segments held before the start was known can overlap it
                self.distinct_bytes -= min(behind, len(segment.data))
                segment = segment._replace(stream_offset=self.next_offset, data=segment.data[behind:])
            if segment.data:
                self.delivered.append(segment)
                self.next_offset = segment.stream_offset + len(segment.data)
            if segment.cut_off_bytes and behind <= 0:
                limit = held[count].stream_offset if count < len(held) else None
                end = self.next_offset + segment.cut_off_bytes
                end = end if limit is None else min(end, limit)
                if end > self.next_offset:
                    self._add_gap(end, segment.gap_cause)
        if count:
            del held[:count]
            self.held_since_ns = earliest_ns(*(segment.time_ns for segment in held[:_NEAREST_HELD_SEGMENTS]))

    def compare_repeats(self, joined: bytes | memoryview, start: int, end_offset: int) -> None:
        """Compare repeated bytes with the stream, and count and keep those that differ.

        ``joined[start:]`` holds the stream up to the offset ``end_offset``. Earlier bytes are compared with
        ``history``; those before the history are not compared.
        """
        waiting = []
        for at, data, segment in self.unchecked_repeats:
            stop = at + len(data)
            if stop > end_offset:
                waiting.append((at, data, segment))
                continue
            here = len(joined) - start
            first = end_offset - here
            for low, view, base in ((first, joined, start), (self.history_end - len(self.history), self.history, 0)):
                high = low + len(view) - base
                begin, finish = max(at, low), min(stop, high)
                if begin < finish:
                    ours = bytes(view[base + begin - low : base + finish - low])
                    theirs = data[begin - at : finish - at]
                    if ours != theirs:
                        if len(self.differing_repeats) < _MAX_UNCHECKED_REPEATS:
                            self.differing_repeats.append((begin, finish - begin, segment))
                        self.conflicting_bytes += sum(a != b for a, b in zip(ours, theirs, strict=True))
                    stop = begin
                    if begin <= at:
                        break
        self.unchecked_repeats = waiting

    def note_acknowledged(self, number: int) -> None:
        """Count gaps before an acknowledged sequence number as lost by the capture: the receiver has these bytes."""
        if self.base_sequence is None:
            return
        reached = self.stream_offset_of(number)
        count = 0
        for gap in self.unacknowledged_gaps:
            if gap.end > reached:
                break
            self.lost_by_capture_bytes += gap.end - gap.start
            count += 1
        del self.unacknowledged_gaps[:count]


def _is_far(number: int, known: int) -> bool:
    return abs(sequence_difference(number - known)) > MAX_SEQUENCE_JUMP


class Reached(NamedTuple):
    """How far a side had come: the sequence numbers that it had sent and acknowledged; None if not known."""

    sent_until: int | None
    acknowledged_until: int | None


@dataclass(slots=True)
class Reset:
    """An RST that ended its connection, unless both sides go on from where they were (RFC 9293 3.10.7.4, RFC 5961 3).

    ``time_ns``: of the first one there. ``reached``: by side, how far it had come. ``went_on``: whether it has sent or
    acknowledged more since. Data of one side alone may have been on its way. ``in_sequence``: whether its number is
    where its stream was, so that nobody doubts it.
    """

    time_ns: int
    reached: tuple[Reached, Reached]
    went_on: tuple[bool, bool] = (False, False)
    in_sequence: bool = True


class FirstHeader(NamedTuple):
    """The header of an EstablishConnection packet that a side begins with, and the acknowledgement of its segment."""

    time_ns: int
    side: int
    acknowledged: int  # 0 if not known


@dataclass(slots=True)
class TcpConnection:
    """One TCP connection. Side 0 is the lower endpoint; ``client_side`` is None until the client is known."""

    index: int  # by the first packet, like tshark's tcp.stream
    endpoints: tuple[tuple[int, bytes, int], tuple[int, bytes, int]]  # IP version, address, port of sides 0 and 1
    first_time_ns: int  # earliest of the packets read so far
    named_at_ns: int  # of the first packet in the file; fixed, because the connection's key depends on it
    kind: ConnectionKind = ConnectionKind.UNDECIDED
    client_side: int | None = None
    client_certain: bool = False  # a SYN showed which side it is
    directions: tuple[StreamDirection, StreamDirection] = field(
        default_factory=lambda: (StreamDirection(), StreamDirection())
    )
    tunnel_identifier: int | None = None  # of the tunnel that tells it from another with the same endpoints
    last_time_ns: int = NO_TIME
    packet_count: int = 0
    syn_time_ns: int | None = None
    round_trip_ns: int | None = None  # SYN to the handshake's last ACK; NO_TIME if both were seen, one without a time
    resets: tuple[Reset, ...] = ()  # those that stand
    first_skipped_segments: list[SkippedSegment] = field(default_factory=list)  # the first ones
    skipped_bytes_kept: int = 0  # in these
    rpc_state: object = None  # RpcAssociation, set by the RPC layer
    budget: CaptureBudget = field(default_factory=CaptureBudget)  # of its capture
    session_asked: FirstHeader | None = None  # the earliest
    cached_identity: tuple[object, ...] | None = None  # ConnectionIdentity

    @property
    def syn_seen(self) -> bool:
        """Whether the client's SYN was captured."""
        return self.syn_time_ns is not None

    @property
    def uncaptured_side(self) -> int | None:
        """The side of which no packet was captured though the other one acknowledges it; None for most."""
        for number, side in enumerate(self.directions):
            other = self.directions[number ^ 1]
            if side.last_sequence is None and (other.first_ack or other.syn_acknowledgement) is not None:
                return number
        return None

    @property
    def reset_time_ns(self) -> int | None:
        """Time in ns of the first RST after which not both sides went on; ``NO_TIME`` if it has none."""
        return earliest_ns(*(reset.time_ns for reset in self.resets)) if self.resets else None

    def is_outside_window(self, side: int, sequence: int) -> bool:
        """Whether an RST of a side is far from where its stream is: it is of another connection, or is not believed.

        A side that has acknowledged nothing yet believes any that acknowledges its SYN (RFC 9293 3.10.7.3).
        """
        ours, theirs = self.directions[side], self.directions[side ^ 1]
        expected = ours.sent_until if theirs.last_sequence is None else theirs.acknowledged_until
        return expected is not None and _is_far(sequence, expected)

    def note_reset(self, side: int, time: int, sequence: int, acknowledgement: int | None) -> None:
        """Note an RST that a side sent, with its numbers. Of those after which the same may follow, one is kept."""
        ours, theirs = self.directions[side], self.directions[side ^ 1]
        known = farther_number(ours.acknowledged_until, theirs.sent_until)
        if acknowledgement is not None and known is not None and _is_far(acknowledgement, known):
            acknowledgement = None
        ours.last_sequence = sequence
        ours.last_acknowledgement = ours.last_acknowledgement if acknowledgement is None else acknowledgement
        sent = farther_number(ours.sent_until, theirs.acknowledged_until)
        acknowledged = farther_number(ours.acknowledged_until, acknowledgement)
        other = Reached(farther_number(theirs.sent_until, acknowledged), theirs.acknowledged_until)
        reached = Reached(sent, acknowledged), other
        reset = Reset(time, reached if side == 0 else reached[::-1], in_sequence=sequence == sent)
        if self.resets and not any(self.resets[-1].went_on):
            self.resets[-1].time_ns = earliest_ns(self.resets[-1].time_ns, time)
            self.resets[-1].in_sequence |= reset.in_sequence
        else:  # of a second one the same side went on as of the first: both stand, or none does
            self.resets = (*self.resets[:1], reset)

    def note_progress(self) -> None:
        """Drop the RSTs after which both sides went on: they ended nothing.

        Where it was not known how far a side had come, it counts from the first that is.
        """
        for reset in self.resets:
            sides = list(zip(self.directions, reset.reached, reset.went_on, strict=True))
            one, two = (went_on or side.is_beyond(reached) for side, reached, went_on in sides)
            reset.went_on = one, two
            one_now, two_now = (side.reached(reached) for side, reached, _ in sides)
            reset.reached = one_now, two_now
        if any(all(reset.went_on) for reset in self.resets):
            self.resets = tuple(reset for reset in self.resets if not all(reset.went_on))

    def port_of_side(self, side: int) -> int:
        """Return the port of a side (0 or 1)."""
        return self.endpoints[side][2]

    @property
    def on_known_port(self) -> bool:
        """Whether a side has a well-known port of MSMQ RPC or of the endpoint mapper."""
        return any(end[2] == EPM_PORT or end[2] in MSMQ_RPC_PORTS for end in self.endpoints)

    @property
    def served_side(self) -> int | None:
        """The side that alone has a well-known port of MSMQ or the endpoint mapper; None where neither or both do."""
        served = [port in (EPM_PORT, BINARY_PROTOCOL_PORT) or port in MSMQ_RPC_PORTS for _, _, port in self.endpoints]
        return None if served[0] == served[1] else served.index(True)

    def likely_client_side(self) -> int:
        """Return the client's side: from SYN, RPC or a session's request if known, else guessed from the ports."""
        if self.client_side is not None:
            return self.client_side
        if self.served_side is not None:
            return self.served_side ^ 1
        return 0 if self.port_of_side(0) > self.port_of_side(1) else 1

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow: both sides sent a FIN, or one an RST whose number is where its stream was."""
        end = self.end_time_and_cause
        return end is not None and (end[1] == "fin" or any(reset.in_sequence for reset in self.resets))

    @property
    def end_time_and_cause(self) -> tuple[int, str] | None:
        """Time in ns and cause of the end: ``rst``, or ``fin`` at the later of both first FINs; None while open.

        The time is ``NO_TIME`` where one of these packets has none.
        """
        one, two = (side.fin_time_ns for side in self.directions)
        fin = None if one is None or two is None else NO_TIME if NO_TIME in (one, two) else max(one, two)
        if self.reset_time_ns is not None and (fin is None or self.reset_time_ns < fin):
            return self.reset_time_ns, "rst"
        return None if fin is None else (fin, "fin")
