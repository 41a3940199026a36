"""Tunnels around packets, written from the RFCs and drafts, independent of the reader."""

from __future__ import annotations

import struct
from collections.abc import Callable

from pcapgen import frames

OUTER, OUTER6 = ("192.0.2.1", "192.0.2.2"), ("2001:db8:f::1", "2001:db8:f::2")
IP_TYPE = {4: 0x0800, 6: 0x86DD}
Wrap = Callable[[bytes], bytes]


def udp(payload: bytes, port: int, *, six: bool = False) -> bytes:
    """Return an IP packet with a UDP datagram to a port; without a checksum."""
    datagram = struct.pack(">HHHH", 54321, port, 8 + len(payload), 0) + payload
    return frames.ipv6(*OUTER6, datagram, following=17) if six else frames.ipv4(*OUTER, datagram, protocol=17)


def _type(packet: bytes) -> int:
    return IP_TYPE[packet[0] >> 4]


def vxlan(
    packet: bytes, vni: int = 77, *, port: int = 4789, six: bool = False, vlans: tuple[tuple[int, int], ...] = ()
) -> bytes:
    """RFC 7348 5."""
    return udp(struct.pack(">II", 0x08000000, vni << 8) + frames.ethernet(packet, vlans=vlans), port, six=six)


def vxlan_gpe(packet: bytes, vni: int = 78) -> bytes:
    """draft-ietf-nvo3-vxlan-gpe 3.1: the flag P, and what follows."""
    follows = {4: 1, 6: 2}[packet[0] >> 4]
    return udp(struct.pack(">II", 0x0C000000 | follows, vni << 8) + packet, 4790)


def geneve(packet: bytes, vni: int = 79, *, options: bytes = bytes(8)) -> bytes:
    """RFC 8926 3.4: Ethernet behind options."""
    head = struct.pack(">BBHI", len(options) // 4, 0, 0x6558, vni << 8)
    return udp(head + options + frames.ethernet(packet), 6081)


def gre(packet: bytes, *, key: int | None = None, number: int | None = None, checksum: bool = False) -> bytes:
    """RFC 2784, RFC 2890."""
    flags = (0x8000 if checksum else 0) | (0x2000 if key is not None else 0) | (0x1000 if number is not None else 0)
    head = struct.pack(">HH", flags, _type(packet)) + (bytes(4) if checksum else b"")
    for value in (key, number):
        head += b"" if value is None else struct.pack(">I", value)
    return frames.ipv4(*OUTER, head + packet, protocol=47)


def nvgre(packet: bytes, subnet: int = 5001) -> bytes:
    """RFC 7637 3.2."""
    head = struct.pack(">HHI", 0x2000, 0x6558, subnet << 8 | 9)
    return frames.ipv4(*OUTER, head + frames.ethernet(packet), protocol=47)


def erspan(packet: bytes, version: int, session: int = 100) -> bytes:
    """draft-foschiano-erspan 4."""
    if version == 1:
        head = struct.pack(">HH", 0, 0x88BE)
    elif version == 2:
        head = struct.pack(">HHIHHI", 0x1000, 0x88BE, 1, 1 << 12 | 7, session, 3)
    else:
        head = struct.pack(">HHIHHIHH", 0x1000, 0x22EB, 1, 2 << 12 | 7, session, 99, 0, 0)
    return frames.ipv4(*OUTER, head + frames.ethernet(packet), protocol=47)


def ip_in_ip(packet: bytes, *, six: bool = False) -> bytes:
    """RFC 2003, 4213, 2473."""
    number = {4: 4, 6: 41}[packet[0] >> 4]
    return frames.ipv6(*OUTER6, packet, following=number) if six else frames.ipv4(*OUTER, packet, protocol=number)


def mpls(packet: bytes, *labels: int, wire: bool = False) -> bytes:
    """RFC 3032; ``wire``: Ethernet behind a control word (RFC 4385)."""
    stack = b"".join(
        struct.pack(">I", label << 12 | (0x100 if index + 1 == len(labels) else 0) | 64)
        for index, label in enumerate(labels)
    )
    inner = bytes(4) + frames.ethernet(packet) if wire else packet
    return bytes(12) + b"\x88\x47" + stack + inner


def pppoe(packet: bytes, session: int = 12) -> bytes:
    """RFC 2516 4."""
    payload = struct.pack(">H", {4: 0x0021, 6: 0x0057}[packet[0] >> 4]) + packet
    return bytes(12) + struct.pack(">HBBHH", 0x8864, 0x11, 0, session, len(payload)) + payload
