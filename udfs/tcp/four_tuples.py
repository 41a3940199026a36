"""Groups segments by four-tuple."""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from udfs.array_types import Ints
from udfs.tcp.packet_decoder import TcpSegments

PackedEndpoint = tuple[int, bytes, int]
"""IP version, address and port."""


def packed_endpoints(s: TcpSegments, row: int) -> tuple[PackedEndpoint, PackedEndpoint]:
    """Return the source and the target of a segment."""
    version = int(s.ip_version[row])
    width = 4 if version == 4 else 16
    return (
        (version, s.source_address[row, :width].tobytes(), int(s.source_port[row])),
        (version, s.target_address[row, :width].tobytes(), int(s.target_port[row])),
    )


def group_by_four_tuple(s: TcpSegments, *, by_tunnel: bool = True) -> tuple[Ints, Ints, Ints]:
    """Group segments by four-tuple: return each segment's group and side, and the first segment of each group.

    ``by_tunnel``: those whose tunnels have different identifiers are of different groups.
    Endpoints are compared by a hash with a random key. The result is verified, and on a collision repeated with another
    key.
    """
    source = np.ascontiguousarray(s.source_address).view(np.uint64)
    target = np.ascontiguousarray(s.target_address).view(np.uint64)
    source_port = (s.source_port << 4 | s.ip_version).astype(np.uint64)
    target_port = (s.target_port << 4 | s.ip_version).astype(np.uint64)
    tunnel = s.tunnel_identifier.astype(np.int64).view(np.uint64) if by_tunnel else np.zeros(len(source), np.uint64)
    while True:
        a, b, c = np.array([secrets.randbits(64) | 1 for _ in range(3)], np.uint64)
        one = _mix_hash(source[:, 0] * a + _mix_hash(source[:, 1] * b + source_port * c))
        two = _mix_hash(target[:, 0] * a + _mix_hash(target[:, 1] * b + target_port * c))
        side = (one > two).astype(np.int64)
        low, high = np.minimum(one, two), np.maximum(one, two)
        names: npt.NDArray[np.uint64] = _mix_hash(low * a + high * b + tunnel * c)
        _, first, pair = np.unique(names, return_index=True, return_inverse=True)
        lead = first[pair]
        straight = side == side[lead]
        equal = tunnel == tunnel[lead]
        for left, right in ((source[:, 0], target[:, 0]), (source[:, 1], target[:, 1]), (source_port, target_port)):
            equal &= left == np.where(straight, left[lead], right[lead])
            equal &= right == np.where(straight, right[lead], left[lead])
        if equal.all():
            return pair.astype(np.int64), side, first


def _mix_hash(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed: npt.NDArray[np.uint64] = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(32))
