"""Protocol towers in endpoint-mapper answers: the address and port of each MSMQ interface ([C706] appendix L)."""

from __future__ import annotations

import struct
import uuid

from udfs.dcerpc.interfaces import INTERFACES_BY_UUID


def parse_tower_endpoints(data: bytes) -> list[tuple[bytes, int, str]]:
    """Return (packed address, port, interface name) of each tower for an MSMQ interface in an ept_map response stub.

    The function searches the whole stub for the interfaces' tower floors. This works for every transfer syntax.
    """
    found = []
    for interface in INTERFACES_BY_UUID.values():
        floor = b"\x13\x00\x0d" + uuid.UUID(interface.uuid).bytes_le
        at = data.find(floor)
        while at >= 0:
            endpoint = _parse_tower(data, at - 2)
            if endpoint is not None:
                found.append((*endpoint, interface.name))
            at = data.find(floor, at + 1)
    return found


def _parse_tower(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the IPv4 address and TCP port of the tower at an offset; None if it is not whole or lacks one of them."""
    if at < 0:
        return None
    port, address = None, None
    try:
        (floors,) = struct.unpack_from("<H", data, at)
        at += 2
        for _ in range(min(floors, 8)):
            (left,) = struct.unpack_from("<H", data, at)
            protocol = data[at + 2] if left else 0
            (right,) = struct.unpack_from("<H", data, at + 2 + left)
            value = data[at + 4 + left : at + 4 + left + right]
            if protocol == 0x07 and len(value) == 2:
                port = int.from_bytes(value, "big")
            elif protocol == 0x09 and len(value) == 4:
                address = value
            at += 4 + left + right
    except (struct.error, IndexError):
        return None
    return None if port is None or address is None else (address, port)
