"""What captures could not finish alone, put together: their remainders, read one after the other as one capture.

Joining is a function of the set of remainders: they are sorted by time first. It gives the rows of all connections that
occur in them, and for each connection as a capture alone saw it the connection that it is part of (``Labels``): rows
that were finished in that capture stay, and only take that name and, where their bind was not seen there, its meaning.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.capture.duplicate_calls import as_sighting
from udfs.capture.open_connections import PENDING_SCHEMA, counted
from udfs.capture.overlap import Observer, Part, groups, laid_over
from udfs.capture.reader import infer_meanings, is_ours, place_texts
from udfs.capture.reading import Reading
from udfs.capture.tables import (
    SERVER_CONNECTIONS,
    bind_rows,
    connection_rows,
    quarantine_batch,
    quarantine_rows,
    quarantined,
    server_connections,
    with_servers,
)
from udfs.dcerpc.interfaces import BY_UUID, Seen
from udfs.files.container import NO_TIME, Ints
from udfs.keys import key
from udfs.rpc.association import Context
from udfs.rpc.calls import Assembler, association, bind_level
from udfs.rpc.identity import connection_id, four_tuple
from udfs.rpc.pdu_framing import SAMPLE_BYTES, CutState, Cutter, Stray
from udfs.rpc.rows import Meanings, RowBuilder, has_handshake
from udfs.rpc.schema import CALLS_SCHEMA, SIGHTING
from udfs.tcp.flows import Connection, Kind, signed
from udfs.tcp.packets import BEGINS, CUT_BEFORE, PASSED_OVER, Segments
from udfs.tcp.packets import SEGMENT as A_SEGMENT
from udfs.tcp.tracker import Endpoint, Tracker

Row = dict[str, Any]

LABELS_SCHEMA: Final = pa.schema(
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
        ("told", pa.string()),
        ("again", pa.list_(pa.string())),
    ]
)
MEANINGS_SCHEMA: Final = pa.schema(
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


CHANGES_SCHEMA: Final = pa.schema(
    [PENDING_SCHEMA.field(name) for name in (
        "pending_key", "event_date", "connection_id", "call_keys", "calls_made", "quarantine_keys", "counted",
        "counted_server", "told",
    )]
)  # fmt: skip
COUNTS: Final = ("packets_used", "packets_other", "packets_binary_protocol")
COUNTS_SCHEMA: Final = pa.schema(
    [
        ("capture_id", pa.string()),
        *((name, pa.int64()) for name in COUNTS),
        ("server_connections", SERVER_CONNECTIONS),
        ("learnt", pa.list_(pa.string())),
    ]
)


@dataclass(slots=True)
class Joined:
    """What joining found.

    ``tables``: ``connections``, ``rpc_binds``, ``quarantine`` and ``rpc_calls`` of the joined connections, without the
    calls that were finished in a capture alone. ``labels``: for each remainder the connection it is part of; where its
    capture holds more of a connection of ours than was kept, ``again`` are the interfaces to look for there.
    ``meanings``: for contexts whose bind a capture did not have, what they mean now; their calls go where ``known`` is
    false. ``pending``: the columns of the remainders that changed. ``packets``: for each capture of which packets count
    otherwise now, what is to be added to its row of ``capture_files`` (``recount``), what its calls show to be where
    (``learnt``) included.
    """

    tables: dict[str, pa.RecordBatch]
    labels: pa.RecordBatch
    meanings: pa.RecordBatch
    pending: pa.RecordBatch
    packets: pa.RecordBatch


# What a remainder says of each of its segments in numbers, in the order that ``_segments`` takes them.
_FACTS: Final = itemgetter("side", "size", "time_ns", "sequence", "acknowledgement", "flags", "file_offset")
_UNKNOWN: Final = Connection(-1, ((4, b"", 0), (4, b"", 0)), NO_TIME, NO_TIME)


@dataclass(slots=True)
class _Sighting:
    """A remainder and the connection of the joined reading that it belongs to: known once its segments were read."""

    row: Row
    connection: Connection = field(default_factory=lambda: _UNKNOWN)
    group: int = 0  # of remainders that saw one connection at the same time


@dataclass(slots=True)
class _Group:
    """Remainders that are read as one: a single one, or those of captures that saw a connection at the same time."""

    sightings: list[_Sighting]
    parts: list[Part]
    observers: list[Observer]


@dataclass(slots=True)
class _Numbers:
    """Packet numbers of the joined reading: indexes of (capture, packet number), from 1."""

    captures: list[str] = field(default_factory=lambda: [""])
    numbers: list[int] = field(default_factory=lambda: [0])

    def add(self, capture_id: str, number: int) -> int:
        self.captures.append(capture_id)
        self.numbers.append(number)
        return len(self.captures) - 1


def join(pending: Sequence[Row], *, window_s: float) -> Joined:
    """Join remainders (rows of ``bronze.pending``); ``window_s`` is the reorder window in seconds."""
    sightings = [_Sighting(row) for row in sorted(pending, key=_order)]
    names = _Numbers()
    tracker, cutter, assembler, builder = Tracker(round(window_s * 1e9)), Cutter(), Assembler(), RowBuilder()
    tracker.hot_ports = _known_ports(pending)
    builder.finishing = True  # nothing is to be kept anew
    calls: list[pa.RecordBatch] = []
    observers: dict[int, list[Observer]] = defaultdict(list)

    def settle(streams: Any, *, final: bool) -> None:  # noqa: ANN401 - Streams
        cuts = cutter.cut(streams, final=final)
        found = assembler.take(streams, cuts, tracker.connections, final=final)
        batch = builder.build(found, tracker.connections) if found is not None else None
        if batch is not None:
            calls.append(batch)

    for block in _blocks(sightings):
        segments, sizes = _segments(block, names)
        if not len(segments.record):
            continue
        known = len(tracker.connections)
        streams = tracker.track(segments)
        _attribute(block, tracker, sizes, known)
        for group in block:
            for observer in group.observers:
                observers[group.sightings[0].connection.index].append(observer)
        settle(streams, final=False)
    settle(tracker.finish(), final=True)
    parts: dict[int, list[_Sighting]] = defaultdict(list)
    for sighting in sightings:
        if sighting.connection is not _UNKNOWN:
            parts[sighting.connection.index].append(sighting)
    reading = Reading(connections=tracker.connections, learnt=builder.learnt)
    meanings = _infer(reading, parts)
    calls += builder.provisional(meanings, tracker.connections)
    calls = _without_repeated(calls, parts, names)
    ours = {c.index for c in tracker.connections if is_ours(c)} | {index for index, _ in meanings}
    _add_numbers(parts)
    strays = _quarantine(tracker.connections, parts, ours, names)
    counts = _count(calls, parts, meanings, ours, tracker.connections)
    tables = {
        "connections": connection_rows(tracker.connections, ours, counts),
        "rpc_binds": _named(bind_rows(tracker.connections, ours, ""), names, {"capture_id": "packet_number"}),
        "quarantine": quarantine_batch(strays),
        "rpc_calls": _observed(_calls(calls, names), parts, observers),
    }
    contexts = _meanings(parts, meanings)
    labels = _labels(parts, ours, contexts)
    return Joined(
        tables,
        pa.RecordBatch.from_pylist(labels, LABELS_SCHEMA),
        pa.RecordBatch.from_pylist(contexts, MEANINGS_SCHEMA),
        _pending(parts, labels, tables["rpc_calls"], strays, ours),
        _packets(parts, ours, builder.taught),
    )


def _order(row: Row) -> tuple[int, int, str]:
    return row["first_time_ns"], row["last_time_ns"], row["capture_id"]


def _blocks(sightings: Iterable[_Sighting]) -> list[list[_Group]]:
    """The n-th remainders of all four-tuples together: a block holds each connection once."""
    blocks: list[list[_Group]] = []
    flows: dict[tuple[Any, ...], list[_Sighting]] = defaultdict(list)
    for sighting in sightings:
        flows[_ends(sighting.row)].append(sighting)
    count = 0
    for flow in flows.values():
        of = {id(sighting.row): sighting for sighting in flow}
        for position, rows in enumerate(groups([sighting.row for sighting in flow])):
            members = [of[id(row)] for row in rows]
            count += 1
            for sighting in members:
                sighting.group = count
            if len(rows) == 1:
                parts = [Part(segment, rows[0]["capture_id"]) for segment in rows[0]["segments"]]
                group = _Group(members, parts, [])
            else:
                group = _Group(members, *laid_over(rows))
            if position == len(blocks):
                blocks.append([])
            blocks[position].append(group)
    return blocks


@lru_cache(maxsize=65536)
def _octets(address: str) -> tuple[int, bytes]:
    """Return the version and the octets of an IP address: the same few hosts talk in all remainders."""
    parsed = ipaddress.ip_address(address)
    return parsed.version, parsed.packed


def _ends(row: Row) -> tuple[Endpoint, Endpoint]:
    """The endpoints in the reader's order: the lower one is side 0."""
    client: Endpoint = (*_octets(row["client_address"]), row["client_port"])
    server: Endpoint = (*_octets(row["server_address"]), row["server_port"])
    return (client, server) if client <= server else (server, client)


