"""Assembly of calls from PDUs: joins fragments and pairs requests with responses, for a whole block at once.

A *half* is the PDUs of one request or one response, from FIRST to LAST. Halves are paired by causality, not by their
order in the capture. A response acknowledges, in TCP, the client's bytes up to its request, and a client that reuses a
call id has acknowledged the previous response. So each half has a position in the client's stream: a request its own, a
response the acknowledgement of its first packet. In this order each response belongs to the request before it.

A half waits as long as bytes may come that belong to it or to its counterpart. Finished calls are returned. Sources:
[C706] 12.6.4.9 and 12.6.3.6, [MS-RPCE] 2.2.2.11 (sec_trailer).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from udfs.array_types import Bools, Ints, Octets
from udfs.columns.absent import NEVER_NS
from udfs.columns.groups import expand_ranges, is_group_start
from udfs.dcerpc.bind_pdus import MalformedBindError
from udfs.dcerpc.pdu_headers import (
    CLIENT_PDU_TYPES,
    CO_CANCEL,
    FAULT,
    FIRST_FRAG,
    LAST_FRAG,
    OBJECT_UUID,
    ORPHANED,
    REQUEST,
    RESPONSE,
)
from udfs.rpc.association_state import (
    AUTH3_PDU_TYPES,
    AUTH_LEVEL_CONNECT,
    BIND_ANSWER_TYPES,
    BIND_REQUEST_TYPES,
    BindLimitError,
    BoundContext,
    RetainedPdu,
    RpcAssociation,
)
from udfs.rpc.pdu_columns import (
    CANCEL_HALF,
    ORPHANED_HALF,
    REQUEST_HALF,
    RESPONSE_HALF,
    AssembledCalls,
    CallHalves,
    PduColumns,
)
from udfs.rpc.pdu_framing import QUARANTINE_SAMPLE_BYTES, FramedPdus, FramingState, StrayBytes
from udfs.rpc.waiting_pdus import WaitingPdus
from udfs.sealed.security_tokens import HandshakeToken
from udfs.tcp.connection_tracker import BlockStreams
from udfs.tcp.connections import ConnectionKind, TcpConnection
from udfs.tcp.time_limits import latest_ns

_HALF_KIND_BY_TYPE: Final = np.full(256, -1, np.int64)
_HALF_KIND_BY_TYPE[[REQUEST, CO_CANCEL, ORPHANED, RESPONSE, FAULT]] = [
    REQUEST_HALF,
    CANCEL_HALF,
    ORPHANED_HALF,
    RESPONSE_HALF,
    RESPONSE_HALF,
]
_IS_CLIENT_TYPE: Final = np.isin(np.arange(256), sorted(CLIENT_PDU_TYPES))

AUTH_LEVEL_CALL, AUTH_LEVEL_PRIVACY = 3, 6  # from CALL on PDUs are signed, at PRIVACY sealed ([MS-RPCE] 2.2.1.1.8)
STUB_AFTER_UUID: Final = 40  # where the stub of a request with an object UUID begins
MAX_RETAINED_PDUS: Final = 1 << 13  # of one connection, retained for other captures
MAX_RETAINED_BYTES: Final = 1 << 20


def association_of(connection: TcpConnection) -> RpcAssociation:
    """Return the RPC association state of a connection; created at the first use."""
    if not isinstance(connection.rpc_state, RpcAssociation):
        connection.rpc_state = RpcAssociation(connection.budget)
    return connection.rpc_state


def known_association_of(connection: TcpConnection) -> RpcAssociation | None:
    """Return the RPC association state of a connection; None if nothing of RPC was seen."""
    return connection.rpc_state if isinstance(connection.rpc_state, RpcAssociation) else None


def shows_msmq(connection: TcpConnection) -> bool:
    """Return whether a bind of an MSMQ interface was seen on a connection."""
    association = known_association_of(connection)
    return association is not None and association.is_msmq


class CallAssembler:
    """Assembles the calls of one capture, block after block.

    ``all_pdus``: list the PDUs of all interfaces in ``pdu_listings`` too.
    """

    def __init__(self, *, all_pdus: bool = False) -> None:
        self._all_pdus = all_pdus
        self._waiting = WaitingPdus()
        self.pdu_listings: list[dict[str, Ints]] = []

    def assemble(
        self, streams: BlockStreams, framed: FramedPdus, connections: list[TcpConnection], *, final: bool
    ) -> AssembledCalls | None:
        """Add the PDUs of a block; return the calls that are finished now. ``final``: no block will follow."""
        header = _read_headers(streams, framed)
        if self._all_pdus:
            self.pdu_listings.append(_list_pdus(header, streams))
        header = _drop_wrong_direction(header, streams)
        _process_binds(header, streams, connections)
        return_all = final or self._waiting.is_over_limit
        parts, kept = (
            self._waiting.take_all()
            if return_all
            else self._waiting.take(dict.fromkeys(stream.connection.index for stream in streams.streams))
        )
        fresh = _select_call_pdus(header, streams)
        if fresh is not None:
            parts.append(fresh)
        if not parts:
            return None
        pdus, halves = _join_fragments(PduColumns.concat(parts))
        calls, waiting = _pair_halves(pdus, halves, connections, streams.buffer, kept, final=return_all)
        self._waiting.store(calls, waiting)
        return calls

    def retain_unfinished(self, connections: list[TcpConnection]) -> None:
        """Retain the PDUs of calls that are unfinished at the end of this capture, for other captures."""
        for pdus, bodies in self._waiting.of_connections():
            calls: dict[int, list[int]] = {}
            for index, call_id in enumerate(pdus.call_id.tolist()):
                calls.setdefault(call_id, []).append(index)
            for which in calls.values():
                if not retain_call_pdus(pdus, which, bodies.__getitem__, connections):
                    left = association_of(connections[int(pdus.connection_index[0])]).unretained_offsets
                    left.update(
                        (int(pdus.half_kind[index] == RESPONSE_HALF), int(pdus.stream_offset[index])) for index in which
                    )


def retain_call_pdus(
    pdus: PduColumns, indexes: Sequence[int], data: Callable[[int], bytes | memoryview],
    connections: list[TcpConnection],
    *, is_unbound: bool = False, is_finished: bool = False,
) -> bool:  # fmt: skip
    """Retain the PDUs of one call for other captures; none of them if its connection or capture is at the limit.

    Of a damaged PDU only a rebuilt header is retained. ``is_unbound``: a complete call of a context without a bind.
    ``is_finished``: a complete call that only a repetition in another capture can change. Returns whether they were
    retained.
    """
    connection = connections[int(pdus.connection_index[indexes[0]])]
    association = association_of(connection)
    kept = association.retained_unbound_pdus if is_unbound else association.retained_pdus
    budget = connection.budget
    if len(kept) >= MAX_RETAINED_PDUS or association.retained_bytes > MAX_RETAINED_BYTES or budget.retained_bytes <= 0:
        context = int(pdus.context_id[indexes[0]])
        if not association.contexts.get(context):  # without a bind it is no row either: only its capture has it
            for index in indexes:
                side = connection.likely_client_side() ^ int(pdus.half_kind[index] == RESPONSE_HALF)
                association.dropped_bytes[context, side] += int(pdus.frag_length[index])
        return False
    for index in indexes:
        side = connection.likely_client_side() ^ int(pdus.half_kind[index] == RESPONSE_HALF)
        acknowledgement = (connection.directions[side ^ 1].base_sequence or 0) + int(pdus.acknowledged_offset[index])
        body = bytes(data(index)) if pdus.is_whole[index] else _rebuild_header(pdus, index)
        association.retained_bytes += len(body)
        budget.retained_bytes -= len(body)
        kept.append(
            RetainedPdu(
                side, int(pdus.stream_offset[index]), int(pdus.frag_length[index]), body, int(pdus.time_ns[index]),
                int(pdus.end_time_ns[index]), int(pdus.packet_number[index]), int(pdus.file_offset[index]),
                acknowledgement & 0xFFFFFFFF, int(pdus.context_id[index]), is_finished,
            )
        )  # fmt: skip
    return True


def _rebuild_header(pdus: PduColumns, index: int) -> bytes:
    """Rebuild the header of a damaged PDU from its columns; shorter than the PDU ([C706] 12.6.4)."""
    big, ptype = bool(pdus.big_endian[index]), int(pdus.pdu_type[index])
    size = int(pdus.frag_length[index])
    opnum, status = max(int(pdus.opnum[index]), 0), max(int(pdus.fault_status[index]), 0)
    header = struct.pack(
        (">" if big else "<") + "BBBB4sHHIIHHI", 5, 0, ptype, int(pdus.pfc_flags[index]),
        b"\0\0\0\0" if big else b"\x10\0\0\0", size, 0, int(pdus.call_id[index]), int(pdus.alloc_hint[index]),
        max(int(pdus.context_id[index]), 0), opnum, status,
    )  # fmt: skip
    return header[: min(28 if ptype == FAULT else 24, size - 1)]


@dataclass(slots=True)
class _Headers:
    """The common headers of a block's PDUs as columns, whole and damaged ones."""

    octets: Octets  # _HEADER_OCTETS per PDU
    stream: Ints
    connection: Ints
    from_client: Bools
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
    whole: Bools

    def take(self, index: Ints | Bools) -> _Headers:
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
    def big(self) -> Bools:
        big: Bools = (self.octets[:, 4] & 0x10) == 0
        return big


