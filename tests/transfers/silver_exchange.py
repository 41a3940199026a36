"""Random messages of exactly-once sequences between three machines, as rows of silver: what decoding made of packets.

And what gold.transfer_sequences is of them, computed row by row in plain Python.
"""

import datetime as dt
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import combinations

import pyarrow as pa

from schemas.bronze import CAPTURE_FILES
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from transfers import reference_sequences as reference
from udfs.keys import key

S = 1_000_000
START = dt.datetime(2026, 3, 1, 9, 0, tzinfo=dt.UTC)
START_US = round(START.timestamp()) * S
ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
GUIDS = {address: f"0000000{n}-0000-0000-0000-000000000000" for n, address in enumerate(ADDRESSES, 1)}
TABLES = (MESSAGES, SENDINGS, ORDER_ACKS, SESSIONS, CAPTURE_FILES)
SLACK = 5 * S  # of the source's clock


def moment(at):
    """A time, from microseconds after ``START``."""
    return None if at is None else START + dt.timedelta(microseconds=at)


@dataclass
class Connection:
    """A connection of two machines; ``shown`` tells whose queue managers its handshake shows.

    ``holes``: where a side may have sent more, (side, since, until, bytes); ``uncaptured``: a side that was not
    captured.
    """

    name: str
    client: str
    server: str
    at: int
    shown: tuple = (True, True)
    holes: tuple = ()
    last: int = 0
    uncaptured: str | None = None
    manager: str | None = None  # of the client, if not that of its address

    def ends(self, by):
        return (self.client, self.server) if by == "client" else (self.server, self.client)

    def queue_manager(self, address):
        shown = self.manager if self.manager is not None and address == self.client else GUIDS[address]
        return shown if self.shown[address == self.server] else None


@dataclass
class Packet:
    """A sending, or an order ack; the fields are those of the rows."""

    connection: Connection
    by: str
    at: int
    offset: int
    sequence: int
    number: int
    previous: int = 0
    source: str | None = None
    queue: str = r"srv\q"
    destination: str | None = None
    complete: bool = True
    acknowledged: bool = True
    made: int | None = None  # SentTime
    begun: bool = True  # the handshake was captured
    length: int = 100
    is_ack: bool = False
    acknowledged_queue_manager: str | None = None
    queue_manager: str | None = None

    @property
    def name(self):
        return key(self.connection.name, self.by, self.offset, self.at)

    @property
    def hop(self):
        return self.connection.ends(self.by)


@dataclass
class Exchange:
    """Packets, and until when captures with packets of each server last."""

    packets: list = field(default_factory=list)
    connections: list = field(default_factory=list)
    ends: dict = field(default_factory=dict)

    def rows(self):
        """Rows by table."""
        sendings = [each for each in self.packets if not each.is_ack]
        found = {
            MESSAGES: [_message(each) for each in sendings],
            SENDINGS: [_sending(each) for each in sendings],
            ORDER_ACKS: [_order_ack(each) for each in self.packets if each.is_ack],
            SESSIONS: [_session(each) for each in self.connections],
            CAPTURE_FILES: [_capture(server, at) for server, at in self.ends.items()],
        }
        return {table: table_of(table, rows) for table, rows in found.items()}


def table_of(table, rows):
    schema = table.schema()
    for row in rows:
        row |= {"run_id": "run", "event_date": row["event_at"].date(), "errors": []}
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)


def _message(packet):
    return {
        "sighting_key": key(packet.name), "packet_key": packet.name, "connection_id": packet.connection.name,
        "seen_in": "binary_protocol", "seen_at": moment(packet.at), "source_queue_manager": packet.source,
        "destination_queue": packet.queue, "destination_queue_manager": packet.destination,
        "transaction_sequence_id": Decimal(packet.sequence), "transaction_number": packet.number,
        "previous_transaction_number": packet.previous, "sender_address": packet.hop[0],
        "sent_at": moment(packet.made), "event_at": moment(packet.at),
    }  # fmt: skip


def _sending(packet):
    sender, receiver = packet.hop
    return {
        "packet_key": packet.name, "connection_id": packet.connection.name, "stream_offset": packet.offset,
        "server_address": packet.connection.server, "sent_by": packet.by, "sender_address": sender,
        "receiver_address": receiver, "sender_queue_manager": packet.connection.queue_manager(sender),
        "receiver_queue_manager": packet.connection.queue_manager(receiver), "sent_at": moment(packet.at),
        "length_bytes": packet.length, "complete": packet.complete,
        "session_acked_at": moment(packet.at + S) if packet.acknowledged else None, "surely_acknowledged": False,
        "handshake_seen": packet.begun, "event_at": moment(packet.at),
    }  # fmt: skip


