"""PDU headers of connection-oriented DCE/RPC, and the search for PDUs in a byte stream ([C706] 12.6, [MS-RPCE] 2.2.2).

In sync, PDUs are contiguous: each ``frag_length`` leads to the next header. Out of sync (the capture begins inside a
PDU, or bytes are missing), a header counts as found only if it is confirmed: a second valid header stands where the
first says that the next PDU begins, or the bytes end exactly there.
"""

from __future__ import annotations

import re
import struct
from typing import Final

import numpy as np

from udfs.array_types import Bools, Ints

REQUEST, RESPONSE, FAULT = 0, 2, 3
BIND, BIND_ACK, BIND_NAK, ALTER_CONTEXT, ALTER_CONTEXT_RESP, AUTH3, SHUTDOWN, CO_CANCEL, ORPHANED = range(11, 20)
CLIENT_PDU_TYPES: Final = frozenset((REQUEST, BIND, ALTER_CONTEXT, AUTH3, CO_CANCEL, ORPHANED))
FIRST_FRAG, LAST_FRAG, OBJECT_UUID = 0x01, 0x02, 0x80
PDU_HEADER_BYTES: Final = 16

# Length in bytes of the shortest PDU of each type; 0 for types that do not exist on TCP.
_MIN_PDU_BYTES: Final = bytearray(256)
for _ptype, _size in {
    REQUEST: 24, RESPONSE: 24, FAULT: 24, BIND: 28, BIND_ACK: 24, BIND_NAK: 18, ALTER_CONTEXT: 28,
    ALTER_CONTEXT_RESP: 24, AUTH3: 16, SHUTDOWN: 16, CO_CANCEL: 16, ORPHANED: 16,
}.items():  # fmt: skip
    _MIN_PDU_BYTES[_ptype] = _size
_MIN_PDU_BYTES_ARRAY: Final = np.frombuffer(bytes(_MIN_PDU_BYTES), np.uint8).astype(np.int64)

_HEADER_PATTERN: Final = re.compile(
    rb"\x05[\x00\x01][\x00\x02\x03\x0b-\x13].[\x00\x01\x10\x11][\x00-\x03]\x00\x00", re.DOTALL
)
_unpack_little: Final = struct.Struct("<IIHH").unpack_from
_unpack_lengths_big: Final = struct.Struct(">HH").unpack_from


def read_frag_length(data: bytes | memoryview, at: int) -> int:
    """Return frag_length of the PDU whose 16-byte header begins at ``at``; 0 if the header is not valid."""
    word, drep, length, auth = _unpack_little(data, at)
    if drep != 0x10:
        if drep & 0xFFFF0000 or drep & 0xEE or drep & 0xFF00 > 0x300:
            return 0
        if not drep & 0x10:
            length, auth = _unpack_lengths_big(data, at + 8)
    least = _MIN_PDU_BYTES[(word >> 16) & 0xFF]
    if word & 0xFEFF != 5 or not least or length < least or (auth and length < PDU_HEADER_BYTES + 8 + auth):
        return 0
    return int(length)


def payloads_starting_like_pdus(data: bytearray, start: Ints, captured: Ints) -> Bools:
    """Return a mask of the segments whose payload begins with a valid PDU header.

    ``start`` and ``captured`` are the payloads' offsets in ``data`` and their lengths, in bytes.
    """
    octets = np.frombuffer(data, np.uint8)
    rows = np.lib.stride_tricks.sliding_window_view(octets, PDU_HEADER_BYTES)[
        np.minimum(start, len(octets) - PDU_HEADER_BYTES)
    ]
    big = (rows[:, 4] & 0x10) == 0
    one, two, three, four = (rows[:, column].astype(np.int64) for column in (8, 9, 10, 11))
    length = np.where(big, one << 8 | two, two << 8 | one)
    auth = np.where(big, three << 8 | four, four << 8 | three)
    least = _MIN_PDU_BYTES_ARRAY[rows[:, 2]]
    good: Bools = (
        (captured >= PDU_HEADER_BYTES)
        & (rows[:, 0] == 5)
        & (rows[:, 1] <= 1)
        & (least > 0)
        & (length >= least)
        & ((rows[:, 4] & 0xEE) == 0)
        & (rows[:, 5] <= 3)
        & (rows[:, 6] == 0)
        & (rows[:, 7] == 0)
        & ((auth == 0) | (length >= PDU_HEADER_BYTES + 8 + auth))
    )
    return good


def walk_pdus(data: bytes, at: int, end: int, found: list[int]) -> tuple[int, bool]:
    """Walk contiguous PDUs from ``at`` to ``end``; append the start of each whole PDU to ``found``.

    Returns where the walk stopped, and whether it is in sync: if so, the bytes from there are the beginning of an
    incomplete PDU, or there are none. If not, they are no PDU header.
    """
    unpack, least, append = _unpack_little, _MIN_PDU_BYTES, found.append
    last = end - PDU_HEADER_BYTES
    while at <= last:
        word, drep, length, auth = unpack(data, at)
        if drep != 0x10 or auth or word & 0xFEFF != 5 or length < (least[word >> 16 & 0xFF] or 0x10000):
            length = read_frag_length(data, at)
            if not length:
                return at, False
        if at + length > end:
            return at, True
        append(at)
        at += length
    if at < end and not _may_begin(data, at, end):
        return at, False
    return at, True


def _may_begin(data: bytes, at: int, end: int) -> bool:
    """Whether fewer than 16 bytes can be the beginning of a PDU header."""
    return (
        data[at] == 5 and (at + 1 >= end or data[at + 1] <= 1) and (at + 2 >= end or _MIN_PDU_BYTES[data[at + 2]] > 0)
    )


def find_next_pdu(data: bytes, at: int, end: int, *, more: bool) -> tuple[int | None, int]:
    """Search ``data[at:end]`` for the next PDU whose header is confirmed.

    ``more`` tells that bytes may follow later. Returns the start of the PDU, or None. With None, the second value is
    the offset from which the bytes must be kept until more have come (``end`` if none are needed).
    """
    for match in _HEADER_PATTERN.finditer(data, at, end):
        begin = match.start()
        if begin + PDU_HEADER_BYTES > end:
            break
        length = read_frag_length(data, begin)
        if not length:
            continue
        stop = begin + length
        if stop + PDU_HEADER_BYTES <= end:
            if read_frag_length(data, stop):
                return begin, end
            continue
        if more:
            return None, begin
        if stop == end or (stop < end and _may_begin(data, stop, end)):
            return begin, end
    if not more:
        return None, end
    # The bytes may end inside a header.
    for begin in range(max(at, end - PDU_HEADER_BYTES + 1), end):
        if _may_begin(data, begin, end):
            return None, begin
    return None, end
