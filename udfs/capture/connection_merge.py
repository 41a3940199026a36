"""Merges connections across captures: reads the remainders (``bronze.pending``) of several captures as one capture.

The result depends only on the set of remainders, because they are sorted by time first. It contains the rows of all
connections in the remainders, and for each remainder the connection that it belongs to (labels). Rows that one capture
finished alone stay: they only get the key of that connection and, if their bind was in another capture, its meaning.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.array_types import Ints
from udfs.capture.bronze_rows import (
    SERVER_CONNECTIONS_TYPE,
    bind_rows,
    connection_rows,
    quarantine_batch,
    quarantine_row,
    quarantine_rows,
    server_connection_counts,
    sum_server_connections,
)
from udfs.capture.capture_reader import SESSION_ENDPOINT, endpoint_texts, infer_contexts, is_msmq_connection
from udfs.capture.capture_scan import CaptureScan
from udfs.capture.open_connections import PENDING_SCHEMA, SIDE_STRUCT, packet_count_column
from udfs.capture.overlapping_captures import (
    Captured,
    CapturedSegment,
    captured_ranges,
    conversations,
    find_overlaps,
    group_simultaneous,
    nearest_before,
    overlay_segments,
    pairs_of_taps,
    side_by_side_pairs,
    tunnel_identifier,
)
from udfs.capture.positions import order_of_remainders
from udfs.capture.taps import ConnectionTaps, assign_taps
from udfs.dcerpc.interfaces import INTERFACES_BY_UUID, CallShape
from udfs.files.capture_file import NO_TIME
from udfs.keys import hash_encoded_fields, key
from udfs.rows import RowDict
from udfs.rpc.association_state import BoundContext
from udfs.rpc.call_assembly import CallAssembler, association_of, auth_if_connect_level
from udfs.rpc.call_rows import CallRowBuilder, InferredContexts
from udfs.rpc.call_schema import RPC_CALLS_SCHEMA
from udfs.rpc.connection_identity import connection_id, four_tuple
from udfs.rpc.pdu_framing import QUARANTINE_SAMPLE_BYTES, FramingState, PduFramer, StrayBytes
from udfs.sessions.packet_framing import SessionFramer, recognise_sessions
from udfs.sessions.packet_headers import is_establish_connection
from udfs.sessions.packet_rows import SESSION_PACKETS_SCHEMA, SessionPacketRows
from udfs.sessions.packet_sightings import PACKET_MOVES_SCHEMA, KeptBytes, PacketCoverage
from udfs.tcp.capture_budget import CaptureBudget
from udfs.tcp.connection_tracker import BlockStreams, ConnectionTracker
from udfs.tcp.connections import ConnectionKind, TcpConnection, sequence_difference
from udfs.tcp.four_tuples import PackedEndpoint
from udfs.tcp.packet_decoder import FRAMED_BEFORE, RECORD_SEGMENT, SKIPPED_BEFORE, STREAM_START, TcpSegments
from udfs.tcp.time_limits import DEFAULT_TIME_LIMITS, TimeLimits, earliest_ns

CONNECTION_LABELS_SCHEMA: Final = pa.schema(
    [
        ("capture_id", pa.string()),
        ("was_connection_id", pa.string()),
        ("connection_id", pa.string()),
        ("client_address", pa.string()),
        ("client_port", pa.int32()),
        ("server_address", pa.string()),
        ("server_port", pa.int32()),
        ("ours", pa.bool_()),
        ("handshake", pa.bool_()),
        ("together", pa.bool_()),
        ("merge_digest", pa.string()),
        ("again", pa.list_(pa.string())),
    ]
)
PRESENTATION_CONTEXTS_SCHEMA: Final = pa.schema(
    [
        ("capture_id", pa.string()),
        ("was_connection_id", pa.string()),
        ("context_id", pa.int32()),
        ("known", pa.bool_()),
        ("bind_seen", pa.bool_()),
        ("interface_uuid", pa.string()),
        ("interface_name", pa.string()),
        ("transfer_syntax", pa.string()),
        ("auth_type", pa.int32()),
        ("auth_level", pa.int32()),
    ]
)


PENDING_CHANGES_SCHEMA: Final = pa.schema(
    [PENDING_SCHEMA.field(name) for name in (
        "pending_key", "event_date", "connection_id", "call_keys", "calls_made", "quarantine_keys", "packet_keys",
        "stream_ends", "counted", "counted_server", "merge_digest", "over_limit",
    )]
)  # fmt: skip
_MAX_BLOCK_BYTES: Final = 1 << 30  # of a four-tuple: differences of sequence numbers stay unambiguous
TOO_MANY_AT_ONCE: Final = "too_many_at_once"
PACKET_COUNT_COLUMNS: Final = ("packets_used", "packets_other", "packets_binary_protocol")
PACKET_COUNTS_SCHEMA: Final = pa.schema(
    [
        ("capture_id", pa.string()),
        *((name, pa.int64()) for name in PACKET_COUNT_COLUMNS),
        ("server_connections", SERVER_CONNECTIONS_TYPE),
        ("learned_endpoints", pa.list_(pa.string())),
    ]
)


@dataclass(slots=True)
class MergeResult:
    """Result of a merge.

    ``tables``: ``connections``, ``rpc_binds``, ``quarantine`` and ``rpc_calls`` of the merged connections, except calls
    that one capture finished alone. ``connection_labels``: for each remainder its connection. ``merge_digest`` is a key
    of what its finished calls must be updated with. ``again`` are the interfaces for which its capture must be read
    again, because it holds more than was kept. ``context_meanings``: meanings of contexts whose bind was not in the
    capture; where ``known`` is false, the calls are dropped. ``pending_changes``: the changed columns of the
    remainders. ``packet_counts``: changes to rows of ``capture_files`` (see ``add_packet_counts``), with newly learned
    endpoints. ``taps``, by connection_id: of the connections that several captures saw at the same time, whose calls
    ``call_sightings`` merges. ``packet_moves`` (``PACKET_MOVES_SCHEMA``): where packets belong that a capture cut
    alone. ``shared_sessions``, by connection_id: of the connections of the binary protocol of which several captures
    have the same bytes, whose packets ``packet_sightings`` merges.
    """

    tables: dict[str, pa.RecordBatch]
    connection_labels: pa.RecordBatch
    context_meanings: pa.RecordBatch
    pending_changes: pa.RecordBatch
    packet_counts: pa.RecordBatch
    taps: dict[str, ConnectionTaps]
    packet_moves: pa.RecordBatch
    shared_sessions: dict[str, PacketCoverage]


# The numeric fields of a remainder's segment, in the order that ``_build_segments`` unpacks.
_SEGMENT_FIELDS: Final = itemgetter("side", "size", "time_ns", "sequence", "acknowledgement", "flags", "file_offset")
_NO_CONNECTION: Final = TcpConnection(-1, ((4, b"", 0), (4, b"", 0)), NO_TIME, NO_TIME)


@dataclass(slots=True)
class _Remainder:
    """A remainder and the merged connection that it belongs to, which is known once its segments were added."""

    row: RowDict
    connection: TcpConnection = field(default_factory=lambda: _NO_CONNECTION)
    group: int = 0  # number of the group of overlapping remainders
    tap: int = 0  # number of the tap, in its conversation
    is_over_limit: bool = False  # it is not compared with all that overlap it
    # Offsets of ``row["stream_ends"]`` in the connection; until all is read, by the sequence numbers of offset 0 then.
    stream_ends: list[int] = field(default_factory=list)
    base_sequences: list[int | None] = field(default_factory=list)

    def move_stream_ends(self) -> None:
        """Count ``stream_ends`` from the final beginnings: the SYN may be in a remainder that was read later."""
        for side, (direction, base) in enumerate(zip(self.connection.directions, self.base_sequences, strict=False)):
            if base is None:  # it had none of its bytes
                self.stream_ends[side] = direction.stream_offset_of(self.row["stream_ends"][side]["sequence"])
            elif direction.base_sequence is not None:
                self.stream_ends[side] += sequence_difference(base - direction.base_sequence)


@dataclass(slots=True)
class _RemainderGroup:
    """Remainders that are read as one: a single one, or overlapping ones of several captures."""

    remainders: list[_Remainder]
    parts: list[CapturedSegment]
    tunnel_identifier: int
    is_replay: bool  # the first of a conversation that was replayed


@dataclass(slots=True)
class _PacketNumbers:
    """Packet numbers during the merge: indexes of (capture, packet number), from 1."""

    captures: list[str] = field(default_factory=lambda: [""])
    numbers: list[int] = field(default_factory=lambda: [0])

    def add(self, capture_id: str, number: int) -> int:
        """Return a new index for a packet of a capture."""
        self.captures.append(capture_id)
        self.numbers.append(number)
        return len(self.captures) - 1


def merge_connections(pending: Sequence[RowDict], limits: TimeLimits = DEFAULT_TIME_LIMITS) -> MergeResult:
    """Merge the connections in remainders (rows of ``bronze.pending``)."""
    remainders = [_Remainder(row) for row in sorted(pending, key=_time_order)]
    packet_numbers = _PacketNumbers()
    tracker, framer, assembler, builder = (
        ConnectionTracker(limits, CaptureBudget.unlimited(), is_establish_connection),
        PduFramer(),
        CallAssembler(),
        CallRowBuilder(),
    )
    tracker.known_endpoints = _rpc_endpoints(pending)
    tracker.session_endpoints = _session_endpoints(pending)
    session_framer, packet_rows, packets = SessionFramer(), SessionPacketRows(), list[pa.RecordBatch]()
    builder.capture_ended = True  # no PDUs are to be retained
    calls: list[pa.RecordBatch] = []

    def process(streams: BlockStreams, *, final: bool) -> None:
        recognise_sessions(streams, final=final)
        framed = framer.frame_block(streams, final=final)
        for each in session_framer.frame_block(streams, final=final):
            packets.append(packet_rows.build_rows(each, tracker.connections))
        assembled = assembler.assemble(streams, framed, tracker.connections, final=final)
        batch = builder.build_rows(assembled, tracker.connections) if assembled is not None else None
        if batch is not None:
            calls.append(batch)

    for block in _build_blocks(remainders, limits.max_clock_skew_ns):
        for group in block:
            if group.is_replay:
                tracker.forget_connection(_packed_endpoints(group.remainders[0].row), group.tunnel_identifier)
        segments, sizes = _build_segments(block, packet_numbers)
        if not len(segments.record_index):
            continue
        known_count = len(tracker.connections)
        streams = tracker.add_block(segments)
        _assign_connections(block, tracker, sizes, known_count)
        process(streams, final=False)
    process(tracker.finish_capture(), final=True)
    by_connection: dict[int, list[_Remainder]] = defaultdict(list)
    for remainder in remainders:
        if remainder.connection is not _NO_CONNECTION:
            remainder.move_stream_ends()
            by_connection[remainder.connection.index].append(remainder)
    scan = CaptureScan(connections=tracker.connections, learned_endpoints=builder.learned_endpoints)
    inferred = _infer_contexts(scan, by_connection)
    calls += builder.resolve_unbound_rows(inferred, tracker.connections)
    calls = _drop_repeated_requests(calls, by_connection, packet_numbers)
    msmq_indexes = {c.index for c in tracker.connections if is_msmq_connection(c)} | {index for index, _ in inferred}
    _add_hidden_counts(by_connection)
    strays = _quarantine_rows(tracker.connections, by_connection, msmq_indexes, packet_numbers)
    coverage = _packet_coverage(by_connection)
    counts = _count_calls(calls, by_connection, inferred, msmq_indexes, tracker.connections)
    tables = {
        "connections": connection_rows(tracker.connections, msmq_indexes, counts),
        "rpc_binds": _restore_packet_numbers(
            bind_rows(tracker.connections, msmq_indexes, ""), packet_numbers, {"capture_id": "packet_number"}
        ),
        "quarantine": quarantine_batch(strays),
        "rpc_calls": _finish_call_rows(calls, packet_numbers),
        "session_packets": _finish_packet_rows(packets, packet_numbers, coverage),
    }
    contexts = _context_meaning_rows(by_connection, inferred)
    labels = _label_rows(by_connection, msmq_indexes, contexts)
    return MergeResult(
        tables,
        pa.RecordBatch.from_pylist(labels, CONNECTION_LABELS_SCHEMA),
        pa.RecordBatch.from_pylist(contexts, PRESENTATION_CONTEXTS_SCHEMA),
        _pending_changes(by_connection, labels, tables["rpc_calls"], tables["session_packets"], strays, msmq_indexes),
        _packet_count_changes(by_connection, msmq_indexes, builder.learned_by_connection),
        _taps_by_connection(by_connection),
        pa.RecordBatch.from_pylist(_packet_moves(by_connection), PACKET_MOVES_SCHEMA),
        {identity: found for identity, found in coverage.items() if found.is_shared()},
    )


def _time_order(row: RowDict) -> tuple[int, int, str]:
    return row["first_time_ns"], row["last_time_ns"], row["capture_id"]


def _build_blocks(remainders: Iterable[_Remainder], max_clock_skew_ns: int) -> list[list[_RemainderGroup]]:
    """Return blocks to read: each has, of every four-tuple, the remainders (or overlapping groups) that come next.

    A block takes time of its own, so it has as many as possible: as long as sequence numbers tell its bytes apart, and
    up to the next conversation.
    """
    blocks: list[list[_RemainderGroup]] = []
    by_four_tuple: dict[tuple[Any, ...], list[_Remainder]] = defaultdict(list)
    for remainder in remainders:
        by_four_tuple[_packed_endpoints(remainder.row)].append(remainder)
    numbers = itertools.count(1)
    for of_four_tuple in by_four_tuple.values():
        in_order = [of_four_tuple[index] for index in order_of_remainders([each.row for each in of_four_tuple])]
        position, size = 0, 0
        for place, group in enumerate(_groups_of_four_tuple(in_order, max_clock_skew_ns)):
            number = next(numbers)
            for remainder in group.remainders:
                remainder.group = number
            own = sum(segment["size"] for segment, _ in group.parts)
            if place and (group.is_replay or size + own > _MAX_BLOCK_BYTES):
                position, size = position + 1, 0
            size += own
            if position == len(blocks):
                blocks.append([])
            blocks[position].append(group)
    return blocks


def _groups_of_four_tuple(remainders: Sequence[_Remainder], max_clock_skew_ns: int) -> Iterator[_RemainderGroup]:
    """Yield the remainders of a four-tuple, those that overlap as one, and set their taps."""
    captured = [Captured(remainder.row) for remainder in remainders]
    overlaps = find_overlaps(captured)
    numbers = conversations(captured, overlaps, max_clock_skew_ns)
    pairs = side_by_side_pairs(captured, overlaps, numbers)
    taps = assign_taps(captured, numbers, pairs)
    for index, (remainder, tap) in enumerate(zip(remainders, taps, strict=True)):
        remainder.tap, remainder.is_over_limit = tap, index in overlaps.over_limit
    groups = group_simultaneous(len(captured), [*pairs, *pairs_of_taps(captured, overlaps, numbers, taps)])
    groups.sort(key=lambda indexes: numbers[indexes[0]])
    first_of = {numbers[index]: index for index in range(len(numbers) - 1, -1, -1)}
    for indexes in groups:
        number = numbers[indexes[0]]
        first = first_of[number]
        rows = [remainders[index].row for index in indexes]
        if len(rows) == 1:
            parts = [CapturedSegment(segment, rows[0]["capture_id"]) for segment in rows[0]["segments"]]
        else:
            parts = overlay_segments(rows)
        yield _RemainderGroup(
            [remainders[index] for index in indexes],
            parts,
            tunnel_identifier(remainders[first].row),
            is_replay=number > 0 and first in indexes,
        )


@lru_cache(maxsize=65536)
def _pack_address(address: str) -> tuple[int, bytes]:
    """Return IP version and packed form of an address. Cached, because the same hosts recur."""
    parsed = ipaddress.ip_address(address)
    return parsed.version, parsed.packed


def _packed_endpoints(row: RowDict) -> tuple[PackedEndpoint, PackedEndpoint]:
    """Return both endpoints of a remainder, the lower one (side 0) first."""
    client: PackedEndpoint = (*_pack_address(row["client_address"]), row["client_port"])
    server: PackedEndpoint = (*_pack_address(row["server_address"]), row["server_port"])
    return (client, server) if client <= server else (server, client)


def _rpc_endpoints(pending: Iterable[RowDict]) -> set[tuple[bytes, int]]:
    return {(octets, port) for row in pending if row["kind"] == "rpc" for _, octets, port in _packed_endpoints(row)}


def _session_endpoints(pending: Iterable[RowDict]) -> set[tuple[bytes, int]]:
    """Return the servers of connections that some capture shows to be of the binary protocol."""
    return {
        (_pack_address(row["server_address"])[1], row["server_port"])
        for row in pending
        if row["kind"] == "binary_protocol"
    }


def _build_segments(block: list[_RemainderGroup], packet_numbers: _PacketNumbers) -> tuple[TcpSegments, Ints]:
    """Return the segments of a block, and their number per remainder group."""
    counts = np.array([len(group.parts) for group in block], np.int64)
    owner = np.repeat(np.arange(len(block)), counts)
    parts = [part for group in block for part in group.parts]
    facts = np.array([_SEGMENT_FIELDS(segment) for segment, _ in parts], np.int64).T.copy()
    side, length, time, sequence, acknowledgement, flags, file_offset = facts if parts else np.zeros((7, 0), np.int64)
    numbers = [
        packet_numbers.add(capture_id, segment["number"]) if segment["number"] else 0 for segment, capture_id in parts
    ]
    data = [segment["data"] or b"" for segment, _ in parts]
    captured = np.array([len(octets) for octets in data], np.int64)
    # Two endpoints per group, of sides 0 and 1.
    ends = [end for group in block for end in _packed_endpoints(group.remainders[0].row)]
    octets = np.frombuffer(b"".join(each.ljust(16, b"\0") for _, each, _ in ends), np.uint8).reshape(-1, 16)
    ports = np.array([port for _, _, port in ends], np.int64)
    source = 2 * owner + (side != 0)
    target = source ^ 1
    segments = TcpSegments(
        buffer=bytearray(b"".join([*data, bytes(64)])), record_index=np.arange(len(parts)),
        packet_number=np.array(numbers, np.int64), time_ns=time,
        ip_version=np.array([version for version, _, _ in ends], np.int64)[source],
        source_address=octets[source], target_address=octets[target],
        source_port=ports[source], target_port=ports[target],
        sequence=sequence, acknowledgement=acknowledgement, tcp_flags=flags,
        payload_start=np.cumsum(captured) - captured, file_offset=file_offset, captured_length=captured,
        payload_length=length, record_count=np.ones(len(parts), np.int64),
        record_classes=np.full(len(parts), RECORD_SEGMENT, np.int8), header_bytes=np.zeros(len(parts), np.int64),
        tunnel=np.zeros(len(parts), np.int64),
        tunnel_identifier=np.array([group.tunnel_identifier for group in block], np.int64)[owner],
    )  # fmt: skip
    return segments, counts


def _assign_connections(
    block: list[_RemainderGroup], tracker: ConnectionTracker, counts: Ints, known_count: int
) -> None:
    """Set the connection of each remainder in a block, and update the connection with its times and client.

    ``counts``: number of segments per group. ``known_count``: number of connections before this block, whose keys are
    fixed already.
    """
    named = set(range(known_count))
    for group, count, end in zip(block, counts.tolist(), np.cumsum(counts).tolist(), strict=True):
        if not count:
            continue
        connection = tracker.connections[int(tracker.segment_connections[end - 1])]
        if connection.index not in named:
            named.add(connection.index)
            connection.named_at_ns = earliest_ns(*(_named_at(remainder.row) for remainder in group.remainders))
        for remainder in group.remainders:
            row = remainder.row
            remainder.connection = connection
            remainder.stream_ends = [
                direction.stream_offset_of(place["sequence"])
                for direction, place in zip(connection.directions, row["stream_ends"] or (), strict=False)
            ]
            remainder.base_sequences = [
                direction.base_sequence
                for direction, _ in zip(connection.directions, remainder.stream_ends, strict=False)
            ]
            connection.first_time_ns = earliest_ns(connection.first_time_ns, row["first_time_ns"])
            connection.last_time_ns = max(connection.last_time_ns, row["last_time_ns"])
            if connection.client_side is None and row["client_known"]:
                low, _ = _packed_endpoints(row)
                connection.client_side = 0 if (*_pack_address(row["client_address"]), row["client_port"]) == low else 1


def _named_at(row: RowDict) -> int:
    """Return the time for the connection's key; rows from before 2026-11 lack ``named_at_ns``."""
    return int(row["first_time_ns"] if row["named_at_ns"] is None else row["named_at_ns"])


