"""TCP conversations for tests: a script of sends becomes segments, segments become packet records.

A script says who sends which bytes when. ``segments`` adds sequence and acknowledgement numbers. The transformations
(``drop_segments``, ``retransmit``, ``reorder``, ...) take and return lists of segments, so that they can be combined.
``records`` makes frames of segments; the k-th record is packet k + 1 of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pcapgen import frames
from pcapgen.containers import Record

CLIENT, SERVER = 0, 1
START_NS = 1_700_000_000_123_456_000  # nanoseconds since 1970; whole microseconds


@dataclass(frozen=True)
class Flow:
    """The four-tuple of a connection, and the initial sequence numbers of both sides."""

    client: str = "10.0.0.9"
    client_port: int = 49200
    server: str = "10.0.0.1"
    server_port: int = 2103
    isn: tuple[int, int] = (1000, 900_000)

    @property
    def four_tuple(self) -> tuple[str, int, str, int]:
        return self.client, self.client_port, self.server, self.server_port


@dataclass(frozen=True)
class Segment:
    """One captured TCP segment; ``offset`` is the position of its first byte in the side's stream (-1 for the SYN)."""

    time_ns: int
    side: int
    offset: int
    ack_offset: int | None
    flags: int
    payload: bytes = b""
    wire_payload: int | None = None  # bytes on the wire, if the capture truncated the packet

    def shifted(self, nanoseconds: int) -> Segment:
        return replace(self, time_ns=self.time_ns + nanoseconds)


@dataclass
class Script:
    """The sends of a conversation in order: (side, bytes, nanoseconds after the previous send)."""

    sends: list[tuple[int, bytes, int]] = field(default_factory=list)
    sent: list[int] = field(default_factory=lambda: [0, 0])

    def send(self, side: int, data: bytes, pause_ns: int = 1_000_000) -> tuple[int, int]:
        """Append a send; return the stream offsets of its begin and end."""
        begin = self.sent[side]
        self.sent[side] += len(data)
        self.sends.append((side, data, pause_ns))
        return begin, self.sent[side]

    def stream(self, side: int) -> bytes:
        return b"".join(data for sender, data, _ in self.sends if sender == side)


def handshake(start_ns: int = START_NS) -> list[Segment]:
    """Return SYN, SYN+ACK and ACK, 200 and 100 microseconds apart."""
    return [
        Segment(start_ns, CLIENT, -1, None, frames.SYN),
        Segment(start_ns + 200_000, SERVER, -1, 0, frames.SYN | frames.ACK),
        Segment(start_ns + 300_000, CLIENT, 0, 0, frames.ACK),
    ]


def segments(
    script: Script,
    *,
    mss: int = 1460,
    cuts: Sequence[int] | None = None,
    opened: bool = True,
    closed: bool = True,
    acks: bool = False,
    start_ns: int = START_NS,
) -> list[Segment]:
    """Return the segments of a script. Consecutive sends of one side are joined and split at ``mss`` bytes.

    ``cuts``: segment lengths to use instead, cyclically. Segments of one side are 10 microseconds apart.
    """
    out = handshake(start_ns) if opened else []
    now = start_ns + 300_000
    sent = [0, 0]
    lengths = list(cuts) if cuts else [mss]
    turn = 0
    at = 0
    while at < len(script.sends):
        side = script.sends[at][0]
        now += script.sends[at][2]
        stretch = b""
        while at < len(script.sends) and script.sends[at][0] == side:
            stretch += script.sends[at][1]
            at += 1
        while stretch:
            size = lengths[turn % len(lengths)]
            turn += 1
            piece, stretch = stretch[:size], stretch[size:]
            flags = frames.ACK | (0 if stretch else frames.PSH)
            out.append(Segment(now, side, sent[side], sent[1 - side], flags, piece))
            sent[side] += len(piece)
            now += 10_000
            if acks:
                out.append(Segment(now, 1 - side, sent[1 - side], sent[side], frames.ACK))
                now += 10_000
    if closed:
        now += 1_000_000
        out.append(Segment(now, CLIENT, sent[CLIENT], sent[SERVER], frames.FIN | frames.ACK))
        out.append(Segment(now + 100_000, SERVER, sent[SERVER], sent[CLIENT] + 1, frames.FIN | frames.ACK))
        out.append(Segment(now + 200_000, CLIENT, sent[CLIENT] + 1, sent[SERVER] + 1, frames.ACK))
    return out


