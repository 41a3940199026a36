"""Packet framing: cuts the ordered streams of a block into packets of the binary protocol ([MS-MQQB] 2.2, 3.1.5.1).

Each byte of a side belongs to a packet, to a hole, or to a run of stray bytes, which becomes a row of quarantine. A
packet is as long as its header says, whatever is inside; behind a hole, and where no packet stands, the next one is
searched (``packet_headers.find_header``).

Packets that lie whole in the block's buffer are found without a copy. Of one that goes on in another block the pieces
are kept, and joined once, when it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from udfs.array_types import Ints
from udfs.columns.groups import expand_ranges
from udfs.messages.header_layouts import MAX_PACKET_BYTES, SESSION_HEADER_BYTES
from udfs.rpc.pdu_framing import MAX_STRAYS_PER_DIRECTION, QUARANTINE_SAMPLE_BYTES, REASON_CAPTURE_BEGINS, StrayBytes
from udfs.sessions.packet_headers import (
    MIN_SEARCH_BYTES,
    MIN_STEP_BYTES,
    Behind,
    find_header,
    may_be_establish_connection,
    may_be_followed_by_session_header,
    read_packet_size,
    session_header_bytes,
    walk_packets,
)
from udfs.tcp.capture_budget import NOT_KEPT, CaptureBudget
from udfs.tcp.connection_tracker import BlockStream, BlockStreams, StreamExtent
from udfs.tcp.connections import (
    BufferedSegment,
    ConnectionKind,
    FirstHeader,
    StreamDirection,
    StreamGap,
    TcpConnection,
    sequence_difference,
)

MAX_LENGTH_BYTES: Final = MAX_PACKET_BYTES + SESSION_HEADER_BYTES
# Of a side without its SYN, the packets that begin in so many bytes are kept for an earlier capture: it may show that
# they lie inside of another packet.
START_BYTES: Final = 64 << 10
_MAX_STRAY_BYTES_KEPT: Final = MAX_LENGTH_BYTES  # of one run: more cannot be the rest of a packet
_MAX_KEPT_BYTES: Final = 2 * MAX_LENGTH_BYTES  # of a side
_MIN_OPEN_BYTES_KEPT: Final = 64 << 10  # of an unfinished packet, whatever the limits
REASON_NOT_BINARY_PROTOCOL: Final = "not_binary_protocol"
_RECOGNISABLE: Final = (ConnectionKind.UNDECIDED, ConnectionKind.RPC, ConnectionKind.BINARY)
_REASON_NOT_A_PACKET: Final = "not_a_packet"
_REASON_CAPTURE_LOSS: Final = "capture_loss"
_REASON_CUT_HEADER: Final = "cut_header"


@dataclass(slots=True)
class OpenPacket:
    """A packet of which bytes are still missing.

    ``length``: PacketSize, and the SessionHeader behind it; ``is_undecided``: what follows will show whether there is
    one. ``pieces``: its captured bytes, in order; ``seen_bytes``: how many were captured (fewer are kept beyond a
    limit).
    """

    stream_offset: int
    length: int
    is_undecided: bool
    pieces: list[BufferedSegment] = field(default_factory=list)
    seen_bytes: int = 0
    kept_bytes: int = 0
    end_time_ns: int = 0

    @property
    def end(self) -> int:
        """Stream offset of its end, as far as that is known."""
        return self.stream_offset + self.length

    def decide(self, session_header_bytes: int) -> None:
        """Set how many bytes of a SessionHeader follow."""
        self.length, self.is_undecided = self.length + session_header_bytes, False


@dataclass(slots=True)
class SessionSide:
    """Framing state of one side of a connection between blocks.

    ``kept``: bytes that another capture may explain or complete, beside those of ``open_packet``, ``open_stray`` and
    the direction's ``partial_pdu``. ``found``: a packet was cut. ``is_uncertain``: of the next packet it is not seen
    what follows: another capture may show that it is none.
    """

    in_step: bool
    out_of_step_reason: str = REASON_CAPTURE_BEGINS
    open_packet: OpenPacket | None = None
    open_stray: StrayBytes | None = None
    stray_pieces: list[BufferedSegment] = field(default_factory=list)
    strays: list[StrayBytes] = field(default_factory=list)
    found: bool = False
    is_uncertain: bool = False
    kept: list[BufferedSegment] = field(default_factory=list)
    kept_bytes: int = 0
    waiting_bytes: int = 0  # in ``partial_pdu``, counted in the budget

    def copy(self) -> SessionSide:
        """Return a copy that framing does not change."""
        opened, stray = self.open_packet, self.open_stray
        return replace(
            self,
            open_packet=None if opened is None else replace(opened, pieces=list(opened.pieces)),
            open_stray=None if stray is None else replace(stray),
            stray_pieces=list(self.stray_pieces), strays=[], kept=list(self.kept),
        )  # fmt: skip

    def strays_with_reasons(self) -> Iterator[StrayBytes]:
        """Yield the stray bytes; of a side of which no packet was cut, all have the same reason."""
        for stray in self.strays:
            yield stray if self.found else replace(stray, reason=REASON_NOT_BINARY_PROTOCOL)

    def unfinished_pieces(self) -> list[BufferedSegment]:
        """Return the bytes that other captures may need, beside those of ``partial_pdu``, in order."""
        opened = [] if self.open_packet is None else self.open_packet.pieces
        return sorted([*self.kept, *self.stray_pieces, *opened], key=lambda piece: piece.stream_offset)


@dataclass(slots=True)
class FramedPackets:
    """Packets as columns, with one element each, in ``buffer``.

    ``start``: of its first byte in ``buffer``, ``available``: bytes there up to its first hole; ``tail``: where its
    last 16 bytes are, -1 where not all were seen. ``stream_offset``: in its direction, of connection
    ``connection_index`` and ``side``. ``length``, ``seen``: in the stream; of these, captured. Times, number and file
    offset are those of the segment with its first byte; ``end_time_ns``: the latest time of its segments.
    ``provisional``: 1 where its bytes are kept for other captures, which may show more.
    """

    buffer: bytes
    start: Ints
    available: Ints
    tail: Ints
    connection_index: Ints
    side: Ints
    stream_offset: Ints
    length: Ints
    seen: Ints
    time_ns: Ints
    end_time_ns: Ints
    packet_number: Ints
    file_offset: Ints
    provisional: Ints


@dataclass(slots=True)
class _WholePackets:
    """Packets in the block's buffer: starts and lengths, and spans of these with what they have in common."""

    starts: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    # number of packets, connection index, side, stream offset minus buffer offset; how many of them are provisional
    spans: list[tuple[int, int, int, int, int]] = field(default_factory=list)


