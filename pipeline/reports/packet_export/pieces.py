"""Pieces of connections: where and when the packets of calls, of packets of the binary protocol and of connections are.

In names and comments here, a *packet* of the binary protocol is a row of ``bronze.session_packets``: it lies in one
captured packet or more.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

from pipeline.concurrency import run_concurrently
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryInput
from pipeline.reports.packet_export.comments import (
    CALL_FACTS_SQL,
    PACKET_FACTS_SQL,
    describe_call,
    describe_packet,
)
from pipeline.reports.packet_export.evidence import Evidence
from schemas.bronze import CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSION_PACKETS
from udfs.columns.absent import AFTER_ALL, BEFORE_ALL, NO_TIME
from udfs.rows import RowDict, RowMapping
from udfs.times import HOUR_US, datetime_to_us

_BIND_ANSWER_US: Final = 1_000_000  # longer than any server takes to answer a bind
NO_TIME_US: Final = NO_TIME // 1000
_ENDS: Final = ("client_address", "client_port", "server_address", "server_port")
_CALL_TIMES: Final = ("request_at", "request_done_at", "response_at", "response_done_at", "cancelled_at", "orphaned_at")
_PACKET_TIMES: Final = ("sent_at", "sent_done_at")


def _listed(names: Iterable[str], text: str = "e.{}") -> str:
    return ", ".join(text.format(name) for name in names)


_CALLS_SQL: Final = f"""
SELECT e.call_key, e.connection_id, {_listed(_ENDS)}, e.capture_id, e.response_capture_id, e.sightings,
  {_listed(_CALL_TIMES, "unix_micros(e.{0}) AS {0}")}, e.interface_name, e.opnum, e.outcome, m.label, f.*
FROM {{calls}} AS e
LEFT JOIN (SELECT call_key, label FROM {{messages}} WHERE call_key IN {{keys}} OR connection_id IN {{keys}}) AS m
  ON m.call_key = e.call_key
LEFT JOIN ({CALL_FACTS_SQL}) AS f ON f.fact_key = e.call_key
WHERE e.call_key IN {{keys}} OR e.connection_id IN {{keys}}"""
# A packet that is not whole lasts, as far as is known, until the next one of its side begins.
_PACKETS_SQL: Final = f"""
SELECT e.packet_key, {_listed(_ENDS)}, e.capture_id, e.sightings,
  e.complete AND (e.observations = 1 OR e.sightings IS NOT NULL) AS is_whole,
  e.sent_at, coalesce(e.sent_done_at, n.next_at, c.last_packet_at) AS sent_done_at, e.kind, f.*
FROM {{packets}} AS e
LEFT JOIN (
  SELECT p.packet_key, min(q.sent_at) AS next_at FROM {{packets}} AS p JOIN {{packets}} AS q
    ON q.connection_id = p.connection_id AND q.sent_by = p.sent_by AND q.stream_offset > p.stream_offset
  WHERE NOT p.complete AND (p.packet_key IN {{keys}} OR p.connection_id IN {{keys}}) GROUP BY p.packet_key
) AS n ON n.packet_key = e.packet_key
LEFT JOIN {{connections}} AS c ON c.connection_id = e.connection_id
LEFT JOIN ({PACKET_FACTS_SQL}) AS f ON f.fact_key = e.packet_key
WHERE e.packet_key IN {{keys}} OR e.connection_id IN {{keys}}"""
_CONNECTIONS_SQL: Final = f"""
SELECT e.connection_id, {_listed(_ENDS)}, e.kind, unix_micros(e.first_packet_at) AS begin_us,
  unix_micros(e.last_packet_at) AS end_us, unix_micros(b.bound_at) AS bound_us
