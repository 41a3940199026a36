"""Bodies of one value, as ActiveXMessageFormatter and MSMQ's COM objects write them: the body type is a VT code."""

from __future__ import annotations

from typing import Final

import numpy as np

from udfs.array_types import Bools, Ints

VT_NAMES: Final = {
    1: "VT_NULL", 2: "VT_I2", 3: "VT_I4", 4: "VT_R4", 5: "VT_R8", 6: "VT_CY", 7: "VT_DATE", 8: "VT_BSTR",
    11: "VT_BOOL", 14: "VT_DECIMAL", 16: "VT_I1", 17: "VT_UI1", 18: "VT_UI2", 19: "VT_UI4", 20: "VT_I8",
    21: "VT_UI8", 30: "VT_LPSTR", 31: "VT_LPWSTR", 64: "VT_FILETIME", 68: "VT_STREAMED_OBJECT",
    69: "VT_STORED_OBJECT", 72: "VT_CLSID", 0x1011: "VT_VECTOR|VT_UI1", 0x2011: "VT_ARRAY|VT_UI1",
}  # fmt: skip
"""The VT codes of bodies, [MS-OAUT] 2.2.7 and [MS-MQMQ] 2.2.12, by number."""

VT_NULL: Final = 1  # of a body without bytes

TEXT_ENCODINGS: Final = {8: "utf-16-le", 30: None, 31: "utf-16-le", 0x1011: None, 0x2011: None}
"""The ones that may hold a document, with its encoding; None: the document says it."""
MARKUP: Final = b"<{["  # how these begin

_SIZES: Final = {1: 0, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 7: 8, 11: 2, 14: 16, 16: 1, 17: 1, 18: 2, 19: 4, 20: 8, 21: 8,
                 64: 8, 72: 16}  # fmt: skip
_ANY_SIZE, _EVEN, _NONE = -1, -2, -3
_LIMIT: Final = 0x2013
# By code; the last place is that of all codes that no body has.
_SIZE_OF: Final = np.full(_LIMIT, _NONE, np.int64)
_HOLDS_DOCUMENT: Final = np.zeros(_LIMIT, np.bool_)
for _code in VT_NAMES:
    _SIZE_OF[_code] = _SIZES.get(_code, _EVEN if TEXT_ENCODINGS.get(_code) else _ANY_SIZE)
    _HOLDS_DOCUMENT[_code] = _code in TEXT_ENCODINGS


def has_vt_code(body_type: Ints) -> Bools:
    """Tell which body types are VT codes of values."""
    known: Bools = _SIZE_OF[np.minimum(body_type, _LIMIT - 1)] != _NONE
    return known


def may_hold_document(body_type: Ints) -> Bools:
    """Tell which body types are VT codes of texts and of bytes."""
    may: Bools = _HOLDS_DOCUMENT[np.minimum(body_type, _LIMIT - 1)]
    return may


def fits_vt_code(body_type: Ints, body_bytes: Ints) -> Bools:
    """Tell which bodies have the size that the VT code of their type asks for; False for other body types."""
    size = _SIZE_OF[np.minimum(body_type, _LIMIT - 1)]
    fits: Bools = (size == body_bytes) | (size == _ANY_SIZE) | ((size == _EVEN) & (body_bytes % 2 == 0))
    return fits