def _infer_contexts(scan: CaptureScan, by_connection: dict[int, list[_Remainder]]) -> InferredContexts:
    """Infer the interfaces of contexts without a bind in any capture, from the call shapes of all captures."""
    for index, remainders in by_connection.items():
        connection = scan.connections[index]
        association = association_of(connection)
        _, address, port = connection.endpoints[connection.likely_client_side() ^ 1]
        for remainder in remainders:
            for name in remainder.row["learned_interfaces"] or ():
                scan.learned_endpoints.setdefault((address, port), set()).add(name)
            for one in remainder.row["evidence"] or ():
                if not association.contexts.get(one["context_id"]):
                    seen = CallShape(one["opnum"], one["request"], one["response"], one["syntax"])
                    association.unbound_call_shapes.setdefault(one["context_id"], set()).add(seen)
    return infer_contexts(scan)


def _add_hidden_counts(by_connection: dict[int, list[_Remainder]]) -> None:
    """Add the byte counts of the remainders, which their segments do not show, to the merged connections.

    Of the taps of overlapping remainders the largest count is used. Bytes of calls that were not kept
    (``dropped_bytes``) count as missing until their capture is read again, or for ever if its file is gone; of these
    the smallest count is used.
    """
    for remainders in by_connection.values():
        connection = remainders[0].connection
        connection.packet_count = sum(remainder.row["packets"] for remainder in remainders)
        groups: dict[int, dict[int, list[RowDict]]] = defaultdict(lambda: defaultdict(list))
        for remainder in remainders:
            groups[remainder.group][remainder.tap].append(remainder.row)
        for number, side in enumerate(connection.directions):
            for taps in groups.values():
                counts = [_sum_sides(rows, number) for rows in taps.values()]
                largest = {name: max(each[name] for each in counts) for name in SIDE_STRUCT.names}
                side.distinct_bytes += largest["distinct_bytes"]
                side.missing_bytes += largest["missing_bytes"]
                side.lost_by_capture_bytes += largest["lost_by_capture_bytes"]
                side.retransmitted_bytes += largest["retransmitted_bytes"]
                side.conflicting_bytes += largest["conflicting_bytes"]
                side.unrecognised_bytes += largest["passed_over_bytes"]
                dropped = min(sum(_dropped_bytes(row, number, connection) for row in rows) for rows in taps.values())
                side.distinct_bytes -= dropped
                side.missing_bytes += dropped
                side.lost_by_capture_bytes += dropped


