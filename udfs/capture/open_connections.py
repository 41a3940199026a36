"""Rows of ``bronze.pending``: for each connection that may continue in another capture, the TCP segments still needed.

A *remainder* is the part of one connection that one capture could not finish alone: the bytes before the first whole
PDU, those behind the last one, PDUs of calls whose other half is missing, and binds. Bytes that were framed and
finished in between are one segment without data (``FRAMED_BEFORE``). A connection of MSMQ that was seen to its end has
a remainder too: another tap may have captured it as well, and it is one connection.

``connection_merge`` reads the remainders of several captures one after the other, as if they were blocks of one
capture. The result is that of the uncut capture, without reading any file again.

Byte counts that the segments do not show are stored as numbers (``SIDE_STRUCT``); the merge adds them to its own
counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa

from schemas.bronze import PENDING
from schemas.table import RUN_COLUMNS
from udfs.capture.openings import opening_of
from udfs.capture.overlapping_captures import WHOLE_PDU
from udfs.columns.absent import NO_TIME
from udfs.dcerpc.interfaces import CallShape
from udfs.keys import key
from udfs.rpc.association_state import RetainedPdu, RpcAssociation
from udfs.rpc.call_assembly import known_association_of, shows_msmq
from udfs.rpc.call_rows import EmittedCalls, InferredContexts
from udfs.rpc.call_schema import rows_to_batch
from udfs.rpc.connection_identity import connection_id, four_tuple
from udfs.rpc.pdu_framing import QUARANTINE_SAMPLE_BYTES, FramingState, StrayBytes
from udfs.sessions.packet_framing import SessionSide
from udfs.tcp.capture_budget import NOT_HANDED_ON, CaptureBudget
from udfs.tcp.connections import (
    BufferedSegment,
    ConnectionKind,
    Reached,
    Reset,
    SkippedSegment,
    StreamDirection,
    StreamGap,
    TcpConnection,
)
from udfs.tcp.packet_decoder import ACK, FIN, FRAMED_BEFORE, SKIPPED_BEFORE, STREAM_START, SYN
from udfs.times import DAY_NS

SIDE_STRUCT: Final = PENDING.column("sides").type.value_type
PENDING_SCHEMA: Final = PENDING.schema(without=RUN_COLUMNS)
CLOSED_CONNECTION_RETENTION_NS: Final = (
    60_000_000_000  # after the end of a connection its last packets may be in the next file
)
LearnedInterfaces = Mapping[tuple[bytes, int], Iterable[str]]  # by (address, port), from port queries and ept_map
_MAX_RUNS: Final = 64  # of an unrecognised direction; further ones are not merged
_MAX_PLACEHOLDER_BYTES: Final = 1 << 30  # bytes per segment without data: sequence number differences stay unambiguous
_MASK: Final = 0xFFFFFFFF
_KIND_NAMES: Final = {
    ConnectionKind.RPC: "rpc",
    ConnectionKind.UNDECIDED: "undecided",
    ConnectionKind.COLD: "cold",
    ConnectionKind.BINARY: "binary_protocol",
}


@dataclass(slots=True)
class OpenConnection:
    """State of a connection at the end of a capture, before missing bytes are given up."""

    connection: TcpConnection
    directions: list[StreamDirection]
    retained_pdus: list[RetainedPdu]


def find_open_connections(
    connections: Iterable[TcpConnection], last_time: int | None, budget: CaptureBudget
) -> list[OpenConnection]:
    """Return the connections that other captures may have more of; ``last_time``: of the capture, in ns."""
    connections = list(connections)
    waiting = [one for one in connections if _may_continue(one, last_time)]
    indexes = {one.index for one in waiting}
    ended = [one for one in connections if one.index not in indexes and _gives_rows(one)]
    found = []
    for connection in _limit_open(waiting, ended, budget):
        association = known_association_of(connection)
        sides = []
        for side in connection.directions:
            state = side.framing_state
            framing_state: object = None
            if isinstance(state, SessionSide):
                framing_state = state.copy()
            elif isinstance(state, FramingState):
                framing_state = replace(
                    state,
                    leading_segments=list(state.leading_segments),
                    unrecognised_runs=list(state.unrecognised_runs),
                )
            sides.append(
                replace(
                    side,
                    held_segments=list(side.held_segments),
                    partial_pdu=list(side.partial_pdu),
                    recent_gaps=copy(side.recent_gaps),
                    unacknowledged_gaps=list(side.unacknowledged_gaps),
                    early_segments=list(side.early_segments),
                    framing_state=framing_state,
                )
            )
        found.append(OpenConnection(connection, sides, [] if association is None else list(association.retained_pdus)))
    return found


def _limit_open(waiting: list[TcpConnection], ended: list[TcpConnection], budget: CaptureBudget) -> list[TcpConnection]:
    """Drop the connections beyond the limit: first those that ended, of the others those that showed least of RPC.

    Of equal ones the oldest are dropped. Packets of those that ended are not counted: they were read to the end.
    """

    def rank(one: TcpConnection) -> tuple[int, int, Any]:
        kind = (
            3
            if shows_msmq(one) or one.kind is ConnectionKind.BINARY
            else 2
            if one.kind is ConnectionKind.RPC and one.syn_seen
            else int(one.on_known_port)
        )
        return kind, one.last_time_ns, one.endpoints

    if (excess := len(waiting) - budget.open_connections) > 0:
        dropped = sorted(waiting, key=rank)[:excess]
        budget.unread_packets[NOT_HANDED_ON] += sum(one.packet_count for one in dropped)
        indexes = {one.index for one in dropped}
        return [one for one in waiting if one.index not in indexes]
    if (excess := len(waiting) + len(ended) - budget.open_connections) > 0:
        ended = sorted(ended, key=rank)[excess:]
    return sorted((*waiting, *ended), key=lambda one: one.index)


def _may_continue(connection: TcpConnection, last_time: int | None) -> bool:
    """Whether a connection may continue: false if it was seen completely, ended long ago, with all calls finished."""
    if connection.kind not in _KIND_NAMES:
        return False
    seen_from_start = (
        all(side.syn_sequence is not None for side in connection.directions) and connection.round_trip_ns is not None
    )
    association = known_association_of(connection)
    unfinished = association is not None and any(kept.context_id >= 0 for kept in association.retained_pdus)
    if not seen_from_start or not connection.is_over or unfinished or last_time is None:
        return True
    return last_time - connection.last_time_ns < CLOSED_CONNECTION_RETENTION_NS


def _gives_rows(connection: TcpConnection) -> bool:
    """Whether a connection has a row of its own, which another capture that saw it would repeat."""
    association = known_association_of(connection)
    is_rpc = association is not None and (association.is_msmq or bool(association.unbound_call_shapes))
    return connection.kind is ConnectionKind.BINARY or is_rpc


def build_pending_rows(
    open_connections: Iterable[OpenConnection],
    capture_id: str,
    emitted: EmittedCalls,
    open_strays: Mapping[int, list[str]],
    inferred: InferredContexts,
    learned: LearnedInterfaces,
    unfinished_packets: Mapping[int, list[str]],
    heard: AbstractSet[int],
    failed_rpc: AbstractSet[int],
) -> pa.RecordBatch:
    """Return the rows of ``bronze.pending``, the remainders of open connections.

    ``emitted``: the calls that became rows. ``open_strays``: keys of quarantined bytes that another capture may
    explain, by connection index. ``inferred``: the contexts with an inferred interface, whose calls are rows already.
    ``learned``: interfaces by endpoint. ``unfinished_packets``: keys of packets of the binary protocol that another
    capture may change, by connection index. ``heard``: indexes of attempts to whose client the capture has packets;
    ``failed_rpc``: of those that have rows though no byte shows what they are.
    """

    def is_row(index: int, context_id: int) -> bool:
        return context_id < 0 or (index, context_id) in inferred

    finished: dict[int, list[dict[str, int]]] = {}
    for (index, context_id), count in sorted(emitted.finished_counts.items()):
        if is_row(index, context_id):
            finished.setdefault(index, []).append({"context_id": context_id, "calls": count})
    calls: dict[int, list[str]] = {}
    for (index, context_id), keys in emitted.unfinished_keys.items():
        if is_row(index, context_id):
            calls.setdefault(index, []).extend(keys)
    with_inferred = {index for index, _ in inferred}

    def row(one: OpenConnection) -> dict[str, Any]:
        index = one.connection.index
        return {
            **_pending_row(one, capture_id, inferred, learned),
            "counted": packet_count_column(
                one.connection,
                is_msmq=index in with_inferred or index in failed_rpc or shows_msmq(one.connection),
            ),
            "opening": opening_of(one.connection, one.directions, client_heard=index in heard),
            "counted_server": four_tuple(one.connection)[2],
            "finished_calls": finished.get(index, []),
            "call_keys": sorted(calls.get(index, [])),
            "quarantine_keys": sorted(open_strays.get(index, [])),
            "packet_keys": sorted(unfinished_packets.get(index, [])),
        }

    return rows_to_batch(map(row, open_connections), PENDING_SCHEMA)


def four_tuple_key(row: Mapping[str, Any]) -> str:
    """Return the four-tuple of a ``bronze.pending`` row as one text, the same whichever side is the client."""
    one, two = (f"{row[f'{who}_address']}|{row[f'{who}_port']}" for who in ("client", "server"))
    return f"{min(one, two)} {max(one, two)}"


def packet_count_column(connection: TcpConnection, *, is_msmq: bool) -> str:
    """Return the column of ``capture_files`` that counts a connection's packets; ``is_msmq``: by bind or inferred."""
    return (
        "packets_used"
        if is_msmq
        else "packets_binary_protocol"
        if connection.kind is ConnectionKind.BINARY
        else "packets_other"
    )


