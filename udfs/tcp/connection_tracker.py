"""Assigns the segments of a block to TCP connections and lays their ordered bytes into one buffer.

Connections are found with array operations over the whole block; Python code runs once per connection and run of
segments, not once per packet. A four-tuple becomes a new connection with a SYN of another sequence number or much later
(``max_clock_skew_s``), or if neither direction continues the previous sequence numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from udfs.array_types import Bools, Ints
from udfs.columns.absent import NO_TIME
from udfs.columns.groups import group_bounds
from udfs.dcerpc.interfaces import BINARY_PROTOCOL_PORT
from udfs.dcerpc.pdu_headers import payloads_starting_like_pdus
from udfs.files.capture_file import BUFFER_PADDING_BYTES
from udfs.tcp.bad_copies import DisputedBytes, drop_bad_copies
from udfs.tcp.capture_budget import NOT_FOLLOWED, NOT_RECOGNISED, CaptureBudget
from udfs.tcp.connections import (
    GAP_FRAMED_BEFORE,
    GAP_FRAMED_ELSEWHERE,
    MAX_SEQUENCE_JUMP,
    MAX_SKIPPED_BYTES_KEPT,
    MAX_START_HOLD_BYTES,
    BufferedSegment,
    ConnectionKind,
    DataSegment,
    SegmentRun,
    SkippedSegment,
    StreamDirection,
    StreamGap,
    TcpConnection,
    farther_number,
    sequence_difference,
)
from udfs.tcp.four_tuples import PackedEndpoint, group_by_four_tuple, packed_endpoints
from udfs.tcp.packet_decoder import ACK, FIN, FRAMED_BEFORE, RST, SKIPPED_BEFORE, STREAM_START, SYN, TcpSegments
from udfs.tcp.time_limits import TimeLimits, earliest_ns, elapsed_ns
from udfs.tcp.tunnels import NO_IDENTIFIER

_Endpoints = tuple[PackedEndpoint, PackedEndpoint]
_FIRST_DYNAMIC_PORT: Final = 1024
_FIRST_OCTETS: Final = 32  # of a direction, by which the binary protocol is recognised
_HELD_SEGMENT_BYTES: Final = 256  # of memory that a segment out of order takes beside its payload
_FEW: Final = 16  # segments that are looked at one by one, which is faster
_MASK: Final = 0xFFFFFFFF
_GAP_CAUSES: Final = {
    FRAMED_BEFORE: GAP_FRAMED_BEFORE,
    SKIPPED_BEFORE: "skipped",
    FRAMED_BEFORE | SKIPPED_BEFORE: GAP_FRAMED_ELSEWHERE,
}


@dataclass(slots=True)
class StreamExtent:
    """A contiguous part of a stream in the block's buffer: ``[start, end)`` there, from ``stream_offset`` on.

    ``gap_before`` is the gap in front of it, if any.
    """

    start: int
    end: int
    stream_offset: int
    gap_before: StreamGap | None


@dataclass(slots=True)
class BlockStream:
    """The bytes of one direction of a connection in a block, preceded by those kept from earlier blocks."""

    connection: TcpConnection
    side: int
    extents: list[StreamExtent]
    gap_after: StreamGap | None  # behind the last extent

    @property
    def has_bytes_or_gap(self) -> bool:
        """Whether there is anything to frame: bytes that wait for their order are not in a stream yet."""
        return bool(self.extents) or self.gap_after is not None


@dataclass(slots=True)
class BlockStreams:
    """All streams of a block in one ``buffer`` (followed by padding zeros), and the packets that carried them.

    The arrays have one element per packet, in buffer order: ``segment_start`` and ``segment_size`` of its bytes in
    ``buffer``, ``time_ns``, ``packet_number``, ``file_offset`` of these bytes in the decompressed file, and
    ``acknowledgement``.
    """

    buffer: bytes
    streams: list[BlockStream] = field(default_factory=list)
    segment_start: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    segment_size: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    time_ns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    packet_number: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    file_offset: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    acknowledgement: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def latest_time(self, start: int, end: int) -> int:
        """Return the latest time of the packets that carried ``buffer[start:end]``."""
        first, last = (int(np.searchsorted(self.segment_start, at, "right")) for at in (start, end - 1))
        return int(self.time_ns[first - 1 : last].max())

    def copy_segments(self, start: int, end: int, offset: int) -> list[BufferedSegment]:
        """Copy ``buffer[start:end]``, which begins at a stream offset, to segments that outlive the block."""
        found = []
        index = int(np.searchsorted(self.segment_start, start, "right")) - 1
        at = start
        while at < end:
            low = int(self.segment_start[index])
            stop = min(end, low + int(self.segment_size[index]))
            if stop > at:
                found.append(
                    BufferedSegment(
                        offset + at - start,
                        self.buffer[at:stop],
                        int(self.time_ns[index]),
                        int(self.packet_number[index]),
                        int(self.file_offset[index]) + at - low,
                        int(self.acknowledgement[index]),
                        0,
                    )
                )
                at = stop
            index += 1
        return found


class ConnectionTracker:
    """Tracks the TCP connections of one capture, block after block.

    ``known_endpoints``: (address, port) on which MSMQ is known to listen, for RPC; ``session_endpoints``: for the
    binary protocol. ``disputed_bytes``: by connection index, bytes
    of which copies with a wrong checksum are left out. ``segment_connections``: index of the
    connection of each segment in the last block. ``begins_session``: whether a direction whose first captured bytes
    these are shows the binary protocol.
    """

    def __init__(
        self,
        limits: TimeLimits,
        budget: CaptureBudget | None = None,
        begins_session: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        self.budget = budget or CaptureBudget()
        self._begins_session = begins_session
        self.connections: list[TcpConnection] = []
        self.known_endpoints: set[tuple[bytes, int]] = set()
        self.session_endpoints: set[tuple[bytes, int]] = set()
        self.disputed_bytes: dict[int, DisputedBytes] = {}
        self.segment_connections = np.zeros(0, np.int64)
        self._window, self._max_clock_skew = limits.reorder_window_ns, limits.max_clock_skew_ns
        self._beyond_limit: TcpConnection | None = None  # stands for all connections that are not followed
        self._connection_by_endpoints: dict[tuple[_Endpoints, int], TcpConnection] = {}  # and tunnel
        self._active_directions: dict[
            int, tuple[TcpConnection, int]
        ] = {}  # directions with delivered or buffered bytes in this block

    def add_block(self, segments: TcpSegments) -> BlockStreams:
        """Assign the segments of a block to connections; return the streams with the bytes that are in order now."""
        if not len(segments.record_index):
            return BlockStreams(b"")
        active, owner, side = self._assign_connections(segments)
        self.segment_connections = owner
        for index, suspect in self.disputed_bytes.items():
            ours = np.nonzero(active & (owner == index) & (segments.payload_length > 0))[0]
            if len(ours):
                drop_bad_copies(self.connections[index], suspect, segments, ours, side, active)
        rows = np.nonzero(active & (segments.payload_length > 0))[0]
        self._add_data_segments(segments, rows, owner, side)
        return self._join_streams(segments, rows)

    def forget_connection(self, endpoints: _Endpoints, tunnel_identifier: int) -> None:
        """Let what follows between two endpoints, the lower one first, be another connection."""
        self._connection_by_endpoints.pop((endpoints, tunnel_identifier), None)

    def finish_capture(self) -> BlockStreams:
        """End the capture: return all held bytes, with gaps for what is missing."""
        for connection in self.connections:
            for number, direction in enumerate(connection.directions):
                if direction.held_segments:
                    direction.release_held(None)
                receiver = connection.directions[number ^ 1]
                direction.note_missing_end(receiver)
                if receiver.last_acknowledgement is not None:
                    direction.note_acknowledged(receiver.last_acknowledgement)
                if direction.delivered or direction.framing_state is not None:
                    self._active_directions[connection.index * 2 + number] = (connection, number)
        return self._join_streams(None, np.zeros(0, np.int64))

    # -- assignment to connections --------------------------------------------------------------------------------

    def _assign_connections(self, s: TcpSegments) -> tuple[Bools, Ints, Ints]:
        """Return a mask of the segments to reassemble, the index of each segment's connection, and its side (0, 1)."""
        pair, side, first = group_by_four_tuple(s)
        count = len(first)
        order = np.argsort(pair, kind="stable")
        bounds = group_bounds(pair[order], count)
        marked = (s.tcp_flags & (SYN | FIN | RST)) != 0
        special = np.zeros(count, bool)
        special[pair[marked]] = True
        jumped = np.zeros(len(pair), bool)
        jumped[_find_jumps(s, pair, side)] = True
        special[pair[jumped]] = True
        weight = np.bincount(pair, s.record_count, count)
        self._pdu_starts: Bools | None = None
        owner = np.zeros(len(pair), np.int64)
        active = np.zeros(len(pair), bool)
        fresh: list[tuple[int, TcpConnection]] = []
        known = len(self.connections)
        for group in np.argsort(first, kind="stable").tolist():
            rows = order[bounds[group] : bounds[group + 1]]
            row = rows[0]
            ends = packed_endpoints(s, int(row))
            flipped = ends[0] > ends[1]
            name = (ends[1], ends[0]) if flipped else ends
            if flipped != bool(side[row]):
                side[rows] ^= 1
            connection = self._connection_by_endpoints.get((name, int(s.tunnel_identifier[row])))
            if connection is None:
                connection = self._add_connection(name, s, int(row), fresh)
            parts = [(connection, rows)]
            if connection is not self._beyond_limit and (
                special[group] or self._starts_discontinuous(connection, s, rows, side)
            ):
                parts = self._split_connections(connection, name, s, rows, side, marked, jumped, fresh)
            else:
                _update_last_numbers(connection, s, rows, side)
            for connection, part in parts:
                owner[part] = connection.index
                packets = int(weight[group]) if part is rows else int(s.record_count[part].sum())
                connection.packet_count += packets
                if connection is self._beyond_limit:
                    self.budget.unread_packets[NOT_FOLLOWED] += packets
                    continue
                self._update_connection(connection, s, part, side)
                if connection.kind is ConnectionKind.OTHER:
                    continue
                if connection.round_trip_ns is None and connection.syn_time_ns is not None:
                    _record_round_trip(connection, s, part, side)
                follow = self._select_segments(connection, s, part, side)
                if follow is not None:
                    active[follow] = True
        # Number the new connections by their first packets, like tshark's tcp.stream.
        fresh.sort(key=lambda entry: entry[0])
        renumber = np.zeros(len(fresh), np.int64)
        for position, (_, connection) in enumerate(fresh):
            renumber[connection.index - known] = known + position
            connection.index = known + position
            self.connections[connection.index] = connection
        late = owner >= known
        owner[late] = renumber[owner[late] - known]
        return active, owner, side

    def _add_connection(
        self,
        name: _Endpoints,
        s: TcpSegments,
        row: int,
        fresh: list[tuple[int, TcpConnection]],
    ) -> TcpConnection:
        """Return a new connection, or the one that stands for all connections over the limit."""
        time = int(s.time_ns[row])
        tunnel = int(s.tunnel_identifier[row])
        if self.budget.connections <= 0:
            self._connection_by_endpoints.pop((name, tunnel), None)
            if self._beyond_limit is not None:
                return self._beyond_limit
        connection = TcpConnection(len(self.connections), name, time, time, budget=self.budget)
        self.connections.append(connection)
        fresh.append((row, connection))
        if self.budget.connections <= 0:
            connection.kind, self._beyond_limit = ConnectionKind.OTHER, connection
            return connection
        self.budget.connections -= 1
        connection.tunnel_identifier = None if tunnel == NO_IDENTIFIER else tunnel
        self._connection_by_endpoints[name, tunnel] = connection
        return connection

    def _starts_discontinuous(self, connection: TcpConnection, s: TcpSegments, rows: Ints, side: Ints) -> bool:
        """Whether a side's first segment does not continue the previous block (within a block see ``_find_jumps``)."""
        for number, direction in enumerate(connection.directions):
            if direction.last_sequence is None:
                continue
            own = rows[side[rows] == number]
            if len(own) and _is_discontinuous(direction, s, int(own[0])):
                return True
        return False

    def _split_connections(
        self, connection: TcpConnection, name: _Endpoints, s: TcpSegments, rows: Ints,
        side: Ints, marked: Bools, jumped: Bools, fresh: list[tuple[int, TcpConnection]],
    ) -> list[tuple[TcpConnection, Ints]]:  # fmt: skip
        """Split the segments of a four-tuple into connections; record SYN, FIN and RST."""
        parts = []
        begin = seen = 0
        # Only flagged segments, and those that do not continue the one before, can start or end a connection.
        special = marked[rows] | jumped[rows]
        for number in (0, 1):
            special[np.nonzero(side[rows] == number)[0][:1]] = True
        for position in np.nonzero(special)[0].tolist():
            _update_last_numbers(connection, s, rows[seen:position], side)
            seen = position + 1
            row = int(rows[position])
            flags, number = int(s.tcp_flags[row]), int(side[row])
            direction = connection.directions[number]
            time, sequence = int(s.time_ns[row]), int(s.sequence[row])
            if flags & RST and connection.is_outside_window(number, sequence):
                continue
            if marked[row] and flags & SYN:
                acknowledgement = int(s.acknowledgement[row]) if flags & ACK else None
                new = self._is_new_connection(connection, number, sequence, acknowledgement, time)
            else:
                new = not flags & RST and _is_discontinuous(direction, s, row)
            if new:
                if position > begin:
                    parts.append((connection, rows[begin:position]))
                    begin = position
                connection = self._add_connection(name, s, row, fresh)
                if connection is self._beyond_limit:
                    break
                direction = connection.directions[number]
            if not flags & RST:
                _note_numbers(
                    connection, direction, flags, sequence, int(s.acknowledgement[row]), int(s.payload_length[row])
                )
            if marked[row]:
                _record_flags(
                    connection, number, flags, time, sequence, int(s.acknowledgement[row]), int(s.payload_length[row])
                )
        if connection is not self._beyond_limit:
            _update_last_numbers(connection, s, rows[seen:], side)
        parts.append((connection, rows[begin:]))
        return parts

    def _is_new_connection(
        self, connection: TcpConnection, number: int, sequence: int, acknowledgement: int | None, time: int
    ) -> bool:
        """Whether a SYN of a side opens another connection."""
        direction, other = connection.directions[number], connection.directions[number ^ 1]
        age = elapsed_ns(connection.first_time_ns, time)
        if direction.sent_until is None and other.syn_sequence is not None and acknowledgement is not None:
            # It sent RSTs at most, which answered the same SYN before.
            return acknowledgement != (other.syn_sequence + 1) & _MASK
        if direction.syn_sequence is not None:  # a SYN that is sent again comes within minutes
            return direction.syn_sequence != sequence or age > self._max_clock_skew
        if direction.last_sequence is not None:
            # Data before the SYN: reordered if it follows the SYN closely, else the SYN opens a new connection.
            ahead = sequence_difference(direction.last_sequence - sequence - 1)
            if direction.begins_behind(sequence):
                return age > self._max_clock_skew
            return direction.started or not 0 <= ahead <= MAX_SEQUENCE_JUMP or abs(age) > self._window
        if other.last_sequence is None or other.syn_sequence is not None:
            return False
        return abs(age) > self._window

    def _update_connection(self, connection: TcpConnection, s: TcpSegments, rows: Ints, side: Ints) -> None:
        """Record times of segments in their connection, and what their acknowledgements show of the other side."""
        times = s.time_ns[rows]
        known = times[times != NO_TIME]
        if len(known):
            connection.last_time_ns = max(connection.last_time_ns, int(known.max()))
            connection.first_time_ns = earliest_ns(connection.first_time_ns, int(known.min()))
        for number, direction in enumerate(connection.directions):
            other = connection.directions[number ^ 1]
            if direction.syn_sequence is not None and other.syn_sequence is None and not other.started:
                _begin_as_acknowledged(other, direction, s, rows[side[rows] == number])
            if direction.last_acknowledgement is not None:
                other.note_acknowledged(direction.last_acknowledgement)
                if direction.first_ack is None:
                    own = rows[(side[rows] == number) & ((s.tcp_flags[rows] & (SYN | ACK | RST)) == ACK)]
                    if len(own):
                        first = own[np.argmin(s.time_ns[own])]
                        direction.first_ack = (
                            int(s.time_ns[first]),
                            int(s.sequence[first]),
                            int(s.acknowledgement[first]),
                        )

    def _select_segments(self, connection: TcpConnection, s: TcpSegments, rows: Ints, side: Ints) -> Ints | None:
        """Return the segments to reassemble, if any. RPC is recognised by the port or by a PDU header in a segment."""
        if connection.kind is not ConnectionKind.UNDECIDED and connection.kind is not ConnectionKind.COLD:
            return rows
        ports = (connection.port_of_side(0), connection.port_of_side(1))
        if BINARY_PROTOCOL_PORT in ports or (
            self.session_endpoints
            and any((address, port) in self.session_endpoints for _, address, port in connection.endpoints)
        ):
            connection.kind = ConnectionKind.BINARY
            return rows
        if connection.directions[0].syn_sequence is not None or connection.directions[1].syn_sequence is not None:
            return rows  # its first bytes will show the protocol
        if connection.on_known_port or any(
            (address, port) in self.known_endpoints for _, address, port in connection.endpoints
        ):
            connection.kind = ConnectionKind.RPC
            return rows
        connection.kind = ConnectionKind.COLD
        if self._shows_session(connection, s, rows, side):
            connection.kind = ConnectionKind.BINARY
            return rows
        if self._pdu_starts is None:
            self._pdu_starts = payloads_starting_like_pdus(s.buffer, s.payload_start, s.captured_length)
        begins = np.nonzero(self._pdu_starts[rows])[0]
        if len(begins) and self.budget.recognitions <= 0:
            self.budget.unread_packets[NOT_RECOGNISED] += int(s.record_count[rows[begins[0] :]].sum())
            begins = begins[:0]
        skipped = rows[: begins[0]] if len(begins) else rows
        for number, direction in enumerate(connection.directions):
            direction.unrecognised_bytes += int(s.payload_length[skipped[side[skipped] == number]].sum())
        self._keep_skipped(connection, s, skipped, side)
        if not len(begins):
            return None
        self.budget.recognitions -= 1
        connection.kind = ConnectionKind.RPC
        return rows[begins[0] :]

    def _shows_session(self, connection: TcpConnection, s: TcpSegments, rows: Ints, side: Ints) -> bool:
        """Whether the first captured bytes of a direction, which are among ``rows``, begin the binary protocol."""
        for number, direction in enumerate(connection.directions):
            if direction.unrecognised_bytes:
                continue  # its first bytes were looked at
            own = rows[(side[rows] == number) & (s.captured_length[rows] > 0)]
            if len(own):
                start, size = int(s.payload_start[own[0]]), int(s.captured_length[own[0]])
                if self._begins_session(bytes(s.buffer[start : start + min(size, _FIRST_OCTETS)])):
                    return True
        return False

    def _keep_skipped(self, connection: TcpConnection, s: TcpSegments, rows: Ints, side: Ints) -> None:
        """Keep the first skipped segments: with another capture they may complete a PDU.

        Only ports above 1023 count: except for the endpoint mapper, RPC servers use these.
        """
        if min(connection.port_of_side(0), connection.port_of_side(1)) < _FIRST_DYNAMIC_PORT:
            return
        for row in rows[s.payload_length[rows] > 0].tolist():
            start, captured = int(s.payload_start[row]), int(s.captured_length[row])
            if (
                connection.skipped_bytes_kept + captured > MAX_SKIPPED_BYTES_KEPT
                or captured > self.budget.skipped_bytes
            ):
                return
            connection.skipped_bytes_kept += captured
            self.budget.skipped_bytes -= captured
            connection.first_skipped_segments.append(
                SkippedSegment(
                    int(side[row]), int(s.time_ns[row]), int(s.packet_number[row]), int(s.file_offset[row]),
                    int(s.sequence[row]), int(s.acknowledgement[row]), int(s.payload_length[row]),
                    bytes(s.buffer[start : start + captured]),
                )
            )  # fmt: skip

    # -- reassembly -----------------------------------------------------------------------------------------------

    def _add_data_segments(self, s: TcpSegments, rows: Ints, owner: Ints, side: Ints) -> None:
        """Add data segments to their directions, in-order runs of segments at once."""
        if not len(rows):
            return
        key = owner[rows] * 2 + side[rows]
        order = np.argsort(key, kind="stable")
        self._data_rows = rows = rows[order]
        key = key[order]
        length = s.payload_length[rows]
        sequence = s.sequence[rows] + ((s.tcp_flags[rows] & SYN) != 0)  # data in a SYN segment follows the SYN
        same = np.zeros(len(rows), bool)
        same[1:] = (
            (key[1:] == key[:-1])
            & (((sequence[1:] - sequence[:-1] - length[:-1]) & 0xFFFFFFFF) == 0)
            & (s.captured_length[rows[:-1]] == length[:-1])
        )
        firsts = np.nonzero(~same)[0]
        lasts = np.append(firsts[1:], len(rows)) - 1
        ends = np.cumsum(length)
        memory = memoryview(s.buffer)
        for begin, end, name in zip(firsts.tolist(), lasts.tolist(), key[firsts].tolist(), strict=True):
            connection: TcpConnection = self.connections[name >> 1]
            direction = connection.directions[name & 1]
            self._active_directions[name] = (connection, name & 1)
            if not direction.started and int(s.tcp_flags[rows[begin]]) & STREAM_START:
                direction.move_start_back_to(int(sequence[begin]))
            whole = int(s.captured_length[rows[end]]) == int(length[end])
            if whole and not direction.held_segments:
                total = int(ends[end] - ends[begin] + length[begin])
                if not direction.started and total > MAX_START_HOLD_BYTES:
                    # So many bytes in order: holding them back would give the same start.
                    direction.start_at(int(sequence[begin]))
                if direction.started and direction.stream_offset_of(int(sequence[begin])) == direction.next_offset:
                    direction.delivered.append(SegmentRun(begin, end, 0, total))
                    direction.next_offset += total
                    direction.distinct_bytes += total
                    continue
            held = _memory_of_held(direction)
            for position in range(begin, end + 1):
                row = int(rows[position])
                start, captured = int(s.payload_start[row]), int(s.captured_length[row])
                direction.add_segment(
                    DataSegment(
                        position,
                        int(s.time_ns[row]),
                        int(s.packet_number[row]),
                        int(s.file_offset[row]),
                        int(sequence[position]) & 0xFFFFFFFF,
                        int(s.acknowledgement[row]),
                        captured,
                        int(length[position]),
                        memory[start : start + captured],
                        _GAP_CAUSES.get(int(s.tcp_flags[row]) & (FRAMED_BEFORE | SKIPPED_BEFORE), "truncated"),
                        memory[start - int(s.header_bytes[row]) : start],
                    ),
                    self._window,
                )
            self.budget.held_bytes -= _memory_of_held(direction) - held
            if self.budget.held_bytes < 0 and direction.held_segments:
                self.budget.held_bytes += _memory_of_held(direction)
                direction.release_held(None)

    def _join_streams(self, s: TcpSegments | None, rows: Ints) -> BlockStreams:
        """Join the delivered bytes of all directions into one buffer, direction after direction."""
        indexes: list[Ints] = []
        kept: list[BufferedSegment] = []
        places: list[
            tuple[int, int, int]
        ] = []  # position in indexes' arrays, skipped bytes, byte count of single segments
        streams = []
        size = pieces = 0
        for name in sorted(self._active_directions):
            connection, number = self._active_directions[name]
            direction = connection.directions[number]
            offset = direction.partial_pdu[0].stream_offset if direction.partial_pdu else None
            extents: list[StreamExtent] = []
            begin, before = size, None
            for item in (*direction.partial_pdu, *direction.delivered):
                if isinstance(item, StreamGap):
                    if size == begin and before is not None and before.is_hole and item.is_hole:
                        before = StreamGap(before.start, item.end, before.cause)
                    elif size > begin or before is not None:
                        extents.append(StreamExtent(begin, size, offset or 0, before))
                        before = item
                    else:
                        before = item
                    begin, offset = size, item.end
                elif isinstance(item, BufferedSegment):
                    if offset is None:
                        offset = item.stream_offset
                    indexes.append(np.array([-1 - len(kept)]))
                    kept.append(item)
                    pieces += 1
                    size += len(item.data)
                else:
                    if offset is None:
                        offset = _first_delivered_offset(direction)
                    if item.first_segment == item.last_segment:
                        places.append((pieces, item.skipped_bytes, item.byte_count))
                    indexes.append(np.arange(item.first_segment, item.last_segment + 1))
                    pieces += item.last_segment - item.first_segment + 1
                    size += item.byte_count
            if size > begin:
                extents.append(StreamExtent(begin, size, offset or 0, before))
                before = None
            direction.delivered, direction.partial_pdu = [], []
            streams.append(BlockStream(connection, number, extents, before))
        self._active_directions = {}
        return _copy_streams(
            s, self._data_rows if s is not None and len(rows) else rows, indexes, kept, places, streams
        )


