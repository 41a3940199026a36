"""Build message packets header by header from the specifications; shares no code with the decoders."""

import struct
import uuid
from dataclasses import dataclass, field

SOURCE = uuid.UUID("5f0c2b1a-9d3e-4c77-8a10-000102030405")
TARGET = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
ELSEWHERE = uuid.UUID("a1a2a3a4-b1b2-c1c2-d1d2-e1e2e3e4e5e6")
NEVER = 0xFFFFFFFF
SENT = 1_700_000_000


def pad(data, size=4):
    return data + b"\xaa" * (-len(data) % size)  # padding is anything


def wide(text, nul=True):
    return (text + "\0" * nul).encode("utf-16-le", "surrogatepass")


def queue(kind, *, name="OS:srv\\q", guid=ELSEWHERE, number=9):
    if kind == 7:
        return pad(struct.pack("<H", len(wide(name))) + wide(name))
    ident = struct.pack("<I", number)
    return {2: ident, 3: ident, 4: ident, 5: guid.bytes_le, 6: guid.bytes_le + ident}.get(kind, b"")


@dataclass
class Packet:
    """The values of a message packet. ``bytes()`` is the UserMessage; ``remote_read()`` adds RemoteRead's headers."""

    body: bytes = b"hello"
    label: str | None = "label"
    extension: bytes = b""
    flags: int = 3  # BaseHeader
    reach: int = NEVER
    receive: int = NEVER
    sent: int = SENT
    number: int = 77
    source: uuid.UUID = SOURCE
    manager: bytes = bytes(16)
    user: int = 0  # further UserHeader flags
    queues: tuple = ((7, {"name": "OS:Srv1\\Private$\\Orders"}), (0, {}), (0, {}))
    connector: bytes = b""
    transaction: tuple | None = None  # flags, sequence, number, previous
    transaction_connector: bytes = b""
    security: tuple | None = None  # flags, (SecurityID, EncryptionKey, Signature, SenderCert, ProviderInfo)
    acknowledge: int = 0
    kind: int = 0
    correlation: bytes = bytes(20)
    body_type: int = 8
    tag: int = 5
    allocation: int | None = None
    filler: bytes = b""  # behind the body, within its allocation
    algorithms: tuple = (0, 0x8003, 0x6801)
    debug: bytes | None = None
    envelope: str | None = None  # SRMP
    envelope_bytes: bool = False  # DataLength counts bytes
    compound: tuple = (b"", 0, 0)  # data, body size, body offset
    soap: tuple | None = None
    soap_unaligned: bool = False
    lists: tuple | None = None  # four: elements of three lists (count, bytes), signature
    session: bytes | None = None
    packet_size: int | None = None
    trailing: bytes = b""
    order: list = field(default_factory=list)  # (header, bytes) as built

    def headers(self):
        user = self.user | 1 << 21
        for (kind, _), shift in zip(self.queues, (10, 13, 16), strict=True):
            user |= kind << shift
        user |= (self.transaction is not None) << 20 | (self.security is not None) << 19
        user |= bool(self.connector) << 22 | (self.envelope is not None) << 25
        user |= (self.soap is not None) << 28 | (self.lists is not None) << 23
        times = struct.pack("<IIII", self.receive, self.sent, self.number, user)
        names = b"".join(queue(kind, **said) for kind, said in self.queues)
        yield "UserHeader", self.source.bytes_le + self.manager + times + names + self.connector
        if self.transaction is not None:
            flags, *rest = self.transaction
            flags |= bool(self.transaction_connector)
            yield "TransactionHeader", struct.pack("<IQII", flags, *rest) + self.transaction_connector
        if self.security is not None:
            flags, items = self.security
            head = struct.pack("<HHHHII", flags, *map(len, items))
            yield "SecurityHeader", head + b"".join(map(pad, items))
        label = b"" if self.label is None else wide(self.label)
        allocation = len(self.body) if self.allocation is None else self.allocation
        numbers = (self.body_type, self.tag, len(self.body), allocation, *self.algorithms, len(self.extension))
        head = struct.pack("<BBH", self.acknowledge, len(label) // 2, self.kind) + self.correlation
        head += struct.pack("<8I", *numbers) + label + self.extension
        yield "MessagePropertiesHeader", pad(head + self.body + self.filler)
        if self.debug is not None:
            yield "DebugHeader", struct.pack("<HH", bool(self.debug), 0) + self.debug
        if self.envelope is not None:
            text = wide(self.envelope)
            yield (
                "SRMPEnvelopeHeader",
                pad(struct.pack("<HHI", 1, 2, len(text) // (1 if self.envelope_bytes else 2)) + text),
            )
            data, size, offset = self.compound
            yield "CompoundMessageHeader", pad(struct.pack("<HHIII", 3, 4, len(data), size, offset) + data)
        if self.soap is not None:
            first, second = (struct.pack("<HHI", kind, 0, len(text) + 1) + wide(text)
                             for kind, text in zip((0x320, 0x384), self.soap, strict=True))  # fmt: skip
            yield "SoapHeader", pad((first if self.soap_unaligned else pad(first)) + second)
        if self.lists is not None:
            *lists, signature = self.lists
            parts = [
                pad(struct.pack("<IHHI", 12 + len(data), kind, 0, count) + data)
                for kind, (count, data) in zip((0x64, 0xC8, 0x12C), lists, strict=True)
            ]
            tail = pad(struct.pack("<HHI", 0x15E, 0, len(signature)) + signature)
            yield "MultiQueueFormatHeader", b"".join(parts) + tail

    def bytes(self):
        self.order = list(self.headers())
        rest = b"".join(data for _, data in self.order)
        size = 16 + len(rest) if self.packet_size is None else self.packet_size
        flags = self.flags | (self.session is not None) << 4 | (self.debug is not None) << 5
        base = struct.pack("<BBHIII", 0x10, 0x5A, flags, 0x524F494C, size, self.reach)
        self.order.insert(0, ("BaseHeader", base))
        if self.session is not None:
            self.order.append(("SessionHeader", self.session))
        return base + rest + (self.session or b"") + self.trailing

    def body_at(self):
        """Return the offset of the body of the MessagePropertiesHeader."""
        self.bytes()
        at = 0
        for name, data in self.order:
            if name == "MessagePropertiesHeader":
                return at + len(data) - len(pad(self.body + self.filler, 1)) - self.padding()
            at += len(data)
        raise AssertionError

    def padding(self):
        label = 0 if self.label is None else len(wide(self.label))
        return -(56 + label + len(self.extension) + len(self.body) + len(self.filler)) % 4


def trailing(*, subqueue="", target="", aborts=0, moves=0, moved=0, dead_letter=None, address=None, flags=0x12):
    """Return ExtensionHeader and the headers behind it; ``address`` is (length, type, scope, bytes)."""
    sub = struct.pack("<5I", 148, 0, aborts, moves, moved)
    sub += b"".join(text.encode("utf-16-le").ljust(64, b"\0") for text in (subqueue, target))
    dead = b""
    if dead_letter is not None:
        flags |= 1
        text = wide(dead_letter)
        text += bytes(-len(text) % 4)
        dead = struct.pack("<I", 4 + len(text)) + text
    length, kind, scope, raw = address or (0, 0, 0, b"")
    last = struct.pack("<IHHI", 28, length, kind, scope) + raw.ljust(16, b"\0")
    rest = sub + dead + last
    return struct.pack("<IIB3x", 12, len(rest), flags) + rest


def format_names(elements, alignment=4):
    """Return number and bytes of the elements of a FormatNameList, which are (type, payload)."""
    data = b""
    for kind, payload in elements:
        data += struct.pack("<H", kind)
        data = (data if kind == 3 else pad(data, alignment)) + payload
    return len(elements), data


def overlay(kind, length, raw):
    return struct.pack("<HHI", length, kind, 0) + raw[:8].ljust(8, b"\0")


def sid(*parts):
    return struct.pack("<BB", 1, len(parts)) + b"\0\0\0\0\0\x05" + struct.pack(f"<{len(parts)}I", *parts)
