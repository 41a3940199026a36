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
    signature: bytes = b""
    hash_algorithm: int = 0
    session_key: bytes = b""  # of an encrypted body, encrypted for the receiver (SIMPLEBLOB, 2.14)
    privacy: int = 0
    cipher: int = 0
    journaling: int = 0  # 1 dead letter, 2 journal
    envelope: str | None = None  # of a message that came over HTTP: the SOAP envelope
    post: bytes = b""  # and the HTTP body, which contains ``body``
    dead_letter: str | None = None  # path of the sender's own dead-letter queue
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
        flags |= (1 << 19 if self.security_header() else 0) | (1 << 20 if self.transaction is not None else 0)
        flags |= self.journaling << 8
        if self.envelope is not None:
            flags |= 1 << 25 if origin else 1 << 28  # RemoteRead tells it by other headers than qm2qm
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
        """SecurityHeader (1.6) with the sender's SID, the key of the body, a signature and a certificate."""
        items = (self.sender or b"", self.session_key, self.signature, self.certificate)
        if not any(items):
            return b""
        flags = int(self.sender is not None) | (1 << 5 if self.session_key else 0) | 1 << 7
        if self.session_key or self.signature:
            flags |= 1 << 6  # by the default provider
        return struct.pack("<HHHHII", flags, *map(len, items), 0) + b"".join(map(_padded, items))

    def properties_header(self, size: int) -> bytes:
        """MessagePropertiesHeader (1.7) without label, extension and body; ``size`` is that of its body."""
        label = len(self.label) + 1 if self.label else 0
        out = struct.pack("<BBH", self.acknowledge, label, self.message_class) + self.correlation
        algorithms = self.privacy, self.hash_algorithm, self.cipher
        return out + struct.pack(
            "<IIIIIIII", self.body_type, self.application, size, size, *algorithms, len(self.extension)
        )

    def http_headers(self) -> bytes:
        """SRMPEnvelopeHeader and CompoundMessageHeader (1.9, 1.10) up to the HTTP body."""
        text = ((self.envelope or "") + "\x00").encode("utf-16-le")
        out = _padded(struct.pack("<HHI", 0, 0, len(text) // 2) + text)
        return out + struct.pack("<HHIII", 0, 0, len(self.post), len(self.body), self.post.index(self.body))

    def soap_header(self) -> bytes:
        """SoapHeader (1.11): header and body of the SOAP envelope."""
        if self.envelope is None:
            return b""
        place = self.envelope.index("<se:Body>")
        texts = [(text + "\x00").encode("utf-16-le") for text in (self.envelope[:place], self.envelope[place:])]
        return b"".join(
            _padded(struct.pack("<HHI", kind, 0, len(text) // 2) + text)
            for kind, text in zip((0x320, 0x384), texts, strict=True)
        )

    def head(self, *, origin: bytes | None, size: int, absolute: bool) -> bytes:
        """Return all octets before the body, or before the HTTP body that contains it."""
        text = (self.label + "\x00").encode("utf-16-le") if self.label else b""
        http = origin is not None and self.envelope is not None
        parts = (
            self.base_header(size, absolute=absolute),
            self.user_header(origin=origin),
            self.transaction_header(),
            self.security_header(),
            self.properties_header(0 if http else len(self.body)),
            text,
            self.extension,
        )
        head = b"".join(parts)
        return _padded(head) + self.http_headers() if http else head

    def packet(self) -> bytes:
        """Return the UserMessage packet as qm2qm sends it (1.18)."""
        tail = self.soap_header()
        size = len(_padded(self.head(origin=None, size=0, absolute=False) + self.body) + tail)
        return _padded(self.head(origin=None, size=size, absolute=False) + self.body) + tail

    def trailing(self, subqueue: str = "") -> bytes:
        """ExtensionHeader and the headers behind it, behind a RemoteRead message (1.16)."""
        name = subqueue.encode("utf-16-le").ljust(64, b"\x00")
        rest = struct.pack("<IIIII", 148, 0, self.aborts, self.moves, 0) + name + bytes(64)
        flags = 0x02 | 0x10
        if self.dead_letter is not None:
            path = _padded((self.dead_letter + "\x00").encode("utf-16-le"))
            rest += struct.pack("<I", 4 + len(path)) + path
            flags |= 0x01
        rest += struct.pack("<IHHI", 28, 0, 0, 0) + bytes(16)  # ExtendedAddressHeader
        return struct.pack("<IIB3x", 12, len(rest), flags) + rest

    def sections(self, max_body: int, subqueue: str = "", max_compound: int = NEVER) -> list[tuple[int, int, bytes]]:
        """(type, allocated size, octets) as R_StartReceive returns them (1.17)."""
        origin = struct.pack("<HHI", 4, 1, 0) + bytes([10, 0, 0, 9]) + bytes(4)
        http = self.envelope is not None
        data, limit = (self.post, max_compound) if http else (self.body, max_body)
        size = len(_padded(self.head(origin=origin, size=0, absolute=True) + data))
        head = self.head(origin=origin, size=size, absolute=True)
        trailing = self.trailing(subqueue)
        if limit >= len(data):
            whole = _padded(head + data) + trailing
            return [(0, len(whole), whole)]
        first = 3 if http else 1
        return [(first, len(head) + len(data), head + data[:limit]), (first + 1, len(trailing), trailing)]


def sid(*authorities: int) -> bytes:
    """A SID S-1-5-... (message-packets.md section 0)."""
    return (
        struct.pack("<BB", 1, len(authorities))
        + bytes(5)
        + b"\x05"
        + struct.pack(f"<{len(authorities)}I", *authorities)
    )
