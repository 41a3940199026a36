"""Captures of exchanges of several connections, as damaged as wished: what a tap sees, and exactly which bytes.

An exchange is a list of `Talk`, one per connection: who sent which bytes when. It comes from a scripted exchange
(`scripted`) or from a recording (`recorded`). `tap` makes the packets that one tap captures of it, by a `Damage`: other
segments, losses, copies, another order, a late start, an early stop, another clock. Two taps are two calls. `sighting`
says what taps have of a packet of the exchange: whole, cut or missing.
"""

from __future__ import annotations

import gzip
import heapq
import itertools
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from pcapgen import frames
from pcapgen.containers import Record
from pcapgen.conversation import CLIENT, SERVER, Flow, Segment, packet

SECOND = 1_000_000_000
_ENDS = frames.SYN | frames.FIN | frames.RST
STEP_NS = 10_000  # between two segments of one send


@dataclass
class Talk:
    """One connection: its sends in order of time, and how it began and ended."""

    flow: Flow
    sends: list[tuple[int, int, bytes]]  # nanoseconds, side, bytes
    opened_ns: int | None  # None: before the first tap could see it
    closed_ns: int | None = None
    closed_by: int = CLIENT
    reset: bool = False

    def stream(self, side: int) -> bytes:
        return b"".join(data for _, sender, data in self.sends if sender == side)


@dataclass(frozen=True)
class Damage:
    """What a tap does to an exchange. Numbers of segments are taken modulo the segments there are."""

    cuts: tuple[int, ...] = (1460,)  # lengths of segments, in turn
    lost: tuple[int, ...] = ()  # segments that the tap misses
    copies: tuple[
        tuple[int, int, int], ...
    ] = ()  # data segments sent again, so many places later, from bytes before on
    moves: tuple[tuple[int, int], ...] = ()  # data segments captured so many places later or earlier
    begin: float = 0.0  # share of the exchange's time at which the tap starts, and stops
    end: float = 1.0
    clock_ns: int = 0  # how far the tap's clock is ahead, and by how much more each second
    drift_ppm: int = 0
    one_side: int | None = None  # captures what this side sends, and nothing else


@dataclass(frozen=True)
class Piece:
    """Bytes of a side's stream in one captured packet."""

    time_ns: int
    packet_number: int  # from 1, as in a capture file
    begin: int
    end: int


@dataclass
class Tap:
    """Packets of one tap in order of time, and what they have of each (connection, side), by offset in its stream."""

    records: list[Record]
    pieces: dict[tuple[int, int], list[Piece]] = field(default_factory=dict)

    def spans(self, talk: int, side: int) -> list[tuple[int, int]]:
        """Spans of a side's stream that this tap has, each as long as can be."""
        return _joined([(piece.begin, piece.end) for piece in self.pieces.get((talk, side), [])])

    def captured(self, talk: int, side: int, begin: int, end: int) -> int:
        """Bytes of a span of a side's stream that this tap has."""
        return covered([self.spans(talk, side)], begin, end)

    def first(self, talk: int, side: int, offset: int) -> Piece | None:
        """Return the earliest captured packet with that byte."""
        return next((each for each in self.pieces.get((talk, side), []) if each.begin <= offset < each.end), None)


@dataclass(frozen=True)
class Sighting:
    """What taps have of one packet of the protocol above TCP."""

    seen_bytes: int
    complete: bool
    prefix_bytes: int  # up to its first hole
    observations: int  # taps with any byte of it
    whole_in: tuple[int, ...]  # taps that have all of it


def sighting(taps: Sequence[Tap], talk: int, side: int, begin: int, length: int) -> Sighting:
    """Return what taps have of a packet; whether a reader finds it behind a hole is another matter."""
    end = begin + length
    spans = [each.spans(talk, side) for each in taps]
    sizes = [covered([each], begin, end) for each in spans]
    seen = covered(spans, begin, end)
    prefix = next((last for first, last in _joined([*itertools.chain(*spans)]) if first <= begin < last), begin)
    whole = tuple(number for number, size in enumerate(sizes) if size == length)
    return Sighting(seen, seen == length, min(prefix, end) - begin, sum(map(bool, sizes)), whole)


def covered(spans: Sequence[Sequence[tuple[int, int]]], begin: int, end: int) -> int:
    """Bytes between begin and end that any of several taps has."""
    total, at = 0, begin
    for span in sorted(itertools.chain(*spans)):
        first, last = max(span[0], at), min(span[1], end)
        if last > first:
            total, at = total + last - first, last
    return total


