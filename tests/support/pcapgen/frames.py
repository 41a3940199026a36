"""Frames for tests: link headers, IPv4 and IPv6 with extensions, TCP (RFC 791, 8200, 9293; libpcap link types)."""

from __future__ import annotations

import ipaddress
import struct

FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10
IPV4_TYPE, IPV6_TYPE, VLAN_TYPE, QINQ_TYPE = 0x0800, 0x86DD, 0x8100, 0x88A8


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def tcp(
    source: str,
    target: str,
    sport: int,
    dport: int,
    seq: int,
    ack: int,
    flags: int,
    payload: bytes = b"",
    options: bytes = b"",
) -> bytes:
    """Return a TCP segment with its checksum."""
    options += bytes(-len(options) % 4)
    head = struct.pack(">HHIIBBHHH", sport, dport, seq, ack, (20 + len(options)) << 2, flags, 0xFFFF, 0, 0) + options
    ends = ipaddress.ip_address(source).packed + ipaddress.ip_address(target).packed
    pseudo = ends + struct.pack(">IHBB", len(head) + len(payload), 0, 0, 6)
    return head[:16] + struct.pack(">H", checksum(pseudo + head + payload)) + head[18:] + payload


def ipv4(
    source: str,
    target: str,
    payload: bytes,
    *,
    protocol: int = 6,
    ident: int = 1,
    options: bytes = b"",
    fragment: int = 0x4000,
    total: int | None = None,
) -> bytes:
    """Return an IPv4 packet; ``fragment``: the flags-and-offset field, ``total``: overrides the total length."""
    options += bytes(-len(options) % 4)
    size = 20 + len(options) + len(payload) if total is None else total
    head = struct.pack(">BBHHHBBH", 0x45 + len(options) // 4, 0, size & 0xFFFF, ident, fragment, 64, protocol, 0)
    head += ipaddress.IPv4Address(source).packed + ipaddress.IPv4Address(target).packed + options
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload


def ipv4_fragments(
    source: str, target: str, payload: bytes, size: int, *, ident: int = 7, protocol: int = 6
) -> list[bytes]:
    """Return the payload in IPv4 fragments of ``size`` bytes, a multiple of 8."""
    assert size % 8 == 0
    out = []
    for at in range(0, len(payload), size):
        more = 0x2000 if at + size < len(payload) else 0
        piece = payload[at : at + size]
        out.append(ipv4(source, target, piece, protocol=protocol, ident=ident, fragment=more | at // 8))
    return out


def ipv6(source: str, target: str, payload: bytes, *, following: int = 6, length: int | None = None) -> bytes:
    """Return an IPv6 packet; extension headers belong to the payload, ``following`` is the first next-header number."""
    size = len(payload) if length is None else length
    ends = ipaddress.IPv6Address(source).packed + ipaddress.IPv6Address(target).packed
    return struct.pack(">IHBB", 0x60000000, size, following, 64) + ends + payload


def extension(following: int, words: int = 0) -> bytes:
    """Return a hop-by-hop, routing or destination header of (words + 1) * 8 bytes, filled with PadN."""
    size = words * 8 + 8 - 4
    return struct.pack(">BBBB", following, words, 1, size) + bytes(size)


def ipv6_fragments(source: str, target: str, payload: bytes, size: int, *, ident: int = 7) -> list[bytes]:
    """Return a TCP payload in IPv6 fragments (RFC 8200 4.5) of ``size`` bytes, a multiple of 8."""
    assert size % 8 == 0
    out = []
    for at in range(0, len(payload), size):
        more = 1 if at + size < len(payload) else 0
        head = struct.pack(">BBHI", 6, 0, at | more, ident)
        out.append(ipv6(source, target, head + payload[at : at + size], following=44))
    return out


def ip(source: str, target: str, payload: bytes) -> bytes:
    """Return an IPv4 or IPv6 packet, depending on the addresses."""
    return ipv6(source, target, payload) if ":" in source else ipv4(source, target, payload)


def _ethertype(packet: bytes) -> int:
    return IPV6_TYPE if packet[0] >> 4 == 6 else IPV4_TYPE


def ethernet(packet: bytes, *, vlans: tuple[tuple[int, int], ...] = (), trailer: bytes = b"") -> bytes:
    """Return an Ethernet frame with VLAN tags (TPID, tag); ``trailer``: padding after the packet."""
    tags = b"".join(struct.pack(">HH", tpid, tag) for tpid, tag in vlans)
    return bytes.fromhex("020000000002020000000001") + tags + struct.pack(">H", _ethertype(packet)) + packet + trailer


def tagged(packet: bytes, ethertype: int, tag: bytes, *, inner: int | None = None, trailer: bytes = b"") -> bytes:
    """Return an Ethernet frame with a tag of any kind, behind which an EtherType follows: IP's, or ``inner``."""
    follows = _ethertype(packet) if inner is None else inner
    head = bytes.fromhex("020000000002020000000001") + struct.pack(">H", ethertype)
    return head + tag + struct.pack(">H", follows) + packet + trailer


def sll(packet: bytes) -> bytes:
    """Return a frame of Linux cooked capture, version 1 (LINKTYPE_LINUX_SLL)."""
    return struct.pack(">HHH8sH", 0, 1, 6, b"\x02\0\0\0\0\x01", _ethertype(packet)) + packet


def sll2(packet: bytes) -> bytes:
    """Return a frame of Linux cooked capture, version 2 (LINKTYPE_LINUX_SLL2)."""
    return struct.pack(">HHIHBB8s", _ethertype(packet), 0, 3, 1, 0, 6, b"\x02\0\0\0\0\x01") + packet


def loopback(packet: bytes, order: str = "<", family: int | None = None) -> bytes:
    """Return a BSD loopback frame: address family in host byte order (NULL) or big-endian (LOOP)."""
    if family is None:
        family = 30 if packet[0] >> 4 == 6 else 2  # AF_INET6 of macOS; 24 and 28 elsewhere
    return struct.pack(order + "I", family) + packet
