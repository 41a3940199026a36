"""Export of the packets of given calls from their captures to a pcapng file, so that Wireshark can show them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.table import Table
from udfs.files.capture_file import CaptureFileReader
from udfs.files.file_source import FileSource
from udfs.files.pcapng_writer import PcapngWriter
from udfs.tcp.packet_decoder import PacketDecoder, TcpSegments

PCAPNG_APPLICATION: Final = "msmq-lakehouse"
_BLOCK_BYTES: Final = 16 << 20
_BIND_ANSWER_US: Final = 1_000_000  # longer than any server takes to answer a bind
_CALL_COLUMNS: Final = (
    "call_key", "connection_id", "client_address", "client_port", "server_address", "server_port", "capture_id",
    "response_capture_id",
)  # fmt: skip


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
    """The intervals to export from each capture file, and the call keys that the lake does not have."""

    intervals_by_path: dict[str, list[ConnectionInterval]]
    call_keys_not_found: list[str]


def plan_export(lake: Lake, call_keys: Iterable[str]) -> ExportPlan:
    """Find the captures and times of calls: each call, and its connection from the first packet to the last bind."""
    keys = sorted(set(call_keys))
    times = """unix_micros(least(request_at, response_at)) AS begin_us,
  unix_micros(greatest(request_done_at, response_done_at)) AS end_us"""
    sql = f"SELECT {', '.join(_CALL_COLUMNS)}, {times} FROM {{calls}} WHERE call_key IN {{keys}}"
    rows = lake.query(sql, calls=RPC_CALLS, keys=keys).to_pylist()
    connections = {row["connection_id"] for row in rows}
    first_packets = _times_by_connection(lake, CONNECTIONS, connections, "min(first_packet_at)")
    last_binds = _times_by_connection(lake, RPC_BINDS, connections, "max(bound_at)")
    captures = {row[name] for row in rows for name in ("capture_id", "response_capture_id")} - {None}
    files = lake.select_by_values(CAPTURE_FILES, captures, columns=("capture_id", "path")).to_pylist()
    paths = {row["capture_id"]: row["path"] for row in files}
    intervals_by_path: dict[str, list[ConnectionInterval]] = {}
    for row in rows:
        client = (ipaddress.ip_address(row["client_address"]).packed, row["client_port"])
        server = (ipaddress.ip_address(row["server_address"]).packed, row["server_port"])
        intervals = [ConnectionInterval(client, server, row["begin_us"], row["end_us"], f"call {row['call_key']}")]
        connection = row["connection_id"]
        if connection in last_binds and connection in first_packets:
            bind_end = min(last_binds[connection] + _BIND_ANSWER_US, row["begin_us"])  # the answer precedes the request
            intervals.append(ConnectionInterval(client, server, first_packets[connection], bind_end, "bind"))
        for capture in {row["capture_id"], row["response_capture_id"]} & paths.keys():
            intervals_by_path.setdefault(paths[capture], []).extend(intervals)
    return ExportPlan(intervals_by_path, sorted(set(keys) - {row["call_key"] for row in rows}))


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
        decoder = PacketDecoder()
        with FileSource.from_path(path).open_decompressed(max_expansion, max_bytes) as stream:
            for records in CaptureFileReader(stream, _BLOCK_BYTES).read_blocks():
                segments = decoder.decode_block(records)
                comments: dict[int, str] = {}
                for interval in intervals_by_path[path]:
                    for index in segments.record_index[_is_in_interval(segments, interval)].tolist():
                        comments[index] = interval.comment
                for index in sorted(comments):
                    start, size = int(records.packet_start[index]), int(records.captured_length[index])
                    data = bytes(records.buffer[start : start + size])
                    link, time = int(records.link_type[index]), int(records.time_ns[index])
                    writer.write_packet(
                        link, time, data, int(records.original_length[index]), f"{comments[index]}; {path}"
                    )
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
