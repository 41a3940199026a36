"""Generator of large captures with realistic MSMQ traffic, written as a stream.

Many clients read queues of a few queue managers over RemoteRead (port 2103) and qm2qm (port 2105): bind, open, receives
of messages of 200 B to 64 KB, peeks that find nothing, acknowledgements, close, FIN. Fragments have 5840 bytes (the
default of Windows), packets fit an MTU of 1500, half of the connections have TCP timestamps, some PDUs have an
authentication token (level packet integrity), and some receives wait while other calls are made. The traffic follows
the specifications, so that it has hardly any findings. It depends only on the seed.
"""

from __future__ import annotations

import heapq
import random
import struct
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

MAX_FRAGMENT_BYTES = 5840  # bytes of a PDU, the default of Windows (C706 max_xmit_frag 0x16d0)
EPOCH_US = 1_750_000_000_000_000  # the capture's first packet, microseconds since 1970
SERVERS: Final = 5
PORTS: Final = (2103, 2105)  # of RemoteRead and qm2qm
NAMED_PORTS: Final = (49703, 49702)  # of both, where clients ask for them ([MS-MQRR] 3.1.4.1, [MS-MQQP] 3.1.4.8)
_PORT_QUERIES: Final = (0, 7)  # opnums of both
NDR = bytes.fromhex("045d888aeb1cc9119fe808002b10486002000000")
NDR64 = bytes.fromhex("33057171babe37498319b5dbef9ccc3601000000")
REMOTE_READ = uuid.UUID("1a9134dd-7b39-45ba-ad88-44d01ca47f28").bytes_le + b"\x01\0\0\0"
QM2QM = uuid.UUID("1088a980-eae5-11d0-8d9b-00a02453c337").bytes_le + b"\x01\0\0\0"

FIN, SYN, PUSH, ACK = 0x01, 0x02, 0x08, 0x10
_RR_ACK = 2  # RR_ACK of an End ([MS-MQRR] 2.2.1.3)
_PEEK_REQUEST_BIT = 1 << 24  # set in the request id of a peek, so that it differs from the waiting receive
Packet = tuple[int, int, bytes]  # microseconds since 1970, slot (breaks ties), frame


