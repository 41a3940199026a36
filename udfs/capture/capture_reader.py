"""Reader of one capture file: yields the rows of the bronze tables, in bounded memory and without Spark.

The file is read once, in blocks: records, headers, streams, PDUs, calls. Finished calls are returned block by block.
Rows that depend on the end of a connection or of the file (connections, binds, quarantine, the file itself) follow at
the end. Where times go back, reading begins anew when it is known why (``record_order``).

Calls without a bind wait for the end too: their interface is inferred from all calls of their context. A second pass is
made only if the file shows that MSMQ listens on an endpoint, and connections to it were skipped; or that a segment was
damaged on its way and sent again. From the block where this shows, the rows of its connection wait for the second pass.
"""

from __future__ import annotations

import ipaddress
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.capture.bronze_rows import (
    CAPTURE_FILES_SCHEMA,
    CONNECTIONS_SCHEMA,
    PDUS_SCHEMA,
    QUARANTINE_SCHEMA,
    RPC_BINDS_SCHEMA,
    bind_rows,
    capture_file_row,
    connection_rows,
    flush_stray_rows,
    pdu_batch,
    quarantine_batch,
    quarantine_rows,
)
from udfs.capture.capture_scan import CaptureScan
from udfs.capture.clock_steps import ClockSteps
from udfs.capture.open_connections import PENDING_SCHEMA, build_pending_rows, find_open_connections
from udfs.capture.openings import OVER_LIMIT, attempts_of_capture, find_heard_clients
from udfs.capture.record_order import (
    RecordOrder,
    TimesGoBackError,
    TimeWatch,
    find_record_order,
    records_by_time,
)
from udfs.capture.silences import SetForwardError, Silences, find_steps_forward, look_for_silences
from udfs.columns.absent import NO_TIME
from udfs.dcerpc.interfaces import infer_interface
from udfs.errors import describe_failure, is_resource_failure
from udfs.files.capture_file import CaptureFileReader, NotACaptureError, RecordBlock, resume_read_offset
from udfs.files.file_source import DecompressedStream, ExpansionLimitError, FileSource
from udfs.rpc.association_state import RpcAssociation
from udfs.rpc.call_assembly import CallAssembler, association_of
from udfs.rpc.call_rows import CallRowBuilder, EmittedCalls, InferredContext, InferredContexts
from udfs.rpc.call_schema import RPC_CALLS_SCHEMA
from udfs.rpc.pdu_framing import PduFramer
from udfs.sessions.packet_framing import SessionFramer, recognise_sessions
from udfs.sessions.packet_headers import is_establish_connection
from udfs.sessions.packet_rows import SESSION_PACKETS_SCHEMA, SessionPacketRows
from udfs.sessions.pings import MAX_PINGS, PING_PORT, PINGS_SCHEMA, ping_rows, pings_batch, read_ping
from udfs.tcp.bad_copies import DisputedBytes, find_disputed_bytes
from udfs.tcp.capture_budget import PINGS_NOT_READ
from udfs.tcp.connection_tracker import BlockStreams, ConnectionTracker
from udfs.tcp.connections import ConnectionKind, TcpConnection
from udfs.tcp.mirror_copies import MirrorCopies
from udfs.tcp.packet_decoder import RECORD_DAMAGED, PacketDecoder, TcpSegments
from udfs.tcp.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from udfs.tcp.tunnels import TUNNEL_PORTS

BRONZE_SCHEMAS: Final = {
    "rpc_calls": RPC_CALLS_SCHEMA,
    "connections": CONNECTIONS_SCHEMA,
    "rpc_binds": RPC_BINDS_SCHEMA,
    "session_packets": SESSION_PACKETS_SCHEMA,
    "pings": PINGS_SCHEMA,
    "quarantine": QUARANTINE_SCHEMA,
    "pending": PENDING_SCHEMA,
    "capture_files": CAPTURE_FILES_SCHEMA,
    "pdus": PDUS_SCHEMA,
}