def _known_ports(pending: Iterable[Row]) -> set[tuple[bytes, int]]:
    return {(octets, port) for row in pending if row["kind"] == "rpc" for _, octets, port in _ends(row)}


def _segments(block: list[_Group], names: _Numbers) -> tuple[Segments, Ints]:
    """Return the segments of a block's remainders, and how many are of each."""
    counts = np.array([len(group.parts) for group in block], np.int64)
    owner = np.repeat(np.arange(len(block)), counts)
    parts = [part for group in block for part in group.parts]
    facts = np.array([_FACTS(segment) for segment, _ in parts], np.int64).T.copy()
    side, length, time, sequence, acknowledgement, flags, file_offset = facts if parts else np.zeros((7, 0), np.int64)
    numbers = [names.add(capture_id, segment["number"]) if segment["number"] else 0 for segment, capture_id in parts]
    data = [segment["data"] or b"" for segment, _ in parts]
    captured = np.array([len(octets) for octets in data], np.int64)
    ends = [end for group in block for end in _ends(group.sightings[0].row)]  # two of each remainder: sides 0 and 1
    octets = np.frombuffer(b"".join(each.ljust(16, b"\0") for _, each, _ in ends), np.uint8).reshape(-1, 16)
    ports = np.array([port for _, _, port in ends], np.int64)
    source = 2 * owner + (side != 0)
    target = source ^ 1
    segments = Segments(
        data=bytearray(b"".join([*data, bytes(64)])), record=np.arange(len(parts)),
        number=np.array(numbers, np.int64), time=time,
        version=np.array([version for version, _, _ in ends], np.int64)[source],
        source=octets[source], target=octets[target], source_port=ports[source], target_port=ports[target],
        sequence=sequence, acknowledgement=acknowledgement, flags=flags, start=np.cumsum(captured) - captured,
        file_offset=file_offset, captured=captured, length=length, weight=np.ones(len(parts), np.int64),
        classes=np.full(len(parts), A_SEGMENT, np.int8),
    )  # fmt: skip
    return segments, counts


