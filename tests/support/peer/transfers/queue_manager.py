"""A queue manager: its queues, what it does with messages, and what it answers ([MS-MQQB] 3.1.5.8, 3.1.7)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import socket
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from peer.transfers import layouts as p
from peer.transfers.clock import SECOND, Clock, Timer
from peer.transfers.neighbour import Neighbour, Position, Sequence
from peer.transfers.session import OPEN, SERVER, Session

if TYPE_CHECKING:
    from peer.transfers.exchange import Exchange

MOST_HOPS = 0x1D  # UserHeader.Flags.RC
KNOWN_PROVIDER = "Microsoft Enhanced RSA and AES Cryptographic Provider"


@dataclass
class Settings:
    """Timers with the values of the specification and of Windows (3.1.2 and its notes), and ways to misbehave."""

    initialization_s: float = 60
    cleanup_s: float = 300
    retry_s: float = 5
    ack_timeout_ms: int = 20_000
    recoverable_ack_timeout_ms: int = 500
    order_ack_s: float = 0.5
    order_ack_most_s: float = 10
    resend_s: tuple[float, ...] = (*[30] * 3, *[300] * 3, *[1800] * 3, 21_600)
    window: int = 64
    disk_s: float = 0  # until a recoverable message is on disk
    pings: bool = False  # ask by UDP before a session
    answers: bool = True  # answers requests for a session
    refuses: bool = False  # refuses sessions, and says so in pings
    session_acks: bool = True
    order_acks: bool = True
    order_acks_recoverable: bool = False  # DM of order acks: 0 by 2.2.4, 1 by 3.1.7.17 (D14)
    bridges_from_acknowledged: bool = False  # Previous of a resend with none ahead: 0, or the last acknowledged number
    insecure_nacks: bool = False  # SendInsecureNacks
    paused: bool = False  # sends nothing


@dataclass(eq=False)
class LocalQueue:
    """A queue of this queue manager, with the messages in it."""

    name: FormatNames
    transactional: bool = False
    quota: int | None = None  # messages
    closed_to_strangers: bool = False
    messages: list[p.UserMessage] = field(default_factory=list)


@dataclass(frozen=True)
class FormatNames:
    """The ways to name one queue."""

    direct: p.FormatName  # OS:host\private$\name
    tcp: p.FormatName  # TCP:address\private$\name
    private: p.FormatName
    public: p.FormatName


@dataclass
class Incoming:
    """An incoming sequence: its state, and the order ack that is due (3.1.5.8.6)."""

    identifier: int = 0
    number: int = 0
    rejected: int = 0
    timer: Timer | None = None
    acknowledged_ns: int = 0  # LastOrderAckSendTime


class QueueManager:
    """One queue manager on one address. All run in one process, on the event loop and the clock of an exchange."""

    def __init__(
        self, exchange: Exchange, name: str, address: str, guid: uuid.UUID, settings: Settings | None = None
    ) -> None:
        self.exchange = exchange
        self.name, self.address, self.guid = name, address, guid
        self.settings = settings or Settings()
        self.started_ns = self.clock.now() - 501_140_046 * 1_000_000  # its machine runs since some days
        self.sequence_epoch = self.clock.now() // SECOND - 40_000_000  # when it was installed (note 35)
        self.queues: list[LocalQueue] = []
        self.routes: dict[uuid.UUID, str] = {}  # next hops, by queue manager, where it is not the destination itself
        self.neighbours: dict[tuple[str, bool], Neighbour] = {}
        self.sessions: list[Session] = []
        self.sequences: dict[str, Sequence] = {}
        self.awaiting_final: dict[int, p.UserMessage] = {}  # by ordinal (AwaitingFinalACKTable)
        self.dead_letters: list[p.UserMessage] = []
        self.journal: list[p.UserMessage] = []
        self.incoming: dict[tuple[uuid.UUID, str], Incoming] = {}
        self.seen: set[bytes] = set()  # MessageIDHistoryTable
        self._ordinals = itertools.count(4097)
        self._sequence_ordinals = itertools.count(1)
        self._transactions = itertools.count(1)
        self._queue_numbers = itertools.count(9)
        self._cookies = itertools.count(0)
        self._pings: dict[int, asyncio.Future[p.Ping]] = {}
        self._listening: list[asyncio.Server | asyncio.BaseTransport] = []
        self._pinger: asyncio.DatagramTransport | None = None  # the socket that asks

    @property
    def clock(self) -> Clock:
        return self.exchange.clock

    # -- queues ------------------------------------------------------------------------------------------------------

    def add_queue(self, name: str, **properties: object) -> LocalQueue:
        """Make a queue `private$\\name`; it has a public identifier too."""
        number = next(self._queue_numbers)
        path = f"private$\\{name}"
        names = FormatNames(
            p.FormatName(direct=f"OS:{self.name}\\{path}"),
            p.FormatName(direct=f"TCP:{self.address}\\{path}"),
            p.FormatName(guid=self.guid, number=number),
            p.FormatName(guid=uuid.uuid5(self.guid, name)),
        )
        queue = LocalQueue(names, **properties)  # type: ignore[arg-type]
        self.queues.append(queue)
        return queue

    def find_queue(self, name: p.FormatName) -> LocalQueue | None:
        for queue in self.queues:
            if any(str(name).lower() == str(each).lower() for each in vars(queue.name).values()):
                return queue
        return None

    # -- what applications do ----------------------------------------------------------------------------------------

    def message(self, destination: p.FormatName, body: bytes = b"", **fields: object) -> p.UserMessage:
        """Make a message of this queue manager."""
        owner = self.exchange.owner(destination)
        return p.UserMessage(
            self.guid, next(self._ordinals), destination, body,
            p.NOBODY if destination.direct is not None or owner is None else owner.guid,
            sent=self.clock.now() // SECOND, **fields,
        )  # type: ignore[arg-type]  # fmt: skip

    def send(self, destination: p.FormatName, body: bytes = b"", **fields: object) -> p.UserMessage:
        """Send a message."""
        message = self.message(destination, body, **fields)
        self.submit(message)
        return message

    def send_transaction(
        self, parts: Iterable[tuple[p.FormatName, bytes]], *, final_ack: bool = False, **fields: object
    ) -> list[p.UserMessage]:
        """Send messages in one transaction."""
        parts = list(parts)
        identifier = next(self._transactions)
        out = []
        for at, (destination, body) in enumerate(parts):
            header = p.Transaction(0, 0, 0, identifier, at == 0, at == len(parts) - 1, final_ack)
            out.append(
                self.send(destination, body, recoverable=True, priority=0, transaction=header, **fields)
            )  # fmt: skip
        return out

    def send_to_several(
        self, destinations: tuple[p.FormatName, ...], body: bytes, **fields: object
    ) -> list[p.UserMessage]:
        """Send one message to several queues: copies with one identifier and a MultiQueueFormatHeader."""
        admin, response = fields.get("admin"), fields.get("response")
        header = p.SeveralQueues(destinations, (admin,) if admin else (), (response,) if response else ())  # type: ignore[arg-type]
        first = self.message(destinations[0], body, several=header, **fields)
        copies = [first]
        for each in destinations[1:]:
            copies.append(self.message(each, body, several=header, **fields))
            copies[-1].number = first.number
        for copy in copies:
            if copy.transaction is not None:  # each queue has its sequence
                copy.transaction = replace(copy.transaction)
            self.submit(copy)
        return copies

    def take(self, queue: LocalQueue, why: int = p.ACK_RECEIVE, count: int | None = None) -> list[p.UserMessage]:
        """Remove messages from a queue: received, or for another reason (3.1.7.2)."""
        taken = queue.messages[:count]
        del queue.messages[: len(taken)]
        for message in taken:
            wanted = p.POSITIVE_RECEIVE if why == p.ACK_RECEIVE else p.NEGATIVE_RECEIVE
            if message.acknowledge & wanted:
                self.administration_ack(message, why)
            transaction = message.transaction
            if transaction is not None and (message.journaling or transaction.final_ack):
                self.final_ack(message, why)
        return taken

    def delete_waiting(self, message: p.UserMessage, why: int = p.NACK_DELETED) -> None:
        """Give up a message that waits to be sent, as an administrator or the queue manager does."""
        for neighbour in self.neighbours.values():
            for position in neighbour.table:
                if position.message is message:
                    self.fail(position, why)
                    return
        raise LookupError("the message does not wait")

    def restart(self) -> None:
        """Stop and start the queue manager: express messages are lost, sessions end."""
        for neighbour in self.neighbours.values():
            neighbour.table = [each for each in neighbour.table if each.message.recoverable]
        for session in list(self.sessions):
            session.close(reset=True)
        self.seen.clear()

    def resume(self) -> None:
        """Send again, after a pause (3.1.7.14)."""
        self.settings.paused = False
        for neighbour in list(self.neighbours.values()):
            neighbour.dispatch()

    # -- sending -----------------------------------------------------------------------------------------------------

    def submit(self, message: p.UserMessage) -> None:
        """Put a message into its queue here, or send it."""
        owner = self.exchange.owner(message.destination)
        if owner is self:
            queue = self.find_queue(message.destination)
            if queue is not None:
                queue.messages.append(message)
            return
        self.neighbour_for(message).add(Position(message))

    def neighbour_for(self, message: p.UserMessage) -> Neighbour:
        """Return the next hop of a message (3.1.7.5): the machine of a direct name, else as the routes say."""
        name = message.destination
        owner = self.exchange.owner(name)
        direct = name.direct is not None
        address = self.exchange.address_of(name)
        if not direct:
            assert owner is not None
            address = self.routes.get(owner.guid, owner.address)
        assert address is not None, f"no way to {name}"
        guid = next((each.guid for each in self.exchange.managers if each.address == address), p.NOBODY)
        wrong = self.exchange.wrong_guids.get(address)
        return self.neighbours.setdefault((address, direct), Neighbour(self, address, direct, wrong or guid))

    def sequence_for(self, neighbour: Neighbour, destination: p.FormatName) -> Sequence:
        """Return the running sequence to a queue, or a new one if all of the last was acknowledged (3.1.1.5)."""
        name = str(destination)
        running = self.sequences.get(name)
        if running is None or not any(each.sequence is running for each in neighbour.table):
            identifier = self.sequence_epoch << 32 | next(self._sequence_ordinals)
            running = self.sequences[name] = Sequence(neighbour, identifier)
        return running

    def sent(self, position: Position, session: Session) -> None:
        """Report a traced message that was sent (3.1.7.1.7)."""
        if position.message.traced:
            self.report(position.message, next_hop=session.remote_address)

    def fail(self, position: Position, why: int) -> None:
        """Give up a message before it is sent: acknowledge it negatively, or keep it as a dead letter (3.1.7.1.2)."""
        for neighbour in self.neighbours.values():
            if position in neighbour.table:
                neighbour.table.remove(position)
        if position.sequence is not None:
            position.sequence.remove(position)
        message = position.message
        wanted = p.NEGATIVE_RECEIVE if why & p.RECEIVE_STAGE else p.NEGATIVE_ARRIVAL
        if message.acknowledge & wanted:
            self.administration_ack(message, why)
        if message.journaling & p.DEAD_LETTER:
            self.dead_letters.append(message)

    # -- receiving ---------------------------------------------------------------------------------------------------

    def receive(self, message: p.UserMessage, session: Session) -> None:
        """Take a message that came in (3.1.5.8)."""
        owner = self.exchange.owner(message.destination)
        mine = message.queue_manager in {self.guid, p.NOBODY}
        if message.kind != "user_message" and mine:
            self._order_queue(message)
            return
        transaction = message.transaction
        if transaction is None:  # of others too: a router does not send copies on (3.1.5.8.1)
            identity = message.identity + str(message.destination).encode()
            if identity in self.seen:
                return
            self.seen.add(identity)
        if not mine:
            self._forward(message)
            return
        if transaction is not None and not self._in_order(message, session):
            return
        queue = self.find_queue(message.destination) if owner is self else None
        why = self._refusal(message, queue)
        if message.traced:
            self.report(message)
        if why is None:
            assert queue is not None
            queue.messages.append(message)
            self.exchange.account.queued.add((message.message_id, str(message.destination)))
            if message.acknowledge & p.POSITIVE_ARRIVAL:
                self.administration_ack(message, p.ACK_REACH_QUEUE)
            return
        if message.acknowledge & p.NEGATIVE_ARRIVAL:
            self.administration_ack(message, why)
        if transaction is not None:
            self.final_ack(message, why, session)

    def _refusal(self, message: p.UserMessage, queue: LocalQueue | None) -> int | None:
        """Return why a message cannot be put into its queue (3.1.5.8.2, .3, .8)."""
        if self._late(message):
            return p.NACK_REACH_TIMEOUT
        if queue is None:
            return p.NACK_BAD_DESTINATION
        if message.transaction is not None and not queue.transactional:
            return p.NACK_NOT_TRANSACTIONAL_QUEUE
        if message.transaction is None and queue.transactional:
            return p.NACK_NOT_TRANSACTIONAL_MESSAGE
        security = message.security
        if security is not None:
            if security.provider not in {"", KNOWN_PROVIDER}:
                return p.NACK_UNSUPPORTED_PROVIDER
            if security.key:  # no key of a session opens here
                return p.NACK_BAD_ENCRYPTION
            if security.signature:  # no certificate is known here
                return p.NACK_BAD_SIGNATURE
        if queue.closed_to_strangers:
            return p.NACK_ACCESS_DENIED
        if queue.quota is not None and len(queue.messages) >= queue.quota:
            return p.NACK_QUOTA
        return None

    def _late(self, message: p.UserMessage) -> bool:
        age = self.clock.now() // SECOND - message.sent
        return message.time_to_reach != p.NEVER and age > message.time_to_reach

    def _forward(self, message: p.UserMessage) -> None:
        """Send a message of others on (3.1.5.8.2), whatever it is."""
        if message.hops >= MOST_HOPS:
            if message.acknowledge & p.NEGATIVE_ARRIVAL:
                self.administration_ack(message, p.NACK_HOP_COUNT)
            if message.transaction is not None:
                self.final_ack(message, p.NACK_HOP_COUNT)
            return
        if message.traced:
            self.report(message)
        onward = replace(message, hops=message.hops + 1, session_header=None)
        self.neighbour_for(onward).add(Position(onward))

    def _in_order(self, message: p.UserMessage, session: Session) -> bool:
        """Whether a transactional message is the next of its sequence; an order ack is due in any case (3.1.5.8.6)."""
        transaction = message.transaction
        assert transaction is not None
        state = self.incoming.setdefault((message.source, str(message.destination)), Incoming())
        same = transaction.sequence == state.identifier
        taken = same and transaction.number > state.number and transaction.previous <= state.number
        taken |= transaction.sequence > state.identifier and transaction.previous == 0
        if taken:
            state.identifier, state.number, state.rejected = transaction.sequence, transaction.number, 0
        else:
            state.rejected += 1
        settings, now = self.settings, self.clock.now()
        state.acknowledged_ns = state.acknowledged_ns or now
        running = state.timer is not None and state.timer.running
        if not running or now - state.acknowledged_ns < settings.order_ack_most_s * SECOND:
            if state.timer is not None:
                state.timer.stop()
            source = (message.source, session)
            state.timer = self.clock.after(settings.order_ack_s, lambda: self._order_ack(state, *source))
        return taken

    def _order_ack(self, state: Incoming, source: uuid.UUID, session: Session) -> None:
        """Send an order ack (3.1.6.9, 3.1.7.17), if there is something to acknowledge."""
        if not self.settings.order_acks or not state.number:
            return
        state.acknowledged_ns = self.clock.now()
        body = p.OrderBody(state.identifier, state.number, state.number - 1)
        recoverable = self.settings.order_acks_recoverable
        self._to_order_queue(source, session, p.ORDER_ACK, body, recoverable=recoverable)

    def final_ack(self, message: p.UserMessage, why: int, session: Session | None = None) -> None:
        """Send a final ack of a transactional message (3.1.7.17)."""
        transaction = message.transaction
        assert transaction is not None
        numbers = (transaction.sequence, transaction.number, transaction.previous)
        body = p.OrderBody(*numbers, message.source, message.number)
        self._to_order_queue(message.source, session, why, body, recoverable=True, named=message.destination)

    def _to_order_queue(
        self,
        source: uuid.UUID,
        session: Session | None,
        message_class: int,
        body: p.OrderBody,
        *,
        recoverable: bool,
        named: p.FormatName | None = None,
    ) -> None:
        """Address an acknowledgement as messages came: by address in a session by direct name, else by identifier."""
        sender = next(each for each in self.exchange.managers if each.guid == source)
        direct = session.direct if session is not None else named is not None and named.direct is not None
        name = (
            p.FormatName(direct=f"TCP:{sender.address}{p.ORDER_QUEUE}")
            if direct
            else p.FormatName(guid=source, number=p.ORDER_QUEUE_ID)
        )
        self.send(
            name, body.encode(), label=p.ORDER_LABEL, message_class=message_class, body_type=0, priority=0,
            recoverable=recoverable,
        )  # fmt: skip

    def _order_queue(self, ack: p.UserMessage) -> None:
        """Take an order ack (3.1.5.6) or a final ack (3.1.5.7)."""
        body = p.OrderBody.decode(ack.body)
        for sequence in self.sequences.values():
            if sequence.identifier != body.sequence:
                continue
            neighbour = sequence.neighbour
            if ack.kind == "order_ack":
                sequence.acknowledge(body.number)
                for position in neighbour.table:
                    if position.sequence is sequence and position.settled() and position.message.journaling:
                        self.awaiting_final[position.message.number] = position.message
                neighbour.settle_acknowledged()
            else:
                for position in [each for each in neighbour.table if each.message.number == body.message]:
                    neighbour.table.remove(position)
                    sequence.remove(position)
                    self.awaiting_final[body.message] = position.message
        if ack.kind == "final_ack":
            message = self.awaiting_final.pop(body.message, None)
            if message is not None and ack.message_class == p.ACK_RECEIVE and message.journaling & p.JOURNAL:
                self.journal.append(message)
            elif message is not None and ack.message_class & p.NEGATIVE and message.journaling & p.DEAD_LETTER:
                self.dead_letters.append(message)

    def administration_ack(self, message: p.UserMessage, why: int) -> None:
        """Acknowledge to the administration queue (3.1.7.15)."""
        if message.admin is None or (why in p.INSECURE_NACKS and not self.settings.insecure_nacks):
            return
        sealed = message.security is not None and bool(message.security.key)
        body = b"" if why in {p.ACK_REACH_QUEUE, p.ACK_RECEIVE} or sealed else message.body
        self.send(
            message.admin, body, message_class=why, correlation=message.identity, response=message.destination,
            recoverable=message.recoverable, body_type=message.body_type if body else 0,
        )  # fmt: skip

    def report(self, message: p.UserMessage, next_hop: str | None = None) -> None:
        """Send a report of a traced message that came in, or was sent to ``next_hop`` (3.1.5.8.9, 3.1.7.1.7)."""
        if message.report_queue is None or message.message_class == p.REPORT:
            return
        at = dt.datetime.fromtimestamp(self.clock.now() // SECOND, dt.UTC)
        name = f"{str(message.source).upper()[:4]}:{message.number:08X}:{message.hops:02X}"
        label = f"{name} received by {str(self.guid).upper()} at {at:%I:%M:%S %p} {at:%a},{at:%b} {at:%d %y}"
        text = (
            f"<MESSAGE ID>{message.number:08X}</MESSAGE ID>\r\n<TARGET QUEUE>{message.destination}</TARGET QUEUE>\r\n"
        )
        if next_hop is not None:
            text += f"<NEXT HOP>{next_hop}</NEXT HOP>\r\n<HOP COUNT>{message.hops:02X} </HOP COUNT>\r\n"
        sent = self.message(
            p.FormatName(guid=message.report_queue), text.encode("utf-16-le"), label=label, message_class=p.REPORT,
            body_type=8,
        )  # fmt: skip
        self.exchange.account.reports[sent.message_id] = (message.message_id, message.hops, next_hop)
        self.submit(sent)

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen for sessions and pings."""
        loop = asyncio.get_running_loop()
        port, ping_port = self.exchange.port, self.exchange.ping_port
        self._listening.append(await loop.create_server(lambda: Session(self), self.address, port))
        for local in (ping_port, 0):
            self._pinger, _ = await loop.create_datagram_endpoint(
                lambda: PingEnd(self), local_addr=(self.address, local)
            )
            self._listening.append(self._pinger)

    async def stop(self) -> None:
        """Stop listening; what is open stays open until the process of the script ends it."""
        for each in self._listening:
            each.close()
        for session in list(self.sessions):
            session.close()

    async def connect(self, neighbour: Neighbour) -> None:
        """Establish a session (3.1.5.2)."""
        try:
            neighbour.pinged = self.settings.pings
            if self.settings.pings and not await self._ping(neighbour.address):
                neighbour.connecting = False
                neighbour.try_again()
                return
            session = Session(self, neighbour)
            neighbour.session = session
            loop = asyncio.get_running_loop()
            with contextlib.ExitStack() as unless_connected:
                sock = unless_connected.enter_context(socket.socket(proto=socket.IPPROTO_TCP))  # no Nagle
                sock.setblocking(False)
                sock.bind((self.address, 0))
                server = (neighbour.address, self.exchange.port)
                entry = self.exchange.account.connected(sock.getsockname(), server)
                entry.outcome = "not_established"
                await loop.sock_connect(sock, server)
                entry.outcome = None
                unless_connected.pop_all()
            await loop.create_connection(lambda: session, sock=sock)
        except OSError:
            entry.closed_by, entry.closed_ns = SERVER, self.clock.now()
            neighbour.session = None
            neighbour.try_again()
        finally:
            neighbour.connecting = False

    def session_opened(self, session: Session) -> None:
        """Send what waits for the other end: also over a session that it has begun."""
        if session.neighbour is None:
            key = (session.remote_address, session.direct)
            neighbour = self.neighbours.setdefault(key, Neighbour(self, *key, session.remote))
            session.neighbour = neighbour
            if neighbour.session is None or neighbour.session.state != OPEN:
                neighbour.session = session
        session.neighbour.dispatch()

    async def _ping(self, address: str) -> bool:
        """Ask whether a session would be accepted (3.1.7.6)."""
        request = p.Ping(next(self._cookies), self.guid)
        future: asyncio.Future[p.Ping] = asyncio.get_running_loop().create_future()
        self._pings[request.cookie] = future
        sender = self._pinger
        assert sender is not None
        entry = self.exchange.account.ping(self, sender.get_extra_info("sockname")[1], address, request)
        sender.sendto(request.encode(), (address, self.exchange.ping_port))
        timer = self.clock.after(1, lambda: None if future.done() else future.cancel())
        self.exchange.waiting_pings += 1
        with contextlib.suppress(asyncio.CancelledError):
            await future
        self.exchange.waiting_pings -= 1
        timer.stop()
        if future.cancelled():
            return False
        entry.answered(self.clock.now(), future.result())
        return not future.result().refused

    def pinged(self, data: bytes, address: tuple[str, int], transport: asyncio.DatagramTransport) -> None:
        """Answer a request (3.1.7.7), or take an answer."""
        ping = p.Ping.decode(data)
        if transport is self._pinger:
            future = self._pings.pop(ping.cookie, None)
            if future is not None and not future.done():
                future.set_result(ping)
        elif self.settings.answers:
            answer = p.Ping(ping.cookie, self.guid, ping.workstation, self.settings.refuses)
            transport.sendto(answer.encode(), address)


class PingEnd(asyncio.DatagramProtocol):
    """A UDP socket of a queue manager."""

    def __init__(self, manager: QueueManager) -> None:
        self.manager = manager
        self.transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self.transport is not None
        self.manager.pinged(data, addr, self.transport)
