"""AES with SHA-2 for the test peer (RFC 8009), in the form of impacket's encryption types, which lack it.

Written from the RFC with PyCryptodome's AES-CBC, independent of the decoder under test.
"""

from __future__ import annotations

import hmac
import os
import struct

from Cryptodome.Cipher import AES
from impacket.krb5 import crypto

BLOCK = 16


def derive_key(key: bytes, constant: bytes, size: int, digest: str) -> bytes:
    """KDF-HMAC-SHA2 (RFC 8009 3): any number of octets up to one block."""
    return hmac.digest(key, b"\x00\x00\x00\x01" + constant + b"\x00" + struct.pack(">I", 8 * size), digest)[:size]


class Aes128Sha2(crypto._EnctypeProfile):
    """aes128-cts-hmac-sha256-128."""

    enctype, keysize, seedsize, macsize, digest = 19, 16, 16, 16, "sha256"

    @classmethod
    def keys(cls, key: crypto.Key, usage: int) -> tuple[bytes, bytes, bytes]:
        """Ke, Ki and Kc of a usage."""
        wanted = ((0xAA, cls.keysize), (0x55, cls.macsize), (0x99, cls.macsize))
        return tuple(
            derive_key(key.contents, struct.pack(">IB", usage, what), size, cls.digest) for what, size in wanted
        )

    @classmethod
    def encrypt(cls, key: crypto.Key, usage: int, plain: bytes, confounder: bytes | None) -> bytes:
        seal, integrity, _ = cls.keys(key, usage)
        data = (confounder or os.urandom(BLOCK)) + bytes(plain)
        short = -len(data) % BLOCK
        whole = AES.new(seal, AES.MODE_CBC, bytes(BLOCK)).encrypt(data + bytes(short))
        if len(whole) > BLOCK:  # the last two change places, and what would be padding is stolen
            whole = whole[: -2 * BLOCK] + whole[-BLOCK:] + whole[-2 * BLOCK : -BLOCK][: BLOCK - short]
        return whole + hmac.digest(integrity, bytes(BLOCK) + whole, cls.digest)[: cls.macsize]

    @classmethod
    def decrypt(cls, key: crypto.Key, usage: int, sealed: bytes) -> bytes:
        seal, integrity, _ = cls.keys(key, usage)
        data, mac = sealed[: -cls.macsize], sealed[-cls.macsize :]
        if hmac.digest(integrity, bytes(BLOCK) + data, cls.digest)[: cls.macsize] != mac:
            raise crypto.InvalidChecksum
        tail = len(data) % BLOCK or BLOCK
        if len(data) > BLOCK:
            last = data[-BLOCK - tail : -tail]
            stolen = AES.new(seal, AES.MODE_ECB).decrypt(last)
            data = data[: -BLOCK - tail] + data[-tail:] + stolen[tail:] + last
        plain = AES.new(seal, AES.MODE_CBC, bytes(BLOCK)).decrypt(data)
        return plain[BLOCK : len(sealed) - cls.macsize]

    @classmethod
    def checksum(cls, key: crypto.Key, usage: int, text: bytes) -> bytes:
        """The keyed checksum of the type."""
        return hmac.digest(cls.keys(key, usage)[2], text, cls.digest)[: cls.macsize]


class Aes256Sha2(Aes128Sha2):
    """aes256-cts-hmac-sha384-192."""

    enctype, keysize, seedsize, macsize, digest = 20, 32, 32, 24, "sha384"


crypto._enctype_table |= {19: Aes128Sha2, 20: Aes256Sha2}