def _record_flags(
    connection: TcpConnection, number: int, flags: int, time: int, sequence: int, acknowledgement: int,
    payload_length: int,
) -> None:  # fmt: skip
    """Record SYN, FIN and RST of a segment that side ``number`` sent."""
    direction = connection.directions[number]
    if flags & SYN:
        if direction.syn_sequence is None:
            direction.begin_at_syn(sequence)
            if connection.kind is ConnectionKind.COLD:
                connection.kind = ConnectionKind.UNDECIDED
        if not connection.client_certain:
            connection.client_side, connection.client_certain = (number ^ 1 if flags & ACK else number), True
        if not flags & ACK:
            if connection.syn_time_ns is None:
                connection.syn_time_ns = time
            first, last = direction.first_syn_ns, direction.last_syn_ns
            direction.first_syn_ns = time if first is None else earliest_ns(first, time)
            direction.last_syn_ns = time if last is None else max(last, time)
        if flags & ACK and direction.syn_acknowledgement is None:
            direction.syn_acknowledgement = acknowledgement
    if flags & FIN and _is_earlier(time, direction.fin_time_ns):
        direction.fin_time_ns = time
        direction.fin_sequence = (sequence + payload_length) & 0xFFFFFFFF
    if flags & RST:
        connection.note_reset(number, time, sequence, acknowledgement if flags & ACK else None)
        if _is_earlier(time, direction.reset_ns):
            direction.reset_ns = time


