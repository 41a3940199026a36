"""One capture file -> rows of the bronze tables, in bounded memory and without Spark.

The file is read once, in blocks: records, headers, streams, PDUs, calls. What a connection's end or the file's end has
to settle (connections, binds, quarantine, the file's own row) is kept until then; calls leave as they are settled.

Calls whose bind was not seen wait for the end too: their interface is inferred from all calls of the context together.
The file is read again only when it shows that a port is ours to which connections were passed over.
"""

from __future__ import annotations

import ipaddress
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.capture.open_connections import PENDING_SCHEMA, edges, pending_rows
from udfs.capture.reading import Reading
from udfs.capture.tables import (
    BINDS_SCHEMA,
    CAPTURE_FILES_SCHEMA,
    CONNECTIONS_SCHEMA,
    PDUS_SCHEMA,
    QUARANTINE_SCHEMA,
    bind_rows,
    capture_row,
    connection_rows,
    early_quarantine_rows,
    pdu_batch,
    quarantine_batch,
    quarantine_rows,
)
from udfs.dcerpc.interfaces import infer
from udfs.files.container import NO_TIME, Container, NotACaptureError, Records, lead_in
from udfs.files.sources import Decompressed, ExpansionLimitError, Source
from udfs.rpc.association import Association
from udfs.rpc.calls import Assembler, association
from udfs.rpc.pdu_framing import Cutter
from udfs.rpc.rows import Made, Meaning, Meanings, RowBuilder
from udfs.rpc.schema import CALLS_SCHEMA
from udfs.tcp.flows import Connection, Kind
from udfs.tcp.packets import DAMAGED, PacketDecoder, Segments
from udfs.tcp.tracker import Streams, Tracker

__all__ = ["Options", "Place", "capture_batches", "read_capture"]

SCHEMAS: Final = {
    "rpc_calls": CALLS_SCHEMA,
    "connections": CONNECTIONS_SCHEMA,
    "rpc_binds": BINDS_SCHEMA,
    "quarantine": QUARANTINE_SCHEMA,
    "pending": PENDING_SCHEMA,
    "capture_files": CAPTURE_FILES_SCHEMA,
    "pdus": PDUS_SCHEMA,
}


@dataclass(frozen=True, slots=True)
class Options:
    """How a capture is read.

    ``reorder_window_s``: how long a missing segment may come late; ``block_bytes``: read at once; ``max_expansion``:
    decompressed bytes for each compressed one; ``max_expanded_bytes``: of one capture; ``all_pdus``: list the PDUs of
    all interfaces too.
    """

    reorder_window_s: float = 2.0
    block_bytes: int = 16 << 20
    max_expansion: int = 1100
    max_expanded_bytes: int = 256 << 30
    all_pdus: bool = False


class Place(NamedTuple):
    """An interface at a server's endpoint."""

    address: str
    port: int
    interface: str

    @property
    def text(self) -> str:
        """The place as ``Part.followed`` names it."""
        return f"{self.address}|{self.port}|{self.interface}"

    @property
    def endpoint(self) -> tuple[bytes, int]:
        """The endpoint as packets have it."""
        return ipaddress.ip_address(self.address).packed, self.port

    @staticmethod
    def of(text: str) -> Place:
        """Return what ``text`` gave."""
        address, port, interface = text.split("|")
        return Place(address, int(port), interface)


def place_texts(places: Iterable[tuple[bytes, int, str]]) -> set[str]:
    """Return places as packets have them as texts."""
    return {Place(str(ipaddress.ip_address(octets)), port, name).text for octets, port, name in places}


@dataclass(frozen=True, slots=True)
class Part:
    """What of a capture is read, and under which key, where its own beginning does not decide that.

    ``resume``: the container's state where an earlier reading ended, JSON. ``followed``: interfaces at servers
    (``Place.text``) as other captures show them: their connections are cut from the first byte on.
    """

    capture_id: str | None = None
    resume: str | None = None
    followed: tuple[str, ...] = ()