def _attribute(block: list[_Group], tracker: Tracker, counts: Ints, known: int) -> None:
    """Note which connection each remainder turned out to be part of, with what its segments do not show.

    ``counts``: how many segments are of each, one remainder's after the other's. ``known`` connections were there
    before this block: their calls have been named already.
    """
    for group, count, end in zip(block, counts.tolist(), np.cumsum(counts).tolist(), strict=True):
        if not count:
            continue
        connection = tracker.connections[int(tracker.owner[end - 1])]
        if connection.index >= known:
            connection.named_at = min(_named_at(sighting.row) for sighting in group.sightings)
        for sighting in group.sightings:
            row = sighting.row
            sighting.connection = connection
            connection.first_time = min(connection.first_time, row["first_time_ns"])
            connection.last_time = max(connection.last_time, row["last_time_ns"])
            if connection.client is None and row["client_known"]:
                low, _ = _ends(row)
                connection.client = 0 if (*_octets(row["client_address"]), row["client_port"]) == low else 1


def _named_at(row: Row) -> int:
    """Return what time a remainder's connection is named by; lakes of before 2026-11 do not say it."""
    return int(row["first_time_ns"] if row["named_at_ns"] is None else row["named_at_ns"])


def _infer(reading: Reading, parts: dict[int, list[_Sighting]]) -> Meanings:
    """Give contexts without a bind in any capture a meaning, from what all captures show of them."""
    for index, sightings in parts.items():
        connection = reading.connections[index]
        known = association(connection)
        _, address, port = connection.endpoints[connection.likely_client() ^ 1]
        for sighting in sightings:
            for name in sighting.row["learnt"] or ():
                reading.learnt.setdefault((address, port), set()).add(name)
            for one in sighting.row["evidence"] or ():
                if not known.contexts.get(one["context_id"]):
                    seen = Seen(one["opnum"], one["request"], one["response"], one["syntax"])
                    known.evidence.setdefault(one["context_id"], set()).add(seen)
    return infer_meanings(reading)


