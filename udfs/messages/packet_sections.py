"""Sections of message packets, [MS-MQRR] 2.2.6, 2.2.7, 3.1.4.7: validation, and where the reader's limit truncated."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.array_types import Bools, Ints
from udfs.messages import header_layouts as layouts
from udfs.messages.record_readers import PacketColumn, record_first_error
from udfs.stubs.column_cursors import MALFORMED_CODE, DecodedColumns, binary_buffer

_SECOND_SECTION_TYPES = {
    layouts.SECTION_BINARY_FIRST: layouts.SECTION_BINARY_SECOND,
    layouts.SECTION_SRMP_FIRST: layouts.SECTION_SRMP_SECOND,
}


def _list_parts(column: pa.Array) -> tuple[npt.NDArray[Any], Ints, Ints]:
    """Return the values of a list column, and for each row the index of its first value and their number."""
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = column.flatten().fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.append(flat, [-1, -1]), np.cumsum(lengths) - lengths, lengths


def _protocol_rows(protocol: str | pa.Array, rows: int) -> tuple[Bools, Bools]:
    """Return the masks of rows that RemoteRead carried, and of rows that any RPC protocol carried."""
    if isinstance(protocol, str):
        if protocol not in layouts.PROTOCOLS:
            raise ValueError(f"no such protocol: {protocol}")
        return np.full(rows, protocol == layouts.PROTOCOL_REMOTE_READ), np.full(
            rows, protocol != layouts.PROTOCOL_BINARY
        )
    names = protocol.to_numpy(zero_copy_only=False)
    if unknown := set(protocol.unique().to_pylist()) - {*layouts.PROTOCOLS}:
        raise ValueError(f"no such protocol: {', '.join(sorted(map(str, unknown)))}")
    return np.asarray(names == layouts.PROTOCOL_REMOTE_READ, np.bool_), np.asarray(
        names != layouts.PROTOCOL_BINARY, np.bool_
    )


def locate_sections(
    packets: pa.Array,
    protocol: str | pa.Array,
    types: pa.Array | None,
    sizes: pa.Array | None,
    allocated: pa.Array | None,
    out: DecodedColumns,
    sizes_wrong: DecodedColumns,
) -> tuple[PacketColumn, Ints]:
    """Return the packets with the bounds of their sections, and the rows to read.

    A packet has one section of type 0, or a first section and, if headers follow the body, the second one of the same
    kind; other sequences of sections get an error in ``out`` and are not read. SectionSize says how many bytes a
    section has (doubt D28). Other sizes that differ get an error in ``sizes_wrong``, and the packet is read.
    Only RemoteRead has sections ([MS-MQRR] 2.2.6): those of other protocols are ignored.
    """
    data, offsets = binary_buffer(packets)
    rows = len(packets)
    start, end = offsets[:-1], offsets[1:]
    present = np.asarray(packets.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    remote_read, rpc = _protocol_rows(protocol, rows)
    split, srmp = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    first, missing = end, np.zeros(rows, np.int64)
    if types is not None and sizes is not None and allocated is not None:
        kind, at, count = _list_parts(types)
        size, size_at, size_count = _list_parts(sizes)
        most, most_at, most_count = _list_parts(allocated)
        one, two = kind[at], np.where(count > 1, kind[np.minimum(at + 1, len(kind) - 1)], -1)
        sectioned = remote_read & present & (count > 0)
        split = sectioned & np.isin(one, list(_SECOND_SECTION_TYPES))
        srmp = split & (one == layouts.SECTION_SRMP_FIRST)
        length = size[size_at]
        counted = (count == size_count) & (count == most_count) & (count <= 2)
        total = length + np.where(count > 1, size[np.minimum(size_at + 1, len(size) - 1)], 0)
        pairs = (~split & (one == layouts.SECTION_FULL_PACKET) & (count == 1)) | (
            split & ((count == 1) | (two == one + 1))
        )
        roomy = (length >= 0) & (most[most_at] >= length) & (split | (most[most_at] == length))
        for errors, bad, field in (
            (out, ~counted, "ppPacketSections"),
            (out, ~pairs, "SectionBufferType"),
            (sizes_wrong, counted & pairs & (total != end - start), "ppPacketSections"),
            (sizes_wrong, counted & pairs & ~roomy, "SectionSizeAlloc"),
        ):
            record_first_error(errors, np.flatnonzero(sectioned & bad), MALFORMED_CODE, field, 0)
        split &= out.error_code == 0
        first = np.where(split, np.minimum(start + length, end), end)
        missing = np.where(split, np.maximum(most[most_at] - length, 0), 0)
    return (
        PacketColumn(data, start, end, remote_read, rpc, split, srmp, first, missing),
        np.flatnonzero(present & (out.error_code == 0)),
    )