def _note_numbers(
    connection: TcpConnection, direction: StreamDirection, flags: int, sequence: int, acknowledgement: int, size: int
) -> None:
    """Record the numbers of one segment; it is no RST."""
    direction.last_sequence = (sequence + size) & _MASK
    if flags & (SYN | FIN):
        size += 1
    if size:
        direction.sent_until = farther_number(direction.sent_until, (sequence + size) & _MASK)
    if flags & ACK:
        direction.last_acknowledgement = acknowledgement
        if acknowledgement:  # a remainder that does not know it has 0
            direction.acknowledged_until = farther_number(direction.acknowledged_until, acknowledgement)
    if connection.resets:
        connection.note_progress()


def _update_last_numbers(connection: TcpConnection, s: TcpSegments, rows: Ints, side: Ints) -> None:
    """Record the last and the farthest numbers of both directions; no row has a SYN, FIN or RST."""
    if not len(rows):
        return
    mine = side[rows]
    for number, direction in enumerate(connection.directions):
        own = rows[mine == number]
        if not len(own):
            continue
        facts = s.tcp_flags[own], s.sequence[own], s.acknowledgement[own], s.payload_length[own]
        if len(own) < _FEW or connection.resets:
            for flags, sequence, acknowledgement, size in zip(*(each.tolist() for each in facts), strict=True):
                _note_numbers(connection, direction, flags, sequence, acknowledgement, size)
            continue
        flags, sequence, acknowledgement, size = facts
        direction.last_sequence = (int(sequence[-1]) + int(size[-1])) & _MASK
        if int(flags[-1]) & ACK:
            direction.last_acknowledgement = int(acknowledgement[-1])
        acknowledged = acknowledgement[((flags & ACK) != 0) & (acknowledgement != 0)]
        direction.note_numbers((sequence + size)[size > 0], acknowledged)


