"""Queue names, sender ids and addresses of message packets as text columns. Each distinct value is converted once."""

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

from udfs.array_types import Bools, Ints, Octets
from udfs.messages import header_layouts as layouts
from udfs.messages.record_readers import PacketColumn
from udfs.queues.normal_form import normalize_queue_name
from udfs.sids import sid_text
from udfs.stubs.byte_spans import slice_spans
from udfs.stubs.column_cursors import DecodedColumns

_NULL_GUID: Final = bytes(16)


@lru_cache(maxsize=8192)
def direct_queue_name(raw: bytes) -> str | None:
    """Return the normal form of a direct name in UTF-16, with or without a leading ``DIRECT=`` (doubt D3)."""
    text = raw[: len(raw) & ~1].decode("utf-16-le", "replace").partition("\0")[0]
    if text[:7].upper() == "DIRECT=":
        text = text[7:]
    return normalize_queue_name(f"DIRECT={text}") if text else None


@lru_cache(maxsize=8192)
def numbered_queue_name(raw: bytes) -> str | None:
    r"""Return the normal form of a public or private queue: ``public=guid`` or ``guid\%08x``.

    ``raw`` has 21 bytes: name type, GUID, private queue number. None without a GUID: a private queue of an unknown
    queue manager has no name.
    """
    kind, guid, number = struct.unpack("<B16sI", raw)
    if guid == _NULL_GUID:
        return None
    text = str(uuid.UUID(bytes_le=guid))
    return normalize_queue_name(f"PUBLIC={text}" if kind == 5 else f"PRIVATE={text}\\{number:08x}")


def distribution_list_name(guid: bytes) -> str | None:
    """Return the normal form of a distribution list: ``dl=guid``."""
    return normalize_queue_name(f"DL={uuid.UUID(bytes_le=guid)}")


def path_queue_name(text: str) -> str | None:
    """Return the normal form of a path name."""
    return normalize_queue_name(text or None)


@lru_cache(maxsize=8192)
def queue_manager_guid(raw: bytes) -> str | None:
    """Return the GUID of a queue manager as text; None unless ``raw`` has 16 bytes."""
    return str(uuid.UUID(bytes_le=raw)) if len(raw) == 16 else None


@lru_cache(maxsize=8192)
def ip_address_text(raw: bytes) -> str | None:
    """Return an IP address as text; ``raw`` is its type and 16 octets in network order. None for other types."""
    if raw[0] == layouts.ADDRESS_TYPE_IPV4:
        return str(ipaddress.IPv4Address(raw[1:5]))
    return str(ipaddress.IPv6Address(raw[1:])) if raw[0] == layouts.ADDRESS_TYPE_IPV6 else None


@lru_cache(maxsize=8192)
def overlay_ipv4_text(octets: int) -> str:
    """Return an IPv4 address as text; ``octets`` is the little-endian number of its octets."""
    return str(ipaddress.IPv4Address(octets.to_bytes(4, "little")))


class DistinctTextColumn:
    """A text column built from distinct values, each converted once."""

    def __init__(self, rows: int) -> None:
        self.index = np.full(rows, -1, np.int32)
        self.values: list[str | None] = []

    def set_texts(self, rows: Ints, raw: pa.Array, text: Callable[[Any], str | None]) -> Bools:
        """Set ``rows`` to the texts that ``text`` makes of ``raw``; returns the mask of those that are not None."""
        if not len(rows):
            return np.zeros(0, np.bool_)
        encoded = raw.dictionary_encode()
        found = [text(value) for value in encoded.dictionary.to_pylist()]
        places = len(self.values) + np.arange(len(found), dtype=np.int32)
        places[[each is None for each in found]] = -1
        self.values += found
        self.index[rows] = places[encoded.indices.to_numpy()]
        return self.index[rows] >= 0

    def to_arrow(self, index: npt.NDArray[np.int32] | None = None) -> pa.Array:
        """Return the column, or the texts at ``index``, as an Arrow array."""
        places = self.index if index is None else index
        return pa.array(self.values, pa.string()).take(pa.array(places, mask=places < 0))


def fixed_size_binary(raw: Octets) -> pa.Array:
    """Return bytes, shape (rows, width), as a fixed-size binary array."""
    return pa.Array.from_buffers(
        pa.binary(raw.shape[1]), len(raw), [None, pa.py_buffer(np.ascontiguousarray(raw).reshape(-1))]
    )


def gather_name_bytes(data: Octets, at: Ints, size: int) -> Octets:
    """Return ``size`` bytes of ``data`` at each offset, shape (rows, size)."""
    view = np.ndarray(len(data) - size + 1, f"V{size}", data, strides=(1,))
    return view[at].view(np.uint8).reshape(-1, size)


def _private_queue_host(kind: Ints, admin: Ints, source: Octets, manager: Octets, admin_host: Octets) -> Octets:
    """Return the GUIDs of the queue managers that own private queues ([MS-MQQB] 3.1.7.15); zero if unknown."""
    known = np.where((kind == 4)[:, None], 0, admin_host)
    of_admin = kind == 4
    known = np.where(((kind == 2) | (of_admin & (admin == 2)))[:, None], source, known)
    known = np.where(((kind == 3) | (of_admin & (admin == 3)))[:, None], manager, known)
    return np.where((of_admin & (admin == 6))[:, None], admin_host, known)


