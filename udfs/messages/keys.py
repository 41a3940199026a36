"""``message_key`` of a column: ``udfs.keys.key`` of queue manager, ordinal and time sent, laid out by numpy."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.keys import key
from udfs.stubs import text
from udfs.stubs.column import Bools, Column, Ints

_GUID = 36
_TIME = 16  # digits of a time in microseconds since 10^9 seconds, September 2001
_FIRST = 10**9


def _digits(values: Column, width: int) -> npt.NDArray[np.uint8]:
    """Return numbers of ``width`` decimal digits as ASCII, shape (rows, width)."""
    out = np.empty((len(values), width), np.uint8)
    rest = values.astype(np.int64)
    for place in range(width - 1, -1, -1):
        rest, out[:, place] = rest // 10, rest % 10 + ord("0")
    return out


def _of_width(guids: npt.NDArray[np.uint8], ordinal: Column, sent: Column, width: int) -> npt.NDArray[np.uint8]:
    """Return the first 16 bytes of each hash, for ordinals of ``width`` digits; every key is equally long."""
    out = np.zeros((len(ordinal), 4 + _GUID + 4 + width + 4 + _TIME), np.uint8)
    at = 0
    for part in (guids, _digits(ordinal, width), _digits(sent, 10)):
        size = _TIME if at > _GUID + 4 else part.shape[1]
        out[:, at] = size  # lengths are 4 bytes little-endian, and all below 256
        out[:, at + 4 : at + 4 + part.shape[1]] = part
        at += 4 + size
    out[:, -6:] = ord("0")  # seconds to microseconds
    sha = hashlib.sha256
    keys = out.view(f"V{out.shape[1]}").ravel().tolist()
    return np.frombuffer(b"".join([sha(each).digest() for each in keys]), np.uint8).reshape(-1, 32)[:, :16]


def message_keys(guids: pa.Array, ordinal: Column, sent: Column, valid: Bools) -> pa.Array:
    """Return the keys of messages: source queue manager as text, ordinal, time sent in seconds, 0 for null."""
    rows = len(valid)
    digest = np.zeros((rows, 16), np.uint8)
    usual = np.flatnonzero(valid & (sent >= _FIRST))
    if len(usual):
        some = guids if len(usual) == rows else guids.take(pa.array(usual))
        characters = np.frombuffer(some.buffers()[2], np.uint8)[: _GUID * len(usual)].reshape(-1, _GUID)
        widths = _widths(ordinal[usual])
        for width in np.unique(widths).tolist():
            which = np.flatnonzero(widths == width)
            at = usual[which]
            digest[at] = _of_width(characters[which], ordinal[at], sent[at], width)
    for row in np.flatnonzero(valid & (sent < _FIRST)).tolist():  # clocks that are wrong
        moment = int(sent[row]) * 1_000_000 or None
        digest[row] = np.frombuffer(bytes.fromhex(key(guids[row].as_py(), int(ordinal[row]), moment)), np.uint8)
    return text.hex_text(digest, valid)


def _widths(values: Column) -> Ints:
    """Return how many decimal digits numbers of 32 bits have."""
    return 1 + np.searchsorted(10 ** np.arange(1, 10), values, side="right").astype(np.int64)