def _begin_as_acknowledged(direction: StreamDirection, receiver: StreamDirection, s: TcpSegments, rows: Ints) -> None:
    """Start a direction whose SYN was not captured where its receiver's part of the handshake says; ``rows``: its rows.

    That is the SYN with ACK, or what was sent before any byte: it acknowledges the SYN alone, unless the other side
    speaks first and the handshake's last ACK was lost. A remainder that does not know the number has 0.
    """
    flags = s.tcp_flags[rows]
    syn = receiver.syn_sequence or 0
    begins = s.sequence[rows] == np.where(flags & SYN, syn, (syn + 1) & _MASK)
    found = rows[((flags & (ACK | RST)) == ACK) & begins & (s.acknowledgement[rows] != 0)]
    if len(found):
        direction.begin_at(int(s.acknowledgement[found[0]]))


def _memory_of_held(direction: StreamDirection) -> int:
    """Return about how many bytes of memory the segments of a direction that are out of order take."""
    return direction.held_bytes + _HELD_SEGMENT_BYTES * len(direction.held_segments)


def _first_delivered_offset(direction: StreamDirection) -> int:
    """Return the stream offset of the first delivered item of this block: all items end at ``next_offset``."""
    sizes = (
        item.end - item.start
        if isinstance(item, StreamGap)
        else len(item.data)
        if isinstance(item, BufferedSegment)
        else item.byte_count
        for item in direction.delivered
    )
    return direction.next_offset - sum(sizes)


