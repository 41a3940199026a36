"""Deletion vectors: which rows of a Parquet file are gone (protocol of Delta: Deletion Vectors, their Format).

A vector is a 64-bit Roaring bitmap of row numbers, in the log's line itself (``i``), or in a file of the table (``u``)
or elsewhere (``p``).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse
from uuid import UUID, uuid4
from zlib import crc32

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

Ints = npt.NDArray[np.int64]
Vector = Mapping[str, Any]  # what ``add`` says of it: storageType, pathOrInlineDv, sizeInBytes, cardinality, offset

_MAGIC: Final = struct.pack("<i", 1681511377)  # before a bitmap in the portable format
_VERSION: Final = b"\x01"  # of a file of vectors: its first byte
_UUID: Final = 20  # letters of an identifier in Base85
# Base85 of the standard library, with the letters of Z85 (ZeroMQ RFC 32).
_LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_FROM_Z85: Final = str.maketrans(_Z85, _LETTERS)
_TO_Z85: Final = str.maketrans(_LETTERS, _Z85)


def rows_gone(vector: Vector | None, folder: Path) -> Ints:
    """Return the numbers of rows that are gone, from 0, ascending; none without a vector.

    ``folder`` is the table's. ValueError where it is no vector, OSError where its file cannot be read.
    """
    if vector is None:
        return np.empty(0, np.int64)
    told, size = vector["pathOrInlineDv"], vector["sizeInBytes"]
    if vector["storageType"] == "i":
        data = _decoded(told)[:size]
    else:
        data = _of_file(_file(vector["storageType"], told, folder), vector.get("offset") or 0, size)
    if data[:4] != _MAGIC:
        raise ValueError("a deletion vector of another format")
    rows = np.array(BitMap64.deserialize(data[4:]), np.int64)
    if len(rows) != vector["cardinality"]:
        raise ValueError(f"a deletion vector of {len(rows)} rows, not {vector['cardinality']}")
    return rows


def vector_of(rows: Ints, folder: Path) -> dict[str, Any]:
    """Return the vector of rows by their numbers, written to a file of the table.

    Not in the log's line, which the protocol allows too: Delta's VACUUM fails on a table with such a vector.
    """
    bitmap = BitMap64(rows.tolist())
    data = _MAGIC + bitmap.serialize()
    name = uuid4()
    framed = len(data).to_bytes(4, "big") + data + crc32(data).to_bytes(4, "big")
    _file("u", _encoded(name.bytes), folder).write_bytes(_VERSION + framed)
    return {
        "storageType": "u", "pathOrInlineDv": _encoded(name.bytes), "offset": len(_VERSION), "sizeInBytes": len(data),
        "cardinality": len(bitmap),
    }  # fmt: skip


def _decoded(text: str) -> bytes:
    return base64.b85decode(text.translate(_FROM_Z85))


def _encoded(data: bytes) -> str:
    return base64.b85encode(data).decode("ascii").translate(_TO_Z85)


def _file(storage: str, told: str, folder: Path) -> Path:
    if storage == "u":
        prefix, name = told[:-_UUID], UUID(bytes=_decoded(told[-_UUID:]))
        return folder / prefix / f"deletion_vector_{name}.bin"
    if storage != "p":
        raise ValueError(f"a deletion vector stored as {storage!r}")
    return Path(unquote(urlparse(told).path))


def _of_file(path: Path, offset: int, size: int) -> bytes:
    """Return a vector's bytes: behind their length, before their checksum, both big-endian."""
    with path.open("rb") as file:
        file.seek(offset)
        found = file.read(4 + size + 4)
    if len(found) < 8 + size or int.from_bytes(found[:4], "big") != size:
        raise ValueError(f"{path}: no deletion vector of {size} bytes at {offset}")
    data = found[4:-4]
    if int.from_bytes(found[-4:], "big") != crc32(data):
        raise ValueError(f"{path}: a deletion vector whose checksum does not fit")
    return data