def _pending_row(
    opened: OpenConnection, capture_id: str, inferred: InferredContexts, learned: LearnedInterfaces
) -> dict[str, Any]:
    connection, association = opened.connection, known_association_of(opened.connection) or RpcAssociation()
    # Calls of contexts with an inferred interface are rows already.
    unbound = [
        kept for kept in association.retained_unbound_pdus if (connection.index, kept.context_id) not in inferred
    ]
    segments: list[dict[str, Any]] = []
    sides, runs = [], []
    for number, side in enumerate(opened.directions):
        kept = sorted(
            {k.stream_offset: k for k in (*unbound, *opened.retained_pdus) if k.side == number}.values(),
            key=lambda k: k.stream_offset,
        )
        body = list(_data_segments(number, side, kept, connection.last_time_ns))
        if body and side.started and side.syn_sequence is None:
            body[0]["flags"] |= STREAM_START
            # They follow the first segment, which decides where the direction starts.
            body[1:1] = [
                row
                for piece in side.early_segments
                for row in _buffered_segment(number, side.base_sequence or 0, piece)[2]
            ]
        skipped = [one for one in connection.first_skipped_segments if one.side == number]
        segments += (
            _opening_segments(connection, number, side)
            + [_skipped_segment(one) for one in skipped]
            + body
            + _ending_segments(connection, number, side)
        )
        # Repeats that were not compared yet were compared when the capture ended.
        conflicting = connection.directions[number].conflicting_bytes
        sides.append({**_hidden_byte_counts(side, body, skipped), "conflicting_bytes": conflicting})
        runs += [_skipped_run(one) for one in skipped]
        if isinstance(side.framing_state, FramingState):
            runs += [_stray_to_run(number, side, stray) for stray in side.framing_state.unrecognised_runs[:_MAX_RUNS]]
        runs += [_held_run(number, side, piece) for piece in side.held_segments[:_MAX_RUNS]]
    waits_for = {
        "beginning": any(side.syn_sequence is None for side in connection.directions),
        "end": not connection.is_over,
        "call": any(kept.context_id >= 0 and not kept.is_finished for kept in opened.retained_pdus),
        "bind": bool(association.unbound_call_shapes),
        "capture": bool(association.dropped_bytes) or any(side["passed_over_bytes"] for side in sides),
    }
    first, last_time = connection.first_time_ns, connection.last_time_ns
    client_address, client_port, server_address, server_port = four_tuple(connection)
    _, server_octets, _ = connection.endpoints[connection.likely_client_side() ^ 1]
    return {
        "pending_key": key(capture_id, connection_id(connection)),
        "capture_id": capture_id,
        "connection_id": connection_id(connection),
        "client_address": client_address,
        "client_port": client_port,
        "server_address": server_address,
        "server_port": server_port,
        "tunnel_identifier": connection.tunnel_identifier,
        "kind": _KIND_NAMES[connection.kind],
        "waits_for": sorted(name for name, holds in waits_for.items() if holds),
        "bytes": sum(len(segment["data"]) for segment in segments if segment["data"] is not None),
        "first_packet_at": None if first == NO_TIME else first // 1000,
        "last_packet_at": None if last_time == NO_TIME else last_time // 1000,
        "first_time_ns": first,
        "named_at_ns": connection.named_at_ns,
        "last_time_ns": last_time,
        "client_known": connection.client_side is not None,
        "recognised": any(
            isinstance(side.framing_state, FramingState) and side.framing_state.recognised for side in opened.directions
        ),
        "stream_ends": [_stream_end(side) for side in opened.directions if connection.kind is ConnectionKind.BINARY],
        "packets": connection.packet_count,
        "learned_interfaces": sorted(learned.get((server_octets, server_port), ())),
        "sides": sides,
        "segments": segments,
        "evidence": [
            {"context_id": context, **_shape_fields(one)}
            for context, shapes in sorted(association.unbound_call_shapes.items())
            for one in sorted(shapes, key=repr)  # the order of a set differs between processes
        ],
        "runs": [] if association.is_msmq else runs,
        "dropped_bytes": [
            {"context_id": context, "side": side, "bytes": count}
            for (context, side), count in sorted(association.dropped_bytes.items())
            if (connection.index, context) not in inferred
        ],
        "calls_made": None,
        "merge_digest": None,
        "over_limit": None,
        "resets": [_reset_fields(each) for each in connection.resets],
        "event_date": None if last_time == NO_TIME else last_time // DAY_NS,
    }