FROM {{connections}} AS e LEFT JOIN (
  SELECT connection_id, max(bound_at) AS bound_at FROM {{binds}} WHERE connection_id IN {{ids}} GROUP BY connection_id
) AS b ON b.connection_id = e.connection_id
WHERE e.connection_id IN {{ids}}"""
_CALL_TABLES: Final = {
    "calls": RPC_CALLS, "reads": REMOTE_READ_CALLS, "managements": MANAGEMENT_CALLS, "clients": CLIENT_CALLS,
    "messages": MESSAGES,
}  # fmt: skip
_PACKET_TABLES: Final = {
    "packets": SESSION_PACKETS, "connections": CONNECTIONS, "messages": MESSAGES, "sendings": SENDINGS,
    "order_acks": ORDER_ACKS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """A time range of one TCP connection, both ends included, with a comment for its packets.

    ``client`` and ``server`` are packed IP address and port, in whatever tunnel. ``begin_us``, ``end_us``: microseconds
    since the epoch. ``names``: of what it is evidence of. ``captures``: ids of those that have it; None: all that may
    have its connection then. If it is not ``exported``, it only comments on packets that are exported with others.
    ``is_connection``: it comments on packets that no call or packet is in.
    """

    client: tuple[bytes, int]
    server: tuple[bytes, int]
    begin_us: int
    end_us: int
    comment: str
    names: tuple[str, ...] = ()
    captures: frozenset[str] | None = None
    exported: bool = True
    is_connection: bool = False


def find_pieces(lake: Lake, evidence: Evidence, since: datetime | None, until: datetime | None) -> list[Piece]:
    """Return the pieces that are evidence, so far as they are between two times; of calls also the binds before them.

    Of connections also their calls and packets, which only comment.
    """
    names = evidence.names_by_key
    if not names:
        return []
    limits = (datetime_to_us(since) or BEFORE_ALL, datetime_to_us(until) or AFTER_ALL)
    keys = names.keys()
    found = run_concurrently(
        {
            "calls": partial(_rows, lake, _CALLS_SQL, keys=keys, **_CALL_TABLES),
            "packets": partial(_rows, lake, _PACKETS_SQL, keys=keys, **_PACKET_TABLES),
        }
    )
    packets = [piece for row in found["packets"] for piece in _packet_pieces(row, names)]
    calls = [(row["connection_id"], piece) for row in found["calls"] for piece in _call_pieces(row, names)]
    calls = [(connection, clipped) for connection, piece in calls for clipped in _clipped(piece, *limits)]
    called_at: dict[str, int] = {}  # the last call that is exported, by connection
    for connection, piece in calls:
        if piece.exported:
            called_at[connection] = max(piece.begin_us, called_at.get(connection, BEFORE_ALL))
    ids = {*keys, *called_at}
    connections = _rows(lake, _CONNECTIONS_SQL, ids=ids, connections=CONNECTIONS, binds=RPC_BINDS)
    others = [*packets, *(piece for row in connections for piece in _connection_pieces(row, evidence))]
    return [
        *(piece for _, piece in calls),
        *(clipped for piece in others for clipped in _clipped(piece, *limits)),
        *(piece for row in connections for piece in _binds(row, called_at)),
    ]


def _rows(lake: Lake, sql: str, **of: QueryInput) -> list[RowDict]:
    rows: list[RowDict] = lake.query(sql, **of).to_pylist()
    return rows


def _clipped(piece: Piece, since_us: int, until_us: int) -> Iterator[Piece]:
    """Yield the part of a piece that is between two times, if there is one."""
    begin, end = max(piece.begin_us, since_us), min(piece.end_us, until_us)
    if (begin, end) == (piece.begin_us, piece.end_us):
        yield piece
    elif begin <= end:
        yield replace(piece, begin_us=begin, end_us=end)


def _call_pieces(row: RowMapping, names: Mapping[str, Sequence[str]]) -> Iterator[Piece]:
    """Yield the pieces of a call: one for each capture that saw it."""
    own = tuple(sorted(names.get(row["call_key"], ())))
    for seen in row["sightings"] or [row]:
        captures = frozenset({seen["capture_id"], seen["response_capture_id"]} - {None})
        times = [seen[name] for name in _CALL_TIMES]
        yield _piece(row, times, describe_call(row), own, captures)


def _packet_pieces(row: RowMapping, names: Mapping[str, Sequence[str]]) -> Iterator[Piece]:
    """Yield the pieces of a packet of the binary protocol: one for each capture that has it whole."""
    own = tuple(sorted(names.get(row["packet_key"], ())))
    for seen in row["sightings"] or [row]:
        captures = frozenset([seen["capture_id"]]) if row["is_whole"] else None
        times = [datetime_to_us(seen[name]) for name in _PACKET_TIMES]
        yield _piece(row, times, describe_packet(row), own, captures)


def _connection_pieces(row: RowMapping, evidence: Evidence) -> Iterator[Piece]:
    """Yield the pieces of a connection that is evidence: the whole of it, or one hour."""
    own = evidence.names_by_key.get(row["connection_id"], ())
    comment = f"connection {row['connection_id']}"
    for name in own:
        piece = replace(_piece(row, [row["begin_us"], row["end_us"]], comment, (name,), None), is_connection=True)
        hour = evidence.hours.get(name)
        yield from [piece] if hour is None else _clipped(piece, hour, hour + HOUR_US - 1)


def _binds(row: RowMapping, called_at: Mapping[str, int]) -> Iterator[Piece]:
    """Yield the piece of a connection up to the last bind before the last call that is exported, without a name."""
    call_us = called_at.get(row["connection_id"])
    if call_us is not None and row["bound_us"] is not None and row["begin_us"] is not None:
        end = min(row["bound_us"] + _BIND_ANSWER_US, call_us)  # the answer precedes the request
        yield replace(
            _piece(row, [row["begin_us"], end], "connection up to its bind", (), None),
            exported=True,
            is_connection=True,
        )


def _piece(
    row: RowMapping, times: Sequence[int | None], comment: str, names: tuple[str, ...], captures: frozenset[str] | None
) -> Piece:
    """Return a piece of a row with both ends, from its first time to its last; without times it has packets without."""
    known = [each for each in times if each is not None] or [NO_TIME_US]
    client = (ipaddress.ip_address(row["client_address"]).packed, row["client_port"])
    server = (ipaddress.ip_address(row["server_address"]).packed, row["server_port"])
    return Piece(client, server, min(known), max(known), comment, names, captures, exported=bool(names))