def damages(*, lossy: bool = True, most: int = 10) -> st.SearchStrategy[Damage]:
    """Draw a damage; without losses all bytes are captured, at least once."""
    places, few = st.integers(0, 100_000), {"max_size": most}
    cuts = st.lists(st.integers(1, 1460), min_size=1, max_size=8).map(
        lambda sizes: tuple([*sizes, 400] if sum(sizes) < 40 * len(sizes) else sizes)
    )

    copies = st.tuples(places, st.integers(1, 8), st.sampled_from([0, 0, 1, 20, 700]))
    moves = st.tuples(places, st.integers(-8, 8))

    return st.builds(
        Damage,
        cuts=cuts,
        lost=st.lists(places, **few).map(tuple) if lossy else st.just(()),
        copies=st.lists(copies, **few).map(tuple),
        moves=st.lists(moves, **few).map(tuple),
        begin=st.sampled_from([0.0, 0.0, 0.1, 0.5]) if lossy else st.just(0.0),
        end=st.sampled_from([1.0, 1.0, 0.9, 0.6]) if lossy else st.just(1.0),
        clock_ns=st.integers(-2 * SECOND, 2 * SECOND),
        drift_ppm=st.integers(-100, 100),
        one_side=st.sampled_from([None, None, None, CLIENT, SERVER]) if lossy else st.none(),
    )


def segments_of(talk: Talk, cuts: Sequence[int]) -> list[Segment]:
    """Return the segments of a connection: handshake, data with acknowledgements, end."""
    out: list[Segment] = []
    if talk.opened_ns is not None:
        begin = talk.opened_ns
        out += [
            Segment(begin, CLIENT, -1, None, frames.SYN),
            Segment(begin + STEP_NS, SERVER, -1, 0, frames.SYN | frames.ACK),
            Segment(begin + 2 * STEP_NS, CLIENT, 0, 0, frames.ACK),
        ]
    sent, lengths, now = [0, 0], itertools.cycle(cuts), 0
    for at_ns, side, data in talk.sends:
        now, left = max(at_ns, now), data
        while left:
            piece, left = left[: (size := next(lengths))], left[size:]
            flags = frames.ACK | (0 if left else frames.PSH)
            out.append(Segment(now, side, sent[side], sent[1 - side], flags, piece))
            sent[side] += len(piece)
            now += STEP_NS
        out.append(Segment(now, 1 - side, sent[1 - side], sent[side], frames.ACK))
        now += STEP_NS
    if talk.closed_ns is not None:
        now, one, other = max(talk.closed_ns, now), talk.closed_by, 1 - talk.closed_by
        if talk.reset:
            return [*out, Segment(now, one, sent[one], sent[other], frames.RST | frames.ACK)]
        out += [
            Segment(now, one, sent[one], sent[other], frames.FIN | frames.ACK),
            Segment(now + STEP_NS, other, sent[other], sent[one] + 1, frames.FIN | frames.ACK),
            Segment(now + 2 * STEP_NS, one, sent[one] + 1, sent[other] + 1, frames.ACK),
        ]
    return out


def tap(talks: Sequence[Talk], damage: Damage | None = None) -> Tap:
    """Return what one tap captures of an exchange."""
    damage = damage or Damage()
    streams = [[(part, number) for part in segments_of(talk, damage.cuts)] for number, talk in enumerate(talks)]
    parts = list(heapq.merge(*streams, key=lambda each: each[0].time_ns))
    if not parts:
        return Tap([])
    parts = _again(parts, talks, damage)
    first, last = parts[0][0].time_ns, max(part.time_ns for part, _ in parts)
    begin, end = (first + round(share * (last - first)) for share in (damage.begin, damage.end))
    lost = {each % len(parts) for each in damage.lost}
    result = Tap([])
    for place, (part, number) in enumerate(parts):
        if place in lost or not begin <= part.time_ns <= end or damage.one_side == 1 - part.side:
            continue
        time_ns = part.time_ns + damage.clock_ns + (part.time_ns - first) * damage.drift_ppm // 1_000_000
        result.records.append(Record(time_ns, frames.ethernet(packet(talks[number].flow, part))))
        if part.payload:
            piece = Piece(time_ns, len(result.records), part.offset, part.offset + len(part.payload))
            result.pieces.setdefault((number, part.side), []).append(piece)
    return result


