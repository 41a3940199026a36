"""Keys that every run computes alike: hashes of facts in the data, never of positions in a task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

Field = str | int | bytes | None

_NULL = b"\xff\xff\xff\xff"


def key_bytes(*fields: Field) -> bytes:
    """Return the fields as they are hashed: each after its length as 4 bytes little-endian.

    Numbers are decimal text, text is UTF-8, bytes stand as they are, null is the length 0xFFFFFFFF alone. The
    lengths keep ("ab", "c") and ("a", "bc") apart.
    """
    parts = []
    for field in fields:
        if field is None:
            parts.append(_NULL)
            continue
        data = field if isinstance(field, bytes) else str(field).encode()
        parts.append(len(data).to_bytes(4, "little") + data)
    return b"".join(parts)


def key(*fields: Field) -> str:
    """Return the key of the fields: the first 128 bits of SHA-256 over ``key_bytes``, 32 lower-case hex digits."""
    return hash_key(key_bytes(*fields))


def keys_of(texts: Iterable[str]) -> list[str]:
    """Return the ``key`` of each text by itself."""
    return [hash_key(len(data).to_bytes(4, "little") + data) for data in map(str.encode, texts)]


def hash_key(data: bytes) -> str:
    """Return the key of bytes that were laid out by ``key_bytes`` already."""
    return hashlib.sha256(data).hexdigest()[:32]
