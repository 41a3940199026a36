"""One family of decode errors: three kinds, each with the field and the offset at which it was noticed.

A decode error is data. The single-value readers raise these and whoever calls them catches ``DecodeError`` and nothing
wider; the column readers put the same code, field and offset into the row.
"""

from __future__ import annotations

from typing import Final

TRUNCATED: Final = "truncated"
MALFORMED: Final = "malformed"
UNSUPPORTED: Final = "unsupported"


class DecodeError(Exception):
    """Bytes that do not fit their declared layout: ``field`` as the specification names it, ``offset`` in bytes."""

    code: str = MALFORMED

    def __init__(self, field: str, offset: int) -> None:
        super().__init__(field, offset)  # positional, so that it survives pickling
        self.field = field
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.code}: {self.field} at byte {self.offset}"


class TruncatedError(DecodeError):
    """The bytes end too early; more of them could have been decoded."""

    code = TRUNCATED


class MalformedError(DecodeError):
    """No further bytes could make this valid."""

    code = MALFORMED


class UnsupportedError(DecodeError):
    """Valid as far as can be told, but not decoded here: an opnum or a transfer syntax without a table."""

    code = UNSUPPORTED
