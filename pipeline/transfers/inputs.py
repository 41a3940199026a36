"""What is read of packets and captures, and how the packets of connections are arranged."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in
from pipeline.bronze.across_captures.clock_steps import read_clock_steps, spans_by_server
from pipeline.lake.lake import Lake
from pipeline.silver.decode_packets import USER_MESSAGE
from pipeline.transfers.checkpoints import Checkpoint
from pipeline.transfers.connection_packets import (
    USER_FLAGS_SQL,
    ConnectionPackets,
    arrange_packets,
)
from schemas.bronze import CAPTURE_FILES, CONNECTIONS
from schemas.sessions import SESSION_PACKETS
from udfs.capture.clock_steps import NO_STEPS, ClockSteps

BINARY_PROTOCOL: Final = "binary_protocol"  # bronze.connections.kind
MAX_PACKETS: Final = 500_000  # of connections that are recomputed together; one connection may have more
CAPTURE_BEGINS: Final = """
SELECT capture_id, unix_micros(first_packet_at) AS begins FROM {files} WHERE first_packet_at IS NOT NULL"""
"""SQL over ``bronze.capture_files``: by capture the time of its oldest packet."""
PACKETS_SQL: Final = f"""
SELECT packet_key, connection_id, client_address, client_port, server_address, server_port, sent_by, tcp_sequence,
  stream_offset, capture_id, packet_number, sent_at, sent_done_at, kind, flags, packet_size, length_bytes, seen_bytes,
  complete, observations > 1 AND sightings IS NULL AND complete AS put_together, sightings, session_header,
  message_class, packet IS NULL AS bare, CAST(octet_length(packet) AS bigint) AS packet_bytes,
  CASE WHEN kind <> '{USER_MESSAGE}' THEN packet END AS packet, substring(packet, 13, 4) AS reach,
  {USER_FLAGS_SQL} AS user_flags
FROM {{rows}}"""
"""SQL over ``bronze.session_packets``: what ``arrange_read_packets`` takes.

Of user messages, which may be large, only some bytes are read: they are decoded apart.
"""
_BEGINS_OF: Final = f"""
{CAPTURE_BEGINS} AND (capture_id IN {{captures}} OR capture_id IN (
  SELECT capture_id FROM {{packets}} WHERE connection_id IN {{names}} AND connection_id IN (
    SELECT connection_id FROM {{connections}} WHERE connection_id IN {{names}} AND NOT syn_seen)))"""


def read_skipped(lake: Lake) -> dict[str, list[tuple[int, int]]]:
    """Return by server address the spans that clocks left out, of captures with packets of it; microseconds."""
    return spans_by_server(lake, read_clock_steps(lake).skipped())


def read_set_by(lake: Lake) -> dict[str, int]:
    """Return by server address how far clocks were set, back and forward, of captures with packets of it; us."""
    found = spans_by_server(lake, read_clock_steps(lake).set_by())
    return {server: sum(until - since for since, until in spans) for server, spans in found.items()}


def read_capture_begins(
    lake: Lake, names: pa.Array, checkpoints: Mapping[str, Checkpoint] = MappingProxyType({})
) -> dict[str, int]:
    """Return the time of the oldest packet of captures, microseconds: of those with connections without a SYN."""
    kept = {each.capture_id for checkpoint in checkpoints.values() for each in checkpoint.captures}
    rows = lake.query(
        _BEGINS_OF, files=CAPTURE_FILES, packets=SESSION_PACKETS, connections=CONNECTIONS, names=names, captures=kept
    )
    return dict(zip(rows["capture_id"].to_pylist(), rows["begins"].to_pylist(), strict=True))


def group_connections(packets: Mapping[str, int], names: Collection[str]) -> Iterator[list[str]]:
    """Yield connections together as long as they have few ``packets``, ``MAX_PACKETS``; some may have none."""
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


def arrange_read_packets(
    packets: pa.Table,
    decoded: pa.Table,
    connection_ids: Collection[str],
    expire_us: int,
    checkpoints: Mapping[str, Checkpoint] = MappingProxyType({}),
    steps: ClockSteps = NO_STEPS,
) -> ConnectionPackets:
    """Return packets of some connections, as ``PACKETS_SQL`` gives them, with their numbers; others are left out.

    ``decoded``: what is known of messages whose packets were emptied (``ConnectionParts``); ``steps``: where clocks of
    captures were set.
    """
    place = pc.index_in(packets["packet_key"], decoded["packet_key"].combine_chunks())
    for column in ("delivery", "transactional"):
        packets = packets.append_column(column, decoded[column].take(place))
    known = list(connection_ids)
    ours = packets.filter(is_in(packets, "connection_id", known))
    return arrange_packets(ours, known, expire_us, checkpoints, steps)