_HEADER_OCTETS: Final = 40  # less than the padding behind the buffer


def _read_headers(streams: BlockStreams, framed: FramedPdus) -> _Headers:
    """Gather the headers of all PDUs of a block."""
    start = framed.buffer_start
    octets = np.frombuffer(streams.buffer, np.uint8)
    if len(start):
        rows = np.lib.stride_tricks.sliding_window_view(octets, _HEADER_OCTETS)[start]
    else:
        rows = np.zeros((0, _HEADER_OCTETS), np.uint8)
    owner = np.array([s.connection.index for s in streams.streams], np.int64)
    client = np.array([s.connection.client_side == s.side for s in streams.streams], bool)
    first = np.searchsorted(streams.segment_start, start, "right") - 1
    empty = np.zeros(len(start), np.int64)
    head = _Headers(
        rows, framed.stream_index, owner[framed.stream_index] if len(start) else empty,
        client[framed.stream_index] if len(start) else empty > 0,
        start, framed.stream_offset, framed.gaps_before, empty, streams.time_ns[first], empty,
        streams.packet_number[first], empty,
        streams.file_offset[first] + start - streams.segment_start[first], streams.acknowledgement[first],
        np.ones(len(start), bool),
    )  # fmt: skip
    head.size = head.u16(8)
    last = np.searchsorted(streams.segment_start, start + head.size - 1, "right") - 1
    head.done_number = streams.packet_number[last]
    if len(start):  # of the packets of each PDU the latest: a segment that was sent again can come after the last one
        bounds = np.stack([first, last + 1], axis=1).ravel()
        head.done = latest_ns(np.append(streams.time_ns, 0), bounds)[::2]
    if not framed.damaged:
        return head
    broken = [b for _, b in framed.damaged]
    index = np.array([stream for stream, _ in framed.damaged], np.int64)
    padded = b"".join(b.header[:_HEADER_OCTETS].ljust(_HEADER_OCTETS, b"\0") for b in broken)

    def column(values: list[int]) -> Ints:
        return np.array(values, np.int64)

    extra = _Headers(
        np.frombuffer(padded, np.uint8).reshape(-1, _HEADER_OCTETS), index, owner[index], client[index],
        np.zeros(len(broken), np.int64), column([b.stream_offset for b in broken]),
        column([b.gaps_before for b in broken]), column([b.frag_length for b in broken]),
        column([b.time_ns for b in broken]), column([b.end_time_ns for b in broken]),
        column([b.packet_number for b in broken]), column([b.packet_number for b in broken]),
        column([b.file_offset for b in broken]), column([b.acknowledgement for b in broken]),
        np.zeros(len(broken), bool),
    )  # fmt: skip
    return _Headers(
        *(np.concatenate([getattr(head, column.name), getattr(extra, column.name)]) for column in fields(_Headers))
    )