def _make_body_pool(size: int = 1 << 20) -> bytes:
    """Return bytes from which message bodies are cut: half XML-like text, which compresses, and half random bytes."""
    rng = random.Random(7)
    text = b"".join(
        b"<order id='%d'><customer>%08x</customer><amount>%d.%02d</amount></order>\n"
        % (i, rng.getrandbits(32), rng.randrange(10_000), rng.randrange(100))
        for i in range(size // 150)
    )
    return text[: size // 2] + rng.randbytes(size - size // 2)


BODY_POOL = _make_body_pool()


def build_pdu(ptype: int, call_id: int, body: bytes, *, flags: int = 3, token: bytes = b"") -> bytes:
    """Build a little-endian PDU; ``token`` adds an NTLM authentication trailer (packet integrity), padded to 16."""
    trailer = b""
    if token:
        pad = -(len(body) - 8) % 16  # MS-RPCE 2.2.2.11: from the start of the stub, which is 8 bytes into the body
        trailer = bytes(pad) + struct.pack("<BBBBI", 10, 5, pad, 0, 1) + token
    size = 16 + len(body) + len(trailer)
    return struct.pack("<BBBB4sHHI", 5, 0, ptype, flags, b"\x10\0\0\0", size, len(token), call_id) + body + trailer


def build_fragments(ptype: int, call_id: int, context: int, opnum: int, stub: bytes, token: bytes = b"") -> list[bytes]:
    """Build a request (PDU type 0) or response (2) as PDUs of at most MAX_FRAGMENT_BYTES."""
    room = MAX_FRAGMENT_BYTES - 24 - ((len(token) + 8) if token else 0)
    room -= room % (16 if token else 8)
    pieces = [stub[at : at + room] for at in range(0, len(stub), room)] or [b""]
    out = []
    left = len(stub)
    for index, piece in enumerate(pieces):
        flags = (1 if index == 0 else 0) | (2 if index == len(pieces) - 1 else 0)
        head = struct.pack("<IHH", left, context, opnum if ptype == 0 else 0)
        out.append(build_pdu(ptype, call_id, head + piece, flags=flags, token=token))
        left -= len(piece)
    return out


def build_bind(call_id: int, interface: bytes, *, ndr64: bool, group: int = 0) -> bytes:
    """Build a bind that offers NDR, and NDR64 if asked."""
    syntaxes = [NDR, NDR64] if ndr64 else [NDR]
    items = b"".join(struct.pack("<HBB", i, 1, 0) + interface + syntax for i, syntax in enumerate(syntaxes))
    return build_pdu(11, call_id, struct.pack("<HHIBBH", 5840, 5840, group, len(syntaxes), 0, 0) + items)


def build_bind_ack(call_id: int, port: int, *, ndr64: bool, group: int) -> bytes:
    """Build a bind_ack that accepts the last offered syntax and rejects the first of two."""
    address = b"%d\0" % port
    refused = struct.pack("<HH", 2, 2) + bytes(20)
    results = [refused, bytes(4) + NDR64] if ndr64 else [bytes(4) + NDR]
    head = struct.pack("<HHIH", 5840, 5840, group, len(address)) + address
    head += bytes(-len(head) % 4) + struct.pack("<BBH", len(results), 0, 0)
    return build_pdu(12, call_id, head + b"".join(results))


@dataclass
class TcpConnection:
    """TCP connection that builds the frames of both directions, with addresses, sequence numbers and a clock."""

    client: bytes
    client_port: int
    server: bytes
    server_port: int
    now_us: int  # microseconds
    timestamps: bool
    next_seq: list[int]
    slot: int
    _ip_id: int = 0
    _prefix: list[tuple[bytes, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        macs = (b"\x02\0" + self.client, b"\x02\0" + self.server)
        for source, target, side in ((self.client, self.server, 0), (self.server, self.client, 1)):
            words = sum(struct.unpack(">4H", source + target)) + 0x4500 + 0x4000 + 0x8006  # no fragments, TTL 128, TCP
            self._prefix.append((macs[1 - side] + macs[side] + b"\x08\0", words))
        self.mss = 1448 if self.timestamps else 1460

    def frame(self, side: int, flags: int, payload: bytes = b"") -> Packet:
        """Build the next packet of side 0 (client) or 1 (server). Its TCP checksum is 0, as with offloading."""
        seq = self.next_seq[side]
        self.next_seq[side] = (seq + len(payload) + (1 if flags & (SYN | FIN) else 0)) & 0xFFFFFFFF
        options = b""
        if flags & SYN:
            options = b"\x02\x04\x05\xb4\x01\x03\x03\x08\x01\x01\x04\x02"
        elif self.timestamps:
            options = b"\x01\x01\x08\x0a" + struct.pack(">II", (self.now_us // 1000) & 0xFFFFFFFF, 0)
        total = 40 + len(options) + len(payload)
        self._ip_id = (self._ip_id + 1) & 0xFFFF
        ethernet, words = self._prefix[side]
        words += total + self._ip_id
        words = (words & 0xFFFF) + (words >> 16)
        words = (words & 0xFFFF) + (words >> 16)
        source, target = (self.client, self.server) if side == 0 else (self.server, self.client)
        ports = (self.client_port, self.server_port) if side == 0 else (self.server_port, self.client_port)
        head = struct.pack(
            ">HHHHBBH4s4sHHIIBBHHH",
            0x4500, total, self._ip_id, 0x4000, 128, 6, 0xFFFF - words, source, target,
            *ports, seq, self.next_seq[1 - side] if flags & ACK else 0,
            (20 + len(options)) << 2, flags, 0xFFFF, 0, 0,
        )  # fmt: skip
        return self.now_us, self.slot, ethernet + head + options + payload

    def send(self, side: int, data: bytes) -> Iterator[Packet]:
        """Yield ``data`` in full segments; the other side acknowledges every second one."""
        mss = self.mss
        last = len(data) - mss
        for count, at in enumerate(range(0, len(data), mss)):
            yield self.frame(side, ACK | PUSH if at >= last else ACK, data[at : at + mss])
            self.now_us += 12  # 1500 bytes at 1 Gbit/s
            if count % 2:
                yield self.frame(1 - side, ACK)
                self.now_us += 3


def _message_packet(source: bytes, number: int, sent: int, body: bytes) -> bytes:
    """Build a message packet: the four usual headers ([MS-MQMQ] 2.2.20) and a body."""
    queue = f"OS:srv{number % 5}\\private$\\orders{number % 40}\0".encode("utf-16-le")
    label = f"Order {number}\0".encode("utf-16-le")
    user = (
        source
        + struct.pack("<HHI8x", 4, 1, 0)
        + struct.pack("<IIII", 0xFFFFFFFF, sent, number, 0x20 | 7 << 10 | 1 << 21)
    )
    user += struct.pack("<H", len(queue)) + queue + bytes(-(2 + len(queue)) % 4)
    size = len(body)
    properties = struct.pack("<BBH20x8I", 0, len(label) // 2, 0, 8, 0, size, size, 0, 0x8004, 0x6602, 0) + label + body
    rest = user + properties + bytes(-len(properties) % 4)
    return struct.pack("<BBHIII", 0x10, 0, 3, 0x524F494C, 16 + len(rest), 0xFFFFFFFF) + rest


def _remote_read_message(packet: bytes, message: int, arrived: int, *, ndr64: bool) -> bytes:
    """Build the stub of an R_StartReceive response with one section ([MS-MQRR] 3.1.4.7)."""
    size = len(packet)
    stub = struct.pack("<IIQI", arrived, 0, message, 1)
    if ndr64:
        stub += struct.pack("<IQQIIIIQQ", 0, 0x20000, 1, 0, size, size, 0, 0x20004, size)
    else:
        stub += struct.pack("<IIHHIIII", 0x20000, 1, 0, 0, size, size, 0x20004, size)
    return stub + packet + bytes(-size % 4) + bytes(4)


def _qm2qm_message(packet: bytes, queue: int, request: int, arrived: int, handle: bytes) -> bytes:
    """Build the NDR stub of a RemoteQMStartReceive response with a packet ([MS-MQQP] 3.1.4.1)."""
    size = len(packet)
    desc = struct.pack("<9IHHI", queue, 0, 0, 30000, size, queue, request, 1, arrived, 0, 0, 0x20000)
    return handle + desc + struct.pack("<III", size, 0, size) + packet + bytes(-size % 4) + bytes(4)


BODY_BYTES: Final = (200, 65_536)


class Conversation:
    """The calls of one connection over RemoteRead or qm2qm: open, receives with their Ends, close."""

    def __init__(self, flow: TcpConnection, rng: random.Random, *, think_us: float, body_bytes: tuple[int, int]):
        self.flow, self.rng, self.think_us, self.body_bytes = flow, rng, think_us, body_bytes
        self.remote_read = flow.server_port in (PORTS[0], NAMED_PORTS[0])
        self.ndr64 = self.remote_read and rng.random() < 0.2
        self.token = b"\x01\0\0\0" + rng.randbytes(12) if rng.random() < 0.1 else b""
        self.call_id = 1
        self.context = 1 if self.ndr64 else 0
        self.handle = bytes(4) + rng.randbytes(16)
        self.queue = 28 + flow.slot  # the number that the owner gave for it

    def run(self, calls: int | None) -> Iterator[Packet]:
        """Yield the packets of the whole connection, with ``calls`` receives; None means no end."""
        flow, rng = self.flow, self.rng
        yield from self._begin()
        yield from self._call(2, self._open_stub(), self.handle if self.remote_read else self.handle + bytes(4))
        done = 0
        while calls is None or done < calls:
            done += 1
            yield from self._receive()
            flow.now_us += int(rng.expovariate(1 / self.think_us)) + 1
        yield from self._call(3, self.handle, bytes(24))
        yield from self._end()

    def ask_for_port(self) -> Iterator[Packet]:
        """Yield the packets of a connection that only asks at which port the interface is."""
        which = 0 if self.remote_read else 1
        yield from self._begin()
        yield from self._call(_PORT_QUERIES[which], b"", struct.pack("<I", NAMED_PORTS[which]))
        yield from self._end()

    def _begin(self) -> Iterator[Packet]:
        flow, rng = self.flow, self.rng
        yield flow.frame(0, SYN)
        flow.now_us += 300
        yield flow.frame(1, SYN | ACK)
        flow.now_us += 200
        yield flow.frame(0, ACK)
        group = rng.getrandbits(31) | 1
        interface = REMOTE_READ if self.remote_read else QM2QM
        yield from flow.send(0, build_bind(self.call_id, interface, ndr64=self.ndr64))
        flow.now_us += 400
        yield from flow.send(1, build_bind_ack(self.call_id, flow.server_port, ndr64=self.ndr64, group=group))

    def _end(self) -> Iterator[Packet]:
        flow = self.flow
        for side in (0, 1):
            yield flow.frame(side, FIN | ACK)
            flow.now_us += 200
        yield flow.frame(0, ACK)

    def _open_stub(self) -> bytes:
        if not self.remote_read:
            return self.rng.randbytes(16) + struct.pack("<IIII", 1, self.queue, self.queue, self.queue)
        private = self.rng.randbytes(16) + struct.pack("<I", 9)
        client = bytes(24) + struct.pack("<BBHI", 6, 1, 7601, 0)  # nothing of its identifier; Windows 7
        if self.ndr64:  # the union and its end are aligned to 8
            return struct.pack("<BBH4xB7x", 2, 0, 0, 2) + private + bytes(4) + struct.pack("<I", 1) + client
        return struct.pack("<BBHB3x", 2, 0, 0, 2) + private + struct.pack("<I", 1) + client

    def _request(self, opnum: int, stub: bytes) -> tuple[int, bytes]:
        self.call_id += 1
        return self.call_id, b"".join(build_fragments(0, self.call_id, self.context, opnum, stub, self.token))

    def _response(self, call_id: int, stub: bytes) -> bytes:
        return b"".join(build_fragments(2, call_id, self.context, 0, stub, self.token))

    def _call(self, opnum: int, request: bytes, response: bytes) -> Iterator[Packet]:
        call_id, data = self._request(opnum, request)
        yield from self.flow.send(0, data)
        self.flow.now_us += self.rng.randrange(200, 2000)
        yield from self.flow.send(1, self._response(call_id, response))
        self.flow.now_us += 100

    def _receive(self) -> Iterator[Packet]:
        """Yield the packets of a Start and its End.

        A tenth of the receives find no message. A twentieth wait while a peek is answered.
        """
        rng, flow = self.rng, self.flow
        number = self.call_id
        empty = rng.random() < 0.1
        low, high = self.body_bytes
        size = int(low * (high / low) ** rng.random())  # evenly over the logarithm
        at = rng.randrange(len(BODY_POOL) - size)
        sent = flow.now_us // 1_000_000
        packet = _message_packet(self.handle[4:], number, sent, BODY_POOL[at : at + size])
        wait = 0 if empty else 30000
        if self.remote_read:
            opnum, end = 7, 9
            start = self._remote_read_start(0, wait, number)
            peek = self._remote_read_start(0x80000000, 0, number | _PEEK_REQUEST_BIT)
            nothing = none = bytes(32 if self.ndr64 else 24) + struct.pack("<I", 0xC00E001B)
            answer = nothing if empty else _remote_read_message(packet, rng.getrandbits(48), sent, ndr64=self.ndr64)
            ending, ended = self.handle + struct.pack("<II", _RR_ACK, number), bytes(4)
        else:
            opnum, end = 0, 1
            start = self._qm2qm_start(0, wait, number)
            peek = self._qm2qm_start(0x80000000, 0, number | _PEEK_REQUEST_BIT)
            nothing, none = (bytes(20) + each + struct.pack("<I", 0xC00E001B) for each in (start, peek))
            handle = bytes(4) + struct.pack("<I", number) + self.handle[8:]
            answer = nothing if empty else _qm2qm_message(packet, self.queue, number, sent, handle)
            ending, ended = handle + struct.pack("<I", _RR_ACK), bytes(24)
        call_id, data = self._request(opnum, start)
        yield from flow.send(0, data)
        flow.now_us += rng.randrange(200, 3000)
        if rng.random() < 0.05:
            yield from self._call(opnum, peek, none)
        yield from flow.send(1, self._response(call_id, answer))
        flow.now_us += 100
        if not empty:
            yield from self._call(end, ending, ended)

    def _remote_read_start(self, action: int, timeout_ms: int, number: int) -> bytes:
        return self.handle + bytes(4) + struct.pack("<QIIIIII", 0, 0, action, timeout_ms, number, 1 << 22, 1 << 22)

    def _qm2qm_start(self, action: int, timeout_ms: int, number: int) -> bytes:
        return struct.pack("<9IHHI", self.queue, 0, action, timeout_ms, 0, self.queue, number, 0, 0, 0, 0, 0)


def _connections_of_slot(
    slot: int, seed: int, begin_us: int, *, single: bool, servers: int, body_bytes: tuple[int, int] = BODY_BYTES,
    named_ports: bool = False,
) -> Iterator[Packet]:  # fmt: skip
    """Yield the packets of successive connections in one slot; each starts soon after the one before has ended."""
    rng = random.Random(f"{seed}/{slot}")
    now = begin_us + rng.randrange(200_000)
    lives_long = single or slot % 10 == 0  # one in ten connections lasts as long as the capture
    count = 0

    def connect(port: int) -> Conversation:
        flow = TcpConnection(
            client=bytes((10, 1, slot >> 8, slot & 0xFF)),
            client_port=49152 + count % 16000,
            server=bytes((10, 0, 1, 1 + slot % servers)),
            server_port=port,
            now_us=now,
            timestamps=rng.random() < 0.5,
            next_seq=[rng.getrandbits(32), rng.getrandbits(32)],
            slot=slot,
        )
        return Conversation(flow, rng, think_us=2000 if single else 40_000, body_bytes=body_bytes)

    for port in PORTS if named_ports else ():
        asking = connect(port)
        yield from asking.ask_for_port()
        now, count = asking.flow.now_us + 1000, count + 1
    ports = NAMED_PORTS if named_ports else PORTS
    while True:
        talk = connect(ports[1] if rng.random() < 0.3 else ports[0])
        yield from talk.run(None if lives_long else rng.randrange(5, 120))
        now = talk.flow.now_us + rng.randrange(1000, 100_000)
        count += 1


def generate_packets(
    *, seed: int = 1, begin_us: int = EPOCH_US, slots: int = 120, single: bool = False,
    servers: int = SERVERS, body_bytes: tuple[int, int] = BODY_BYTES, named_ports: bool = False,
) -> Iterator[Packet]:  # fmt: skip
    """Yield endless packets in order of time: of ``slots`` parallel connections, or of a single endless one.

    The connections go to ``servers`` machines; with ``named_ports`` to ports for which the clients ask once, else to
    well-known ones. ``body_bytes``: how long the bodies of messages are, from the least to the most.
    """
    if single:
        return _connections_of_slot(0, seed, begin_us, single=True, servers=servers, body_bytes=body_bytes)
    each = partial(
        _connections_of_slot, seed=seed, begin_us=begin_us, single=False, servers=servers, body_bytes=body_bytes,
        named_ports=named_ports,
    )  # fmt: skip
    return heapq.merge(*map(each, range(slots)))


PCAP_HEADER: Final = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)  # of pcap: little endian, microseconds


def pcap_record(at_us: int, frame: bytes) -> bytes:
    """Return the pcap record of a frame."""
    return struct.pack("<IIII", at_us // 1_000_000, at_us % 1_000_000, len(frame), len(frame)) + frame


def write_pcaps(stream: Iterable[Packet], files: list[Path], total: int) -> list[Path]:
    """Write packets to pcap files (little endian, microseconds), ``total`` bytes in equal parts; return the files."""
    source = iter(stream)
    each = total // len(files)
    for path in files:
        written = len(PCAP_HEADER)
        with path.open("wb", buffering=1 << 20) as out:
            out.write(PCAP_HEADER)
            for now, _slot_number, frame in source:
                written += out.write(pcap_record(now, frame))
                if written >= each:
                    break
    return files


def generate_captures(
    folder: Path, total: int, *, ring: int = 0, single: bool = False, servers: int = SERVERS, seed: int = 1,
    begin_us: int = EPOCH_US, named_ports: bool = False,
) -> list[Path]:  # fmt: skip
    """Write captures of ``total`` bytes to ``folder``: one file, or a ring of ``ring`` files; return the paths.

    ``single``, ``servers``, ``named_ports``: as for ``generate_packets``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"ring_{i:05d}.pcap" for i in range(ring)] or ["single_connection.pcap" if single else "one.pcap"]
    return write_pcaps(
        generate_packets(seed=seed, begin_us=begin_us, single=single, servers=servers, named_ports=named_ports),
        [folder / name for name in names],
        total,
    )
