"""The verification trailer that Windows clients append to request stubs ([MS-RPCE] 2.2.2.13): find it, strip it."""

from __future__ import annotations

import re
import struct
from typing import Final

import numpy as np
import pyarrow as pa

_SIGNATURE: Final = bytes.fromhex("8ae3137102f43671")
_MAX_TRAILER_BYTES: Final = 8 + 3 * 4 + 4 + 0x28 + 0x10 + 64  # bytes: all commands that exist, and room for one more
_LAST_COMMAND_FLAG: Final = 0x4000


def find_verification_trailer(stub: bytes) -> int | None:
    """Return the offset of the verification trailer in a request stub, behind any padding; None if there is none.

    The trailer begins at a multiple of 4. Its commands must end exactly at the end of the stub.
    """
    begin = stub.rfind(_SIGNATURE, max(0, len(stub) - _MAX_TRAILER_BYTES))
    while begin >= 0:
        if begin % 4 == 0:
            for order in ("<", ">"):
                at, last = begin + 8, False
                while not last and at + 4 <= len(stub):
                    command, length = struct.unpack_from(order + "HH", stub, at)
                    at, last = at + 4 + length, bool(command & _LAST_COMMAND_FLAG)
                if last and at == len(stub):
                    return begin
        begin = stub.rfind(_SIGNATURE, max(0, len(stub) - _MAX_TRAILER_BYTES), begin)
    return None


def strip_verification_trailers(stubs: pa.Array) -> pa.Array:
    """Return a binary column of request stubs, with the verification trailers removed."""
    offsets = np.frombuffer(stubs.buffers()[1], np.int32)[stubs.offset : stubs.offset + len(stubs) + 1]
    data = memoryview(stubs.buffers()[2] or b"")
    found = re.search(re.escape(_SIGNATURE), data)  # bytes.find would copy the buffer
    if found is None:
        return stubs
    at = found.start()
    values = stubs.to_pylist()
    for row in range(int(np.searchsorted(offsets, at, "right")) - 1, len(values)):
        value = values[row]
        if value is not None and (begin := find_verification_trailer(value)) is not None:
            values[row] = value[:begin]
    return pa.array(values, pa.binary())
