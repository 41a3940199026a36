"""What a reading found -> rows of the bronze tables besides the calls (tables.md, bronze)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from udfs.dcerpc.interfaces import BY_UUID
from udfs.files.container import NO_TIME, Ints
from udfs.files.identity import DECODER_VERSION
from udfs.keys import key
from udfs.rpc.association import Association
from udfs.rpc.calls import association
from udfs.rpc.identity import connection_id, four_tuple
from udfs.rpc.pdu_framing import SAMPLE_BYTES, CutState, Stray
from udfs.rpc.schema import TIMESTAMP, batch_of
from udfs.sealed.tokens import TOKEN
from udfs.tcp.flows import Connection, Kind

if TYPE_CHECKING:
    from udfs.capture.reading import Reading
    from udfs.files.sources import Source

_TUPLE: Final = [
    ("client_address", pa.string()),
    ("client_port", pa.int32()),
    ("server_address", pa.string()),
    ("server_port", pa.int32()),
]
SERVER_CONNECTIONS: Final = pa.list_(pa.struct([("server_address", pa.string()), ("connections", pa.int64())]))
CAPTURE_FILES_SCHEMA: Final = pa.schema(
    [
        ("capture_id", pa.string()),
        ("path", pa.string()),
        ("other_paths", pa.list_(pa.string())),
        ("size_bytes", pa.int64()),
        ("modified_at", TIMESTAMP),
        ("format", pa.string()),
        ("compression", pa.string()),
        ("link_types", pa.list_(pa.int32())),
        ("packets", pa.int64()),
        ("packets_tcp", pa.int64()),
        ("packets_truncated", pa.int64()),
        ("packets_used", pa.int64()),
        ("packets_other", pa.int64()),
        ("packets_damaged", pa.int64()),
        ("packets_binary_protocol", pa.int64()),
        ("packets_dropped", pa.int64()),
        ("bytes_read", pa.int64()),
        ("first_packet_at", TIMESTAMP),
        ("last_packet_at", TIMESTAMP),
        ("status", pa.string()),
        ("error", pa.string()),
        ("damage", pa.string()),
        ("first_key", pa.string()),
        ("content_bytes", pa.int64()),
        ("tail_key", pa.string()),
        ("other_files", pa.string()),
        ("resume", pa.string()),
        ("decoder_version", pa.string()),
        ("servers", pa.list_(pa.string())),
        ("server_connections", SERVER_CONNECTIONS),
        ("learnt", pa.list_(pa.string())),
        ("followed", pa.list_(pa.string())),
        ("calls", pa.int64()),
        ("calls_damaged", pa.int64()),
        ("event_date", pa.date32()),
    ]
)
CONNECTIONS_SCHEMA: Final = pa.schema(
    [
        ("connection_id", pa.string()),
        *_TUPLE,
        ("kind", pa.string()),
        ("syn_seen", pa.bool_()),
        ("first_packet_at", TIMESTAMP),
        ("last_packet_at", TIMESTAMP),
        ("closed_at", TIMESTAMP),
        ("closed_by", pa.string()),
        ("client_bytes", pa.int64()),
        ("server_bytes", pa.int64()),
        ("retransmitted_bytes", pa.int64()),
        ("conflicting_bytes", pa.int64()),
        ("missing_bytes", pa.int64()),
        ("round_trip_ms", pa.float64()),
        ("association_group_id", pa.int64()),
        ("calls", pa.int64()),
        ("lost_by_capture_bytes", pa.int64()),
        ("packets", pa.int64()),
        ("event_date", pa.date32()),
    ]
)
BINDS_SCHEMA: Final = pa.schema(
    [
        ("bind_key", pa.string()),
        ("connection_id", pa.string()),
        *_TUPLE,
        ("context_id", pa.int32()),
        ("interface_uuid", pa.string()),
        ("interface_name", pa.string()),
        ("interface_version", pa.string()),
        ("transfer_syntaxes_offered", pa.list_(pa.string())),
        ("transfer_syntax", pa.string()),
        ("result", pa.string()),
        ("reason", pa.int32()),
        ("auth_type", pa.int32()),
        ("auth_level", pa.int32()),
        ("max_xmit_frag", pa.int32()),
        ("max_recv_frag", pa.int32()),
        ("association_group_id", pa.int64()),
        ("secondary_address", pa.string()),
        ("bound_at", TIMESTAMP),
        ("capture_id", pa.string()),
        ("packet_number", pa.int64()),
        ("handshake", pa.list_(TOKEN)),
        ("event_date", pa.date32()),
    ]
)
QUARANTINE_SCHEMA: Final = pa.schema(
    [
        ("quarantine_key", pa.string()),
        ("capture_id", pa.string()),
        ("connection_id", pa.string()),
        ("packet_number", pa.int64()),
        ("byte_offset", pa.int64()),
        ("size_bytes", pa.int64()),
        ("source_path", pa.string()),
        ("source_line", pa.int64()),
        ("reason", pa.string()),
        ("sample", pa.binary()),
        ("seen_at", TIMESTAMP),
        ("event_date", pa.date32()),
    ]
)
PDUS_SCHEMA: Final = pa.schema(
    [
        ("packet_number", pa.int64()),
        ("last_packet_number", pa.int64()),
        ("stream", pa.int64()),
        ("ptype", pa.int32()),
        ("flags", pa.int32()),
        ("call_id", pa.int64()),
        ("opnum", pa.int32()),
        ("context_id", pa.int32()),
        ("frag_length", pa.int32()),
        ("from_client", pa.bool_()),
    ]
)
_DAY_US: Final = 86_400_000_000


def _us(time: int | None) -> int | None:
    return None if time is None or time == NO_TIME else time // 1000


def _batch(rows: list[dict[str, Any]], schema: pa.Schema, time: str) -> pa.RecordBatch:
    """Rows as a batch; the event date is that of the named time."""
    for row in rows:
        moment = row[time]
        row["event_date"] = None if moment is None else moment // _DAY_US
    return batch_of(rows, schema)


def _names(connection: Connection) -> dict[str, Any]:
    return dict(zip([name for name, _ in _TUPLE], four_tuple(connection), strict=True))


def server_connections(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return numbers of connections by their server's address as ``SERVER_CONNECTIONS``; they can be negative."""
    return [{"server_address": name, "connections": count} for name, count in sorted(counts.items()) if count]


