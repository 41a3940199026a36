"""The timestamps option of TCP headers (RFC 7323 3.2): the sender's clock when it sent a segment (TSval)."""

from __future__ import annotations

from typing import Final

import numpy as np

from udfs.array_types import Bools, Ints
from udfs.files.capture_file import RecordBlock
from udfs.tcp.octets import gather_bytes, u32
from udfs.tcp.packet_decoder import TcpSegments

_FIXED_BYTES: Final = 20  # of a TCP header; options follow
_END, _NO_OPERATION, _TIMESTAMPS = 0, 1, 8  # kinds of options (RFC 9293 3.2, RFC 7323 3.2)
_TIMESTAMPS_BYTES: Final = 10
_FOLLOWING_BYTES: Final = 2  # of kind and length; the TSval is behind them


def timestamp_values(segments: TcpSegments, records: RecordBlock) -> tuple[Ints, Bools]:
    """Return the TSval of each segment, in ticks of its sender, and whether it has one.

    ``records`` is the block of the segments. Segments of reassembled datagrams count as those without.
    """
    octets = np.frombuffer(segments.buffer, np.uint8)
    end = segments.payload_start
    record = segments.record_index
    captured = (records.packet_start + records.captured_length)[record]
    values, found = np.zeros(len(end), np.int64), np.zeros(len(end), np.bool_)
    at = end - segments.header_bytes + _FIXED_BYTES
    rows = np.flatnonzero((segments.header_bytes > _FIXED_BYTES) & (end <= captured))
    while len(rows):
        option = gather_bytes(octets, at[rows], _TIMESTAMPS_BYTES)
        kind, size = option[:, 0], option[:, 1].astype(np.int64)
        fits = at[rows] + size <= end[rows]
        is_it = (kind == _TIMESTAMPS) & (size == _TIMESTAMPS_BYTES) & fits
        values[rows[is_it]], found[rows[is_it]] = u32(option[is_it], _FOLLOWING_BYTES), True
        size = np.where(kind == _NO_OPERATION, 1, size)
        goes_on = ~is_it & (kind != _END) & ((kind == _NO_OPERATION) | (size >= _FOLLOWING_BYTES))
        at[rows] += size
        rows = rows[goes_on & (at[rows] < end[rows])]
    return values, found
