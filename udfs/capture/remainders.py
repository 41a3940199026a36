"""Remainders (rows of ``bronze.pending``) as a merge reads them: in groups, in blocks, as segments."""

from __future__ import annotations

import ipaddress
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from udfs.array_types import Ints
from udfs.capture.open_connections import read_resets
from udfs.capture.overlapping_captures import (
    Captured,
    CapturedSegment,
    conversations,
    find_overlaps,
    group_simultaneous,
    overlay_segments,
    pairs_of_taps,
    side_by_side_pairs,
    tunnel_identifier,
)
from udfs.capture.positions import order_of_remainders
from udfs.capture.taps import assign_taps
from udfs.columns.absent import NO_TIME
from udfs.rows import RowDict
from udfs.tcp.connection_tracker import ConnectionTracker
from udfs.tcp.connections import TcpConnection, sequence_difference
from udfs.tcp.four_tuples import PackedEndpoint
from udfs.tcp.packet_decoder import RECORD_SEGMENT, SYN, TcpSegments
from udfs.tcp.time_limits import earliest_ns

_MAX_BLOCK_BYTES: Final = 1 << 30  # of a four-tuple: differences of sequence numbers stay unambiguous
# The numeric fields of a remainder's segment, in the order that ``build_segments`` unpacks.
_SEGMENT_FIELDS: Final = itemgetter("side", "size", "time_ns", "sequence", "acknowledgement", "flags", "file_offset")
NO_CONNECTION: Final = TcpConnection(-1, ((4, b"", 0), (4, b"", 0)), NO_TIME, NO_TIME)


@dataclass(slots=True)
class Remainder:
    """A remainder and the merged connection that it belongs to, which is known once its segments were added."""

    row: RowDict
    connection: TcpConnection = field(default_factory=lambda: NO_CONNECTION)
    group: int = 0  # number of the group of overlapping remainders
    tap: int = 0  # number of the tap, in its conversation
    is_over_limit: bool = False  # it is not compared with all that overlap it
    # Offsets of ``row["stream_ends"]`` in the connection; until all is read, by the sequence numbers of offset 0 then.
    stream_ends: list[int] = field(default_factory=list)
    base_sequences: list[int | None] = field(default_factory=list)

    def move_stream_ends(self) -> None:
        """Count ``stream_ends`` from the final beginnings: the SYN may be in a remainder that was read later."""
        for side, (direction, base) in enumerate(zip(self.connection.directions, self.base_sequences, strict=False)):
            if base is None:  # it had none of its bytes
                self.stream_ends[side] = direction.stream_offset_of(self.row["stream_ends"][side]["sequence"])
            elif direction.base_sequence is not None:
                self.stream_ends[side] += sequence_difference(base - direction.base_sequence)


@dataclass(slots=True)
class RemainderGroup:
    """Remainders that are read as one: a single one, or overlapping ones of several captures."""

    remainders: list[Remainder]
    parts: list[CapturedSegment]
    tunnel_identifier: int
    is_replay: bool  # the first of a conversation that was replayed


@dataclass(slots=True)
class PacketIndexes:
    """Indexes of packets during the merge, from 1: of their captures and of their numbers there."""

    captures: list[str] = field(default_factory=lambda: [""])
    numbers: list[int] = field(default_factory=lambda: [0])

    def add(self, capture_id: str, number: int) -> int:
        """Return a new index for a packet of a capture."""
        self.captures.append(capture_id)
        self.numbers.append(number)
        return len(self.captures) - 1


def time_order(row: RowDict) -> tuple[int, int, str]:
    """Return what remainders are sorted by: times of the first and last packet, and the capture."""
    return row["first_time_ns"], row["last_time_ns"], row["capture_id"]


def build_blocks(remainders: Iterable[Remainder], max_clock_skew_ns: int) -> list[list[RemainderGroup]]:
    """Return blocks to read: each has, of every four-tuple, the remainders (or overlapping groups) that come next.

    A block takes time of its own, so it has as many as possible: as long as sequence numbers tell its bytes apart, and
    up to the next conversation, and to an RST before which it was not captured how far both sides had come.
    """
    blocks: list[list[RemainderGroup]] = []
    by_four_tuple: dict[tuple[Any, ...], list[Remainder]] = defaultdict(list)
    for remainder in remainders:
        by_four_tuple[remainder_endpoints(remainder.row)].append(remainder)
    numbers = itertools.count(1)
    for of_four_tuple in by_four_tuple.values():
        in_order = [of_four_tuple[index] for index in order_of_remainders([each.row for each in of_four_tuple])]
        position, size, vague_before = 0, 0, False
        for place, group in enumerate(_groups_of_four_tuple(in_order, max_clock_skew_ns)):
            number = next(numbers)
            for remainder in group.remainders:
                remainder.group = number
            own = sum(segment["size"] for segment, _ in group.parts)
            vague = _has_vague_resets(group)
            if place and (group.is_replay or vague or vague_before or size + own > _MAX_BLOCK_BYTES):
                position, size = position + 1, 0
            size, vague_before = size + own, vague
            if position == len(blocks):
                blocks.append([])
            blocks[position].append(group)
    return blocks