def with_servers(*parts: Iterable[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Return ``server_connections`` and ``servers`` of a capture whose parts counted these."""
    total: Counter[str] = Counter()
    for part in parts:
        for each in part or ():
            total[each["server_address"]] += each["connections"]
    return {"server_connections": server_connections(total) or None, "servers": sorted(+total) or None}


def capture_row(reading: Reading, source: Source, ours: set[int], learnt: Iterable[str]) -> pa.RecordBatch:
    """Return the one row of ``capture_files``; each record is used, binary protocol, damaged or other.

    ``learnt``: the places that its calls name, as texts.
    """
    counts, container = reading.counts, reading.container
    used = sum(connection.packets for connection in reading.connections if connection.index in ours)
    binary = sum(connection.packets for connection in reading.connections if connection.kind is Kind.BINARY)
    damage, error = reading.error or (None, None)
    if damage is None and container is not None and container.damage is not None:
        damage, error = container.damage.kind, container.damage.message
    status = "complete" if damage is None else "partial" if counts["packets"] else "unreadable"
    state = container.state() if container is not None else None
    followed = (each for each in reading.connections if each.index in ours or each.kind is Kind.BINARY)
    servers = Counter(four_tuple(connection)[2] for connection in followed)
    row = {
        "capture_id": reading.capture_id or source.path_key,
        "path": source.path,
        "other_paths": None,
        "size_bytes": source.size,
        "modified_at": None if source.modified_ns is None else source.modified_ns // 1000,
        "format": container.format if container is not None else None,
        "compression": source.compression,
        "link_types": sorted(reading.links) or None,
        "packets": counts["packets"],
        "packets_tcp": counts["tcp"],
        "packets_truncated": counts["truncated"],
        "packets_used": used,
        "packets_other": counts["packets"] - used - binary - counts["damaged"],
        "packets_damaged": counts["damaged"],
        "packets_binary_protocol": binary,
        "packets_dropped": container.dropped if container is not None else None,
        "bytes_read": source.size,
        "first_packet_at": _us(reading.first_time),
        "last_packet_at": _us(reading.last_time),
        "status": status,
        "error": error,
        "damage": damage,
        "first_key": reading.prefix.key,
        "content_bytes": container.content_bytes if container is not None else None,
        "tail_key": container.tail_key if container is not None else None,
        "other_files": None,
        "resume": None if state is None else json.dumps(state),
        "decoder_version": DECODER_VERSION,
        **with_servers(server_connections(servers)),
        "learnt": sorted(learnt) or None,
        "followed": sorted(reading.followed) or None,
        "calls": counts["calls"],
        "calls_damaged": counts["calls_damaged"],
    }
    return _batch([row], CAPTURE_FILES_SCHEMA, "first_packet_at")


def connection_rows(connections: list[Connection], ours: set[int], calls: Mapping[int, int]) -> pa.RecordBatch:
    """Return the connections of MSMQ RPC and of the binary protocol."""
    rows = []
    for connection in connections:
        binary = connection.kind is Kind.BINARY
        if connection.index not in ours and not binary:
            continue
        client = connection.likely_client()
        one, two = connection.sides[client], connection.sides[client ^ 1]
        closed = connection.closed
        trip = connection.round_trip
        known = association(connection)
        rows.append(
            {
                "connection_id": connection_id(connection),
                **_names(connection),
                "kind": "binary_protocol" if binary else "rpc",
                "syn_seen": connection.syn_seen,
                "first_packet_at": _us(connection.first_time),
                "last_packet_at": _us(connection.last_time),
                "closed_at": None if closed is None else _us(closed[0]),
                "closed_by": None if closed is None else closed[1],
                "client_bytes": one.distinct_bytes,
                "server_bytes": two.distinct_bytes,
                "retransmitted_bytes": one.retransmitted_bytes + two.retransmitted_bytes,
                "conflicting_bytes": one.conflicting_bytes + two.conflicting_bytes,
                "missing_bytes": one.missing_bytes + two.missing_bytes,
                "round_trip_ms": None if trip is None else trip / 1e6,
                "association_group_id": known.group
                if known.group is not None
                else next((asked.group for asked in known.asked), None),
                "calls": calls.get(connection.index, 0),
                "lost_by_capture_bytes": one.lost_by_capture_bytes + two.lost_by_capture_bytes,
                "packets": connection.packets,
            }
        )
    return _batch(rows, CONNECTIONS_SCHEMA, "first_packet_at")


def bind_rows(connections: list[Connection], ours: set[int], capture_id: str) -> pa.RecordBatch:
    """Return one row per presentation context asked for, of connections that are ours."""
    rows = []
    for connection in connections:
        if connection.index not in ours:
            continue
        names, identity = _names(connection), connection_id(connection)
        for asked in association(connection).asked:
            time = _us(asked.time)
            for position, element in enumerate(asked.elements):
                answer = asked.answers[position] if position < len(asked.answers) else None
                interface = BY_UUID.get(element.interface)
                offered = element.syntaxes
                syntax = answer.syntax if answer is not None and answer.syntax else offered[0] if offered else None
                result = answer.result if answer is not None else "unknown" if asked.nak is None else "rejected"
                rows.append(
                    {
                        "bind_key": key(*names.values(), asked.sequence, time, element.context_id),
                        "connection_id": identity,
                        **names,
                        "context_id": element.context_id,
                        "interface_uuid": element.interface,
                        "interface_name": None if interface is None else interface.name,
                        "interface_version": element.version,
                        "transfer_syntaxes_offered": list(offered),
                        "transfer_syntax": syntax,
                        "result": result,
                        "reason": answer.reason if answer is not None else asked.nak,
                        "auth_type": asked.auth_type,
                        "auth_level": asked.auth_level,
                        "max_xmit_frag": asked.max_xmit_frag,
                        "max_recv_frag": asked.max_recv_frag,
                        "association_group_id": asked.group,
                        "secondary_address": asked.secondary_address,
                        "bound_at": time,
                        "capture_id": capture_id,
                        "packet_number": asked.number,
                        "handshake": [token.row() for token in asked.tokens] or None if not position else None,
                    }
                )
    return _batch(rows, BINDS_SCHEMA, "bound_at")


def quarantine_rows(connections: list[Connection], ours: set[int], capture_id: str) -> list[dict[str, Any]]:
    """Return the bytes that belong nowhere: strays of our connections, and RPC that could not be recognised.

    Rows of ``quarantine_batch``, with the number of their connection (``index``) and whether other captures may show
    what they are (``open``).
    """
    rows: list[dict[str, Any]] = []
    for connection in connections:
        if connection.kind is not Kind.RPC:
            continue
        known = association(connection)
        mine = connection.index in ours
        if not mine and known.foreign:
            continue
        for side in connection.sides:
            state = side.cutter
            if not isinstance(state, CutState):
                continue
            recognised = any(isinstance(s.cutter, CutState) and s.cutter.recognised for s in connection.sides)
            strays = state.strays if mine else state.runs if recognised else []
            rows += [quarantined(connection, side.base, stray, capture_id, mine=mine) for stray in strays]
        if mine:
            base = connection.sides[connection.likely_client()].base
            rows += [quarantined(connection, base, stray, capture_id) for stray in _malformed(known)]
            for number, side in enumerate(connection.sides):
                if side.cold_bytes:  # passed over when nothing told yet what they were: position and bytes are not kept
                    early = Stray(
                        0, side.cold_bytes, b"", "before_recognition", connection.first_time, 0, -1 - number,
                        provisional=True,
                    )  # fmt: skip
                    rows.append(quarantined(connection, -1 - number, early, capture_id))
    return rows


def early_quarantine_rows(connections: Iterable[Connection], capture_id: str) -> pa.RecordBatch | None:
    """Return the strays of connections that are ours and have many, and forget them; None if there are none."""
    rows = []
    for connection in connections:
        if not association(connection).ours:
            continue
        for side in connection.sides:
            state = side.cutter
            if isinstance(state, CutState) and len(state.strays) > _MANY_STRAYS:
                done = [stray for stray in state.strays if not stray.provisional]
                rows += [quarantined(connection, side.base, stray, capture_id) for stray in done]
                state.strays = [stray for stray in state.strays if stray.provisional]
    return _batch(rows, QUARANTINE_SCHEMA, "seen_at") if rows else None


_MANY_STRAYS: Final = 1000


def _malformed(known: Association) -> list[Stray]:
    return [
        Stray(offset, size, sample, reason, time, number, file_offset, provisional=True)
        for reason, offset, time, number, file_offset, size, sample in known.malformed
    ]


def quarantined(
    connection: Connection, base: int | None, stray: Stray, capture_id: str, *, mine: bool = True
) -> dict[str, Any]:
    """Return the row of a stray of the stream whose offset 0 has the sequence number ``base``.

    With ``mine`` false the connection could not be recognised, and is not named.
    """
    sequence = ((base or 0) + stray.offset) & 0xFFFFFFFF
    return {
        "quarantine_key": key(*four_tuple(connection), sequence, _us(stray.time), stray.reason),
        "capture_id": capture_id,
        "connection_id": connection_id(connection) if mine else None,
        "packet_number": stray.number or None,
        "byte_offset": stray.file_offset if stray.number else None,
        "size_bytes": stray.size,
        "source_path": None,
        "source_line": None,
        "reason": stray.reason,
        "sample": stray.sample[:SAMPLE_BYTES] if stray.number else None,
        "seen_at": _us(stray.time),
        "index": connection.index,
        "open": stray.provisional or not mine,
    }


def quarantine_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows of ``quarantined`` as a batch."""
    return _batch(rows, QUARANTINE_SCHEMA, "seen_at")


def pdu_batch(columns: dict[str, Ints]) -> pa.RecordBatch:
    """Return the ``pdus`` rows of a block."""
    arrays = []
    for column in PDUS_SCHEMA:
        values = columns[column.name]
        if column.name in ("opnum", "context_id"):
            arrays.append(pa.array(values, mask=values < 0).cast(column.type))
        elif column.type == pa.bool_():
            arrays.append(pa.array(np.asarray(values, bool)))
        else:
            arrays.append(pa.array(values).cast(column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=PDUS_SCHEMA)