_Ended = tuple[int, int, OpenPacket, bool]  # connection index, side, packet, whether it is provisional


def recognise_sessions(streams: BlockStreams, *, final: bool) -> None:
    """Find the sides whose first captured octets are an EstablishConnection header, tested once for each direction.

    Their connections are of the binary protocol, on any port, and the side with the earliest header is the client
    unless a SYN shows it, or the only header is an answer whose request was not captured. A direction that may still
    begin so waits for its first 20 octets, if ``final`` is not set.
    """
    waiting = []
    for stream in streams.streams:
        connection, direction = stream.connection, stream.connection.directions[stream.side]
        if connection.kind not in _RECOGNISABLE or direction.framing_state is not None or not stream.extents:
            continue
        first = stream.extents[0]
        head = streams.buffer[first.start : min(first.end, first.start + MIN_SEARCH_BYTES)]
        begins = may_be_establish_connection(head)
        if begins and len(head) < MIN_SEARCH_BYTES:
            if connection.kind is not ConnectionKind.BINARY and not final and len(stream.extents) == 1:
                direction.partial_pdu = streams.copy_segments(first.start, first.end, first.stream_offset)
                waiting.append(stream)
            continue
        if connection.kind is not ConnectionKind.BINARY:
            if not begins or connection.rpc_state is not None:
                continue
            connection.kind = ConnectionKind.BINARY
            connection.directions[stream.side ^ 1].framing_state = None
        headers = [*_header_that_waits(connection, stream.side ^ 1)]
        if begins:
            segment = int(np.searchsorted(streams.segment_start, first.start, "right")) - 1
            time, acknowledged = int(streams.time_ns[segment]), int(streams.acknowledgement[segment])
            headers.append(FirstHeader(time, stream.side, acknowledged))
        _note_headers(connection, headers)
    if waiting:
        streams.streams = [stream for stream in streams.streams if all(stream is not each for each in waiting)]


