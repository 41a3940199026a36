r"""The account of an exchange: what the queue managers know of it, the truth that decoders are compared with.

A file of JSON lines; `record` says what a line is. Times are nanoseconds since 1970 by the clock of the exchange, a few
microseconds from those of the capture. Packets and sessions have numbers in this file, from 1. Queues are format names
as they were sent.

`exchange`   first line: name, about, capture; queue managers; its begin; its last packet's time (capture end)
`session`    a connection: its ends, what the handshake said, `outcome`, `ended`, counts of each side
`packet`     a packet of a session in the order of sending: side, place in its stream, kind, digest, numbers, and the
             packets that acknowledged and stored it
`ping`       a request, and its answer
`message`    a message to one destination queue on one hop: sendings, acknowledgements, `outcome`
`sequence`   a sequence of transactional messages on one hop: numbers, resends, acknowledgements, stalls

The words of `outcome`, `ended` and `kind`, and most names, are those of the tables. Nothing is decoded: senders and
receivers say it, each when it happens.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.transfers import layouts as p
from peer.transfers.clock import SECOND
from peer.transfers.outcomes import message_lines, sequence_lines, window_full_ms

if TYPE_CHECKING:
    from peer.transfers.exchange import Exchange
    from peer.transfers.queue_manager import QueueManager
    from peer.transfers.session import Session

VERSION = 1
CLIENT, SERVER = SIDES = ("client", "server")
SILENT_AFTER_NS = 600 * SECOND


@dataclass(eq=False)
class PacketEntry:
    """One packet as its sender wrote it, with what became of it."""

    number: int
    session: SessionEntry
    side: str
    offset: int
    kind: str
    sent_ns: int
    data: bytes
    message: p.UserMessage | None
    header: p.SessionHeader | None
    session_number: int | None = None
    recoverable_number: int | None = None
    acknowledged_by: PacketEntry | None = None
    stored_by: PacketEntry | None = None
    received: bool = False  # by the queue manager, not by its machine alone
    transaction: tuple[int, int, int] | None = None  # sequence, number, previous: they change when it is sent again
    recorded: bool = True  # not before the recorder started

    @property
    def sender(self) -> str:
        return self.session.ends[self.side][0]

    @property
    def receiver(self) -> str:
        return self.session.ends[SERVER if self.side == CLIENT else CLIENT][0]

    def end_guid(self, *, receiver: bool) -> uuid.UUID | None:
        """Queue manager at an end of the packet's session."""
        by_client = (self.side == CLIENT) != receiver
        return self.session.initiator if by_client else self.session.acceptor

    def line(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "record": "packet",
            "packet": self.number,
            "session": self.session.number,
            "sent_by": self.side,
            "stream_offset": self.offset,
            "length_bytes": len(self.data),
            "kind": self.kind,
            "flags": int.from_bytes(self.data[2:4], "little"),
            "packet_size": int.from_bytes(self.data[8:12], "little"),
            "sent_at": self.sent_ns,
            "sha256": hashlib.sha256(self.data).hexdigest(),
            "received": self.received,
            "recorded": self.recorded,
        }
        if self.header is not None:
            names = (
                "ack_sequence_number", "recoverable_ack_number", "recoverable_ack_flags", "user_sequence_number",
                "recoverable_sequence_number", "window_size",
            )  # fmt: skip
            out["session_header"] = dict(zip(names, list(vars(self.header).values())[:6], strict=True))
        if self.session_number is not None:
            out["session_number"], out["recoverable_number"] = self.session_number, self.recoverable_number
            out["acknowledged_by"], out["stored_by"] = _number(self.acknowledged_by), _number(self.stored_by)
        if self.message is not None:
            out["message_class"] = self.message.message_class
            out["message_id"] = self.message.message_id
            out["destination_queue"] = str(self.message.destination)
            if self.transaction is not None:
                names = ("transaction_sequence_id", "transaction_number", "previous_transaction_number")
                out |= dict(zip(names, self.transaction, strict=True))
        if self.kind in {"order_ack", "final_ack"}:
            out |= _order_body(self)
        return out


def _order_body(packet: PacketEntry) -> dict[str, Any]:
    assert packet.message is not None
    body = p.OrderBody.decode(packet.message.body)
    out: dict[str, Any] = {
        "transaction_sequence_id": body.sequence,
        "transaction_number": body.number,
        "previous_transaction_number": body.previous,
    }
    if packet.kind == "final_ack":
        out["acknowledged_message_id"] = f"{body.source}\\{body.message}"
    return out


