"""Kerberos' per-message tokens as DCE/RPC uses them: the stub in place, the rest in the security trailer.

AES (RFC 4121 4.2.6.2, 4.2.4): the wrap token is rotated so that what does not fit in the stub's place stands first; how
far, products tell differently (RRC, or EC + RRC as Windows does), and the checksum tells which. RC4: RFC 4757 7.3. PDUs
that are signed alone have a MIC token: RFC 4121 4.2.6.1, RFC 4757 7.2. Each PDU stands alone, so lost ones do no harm.
Where header signing was agreed ([MS-RPCE] 2.2.2.3), the checksum covers header and security trailer too.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from udfs.sealed.ciphers import BLOCK, cts, rc4
from udfs.sealed.enctypes import RC4, usage_keys
from udfs.sealed.pieces import PRIVACY, Cover, Piece, covers
from udfs.sealed.session import Closed, Opened, Sent

_ACCEPTOR_SEAL, _ACCEPTOR_SIGN, _INITIATOR_SEAL, _INITIATOR_SIGN = 22, 23, 24, 25  # RFC 4121 2
_FROM_ACCEPTOR, _SEALED = 0x01, 0x02
_HEADER: Final = 16
_RC4_FRAME: Final = bytes.fromhex("06092a864886f712010202")
_RC4_WRAP, _RC4_MIC = 13, 15  # key usages (RFC 4757 7.3, 7.2)
_RC4_BEGINS: Final = {
    _RC4_WRAP: (32, bytes.fromhex("020111001000ffff")),
    _RC4_MIC: (24, bytes.fromhex("01011100ffffffff")),
}


@dataclass(frozen=True, slots=True)
class SessionKey:
    """A key of a security context: the ticket's, or a subkey."""

    enctype: int
    key: bytes = field(repr=False)


class KerberosSession:
    """The keys of a security context, the likeliest first."""

    def __init__(self, keys: Sequence[SessionKey]) -> None:
        self._keys = list(keys)
        self._cover = Cover.BODY

    def open(self, sent: Sequence[Sent]) -> list[Opened]:
        """Return the stubs of PDUs, in their order, or why they stay closed."""
        return [self._open(one.piece, client=one.from_client) for one in sent]

    def _open(self, piece: Piece, *, client: bool) -> Opened:
        for key in self._keys:
            manner = _MANNERS[key.enctype == RC4, piece.auth_level == PRIVACY]
            for cover in covers(piece, self._cover):
                plain = manner(key, piece, cover, client=client)
                if plain is not None:
                    if key is not self._keys[0]:
                        self._keys.sort(key=lambda each: each is not key)
                    self._cover = cover
                    return plain[: piece.stub_size]
        return Closed.BAD_SIGNATURE


def _aes(key: SessionKey, piece: Piece, cover: Cover, *, client: bool) -> bytes | None:
    token, size = piece.token, len(piece.body)
    if len(token) < _HEADER + BLOCK or token[:2] != b"\x05\x04":
        return None
    flags, filler, rotation = token[2], *struct.unpack_from(">HH", token, 4)
    if not flags & _SEALED or bool(flags & _FROM_ACCEPTOR) == client:
        return None
    keys = usage_keys(key.enctype, key.key, _INITIATOR_SEAL if client else _ACCEPTOR_SEAL)
    mac_size = keys.profile.mac_size
    rotated = token[_HEADER:] + piece.body
    if len(rotated) != BLOCK + size + filler + _HEADER + mac_size:
        return None
    copy = token[:6] + b"\0\0" + token[8:_HEADER]
    for left in dict.fromkeys(((rotation + filler) % len(rotated), rotation % len(rotated))):
        whole = rotated[left:] + rotated[:left]
        sealed, checksum = whole[:-mac_size], whole[-mac_size:]
        mac = keys.integrity.copy()
        if keys.profile.checks_sealed:
            mac.update(bytes(BLOCK))
            mac.update(sealed if cover is Cover.BODY else _amid(sealed, piece))
            if not hmac.compare_digest(mac.digest()[:mac_size], checksum):
                continue
        plain = cts(keys.blocks, sealed)
        if not keys.profile.checks_sealed:
            mac.update(plain if cover is Cover.BODY else _amid(plain, piece))
            if not hmac.compare_digest(mac.digest()[:mac_size], checksum):
                continue
        if plain[-_HEADER:] == copy:
            return plain[BLOCK : BLOCK + size]
    return None


