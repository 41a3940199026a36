"""Segments that were damaged on their way and sent again: which of two different copies is the right one.

TCP checksums are computed only where copies of the same bytes differ: a machine that captures what it sends sees wrong
checksums in all of it, since its network card computes them. If a repetition has a right checksum, the connection is
read again, and segments with a wrong one that overlap these bytes are left out (RFC 9293 3.1: the receiver did so too).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from udfs.array_types import Bools, Ints
from udfs.tcp.connections import ConnectionKind, TcpConnection, sequence_difference
from udfs.tcp.packet_decoder import TcpSegments

_TCP: Final = 6  # the protocol's number


@dataclass(slots=True)
class DisputedBytes:
    """Bytes of a connection of which a later copy differs and has a right checksum.

    ``ranges``: side, first sequence number, number of bytes. ``conflicting_bytes``: of each side, as first counted.
    """

    ranges: list[tuple[int, int, int]] = field(default_factory=list)
    conflicting_bytes: list[int] = field(default_factory=lambda: [0, 0])

    def copy(self) -> DisputedBytes:
        """Return a copy for another pass."""
        return DisputedBytes([*self.ranges], [*self.conflicting_bytes])

    def add(self, other: DisputedBytes) -> None:
        """Add bytes that were found later."""
        self.ranges += other.ranges
        self.conflicting_bytes = other.conflicting_bytes


def has_right_checksum(source: tuple[int, bytes, int], target: tuple[int, bytes, int], segment: bytes) -> bool:
    """Return whether the checksum of a TCP segment, header and payload, is right; endpoints as in ``TcpConnection``."""
    version, address, _ = source
    size = len(segment).to_bytes(2 if version == 4 else 4, "big")
    pseudo = address + target[1] + (bytes([0, _TCP]) + size if version == 4 else size + bytes([0, 0, 0, _TCP]))
    data = pseudo + segment + bytes(len(segment) % 2)
    total = int(np.frombuffer(data, ">u2").sum(dtype=np.int64))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


def find_disputed_bytes(connection: TcpConnection) -> DisputedBytes | None:
    """Return the bytes whose later, different copy has a right checksum, and forget the differences; None without.

    Only connections that may be RPC: of others no calls are read.
    """
    differs = any(direction.differing_repeats for direction in connection.directions)
    if not differs or connection.kind is not ConnectionKind.RPC:
        return None
    found = DisputedBytes()
    for side, direction in enumerate(connection.directions):
        source, target = connection.endpoints[side], connection.endpoints[side ^ 1]
        for offset, size, segment in direction.differing_repeats:
            if segment and has_right_checksum(source, target, segment):
                found.ranges.append((side, ((direction.base_sequence or 0) + offset) & 0xFFFFFFFF, size))
        direction.differing_repeats = []
        found.conflicting_bytes[side] = direction.conflicting_bytes
    return found if found.ranges else None


def drop_bad_copies(
    connection: TcpConnection, suspect: DisputedBytes, segments: TcpSegments, rows: Ints, side: Ints, active: Bools
) -> None:
    """Remove from ``active`` the segments of a connection that overlap suspect bytes and have a wrong checksum."""
    for number, first, size in suspect.ranges:
        direction = connection.directions[number]
        source, target = connection.endpoints[number], connection.endpoints[number ^ 1]
        for row in rows[active[rows] & (side[rows] == number)].tolist():
            behind = sequence_difference(int(segments.sequence[row]) - first)
            length, captured = int(segments.payload_length[row]), int(segments.captured_length[row])
            if behind >= size or behind + length <= 0 or captured < length:
                continue
            start = int(segments.payload_start[row])
            segment = bytes(segments.buffer[start - int(segments.header_bytes[row]) : start + length])
            if not has_right_checksum(source, target, segment):
                active[row] = False
                direction.retransmitted_bytes += length
                direction.conflicting_bytes += suspect.conflicting_bytes[number]
                suspect.conflicting_bytes[number] = 0
