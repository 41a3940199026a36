"""Segments of a block -> the streams that they continue, joined into one buffer.

Connections are found with array operations over the whole block; Python works once per connection and run of segments,
not once per packet. A connection lives until a SYN with another sequence number, or until neither direction's numbers
continue: then the same four-tuple is a new connection.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from udfs.dcerpc.interfaces import BINARY_PROTOCOL_PORT
from udfs.dcerpc.pdu import plausible_headers
from udfs.files.container import PAD, Ints
from udfs.tcp.flows import (
    ELSEWHERE,
    JUMP,
    PASSED_BYTES,
    SETTLED,
    START_BYTES,
    START_SEGMENTS,
    Connection,
    Direction,
    Gap,
    Kind,
    Packet,
    Passed,
    Piece,
    Run,
    signed,
)
from udfs.tcp.packets import ACK, BEGINS, CUT_BEFORE, FIN, PASSED_OVER, RST, SYN, Segments

Endpoint = tuple[int, bytes, int]
_FIRST_DYNAMIC_PORT: Final = 1024
_PASSED_BUDGET: Final = 4 << 20  # bytes of all connections kept of what was passed over
_CAUSES: Final = {CUT_BEFORE: SETTLED, PASSED_OVER: "skipped", CUT_BEFORE | PASSED_OVER: ELSEWHERE}


@dataclass(slots=True)
class Extent:
    """A stretch of one direction without holes: ``[start, end)`` in the joined buffer, from stream ``offset`` on.

    ``before`` is the hole in front of it, if there is one.
    """

    start: int
    end: int
    offset: int
    before: Gap | None


@dataclass(slots=True)
class Stream:
    """What a block adds to one direction of a connection, the bytes kept from earlier blocks first."""

    connection: Connection
    side: int
    extents: list[Extent]
    after: Gap | None  # a hole that ends the stretch


@dataclass(slots=True)
class Streams:
    """The streams of a block over one ``joined`` buffer (``PAD`` zeros behind it), and the packets they came in.

    ``piece_start`` (ascending) says where in ``joined`` a packet's bytes begin; ``time``, ``number``, ``file_offset``
    (of the first of these bytes in the decompressed file) and ``acknowledgement`` are that packet's.
    """

    joined: bytes
    streams: list[Stream] = field(default_factory=list)
    piece_start: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    piece_size: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    time: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    number: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    file_offset: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    acknowledgement: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def pieces(self, start: int, end: int, offset: int) -> list[Piece]:
        """Return ``joined[start:end]``, whose first byte is at a stream offset, as pieces that outlive the block."""
        found = []
        index = int(np.searchsorted(self.piece_start, start, "right")) - 1
        at = start
        while at < end:
            low = int(self.piece_start[index])
            stop = min(end, low + int(self.piece_size[index]))
            if stop > at:
                found.append(
                    Piece(
                        offset + at - start,
                        self.joined[at:stop],
                        int(self.time[index]),
                        int(self.number[index]),
                        int(self.file_offset[index]) + at - low,
                        int(self.acknowledgement[index]),
                        0,
                    )
                )
                at = stop
            index += 1
        return found


class Tracker:
    """Follows the connections of one capture through its blocks."""

    def __init__(self, window: int) -> None:
        """``window``: nanoseconds for which a missing segment is waited for."""
        self.connections: list[Connection] = []
        self.hot_ports: set[tuple[bytes, int]] = set()
        self.owner = np.zeros(0, np.int64)  # of the last block: the index of each segment's connection
        self._window = window
        self._passed_bytes = 0
        self._current: dict[tuple[Endpoint, Endpoint], Connection] = {}
        self._dirty: dict[int, tuple[Connection, int]] = {}  # directions with output or tail in this block

    def track(self, segments: Segments) -> Streams:
        """Return the streams that the block's segments continue."""
        if not len(segments.record):
            return Streams(b"")
        active, owner, side = self._attribute(segments)
        self.owner = owner
        rows = np.nonzero(active & (segments.length > 0))[0]
        self._feed(segments, rows, owner, side)
        return self._join(segments, rows)

    def finish(self) -> Streams:
        """Give up waiting: pass on all that is held, in streams like those of a block."""
        for connection in self.connections:
            for number, direction in enumerate(connection.sides):
                if direction.held:
                    direction.release(None)
                acknowledged = connection.sides[number ^ 1].last_acknowledgement
                direction.miss_end(acknowledged)
                if acknowledged is not None:
                    direction.acknowledge(acknowledged)
                if direction.out or direction.cutter is not None:
                    self._dirty[connection.index * 2 + number] = (connection, number)
        return self._join(None, np.zeros(0, np.int64))

    # -- who sent what -------------------------------------------------------------------------------------------

    def _attribute(self, s: Segments) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], Ints]:
        """Return which segments are followed, the index of each segment's connection, and its side in it."""
        pair, side, first = _group(s)
        count = len(first)
        order = np.argsort(pair, kind="stable")
        bounds = np.append(np.searchsorted(pair[order], np.arange(count)), len(order))
        marked = (s.flags & (SYN | FIN | RST)) != 0
        special = np.zeros(count, bool)
        special[pair[marked]] = True
        jumped = np.zeros(len(pair), bool)
        jumped[_jumps(s, pair, side)] = True
        special[pair[jumped]] = True
        weight = np.bincount(pair, s.weight, count)
        self._plausible: npt.NDArray[np.bool_] | None = None
        owner = np.zeros(len(pair), np.int64)
        active = np.zeros(len(pair), bool)
        fresh: list[tuple[int, Connection]] = []
        known = len(self.connections)
        for group in np.argsort(first, kind="stable").tolist():
            rows = order[bounds[group] : bounds[group + 1]]
            row = rows[0]
            ends = _endpoints(s, int(row))
            flipped = ends[0] > ends[1]
            name = (ends[1], ends[0]) if flipped else ends
            if flipped != bool(side[row]):
                side[rows] ^= 1
            connection = self._current.get(name)
            if connection is None:
                connection = self._new(name, s, int(row), fresh)
            lives = [(connection, rows)]
            if special[group] or self._discontinuous(connection, s, rows, side):
                lives = self._lives(connection, name, s, rows, side, marked, jumped, fresh)
            for connection, part in lives:
                owner[part] = connection.index
                connection.packets += int(weight[group]) if part is rows else int(s.weight[part].sum())
                self._note(connection, s, part, side)
                if connection.kind is Kind.OTHER:
                    continue
                if connection.round_trip is None and connection.syn_at is not None:
                    _note_round_trip(connection, s, part, side)
                follow = self._decide(connection, s, part, side)
                if follow is not None:
                    active[follow] = True
        # Numbered by their first packets, as tshark numbers its streams.
        fresh.sort(key=lambda entry: entry[0])
        renumber = np.zeros(len(fresh), np.int64)
        for position, (_, connection) in enumerate(fresh):
            renumber[connection.index - known] = known + position
            connection.index = known + position
            self.connections[connection.index] = connection
        late = owner >= known
        owner[late] = renumber[owner[late] - known]
        return active, owner, side

    def _new(
        self, name: tuple[Endpoint, Endpoint], s: Segments, row: int, fresh: list[tuple[int, Connection]]
    ) -> Connection:
        time = int(s.time[row])
        connection = Connection(len(self.connections), name, time, time)
        self.connections.append(connection)
        self._current[name] = connection
        fresh.append((row, connection))
        return connection

    def _discontinuous(self, connection: Connection, s: Segments, rows: Ints, side: Ints) -> bool:
        """Whether the first segment of a side breaks with the block before (within the block: ``_jumps``)."""
        for number, direction in enumerate(connection.sides):
            if direction.last_sequence is None:
                continue
            own = rows[side[rows] == number]
            if len(own) and _breaks(direction, s, int(own[0])):
                return True
        return False

    def _lives(
        self, connection: Connection, name: tuple[Endpoint, Endpoint], s: Segments, rows: Ints, side: Ints,
        marked: npt.NDArray[np.bool_], jumped: npt.NDArray[np.bool_], fresh: list[tuple[int, Connection]],
    ) -> list[tuple[Connection, Ints]]:  # fmt: skip
        """Cut a four-tuple's segments where a new connection begins, and note SYN, FIN and RST on the way."""
        lives = []
        begin = seen = 0
        # Only what is marked, or does not continue the segment before it, can begin or end anything.
        special = marked[rows] | jumped[rows]
        for number in (0, 1):
            special[np.nonzero(side[rows] == number)[0][:1]] = True
        for position in np.nonzero(special)[0].tolist():
            _remember(connection, s, rows[seen:position], side)
            seen = position + 1
            row = int(rows[position])
            flags, number = int(s.flags[row]), int(side[row])
            direction = connection.sides[number]
            time, sequence = int(s.time[row]), int(s.sequence[row])
            if marked[row] and flags & SYN:
                new = self._new_life(connection, number, sequence, time)
            else:
                new = not flags & RST and _breaks(direction, s, row)
            if new:
                if position > begin:
                    lives.append((connection, rows[begin:position]))
                    begin = position
                connection = self._new(name, s, row, fresh)
                direction = connection.sides[number]
            direction.last_sequence = (sequence + int(s.length[row])) & 0xFFFFFFFF
            if flags & ACK:
                direction.last_acknowledgement = int(s.acknowledgement[row])
            if not marked[row]:
                continue
            if flags & SYN:
                if direction.syn is None:
                    direction.begin(sequence)
                    if connection.kind is Kind.COLD:
                        connection.kind = Kind.UNDECIDED
                if not connection.client_sure:
                    connection.client, connection.client_sure = (number ^ 1 if flags & ACK else number), True
                if not flags & ACK and connection.syn_at is None:
                    connection.syn_at = time
            if flags & FIN and (direction.fin_at is None or time < direction.fin_at):
                direction.fin_at = time
                direction.fin_sequence = (sequence + int(s.length[row])) & 0xFFFFFFFF
            if flags & RST and (connection.reset_at is None or time < connection.reset_at):
                connection.reset_at = time
        lives.append((connection, rows[begin:]))
        return lives

    def _new_life(self, connection: Connection, number: int, sequence: int, time: int) -> bool:
        direction, other = connection.sides[number], connection.sides[number ^ 1]
        if direction.syn is not None:
            return direction.syn != sequence
        if direction.last_sequence is not None:
            # Data came first: reordered, if it follows this SYN closely; else the SYN opens a new connection.
            ahead = signed(direction.last_sequence - sequence - 1)
            return direction.started or not 0 <= ahead <= JUMP or abs(time - connection.first_time) > self._window
        if other.last_sequence is None or other.syn is not None:
            return False
        return abs(time - connection.first_time) > self._window

    def _note(self, connection: Connection, s: Segments, rows: Ints, side: Ints) -> None:
        """Keep what the next block needs of these segments: times, sequence numbers, acknowledgements."""
        times = s.time[rows]
        connection.last_time = max(connection.last_time, int(times.max()))
        connection.first_time = min(connection.first_time, int(times.min()))
        _remember(connection, s, rows, side)
        for number, direction in enumerate(connection.sides):
            if direction.last_acknowledgement is not None:
                connection.sides[number ^ 1].acknowledge(direction.last_acknowledgement)
                if direction.opening is None:
                    own = rows[(side[rows] == number) & ((s.flags[rows] & (SYN | ACK | RST)) == ACK)]
                    if len(own):
                        first = own[np.argmin(s.time[own])]
                        direction.opening = int(s.time[first]), int(s.sequence[first]), int(s.acknowledgement[first])

    def _decide(self, connection: Connection, s: Segments, rows: Ints, side: Ints) -> Ints | None:
        """Return the segments to follow, if any: RPC shows itself by port or by how a segment begins."""
        if connection.kind is not Kind.UNDECIDED and connection.kind is not Kind.COLD:
            return rows
        ports = (connection.port(0), connection.port(1))
        if BINARY_PROTOCOL_PORT in ports:
            connection.kind = Kind.BINARY
            return rows
        if connection.sides[0].syn is not None or connection.sides[1].syn is not None:
            return rows  # its first bytes will decide
        if connection.on_known_port or any(
            (address, port) in self.hot_ports for _, address, port in connection.endpoints
        ):
            connection.kind = Kind.RPC
            return rows
        connection.kind = Kind.COLD
        if self._plausible is None:
            self._plausible = plausible_headers(s.data, s.start, s.captured)
        begins = np.nonzero(self._plausible[rows])[0]
        cold = rows[: begins[0]] if len(begins) else rows
        for number, direction in enumerate(connection.sides):
            direction.cold_bytes += int(s.length[cold[side[cold] == number]].sum())
        self._keep_passed(connection, s, cold, side)
        if not len(begins):
            return None
        connection.kind = Kind.RPC
        return rows[begins[0] :]

    def _keep_passed(self, connection: Connection, s: Segments, rows: Ints, side: Ints) -> None:
        """Keep the first segments of what is passed over: with another capture they may be the rest of a PDU.

        RPC's own ports lie above 1023, but for the endpoint mapper's.
        """
        if min(connection.port(0), connection.port(1)) < _FIRST_DYNAMIC_PORT:
            return
        for row in rows[s.length[rows] > 0].tolist():
            start, captured = int(s.start[row]), int(s.captured[row])
            if connection.passed_bytes + captured > PASSED_BYTES or self._passed_bytes + captured > _PASSED_BUDGET:
                return
            connection.passed_bytes += captured
            self._passed_bytes += captured
            connection.passed.append(
                Passed(
                    int(side[row]), int(s.time[row]), int(s.number[row]), int(s.file_offset[row]), int(s.sequence[row]),
                    int(s.acknowledgement[row]), int(s.length[row]), bytes(s.data[start : start + captured]),
                )
            )  # fmt: skip

    # -- their bytes in order ------------------------------------------------------------------------------------

    def _feed(self, s: Segments, rows: Ints, owner: Ints, side: Ints) -> None:
        """Hand the data segments to their directions, in runs that continue one another where there are such."""
        if not len(rows):
            return
        key = owner[rows] * 2 + side[rows]
        order = np.argsort(key, kind="stable")
        self._rows = rows = rows[order]
        key = key[order]
        length = s.length[rows]
        sequence = s.sequence[rows] + ((s.flags[rows] & SYN) != 0)  # data in a SYN segment stands behind the SYN
        same = np.zeros(len(rows), bool)
        same[1:] = (
            (key[1:] == key[:-1])
            & (((sequence[1:] - sequence[:-1] - length[:-1]) & 0xFFFFFFFF) == 0)
            & (s.captured[rows[:-1]] == length[:-1])
        )
        firsts = np.nonzero(~same)[0]
        lasts = np.append(firsts[1:], len(rows)) - 1
        ends = np.cumsum(length)
        memory = memoryview(s.data)
        for begin, end, name in zip(firsts.tolist(), lasts.tolist(), key[firsts].tolist(), strict=True):
            connection = self.connections[name >> 1]
            direction = connection.sides[name & 1]
            self._dirty[name] = (connection, name & 1)
            if not direction.started and int(s.flags[rows[begin]]) & BEGINS:
                direction.start_by(int(sequence[begin]))
            whole = int(s.captured[rows[end]]) == int(length[end])
            if whole and not direction.held:
                total = int(ends[end] - ends[begin] + length[begin])
                if not direction.started and (total > START_BYTES or end - begin >= START_SEGMENTS):
                    # So much in order from its first segment on: what holding it back would find too.
                    direction.start(int(sequence[begin]))
                if direction.started and direction.offset(int(sequence[begin])) == direction.next:
                    direction.out.append(Run(begin, end, 0, total))
                    direction.next += total
                    direction.distinct_bytes += total
                    continue
            for position in range(begin, end + 1):
                row = int(rows[position])
                start, captured = int(s.start[row]), int(s.captured[row])
                direction.feed(
                    Packet(
                        position,
                        int(s.time[row]),
                        int(s.number[row]),
                        int(s.file_offset[row]),
                        int(sequence[position]) & 0xFFFFFFFF,
                        int(s.acknowledgement[row]),
                        captured,
                        int(length[position]),
                        memory[start : start + captured],
                        _CAUSES.get(int(s.flags[row]) & (CUT_BEFORE | PASSED_OVER), "truncated"),
                    ),
                    self._window,
                )

    def _join(self, s: Segments | None, rows: Ints) -> Streams:
        """Lay what the directions passed on into one buffer, direction after direction."""
        indexes: list[Ints] = []
        kept: list[Piece] = []
        places: list[tuple[int, int, int]] = []  # position in indexes' arrays: skip and take of single segments
        streams = []
        size = pieces = 0
        for name in sorted(self._dirty):
            connection, number = self._dirty[name]
            direction = connection.sides[number]
            offset = direction.tail[0].offset if direction.tail else None
            extents: list[Extent] = []
            begin, before = size, None
            for item in (*direction.tail, *direction.out):
                if isinstance(item, Gap):
                    if size == begin and before is not None and before.hole and item.hole:
                        before = Gap(before.start, item.end, before.cause)
                    elif size > begin or before is not None:
                        extents.append(Extent(begin, size, offset or 0, before))
                        before = item
                    else:
                        before = item
                    begin, offset = size, item.end
                elif isinstance(item, Piece):
                    if offset is None:
                        offset = item.offset
                    indexes.append(np.array([-1 - len(kept)]))
                    kept.append(item)
                    pieces += 1
                    size += len(item.data)
                else:
                    if offset is None:
                        offset = _first_offset(direction)
                    if item.first == item.last:
                        places.append((pieces, item.skip, item.take))
                    indexes.append(np.arange(item.first, item.last + 1))
                    pieces += item.last - item.first + 1
                    size += item.take
            if size > begin:
                extents.append(Extent(begin, size, offset or 0, before))
                before = None
            direction.out, direction.tail = [], []
            streams.append(Stream(connection, number, extents, before))
        self._dirty = {}
        return _streams(s, self._rows if s is not None and len(rows) else rows, indexes, kept, places, streams)