def queue_name_columns(packets: PacketColumn, out: DecodedColumns) -> dict[str, pa.Array]:
    """Return the destination, administration and response queues in normal form.

    A private queue of the destination's queue manager stays null if RemoteRead overwrote that queue manager's GUID with
    an address ([MS-MQRR] 2.2.5.1).
    """
    rows = out.rows
    nowhere, none = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    flags = out.values["UserHeader"]["Flags"].astype(np.int64)
    kinds = [(flags >> shift) & 7 for _, _, shift, _ in layouts.QUEUE_NAME_FIELDS]
    at = [out.values.get(f"{flag} at", nowhere) for _, flag, _, _ in layouts.QUEUE_NAME_FIELDS]
    read = [out.valid.get(f"{flag} at", none) for _, flag, _, _ in layouts.QUEUE_NAME_FIELDS]
    texts = DistinctTextColumn(3 * rows)  # the three columns one behind the other
    for place, (_, flag, _, _) in enumerate(layouts.QUEUE_NAME_FIELDS):
        direct = np.flatnonzero(read[place] & (kinds[place] == layouts.DIRECT_NAME_TYPE))
        if not len(direct):
            continue
        size = out.values[f"{flag} size"][direct]
        spans = slice_spans(packets.data, at[place][direct], size, np.ones(len(direct), np.bool_))
        texts.set_texts(place * rows + direct, spans, direct_queue_name)
    numbered = [
        np.flatnonzero(read[place] & (kinds[place] >= 2) & (kinds[place] != layouts.DIRECT_NAME_TYPE))
        for place in range(3)
    ]
    for place, row in enumerate(numbered):
        if len(row):
            keys = _numbered_queue_keys(packets, out, row, kinds, at, place, read[1])
            texts.set_texts(place * rows + row, fixed_size_binary(keys), numbered_queue_name)
    index = texts.index.reshape(3, rows)
    same = read[2] & (kinds[2] == 1)  # the response queue is the administration queue
    index[2] = np.where(same, index[1], index[2])
    names = ("destination_queue", "admin_queue", "response_queue")
    return {name: texts.to_arrow(index[place]) for place, name in enumerate(names)}


def _numbered_queue_keys(
    packets: PacketColumn,
    out: DecodedColumns,
    row: Ints,
    kinds: list[Ints],
    at: list[Ints],
    place: int,
    has_admin: Bools,
) -> Octets:
    """Return name type, GUID and number, 21 bytes per row, of queues that are named by a number or a GUID."""
    user = out.values["UserHeader"]
    kind, where = kinds[place][row], at[place][row]
    own = gather_name_bytes(packets.data, np.where((kind == 5) | (kind == 6), where, 0), 16)
    admin = kinds[1][row]
    admin_at = np.where(has_admin[row] & (admin == 6), at[1][row], 0)
    admin_host = np.where((kind == 4)[:, None], gather_name_bytes(packets.data, admin_at, 16), own)
    manager = user["QueueManagerAddress"][row].copy()
    manager[packets.is_from_remote_read[row] & (kinds[0][row] == layouts.DIRECT_NAME_TYPE)] = 0
    key = np.zeros((len(row), 21), np.uint8)
    key[:, 0] = kind
    key[:, 1:17] = _private_queue_host(kind, admin, user["SourceQueueManager"][row], manager, admin_host)
    # A public queue has no number: the 4 bytes read for it are part of its GUID.
    key[:, 17:] = gather_name_bytes(packets.data, where + np.where(kind == 6, 16, 0), 4)
    key[kind == 5, 17:] = 0
    return key


def sender_id_column(packets: PacketColumn, out: DecodedColumns) -> tuple[pa.Array, Ints]:
    """Return the senders as SID or as queue manager GUID, and the rows whose SecurityID is neither."""
    texts = DistinctTextColumn(out.rows)
    bad = [np.zeros(0, np.int64)]
    if "SecurityID at" in out.valid:
        found = out.values["SecurityHeader"]
        size = found["SenderIdSize"].astype(np.int64)
        has = out.valid["SecurityID at"] & (size > 0)
        for kind, text in (
            (layouts.SENDER_TYPE_SID, sid_text),
            (layouts.SENDER_TYPE_QUEUE_MANAGER, queue_manager_guid),
        ):
            rows = np.flatnonzero(has & (found["Flags"] & 15 == kind))
            raw = slice_spans(packets.data, out.values["SecurityID at"][rows], size[rows], np.ones(len(rows), np.bool_))
            bad.append(rows[~texts.set_texts(rows, raw, text)])
    return texts.to_arrow(), np.concatenate(bad)


def sender_address_column(packets: PacketColumn, out: DecodedColumns) -> pa.Array:
    """Return the sender addresses of RemoteRead messages: from the ExtendedAddressHeader, else the UserHeader overlay.

    The overlay has room for 8 bytes of an address, too few for IPv6.
    """
    texts = DistinctTextColumn(out.rows)
    user = out.values["UserHeader"]
    overlay = user["QueueManagerAddress"]
    near = (
        packets.is_from_remote_read & out.valid["UserHeader"] & ((user["Flags"] >> 10) & 7 == layouts.DIRECT_NAME_TYPE)
    )
    near &= (overlay[:, 2] == layouts.ADDRESS_TYPE_IPV4) & (overlay[:, 3] == 0)
    rows = np.flatnonzero(near)
    octets = np.ascontiguousarray(overlay[rows, 8:12]).view("<u4").reshape(-1)
    texts.set_texts(rows, pa.array(octets), overlay_ipv4_text)
    if "ExtendedAddressHeader" not in out.valid:
        return texts.to_arrow()
    found = out.values["ExtendedAddressHeader"]
    rows = np.flatnonzero(out.valid["ExtendedAddressHeader"] & (found["AddressType"] != 0))
    key = np.zeros((len(rows), 17), np.uint8)
    key[:, 0] = np.minimum(found["AddressType"][rows], 255)
    key[:, 1:] = found["Address"][rows]
    key[key[:, 0] == layouts.ADDRESS_TYPE_IPV4, 5:] = 0
    texts.set_texts(rows, fixed_size_binary(key), ip_address_text)
    return texts.to_arrow()
