"""A cursor over one stub, and the smallest things it reads. Slow and simple; the single-value readers stand on it."""

from __future__ import annotations

import struct
import uuid

from udfs.errors import MalformedError, TruncatedError


class Cursor:
    """A position in one stub that cannot run off its end."""

    def __init__(
        self, data: bytes | memoryview, *, ndr64: bool = False, big_endian: bool = False, lenient: bool = False
    ) -> None:
        self.data = data
        self.ndr64 = ndr64
        self.order = ">" if big_endian else "<"
        self.lenient = lenient
        self.missing_pad: tuple[str, int] | None = None
        self.noted: list[tuple[str, int]] = []  # field and offset of what was read against the layout, in a known way
        self.pos = 0
        self.seen: dict[str, int] = {}

    def align(self, to: int) -> None:
        """Move to the next multiple of ``to``; what is skipped has no content (rule N19)."""
        self.pos += -self.pos % to

    def take(self, size: int, field: str) -> bytes:
        """Return the next ``size`` bytes, or raise TruncatedError."""
        if size > len(self.data) - self.pos:
            raise TruncatedError(field, self.pos)
        self.pos += size
        return bytes(self.data[self.pos - size : self.pos])

    def uint(self, size: int, field: str) -> int:
        """Return an aligned unsigned integer of ``size`` bytes."""
        self.align(size)
        code = {1: "B", 2: "H", 4: "I", 8: "Q"}[size]
        return int(struct.unpack(self.order + code, self.take(size, field))[0])

    def word(self, field: str) -> int:
        """Return a referent id or an array count: 4 bytes in NDR, 8 in NDR64 (rules N3, N4)."""
        return self.uint(8 if self.ndr64 else 4, field)

    def struct_align(self) -> None:
        """Align a structure that holds a pointer."""
        self.align(8 if self.ndr64 else 4)

    def struct_end(self, field: str) -> None:
        """Pad the end of a structure that holds a pointer, NDR64 only (rule N7, doubt D19)."""
        if self.ndr64 and self.pos % 8:
            if self.lenient:
                self.missing_pad = (f"{field} (padding)", self.pos)
            else:
                self.align(8)


def guid(raw: bytes, order: str) -> str:
    """Return a GUID in the order of the wire as text."""
    return str(uuid.UUID(bytes_le=raw) if order == "<" else uuid.UUID(bytes=raw))


def string(cursor: Cursor, field: str) -> str:
    """Read a conformant varying string of wchar_t with its NUL (rule N11)."""
    most = cursor.word(f"{field}.max_count")
    at = cursor.pos
    first = cursor.word(f"{field}.offset")
    count = cursor.word(f"{field}.actual_count")
    if first != 0 or count == 0 or count > most:
        raise MalformedError(f"{field}.actual_count", at)
    at = cursor.pos
    raw = cursor.take(2 * count, field)
    text = raw.decode("utf-16-le" if cursor.order == "<" else "utf-16-be", "replace")
    if text.find("\0") != len(text) - 1:
        raise MalformedError(field, at)
    return text[:-1]
