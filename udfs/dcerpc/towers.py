"""Towers of the endpoint mapper: where its answers say that an interface is ([C706] appendix L)."""

from __future__ import annotations

import struct
import uuid

from udfs.dcerpc.interfaces import BY_UUID


def towers(data: bytes) -> list[tuple[bytes, int, str]]:
    """Return address, port and interface name of the towers for our interfaces in an ept_map answer.

    Looks for the interfaces' floors anywhere in the stub, which works for every transfer syntax ([C706] appendix L).
    """
    found = []
    for interface in BY_UUID.values():
        floor = b"\x13\x00\x0d" + uuid.UUID(interface.uuid).bytes_le
        at = data.find(floor)
        while at >= 0:
            place = _tower(data, at - 2)
            if place is not None:
                found.append((*place, interface.name))
            at = data.find(floor, at + 1)
    return found


def _tower(data: bytes, at: int) -> tuple[bytes, int] | None:
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