VOID: Final = "void"  # instead of a table's name: what was yielded before counts no more
_NOTHING: Final = pa.RecordBatch.from_pylist([], pa.schema([]))
SESSION_ENDPOINT: Final = "binary_protocol"  # stands for an interface's name in an ``InterfaceEndpoint``


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of the reader.

    ``block_bytes``: read at once.
    ``max_expansion_ratio``: decompressed bytes per compressed byte. ``max_expanded_bytes``: decompressed bytes of one
    capture. ``all_pdus``: list the PDUs of all interfaces too. ``tunnel_ports``: kinds of tunnels by UDP port.
    ``order_first``: look through the times of all packets before any row is returned, so that none is ``VOID`` later.
    """

    limits: TimeLimits = DEFAULT_TIME_LIMITS
    block_bytes: int = 16 << 20
    max_expansion_ratio: int = 1100
    max_expanded_bytes: int = 256 << 30
    all_pdus: bool = False
    tunnel_ports: Mapping[int, str] = field(default_factory=lambda: TUNNEL_PORTS)
    order_first: bool = False


class InterfaceEndpoint(NamedTuple):
    """An RPC interface at a server's address and port."""

    address: str
    port: int
    interface_name: str

    @property
    def text(self) -> str:
        """The text form ``address|port|interface``, as in ``CaptureReadRequest.reread_endpoints``."""
        return f"{self.address}|{self.port}|{self.interface_name}"

    @property
    def packed_endpoint(self) -> tuple[bytes, int]:
        """Packed address and port."""
        return ipaddress.ip_address(self.address).packed, self.port

    @staticmethod
    def parse(text: str) -> InterfaceEndpoint:
        """Return the endpoint of a text form."""
        address, port, interface = text.split("|")
        return InterfaceEndpoint(address, int(port), interface)


def endpoint_texts(places: Iterable[tuple[bytes, int, str]]) -> set[str]:
    """Return the text forms of (packed address, port, interface name) tuples."""
    return {InterfaceEndpoint(str(ipaddress.ip_address(octets)), port, name).text for octets, port, name in places}


@dataclass(frozen=True, slots=True)
class CaptureReadRequest:
    """What to read of a capture: from the beginning or from a resume state, up to where, and under which key.

    ``capture_id``: the key, None to compute it from the file. ``resume_state``: JSON of
    ``CaptureFileReader.resume_state``. ``reread_endpoints``: endpoints (``InterfaceEndpoint.text``) that other captures
    show; connections to them are framed from their first byte on. ``latest_time_ns``: a packet that says that it is
    later counts as one without a time; None: packets may have any time. ``end_offset``: in decompressed bytes; None:
    the end of the file.
    """

    capture_id: str | None = None
    resume_state: str | None = None
    reread_endpoints: tuple[str, ...] = ()
    latest_time_ns: int | None = None
    end_offset: int | None = None


class RereadConnections(NamedTuple):
    """What another pass over a capture reads again.

    ``only``: connections, each with the number of the block from which rows are missing; None: everything is read.
    ``disputed_bytes``: bytes of which copies with a wrong checksum are left out. ``returned_calls``: of calls that have
    rows already.
    """

    only: Mapping[int, int] | None
    disputed_bytes: dict[int, DisputedBytes]
    returned_calls: set[str]


