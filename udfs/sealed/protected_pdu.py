"""Sealed and signed PDUs: the records in which their signed bytes are stored, and types for their decryption.

The stub column of a sealed half has the sealed stubs of its PDUs as captured, joined without padding. What signatures
cover besides (header, padding, security trailer: [MS-RPCE] 2.2.2.11, 3.3.1.5.2.2; in signed requests a verification
trailer too) is packed into ``request_signed_bytes`` and ``response_signed_bytes``, so that keys provided later can
decrypt. One record per PDU, little-endian: TCP sequence number of its first octet (4 octets), number of octets before
the stub (2), of the stub (2), behind it (2); then the octets before and behind. Only complete halves are packed.
"""

from __future__ import annotations

import struct
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple

BytesLike = bytes | memoryview
_RECORD: Final = struct.Struct("<IHHH")
AUTH_LEVEL_PACKET, AUTH_LEVEL_INTEGRITY, AUTH_LEVEL_PRIVACY = 4, 5, 6  # authentication levels ([MS-RPCE] 2.2.1.1.8)
SECURITY_TRAILER_BYTES: Final = 8  # without the token


class MalformedPduRecordsError(Exception):
    """PDU records that do not fit their stub."""


class SignatureCoverage(Enum):
    """Which parts of a PDU its signature covers ([MS-RPCE] 3.3.1.5.2.2)."""

    WHOLE = auto()  # header, stub and trailer: header signing was agreed; NTLM products always do so
    BODY = auto()  # the stub with its padding
    NOTHING = auto()  # only the sequence number: as specified for level PKT; products cover more

    def covered_octets(self, pdu: ProtectedPdu, plain: bytes) -> tuple[bytes, ...]:
        """Return the covered octets of a PDU; ``plain`` is its body in the clear."""
        if self is SignatureCoverage.WHOLE:
            return pdu.head, plain, pdu.trailer
        return (plain,) if self is SignatureCoverage.BODY else ()


_COVERAGES: Final = (SignatureCoverage.WHOLE, SignatureCoverage.BODY)


def possible_coverages(pdu: ProtectedPdu, likely: SignatureCoverage) -> tuple[SignatureCoverage, ...]:
    """Return the coverages to try for a PDU at its authentication level, ``likely`` first."""
    found = _COVERAGES if pdu.auth_level > AUTH_LEVEL_PACKET else tuple(SignatureCoverage)
    return (likely, *(each for each in found if each is not likely)) if likely in found else found


class ProtectedPdu(NamedTuple):
    """One protected PDU.

    ``sequence`` is its TCP sequence number, ``head`` the octets before the stub, ``body`` the stub with padding, sealed
    or not, ``stub_size`` the size of the stub without padding, ``trailer`` the security trailer (8 octets), ``token``
    the signature.
    """

    sequence: int
    head: bytes
    body: bytes
    stub_size: int
    trailer: bytes
    token: bytes

    @property
    def size(self) -> int:
        """The size of the PDU in octets."""
        return len(self.head) + len(self.body) + len(self.trailer) + len(self.token)

    @property
    def end(self) -> int:
        """The TCP sequence number behind the PDU."""
        return (self.sequence + self.size) & 0xFFFFFFFF

    @property
    def auth_type(self) -> int:
        """The authentication type in the security trailer."""
        return self.trailer[0]

    @property
    def auth_level(self) -> int:
        """The authentication level in the security trailer."""
        return self.trailer[1]

    @property
    def context_id(self) -> int:
        """The security context id (auth_context_id) in the security trailer."""
        return int.from_bytes(self.trailer[4:8], "little" if self.head[4] & 0x10 else "big")


def pack_pdu(sequence: int, head: BytesLike, stub_size: int, behind: BytesLike) -> tuple[BytesLike, ...]:
    """Return the record of one PDU, in parts; ``behind`` are all octets behind its stub."""
    return _RECORD.pack(sequence, len(head), stub_size, len(behind)), head, behind


def unpack_pdus(records: bytes, stub: bytes) -> list[ProtectedPdu]:
    """Return the PDUs of a half from their records and the captured stub; raises ``MalformedPduRecordsError``."""
    found: list[ProtectedPdu] = []
    at = taken = 0
    end, unpack = len(records), _RECORD.unpack_from
    while at < end:
        try:
            sequence, before, size, after = unpack(records, at)
        except struct.error as error:
            raise MalformedPduRecordsError from error
        at += 10
        behind = at + before
        head = records[at:behind]
        at = behind + after
        if before < 24 or at > end or taken + size > len(stub):
            raise MalformedPduRecordsError
        trailer = at - SECURITY_TRAILER_BYTES - int.from_bytes(head[10:12], "little" if head[4] & 0x10 else "big")
        if trailer < behind:
            raise MalformedPduRecordsError
        body = stub[taken : taken + size]
        taken += size
        if trailer > behind:
            body += records[behind:trailer]
        token = trailer + SECURITY_TRAILER_BYTES
        found.append(ProtectedPdu(sequence, head, body, size, records[trailer:token], records[token:at]))
    if taken != len(stub):
        raise MalformedPduRecordsError
    return found


class DecryptionFailure(StrEnum):
    """Why a sealed call cannot be decrypted: the values of ``closed_reason``, in the order of precedence."""

    NO_HANDSHAKE = "no_handshake"
    NO_KEY = "no_key"
    SEQUENCE_LOST = "sequence_lost"
    BAD_SIGNATURE = "bad_signature"


class SentPdu(NamedTuple):
    """A PDU with its direction; ``at``, any number that grows with time, orders it among PDUs of both directions."""

    from_client: bool
    at: int
    pdu: ProtectedPdu


DecryptedStub = bytes | DecryptionFailure  # a stub without its padding, or why it cannot be decrypted
