"""Conversations of the binary protocol as rows of bronze: packets made field by field, one after the other."""

import datetime as dt
import struct
import uuid
from dataclasses import dataclass, field

import pyarrow as pa

from messages.building import Packet
from schemas.bronze import CAPTURE_FILES, CONNECTIONS
from schemas.sessions import SESSION_PACKETS
from udfs.keys import key

START = dt.datetime(2026, 3, 1, 9, 0, tzinfo=dt.UTC)
INITIATOR, ACCEPTOR = uuid.UUID(int=0x1111), uuid.UUID(int=0x2222)
CLIENT, SERVER = "10.0.0.1", "10.0.0.2"
CAPTURE = "c" * 32
FIRST_SEQUENCE = {"client": 1, "server": 500_001}


def base(flags, size, reach=0xFFFFFFFF):
    return struct.pack("<BBH4sII", 0x10, 0, flags, b"LIOR", size, reach)


def establish(*, client=INITIATOR, server=ACCEPTOR, uptime=1000, system=0x310, refuse=0, padding=b"\x5a" * 512):
    head = base(11, 572) + struct.pack("<HH", 0, 2 | refuse << 4)
    return head + client.bytes_le + server.bytes_le + struct.pack("<IHH", uptime, system, 0) + padding


def parameters(*, recoverable_ms=1000, ack_ms=20_000, window=64, refuse=0):
    head = base(11, 32) + struct.pack("<HH", 0, 3 | refuse << 4)
    return head + struct.pack("<IIHH", recoverable_ms, ack_ms, 0, window)


def session_header(ack=0, r=0, flags=0, user=0, recoverable=0, window=64):
    return struct.pack("<HHIHHHH", ack, r, flags, user, recoverable, window, 0)


def session_ack(**said):
    return base(27, 36) + struct.pack("<HH", 0, 1) + session_header(**said)


def message(number=1, *, recoverable=False, sh=None, **said):
    """A user message, sent at the start; ``sh`` are the fields of a SessionHeader behind it."""
    said.setdefault("sent", round(START.timestamp()))
    packet = Packet(number=number, user=0x20 if recoverable or "transaction" in said else 0, **said)
    packet.flags |= 16 if sh is not None else 0
    return packet.bytes() + (b"" if sh is None else session_header(**sh))


def acknowledgement(sequence, number, *, kind=0xFF, source=ACCEPTOR, manager=INITIATOR, of=None, previous=None):
    """An order ack; with ``kind`` and ``of`` (GUID, ordinal) a final ack."""
    body = struct.pack("<QII", sequence, number, number - 1 if previous is None else previous)
    body += bytes(20) if of is None else of[0].bytes_le + struct.pack("<I", of[1])
    return Packet(
        number=1, source=source, manager=manager.bytes_le, label="QM Ordering Ack", kind=kind, body=body, body_type=0,
        queues=((3, {"number": 4}), (0, {}), (0, {})), flags=0, user=0 if of is None else 0x20,
    ).bytes()  # fmt: skip


SEQUENCE = 7 << 32 | 1


def transactional(number):
    """A message of the sequence, behind the one with the number before."""
    return message(number, source=INITIATOR, transaction=(0, SEQUENCE, number, number - 1), flags=0)


def refused_for_ever():
    """A session in which number 3 of the sequence is sent again and again, and the receiver stays at number 1."""
    talk = Conversation().handshake()
    talk.say("client", "user_message", transactional(1), 1)
    talk.say("server", "order_ack", acknowledgement(SEQUENCE, 1), 2)
    for place, at in enumerate((10, 40, 70, 100)):
        talk.say("client", "user_message", transactional(3), at)
        talk.say("server", "session_ack", session_ack(ack=place + 2), at + 1)
        talk.say("server", "order_ack", acknowledgement(SEQUENCE, 1), at + 1)
    return talk


def header_of(raw, kind):
    if kind != "session_ack" and (raw[3] & 1 << 3 or raw[2] & 8 or not raw[2] & 16):
        return None
    names = (
        "ack_sequence_number", "recoverable_ack_number", "recoverable_ack_flags", "user_sequence_number",
        "recoverable_sequence_number", "window_size",
    )  # fmt: skip
    return dict(zip(names, struct.unpack("<HHIHHH", raw[-16:-2]), strict=True))