def _has_vague_resets(group: RemainderGroup) -> bool:
    resets = (reset for remainder in group.remainders for reset in read_resets(remainder.row))
    return any(None in reached for reset in resets for reached in reset.reached)


def _groups_of_four_tuple(remainders: Sequence[Remainder], max_clock_skew_ns: int) -> Iterator[RemainderGroup]:
    """Yield the remainders of a four-tuple, those that overlap as one, and set their taps."""
    captured = [Captured(remainder.row) for remainder in remainders]
    overlaps = find_overlaps(captured)
    numbers = conversations(captured, overlaps, max_clock_skew_ns)
    pairs = side_by_side_pairs(captured, overlaps, numbers)
    taps = assign_taps(captured, numbers, pairs)
    for index, (remainder, tap) in enumerate(zip(remainders, taps, strict=True)):
        remainder.tap, remainder.is_over_limit = tap, index in overlaps.over_limit
    groups = group_simultaneous(len(captured), [*pairs, *pairs_of_taps(captured, overlaps, numbers, taps)])
    groups.sort(key=lambda indexes: numbers[indexes[0]])
    first_of = {numbers[index]: index for index in range(len(numbers) - 1, -1, -1)}
    begun = {0}
    for indexes in _in_order_of_taps(groups, [*zip(numbers, taps, strict=True)]):
        number = numbers[indexes[0]]
        rows = [remainders[index].row for index in indexes]
        if len(rows) == 1:
            parts = [CapturedSegment(segment, rows[0]["capture_id"]) for segment in rows[0]["segments"]]
            parts.sort(key=lambda part: not part.segment["flags"] & SYN)  # as in ``overlay_segments``
        else:
            parts = overlay_segments(rows)
        yield RemainderGroup(
            [remainders[index] for index in indexes],
            parts,
            tunnel_identifier(remainders[first_of[number]].row),
            is_replay=number not in begun,
        )
        begun.add(number)


