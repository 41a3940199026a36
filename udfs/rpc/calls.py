"""PDUs -> calls: fragments joined, requests paired with responses, for all connections of a block at once.

A *half* is the PDUs of one request or one response, FIRST to LAST. What pairs them is causality, not the order in which
the capture happens to hold them: a response acknowledges, in TCP, the client's bytes up to its request; a client that
uses a call id again has acknowledged the response before. So every half has a place in the client's stream (a request
its own, a response the acknowledgement on its first packet), and in that order each response belongs to the request
before it.

A half waits as long as bytes may come that belong to it or to its partner; what is settled leaves as one row per call.
Sources: [C706] 12.6.4.9 and 12.6.3.6, [MS-RPCE] 2.2.2.11 (sec_trailer).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from udfs.dcerpc.bind import MalformedBindError
from udfs.dcerpc.pdu import (
    CO_CANCEL,
    FAULT,
    FIRST_FRAG,
    FROM_CLIENT,
    LAST_FRAG,
    OBJECT_UUID,
    ORPHANED,
    REQUEST,
    RESPONSE,
)
from udfs.files.container import Ints
from udfs.rpc.association import ANSWERS, AUTH_LEVEL_CONNECT, REQUESTS, THIRD_LEGS, Association, Context, Kept
from udfs.rpc.pdu_framing import Cuts, CutState, Stray
from udfs.sealed.tokens import Token
from udfs.tcp.flows import Connection, Kind
from udfs.tcp.tracker import Streams

Flags = npt.NDArray[np.bool_]

ASK, CANCEL, ORPHAN, REPLY = 0, 1, 2, 3  # kinds of halves
_KIND: Final = np.full(256, -1, np.int64)
_KIND[[REQUEST, CO_CANCEL, ORPHANED, RESPONSE, FAULT]] = [ASK, CANCEL, ORPHAN, REPLY, REPLY]
_CLIENT_TYPES: Final = np.isin(np.arange(256), sorted(FROM_CLIENT))

AUTH_LEVEL_CALL, AUTH_LEVEL_PRIVACY = 3, 6  # from CALL on PDUs are signed ([MS-RPCE] 2.2.1.1.8), at PRIVACY sealed
MAX_WAITING: Final = 200_000  # PDUs of unfinished calls kept in memory; beyond it the calls leave as they are
MAX_WAITING_BYTES: Final = 64 << 20
MAX_KEPT: Final = 1 << 13  # PDUs of one connection kept for other captures, and their bytes
MAX_KEPT_BYTES: Final = 1 << 20
NEVER: Final = np.iinfo(np.int64).max


@dataclass(slots=True)
class Pdus:
    """Data PDUs as columns.

    Times in ns; ``offset`` in its own direction, ``place`` in the client's stream, ``holes`` of its direction before
    it; ``body`` is an index of kept bytes, or -1: then its bytes are in the block's joined ones at ``start``.
    """

    connection: Ints
    call_id: Ints
    kind: Ints
    offset: Ints
    place: Ints
    answered: Ints  # how far the sender had acknowledged the other direction, as its stream offset
    holes: Ints
    flags: Ints
    ptype: Ints
    context: Ints
    opnum: Ints
    hint: Ints
    status: Ints
    stub_from: Ints  # octets from the PDU's start
    stub_size: Ints
    size: Ints
    auth_type: Ints
    auth_level: Ints
    big: Ints
    whole: Ints
    time: Ints
    done: Ints
    number: Ints
    file_offset: Ints
    start: Ints
    body: Ints

    def take(self, index: Ints | Flags) -> Pdus:
        """Return the rows of an index or mask."""
        return Pdus(*(getattr(self, column.name)[index] for column in fields(self)))

    @staticmethod
    def concat(parts: list[Pdus]) -> Pdus:
        """Return all rows of several tables."""
        if len(parts) == 1:
            return parts[0]
        return Pdus(*(np.concatenate([getattr(p, column.name) for p in parts]) for column in fields(Pdus)))


@dataclass(slots=True)
class Halves:
    """Requests, responses, cancels and orphans as columns; ``first`` and ``last`` index ``Pdus``."""

    first: Ints
    last: Ints
    count: Ints
    whole: Flags
    ended: Flags  # its last PDU is flagged LAST: nothing more of it will come


@dataclass(slots=True)
class Calls:
    """Settled calls: index of the request and of the response in ``halves`` (-1: not seen), and what was told of it.

    ``group`` says for each half the call it belongs to; those of ``lone`` (cancels and the like) belong to none.
    """

    pdus: Pdus
    halves: Halves
    request: Ints
    response: Ints
    cancelled: Ints  # ns, or NEVER
    orphaned: Ints
    group: Ints
    lone: Ints
    joined: bytes
    kept: list[bytes]

    def fragment(self, index: int) -> memoryview:
        """Return the bytes of one PDU as far as they were kept."""
        start, size = int(self.pdus.start[index]), int(self.pdus.size[index])
        body = int(self.pdus.body[index])
        return memoryview(self.joined)[start : start + size] if body < 0 else memoryview(self.kept[body])


def association(connection: Connection) -> Association:
    """Return what is known of a connection's binds."""
    if not isinstance(connection.rpc, Association):
        connection.rpc = Association()
    return connection.rpc


