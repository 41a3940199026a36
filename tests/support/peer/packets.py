"""Build MSMQ message packets (message-packets.md section 1)."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, field

NEVER = 0xFFFF_FFFF
NORMAL = 0x0000


def _padded(data: bytes, size: int = 4) -> bytes:
    return data + b"\x00" * (-len(data) % size)


@dataclass
class Message:
    """The values set by the sender; `packet` and the trailing headers encode them."""

    body: bytes
    label: str = ""
    extension: bytes = b""
    priority: int = 3
    recoverable: bool = False
    destination: str = "OS:srv1\\private$\\orders"
    admin: str | None = None
    response: str | None = None
    source: uuid.UUID = field(default_factory=lambda: uuid.UUID("5f0c2b1a-9d3e-4c77-8a10-000102030405"))
    number: int = 1
    sent: int = 0
    time_to_reach: int = NEVER
    time_to_receive: int = NEVER
    body_type: int = 17 | 0x1000
    application: int = 0
    acknowledge: int = 0
    message_class: int = NORMAL
    correlation: bytes = bytes(20)
    transaction: int | None = None  # TxSequenceNumber of a transactional message
    sender: bytes | None = None  # SID in a SecurityHeader
    certificate: bytes = b""
    aborts: int = 0
    moves: int = 0

    def base_header(self, size: int, *, absolute: bool) -> bytes:
        """BaseHeader (1.2); RemoteRead has an absolute time to reach the queue (1.15)."""
        reach = self.time_to_reach
        if absolute and reach != NEVER:
            reach = min(self.sent + reach, NEVER)
        priority = 0 if self.transaction is not None else self.priority
        return struct.pack("<BBHIII", 0x10, 0, priority, 0x524F494C, size, reach)

    def user_header(self, *, origin: bytes | None) -> bytes:
        """UserHeader (1.3); `origin` is RemoteRead's overlay with the address of the sender (1.15)."""
        flags = int(self.recoverable or self.transaction is not None) << 5 | 7 << 10 | 1 << 21
        flags |= (7 << 13 if self.admin else 0) | (7 << 16 if self.response else 0)
        flags |= (1 << 19 if self.sender is not None else 0) | (1 << 20 if self.transaction is not None else 0)
        out = self.source.bytes_le + (origin or bytes(16))
        out += struct.pack("<IIII", self.time_to_receive, self.sent, self.number, flags)
        for name in (self.destination, self.admin, self.response):
            if name:
                text = (name + "\x00").encode("utf-16-le")
                out += _padded(struct.pack("<H", len(text)) + text)
        return out

    def transaction_header(self) -> bytes:
        """TransactionHeader (1.5): the first and last message of its transaction."""
        if self.transaction is None:
            return b""
        flags = 4 | 8 | (self.number & 0xFFFFF) << 4
        sequence = struct.pack("<II", 1, 0x6740_0000)
        return struct.pack("<I", flags) + sequence + struct.pack("<II", self.transaction, self.transaction - 1)

    def security_header(self) -> bytes:
        """SecurityHeader (1.6) with the sender's SID and a certificate."""
        if self.sender is None:
            return b""
        head = struct.pack("<HHHHII", 1 | 1 << 7, len(self.sender), 0, 0, len(self.certificate), 0)
        return head + _padded(self.sender) + _padded(self.certificate)

    def properties_header(self) -> bytes:
        """MessagePropertiesHeader (1.7) without label, extension and body."""
        label = len(self.label) + 1 if self.label else 0
        out = struct.pack("<BBH", self.acknowledge, label, self.message_class) + self.correlation
        size = len(self.body)
        return out + struct.pack(
            "<IIIIIIII", self.body_type, self.application, size, size, 0, 0, 0, len(self.extension)
        )

    def head(self, *, origin: bytes | None, size: int, absolute: bool) -> bytes:
        """Return all octets before the body."""
        text = (self.label + "\x00").encode("utf-16-le") if self.label else b""
        parts = (
            self.base_header(size, absolute=absolute),
            self.user_header(origin=origin),
            self.transaction_header(),
            self.security_header(),
            self.properties_header(),
            text,
            self.extension,
        )
        return b"".join(parts)

    def packet(self) -> bytes:
        """Return the UserMessage packet as qm2qm sends it (1.18)."""
        size = len(_padded(self.head(origin=None, size=0, absolute=False) + self.body))
        return _padded(self.head(origin=None, size=size, absolute=False) + self.body)

    def trailing(self, subqueue: str = "") -> bytes:
        """ExtensionHeader, SubqueueHeader, ExtendedAddressHeader behind a RemoteRead message (1.16)."""
        name = subqueue.encode("utf-16-le").ljust(64, b"\x00")
        sub = struct.pack("<IIIII", 148, 0, self.aborts, self.moves, 0) + name + bytes(64)
        address = struct.pack("<IHHI", 28, 0, 0, 0) + bytes(16)
        return struct.pack("<IIB3x", 12, len(sub) + len(address), 0x02 | 0x10) + sub + address

    def sections(self, max_body: int, subqueue: str = "") -> list[tuple[int, int, bytes]]:
        """(type, allocated size, octets) as R_StartReceive returns them (1.17)."""
        origin = struct.pack("<HHI", 4, 1, 0) + bytes([10, 0, 0, 9]) + bytes(4)
        size = len(_padded(self.head(origin=origin, size=0, absolute=True) + self.body))
        head = self.head(origin=origin, size=size, absolute=True)
        trailing = self.trailing(subqueue)
        if max_body >= len(self.body):
            whole = _padded(head + self.body) + trailing
            return [(0, len(whole), whole)]
        first = head + self.body[:max_body]
        return [(1, len(head) + len(self.body), first), (2, len(trailing), trailing)]


def sid(*authorities: int) -> bytes:
    """A SID S-1-5-... (message-packets.md section 0)."""
    return (
        struct.pack("<BB", 1, len(authorities))
        + bytes(5)
        + b"\x05"
        + struct.pack(f"<{len(authorities)}I", *authorities)
    )
