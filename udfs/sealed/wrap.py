"""Kerberos' per-message tokens as DCE/RPC uses them: the stub sealed in place, the rest in the security trailer.

AES (RFC 4121 4.2.6.2, 4.2.4): the wrap token is rotated so that what does not fit in the stub's place stands first; how
far, products tell differently (RRC, or EC + RRC as Windows does), and the checksum tells which. RC4: RFC 4757 7.3. Each
PDU stands alone, so lost ones do no harm. Where header signing was agreed ([MS-RPCE] 2.2.2.3), the checksum covers
header and security trailer too.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from Cryptodome.Cipher import AES, ARC4
from impacket.krb5 import crypto

from udfs.sealed.pieces import Piece
from udfs.sealed.session import Closed, Opened, Sent

AES128, AES256, RC4 = 17, 18, 23
ENCTYPES: Final = {AES128: 16, AES256: 32, RC4: 16}  # octets of their keys
_ACCEPTOR_SEAL, _INITIATOR_SEAL = 22, 24  # RFC 4121 2
_FROM_ACCEPTOR, _SEALED = 0x01, 0x02
_HEADER: Final = 16
_BLOCK: Final = 16
_MAC: Final = 12
_RC4_FRAME: Final = bytes.fromhex("06092a864886f712010202")
_RC4_TOKEN: Final = 32


@dataclass(frozen=True, slots=True)
class SessionKey:
    """A key of a security context: the ticket's, or a subkey."""

    enctype: int
    key: bytes = field(repr=False)


class KerberosSession:
    """The keys of a security context, the likeliest first."""

    def __init__(self, keys: Sequence[SessionKey]) -> None:
        self._keys = list(keys)
        self._with_headers = [False, True]

    def open(self, sent: Sequence[Sent]) -> list[Opened]:
        """Return the stubs of PDUs, in their order, or why they stay closed."""
        return [self._open(one.piece, client=one.from_client) for one in sent]

    def _open(self, piece: Piece, *, client: bool) -> Opened:
        for key in self._keys:
            for covered in self._with_headers:
                around = (piece.head, piece.trailer) if covered else (b"", b"")
                unsealed = _rc4 if key.enctype == RC4 else _aes
                plain = unsealed(key, piece, around, client=client)
                if plain is not None:
                    if key is not self._keys[0]:
                        self._keys.sort(key=lambda each: each is not key)
                    self._with_headers.sort(key=lambda each: each is not covered)
                    return plain[: piece.stub_size]
        return Closed.BAD_SIGNATURE


def _aes(key: SessionKey, piece: Piece, around: tuple[bytes, bytes], *, client: bool) -> bytes | None:
    token, size = piece.token, len(piece.body)
    if len(token) < _HEADER + _BLOCK + _MAC or token[:2] != b"\x05\x04":
        return None
    flags, filler, rotation = token[2], *struct.unpack_from(">HH", token, 4)
    if not flags & _SEALED or bool(flags & _FROM_ACCEPTOR) == client:
        return None
    rotated = token[_HEADER:] + piece.body
    if len(rotated) != _BLOCK + size + filler + _HEADER + _MAC:
        return None
    mac_key, seal_key = _derived(key.enctype, key.key, _INITIATOR_SEAL if client else _ACCEPTOR_SEAL)
    copy = token[:6] + b"\0\0" + token[8:_HEADER]
    for left in dict.fromkeys(((rotation + filler) % len(rotated), rotation % len(rotated))):
        sealed = rotated[left:] + rotated[:left]
        plain = _unsealed(seal_key, sealed[:-_MAC])
        mac = mac_key.copy()
        if around[0]:
            mac.update(plain[:_BLOCK] + around[0] + plain[_BLOCK : _BLOCK + size] + around[1] + plain[_BLOCK + size :])
        else:
            mac.update(plain)
        if hmac.compare_digest(mac.digest()[:_MAC], sealed[-_MAC:]) and plain[-_HEADER:] == copy:
            return plain[_BLOCK : _BLOCK + size]
    return None


@lru_cache(4096)
def _derived(enctype: int, key: bytes, usage: int) -> tuple[hmac.HMAC, bytes]:
    """Return the keys for checksums (as an HMAC to copy) and for sealing that a usage has (RFC 3961 5.3)."""
    kind = crypto._AES128CTS if enctype == AES128 else crypto._AES256CTS  # noqa: SLF001 - where impacket derives keys
    base = crypto.Key(enctype, key)
    checksum, seal = (kind.derive(base, struct.pack(">IB", usage, what)).contents for what in (0x55, 0xAA))
    return hmac.new(checksum, digestmod=hashlib.sha1), seal


def _unsealed(key: bytes, sealed: bytes) -> bytes:
    """AES in CBC mode with ciphertext stealing and the last two blocks swapped (RFC 3962 5)."""
    tail = len(sealed) % _BLOCK or _BLOCK
    last_but_one, last = sealed[-_BLOCK - tail : -tail], sealed[-tail:]
    stolen = AES.new(key, AES.MODE_ECB).decrypt(last_but_one)
    straight = sealed[: -_BLOCK - tail] + last + stolen[tail:]
    plain = AES.new(key, AES.MODE_CBC, bytes(_BLOCK)).decrypt(straight)
    return plain + bytes(a ^ b for a, b in zip(stolen, last, strict=False))


def _rc4(key: SessionKey, piece: Piece, around: tuple[bytes, bytes], *, client: bool) -> bytes | None:
    at = piece.token.find(_RC4_FRAME, 0, 16)
    token = piece.token[at + len(_RC4_FRAME) :]
    if at < 0 or len(token) != _RC4_TOKEN or token[:8] != b"\x02\x01\x11\x00\x10\x00\xff\xff":
        return None
    checksum = token[16:24]
    order = ARC4.new(_hmac(_hmac(key.key, bytes(4)), checksum)).decrypt(token[8:16])
    if order[4:] != (b"\0\0\0\0" if client else b"\xff\xff\xff\xff"):
        return None
    local = bytes(each ^ 0xF0 for each in key.key)
    plain = ARC4.new(_hmac(_hmac(local, bytes(4)), order[:4])).decrypt(token[24:] + piece.body)
    for padded in _padded(plain[8:]):
        signed = struct.pack("<I", 13) + token[:8] + plain[:8] + around[0] + padded + around[1]
        found = _hmac(_hmac(key.key, b"signaturekey\0"), hashlib.md5(signed, usedforsecurity=False).digest())
        if hmac.compare_digest(found[:8], checksum):
            return plain[8:]
    return None


def _padded(data: bytes) -> Iterator[bytes]:
    """What may have been signed: the data, which has GSS-API's padding or, in DCE style, none."""
    yield data
    yield data + b"\x01"


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "md5")
