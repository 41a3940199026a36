"""Kerberos encryption types: derivation of usage keys, and authenticated decryption.

impacket derives keys of AES with SHA-1 (RFC 3961, 3962) and of RC4 (RFC 4757), ``cryptography`` those of AES with SHA-2
(RFC 8009). With SHA-2 the checksum covers the ciphertext, with SHA-1 the plaintext.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.kbkdf import KBKDFHMAC, CounterLocation, Mode
from impacket.krb5 import crypto

from udfs.sealed.ciphers import AES_BLOCK_BYTES, CipherFunction, aes_block_decryptor, decrypt_cts

AES128, AES256, AES128_SHA2, AES256_SHA2, RC4 = 17, 18, 19, 20, 23
KEY_SIZES: Final = {AES128: 16, AES256: 32, AES128_SHA2: 16, AES256_SHA2: 32, RC4: 16}
USAGE_ENCRYPTION, USAGE_INTEGRITY, USAGE_CHECKSUM = 0xAA, 0x55, 0x99  # RFC 3961 5.3: Ke, Ki, Kc
_DECRYPTION_ERRORS: Final = (crypto.InvalidChecksum, ValueError, IndexError, KeyError)


@dataclass(frozen=True, slots=True)
class AesProfile:
    """Checksum parameters of an AES encryption type: hash, size in octets, whether it covers the ciphertext."""

    digest: Callable[..., Any]
    mac_size: int
    mac_over_ciphertext: bool


AES_PROFILES: Final = {
    AES128: AesProfile(hashlib.sha1, 12, mac_over_ciphertext=False),
    AES256: AesProfile(hashlib.sha1, 12, mac_over_ciphertext=False),
    AES128_SHA2: AesProfile(hashlib.sha256, 16, mac_over_ciphertext=True),
    AES256_SHA2: AesProfile(hashlib.sha384, 24, mac_over_ciphertext=True),
}
_SHA2: Final[dict[int, hashes.HashAlgorithm]] = {AES128_SHA2: hashes.SHA256(), AES256_SHA2: hashes.SHA384()}


@dataclass(frozen=True, slots=True)
class UsageKeys:
    """The derived keys of one usage; copy the HMACs before use."""

    profile: AesProfile
    blocks: CipherFunction = field(repr=False)
    integrity: hmac.HMAC = field(repr=False)
    checksum: hmac.HMAC = field(repr=False)


@lru_cache(4096)
def usage_keys(enctype: int, key: bytes, usage: int) -> UsageKeys:
    """Return the derived keys of an AES key for one usage."""
    profile = AES_PROFILES[enctype]
    seal, integrity, checksum = (
        derive_key(enctype, key, usage, what) for what in (USAGE_ENCRYPTION, USAGE_INTEGRITY, USAGE_CHECKSUM)
    )
    return UsageKeys(
        profile,
        aes_block_decryptor(seal),
        hmac.new(integrity, digestmod=profile.digest),
        hmac.new(checksum, digestmod=profile.digest),
    )


def derive_key(enctype: int, key: bytes, usage: int, what: int) -> bytes:
    """Derive the key of a usage for one purpose, a ``USAGE_*`` constant (RFC 3961 5.3, RFC 8009 5)."""
    constant = struct.pack(">IB", usage, what)
    if enctype in _SHA2:
        size = len(key) if what == USAGE_ENCRYPTION else AES_PROFILES[enctype].mac_size
        kdf = KBKDFHMAC(
            _SHA2[enctype], Mode.CounterMode, size, 4, 4, CounterLocation.BeforeFixed, label=constant, context=b"",
            fixed=None,
        )  # fmt: skip
        return kdf.derive(key)
    kind = crypto._AES128CTS if enctype == AES128 else crypto._AES256CTS  # noqa: SLF001 - impacket's key derivation
    return bytes(kind.derive(crypto.Key(enctype, key), constant).contents)


def decrypt_and_verify(enctype: int, key: bytes, usage: int, sealed: bytes) -> bytes | None:
    """Decrypt data of a usage and check its integrity; None if it was not encrypted with this key."""
    if KEY_SIZES.get(enctype) != len(key):
        return None
    if enctype not in _SHA2:
        try:
            return bytes(crypto.decrypt(crypto.Key(enctype, key), usage, sealed))
        except _DECRYPTION_ERRORS:
            return None
    keys = usage_keys(enctype, key, usage)
    size = len(sealed) - keys.profile.mac_size
    if size < AES_BLOCK_BYTES:
        return None
    mac = keys.integrity.copy()
    mac.update(bytes(AES_BLOCK_BYTES) + sealed[:size])  # preceded by the initial cipher state, RFC 8009 5
    if not hmac.compare_digest(mac.digest()[: keys.profile.mac_size], sealed[size:]):
        return None
    if size == AES_BLOCK_BYTES:
        return b""
    return decrypt_cts(keys.blocks, sealed[:size])[AES_BLOCK_BYTES:]