def capture_batches(
    source: Source, options: Options | None = None, part: Part | None = None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield ``(kind, rows)`` for one capture, calls as they are settled and the other tables at the end.

    Bad input never raises: it is a row of ``capture_files`` with status and error, and rows of ``quarantine``.
    """
    options, part = options or Options(), part or Part()
    meanings: Meanings = {}
    only: set[int] | None = None
    calls: Counter[str] = Counter()
    by_connection: Counter[int] = Counter()
    made = Made()
    learnt: dict[tuple[bytes, int], set[str]] = {}
    for place in map(Place.of, part.followed):
        learnt.setdefault(place.endpoint, set()).add(place.interface)
    taught: set[str] = set()
    while True:
        reading = Reading()
        for kind, batch in _read(source, options, part, reading, learnt, only):
            if kind == "rpc_calls":
                calls["calls"] += batch.num_rows
                calls["calls_damaged"] += pc.sum(pc.equal(batch.column("outcome"), "damaged")).as_py()
            yield kind, batch
        meanings |= reading.meanings
        made.add(reading.made)
        for endpoint, names in reading.learnt.items():
            learnt.setdefault(endpoint, set()).update(names)
        taught.update(*map(place_texts, reading.taught.values()))
        for connection in reading.connections:
            by_connection[connection.index] += association(connection).calls if connection.rpc is not None else 0
        only = reading.late
        if not only:
            break
    reading.counts.update(calls)
    reading.followed = part.followed
    assumed = {index for index, _ in meanings}
    ours = {c.index for c in reading.connections if c.index in assumed or is_ours(c)}
    yield "capture_files", capture_row(reading, source, ours, taught)
    yield "connections", connection_rows(reading.connections, ours, by_connection)
    yield "rpc_binds", bind_rows(reading.connections, ours, reading.capture_id)
    stray = quarantine_rows(reading.connections, ours, reading.capture_id)
    yield "quarantine", quarantine_batch(stray)
    yield "pending", pending_rows(reading.edges, reading.capture_id, made, stray, meanings, learnt)


def read_capture(
    source: bytes | str | Path | BinaryIO,
    *,
    path: str | None = None,
    all_pdus: bool = False,
    reorder_window_s: float = 2.0,
    block_bytes: int = 16 << 20,
    max_expansion: int = 1100,
    part: Part | None = None,
) -> dict[str, pa.Table]:
    """Read a whole capture from bytes, a path or a binary file into one Arrow table per bronze table.

    The tables have the columns of ``docs/tables.md`` without those of the run (``run_id``, ``ingested_at``), and
    ``pdus`` when ``all_pdus`` asks for the PDUs of all interfaces.
    """
    if isinstance(source, (str, Path)):
        opened = Source.of_path(str(source), path or str(source))
    else:
        data = source if isinstance(source, bytes) else source.read()
        opened = Source.of_bytes(data, path or "memory")
    options = Options(reorder_window_s, block_bytes, max_expansion, all_pdus=all_pdus)
    parts: dict[str, list[pa.RecordBatch]] = {kind: [] for kind in SCHEMAS if kind != "pdus" or all_pdus}
    for kind, batch in capture_batches(opened, options, part):
        parts[kind].append(batch)
    return {kind: pa.Table.from_batches(batches, SCHEMAS[kind]) for kind, batches in parts.items()}


def _read(
    source: Source,
    options: Options,
    part: Part,
    reading: Reading,
    learnt: Mapping[tuple[bytes, int], set[str]],
    only: set[int] | None,
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """One pass, which follows the ports ``learnt``; only calls of the connections in ``only`` leave, if given."""
    window = round(options.reorder_window_s * 1e9)
    decoder, tracker, cutter = PacketDecoder(), Tracker(window), Cutter()
    tracker.hot_ports = set(learnt)
    assembler = Assembler(all_pdus=options.all_pdus and only is None)
    rows = RowBuilder(only)
    rows.learnt = {endpoint: set(names) for endpoint, names in learnt.items()}
    reading.learnt, reading.taught, reading.made = rows.learnt, rows.taught, rows.made
    reading.connections, reading.source = tracker.connections, source
    prefix = reading.prefix

    def settle(streams: Streams, *, final: bool) -> Iterator[tuple[str, pa.RecordBatch]]:
        cuts = cutter.cut(streams, final=final)
        calls = assembler.take(streams, cuts, tracker.connections, final=final)
        batch = rows.build(calls, tracker.connections) if calls is not None else None
        if batch is not None:
            yield "rpc_calls", batch
        while assembler.pdus:
            yield "pdus", pdu_batch(assembler.pdus.pop(0))

    try:
        state = json.loads(part.resume) if part.resume is not None else None
        begin = 0 if state is None else lead_in(state)
        with source.open(options.max_expansion, options.max_expanded_bytes, begin) as stream:
            container = reading.container = Container(stream, _block_bytes(source, options), resume=state)
            for records in container.blocks():
                prefix.add(records.data, records.base, container)
                rows.capture_id = reading.capture_id = part.capture_id or prefix.key or source.path_key
                if not len(records.start):
                    continue
                _count_records(reading, records)
                segments = decoder.decode(records)
                _count_segments(reading, segments)
                streams = tracker.track(segments)
                yield from settle(streams, final=False)
                seen = {s.connection.index: s.connection for s in streams.streams}
                for leaves in (True, False):  # of the others an earlier pass gave the rows
                    some = (c for index, c in seen.items() if (only is None or index in only) is leaves)
                    early = early_quarantine_rows(some, reading.capture_id)
                    if early is not None and leaves:
                        yield "quarantine", early
            if isinstance(stream, Decompressed) and stream.error is not None:
                kind = "cut_short" if stream.ended_early else "damaged"
                reading.error = (kind, f"the compressed stream: {stream.error}")
    except NotACaptureError as error:
        reading.error = ("not_a_capture", str(error))
    except ExpansionLimitError as error:
        reading.error = ("expansion_limit", str(error))
    except OSError as error:
        reading.error = ("unreadable", str(error))
    assembler.keep_waiting(tracker.connections)
    reading.edges = edges(tracker.connections, reading.last_time)
    rows.finishing = True
    yield from settle(tracker.finish(), final=True)
    reading.late = _late(reading, tracker.hot_ports)
    rows.made.drop(reading.late)
    inferred = infer_meanings(reading)
    reading.meanings = {name: meaning for name, meaning in inferred.items() if name[0] not in reading.late}
    for batch in rows.provisional(reading.meanings, reading.connections):
        yield "rpc_calls", batch


def _block_bytes(source: Source, options: Options) -> int:
    """Return how much to read at once: no more than a plain file has."""
    return options.block_bytes if source.compression else min(options.block_bytes, source.size + 1)


def _count_records(reading: Reading, records: Records) -> None:
    counts = reading.counts
    counts["packets"] += len(records.start)
    counts["truncated"] += int((records.captured < records.original).sum())
    reading.links.update(np.unique(records.link).tolist())
    known = records.time[records.time != NO_TIME]
    if len(known):
        first, last = int(known.min()), int(known.max())
        reading.first_time = first if reading.first_time is None else min(first, reading.first_time)
        reading.last_time = last if reading.last_time is None else max(last, reading.last_time)


def _count_segments(reading: Reading, segments: Segments) -> None:
    reading.counts["tcp"] += int(segments.weight.sum())
    reading.counts["damaged"] += int((segments.classes == DAMAGED).sum())


def infer_meanings(reading: Reading) -> Meanings:
    """Give contexts without a bind a meaning, where stub lengths and port agree, or the connection is ours anyway."""
    found: Meanings = {}
    for connection in reading.connections:
        known = connection.rpc
        if not isinstance(known, Association) or known.foreign or not known.evidence:
            continue
        _, address, port = connection.endpoints[connection.likely_client() ^ 1]
        learnt = reading.learnt.get((address, port), set())
        meanings: dict[int, Meaning] = {}
        for context_id, calls in known.evidence.items():
            inferred = infer(calls, port, learnt)
            meanings[context_id] = (None, None) if inferred is None else (inferred[0].uuid, inferred[1])
        if known.ours or any(uuid for uuid, _ in meanings.values()):
            found.update({(connection.index, context_id): meaning for context_id, meaning in meanings.items()})
    return found


def _late(reading: Reading, hot: set[tuple[bytes, int]]) -> set[int]:
    """Return connections at places that a call named, and that were not looked into from their first byte on.

    Not those with rows already, of contexts that were bound where the connection was looked into.
    """
    places = reading.learnt.keys() - hot
    if not places:
        return set()
    return {
        connection.index
        for connection in reading.connections
        if (
            connection.kind is Kind.COLD
            or (connection.kind is Kind.RPC and _passed_over(connection) and not association(connection).ours)
        )
        and not places.isdisjoint(_places(connection))
    }


def _passed_over(connection: Connection) -> bool:
    return any(side.cold_bytes for side in connection.sides)


def _places(connection: Connection) -> set[tuple[bytes, int]]:
    return {(address, port) for _, address, port in connection.endpoints}


def is_ours(connection: Connection) -> bool:
    """Whether a connection carries MSMQ RPC or the endpoint mapper, by a bind."""
    return connection.kind is Kind.RPC and association(connection).ours
