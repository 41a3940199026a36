"""The TCP segments of one capture, of the connections that are compared: where each begins, its length and its time."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.reports.taps.tap_items import Direction, End
from udfs.array_types import Ints
from udfs.capture.capture_reader import ReadOptions
from udfs.columns.absent import NO_TIME
from udfs.files.capture_file import CaptureFileReader
from udfs.files.file_source import FileSource
from udfs.tcp.four_tuples import PackedEndpoint, group_by_four_tuple, packed_endpoints
from udfs.tcp.mirror_copies import MirrorCopies
from udfs.tcp.packet_decoder import ACK, PacketDecoder, TcpSegments

_COLUMNS: Final = 4


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments of one direction, in the order of the capture.

    ``sequence`` and ``acknowledgement`` are as on the wire, the latter -1 without the flag ACK. ``length``: of the
    payload, bytes. ``time_ns``: since 1970.
    """

    time_ns: Ints
    sequence: Ints
    acknowledgement: Ints
    length: Ints

    def take(self, which: Ints) -> Segments:
        """Return some of the segments."""
        return Segments(*(getattr(self, name)[which] for name in self.__slots__))


NO_SEGMENTS: Final = Segments(*(np.zeros(0, np.int64) for _ in range(_COLUMNS)))


def read_segments(
    source: FileSource, options: ReadOptions, directions: Collection[Direction]
) -> dict[Direction, Segments]:
    """Return the segments of some directions; OSError, NotACaptureError if the file cannot be read.

    Packets without a time are left out: nothing is known of their order.
    """
    found: dict[Direction, list[Segments]] = defaultdict(list)
    decoder, copies = PacketDecoder(tunnel_ports=options.tunnel_ports), MirrorCopies()
    with source.open_decompressed(options.max_expansion_ratio, options.max_expanded_bytes) as stream:
        for records in CaptureFileReader(stream, options.block_bytes).read_blocks():
            _add_block(copies.leave_out(decoder.decode_block(records)), directions, found)
    return {
        direction: Segments(*(np.concatenate(columns) for columns in zip(*map(_columns, parts), strict=True)))
        for direction, parts in found.items()
    }


def _columns(segments: Segments) -> tuple[Ints, ...]:
    return segments.time_ns, segments.sequence, segments.acknowledgement, segments.length


def _add_block(s: TcpSegments, directions: Collection[Direction], found: dict[Direction, list[Segments]]) -> None:
    if not len(s.time_ns):
        return
    group, side, first = group_by_four_tuple(s)
    toward = [Direction(*map(_end, packed_endpoints(s, row))) for row in first.tolist()]
    wanted = np.array([direction in directions for direction in toward])
    rows = np.flatnonzero(wanted[group] & (s.time_ns != NO_TIME))
    number = 2 * group[rows] + (side[rows] != side[first[group[rows]]])
    order = np.argsort(number, kind="stable")
    rows, number = rows[order], number[order]
    every = Segments(s.time_ns, s.sequence, np.where(s.tcp_flags & ACK, s.acknowledgement, -1), s.payload_length)
    for some in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(number)) + 1):
        if len(some):
            pair, is_back = divmod(int(number[some[0]]), 2)
            found[toward[pair].back if is_back else toward[pair]].append(every.take(rows[some]))


def _end(packed: PackedEndpoint) -> End:
    _, address, port = packed
    return End(str(ipaddress.ip_address(address)), port)