def _reset_fields(reset: Reset) -> dict[str, Any]:
    sides = [
        {**reached._asdict(), "went_on": went_on} for reached, went_on in zip(reset.reached, reset.went_on, strict=True)
    ]
    return {"time_ns": reset.time_ns, "sides": sides}


def read_resets(row: Mapping[str, Any]) -> tuple[Reset, ...]:
    """Return the RSTs of a ``bronze.pending`` row; one of before 2026-12 has them among its segments."""
    found = []
    for each in row.get("resets") or ():
        one, two = each["sides"]
        reached = [Reached(side["sent_until"], side["acknowledged_until"]) for side in (one, two)]
        found.append(Reset(each["time_ns"], (reached[0], reached[1]), (one["went_on"], two["went_on"])))
    return tuple(found)


def _stream_end(side: StreamDirection) -> dict[str, int]:
    """Return the place up to which a direction was seen, with its offset in rows of packets."""
    held, end, first = side.held_segments, side.next_offset, side.first_offset
    if held:
        end = held[-1].stream_offset + len(held[-1].data)
        first = first if side.started else held[0].stream_offset
    return {"sequence": ((side.base_sequence or 0) + end) & _MASK, "stream_offset": end - first}


def _stray_to_run(number: int, side: StreamDirection | None, stray: StrayBytes) -> dict[str, Any]:
    return {
        "side": number,
        "sequence": ((side.base_sequence if side is not None and side.base_sequence else 0) + stray.stream_offset)
        & _MASK,
        "size": stray.size,
        "sample": stray.sample,
        "time_ns": stray.time_ns,
        "number": stray.packet_number,
        "file_offset": stray.file_offset,
    }