# NetBIOS sessions and SMB: protocol dissectors find no RPC directly over TCP on these ports.
_PORTS_WITHOUT_RPC: Final = (139, 445)


def _list_pdus(header: _Headers, streams: BlockStreams) -> dict[str, Ints]:
    """Return the columns of the ``pdus`` table: whole PDUs of any interface."""
    bare = np.array(
        [not any(s.connection.port_of_side(side) in _PORTS_WITHOUT_RPC for side in (0, 1)) for s in streams.streams],
        bool,
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


def _drop_wrong_direction(header: _Headers, streams: BlockStreams) -> _Headers:
    """Remove PDUs sent by the wrong side (a request by the server, a response by the client); they become strays."""
    wrong = _IS_CLIENT_TYPE[header.ptype] != header.from_client
    for index in np.nonzero(wrong & header.whole)[0].tolist():
        stream = streams.streams[int(header.stream[index])]
        state = stream.connection.directions[stream.side].framing_state
        at, size = int(header.start[index]), int(header.size[index])
        if isinstance(state, FramingState):
            state.strays.append(
                StrayBytes(
                    int(header.offset[index]),
                    size,
                    streams.buffer[at : at + min(size, 256)],
                    "wrong_direction",
                    int(header.time[index]),
                    int(header.number[index]),
                    int(header.file_offset[index]),
                )
            )
    return header.take(~wrong) if wrong.any() else header


def _process_binds(header: _Headers, streams: BlockStreams, connections: list[TcpConnection]) -> None:
    """Add binds, their answers and auth3 PDUs to the associations, in this order."""
    ptype, big = header.ptype, header.big
    for types in (BIND_REQUEST_TYPES, BIND_ANSWER_TYPES, AUTH3_PDU_TYPES):
        for index in np.nonzero(np.isin(ptype, types) & header.whole)[0].tolist():
            connection = connections[int(header.connection[index])]
            association = association_of(connection)
            at, size = int(header.start[index]), int(header.size[index])
            body = streams.buffer[at : at + size]
            budget = connection.budget
            is_retained = len(association.retained_pdus) < MAX_RETAINED_PDUS and size <= budget.retained_bytes
            if is_retained:
                budget.retained_bytes -= size
                side = streams.streams[int(header.stream[index])].side
                association.retained_pdus.append(
                    RetainedPdu(
                        side, int(header.offset[index]), size, body, int(header.time[index]), int(header.done[index]),
                        int(header.number[index]), int(header.file_offset[index]), int(header.acknowledgement[index]),
                        -1,
                    )
                )  # fmt: skip
            order = ">" if big[index] else "<"
            call_id = int.from_bytes(body[12:16], "big" if order == ">" else "little")
            token_bytes = int.from_bytes(body[10:12], "big" if order == ">" else "little")
            trailer = size - token_bytes - 8 if token_bytes else size
            auth: tuple[int | None, int | None] = (body[trailer], body[trailer + 1]) if token_bytes else (None, None)
            client, offset = connection.likely_client_side(), int(header.offset[index])
            direction = connection.directions[client ^ int(types is BIND_ANSWER_TYPES)]
            sequence = ((direction.base_sequence or 0) + offset) & 0xFFFFFFFF
            token = (
                _security_token(body, order, trailer, sequence, from_client=types is not BIND_ANSWER_TYPES)
                if token_bytes
                else None
            )
            reason = None if is_retained else "bind_limit"
            try:
                if types is BIND_REQUEST_TYPES:
                    association.add_bind(
                        body, order, trailer, offset, sequence, call_id, int(header.time[index]),
                        int(header.number[index]), auth, token,
                    )  # fmt: skip
                elif types is BIND_ANSWER_TYPES:
                    association.add_bind_answer(int(ptype[index]), body, order, trailer, call_id, token)
                elif token is not None and not association.add_auth3_token(call_id, offset, token):
                    reason = "bind_limit"
            except MalformedBindError:
                reason = "malformed_bind"
            except BindLimitError:
                reason = "bind_limit"
            if reason is not None:
                time, number, where = header.time[index], header.number[index], header.file_offset[index]
                association.quarantine_bind(
                    StrayBytes(
                        offset, size, body[:QUARANTINE_SAMPLE_BYTES], reason, int(time), int(number), int(where),
                        provisional=is_retained,
                    )
                )  # fmt: skip


def _security_token(body: bytes, order: str, trailer: int, sequence: int, *, from_client: bool) -> HandshakeToken:
    """Return the security token of a PDU, from its security trailer on ([MS-RPCE] 2.2.2.11)."""
    (context_id,) = struct.unpack_from(order + "I", body, trailer + 4)
    kind, level = body[trailer], body[trailer + 1]
    return HandshakeToken(from_client, sequence, len(body), body[3], kind, level, context_id, body[trailer + 8 :])


def _select_call_pdus(header: _Headers, streams: BlockStreams) -> PduColumns | None:
    """Return the request, response, fault, cancel and orphaned PDUs of connections that may carry MSMQ."""
    kind = _HALF_KIND_BY_TYPE[header.ptype]
    foreign = np.array([_is_foreign(s.connection) for s in streams.streams], bool)
    keep = kind >= 0
    if foreign.any():
        keep &= ~foreign[header.stream]
    if not keep.any():
        return None
    head, kind = header.take(keep), kind[keep]
    flags, ptype, size = head.octets[:, 3].astype(np.int64), head.ptype, head.size
    token = head.u16(10)
    trailer = np.where(token > 0, size - token - 8, size)
    with_uuid = (flags & OBJECT_UUID > 0) & (ptype == REQUEST)
    stub_from = np.minimum(np.where(ptype == FAULT, 32, np.where(with_uuid, STUB_AFTER_UUID, 24)), trailer)
    auth_type, auth_level = np.full(len(size), -1), np.full(len(size), -1)
    pad = np.zeros(len(size), np.int64)
    signed_rows = np.nonzero((token > 0) & head.whole)[0]
    if len(signed_rows):
        octets = np.frombuffer(streams.buffer, np.uint8)
        at = head.start[signed_rows] + trailer[signed_rows]
        auth_type[signed_rows], auth_level[signed_rows] = octets[at], octets[at + 1]
        pad[signed_rows] = octets[at + 2]
    stub_size = np.maximum(trailer - stub_from, 0)
    stub_size -= np.where(pad <= stub_size, pad, 0)
    # How far each sender had acknowledged the other direction.
    peer_base, peer_next = _peer_positions(streams)
    base, position = peer_base[head.stream], peer_next[head.stream]
    moved = (head.acknowledgement - base - position + 0x80000000) & 0xFFFFFFFF
    answered = position + moved - 0x80000000
    reply = kind == RESPONSE_HALF
    data = reply | (kind == REQUEST_HALF)  # the others are a common header alone
    return PduColumns(
        head.connection, head.u32(12), kind, head.offset, np.where(reply, answered, head.offset), answered, head.holes,
        flags, ptype, np.where(data, head.u16(20), -1), np.where(ptype == REQUEST, head.u16(22), -1),
        np.where(data, head.u32(16), 0), np.where((ptype == FAULT) & (trailer >= 28), head.u32(24), -1), stub_from,
        stub_size, size, auth_type, auth_level,
        head.big.astype(np.int64), head.whole.astype(np.int64), head.time, head.done, head.number, head.file_offset,
        head.start, np.full(len(size), -1),
    )  # fmt: skip


def _is_foreign(connection: TcpConnection) -> bool:
    """Whether a connection certainly carries no MSMQ RPC."""
    association = known_association_of(connection)
    is_other = association is not None and association.has_only_other_interfaces
    return connection.kind is not ConnectionKind.RPC or is_other


def _peer_positions(streams: BlockStreams) -> tuple[Ints, Ints]:
    """Return per stream the base sequence number and the next stream offset of the opposite direction."""
    base, position = [], []
    for stream in streams.streams:
        other = stream.connection.directions[stream.side ^ 1]
        if other.base_sequence is None:
            own = stream.connection.directions[stream.side]
            other.base_sequence = own.last_acknowledgement or 0
        base.append(other.base_sequence)
        position.append(other.next_offset)
    return np.array(base, np.int64), np.array(position, np.int64)


def _join_fragments(pdus: PduColumns) -> tuple[PduColumns, CallHalves]:
    """Join fragments; return the PDUs sorted by half, and the halves."""
    # Each cancel and orphaned PDU is a half; the fragments of requests and responses follow in stream order.
    order = np.lexsort((pdus.stream_offset, pdus.call_id, pdus.half_kind, pdus.connection_index))
    pdus = pdus.select(order)
    count = len(order)
    begin = is_group_start(pdus.connection_index, pdus.half_kind, pdus.call_id)
    data = (pdus.half_kind == REQUEST_HALF) | (pdus.half_kind == RESPONSE_HALF)
    first, last = (pdus.pfc_flags & FIRST_FRAG) != 0, (pdus.pfc_flags & LAST_FRAG) != 0
    begin[1:] |= ~data[1:] | first[1:] | last[:-1]
    heads = np.nonzero(begin)[0]
    tails = np.append(heads[1:], count) - 1
    all_whole = np.logical_and.reduceat(pdus.is_whole > 0, heads)
    stub = np.add.reduceat(pdus.stub_size, heads)
    # A gap between the fragments may hide one, unless the stubs add up to the first one's alloc_hint.
    closed = (pdus.gaps_before[heads] == pdus.gaps_before[tails]) | (
        (pdus.alloc_hint[heads] == stub) & (pdus.alloc_hint[heads] > 0)
    )
    ended = last[tails] | ~data[heads]
    whole = first[heads] & last[tails] & all_whole & closed
    return pdus, CallHalves(heads, tails, tails - heads + 1, whole | ~data[heads], ended)


def _pair_halves(
    pdus: PduColumns,
    halves: CallHalves,
    connections: list[TcpConnection],
    joined: bytes,
    kept: list[bytes],
    *,
    final: bool,
) -> tuple[AssembledCalls, Ints]:
    """Pair requests with responses; return the finished calls, and the PDUs of the unfinished ones."""
    head = halves.first_pdu
    connection, call_id, kind, place = (
        pdus.connection_index[head],
        pdus.call_id[head],
        pdus.half_kind[head],
        pdus.client_position[head],
    )
    # At the same position a response comes before the request that follows it.
    order = np.lexsort((kind != RESPONSE_HALF, place, call_id, connection))
    connection, call_id, kind = connection[order], call_id[order], kind[order]
    count = len(order)
    new_key = is_group_start(connection, call_id)
    # A response joins the request before it, if it is the first one; cancels join any group.
    data = np.nonzero((kind == REQUEST_HALF) | (kind == RESPONSE_HALF))[0]
    opens = np.zeros(count, bool)
    after_request = np.zeros(len(data), bool)
    if len(data):
        key_number = np.cumsum(new_key)
        after_request[1:] = (kind[data[:-1]] == REQUEST_HALF) & (key_number[data[1:]] == key_number[data[:-1]])
        opens[data] = (kind[data] == REQUEST_HALF) | ~after_request
    group_start = np.nonzero(opens | new_key)[0]
    group = np.cumsum(opens | new_key) - 1
    groups = len(group_start)
    request = np.full(groups, -1)
    response = np.full(groups, -1)
    asks, replies = np.nonzero(kind == REQUEST_HALF)[0], np.nonzero(kind == RESPONSE_HALF)[0]
    request[group[asks]], response[group[replies]] = order[asks], order[replies]
    cancelled, orphaned = np.full(groups, NEVER_NS), np.full(groups, NEVER_NS)
    for events, wanted in ((cancelled, CANCEL_HALF), (orphaned, ORPHANED_HALF)):
        rows = np.nonzero(kind == wanted)[0]
        np.minimum.at(events, group[rows], pdus.time_ns[head[order[rows]]])

    finished = np.ones(groups, bool) if final else _finished_groups(
        pdus, halves, connections, connection[group_start], request, response, new_key[group_start]
    )  # fmt: skip
    waits = ~finished & ((request >= 0) | (response >= 0))
    members = np.nonzero(waits[group])[0]
    waiting = expand_ranges(halves.first_pdu[order[members]], halves.pdu_count[order[members]])
    has_half = (request >= 0) | (response >= 0)
    done = np.nonzero(finished & has_half)[0]
    call = np.full(groups, -1)
    call[done] = np.arange(len(done))
    of_half = np.full(count, -1)
    of_half[order] = call[group]
    unpaired = order[~has_half[group]]
    calls = AssembledCalls(
        pdus, halves, request[done], response[done], cancelled[done], orphaned[done], of_half, unpaired, joined, kept
    )
    return calls, waiting


def _finished_groups(
    pdus: PduColumns, halves: CallHalves, connections: list[TcpConnection], owner: Ints, request: Ints, response: Ints,
    new_key: Bools,
) -> Bools:  # fmt: skip
    """Return a mask of the groups (calls) that no later byte can change."""
    client_reached, server_reached = _framed_offsets(owner, connections)
    has_request, has_response = request >= 0, response >= 0
    place = np.where(has_response, pdus.client_position[halves.first_pdu[response]], 0)
    request_known = ~has_request | halves.has_last[request] | (client_reached >= place)
    answered = has_response & halves.has_last[response]
    finished = answered & np.where(has_request, request_known, client_reached >= place)
    # The call id was reused: the client has received all of the response.
    again = np.zeros(len(request), bool)
    following = np.where(has_request, pdus.acknowledged_offset[halves.first_pdu[request]], NEVER_NS)
    again[:-1] = ~new_key[1:] & has_request[1:] & (server_reached[:-1] >= following[1:])
    return finished | again


def _framed_offsets(owner: Ints, connections: list[TcpConnection]) -> tuple[Ints, Ints]:
    """Return the stream offset up to which PDUs were framed, per group and direction.

    ``NEVER_NS`` for a direction without any segment: nothing of it is waited for.
    """
    unique, inverse = np.unique(owner, return_inverse=True)
    reached = np.zeros((len(unique), 2), np.int64)
    for row, index in enumerate(unique.tolist()):
        connection: TcpConnection = connections[index]
        client = connection.likely_client_side()
        for column, side in enumerate((client, client ^ 1)):
            direction = connection.directions[side]
            if direction.last_sequence is None:
                reached[row, column] = NEVER_NS
            elif not direction.started:
                reached[row, column] = -NEVER_NS
            else:
                reached[row, column] = (
                    direction.partial_pdu[0].stream_offset if direction.partial_pdu else direction.next_offset
                )
    return reached[inverse, 0], reached[inverse, 1]


def auth_if_connect_level(context: BoundContext) -> tuple[int | None, int | None]:
    """Return (auth_type, auth_level) of a context at level CONNECT, else (None, None).

    At this level data PDUs have no security trailer, so that the bind's security applies ([MS-RPCE] 3.3.1.5.2.2).
    """
    return context.auth if context.auth[1] == AUTH_LEVEL_CONNECT else (None, None)
