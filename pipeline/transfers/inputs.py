"""Reads packets of connections, and what was decoded of their messages, from the lake."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.arrow_rows import is_in
from pipeline.lake.lake import Lake
from pipeline.transfers.connection_packets import (
    USER_FLAGS_SQL,
    USER_MESSAGE,
    ConnectionPackets,
    arrange_packets,
)
from schemas.bronze import CAPTURE_FILES, CONNECTIONS
from schemas.messages import MESSAGES
from schemas.sessions import SESSION_PACKETS
from schemas.table import EVENT_DATE
from udfs.messages.header_layouts import PROTOCOL_BINARY

BINARY_PROTOCOL: Final = "binary_protocol"  # bronze.connections.kind
MAX_PACKETS: Final = 500_000  # of connections that are recomputed together; one connection may have more
_CAPTURE_ENDS: Final = """
SELECT server, unix_micros(max(last_packet_at)) AS ends
FROM (SELECT explode(servers) AS server, last_packet_at FROM {files})
WHERE last_packet_at IS NOT NULL GROUP BY server"""
_SIZES: Final = "SELECT connection_id, count(*) AS n FROM {rows} WHERE connection_id IN {names} GROUP BY connection_id"
# Of user messages, which may be large, only some bytes are read: they are decoded apart.
_PACKETS: Final = f"""
SELECT packet_key, connection_id, client_address, client_port, server_address, server_port, sent_by, tcp_sequence,
  stream_offset, capture_id, sent_at, sent_done_at, kind, flags, packet_size, length_bytes, seen_bytes, complete,
  observations > 1 AND sightings IS NULL AND complete AS put_together, session_header,
  packet IS NULL AS bare, CAST(octet_length(packet) AS bigint) AS packet_bytes,
  CASE WHEN kind <> '{USER_MESSAGE}' THEN packet END AS packet, substring(packet, 13, 4) AS reach,
  {USER_FLAGS_SQL} AS user_flags
FROM {{rows}} WHERE connection_id IN {{names}}"""
_DECODED: Final = f"""
SELECT sighting_key, packet_key, session_number, recoverable_number, delivery, transactional, {EVENT_DATE}
FROM {{messages}} WHERE connection_id IN {{names}} AND seen_in = '{PROTOCOL_BINARY}'"""


def read_capture_ends(lake: Lake) -> dict[str, int]:
    """Return by server address the time of the newest packet of captures with packets of it, microseconds."""
    rows = lake.query(_CAPTURE_ENDS, files=CAPTURE_FILES).to_pylist()
    return {row["server"]: row["ends"] for row in rows}


def group_connections(lake: Lake, names: Collection[str]) -> Iterator[list[str]]:
    """Yield connections together as long as they have few packets, ``MAX_PACKETS``."""
    sizes = lake.query(_SIZES, rows=SESSION_PACKETS, names=names).to_pylist() if names else []
    packets = {row["connection_id"]: row["n"] for row in sizes}
    group: list[str] = []
    total = 0
    for name in sorted(names):
        size = packets.get(name, 0)
        if group and total + size > MAX_PACKETS:
            yield group
            group, total = [], 0
        group.append(name)
        total += size
    if group:
        yield group


def read_decoded_messages(lake: Lake, names: Collection[str]) -> pa.Table:
    """Return of the messages of some connections the keys, numbers, delivery and whether they are transactional."""
    return lake.query(_DECODED, messages=MESSAGES, names=names)


def read_packets(
    lake: Lake, names: Collection[str], decoded: pa.Table, connection_columns: Collection[str], expire_us: int
) -> tuple[ConnectionPackets, pa.Table]:
    """Return the packets of some connections with their numbers, and the connections' rows, as far as they are there.

    ``decoded`` is what ``read_decoded_messages`` returns for them: a message whose packet was emptied is told by it.
    """
    packets = lake.query(_PACKETS, rows=SESSION_PACKETS, names=names)
    place = pc.index_in(packets["packet_key"], decoded["packet_key"].combine_chunks())
    for column in ("delivery", "transactional"):
        packets = packets.append_column(column, decoded[column].take(place))
    connections = lake.select(CONNECTIONS, "connection_id IN {names}", tuple(connection_columns), names=names)
    known = connections["connection_id"].to_pylist()
    return arrange_packets(packets.filter(is_in(packets, "connection_id", known)), known, expire_us), connections
