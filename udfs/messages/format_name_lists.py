"""Format name lists of a MultiQueueFormatHeader as columns of queue names, [MS-MQMQ] 2.2.20.1, 2.2.18.1.4."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import pyarrow as pa

from udfs.array_types import Ints
from udfs.messages import header_layouts as layouts
from udfs.messages.name_columns import direct_queue_name, distribution_list_name, numbered_queue_name
from udfs.messages.record_readers import PacketColumn
from udfs.stubs.column_cursors import DecodedColumns

_NAMES: Final = pa.list_(pa.string())
_NUL: Final = b"\0\0"
_BYTES: Final = {
    layouts.FORMAT_NAME_PUBLIC: 16,
    layouts.FORMAT_NAME_PRIVATE: 20,
    layouts.FORMAT_NAME_DISTRIBUTION_LIST: 16,
}


def _element_name(kind: int, raw: bytes) -> str | None:
    """Return the normal form of an element that names its queues by GUID; None for a queue manager of zeros."""
    if kind == layouts.FORMAT_NAME_DISTRIBUTION_LIST:
        return distribution_list_name(raw)
    if kind == layouts.FORMAT_NAME_PUBLIC:
        return numbered_queue_name(struct.pack("<B16sI", 5, raw, 0))  # 5 and 6 are name types of a UserHeader
    return numbered_queue_name(struct.pack("<B20s", 6, raw))


def _split_list(raw: bytes, count: int, alignment: int) -> list[str | None] | None:
    """Return the names of ``count`` elements; None if these do not end with ``raw`` or at most 3 bytes before it."""
    names: list[str | None] = []
    at = 0
    for _ in range(count):
        if at + 2 > len(raw):
            return None
        kind, at = int.from_bytes(raw[at : at + 2], "little"), at + 2
        if kind == layouts.FORMAT_NAME_DIRECT:
            end = raw.find(_NUL, at)
            while end > 0 and (end - at) % 2:  # the second half of one character and the first half of the next
                end = raw.find(_NUL, end + 1)
            if end < 0:
                return None
            names.append(direct_queue_name(raw[at:end]))
            at = end + len(_NUL)
        else:
            at += -at % alignment
            size = _BYTES.get(kind)
            if size is None or at + size > len(raw):
                return None
            names.append(_element_name(kind, raw[at : at + size]))
            at += size
    return names if len(raw) - at <= layouts.FORMAT_NAME_ALIGNMENT - 1 else None


def format_name_list_column(packets: PacketColumn, out: DecodedColumns, part: str) -> tuple[pa.Array, Ints]:
    """Return one of the three lists as normal forms, and the rows whose list has other elements than it should.

    ``part`` is a name of ``FORMAT_NAME_LIST_IDS``. Messages with such a header are few: each list is read by itself.
    GUIDs are aligned to 4 bytes, unless the elements fill the list only without (doubt D9).
    """
    rows = np.flatnonzero(out.valid.get(f"{part} list at", np.zeros(out.rows, np.bool_)))
    if not len(rows):
        return pa.nulls(out.rows, _NAMES), rows
    lists: list[list[str | None] | None] = [None] * out.rows
    bad = []
    for row in rows.tolist():
        at, size, count = (int(out.values[f"{part} list {value}"][row]) for value in ("at", "size", "count"))
        raw = packets.data[at : at + size].tobytes()
        lists[row] = _split_list(raw, count, layouts.FORMAT_NAME_ALIGNMENT)
        if lists[row] is None:
            lists[row] = _split_list(raw, count, 1)
        if lists[row] is None:
            bad.append(row)
    return pa.array(lists, _NAMES), np.array(bad, np.int64)
