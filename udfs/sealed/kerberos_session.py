"""Decrypt and verify PDUs protected by Kerberos: the ciphertext of the stub in place, the rest in the trailer's token.

AES (RFC 4121 4.2.6.2, 4.2.4): the wrap token is rotated, so that the part that does not fit in place of the stub comes
first. Products count the rotation differently (RRC, or EC + RRC as Windows does); the checksum shows which. RC4: RFC
4757 7.3. Signed PDUs have a MIC token: RFC 4121 4.2.6.1, RFC 4757 7.2. PDUs are independent of each other, so lost
ones do not matter. With header signing ([MS-RPCE] 2.2.2.3) the checksum covers header and security trailer too.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from udfs.sealed.ciphers import AES_BLOCK_BYTES, decrypt_cts, rc4_keystream
from udfs.sealed.enctypes import RC4, usage_keys
from udfs.sealed.protected_pdu import (
    AUTH_LEVEL_PRIVACY,
    DecryptedStub,
    DecryptionFailure,
    ProtectedPdu,
    SentPdu,
    SignatureCoverage,
    possible_coverages,
)

_USAGE_ACCEPTOR_SEAL, _USAGE_ACCEPTOR_SIGN, _USAGE_INITIATOR_SEAL, _USAGE_INITIATOR_SIGN = 22, 23, 24, 25  # RFC 4121 2
_FLAG_FROM_ACCEPTOR, _FLAG_SEALED = 0x01, 0x02
_TOKEN_HEADER_BYTES: Final = 16
_KERBEROS_OID: Final = bytes.fromhex("06092a864886f712010202")
_USAGE_RC4_WRAP, _USAGE_RC4_MIC = 13, 15  # key usages (RFC 4757 7.3, 7.2)
_RC4_TOKEN_FORMS: Final = {
    _USAGE_RC4_WRAP: (32, bytes.fromhex("020111001000ffff")),
    _USAGE_RC4_MIC: (24, bytes.fromhex("01011100ffffffff")),
}


@dataclass(frozen=True, slots=True)
class KerberosSessionKey:
    """A session key or subkey of a Kerberos security context."""

    enctype: int
    key: bytes = field(repr=False)


class KerberosSession:
    """A Kerberos security context: tries its possible session keys, the likeliest first."""

    def __init__(self, keys: Sequence[KerberosSessionKey]) -> None:
        self._keys = list(keys)
        self._coverage = SignatureCoverage.BODY

    def decrypt(self, sent: Sequence[SentPdu]) -> list[DecryptedStub]:
        """Return for each PDU its stub in the clear, or why it cannot be decrypted."""
        return [self._decrypt_pdu(one.pdu, client=one.from_client) for one in sent]

    def _decrypt_pdu(self, pdu: ProtectedPdu, *, client: bool) -> DecryptedStub:
        for key in self._keys:
            read_token = _TOKEN_READERS[key.enctype == RC4, pdu.auth_level == AUTH_LEVEL_PRIVACY]
            for coverage in possible_coverages(pdu, self._coverage):
                plain = read_token(key, pdu, coverage, client=client)
                if plain is not None:
                    if key is not self._keys[0]:
                        self._keys.sort(key=lambda each: each is not key)
                    self._coverage = coverage
                    return plain[: pdu.stub_size]
        return DecryptionFailure.BAD_SIGNATURE


def _unwrap_aes(
    key: KerberosSessionKey, pdu: ProtectedPdu, coverage: SignatureCoverage, *, client: bool
) -> bytes | None:
    token, size = pdu.token, len(pdu.body)
    if len(token) < _TOKEN_HEADER_BYTES + AES_BLOCK_BYTES or token[:2] != b"\x05\x04":
        return None
    flags, filler, rotation = token[2], *struct.unpack_from(">HH", token, 4)
    if not flags & _FLAG_SEALED or bool(flags & _FLAG_FROM_ACCEPTOR) == client:
        return None
    keys = usage_keys(key.enctype, key.key, _USAGE_INITIATOR_SEAL if client else _USAGE_ACCEPTOR_SEAL)
    mac_size = keys.profile.mac_size
    rotated = token[_TOKEN_HEADER_BYTES:] + pdu.body
    if len(rotated) != AES_BLOCK_BYTES + size + filler + _TOKEN_HEADER_BYTES + mac_size:
        return None
    copy = token[:6] + b"\0\0" + token[8:_TOKEN_HEADER_BYTES]
    for left in dict.fromkeys(((rotation + filler) % len(rotated), rotation % len(rotated))):
        whole = rotated[left:] + rotated[:left]
        sealed, checksum = whole[:-mac_size], whole[-mac_size:]
        mac = keys.integrity.copy()
        if keys.profile.mac_over_ciphertext:
            mac.update(bytes(AES_BLOCK_BYTES))
            mac.update(sealed if coverage is SignatureCoverage.BODY else _covered_octets(sealed, pdu))
            if not hmac.compare_digest(mac.digest()[:mac_size], checksum):
                continue
        plain = decrypt_cts(keys.blocks, sealed)
        if not keys.profile.mac_over_ciphertext:
            mac.update(plain if coverage is SignatureCoverage.BODY else _covered_octets(plain, pdu))
            if not hmac.compare_digest(mac.digest()[:mac_size], checksum):
                continue
        if plain[-_TOKEN_HEADER_BYTES:] == copy:
            return plain[AES_BLOCK_BYTES : AES_BLOCK_BYTES + size]
    return None


def _covered_octets(data: bytes, pdu: ProtectedPdu) -> bytes:
    """Return what the checksum covers with header signing: confounder, header, stub, security trailer, the rest."""
    end = AES_BLOCK_BYTES + len(pdu.body)
    return b"".join(
        (data[:AES_BLOCK_BYTES], *SignatureCoverage.WHOLE.covered_octets(pdu, data[AES_BLOCK_BYTES:end]), data[end:])
    )


def _verify_aes_mic(
    key: KerberosSessionKey, pdu: ProtectedPdu, coverage: SignatureCoverage, *, client: bool
) -> bytes | None:
    token = pdu.token
    if token[:2] != b"\x04\x04" or bool(token[2] & _FLAG_FROM_ACCEPTOR) == client:
        return None
    keys = usage_keys(key.enctype, key.key, _USAGE_INITIATOR_SIGN if client else _USAGE_ACCEPTOR_SIGN)
    if len(token) != _TOKEN_HEADER_BYTES + keys.profile.mac_size:
        return None
    mac = keys.checksum.copy()
    mac.update(b"".join((*coverage.covered_octets(pdu, pdu.body), token[:_TOKEN_HEADER_BYTES])))
    return pdu.body if hmac.compare_digest(mac.digest()[: keys.profile.mac_size], token[_TOKEN_HEADER_BYTES:]) else None


def _unwrap_rc4(
    key: KerberosSessionKey, pdu: ProtectedPdu, coverage: SignatureCoverage, *, client: bool
) -> bytes | None:
    token = _rc4_token(pdu.token, _USAGE_RC4_WRAP)
    if token is None:
        return None
    keys = _rc4_keys(key.key)
    order = _rc4_sequence_number(keys, token, client=client)
    if order is None:
        return None
    plain = rc4_keystream(_hmac(keys.sealing, order[:4]))(token[24:] + pdu.body)
    confounder, data = plain[:8], plain[8:]
    for padded in _possible_padding(data):
        if _rc4_checksum_fits(keys, _USAGE_RC4_WRAP, token, (confounder, *coverage.covered_octets(pdu, padded))):
            return data
    return None


def _verify_rc4_mic(
    key: KerberosSessionKey, pdu: ProtectedPdu, coverage: SignatureCoverage, *, client: bool
) -> bytes | None:
    token = _rc4_token(pdu.token, _USAGE_RC4_MIC)
    if token is None:
        return None
    keys = _rc4_keys(key.key)
    if _rc4_sequence_number(keys, token, client=client) is None:
        return None
    fits = _rc4_checksum_fits(keys, _USAGE_RC4_MIC, token, coverage.covered_octets(pdu, pdu.body))
    return pdu.body if fits else None


TokenReader = Callable[..., bytes | None]
_TOKEN_READERS: Final[dict[tuple[bool, bool], TokenReader]] = {  # by (is RC4, is sealed)
    (False, True): _unwrap_aes,
    (False, False): _verify_aes_mic,
    (True, True): _unwrap_rc4,
    (True, False): _verify_rc4_mic,
}


def _rc4_token(framed: bytes, usage: int) -> bytes | None:
    """Return the RC4 token of a usage inside its GSS-API framing (RFC 2743 3.1); None if it is another."""
    at = framed.find(_KERBEROS_OID, 0, 16)
    token = framed[at + len(_KERBEROS_OID) :]
    size, begins = _RC4_TOKEN_FORMS[usage]
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


def _rc4_sequence_number(keys: _Rc4Keys, token: bytes, *, client: bool) -> bytes | None:
    """Return the decrypted 8 octets of the sequence number; None if they are of the other direction."""
    order = rc4_keystream(_hmac(keys.order, token[16:24]))(token[8:16])
    return order if order[4:] == (b"\0\0\0\0" if client else b"\xff\xff\xff\xff") else None


def _rc4_checksum_fits(keys: _Rc4Keys, usage: int, token: bytes, signed: Sequence[bytes]) -> bool:
    digest = hashlib.md5(b"".join((struct.pack("<I", usage), token[:8], *signed)), usedforsecurity=False).digest()
    return hmac.compare_digest(_hmac(keys.signing, digest)[:8], token[16:24])


def _possible_padding(data: bytes) -> Iterator[bytes]:
    """Yield what may have been signed: the data without padding (DCE style), and with that of GSS-API."""
    yield data
    yield data + b"\x01"


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "md5")
