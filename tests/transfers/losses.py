"""Recordings of which packets are lost, as captures lose them, and what of that leaves no trace (docs: limits.md)."""

import struct
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pcapgen import frames
from pcapgen.containers import NANOSECONDS, pcap
from udfs.tcp.connections import sequence_difference

WAYS = ("few", "few", "burst", "begins", "ends", "both", "one side", "one way", "snap")
SHARES = (0.01, 0.02, 0.05, 0.1)
_TCP = 6


class Packet(NamedTuple):
    """A TCP packet over IPv4 in Ethernet, as far as loss is about it."""

    source: tuple[bytes, int]
    target: tuple[bytes, int]
    sequence: int
    acknowledgement: int
    flags: int
    size: int  # of its payload
    stored: int  # of these bytes

    @property
    def connection(self):
        return tuple(sorted((self.source, self.target)))


def packet_of(record):
    """What a record is; None where it is not TCP."""
    head = record.frame[14:]
    if record.frame[12:14] != b"\x08\x00" or head[9] != _TCP:
        return None
    length = int.from_bytes(head[2:4], "big")
    sport, dport, sequence, ack, offset, flags = struct.unpack_from(">HHIIBB", head, 20)
    start = 20 + (offset >> 4) * 4
    stored = max(min(len(head), length) - start, 0)
    return Packet((head[12:16], sport), (head[16:20], dport), sequence, ack, flags, length - start, stored)


@dataclass
class Lossy:
    """A recording that lost packets: what is left, and what the whole capture is that it is compared with.

    ``untraced``: connections of which nothing tells that bytes are missing; ``unended``: those that lost an RST or FIN.
    """

    way: str
    kept: list
    whole: list
    untraced: set = field(default_factory=set)
    unended: set = field(default_factory=set)
    lost: dict = field(default_factory=lambda: defaultdict(list))  # by connection: times of lost packets

    @property
    def capture(self):
        return pcap(self.kept, magic=NANOSECONDS).data

    @property
    def whole_capture(self):
        return pcap(self.whole, magic=NANOSECONDS).data


def lose(chance, records, way=None, share=None):
    """Lose packets in a random way; the last packet of all stays: with it the capture ends."""
    way = way or chance.choice(WAYS)
    share = share or chance.choice(SHARES)
    place = chance.randrange(1, len(records) - 1)
    whole = records[: place + 1] if way == "ends" or (way == "both" and chance.random() < 0.5) else records
    if way == "ends":
        return described(way, whole, [True] * len(whole))
    kept = [True] * len(whole)
    if way in ("few", "both"):
        kept = [chance.random() >= share for _ in whole]
    elif way == "burst":
        length = chance.randint(1, 40)
        kept = [not place <= at < place + length for at in range(len(whole))]
    elif way == "begins":
        kept = [at >= place for at in range(len(whole))]
    elif way in ("one side", "one way"):
        found = [packet_of(each) for each in whole]
        ends = sorted({each.source[0] for each in found if each is not None})
        if way == "one side":  # of one machine
            gone = chance.choice(ends)
            kept = [each is None or each.source[0] != gone for each in found]
        else:  # of one direction of some connections
            connections = sorted({each.connection for each in found if each is not None})
            dropped = {(each, chance.choice(each)) for each in connections if chance.random() < 0.5}
            kept = [each is None or (each.connection, each.source) not in dropped for each in found]
    kept[-1] = True
    snap = chance.randint(54, 400) if way == "snap" else None
    return described(way, whole, kept, snap)


def described(way, whole, kept, snap=None):
    """What is left of a recording, by whether each packet is, and what of the loss leaves no trace."""
    found = Lossy(way, [each for each, there in zip(whole, kept, strict=True) if there], whole)
    if snap is not None:
        found.kept = [
            replace(each, frame=each.frame[:snap], wire_size=each.original) for each in found.kept
        ]  # fmt: skip
    packets = [packet_of(each) for each in whole]
    by_connection = defaultdict(lambda: ([], []))
    for record, packet, there in zip(whole, packets, kept, strict=True):
        if packet is None:
            continue
        by_connection[packet.connection][0 if there else 1].append(packet)
        if not there:
            found.lost[packet.connection].append(record.time_ns)
    for name, (there, gone) in by_connection.items():
        if gone and (not there or any(_leaves_no_trace(name, side, there, gone) for side in (0, 1))):
            found.untraced.add(name)
        if any(each.flags & (frames.RST | frames.FIN) for each in gone):
            found.unended.add(name)
    return found


def _leaves_no_trace(name, side, there, gone):
    """Whether a side lost bytes behind everything that packets which are left show of it."""
    own, lost = ([each for each in some if each.source == name[side]] for some in (there, gone))
    sent = [each for each in lost if each.size]
    if not sent:
        return False
    base = sent[0].sequence
    acks = [each for each in there if each.source != name[side] and each.flags & frames.ACK]
    shown = [sequence_difference(each.sequence + each.size - base) for each in own if not each.flags & frames.SYN]
    shown += [sequence_difference(each.acknowledgement - base) for each in acks if not each.flags & frames.RST]
    ends = max(sequence_difference(each.sequence + each.size - base) for each in sent)
    return ends > max(shown, default=-1)
