"""What a capture leaves for others: of each connection that may go on beyond it, the TCP segments that still matter.

A *remainder* stands for one connection as one capture saw it. It holds the bytes that the capture could not finish
alone: what its beginning cut off before the first PDU, what its end cut off, PDUs of calls without their other half,
and binds. All that was cut and settled between is one segment without bytes (``CUT_BEFORE``). Reading remainders of
several captures one after the other, as if they were the blocks of one capture, therefore gives what the uncut capture
would have given, without reading anything again (``joining``).

What the segments no longer show is kept as numbers (``Side``): they are added to what joining counts itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from udfs.capture.overlap import WHOLE
from udfs.dcerpc.interfaces import Seen
from udfs.files.container import NO_TIME
from udfs.keys import key
from udfs.rpc.association import Association, Kept
from udfs.rpc.calls import association
from udfs.rpc.identity import connection_id, four_tuple
from udfs.rpc.pdu_framing import SAMPLE_BYTES, CutState, Stray
from udfs.rpc.rows import Made, Meanings
from udfs.rpc.schema import TIMESTAMP, batch_of
from udfs.tcp.flows import Connection, Direction, Gap, Kind, Passed, Piece
from udfs.tcp.packets import ACK, BEGINS, CUT_BEFORE, FIN, PASSED_OVER, RST, SYN

SEGMENT: Final = pa.struct(
    [
        ("side", pa.int32()),
        ("time_ns", pa.int64()),
        ("number", pa.int64()),
        ("file_offset", pa.int64()),
        ("sequence", pa.int64()),
        ("acknowledgement", pa.int64()),
        ("flags", pa.int32()),
        ("size", pa.int64()),
        ("data", pa.binary()),
    ]
)
SIDE: Final = pa.struct(
    [
        ("distinct_bytes", pa.int64()),
        ("missing_bytes", pa.int64()),
        ("lost_by_capture_bytes", pa.int64()),
        ("retransmitted_bytes", pa.int64()),
        ("conflicting_bytes", pa.int64()),
        ("passed_over_bytes", pa.int64()),
    ]
)
EVIDENCE: Final = pa.struct(
    [
        ("context_id", pa.int32()),
        ("opnum", pa.int32()),
        ("request", pa.int64()),
        ("response", pa.int64()),
        ("syntax", pa.string()),
    ]
)
UNREAD: Final = pa.struct([("context_id", pa.int32()), ("side", pa.int32()), ("bytes", pa.int64())])
RUN: Final = pa.struct(
    [
        ("side", pa.int32()),
        ("sequence", pa.int64()),
        ("size", pa.int64()),
        ("sample", pa.binary()),
        ("time_ns", pa.int64()),
        ("number", pa.int64()),
        ("file_offset", pa.int64()),
    ]
)
PENDING_SCHEMA: Final = pa.schema(
    [
        ("pending_key", pa.string()),
        ("capture_id", pa.string()),
        ("connection_id", pa.string()),
        ("client_address", pa.string()),
        ("client_port", pa.int32()),
        ("server_address", pa.string()),
        ("server_port", pa.int32()),
        ("kind", pa.string()),
        ("waits_for", pa.list_(pa.string())),
        ("bytes", pa.int64()),
        ("first_packet_at", TIMESTAMP),
        ("since", TIMESTAMP),
        ("first_time_ns", pa.int64()),
        ("named_at_ns", pa.int64()),
        ("last_time_ns", pa.int64()),
        ("client_known", pa.bool_()),
        ("recognised", pa.bool_()),
        ("packets", pa.int64()),
        ("counted", pa.string()),
        ("counted_server", pa.string()),
        ("settled", pa.list_(pa.struct([("context_id", pa.int32()), ("calls", pa.int64())]))),
        ("learnt", pa.list_(pa.string())),
        ("sides", pa.list_(SIDE)),
        ("segments", pa.list_(SEGMENT)),
        ("evidence", pa.list_(EVIDENCE)),
        ("call_keys", pa.list_(pa.string())),
        ("calls_made", pa.string()),
        ("quarantine_keys", pa.list_(pa.string())),
        ("runs", pa.list_(RUN)),
        ("unread", pa.list_(UNREAD)),
        ("told", pa.string()),
        ("event_date", pa.date32()),
    ]
)
LINGER_NS: Final = 60_000_000_000  # after its end a connection's last packets may still come, in the next file
Learnt = Mapping[tuple[bytes, int], Iterable[str]]  # interfaces that a port-asking call or the endpoint mapper placed
MOST_HALF_OPEN: Final = 100_000  # connections with few packets and no byte, of a capture, that are handed on to others
_FEW_PACKETS: Final = 3
_ROWS_AT_ONCE: Final = 4096  # as Python values, many times as large as in Arrow
_MAX_RUNS: Final = 64  # of a direction that is not recognised: more are not joined
_CHUNK: Final = 1 << 30  # of bytes that were cut before: differences of sequence numbers stay unambiguous
_MASK: Final = 0xFFFFFFFF
_DAY_NS: Final = 86_400_000_000_000
_KINDS: Final = {Kind.RPC: "rpc", Kind.UNDECIDED: "undecided", Kind.COLD: "cold", Kind.BINARY: "binary_protocol"}


@dataclass(slots=True)
class Edge:
    """A connection as it stands where its capture ends, before anything is given up."""

    connection: Connection
    sides: list[Direction]
    kept: list[Kept]


def edges(connections: Iterable[Connection], last_time: int | None) -> list[Edge]:
    """Return the connections that another capture may have something of; ``last_time`` of the capture, ns."""
    found = []
    for connection in _not_too_many(connections):
        known = association(connection)
        if not _goes_on(connection, known, last_time):
            continue
        sides = []
        for side in connection.sides:
            state = side.cutter
            cutter = (
                replace(state, head=list(state.head), runs=list(state.runs)) if isinstance(state, CutState) else None
            )
            sides.append(
                replace(
                    side, held=list(side.held), tail=list(side.tail), last_holes=copy(side.last_holes),
                    unacknowledged=list(side.unacknowledged), early=list(side.early), cutter=cutter,
                )
            )  # fmt: skip
        found.append(Edge(connection, sides, list(known.kept)))
    return found


def _not_too_many(connections: Iterable[Connection]) -> list[Connection]:
    """Leave out the oldest of those that began and never went on, where they are more than any network has: a flood."""
    every = list(connections)
    half_open = [one for one in every if one.kind is Kind.UNDECIDED and one.packets <= _FEW_PACKETS]
    if len(half_open) <= MOST_HALF_OPEN:
        return every
    half_open.sort(key=lambda one: (one.last_time, one.endpoints))
    flood = {one.index for one in half_open[:-MOST_HALF_OPEN]}
    return [one for one in every if one.index not in flood]


def _goes_on(connection: Connection, known: Association, last_time: int | None) -> bool:
    """Not if it was seen from SYN to end, has nothing unfinished, and its last packets are long past."""
    if connection.kind not in _KINDS:
        return False
    begun = all(side.syn is not None for side in connection.sides) and connection.round_trip is not None
    unfinished = any(kept.context_id >= 0 for kept in known.kept)
    if not begun or connection.closed is None or unfinished or last_time is None:
        return True
    return last_time - connection.last_time < LINGER_NS


def pending_rows(
    found: Iterable[Edge], capture_id: str, made: Made, strays: Iterable[dict[str, Any]], meanings: Meanings,
    learnt: Learnt,
) -> pa.RecordBatch:  # fmt: skip
    """Return rows of ``bronze.pending``: the remainders of connections.

    ``made`` and ``strays`` are the rows of calls and quarantine; ``meanings`` the contexts whose interface was
    inferred, so that their calls are rows already.
    """

    def is_row(index: int, context_id: int) -> bool:
        return context_id < 0 or (index, context_id) in meanings

    settled: dict[int, list[dict[str, int]]] = {}
    for (index, context_id), count in sorted(made.settled.items()):
        if is_row(index, context_id):
            settled.setdefault(index, []).append({"context_id": context_id, "calls": count})
    calls: dict[int, list[str]] = {}
    for (index, context_id), keys in made.unfinished.items():
        if is_row(index, context_id):
            calls.setdefault(index, []).extend(keys)
    quarantine: dict[int, list[str]] = {}
    for stray in strays:
        if stray["open"]:
            quarantine.setdefault(stray["index"], []).append(stray["quarantine_key"])
    rows: list[dict[str, Any]] = []
    batches: list[pa.RecordBatch] = []
    assumed = {index for index, _ in meanings}
    for edge in found:
        if len(rows) == _ROWS_AT_ONCE:
            batches.append(batch_of(rows, PENDING_SCHEMA))
            rows = []
        index = edge.connection.index
        rows.append(
            {
                **_remainder(edge, capture_id, meanings, learnt),
                "counted": counted(edge.connection, used=association(edge.connection).ours or index in assumed),
                "counted_server": four_tuple(edge.connection)[2],
                "settled": settled.get(index, []),
                "call_keys": sorted(calls.get(index, [])),
                "quarantine_keys": sorted(quarantine.get(index, [])),
            }
        )
    batches.append(batch_of(rows, PENDING_SCHEMA))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0] if len(batches) > 1 else batches[0]


def flow(row: Mapping[str, Any]) -> str:
    """Return the four-tuple of a row of ``bronze.pending`` as one text, whichever side is the client."""
    one, two = (f"{row[f'{who}_address']}|{row[f'{who}_port']}" for who in ("client", "server"))
    return f"{min(one, two)} {max(one, two)}"


def counted(connection: Connection, *, used: bool) -> str:
    """Return which count of ``capture_files`` a connection's packets are in; ``used``: it is one of ours."""
    return "packets_used" if used else "packets_binary_protocol" if connection.kind is Kind.BINARY else "packets_other"


