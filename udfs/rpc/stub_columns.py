"""Arrow columns of the stubs of calls, and of the signed bytes around protected stubs."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.array_types import Bools, Ints
from udfs.columns.groups import expand_ranges
from udfs.rpc.pdu_columns import AssembledCalls
from udfs.sealed.protected_pdu import pack_pdu


def stub_column(calls: AssembledCalls, half: Ints, valid: Bools) -> pa.Array:
    """Return the stubs of requests or responses, their fragments joined, as a binary column; null where not valid."""
    pdus, halves = calls.pdus, calls.halves
    rows = np.nonzero(valid)[0]
    chosen = half[rows]
    fragments = expand_ranges(halves.first_pdu[chosen], halves.pdu_count[chosen])
    sizes = pdus.stub_size[fragments]
    low = pdus.buffer_start[fragments] + pdus.stub_start[fragments]
    memory = memoryview(calls.buffer)
    parts: list[memoryview | bytes] = [memory[a:b] for a, b in zip(low.tolist(), (low + sizes).tolist(), strict=True)]
    own = pdus.body_index[fragments]
    for position in np.nonzero(own >= 0)[0].tolist():
        a = int(low[position])
        parts[position] = calls.kept_bodies[int(own[position])][a : a + int(sizes[position])]
    lengths = np.zeros(len(valid), np.int64)
    if len(fragments):
        ends = np.cumsum(halves.pdu_count[chosen])
        lengths[rows] = np.add.reduceat(sizes, ends - halves.pdu_count[chosen])
    offsets = np.zeros(len(valid) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(
        pa.binary(), len(valid), [mask, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(parts))]
    )


def signed_bytes_column(calls: AssembledCalls, half: Ints, signed: Bools, base: Ints, stubs: pa.Array) -> pa.Array:
    """Return what decryption needs beside protected stubs, encoded per PDU; null where the half is not whole.

    That is each PDU's sequence number, the bytes before its stub, and those behind it. A verification trailer is not
    part of the stub, so it is among the bytes behind.
    """
    rows = np.nonzero(signed & np.asarray(stubs.is_valid()))[0]
    if not len(rows):
        return pa.nulls(len(signed), pa.binary())
    pdus, halves = calls.pdus, calls.halves
    counts = halves.pdu_count[half[rows]]
    fragments = expand_ranges(halves.first_pdu[half[rows]], counts)
    sequences = np.repeat(base[rows], counts) + pdus.stream_offset[fragments]
    before, sizes = pdus.stub_start[fragments].tolist(), pdus.stub_size[fragments].tolist()
    places = zip(fragments.tolist(), (sequences & 0xFFFFFFFF).tolist(), before, sizes, strict=True)
    left = pc.binary_length(stubs).to_numpy(zero_copy_only=False)[rows].astype(np.int64).tolist()
    found: list[bytes | None] = [None] * len(signed)
    for row, count, stub_size in zip(rows.tolist(), counts.tolist(), left, strict=True):
        records: list[bytes | memoryview] = []
        rest = stub_size
        for index, sequence, low, size in itertools.islice(places, count):
            data, stub = calls.pdu_bytes(index), min(size, rest)
            rest -= stub
            records += pack_pdu(sequence, data[:low], stub, data[low + stub :])
        found[row] = b"".join(records)
    return pa.array(found, pa.binary())