# -- transformations --------------------------------------------------------------------------------------------------


def data_indexes(parts: Sequence[Segment]) -> list[int]:
    return [index for index, part in enumerate(parts) if part.payload]


def drop_segments(parts: Sequence[Segment], *indexes: int) -> list[Segment]:
    return [part for index, part in enumerate(parts) if index not in indexes]


def retransmit(parts: Sequence[Segment], index: int, *, at: int, payload: bytes | None = None) -> list[Segment]:
    """Repeat segment ``index`` as the record at position ``at``, 1 microsecond after the record before it."""
    copy = replace(parts[index], time_ns=parts[at - 1].time_ns + 1_000)
    if payload is not None:
        copy = replace(copy, payload=payload)
    return [*parts[:at], copy, *parts[at:]]


def reorder(parts: Sequence[Segment], *order: int) -> list[Segment]:
    """Return the segments in another order; the capture times keep their positions."""
    return [replace(parts[old], time_ns=parts[new].time_ns) for new, old in enumerate(order)]


def move_segment(parts: Sequence[Segment], index: int, to: int) -> list[Segment]:
    """Move segment ``index`` to position ``to``, as if captured later or earlier."""
    order = list(range(len(parts)))
    order.insert(to, order.pop(index))
    return reorder(parts, *order)


def one_side(parts: Sequence[Segment], side: int) -> list[Segment]:
    """Return the segments of one direction only."""
    return [part for part in parts if part.side == side]


def keep_alive(parts: Sequence[Segment], index: int) -> list[Segment]:
    """Add a keep-alive probe after data segment ``index``: one arbitrary byte at the last sequence number."""
    last = parts[index]
    probe = Segment(
        last.time_ns + 1_000, last.side, last.offset + len(last.payload) - 1, last.ack_offset, frames.ACK, b"\0"
    )
    answer = Segment(last.time_ns + 2_000, 1 - last.side, last.ack_offset or 0, probe.offset + 1, frames.ACK)
    return [*parts[: index + 1], probe, answer, *parts[index + 1 :]]


def reset(parts: Sequence[Segment], side: int) -> list[Segment]:
    """Add an RST at the end."""
    ends = [0, 0]
    for part in parts:
        ends[part.side] = max(ends[part.side], part.offset + len(part.payload))
    return [*parts, Segment(parts[-1].time_ns + 50_000, side, ends[side], None, frames.RST)]


# -- frames --------------------------------------------------------------------------------------------------------

Linker = Callable[[bytes], bytes]


def packet(flow: Flow, part: Segment, wrap: Callable[[str, str, bytes], bytes] = frames.ip) -> bytes:
    """Return the IP packet of a segment."""
    seq = (flow.isn[part.side] + 1 + part.offset) & 0xFFFFFFFF
    ack = 0 if part.ack_offset is None else (flow.isn[1 - part.side] + 1 + part.ack_offset) & 0xFFFFFFFF
    ends = (flow.client, flow.server, flow.client_port, flow.server_port)
    if part.side == SERVER:
        ends = (flow.server, flow.client, flow.server_port, flow.client_port)
    options = b"\x02\x04\x05\xb4" if part.flags & frames.SYN else b""
    return wrap(ends[0], ends[1], frames.tcp(*ends, seq, ack, part.flags, part.payload, options))


def records(flow: Flow, parts: Sequence[Segment], link: Linker = frames.ethernet) -> list[Record]:
    """Return one packet record per segment."""
    return [Record(part.time_ns, link(packet(flow, part))) for part in parts]


def truncate_frames(taken: Sequence[Record], snaplen: int) -> list[Record]:
    """Return the records as a capture with the given ``snaplen`` has them."""
    return [Record(record.time_ns, record.frame[:snaplen], record.original) for record in taken]


def payload_offset(link: Linker, part: Segment, flow: Flow) -> int:
    """Return the offset of the payload in a frame."""
    return len(link(packet(flow, part))) - len(part.payload)