def _remainder(edge: Edge, capture_id: str, meanings: Meanings, learnt: Learnt) -> dict[str, Any]:
    connection, known = edge.connection, association(edge.connection)
    # Calls of a context with an inferred meaning are rows; of the others only these bytes are left.
    unknown = [kept for kept in known.unknown if (connection.index, kept.context_id) not in meanings]
    segments: list[dict[str, Any]] = []
    sides, runs = [], []
    for number, side in enumerate(edge.sides):
        kept = sorted(
            {k.offset: k for k in (*unknown, *edge.kept) if k.side == number}.values(), key=lambda k: k.offset
        )
        body = list(_body(number, side, kept, connection.last_time))
        if body and side.started and side.syn is None:
            body[0]["flags"] |= BEGINS
            # Behind the first segment: what the direction's beginning is, these do not decide.
            body[1:1] = [row for piece in side.early for row in _piece(number, side.base or 0, piece)[2]]
        passed = [one for one in connection.passed if one.side == number]
        segments += (
            _opening(connection, number, side)
            + [_passed(one) for one in passed]
            + body
            + _ending(connection, number, side)
        )
        # What was to be compared still, was compared when the capture ended.
        conflicting = connection.sides[number].conflicting_bytes
        sides.append({**_numbers(side, body, passed), "conflicting_bytes": conflicting})
        runs += [_passed_run(one) for one in passed]
        if isinstance(side.cutter, CutState):
            runs += [_run(number, side, stray) for stray in side.cutter.runs[:_MAX_RUNS]]
        runs += [_held_run(number, side, piece) for piece in side.held[:_MAX_RUNS]]
    if connection.reset_at is not None:
        last = connection.sides[0].last_sequence or 0
        segments.append(_segment(0, connection.reset_at, RST, last))
    waits = {
        "beginning": any(side.syn is None for side in connection.sides),
        "end": connection.closed is None,
        "call": any(kept.context_id >= 0 and not kept.settled for kept in edge.kept),
        "bind": bool(known.evidence),
        "capture": bool(known.unread) or any(side["passed_over_bytes"] for side in sides),
    }
    first, last_time = connection.first_time, connection.last_time
    client_address, client_port, server_address, server_port = four_tuple(connection)
    _, server_octets, _ = connection.endpoints[connection.likely_client() ^ 1]
    return {
        "pending_key": key(capture_id, connection_id(connection)),
        "capture_id": capture_id,
        "connection_id": connection_id(connection),
        "client_address": client_address,
        "client_port": client_port,
        "server_address": server_address,
        "server_port": server_port,
        "kind": _KINDS[connection.kind],
        "waits_for": sorted(name for name, holds in waits.items() if holds),
        "bytes": sum(len(segment["data"]) for segment in segments if segment["data"] is not None),
        "first_packet_at": None if first == NO_TIME else first // 1000,
        "since": None if last_time == NO_TIME else last_time // 1000,
        "first_time_ns": first,
        "named_at_ns": connection.named_at,
        "last_time_ns": last_time,
        "client_known": connection.client is not None,
        "recognised": any(isinstance(side.cutter, CutState) and side.cutter.recognised for side in edge.sides),
        "packets": connection.packets,
        "learnt": sorted(learnt.get((server_octets, server_port), ())),
        "sides": sides,
        "segments": segments,
        "evidence": [
            {"context_id": context, **_seen(one)}
            for context, shapes in sorted(known.evidence.items())
            for one in sorted(shapes, key=repr)  # a set's own order is another in each process
        ],
        "runs": [] if known.ours else runs,
        "unread": [
            {"context_id": context, "side": side, "bytes": count}
            for (context, side), count in sorted(known.unread.items())
            if (connection.index, context) not in meanings
        ],
        "calls_made": None,
        "told": None,
        "event_date": None if last_time == NO_TIME else last_time // _DAY_NS,
    }