@dataclass
class Conversation:
    """One connection. ``say`` adds a packet of a side at a time, seconds from ``START``; ``skip`` loses bytes."""

    name: str = "connection"
    port: int = 40_000
    rows: list = field(default_factory=list)
    offsets: dict = field(default_factory=lambda: {"client": 0, "server": 0})
    closed: tuple | None = None  # seconds, fin or rst
    syn_seen: bool = True
    missing: int = 0
    last: float = 0.0
    client: str = CLIENT
    server: str = SERVER

    def skip(self, side, size):
        self.offsets[side] += size
        self.missing += size

    def say(self, side, kind, raw, at, *, seen=None, capture=CAPTURE):
        moment = START + dt.timedelta(seconds=at)
        offset = self.offsets[side]
        ends = (self.client, self.port), (self.server, 1801)
        sender, receiver = ends if side == "client" else ends[::-1]
        micros = round(moment.timestamp() * 1e6)
        seen = len(raw) if seen is None else seen
        assert seen <= len(raw)
        whole = seen == len(raw)
        self.offsets[side] += len(raw)
        self.missing += len(raw) - seen
        self.last = max(self.last, at)
        row = {
            "packet_key": key(*sender, *receiver, FIRST_SEQUENCE[side] + offset, micros),
            "connection_id": self.name,
            "client_address": self.client, "client_port": self.port, "server_address": self.server, "server_port": 1801,
            "sent_by": side,
            "tcp_sequence": FIRST_SEQUENCE[side] + offset, "stream_offset": offset, "capture_id": capture,
            "packet_number": len(self.rows) + 1, "byte_offset": 0, "sent_at": moment,
            "sent_done_at": moment if whole else None, "kind": kind, "version": 16,
            "flags": int.from_bytes(raw[2:4], "little"), "packet_size": int.from_bytes(raw[8:12], "little"),
            "length_bytes": len(raw), "seen_bytes": seen, "complete": whole,
            "message_class": None, "session_header": header_of(raw, kind) if whole else None,
            "packet": raw[:seen], "observations": 1, "event_date": moment.date(), "run_id": "run", "ingested_at": None,
        }  # fmt: skip
        self.rows.append(row)
        return row

    def handshake(self, **said):
        self.say("client", "establish_connection", establish(**said), 0)
        self.say("server", "establish_connection", establish(**said), 0.01)
        self.say("client", "connection_parameters", parameters(), 0.02)
        self.say("server", "connection_parameters", parameters(), 0.03)
        return self

    def connection(self):
        bytes_of = {
            side: sum(row["seen_bytes"] for row in self.rows if row["sent_by"] == side) for side in ("client", "server")
        }
        closed_at, closed_by = (None, None) if self.closed is None else self.closed
        return {
            "connection_id": self.name, "client_address": self.client, "client_port": self.port,
            "server_address": self.server, "server_port": 1801, "kind": "binary_protocol", "syn_seen": self.syn_seen,
            "first_packet_at": START, "last_packet_at": START + dt.timedelta(seconds=max(self.last, closed_at or 0)),
            "closed_at": None if closed_at is None else START + dt.timedelta(seconds=closed_at), "closed_by": closed_by,
            "client_bytes": bytes_of["client"], "server_bytes": bytes_of["server"], "missing_bytes": self.missing,
            "event_date": START.date(), "run_id": "run", "calls": 0,
        }  # fmt: skip


def capture_file(ends_at, name=CAPTURE, begins_at=0):
    return {
        "capture_id": name, "path": name, "servers": [SERVER], "last_packet_at": START + dt.timedelta(seconds=ends_at),
        "first_packet_at": START + dt.timedelta(seconds=begins_at), "event_date": START.date(), "run_id": "run",
    }  # fmt: skip


def table_of(table, rows):
    schema = table.schema()
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)


def bronze(conversations, ends_at=1000, captures=()):
    """Rows of the three tables that sessions are made of; ``captures``: names, beginnings and ends, in seconds."""
    files = [capture_file(ends, name, begins) for name, begins, ends in captures] or [capture_file(ends_at)]
    return {
        SESSION_PACKETS: table_of(SESSION_PACKETS, [row for each in conversations for row in each.rows]),
        CONNECTIONS: table_of(CONNECTIONS, [each.connection() for each in conversations]),
        CAPTURE_FILES: table_of(CAPTURE_FILES, files),
    }