def _copy_streams(
    s: TcpSegments | None, rows: Ints, indexes: list[Ints], kept: list[BufferedSegment],
    places: list[tuple[int, int, int]], streams: list[BlockStream],
) -> BlockStreams:  # fmt: skip
    if not indexes:
        return BlockStreams(b"", streams)
    index = np.concatenate(indexes)
    own = index < 0
    count = len(index)
    if s is not None and len(rows):
        row = rows[np.where(own, 0, index)]
        start, size = s.payload_start[row], s.captured_length[row]
        time, number, acknowledgement = s.time_ns[row], s.packet_number[row], s.acknowledgement[row]
        file_offset = s.file_offset[row]
        data: bytes | bytearray = s.buffer
    else:
        start, size, time, number, acknowledgement, file_offset = (np.zeros(count, np.int64) for _ in range(6))
        data = b""
    for position, skip, take in places:
        start[position] += skip
        file_offset[position] += skip
        size[position] = take
    memory = memoryview(data)
    parts: list[memoryview | bytes] = [
        memory[low:high] for low, high in zip(start.tolist(), (start + size).tolist(), strict=True)
    ]
    for position, piece in zip(np.nonzero(own)[0].tolist(), kept, strict=True):
        parts[position] = piece.data
        size[position], time[position], number[position] = len(piece.data), piece.time_ns, piece.packet_number
        file_offset[position], acknowledgement[position] = piece.file_offset, piece.acknowledgement
    ends = np.cumsum(size)
    parts.append(bytes(BUFFER_PADDING_BYTES))  # so that headers at the end can be gathered
    return BlockStreams(b"".join(parts), streams, ends - size, size, time, number, file_offset, acknowledgement)