def _shape_fields(one: CallShape) -> dict[str, Any]:
    return {
        "opnum": one.opnum,
        "request": one.request_length,
        "response": one.response_length,
        "syntax": one.transfer_syntax,
    }


def _make_segment(
    side: int, time: int, flags: int, sequence: int, acknowledgement: int = 0, size: int = 0, *,
    data: bytes | None = None, number: int = 0, file_offset: int = 0,
) -> dict[str, Any]:  # fmt: skip
    return {
        "side": side,
        "time_ns": time,
        "number": number,
        "file_offset": file_offset,
        "sequence": sequence & _MASK,
        "acknowledgement": acknowledgement & _MASK,
        "flags": flags,
        "size": size,
        "data": data,
    }


def _opening_segments(connection: TcpConnection, number: int, side: StreamDirection) -> list[dict[str, Any]]:
    """Return segments for the SYN and the first ACK, which may end a handshake that another capture began."""
    found = []
    if side.syn_sequence is not None:
        client = connection.client_side == number
        at = connection.syn_time_ns if client and connection.syn_time_ns is not None else connection.first_time_ns
        flags, acknowledgement = (SYN, 0) if client else (SYN | ACK, side.syn_acknowledgement or 0)
        found.append(_make_segment(number, at, flags, side.syn_sequence, acknowledgement))
    if side.first_ack is not None:
        time, sequence, acknowledgement = side.first_ack
        found.append(_make_segment(number, time, ACK, sequence, acknowledgement))
    return found


