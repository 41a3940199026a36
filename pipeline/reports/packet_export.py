"""The packets of given calls, out of the captures they came from: from a row to Wireshark."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
from pyspark.sql import functions as F

from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_BINDS, RPC_CALLS
from udfs.files.container import Container
from udfs.files.pcapng import PcapngWriter
from udfs.files.sources import Source
from udfs.tcp.packets import PacketDecoder, Segments

APPLICATION: Final = "msmq-lakehouse"
_BLOCK_BYTES: Final = 16 << 20
_CALL: Final = (
    "call_key", "connection_id", "client_address", "client_port", "server_address", "server_port", "capture_id",
    "response_capture_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """What of a connection is wanted: the time of a call, or of the handshake and bind, in us, both ends included."""

    client: tuple[bytes, int]
    server: tuple[bytes, int]
    begin: int
    end: int
    comment: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """The spans wanted of each capture file, and call keys that are not in the lake."""

    spans: dict[str, list[Span]]
    unknown: list[str]


def wanted(lake: Lake, keys: Iterable[str]) -> Wanted:
    """Find where calls are, and when: each call itself, and its connection from its beginning to its last bind."""
    asked = sorted(set(keys))
    begin, end = F.least("request_at", "response_at"), F.greatest("request_done_at", "response_done_at")
    calls = lake.read(RPC_CALLS).where(F.col("call_key").isin(asked))
    rows = calls.select(*_CALL, F.unix_micros(begin).alias("begin"), F.unix_micros(end).alias("end")).collect()
    connections = {row["connection_id"] for row in rows}
    firsts = _moments(lake, CONNECTIONS, connections, F.min("first_packet_at"))
    binds = _moments(lake, RPC_BINDS, connections, F.max("bound_at"))
    captures = {row["capture_id"] for row in rows} | {row["response_capture_id"] for row in rows}
    files = lake.read(CAPTURE_FILES).where(F.col("capture_id").isin([c for c in captures if c]))
    paths = {row["capture_id"]: row["path"] for row in files.select("capture_id", "path").collect()}
    spans: dict[str, list[Span]] = {}
    for row in rows:
        client = (ipaddress.ip_address(row["client_address"]).packed, row["client_port"])
        server = (ipaddress.ip_address(row["server_address"]).packed, row["server_port"])
        found = [Span(client, server, row["begin"], row["end"], f"call {row['call_key']}")]
        identity = row["connection_id"]
        if identity in binds and identity in firsts:
            # The answer to the bind comes before the first request; a second is more than any server takes for it.
            found.append(Span(client, server, firsts[identity], min(binds[identity] + 1_000_000, row["begin"]), "bind"))
        for capture in {row["capture_id"], row["response_capture_id"]} & paths.keys():
            spans.setdefault(paths[capture], []).extend(found)
    return Wanted(spans, sorted(set(asked) - {row["call_key"] for row in rows}))


def _moments(lake: Lake, table: Any, connections: set[str], moment: Any) -> dict[str, int]:  # noqa: ANN401
    rows = lake.read(table).where(F.col("connection_id").isin(sorted(connections)))
    found = rows.groupBy("connection_id").agg(F.unix_micros(moment)).collect()
    return {row[0]: row[1] for row in found if row[1] is not None}


def write_excerpt(spans: dict[str, list[Span]], out: BinaryIO, max_expansion: int, max_bytes: int) -> int:
    """Write the packets of the spans as pcapng; returns how many. Raises ``OSError`` for a capture that is gone."""
    writer, count = PcapngWriter(out, APPLICATION), 0
    for path in sorted(spans):
        decoder = PacketDecoder()
        with Source.of_path(path).open(max_expansion, max_bytes) as stream:
            for records in Container(stream, _BLOCK_BYTES).blocks():
                segments = decoder.decode(records)
                comments: dict[int, str] = {}
                for span in spans[path]:
                    for index in segments.record[_of(segments, span)].tolist():
                        comments[index] = span.comment
                for index in sorted(comments):
                    start, size = int(records.start[index]), int(records.captured[index])
                    data = bytes(records.data[start : start + size])
                    link, time = int(records.link[index]), int(records.time[index])
                    writer.write(link, time, data, int(records.original[index]), f"{comments[index]}; {path}")
                    count += 1
    return count


def _of(segments: Segments, span: Span) -> npt.NDArray[np.bool_]:
    """Which segments belong to a span."""
    micros = segments.time // 1000
    found = (micros >= span.begin) & (micros <= span.end)
    forth = _is(segments.source, segments.source_port, span.client) & _is(
        segments.target, segments.target_port, span.server
    )
    back = _is(segments.source, segments.source_port, span.server) & _is(
        segments.target, segments.target_port, span.client
    )
    result: npt.NDArray[np.bool_] = found & (forth | back)
    return result


def _is(address: npt.NDArray[np.uint8], port: npt.NDArray[np.int64], end: tuple[bytes, int]) -> npt.NDArray[np.bool_]:
    wide = np.frombuffer(end[0].ljust(16, b"\0"), np.uint8)
    same: npt.NDArray[np.bool_] = (address == wide).all(axis=1) & (port == end[1])
    return same
