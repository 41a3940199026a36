"""UDP datagrams of chosen ports (RFC 768): few among the packets of a capture, so each is an object."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import numpy as np

from udfs.array_types import Bools, Ints, Octets
from udfs.tcp.octets import gather_bytes, u16

UDP_HEADER_BYTES: Final = 8


class UdpDatagram(NamedTuple):
    """A datagram. Addresses are packed; ``payload``: what was captured of it; ``packet_count``: 1, or its fragments."""

    time_ns: int
    packet_number: int
    source_address: bytes
    source_port: int
    target_address: bytes
    target_port: int
    payload: bytes
    packet_count: int


def has_port(octets: Octets, start: Ints, ports: Collection[int]) -> Bools:
    """Whether the UDP headers at ``start`` have one of these ports, of source or target."""
    header = gather_bytes(octets, start, UDP_HEADER_BYTES)
    both: Bools = np.isin(u16(header, 0), list(ports)) | np.isin(u16(header, 2), list(ports))
    return both
