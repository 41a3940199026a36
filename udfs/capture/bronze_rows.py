"""Arrow schemas and rows of the bronze tables except ``rpc_calls`` and ``pending``, from a capture's connections."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from schemas.bronze import CAPTURE_FILES, CONNECTIONS, QUARANTINE, RPC_BINDS
from schemas.table import BIGINT, ENDPOINT_COLUMNS, RUN_COLUMNS
from udfs.array_types import Ints
from udfs.columns.absent import NO_TIME
from udfs.dcerpc.interfaces import INTERFACES_BY_UUID
from udfs.files.capture_file import MAX_HOST_NAMES, HostName
from udfs.files.capture_fingerprint import DECODER_VERSION
from udfs.keys import key
from udfs.rpc.call_assembly import association_of, shows_msmq
from udfs.rpc.call_schema import rows_to_batch
from udfs.rpc.connection_identity import connection_id, four_tuple, key_fields
from udfs.rpc.pdu_framing import QUARANTINE_SAMPLE_BYTES, FramingState, StrayBytes
from udfs.sealed.claimed_identity import UNKNOWN_IDENTITY, identities_by_context
from udfs.sessions.packet_framing import SessionSide
from udfs.tcp.capture_budget import CaptureBudget
from udfs.tcp.connections import ConnectionKind, TcpConnection
from udfs.tcp.packet_decoder import PacketDecoder
from udfs.tcp.tunnels import MAX_DEPTH
from udfs.times import DAY_US

if TYPE_CHECKING:
    from udfs.capture.capture_scan import CaptureScan
    from udfs.files.file_source import FileSource

CAPTURE_FILES_SCHEMA: Final = (
    CAPTURE_FILES.schema(without=RUN_COLUMNS)
    .insert(CAPTURE_FILES.names.index("tunnels"), pa.field("calls", BIGINT))
    .insert(CAPTURE_FILES.names.index("tunnels") + 1, pa.field("calls_damaged", BIGINT))
)
"""The ledger, with the numbers of the capture's calls, which are not stored."""
CONNECTIONS_SCHEMA: Final = CONNECTIONS.schema(without=RUN_COLUMNS)
RPC_BINDS_SCHEMA: Final = RPC_BINDS.schema(without=RUN_COLUMNS)
QUARANTINE_SCHEMA: Final = QUARANTINE.schema(without=RUN_COLUMNS)
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
_MAX_TUNNEL_ROWS: Final = 1000
_MAX_NOT_READ_ROWS: Final = 1000
_FURTHER_NOT_READ: Final = "of further kinds"
_TUNNEL_FIELDS: Final = ("kind", "source", "destination", "identifier")


def _to_us(time: int | None) -> int | None:
    return None if time is None or time == NO_TIME else time // 1000


def _to_batch(rows: Iterable[dict[str, Any]], schema: pa.Schema, time: str) -> pa.RecordBatch:
    """Convert rows to a record batch; ``event_date`` is the date of the column ``time``."""

    def event_date(moment: int | None) -> int | None:
        return None if moment is None else moment // DAY_US

    return rows_to_batch(({**row, "event_date": event_date(row[time])} for row in rows), schema)


def _four_tuple_columns(connection: TcpConnection) -> dict[str, Any]:
    return dict(zip((column.name for column in ENDPOINT_COLUMNS), four_tuple(connection), strict=True))