def _ending_segments(connection: TcpConnection, number: int, side: StreamDirection) -> list[dict[str, Any]]:
    """Return segments for the FIN and for the last sequence number of a direction."""
    found = []
    acknowledgement = side.last_acknowledgement
    flags = 0 if acknowledgement is None else ACK
    if side.fin_time_ns is not None and side.fin_sequence is not None:
        found.append(_make_segment(number, side.fin_time_ns, FIN | flags, side.fin_sequence, acknowledgement or 0))
    if side.last_sequence is not None:
        found.append(_make_segment(number, connection.last_time_ns, flags, side.last_sequence, acknowledgement or 0))
    return found


def _data_segments(
    number: int, side: StreamDirection, kept: list[RetainedPdu], last_time: int
) -> Iterator[dict[str, Any]]:
    """Yield the segments of a direction that are still needed, in order, and those without data between them."""
    base, holes = side.base_sequence or 0, list(side.recent_gaps or ())
    if isinstance(side.framing_state, SessionSide):
        yield from _session_segments(number, side, side.framing_state, last_time)
        return
    state = side.framing_state if isinstance(side.framing_state, FramingState) else FramingState()
    items: list[tuple[int, int, list[dict[str, Any]]]] = [
        (k.stream_offset, k.stream_offset + k.frag_length, _pdu_segments(base, k)) for k in kept
    ]
    items += [_buffered_segment(number, base, piece) for piece in state.leading_segments]
    damaged_pdu = state.damaged_pdu
    if damaged_pdu is not None:
        header = damaged_pdu.header[: max(damaged_pdu.frag_length - 1, 0)]
        damaged = RetainedPdu(
            number,
            damaged_pdu.stream_offset,
            len(header),
            header,
            damaged_pdu.time_ns,
            damaged_pdu.end_time_ns,
            damaged_pdu.packet_number,
            damaged_pdu.file_offset,
            damaged_pdu.acknowledgement,
            0,
        )
        items.append((damaged_pdu.stream_offset, side.next_offset, _pdu_segments(base, damaged)))
    items += [_buffered_segment(number, base, piece) for piece in side.partial_pdu]
    cursor, started = side.first_offset, side.started
    for offset, end, rows in sorted(items, key=lambda item: item[0]):
        if offset < cursor:
            continue
        tail = bool(side.partial_pdu) and offset == side.partial_pdu[0].stream_offset
        yield from _placeholder_segments(
            number, base, holes, cursor, offset, rows[0]["time_ns"], in_sync=not tail or state.in_sync
        )
        yield from rows
        stored = sum(row["size"] for row in rows)
        for start, stop in _captured_ranges(holes, offset + stored, min(end, side.next_offset)):
            yield _make_segment(number, rows[-1]["time_ns"], SKIPPED_BEFORE, base + start, 0, stop - start)
        cursor = end
    if started:
        end = side.next_offset
        yield from _placeholder_segments(number, base, holes, cursor, end, last_time, in_sync=state.in_sync)
    for piece in side.held_segments:
        yield from _buffered_segment(number, base, piece)[2]


def _session_segments(
    number: int, side: StreamDirection, state: SessionSide, last_time: int
) -> Iterator[dict[str, Any]]:
    """Yield the segments of a side of the binary protocol: its unfinished bytes, and what was cut between them."""
    base, cursor, holes = side.base_sequence or 0, side.first_offset, list(side.recent_gaps or ())
    cut = state.open_stray is None or state.open_stray.provisional
    unfinished = state.unfinished_pieces()
    for piece in (*unfinished, *side.partial_pdu):
        offset, end, rows = _buffered_segment(number, base, piece)
        yield from _placeholder_segments(number, base, holes, cursor, offset, piece.time_ns, in_sync=cut)
        yield from rows
        cursor = end
    if side.started:
        yield from _placeholder_segments(number, base, holes, cursor, side.next_offset, last_time, in_sync=cut)
    for piece in side.held_segments:
        yield from _buffered_segment(number, base, piece)[2]


