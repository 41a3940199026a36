"""NDR and NDR64 of the MSMQ interfaces, as small codecs that write and read (fact sheet section 3.0).

A codec writes a Python value and reads it back: structures are dictionaries, counted octets `bytes`, text `str`,
context handles 20 octets in little-endian form. Rules N1..N22 are named where they apply.
"""

# ruff: noqa: ARG002 - every codec has the same methods

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from typing import Any

Put = Callable[[Any], None]


class StubError(ValueError):
    """The stub does not fit its method's signature (a server answers with fault 0x6F7)."""


class StubWriter:
    """A stub being written; alignment counts from its first octet (N1)."""

    def __init__(self, *, ndr64: bool = False, order: str = "<") -> None:
        self.ndr64 = ndr64
        self.order = order
        self.data = bytearray()
        self.deferred: list[Callable[[], None]] = []
        self._referent = 0x0002_0000

    def align(self, size: int) -> None:
        self.data += b"\x00" * (-len(self.data) % size)

    def integer(self, value: int, size: int) -> None:
        self.align(size)
        self.data += value.to_bytes(size, "little" if self.order == "<" else "big")

    def count(self, value: int) -> None:
        """A max_count, offset or actual_count (N4)."""
        self.integer(value, 8 if self.ndr64 else 4)

    def referent(self, *, null: bool) -> None:
        """A pointer: zero or the next referent id (N3, N22: Windows starts at 0x20000 and adds 4)."""
        self.count(0 if null else self._referent)
        if not null:
            self._referent += 4

    def construct(self, codec: Codec, value: Any) -> None:
        """Write one parameter or pointee, then everything it points to, depth first (N13)."""
        outer, self.deferred = self.deferred, []
        codec.write(self, value)
        pending, self.deferred = self.deferred, outer
        for pointee in pending:
            pointee()


class StubReader:
    """A stub being read."""

    def __init__(self, data: bytes, *, ndr64: bool = False, order: str = "<") -> None:
        self.data = data
        self.at = 0
        self.ndr64 = ndr64
        self.order = order
        self.deferred: list[Callable[[], None]] = []

    def align(self, size: int) -> None:
        self.at += -self.at % size

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise StubError(f"stub of {len(self.data)} octets ends inside a value at {self.at}+{size}")
        self.at += size
        return self.data[self.at - size : self.at]

    def integer(self, size: int) -> int:
        self.align(size)
        return int.from_bytes(self.take(size), "little" if self.order == "<" else "big")

    def count(self) -> int:
        return self.integer(8 if self.ndr64 else 4)

    def construct(self, codec: Codec, put: Put) -> None:
        """Read one parameter or pointee and everything it points to (N13)."""
        outer, self.deferred = self.deferred, []
        codec.read(self, put)
        pending, self.deferred = self.deferred, outer
        for pointee in pending:
            pointee()


class Codec:
    """One type of the IDL."""

    def alignment(self, ndr64: bool) -> int:
        raise NotImplementedError

    def write(self, w: StubWriter, value: Any) -> None:
        raise NotImplementedError

    def read(self, r: StubReader, put: Put) -> None:
        raise NotImplementedError


class Integer(Codec):
    """Unsigned integers, naturally aligned (N2)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def alignment(self, ndr64: bool) -> int:
        return self.size

    def write(self, w: StubWriter, value: Any) -> None:
        w.integer(value, self.size)

    def read(self, r: StubReader, put: Put) -> None:
        put(r.integer(self.size))


class Ranged(Integer):
    """A u32 with a range() attribute: outside of it the runtime faults (P06)."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__(4)
        self.low, self.high = low, high

    def read(self, r: StubReader, put: Put) -> None:
        value = r.integer(4)
        if not self.low <= value <= self.high:
            raise StubError(f"{value} is outside range({self.low}, {self.high})")
        put(value)


class Enum(Codec):
    """An enumeration: 2 octets in NDR, 4 in NDR64 (N5)."""

    def alignment(self, ndr64: bool) -> int:
        return 4 if ndr64 else 2

    def write(self, w: StubWriter, value: Any) -> None:
        w.integer(value, self.alignment(w.ndr64))

    def read(self, r: StubReader, put: Put) -> None:
        put(r.integer(self.alignment(r.ndr64)))