def _header_that_waits(connection: TcpConnection, side: int) -> Iterator[FirstHeader]:
    """Yield the header that a direction begins with whose order is not certain yet."""
    direction = connection.directions[side]
    if not direction.started and direction.held_segments and direction.framing_state is None:
        first = direction.held_segments[0]
        if len(first.data) >= MIN_SEARCH_BYTES and may_be_establish_connection(first.data[:MIN_SEARCH_BYTES]):
            yield FirstHeader(first.time_ns, side, first.acknowledgement)


def _note_headers(connection: TcpConnection, found: list[FirstHeader]) -> None:
    """Set the client of a connection whose sides begin with these headers, and with the one found before."""
    headers = [each for each in (*found, connection.session_asked) if each is not None]
    if connection.client_certain or not headers:
        return
    connection.session_asked = earliest = min(headers)
    is_alone = all(each.side == earliest.side for each in headers)
    connection.client_side = earliest.side ^ (is_alone and _is_answer(connection, earliest))


def _is_answer(connection: TcpConnection, header: FirstHeader) -> bool:
    """Whether the header of one side is an answer: the ports tell, or it acknowledges bytes of the other side."""
    if connection.served_side is not None:
        return header.side == connection.served_side
    first = connection.directions[header.side ^ 1].base_sequence
    if first is None or not header.acknowledged:
        return False
    return sequence_difference(header.acknowledged - first) >= 0


class SessionFramer:
    """Cuts the streams of binary protocol connections of one capture into packets, block after block."""

    def frame_block(self, streams: BlockStreams, *, final: bool) -> list[FramedPackets]:
        """Return the packets that a block ends; ``final``: no bytes will follow.

        The bytes of an incomplete header at the end of a stream are stored in the direction's ``partial_pdu``.
        """
        whole, ended = _WholePackets(), list[_Ended]()
        for stream in streams.streams:
            is_framed = stream.connection.directions[stream.side].framing_state is not None
            if stream.connection.kind is ConnectionKind.BINARY and (is_framed or stream.has_bytes_or_gap):
                _SideFramer(streams, stream, whole, ended, final=final).run()
        found = []
        if whole.starts:
            found.append(_columns_of_whole(streams, whole))
        if ended:
            found.append(_columns_of_ended(ended))
        return found


