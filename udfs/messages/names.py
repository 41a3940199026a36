"""Names in message packets as text: queues, senders, addresses. Python looks once at each distinct value."""

from __future__ import annotations

import ipaddress
import struct
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.messages import headers as h
from udfs.messages.reading import Packets
from udfs.queues.normal_form import normal_text
from udfs.stubs.column import Bools, Ints, Values
from udfs.stubs.spans import cut

Bytes = npt.NDArray[np.uint8]

_NOBODY: Final = bytes(16)


@lru_cache(maxsize=8192)
def direct_queue(raw: bytes) -> str | None:
    """Return the normal form of a direct name of a packet, which has ``DIRECT=`` in front or has not (doubt D3)."""
    text = raw[: len(raw) & ~1].decode("utf-16-le", "replace").partition("\0")[0]
    if text[:7].upper() == "DIRECT=":
        text = text[7:]
    return normal_text(f"DIRECT={text}") if text else None


@lru_cache(maxsize=8192)
def numbered_queue(raw: bytes) -> str | None:
    r"""Return the normal form of a queue without a name: type, GUID and id in 21 bytes; ``guid\%08x`` or ``public=``.

    None without a GUID: what is private on a queue manager that is not known has no name.
    """
    kind, guid, number = struct.unpack("<B16sI", raw)
    if guid == _NOBODY:
        return None
    text = str(uuid.UUID(bytes_le=guid))
    return normal_text(f"PUBLIC={text}" if kind == 5 else f"PRIVATE={text}\\{number:08x}")


def path_queue(text: str) -> str | None:
    """Return the normal form of a path name."""
    return normal_text(text or None)


@lru_cache(maxsize=8192)
def sid(raw: bytes) -> str | None:
    """Return a SID as ``S-1-...``, [MS-DTYP] 2.4.2.1; None when it is none."""
    if len(raw) < 8 or raw[0] != 1 or raw[1] > 15 or len(raw) != 8 + 4 * raw[1]:
        return None
    authority = int.from_bytes(raw[2:8], "big")
    named = f"0x{authority:012x}" if authority >> 32 else str(authority)
    return "-".join(("S-1", named, *map(str, struct.unpack_from(f"<{raw[1]}I", raw, 8))))


@lru_cache(maxsize=8192)
def queue_manager(raw: bytes) -> str | None:
    """Return a GUID as text; None when it is none."""
    return str(uuid.UUID(bytes_le=raw)) if len(raw) == 16 else None


@lru_cache(maxsize=8192)
def address(raw: bytes) -> str | None:
    """Return an address in 17 bytes, type and octets in network order, as text; None for a type without one."""
    if raw[0] == h.IPV4:
        return str(ipaddress.IPv4Address(raw[1:5]))
    return str(ipaddress.IPv6Address(raw[1:])) if raw[0] == h.IPV6 else None


@lru_cache(maxsize=8192)
def near_address(octets: int) -> str:
    """Return an IPv4 address, its octets read as a little-endian number, as text."""
    return str(ipaddress.IPv4Address(octets.to_bytes(4, "little")))


class Texts:
    """A column of text that is put together from a few distinct values."""

    def __init__(self, rows: int) -> None:
        self.index = np.full(rows, -1, np.int32)
        self.values: list[str | None] = []

    def add(self, rows: Ints, raw: pa.Array, text: Callable[[Any], str | None]) -> Bools:
        """Let each of ``rows`` be the ``text`` of its bytes in ``raw``; return which of them have one."""
        if not len(rows):
            return np.zeros(0, np.bool_)
        encoded = raw.dictionary_encode()
        found = [text(value) for value in encoded.dictionary.to_pylist()]
        places = len(self.values) + np.arange(len(found), dtype=np.int32)
        places[[each is None for each in found]] = -1
        self.values += found
        self.index[rows] = places[encoded.indices.to_numpy()]
        return self.index[rows] >= 0

    def array(self, index: npt.NDArray[np.int32] | None = None) -> pa.Array:
        """Return the column, or the texts of ``index``."""
        places = self.index if index is None else index
        return pa.array(self.values, pa.string()).take(pa.array(places, mask=places < 0))


def fixed(raw: Bytes) -> pa.Array:
    """Return rows of bytes, shape (rows, width), as a fixed-size binary array."""
    return pa.Array.from_buffers(
        pa.binary(raw.shape[1]), len(raw), [None, pa.py_buffer(np.ascontiguousarray(raw).reshape(-1))]
    )


def _gather(data: Bytes, at: Ints, size: int) -> Bytes:
    view = np.ndarray(len(data) - size + 1, f"V{size}", data, strides=(1,))
    return view[at].view(np.uint8).reshape(-1, size)


def _host(kind: Ints, admin: Ints, source: Bytes, manager: Bytes, admin_host: Bytes) -> Bytes:
    """Return the GUID of the host of private queues by type: [MS-MQQB] 3.1.7.15; zero where it is not known."""
    known = np.where((kind == 4)[:, None], 0, admin_host)
    of_admin = kind == 4
    known = np.where(((kind == 2) | (of_admin & (admin == 2)))[:, None], source, known)
    known = np.where(((kind == 3) | (of_admin & (admin == 3)))[:, None], manager, known)
    return np.where((of_admin & (admin == 6))[:, None], admin_host, known)


