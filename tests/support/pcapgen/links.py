"""Link headers beside those of ``frames``, written from the registry of link types, RFCs and radiotap.org."""

from __future__ import annotations

import struct

from pcapgen import frames

PPP, HDLC, PPPOE, CHDLC, WLAN, RADIOTAP, PPI, PPP_DIRECTION, NFLOG, PKTAP = 9, 50, 51, 104, 105, 127, 192, 204, 239, 258
JUNIPER_ETHER = 178


def ethertype(packet: bytes) -> bytes:
    return {4: b"\x08\x00", 6: b"\x86\xdd"}[packet[0] >> 4]


def ppp(packet: bytes, *, framed: bool = False) -> bytes:
    """RFC 1661, RFC 1662."""
    return (b"\xff\x03" if framed else b"") + {4: b"\x00\x21", 6: b"\x00\x57"}[packet[0] >> 4] + packet


def pppoe(packet: bytes) -> bytes:
    """RFC 2516, without Ethernet."""
    payload = ppp(packet)
    return struct.pack(">BBHH", 0x11, 0, 3, len(payload)) + payload


def cisco_hdlc(packet: bytes) -> bytes:
    return b"\x0f\x00" + ethertype(packet) + packet


def wlan(packet: bytes, *, quality: bool = False, four: bool = False) -> bytes:
    """IEEE 802.11 data frames in clear, with LLC and SNAP."""
    head = bytes([0x88 if quality else 0x08, 0x03 if four else 0x01]) + bytes(2) + bytes(range(18)) + bytes(2)
    head += (bytes(6) if four else b"") + (bytes(2) if quality else b"")
    return head + b"\xaa\xaa\x03\x00\x00\x00" + ethertype(packet) + packet


def radiotap(packet: bytes, *, padded: bool = False) -> bytes:
    """A time, flags and a rate in front of 802.11; ``padded``: its header, of 26 bytes, is followed by two more."""
    flags = 0x20 if padded else 0
    frame = wlan(packet, quality=True)
    if padded:
        frame = frame[:26] + bytes(2) + frame[26:]
    fields = struct.pack("<QBB", 123456, flags, 0x0C)
    return struct.pack("<BBHI", 0, 0, 8 + len(fields), 0b111) + fields + frame


def radiotap_extended(packet: bytes) -> bytes:
    """Two more words of present fields, the last of another antenna; no flags."""
    return struct.pack("<BBHIII", 0, 0, 17, 0x80000004, 0x80000000, 0) + b"\x0c" + wlan(packet)


def ppi(packet: bytes) -> bytes:
    """PPI 1.0: a header without fields, which names the link type."""
    return struct.pack("<BBHI", 0, 0, 8, 1) + frames.ethernet(packet)


def pktap(packet: bytes) -> bytes:
    """macOS: a header of 108 bytes, which names the link type."""
    return struct.pack("<III", 108, 1, 1) + bytes(96) + frames.ethernet(packet)


def nflog(packet: bytes, order: str = "<") -> bytes:
    """Linux: family, version, group, then attributes: a packet header, a prefix, the payload."""
    family = {4: 2, 6: 10}[packet[0] >> 4]
    attributes = [(1, bytes(8)), (10, b"msmq\0"), (9, packet)]
    body = b"".join(
        struct.pack(order + "HH", 4 + len(value), kind) + value + bytes(-len(value) % 4) for kind, value in attributes
    )
    return struct.pack(">BBH", family, 0, 5) + body


def juniper(packet: bytes, *, extended: bool = False) -> bytes:
    """Juniper's Ethernet: a magic number, flags, extensions if these say so."""
    extension = struct.pack(">HBBI", 6, 2, 4, 0) if extended else b""
    return b"\x4d\x47\x43" + bytes([0x81 if extended else 0x01]) + extension + frames.ethernet(packet)