def _order_ack(packet):
    return {
        "packet_key": packet.name, "connection_id": packet.connection.name, "sent_by": packet.by,
        "client_address": packet.connection.client, "server_address": packet.connection.server,
        "sent_at": moment(packet.at), "kind": "order_ack", "queue_manager": packet.queue_manager,
        "acknowledged_queue_manager": packet.acknowledged_queue_manager,
        "transaction_sequence_id": Decimal(packet.sequence), "transaction_number": packet.number,
        "event_at": moment(packet.at),
    }  # fmt: skip


def _session(connection):
    return {
        "connection_id": connection.name, "client_address": connection.client, "server_address": connection.server,
        "first_packet_at": moment(connection.at), "last_packet_at": moment(connection.last or connection.at),
        "initiator_queue_manager": connection.queue_manager(connection.client),
        "acceptor_queue_manager": connection.queue_manager(connection.server),
        "establish_requested_at": moment(connection.at) if connection.shown[0] else None,
        "establish_answered_at": moment(connection.at) if connection.shown[1] else None,
        "client_order_acks": 1, "server_order_acks": 1, "uncaptured_side": connection.uncaptured,
        "event_at": moment(connection.at),
        **{f"{side}_holes": _holes(connection, side) for side in ("client", "server")},
    }  # fmt: skip


def _holes(connection, side):
    return [
        {"since": moment(since), "until": moment(until), "size_bytes": size}
        for by, since, until, size in connection.holes
        if by == side
    ] or None


def _capture(server, at):
    return {
        "capture_id": key(server), "path": server, "servers": [server], "last_packet_at": moment(at),
        "first_packet_at": START, "event_at": START,
    }  # fmt: skip


def random_exchange(draw, *, days):
    """Some sequences of two sources to two queues, over two hops, with what order acks they got."""
    span = round(days * 86_400 * S)
    connections = []
    for number in range(8):
        client, server = draw.sample(ADDRESSES, 2)
        shown = draw.random() < 0.7, draw.random() < 0.7
        holes = []
        for _ in range(draw.choice([0, 0, 1, 2])):
            since = draw.randrange(span)
            until = since + draw.choice([0, 10 * S, span])
            holes.append((draw.choice(["client", "server"]), since, until, draw.choice([36, 150, 300])))
        uncaptured = draw.choice(["client", "server", *[None] * 6])
        begin = draw.randrange(span)
        connections.append(Connection(f"c{number}", client, server, begin, shown, tuple(holes), span, uncaptured))
    found = Exchange(connections=connections)
    for ordinal in range(draw.choice([3, 8])):
        sequence = draw.choice([7, 7, 8]) << 32 | draw.choice([ordinal, 2])
        source = GUIDS[draw.choice(ADDRESSES[:2])]
        queue = draw.choice([r"srv\q", "private=x\\1", None])
        destination = draw.choice([None, *GUIDS.values()])
        begin = draw.randrange(span)
        spread = draw.choice([20, 300, 86_400]) * S
        for _ in range(draw.choice([1, 3, 10])):
            number = draw.randint(1, 6)
            at = begin + _some(draw, spread)
            found.packets.append(
                Packet(
                    draw.choice(connections[:4]), draw.choice(["client", "server"]), at,
                    draw.randrange(1000), sequence, number, draw.choice([number - 1, 0, number + 1]), source, queue,
                    draw.choice([None, destination]), draw.random() < 0.9, draw.random() < 0.8,
                    draw.choice([None, at, at - S, at - spread]), draw.random() < 0.9, draw.randint(100, 110),
                )
            )  # fmt: skip
        for _ in range(draw.choice([0, 2, 6])):
            found.packets.append(
                Packet(
                    draw.choice(connections), draw.choice(["client", "server"]), begin + _some(draw, spread),
                    1000 + draw.randrange(1000), sequence, draw.randint(1, 6), is_ack=True,
                    acknowledged_queue_manager=draw.choice([None, source, source]),
                    queue_manager=draw.choice([*GUIDS.values()]),
                )
            )  # fmt: skip
    unique = {packet.name: packet for packet in found.packets}  # a packet has one place
    found.packets = [*unique.values()]
    found.ends = {address: draw.randrange(span + 60 * S) for address in ADDRESSES}
    return found


