"""Reads packets of connections, and what was decoded of their messages, from the lake."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in
from pipeline.bronze.across_captures.clock_steps import read_clock_steps, spans_by_server
from pipeline.lake.date_filters import Dates, DateSpan
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import RowsOfDates
from pipeline.silver.decode_packets import USER_MESSAGE
from pipeline.transfers.checkpoints import Checkpoint
from pipeline.transfers.connection_packets import (
    USER_FLAGS_SQL,
    ConnectionPackets,
    arrange_packets,
)
from schemas.bronze import CAPTURE_FILES, CONNECTIONS
from schemas.messages import MESSAGES
from schemas.sessions import SESSION_PACKETS
from schemas.table import EVENT_DATE, Table
from udfs.capture.clock_steps import NO_STEPS, ClockSteps
from udfs.columns.arrays import to_times
from udfs.messages.header_layouts import PROTOCOL_BINARY
from udfs.times import us_to_datetime

BINARY_PROTOCOL: Final = "binary_protocol"  # bronze.connections.kind
MAX_PACKETS: Final = 500_000  # of connections that are recomputed together; one connection may have more
CAPTURE_BEGINS: Final = """
SELECT capture_id, unix_micros(first_packet_at) AS begins FROM {files} WHERE first_packet_at IS NOT NULL"""
"""SQL over ``bronze.capture_files``: by capture the time of its oldest packet."""
_SIZES: Final = "SELECT connection_id, count(*) AS n FROM {rows} WHERE connection_id IN {names} GROUP BY connection_id"
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
_PACKETS_OF: Final = f"{PACKETS_SQL} WHERE connection_id IN {{names}} AND {{behind}}"
_KEPT: Final = "packet_key IN {packet_keys}"
_DECODED: Final = f"""
SELECT sighting_key, packet_key, connection_id, seen_at, session_number, recoverable_number, delivery, transactional,
  {EVENT_DATE}
