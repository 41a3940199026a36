"""Frames of hostile captures: the least that a reader believes. Their checksums are 0, as with offloading."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator

from bench.traffic import ACK, EPOCH_US, PCAP_HEADER, PUSH, SYN, pcap_record

_TCP, _UDP = 6, 17


def ethernet_frame(client: int, sequence: int, flags: int, data: bytes = b"", port: int = 2103) -> bytes:
    """Return an Ethernet frame with a TCP segment to a port; ``client`` holds address and port."""
    tcp = struct.pack(">HHIIBBHHH", client & 0xFFFF, port, sequence & 0xFFFFFFFF, 1, 0x50, flags, 8192, 0, 0)
    return _ip_frame(client, _TCP, tcp + data)


def udp_frame(client: int, data: bytes, port: int) -> bytes:
    """Return an Ethernet frame with a UDP datagram to a port; ``client`` holds address and port."""
    return _ip_frame(client, _UDP, struct.pack(">HHHH", client & 0xFFFF, port, 8 + len(data), 0) + data)


def _ip_frame(client: int, protocol: int, data: bytes) -> bytes:
    addresses = struct.pack(">BBHBBH", 10, 1, client >> 16, 10, 2, 1)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(data), 0, 0, 64, protocol, 0) + addresses
    return bytes(12) + b"\x08\x00" + ip + data


def pcap(frames: Iterable[bytes]) -> bytes:
    """Return a pcap file of frames, a microsecond apart."""
    out = io.BytesIO()
    out.write(PCAP_HEADER)
    for number, frame in enumerate(frames):
        out.write(pcap_record(EPOCH_US + number, frame))
    return out.getvalue()


def one_connection(pieces: Iterable[bytes], *, syn: bool, packet_bytes: int = 64_000, port: int = 2103) -> bytes:
    """Return a capture of one connection whose client sends PDUs or other pieces, joined to packets."""

    def frames() -> Iterator[bytes]:
        if syn:
            yield ethernet_frame(1024, 99, SYN, port=port)
        at, waiting = 100, b""
        for piece in pieces:
            if waiting and len(waiting) + len(piece) > packet_bytes:
                yield ethernet_frame(1024, at, ACK | PUSH, waiting, port)
                at, waiting = at + len(waiting), b""
            waiting += piece
        yield ethernet_frame(1024, at, ACK | PUSH, waiting, port)

    return pcap(frames())
