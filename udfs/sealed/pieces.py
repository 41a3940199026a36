"""What is kept of sealed PDUs beside their stubs, so that keys which come later open them.

A sealed half is kept as captured: its stub column has the sealed stubs of its PDUs, one after the other, without
padding. What a signature covers beside them (header, sealed padding, security trailer: [MS-RPCE] 2.2.2.11,
3.3.1.5.2.2) is packed here, one record for each PDU: TCP sequence number of its first octet (4), octets before the stub
(2), of the stub (2), behind it (2), little-endian; then the octets before and behind. Only whole halves are packed.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_RECORD: Final = struct.Struct("<IHHH")
TRAILER: Final = 8  # octets of a security trailer without its token


class MalformedPiecesError(Exception):
    """Records that do not fit the stub beside them."""


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


def packed(sequence: int, head: bytes, stub_size: int, behind: bytes) -> bytes:
    """Return the record of one PDU; ``behind`` is all that follows its stub."""
    return _RECORD.pack(sequence, len(head), stub_size, len(behind)) + head + behind


def unpacked(records: bytes, stub: bytes) -> list[Piece]:
    """Return the PDUs of a half from their records and its stub as captured; raises ``MalformedPiecesError``."""
    found: list[Piece] = []
    at = taken = 0
    while at < len(records):
        try:
            sequence, before, size, after = _RECORD.unpack_from(records, at)
        except struct.error as error:
            raise MalformedPiecesError from error
        at += _RECORD.size
        head, behind = records[at : at + before], records[at + before : at + before + after]
        at += before + after
        sealed = stub[taken : taken + size]
        taken += size
        if len(head) != before or before < 24 or len(behind) != after or len(sealed) != size:
            raise MalformedPiecesError
        token = int.from_bytes(head[10:12], "little" if head[4] & 0x10 else "big")
        pad = after - TRAILER - token
        if pad < 0:
            raise MalformedPiecesError
        trailer = behind[pad : pad + TRAILER]
        found.append(Piece(sequence, head, sealed + behind[:pad], size, trailer, behind[pad + TRAILER :]))
    if taken != len(stub):
        raise MalformedPiecesError
    return found