class _SideFramer:
    """Frames the bytes of one side in a block."""

    def __init__(
        self, streams: BlockStreams, stream: BlockStream, whole: _WholePackets, ended: list[_Ended], *, final: bool
    ) -> None:
        self._streams, self._stream, self._whole, self._ended, self._final = streams, stream, whole, ended, final
        self._connection = stream.connection
        self._direction: StreamDirection = stream.connection.directions[stream.side]
        self._budget: CaptureBudget = stream.connection.budget
        state = self._direction.framing_state
        if not isinstance(state, SessionSide):
            state = SessionSide(in_step=self._direction.syn_sequence is not None)
            self._direction.framing_state = state
        self._state: SessionSide = state
        self._may_follow = self._direction.syn_sequence is None
        self._budget.packet_bytes += state.waiting_bytes
        state.waiting_bytes = 0

    def run(self) -> None:
        """Cut all extents of the stream into packets, in order."""
        extents = self._stream.extents
        for position, extent in enumerate(extents):
            if extent.gap_before is not None:
                self._pass_gap(extent.gap_before)
            if extent.start == extent.end:
                continue
            gap = extents[position + 1].gap_before if position + 1 < len(extents) else self._stream.gap_after
            self._frame_extent(extent, self._behind(gap))
        if self._stream.gap_after is not None:
            self._pass_gap(self._stream.gap_after)
        if self._final:
            self._end_packet()
            self._close_stray()

    def _behind(self, gap: StreamGap | None) -> Behind:
        if gap is None:
            return Behind.NOTHING if self._final else Behind.MORE
        return Behind.NOTHING if gap.is_hole or gap.cause == "skipped" else Behind.PACKET

    def _pass_gap(self, gap: StreamGap) -> None:
        """Update the state for a hole, or for bytes that were framed when the capture was read."""
        state, opened = self._state, self._state.open_packet
        self._close_stray()
        if not gap.is_hole:
            if opened is not None and gap.start == opened.end and gap.cause != "skipped":
                opened.is_undecided = False  # a packet was cut behind it
            self._end_packet()
            state.found |= gap.cause != "skipped"
            state.in_step, state.out_of_step_reason = gap.cause != "skipped", _REASON_NOT_A_PACKET
            return
        if opened is not None:
            if opened.is_undecided and gap.end > opened.end:
                opened.decide(SESSION_HEADER_BYTES)  # no header is seen where it would end
            if gap.end <= opened.end:
                if gap.end == opened.end and not opened.is_undecided:
                    self._end_packet()  # its end is known: still in step
                return
        self._end_packet()
        state.in_step, state.out_of_step_reason = False, _REASON_CAPTURE_LOSS

    def _frame_extent(self, extent: StreamExtent, behind: Behind) -> None:
        """Cut ``extent`` into packets."""
        state, data, end = self._state, self._streams.buffer, extent.end
        shift = extent.stream_offset - extent.start
        at = extent.start
        while at < end or state.open_packet is not None:
            if state.open_packet is not None:
                at = self._continue_packet(state.open_packet, at, end, shift, behind)
                if state.open_packet is not None:
                    return
            elif state.in_step:
                at = self._walk(at, end, shift, behind)
                if at == end or not state.in_step:
                    continue
                if end - at < MIN_STEP_BYTES:
                    if behind is Behind.MORE:
                        self._keep_partial(at, end, shift)
                        return
                    is_cut = behind is Behind.NOTHING
                    state.in_step = False
                    state.out_of_step_reason = _REASON_CUT_HEADER if is_cut else _REASON_NOT_A_PACKET
                    self._add_stray(at, end, shift)
                    return
                flags, size = read_packet_size(data, at, end) or (0, 0)  # _walk has seen that it is one
                undecided = may_be_followed_by_session_header(flags)
                state.open_packet, state.found = OpenPacket(at + shift, size, undecided), True
            else:
                found_at, keep, is_certain = find_header(data, at, end, behind)
                if found_at is None and keep < end and not self._may_wait(end - keep):
                    self._add_stray(at, keep + 1, shift)  # beyond the limit the header is not believed
                    at = keep + 1
                    continue
                stop = keep if found_at is None else found_at
                if stop > at:
                    self._add_stray(at, stop, shift)
                if found_at is None:
                    if keep < end:
                        self._keep_partial(keep, end, shift)
                    return
                self._close_stray()
                state.in_step, at, state.is_uncertain = True, found_at, not is_certain

    def _walk(self, at: int, end: int, shift: int, behind: Behind) -> int:
        """Note the packets that lie whole in ``buffer[at:end]``; return where the first one begins that does not."""
        starts, lengths = self._whole.starts, self._whole.lengths
        first = len(starts)
        at, in_step = walk_packets(self._streams.buffer, at, end, behind, starts, lengths)
        if count := len(starts) - first:
            self._state.found = True
            provisional = self._keep_start(first, shift)
            self._whole.spans.append((count, self._connection.index, self._stream.side, shift, provisional))
        if not in_step:
            self._state.in_step, self._state.out_of_step_reason = False, _REASON_NOT_A_PACKET
        return at

    def _keep_start(self, first: int, shift: int) -> int:
        """Keep the packets at the beginning of a side without its SYN; return how many of those from ``first`` on."""
        starts, lengths = self._whole.starts, self._whole.lengths
        if self._final:
            return len(starts) - first
        limit = self._direction.first_offset + START_BYTES - shift if self._may_follow else 0
        count = 0
        while first + count < len(starts) and (starts[first + count] < limit or self._state.is_uncertain):
            at, self._state.is_uncertain = starts[first + count], False
            if not self._keep(self._streams.copy_segments(at, at + lengths[first + count], at + shift)):
                break
            count += 1
        return count

    def _continue_packet(self, opened: OpenPacket, at: int, end: int, shift: int, behind: Behind) -> int:
        """Add bytes to the open packet, and end it if they are all that it has; return where they end."""
        while True:
            stop = min(end, opened.end - shift)
            if stop > at:
                self._add_to_packet(opened, at, stop, shift)
                at = stop
            if at + shift < opened.end:
                return at
            if not opened.is_undecided:
                self._end_packet()
                self._state.in_step = True
                return at
            if at == end and behind is not Behind.MORE:
                return at  # the gap behind decides, or the end
            more = session_header_bytes(self._streams.buffer, at, end, behind)
            if more is None:
                if at < end:
                    self._keep_partial(at, end, shift)
                return at
            opened.decide(more)

    def _add_to_packet(self, opened: OpenPacket, at: int, stop: int, shift: int) -> None:
        opened.end_time_ns = max(opened.end_time_ns, self._streams.latest_time(at, stop))
        opened.seen_bytes += stop - at
        room = max(self._budget.packet_bytes, _MIN_OPEN_BYTES_KEPT - opened.kept_bytes, 0)
        if opened.kept_bytes + stop - at < opened.seen_bytes:
            room = 0  # bytes before these were not kept
        keep = min(stop, at + room)
        if keep < stop and room:
            self._budget.unread_packets[NOT_KEPT] += 1
        if keep > at:
            opened.pieces += self._streams.copy_segments(at, keep, at + shift)
            opened.kept_bytes += keep - at
            self._budget.packet_bytes -= keep - at

    def _end_packet(self) -> None:
        """End the open packet, complete or not."""
        state, opened = self._state, self._state.open_packet
        if opened is None:
            return
        state.open_packet = None
        if opened.is_undecided:
            opened.decide(SESSION_HEADER_BYTES)
        self._budget.packet_bytes += opened.kept_bytes
        provisional = self._final
        begins_early = self._may_follow and opened.stream_offset < self._direction.first_offset + START_BYTES
        is_uncertain, state.is_uncertain = state.is_uncertain, False
        if not self._final and (opened.seen_bytes < opened.length or begins_early or is_uncertain):
            provisional = opened.kept_bytes == opened.seen_bytes and self._keep(opened.pieces)
        self._ended.append((self._connection.index, self._stream.side, opened, provisional))

    def _keep(self, pieces: list[BufferedSegment]) -> bool:
        """Keep bytes for other captures; false if that would be too many."""
        size = sum(len(piece.data) for piece in pieces)
        if self._state.kept_bytes + size > _MAX_KEPT_BYTES or size > self._budget.retained_bytes:
            return False
        self._state.kept_bytes += size
        self._budget.retained_bytes -= size
        self._state.kept += pieces
        return True

    def _may_wait(self, size: int) -> bool:
        return size <= max(self._budget.packet_bytes, MIN_STEP_BYTES * 8)

    def _keep_partial(self, at: int, end: int, shift: int) -> None:
        self._direction.partial_pdu = self._streams.copy_segments(at, end, at + shift)
        self._state.waiting_bytes = end - at
        self._budget.packet_bytes -= end - at

    def _add_stray(self, at: int, end: int, shift: int) -> None:
        state, data, stray = self._state, self._streams.buffer, self._state.open_stray
        if stray is None:
            first = int(np.searchsorted(self._streams.segment_start, at, "right")) - 1
            stray = state.open_stray = StrayBytes(
                at + shift, 0, b"", state.out_of_step_reason,
                int(self._streams.time_ns[first]), int(self._streams.packet_number[first]),
                int(self._streams.file_offset[first]) + at - int(self._streams.segment_start[first]),
                provisional=True,
            )  # fmt: skip
        if (room := QUARANTINE_SAMPLE_BYTES - len(stray.sample)) > 0:
            stray.sample += data[at : min(end, at + room)]
        stray.size += end - at
        if self._final:
            return  # its bytes were handed on before
        if stray.provisional and stray.size <= min(_MAX_STRAY_BYTES_KEPT, self._budget.retained_bytes):
            state.stray_pieces += self._streams.copy_segments(at, end, at + shift)
        else:
            stray.provisional, state.stray_pieces = False, []

    def _close_stray(self) -> None:
        state, stray = self._state, self._state.open_stray
        if stray is None:
            return
        if not self._final:
            stray.provisional = stray.provisional and self._keep(state.stray_pieces)
        state.stray_pieces = []
        if len(state.strays) < MAX_STRAYS_PER_DIRECTION:
            state.strays.append(stray)
        else:
            state.strays[-1].size += stray.size
        state.open_stray = None


