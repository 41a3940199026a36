"""How a packet came in sections: [MS-MQRR] 2.2.6, 2.2.7, 3.1.4.7. What the reader's limit left out is no damage."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.messages import headers as h
from udfs.messages.reading import MALFORMED, Packets, note
from udfs.stubs.column import Bools, Ints, Values, buffer_of

_SECONDS = {h.BINARY_FIRST: h.BINARY_SECOND, h.SRMP_FIRST: h.SRMP_SECOND}


def _list(column: pa.Array) -> tuple[npt.NDArray[Any], Ints, Ints]:
    """Return a list column's values, and each row's first and number of them."""
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = column.flatten().fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.append(flat, [-1, -1]), np.cumsum(lengths) - lengths, lengths


def _protocols(protocol: str | pa.Array, rows: int) -> tuple[Bools, Bools]:
    """Return which rows are of RemoteRead, and which came by RPC."""
    if isinstance(protocol, str):
        if protocol not in h.PROTOCOLS:
            raise ValueError(f"no such protocol: {protocol}")
        return np.full(rows, protocol == h.REMOTE_READ), np.full(rows, protocol != h.BINARY)
    names = protocol.to_numpy(zero_copy_only=False)
    if unknown := set(protocol.unique().to_pylist()) - {*h.PROTOCOLS}:
        raise ValueError(f"no such protocol: {', '.join(sorted(map(str, unknown)))}")
    return np.asarray(names == h.REMOTE_READ, np.bool_), np.asarray(names != h.BINARY, np.bool_)


def packets_of(
    packets: pa.Array,
    protocol: str | pa.Array,
    types: pa.Array | None,
    sizes: pa.Array | None,
    allocated: pa.Array | None,
    out: Values,
) -> tuple[Packets, Ints]:
    """Return the packets with their sections' bounds, and the rows to read; rows that must be rejected get an error.

    A packet has one section of type 0, or a first one and, when headers follow the body, the second one of its kind;
    no section is larger than what was allocated for it. Only RemoteRead has sections ([MS-MQRR] 2.2.6): those given for
    packets of another protocol are not looked at.
    """
    data, offsets = buffer_of(packets)
    rows = len(packets)
    start, end = offsets[:-1], offsets[1:]
    present = np.asarray(packets.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    remote_read, rpc = _protocols(protocol, rows)
    split, srmp = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    first, missing = end, np.zeros(rows, np.int64)
    if types is not None and sizes is not None and allocated is not None:
        kind, at, count = _list(types)
        size, size_at, size_count = _list(sizes)
        most, most_at, most_count = _list(allocated)
        one, two = kind[at], np.where(count > 1, kind[np.minimum(at + 1, len(kind) - 1)], -1)
        told = remote_read & present & (count > 0)
        split = told & np.isin(one, list(_SECONDS))
        srmp = split & (one == h.SRMP_FIRST)
        length = size[size_at]
        fits = (count == size_count) & (count == most_count) & (count <= 2)
        total = length + np.where(count > 1, size[np.minimum(size_at + 1, len(size) - 1)], 0)
        pairs = (~split & (one == h.FULL_PACKET) & (count == 1)) | (split & ((count == 1) | (two == one + 1)))
        roomy = (length >= 0) & (most[most_at] >= length) & (split | (most[most_at] == length))
        for bad, field in (
            (~fits | (total != end - start), "ppPacketSections"),
            (~pairs, "SectionBufferType"),
            (~roomy, "SectionSizeAlloc"),
        ):
            note(out, np.flatnonzero(told & bad), MALFORMED, field, 0)
        split &= out.code == 0
        first = np.where(split, start + length, end)
        missing = np.where(split, most[most_at] - length, 0)
    return (
        Packets(data, start, end, remote_read, rpc, split, srmp, first, missing),
        np.flatnonzero(present & (out.code == 0)),
    )