def _placeholder_segments(
    number: int, base: int, holes: Sequence[StreamGap], start: int, end: int, time: int, *, in_sync: bool
) -> Iterator[dict[str, Any]]:
    """Yield segments without data for the stream offsets ``[start, end)``; gaps in between stay gaps.

    ``base``: sequence number of stream offset 0. ``holes``: the gaps of the direction, in order.
    """
    for low, high in _captured_ranges(holes, start, end):
        flags = FRAMED_BEFORE if in_sync or high < end else SKIPPED_BEFORE
        yield _make_segment(number, time, flags, base + low, 0, high - low)


def _end_of_gap(gap: StreamGap) -> int:
    return gap.end


def _captured_ranges(holes: Sequence[StreamGap], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of the stream offsets ``[start, end)`` that are no holes, each of at most a segment's size.

    ``holes``: in order. Only those behind ``start`` are looked at: a side may have as many pieces as holes.
    """
    first = bisect_right(holes, start, key=_end_of_gap)
    for hole in chain(islice(holes, first, None), (StreamGap(end, end, ""),)):
        if start >= end:
            return
        while start < min(hole.start, end):
            stop = min(hole.start, end, start + _MAX_PLACEHOLDER_BYTES)
            yield start, stop
            start = stop
        start = max(start, hole.end)


def _pdu_segments(base: int, kept: RetainedPdu) -> list[dict[str, Any]]:
    """Return a PDU as two segments, so that both its first and its last byte have a time.

    The second one has two bytes, because a repeated single byte would count as a keep-alive.
    """
    data = kept.data
    cut = len(data) - 2
    flags = ACK | WHOLE_PDU if len(data) == kept.frag_length else ACK
    parts = [(0, data[:cut], kept.time_ns), (cut, data[cut:], kept.end_time_ns)] if cut > 0 else []
    return [
        _make_segment(
            kept.side, time, flags, base + kept.stream_offset + at, kept.acknowledgement, len(part), data=part,
            number=kept.packet_number, file_offset=kept.file_offset + at,
        )
        for at, part, time in parts
    ]  # fmt: skip


def _buffered_segment(number: int, base: int, piece: BufferedSegment) -> tuple[int, int, list[dict[str, Any]]]:
    size = len(piece.data) + piece.cut_off_bytes
    row = _make_segment(
        number, piece.time_ns, ACK, base + piece.stream_offset, piece.acknowledgement, size, data=piece.data,
        number=piece.packet_number, file_offset=piece.file_offset,
    )  # fmt: skip
    return piece.stream_offset, piece.stream_offset + size, [row]


def _skipped_segment(one: SkippedSegment) -> dict[str, Any]:
    return _make_segment(
        one.side, one.time_ns, ACK, one.sequence, one.acknowledgement, one.payload_length, data=one.data,
        number=one.packet_number, file_offset=one.file_offset,
    )  # fmt: skip


def _skipped_run(one: SkippedSegment) -> dict[str, Any]:
    stray = StrayBytes(
        0, len(one.data), one.data[:QUARANTINE_SAMPLE_BYTES], "", one.time_ns, one.packet_number, one.file_offset
    )
    return {**_stray_to_run(one.side, None, stray), "sequence": one.sequence}


def _held_run(number: int, side: StreamDirection, piece: BufferedSegment) -> dict[str, Any]:
    sample = piece.data[:QUARANTINE_SAMPLE_BYTES]
    return _stray_to_run(
        number,
        side,
        StrayBytes(
            piece.stream_offset, len(piece.data), sample, "", piece.time_ns, piece.packet_number, piece.file_offset
        ),
    )


def _hidden_byte_counts(
    side: StreamDirection, body: list[dict[str, Any]], passed: list[SkippedSegment]
) -> dict[str, Any]:
    """Return the byte counts (``SIDE_STRUCT``) that the segments of the remainder do not show."""
    early = side.early_bytes if side.syn_sequence is None else 0
    covered = sum(s["size"] if s["data"] is None else len(s["data"]) for s in body) - early
    held = sum(len(piece.data) for piece in side.held_segments)
    uncovered = side.next_offset - side.first_offset - (covered - held) if side.started else 0
    open_holes = sum(gap.end - gap.start for gap in side.unacknowledged_gaps)
    return {
        "distinct_bytes": side.distinct_bytes - covered,
        "missing_bytes": side.missing_bytes - uncovered,
        "lost_by_capture_bytes": side.lost_by_capture_bytes - max(uncovered - open_holes, 0),
        "retransmitted_bytes": side.retransmitted_bytes - early,
        "passed_over_bytes": side.unrecognised_bytes - sum(one.payload_length for one in passed),
    }
