"""A read position in one stub, with readers for integers, GUIDs and strings. Used by the ``single_*`` decoders."""

from __future__ import annotations

import struct
import uuid

from udfs.errors import MalformedError, TruncatedError


class StubCursor:
    """A read position in one stub; a read past its end raises TruncatedError."""

    def __init__(
        self, data: bytes | memoryview, *, ndr64: bool = False, big_endian: bool = False, lenient: bool = False
    ) -> None:
        self.data = data
        self.ndr64 = ndr64
        self.order = ">" if big_endian else "<"
        self.lenient = lenient
        self.missing_padding: tuple[str, int] | None = None
        self.deviations: list[tuple[str, int]] = []  # field and offset of tolerated departures from the IDL
        self.position = 0
        self.sizes: dict[str, int] = {}

    def align(self, to: int) -> None:
        """Skip to the next multiple of ``to`` (rule N19)."""
        self.position += -self.position % to

    def read_bytes(self, size: int, field: str) -> bytes:
        """Read the next ``size`` bytes; raises TruncatedError."""
        if size > len(self.data) - self.position:
            raise TruncatedError(field, self.position)
        self.position += size
        return bytes(self.data[self.position - size : self.position])

    def read_uint(self, size: int, field: str) -> int:
        """Read an aligned unsigned integer of ``size`` bytes."""
        self.align(size)
        code = {1: "B", 2: "H", 4: "I", 8: "Q"}[size]
        return int(struct.unpack(self.order + code, self.read_bytes(size, field))[0])

    def read_word(self, field: str) -> int:
        """Read a referent id or an array count: 4 bytes in NDR, 8 in NDR64 (rules N3, N4)."""
        return self.read_uint(8 if self.ndr64 else 4, field)

    def align_struct(self) -> None:
        """Align a structure that holds a pointer."""
        self.align(8 if self.ndr64 else 4)

    def skip_struct_padding(self, field: str) -> None:
        """Skip the padding at the end of a structure that holds a pointer, NDR64 only (rule N7).

        In lenient mode nothing is skipped; ``missing_padding`` gets field and offset instead (doubt D19).
        """
        if self.ndr64 and self.position % 8:
            if self.lenient:
                self.missing_padding = (f"{field} (padding)", self.position)
            else:
                self.align(8)


def guid_text(raw: bytes, order: str) -> str:
    """Return a GUID of 16 bytes as text; ``order`` is "<" or ">", the byte order of the wire."""
    return str(uuid.UUID(bytes_le=raw) if order == "<" else uuid.UUID(bytes=raw))


def read_string(cursor: StubCursor, field: str) -> str:
    """Read a conformant varying string of wchar_t and return it without its NUL (rule N11)."""
    max_count = cursor.read_word(f"{field}.max_count")
    at = cursor.position
    first = cursor.read_word(f"{field}.offset")
    count = cursor.read_word(f"{field}.actual_count")
    if first != 0 or count == 0 or count > max_count:
        raise MalformedError(f"{field}.actual_count", at)
    at = cursor.position
    raw = cursor.read_bytes(2 * count, field)
    text = raw.decode("utf-16-le" if cursor.order == "<" else "utf-16-be", "replace")
    if text.find("\0") != len(text) - 1:
        raise MalformedError(field, at)
    return text[:-1]
