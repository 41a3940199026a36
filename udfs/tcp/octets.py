"""Reads integers at many places of a buffer at once."""

from __future__ import annotations

import numpy as np

from udfs.array_types import Ints, Octets


def gather_bytes(octets: Octets, at: Ints, width: int) -> Octets:
    """Return ``width`` bytes from each offset as a matrix. Offsets near the end of the buffer are clamped."""
    windows = np.lib.stride_tricks.sliding_window_view(octets, width)
    return windows[np.minimum(at, len(windows) - 1)]


def u16(header: Octets, column: int) -> Ints:
    """Return big-endian integers of two bytes."""
    return (header[:, column].astype(np.int64) << 8) | header[:, column + 1]


def u32(header: Octets, column: int) -> Ints:
    """Return big-endian integers of four bytes."""
    return (u16(header, column) << 16) | u16(header, column + 2)


def u16_little(header: Octets, column: int) -> Ints:
    """Return little-endian integers of two bytes."""
    return (header[:, column + 1].astype(np.int64) << 8) | header[:, column]


def u32_little(header: Octets, column: int) -> Ints:
    """Return little-endian integers of four bytes."""
    return (u16_little(header, column + 2) << 16) | u16_little(header, column)
