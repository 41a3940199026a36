"""RC4 and AES for decryption of PDUs: OpenSSL's ciphers through ``cryptography``, one call per PDU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from Cryptodome.Cipher import ARC4
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.decrepit.ciphers import algorithms as old
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

BytesLike = bytes | memoryview
CipherFunction = Callable[[BytesLike], bytes]
AES_BLOCK_BYTES = 16


def rc4_keystream(key: bytes) -> CipherFunction:
    """Return a function that decrypts the next octets of an RC4 stream, from its beginning."""
    try:
        run: CipherFunction = Cipher(old.ARC4(key), mode=None).decryptor().update
    except (UnsupportedAlgorithm, ValueError):  # OpenSSL without RC4, or a key size that OpenSSL rejects
        return ARC4.new(key).decrypt
    return run


def aes_block_decryptor(key: bytes) -> CipherFunction:
    """Return a function that decrypts AES blocks independently (ECB)."""
    run: CipherFunction = Cipher(algorithms.AES(key), modes.ECB()).decryptor().update  # noqa: S305 - ``decrypt_cts`` chains them
    return run


def decrypt_cts(blocks: CipherFunction, sealed: bytes) -> bytes:
    """Decrypt CBC with ciphertext stealing: last two blocks swapped, IV of zeros (RFC 3962 5).

    ``sealed`` must be longer than a block.
    """
    tail = len(sealed) % AES_BLOCK_BYTES or AES_BLOCK_BYTES
    whole = len(sealed) - tail  # octets before the last block, which may be short
    straight = blocks(sealed[:whole])
    stolen, last = straight[-AES_BLOCK_BYTES:], sealed[whole:]
    before = bytes(AES_BLOCK_BYTES) + sealed[: whole - AES_BLOCK_BYTES]
    straight = straight[:-AES_BLOCK_BYTES] + blocks(last + stolen[tail:])
    return xor_bytes(straight, before) + xor_bytes(stolen[:tail], last)


def xor_bytes(one: BytesLike, two: BytesLike) -> bytes:
    """Return the exclusive or of two octet strings of the same length."""
    return np.bitwise_xor(np.frombuffer(one, np.uint8), np.frombuffer(two, np.uint8)).tobytes()
