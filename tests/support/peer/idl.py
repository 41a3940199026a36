"""The shared types of the MSMQ interfaces: QUEUE_FORMAT, PROPVARIANT, descriptors (fact sheet section 3.1)."""

# ruff: noqa: ARG002 - every codec has the same methods

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from peer.ndr import (
    ENUM,
    GUID,
    TEXT,
    U8,
    U16,
    U32,
    U64,
    Codec,
    Counted,
    CountedOctets,
    Pointer,
    Put,
    Ranged,
    Struct,
    StubError,
    StubReader,
    StubWriter,
    VaryingOctets,
    value_setter,
)

UNKNOWN, PUBLIC, PRIVATE, DIRECT, MACHINE, CONNECTOR, DL, MULTICAST, SUBQUEUE = range(9)

_ARMS: dict[int, Codec | None] = {
    UNKNOWN: None,
    PUBLIC: GUID,
    PRIVATE: Struct(("lineage", GUID), ("uniquifier", U32)),
    DIRECT: Pointer(TEXT),
    MACHINE: GUID,
    CONNECTOR: GUID,
    DL: Struct(("guid", GUID), ("domain", Pointer(TEXT))),
    MULTICAST: Struct(("address", U32), ("port", U32)),
    SUBQUEUE: Pointer(TEXT),
}


@dataclass
class QueueFormat:
    """QUEUE_FORMAT [MQMQ 2.2.7]: `value` is what the arm of `kind` holds."""

    kind: int
    value: Any = None
    suffix: int = 0

    @classmethod
    def direct(cls, name: str) -> QueueFormat:
        """DIRECT=name; a queue with a subqueue part becomes m_qft 8."""
        return cls(SUBQUEUE, name, 5) if ";" in name else cls(DIRECT, name)

    @classmethod
    def private(cls, machine: UUID, number: int) -> QueueFormat:
        return cls(PRIVATE, {"lineage": machine, "uniquifier": number})


class QueueFormatCodec(Codec):
    """QUEUE_FORMAT: alignment 4 in NDR, 8 in NDR64 because some arms hold pointers (N6, N8)."""

    def alignment(self, ndr64: bool) -> int:
        return 8 if ndr64 else 4

    def write(self, w: StubWriter, value: QueueFormat) -> None:
        align = self.alignment(w.ndr64)
        w.align(align)
        for number, size in ((value.kind, 1), (value.suffix, 1), (0, 2)):
            w.integer(number, size)
        if w.ndr64:
            w.align(align)
        w.integer(value.kind, 1)
        arm = _ARMS[value.kind]
        if w.ndr64:
            w.align(align)  # N8: also in front of an empty arm
        if arm is not None:
            w.align(arm.alignment(w.ndr64))
            arm.write(w, value.value)
        if w.ndr64:
            w.align(align)

    def read(self, r: StubReader, put: Put) -> None:
        align = self.alignment(r.ndr64)
        r.align(align)
        kind, suffix, _ = r.integer(1), r.integer(1), r.integer(2)
        if r.ndr64:
            r.align(align)
        if r.integer(1) != kind or kind not in _ARMS:
            raise StubError(f"QUEUE_FORMAT of type {kind}")
        if r.ndr64:
            r.align(align)
        value = QueueFormat(kind, None, suffix)
        put(value)
        arm = _ARMS[kind]
        if arm is not None:
            r.align(arm.alignment(r.ndr64))
            arm.read(r, lambda got: setattr(value, "value", got))
        if r.ndr64:
            r.align(align)


QUEUE_FORMAT = QueueFormatCodec()

# PROPVARIANT arms [MQMQ 2.2.13]
VT_NULL, VT_I4, VT_BOOL, VT_UI1, VT_UI2, VT_UI4, VT_I8, VT_UI8, VT_LPWSTR, VT_BLOB, VT_CLSID = (
    1, 3, 11, 17, 18, 19, 20, 21, 31, 65, 72,
)  # fmt: skip
VT_VECTOR = 0x1000


@dataclass
class Variant:
    """PROPVARIANT: a type and its value (bytes of a blob, a list of a vector)."""

    vt: int
    value: Any = None


class _Blob(Codec):
    """{ u32 cbSize or cElems, ref to a conformant array }."""

    def __init__(self, array: Codec) -> None:
        self.pointer = Pointer(array)

    def alignment(self, ndr64: bool) -> int:
        return 8 if ndr64 else 4

    def write(self, w: StubWriter, value: Any) -> None:
        w.align(self.alignment(w.ndr64))
        w.integer(len(value), 4)
        self.pointer.write(w, value if len(value) else None)

    def read(self, r: StubReader, put: Put) -> None:
        r.align(self.alignment(r.ndr64))
        size = r.integer(4)

        def check(value: Any) -> None:
            if value is not ... and len(value or b"") != size:
                raise StubError(f"vector of {size} elements with {len(value or b'')}")
            put(b"" if value is None else value)

        self.pointer.read(r, check)


