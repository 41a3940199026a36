"""Capture files as bytes: pcap and pcapng in every variant, written from the specifications, independent of the reader.

pcap: draft-ietf-opsawg-pcap; the modified magic a1b2cd34 with 24-byte record headers is described in libpcap's
``savefile.c``. pcapng: draft-ietf-opsawg-pcapng sections 4.1 to 4.6 and A (obsolete Packet Block).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

ETHERNET, RAW_OLD, RAW, NULL, LOOP, SLL, SLL2, IPV4, IPV6 = 1, 12, 101, 0, 108, 113, 276, 228, 229
MICROSECONDS = 0xA1B2C3D4
NANOSECONDS = 0xA1B23C4D
MODIFIED = 0xA1B2CD34


@dataclass(frozen=True)
class Record:
    """One captured packet: ``time_ns`` since 1970; ``wire_size``: original length if the frame is truncated."""

    time_ns: int
    frame: bytes
    wire_size: int | None = None

    @property
    def original(self) -> int:
        return len(self.frame) if self.wire_size is None else self.wire_size


@dataclass(frozen=True)
class CaptureFile:
    """The bytes of a capture file, and the offset of each record's frame in it."""

    data: bytes
    frame_offsets: tuple[int, ...]
    records: tuple[Record, ...]
    first_record_end: int


def _join(parts: Sequence[tuple[bytes, int | None]], records: Sequence[Record], tail: int) -> CaptureFile:
    """Join parts (bytes, offset of the frame in them or None); ``tail``: first record end of a file without records."""
    data = bytearray()
    offsets = []
    first_end = 0
    for part, frame_at in parts:
        if frame_at is not None:
            offsets.append(len(data) + frame_at)
        data += part
        if frame_at is not None and len(offsets) == 1:
            first_end = len(data)
    assert len(offsets) == len(records)
    return CaptureFile(bytes(data), tuple(offsets), tuple(records), first_end or tail)


def pcap(
    records: Sequence[Record],
    *,
    link: int = ETHERNET,
    order: str = "<",
    magic: int = MICROSECONDS,
    snaplen: int = 262144,
) -> CaptureFile:
    """Return a pcap file; ``order`` is ``<`` or ``>`` as in ``struct``."""
    unit = 1 if magic == NANOSECONDS else 1000
    parts: list[tuple[bytes, int | None]] = [(struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snaplen, link), None)]
    for record in records:
        seconds, rest = divmod(record.time_ns, 1_000_000_000)
        head = struct.pack(order + "IIII", seconds, rest // unit, len(record.frame), record.original)
        if magic == MODIFIED:
            head += struct.pack(order + "IHBB", 2, 0x0800, 0, 0)  # interface index, protocol, packet type, padding
        parts.append((head + record.frame, len(head)))
    return _join(parts, records, 24)


def option(order: str, code: int, value: bytes) -> bytes:
    """Return one pcapng option, padded to 4 bytes."""
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def block(order: str, kind: int, body: bytes) -> bytes:
    """Return one pcapng block around a padded body."""
    assert len(body) % 4 == 0
    size = len(body) + 12
    return struct.pack(order + "II", kind, size) + body + struct.pack(order + "I", size)


def section(order: str = "<", *, length: int = -1, options: bytes = b"") -> bytes:
    """Return a Section Header Block; ``length`` -1 means unspecified."""
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, length) + options)


def interface(
    order: str = "<", *, link: int = ETHERNET, snaplen: int = 0, tsresol: int | None = None, tsoffset: int | None = None
) -> bytes:
    """Return an Interface Description Block; ``tsresol`` is its byte (high bit: power of two)."""
    options = b""
    if tsresol is not None:
        options += option(order, 9, bytes([tsresol]))
    if tsoffset is not None:
        options += option(order, 14, struct.pack(order + "q", tsoffset))
    if options:
        options += bytes(4)
    return block(order, 1, struct.pack(order + "HHI", link, 0, snaplen) + options)


def units(time_ns: int, tsresol: int = 6, tsoffset: int = 0) -> int:
    """Convert a time to an interface's units, rounded down."""
    per_second = 2 ** (tsresol & 0x7F) if tsresol & 0x80 else 10**tsresol
    return (time_ns - tsoffset * 1_000_000_000) * per_second // 1_000_000_000


def enhanced(
    record: Record, order: str = "<", *, number: int = 0, tsresol: int = 6, tsoffset: int = 0, options: bytes = b""
) -> tuple[bytes, int]:
    """Return an Enhanced Packet Block of interface ``number``, and the offset of its frame."""
    when = units(record.time_ns, tsresol, tsoffset)
    head = struct.pack(order + "IIIII", number, when >> 32, when & 0xFFFFFFFF, len(record.frame), record.original)
    return block(order, 6, head + record.frame + bytes(-len(record.frame) % 4) + options), 28


def obsolete(
    record: Record, order: str = "<", *, number: int = 0, tsresol: int = 6, drops: int = 0xFFFF
) -> tuple[bytes, int]:
    """Return an obsolete Packet Block (type 2); 0xFFFF drops means unknown."""
    when = units(record.time_ns, tsresol)
    head = struct.pack(
        order + "HHIIII", number, drops, when >> 32, when & 0xFFFFFFFF, len(record.frame), record.original
    )
    return block(order, 2, head + record.frame + bytes(-len(record.frame) % 4)), 28


def simple(record: Record, order: str = "<") -> tuple[bytes, int]:
    """Return a Simple Packet Block: no time, interface 0, captured length from the snaplen."""
    return block(order, 3, struct.pack(order + "I", record.original) + record.frame + bytes(-len(record.frame) % 4)), 12


def statistics(order: str = "<", *, number: int = 0, drops: int | None = None, os_drops: int | None = None) -> bytes:
    """Return an Interface Statistics Block with isb_ifdrop (5) and isb_osdrop (7)."""
    options = b""
    if drops is not None:
        options += option(order, 5, struct.pack(order + "Q", drops))
    if os_drops is not None:
        options += option(order, 7, struct.pack(order + "Q", os_drops))
    return block(order, 5, struct.pack(order + "III", number, 0, 0) + options + bytes(4))


def host_names(order: str, *entries: tuple[str, bytes]) -> bytes:
    """Return a Name Resolution Block: addresses with their names, several of one address behind zero bytes."""
    body = b""
    for address, names in entries:
        packed = ip_address(address).packed
        value = packed + names + b"\0"
        body += struct.pack(order + "HH", 1 if len(packed) == 4 else 2, len(value)) + value + bytes(-len(value) % 4)
    return block(order, 4, body + bytes(4))


def assemble(parts: Sequence[bytes | tuple[bytes, int]], records: Sequence[Record]) -> CaptureFile:
    """Return a pcapng file of blocks; packet blocks come with the offset of their frame, as from ``enhanced``."""
    return _join([part if isinstance(part, tuple) else (part, None) for part in parts], records, 0)


def pcapng(
    records: Sequence[Record],
    *,
    order: str = "<",
    link: int = ETHERNET,
    tsresol: int | None = None,
    tsoffset: int | None = None,
) -> CaptureFile:
    """Return a pcapng file: one section, one interface, Enhanced Packet Blocks."""
    blocks: list[bytes | tuple[bytes, int]] = [
        section(order),
        interface(order, link=link, tsresol=tsresol, tsoffset=tsoffset),
    ]
    blocks += [
        enhanced(record, order, tsresol=6 if tsresol is None else tsresol, tsoffset=tsoffset or 0) for record in records
    ]
    return assemble(blocks, records)


Writer = Callable[[Sequence[Record]], CaptureFile]
