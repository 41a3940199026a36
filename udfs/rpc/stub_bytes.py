"""The stubs of halves as Arrow columns, and what protected ones need beside them to be opened later."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.files.container import Ints
from udfs.rpc.calls import Calls, Flags, spans
from udfs.sealed.pieces import packed


def stub_column(calls: Calls, half: Ints, valid: Flags) -> pa.Array:
    """Return the joined stubs of halves as a binary column; null where not valid."""
    pdus, halves = calls.pdus, calls.halves
    rows = np.nonzero(valid)[0]
    chosen = half[rows]
    fragments = spans(halves.first[chosen], halves.last[chosen])
    sizes = pdus.stub_size[fragments]
    low = pdus.start[fragments] + pdus.stub_from[fragments]
    memory = memoryview(calls.joined)
    parts: list[memoryview | bytes] = [memory[a:b] for a, b in zip(low.tolist(), (low + sizes).tolist(), strict=True)]
    own = pdus.body[fragments]
    for position in np.nonzero(own >= 0)[0].tolist():
        a = int(low[position])
        parts[position] = calls.kept[int(own[position])][a : a + int(sizes[position])]
    lengths = np.zeros(len(valid), np.int64)
    if len(fragments):
        ends = np.cumsum(halves.count[chosen])
        lengths[rows] = np.add.reduceat(sizes, ends - halves.count[chosen])
    offsets = np.zeros(len(valid) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(
        pa.binary(), len(valid), [mask, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(parts))]
    )


def pieces(calls: Calls, half: Ints, signed: Flags, base: Ints, stubs: pa.Array) -> pa.Array:
    """Return what protected halves need beside their stubs to be opened or verified later; null where not whole.

    A verification trailer is none of the stub any more: it goes with what follows the stub.
    """
    rows = np.nonzero(signed & np.asarray(stubs.is_valid()))[0]
    if not len(rows):
        return pa.nulls(len(signed), pa.binary())
    pdus, halves = calls.pdus, calls.halves
    firsts, lasts = halves.first[half[rows]], halves.last[half[rows]]
    fragments = spans(firsts, lasts)
    sequences = np.repeat(base[rows], lasts - firsts + 1) + pdus.offset[fragments]
    before, sizes = pdus.stub_from[fragments].tolist(), pdus.stub_size[fragments].tolist()
    places = zip(fragments.tolist(), (sequences & 0xFFFFFFFF).tolist(), before, sizes, strict=True)
    left = pc.binary_length(stubs).to_numpy(zero_copy_only=False)[rows].astype(np.int64).tolist()
    found: list[bytes | None] = [None] * len(signed)
    for row, count, stub_size in zip(rows.tolist(), (lasts - firsts + 1).tolist(), left, strict=True):
        records: list[bytes | memoryview] = []
        rest = stub_size
        for index, sequence, low, size in itertools.islice(places, count):
            data, stub = calls.fragment(index), min(size, rest)
            rest -= stub
            records += packed(sequence, data[:low], stub, data[low + stub :])
        found[row] = b"".join(records)
    return pa.array(found, pa.binary())