def _sum_sides(rows: Iterable[RowDict], number: int) -> dict[str, int]:
    """Return the byte counts of a side, summed over the remainders of a tap."""
    sides = [row["sides"][number] for row in rows]
    return {name: sum(side[name] for side in sides) for name in SIDE_STRUCT.names}


def _dropped_bytes(row: RowDict, number: int, connection: TcpConnection) -> int:
    """Return the dropped bytes of a side in a remainder, except those of contexts that are not MSMQ."""
    bound = association_of(connection).contexts
    return sum(
        one["bytes"]
        for one in row["dropped_bytes"] or ()
        if one["side"] == number and _may_be_msmq(bound.get(one["context_id"]))
    )


def _may_be_msmq(bound: Sequence[BoundContext] | None) -> bool:
    """Whether a context is bound to an MSMQ interface, or its bind was not seen."""
    return not bound or any(context.interface_uuid in INTERFACES_BY_UUID for context in bound)


def _drop_repeated_requests(
    calls: list[pa.RecordBatch], by_connection: dict[int, list[_Remainder]], packet_numbers: _PacketNumbers
) -> list[pa.RecordBatch]:
    """Remove unanswered requests that another capture contains too, with their response, at its beginning.

    The request was sent again, or the packet is in both files. The other capture has finished the call and has a row of
    it. If the call is large, its PDUs were not retained, so that the request is among the bytes without data at the
    beginning of the remainder.
    """
    finished: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for remainders in by_connection.values():
        connection = remainders[0].connection
        for row in (remainder.row for remainder in remainders):
            for one in row["segments"]:
                begins = one["flags"] & (STREAM_START | FRAMED_BEFORE | SKIPPED_BEFORE) == STREAM_START | FRAMED_BEFORE
                if begins and one["side"] == connection.likely_client_side():
                    finished[connection_id(connection)].append((one["sequence"], one["size"], row["capture_id"]))
    if not finished:
        return calls
    for begins in finished.values():
        begins.sort()

    def is_there(name: str, sequence: int, packet: int) -> bool:
        return any(
            ahead < size and capture_id != packet_numbers.captures[packet]
            for ahead, (_, size, capture_id) in nearest_before(finished.get(name, ()), sequence)
        )

    kept = []
    for batch in calls:
        unanswered = np.flatnonzero(pc.equal(batch.column("outcome"), "no_response").to_numpy(zero_copy_only=False))
        some = batch.select(["connection_id", "request_sequence", "request_packet"]).take(pa.array(unanswered))
        there = [is_there(*row) for row in zip(*(column.to_pylist() for column in some.columns), strict=True)]
        mask = np.ones(batch.num_rows, np.bool_)
        mask[unanswered] = ~np.array(there, np.bool_)
        kept.append(batch.filter(pa.array(mask)))
    return kept