class Assembler:
    """Builds the calls of one capture, block after block."""

    def __init__(self, *, all_pdus: bool = False) -> None:
        self._all_pdus = all_pdus
        self._waiting: Pdus | None = None
        self._bodies: list[bytes] = []
        self.pdus: list[dict[str, Ints]] = []

    def take(self, streams: Streams, cuts: Cuts, connections: list[Connection], *, final: bool) -> Calls | None:
        """Take the PDUs of a block; return the calls that are settled now."""
        header = _headers(streams, cuts)
        if self._all_pdus:
            self.pdus.append(_listing(header, streams))
        header = _right_way(header, streams)
        _control(header, streams, connections)
        parts = [self._waiting] if self._waiting is not None else []
        fresh = _data(header, streams)
        if fresh is not None:
            parts.append(fresh)
        if not parts:
            return None
        pdus, kept = Pdus.concat(parts), self._bodies
        pdus, halves = _halves(pdus)
        calls, waiting = _pair(pdus, halves, connections, streams.joined, kept, final=final)
        self._wait(calls, waiting)
        return calls

    def keep_waiting(self, connections: list[Connection]) -> None:
        """Keep, for other captures, the PDUs of calls that are not settled where this one ends."""
        if self._waiting is None:
            return
        pdus = self._waiting
        calls: dict[tuple[int, int], list[int]] = {}
        for index, name in enumerate(zip(pdus.connection.tolist(), pdus.call_id.tolist(), strict=True)):
            calls.setdefault(name, []).append(index)
        for (owner, _), which in calls.items():
            if not keep(pdus, which, self._bodies.__getitem__, connections):
                left = association(connections[owner]).left
                left.update((int(pdus.kind[index] == REPLY), int(pdus.offset[index])) for index in which)

    def _wait(self, calls: Calls, waiting: Ints) -> None:
        """Keep the PDUs of unsettled calls with their bytes."""
        if not len(waiting):
            self._waiting, self._bodies = None, []
            return
        left = calls.pdus.take(waiting)
        bodies = [
            bytes(calls.fragment(index)) if whole else b""
            for index, whole in zip(waiting.tolist(), left.whole.tolist(), strict=True)
        ]
        left.body, left.start = np.arange(len(bodies)), np.zeros(len(bodies), np.int64)
        self._waiting, self._bodies = left, bodies