class VariantCodec(Codec):
    """PROPVARIANT: 8-aligned, the tag sent twice (N8, N9)."""

    def alignment(self, ndr64: bool) -> int:
        return 8

    def write(self, w: StubWriter, value: Variant) -> None:
        w.align(8)
        for number, size in ((value.vt, 2), (0, 1), (0, 1), (0, 4)):
            w.integer(number, size)
        w.integer(value.vt, 2)
        arm = variant_arm(value.vt)
        if w.ndr64:
            w.align(8)
        if arm is not None:
            w.align(arm.alignment(w.ndr64))
            arm.write(w, value.value)
        if w.ndr64:
            w.align(8)

    def read(self, r: StubReader, put: Put) -> None:
        r.align(8)
        vt = r.integer(2)
        r.take(6)
        if r.integer(2) != vt:
            raise StubError("PROPVARIANT with two types")
        arm = variant_arm(vt)
        if r.ndr64:
            r.align(8)
        value = Variant(vt)
        put(value)
        if arm is not None:
            r.align(arm.alignment(r.ndr64))
            arm.read(r, lambda got: setattr(value, "value", got))
        if r.ndr64:
            r.align(8)


VARIANT = VariantCodec()
_VARIANT_ARMS: dict[int, Codec | None] = {
    0: None, VT_NULL: None, 16: U8, VT_UI1: U8, 2: U16, VT_UI2: U16, VT_BOOL: U16, VT_I4: U32, VT_UI4: U32,
    VT_I8: U64, VT_UI8: U64, VT_CLSID: Pointer(GUID), VT_LPWSTR: Pointer(TEXT), VT_BLOB: _Blob(CountedOctets()),
    VT_VECTOR | VT_UI1: _Blob(CountedOctets()), VT_VECTOR | VT_UI2: _Blob(Counted(U16)),
    VT_VECTOR | VT_I4: _Blob(Counted(U32)), VT_VECTOR | VT_UI4: _Blob(Counted(U32)),
    VT_VECTOR | VT_UI8: _Blob(Counted(U64)), VT_VECTOR | VT_CLSID: _Blob(Counted(GUID)),
    VT_VECTOR | VT_LPWSTR: _Blob(Counted(Pointer(TEXT))), VT_VECTOR | 12: _Blob(Counted(VARIANT)),
}  # fmt: skip


def variant_arm(vt: int) -> Codec | None:
    """The codec of a variant type; an unknown one makes the stub undecodable."""
    if vt not in _VARIANT_ARMS:
        raise StubError(f"variant type 0x{vt:04X}")
    return _VARIANT_ARMS[vt]


class MgmtObjectCodec(Codec):
    """MGMT_OBJECT [MQMR 2.2.1.2]: {"type": 1 machine, 2 queue, 3 session; "queue": QUEUE_FORMAT or None}."""

    arm = Pointer(QUEUE_FORMAT)

    def alignment(self, ndr64: bool) -> int:
        return 8 if ndr64 else 4

    def write(self, w: StubWriter, value: Any) -> None:
        align = self.alignment(w.ndr64)
        w.align(align)
        ENUM.write(w, value["type"])
        if w.ndr64:
            w.align(align)
        ENUM.write(w, value["type"])
        w.align(align)
        if value["type"] == 2:
            self.arm.write(w, value["queue"])
        else:
            w.integer(0, 4)
        if w.ndr64:
            w.align(align)

    def read(self, r: StubReader, put: Put) -> None:
        align = self.alignment(r.ndr64)
        r.align(align)
        tags: list[int] = []
        ENUM.read(r, tags.append)
        if r.ndr64:
            r.align(align)
        ENUM.read(r, tags.append)
        if tags[0] != tags[1] or tags[0] not in {1, 2, 3}:
            raise StubError(f"MGMT_OBJECT of types {tags}")
        r.align(align)
        value: dict[str, Any] = {"type": tags[0], "queue": None}
        put(value)
        if tags[0] == 2:
            self.arm.read(r, value_setter(value, "queue"))
        else:
            r.integer(4)
        if r.ndr64:
            r.align(align)


MGMT_OBJECT = MgmtObjectCodec()

REMOTEREADDESC = Struct(
    ("hRemoteQueue", U32),
    ("hCursor", U32),
    ("ulAction", U32),
    ("ulTimeout", U32),
    ("dwSize", Ranged(0, 0x420000)),
    ("dwQueue", U32),
    ("dwRequestID", U32),
    ("Reserved", U32),
    ("dwArriveTime", U32),
    ("eAckNack", ENUM),
    ("lpBuffer", Pointer(VaryingOctets())),
)
REMOTEREADDESC2 = Struct(("pRemoteReadDesc", Pointer(REMOTEREADDESC)), ("SequentialId", U64))
SECTION_BUFFER = Struct(
    ("SectionBufferType", ENUM),
    ("SectionSizeAlloc", U32),
    ("SectionSize", U32),
    ("pSectionBuffer", Pointer(CountedOctets())),
)


class ZeroTransferBuffer(Codec):
    """CACTransferBufferV1 full of zeros, as Windows sends it with R_QMCreateRemoteCursor (3.5, D6)."""

    def alignment(self, ndr64: bool) -> int:
        return 8 if ndr64 else 4

    def write(self, w: StubWriter, value: Any) -> None:
        w.align(self.alignment(w.ndr64))
        w.data += b"\x00" * (448 if w.ndr64 else 228)

    def read(self, r: StubReader, put: Put) -> None:
        r.align(self.alignment(r.ndr64))
        put(r.take(448 if r.ndr64 else 228))


ZERO_BUFFER = ZeroTransferBuffer()