def _again(parts: list[tuple[Segment, int]], talks: Sequence[Talk], damage: Damage) -> list[tuple[Segment, int]]:
    """Add copies of data and change its order, between handshake and end of its connection; times stay in order."""

    def put(part: tuple[Segment, int], at: int) -> None:
        fixed = [place for place, (each, number) in enumerate(parts) if number == part[1] and each.flags & _ENDS]
        begin = max((place + 1 for place in fixed if parts[place][0].flags & frames.SYN), default=0)
        end = min((place for place in fixed if not parts[place][0].flags & frames.SYN), default=len(parts))
        parts.insert(min(max(at, begin), end), part)

    parts = list(parts)
    for place, later, back in damage.copies:
        data = [at for at, (part, _) in enumerate(parts) if part.payload]
        if data:
            at = data[place % len(data)]
            part, number = parts[at]
            begin = max(part.offset - back, 0)
            payload = talks[number].stream(part.side)[begin : part.offset + len(part.payload)][:1460]
            put((replace(part, offset=begin, payload=payload), number), at + later)
    for place, distance in damage.moves:
        data = [at for at, (part, _) in enumerate(parts) if part.payload]
        if data:
            at = data[place % len(data)]
            put(parts.pop(at), at + distance)
    times = sorted(part.time_ns for part, _ in parts)
    return [(replace(part, time_ns=at_ns), number) for at_ns, (part, number) in zip(times, parts, strict=True)]


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join spans that touch or overlap."""
    out: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out


def over_ipv6(talks: Sequence[Talk]) -> list[Talk]:
    """The same exchange between addresses of IPv6."""
    return [
        replace(talk, flow=replace(talk.flow, client=_ipv6(talk.flow.client), server=_ipv6(talk.flow.server)))
        for talk in talks
    ]


def _ipv6(address: str) -> str:
    return f"fd00::{':'.join(f'{int(each):x}' for each in address.split('.'))}"


# -- exchanges ---------------------------------------------------------------------------------------------------------


def scripted(account: Any) -> list[Talk]:
    """Return the connections of an exchange that was played without a recorder (`peer.transfers.account`)."""
    talks = []
    for session in account.sessions:
        client, server = session.ends["client"], session.ends["server"]
        isn = (1000 + 77_777 * session.number, 0xFFFF_FF00 + 13 * session.number & 0xFFFF_FFFF)
        sends = [(each.sent_ns, SERVER if each.side == "server" else CLIENT, each.data) for each in session.packets]
        talks.append(
            Talk(
                Flow(client[0], client[1], server[0], server[1], isn), sends, session.opened_ns, session.closed_ns,
                SERVER if session.closed_by == "server" else CLIENT, session.ended == "reset",
            )
        )  # fmt: skip
    return talks


def read_frames(path: Path) -> list[Record]:
    """Read a pcap, a pcapng with one interface, or either in gzip."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    (magic,) = struct.unpack_from("<I", data)
    out, at = [], 24
    if magic != 0x0A0D0D0A:
        unit = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}[magic]
        while at < len(data):
            seconds, rest, length, size = struct.unpack_from("<IIII", data, at)
            out.append(Record(seconds * SECOND + rest * unit, data[at + 16 : at + 16 + length], size))
            at += 16 + length
        return out
    at, unit = 0, 1000
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        if kind == 1 and struct.pack("<HHB", 9, 1, 9) in data[at : at + length]:  # if_tsresol: nanoseconds
            unit = 1
        if kind == 6:
            high, low, captured, size = struct.unpack_from("<IIII", data, at + 12)
            out.append(Record((high << 32 | low) * unit, data[at + 28 : at + 28 + captured], size))
        at += length
    return out


def recorded(path: Path, port: int = 1801) -> list[Talk]:
    """Return the connections to a port in a recording that is complete and in order: each TCP segment is a send."""
    talks: dict[tuple[str, int, str, int], Talk] = {}
    firsts: dict[tuple[int, int], int] = {}
    done: dict[tuple[int, int], int] = {}
    for record in read_frames(path):
        head = record.frame[14:]
        if head[9] != 6:
            continue
        source, target = socket.inet_ntoa(head[12:16]), socket.inet_ntoa(head[16:20])
        segment = head[20 : int.from_bytes(head[2:4], "big")]
        sport, dport, sequence, ack, offset, flags = struct.unpack_from(">HHIIBB", segment)
        if port not in {sport, dport}:
            continue
        side = CLIENT if dport == port else SERVER
        ends = (source, sport, target, dport) if side == CLIENT else (target, dport, source, sport)
        payload = segment[(offset >> 4) * 4 :]
        if ends not in talks or (flags == frames.SYN and side == CLIENT):
            opened = record.time_ns if flags & frames.SYN else None
            talks[ends] = Talk(Flow(*ends), [], opened)
            firsts.pop((id(talks[ends]), 0), None)
        talk = talks[ends]
        key = (id(talk), side)
        firsts.setdefault(key, sequence + bool(flags & frames.SYN) & 0xFFFFFFFF)
        if flags & frames.ACK:
            firsts.setdefault((id(talk), 1 - side), ack)
        begin = sequence - firsts[key] & 0xFFFFFFFF
        new = payload[max(done.get(key, 0) - begin, 0) :] if begin < 1 << 31 else b""
        if new:
            assert begin <= done.get(key, 0), f"{path}: a hole"
            talk.sends.append((record.time_ns, side, new))
            done[key] = done.get(key, 0) + len(new)
        if flags & (frames.FIN | frames.RST) and talk.closed_ns is None:
            talk.closed_ns, talk.closed_by, talk.reset = record.time_ns, side, bool(flags & frames.RST)
    for talk in talks.values():
        isn = tuple(firsts.get((id(talk), side), 1) - 1 & 0xFFFFFFFF for side in (CLIENT, SERVER))
        talk.flow = replace(talk.flow, isn=isn)  # type: ignore[arg-type]
    return list(talks.values())