def _remember(connection: Connection, s: Segments, rows: Ints, side: Ints) -> None:
    """Keep where the last of some segments left both directions."""
    mine = side[rows]
    for number, direction in enumerate(connection.sides):
        own = rows[mine == number]
        if not len(own):
            continue
        last = int(own[-1])
        direction.last_sequence = (int(s.sequence[last]) + int(s.length[last])) & 0xFFFFFFFF
        if (int(s.flags[last]) & (ACK | RST)) == ACK:
            direction.last_acknowledgement = int(s.acknowledgement[last])


def _first_offset(direction: Direction) -> int:
    """Return the stream offset of what a direction passed on first in this block: all of it ends at ``next``."""
    sizes = (
        item.end - item.start if isinstance(item, Gap) else len(item.data) if isinstance(item, Piece) else item.take
        for item in direction.out
    )
    return direction.next - sum(sizes)


def _streams(
    s: Segments | None, rows: Ints, indexes: list[Ints], kept: list[Piece],
    places: list[tuple[int, int, int]], streams: list[Stream],
) -> Streams:  # fmt: skip
    if not indexes:
        return Streams(b"", streams)
    index = np.concatenate(indexes)
    own = index < 0
    count = len(index)
    if s is not None and len(rows):
        row = rows[np.where(own, 0, index)]
        start, size = s.start[row], s.captured[row]
        time, number, acknowledgement = s.time[row], s.number[row], s.acknowledgement[row]
        file_offset = s.file_offset[row]
        data: bytes | bytearray = s.data
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
        size[position], time[position], number[position] = len(piece.data), piece.time, piece.number
        file_offset[position], acknowledgement[position] = piece.file_offset, piece.acknowledgement
    ends = np.cumsum(size)
    parts.append(bytes(PAD))  # so that headers can be gathered up to the last byte
    return Streams(b"".join(parts), streams, ends - size, size, time, number, file_offset, acknowledgement)