def keep(
    pdus: Pdus, which: Sequence[int], data: Callable[[int], bytes | memoryview], connections: list[Connection],
    *, unknown: bool = False, settled: bool = False,
) -> bool:  # fmt: skip
    """Keep the PDUs of one call in its connection for other captures: all of them, or none where that has enough.

    Of one that a hole damaged only the header is kept, made anew. ``unknown``: a whole call, of a context without a
    bind. ``settled``: a whole call that only a repetition in another capture can change. Returns whether it was kept.
    """
    connection = connections[int(pdus.connection[which[0]])]
    known = association(connection)
    kept = known.unknown if unknown else known.kept
    if len(kept) >= MAX_KEPT or known.kept_bytes > MAX_KEPT_BYTES:
        context = int(pdus.context[which[0]])
        if not known.contexts.get(context):  # without its bind it is no row either, so that only its capture has it
            for index in which:
                side = connection.likely_client() ^ int(pdus.kind[index] == REPLY)
                known.unread[context, side] += int(pdus.size[index])
        return False
    for index in which:
        side = connection.likely_client() ^ int(pdus.kind[index] == REPLY)
        acknowledgement = (connection.sides[side ^ 1].base or 0) + int(pdus.answered[index])
        body = bytes(data(index)) if pdus.whole[index] else _header(pdus, index)
        known.kept_bytes += len(body)
        kept.append(
            Kept(
                side, int(pdus.offset[index]), int(pdus.size[index]), body, int(pdus.time[index]),
                int(pdus.done[index]), int(pdus.number[index]), int(pdus.file_offset[index]),
                acknowledgement & 0xFFFFFFFF, int(pdus.context[index]), settled,
            )
        )  # fmt: skip
    return True


def _header(pdus: Pdus, index: int) -> bytes:
    """The header of a PDU, from what was read of it, shorter than the PDU ([C706] 12.6.4)."""
    big, ptype = bool(pdus.big[index]), int(pdus.ptype[index])
    size = int(pdus.size[index])
    opnum, status = max(int(pdus.opnum[index]), 0), max(int(pdus.status[index]), 0)
    header = struct.pack(
        (">" if big else "<") + "BBBB4sHHIIHHI", 5, 0, ptype, int(pdus.flags[index]),
        b"\0\0\0\0" if big else b"\x10\0\0\0", size, 0, int(pdus.call_id[index]), int(pdus.hint[index]),
        max(int(pdus.context[index]), 0), opnum, status,
    )  # fmt: skip
    return header[: min(28 if ptype == FAULT else 24, size - 1)]


@dataclass(slots=True)
class _Headers:
    """The common headers of a block's PDUs, whole and broken ones."""

    octets: npt.NDArray[np.uint8]  # 40 of each
    stream: Ints
    connection: Ints
    from_client: Flags
    start: Ints
    offset: Ints
    holes: Ints
    size: Ints
    time: Ints
    done: Ints
    number: Ints
    done_number: Ints
    file_offset: Ints
    acknowledgement: Ints
    whole: Flags

    def take(self, index: Ints | Flags) -> _Headers:
        return _Headers(*(getattr(self, column.name)[index] for column in fields(self)))

    @property
    def ptype(self) -> Ints:
        return self.octets[:, 2].astype(np.int64)

    def u16(self, at: int) -> Ints:
        one, two = self.octets[:, at].astype(np.int64), self.octets[:, at + 1].astype(np.int64)
        return np.where(self.big, one << 8 | two, two << 8 | one)

    def u32(self, at: int) -> Ints:
        one, two = self.u16(at), self.u16(at + 2)
        return np.where(self.big, one << 16 | two, two << 16 | one)

    @property
    def big(self) -> Flags:
        big: Flags = (self.octets[:, 4] & 0x10) == 0
        return big


_HEADER_OCTETS: Final = 40  # less than the PAD behind joined bytes


