"""``message_key`` of a column: ``udfs.keys.key`` of queue manager, ordinal and time sent, laid out by Arrow."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.stubs import text
from udfs.stubs.column import Bools, Column

_LONGEST: Final = 36  # bytes of a field: a GUID as text
_NULL: Final = _LONGEST + 1
# The 4 bytes in front of a field, by its length; after the last length those of null.
_LENGTHS: Final = pa.array([size.to_bytes(4, "little") for size in range(_NULL)] + [b"\xff\xff\xff\xff"], pa.binary())


def _decimal(numbers: Column) -> pa.Array:
    return pc.cast(pa.array(numbers), pa.string()).cast(pa.binary())


def message_keys(guids: pa.Array, ordinal: Column, sent: Column, valid: Bools) -> pa.Array:
    """Return the keys of messages: source queue manager as text, ordinal, time sent in seconds, 0 for null."""
    number, moment = _decimal(ordinal), _decimal(sent.astype(np.int64) * 1_000_000)
    size = pc.binary_length(moment).to_numpy()
    if not sent.all():
        moment = pc.if_else(pa.array(sent != 0), moment, b"")
        size = np.where(sent != 0, size, _NULL)
    laid_out = pc.binary_join_element_wise(
        _LENGTHS[_LONGEST], guids.cast(pa.binary()), _LENGTHS.take(pc.binary_length(number)), number,
        _LENGTHS.take(pa.array(size)), moment, b"",
    )  # fmt: skip
    rows, sha = np.flatnonzero(valid), hashlib.sha256
    fields = (laid_out if len(rows) == len(valid) else laid_out.take(pa.array(rows))).to_pylist()
    digest = np.zeros((len(valid), 16), np.uint8)
    digest[rows] = np.frombuffer(b"".join([sha(each).digest() for each in fields]), np.uint8).reshape(-1, 32)[:, :16]
    return text.hex_text(digest, valid)
