"""Export of captured packets to a pcapng file, so that Wireshark can show them.

Of chosen calls, of packets of the binary protocol, or of whole sessions. In names and comments here, a *packet* of the
binary protocol is a row of ``bronze.session_packets``: it lies in one captured packet or more.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
from schemas.sessions import SESSION_PACKETS
from schemas.table import Table
from udfs.columns.absent import NO_TIME
from udfs.files.capture_file import CaptureFileReader, NotACaptureError, ReadableStream
from udfs.files.file_source import FileSource
from udfs.files.pcapng_writer import PcapngWriter
from udfs.rows import RowDict
from udfs.tcp.packet_decoder import PacketDecoder, TcpSegments

PCAPNG_APPLICATION: Final = "msmq-lakehouse"
_BLOCK_BYTES: Final = 16 << 20
_BIND_ANSWER_US: Final = 1_000_000  # longer than any server takes to answer a bind
_NO_TIME_US: Final = NO_TIME // 1000
_ENDS: Final = "client_address, client_port, server_address, server_port"
# A packet that is not whole lasts, as far as is known, until the next one of its side begins.
_PACKETS_SQL: Final = f"""
SELECT p.packet_key, p.connection_id, p.capture_id, {", ".join(f"p.{name}" for name in _ENDS.split(", "))},
  p.complete AND (p.observations = 1 OR p.sightings IS NOT NULL) AS is_whole,
  unix_micros(min(p.sent_at)) AS begin_us,
  unix_micros(coalesce(min(p.sent_done_at), min(n.sent_at), min(c.last_packet_at))) AS end_us
FROM {{packets}} AS p
LEFT JOIN {{packets}} AS n ON n.connection_id = p.connection_id AND n.sent_by = p.sent_by
  AND n.stream_offset > p.stream_offset AND NOT p.complete
LEFT JOIN {{connections}} AS c ON c.connection_id = p.connection_id
WHERE p.packet_key IN {{keys}} GROUP BY ALL
"""
_CAPTURES_SQL: Final = " UNION ".join(
    f"SELECT connection_id, capture_id FROM {{{name}}} WHERE connection_id IN {{ids}}"
    for name in ("packets", "quarantine", "pending")
)


@dataclass(frozen=True, slots=True)
class ConnectionInterval:
    """A time range of one TCP connection, both ends included. Its packets are exported with ``comment``.

    ``client`` and ``server`` are packed IP address and port.
    """

    client: tuple[bytes, int]
    server: tuple[bytes, int]
    begin_us: int
    end_us: int
    comment: str


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The intervals to export from each capture file, and what of that asked for the lake does not have."""

    intervals_by_path: dict[str, list[ConnectionInterval]]
    not_found: list[str]


def plan_export(
    lake: Lake, call_keys: Iterable[str] = (), packet_keys: Iterable[str] = (), sessions: Iterable[str] = ()
) -> ExportPlan:
    """Find the captures and times of calls, of packets of the binary protocol, and of sessions (connection_id).

    Of a call: itself, and its connection from the first packet to the last bind. Of a packet that a capture has whole:
    that capture. Else, and of a session: all captures that have bytes of the connection.
    """
    calls, packets, ids = sorted(set(call_keys)), sorted(set(packet_keys)), sorted(set(sessions))
    found = [*_find_calls(lake, calls), *_find_packets(lake, packets), *_find_sessions(lake, ids)]
    files = lake.select_by_values(
        CAPTURE_FILES, {name for one in found for name in one.captures}, columns=("capture_id", "path")
    ).to_pylist()
    paths = {row["capture_id"]: row["path"] for row in files}
    intervals_by_path: dict[str, list[ConnectionInterval]] = {}
    for one in found:
        for capture in sorted(one.captures & paths.keys()):
            intervals_by_path.setdefault(paths[capture], []).extend(one.intervals)
    there = {one.name for one in found}
    wanted = [f"call {key}" for key in calls] + [f"packet {key}" for key in packets] + [f"session {key}" for key in ids]
    return ExportPlan(intervals_by_path, [name for name in wanted if name not in there])


class _Found(NamedTuple):
    """Something to export: the captures that have it, and its intervals."""

    name: str
    captures: set[str]
    intervals: list[ConnectionInterval]


def _find_calls(lake: Lake, keys: Sequence[str]) -> Iterator[_Found]:
    if not keys:
        return
    times = """unix_micros(least(request_at, response_at)) AS begin_us,
  unix_micros(greatest(request_done_at, response_done_at)) AS end_us"""
    columns = f"call_key, connection_id, {_ENDS}, capture_id, response_capture_id, {times}"
    rows = lake.query(f"SELECT {columns} FROM {{calls}} WHERE call_key IN {{keys}}", calls=RPC_CALLS, keys=keys)
    connections = set(rows["connection_id"].to_pylist())
    first_packets = _times_by_connection(lake, CONNECTIONS, connections, "min(first_packet_at)")
    last_binds = _times_by_connection(lake, RPC_BINDS, connections, "max(bound_at)")
    for row in rows.to_pylist():
        call = _interval(row, f"call {row['call_key']}")
        intervals, connection = [call], row["connection_id"]
        if connection in last_binds and connection in first_packets:
            bind_end = min(last_binds[connection] + _BIND_ANSWER_US, call.begin_us)  # the answer precedes the request
            begin = first_packets[connection]
            intervals.append(replace(call, begin_us=begin, end_us=bind_end, comment="bind"))
        yield _Found(call.comment, {row["capture_id"], row["response_capture_id"]} - {None}, intervals)