def _endpoints(s: Segments, row: int) -> tuple[Endpoint, Endpoint]:
    version = int(s.version[row])
    width = 4 if version == 4 else 16
    return (
        (version, s.source[row, :width].tobytes(), int(s.source_port[row])),
        (version, s.target[row, :width].tobytes(), int(s.target_port[row])),
    )


def _group(s: Segments) -> tuple[Ints, Ints, Ints]:
    """Number the four-tuples of a block: return each segment's number, its side, and each number's first segment.

    Endpoints are compared by a hash under a random key; that equal hashes mean equal endpoints is checked.
    """
    source = np.ascontiguousarray(s.source).view(np.uint64)
    target = np.ascontiguousarray(s.target).view(np.uint64)
    source_port = (s.source_port << 4 | s.version).astype(np.uint64)
    target_port = (s.target_port << 4 | s.version).astype(np.uint64)
    while True:
        a, b, c = np.array([secrets.randbits(64) | 1 for _ in range(3)], np.uint64)
        one = _mix(source[:, 0] * a + _mix(source[:, 1] * b + source_port * c))
        two = _mix(target[:, 0] * a + _mix(target[:, 1] * b + target_port * c))
        side = (one > two).astype(np.int64)
        low, high = np.minimum(one, two), np.maximum(one, two)
        names: npt.NDArray[np.uint64] = _mix(low * a + high * b)
        _, first, pair = np.unique(names, return_index=True, return_inverse=True)
        lead = first[pair]
        straight = side == side[lead]
        equal = np.ones(len(pair), bool)
        for left, right in ((source[:, 0], target[:, 0]), (source[:, 1], target[:, 1]), (source_port, target_port)):
            equal &= left == np.where(straight, left[lead], right[lead])
            equal &= right == np.where(straight, right[lead], left[lead])
        if equal.all():
            return pair.astype(np.int64), side, first


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed: npt.NDArray[np.uint64] = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(32))