def _in_order_of_taps(groups: list[list[int]], taps: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the groups, so that the remainders of each tap come in their order.

    A group is as early as its earliest remainder, and another tap, whose clock is ahead, may have one that comes before
    it by the bytes. ``taps``: conversation and tap of each remainder. Where taps contradict each other, groups stay.
    """
    place = {index: number for number, indexes in enumerate(groups) for index in indexes}
    latest: dict[tuple[int, int], int] = {}
    before: dict[int, set[int]] = {number: set() for number in range(len(groups))}
    for index, tap in enumerate(taps):
        if latest.setdefault(tap, place[index]) != place[index]:
            before[place[index]].add(latest[tap])
            latest[tap] = place[index]
    if all(each < number for number, those in before.items() for each in those):
        return groups
    sorter = TopologicalSorter(before)
    try:
        sorter.prepare()
    except CycleError:
        return groups
    ready, found = [*sorter.get_ready()], list[list[int]]()
    heapify(ready)
    while ready:
        number = heappop(ready)
        found.append(groups[number])
        sorter.done(number)
        for following in sorter.get_ready():
            heappush(ready, following)
    return found


@lru_cache(maxsize=65536)
def _pack_address(address: str) -> tuple[int, bytes]:
    """Return IP version and packed form of an address. Cached, because the same hosts recur."""
    parsed = ipaddress.ip_address(address)
    return parsed.version, parsed.packed


def remainder_endpoints(row: RowDict) -> tuple[PackedEndpoint, PackedEndpoint]:
    """Return both endpoints of a remainder, the lower one (side 0) first."""
    client: PackedEndpoint = (*_pack_address(row["client_address"]), row["client_port"])
    server: PackedEndpoint = (*_pack_address(row["server_address"]), row["server_port"])
    return (client, server) if client <= server else (server, client)


class KnownEnd(NamedTuple):
    """An end of connections that are merged elsewhere, as far as a remainder shows what is there.

    ``kind`` as in ``bronze.pending``; ``interfaces``: names of those at the port; None where it may be a client's.
    """

    address: str
    port: int
    kind: str | None
    interfaces: Sequence[str] | None = None

    @property
    def packed(self) -> tuple[bytes, int]:
        """The packed address, and the port."""
        return _pack_address(self.address)[1], self.port


def rpc_endpoints(pending: Iterable[RowDict], elsewhere: Iterable[KnownEnd] = ()) -> set[tuple[bytes, int]]:
    """Return both ends of the connections that some capture shows to be RPC."""
    rows = (row for row in pending if row["kind"] == "rpc")
    found = {(octets, port) for row in rows for _, octets, port in remainder_endpoints(row)}
    return found.union(end.packed for end in elsewhere if end.kind == "rpc")


def session_endpoints(pending: Iterable[RowDict], elsewhere: Iterable[KnownEnd] = ()) -> set[tuple[bytes, int]]:
    """Return the servers of connections that some capture shows to be of the binary protocol."""
    rows = (row for row in pending if row["kind"] == "binary_protocol")
    found = {(_pack_address(row["server_address"])[1], row["server_port"]) for row in rows}
    return found.union(end.packed for end in elsewhere if end.kind == "binary_protocol")


def build_segments(block: list[RemainderGroup], packet_indexes: PacketIndexes) -> tuple[TcpSegments, Ints]:
    """Return the segments of a block, and their number per remainder group."""
    counts = np.array([len(group.parts) for group in block], np.int64)
    owner = np.repeat(np.arange(len(block)), counts)
    parts = [part for group in block for part in group.parts]
    facts = np.array([_SEGMENT_FIELDS(segment) for segment, _ in parts], np.int64).T.copy()
    side, length, time, sequence, acknowledgement, flags, file_offset = facts if parts else np.zeros((7, 0), np.int64)
    numbers = [
        packet_indexes.add(capture_id, segment["number"]) if segment["number"] else 0 for segment, capture_id in parts
    ]
    data = [segment["data"] or b"" for segment, _ in parts]
    captured = np.array([len(octets) for octets in data], np.int64)
    # Two endpoints per group, of sides 0 and 1.
    ends = [end for group in block for end in remainder_endpoints(group.remainders[0].row)]
    octets = np.frombuffer(b"".join(each.ljust(16, b"\0") for _, each, _ in ends), np.uint8).reshape(-1, 16)
    ports = np.array([port for _, _, port in ends], np.int64)
    source = 2 * owner + (side != 0)
    target = source ^ 1
    segments = TcpSegments(
        buffer=bytearray(b"".join([*data, bytes(64)])), record_index=np.arange(len(parts)),
        packet_number=np.array(numbers, np.int64), time_ns=time,
        ip_version=np.array([version for version, _, _ in ends], np.int64)[source],
        source_address=octets[source], target_address=octets[target],
        source_port=ports[source], target_port=ports[target],
        sequence=sequence, acknowledgement=acknowledgement, tcp_flags=flags,
        payload_start=np.cumsum(captured) - captured, file_offset=file_offset, captured_length=captured,
        payload_length=length, record_count=np.ones(len(parts), np.int64),
        record_classes=np.full(len(parts), RECORD_SEGMENT, np.int8), header_bytes=np.zeros(len(parts), np.int64),
        tunnel=np.zeros(len(parts), np.int64),
        tunnel_identifier=np.array([group.tunnel_identifier for group in block], np.int64)[owner],
    )  # fmt: skip
    return segments, counts


def assign_connections(block: list[RemainderGroup], tracker: ConnectionTracker, counts: Ints, known_count: int) -> None:
    """Set the connection of each remainder in a block, and update the connection with its times and client.

    ``counts``: number of segments per group. ``known_count``: number of connections before this block, whose keys are
    fixed already.
    """
    named = set(range(known_count))
    for group, count, end in zip(block, counts.tolist(), np.cumsum(counts).tolist(), strict=True):
        if not count:
            continue
        connection = tracker.connections[int(tracker.segment_connections[end - 1])]
        if connection.index not in named:
            named.add(connection.index)
            connection.named_at_ns = earliest_ns(*(_named_at(remainder.row) for remainder in group.remainders))
        for remainder in group.remainders:
            row = remainder.row
            remainder.connection = connection
            remainder.stream_ends = [
                direction.stream_offset_of(place["sequence"])
                for direction, place in zip(connection.directions, row["stream_ends"] or (), strict=False)
            ]
            remainder.base_sequences = [
                direction.base_sequence
                for direction, _ in zip(connection.directions, remainder.stream_ends, strict=False)
            ]
            connection.first_time_ns = earliest_ns(connection.first_time_ns, row["first_time_ns"])
            connection.last_time_ns = max(connection.last_time_ns, row["last_time_ns"])
            connection.resets += read_resets(row)
            connection.note_progress()
            if connection.client_side is None and row["client_known"]:
                low, _ = remainder_endpoints(row)
                connection.client_side = 0 if (*_pack_address(row["client_address"]), row["client_port"]) == low else 1


def _named_at(row: RowDict) -> int:
    """Return the time for the connection's key; rows from before 2026-11 lack ``named_at_ns``."""
    return int(row["first_time_ns"] if row["named_at_ns"] is None else row["named_at_ns"])


def is_shared(remainders: list[Remainder]) -> bool:
    """Whether several captures saw a connection at the same time."""
    return len({one.group for one in remainders}) < len(remainders)
