"""Connection-oriented DCE/RPC PDUs: the header, and finding PDUs in a stretch of bytes ([C706] 12.6, [MS-RPCE] 2.2.2).

In step, PDUs stand back to back: each ``frag_length`` leads to the next. Out of step (the capture begins or goes on in
the middle) a header must prove itself: by a second valid header where it says that the next PDU begins, or, where
nothing follows, by ending exactly where the bytes end.
"""

from __future__ import annotations

import re
import struct
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

REQUEST, RESPONSE, FAULT = 0, 2, 3
BIND, BIND_ACK, BIND_NAK, ALTER_CONTEXT, ALTER_CONTEXT_RESP, AUTH3, SHUTDOWN, CO_CANCEL, ORPHANED = range(11, 20)
FROM_CLIENT: Final = frozenset((REQUEST, BIND, ALTER_CONTEXT, AUTH3, CO_CANCEL, ORPHANED))
FIRST_FRAG, LAST_FRAG, OBJECT_UUID = 0x01, 0x02, 0x80
HEADER: Final = 16

# Octets of the shortest PDU of a type; 0 for types that do not exist on TCP.
_LEAST: Final = bytearray(256)
for _ptype, _size in {
    REQUEST: 24, RESPONSE: 24, FAULT: 24, BIND: 28, BIND_ACK: 24, BIND_NAK: 18, ALTER_CONTEXT: 28,
    ALTER_CONTEXT_RESP: 24, AUTH3: 16, SHUTDOWN: 16, CO_CANCEL: 16, ORPHANED: 16,
}.items():  # fmt: skip
    _LEAST[_ptype] = _size
_LEAST_ROW: Final = np.frombuffer(bytes(_LEAST), np.uint8).astype(np.int64)

_CANDIDATE: Final = re.compile(
    rb"\x05[\x00\x01][\x00\x02\x03\x0b-\x13].[\x00\x01\x10\x11][\x00-\x03]\x00\x00", re.DOTALL
)
_LITTLE: Final = struct.Struct("<IIHH").unpack_from
_BIG: Final = struct.Struct(">HH").unpack_from


def frag_length(data: bytes | memoryview, at: int) -> int:
    """Return the length of the PDU whose header of 16 octets begins at ``at``; 0 if that is no valid header."""
    word, drep, length, auth = _LITTLE(data, at)
    if drep != 0x10:
        if drep & 0xFFFF0000 or drep & 0xEE or drep & 0xFF00 > 0x300:
            return 0
        if not drep & 0x10:
            length, auth = _BIG(data, at + 8)
    least = _LEAST[(word >> 16) & 0xFF]
    if word & 0xFEFF != 5 or not least or length < least or (auth and length < HEADER + 8 + auth):
        return 0
    return int(length)


def plausible_headers(data: bytearray, start: Ints, captured: Ints) -> npt.NDArray[np.bool_]:
    """Tell for each segment of a block whether its payload begins like a PDU."""
    octets = np.frombuffer(data, np.uint8)
    rows = np.lib.stride_tricks.sliding_window_view(octets, HEADER)[np.minimum(start, len(octets) - HEADER)]
    big = (rows[:, 4] & 0x10) == 0
    one, two, three, four = (rows[:, column].astype(np.int64) for column in (8, 9, 10, 11))
    length = np.where(big, one << 8 | two, two << 8 | one)
    auth = np.where(big, three << 8 | four, four << 8 | three)
    least = _LEAST_ROW[rows[:, 2]]
    good: npt.NDArray[np.bool_] = (
        (captured >= HEADER)
        & (rows[:, 0] == 5)
        & (rows[:, 1] <= 1)
        & (least > 0)
        & (length >= least)
        & ((rows[:, 4] & 0xEE) == 0)
        & (rows[:, 5] <= 3)
        & (rows[:, 6] == 0)
        & (rows[:, 7] == 0)
        & ((auth == 0) | (length >= HEADER + 8 + auth))
    )
    return good


def walk(data: bytes, at: int, end: int, found: list[int]) -> tuple[int, bool]:
    """Follow PDUs from ``at``, appending where each whole one begins.

    Returns where it stopped and whether it is still in step: then the bytes from there are the beginning of a PDU that
    is not whole, or none. Out of step, what stands there is no PDU header.
    """
    unpack, least, append = _LITTLE, _LEAST, found.append
    last = end - HEADER
    while at <= last:
        word, drep, length, auth = unpack(data, at)
        if drep != 0x10 or auth or word & 0xFEFF != 5 or length < (least[word >> 16 & 0xFF] or 0x10000):
            length = frag_length(data, at)
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
    """Whether fewer than 16 octets can be the beginning of a header."""
    return data[at] == 5 and (at + 1 >= end or data[at + 1] <= 1) and (at + 2 >= end or _LEAST[data[at + 2]] > 0)


def hunt(data: bytes, at: int, end: int, *, more: bool) -> tuple[int | None, int]:
    """Look for the next PDU that can be proven in ``data[at:end]``.

    ``more`` says that bytes may follow later. Returns where the PDU begins, or None, and then from where on the bytes
    must be kept to decide when more have come (``end`` when none need be).
    """
    for match in _CANDIDATE.finditer(data, at, end):
        begin = match.start()
        if begin + HEADER > end:
            break
        length = frag_length(data, begin)
        if not length:
            continue
        stop = begin + length
        if stop + HEADER <= end:
            if frag_length(data, stop):
                return begin, end
            continue
        if more:
            return None, begin
        if stop == end or (stop < end and _may_begin(data, stop, end)):
            return begin, end
    if not more:
        return None, end
    # A header cut by the end of what is there.
    for begin in range(max(at, end - HEADER + 1), end):
        if _may_begin(data, begin, end):
            return None, begin
    return None, end