class Octets(Codec):
    """A fixed array of octets (XACTUOW): no alignment, never swapped (N21)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def alignment(self, ndr64: bool) -> int:
        return 1

    def write(self, w: StubWriter, value: Any) -> None:
        if len(value) != self.size:
            raise StubError(f"{len(value)} octets where {self.size} belong")
        w.data += value

    def read(self, r: StubReader, put: Put) -> None:
        put(r.take(self.size))


class Guid(Codec):
    """A GUID, 4-aligned (N20)."""

    def alignment(self, ndr64: bool) -> int:
        return 4

    def write(self, w: StubWriter, value: Any) -> None:
        w.align(4)
        w.data += value.bytes_le if w.order == "<" else value.bytes

    def read(self, r: StubReader, put: Put) -> None:
        r.align(4)
        raw = r.take(16)
        put(uuid.UUID(bytes_le=raw) if r.order == "<" else uuid.UUID(bytes=raw))


NULL_HANDLE = b"\x00" * 20


class ContextHandle(Codec):
    """An RPC context handle, 20 octets, 4-aligned in both syntaxes (N16); its parts follow the byte order."""

    def alignment(self, ndr64: bool) -> int:
        return 4

    @staticmethod
    def _swap(raw: bytes) -> bytes:
        return struct.pack(">IIHH", *struct.unpack("<IIHH", raw[:12])) + raw[12:]

    def write(self, w: StubWriter, value: Any) -> None:
        w.align(4)
        w.data += value if w.order == "<" else self._swap(value)

    def read(self, r: StubReader, put: Put) -> None:
        r.align(4)
        raw = r.take(20)
        put(raw if r.order == "<" else self._swap(raw))


class Struct(Codec):
    """A structure: aligned to its widest member (N6), in NDR64 padded at the end too (N7)."""

    def __init__(self, *members: tuple[str, Codec]) -> None:
        self.members = members

    def alignment(self, ndr64: bool) -> int:
        return max(codec.alignment(ndr64) for _, codec in self.members)

    def write(self, w: StubWriter, value: Any) -> None:
        align = self.alignment(w.ndr64)
        w.align(align)
        for name, codec in self.members:
            codec.write(w, value[name])
        if w.ndr64:
            w.align(align)

    def read(self, r: StubReader, put: Put) -> None:
        align = self.alignment(r.ndr64)
        r.align(align)
        value: dict[str, Any] = {}
        put(value)
        for name, codec in self.members:
            codec.read(r, value_setter(value, name))
        if r.ndr64:
            r.align(align)


def value_setter(container: Any, key: Any) -> Put:
    """Return a function that stores a value later: pointees come after their pointers."""

    def put(value: Any) -> None:
        container[key] = value

    return put


class Pointer(Codec):
    """A unique or full pointer: a referent id in place, the pointee after the construct (N3, N13, N14)."""

    def __init__(self, target: Codec) -> None:
        self.target = target

    def alignment(self, ndr64: bool) -> int:
        return 8 if ndr64 else 4

    def write(self, w: StubWriter, value: Any) -> None:
        w.referent(null=value is None)
        if value is not None:
            w.deferred.append(lambda: w.construct(self.target, value))

    def read(self, r: StubReader, put: Put) -> None:
        if r.count() == 0:
            put(None)
        else:
            put(...)
            r.deferred.append(lambda: r.construct(self.target, put))


class Boxed(Codec):
    """The pointee of a pointer to a pointer, as a list of one: so that its NULL differs from the outer NULL (N15)."""

    def __init__(self, inner: Codec) -> None:
        self.inner = inner

    def alignment(self, ndr64: bool) -> int:
        return self.inner.alignment(ndr64)

    def write(self, w: StubWriter, value: Any) -> None:
        self.inner.write(w, value[0])

    def read(self, r: StubReader, put: Put) -> None:
        value: list[Any] = [None]
        put(value)
        self.inner.read(r, value_setter(value, 0))


class Counted(Codec):
    """A conformant array: max_count, then the elements (N10)."""

    def __init__(self, element: Codec) -> None:
        self.element = element

    def alignment(self, ndr64: bool) -> int:
        return max(8 if ndr64 else 4, self.element.alignment(ndr64))

    def write(self, w: StubWriter, value: Sequence[Any]) -> None:
        w.count(len(value))
        for item in value:
            w.align(self.element.alignment(w.ndr64))
            self.element.write(w, item)

    def read(self, r: StubReader, put: Put) -> None:
        size = r.count()
        if size > len(r.data):
            raise StubError(f"{size} elements in a stub of {len(r.data)} octets")
        value: list[Any] = [None] * size
        put(value)
        for index in range(size):
            r.align(self.element.alignment(r.ndr64))
            self.element.read(r, value_setter(value, index))


class CountedOctets(Codec):
    """A conformant array of octets."""

    def alignment(self, ndr64: bool) -> int:
        return 8 if ndr64 else 4

    def write(self, w: StubWriter, value: Any) -> None:
        w.count(len(value))
        w.data += value

    def read(self, r: StubReader, put: Put) -> None:
        put(r.take(r.count()))


class VaryingOctets(Codec):
    """A conformant varying array of octets: max_count, offset, actual_count (N11)."""

    unit = 1

    def alignment(self, ndr64: bool) -> int:
        return 8 if ndr64 else 4

    def write(self, w: StubWriter, value: Any) -> None:
        size = len(value) // self.unit
        for number in (size, 0, size):
            w.count(number)
        w.data += value

    def read(self, r: StubReader, put: Put) -> None:
        size, offset, actual = r.count(), r.count(), r.count()
        if offset or actual > size:
            raise StubError(f"array of {size} with offset {offset} and {actual} elements")
        put(r.take(actual * self.unit))


class Text(VaryingOctets):
    """A [string] of wchar: the counts include the NUL, which every string ends with (N11)."""

    unit = 2

    def write(self, w: StubWriter, value: Any) -> None:
        super().write(w, (value + "\x00").encode("utf-16-le" if w.order == "<" else "utf-16-be"))

    def read(self, r: StubReader, put: Put) -> None:
        raw: list[bytes] = []
        super().read(r, raw.append)
        text = raw[0].decode("utf-16-le" if r.order == "<" else "utf-16-be", "surrogatepass")
        if not text.endswith("\x00"):
            raise StubError("string without a NUL")
        put(text[:-1])


U8, U16, U32, U64 = Integer(1), Integer(2), Integer(4), Integer(8)
CTX = ContextHandle()
GUID = Guid()
UOW = Octets(16)
ENUM = Enum()
TEXT = Text()
