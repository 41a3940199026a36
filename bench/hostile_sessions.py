"""Hostile captures of the binary protocol (TCP 1801) and of its pings, for ``python -m bench.hostile``.

What their connections have in common is that each byte costs an attacker little and a reader more: headers that promise
4 MB, headers as near to one another as they go, segments of one byte, holes, addresses and cookies that are always new.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from bench.hostile_frames import ethernet_frame, one_connection, pcap, udp_frame
from bench.traffic import ACK, PUSH, SYN

PORT, PING_PORT, OTHER_PORT = 1801, 3527, 5000
HUGE_BYTES = 0x400000  # the largest PacketSize
_LIOR, _NEVER = 0x524F494C, 0xFFFFFFFF
_IN, _SH = 1 << 3, 1 << 4
_USER_FLAGS = 7 << 10 | 1 << 21  # a direct name of the queue, and a MessagePropertiesHeader
_SESSION_ACK = struct.pack("<BBHIIIHH16x", 0x10, 0, _IN | _SH | 3, _LIOR, 36, _NEVER, 0, 1)
CROWD = 64  # connections that send in turn


def header(size: int, flags: int = 3) -> bytes:
    """Return the first 64 bytes of a message that claims ``size`` bytes: BaseHeader and UserHeader up to its Flags."""
    base = struct.pack("<BBHIII", 0x10, 0, flags, _LIOR, size, _NEVER)
    return base + bytes(44) + struct.pack("<I", _USER_FLAGS)


def near_header(size: int) -> bytes:
    """Return 12 bytes that are a valid header where further ones follow: their first word is UserHeader.Flags too."""
    return struct.pack("<BBHII", 0x10, 7 << 2, 1 << 5, _LIOR, size)


def _establish_connection() -> bytes:
    """Return an EstablishConnection packet ([MS-MQQB] 2.2.3)."""
    body = bytes(range(16)) + bytes(16) + struct.pack("<IHH", 1000, 0x310, 0) + b"\x5a" * 512
    return struct.pack("<BBHIIIHH", 0x10, 0, _IN | 3, _LIOR, 20 + len(body), _NEVER, 0, 2) + body


def claims(count: int) -> bytes:
    """A packet of a message of 4 MB from each of ``count`` clients, behind its SYN; nothing more of it."""

    def frames() -> Iterator[bytes]:
        for number in range(count // 2):
            yield ethernet_frame(number + 1024, 99, SYN, port=PORT)
            yield ethernet_frame(number + 1024, 100, ACK | PUSH, header(HUGE_BYTES), port=PORT)

    return pcap(frames())


def claims_without_syn(count: int) -> bytes:
    """The same without SYN: the header is searched, and whether it is one is not seen."""
    claim = header(HUGE_BYTES)
    return pcap(ethernet_frame(number + 1024, 100, ACK | PUSH, claim, port=PORT) for number in range(count))


def _crowd(count: int, first: bytes, *, syn: bool, segment_bytes: int) -> bytes:
    """A crowd of clients: each begins so, then sends ``count`` bytes together in short segments, in turn."""

    def frames() -> Iterator[bytes]:
        for client in range(CROWD):
            if syn:
                yield ethernet_frame(client + 1024, 99, SYN, port=PORT)
            yield ethernet_frame(client + 1024, 100, ACK | PUSH, first, port=PORT)
        at, rest = 100 + len(first), b"z" * segment_bytes
        for _ in range(count // CROWD):
            for client in range(CROWD):
                yield ethernet_frame(client + 1024, at, ACK | PUSH, rest, port=PORT)
            at += segment_bytes

    return pcap(frames())


def claims_in_bytes(count: int) -> bytes:
    """Messages of 4 MB on some connections, of which ``count`` segments of one byte come, in turn."""
    return _crowd(count, header(HUGE_BYTES), syn=True, segment_bytes=1)


def claims_in_bytes_without_syn(count: int) -> bytes:
    """The same without SYN."""
    return _crowd(count, header(HUGE_BYTES), syn=False, segment_bytes=1)


def filled_claims(count: int) -> bytes:
    """Messages of 4 MB on some connections without SYN, of which ``count`` segments of 1,000 bytes come, in turn."""
    return _crowd(count // 10, header(HUGE_BYTES), syn=False, segment_bytes=1000)


def signatures(count: int) -> bytes:
    """A stream of nothing but signatures, ``count`` of them."""
    return one_connection((b"LIOR" * 1000 for _ in range(count // 1000)), syn=False, port=PORT)


def near_headers(count: int) -> bytes:
    """A stream without SYN of ``count`` headers, each inside of the one before, that all claim 4 MB."""
    return one_connection((near_header(HUGE_BYTES) * 1000 for _ in range(count // 1000)), syn=False, port=PORT)


def near_headers_that_follow(count: int) -> bytes:
    """The same, where each header stands where another one says; but the search ends in garbage each time."""
    run = b"".join(near_header(120 + 12 * (number % 7)) for number in range(1000)) + b"garbage"
    return one_connection((run for _ in range(count // 1000)), syn=False, port=PORT)


def smallest_packets(count: int) -> bytes:
    """A connection with SYN whose client sends ``count`` packets of 16 bytes, the smallest that a header can claim."""
    packet = struct.pack("<BBHIII", 0x10, 0, 3, _LIOR, 16, _NEVER)
    return one_connection((packet * 1000 for _ in range(count // 1000)), syn=True, port=PORT)


def garbage_between_packets(count: int) -> bytes:
    """A connection in which ``count`` packets of 36 bytes and as many stray bytes take turns."""
    return one_connection(((_SESSION_ACK * 2 + b"?") * 500 for _ in range(count // 1000)), syn=True, port=PORT)


def session_in_bytes(count: int) -> bytes:
    """A connection with SYN that sends session acks in ``count`` segments of one byte."""
    return pcap(_bytes_of_acks(count, step=1))


def session_in_bytes_without_syn(count: int) -> bytes:
    """The same on many connections without SYN: what they begin with is kept for an earlier capture."""
    return _crowd_without_syn(count, 1, _byte_of_ack)


def hole_after_each_byte(count: int) -> bytes:
    """A connection with SYN that sends session acks, of which every second byte is captured, ``count`` of them."""
    return pcap(_bytes_of_acks(count, step=2))


def hole_after_each_packet(count: int) -> bytes:
    """Many connections that lose a byte behind each session ack, ``count`` of them together."""
    return _crowd_without_syn(count, len(_SESSION_ACK) + 1, lambda _: _SESSION_ACK)


def _crowd_without_syn(count: int, step: int, segment: Callable[[int], bytes]) -> bytes:
    """A crowd of clients that send ``count // 2`` segments in turn, those of a client ``step`` bytes apart."""

    def frames() -> Iterator[bytes]:
        for number in range(count // 2):
            client, place = number % CROWD + 1024, number // CROWD
            yield ethernet_frame(client, 100 + step * place, ACK | PUSH, segment(place), port=PORT)

    return pcap(frames())


def _byte_of_ack(place: int) -> bytes:
    at = place % len(_SESSION_ACK)
    return _SESSION_ACK[at : at + 1]


def _bytes_of_acks(count: int, step: int) -> Iterator[bytes]:
    yield ethernet_frame(1024, 99, SYN, port=PORT)
    for at in range(0, count * step, step):
        yield ethernet_frame(1024, 100 + at, ACK | PUSH, _byte_of_ack(at), port=PORT)


def establish_connections(count: int) -> bytes:
    """An EstablishConnection packet from each of ``count`` clients, without SYN, to a port that no protocol has."""
    asked = _establish_connection()
    return pcap(ethernet_frame(number + 1024, 100, ACK | PUSH, asked, port=OTHER_PORT) for number in range(count // 2))


def establish_connections_in_pieces(count: int) -> bytes:
    """The same in two segments, behind a SYN, of which the first one has not the whole header."""
    asked = _establish_connection()[:20]

    def frames() -> Iterator[bytes]:
        for number in range(count // 4):
            client = number + 1024
            yield ethernet_frame(client, 99, SYN, port=OTHER_PORT)
            yield ethernet_frame(client, 100, ACK | PUSH, asked[:7], port=OTHER_PORT)
            yield ethernet_frame(client, 107, ACK | PUSH, asked[7:], port=OTHER_PORT)

    return pcap(frames())


def pings(count: int) -> bytes:
    """Ping requests ([MS-MQQB] 2.2.7), ``count`` of them, each with a new cookie."""
    return pcap(udp_frame(1024, _ping(number), PING_PORT) for number in range(count))


def pings_of_one_cookie(count: int) -> bytes:
    """The same, all with the same cookie."""
    return pcap(udp_frame(1024, _ping(7), PING_PORT) for number in range(count))


def pings_of_many_clients(count: int) -> bytes:
    """The same, each of another client."""
    return pcap(udp_frame(1024 + number, _ping(number), PING_PORT) for number in range(count))


def _ping(cookie: int) -> bytes:
    return struct.pack("<H2sI", 0, b"HU", cookie) + struct.pack("<I", cookie) + bytes(range(12))


CAPTURES = {
    "claims": claims,
    "claims_without_syn": claims_without_syn,
    "claims_in_bytes": claims_in_bytes,
    "claims_in_bytes_without_syn": claims_in_bytes_without_syn,
    "filled_claims": filled_claims,
    "signatures": signatures,
    "near_headers": near_headers,
    "near_headers_that_follow": near_headers_that_follow,
    "smallest_packets": smallest_packets,
    "garbage_between_packets": garbage_between_packets,
    "session_in_bytes": session_in_bytes,
    "session_in_bytes_without_syn": session_in_bytes_without_syn,
    "hole_after_each_byte": hole_after_each_byte,
    "hole_after_each_packet": hole_after_each_packet,
    "establish_connections": establish_connections,
    "establish_connections_in_pieces": establish_connections_in_pieces,
    "pings": pings,
    "pings_of_one_cookie": pings_of_one_cookie,
    "pings_of_many_clients": pings_of_many_clients,
}
