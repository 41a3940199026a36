"""Packets of the binary protocol for tests, written from [MS-MQMQ] 2.2.18 to 2.2.20 and [MS-MQQB] 2.2."""

from __future__ import annotations

import struct
from collections.abc import Sequence

CLIENT_GUID, SERVER_GUID = bytes(range(16)), bytes(range(100, 116))
PORT = 1801
PR3, IN, SH = 3, 1 << 3, 1 << 4


def base_header(flags: int, size: int, *, reach: int = 0xFFFFFFFF, version: int = 0x10) -> bytes:
    """Return a BaseHeader ([MS-MQMQ] 2.2.19.1)."""
    return struct.pack("<BBHIII", version, 0xC0, flags, 0x524F494C, size, reach)


def establish_connection(*, answer: bool = False, refused: bool = False, at_ms: int = 1000) -> bytes:
    """Return an EstablishConnection packet, 572 octets ([MS-MQQB] 2.2.3)."""
    body = CLIENT_GUID + (SERVER_GUID if answer else bytes(16)) + struct.pack("<IHH", at_ms, 0x0310, 0)
    internal = struct.pack("<HH", 0, 2 | (0x10 if refused else 0))
    return base_header(IN | PR3, 572) + internal + body + b"\x5a" * 512


def connection_parameters(window: int = 64) -> bytes:
    """Return a ConnectionParameters packet, 32 octets ([MS-MQQB] 2.2.2)."""
    return base_header(IN | PR3, 32) + struct.pack("<HHIIHH", 0, 3, 500, 20_000, 0, window)


def session_header(
    acknowledged: int = 0, stored: int = 0, bits: int = 0, sent: int = 0, recoverable: int = 0, window: int = 64
) -> bytes:
    """Return a SessionHeader, 16 octets ([MS-MQMQ] 2.2.20.4)."""
    return struct.pack("<HHIHHHH", acknowledged, stored, bits, sent, recoverable, window, 0)


def session_ack(header: bytes | None = None) -> bytes:
    """Return a SessionAck packet, 36 octets ([MS-MQQB] 2.2.6)."""
    return base_header(IN | PR3 | SH, 36) + struct.pack("<HH", 0, 1) + (header or session_header())


def direct_name(text: str) -> bytes:
    """Return a direct format name as UserHeader has it ([MS-MQMQ] 2.2.18.1.5)."""
    name = (text + "\0").encode("utf-16-le")
    name = struct.pack("<H", len(name)) + name
    return name + bytes(-len(name) % 4)


def message(
    body: bytes = b"", *, label: str = "", message_class: int = 0, flags: int = PR3, header: bytes | None = None,
    queue: bytes | None = None, queue_type: int = 7, user_flags: int = 0, between: bytes = b"", padding: int = 0,
) -> bytes:  # fmt: skip
    """Return a message ([MS-MQMQ] 2.2.20) and, with ``header``, its SessionHeader behind it.

    ``queue``: DestinationQueue, of type ``queue_type``; ``user_flags``: more of UserHeader.Flags, with the headers that
    these announce in ``between``; ``padding``: more octets at the end.
    """
    name = direct_name("TCP:10.0.0.1\\q") if queue is None else queue
    text = (label + "\0").encode("utf-16-le") if label else b""
    user = bytes(range(32)) + struct.pack(
        "<IIII", 0xFFFFFFFF, 1_700_000_000, 7, queue_type << 10 | 1 << 21 | user_flags
    )
    data = text + body
    data += bytes(-len(data) % 4 + padding)
    properties = struct.pack("<BBH20x", 0, len(text) // 2, message_class)
    properties += struct.pack("<IIIIIIII", 0, 0, len(body), len(body), 0, 0, 0, 0)
    rest = user + name + between + properties + data
    return base_header(flags | (0 if header is None else SH), 16 + len(rest)) + rest + (header or b"")


def order_ack(
    number: int = 1, *, message_class: int = 0xFF, direct: bool = False, header: bytes | None = None
) -> bytes:
    """Return an OrderAck or, by its class, a FinalAck packet ([MS-MQQB] 2.2.4, 2.2.5)."""
    body = struct.pack("<QII20x", 5, number, number - 1)
    queue = direct_name("TCP:10.0.0.9\\PRIVATE$\\order_queue$") if direct else struct.pack("<I", 4)
    return message(body, label="QM Ordering Ack", message_class=message_class, flags=0, header=header, queue=queue,
                   queue_type=7 if direct else 3)  # fmt: skip


def handshake() -> Sequence[tuple[int, bytes]]:
    """Return the packets that open a session, each with its side."""
    return (
        (0, establish_connection()),
        (1, establish_connection(answer=True)),
        (0, connection_parameters()),
        (1, connection_parameters()),
    )