def _add_numbers(parts: dict[int, list[_Sighting]]) -> None:
    """Add what the segments of remainders do not show to what was counted from them.

    What captures saw at the same time counts once: of these the largest number counts. Calls that captures have, and
    did not keep (``unread``), are as good as lost until these are read again, and for good where they are gone: of what
    captures saw at the same time the one that read most counts.
    """
    for sightings in parts.values():
        connection = sightings[0].connection
        connection.packets = sum(sighting.row["packets"] for sighting in sightings)
        together: dict[int, list[Row]] = defaultdict(list)
        for sighting in sightings:
            together[sighting.group].append(sighting.row)
        for number, side in enumerate(connection.sides):
            for rows in together.values():
                of = [row["sides"][number] for row in rows]
                side.distinct_bytes += max(one["distinct_bytes"] for one in of)
                side.missing_bytes += max(one["missing_bytes"] for one in of)
                side.lost_by_capture_bytes += max(one["lost_by_capture_bytes"] for one in of)
                side.retransmitted_bytes += max(one["retransmitted_bytes"] for one in of)
                side.conflicting_bytes += max(one["conflicting_bytes"] for one in of)
                side.cold_bytes += max(one["passed_over_bytes"] for one in of)
                unread = min(_unread(row, number, connection) for row in rows)
                side.distinct_bytes -= unread
                side.missing_bytes += unread
                side.lost_by_capture_bytes += unread


def _unread(row: Row, number: int, connection: Connection) -> int:
    """Return how many bytes of a side a capture has and did not keep, without those of contexts that are not ours."""
    bound = association(connection).contexts
    return sum(
        one["bytes"]
        for one in row["unread"] or ()
        if one["side"] == number and _may_be_ours(bound.get(one["context_id"]))
    )


def _may_be_ours(bound: Sequence[Context] | None) -> bool:
    """Tell whether a context is of one of our interfaces, or of nobody knows which."""
    return not bound or any(context.interface in BY_UUID for context in bound)