def _find_jumps(s: TcpSegments, pair: Ints, side: Ints) -> Ints:
    """Return segments whose sequence number and acknowledgement both do not continue the direction's last segment."""
    order = np.argsort(pair * 2 + side, kind="stable")
    key = (pair * 2 + side)[order]
    same = key[1:] == key[:-1]
    now, before = order[1:], order[:-1]
    sequence = _absolute_distance(s.sequence[now] - s.sequence[before] - s.payload_length[before])
    acknowledgement = _absolute_distance(s.acknowledgement[now] - s.acknowledgement[before])
    plain = ((s.tcp_flags[now] | s.tcp_flags[before]) & (SYN | RST)) == 0
    jumped: Ints = now[same & plain & (sequence > MAX_SEQUENCE_JUMP) & (acknowledgement > MAX_SEQUENCE_JUMP)]
    return jumped


def _absolute_distance(difference: Ints) -> Ints:
    distance: Ints = np.abs(sequence_difference(difference))
    return distance


def _is_discontinuous(direction: StreamDirection, s: TcpSegments, row: int) -> bool:
    """Whether a segment continues neither the sequence numbers nor the acknowledgements of its direction."""
    if direction.last_sequence is None or direction.last_acknowledgement is None:
        return False
    if int(s.tcp_flags[row]) & (SYN | RST) or not int(s.tcp_flags[row]) & ACK:
        return False
    return (
        abs(sequence_difference(int(s.sequence[row]) - direction.last_sequence)) > MAX_SEQUENCE_JUMP
        and abs(sequence_difference(int(s.acknowledgement[row]) - direction.last_acknowledgement)) > MAX_SEQUENCE_JUMP
    )