def _count_calls(
    calls: list[pa.RecordBatch],
    by_connection: dict[int, list[_Remainder]],
    inferred: InferredContexts,
    msmq_indexes: set[int],
    connections: list[TcpConnection],
) -> dict[int, int]:
    """Return the number of calls per connection: those of the merge, and those finished in one capture."""
    by_name: Counter[str] = Counter()
    for batch in calls:
        by_name.update(batch.column("connection_id").to_pylist())
    counts = {}
    for index in msmq_indexes:
        total = by_name[connection_id(connections[index])]
        for remainder in by_connection.get(index, ()):
            for one in remainder.row["finished_calls"]:
                if _has_rows(connections[index], one["context_id"], inferred):
                    total += one["calls"]
        counts[index] = total
    return counts


def _has_rows(connection: TcpConnection, context_id: int, inferred: InferredContexts) -> bool:
    """Whether calls of a context become rows: it is bound to an MSMQ interface, or has an inferred one."""
    if context_id < 0:
        return True
    bound = association_of(connection).usual_context(context_id)
    if bound is not None:
        return bound.interface_uuid in INTERFACES_BY_UUID
    return (connection.index, context_id) in inferred


def _restore_packet_numbers(
    batch: pa.RecordBatch, packet_numbers: _PacketNumbers, columns: dict[str, str]
) -> pa.RecordBatch:
    """Replace packet indexes of the merge by capture keys and packet numbers.

    ``columns`` maps capture columns to packet columns.
    """
    for capture, packet in columns.items():
        found = batch.column(packet).to_pylist()
        for name, values in (
            (capture, [None if at is None else packet_numbers.captures[at] for at in found]),
            (packet, [None if at is None else packet_numbers.numbers[at] for at in found]),
        ):
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, batch.schema.field(name), pa.array(values, batch.schema.field(name).type))
    return batch