def _headers(streams: Streams, cuts: Cuts) -> _Headers:
    start = cuts.start
    octets = np.frombuffer(streams.joined, np.uint8)
    if len(start):
        rows = np.lib.stride_tricks.sliding_window_view(octets, _HEADER_OCTETS)[start]
    else:
        rows = np.zeros((0, _HEADER_OCTETS), np.uint8)
    owner = np.array([s.connection.index for s in streams.streams], np.int64)
    client = np.array([s.connection.client == s.side for s in streams.streams], bool)
    first = np.searchsorted(streams.piece_start, start, "right") - 1
    empty = np.zeros(len(start), np.int64)
    head = _Headers(
        rows, cuts.stream, owner[cuts.stream] if len(start) else empty,
        client[cuts.stream] if len(start) else empty > 0,
        start, cuts.offset, cuts.holes, empty, streams.time[first], empty, streams.number[first], empty,
        streams.file_offset[first] + start - streams.piece_start[first], streams.acknowledgement[first],
        np.ones(len(start), bool),
    )  # fmt: skip
    head.size = head.u16(8)
    last = np.searchsorted(streams.piece_start, start + head.size - 1, "right") - 1
    head.done, head.done_number = streams.time[last], streams.number[last]
    if not cuts.broken:
        return head
    broken = [b for _, b in cuts.broken]
    index = np.array([stream for stream, _ in cuts.broken], np.int64)
    padded = b"".join(b.header[:_HEADER_OCTETS].ljust(_HEADER_OCTETS, b"\0") for b in broken)

    def column(values: list[int]) -> Ints:
        return np.array(values, np.int64)

    extra = _Headers(
        np.frombuffer(padded, np.uint8).reshape(-1, _HEADER_OCTETS), index, owner[index], client[index],
        np.zeros(len(broken), np.int64), column([b.offset for b in broken]), column([b.holes for b in broken]),
        column([b.length for b in broken]), column([b.time for b in broken]), column([b.last_time for b in broken]),
        column([b.number for b in broken]), column([b.number for b in broken]),
        column([b.file_offset for b in broken]), column([b.acknowledgement for b in broken]),
        np.zeros(len(broken), bool),
    )  # fmt: skip
    return _Headers(
        *(np.concatenate([getattr(head, column.name), getattr(extra, column.name)]) for column in fields(_Headers))
    )


# NetBIOS sessions and SMB: what stands bare on these ports is no RPC for anybody's dissector.
_NOT_BARE_RPC: Final = (139, 445)


def _listing(header: _Headers, streams: Streams) -> dict[str, Ints]:
    """The ``pdus`` rows: whole PDUs of any interface."""
    bare = np.array(
        [not any(s.connection.port(side) in _NOT_BARE_RPC for side in (0, 1)) for s in streams.streams], bool
    )
    head = header.take(header.whole & bare[header.stream]) if len(header.stream) else header
    ptype = head.ptype
    with_context = (ptype == REQUEST) | (ptype == RESPONSE) | (ptype == FAULT)
    return {
        "packet_number": head.number,
        "last_packet_number": head.done_number,
        "stream": head.connection,
        "ptype": ptype,
        "flags": head.octets[:, 3].astype(np.int64),
        "call_id": head.u32(12),
        "opnum": np.where(ptype == REQUEST, head.u16(22), -1),
        "context_id": np.where(with_context, head.u16(20), -1),
        "frag_length": head.size,
        "from_client": head.from_client.astype(np.int64),
    }


def _right_way(header: _Headers, streams: Streams) -> _Headers:
    """Put aside PDUs that the wrong side sent: a request from the server, a response from the client."""
    wrong = _CLIENT_TYPES[header.ptype] != header.from_client
    for index in np.nonzero(wrong & header.whole)[0].tolist():
        stream = streams.streams[int(header.stream[index])]
        state = stream.connection.sides[stream.side].cutter
        at, size = int(header.start[index]), int(header.size[index])
        if isinstance(state, CutState):
            state.strays.append(
                Stray(
                    int(header.offset[index]),
                    size,
                    streams.joined[at : at + min(size, 256)],
                    "wrong_direction",
                    int(header.time[index]),
                    int(header.number[index]),
                    int(header.file_offset[index]),
                )
            )
    return header.take(~wrong) if wrong.any() else header


