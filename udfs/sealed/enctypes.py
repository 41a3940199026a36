"""Kerberos' encryption types: keys of a usage, and decryption that checks what it decrypts.

AES with SHA-1 (RFC 3961, 3962) and RC4 (RFC 4757) derive their keys by impacket; AES with SHA-2 (RFC 8009) by
``cryptography``. With SHA-2 the checksum is over what is encrypted, with SHA-1 over the plain text.
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

from udfs.sealed.ciphers import BLOCK, Run, aes, cts

AES128, AES256, AES128_SHA2, AES256_SHA2, RC4 = 17, 18, 19, 20, 23
KEY_SIZES: Final = {AES128: 16, AES256: 32, AES128_SHA2: 16, AES256_SHA2: 32, RC4: 16}
SEALING, INTEGRITY, CHECKSUM = 0xAA, 0x55, 0x99  # RFC 3961 5.3: Ke, Ki, Kc
_BAD: Final = (crypto.InvalidChecksum, ValueError, IndexError, KeyError)


@dataclass(frozen=True, slots=True)
class Profile:
    """An AES encryption type: ``mac_size`` octets of checksum; ``checks_sealed``: they are over what is encrypted."""

    digest: Callable[..., Any]
    mac_size: int
    checks_sealed: bool


PROFILES: Final = {
    AES128: Profile(hashlib.sha1, 12, checks_sealed=False),
    AES256: Profile(hashlib.sha1, 12, checks_sealed=False),
    AES128_SHA2: Profile(hashlib.sha256, 16, checks_sealed=True),
    AES256_SHA2: Profile(hashlib.sha384, 24, checks_sealed=True),
}
_SHA2: Final[dict[int, hashes.HashAlgorithm]] = {AES128_SHA2: hashes.SHA256(), AES256_SHA2: hashes.SHA384()}


@dataclass(frozen=True, slots=True)
class UsageKeys:
    """The keys of one usage; the HMACs are to be copied."""

    profile: Profile
    blocks: Run = field(repr=False)
    integrity: hmac.HMAC = field(repr=False)
    checksum: hmac.HMAC = field(repr=False)


@lru_cache(4096)
def usage_keys(enctype: int, key: bytes, usage: int) -> UsageKeys:
    """Return the keys of a usage of an AES key."""
    profile = PROFILES[enctype]
    seal, integrity, checksum = (derived(enctype, key, usage, what) for what in (SEALING, INTEGRITY, CHECKSUM))
    return UsageKeys(
        profile, aes(seal), hmac.new(integrity, digestmod=profile.digest), hmac.new(checksum, digestmod=profile.digest)
    )


def derived(enctype: int, key: bytes, usage: int, what: int) -> bytes:
    """Return the key that a usage has for one purpose (RFC 3961 5.3, RFC 8009 5)."""
    constant = struct.pack(">IB", usage, what)
    if enctype in _SHA2:
        size = len(key) if what == SEALING else PROFILES[enctype].mac_size
        kdf = KBKDFHMAC(
            _SHA2[enctype], Mode.CounterMode, size, 4, 4, CounterLocation.BeforeFixed, label=constant, context=b"",
            fixed=None,
        )  # fmt: skip
        return kdf.derive(key)
    kind = crypto._AES128CTS if enctype == AES128 else crypto._AES256CTS  # noqa: SLF001 - where impacket derives keys
    return bytes(kind.derive(crypto.Key(enctype, key), constant).contents)


def decrypted(enctype: int, key: bytes, usage: int, sealed: bytes) -> bytes | None:
    """Return what was encrypted with a key for a usage; None if it was not with this one."""
    if KEY_SIZES.get(enctype) != len(key):
        return None
    if enctype not in _SHA2:
        try:
            return bytes(crypto.decrypt(crypto.Key(enctype, key), usage, sealed))
        except _BAD:
            return None
    keys = usage_keys(enctype, key, usage)
    size = len(sealed) - keys.profile.mac_size
    if size < BLOCK:
        return None
    mac = keys.integrity.copy()
    mac.update(bytes(BLOCK) + sealed[:size])  # the cipher state before it stands in front: RFC 8009 5
    if not hmac.compare_digest(mac.digest()[: keys.profile.mac_size], sealed[size:]):
        return None
    if size == BLOCK:
        return b""
    return cts(keys.blocks, sealed[:size])[BLOCK:]