def _finish_call_rows(calls: list[pa.RecordBatch], packet_numbers: _PacketNumbers) -> pa.RecordBatch:
    empty = pa.RecordBatch.from_pylist([], RPC_CALLS_SCHEMA)
    batch = next(iter(pa.Table.from_batches(calls, RPC_CALLS_SCHEMA).combine_chunks().to_batches()), empty)
    asked = batch.column("request_packet").to_pylist()
    batch = _restore_packet_numbers(batch, packet_numbers, {"response_capture_id": "response_packet"})
    captures = [
        response if at is None else packet_numbers.captures[at]
        for at, response in zip(asked, batch.column("response_capture_id").to_pylist(), strict=True)
    ]
    batch = _restore_packet_numbers(batch, packet_numbers, {"capture_id": "request_packet"})
    place = RPC_CALLS_SCHEMA.get_field_index("capture_id")
    batch = batch.set_column(place, RPC_CALLS_SCHEMA.field("capture_id"), pa.array(captures, pa.string()))
    place = RPC_CALLS_SCHEMA.get_field_index("observations")
    return batch.set_column(place, RPC_CALLS_SCHEMA.field("observations"), pa.array([1] * len(asked), pa.int32()))


def _finish_packet_rows(
    packets: list[pa.RecordBatch], packet_numbers: _PacketNumbers, coverage: dict[str, PacketCoverage]
) -> pa.RecordBatch:
    """Return the rows of packets with their captures, and with how many captures have bytes of each."""
    empty = pa.RecordBatch.from_pylist([], SESSION_PACKETS_SCHEMA)
    batch = next(iter(pa.Table.from_batches(packets, SESSION_PACKETS_SCHEMA).combine_chunks().to_batches()), empty)
    batch = _restore_packet_numbers(batch, packet_numbers, {"capture_id": "packet_number"})
    places = (batch.column(name).to_pylist() for name in ("connection_id", "sent_by", "stream_offset", "length_bytes"))
    counts = [
        max(len(coverage[identity].captures_with(side, offset, size)), 1) if identity in coverage else 1
        for identity, side, offset, size in zip(*places, strict=True)
    ]
    place = SESSION_PACKETS_SCHEMA.get_field_index("observations")
    return batch.set_column(place, SESSION_PACKETS_SCHEMA.field("observations"), pa.array(counts, pa.int32()))