def _some(draw, spread):
    return draw.randrange(10) * spread // 10 if draw.random() < 0.6 else draw.randrange(spread)


# What the table is of this, row by row


def expected_rows(exchange, *, stall_after, wait, expire):
    """The rows of gold.transfer_sequences by key; settings and times are microseconds."""
    groups = defaultdict(list)
    for packet in exchange.packets:
        if not packet.is_ack:
            groups[packet.source, packet.queue, packet.sequence, *packet.hop].append(packet)
    acks = [packet for packet in exchange.packets if packet.is_ack]
    found = {}
    for name, sent in groups.items():
        sent.sort(key=lambda each: (each.at, each.connection.name, each.offset))
        row = _described(exchange, name, sent, acks, stall_after, wait, expire)
        found[key(*name)] = row | {"name": name}
    for one, other in combinations(found.values(), 2):
        both = [(one[end], other[end]) for end in ("sender_queue_manager", "receiver_queue_manager")]
        may_be_one_hop = all(None in pair or len({*pair}) == 1 for pair in both)
        if one["name"][:3] == other["name"][:3] and may_be_one_hop and None in {*both[0], *both[1]}:
            for row in (one, other):
                row |= {"missing": sorted({*row["missing"], "capture_begins"}), "refusals": None}
    flows = defaultdict(list)
    for row in found.values():
        source, queue, _, sender, receiver = row["name"]
        flows[source, queue, sender, receiver].append(row)
    for rows in flows.values():
        facts = [
            (row["name"][2], row["first_sent_at"], row["waiting"] > 0 and "no_response" not in row["missing"])
            for row in rows
        ]
        for row, (previous, how) in zip(rows, reference.began(facts, wait), strict=True):
            row |= {"previous_sequence_id": previous, "began": how}
    return found


def _described(exchange, name, sent, acks, stall_after, wait, expire):
    source, _, sequence, sender, receiver = name
    ends = [_queue_manager(exchange, sent[0], address, expire) for address in (sender, receiver)]
    destination = next((each.destination for each in sent if each.destination is not None), None)
    named = []
    for ack in acks:
        shown = [ack.connection.queue_manager(address) for address in ack.hop]
        same_hop = ack.hop == (receiver, sender) or (None not in shown and shown == ends[::-1])
        if ack.sequence != sequence or ack.acknowledged_queue_manager not in {None, source}:
            continue
        if destination is not None:
            taken = ack.queue_manager == destination
        else:
            taken = same_hop or ends[1] is None or ack.queue_manager == ends[1]
        if taken:
            named.append(reference.Ack(ack.at, ack.number, same_hop))
    capture_end = max(exchange.ends.get(each.connection.server, each.at) for each in sent)
    sendings = [
        reference.Sending(
            each.at, each.number, each.previous, place, each.length, each.complete, each.acknowledged,
            begun_unseen=not each.begun and (each.made is None or each.made - SLACK < each.connection.at),
            made=each.at if each.made is None else each.made - SLACK,
        )
        for place, each in enumerate(sent)
    ]  # fmt: skip

    direct = destination is None or destination == ends[1]

    def lost(*, unseen):
        ways = {True: (receiver, sender), False: (sender, receiver)}
        return lambda size, since, until, back: any(
            bytes_of >= size and ends >= since and begins <= until
            for each in exchange.connections
            for by, begins, ends, bytes_of in each.holes
            if (each.ends(by) == ways[back] or (back and not direct)) and (each.uncaptured == by or not unseen)
        )

    losses = lost(unseen=False), lost(unseen=True)
    row = reference.describe(sendings, named, losses, capture_end=capture_end, stall_after=stall_after, wait=wait)
    return row | {"sender_queue_manager": ends[0], "receiver_queue_manager": ends[1]}


def _queue_manager(exchange, packet, address, expire):
    own = packet.connection.queue_manager(address)
    if own is not None:
        return own
    shown = {
        each.queue_manager(address)
        for each in exchange.connections
        if address in (each.client, each.server) and abs(each.at - packet.at) <= expire
    } - {None}
    return shown.pop() if len(shown) == 1 else None
