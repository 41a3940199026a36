"""Result of one pass over a capture file, from which ``bronze_rows`` builds rows when the pass is over."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from udfs.capture.open_connections import OpenConnection
from udfs.capture.record_order import RecordOrder
from udfs.files.capture_file import CaptureFileReader
from udfs.files.capture_fingerprint import FirstPacketHash
from udfs.files.file_source import FileSource
from udfs.rpc.call_rows import EmittedCalls, InferredContexts
from udfs.sessions.pings import Ping
from udfs.tcp.bad_copies import DisputedBytes
from udfs.tcp.capture_budget import CaptureBudget
from udfs.tcp.connections import TcpConnection
from udfs.tcp.packet_decoder import PacketDecoder


@dataclass(slots=True)
class CaptureScan:
    """State and result of one pass over a capture file.

    ``counts``: of packets and calls, as in bronze.capture_files. ``error``: kind of damage and message.
    ``learned_endpoints``: interface names by (address, port); ``learned_by_connection``: (address, port, interface)
    by connection index. ``connections_to_reread``: indexes of connections that were skipped before the capture showed
    that they are MSMQ, or that have ``disputed_bytes``, with the number of the block from which rows are missing.
    ``returned_calls``: of calls of the latter that have rows already. ``open_connections``: those that may continue
    in another capture. ``budget``: what is left of the capture's limits. ``reread_endpoints``: of the
    ``CaptureReadRequest``. ``pings``: of the binary protocol. ``unfinished_packets``: keys of packets that other
    captures may change, by connection index. ``order``: of the file's records.
    """

    connections: list[TcpConnection] = field(default_factory=list)
    file_reader: CaptureFileReader | None = None
    source: FileSource | None = None
    decoder: PacketDecoder | None = None
    capture_id: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    link_types: set[int] = field(default_factory=set)
    first_time_ns: int | None = None
    last_time_ns: int | None = None
    error: tuple[str, str] | None = None
    learned_endpoints: dict[tuple[bytes, int], set[str]] = field(default_factory=dict)
    learned_by_connection: dict[int, set[tuple[bytes, int, str]]] = field(default_factory=dict)
    connections_to_reread: dict[int, int] = field(default_factory=dict)
    disputed_bytes: dict[int, DisputedBytes] = field(default_factory=dict)
    returned_calls: set[str] = field(default_factory=set)
    inferred_contexts: InferredContexts = field(default_factory=dict)
    emitted_calls: EmittedCalls = field(default_factory=EmittedCalls)
    first_packet_hash: FirstPacketHash = field(default_factory=FirstPacketHash)
    open_connections: list[OpenConnection] = field(default_factory=list)
    budget: CaptureBudget = field(default_factory=CaptureBudget)
    reread_endpoints: tuple[str, ...] = ()
    pings: list[Ping] = field(default_factory=list)
    unfinished_packets: dict[int, list[str]] = field(default_factory=dict)
    order: RecordOrder = field(default_factory=RecordOrder)