def server_connection_counts(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return connection counts by server address as a value of ``server_connections``; counts may be negative."""
    return [{"server_address": name, "connections": count} for name, count in sorted(counts.items()) if count]


def sum_server_connections(*parts: Iterable[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Add up values of ``server_connections``; return the columns ``server_connections`` and ``servers``."""
    total: Counter[str] = Counter()
    for part in parts:
        for each in part or ():
            total[each["server_address"]] += each["connections"]
    return {"server_connections": server_connection_counts(total) or None, "servers": sorted(+total) or None}


def capture_file_row(
    scan: CaptureScan, source: FileSource, msmq_indexes: set[int], learned: Iterable[str]
) -> pa.RecordBatch:
    """Return the ``capture_files`` row of a capture. Each record counts as used, binary protocol, damaged or other.

    ``msmq_indexes``: indexes of MSMQ connections; ``learned``: text forms of the endpoints that its calls report.
    """
    counts, file_reader = scan.counts, scan.file_reader
    used = sum(connection.packet_count for connection in scan.connections if connection.index in msmq_indexes)
    binary = sum(connection.packet_count for connection in scan.connections if connection.kind is ConnectionKind.BINARY)
    binary += counts["pings"]
    damage, error = scan.error or (None, None)
    if damage is None and file_reader is not None and file_reader.damage is not None:
        damage, error = file_reader.damage.kind, file_reader.damage.message
    status = "complete" if damage is None else "partial" if counts["packets"] else "unreadable"
    if damage == "empty":
        status = "empty"
    # Behind a place where times went back a longer copy cannot be read on: it depends on all before it.
    state = file_reader.resume_state() if file_reader is not None and not scan.order.steps else None
    counted = (each for each in scan.connections if each.index in msmq_indexes or each.kind is ConnectionKind.BINARY)
    servers = Counter(four_tuple(connection)[2] for connection in counted)
    row = {
        "capture_id": scan.capture_id or source.path_key,
        "path": source.path,
        "other_paths": None,
        "size_bytes": source.stored_bytes,
        "modified_at": None if source.modified_ns is None else source.modified_ns // 1000,
        "format": file_reader.format if file_reader is not None else None,
        "compression": source.compression,
        "link_types": sorted(scan.link_types) or None,
        "packets": counts["packets"],
        "packets_tcp": counts["tcp"],
        "packets_truncated": counts["truncated"],
        "packets_used": used,
        "packets_other": counts["packets"] - used - binary - counts["damaged"],
        "packets_damaged": counts["damaged"],
        "packets_binary_protocol": binary,
        "packets_dropped": file_reader.dropped_packets if file_reader is not None else None,
        "bytes_read": source.stored_bytes,
        "first_packet_at": _to_us(scan.first_time_ns),
        "last_packet_at": _to_us(scan.last_time_ns),
        "status": status,
        "error": error,
        "damage": damage,
        "first_key": scan.first_packet_hash.key,
        "content_bytes": file_reader.content_bytes if file_reader is not None else None,
        "tail_key": file_reader.tail_key if file_reader is not None else None,
        "other_files": None,
        "resume": None if state is None else json.dumps(state),
        "decoder_version": DECODER_VERSION,
        **sum_server_connections(server_connection_counts(servers)),
        "learned_endpoints": sorted(learned) or None,
        "reread_endpoints": sorted(scan.reread_endpoints) or None,
        "calls": counts["calls"],
        "calls_damaged": counts["calls_damaged"],
        "tunnels": _tunnel_rows(scan.decoder),
        "packets_not_read": scan.decoder and not_read_rows(_count_not_read(scan.decoder, scan.budget)),
        "packets_ahead": scan.counts["ahead"],
        "times_go_back": scan.order.rows(),
        "host_names": host_name_rows(each._asdict() for each in (file_reader.host_names if file_reader else ())),
        "tap_steps": None,  # merging finds them
    }
    return _to_batch([row], CAPTURE_FILES_SCHEMA, "first_packet_at")


def _tunnel_rows(decoder: PacketDecoder | None) -> list[dict[str, Any]] | None:
    """Return the tunnels of a capture; None without any."""
    if decoder is None:
        return None
    found = {(one.kind, one.source, one.destination, one.identifier) for one in decoder.tunnels.tunnels if one}
    return sort_tunnels(dict(zip(_TUNNEL_FIELDS, one, strict=True)) for one in found) or None


def sort_tunnels(tunnels: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return distinct tunnels (structs of ``capture_files.tunnels``) in their order, at most ``_MAX_TUNNEL_ROWS``."""

    def order(one: dict[str, Any]) -> tuple[Any, ...]:
        return tuple((False,) if one[name] is None else (True, one[name]) for name in _TUNNEL_FIELDS)

    return sorted(tunnels, key=order)[:_MAX_TUNNEL_ROWS]


def host_name_rows(names: Iterable[dict[str, str]]) -> list[dict[str, str]] | None:
    """Return distinct names of addresses (structs of ``capture_files.host_names``) in their order; None for none."""
    found = sorted({HostName(**each) for each in names})[:MAX_HOST_NAMES]
    return [each._asdict() for each in found] or None


def _count_not_read(decoder: PacketDecoder, budget: CaptureBudget) -> Counter[str]:
    """Return how many packets of a capture are not read, by what they are."""
    found = decoder.unread.counts + budget.unread_packets
    found.update({f"link type {link}": count for link, count in decoder.unread_link_types.items()})
    if decoder.nested_too_deep:
        found[f"in more than {MAX_DEPTH} tunnels"] = decoder.nested_too_deep
    return found


def not_read_rows(counts: Mapping[str, int]) -> list[dict[str, Any]] | None:
    """Return packets that are not read, by what they are, as ``capture_files.packets_not_read``; None without any.

    Beyond ``_MAX_NOT_READ_ROWS`` they are counted together.
    """
    named = sorted(what for what in counts if what != _FURTHER_NOT_READ)[:_MAX_NOT_READ_ROWS]
    rows: list[dict[str, Any]] = [{"what": what, "packets": counts[what]} for what in named]
    if further := sum(counts.values()) - sum(counts[what] for what in named):
        rows.append({"what": _FURTHER_NOT_READ, "packets": further})
    return rows or None


def connection_rows(
    connections: list[TcpConnection], msmq_indexes: set[int], calls: Mapping[int, int], failed: Mapping[int, str]
) -> pa.RecordBatch:
    """Return the ``connections`` rows of MSMQ RPC and of the binary protocol.

    By connection index: ``calls``: counts; ``failed``: why they were not established.
    """
    return _to_batch(_connection_rows(connections, msmq_indexes, calls, failed), CONNECTIONS_SCHEMA, "first_packet_at")


def _connection_rows(
    connections: list[TcpConnection], msmq_indexes: set[int], calls: Mapping[int, int], failed: Mapping[int, str]
) -> Iterator[dict[str, Any]]:
    for connection in connections:
        binary = connection.kind is ConnectionKind.BINARY
        if connection.index not in msmq_indexes and not binary:
            continue
        client = connection.likely_client_side()
        one, two = connection.directions[client], connection.directions[client ^ 1]
        closed = connection.end_time_and_cause
        trip = connection.round_trip_ns
        unseen = connection.uncaptured_side
        association = association_of(connection)
        yield (
            {
                "connection_id": connection_id(connection),
                **_four_tuple_columns(connection),
                "kind": "binary_protocol" if binary else "rpc",
                "syn_seen": connection.syn_seen,
                "first_packet_at": _to_us(connection.first_time_ns),
                "last_packet_at": _to_us(connection.last_time_ns),
                "closed_at": None if closed is None else _to_us(closed[0]),
                "closed_by": None if closed is None else closed[1],
                "client_bytes": one.distinct_bytes,
                "server_bytes": two.distinct_bytes,
                "retransmitted_bytes": one.retransmitted_bytes + two.retransmitted_bytes,
                "conflicting_bytes": one.conflicting_bytes + two.conflicting_bytes,
                "missing_bytes": one.missing_bytes + two.missing_bytes,
                "round_trip_ms": None if trip is None or trip == NO_TIME else trip / 1e6,
                "association_group_id": association.group_id
                if association.group_id is not None
                else next((bind.group_id for bind in association.binds), None),
                "association_joined": association.has_joined,
                "calls": calls.get(connection.index, 0),
                "lost_by_capture_bytes": one.lost_by_capture_bytes + two.lost_by_capture_bytes,
                "packets": connection.packet_count,
                "tunnel_identifier": connection.tunnel_identifier,
                "not_established": failed.get(connection.index),
                "client_missing_bytes": one.missing_bytes,
                "server_missing_bytes": two.missing_bytes,
                "uncaptured_side": None if unseen is None else "client" if unseen == client else "server",
            }
        )


def bind_rows(connections: list[TcpConnection], msmq_indexes: set[int], capture_id: str) -> pa.RecordBatch:
    """Return the ``rpc_binds`` rows of MSMQ connections: one per proposed presentation context."""
    return _to_batch(_bind_rows(connections, msmq_indexes, capture_id), RPC_BINDS_SCHEMA, "bound_at")


def _bind_rows(connections: list[TcpConnection], msmq_indexes: set[int], capture_id: str) -> Iterator[dict[str, Any]]:
    for connection in connections:
        if connection.index not in msmq_indexes:
            continue
        names, identity = _four_tuple_columns(connection), connection_id(connection)
        binds = association_of(connection).binds
        identities = identities_by_context(token for bind in binds for token in bind.tokens)
        for bind in binds:
            known = [token.auth_context_id for token in bind.tokens if token.auth_context_id in identities]
            claimed = identities[known[0]] if known else UNKNOWN_IDENTITY
            time = _to_us(bind.time_ns)
            for position, element in enumerate(bind.context_elements):
                answer = bind.results[position] if position < len(bind.results) else None
                interface = INTERFACES_BY_UUID.get(element.interface_uuid)
                offered = element.transfer_syntaxes
                syntax = (
                    answer.transfer_syntax
                    if answer is not None and answer.transfer_syntax
                    else offered[0]
                    if offered
                    else None
                )
                result = answer.result if answer is not None else "unknown" if bind.nak_reason is None else "rejected"
                yield (
                    {
                        "bind_key": key(*key_fields(connection), bind.sequence, time, element.context_id),
                        "connection_id": identity,
                        **names,
                        "context_id": element.context_id,
                        "interface_uuid": element.interface_uuid,
                        "interface_name": None if interface is None else interface.name,
                        "interface_version": element.interface_version,
                        "transfer_syntaxes_offered": list(offered),
                        "transfer_syntax": syntax,
                        "result": result,
                        "reason": answer.reason if answer is not None else bind.nak_reason,
                        "auth_type": bind.auth_type,
                        "auth_level": bind.auth_level,
                        "max_xmit_frag": bind.max_xmit_frag,
                        "max_recv_frag": bind.max_recv_frag,
                        "association_group_id": bind.group_id,
                        "secondary_address": bind.secondary_address,
                        "bound_at": time,
                        "capture_id": capture_id,
                        "packet_number": bind.packet_number,
                        "handshake": [token.to_row() for token in bind.tokens] or None if not position else None,
                        "auth_principal": claimed.principal,
                        "auth_workstation": claimed.workstation,
                        "auth_service": claimed.service,
                    }
                )


def quarantine_rows(
    connections: list[TcpConnection], msmq_indexes: set[int], capture_id: str
) -> Iterator[dict[str, Any]]:
    """Yield the ``quarantine`` rows: stray bytes of MSMQ connections, and of RPC that could not be recognised.

    They are input of ``quarantine_batch``. Additional keys: ``index`` of the connection, and ``open``, whether another
    capture may show what the bytes are.
    """
    for connection in connections:
        if connection.kind is ConnectionKind.BINARY:
            yield from _session_stray_rows(connection, capture_id)
        if connection.kind is not ConnectionKind.RPC:
            continue
        association = association_of(connection)
        is_ours = connection.index in msmq_indexes
        if not is_ours and association.has_only_other_interfaces:
            continue
        for side in connection.directions:
            state = side.framing_state
            if not isinstance(state, FramingState):
                continue
            recognised = any(
                isinstance(s.framing_state, FramingState) and s.framing_state.recognised for s in connection.directions
            )
            strays = state.strays if is_ours else state.unrecognised_runs if recognised else []
            for stray in strays:
                yield quarantine_row(connection, side.base_sequence, stray, capture_id, is_msmq=is_ours)
        if is_ours:
            base = connection.directions[connection.likely_client_side()].base_sequence
            for stray in association.quarantined_binds:
                yield quarantine_row(connection, base, stray, capture_id)
            # Of these neither position nor bytes are known.
            for number, side in enumerate(connection.directions):
                if size := side.unrecognised_bytes:
                    yield _unplaced_row(connection, number, size, "before_recognition", capture_id, provisional=True)
                if size := association.unkept_call_bytes[number]:
                    yield _unplaced_row(connection, number, size, "waiting_limit", capture_id, provisional=False)


def _session_stray_rows(connection: TcpConnection, capture_id: str) -> Iterator[dict[str, Any]]:
    """Yield the ``quarantine`` rows of a connection of the binary protocol."""
    for side in connection.directions:
        state = side.framing_state
        if isinstance(state, SessionSide):
            for stray in state.strays_with_reasons():
                yield quarantine_row(connection, side.base_sequence, stray, capture_id)


def _unplaced_row(
    connection: TcpConnection, side: int, size: int, reason: str, capture_id: str, *, provisional: bool
) -> dict[str, Any]:
    """Return the ``quarantine`` row of bytes of a direction of which only the number is known."""
    stray = StrayBytes(0, size, b"", reason, connection.first_time_ns, 0, -1 - side, provisional=provisional)
    return quarantine_row(connection, -1 - side, stray, capture_id)


def flush_stray_rows(connections: Iterable[TcpConnection], capture_id: str) -> pa.RecordBatch | None:
    """Return ``quarantine`` rows of MSMQ connections with many strays, and remove these; None if there are none."""
    rows = []
    for connection in connections:
        for side in connection.directions:
            state = side.framing_state
            if not isinstance(state, (FramingState, SessionSide)) or len(state.strays) <= _MAX_STRAYS_IN_MEMORY:
                continue
            # Of a side without a packet all bytes have another reason, in the end.
            if state.found if isinstance(state, SessionSide) else shows_msmq(connection):
                done = [stray for stray in state.strays if not stray.provisional]
                rows += [quarantine_row(connection, side.base_sequence, stray, capture_id) for stray in done]
                state.strays = [stray for stray in state.strays if stray.provisional]
    return _to_batch(rows, QUARANTINE_SCHEMA, "seen_at") if rows else None


_MAX_STRAYS_IN_MEMORY: Final = 1000


def quarantine_row(
    connection: TcpConnection, base: int | None, stray: StrayBytes, capture_id: str, *, is_msmq: bool = True
) -> dict[str, Any]:
    """Return the ``quarantine`` row of stray bytes; stream offset 0 has the sequence number ``base``.

    If the connection is not recognised as MSMQ, its key is left out.
    """
    sequence = ((base or 0) + stray.stream_offset) & 0xFFFFFFFF
    return {
        "quarantine_key": key(*key_fields(connection), sequence, _to_us(stray.time_ns), stray.reason),
        "capture_id": capture_id,
        "connection_id": connection_id(connection) if is_msmq else None,
        "packet_number": stray.packet_number or None,
        "byte_offset": stray.file_offset if stray.packet_number else None,
        "size_bytes": stray.size,
        "source_path": None,
        "source_line": None,
        "reason": stray.reason,
        "sample": stray.sample[:QUARANTINE_SAMPLE_BYTES] if stray.packet_number else None,
        "seen_at": _to_us(stray.time_ns),
        "index": connection.index,
        "open": stray.provisional or not is_msmq,
    }


def quarantine_batch(rows: Iterable[dict[str, Any]]) -> pa.RecordBatch:
    """Convert rows of ``quarantine_row`` to a record batch."""
    return _to_batch(rows, QUARANTINE_SCHEMA, "seen_at")


def pdu_batch(columns: dict[str, Ints]) -> pa.RecordBatch:
    """Convert the columns of ``CallAssembler.pdu_listings`` to rows of the ``pdus`` table."""
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