def _run(number: int, side: Direction | None, stray: Stray) -> dict[str, Any]:
    return {
        "side": number,
        "sequence": ((side.base if side is not None and side.base else 0) + stray.offset) & _MASK,
        "size": stray.size,
        "sample": stray.sample,
        "time_ns": stray.time,
        "number": stray.number,
        "file_offset": stray.file_offset,
    }


def _seen(one: Seen) -> dict[str, Any]:
    return {"opnum": one.opnum, "request": one.request, "response": one.response, "syntax": one.syntax}


def _segment(
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


def _opening(connection: Connection, number: int, side: Direction) -> list[dict[str, Any]]:
    """The SYN, and the first ACK: it may be the end of a handshake whose beginning another capture has."""
    found = []
    if side.syn is not None:
        client = connection.client == number
        at = connection.syn_at if client and connection.syn_at is not None else connection.first_time
        found.append(_segment(number, at, SYN if client else SYN | ACK, side.syn))
    if side.opening is not None:
        time, sequence, acknowledgement = side.opening
        found.append(_segment(number, time, ACK, sequence, acknowledgement))
    return found


def _ending(connection: Connection, number: int, side: Direction) -> list[dict[str, Any]]:
    found = []
    acknowledgement = side.last_acknowledgement
    flags = 0 if acknowledgement is None else ACK
    if side.fin_at is not None and side.fin_sequence is not None:
        found.append(_segment(number, side.fin_at, FIN | flags, side.fin_sequence, acknowledgement or 0))
    if side.last_sequence is not None:
        found.append(_segment(number, connection.last_time, flags, side.last_sequence, acknowledgement or 0))
    return found


def _body(number: int, side: Direction, kept: list[Kept], last_time: int) -> Iterator[dict[str, Any]]:
    """The bytes of a direction that still matter, in order, and what was cut between them."""
    base = side.base or 0
    state = side.cutter if isinstance(side.cutter, CutState) else CutState()
    items: list[tuple[int, int, list[dict[str, Any]]]] = [(k.offset, k.offset + k.size, _pdu(base, k)) for k in kept]
    items += [_piece(number, base, piece) for piece in state.head]
    broken = state.broken
    if broken is not None:
        header = broken.header[: max(broken.length - 1, 0)]
        damaged = Kept(
            number, broken.offset, len(header), header, broken.time, broken.last_time, broken.number,
            broken.file_offset, broken.acknowledgement, 0,
        )  # fmt: skip
        items.append((broken.offset, side.next, _pdu(base, damaged)))
    items += [_piece(number, base, piece) for piece in side.tail]
    cursor, started = side.first, side.started
    for offset, end, rows in sorted(items, key=lambda item: item[0]):
        if offset < cursor:
            continue
        tail = bool(side.tail) and offset == side.tail[0].offset
        yield from _cut_before(number, side, cursor, offset, rows[0]["time_ns"], in_step=not tail or state.in_step)
        yield from rows
        cursor = end
    if started:
        yield from _cut_before(number, side, cursor, side.next, last_time, in_step=state.in_step)
    for piece in side.held:
        yield from _piece(number, base, piece)[2]


def _cut_before(
    number: int, side: Direction, start: int, end: int, time: int, *, in_step: bool
) -> Iterator[dict[str, Any]]:
    """Segments without bytes for ``[start, end)``, but for its holes: these stay holes."""
    holes = [hole for hole in side.last_holes or () if start <= hole.start and hole.end <= end]
    for hole in (*holes, Gap(end, end, "")):
        while start < hole.start:
            stop = min(hole.start, start + _CHUNK)
            flags = CUT_BEFORE if in_step or stop < end else PASSED_OVER
            yield _segment(number, time, flags, (side.base or 0) + start, 0, stop - start)
            start = stop
        start = hole.end


def _pdu(base: int, kept: Kept) -> list[dict[str, Any]]:
    """A PDU as two segments, so that both its first and its last byte have their time.

    The last one has two bytes: a single one that comes again would be a keep-alive.
    """
    data = kept.data
    cut = len(data) - 2
    flags = ACK | WHOLE if len(data) == kept.size else ACK
    parts = [(0, data[:cut], kept.time), (cut, data[cut:], kept.done)] if cut > 0 else []
    return [
        _segment(
            kept.side, time, flags, base + kept.offset + at, kept.acknowledgement, len(part), data=part,
            number=kept.number, file_offset=kept.file_offset + at,
        )
        for at, part, time in parts
    ]  # fmt: skip


def _piece(number: int, base: int, piece: Piece) -> tuple[int, int, list[dict[str, Any]]]:
    size = len(piece.data) + piece.lost
    row = _segment(
        number, piece.time, ACK, base + piece.offset, piece.acknowledgement, size, data=piece.data,
        number=piece.number, file_offset=piece.file_offset,
    )  # fmt: skip
    return piece.offset, piece.offset + size, [row]


def _passed(one: Passed) -> dict[str, Any]:
    return _segment(
        one.side, one.time, ACK, one.sequence, one.acknowledgement, one.length, data=one.data, number=one.number,
        file_offset=one.file_offset,
    )  # fmt: skip


def _passed_run(one: Passed) -> dict[str, Any]:
    stray = Stray(0, len(one.data), one.data[:SAMPLE_BYTES], "", one.time, one.number, one.file_offset)
    return {**_run(one.side, None, stray), "sequence": one.sequence}


def _held_run(number: int, side: Direction, piece: Piece) -> dict[str, Any]:
    sample = piece.data[:SAMPLE_BYTES]
    return _run(
        number, side, Stray(piece.offset, len(piece.data), sample, "", piece.time, piece.number, piece.file_offset)
    )


def _numbers(side: Direction, body: list[dict[str, Any]], passed: list[Passed]) -> dict[str, Any]:
    """What a capture counted and the segments of its remainder do not show."""
    early = side.early_bytes if side.syn is None else 0
    covered = sum(s["size"] if s["data"] is None else len(s["data"]) for s in body) - early
    held = sum(len(piece.data) for piece in side.held)
    uncovered = side.next - side.first - (covered - held) if side.started else 0
    open_holes = sum(gap.end - gap.start for gap in side.unacknowledged)
    return {
        "distinct_bytes": side.distinct_bytes - covered,
        "missing_bytes": side.missing_bytes - uncovered,
        "lost_by_capture_bytes": side.lost_by_capture_bytes - max(uncovered - open_holes, 0),
        "retransmitted_bytes": side.retransmitted_bytes - early,
        "passed_over_bytes": side.cold_bytes - sum(one.length for one in passed),
    }