def _packet_coverage(by_connection: dict[int, list[_Remainder]]) -> dict[str, PacketCoverage]:
    """Return what each capture has of connections of the binary protocol, by connection_id."""
    found = {}
    for remainders in by_connection.values():
        connection = remainders[0].connection
        if connection.kind is not ConnectionKind.BINARY:
            continue
        ranges: dict[str, list[tuple[str, int, int]]] = {}
        kept: dict[str, list[KeptBytes]] = {}
        for number, name in _sides_by_name(connection):
            first = connection.directions[number].first_offset
            ranges[name], kept[name] = [], []
            for remainder in remainders:
                capture_id, ends = remainder.row["capture_id"], remainder.stream_ends
                for low, high, segment in captured_ranges(remainder.row, number, ends[number]) if ends else ():
                    ranges[name].append((capture_id, low - first, high - first))
                    if segment["data"]:
                        place = segment["time_ns"], segment["number"], segment["file_offset"]
                        kept[name].append(KeptBytes(capture_id, low - first, high - first, *place))
        found[connection_id(connection)] = PacketCoverage(ranges, kept)
    return found


def _sides_by_name(connection: TcpConnection) -> tuple[tuple[int, str], tuple[int, str]]:
    client = connection.likely_client_side()
    return (client, "client"), (client ^ 1, "server")


def _packet_moves(by_connection: dict[int, list[_Remainder]]) -> list[RowDict]:
    """Return where the packets belong that each capture cut alone (``PACKET_MOVES_SCHEMA``)."""
    rows = []
    for remainders in by_connection.values():
        connection = remainders[0].connection
        if connection.kind is not ConnectionKind.BINARY:
            continue
        columns = dict(zip(PACKET_MOVES_SCHEMA.names[3:7], four_tuple(connection), strict=True))
        for remainder in remainders:
            now = _stream_ends(remainder)
            shifts = {
                f"{name}_shift": now[number]["stream_offset"] - remainder.row["stream_ends"][number]["stream_offset"]
                if now
                else 0
                for number, name in _sides_by_name(connection)
            }
            rows.append(
                {
                    "capture_id": remainder.row["capture_id"],
                    "was_connection_id": remainder.row["connection_id"],
                    "connection_id": connection_id(connection),
                    **columns,
                    **shifts,
                }
            )
    return rows


def _stream_ends(remainder: _Remainder) -> list[RowDict]:
    """Return the places up to which a remainder's directions were read, with offsets in the merged connection."""
    directions = remainder.connection.directions
    return [
        {**place, "stream_offset": end - direction.first_offset}
        for direction, place, end in zip(
            directions, remainder.row["stream_ends"] or (), remainder.stream_ends, strict=False
        )
    ]


def _taps_by_connection(by_connection: dict[int, list[_Remainder]]) -> dict[str, ConnectionTaps]:
    """Return the taps of the connections that several captures saw at the same time, by connection_id."""
    found = {}
    for remainders in by_connection.values():
        if _is_shared(remainders):
            connection = remainders[0].connection
            found[connection_id(connection)] = ConnectionTaps.from_remainders(
                connection.likely_client_side(), ((remainder.tap, remainder.row) for remainder in remainders)
            )
    return found