def _jumps(s: Segments, pair: Ints, side: Ints) -> Ints:
    """Return the segments whose numbers, both ways, do not continue those of their direction's segment before."""
    order = np.argsort(pair * 2 + side, kind="stable")
    key = (pair * 2 + side)[order]
    same = key[1:] == key[:-1]
    now, before = order[1:], order[:-1]
    sequence = _distance(s.sequence[now] - s.sequence[before] - s.length[before])
    acknowledgement = _distance(s.acknowledgement[now] - s.acknowledgement[before])
    plain = ((s.flags[now] | s.flags[before]) & (SYN | RST)) == 0
    jumped: Ints = now[same & plain & (sequence > JUMP) & (acknowledgement > JUMP)]
    return jumped


def _distance(difference: Ints) -> Ints:
    distance: Ints = np.abs(((difference + 0x80000000) & 0xFFFFFFFF) - 0x80000000)
    return distance


def _breaks(direction: Direction, s: Segments, row: int) -> bool:
    """Whether neither the sequence number nor the acknowledgement of a segment continues its direction."""
    if direction.last_sequence is None or direction.last_acknowledgement is None:
        return False
    if int(s.flags[row]) & (SYN | RST) or not int(s.flags[row]) & ACK:
        return False
    return (
        abs(signed(int(s.sequence[row]) - direction.last_sequence)) > JUMP
        and abs(signed(int(s.acknowledgement[row]) - direction.last_acknowledgement)) > JUMP
    )


def _note_round_trip(connection: Connection, s: Segments, rows: Ints, side: Ints) -> None:
    """SYN to the handshake's last ACK: the client's first segment that acknowledges the server's SYN and no more."""
    client = connection.client
    if client is None or connection.syn_at is None:
        return
    ours, theirs = connection.sides[client], connection.sides[client ^ 1]
    if ours.syn is None or theirs.syn is None:
        return
    mine = rows[side[rows] == client]
    last = mine[
        ((s.flags[mine] & (SYN | ACK | RST)) == ACK)
        & (s.sequence[mine] == (ours.syn + 1) & 0xFFFFFFFF)
        & (s.acknowledgement[mine] == (theirs.syn + 1) & 0xFFFFFFFF)
        & (s.time[mine] >= connection.syn_at)  # a SYN that was captured after it tells nothing
    ]
    if len(last):
        connection.round_trip = int(s.time[last].min()) - connection.syn_at
