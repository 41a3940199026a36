"""What a merge says of the remainders and their captures: connections, contexts, counts, places of packets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from schemas.bronze import CAPTURE_FILES, PENDING
from udfs.capture.bronze_rows import (
    server_connection_counts,
    sum_server_connections,
)
from udfs.capture.capture_reader import SESSION_ENDPOINT, endpoint_texts
from udfs.capture.open_connections import packet_count_column
from udfs.capture.remainders import Remainder, is_shared
from udfs.dcerpc.interfaces import INTERFACES_BY_UUID
from udfs.keys import hash_encoded_fields, key
from udfs.rows import RowDict
from udfs.rpc.call_assembly import association_of, auth_if_connect_level
from udfs.rpc.call_rows import InferredContexts
from udfs.rpc.connection_identity import connection_id, four_tuple
from udfs.sessions.packet_sightings import PACKET_MOVES_SCHEMA
from udfs.tcp.connections import ConnectionKind, TcpConnection

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
PENDING_CHANGES_SCHEMA: Final = PENDING.schema(only=(
    "pending_key", "event_date", "connection_id", "call_keys", "calls_made", "quarantine_keys", "packet_keys",
    "stream_ends", "counted", "counted_server", "merge_digest", "over_limit",
))  # fmt: skip
TOO_MANY_AT_ONCE: Final = "too_many_at_once"
PACKET_COUNT_COLUMNS: Final = ("packets_used", "packets_other", "packets_binary_protocol")
PACKET_COUNTS_SCHEMA: Final = CAPTURE_FILES.schema(
    only=("capture_id", *PACKET_COUNT_COLUMNS, "server_connections", "learned_endpoints")
)


def has_rows(connection: TcpConnection, context_id: int, inferred: InferredContexts) -> bool:
    """Whether calls of a context become rows: it is bound to an MSMQ interface, or has an inferred one."""
    if context_id < 0:
        return True
    bound = association_of(connection).usual_context(context_id)
    if bound is not None:
        return bound.interface_uuid in INTERFACES_BY_UUID
    return (connection.index, context_id) in inferred


def sides_by_name(connection: TcpConnection) -> tuple[tuple[int, str], tuple[int, str]]:
    """Return the sides of a connection, the client first: the number of each and what it is called."""
    client = connection.likely_client_side()
    return (client, "client"), (client ^ 1, "server")


def packet_move_rows(by_connection: dict[int, list[Remainder]]) -> list[RowDict]:
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
                for number, name in sides_by_name(connection)
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


def _stream_ends(remainder: Remainder) -> list[RowDict]:
    """Return the places up to which a remainder's directions were read, with offsets in the merged connection."""
    directions = remainder.connection.directions
    return [
        {**place, "stream_offset": end - direction.first_offset}
        for direction, place, end in zip(
            directions, remainder.row["stream_ends"] or (), remainder.stream_ends, strict=False
        )
    ]


def label_rows(
    by_connection: dict[int, list[Remainder]], msmq_indexes: set[int], contexts: list[RowDict]
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
        handshake, together = association_of(connection).has_handshake, is_shared(remainders)
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


def packet_count_changes(
    by_connection: dict[int, list[Remainder]],
    msmq_indexes: set[int],
    learned_by_connection: dict[int, set[tuple[bytes, int, str]]],
) -> pa.RecordBatch:
    """Return how the counts of packets and servers of the captures change (``PACKET_COUNTS_SCHEMA``)."""
    changed: dict[str, Counter[str]] = defaultdict(Counter)
    servers: dict[str, Counter[str]] = defaultdict(Counter)
    learned: dict[str, set[str]] = defaultdict(set)
    for index, remainders in by_connection.items():
        for remainder, server in zip(remainders, _counted_servers(remainders), strict=True):
            learned[remainder.row["capture_id"]] |= endpoint_texts(learned_by_connection.get(index, ()))
            row, now = remainder.row, packet_count_column(remainder.connection, is_msmq=index in msmq_indexes)
            if (now, server) != (row["counted"], row["counted_server"]):
                changed[row["capture_id"]][now] += row["packets"]
                changed[row["capture_id"]][row["counted"]] -= row["packets"]
                for counted_as, address, more in ((row["counted"], row["counted_server"], -1), (now, server, 1)):
                    if address is not None and counted_as != "packets_other":
                        servers[row["capture_id"]][address] += more
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


def _counted_servers(remainders: Sequence[Remainder]) -> list[str | None]:
    """Return the server that each remainder of a connection counts it at: of those of one capture the first alone."""
    seen = set[str]()
    servers = []
    for remainder in remainders:
        capture_id = remainder.row["capture_id"]
        servers.append(None if capture_id in seen else four_tuple(remainder.connection)[2])
        seen.add(capture_id)
    return servers


def add_packet_counts(row: RowDict, changes: RowDict) -> None:
    """Apply a row of ``MergeResult.packet_counts`` to a capture's row of ``capture_files``."""
    for name in PACKET_COUNT_COLUMNS:
        row[name] += changes[name]
    row |= sum_server_connections(row["server_connections"], changes["server_connections"])
    row["learned_endpoints"] = sorted({*(row["learned_endpoints"] or ()), *changes["learned_endpoints"]}) or None


def pending_changes(
    by_connection: dict[int, list[Remainder]],
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
        for remainder, server in zip(remainders, _counted_servers(remainders), strict=True):
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
                    "counted_server": server,
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


def context_meaning_rows(by_connection: dict[int, list[Remainder]], inferred: InferredContexts) -> list[RowDict]:
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
                        "known": has_rows(connection, context_id, inferred),
                        "bind_seen": bound is not None,
                        "interface_uuid": uuid,
                        "interface_name": None if interface is None else interface.name,
                        "transfer_syntax": syntax,
                        "auth_type": level[0],
                        "auth_level": level[1],
                    }
                )
    return rows