def _without_repeated(
    calls: list[pa.RecordBatch], parts: dict[int, list[_Sighting]], names: _Numbers
) -> list[pa.RecordBatch]:
    """Leave out requests without an answer that another capture begins with, and has the answer to.

    They were sent again, or a packet is in both files. A large call is not kept for others where it is finished
    (``remaining``), so its request is among the bytes without data that the capture begins with: its row is there.
    """
    finished: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for sightings in parts.values():
        connection = sightings[0].connection
        for row in (sighting.row for sighting in sightings):
            for one in row["segments"]:
                begins = one["flags"] & (BEGINS | CUT_BEFORE | PASSED_OVER) == BEGINS | CUT_BEFORE
                if begins and one["side"] == connection.likely_client():
                    finished[connection_id(connection)].append((one["sequence"], one["size"], row["capture_id"]))
    if not finished:
        return calls

    def is_there(name: str, sequence: int, packet: int) -> bool:
        return any(
            0 <= signed(sequence - first) < size and capture_id != names.captures[packet]
            for first, size, capture_id in finished.get(name, ())
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


def _count(
    calls: list[pa.RecordBatch], parts: dict[int, list[_Sighting]], meanings: Meanings, ours: set[int],
    connections: list[Connection],
) -> dict[int, int]:  # fmt: skip
    """Count the rows of ``rpc_calls`` of each connection: those of joining, and those that were finished before."""
    by_name: Counter[str] = Counter()
    for batch in calls:
        by_name.update(batch.column("connection_id").to_pylist())
    counts = {}
    for index in ours:
        total = by_name[connection_id(connections[index])]
        for sighting in parts.get(index, ()):
            for one in sighting.row["settled"]:
                if _known(connections[index], one["context_id"], meanings):
                    total += one["calls"]
        counts[index] = total
    return counts


def _known(connection: Connection, context_id: int, meanings: Meanings) -> bool:
    """Whether calls of a context are rows: bound to one of our interfaces, or with an inferred meaning."""
    if context_id < 0:
        return True
    bound = association(connection).contexts.get(context_id)
    if bound:
        return bound[0].interface in BY_UUID
    return (connection.index, context_id) in meanings


def _named(batch: pa.RecordBatch, names: _Numbers, columns: dict[str, str]) -> pa.RecordBatch:
    """Put captures and packet numbers in the place of the joined reading's numbers: {capture column: packet column}."""
    for capture, packet in columns.items():
        found = batch.column(packet).to_pylist()
        for name, values in (
            (capture, [None if at is None else names.captures[at] for at in found]),
            (packet, [None if at is None else names.numbers[at] for at in found]),
        ):
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, batch.schema.field(name), pa.array(values, batch.schema.field(name).type))
    return batch


def _calls(calls: list[pa.RecordBatch], names: _Numbers) -> pa.RecordBatch:
    empty = pa.RecordBatch.from_pylist([], CALLS_SCHEMA)
    batch = next(iter(pa.Table.from_batches(calls, CALLS_SCHEMA).combine_chunks().to_batches()), empty)
    asked = batch.column("request_packet").to_pylist()
    batch = _named(batch, names, {"response_capture_id": "response_packet"})
    captures = [
        response if at is None else names.captures[at]
        for at, response in zip(asked, batch.column("response_capture_id").to_pylist(), strict=True)
    ]
    batch = _named(batch, names, {"capture_id": "request_packet"})
    place = CALLS_SCHEMA.get_field_index("capture_id")
    batch = batch.set_column(place, CALLS_SCHEMA.field("capture_id"), pa.array(captures, pa.string()))
    place = CALLS_SCHEMA.get_field_index("observations")
    return batch.set_column(place, CALLS_SCHEMA.field("observations"), pa.array([1] * len(asked), pa.int32()))


def _observed(
    calls: pa.RecordBatch, parts: dict[int, list[_Sighting]], observers: dict[int, list[Observer]]
) -> pa.RecordBatch:
    """Note on calls of connections that several captures saw at the same time which of these saw them."""
    by_name = {}
    for index, sightings in parts.items():
        if _is_shared(sightings):
            connection = sightings[0].connection
            by_name[connection_id(connection)] = connection, observers.get(index, [])
    if not by_name:
        return calls
    rows = calls.to_pylist()
    for row in rows:
        if row["connection_id"] in by_name:
            connection, others = by_name[row["connection_id"]]
            client = connection.likely_client()
            row["sightings"] = [as_sighting(row, settled=False)]
            for half, side in (("request", client), ("response", client ^ 1)):
                first = row[f"{half}_sequence"]
                row["sightings"] += [
                    _glimpse(half, other)
                    for other in others
                    if first is not None and other.side == side and 0 <= signed(first - other.sequence) < other.size
                ]
    return pa.RecordBatch.from_pylist(rows, CALLS_SCHEMA)


def _is_shared(sightings: list[_Sighting]) -> bool:
    """Whether several captures saw a connection at the same time."""
    return len({one.group for one in sightings}) < len(sightings)


def _glimpse(half: str, other: Observer) -> Row:
    """A sighting of some bytes of a half."""
    return {
        **dict.fromkeys(field.name for field in SIGHTING),
        "capture_id": other.capture_id,
        "response_capture_id": other.capture_id if half == "response" else None,
        f"{half}_packet": other.number,
        f"{half}_at": other.time_ns // 1000,
        "request": int(half == "request"),
        "response": int(half == "response"),
        "settled": False,
    }


