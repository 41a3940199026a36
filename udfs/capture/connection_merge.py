"""Merges connections across captures: reads the remainders (``bronze.pending``) of several captures as one capture.

The result depends only on the set of remainders, because they are sorted by time first. It contains the rows of all
connections in the remainders, and for each remainder the connection that it belongs to (labels). Rows that one capture
finished alone stay: they only get the key of that connection and, if their bind was in another capture, its meaning.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.capture.bronze_rows import bind_rows, connection_rows, quarantine_batch, quarantine_row, quarantine_rows
from udfs.capture.capture_reader import infer_contexts, is_msmq_connection
from udfs.capture.capture_scan import CaptureScan
from udfs.capture.clock_steps import NO_STEPS, ClockSteps
from udfs.capture.merged_remainders import (
    CONNECTION_LABELS_SCHEMA,
    PRESENTATION_CONTEXTS_SCHEMA,
    context_meaning_rows,
    has_rows,
    label_rows,
    packet_count_changes,
    packet_move_rows,
    pending_changes,
    sides_by_name,
)
from udfs.capture.open_connections import SIDE_STRUCT
from udfs.capture.overlapping_captures import captured_ranges, nearest_before
from udfs.capture.remainders import (
    NO_CONNECTION,
    KnownEnd,
    PacketIndexes,
    Remainder,
    assign_connections,
    build_blocks,
    build_segments,
    is_shared,
    remainder_endpoints,
    rpc_endpoints,
    session_endpoints,
    time_order,
)
from udfs.capture.taps import ConnectionTaps
from udfs.dcerpc.interfaces import INTERFACES_BY_UUID, CallShape
from udfs.rows import RowDict
from udfs.rpc.association_state import BoundContext
from udfs.rpc.call_assembly import CallAssembler, association_of
from udfs.rpc.call_rows import CallRowBuilder, InferredContexts
from udfs.rpc.call_schema import RPC_CALLS_SCHEMA
from udfs.rpc.connection_identity import connection_id
from udfs.rpc.pdu_framing import QUARANTINE_SAMPLE_BYTES, FramingState, PduFramer, StrayBytes
from udfs.sessions.packet_framing import SessionFramer, recognise_sessions
from udfs.sessions.packet_headers import is_establish_connection
from udfs.sessions.packet_rows import SESSION_PACKETS_SCHEMA, SessionPacketRows
from udfs.sessions.packet_sightings import PACKET_MOVES_SCHEMA, KeptBytes, PacketCoverage
from udfs.tcp.capture_budget import CaptureBudget
from udfs.tcp.connection_tracker import BlockStreams, ConnectionTracker
from udfs.tcp.connections import ConnectionKind, TcpConnection, sequence_difference
from udfs.tcp.packet_decoder import FRAMED_BEFORE, SKIPPED_BEFORE, STREAM_START
from udfs.tcp.time_limits import DEFAULT_TIME_LIMITS, TimeLimits


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


def merge_connections(
    pending: Sequence[RowDict], limits: TimeLimits = DEFAULT_TIME_LIMITS, steps: ClockSteps = NO_STEPS,
    elsewhere: Sequence[KnownEnd] = (),
) -> MergeResult:  # fmt: skip
    """Merge the connections in remainders (rows of ``bronze.pending``); ``steps`` are those of their captures.

    ``elsewhere``: ends of these connections, as remainders show them that are merged without these.
    """
    remainders = [Remainder(row) for row in sorted(pending, key=time_order)]
    packet_indexes = PacketIndexes()
    tracker, framer, assembler, builder = (
        ConnectionTracker(limits, CaptureBudget.unlimited(), is_establish_connection),
        PduFramer(),
        CallAssembler(),
        CallRowBuilder(),
    )
    tracker.known_endpoints = rpc_endpoints(pending, elsewhere)
    tracker.session_endpoints = session_endpoints(pending, elsewhere)
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

    for block in build_blocks(remainders, limits.max_clock_skew_ns):
        for group in block:
            if group.is_replay:
                tracker.forget_connection(remainder_endpoints(group.remainders[0].row), group.tunnel_identifier)
        segments, sizes = build_segments(block, packet_indexes)
        if not len(segments.record_index):
            continue
        known_count = len(tracker.connections)
        streams = tracker.add_block(segments)
        assign_connections(block, tracker, sizes, known_count)
        process(streams, final=False)
    process(tracker.finish_capture(), final=True)
    by_connection: dict[int, list[Remainder]] = defaultdict(list)
    for remainder in remainders:
        if remainder.connection is not NO_CONNECTION:
            remainder.move_stream_ends()
            by_connection[remainder.connection.index].append(remainder)
    scan = CaptureScan(connections=tracker.connections, learned_endpoints=builder.learned_endpoints)
    inferred = _infer_contexts(scan, by_connection, elsewhere)
    calls += builder.resolve_unbound_rows(inferred, tracker.connections)
    calls = _drop_repeated_requests(calls, by_connection, packet_indexes)
    msmq_indexes = {c.index for c in tracker.connections if is_msmq_connection(c)} | {index for index, _ in inferred}
    _add_hidden_counts(by_connection)
    strays = _quarantine_rows(tracker.connections, by_connection, msmq_indexes, packet_indexes)
    coverage = _packet_coverage(by_connection)
    counts = _count_calls(calls, by_connection, inferred, msmq_indexes, tracker.connections)
    tables = {
        "connections": connection_rows(tracker.connections, msmq_indexes, counts, {}),
        "rpc_binds": _restore_packet_numbers(
            bind_rows(tracker.connections, msmq_indexes, ""), packet_indexes, {"capture_id": "packet_number"}
        ),
        "quarantine": quarantine_batch(strays),
        "rpc_calls": steps.with_clocks(_finish_call_rows(calls, packet_indexes)),
        "session_packets": _finish_packet_rows(packets, packet_indexes, coverage),
    }
    contexts = context_meaning_rows(by_connection, inferred)
    labels = label_rows(by_connection, msmq_indexes, contexts)
    return MergeResult(
        tables,
        pa.RecordBatch.from_pylist(labels, CONNECTION_LABELS_SCHEMA),
        pa.RecordBatch.from_pylist(contexts, PRESENTATION_CONTEXTS_SCHEMA),
        pending_changes(by_connection, labels, tables["rpc_calls"], tables["session_packets"], strays, msmq_indexes),
        packet_count_changes(by_connection, msmq_indexes, builder.learned_by_connection),
        _taps_by_connection(by_connection),
        pa.RecordBatch.from_pylist(packet_move_rows(by_connection), PACKET_MOVES_SCHEMA),
        {identity: found for identity, found in coverage.items() if found.is_shared()},
    )


def _infer_contexts(
    scan: CaptureScan, by_connection: dict[int, list[Remainder]], elsewhere: Iterable[KnownEnd]
) -> InferredContexts:
    """Infer the interfaces of contexts without a bind in any capture, from the call shapes of all captures."""
    for end in elsewhere:
        if end.interfaces:
            scan.learned_endpoints.setdefault(end.packed, set()).update(end.interfaces)
    for index, remainders in by_connection.items():
        connection = scan.connections[index]
        association = association_of(connection)
        _, address, port = connection.endpoints[connection.likely_client_side() ^ 1]
        for remainder in remainders:
            for name in remainder.row["learned_interfaces"] or ():
                scan.learned_endpoints.setdefault((address, port), set()).add(name)
            association.has_skipped_bytes |= any(
                one["flags"] & SKIPPED_BEFORE for one in remainder.row["segments"] or ()
            )
            for one in remainder.row["evidence"] or ():
                if not association.contexts.get(one["context_id"]):
                    seen = CallShape(one["opnum"], one["request"], one["response"], one["syntax"])
                    association.unbound_call_shapes.setdefault(one["context_id"], set()).add(seen)
    return infer_contexts(scan)


def _add_hidden_counts(by_connection: dict[int, list[Remainder]]) -> None:
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
    calls: list[pa.RecordBatch], by_connection: dict[int, list[Remainder]], packet_indexes: PacketIndexes
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
            ahead < size and capture_id != packet_indexes.captures[packet]
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
    by_connection: dict[int, list[Remainder]],
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
                if has_rows(connections[index], one["context_id"], inferred):
                    total += one["calls"]
        counts[index] = total
    return counts


def _restore_packet_numbers(
    batch: pa.RecordBatch, packet_indexes: PacketIndexes, columns: dict[str, str]
) -> pa.RecordBatch:
    """Replace packet indexes of the merge by capture keys and packet numbers.

    ``columns`` maps capture columns to packet columns.
    """
    for capture, packet in columns.items():
        found = batch.column(packet).to_pylist()
        for name, values in (
            (capture, [None if at is None else packet_indexes.captures[at] for at in found]),
            (packet, [None if at is None else packet_indexes.numbers[at] for at in found]),
        ):
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, batch.schema.field(name), pa.array(values, batch.schema.field(name).type))
    return batch


def _finish_call_rows(calls: list[pa.RecordBatch], packet_indexes: PacketIndexes) -> pa.RecordBatch:
    empty = pa.RecordBatch.from_pylist([], RPC_CALLS_SCHEMA)
    batch = next(iter(pa.Table.from_batches(calls, RPC_CALLS_SCHEMA).combine_chunks().to_batches()), empty)
    asked = batch.column("request_packet").to_pylist()
    batch = _restore_packet_numbers(batch, packet_indexes, {"response_capture_id": "response_packet"})
    captures = [
        response if at is None else packet_indexes.captures[at]
        for at, response in zip(asked, batch.column("response_capture_id").to_pylist(), strict=True)
    ]
    batch = _restore_packet_numbers(batch, packet_indexes, {"capture_id": "request_packet"})
    place = RPC_CALLS_SCHEMA.get_field_index("capture_id")
    batch = batch.set_column(place, RPC_CALLS_SCHEMA.field("capture_id"), pa.array(captures, pa.string()))
    place = RPC_CALLS_SCHEMA.get_field_index("observations")
    return batch.set_column(place, RPC_CALLS_SCHEMA.field("observations"), pa.array([1] * len(asked), pa.int32()))


def _finish_packet_rows(
    packets: list[pa.RecordBatch], packet_indexes: PacketIndexes, coverage: dict[str, PacketCoverage]
) -> pa.RecordBatch:
    """Return the rows of packets with their captures, and with how many captures have bytes of each."""
    empty = pa.RecordBatch.from_pylist([], SESSION_PACKETS_SCHEMA)
    batch = next(iter(pa.Table.from_batches(packets, SESSION_PACKETS_SCHEMA).combine_chunks().to_batches()), empty)
    batch = _restore_packet_numbers(batch, packet_indexes, {"capture_id": "packet_number"})
    places = (batch.column(name).to_pylist() for name in ("connection_id", "sent_by", "stream_offset", "length_bytes"))
    counts = [
        max(len(coverage[identity].captures_with(side, offset, size)), 1) if identity in coverage else 1
        for identity, side, offset, size in zip(*places, strict=True)
    ]
    place = SESSION_PACKETS_SCHEMA.get_field_index("observations")
    return batch.set_column(place, SESSION_PACKETS_SCHEMA.field("observations"), pa.array(counts, pa.int32()))


def _packet_coverage(by_connection: dict[int, list[Remainder]]) -> dict[str, PacketCoverage]:
    """Return what each capture has of connections of the binary protocol, by connection_id."""
    found = {}
    for remainders in by_connection.values():
        connection = remainders[0].connection
        if connection.kind is not ConnectionKind.BINARY:
            continue
        ranges: dict[str, list[tuple[str, int, int]]] = {}
        kept: dict[str, list[KeptBytes]] = {}
        for number, name in sides_by_name(connection):
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


def _taps_by_connection(by_connection: dict[int, list[Remainder]]) -> dict[str, ConnectionTaps]:
    """Return the taps of the connections that several captures saw at the same time, by connection_id."""
    found = {}
    for remainders in by_connection.values():
        if is_shared(remainders):
            connection = remainders[0].connection
            found[connection_id(connection)] = ConnectionTaps.from_remainders(
                connection.likely_client_side(), ((remainder.tap, remainder.row) for remainder in remainders)
            )
    return found


def _quarantine_rows(
    connections: list[TcpConnection],
    by_connection: dict[int, list[Remainder]],
    msmq_indexes: set[int],
    packet_indexes: PacketIndexes,
) -> list[RowDict]:
    """Return ``quarantine`` rows: strays of MSMQ connections, and all bytes of unrecognised RPC connections."""
    chosen = [c for c in connections if c.index in msmq_indexes or c.kind is ConnectionKind.BINARY]
    rows = list(quarantine_rows(chosen, msmq_indexes, ""))
    for row in rows:
        number = row["packet_number"] or 0
        row["capture_id"] = packet_indexes.captures[number]
        row["packet_number"] = packet_indexes.numbers[number] or None
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


def _merge_runs(remainders: list[Remainder], side: int) -> list[tuple[RowDict, str]]:
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