def _is_shared(remainders: list[_Remainder]) -> bool:
    """Whether several captures saw a connection at the same time."""
    return len({one.group for one in remainders}) < len(remainders)


def _quarantine_rows(
    connections: list[TcpConnection],
    by_connection: dict[int, list[_Remainder]],
    msmq_indexes: set[int],
    packet_numbers: _PacketNumbers,
) -> list[RowDict]:
    """Return ``quarantine`` rows: strays of MSMQ connections, and all bytes of unrecognised RPC connections."""
    chosen = [c for c in connections if c.index in msmq_indexes or c.kind is ConnectionKind.BINARY]
    rows = list(quarantine_rows(chosen, msmq_indexes, ""))
    for row in rows:
        number = row["packet_number"] or 0
        row["capture_id"] = packet_numbers.captures[number]
        row["packet_number"] = packet_numbers.numbers[number] or None
    for index, remainders in by_connection.items():
        connection = connections[index]
        if (
            index in msmq_indexes
            or connection.kind is not ConnectionKind.RPC
            or association_of(connection).has_only_other_interfaces
        ):
            continue
        states = [side.framing_state for side in connection.directions]
        if not any(isinstance(state, FramingState) and state.recognised for state in states) and not any(
            remainder.row["recognised"] for remainder in remainders
        ):
            continue
        for number in (0, 1):
            for run, capture_id in _merge_runs(remainders, number):
                stray = StrayBytes(
                    0, run["size"], run["sample"], "unrecognised", run["time_ns"], run["number"], run["file_offset"]
                )
                rows.append(quarantine_row(connection, run["sequence"], stray, capture_id, is_msmq=False))
    return rows


def _merge_runs(remainders: list[_Remainder], side: int) -> list[tuple[RowDict, str]]:
    """Return the runs of unrecognised bytes of one direction, joined where those of several captures meet."""
    runs = [(run, one.row["capture_id"]) for one in remainders for run in one.row["runs"] if run["side"] == side]
    lead = runs[0][0]["sequence"] if runs else 0
    runs.sort(key=lambda each: (sequence_difference(each[0]["sequence"] - lead), each[0]["time_ns"], each[1]))
    merged: list[tuple[RowDict, str]] = []
    for run, capture_id in runs:
        last = merged[-1][0] if merged else None
        overlap = -1 if last is None else sequence_difference(last["sequence"] + last["size"] - run["sequence"])
        if last is None or overlap < 0:
            merged.append((dict(run), capture_id))
        elif overlap < run["size"]:
            if len(last["sample"]) == last["size"]:
                last["sample"] = (last["sample"] + run["sample"][overlap:])[:QUARANTINE_SAMPLE_BYTES]
            last["size"] += run["size"] - overlap
    return merged


def _label_rows(
    by_connection: dict[int, list[_Remainder]], msmq_indexes: set[int], contexts: list[RowDict]
) -> list[RowDict]:
    """Return the label of each remainder: its connection, and a digest of what its finished calls are updated with."""
    rows = []
    means: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for one in contexts:
        means[one["capture_id"], one["was_connection_id"]] += [
            one[name] for name in PRESENTATION_CONTEXTS_SCHEMA.names[2:]
        ]
    for index, remainders in by_connection.items():
        connection = remainders[0].connection
        columns = dict(zip(CONNECTION_LABELS_SCHEMA.names[3:7], four_tuple(connection), strict=True))
        is_ours = index in msmq_indexes or connection.kind is ConnectionKind.BINARY
        handshake, together = association_of(connection).has_handshake, _is_shared(remainders)
        for remainder in remainders:
            row = remainder.row
            digest = key(is_ours, handshake, *means[row["capture_id"], row["connection_id"]])
            rows.append(
                {
                    "capture_id": row["capture_id"],
                    "was_connection_id": row["connection_id"],
                    "connection_id": connection_id(connection),
                    **columns,
                    "ours": is_ours,
                    "handshake": handshake,
                    "together": together,
                    "merge_digest": digest,
                    "again": _interfaces_to_reread(connection, is_msmq=index in msmq_indexes)
                    if "capture" in row["waits_for"]
                    else None,
                }
            )
    return rows


def _interfaces_to_reread(connection: TcpConnection, *, is_msmq: bool) -> list[str] | None:
    """Return what a capture that kept only a part of a connection has to know of it: names of MSMQ interfaces."""
    if connection.kind is ConnectionKind.BINARY:
        return [SESSION_ENDPOINT]
    return _bound_interfaces(connection) if is_msmq else None


def _bound_interfaces(connection: TcpConnection) -> list[str]:
    """Return the names of the MSMQ interfaces that contexts of a connection are bound to."""
    bound = (
        context.interface_uuid for contexts in association_of(connection).contexts.values() for context in contexts
    )
    return sorted({INTERFACES_BY_UUID[uuid].name for uuid in bound if uuid in INTERFACES_BY_UUID})