def _control(header: _Headers, streams: Streams, connections: list[Connection]) -> None:
    """Let binds and their answers say what contexts mean, requests of a connection before answers and third legs."""
    ptype, big = header.ptype, header.big
    for types in (REQUESTS, ANSWERS, THIRD_LEGS):
        for index in np.nonzero(np.isin(ptype, types) & header.whole)[0].tolist():
            connection = connections[int(header.connection[index])]
            known = association(connection)
            at, size = int(header.start[index]), int(header.size[index])
            body = streams.joined[at : at + size]
            if len(known.kept) < MAX_KEPT:
                side = streams.streams[int(header.stream[index])].side
                known.kept.append(
                    Kept(
                        side, int(header.offset[index]), size, body, int(header.time[index]), int(header.done[index]),
                        int(header.number[index]), int(header.file_offset[index]), int(header.acknowledgement[index]),
                        -1,
                    )
                )  # fmt: skip
            order = ">" if big[index] else "<"
            call_id = int.from_bytes(body[12:16], "big" if order == ">" else "little")
            token = int.from_bytes(body[10:12], "big" if order == ">" else "little")
            trailer = size - token - 8 if token else size
            auth: tuple[int | None, int | None] = (body[trailer], body[trailer + 1]) if token else (None, None)
            client, offset = connection.likely_client(), int(header.offset[index])
            direction = connection.sides[client ^ int(types is ANSWERS)]
            sequence = ((direction.base or 0) + offset) & 0xFFFFFFFF
            shown = _token(body, order, trailer, sequence, from_client=types is not ANSWERS) if token else None
            try:
                if types is REQUESTS:
                    known.ask(
                        body, order, trailer, offset, sequence, call_id, int(header.time[index]),
                        int(header.number[index]), auth, shown,
                    )  # fmt: skip
                elif types is ANSWERS:
                    known.answer(int(ptype[index]), body, order, trailer, call_id, shown)
                elif shown is not None:
                    known.authenticate(call_id, shown)
            except MalformedBindError:
                time, number, where = header.time[index], header.number[index], header.file_offset[index]
                known.note_malformed(int(header.offset[index]), int(time), int(number), int(where), size, body[:256])


def _token(body: bytes, order: str, trailer: int, sequence: int, *, from_client: bool) -> Token:
    """Return the security token behind a PDU's security trailer ([MS-RPCE] 2.2.2.11)."""
    (context_id,) = struct.unpack_from(order + "I", body, trailer + 4)
    kind, level = body[trailer], body[trailer + 1]
    return Token(from_client, sequence, len(body), body[3], kind, level, context_id, body[trailer + 8 :])


def _data(header: _Headers, streams: Streams) -> Pdus | None:
    """Return the request, response, fault, cancel and orphaned PDUs of connections that may be ours."""
    kind = _KIND[header.ptype]
    foreign = np.array([_is_foreign(s.connection) for s in streams.streams], bool)
    keep = kind >= 0
    if foreign.any():
        keep &= ~foreign[header.stream]
    if not keep.any():
        return None
    head, kind = header.take(keep), kind[keep]
    flags, ptype, size = head.octets[:, 3].astype(np.int64), head.ptype, head.size
    token = head.u16(10)
    stub_from = np.where(ptype == FAULT, 32, np.where((flags & OBJECT_UUID > 0) & (ptype == REQUEST), 40, 24))
    trailer = np.where(token > 0, size - token - 8, size)
    auth_type, auth_level = np.full(len(size), -1), np.full(len(size), -1)
    pad = np.zeros(len(size), np.int64)
    signed_rows = np.nonzero((token > 0) & head.whole)[0]
    if len(signed_rows):
        octets = np.frombuffer(streams.joined, np.uint8)
        at = head.start[signed_rows] + trailer[signed_rows]
        auth_type[signed_rows], auth_level[signed_rows] = octets[at], octets[at + 1]
        pad[signed_rows] = octets[at + 2]
    stub_size = np.maximum(trailer - stub_from, 0)
    stub_size -= np.where(pad <= stub_size, pad, 0)
    # Where each sender stood in the other direction's stream.
    peer_base, peer_next = _peers(streams)
    base, position = peer_base[head.stream], peer_next[head.stream]
    moved = (head.acknowledgement - base - position + 0x80000000) & 0xFFFFFFFF
    answered = position + moved - 0x80000000
    reply = kind == REPLY
    return Pdus(
        head.connection, head.u32(12), kind, head.offset, np.where(reply, answered, head.offset), answered, head.holes,
        flags, ptype, np.where(kind == CANCEL, -1, head.u16(20)), np.where(ptype == REQUEST, head.u16(22), -1),
        head.u32(16), np.where(ptype == FAULT, head.u32(24), -1), stub_from, stub_size, size, auth_type, auth_level,
        head.big.astype(np.int64), head.whole.astype(np.int64), head.time, head.done, head.number, head.file_offset,
        head.start, np.full(len(size), -1),
    )  # fmt: skip


