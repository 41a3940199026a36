"""One session of the binary protocol: handshake, numbers, window, session acknowledgements ([MS-MQQB] 3.1.5, 3.1.7)."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peer.transfers import layouts as p
from peer.transfers.clock import Timer

if TYPE_CHECKING:
    from peer.transfers.account import PacketEntry, SessionEntry
    from peer.transfers.neighbour import Neighbour, Position
    from peer.transfers.queue_manager import QueueManager

CLIENT, SERVER = "client", "server"
WAITING_EC, WAITING_ECR, WAITING_CP, WAITING_CPR, OPEN, CLOSED = (
    "WAITING_EC_MSG", "WAITING_ECR_MSG", "WAITING_CP_MSG", "WAITING_CPR_MSG", "OPEN", "CLOSED",
)  # fmt: skip
FLAGS_BITS = 32  # recoverable messages that one SessionHeader can name


@dataclass
class Sending:
    """One transmission of a message: its numbers in the session, and the packet that carried it."""

    position: Position
    number: int
    recoverable_number: int | None
    packet: PacketEntry


@dataclass
class Numbers:
    """What one side has counted (3.1.1.4). The protocol has 16 bits of each."""

    sent: int = 0
    recoverable_sent: int = 0
    received: int = 0
    recoverable_received: int = 0
    unacknowledged: int = 0  # received since the last SessionHeader
    stored: set[int] = field(default_factory=set)  # recoverable numbers on disk that no SessionHeader has named


class Session(asyncio.Protocol):
    """One end of a TCP connection to another queue manager."""

    def __init__(self, manager: QueueManager, neighbour: Neighbour | None = None) -> None:
        self.manager = manager
        self.neighbour = neighbour
        self.side = SERVER if neighbour is None else CLIENT
        self.state = WAITING_EC if neighbour is None else WAITING_ECR
        self.transport: asyncio.Transport | None = None
        self.entry: SessionEntry | None = None
        self.remote_address = ""
        self.remote: p.uuid.UUID = p.NOBODY  # RemoteQMGuid
        self.direct = neighbour.direct if neighbour else False  # DirectFormatSession
        self.numbers = Numbers()
        self.window = manager.settings.window
        self.other_window = manager.settings.window
        self.ack_timeout_ms = manager.settings.ack_timeout_ms
        self.recoverable_ack_timeout_ms = manager.settings.recoverable_ack_timeout_ms
        self.waiting: dict[int, Sending] = {}  # sent and not session-acknowledged, by number
        self.unstored: dict[int, Sending] = {}  # recoverable, not known to be on disk there
        self.acknowledged = 0  # highest number that the other side has acknowledged
        self.deaf = False
        self.written = self.read = 0
        self._buffer = b""
        self._active = self._heard = False  # SessionActive, ReceivedAck
        self._initialization: Timer | None = None
        self._cleanup: Timer | None = None
        self._ack_wait: Timer | None = None
        self._ack_send: Timer | None = None
        self._ack_at_ns = 0

    # -- connection --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        here, there = transport.get_extra_info("sockname")[:2], transport.get_extra_info("peername")[:2]
        self.remote_address = there[0]
        client, server = (here, there) if self.side == CLIENT else (there, here)
        self.entry = self.manager.exchange.connected(self, client, server)
        settings = self.manager.settings
        self._initialization = self.manager.clock.after(settings.initialization_s, lambda: self.close("unopened"))
        self._restart_cleanup()
        if self.neighbour is not None:
            asked = p.NOBODY if self.direct else self.neighbour.guid
            uptime = (self.manager.clock.now() - self.manager.started_ns) // 1_000_000 & 0xFFFFFFFF
            request = p.EstablishConnection(self.manager.guid, asked, uptime, not self.neighbour.pinged)
            self.entry.asked = None if self.direct else asked
            self.entry.initiator, self.entry.pinged = self.manager.guid, self.neighbour.pinged
            self.entry.uptime_ms = uptime
            self._write("establish_connection", request.encode())

    def data_received(self, data: bytes) -> None:
        if self.deaf:
            return
        self.read += len(data)
        self._buffer += data
        while len(self._buffer) >= 16 and self.state != CLOSED:
            try:
                length = p.packet_length(p.BaseHeader.decode(self._buffer))
            except ValueError:  # 3.1.5.1.2
                self.close()
                return
            if len(self._buffer) < length:
                return
            packet, self._buffer = self._buffer[:length], self._buffer[length:]
            begin = self.read - len(self._buffer) - length
            self._packet(packet, self.manager.exchange.account.arrived(self, begin, packet))

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed("reset" if exc is not None else "closed")

    def listen_no_more(self) -> None:
        """Ignore what is sent from now on: it arrives at the machine and never at the queue manager."""
        self.deaf = True

    def close(self, why: str = "closed", *, reset: bool = False) -> None:
        """Close the connection, with FIN or RST; there is no packet for it (3.1.5.9)."""
        if self.state == CLOSED or self.transport is None or self.entry is None:
            return
        if self.entry.closed_by is None and not self.manager.exchange.account.closed:
            self.entry.closed_by, self.entry.closed_ns = self.side, self.manager.clock.now()
            self.entry.ended = "reset" if reset and why == "closed" else why
        if reset:
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self.transport.close()
        self._closed(why)

    def _closed(self, why: str) -> None:
        if self.state == CLOSED:
            return
        self.state = CLOSED
        for timer in (self._initialization, self._cleanup, self._ack_wait, self._ack_send):
            if timer is not None:
                timer.stop()
        self.manager.exchange.disconnected(self)
        if self.neighbour is not None:
            self.neighbour.session_closed(self)
        if self.entry is not None and self.entry.ended is None and not self.manager.exchange.account.closed:
            self.entry.ended = why

    def _restart_cleanup(self) -> None:
        """Session Cleanup Timer (3.1.6.2): a session without messages for one to two periods is closed."""

        def event() -> None:
            if self._active:
                self._active = False
                self._restart_cleanup()
            else:
                self.close("idle")

        self._cleanup = self.manager.clock.after(self.manager.settings.cleanup_s, event)

    def _write(self, kind: str, data: bytes, message: p.UserMessage | None = None) -> PacketEntry:
        assert self.transport is not None
        packet = self.manager.exchange.account.sent(self, self.written, kind, data, message)
        self.written += len(data)
        self.transport.write(data)
        return packet

    # -- packets that come in ----------------------------------------------------------------------------------------

    def _packet(self, packet: bytes, entry: PacketEntry) -> None:
        base = p.BaseHeader.decode(packet)
        self._heard = True
        if not base.internal:
            if self.state == OPEN:
                self._message(p.UserMessage.decode(packet), entry)
            else:
                self.close("closed")
            return
        (flags,) = struct.unpack_from("<H", packet, 18)
        kind = flags & 15
        if kind == p.ESTABLISH_CONNECTION and self.state == WAITING_EC:
            self._asked(p.EstablishConnection.decode(packet))
        elif kind == p.ESTABLISH_CONNECTION and self.state == WAITING_ECR:
            self._answered(p.EstablishConnection.decode(packet))
        elif kind == p.CONNECTION_PARAMETERS and self.state == WAITING_CP:
            self._parameters_asked(p.ConnectionParameters.decode(packet))
        elif kind == p.CONNECTION_PARAMETERS and self.state == WAITING_CPR:
            self._parameters_answered(p.ConnectionParameters.decode(packet))
        elif kind == p.SESSION_ACK and self.state == OPEN:
            self._session_header(p.SessionHeader.decode(packet[20:36]), entry)
        else:
            self.close("closed")

    def _asked(self, request: p.EstablishConnection) -> None:
        """Answer a request (3.1.5.3.1)."""
        settings, entry = self.manager.settings, self.entry
        assert entry is not None
        if not settings.answers:
            return
        self.remote = request.client
        self.direct = request.server == p.NOBODY
        wrong = request.server not in {self.manager.guid, p.NOBODY}
        answer = p.EstablishConnection(
            request.client, self.manager.guid, request.timestamp, request.not_pinged, request.server_class,
            wrong or settings.refuses, reserved=request.reserved,
        )  # fmt: skip
        entry.acceptor = self.manager.guid
        if answer.refused:
            entry.outcome = "refused"
        self._write("establish_connection", answer.encode(p.BaseHeader(reserved=0x5A)))
        if not answer.refused:
            self.state = WAITING_CP

    def _answered(self, answer: p.EstablishConnection) -> None:
        """Go on, or close (3.1.5.3.2)."""
        assert self.neighbour is not None
        if answer.refused or answer.client != self.manager.guid:
            self.close("refused")
            return
        self.remote = self.neighbour.guid = answer.server
        trip = (self.manager.clock.now() - self.manager.started_ns) // 1_000_000 - answer.timestamp
        least = self.manager.settings.recoverable_ack_timeout_ms
        self.recoverable_ack_timeout_ms = min(max(8 * trip, least), 120_000)
        parameters = p.ConnectionParameters(self.recoverable_ack_timeout_ms, self.ack_timeout_ms, self.window)
        self.state = WAITING_CPR
        self._write("connection_parameters", parameters.encode())

    def _parameters_asked(self, asked: p.ConnectionParameters) -> None:
        """3.1.5.4.1."""
        self.other_window = asked.window
        self.ack_timeout_ms = asked.ack_timeout
        self.recoverable_ack_timeout_ms = asked.recoverable_ack_timeout
        answer = p.ConnectionParameters(asked.recoverable_ack_timeout, asked.ack_timeout, self.window)
        assert self.entry is not None
        self.entry.client_window = asked.window
        self._write("connection_parameters", answer.encode())
        self._opened()

    def _parameters_answered(self, answer: p.ConnectionParameters) -> None:
        """3.1.5.4.2."""
        self.other_window = answer.window
        assert self.entry is not None
        self.entry.server_window = answer.window
        self._opened()

    def _opened(self) -> None:
        assert self.entry is not None
        assert self._initialization is not None
        self._initialization.stop()
        self.state = OPEN
        self.entry.outcome = "open"
        self.entry.ack_timeout_ms = self.ack_timeout_ms
        self.entry.recoverable_ack_timeout_ms = self.recoverable_ack_timeout_ms
        self.manager.session_opened(self)

    def _message(self, message: p.UserMessage, entry: PacketEntry) -> None:
        """Count a message, acknowledge it when it is time, hand it on (3.1.5.8.2, .4, .7)."""
        numbers, settings, clock = self.numbers, self.manager.settings, self.manager.clock
        numbers.received += 1
        numbers.unacknowledged += 1
        self._active = True
        if message.recoverable:
            numbers.recoverable_received += 1
            self._store(numbers.recoverable_received)
        if self._ack_send is None or not self._ack_send.running:
            self._ack_after(self.ack_timeout_ms / 2000)
        if message.recoverable and self._ack_at_ns > clock.now() + self.recoverable_ack_timeout_ms * 1_000_000:
            self._ack_after(self.recoverable_ack_timeout_ms / 1000)
        if message.session_header is not None:
            self._session_header(message.session_header, entry)
        if self.state != OPEN:
            return
        full = numbers.unacknowledged >= max(self.other_window // 2, 1) or len(numbers.stored) >= FLAGS_BITS
        if full and settings.session_acks:
            self.acknowledge()
        self.manager.receive(message, self)

    def _store(self, number: int) -> None:
        """Write a recoverable message to disk, which may take time."""

        def done() -> None:
            self.numbers.stored.add(number)
            if self.state == OPEN and (self._ack_send is None or not self._ack_send.running):
                self._ack_after(self.recoverable_ack_timeout_ms / 1000)

        slow = self.manager.settings.disk_s
        if slow:
            self.manager.clock.after(slow, done)
        else:
            done()

    def _session_header(self, header: p.SessionHeader, entry: PacketEntry) -> None:
        """Take the other side's acknowledgement (3.1.5.5)."""
        account, neighbour = self.manager.exchange.account, self.neighbour
        self.other_window = header.window
        upto = self.acknowledged + ((header.ack - self.acknowledged) & 0xFFFF)
        for number in [each for each in self.waiting if each <= upto]:
            sending = self.waiting.pop(number)
            account.acknowledged(sending.packet, entry)
            sending.position.session_acked = True
        self.acknowledged = upto
        if header.recoverable_ack:
            for number, sending in list(self.unstored.items()):
                bit = (number - header.recoverable_ack) & 0xFFFF
                if bit < FLAGS_BITS and header.recoverable_flags >> bit & 1:
                    del self.unstored[number]
                    account.stored(sending.packet, entry)
                    sending.position.stored = True
        counts = (self.numbers.received & 0xFFFF, self.numbers.recoverable_received & 0xFFFF)
        if (header.sent, header.recoverable_sent) != counts:  # 3.1.5.5.5
            self.close("closed")
            return
        if self.waiting:
            self._restart_ack_wait()
        elif self._ack_wait is not None:
            self._ack_wait.stop()
        if neighbour is not None:
            neighbour.settle_acknowledged()
            neighbour.dispatch()

    # -- what goes out -----------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the window holds no further message: the smaller one of both (3.1.7.1)."""
        return len(self.waiting) >= min(self.window, self.other_window)

    def send(self, position: Position) -> None:
        """Number and send a message, with a SessionHeader if there is something to acknowledge (3.1.7.1.3)."""
        message, numbers = position.message, self.numbers
        numbers.sent += 1
        recoverable_number = None
        if message.recoverable:
            numbers.recoverable_sent += 1
            recoverable_number = numbers.recoverable_sent
        piggyback = (numbers.unacknowledged or numbers.stored) and self.manager.settings.session_acks
        message.session_header = self._acknowledgement() if piggyback else None
        entry = self._write(message.kind, message.encode(), message)
        entry.session_number, entry.recoverable_number = numbers.sent, recoverable_number
        sending = Sending(position, numbers.sent, recoverable_number, entry)
        self.waiting[numbers.sent] = sending
        if recoverable_number is not None:
            self.unstored[recoverable_number] = sending
        self._active = True
        if self._ack_wait is None or not self._ack_wait.running:
            self._restart_ack_wait()

    def acknowledge(self) -> None:
        """Send a stand-alone session acknowledgement (3.1.6.4)."""
        self._write("session_ack", p.session_ack(self._acknowledgement()))

    def _acknowledgement(self) -> p.SessionHeader:
        """Acknowledge all that came in, and what of it is on disk."""
        numbers = self.numbers
        first = min(numbers.stored, default=0)
        named = {each for each in numbers.stored if each - first < FLAGS_BITS}
        numbers.stored -= named
        numbers.unacknowledged = 0
        if self._ack_send is not None:
            self._ack_send.stop()
        if numbers.stored:
            self._ack_after(self.recoverable_ack_timeout_ms / 1000)
        return p.SessionHeader(
            numbers.received & 0xFFFF, first & 0xFFFF, sum(1 << each - first for each in named),
            numbers.sent & 0xFFFF, numbers.recoverable_sent & 0xFFFF, self.window,
        )  # fmt: skip

    def _ack_after(self, seconds: float) -> None:
        """Session Ack Send Timer (3.1.6.4)."""

        def event() -> None:
            if (self.numbers.unacknowledged or self.numbers.stored) and self.manager.settings.session_acks:
                self.acknowledge()

        if self._ack_send is not None:
            self._ack_send.stop()
        self._ack_send = self.manager.clock.after(seconds, event)
        self._ack_at_ns = self._ack_send.at_ns

    def _restart_ack_wait(self) -> None:
        """Session Ack Wait Timer (3.1.6.3), twice as long in a session by direct name (note 46)."""

        def event() -> None:
            if not self.waiting:
                self._heard = False
            elif not self._heard:
                self.close("ack_timeout")
            else:
                self._restart_ack_wait()
                self._heard = False

        if self._ack_wait is not None:
            self._ack_wait.stop()
        multiple = 2 if self.direct else 1
        self._ack_wait = self.manager.clock.after(multiple * self.ack_timeout_ms / 1000, event)