def _number(packet: PacketEntry | None) -> int | None:
    return None if packet is None else packet.number


@dataclass(eq=False)
class SessionEntry:
    """One connection."""

    number: int
    ends: dict[str, tuple[str, int]]
    opened_ns: int
    initiator: uuid.UUID | None = None
    acceptor: uuid.UUID | None = None
    asked: uuid.UUID | None = None
    pinged: bool = False
    uptime_ms: int | None = None
    recoverable_ack_timeout_ms: int | None = None
    ack_timeout_ms: int | None = None
    client_window: int | None = None
    server_window: int | None = None
    recorded: bool = True  # its SYN too
    outcome: str | None = None
    ended: str | None = None
    closed_by: str | None = None
    closed_ns: int | None = None
    packets: list[PacketEntry] = field(default_factory=list)

    def line(self, end_ns: int) -> dict[str, Any]:
        counted = [each for each in self.packets if each.session_number is not None]
        out: dict[str, Any] = {
            "record": "session",
            "session": self.number,
            "client_address": self.ends[CLIENT][0],
            "client_port": self.ends[CLIENT][1],
            "server_address": self.ends[SERVER][0],
            "server_port": self.ends[SERVER][1],
            "opened_at": self.opened_ns,
            "closed_at": self.closed_ns,
            "closed_by": self.closed_by,
            "recorded": self.recorded,
            "initiator_queue_manager": _guid(self.initiator),
            "acceptor_queue_manager": _guid(self.acceptor or self.asked),
            "asked_queue_manager": _guid(self.asked),
            "by_direct_name": None if self.initiator is None else self.asked is None,
            "pinged": self.pinged,
            "initiator_uptime_ms": self.uptime_ms,
            "recoverable_ack_timeout_ms": self.recoverable_ack_timeout_ms,
            "ack_timeout_ms": self.ack_timeout_ms,
            "client_window": self.client_window,
            "server_window": self.server_window,
            "outcome": self.outcome or "unanswered",
            "ended": self.ending(end_ns),
        }
        for side in SIDES:
            mine = [each for each in counted if each.side == side]
            messages = [each for each in mine if each.kind == "user_message"]
            counts = {
                "messages": len(messages),
                "bytes": sum(len(each.data) for each in messages),
                "recoverable": sum(each.recoverable_number is not None for each in messages),
                "transactional": sum(each.transaction is not None for each in messages),
                "order_acks": sum(each.kind == "order_ack" for each in mine),
                "final_acks": sum(each.kind == "final_ack" for each in mine),
                "session_acks": sum(each.kind == "session_ack" and each.side == side for each in self.packets),
                "piggybacked": sum(each.header is not None for each in mine),
                "numbered": len(mine),
                "acknowledged": sum(each.acknowledged_by is not None for each in mine),
                "unacknowledged": sum(each.acknowledged_by is None for each in mine),
                "stored": sum(each.stored_by is not None for each in mine),
            }
            out |= {f"{side}_{name}": value for name, value in counts.items()}
            out[f"{side}_window_full_ms"] = window_full_ms(self, side, end_ns)
        return out

    def ending(self, end_ns: int) -> str | None:
        """`ended` of silver.sessions."""
        if self.closed_ns is not None:
            return self.outcome if self.outcome == "refused" else self.ended if self.outcome == "open" else "unopened"
        return "silent" if end_ns - self.last_ns >= SILENT_AFTER_NS else None

    @property
    def last_ns(self) -> int:
        """Time of the last packet."""
        return max((each.sent_ns for each in self.packets), default=self.opened_ns)


def _guid(value: uuid.UUID | None) -> str | None:
    return None if value is None else str(value)


@dataclass
class PingEntry:
    """One ping."""

    client: tuple[str, int]
    server: str
    request: p.Ping
    requested_ns: int
    responded_ns: int | None = None
    answer: p.Ping | None = None

    def answered(self, at_ns: int, answer: p.Ping) -> None:
        self.responded_ns, self.answer = at_ns, answer

    def line(self) -> dict[str, Any]:
        return {
            "record": "ping",
            "client_address": self.client[0],
            "client_port": self.client[1],
            "server_address": self.server,
            "cookie": self.request.cookie,
            "client_queue_manager": _guid(self.request.queue_manager),
            "server_queue_manager": None if self.answer is None else _guid(self.answer.queue_manager),
            "requested_at": self.requested_ns,
            "responded_at": self.responded_ns,
            "refused": None if self.answer is None else self.answer.refused,
            "workstation": self.request.workstation,
        }