def queues(packets: Packets, out: Values) -> dict[str, pa.Array]:
    """Return the destination, administration and response queues in their normal form.

    A private queue of the destination's queue manager cannot be named where RemoteRead writes an address over that
    queue manager's GUID ([MS-MQRR] 2.2.5.1).
    """
    rows = out.rows
    nowhere, none = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    flags = out.values["UserHeader"]["Flags"].astype(np.int64)
    kinds = [(flags >> shift) & 7 for _, _, shift, _ in h.QUEUES]
    at = [out.values.get(f"{flag} at", nowhere) for _, flag, _, _ in h.QUEUES]
    read = [out.valid.get(f"{flag} at", none) for _, flag, _, _ in h.QUEUES]
    texts = Texts(3 * rows)  # the three columns one after the other
    for place, (_, flag, _, _) in enumerate(h.QUEUES):
        direct = np.flatnonzero(read[place] & (kinds[place] == h.DIRECT))
        if not len(direct):
            continue
        size = out.values[f"{flag} size"][direct]
        spans = cut(packets.data, at[place][direct], size, np.ones(len(direct), np.bool_))
        texts.add(place * rows + direct, spans, direct_queue)
    numbered = [np.flatnonzero(read[place] & (kinds[place] >= 2) & (kinds[place] != h.DIRECT)) for place in range(3)]
    for place, row in enumerate(numbered):
        if len(row):
            keys = _numbered(packets, out, row, kinds, at, place, read[1])
            texts.add(place * rows + row, fixed(keys), numbered_queue)
    index = texts.index.reshape(3, rows)
    same = read[2] & (kinds[2] == 1)  # the response queue is the administration queue
    index[2] = np.where(same, index[1], index[2])
    names = ("destination_queue", "admin_queue", "response_queue")
    return {name: texts.array(index[place]) for place, name in enumerate(names)}


def _numbered(
    packets: Packets, out: Values, row: Ints, kinds: list[Ints], at: list[Ints], place: int, has_admin: Bools
) -> Bytes:
    """Return type, GUID and id, 21 bytes a row, of the queues of one kind of name that have a number or a GUID."""
    user = out.values["UserHeader"]
    kind, where = kinds[place][row], at[place][row]
    own = _gather(packets.data, np.where((kind == 5) | (kind == 6), where, 0), 16)
    admin = kinds[1][row]
    admin_at = np.where(has_admin[row] & (admin == 6), at[1][row], 0)
    admin_host = np.where((kind == 4)[:, None], _gather(packets.data, admin_at, 16), own)
    manager = user["QueueManagerAddress"][row].copy()
    manager[packets.remote_read[row] & (kinds[0][row] == h.DIRECT)] = 0
    key = np.zeros((len(row), 21), np.uint8)
    key[:, 0] = kind
    key[:, 1:17] = _host(kind, admin, user["SourceQueueManager"][row], manager, admin_host)
    # Where the id stands is in the packet: a public queue has none, and 4 bytes of its GUID are read over.
    key[:, 17:] = _gather(packets.data, where + np.where(kind == 6, 16, 0), 4)
    key[kind == 5, 17:] = 0
    return key


def senders(packets: Packets, out: Values) -> tuple[pa.Array, Ints]:
    """Return the senders' SIDs and queue managers' GUIDs, and the rows whose SecurityID is neither."""
    texts = Texts(out.rows)
    bad = [np.zeros(0, np.int64)]
    if "SecurityID at" in out.valid:
        found = out.values["SecurityHeader"]
        size = found["SenderIdSize"].astype(np.int64)
        has = out.valid["SecurityID at"] & (size > 0)
        for kind, text in ((h.ST_SID, sid), (h.ST_QUEUE_MANAGER, queue_manager)):
            rows = np.flatnonzero(has & (found["Flags"] & 15 == kind))
            raw = cut(packets.data, out.values["SecurityID at"][rows], size[rows], np.ones(len(rows), np.bool_))
            bad.append(rows[~texts.add(rows, raw, text)])
    return texts.array(), np.concatenate(bad)


def sender_addresses(packets: Packets, out: Values) -> pa.Array:
    """Return whom a message of RemoteRead came from: its ExtendedAddressHeader, else the overlay of its UserHeader.

    The overlay has room for 8 bytes of an address: half of one of IPv6 says nothing.
    """
    texts = Texts(out.rows)
    user = out.values["UserHeader"]
    overlay = user["QueueManagerAddress"]
    near = packets.remote_read & out.valid["UserHeader"] & ((user["Flags"] >> 10) & 7 == h.DIRECT)
    near &= (overlay[:, 2] == h.IPV4) & (overlay[:, 3] == 0)
    rows = np.flatnonzero(near)
    octets = np.ascontiguousarray(overlay[rows, 8:12]).view("<u4").reshape(-1)
    texts.add(rows, pa.array(octets), near_address)
    if "ExtendedAddressHeader" not in out.valid:
        return texts.array()
    found = out.values["ExtendedAddressHeader"]
    rows = np.flatnonzero(out.valid["ExtendedAddressHeader"] & (found["AddressType"] != 0))
    key = np.zeros((len(rows), 17), np.uint8)
    key[:, 0] = np.minimum(found["AddressType"][rows], 255)
    key[:, 1:] = found["Address"][rows]
    key[key[:, 0] == h.IPV4, 5:] = 0
    texts.add(rows, fixed(key), address)
    return texts.array()
