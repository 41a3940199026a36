"""Cuts a capture into several capture files, as a ring buffer of files does, and joins them again.

It is written from the specifications of the formats, independent of the reader. Places are record indexes; at each of
them another file begins. A pcapng piece begins with the section header and the interfaces in force at the cut. Blocks
without a packet stay in front of the packet that follows; the last ones are at the end of the last piece.
"""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_SHB = b"\x0a\x0d\x0d\x0a"
_PCAP_ORDERS = {
    b"\xd4\xc3\xb2\xa1": ("<", 16),
    b"\xa1\xb2\xc3\xd4": (">", 16),
    b"\x4d\x3c\xb2\xa1": ("<", 16),
    b"\xa1\xb2\x3c\x4d": (">", 16),
    b"\x34\xcd\xb2\xa1": ("<", 24),
    b"\xa1\xb2\xcd\x34": (">", 24),
}
_PACKET_BLOCKS = {2, 3, 6}
_SAMPLE_ADDRESS = re.compile(rb"\x0a\x4d\x00[\x01-\x0f]")


@dataclass(frozen=True)
class Unit:
    """A record with the bytes before it; ``opening``: what a file that begins here needs first."""

    opening: bytes
    data: bytes


@dataclass(frozen=True)
class Layout:
    """A capture as units; ``rest``: bytes behind the last record, ``opening``: what a file beginning there needs."""

    units: tuple[Unit, ...]
    rest: bytes
    opening: bytes


def layout(capture: bytes) -> Layout:
    """Return the positions of the records in a pcap or pcapng capture."""
    return _pcapng(capture) if capture[:4] == _SHB else _pcap(capture)


def _pcap(capture: bytes) -> Layout:
    order, size = _PCAP_ORDERS[capture[:4]]
    opening, at = capture[:24], 24
    units = []
    while at + size <= len(capture):
        end = at + size + struct.unpack_from(order + "I", capture, at + 8)[0]
        if end > len(capture):
            break
        units.append(Unit(opening, capture[at:end]))
        at = end
    return Layout(tuple(units), capture[at:], opening)


def _pcapng(capture: bytes) -> Layout:
    at = begin = 0
    order, header = "<", b""
    interfaces: list[bytes] = []
    opening = b""  # of a file that would begin at `begin`
    units = []
    while at + 12 <= len(capture):
        if capture[at : at + 4] == _SHB:
            order = "<" if capture[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
        kind, length = struct.unpack_from(order + "II", capture, at)
        end = at + length
        if length < 12 or end > len(capture):
            break
        if capture[at : at + 4] == _SHB:
            # Of unspecified length: the piece's section is another one than the whole file's.
            header = capture[at : at + 16] + b"\xff" * 8 + capture[at + 24 : end]
            interfaces = []
            if at == begin:
                opening = b""  # the section header stands there itself
        elif kind == 1:
            interfaces.append(capture[at:end])
        elif kind in _PACKET_BLOCKS:
            units.append(Unit(opening, capture[begin:end]))
            begin, opening = end, header + b"".join(interfaces)
        at = end
    return Layout(tuple(units), capture[begin:], opening)


def cut(capture: bytes, places: Collection[int]) -> list[bytes]:
    """Return a capture as several files; a new file begins at each of ``places`` (record indexes, from 1)."""
    parts = layout(capture)
    edges = [0, *sorted(set(places)), len(parts.units)]
    assert all(0 < place < len(parts.units) for place in edges[1:-1]), "a file without a packet"
    pieces = []
    for begin, end in pairwise(edges):
        units = parts.units[begin:end]
        opening = units[0].opening if units else parts.opening
        pieces.append(opening + b"".join(unit.data for unit in units))
    pieces[-1] += parts.rest
    return pieces


def glue(pieces: Sequence[bytes]) -> bytes:
    """Undo ``cut``: return one file, without the openings of the later pieces."""
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece.removeprefix(layout(whole).opening)
    return whole


def records(capture: bytes) -> int:
    """Return the number of records in a capture."""
    return len(layout(capture).units)


def evenly(capture: bytes, files: int = 5) -> list[int]:
    """Return places that cut a capture into files with equal numbers of records."""
    count = records(capture)
    return [count * index // files for index in range(1, files)]


def plain(path: Path) -> bytes:
    """Return the decompressed bytes of a capture."""
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def elsewhere(capture: bytes, number: int) -> bytes:
    """Return a sample capture with other addresses; each ``number`` gives different ones.

    10.77.0.n stands in IP headers and in endpoint-mapper towers. What is added to the first half of an address is
    subtracted from the second, so that every checksum stays valid (sums of 16 bits, RFC 1071 section 1).
    """

    def moved(found: re.Match[bytes]) -> bytes:
        first, second = struct.unpack(">HH", found[0])
        return struct.pack(">HH", first + number, (second - number - 1) % 0xFFFF + 1)

    return _SAMPLE_ADDRESS.sub(moved, capture)


def padded(capture: bytes, size: int) -> bytes:
    """Pad a pcap of Ethernet frames to ``size`` bytes by a last packet of an experimental protocol."""
    order, head = _PCAP_ORDERS[capture[:4]]
    last = layout(capture).units[-1].data
    more = size - len(capture) - head
    assert more >= 14, f"{len(capture)} bytes leave no room for a packet below {size}"
    frame = (bytes(12) + b"\x88\xb5").ljust(more, b"\0")
    return capture + last[:8] + struct.pack(order + "II", more, more) + last[16:head] + frame
