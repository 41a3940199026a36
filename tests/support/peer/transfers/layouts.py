"""Packets of the binary protocol as bytes, and bytes as packets ([MS-MQQB] 2.2, [MS-MQMQ] 2.2.19 and 2.2.20).

Written from the specifications, without the project's decoders: tests compare those with what is written here.
Numbers are little-endian. Each class is one header or packet; `encode` gives its bytes, `decode` reads them.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, field

NEVER = 0xFFFF_FFFF
NOBODY = uuid.UUID(int=0)
SIGNATURE = 0x524F_494C  # "LIOR"
SESSION_ACK, ESTABLISH_CONNECTION, CONNECTION_PARAMETERS = 1, 2, 3  # InternalHeader.Flags.PT (2.2.1)
SESSION_HEADER_BYTES = 16
LARGEST_PACKET = 0x0040_0000  # BaseHeader.PacketSize ([MS-MQMQ] 2.2.19.1)
ORDER_QUEUE_ID = 4  # private queue identifier of order_queue$ (2.2.4)
ORDER_QUEUE = "\\PRIVATE$\\order_queue$"
ORDER_LABEL = "QM Ordering Ack"

NORMAL, REPORT, ACK_REACH_QUEUE, ORDER_ACK, ACK_RECEIVE = 0x0000, 0x0001, 0x0002, 0x00FF, 0x4000
NACK_BAD_DESTINATION, NACK_DELETED, NACK_REACH_TIMEOUT, NACK_QUOTA = 0x8000, 0x8001, 0x8002, 0x8003
NACK_ACCESS_DENIED, NACK_HOP_COUNT, NACK_BAD_SIGNATURE, NACK_BAD_ENCRYPTION = 0x8004, 0x8005, 0x8006, 0x8007
NACK_COULD_NOT_ENCRYPT, NACK_NOT_TRANSACTIONAL_QUEUE, NACK_NOT_TRANSACTIONAL_MESSAGE = 0x8008, 0x8009, 0x800A
NACK_UNSUPPORTED_PROVIDER, NACK_SOURCE_CHANGED = 0x800B, 0x800C
NACK_QUEUE_DELETED, NACK_QUEUE_PURGED, NACK_RECEIVE_TIMEOUT = 0xC000, 0xC001, 0xC002
NACK_RECEIVE_TIMEOUT_AT_SENDER, NACK_REJECTED = 0xC003, 0xC004
NEGATIVE, RECEIVE_STAGE = 0x8000, 0x4000  # bits of a class
INSECURE_NACKS = {0x8000, 0x8004, 0x8006, 0x8007, 0x800B}  # not sent unless so configured (3.1.7.15)

POSITIVE_ARRIVAL, POSITIVE_RECEIVE, NEGATIVE_ARRIVAL, NEGATIVE_RECEIVE = 1, 2, 4, 8  # Properties.Flags
DEAD_LETTER, JOURNAL = 1, 2  # JN, JP


def padded(data: bytes, size: int = 4) -> bytes:
    """Fill up to a multiple of ``size``."""
    return data + bytes(-len(data) % size)


def wide(text: str) -> bytes:
    """UTF-16 with its NUL."""
    return (text + "\0").encode("utf-16-le")


@dataclass(frozen=True)
class FormatName:
    """Queue by direct name, by private identifier on a queue manager, or by public identifier ([MS-MQMQ] 2.1)."""

    direct: str | None = None  # without `DIRECT=` (D3)
    guid: uuid.UUID = NOBODY  # of the queue manager, or of the public queue
    number: int | None = None  # private queue identifier

    def __str__(self) -> str:
        if self.direct is not None:
            return f"DIRECT={self.direct}"
        text = str(self.guid).upper()
        return f"PUBLIC={text}" if self.number is None else f"PRIVATE={text}\\{self.number:08x}"

    @property
    def is_order_queue(self) -> bool:
        """Whether order and final acks go there (2.2.4)."""
        if self.direct is not None:
            return self.direct.upper().endswith(ORDER_QUEUE.upper())
        return self.number == ORDER_QUEUE_ID

    def encode(self) -> bytes:
        """Payload of type 7, 5 or 6; types 2, 3 and 4 are its last four bytes ([MS-MQMQ] 2.2.18.1.5, .7)."""
        if self.direct is not None:
            text = wide(self.direct)
            return padded(struct.pack("<H", len(text)) + text)
        return self.guid.bytes_le + (b"" if self.number is None else struct.pack("<I", self.number))


@dataclass
class BaseHeader:
    """[MS-MQMQ] 2.2.19.1."""

    priority: int = 3
    internal: bool = False
    session_header: bool = False
    debug: bool = False
    traced: bool = False
    size: int = 0
    time_to_reach: int = NEVER
    version: int = 0x10
    reserved: int = 0

    @property
    def flags(self) -> int:
        return (
            self.priority | self.internal << 3 | self.session_header << 4 | self.debug << 5 | self.traced << 8
        )  # fmt: skip

    def encode(self) -> bytes:
        head = (self.version, self.reserved, self.flags, SIGNATURE, self.size, self.time_to_reach)
        return struct.pack("<BBHIII", *head)

    @classmethod
    def decode(cls, data: bytes) -> BaseHeader:
        version, reserved, flags, signature, size, reach = struct.unpack_from("<BBHIII", data)
        if version != 0x10 or signature != SIGNATURE:
            raise ValueError("not a packet (3.1.5.1.2)")
        bits = [bool(flags >> bit & 1) for bit in (3, 4, 5, 8)]
        return cls(flags & 7, *bits, size, reach, version, reserved)


def packet_length(head: BaseHeader) -> int:
    """Bytes of a packet in the stream: a message's SessionHeader is not in PacketSize, a SessionAck's is (D2)."""
    return head.size + (SESSION_HEADER_BYTES if head.session_header and not head.internal else 0)


@dataclass
class SessionHeader:
    """Session acknowledgement ([MS-MQMQ] 2.2.20.4); the four counts are those of one side, modulo 65536."""

    ack: int
    recoverable_ack: int
    recoverable_flags: int
    sent: int
    recoverable_sent: int
    window: int
    reserved: int = 0

    def encode(self) -> bytes:
        counts = (self.sent, self.recoverable_sent, self.window, self.reserved)
        return struct.pack("<HHIHHHH", self.ack, self.recoverable_ack, self.recoverable_flags, *counts)

    @classmethod
    def decode(cls, data: bytes) -> SessionHeader:
        return cls(*struct.unpack("<HHIHHHH", data))


def internal_packet(kind: int, body: bytes, *, refused: bool = False, base: BaseHeader | None = None) -> bytes:
    """Build BaseHeader with IN, InternalHeader (2.2.1), body."""
    head = base or BaseHeader()
    head.internal, head.size = True, 20 + len(body)
    return head.encode() + struct.pack("<HH", 0, kind | refused << 4) + body


def session_ack(header: SessionHeader, base: BaseHeader | None = None) -> bytes:
    """Build a stand-alone session acknowledgement (2.2.6)."""
    head = base or BaseHeader()
    head.session_header = True
    return internal_packet(SESSION_ACK, header.encode(), base=head)


@dataclass
class EstablishConnection:
    """2.2.3.1; the same header asks and answers."""

    client: uuid.UUID
    server: uuid.UUID
    timestamp: int  # milliseconds since the initiator's start
    not_pinged: bool = True  # SE
    server_class: bool = True  # OS
    refused: bool = False
    padding: bytes = b"\x5a" * 512
    reserved: int = 0

    def encode(self, base: BaseHeader | None = None) -> bytes:
        system = 0x10 | self.not_pinged << 8 | self.server_class << 9
        ends = self.client.bytes_le + self.server.bytes_le
        body = ends + struct.pack("<IHH", self.timestamp, system, self.reserved) + self.padding
        return internal_packet(ESTABLISH_CONNECTION, body, refused=self.refused, base=base)

    @classmethod
    def decode(cls, packet: bytes) -> EstablishConnection:
        flags, client, server, timestamp, system, reserved = struct.unpack_from("<2xH16s16sIHH", packet, 16)
        ends = (uuid.UUID(bytes_le=client), uuid.UUID(bytes_le=server))
        bits = (bool(system & 0x100), bool(system & 0x200), bool(flags & 0x10))
        return cls(*ends, timestamp, *bits, packet[60:572], reserved)


@dataclass
class ConnectionParameters:
    """2.2.2.1; time-outs in milliseconds."""

    recoverable_ack_timeout: int
    ack_timeout: int
    window: int
    refused: bool = False

    def encode(self, base: BaseHeader | None = None) -> bytes:
        body = struct.pack("<IIHH", self.recoverable_ack_timeout, self.ack_timeout, 0, self.window)
        return internal_packet(CONNECTION_PARAMETERS, body, refused=self.refused, base=base)

    @classmethod
    def decode(cls, packet: bytes) -> ConnectionParameters:
        flags, recoverable, ack, window = struct.unpack_from("<2xHII2xH", packet, 16)
        return cls(recoverable, ack, window, bool(flags & 0x10))


@dataclass
class Ping:
    """2.2.7, a UDP datagram."""

    cookie: int
    queue_manager: uuid.UUID
    workstation: bool = False  # RC
    refused: bool = False  # RF
    unused: int = 0  # the 14 bits X

    def encode(self) -> bytes:
        flags = self.workstation | self.refused << 1 | self.unused << 2
        return struct.pack("<HHI", flags, 0x5548, self.cookie) + self.queue_manager.bytes_le

    @classmethod
    def decode(cls, data: bytes) -> Ping:
        flags, signature, cookie, guid = struct.unpack("<HHI16s", data)
        if signature != 0x5548:
            raise ValueError("not a ping")
        return cls(cookie, uuid.UUID(bytes_le=guid), bool(flags & 1), bool(flags & 2), flags >> 2)


@dataclass
class Transaction:
    """TransactionHeader ([MS-MQMQ] 2.2.20.5)."""

    sequence: int  # TxSequenceID: TimeStamp in the upper, Ordinal in the lower half
    number: int
    previous: int
    identifier: int = 1  # of the transaction, 20 bits
    first: bool = True
    last: bool = True
    final_ack: bool = False
    connector: uuid.UUID | None = None

    def encode(self) -> bytes:
        flags = (self.connector is not None) | self.final_ack << 1 | self.first << 2 | self.last << 3
        head = struct.pack("<IQII", flags | self.identifier << 4, self.sequence, self.number, self.previous)
        return head + (self.connector.bytes_le if self.connector else b"")

    @classmethod
    def decode(cls, data: bytes) -> tuple[Transaction, int]:
        flags, sequence, number, previous = struct.unpack_from("<IQII", data)
        bits = [bool(flags >> bit & 1) for bit in (2, 3, 1)]
        connector = uuid.UUID(bytes_le=data[20:36]) if flags & 1 else None
        return cls(sequence, number, previous, flags >> 4 & 0xFFFFF, *bits, connector), 36 if flags & 1 else 20


@dataclass
class Security:
    """SecurityHeader ([MS-MQMQ] 2.2.20.6); its items have no meaning here."""

    sender: bytes = b""  # SID
    key: bytes = b""  # of an encrypted body
    signature: bytes = b""
    certificate: bytes = b""
    provider: str = ""  # of other than the default provider
    data_flag: bool = True  # AI

    def encode(self) -> bytes:
        info = struct.pack("<I", 1) + wide(self.provider) if self.provider else b""
        items = (self.sender, self.key, self.signature, self.certificate, info)
        flags = bool(self.sender) | bool(self.key) << 5 | self.data_flag << 7
        flags |= (not self.provider and bool(self.key or self.signature)) << 6
        sizes = struct.pack("<HHHHII", flags, *map(len, items))
        return sizes + b"".join(map(padded, items))

    @classmethod
    def decode(cls, data: bytes) -> tuple[Security, int]:
        flags, *sizes = struct.unpack_from("<HHHHII", data)
        at, items = 16, []
        for size in sizes:
            items.append(data[at : at + size])
            at += size + -size % 4
        provider = items[4][4:-2].decode("utf-16-le")
        return cls(*items[:4], provider, bool(flags & 0x80)), at


def address_list(identifier: int, names: tuple[FormatName, ...]) -> bytes:
    """Build an MQFAddressHeader ([MS-MQMQ] 2.2.20.2) with MQFFormatNameElements (2.2.18.1.4)."""
    data = b""
    for name in names:
        kind = 3 if name.direct is not None else 1 if name.number is None else 2
        data += bytes(-len(data) % 2) + struct.pack("<H", kind)
        data += wide(name.direct) if name.direct is not None else bytes(-len(data) % 4) + name.encode()
    return padded(struct.pack("<IHHI", 12 + len(data), identifier, 0, len(names)) + data)


@dataclass
class SeveralQueues:
    """MultiQueueFormatHeader ([MS-MQMQ] 2.2.20.1): all destinations of a message, of which each gets a copy."""

    destinations: tuple[FormatName, ...]
    admins: tuple[FormatName, ...] = ()
    responses: tuple[FormatName, ...] = ()

    def encode(self) -> bytes:
        lists = ((0x64, self.destinations), (0xC8, self.admins), (0x12C, self.responses))
        return b"".join(address_list(*each) for each in lists) + struct.pack("<HHI", 0x15E, 0, 0)


@dataclass
class UserMessage:
    """A message with all its headers ([MS-MQMQ] 2.2.20), order and final acks too ([MS-MQQB] 2.2.4, 2.2.5)."""

    source: uuid.UUID
    number: int  # MessageID, the ordinal
    destination: FormatName
    body: bytes = b""
    queue_manager: uuid.UUID = NOBODY  # QueueManagerAddress; zero with a direct name
    admin: FormatName | None = None
    response: FormatName | None = None
    sent: int = 0  # SentTime, seconds since 1970
    time_to_reach: int = NEVER
    time_to_receive: int = NEVER
    priority: int = 3
    recoverable: bool = False
    journaling: int = 0  # 1 dead letter (JN), 2 journal (JP)
    hops: int = 0  # RC
    transaction: Transaction | None = None
    security: Security | None = None
    label: str = ""
    message_class: int = NORMAL
    acknowledge: int = 0  # Properties.Flags
    correlation: bytes = bytes(20)
    body_type: int = 0x1011  # VT_VECTOR | VT_UI1
    application: int = 0
    privacy: int = 0
    hash_algorithm: int = 0x800E
    encryption_algorithm: int = 0x6610
    extension: bytes = b""
    traced: bool = False
    report_queue: uuid.UUID | None = None  # public queue of the DebugHeader
    several: SeveralQueues | bytes | None = None  # bytes: as it came in
    session_header: SessionHeader | None = None
    reserved: int = field(default=0, compare=False)

    @property
    def identity(self) -> bytes:
        """Return the MessageIdentifier ([MS-MQMQ] 2.2.18.1.3)."""
        return self.source.bytes_le + struct.pack("<I", self.number)

    @property
    def message_id(self) -> str:
        return f"{self.source}\\{self.number}"

    @property
    def kind(self) -> str:
        """`kind` of bronze.session_packets."""
        if self.destination.is_order_queue and self.label == ORDER_LABEL:
            if self.message_class == ORDER_ACK:
                return "order_ack"
            if self.message_class >= ACK_RECEIVE:
                return "final_ack"
        return "user_message"

    def _queue(self, name: FormatName | None, *, admin: bool = False, response: bool = False) -> tuple[int, bytes]:
        """Type and bytes of a queue in the UserHeader ([MS-MQMQ] 2.2.19.2)."""
        if name is None:
            return 0, b""
        if response and name == self.admin:
            return 1, b""
        data = name.encode()
        if name.direct is not None:
            return 7, data
        if name.number is None:
            return 5, data
        if not (admin or response) or name.guid == self.queue_manager:
            return 3, data[-4:]
        if name.guid == self.source:
            return 2, data[-4:]
        if response and self.admin is not None and self.admin.number is not None and name.guid == self.admin.guid:
            return 4, data[-4:]
        return 6, data

    def encode(self) -> bytes:
        """The packet, with its SessionHeader behind it."""
        queues = (
            self._queue(self.destination),
            self._queue(self.admin, admin=True),
            self._queue(self.response, response=True),
        )
        flags = self.hops | self.recoverable << 5 | self.journaling << 8 | 1 << 21
        for at, (kind, _) in zip((10, 13, 16), queues, strict=True):
            flags |= kind << at
        flags |= bool(self.security) << 19 | bool(self.transaction) << 20 | bool(self.several) << 23
        user = self.source.bytes_le + self.queue_manager.bytes_le
        user += struct.pack("<IIII", self.time_to_receive, self.sent, self.number, flags)
        user += b"".join(data for _, data in queues)
        label = wide(self.label) if self.label else b""
        size = len(self.body)
        properties = struct.pack("<BBH", self.acknowledge, len(label) // 2, self.message_class) + self.correlation
        algorithms = (self.privacy, self.hash_algorithm, self.encryption_algorithm)
        properties += struct.pack("<8I", self.body_type, self.application, size, size, *algorithms, len(self.extension))
        debug = b""
        if self.traced:
            debug = struct.pack("<HH", self.report_queue is not None, 0)
            debug += self.report_queue.bytes_le if self.report_queue else b""
        several = self.several.encode() if isinstance(self.several, SeveralQueues) else self.several or b""
        rest = (
            user
            + (self.transaction.encode() if self.transaction else b"")
            + (self.security.encode() if self.security else b"")
            + padded(properties + label + self.extension + self.body)
            + debug
            + several
        )
        base = BaseHeader(
            priority=self.priority,
            session_header=self.session_header is not None,
            debug=self.traced,
            traced=self.traced,
            size=16 + len(rest),
            time_to_reach=self.time_to_reach,
            reserved=self.reserved,
        )
        return base.encode() + rest + (self.session_header.encode() if self.session_header else b"")

    @classmethod
    def decode(cls, packet: bytes) -> UserMessage:
        """Read a packet that follows the layout; what does not raises ValueError or struct.error."""
        base = BaseHeader.decode(packet)
        source, manager = (uuid.UUID(bytes_le=packet[at : at + 16]) for at in (16, 32))
        receive, sent, number, flags = struct.unpack_from("<IIII", packet, 48)
        at = 64
        names: list[FormatName | None] = []
        for kind in (flags >> 10 & 7, flags >> 13 & 7, flags >> 16 & 7):
            hosts = {2: source, 3: manager}
            if kind == 4 and names[1] is not None:
                hosts[4] = names[1].guid
            name, at = _decode_queue(packet, at, kind, hosts)
            names.append(names[1] if kind == 1 else name)
        destination, admin, response = names
        if destination is None:
            raise ValueError("no destination queue")
        message = cls(source, number, destination, b"", manager, admin, response, sent, base.time_to_reach, receive)
        message.priority, message.recoverable = base.priority, flags >> 5 & 3 == 1
        message.journaling, message.hops, message.reserved = flags >> 8 & 3, flags & 0x1F, base.reserved
        if flags >> 20 & 1:
            message.transaction, size = Transaction.decode(packet[at:])
            at += size
        if flags >> 19 & 1:
            message.security, size = Security.decode(packet[at:])
            at += size
        begin = at
        acknowledge, label, message_class, correlation, *numbers = struct.unpack_from("<BBH20s8I", packet, at)
        message.acknowledge, message.message_class, message.correlation = acknowledge, message_class, correlation
        message.body_type, message.application, size, _, message.privacy = numbers[:5]
        message.hash_algorithm, message.encryption_algorithm, extension = numbers[5:]
        at += 56
        message.label = packet[at : at + 2 * label].decode("utf-16-le").rstrip("\0")
        at += 2 * label
        message.extension = packet[at : at + extension]
        at += extension
        message.body = packet[at : at + size]
        at += size
        at += -(at - begin) % 4
        if base.debug:
            (public,) = struct.unpack_from("<H", packet, at)
            message.traced = base.traced
            message.report_queue = uuid.UUID(bytes_le=packet[at + 4 : at + 20]) if public & 3 else None
            at += 20 if public & 3 else 4
        if flags >> 23 & 1:
            message.several = packet[at : base.size]
            at = base.size
        if at != base.size:
            raise ValueError(f"headers end at {at}, PacketSize is {base.size}")
        if base.session_header:
            message.session_header = SessionHeader.decode(packet[base.size : base.size + SESSION_HEADER_BYTES])
        return message


def _decode_queue(packet: bytes, at: int, kind: int, hosts: dict[int, uuid.UUID]) -> tuple[FormatName | None, int]:
    """Read one queue of the UserHeader; ``hosts``: queue manager of the types that do not name it."""
    if kind == 7:
        (count,) = struct.unpack_from("<H", packet, at)
        text = packet[at + 2 : at + 2 + count].decode("utf-16-le").rstrip("\0")
        return FormatName(direct=text), at + 2 + count + -(2 + count) % 4
    if kind == 5:
        return FormatName(guid=uuid.UUID(bytes_le=packet[at : at + 16])), at + 16
    if kind == 6:
        (number,) = struct.unpack_from("<I", packet, at + 16)
        return FormatName(guid=uuid.UUID(bytes_le=packet[at : at + 16]), number=number), at + 20
    if kind in hosts:
        (number,) = struct.unpack_from("<I", packet, at)
        return FormatName(guid=hosts[kind], number=number), at + 4
    return None, at


@dataclass
class OrderBody:
    """Body of order and final acks (2.2.4.1, 2.2.5.1); an order ack names no message."""

    sequence: int
    number: int
    previous: int
    source: uuid.UUID = NOBODY
    message: int = 0

    def encode(self) -> bytes:
        numbers = struct.pack("<QII", self.sequence, self.number, self.previous)
        return numbers + self.source.bytes_le + struct.pack("<I", self.message)

    @classmethod
    def decode(cls, body: bytes) -> OrderBody:
        sequence, number, previous, source, message = struct.unpack("<QII16sI", body)
        return cls(sequence, number, previous, uuid.UUID(bytes_le=source), message)