def _quarantine(
    connections: list[Connection], parts: dict[int, list[_Sighting]], ours: set[int], names: _Numbers
) -> list[Row]:
    """The stray bytes of joined connections; of unrecognised ones, the stretches that captures saw, put together."""
    rows = quarantine_rows([c for c in connections if c.index in ours], ours, "")
    for row in rows:
        number = row["packet_number"] or 0
        row["capture_id"], row["packet_number"] = names.captures[number], names.numbers[number] or None
    for index, sightings in parts.items():
        connection = connections[index]
        if index in ours or connection.kind is not Kind.RPC or association(connection).foreign:
            continue
        states = [side.cutter for side in connection.sides]
        if not any(isinstance(state, CutState) and state.recognised for state in states) and not any(
            sighting.row["recognised"] for sighting in sightings
        ):
            continue
        for number in (0, 1):
            for run, capture_id in _runs(sightings, number):
                stray = Stray(
                    0, run["size"], run["sample"], "unrecognised", run["time_ns"], run["number"], run["file_offset"]
                )
                rows.append(quarantined(connection, run["sequence"], stray, capture_id, mine=False))
    return rows


def _runs(sightings: list[_Sighting], side: int) -> list[tuple[Row, str]]:
    """Stretches of one direction, those of several captures put together where they meet."""
    seen = [(run, one.row["capture_id"]) for one in sightings for run in one.row["runs"] if run["side"] == side]
    lead = seen[0][0]["sequence"] if seen else 0
    seen.sort(key=lambda each: (signed(each[0]["sequence"] - lead), each[0]["time_ns"], each[1]))
    found: list[tuple[Row, str]] = []
    for run, capture_id in seen:
        last = found[-1][0] if found else None
        again = -1 if last is None else signed(last["sequence"] + last["size"] - run["sequence"])
        if last is None or again < 0:
            found.append((dict(run), capture_id))
        elif again < run["size"]:
            if len(last["sample"]) == last["size"]:
                last["sample"] = (last["sample"] + run["sample"][again:])[:SAMPLE_BYTES]
            last["size"] += run["size"] - again
    return found


def _labels(parts: dict[int, list[_Sighting]], ours: set[int], contexts: list[Row]) -> list[Row]:
    """For each remainder the connection it is part of, and (``told``) a key of what its finished calls learn of it."""
    rows = []
    means: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for one in contexts:
        means[one["capture_id"], one["was_connection_id"]] += [one[name] for name in MEANINGS_SCHEMA.names[2:]]
    for index, sightings in parts.items():
        for sighting in sightings:
            connection, row = sighting.connection, sighting.row
            names = dict(zip(LABELS_SCHEMA.names[3:7], four_tuple(connection), strict=True))
            is_ours, handshake = index in ours or connection.kind is Kind.BINARY, has_handshake(connection)
            told = key(is_ours, handshake, *means[row["capture_id"], row["connection_id"]])
            rows.append(
                {
                    "capture_id": row["capture_id"],
                    "was_connection_id": row["connection_id"],
                    "connection_id": connection_id(connection),
                    **names,
                    "ours": is_ours,
                    "handshake": handshake,
                    "together": _is_shared(sightings),
                    "told": told,
                    "again": _interfaces(connection) if index in ours and "capture" in row["waits_for"] else None,
                }
            )
    return rows


def _interfaces(connection: Connection) -> list[str]:
    """Our interfaces that contexts of a connection were bound to."""
    bound = (context.interface for contexts in association(connection).contexts.values() for context in contexts)
    return sorted({BY_UUID[uuid].name for uuid in bound if uuid in BY_UUID})