def _columns_of_whole(streams: BlockStreams, whole: _WholePackets) -> FramedPackets:
    """Return the columns of packets that lie in the block's buffer."""
    start, length = np.array(whole.starts, np.int64), np.array(whole.lengths, np.int64)
    spans = np.array(whole.spans, np.int64).reshape(-1, 5)
    count = spans[:, 0]
    connection, side, shift = (np.repeat(spans[:, column], count) for column in (1, 2, 3))
    place = expand_ranges(np.zeros(len(count), np.int64), count)
    first = np.searchsorted(streams.segment_start, start, "right") - 1
    last = np.searchsorted(streams.segment_start, start + length - 1, "right") - 1
    end_time = streams.time_ns[last]
    several = np.nonzero(last > first)[0]
    if len(several):
        bounds = np.stack([first[several], last[several] + 1], axis=1).ravel()
        times = np.append(streams.time_ns, 0)  # the last bound may be the number of segments
        end_time = end_time.copy()
        end_time[several] = np.maximum.reduceat(times, bounds)[::2]
    return FramedPackets(
        streams.buffer, start, length, start + length - SESSION_HEADER_BYTES, connection, side, start + shift, length,
        length, streams.time_ns[first], end_time, streams.packet_number[first],
        streams.file_offset[first] + start - streams.segment_start[first],
        (place < np.repeat(spans[:, 4], count)).astype(np.int64),
    )  # fmt: skip


