"""VARIANT values as text, and names of VARIANT types, [MS-OAUT] 2.2.7.

Text by type: numbers in decimal; VT_BOOL ``true`` or ``false``; VT_ERROR as ``0x`` and 8 hex digits; VT_CY and
VT_DECIMAL with as many decimal places as their scale (``12.3400``); VT_DATE as ``2009-09-11T06:00:00`` without a time
zone, for it has none; VT_BSTR as it is, but hex if it has an odd number of bytes.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.array_types import Ints, Octets
from udfs.columns.groups import expand_ranges
from udfs.stubs.column_cursors import AnyArray

VT_EMPTY: Final = 0x00
VT_R4: Final = 0x04
VT_R8: Final = 0x05
VT_CY: Final = 0x06
VT_DATE: Final = 0x07
VT_BSTR: Final = 0x08
VT_DISPATCH: Final = 0x09
VT_ERROR: Final = 0x0A
VT_BOOL: Final = 0x0B
VT_VARIANT: Final = 0x0C
VT_UNKNOWN: Final = 0x0D
VT_DECIMAL: Final = 0x0E
VT_RECORD: Final = 0x24
VT_ARRAY: Final = 0x2000
VT_BYREF: Final = 0x4000

_VT_NAMES: Final = {
    0x00: "VT_EMPTY", 0x01: "VT_NULL", 0x02: "VT_I2", 0x03: "VT_I4", 0x04: "VT_R4", 0x05: "VT_R8", 0x06: "VT_CY",
    0x07: "VT_DATE", 0x08: "VT_BSTR", 0x09: "VT_DISPATCH", 0x0A: "VT_ERROR", 0x0B: "VT_BOOL", 0x0C: "VT_VARIANT",
    0x0D: "VT_UNKNOWN", 0x0E: "VT_DECIMAL", 0x10: "VT_I1", 0x11: "VT_UI1", 0x12: "VT_UI2", 0x13: "VT_UI4",
    0x14: "VT_I8", 0x15: "VT_UI8", 0x16: "VT_INT", 0x17: "VT_UINT", 0x24: "VT_RECORD",
}  # fmt: skip
# Size in bytes of values of fixed size, by type; 2.2.7 and 2.2.29.1.
VALUE_SIZES: Final = {
    0x00: 0, 0x01: 0, 0x02: 2, 0x03: 4, 0x04: 4, 0x05: 8, 0x06: 8, 0x07: 8, 0x0A: 4, 0x0B: 2, 0x0E: 16,
    0x10: 1, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8, 0x15: 8, 0x16: 4, 0x17: 4,
}  # fmt: skip
SIGNED_DTYPES: Final = {0x02: "<i2", 0x03: "<i4", 0x10: "<i1", 0x14: "<i8", 0x16: "<i4"}
_GATHER_BYTES: Final = 1 << 20  # bytes gathered at once
_DATE_EPOCH: Final = np.datetime64("1899-12-30", "ms")
_DAY_MS: Final = 86_400_000


def variant_type_name(vt: int) -> str:
    """Return the name of a VARIANT type, flags first: ``VT_BYREF|VT_ARRAY|VT_I4``; unknown types as 4 hex digits."""
    base = _VT_NAMES.get(vt & 0x0FFF)
    if base is None or vt & 0x9000:
        return f"0x{vt:04X}"
    return ("VT_BYREF|" if vt & VT_BYREF else "") + ("VT_ARRAY|" if vt & VT_ARRAY else "") + base


def _currency_text(raw: int) -> str:
    whole, part = divmod(abs(raw), 10_000)
    return f"{'-' if raw < 0 else ''}{whole}.{part:04d}"


def _date_texts(days: npt.NDArray[np.float64]) -> pa.Array:
    """Return DATEs as ISO texts, to the millisecond (the precision of a double for today's dates).

    Before day zero the whole part counts backwards, the fraction still forwards. Outside the years 100 to 9999 the text
    is the number of days.
    """
    is_date = (days > -657_435) & (days < 2_958_466)  # excludes infinity and NaN too
    whole = np.trunc(np.where(is_date, days, 0))
    fraction = np.abs(np.where(is_date, days, 0) - whole)
    milliseconds = np.minimum(np.rint(fraction * _DAY_MS), _DAY_MS - 1)  # never round up to the next day
    moments = _DATE_EPOCH + (whole * _DAY_MS + milliseconds).astype("m8[ms]")
    texts = np.datetime_as_string(moments, unit="ms")
    texts = np.where(milliseconds % 1000 == 0, texts.astype("U19"), texts).astype("U32")
    texts[~is_date] = days[~is_date].astype("U32")
    return pa.array(texts, pa.string())


def decimal_text(raw: bytes) -> str | None:
    """Return a DECIMAL of 16 bytes as text; None if scale or sign are invalid, [MS-OAUT] 2.2.26."""
    scale, sign = raw[2], raw[3]
    if scale > 28 or sign not in (0, 0x80):
        return None
    digits = str(int.from_bytes(raw[4:8], "little") << 64 | int.from_bytes(raw[8:], "little"))
    if scale:
        digits = digits.rjust(scale + 1, "0")
        digits = f"{digits[:-scale]}.{digits[-scale:]}"
    return f"-{digits}" if sign else digits


def bstr_text(raw: bytes) -> str:
    """Return a BSTR as text; invalid UTF-16 becomes U+FFFD, an odd number of bytes becomes hex."""
    return raw.hex() if len(raw) % 2 else raw.decode("utf-16-le", "replace")


def little_endian_guid_text(raw: bytes) -> str:
    """Return a little-endian GUID as text."""
    return str(UUID(bytes_le=raw))


def fixed_size_texts(vt: int, raw: AnyArray) -> pa.Array:
    """Return values of one VARIANT type of fixed size as strings; ``raw`` are their bytes as unsigned 64-bit numbers.

    Not for VT_DECIMAL, which is longer. VT_EMPTY and VT_NULL give nulls.
    """
    if VALUE_SIZES[vt] == 0:
        return pa.nulls(len(raw), pa.string())
    if vt == VT_BOOL:
        return pa.array(np.where(raw & 0xFFFF, "true", "false"), pa.string())
    if vt == VT_ERROR:
        return pa.array([f"0x{code:08X}" for code in raw.tolist()], pa.string())
    if vt == VT_CY:
        return pa.array([_currency_text(value) for value in raw.view("<i8").tolist()], pa.string())
    if vt == VT_DATE:
        return _date_texts(raw.view("<f8"))
    if vt in (VT_R4, VT_R8):
        floats: AnyArray = raw.astype("<u4").view("<f4") if vt == VT_R4 else raw.view("<f8")
        return pa.array(floats.astype("U32"), pa.string())
    numbers = raw.astype(f"<u{VALUE_SIZES[vt]}")
    if vt in SIGNED_DTYPES:
        numbers = numbers.view(SIGNED_DTYPES[vt])
    return pa.array(numbers).cast(pa.string())


def span_offsets(start: Ints, size: Ints) -> tuple[Ints, Ints]:
    """Return the offsets of all bytes of the spans, span by span, and the n + 1 indices where the spans begin."""
    places = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    return expand_ranges(start, size), places


def gather_spans(data: Octets, start: Ints, size: Ints) -> tuple[Octets, Ints]:
    """Return the bytes of the spans, joined, and the n + 1 offsets where the spans begin."""
    places = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    out = np.empty(int(places[-1]), np.uint8)
    first, spans = 0, len(start)
    while first < spans:  # in parts: the offsets of bytes take eight times their size
        last = max(first + 1, int(np.searchsorted(places, places[first] + _GATHER_BYTES, "right")) - 1)
        if last == first + 1:
            out[places[first] : places[last]] = data[start[first] : start[first] + size[first]]
        else:
            out[places[first] : places[last]] = data[span_offsets(start[first:last], size[first:last])[0]]
        first = last
    return out, places


def bstr_texts(data: Octets, start: Ints, size: Ints) -> pa.Array:
    """Return BSTRs, spans in ``data``, as strings: ASCII ones all at once, others one by one."""
    even = size % 2 == 0
    raw, places = gather_spans(data, start, np.where(even, size, 0))
    units = raw.view("<u2")
    bounds = places // 2
    non_ascii = np.concatenate([[0], np.cumsum(units > 0x7F)])
    plain = even & (non_ascii[bounds[1:]] == non_ascii[bounds[:-1]])
    ends = np.concatenate([[0], np.cumsum(np.where(plain, size // 2, 0))]).astype(np.int64)
    letters = units.astype(np.uint8)[np.repeat(plain, np.diff(bounds))]
    texts = pa.Array.from_buffers(
        pa.large_string(), len(start), [None, pa.py_buffer(ends), pa.py_buffer(letters)]
    ).cast(pa.string())
    others = np.flatnonzero(~plain)
    if not len(others):
        return texts
    decoded = [bstr_text(data[start[row] : start[row] + size[row]].tobytes()) for row in others.tolist()]
    order = np.arange(len(start))
    order[others] = len(start) + np.arange(len(others))
    return pa.concat_arrays([texts, pa.array(decoded, pa.string())]).take(pa.array(order))
