"""Headers by which packets of the binary protocol are found in a stream ([MS-MQMQ] 2.2.19.1, [MS-MQQB] 2.2).

All functions take the octets of a stream in a buffer, ``data[at:end]``: what lies behind ``end`` is not looked at,
``Behind`` says what it is. Numbers are little-endian.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final, NamedTuple

from udfs.messages.header_layouts import (
    BASE_FLAG_IN,
    BASE_FLAG_SH,
    INFINITE_TIMEOUT,
    MAX_PACKET_BYTES,
    PACKET_SIGNATURE,
    PACKET_VERSION,
    QUEUE_NAME_FIELDS,
    SESSION_HEADER_BYTES,
    USER_FLAG_MP,
)

MIN_STEP_BYTES: Final = 12  # of a header up to PacketSize: fewer octets are no packet
MIN_SEARCH_BYTES: Final = 20  # of a header that a search may find
CHECKED_HEADER_BYTES: Final = 64  # octets from which a header is judged: up to UserHeader.Flags
PACKET_TYPE_BITS: Final = 0xF  # InternalHeader.Flags.PT
SESSION_ACK, ESTABLISH_CONNECTION, CONNECTION_PARAMETERS = 1, 2, 3  # PT, [MS-MQQB] 2.2.1
USER_FLAGS_AT: Final = 60  # of UserHeader.Flags in a packet
MIN_PACKET_BYTES: Final = 16
MIN_MESSAGE_BYTES: Final = 120  # BaseHeader, UserHeader and MessagePropertiesHeader
_ESTABLISH_CONNECTION_BYTES: Final = 572
_INTERNAL_SIZES: Final = frozenset({(36, SESSION_ACK), (_ESTABLISH_CONNECTION_BYTES, ESTABLISH_CONNECTION),
                                    (32, CONNECTION_PARAMETERS)})  # fmt: skip
_SIZES_OF_INTERNAL: Final = frozenset(size for size, _ in _INTERNAL_SIZES)
_SESSION_HEADER_BITS: Final = BASE_FLAG_IN | BASE_FLAG_SH
_SIGNATURE_OCTETS: Final = PACKET_SIGNATURE.to_bytes(4, "little")
_ALLOWED_NAMES: Final = tuple((shift, frozenset(kinds)) for name, _, shift, kinds in QUEUE_NAME_FIELDS
                              if name != "ResponseQueue")  # fmt: skip
_unpack_base = struct.Struct("<BxHII").unpack_from  # version, flags, signature, size
_unpack_word = struct.Struct("<I").unpack_from
_unpack_short = struct.Struct("<H").unpack_from


class Behind(Enum):
    """What is behind the octets of a stream that a function sees."""

    MORE = 1  # further octets may come
    NOTHING = 2  # a hole, or the end of the stream
    PACKET = 3  # a packet, which was cut when its capture was read


class _Follows(Enum):
    """What is where the length of a packet ends: a header, nothing that is seen, something else; or it is unknown."""

    HEADER = 1
    NOTHING = 2
    OTHER = 3
    UNKNOWN = 4


def read_packet_size(data: bytes | memoryview, at: int, end: int) -> tuple[int, int] | None:
    """Return Flags and PacketSize of the packet at ``at``, where a reader in step expects one; None if it is none.

    At least ``MIN_STEP_BYTES`` octets are needed.
    """
    if end - at < MIN_STEP_BYTES:
        return None
    version, flags, signature, size = _unpack_base(data, at)
    if version != PACKET_VERSION or signature != PACKET_SIGNATURE or not MIN_PACKET_BYTES <= size <= MAX_PACKET_BYTES:
        return None
    return flags, size


def is_valid_header(data: bytes | memoryview, at: int, end: int) -> bool:
    """Whether a valid header stands at ``at``; fields behind ``end`` are not asked, but ``MIN_STEP_BYTES`` octets."""
    found = read_packet_size(data, at, end)
    if found is None:
        return False
    flags, size = found
    seen = end - at
    if flags & BASE_FLAG_IN:
        if size not in _SIZES_OF_INTERNAL or (seen >= 16 and _unpack_word(data, at + 12)[0] != INFINITE_TIMEOUT):
            return False
        return seen < 20 or (size, _unpack_short(data, at + 18)[0] & PACKET_TYPE_BITS) in _INTERNAL_SIZES
    if size < MIN_MESSAGE_BYTES:
        return False
    if seen < CHECKED_HEADER_BYTES:
        return True
    word = _unpack_word(data, at + USER_FLAGS_AT)[0]
    return bool(word & USER_FLAG_MP) and all(word >> shift & 7 in kinds for shift, kinds in _ALLOWED_NAMES)


def may_be_followed_by_session_header(flags: int) -> bool:
    """Whether 16 octets of a SessionHeader may follow a packet that PacketSize does not count: IN = 0, SH = 1."""
    return flags & _SESSION_HEADER_BITS == BASE_FLAG_SH


def session_header_bytes(data: bytes | memoryview, at: int, end: int, behind: Behind) -> int | None:
    """Return how many octets of a SessionHeader follow a packet with IN = 0 and SH = 1 that ends at ``at``: 16 or 0.

    They are 16 unless a valid header stands at ``at`` and none behind them (sheet D2). None: octets behind ``end``
    decide, and may come.
    """
    if at == end and behind is Behind.PACKET:
        return 0
    if (
        behind is Behind.MORE
        and end - at < SESSION_HEADER_BYTES + CHECKED_HEADER_BYTES
        and _may_be_header(data, at, end)
    ):
        return None
    is_next = is_valid_header(data, at, end) and not is_valid_header(data, at + SESSION_HEADER_BYTES, end)
    return 0 if is_next else SESSION_HEADER_BYTES


def walk_packets(
    data: bytes, at: int, end: int, behind: Behind, starts: list[int], lengths: list[int]
) -> tuple[int, bool]:
    """Walk packets that follow one another from ``at`` on; append start and length of each that is whole.

    Returns where the walk stopped, and whether it is in step: if so, the octets from there are the beginning of an
    incomplete packet, or there are none. If not, they are no packet.
    """
    unpack, add_start, add_length = _unpack_base, starts.append, lengths.append
    last = end - MIN_STEP_BYTES
    while at <= last:
        version, flags, signature, length = unpack(data, at)
        if (
            version != PACKET_VERSION
            or signature != PACKET_SIGNATURE
            or not (MIN_PACKET_BYTES <= length <= MAX_PACKET_BYTES)
        ):
            return at, False
        there = at + length
        if there > end:
            break
        if flags & _SESSION_HEADER_BITS == BASE_FLAG_SH:
            if there <= last and unpack(data, there)[2] != PACKET_SIGNATURE:
                there += SESSION_HEADER_BYTES
            else:
                more = session_header_bytes(data, there, end, behind)
                if more is None:
                    break
                there += more
            if there > end:
                break
        add_start(at)
        add_length(there - at)
        at = there
    return at, True


class Search(NamedTuple):
    """Result of ``find_header``: the offset of a packet, or None; then octets from ``keep`` on are needed later.

    ``is_certain``: another header stands where the packet ends. If not, the octets that are seen end there.
    """

    found: int | None
    keep: int
    is_certain: bool = True


def find_header(data: bytes, at: int, end: int, behind: Behind) -> Search:
    """Search ``data[at:end]`` for the next packet of a reader that is out of step.

    It is the first valid header of 20 octets or more with another valid header where its length says, or behind which
    the run ends there.
    """
    place = at
    while True:
        found = data.find(_SIGNATURE_OCTETS, place + 4, end)
        if found < 0:
            return Search(None, max(place, end - 7) if behind is Behind.MORE else end)
        place = found - 4
        if data[place] == PACKET_VERSION:
            if end - place < MIN_SEARCH_BYTES and behind is Behind.MORE:
                return Search(None, place)
            follows = _what_follows(data, place, end, behind)
            if follows is _Follows.UNKNOWN:
                return Search(None, place)
            if follows is not _Follows.OTHER:
                return Search(place, place, follows is _Follows.HEADER)
        place += 1


def is_establish_connection(octets: bytes | memoryview) -> bool:
    """Whether the first 20 octets of a side are the header of an EstablishConnection packet ([MS-MQQB] 2.2.3)."""
    return len(octets) >= MIN_SEARCH_BYTES and may_be_establish_connection(octets)


def may_be_establish_connection(octets: bytes | memoryview) -> bool:
    """Whether octets may begin the header of an EstablishConnection packet, as far as there are up to 20 of them."""
    seen = min(len(octets), MIN_SEARCH_BYTES)
    if not _may_be_header(octets, 0, seen):
        return False
    if seen < MIN_STEP_BYTES:
        return True
    return bool(octets[2] & BASE_FLAG_IN) and _unpack_word(octets, 8)[0] == _ESTABLISH_CONNECTION_BYTES


def _what_follows(data: bytes, at: int, end: int, behind: Behind) -> _Follows:
    """Return what is where the packet at ``at`` ends; ``OTHER`` too if no valid header stands at ``at``."""
    if end - at < MIN_SEARCH_BYTES or not is_valid_header(data, at, end):
        return _Follows.OTHER
    if behind is Behind.MORE and end - at < CHECKED_HEADER_BYTES:
        return _Follows.UNKNOWN
    flags, size = read_packet_size(data, at, end) or (0, 0)
    there = at + size
    if there <= end and may_be_followed_by_session_header(flags):
        more = session_header_bytes(data, there, end, behind)
        if more is None:
            return _Follows.UNKNOWN
        there += more
    if end - there >= MIN_STEP_BYTES and (behind is not Behind.MORE or end - there >= CHECKED_HEADER_BYTES):
        return _Follows.HEADER if is_valid_header(data, there, end) else _Follows.OTHER
    if behind is Behind.MORE:
        is_open = end - there < MIN_STEP_BYTES or _may_be_header(data, there, end)  # the run may end there
        return _Follows.UNKNOWN if is_open else _Follows.OTHER
    if there == end and behind is Behind.PACKET:
        return _Follows.HEADER
    return _Follows.NOTHING if behind is Behind.NOTHING else _Follows.OTHER


def _may_be_header(data: bytes | memoryview, at: int, end: int) -> bool:
    """Whether the octets that are there do not exclude a valid header."""
    there = min(end, at + MIN_STEP_BYTES)
    if at >= end:
        return True
    if there - at < MIN_STEP_BYTES:
        return data[at] == PACKET_VERSION and bytes(data[at + 4 : min(there, at + 8)]) == (
            _SIGNATURE_OCTETS[: max(0, min(there - at, 8) - 4)]
        )  # fmt: skip
    return is_valid_header(data, at, end)