def _find_packets(lake: Lake, keys: Sequence[str]) -> Iterator[_Found]:
    if not keys:
        return
    found = lake.query(_PACKETS_SQL, packets=SESSION_PACKETS, connections=CONNECTIONS, keys=keys).to_pylist()
    captures = _captures_of(lake, {row["connection_id"] for row in found if not row["is_whole"]})
    for row in found:
        own = {row["capture_id"]} if row["is_whole"] else captures[row["connection_id"]]
        name = f"packet {row['packet_key']}"
        yield _Found(name, own, [_interval(row, name)])


def _find_sessions(lake: Lake, ids: Sequence[str]) -> Iterator[_Found]:
    if not ids:
        return
    times = "unix_micros(first_packet_at) AS begin_us, unix_micros(last_packet_at) AS end_us"
    where = "connection_id IN {ids} AND kind = 'binary_protocol'"
    sql = f"SELECT connection_id, {_ENDS}, {times} FROM {{connections}} WHERE {where}"
    found = lake.query(sql, connections=CONNECTIONS, ids=ids).to_pylist()
    captures = _captures_of(lake, {row["connection_id"] for row in found})
    for row in found:
        name = f"session {row['connection_id']}"
        yield _Found(name, captures[row["connection_id"]], [_interval(row, name)])


def _captures_of(lake: Lake, connections: set[str]) -> Mapping[str, set[str]]:
    """Return the captures that have bytes of each connection."""
    found: dict[str, set[str]] = defaultdict(set)
    if connections:
        tables = {"packets": SESSION_PACKETS, "quarantine": QUARANTINE, "pending": PENDING}
        for row in lake.query(_CAPTURES_SQL, ids=connections, **tables).to_pylist():
            found[row["connection_id"]].add(row["capture_id"])
    return found


def _interval(row: RowDict, comment: str) -> ConnectionInterval:
    """Return the interval of a row with both ends and times in us; without times, that of packets that have none."""
    client = (ipaddress.ip_address(row["client_address"]).packed, row["client_port"])
    server = (ipaddress.ip_address(row["server_address"]).packed, row["server_port"])
    begin, end = row["begin_us"], row["end_us"]
    if begin is None or end is None:
        begin = end = _NO_TIME_US
    return ConnectionInterval(client, server, begin, end, comment)


def _times_by_connection(lake: Lake, table: Table, connections: set[str], time: str) -> dict[str, int]:
    """Return an aggregated time, in SQL, of each connection, in microseconds since the epoch; nulls are left out."""
    where = "WHERE connection_id IN {connections} GROUP BY connection_id"
    sql = f"SELECT connection_id, unix_micros({time}) AS at FROM {{rows}} {where}"
    found = lake.query(sql, rows=table, connections=connections).to_pylist()
    return {row["connection_id"]: row["at"] for row in found if row["at"] is not None}


def write_packets(
    intervals_by_path: dict[str, list[ConnectionInterval]], out: BinaryIO, max_expansion: int, max_bytes: int
) -> int:
    """Write the packets of the intervals as pcapng and return their number. OSError if a capture cannot be read."""
    writer, count = PcapngWriter(out, PCAPNG_APPLICATION), 0
    for path in sorted(intervals_by_path):
        with FileSource.from_path(path).open_decompressed(max_expansion, max_bytes) as stream:
            try:
                count += _write_packets_of(path, stream, intervals_by_path[path], writer)
            except NotACaptureError as error:
                raise OSError(f"{path}: {error}") from error
    return count


def _write_packets_of(
    path: str, stream: ReadableStream, intervals: Sequence[ConnectionInterval], writer: PcapngWriter
) -> int:
    decoder, count = PacketDecoder(), 0
    for records in CaptureFileReader(stream, _BLOCK_BYTES).read_blocks():
        segments = decoder.decode_block(records)
        comments: dict[int, str] = {}
        for interval in intervals:
            for index in segments.record_index[_is_in_interval(segments, interval)].tolist():
                comments[index] = interval.comment
        for index in sorted(comments):
            start, size = int(records.packet_start[index]), int(records.captured_length[index])
            data = bytes(records.buffer[start : start + size])
            link, time = int(records.link_type[index]), int(records.time_ns[index])
            writer.write_packet(link, time, data, int(records.original_length[index]), f"{comments[index]}; {path}")
            count += 1
    return count


def _is_in_interval(segments: TcpSegments, interval: ConnectionInterval) -> npt.NDArray[np.bool_]:
    """Return a mask of the segments, of both directions, that belong to an interval."""
    micros = segments.time_ns // 1000
    in_time = (micros >= interval.begin_us) & (micros <= interval.end_us)
    source, target = (segments.source_address, segments.source_port), (segments.target_address, segments.target_port)
    request = _matches_endpoint(*source, interval.client) & _matches_endpoint(*target, interval.server)
    response = _matches_endpoint(*source, interval.server) & _matches_endpoint(*target, interval.client)
    result: npt.NDArray[np.bool_] = in_time & (request | response)
    return result


def _matches_endpoint(
    address: npt.NDArray[np.uint8], port: npt.NDArray[np.int64], endpoint: tuple[bytes, int]
) -> npt.NDArray[np.bool_]:
    wide = np.frombuffer(endpoint[0].ljust(16, b"\0"), np.uint8)
    same: npt.NDArray[np.bool_] = (address == wide).all(axis=1) & (port == endpoint[1])
    return same
