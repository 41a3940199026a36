"""The column ``message_key``: hash keys (``udfs.keys.key``) of source queue manager, message ordinal and time sent."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.array_types import Bools
from udfs.stubs import arrow_primitives
from udfs.stubs.column_cursors import AnyArray

_GUID_TEXT_BYTES: Final = 36  # the longest field
_NULL_LENGTH_INDEX: Final = _GUID_TEXT_BYTES + 1
# The 4-byte length prefix of a field, by its length; the last entry is that of null.
_LENGTH_PREFIXES: Final = pa.array(
    [size.to_bytes(4, "little") for size in range(_NULL_LENGTH_INDEX)] + [b"\xff\xff\xff\xff"], pa.binary()
)


def _decimal_text(numbers: AnyArray) -> pa.Array:
    return pc.cast(pa.array(numbers), pa.string()).cast(pa.binary())


def message_key_column(guids: pa.Array, ordinal: AnyArray, sent: AnyArray, valid: Bools) -> pa.Array:
    """Return the message keys as hex text; null where not ``valid``.

    ``guids`` are the source queue managers as text, ``sent`` UNIX seconds, of which 0 is null.
    """
    number, moment = _decimal_text(ordinal), _decimal_text(sent.astype(np.int64) * 1_000_000)
    size = pc.binary_length(moment).to_numpy()
    if not sent.all():
        moment = pc.if_else(pa.array(sent != 0), moment, b"")
        size = np.where(sent != 0, size, _NULL_LENGTH_INDEX)
    laid_out = pc.binary_join_element_wise(
        _LENGTH_PREFIXES[_GUID_TEXT_BYTES], guids.cast(pa.binary()),
        _LENGTH_PREFIXES.take(pc.binary_length(number)), number,
        _LENGTH_PREFIXES.take(pa.array(size)), moment, b"",
    )  # fmt: skip
    rows, sha = np.flatnonzero(valid), hashlib.sha256
    fields = (laid_out if len(rows) == len(valid) else laid_out.take(pa.array(rows))).to_pylist()
    digest = np.zeros((len(valid), 16), np.uint8)
    digest[rows] = np.frombuffer(b"".join([sha(each).digest() for each in fields]), np.uint8).reshape(-1, 32)[:, :16]
    return arrow_primitives.hex_strings(digest, valid)