FROM {{messages}} WHERE connection_id IN {{names}} AND seen_in = '{PROTOCOL_BINARY}' AND {{behind}}"""


def read_skipped(lake: Lake) -> dict[str, list[tuple[int, int]]]:
    """Return by server address the spans that clocks left out, of captures with packets of it; microseconds."""
    return spans_by_server(lake, read_clock_steps(lake).skipped())


def read_set_by(lake: Lake) -> dict[str, int]:
    """Return by server address how far clocks were set, back and forward, of captures with packets of it; us."""
    found = spans_by_server(lake, read_clock_steps(lake).set_by())
    return {server: sum(until - since for since, until in spans) for server, spans in found.items()}


def read_capture_begins(lake: Lake, captures: Collection[str]) -> dict[str, int]:
    """Return by capture the time of its oldest packet, microseconds."""
    sql = f"{CAPTURE_BEGINS} AND capture_id IN {{captures}}"
    rows = lake.query(sql, files=CAPTURE_FILES, captures=captures).to_pylist() if captures else []
    return {row["capture_id"]: row["begins"] for row in rows}


def count_packets(lake: Lake, names: Collection[str]) -> dict[str, int]:
    """Return how many packets some connections have; those without a packet are left out."""
    sizes = lake.query(_SIZES, rows=SESSION_PACKETS, names=names).to_pylist() if names else []
    return {row["connection_id"]: row["n"] for row in sizes}


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


def read_after_checkpoint(
    read: Callable[[str, list[str], Dates | None], pa.Table],
    names: Collection[str],
    checkpoints: Mapping[str, Checkpoint],
    column: str,
) -> pa.Table:
    """Return rows of some connections, of those with a checkpoint the ones behind it, by a column of times.

    ``read(condition, names, dates)`` returns the rows of connections that meet a SQL condition on that column, all of
    which are of these dates, with connection_id and the column. Files with older rows alone are not read.
    """
    whole = [name for name in names if name not in checkpoints]
    parts = [read("TRUE", whole, None)] if whole or not names else []
    until = {name: checkpoints[name].counted_until for name in names if name in checkpoints}
    if until:
        since = min(until.values())
        rows = read(f"{column} > timestamp_micros({since})", [*until], DateSpan.of_times(since))
        place = pc.index_in(rows["connection_id"], pa.array([*until], pa.string())).combine_chunks()
        limits = np.array([*until.values()], np.int64)[np.asarray(place, np.int64)]
        parts.append(rows.filter(pa.array(to_times(rows[column]) > limits)))
    return pa.concat_tables(parts)


def select_after_checkpoint(
    lake: Lake, table: Table, names: Collection[str], checkpoints: Mapping[str, Checkpoint], column: str
) -> pa.Table:
    """Return the rows of a table for some connections, as ``read_after_checkpoint`` does."""

    def read(condition: str, some: list[str], dates: Dates | None) -> pa.Table:
        return lake.select(table, f"connection_id IN {{names}} AND {condition}", (), dates, names=some)

    return read_after_checkpoint(read, names, checkpoints, column)


def read_decoded_messages(
    lake: Lake, names: Collection[str], checkpoints: Mapping[str, Checkpoint] = MappingProxyType({})
) -> pa.Table:
    """Return of the messages of some connections the keys, numbers, delivery and whether they are transactional.

    Of those with a checkpoint: of the messages behind it.
    """

    def read(condition: str, some: list[str], dates: Dates | None) -> pa.Table:
        return lake.query(_DECODED.replace("{behind}", condition), messages=RowsOfDates(MESSAGES, dates), names=some)

    return read_after_checkpoint(read, names, checkpoints, "seen_at")


def read_packets(
    lake: Lake,
    names: Collection[str],
    decoded: pa.Table,
    connection_columns: Collection[str],
    expire_us: int,
    checkpoints: Mapping[str, Checkpoint] = MappingProxyType({}),
) -> tuple[ConnectionPackets, pa.Table]:
    """Return the packets of some connections with their numbers, and the connections' rows, as far as they are there.

    ``decoded`` is what ``read_decoded_messages`` returns for them: a message whose packet was emptied is told by it. Of
    connections with a checkpoint the packets behind it are read, and the kept ones.
    """

    def read(condition: str, some: list[str], dates: Dates | None, **more: Any) -> pa.Table:  # noqa: ANN401 - as query
        rows = RowsOfDates(SESSION_PACKETS, dates)
        return lake.query(_PACKETS_OF.replace("{behind}", condition), rows=rows, names=some, **more)

    found = [read_after_checkpoint(read, names, checkpoints, "sent_at")]
    kept = [each for name in names if name in checkpoints for each in checkpoints[name].kept_packets]
    if kept:
        times, keys = sorted({each.sent_at_us for each in kept}), {each.packet_key for each in kept}
        at = ", ".join(f"timestamp_micros({each})" for each in times)
        dates = {us_to_datetime(each).date() for each in times}
        found.append(read(f"{_KEPT} AND sent_at IN ({at})", [*names], dates, packet_keys=keys))
    connections = lake.select(CONNECTIONS, "connection_id IN {names}", tuple(connection_columns), names=names)
    known = connections["connection_id"].to_pylist()
    packets, steps = pa.concat_tables(found), read_clock_steps(lake)
    return arrange_read_packets(packets, decoded, known, expire_us, checkpoints, steps), connections


def arrange_read_packets(
    packets: pa.Table,
    decoded: pa.Table,
    connection_ids: Collection[str],
    expire_us: int,
    checkpoints: Mapping[str, Checkpoint] = MappingProxyType({}),
    steps: ClockSteps = NO_STEPS,
) -> ConnectionPackets:
    """Return packets of some connections, as ``PACKETS_SQL`` gives them, with their numbers; others are left out.

    ``decoded`` as in ``read_packets``; ``steps``: where clocks of captures were set.
    """
    place = pc.index_in(packets["packet_key"], decoded["packet_key"].combine_chunks())
    for column in ("delivery", "transactional"):
        packets = packets.append_column(column, decoded[column].take(place))
    known = list(connection_ids)
    ours = packets.filter(is_in(packets, "connection_id", known))
    return arrange_packets(ours, known, expire_us, checkpoints, steps)
