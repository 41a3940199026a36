"""Generator of large captures of messages on their way between queue managers ([MS-MQQB], TCP 1801).

64 connections at a time: handshake, then messages of 200 B to 64 KB (evenly over the logarithm), most of them from the
client: half of them express, one in five transactional, the others recoverable. Session acks alone after 10 s, 500 ms
or 32 messages, and behind messages; order acks after 500 ms, some final acks. One connection in ten lasts as long as
the capture. It depends only on the seed.
"""

from __future__ import annotations

import heapq
import random
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.traffic import ACK, BODY_POOL, EPOCH_US, FIN, SYN, Packet, TcpConnection, write_pcaps

PORT = 1801
SLOTS = 64
_LIOR, _NEVER = 0x524F494C, 0xFFFFFFFF
_HALF_WINDOW = 32
_ACK_US, _RECOVERABLE_ACK_US, _ORDER_ACK_US = 10_000_000, 500_000, 500_000
_INTERNAL_FLAGS = 0x0B  # priority 3, IN
_SESSION_HEADER_FLAG = 0x10
_EXPRESS, _RECOVERABLE, _TRANSACTIONAL = range(3)


def _internal(kind: int, body: bytes, flags: int = _INTERNAL_FLAGS) -> bytes:
    """Build an internal packet (2.2.1)."""
    return struct.pack("<BBHIII2xH", 0x10, 0, flags, _LIOR, 20 + len(body), _NEVER, kind) + body


def _queue_name(text: str) -> bytes:
    """Build a direct name of the UserHeader ([MS-MQMQ] 2.2.18.1.5.2)."""
    name = (text + "\0").encode("utf-16-le")
    return struct.pack("<H", len(name)) + name + bytes(-(2 + len(name)) % 4)


@dataclass
class End:
    """What one queue manager counts in a session (3.1.1.4), and what it has to acknowledge when."""

    guid: bytes
    sent: int = 0
    recoverable_sent: int = 0
    received: int = 0
    recoverable_received: int = 0
    unacknowledged: int = 0
    first_stored: int = 0  # recoverable number that no SessionHeader has named
    ack_due_us: int | None = None
    order_due_us: int | None = None
    ordinal: int = 1  # of the sequence of transactional messages that it sends
    number: int = 0
    incoming: tuple[int, int] = (0, 0)  # sequence and number to acknowledge
    finals: tuple[bytes, ...] = ()  # bodies of final acks that go with the next order ack
    message: int = 0

    def session_header(self) -> bytes:
        """Acknowledge all that came in ([MS-MQMQ] 2.2.20.4)."""
        count = self.recoverable_received - self.first_stored + 1 if self.first_stored else 0
        header = struct.pack(
            "<HHIHHHH",
            self.received & 0xFFFF, self.first_stored & 0xFFFF, (1 << count) - 1,
            self.sent & 0xFFFF, self.recoverable_sent & 0xFFFF, 64, 0,
        )  # fmt: skip
        self.unacknowledged = self.first_stored = 0
        self.ack_due_us = None
        return header


