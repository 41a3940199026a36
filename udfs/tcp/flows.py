"""TCP connections of a capture: who they are, how they began and ended, and the bytes of each direction in order.

Per direction, stream offset 0 is the byte after the SYN, or the first byte seen where no SYN was; offsets are 64-bit
and do not wrap. Segments that continue the stream are passed on in runs, without touching them one by one; only what is
out of order, repeated or cut goes through ``_insert``. Of two different overlapping bytes the first captured wins. A
hole is never filled: after the reorder window the stream goes on behind it, with a ``Gap`` between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from udfs.dcerpc.interfaces import BINARY_PROTOCOL_PORT, EPM_PORT, STATIC_PORTS
from udfs.files.container import NO_TIME

_MASK: Final = 0xFFFFFFFF
JUMP: Final = 16 << 20  # sequence numbers farther apart than this do not continue each other
# A direction seen from its middle is held until its order is sure: for the window, or for as much as this.
START_BYTES: Final = 16 << 10
START_SEGMENTS: Final = 8
_HELD_BYTES: Final = 16 << 20  # out of order in one direction; a receiver's window is seldom larger
_HELD_PIECES: Final = 1 << 16
_OPEN_HOLES: Final = 1 << 12  # of one direction; of more it is not known who lost them
_NEAREST: Final = 64  # held pieces whose times tell since when the hole before them is waited for
REMEMBERED_HOLES: Final = 1 << 10  # of a direction, the last: between the bytes kept of it there are no more
_EARLY_BYTES: Final = 64 << 10  # of a direction, kept of what stands before its beginning
_CHECKS: Final = 4096  # repeated segments that wait to be compared
PASSED_BYTES: Final = 16 << 10  # of a connection, of what was passed over: more than most PDUs' fragments
HISTORY_BYTES: Final = 64 << 10  # of the stream kept behind the last block, to compare repeated bytes with


def signed(difference: int) -> int:
    """Return a difference of two 32-bit sequence numbers as the nearer of the two ways round (RFC 9293 3.4)."""
    return ((difference + 0x80000000) & _MASK) - 0x80000000


SETTLED: Final = "settled"  # cause of a Gap whose bytes were cut already, up to a PDU's end
ELSEWHERE: Final = "elsewhere"  # likewise, but not by all captures that saw what is around it


class Piece(NamedTuple):
    """Bytes of one packet at a stream offset, kept beyond their block, with the facts of that packet."""

    offset: int
    data: bytes
    time: int
    number: int
    file_offset: int
    acknowledgement: int
    lost: int  # bytes of the packet behind these that the capture cut off
    cause: str = "truncated"  # or what else these are


class Gap(NamedTuple):
    """Bytes [start, end) of a direction that are not there to be cut."""

    start: int
    end: int
    cause: str  # "loss", "truncated", or why the bytes are left out of a remainder: SETTLED, "skipped"

    @property
    def hole(self) -> bool:
        """Whether the capture does not have these bytes: else they were cut when it was read (``remainder``)."""
        return self.cause in ("loss", "truncated")

    @property
    def breaks(self) -> bool:
        """Whether fragments on both sides of it may belong together only with what is missing here."""
        return self.hole or self.cause == ELSEWHERE


class Run(NamedTuple):
    """Consecutive data segments [first, last] of one direction, by index in the block, of ``take`` bytes together.

    Of a single segment ``skip`` bytes at its beginning may be left out.
    """

    first: int
    last: int
    skip: int
    take: int


class Passed(NamedTuple):
    """A segment that was passed over, because nothing told yet that its connection might be one of ours."""

    side: int
    time: int
    number: int
    file_offset: int
    sequence: int
    acknowledgement: int
    length: int
    data: bytes


class Packet(NamedTuple):
    """One data segment as the slow path sees it; ``place`` is its index in the block."""

    place: int
    time: int
    number: int
    file_offset: int
    sequence: int
    acknowledgement: int
    captured: int
    length: int
    payload: memoryview
    cause: str = "truncated"  # why less was captured than the length


class Kind(Enum):
    """What a connection was found to be."""

    UNDECIDED = 1  # its first bytes have not come
    COLD = 2  # begun before the capture, and nothing in it looks like RPC yet
    RPC = 3
    BINARY = 4  # TCP 1801
    OTHER = 5


@dataclass(slots=True)
class Direction:
    """One direction of a connection. ``next`` is the stream offset up to which its bytes were passed on."""

    syn: int | None = None  # sequence number of its SYN
    base: int | None = None  # sequence number of stream offset 0
    started: bool = False
    first: int = 0  # the stream offset at which it started
    next: int = 0
    fin_at: int | None = None
    fin_sequence: int | None = None  # where the stream ends, by its FIN
    held: list[Piece] = field(default_factory=list)
    held_bytes: int = 0
    held_since: int = 0
    out: list[Run | Piece | Gap] = field(default_factory=list)  # of this block, in order
    tail: list[Piece] = field(default_factory=list)  # passed on, but not a whole PDU yet
    early: list[Piece] = field(default_factory=list)  # came when it had begun, and stands before: another file's late
    early_bytes: int = 0
    checks: list[tuple[int, bytes]] = field(default_factory=list)  # repeated bytes, to be compared with the first
    history: bytes = b""  # the bytes before stream offset ``history_end``
    history_end: int = 0
    holes: int = 0
    last_holes: deque[Gap] | None = None  # made with the first: most connections of a flood have none
    missing_bytes: int = 0  # of all holes
    lost_by_capture_bytes: int = 0  # of these, acknowledged by the receiver: they were on the network
    unacknowledged: list[Gap] = field(default_factory=list)  # holes whose acknowledgement is waited for
    distinct_bytes: int = 0
    retransmitted_bytes: int = 0
    conflicting_bytes: int = 0
    opening: tuple[int, int, int] | None = None  # time, sequence number and acknowledgement of its first ACK
    last_sequence: int | None = None
    last_acknowledgement: int | None = None
    cold_bytes: int = 0  # payload seen before the connection was recognised
    cutter: object = None

    def offset(self, sequence: int) -> int:
        """Return the stream offset of a sequence number near the present position."""
        base = self.base or 0
        return self.next + signed(sequence - base - self.next)

    def begin(self, syn: int) -> None:
        """Note the SYN: the stream starts behind it."""
        first = (syn + 1) & _MASK
        if self.base is not None and not self.started:
            shift = signed(first - self.base)
            self.held = [piece._replace(offset=piece.offset - shift) for piece in self.held]
        self.syn, self.base, self.started, self.first, self.next = syn, first, True, 0, 0

    def start(self, sequence: int) -> None:
        """Let the stream begin at a sequence number: the lowest that was seen of a direction without its SYN."""
        if self.base is None:
            self.base = sequence & _MASK
        self.started, self.next = True, self.offset(sequence)
        self.first = self.next

    def start_by(self, sequence: int) -> None:
        """Let the stream begin at its lowest byte held, or at a sequence number if that is lower."""
        if self.held and self.held[0].offset <= self.offset(sequence):
            self.release(None, once=True)
        else:
            self.start(sequence)

    def feed(self, packet: Packet, window: int) -> None:
        """Take a data segment that may be early, late, repeated or cut."""
        if self.base is None:
            self.base = packet.sequence
        if self.held and packet.time - self.held_since > window:
            self.release(packet.time - window)
        self._insert(packet)
        if not self.held:
            return
        if not self.started:
            if self.held_bytes > START_BYTES or len(self.held) >= START_SEGMENTS:
                self.release(None, once=True)  # holes behind its beginning are waited for like any other
        elif self.held_bytes > _HELD_BYTES or len(self.held) > _HELD_PIECES:
            self.release(None, once=True)

    def release(self, before: int | None, *, once: bool = False) -> None:
        """Give up waiting for what is missing in front of held bytes that came before a time (None: of any)."""
        while self.held and (before is None or self.held_since < before):
            lowest = self.held[0].offset
            if not self.started:
                self.started, self.first, self.next = True, lowest, lowest
            elif lowest > self.next:
                self._gap(lowest, "loss")
            self._drain()
            if once:
                return

    def miss_end(self, acknowledged: int | None) -> None:
        """At the end of a capture: note what is shown to lie behind the last byte.

        By the FIN, or else by what the receiver acknowledged, or by where the sender's last segment, an RST or a bare
        ACK, says that it stands (RFC 9293 3.10.7.4).
        """
        shown = (acknowledged, self.last_sequence) if self.fin_sequence is None else (self.fin_sequence,)
        if not self.started:
            return
        # A single octet may be a FIN that was not captured: it is counted like one.
        least = 1 if self.fin_sequence is None else 0
        behind = (self.offset(number) for number in shown if number is not None)
        end = max((number for number in behind if least < number - self.next <= JUMP), default=self.next)
        if end > self.next:
            self._gap(end, "loss")

    def _gap(self, end: int, cause: str) -> None:
        gap = Gap(self.next, end, cause)
        self.out.append(gap)
        self.next = end
        self.holes += gap.breaks
        if not gap.hole:
            self.distinct_bytes += gap.end - gap.start
            return
        if self.last_holes is None:
            self.last_holes = deque(maxlen=REMEMBERED_HOLES)
        self.last_holes.append(gap)
        if len(self.unacknowledged) < _OPEN_HOLES:
            self.unacknowledged.append(gap)
        self.missing_bytes += gap.end - gap.start

    def _insert(self, packet: Packet) -> None:
        at, captured, length = self.offset(packet.sequence), packet.captured, packet.length
        if self.started and length <= 1 and at == self.next - 1:
            return  # a keep-alive repeats the last octet, or invents it (RFC 9293 3.8.4)
        skip = 0
        if self.started and at < self.next:
            skip = min(self.next - at, length)
            self._repeated(at, packet, 0, min(skip, captured))
            if at < self.first and self.syn is None:
                self._keep_early(at, packet)
            if skip == length:
                return
        if self.started and at + skip == self.next and (not self.held or self.held[0].offset >= at + length):
            if captured > skip:
                self.out.append(Run(packet.place, packet.place, skip, captured - skip))
                self.next += captured - skip
                self.distinct_bytes += captured - skip
            if captured < length:
                self._gap(at + length, packet.cause)
            self._drain()
            return
        self._hold(packet, at, skip)
        if self.started:
            self._drain()

    def _hold(self, packet: Packet, at: int, skip: int) -> None:
        """Keep what no held piece has yet; of the rest, remember it for comparison."""
        if not self.held:
            self.held_since = packet.time
        self.held_since = min(self.held_since, packet.time)
        begin, end = at + skip, at + packet.captured
        lost = packet.length - packet.captured
        if not self.held or self.held[-1].offset + len(self.held[-1].data) <= begin:
            self._keep(len(self.held), packet, begin - at, packet.captured, lost)
            return
        index = bisect_left(self.held, begin, key=lambda piece: piece.offset + len(piece.data) - 1)
        while True:
            other = self.held[index] if index < len(self.held) else None
            stop = end if other is None else min(end, other.offset)
            if stop > begin or (lost and begin == end and (other is None or other.offset > end)):
                self._keep(index, packet, begin - at, stop - at, lost if stop == end else 0)
                index += 1
            if other is None or stop >= end:
                return
            again = min(end, other.offset + len(other.data))
            self._repeated(at, packet, max(begin, other.offset) - at, again - at)
            begin = again
            index += 1
            if begin >= end and not lost:
                return

    def _keep(self, index: int, packet: Packet, begin: int, end: int, lost: int) -> None:
        data = bytes(packet.payload[begin:end])
        piece = Piece(
            self.offset(packet.sequence) + begin, data, packet.time, packet.number, packet.file_offset + begin,
            packet.acknowledgement, lost, packet.cause,
        )  # fmt: skip
        self.held.insert(index, piece)
        self.held_bytes += len(data)
        self.distinct_bytes += len(data)

    def _keep_early(self, at: int, packet: Packet) -> None:
        """Keep what stands before the beginning that was found: where the file before shows it missing, it is late."""
        data = bytes(packet.payload[: min(self.first - at, packet.captured)])
        if data and self.early_bytes + len(data) <= _EARLY_BYTES:
            self.early_bytes += len(data)
            self.early.append(
                Piece(at, data, packet.time, packet.number, packet.file_offset, packet.acknowledgement, 0)
            )

    def _repeated(self, at: int, packet: Packet, begin: int, end: int) -> None:
        if end <= begin:
            return
        self.retransmitted_bytes += end - begin
        if len(self.checks) < _CHECKS:
            self.checks.append((at + begin, bytes(packet.payload[begin:end])))

    def _drain(self) -> None:
        """Pass on the held pieces that the stream has reached."""
        held, count = self.held, 0
        while count < len(held) and held[count].offset <= self.next:
            piece = held[count]
            count += 1
            self.held_bytes -= len(piece.data)
            behind = self.next - piece.offset
            if behind > 0:  # only pieces kept before the stream's beginning was known can lie behind it
                self.distinct_bytes -= min(behind, len(piece.data))
                piece = piece._replace(offset=self.next, data=piece.data[behind:])
            if piece.data:
                self.out.append(piece)
                self.next = piece.offset + len(piece.data)
            if piece.lost and behind <= 0:
                limit = held[count].offset if count < len(held) else None
                end = self.next + piece.lost
                end = end if limit is None else min(end, limit)
                if end > self.next:
                    self._gap(end, piece.cause)
        if count:
            del held[:count]
            self.held_since = min((piece.time for piece in held[:_NEAREST]), default=0)

    def compare(self, joined: bytes | memoryview, start: int, end_offset: int) -> None:
        """Compare repeated bytes with the stream: ``joined[start:]`` holds it up to ``end_offset``.

        What lies before is compared with the history kept of earlier blocks, and what is older is not compared.
        """
        waiting = []
        for at, data in self.checks:
            stop = at + len(data)
            if stop > end_offset:
                waiting.append((at, data))
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
                        self.conflicting_bytes += sum(a != b for a, b in zip(ours, theirs, strict=True))
                    stop = begin
                    if begin <= at:
                        break
        self.checks = waiting

    def acknowledge(self, number: int) -> None:
        """Note that the receiver has all bytes before a sequence number: what of them is missing, the capture lost."""
        if self.base is None:
            return
        reached = self.offset(number)
        count = 0
        for gap in self.unacknowledged:
            if gap.end > reached:
                break
            self.lost_by_capture_bytes += gap.end - gap.start
            count += 1
        del self.unacknowledged[:count]


@dataclass(slots=True)
class Connection:
    """One TCP connection. Side 0 is the lower of the two endpoints; ``client`` is a side, or None until it is known."""

    index: int  # in the order of first packets, as tshark's tcp.stream
    endpoints: tuple[tuple[int, bytes, int], tuple[int, bytes, int]]  # version, address, port of sides 0 and 1
    first_time: int  # of the packets read so far, the earliest
    named_at: int  # the time of the first packet in the file: what is named by it is handed on before all is read
    kind: Kind = Kind.UNDECIDED
    client: int | None = None
    client_sure: bool = False  # by its SYN
    sides: tuple[Direction, Direction] = field(default_factory=lambda: (Direction(), Direction()))
    last_time: int = NO_TIME
    packets: int = 0
    syn_at: int | None = None
    round_trip: int | None = None  # ns
    reset_at: int | None = None
    passed: list[Passed] = field(default_factory=list)  # the first segments that were passed over
    passed_bytes: int = 0  # of these
    rpc: object = None  # what the RPC layer knows of it
    identity: tuple[object, ...] | None = None  # its names and keys, once made (rows.identity)

    @property
    def syn_seen(self) -> bool:
        """Whether the SYN of the client was captured."""
        return self.syn_at is not None

    def port(self, side: int) -> int:
        """Return the port of a side."""
        return self.endpoints[side][2]

    @property
    def on_known_port(self) -> bool:
        """Whether a side has a static port of MSMQ or the endpoint mapper's."""
        return any(end[2] == EPM_PORT or end[2] in STATIC_PORTS for end in self.endpoints)

    def likely_client(self) -> int:
        """Return the client: by SYN or RPC where known, else by ports (tables.md, connections)."""
        if self.client is not None:
            return self.client
        served = [
            port in (EPM_PORT, BINARY_PROTOCOL_PORT) or port in STATIC_PORTS for port in (self.port(0), self.port(1))
        ]
        if served[0] != served[1]:
            return 1 if served[0] else 0
        return 0 if self.port(0) > self.port(1) else 1

    @property
    def closed(self) -> tuple[int, str] | None:
        """When and how it ended: by RST, or by the later of both directions' first FINs; None while open."""
        fins = [side.fin_at for side in self.sides]
        fin = max(fins) if None not in fins else None  # type: ignore[type-var]
        if self.reset_at is not None and (fin is None or self.reset_at < fin):
            return self.reset_at, "rst"
        return None if fin is None else (fin, "fin")