def read_capture_batches(
    source: FileSource, options: ReadOptions | None = None, request: CaptureReadRequest | None = None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Read one capture and yield ``(table name, rows)``: calls as they are finished, the other tables at the end.

    Bad input never raises. It gives status and error in the row of ``capture_files``, and rows of ``quarantine``. An
    exception is an error of this program: ``failed_capture_row`` gives the capture's only row then. Where the times of
    a file go back, ``VOID`` instead of a table's name says that the rows before it are given again.
    """
    options, request = options or ReadOptions(), request or CaptureReadRequest()
    try:
        if options.order_first:
            _look_through_times(source, options, request)
        yield from _read_in_order(source, options, request, RecordOrder(), _Watch())
    except (TimesGoBackError, SetForwardError) as error:
        order = error.order if isinstance(error, SetForwardError) else _find_order(source, options, request)
        yield VOID, _NOTHING
        yield from _read_in_order(source, options, request, order, None)


class _Watch:
    """Looks for what makes the order of a file, while it is read for the first time."""

    def __init__(self) -> None:
        self.times = TimeWatch()
        self.silences = Silences()

    def check_times(self, records: RecordBlock) -> None:
        """Raise ``TimesGoBackError`` if the times of a file go back in its next block."""
        if self.times.goes_back(records.time_ns):
            raise TimesGoBackError

    def add(self, records: RecordBlock, segments: TcpSegments) -> None:
        """Add the next block of a file."""
        self.silences.add(records, segments, self.silences.near(records))

    def check_clock(self) -> None:
        """Raise ``SetForwardError`` if the clock of a file was set forward, when all of it was read."""
        if steps := self.silences.steps():
            raise SetForwardError(RecordOrder(tuple(steps)))


def _clock_steps(scan: CaptureScan) -> ClockSteps:
    """Return where the clock of a capture was set."""
    return ClockSteps([{"capture_id": scan.capture_id, "times_go_back": scan.order.rows()}])


def _look_through_times(source: FileSource, options: ReadOptions, request: CaptureReadRequest) -> None:
    """Raise ``TimesGoBackError`` if the times of a file go back, ``SetForwardError`` if its clock was set forward."""
    watch = _Watch()
    blocks = _timed_blocks(source, options, request, CaptureScan())
    for records in look_for_silences(blocks, PacketDecoder(options.tunnel_ports), watch.silences):
        watch.check_times(records)
    watch.check_clock()


def _find_order(source: FileSource, options: ReadOptions, request: CaptureReadRequest) -> RecordOrder:
    """Return the order of the records of a file whose times go back.

    Steps forward are looked for where the records are in order.
    """
    blocks = _timed_blocks(source, options, request, CaptureScan())
    order = find_record_order(blocks, PacketDecoder(options.tunnel_ports))
    if order.is_by_time:
        return order
    blocks = _timed_blocks(source, options, request, CaptureScan())
    forward = find_steps_forward(blocks, PacketDecoder(options.tunnel_ports), order)
    return RecordOrder(tuple(sorted((*order.steps, *forward))))


def _read_in_order(
    source: FileSource, options: ReadOptions, request: CaptureReadRequest, order: RecordOrder, watch: _Watch | None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Read one capture in an order of its records; ``watch``: raise an error if that is not the order."""
    inferred: InferredContexts = {}
    only: Mapping[int, int] | None = None
    suspects: dict[int, DisputedBytes] = {}
    returned: set[str] = set()
    calls: Counter[str] = Counter()
    by_connection: Counter[int] = Counter()
    emitted = EmittedCalls()
    learned: dict[tuple[bytes, int], set[str]] = {}
    for known in map(InterfaceEndpoint.parse, request.reread_endpoints):
        if known.interface_name != SESSION_ENDPOINT:
            learned.setdefault(known.packed_endpoint, set()).add(known.interface_name)
    reported: set[str] = set()
    while True:
        scan = CaptureScan(order=order)
        again = RereadConnections(only, suspects, returned)
        for kind, batch in _scan_capture(source, options, request, scan, learned, again, watch):
            if kind == "rpc_calls":
                batch = _clock_steps(scan).with_clocks(batch)  # noqa: PLW2901
                calls["calls"] += batch.num_rows
                calls["calls_damaged"] += pc.sum(pc.equal(batch.column("outcome"), "damaged")).as_py()
            yield kind, batch
        inferred |= scan.inferred_contexts
        emitted.add(scan.emitted_calls)
        for endpoint, names in scan.learned_endpoints.items():
            learned.setdefault(endpoint, set()).update(names)
        reported.update(*map(endpoint_texts, scan.learned_by_connection.values()))
        for connection in scan.connections:
            by_connection[connection.index] += (
                association_of(connection).call_count if connection.rpc_state is not None else 0
            )
        only = scan.connections_to_reread
        suspects, returned, watch = suspects | scan.disputed_bytes, returned | scan.returned_calls, None
        if not only:
            break
    scan.counts.update(calls)
    scan.reread_endpoints = request.reread_endpoints
    with_inferred = {index for index, _ in inferred}
    msmq_indexes = {c.index for c in scan.connections if c.index in with_inferred or is_msmq_connection(c)}
    heard = find_heard_clients(scan.connections, {} if scan.decoder is None else scan.decoder.heard)
    skipped_ns = _clock_steps(scan).skipped_us(scan.capture_id) * 1000
    span = (scan.first_time_ns or NO_TIME, scan.last_time_ns - skipped_ns if scan.last_time_ns else NO_TIME)
    failed, of_rpc, over_limit = attempts_of_capture(
        scan.connections, scan.capture_id, span, heard, msmq_indexes, learned.keys()
    )
    msmq_indexes |= of_rpc
    if over_limit:
        scan.budget.unread_packets[OVER_LIMIT] = over_limit
    yield "capture_files", capture_file_row(scan, source, msmq_indexes, reported)
    yield "connections", connection_rows(scan.connections, msmq_indexes, by_connection, failed)
    yield "pings", pings_batch(ping_rows(scan.pings))
    yield "rpc_binds", bind_rows(scan.connections, msmq_indexes, scan.capture_id)
    open_strays: dict[int, list[str]] = {}

    def strays() -> Iterator[dict[str, Any]]:
        for row in quarantine_rows(scan.connections, msmq_indexes, scan.capture_id):
            if row["open"]:
                open_strays.setdefault(row["index"], []).append(row["quarantine_key"])
            yield row

    yield "quarantine", quarantine_batch(strays())
    yield (
        "pending",
        build_pending_rows(
            scan.open_connections,
            scan.capture_id,
            emitted,
            open_strays,
            inferred,
            learned,
            scan.unfinished_packets,
            heard,
            of_rpc,
        ),
    )


def failed_capture_row(source: FileSource, request: CaptureReadRequest, error: Exception) -> pa.RecordBatch:
    """Return the ``capture_files`` row of a capture whose reading raised an exception: unreadable, and why."""
    scan = CaptureScan(capture_id=request.capture_id or "", reread_endpoints=request.reread_endpoints)
    scan.error = ("resource_limit" if is_resource_failure(error) else "failed", describe_failure(error))
    return capture_file_row(scan, source, set(), ())


def read_capture(
    source: bytes | str | Path | BinaryIO,
    *,
    path: str | None = None,
    all_pdus: bool = False,
    limits: TimeLimits = DEFAULT_TIME_LIMITS,
    block_bytes: int = 16 << 20,
    max_expansion: int = 1100,
    tunnel_ports: Mapping[int, str] = TUNNEL_PORTS,
    request: CaptureReadRequest | None = None,
) -> dict[str, pa.Table]:
    """Read a capture from bytes, a path or a binary file; return one Arrow table per bronze table.

    The tables have the columns of ``docs/reference/tables.md``, except ``run_id`` and ``ingested_at``. ``all_pdus``
    adds the table ``pdus`` with the PDUs of all interfaces. ``path`` is the path to show.
    """
    if isinstance(source, (str, Path)):
        opened = FileSource.from_path(str(source), path or str(source))
    else:
        data = source if isinstance(source, bytes) else source.read()
        opened = FileSource.from_bytes(data, path or "memory")
    options = ReadOptions(limits, block_bytes, max_expansion, all_pdus=all_pdus, tunnel_ports=tunnel_ports)
    parts: dict[str, list[pa.RecordBatch]] = {kind: [] for kind in BRONZE_SCHEMAS if kind != "pdus" or all_pdus}
    for kind, batch in read_capture_batches(opened, options, request):
        if kind == VOID:
            parts = {kind: [] for kind in parts}
        else:
            parts[kind].append(batch)
    return {kind: pa.Table.from_batches(batches, BRONZE_SCHEMAS[kind]) for kind, batches in parts.items()}


def _scan_capture(
    source: FileSource,
    options: ReadOptions,
    request: CaptureReadRequest,
    scan: CaptureScan,
    learned: Mapping[tuple[bytes, int], set[str]],
    again: RereadConnections,
    watch: _Watch | None,
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Make one pass over a capture. ``learned``: known MSMQ endpoints; ``again``: what to read again, None: all.

    ``watch``: raise ``TimesGoBackError`` if times go back, ``SetForwardError`` if the clock was set forward; None:
    ``scan.order`` says where and why.
    """
    decoder = PacketDecoder(options.tunnel_ports, frozenset({PING_PORT}))
    framer, session_framer = PduFramer(), SessionFramer()
    tracker = ConnectionTracker(options.limits, begins_session=is_establish_connection)
    mirror_copies = MirrorCopies()
    tracker.known_endpoints = set(learned)
    endpoints = map(InterfaceEndpoint.parse, request.reread_endpoints)
    tracker.session_endpoints = {one.packed_endpoint for one in endpoints if one.interface_name == SESSION_ENDPOINT}
    tracker.disputed_bytes = {index: suspect.copy() for index, suspect in again.disputed_bytes.items()}
    assembler = CallAssembler(all_pdus=options.all_pdus and again.only is None)
    rows = CallRowBuilder(again.only, again.returned_calls)
    packet_rows = SessionPacketRows()
    scan.unfinished_packets = packet_rows.unfinished_keys
    rows.learned_endpoints = {endpoint: set(names) for endpoint, names in learned.items()}
    scan.learned_endpoints, scan.learned_by_connection = rows.learned_endpoints, rows.learned_by_connection
    scan.emitted_calls = rows.emitted
    scan.connections, scan.source, scan.decoder, scan.budget = tracker.connections, source, decoder, tracker.budget

    def process(streams: BlockStreams, *, final: bool) -> Iterator[tuple[str, pa.RecordBatch]]:
        recognise_sessions(streams, final=final)
        framed = framer.frame_block(streams, final=final)
        for packets in session_framer.frame_block(streams, final=final):
            batch = packet_rows.build_rows(packets, tracker.connections)
            if again.only is None:
                yield "session_packets", batch
        for connection in {s.connection.index: s.connection for s in streams.streams}.values():
            suspect = find_disputed_bytes(connection)
            if suspect is not None and connection.index not in again.disputed_bytes:
                scan.disputed_bytes.setdefault(connection.index, DisputedBytes()).add(suspect)
                rows.withheld.setdefault(connection.index, rows.block)
        calls = assembler.assemble(streams, framed, tracker.connections, final=final)
        found = rows.build_rows(calls, tracker.connections) if calls is not None else None
        if found is not None:
            yield "rpc_calls", found
        while assembler.pdu_listings:
            yield "pdus", pdu_batch(assembler.pdu_listings.pop(0))

    for records in _ordered_blocks(source, options, request, scan, watch):
        packet_rows.capture_id = rows.capture_id = scan.capture_id = (
            request.capture_id or scan.first_packet_hash.key or source.path_key
        )
        if not len(records.packet_start):
            continue
        _count_records(scan, records)
        try:
            segments = decoder.decode_block(records)
            if watch is not None:
                watch.add(records, segments)
            _count_segments(scan, segments)
            _add_pings(scan, decoder)
            streams = tracker.add_block(mirror_copies.leave_out(segments))
            rows.block += 1
            yield from process(streams, final=False)
        except Exception as error:
            error.add_note(f"in packets {records.packet_number.min()} to {records.packet_number.max()}")
            raise
        seen = {s.connection.index: s.connection for s in streams.streams}
        for selected in (True, False):  # another pass returns the rows of the others
            chosen = (c for index, c in seen.items() if rows.returns(index) is selected)
            strays = flush_stray_rows(chosen, scan.capture_id)
            if strays is not None and selected:
                yield "quarantine", strays
    assembler.retain_unfinished(tracker.connections)
    scan.open_connections = find_open_connections(tracker.connections, scan.last_time_ns, tracker.budget)
    rows.capture_ended = True
    yield from process(tracker.finish_capture(), final=True)
    skipped = dict.fromkeys(_connections_to_reread(scan, tracker.known_endpoints), 0)
    scan.connections_to_reread = rows.withheld | skipped
    scan.returned_calls = rows.recent_calls(rows.withheld)
    rows.emitted.drop_unbound(scan.connections_to_reread)
    inferred = infer_contexts(scan)
    scan.inferred_contexts = {
        name: meaning
        for name, meaning in inferred.items()
        if name[0] not in scan.connections_to_reread and (again.only is None or name[0] in again.only)
    }
    for batch in rows.resolve_unbound_rows(scan.inferred_contexts, scan.connections):
        yield "rpc_calls", batch


def _ordered_blocks(
    source: FileSource, options: ReadOptions, request: CaptureReadRequest, scan: CaptureScan, watch: _Watch | None
) -> Iterator[RecordBlock]:
    """Yield the records of a file in their order; ``watch``: raise an error if that is not the order.

    Each block is added to ``watch`` before the next one is asked for.
    """
    blocks = _timed_blocks(source, options, request, scan)
    if scan.order.is_by_time:
        blocks = records_by_time(blocks, scan.order, options.block_bytes)
    for records in blocks:
        if watch is not None:
            watch.check_times(records)
        yield records
    if watch is not None:
        watch.check_clock()


def _timed_blocks(
    source: FileSource, options: ReadOptions, request: CaptureReadRequest, scan: CaptureScan
) -> Iterator[RecordBlock]:
    """Yield the blocks of a file, as far as it can be read, without times that cannot be.

    ``scan.error`` says what is wrong with it.
    """
    state = json.loads(request.resume_state) if request.resume_state is not None else None
    begin = 0 if state is None else resume_read_offset(state)
    try:
        with source.open_decompressed(options.max_expansion_ratio, options.max_expanded_bytes, begin) as stream:
            file_reader = scan.file_reader = CaptureFileReader(
                stream, _block_bytes(source, options), resume_from=state, end_offset=request.end_offset
            )
            try:
                for records in file_reader.read_blocks():
                    scan.first_packet_hash.add_block(records.buffer, file_reader)
                    _drop_times_ahead(scan, records, request.latest_time_ns)
                    yield records
            except NotACaptureError as error:
                is_compressed = isinstance(file_reader.stream, DecompressedStream)
                scan.error = ("not_a_capture" if is_compressed else error.kind, str(error))
            if isinstance(stream, DecompressedStream) and stream.error is not None:
                kind = "cut_short" if stream.ended_early else "damaged"
                scan.error = (kind, f"the compressed stream: {stream.error}")
    except ExpansionLimitError as error:
        scan.error = ("expansion_limit", str(error))
    except OSError as error:
        scan.error = ("unreadable", str(error))


def _block_bytes(source: FileSource, options: ReadOptions) -> int:
    """Return the number of bytes to read at once, at most the size of a plain file."""
    return options.block_bytes if source.compression else min(options.block_bytes, source.stored_bytes + 1)


def _drop_times_ahead(scan: CaptureScan, records: RecordBlock, latest_ns: int | None) -> None:
    """Count the packets with a time that cannot be, because it is later than the latest one, and drop these times."""
    if latest_ns is not None:
        ahead = records.time_ns > latest_ns
        scan.counts["ahead"] += int(ahead.sum())
        records.time_ns[ahead] = NO_TIME


def _count_records(scan: CaptureScan, records: RecordBlock) -> None:
    counts = scan.counts
    counts["packets"] += len(records.packet_start)
    counts["truncated"] += int((records.captured_length < records.original_length).sum())
    scan.link_types.update(np.unique(records.link_type).tolist())
    known = records.time_ns[records.time_ns != NO_TIME]
    if len(known):
        first, last = int(known.min()), int(known.max())
        scan.first_time_ns = first if scan.first_time_ns is None else min(first, scan.first_time_ns)
        scan.last_time_ns = last if scan.last_time_ns is None else max(last, scan.last_time_ns)


def _count_segments(scan: CaptureScan, segments: TcpSegments) -> None:
    scan.counts["tcp"] += int(segments.record_count.sum())
    scan.counts["damaged"] += int((segments.record_classes == RECORD_DAMAGED).sum())


def _add_pings(scan: CaptureScan, decoder: PacketDecoder) -> None:
    for datagram in decoder.datagrams:
        if (ping := read_ping(datagram, scan.capture_id)) is None:
            continue
        scan.counts["pings"] += datagram.packet_count
        if len(scan.pings) < MAX_PINGS:
            scan.pings.append(ping)
        else:
            scan.budget.unread_packets[PINGS_NOT_READ] += datagram.packet_count


def infer_contexts(scan: CaptureScan) -> InferredContexts:
    """Infer the interfaces of contexts without a bind, from stub lengths and server port.

    A context without a result gets (None, None) if its connection is MSMQ by another context; so does one that no bind
    proposed, where all binds were captured: the server has no interface for it.
    """
    found: InferredContexts = {}
    for connection in scan.connections:
        association = connection.rpc_state
        if (
            not isinstance(association, RpcAssociation)
            or association.has_only_other_interfaces
            or not association.unbound_call_shapes
        ):
            continue
        _, address, port = connection.endpoints[connection.likely_client_side() ^ 1]
        learned = scan.learned_endpoints.get((address, port), set())
        all_binds_seen = _are_all_binds_seen(connection, association)
        by_context: dict[int, InferredContext] = {}
        for context_id, calls in association.unbound_call_shapes.items():
            interface = None if all_binds_seen else infer_interface(calls, port, learned)
            by_context[context_id] = (None, None) if interface is None else (interface[0].uuid, interface[1])
        if association.is_msmq or any(uuid for uuid, _ in by_context.values()):
            found.update({(connection.index, context_id): inferred for context_id, inferred in by_context.items()})
    return found


def _are_all_binds_seen(connection: TcpConnection, association: RpcAssociation) -> bool:
    """Whether no bind can be among what was not captured, or not kept, of what the client sent."""
    client = connection.directions[connection.likely_client_side()]
    lacks_bytes = client.syn_sequence is None or client.missing_bytes > 0 or client.unrecognised_bytes > 0
    lacks_binds = bool(association.quarantined_binds) or association.has_skipped_bytes
    return association.is_begin_seen and not lacks_bytes and not lacks_binds


def _connections_to_reread(scan: CaptureScan, known: set[tuple[bytes, int]]) -> set[int]:
    """Return the indexes of skipped connections to endpoints that calls of this capture reported.

    ``known``: the endpoints that this pass knew. Connections with bound contexts are left out: they have rows already.
    """
    reported = scan.learned_endpoints.keys() - known
    if not reported:
        return set()
    return {
        connection.index
        for connection in scan.connections
        if (
            connection.kind is ConnectionKind.COLD
            or (
                connection.kind is ConnectionKind.RPC
                and _was_skipped(connection)
                and not association_of(connection).is_msmq
            )
        )
        and not reported.isdisjoint(_endpoints_of(connection))
    }


def _was_skipped(connection: TcpConnection) -> bool:
    return any(side.unrecognised_bytes for side in connection.directions)


def _endpoints_of(connection: TcpConnection) -> set[tuple[bytes, int]]:
    return {(address, port) for _, address, port in connection.endpoints}


def is_msmq_connection(connection: TcpConnection) -> bool:
    """Whether a bind shows that a connection carries MSMQ RPC or the endpoint mapper."""
    return connection.kind is ConnectionKind.RPC and association_of(connection).is_msmq
