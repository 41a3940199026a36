"""Decode errors: truncated, malformed or unsupported input, each with the field and the byte offset.

A decode error is data. The readers of single values raise these exceptions; their callers catch ``DecodeError`` only.
The readers of columns write the same code, field and offset to the row instead.
"""

from __future__ import annotations

from typing import Final

TRUNCATED: Final = "truncated"
MALFORMED: Final = "malformed"
UNSUPPORTED: Final = "unsupported"


class DecodeError(Exception):
    """Bytes do not fit their declared layout: ``field`` is named as in the specification, ``offset`` is in bytes."""

    code: str = MALFORMED

    def __init__(self, field: str, offset: int) -> None:
        super().__init__(field, offset)  # positional, so that the error can be pickled
        self.field = field
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.code}: {self.field} at byte {self.offset}"


class TruncatedError(DecodeError):
    """The bytes end too early; with more bytes they might be valid."""

    code = TRUNCATED


class MalformedError(DecodeError):
    """The bytes are invalid, whatever follows them."""

    code = MALFORMED


class UnsupportedError(DecodeError):
    """The bytes may be valid, but no decoder exists for them: an unknown opnum or transfer syntax."""

    code = UNSUPPORTED