def _columns_of_ended(ended: list[_Ended]) -> FramedPackets:
    """Return the columns of packets that were put together from pieces, in a buffer of their own."""
    parts: list[bytes] = []
    rows: list[tuple[int, ...]] = []
    at = 0
    for index, side, packet, provisional in ended:
        size, begins, first, tail = 0, packet.stream_offset, packet.pieces[0], _seen_tail(packet)
        for piece in packet.pieces:
            if piece.stream_offset != begins + size:
                break  # a hole
            parts.append(piece.data)
            size += len(piece.data)
        parts.append(tail)
        rows.append((
            at, size, at + size if tail else -1, index, side, begins, packet.length, packet.seen_bytes, first.time_ns,
            packet.end_time_ns, first.packet_number, first.file_offset, int(provisional),
        ))  # fmt: skip
        at += size + len(tail)
    parts.append(bytes(64))
    columns: list[Ints] = list(np.array(rows, np.int64).T.copy())
    return FramedPackets(b"".join(parts), *columns)


def _seen_tail(packet: OpenPacket) -> bytes:
    """Return the last 16 bytes of a packet; none where not all of them were seen."""
    behind = packet.stream_offset + packet.length
    tail = b""
    for piece in reversed(packet.pieces):
        if piece.stream_offset + len(piece.data) != behind:
            return b""
        tail = piece.data[-(SESSION_HEADER_BYTES - len(tail)) :] + tail
        behind = piece.stream_offset
        if len(tail) == SESSION_HEADER_BYTES:
            return tail
    return b""