def _packet_count_changes(
    by_connection: dict[int, list[_Remainder]],
    msmq_indexes: set[int],
    learned_by_connection: dict[int, set[tuple[bytes, int, str]]],
) -> pa.RecordBatch:
    changed: dict[str, Counter[str]] = defaultdict(Counter)
    servers: dict[str, Counter[str]] = defaultdict(Counter)
    learned: dict[str, set[str]] = defaultdict(set)
    for index, remainders in by_connection.items():
        for remainder in remainders:
            learned[remainder.row["capture_id"]] |= endpoint_texts(learned_by_connection.get(index, ()))
            row, now = remainder.row, packet_count_column(remainder.connection, is_msmq=index in msmq_indexes)
            server = four_tuple(remainder.connection)[2]
            if (now, server) != (row["counted"], row["counted_server"]):
                changed[row["capture_id"]][now] += row["packets"]
                changed[row["capture_id"]][row["counted"]] -= row["packets"]
                for counted_as, address, more in ((row["counted"], row["counted_server"], -1), (now, server, 1)):
                    servers[row["capture_id"]][address] += more if counted_as != "packets_other" else 0
    rows = [
        {
            "capture_id": name,
            **{count: changed[name][count] for count in PACKET_COUNT_COLUMNS},
            "server_connections": server_connection_counts(servers[name]),
            "learned_endpoints": sorted(places),
        }
        for name, places in sorted(learned.items())
        if name in changed or places
    ]
    return pa.RecordBatch.from_pylist(rows, PACKET_COUNTS_SCHEMA)


def add_packet_counts(row: RowDict, changes: RowDict) -> None:
    """Apply a row of ``MergeResult.packet_counts`` to a capture's row of ``capture_files``."""
    for name in PACKET_COUNT_COLUMNS:
        row[name] += changes[name]
    row |= sum_server_connections(row["server_connections"], changes["server_connections"])
    row["learned_endpoints"] = sorted({*(row["learned_endpoints"] or ()), *changes["learned_endpoints"]}) or None


def _pending_changes(
    by_connection: dict[int, list[_Remainder]],
    labels: list[RowDict],
    calls: pa.RecordBatch,
    packets: pa.RecordBatch,
    strays: list[RowDict],
    msmq_indexes: set[int],
) -> pa.RecordBatch:
    """Return the changed columns of the remainders: connection, and keys of the rows that were made from them."""
    digest = {(label["capture_id"], label["was_connection_id"]): label["merge_digest"] for label in labels}
    made: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    names = (calls[name].to_pylist() for name in ("connection_id", "capture_id", "call_key"))
    columns = (_plain_numbers(column).to_pylist() for column in calls.columns)
    for connection, capture, call, *values in zip(*names, *columns, strict=True):
        made[connection, capture][call] = _digest(values)
    cut: dict[tuple[str, str], list[str]] = defaultdict(list)
    columns_of_packets = (packets[name].to_pylist() for name in ("connection_id", "capture_id", "packet_key"))
    for connection, capture, packet in zip(*columns_of_packets, strict=True):
        cut[connection, capture].append(packet)
    of: dict[tuple[int, str], list[str]] = defaultdict(list)
    for stray in strays:
        of[stray["index"], stray["capture_id"]].append(stray["quarantine_key"])
    rows = []
    for index, remainders in by_connection.items():
        identity = connection_id(remainders[0].connection)
        for remainder in remainders:
            capture_id = remainder.row["capture_id"]
            theirs = dict(sorted(made.pop((identity, capture_id), {}).items()))
            rows.append(
                {
                    "pending_key": remainder.row["pending_key"],
                    "event_date": remainder.row["event_date"],
                    "connection_id": identity,
                    "call_keys": list(theirs),
                    "calls_made": key(*theirs.values()) if theirs else None,
                    "quarantine_keys": sorted(of.pop((index, capture_id), [])),
                    "packet_keys": sorted(cut.pop((identity, capture_id), [])),
                    "stream_ends": _stream_ends(remainder),
                    "counted": packet_count_column(remainder.connection, is_msmq=index in msmq_indexes),
                    "counted_server": four_tuple(remainder.connection)[2],
                    "merge_digest": digest[capture_id, remainder.row["connection_id"]],
                    "over_limit": TOO_MANY_AT_ONCE if remainder.is_over_limit else None,
                }
            )
    return pa.RecordBatch.from_pylist(rows, PENDING_CHANGES_SCHEMA)


def _plain_numbers(column: pa.Array) -> pa.Array:
    """Return times and dates as numbers, of which Python objects are made sooner."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date(column.type) else column


def _digest(values: Sequence[object]) -> str:
    """Return a digest of a row's values: there are very many, so they are spelled all at once, and bytes not at all."""
    texts = repr([len(value) if isinstance(value, bytes) else value for value in values])
    return hash_encoded_fields(b"".join((texts.encode(), *(value for value in values if isinstance(value, bytes)))))


def _context_meaning_rows(by_connection: dict[int, list[_Remainder]], inferred: InferredContexts) -> list[RowDict]:
    """Return the meanings of contexts with finished calls whose bind their capture did not see."""
    rows = []
    for index, remainders in by_connection.items():
        for remainder in remainders:
            connection = remainder.connection
            for one in remainder.row["finished_calls"]:
                context_id = one["context_id"]
                if context_id < 0:
                    continue
                bound = association_of(connection).usual_context(context_id)
                uuid, syntax = inferred.get((index, context_id), (None, None))
                level: tuple[int | None, int | None] = (None, None)
                if bound is not None:
                    uuid, syntax, level = bound.interface_uuid, bound.transfer_syntax, auth_if_connect_level(bound)
                    if bound.refused:
                        uuid = syntax = None
                interface = INTERFACES_BY_UUID.get(uuid or "")
                rows.append(
                    {
                        "capture_id": remainder.row["capture_id"],
                        "was_connection_id": remainder.row["connection_id"],
                        "context_id": context_id,
                        "known": _has_rows(connection, context_id, inferred),
                        "bind_seen": bound is not None,
                        "interface_uuid": uuid,
                        "interface_name": None if interface is None else interface.name,
                        "transfer_syntax": syntax,
                        "auth_type": level[0],
                        "auth_level": level[1],
                    }
                )
    return rows