def _is_foreign(connection: Connection) -> bool:
    return connection.kind is not Kind.RPC or association(connection).foreign


def _peers(streams: Streams) -> tuple[Ints, Ints]:
    base, position = [], []
    for stream in streams.streams:
        other = stream.connection.sides[stream.side ^ 1]
        if other.base is None:
            own = stream.connection.sides[stream.side]
            other.base = own.last_acknowledgement or 0
        base.append(other.base)
        position.append(other.next)
    return np.array(base, np.int64), np.array(position, np.int64)


def _halves(pdus: Pdus) -> tuple[Pdus, Halves]:
    """Join fragments; return the PDUs in the order of halves, and the halves."""
    # Events stand alone; requests and responses are sorted by direction, call and place in their stream.
    order = np.lexsort((pdus.offset, pdus.call_id, pdus.kind, pdus.connection))
    pdus = pdus.take(order)
    count = len(order)
    begin = np.ones(count, bool)
    same = (
        (pdus.connection[1:] == pdus.connection[:-1])
        & (pdus.kind[1:] == pdus.kind[:-1])
        & (pdus.call_id[1:] == pdus.call_id[:-1])
    )
    data = (pdus.kind == ASK) | (pdus.kind == REPLY)
    first, last = (pdus.flags & FIRST_FRAG) != 0, (pdus.flags & LAST_FRAG) != 0
    begin[1:] = ~same | ~data[1:] | first[1:] | last[:-1]
    heads = np.nonzero(begin)[0]
    tails = np.append(heads[1:], count) - 1
    all_whole = np.logical_and.reduceat(pdus.whole > 0, heads)
    stub = np.add.reduceat(pdus.stub_size, heads)
    # A hole between the fragments may have swallowed one, unless the first said how much would come.
    closed = (pdus.holes[heads] == pdus.holes[tails]) | ((pdus.hint[heads] == stub) & (pdus.hint[heads] > 0))
    ended = last[tails] | ~data[heads]
    whole = first[heads] & last[tails] & all_whole & closed
    return pdus, Halves(heads, tails, tails - heads + 1, whole | ~data[heads], ended)


