"""The ciphers that opening runs over every PDU: OpenSSL's, through ``cryptography``, a call for each PDU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from Cryptodome.Cipher import ARC4
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.decrepit.ciphers import algorithms as old
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Octets = bytes | memoryview
Run = Callable[[Octets], bytes]
BLOCK = 16


def rc4(key: bytes) -> Run:
    """Return what goes on along an RC4 stream, from its beginning."""
    try:
        run: Run = Cipher(old.ARC4(key), mode=None).decryptor().update
    except (UnsupportedAlgorithm, ValueError):  # an OpenSSL without RC4, and keys that OpenSSL has no use for
        return ARC4.new(key).decrypt
    return run


def aes(key: bytes) -> Run:
    """Return what decrypts AES blocks, each by itself."""
    run: Run = Cipher(algorithms.AES(key), modes.ECB()).decryptor().update  # noqa: S305 - chained by ``cts`` below
    return run


def cts(blocks: Run, sealed: bytes) -> bytes:
    """Decrypt CBC with ciphertext stealing, the last two blocks swapped, from an IV of zeros (RFC 3962 5).

    At least a block and an octet long.
    """
    tail = len(sealed) % BLOCK or BLOCK
    whole = len(sealed) - tail  # octets before the last, which may be short
    straight = blocks(sealed[:whole])
    stolen, last = straight[-BLOCK:], sealed[whole:]
    before = bytes(BLOCK) + sealed[: whole - BLOCK]
    straight = straight[:-BLOCK] + blocks(last + stolen[tail:])
    return xor(straight, before) + xor(stolen[:tail], last)


def xor(one: Octets, two: Octets) -> bytes:
    """Return the exclusive or of octets of one length."""
    return np.bitwise_xor(np.frombuffer(one, np.uint8), np.frombuffer(two, np.uint8)).tobytes()
