"""Row keys: hashes of field values. They depend on the data alone, so that every run computes the same keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import repeat

KeyField = str | int | bytes | None

_NULL = b"\xff\xff\xff\xff"


def encode_key_fields(*fields: KeyField) -> bytes:
    """Return the bytes to hash for a key: each field, preceded by its length as 4 bytes little-endian.

    Numbers are encoded as decimal text, text as UTF-8, bytes unchanged, null as the length 0xFFFFFFFF alone. The
    lengths distinguish ("ab", "c") from ("a", "bc").
    """
    parts = []
    for field in fields:
        if field is None:
            parts.append(_NULL)
            continue
        data = field if isinstance(field, bytes) else str(field).encode()
        parts.append(len(data).to_bytes(4, "little") + data)
    return b"".join(parts)


def key(*fields: KeyField) -> str:
    """Return the key of the fields: the first 128 bits of SHA-256 over the encoded fields, as 32 hex digits."""
    return hash_encoded_fields(encode_key_fields(*fields))


def keys_of_texts(texts: Iterable[str], more: Iterable[bytes] | None = None) -> list[str]:
    """Return ``key(text)`` for each text; of several fields where ``more`` has the encoded others of each."""
    encoded = zip(map(str.encode, texts), repeat(b"") if more is None else more, strict=False)
    return [hash_encoded_fields(len(data).to_bytes(4, "little") + data + others) for data, others in encoded]


def hash_encoded_fields(data: bytes) -> str:
    """Return the key of bytes that ``encode_key_fields`` has made."""
    return hashlib.sha256(data).hexdigest()[:32]