class Transfers:
    """The packets of one connection."""

    def __init__(
        self, flow: TcpConnection, rng: random.Random, *, think_us: float, epoch: int, sizes: tuple[int, int]
    ) -> None:
        self.flow, self.rng, self.think_us, self.epoch, self.sizes = flow, rng, think_us, epoch, sizes
        ends = (flow.client, flow.server)
        self.ends = [End(uuid.uuid5(uuid.NAMESPACE_OID, each.hex()).bytes_le) for each in ends]
        addresses = [".".join(map(str, each)) for each in ends]
        self.by_name = rng.random() < 0.7
        self.order_queues = [_queue_name(f"TCP:{each}\\PRIVATE$\\order_queue$") for each in addresses]
        self.queues = [[_queue_name(f"OS:host{each[-1]}\\private$\\orders{n}") for n in range(8)] for each in ends]
        self.first_message = rng.getrandbits(31)

    def run(self, messages: int | None) -> Iterator[Packet]:
        """Yield the whole connection with that many messages; None means no end."""
        flow, rng = self.flow, self.rng
        yield flow.frame(0, SYN)
        flow.now_us += 300
        yield flow.frame(1, SYN | ACK)
        flow.now_us += 200
        yield flow.frame(0, ACK)
        yield from self._handshake()
        done = 0
        while messages is None or done < messages:
            done += 1
            yield from self._wait_until(flow.now_us + int(rng.expovariate(1 / self.think_us)) + 1)
            draw = rng.random()
            kind = _EXPRESS if draw < 0.5 else _RECOVERABLE if draw < 0.8 else _TRANSACTIONAL
            yield from self._message(0 if rng.random() < 0.85 else 1, kind)
        yield from self._wait_until(flow.now_us + 15_000_000)
        for side in (0, 1):
            yield flow.frame(side, FIN | ACK)
            flow.now_us += 200
        yield flow.frame(0, ACK)

    def _handshake(self) -> Iterator[Packet]:
        """EstablishConnection and ConnectionParameters, with their answers (2.2.2, 2.2.3)."""
        flow, (client, server) = self.flow, self.ends
        asked = bytes(16) if self.by_name else server.guid
        tail = struct.pack("<IHH", flow.now_us // 1000 & 0xFFFFFFFF, 0x310, 0) + b"\x5a" * 512
        parameters = struct.pack("<IIHH", 500, 20_000, 0, 64)
        for kind, bodies in (
            (2, (client.guid + asked + tail, client.guid + server.guid + tail)),
            (3, [parameters] * 2),
        ):
            for side, body in enumerate(bodies):
                yield from flow.send(side, _internal(kind, body))
                flow.now_us += 400

    def _wait_until(self, until_us: int) -> Iterator[Packet]:
        """Let time pass: yields the acknowledgements that become due."""
        flow = self.flow
        while True:
            due = [(end.ack_due_us, 0, side) for side, end in enumerate(self.ends) if end.ack_due_us is not None]
            due += [(end.order_due_us, 1, side) for side, end in enumerate(self.ends) if end.order_due_us is not None]
            at_us, order, side = min(due, default=(until_us, 0, 0))
            if at_us >= until_us:
                break
            flow.now_us = max(flow.now_us, at_us)
            if order:
                yield from self._order_ack(side)
            else:
                yield from self._session_ack(side)
        flow.now_us = max(flow.now_us, until_us)

    def _session_ack(self, side: int) -> Iterator[Packet]:
        header = self.ends[side].session_header()
        yield from self.flow.send(side, _internal(1, header, _INTERNAL_FLAGS | _SESSION_HEADER_FLAG))

    def _message(self, side: int, kind: int) -> Iterator[Packet]:
        """Send an application message."""
        rng, end = self.rng, self.ends[side]
        least, most = self.sizes
        size = int(least * (most / least) ** rng.random())
        at = rng.randrange(len(BODY_POOL) - size)
        transaction = b""
        if kind == _TRANSACTIONAL:
            end.number += 1
            sequence = self.epoch << 32 | end.ordinal
            transaction = struct.pack("<IQII", 0xC | (end.message & 0xFFFFF) << 4, sequence, end.number, end.number - 1)
            other = self.ends[1 - side]
            other.incoming = (sequence, end.number)
            other.order_due_us = other.order_due_us or self.flow.now_us + _ORDER_ACK_US
            if rng.random() < 0.05:
                identity = end.guid + struct.pack("<I", self.first_message + end.message + 1)
                other.finals += (struct.pack("<QII", sequence, end.number, end.number - 1) + identity,)
        label = f"Order {end.message}"
        queue = self.queues[1 - side][rng.randrange(8)] if kind != _TRANSACTIONAL else self.queues[1 - side][0]
        body = BODY_POOL[at : at + size]
        yield from self._packet(side, queue, label, 0, body, recoverable=kind != _EXPRESS, transaction=transaction)

    def _order_ack(self, side: int) -> Iterator[Packet]:
        """Send the order ack that is due, and final acks (2.2.4, 2.2.5); the sender's sequence is empty then."""
        end, other = self.ends[side], self.ends[1 - side]
        sequence, number = end.incoming
        finals, end.finals, end.order_due_us = end.finals, (), None
        body = struct.pack("<QII20x", sequence, number, number - 1)
        queue = self.order_queues[1 - side]
        yield from self._packet(side, queue, "QM Ordering Ack", 0xFF, body)
        for each in finals:
            yield from self._packet(side, queue, "QM Ordering Ack", 0x4000, each, recoverable=True)
        if other.number == number:
            other.ordinal, other.number = other.ordinal + 1, 0

    def _packet(
        self,
        side: int,
        queue: bytes,
        label: str,
        message_class: int,
        body: bytes,
        *,
        recoverable: bool = False,
        transaction: bytes = b"",
    ) -> Iterator[Packet]:
        """Send a counted packet ([MS-MQMQ] 2.2.20); the other side acknowledges at half of its window."""
        flow, end, other = self.flow, self.ends[side], self.ends[1 - side]
        end.sent += 1
        end.message += 1
        end.recoverable_sent += recoverable
        header = end.session_header() if end.unacknowledged else b""
        flags = 7 << 10 | 1 << 21 | recoverable << 5 | bool(transaction) << 20
        user = end.guid + bytes(16)
        number = self.first_message + end.message
        user += struct.pack("<IIII", _NEVER, flow.now_us // 1_000_000, number & 0xFFFFFFFF, flags) + queue + transaction
        text = (label + "\0").encode("utf-16-le")
        size = len(body)
        body_type = 0x1011 if message_class == 0 else 0
        properties = struct.pack(
            "<BBH20x8I", 0, len(text) // 2, message_class, body_type, 0, size, size, 0, 0x800E, 0x6610, 0
        )
        rest = b"".join((user, properties, text, body, bytes(-(len(text) + size) % 4)))
        priority = 0 if transaction or message_class else 3
        base_flags = priority | (_SESSION_HEADER_FLAG if header else 0)
        base = struct.pack("<BBHIII", 0x10, 0, base_flags, _LIOR, 16 + len(rest), _NEVER)
        yield from flow.send(side, base + rest + header)
        other.received += 1
        other.unacknowledged += 1
        if recoverable:
            other.recoverable_received += 1
            other.first_stored = other.first_stored or other.recoverable_received
        wait = _RECOVERABLE_ACK_US if recoverable else _ACK_US
        due = flow.now_us + wait
        other.ack_due_us = due if other.ack_due_us is None else min(other.ack_due_us, due)
        if other.unacknowledged >= _HALF_WINDOW:
            yield from self._session_ack(1 - side)


def _connections_of_slot(
    slot: int, seed: int, begin_us: int, think_us: float, sizes: tuple[int, int]
) -> Iterator[Packet]:
    """Yield the packets of successive connections in one slot."""
    rng = random.Random(f"transfers/{seed}/{slot}")
    now = begin_us + rng.randrange(200_000)
    lives_long = slot % 10 == 0
    count = 0
    while True:
        flow = TcpConnection(
            client=bytes((10, 2, slot >> 8, slot & 0xFF)),
            client_port=49152 + count % 16000,
            server=bytes((10, 0, 2, 1 + slot % 5)),
            server_port=PORT,
            now_us=now,
            timestamps=rng.random() < 0.5,
            next_seq=[rng.getrandbits(32), rng.getrandbits(32)],
            slot=slot,
        )
        epoch = begin_us // 1_000_000 - 1_000_000 + count  # each session's sequences are newer than the last one's
        transfers = Transfers(flow, rng, think_us=think_us, epoch=epoch, sizes=sizes)
        yield from transfers.run(None if lives_long else rng.randrange(20, 400))
        now = flow.now_us + rng.randrange(1000, 100_000)
        count += 1


def generate_packets(
    *,
    seed: int = 1,
    begin_us: int = EPOCH_US,
    slots: int = SLOTS,
    think_us: float = 100_000,
    sizes: tuple[int, int] = (200, 65_536),
) -> Iterator[Packet]:
    """Yield endless packets in order of time: of ``slots`` connections at a time, with bodies of these sizes.

    One slot is one session without an end: with small bodies its numbers soon need more than their 16 bits.
    """
    return heapq.merge(*(_connections_of_slot(slot, seed, begin_us, think_us, sizes) for slot in range(slots)))


def generate_captures(folder: Path, total: int, *, ring: int = 20, seed: int = 1) -> list[Path]:
    """Write a ring of captures of ``total`` bytes to ``folder``; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_pcaps(generate_packets(seed=seed), [folder / f"transfers_{i:05d}.pcap" for i in range(ring)], total)