def _pair(
    pdus: Pdus, halves: Halves, connections: list[Connection], joined: bytes, kept: list[bytes], *, final: bool
) -> tuple[Calls, Ints]:
    """Pair requests with responses; return the settled calls and the PDUs of those that are not."""
    head = halves.first
    connection, call_id, kind, place = pdus.connection[head], pdus.call_id[head], pdus.kind[head], pdus.place[head]
    # At one place a response stands before the request that follows it at once.
    order = np.lexsort((kind != REPLY, place, call_id, connection))
    connection, call_id, kind = connection[order], call_id[order], kind[order]
    count = len(order)
    new_key = np.ones(count, bool)
    new_key[1:] = (connection[1:] != connection[:-1]) | (call_id[1:] != call_id[:-1])
    # A response joins the request before it, if no other response did; cancels join either way.
    data = np.nonzero((kind == ASK) | (kind == REPLY))[0]
    opens = np.zeros(count, bool)
    after_request = np.zeros(len(data), bool)
    if len(data):
        key_number = np.cumsum(new_key)
        after_request[1:] = (kind[data[:-1]] == ASK) & (key_number[data[1:]] == key_number[data[:-1]])
        opens[data] = (kind[data] == ASK) | ~after_request
    group_start = np.nonzero(opens | new_key)[0]
    group = np.cumsum(opens | new_key) - 1
    groups = len(group_start)
    request = np.full(groups, -1)
    response = np.full(groups, -1)
    asks, replies = np.nonzero(kind == ASK)[0], np.nonzero(kind == REPLY)[0]
    request[group[asks]], response[group[replies]] = order[asks], order[replies]
    cancelled, orphaned = np.full(groups, NEVER), np.full(groups, NEVER)
    for events, wanted in ((cancelled, CANCEL), (orphaned, ORPHAN)):
        rows = np.nonzero(kind == wanted)[0]
        np.minimum.at(events, group[rows], pdus.time[head[order[rows]]])

    settled = np.ones(groups, bool) if final else _settled(
        pdus, halves, connections, connection[group_start], request, response, new_key[group_start]
    )  # fmt: skip
    waits = ~settled & ((request >= 0) | (response >= 0))
    members = np.nonzero(waits[group])[0]
    waiting = spans(halves.first[order[members]], halves.last[order[members]])
    if len(waiting) > MAX_WAITING or int(pdus.size[waiting].sum()) > MAX_WAITING_BYTES:
        settled, waiting = np.ones(groups, bool), waiting[:0]
    main = (request >= 0) | (response >= 0)
    out = np.nonzero(settled & main)[0]
    call = np.full(groups, -1)
    call[out] = np.arange(len(out))
    of_half = np.full(count, -1)
    of_half[order] = call[group]
    lone = order[~main[group]]
    calls = Calls(pdus, halves, request[out], response[out], cancelled[out], orphaned[out], of_half, lone, joined, kept)
    return calls, waiting


def spans(first: Ints, last: Ints) -> Ints:
    """Return all numbers of the ranges first..last, in order."""
    sizes = last - first + 1
    if not len(sizes):
        return np.zeros(0, np.int64)
    offsets = np.cumsum(sizes) - sizes
    numbers: Ints = np.arange(sizes.sum()) - np.repeat(offsets - first, sizes)
    return numbers


def _settled(
    pdus: Pdus, halves: Halves, connections: list[Connection], owner: Ints, request: Ints, response: Ints,
    new_key: Flags,
) -> Flags:  # fmt: skip
    """Tell which groups no later byte can change."""
    client_reached, server_reached = _frontiers(owner, connections)
    has_request, has_response = request >= 0, response >= 0
    place = np.where(has_response, pdus.place[halves.first[response]], 0)
    request_known = ~has_request | halves.ended[request] | (client_reached >= place)
    answered = has_response & halves.ended[response]
    settled = answered & np.where(has_request, request_known, client_reached >= place)
    # The call id was used again: its sender had all of the answer that it will ever get.
    again = np.zeros(len(request), bool)
    following = np.where(has_request, pdus.answered[halves.first[request]], NEVER)
    again[:-1] = ~new_key[1:] & has_request[1:] & (server_reached[:-1] >= following[1:])
    return settled | again


def _frontiers(owner: Ints, connections: list[Connection]) -> tuple[Ints, Ints]:
    """How far PDUs were cut in either direction of each group's connection; a direction never seen is no wait."""
    unique, inverse = np.unique(owner, return_inverse=True)
    reached = np.zeros((len(unique), 2), np.int64)
    for row, index in enumerate(unique.tolist()):
        connection = connections[index]
        client = connection.likely_client()
        for column, side in enumerate((client, client ^ 1)):
            direction = connection.sides[side]
            if direction.last_sequence is None:
                reached[row, column] = NEVER
            elif not direction.started:
                reached[row, column] = -NEVER
            else:
                reached[row, column] = direction.tail[0].offset if direction.tail else direction.next
    return reached[inverse, 0], reached[inverse, 1]


def bind_level(context: Context) -> tuple[int | None, int | None]:
    """At level CONNECT data PDUs carry no trailer: the bind's security holds ([MS-RPCE] 3.3.1.5.2.2)."""
    return context.auth if context.auth[1] == AUTH_LEVEL_CONNECT else (None, None)