def _is_earlier(time: int, known: int | None) -> bool:
    """Whether a packet is the first of its kind: there is none yet, or it is known to be earlier."""
    return known is None or (time != NO_TIME and earliest_ns(time, known) != known)


def _record_round_trip(connection: TcpConnection, s: TcpSegments, rows: Ints, side: Ints) -> None:
    """Record the time from SYN to the handshake's last ACK, the client's first ACK of exactly the server's SYN.

    It is ``NO_TIME`` where one of the two has no time.
    """
    client = connection.client_side
    if client is None or connection.syn_time_ns is None:
        return
    ours, theirs = connection.directions[client], connection.directions[client ^ 1]
    if ours.syn_sequence is None or theirs.syn_sequence is None:
        return
    mine = rows[side[rows] == client]
    last = mine[
        ((s.tcp_flags[mine] & (SYN | ACK | RST)) == ACK)
        & (s.sequence[mine] == (ours.syn_sequence + 1) & 0xFFFFFFFF)
        & (s.acknowledgement[mine] == (theirs.syn_sequence + 1) & 0xFFFFFFFF)
        # a SYN captured after it cannot be used
        & ((s.time_ns[mine] >= connection.syn_time_ns) | (s.time_ns[mine] == NO_TIME))
    ]
    if len(last):
        at = int(s.time_ns[last].min())  # NO_TIME is the smallest
        known = NO_TIME not in (at, connection.syn_time_ns)
        connection.round_trip_ns = at - connection.syn_time_ns if known else NO_TIME