def _amid(data: bytes, piece: Piece) -> bytes:
    """What a checksum covers with headers: confounder, header, stub, security trailer, the rest."""
    end = BLOCK + len(piece.body)
    return b"".join((data[:BLOCK], *Cover.WHOLE.of(piece, data[BLOCK:end]), data[end:]))


def _aes_mic(key: SessionKey, piece: Piece, cover: Cover, *, client: bool) -> bytes | None:
    token = piece.token
    if token[:2] != b"\x04\x04" or bool(token[2] & _FROM_ACCEPTOR) == client:
        return None
    keys = usage_keys(key.enctype, key.key, _INITIATOR_SIGN if client else _ACCEPTOR_SIGN)
    if len(token) != _HEADER + keys.profile.mac_size:
        return None
    mac = keys.checksum.copy()
    mac.update(b"".join((*cover.of(piece, piece.body), token[:_HEADER])))
    return piece.body if hmac.compare_digest(mac.digest()[: keys.profile.mac_size], token[_HEADER:]) else None


def _rc4(key: SessionKey, piece: Piece, cover: Cover, *, client: bool) -> bytes | None:
    token = _rc4_token(piece.token, _RC4_WRAP)
    if token is None:
        return None
    keys = _rc4_keys(key.key)
    order = _order(keys, token, client=client)
    if order is None:
        return None
    plain = rc4(_hmac(keys.sealing, order[:4]))(token[24:] + piece.body)
    confounder, data = plain[:8], plain[8:]
    for padded in _padded(data):
        if _rc4_checksum(keys, _RC4_WRAP, token, (confounder, *cover.of(piece, padded))):
            return data
    return None


def _rc4_mic(key: SessionKey, piece: Piece, cover: Cover, *, client: bool) -> bytes | None:
    token = _rc4_token(piece.token, _RC4_MIC)
    if token is None:
        return None
    keys = _rc4_keys(key.key)
    if _order(keys, token, client=client) is None:
        return None
    fits = _rc4_checksum(keys, _RC4_MIC, token, cover.of(piece, piece.body))
    return piece.body if fits else None


Manner = Callable[..., bytes | None]
_MANNERS: Final[dict[tuple[bool, bool], Manner]] = {  # by: RC4, sealed
    (False, True): _aes, (False, False): _aes_mic, (True, True): _rc4, (True, False): _rc4_mic,
}  # fmt: skip


def _rc4_token(framed: bytes, usage: int) -> bytes | None:
    """Return the token in its frame (RFC 2743 3.1), if it is one of the usage."""
    at = framed.find(_RC4_FRAME, 0, 16)
    token = framed[at + len(_RC4_FRAME) :]
    size, begins = _RC4_BEGINS[usage]
    return token if at >= 0 and len(token) == size and token.startswith(begins) else None


@dataclass(frozen=True, slots=True)
class _Rc4Keys:
    signing: bytes = field(repr=False)
    order: bytes = field(repr=False)  # of sequence numbers
    sealing: bytes = field(repr=False)


@lru_cache(4096)
def _rc4_keys(key: bytes) -> _Rc4Keys:
    local = bytes(each ^ 0xF0 for each in key)
    return _Rc4Keys(_hmac(key, b"signaturekey\0"), _hmac(key, bytes(4)), _hmac(local, bytes(4)))


def _order(keys: _Rc4Keys, token: bytes, *, client: bool) -> bytes | None:
    """Return the sequence number in its 8 octets, if it says the right direction."""
    order = rc4(_hmac(keys.order, token[16:24]))(token[8:16])
    return order if order[4:] == (b"\0\0\0\0" if client else b"\xff\xff\xff\xff") else None


def _rc4_checksum(keys: _Rc4Keys, usage: int, token: bytes, signed: Sequence[bytes]) -> bool:
    digest = hashlib.md5(b"".join((struct.pack("<I", usage), token[:8], *signed)), usedforsecurity=False).digest()
    return hmac.compare_digest(_hmac(keys.signing, digest)[:8], token[16:24])


def _padded(data: bytes) -> Iterator[bytes]:
    """What may have been signed: the data, which has GSS-API's padding or, in DCE style, none."""
    yield data
    yield data + b"\x01"


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "md5")