class Account:
    """All that happened, in order."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.began_ns = exchange.clock.now()
        self.closed = False  # what happens later is no part of it
        self.sessions: list[SessionEntry] = []
        self.packets: list[PacketEntry] = []
        self.pings: list[PingEntry] = []
        self.reports: dict[str, tuple[str, int, str | None]] = {}  # by their own id: what they report
        self.queued: set[tuple[str, str]] = set()  # messages that got into their queue, of another queue manager
        self._places: dict[tuple[int, str, int], PacketEntry] = {}

    # -- what the queue managers say, when it happens ----------------------------------------------------------------

    def connected(self, client: tuple[str, int], server: tuple[str, int]) -> SessionEntry:
        """Return the entry of a connection; the second end that comes finds that of the first.

        Once it is closed, the next one can have the same ports.
        """
        ends = {CLIENT: client, SERVER: server}
        for entry in reversed(self.sessions):
            if entry.ends == ends and entry.closed_ns is None:
                return entry
        self.sessions.append(SessionEntry(len(self.sessions) + 1, ends, self.exchange.clock.now()))
        return self.sessions[-1]

    def recorder_starts(self) -> None:
        """Note that what happened so far is in no capture."""
        for each in (*self.sessions, *self.packets):
            each.recorded = False

    def sent(self, session: Session, offset: int, kind: str, data: bytes, message: p.UserMessage | None) -> PacketEntry:
        entry = session.entry
        assert entry is not None
        header = message.session_header if message is not None else None
        if kind == "session_ack":
            header = p.SessionHeader.decode(data[20:])
        now = self.exchange.clock.now()
        packet = PacketEntry(len(self.packets) + 1, entry, session.side, offset, kind, now, data, message, header)
        if message is not None and message.transaction is not None:
            transaction = message.transaction
            packet.transaction = (transaction.sequence, transaction.number, transaction.previous)
        self.packets.append(packet)
        entry.packets.append(packet)
        self._places[entry.number, session.side, offset] = packet
        return packet

    def arrived(self, session: Session, offset: int, data: bytes) -> PacketEntry:
        """Find the packet that came in; what was received is what was sent."""
        assert session.entry is not None
        packet = self._places[session.entry.number, SERVER if session.side == CLIENT else CLIENT, offset]
        assert packet.data == data
        packet.received = True
        return packet

    @staticmethod
    def acknowledged(packet: PacketEntry, by: PacketEntry) -> None:
        packet.acknowledged_by = by

    @staticmethod
    def stored(packet: PacketEntry, by: PacketEntry) -> None:
        packet.stored_by = by

    def ping(self, manager: QueueManager, port: int, server: str, request: p.Ping) -> PingEntry:
        entry = PingEntry((manager.address, port), server, request, self.exchange.clock.now())
        self.pings.append(entry)
        return entry

    @property
    def ended_ns(self) -> int:
        """Time of the last packet: the capture end."""
        times = [each.sent_ns for each in self.packets]
        times += [each.closed_ns or each.opened_ns for each in self.sessions]
        times += [each.responded_ns or each.requested_ns for each in self.pings]
        return max(times, default=self.began_ns)

    def lines(self, name: str = "", about: str = "", capture: str = "") -> Iterator[dict[str, Any]]:
        """All lines of the account."""
        yield {
            "record": "exchange",
            "version": VERSION,
            "name": name,
            "about": about,
            "capture": capture,
            "began_at": self.began_ns,
            "ended_at": self.ended_ns,
            "queue_managers": [
                {"name": each.name, "address": each.address, "guid": _guid(each.guid)}
                for each in self.exchange.managers
            ],
        }
        for session in self.sessions:
            yield session.line(self.ended_ns)
        for packet in self.packets:
            yield packet.line()
        for ping in self.pings:
            yield ping.line()
        yield from message_lines(self)
        yield from sequence_lines(self)

    def write(self, path: Path, name: str, about: str, capture: str) -> None:
        lines = (json.dumps(each, ensure_ascii=False) for each in self.lines(name, about, capture))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