def _packets(
    parts: dict[int, list[_Sighting]], ours: set[int], taught: dict[int, set[tuple[bytes, int, str]]]
) -> pa.RecordBatch:
    changed: dict[str, Counter[str]] = defaultdict(Counter)
    servers: dict[str, Counter[str]] = defaultdict(Counter)
    learnt: dict[str, set[str]] = defaultdict(set)
    for index, sightings in parts.items():
        for sighting in sightings:
            learnt[sighting.row["capture_id"]] |= place_texts(taught.get(index, ()))
            row, now = sighting.row, counted(sighting.connection, used=index in ours)
            server = four_tuple(sighting.connection)[2]
            if (now, server) != (row["counted"], row["counted_server"]):
                changed[row["capture_id"]][now] += row["packets"]
                changed[row["capture_id"]][row["counted"]] -= row["packets"]
                for counted_as, address, more in ((row["counted"], row["counted_server"], -1), (now, server, 1)):
                    servers[row["capture_id"]][address] += more if counted_as != "packets_other" else 0
    rows = [
        {
            "capture_id": name,
            **{count: changed[name][count] for count in COUNTS},
            "server_connections": server_connections(servers[name]),
            "learnt": sorted(places),
        }
        for name, places in sorted(learnt.items())
        if name in changed or places
    ]
    return pa.RecordBatch.from_pylist(rows, COUNTS_SCHEMA)


def recount(row: Row, more: Row) -> None:
    """Add what joining found (a row of ``Joined.packets``) to a capture's row of ``capture_files``."""
    for name in COUNTS:
        row[name] += more[name]
    row |= with_servers(row["server_connections"], more["server_connections"])
    row["learnt"] = sorted({*(row["learnt"] or ()), *more["learnt"]}) or None


def _pending(
    parts: dict[int, list[_Sighting]], labels: list[Row], calls: pa.RecordBatch, strays: list[Row], ours: set[int]
) -> pa.RecordBatch:
    """What remainders stand for now: each names the rows that were made of them and are of its capture."""
    told = {(label["capture_id"], label["was_connection_id"]): label["told"] for label in labels}
    made: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for call in calls.to_pylist():
        values = (value if isinstance(value, bytes) else repr(value) for value in call.values())
        made[call["connection_id"], call["capture_id"]][call["call_key"]] = key(*values)
    of: dict[tuple[int, str], list[str]] = defaultdict(list)
    for stray in strays:
        of[stray["index"], stray["capture_id"]].append(stray["quarantine_key"])
    rows = []
    for index, sightings in parts.items():
        identity = connection_id(sightings[0].connection)
        for sighting in sightings:
            capture_id = sighting.row["capture_id"]
            theirs = dict(sorted(made.pop((identity, capture_id), {}).items()))
            rows.append(
                {
                    "pending_key": sighting.row["pending_key"],
                    "event_date": sighting.row["event_date"],
                    "connection_id": identity,
                    "call_keys": list(theirs),
                    "calls_made": key(*theirs.values()) if theirs else None,
                    "quarantine_keys": sorted(of.pop((index, capture_id), [])),
                    "counted": counted(sighting.connection, used=index in ours),
                    "counted_server": four_tuple(sighting.connection)[2],
                    "told": told[capture_id, sighting.row["connection_id"]],
                }
            )
    return pa.RecordBatch.from_pylist(rows, CHANGES_SCHEMA)


def _meanings(parts: dict[int, list[_Sighting]], meanings: Meanings) -> list[Row]:
    """What the contexts mean whose bind was not seen by a capture that has finished calls of them."""
    rows = []
    for index, sightings in parts.items():
        for sighting in sightings:
            connection = sighting.connection
            for one in sighting.row["settled"]:
                context_id = one["context_id"]
                if context_id < 0:
                    continue
                bound = association(connection).contexts.get(context_id)
                uuid, syntax = meanings.get((index, context_id), (None, None))
                level: tuple[int | None, int | None] = (None, None)
                if bound:
                    uuid, syntax, level = bound[0].interface, bound[0].syntax, bind_level(bound[0])
                interface = BY_UUID.get(uuid or "")
                rows.append(
                    {
                        "capture_id": sighting.row["capture_id"],
                        "was_connection_id": sighting.row["connection_id"],
                        "context_id": context_id,
                        "known": _known(connection, context_id, meanings),
                        "bind_seen": bool(bound),
                        "interface_uuid": uuid,
                        "interface_name": None if interface is None else interface.name,
                        "transfer_syntax": syntax,
                        "auth_type": level[0],
                        "auth_level": level[1],
                    }
                )
    return rows
