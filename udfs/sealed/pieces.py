"""What is kept of sealed and signed PDUs beside their stubs, so that keys which come later open them.

A sealed half is kept as captured: its stub column has the sealed stubs of its PDUs, one after the other, without
padding. What a signature covers beside them (header, padding, security trailer: [MS-RPCE] 2.2.2.11, 3.3.1.5.2.2; of
signed requests a verification trailer too) is packed here, one record for each PDU: TCP sequence number of its first
octet (4), octets before the stub (2), of the stub (2), behind it (2), little-endian; then the octets before and behind.
Only whole halves are packed.
"""

from __future__ import annotations

import struct
from enum import Enum, auto
from typing import Final, NamedTuple

Octets = bytes | memoryview
_RECORD: Final = struct.Struct("<IHHH")
PACKET, INTEGRITY, PRIVACY = 4, 5, 6  # authentication levels ([MS-RPCE] 2.2.1.1.8)
TRAILER: Final = 8  # octets of a security trailer without its token


class MalformedPiecesError(Exception):
    """Records that do not fit the stub beside them."""


class Cover(Enum):
    """What of a PDU a signature covers ([MS-RPCE] 3.3.1.5.2.2)."""

    WHOLE = auto()  # all of it: header signing was agreed; NTLM's products do it always
    BODY = auto()  # the stub with its padding
    NOTHING = auto()  # the place in the order alone: so the specification for level PKT, where products do more

    def of(self, piece: Piece, plain: bytes) -> tuple[bytes, ...]:
        """Return the octets that are covered, ``plain`` those of the body in the clear."""
        if self is Cover.WHOLE:
            return piece.head, plain, piece.trailer
        return (plain,) if self is Cover.BODY else ()


_COVERS: Final = (Cover.WHOLE, Cover.BODY)


def covers(piece: Piece, likely: Cover) -> tuple[Cover, ...]:
    """Return what a signature may cover at a PDU's level, the likely first."""
    found = _COVERS if piece.auth_level > PACKET else tuple(Cover)
    return (likely, *(each for each in found if each is not likely)) if likely in found else found


class Piece(NamedTuple):
    """One protected PDU.

    ``sequence`` is that of TCP; ``head`` stands before the stub; ``body`` is the stub with its padding, sealed or not;
    ``stub_size`` is without the padding; ``trailer`` has 8 octets, ``token`` is the signature.
    """

    sequence: int
    head: bytes
    body: bytes
    stub_size: int
    trailer: bytes
    token: bytes

    @property
    def size(self) -> int:
        """Octets of the PDU on the wire."""
        return len(self.head) + len(self.body) + len(self.trailer) + len(self.token)

    @property
    def end(self) -> int:
        """TCP sequence number behind the PDU."""
        return (self.sequence + self.size) & 0xFFFFFFFF

    @property
    def auth_type(self) -> int:
        """Authentication type of the security trailer."""
        return self.trailer[0]

    @property
    def auth_level(self) -> int:
        """Authentication level of the security trailer."""
        return self.trailer[1]

    @property
    def context_id(self) -> int:
        """The security context (auth_context_id), in the PDU's own byte order."""
        return int.from_bytes(self.trailer[4:8], "little" if self.head[4] & 0x10 else "big")


def packed(sequence: int, head: Octets, stub_size: int, behind: Octets) -> tuple[Octets, ...]:
    """Return the record of one PDU, in parts; ``behind`` is all that follows its stub."""
    return _RECORD.pack(sequence, len(head), stub_size, len(behind)), head, behind


def unpacked(records: bytes, stub: bytes) -> list[Piece]:
    """Return the PDUs of a half from their records and its stub as captured; raises ``MalformedPiecesError``."""
    found: list[Piece] = []
    at = taken = 0
    end, unpack = len(records), _RECORD.unpack_from
    while at < end:
        try:
            sequence, before, size, after = unpack(records, at)
        except struct.error as error:
            raise MalformedPiecesError from error
        at += 10
        behind = at + before
        head = records[at:behind]
        at = behind + after
        if before < 24 or at > end or taken + size > len(stub):
            raise MalformedPiecesError
        trailer = at - TRAILER - int.from_bytes(head[10:12], "little" if head[4] & 0x10 else "big")
        if trailer < behind:
            raise MalformedPiecesError
        body = stub[taken : taken + size]
        taken += size
        if trailer > behind:
            body += records[behind:trailer]
        token = trailer + TRAILER
        found.append(Piece(sequence, head, body, size, records[trailer:token], records[token:at]))
    if taken != len(stub):
        raise MalformedPiecesError
    return found
