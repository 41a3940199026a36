"""The verification trailer that Windows clients append to requests, and how to take it off ([MS-RPCE] 2.2.2.13)."""

from __future__ import annotations

import re
import struct
from typing import Final

import numpy as np
import pyarrow as pa

_SIGNATURE: Final = bytes.fromhex("8ae3137102f43671")
_LONGEST: Final = 8 + 3 * 4 + 4 + 0x28 + 0x10 + 64  # all commands there are, and room for one more
_LAST: Final = 0x4000
_COMMAND: Final = 0x3FFF


def trailer_start(stub: bytes) -> int | None:
    """Return where the verification trailer of a request stub begins, without the padding before it; None: no trailer.

    It stands at a multiple of 4, and its commands must use up the stub to its last byte.
    """
    begin = stub.rfind(_SIGNATURE, max(0, len(stub) - _LONGEST))
    while begin >= 0:
        if begin % 4 == 0:
            for order in ("<", ">"):
                at, last = begin + 8, False
                while not last and at + 4 <= len(stub):
                    command, length = struct.unpack_from(order + "HH", stub, at)
                    at, last = at + 4 + length, bool(command & _LAST)
                if last and at == len(stub):
                    return begin
        begin = stub.rfind(_SIGNATURE, max(0, len(stub) - _LONGEST), begin)
    return None


def without_trailers(stubs: pa.Array) -> pa.Array:
    """Return a binary column of request stubs without their verification trailers."""
    offsets = np.frombuffer(stubs.buffers()[1], np.int32)[stubs.offset : stubs.offset + len(stubs) + 1]
    data = memoryview(stubs.buffers()[2] or b"")
    found = re.search(re.escape(_SIGNATURE), data)  # bytes.find would need a copy of the buffer
    if found is None:
        return stubs
    at = found.start()
    values = stubs.to_pylist()
    for row in range(int(np.searchsorted(offsets, at, "right")) - 1, len(values)):
        value = values[row]
        if value is not None and (begin := trailer_start(value)) is not None:
            values[row] = value[:begin]
    return pa.array(values, pa.binary())
