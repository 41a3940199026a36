"""Build bodies of queued components ([MC-COMQC] 2.2), with dispatch calls ([MS-OAUT]) and Security Data ([MS-COM]).

Padding and reserved fields, which a reader must ignore, are not zero.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from uuid import UUID

MARKER = bytes.fromhex("fbbc64165117d211b58e00e0290e6c31")  # the message's extension
SIGNATURE = bytes.fromhex("83dbbb7141fcd011b7640080c7ec3fc1")
MONIKER = bytes.fromhex("c6afabec197fd211978e0000f8757e2a")
IDISPATCH = bytes.fromhex("0004020000000000c000000000000046")
CLSID = UUID("0d1e2f30-4152-6374-8596-a7b8c9dae0f1")
IID = UUID("11223344-5566-7788-99aa-bbccddeeff00")
PARTITION = UUID("41e90f3e-56c1-4633-81c3-6e8bac8bdd70")
RECORD_TYPE, RECORD_LIBRARY = UUID(int=0x1234), UUID(int=0x5678)
USER = 0x72657355  # referent id of what is marshaled by the user


def chdr(
    *, text: str | None = None, size: int | None = None, total: int = 0, signature: bytes = SIGNATURE,
    versions: tuple[int, int] = (1, 1), identifier: bytes = MONIKER, extra: int = 0,
) -> bytes:  # fmt: skip
    """Return a container header; ``message`` replaces a ``total`` of 0."""
    raw = (f"{{{CLSID}}}\0" if text is None else text).encode("utf-16-le")
    target = identifier + CLSID.bytes_le + struct.pack("<I", len(raw)) + raw
    target += b"\xee" * (-len(target) % 8 + extra)
    head = struct.pack("<II", 0x52444843, 80 + len(target)) + signature + struct.pack("<III", *versions, total)
    return head + b"\xaa" * 32 + struct.pack("<I", len(target) if size is None else size) + b"\xbb" * 8 + target


def part(guid: UUID = PARTITION) -> bytes:
    """Return a partition identifier header."""
    return struct.pack("<II", 0x54524150, 0x18) + guid.bytes_le


def secd(data: bytes = b"\1\0\1\0\0\0\0\0", *, pad: int = 0) -> bytes:
    """Return a security header."""
    body = data + b"\xcc" * (-len(data) % 8 + pad)
    return struct.pack("<IIII", 0x44434553, 16 + len(body), len(data), 0xDDDDDDDD) + body


def secr(offset: int) -> bytes:
    """Return a reference to the security header at an offset of the message."""
    return struct.pack("<IIII", 0x52434553, 16, offset, 0x99999999)


def method(
    data: bytes = b"", *, opnum: int = 6, iid: UUID | bytes | None = IDISPATCH, representation: int = 0x10,
    flags: int = 0x1000, reserved: int = 1, size: int | None = None, pad: bytes = b"",
) -> bytes:  # fmt: skip
    """Return a METH, or an SMTH if ``iid`` is None; ``pad`` follows the data, then padding to a multiple of 8."""
    body = data + pad
    body += b"\x77" * (-len(body) % 8)
    name = 0x48544D53 if iid is None else 0x4854454D
    interface = iid.bytes_le if isinstance(iid, UUID) else iid or b""
    return (
        struct.pack("<IIII", name, 32 + len(interface) + len(body), opnum, representation)
        + struct.pack("<IIII", flags, len(data) if size is None else size, reserved, 0x55555555)
        + interface
        + body
    )


def message(*headers: bytes, trim: int = 0) -> bytes:
    """Join headers and set the total size in the first one."""
    body = b"".join(headers)
    if body[:4] == b"CHDR" and body[32:36] == bytes(4):
        body = body[:32] + struct.pack("<I", len(body)) + body[36:]
    return body[: len(body) - trim]


# Security Data, [MS-COM] 2.2.3.2


def security_property(kind: int, value: bytes | int) -> bytes:
    """Return a property with its padding; a number takes 4 bytes."""
    data = struct.pack("<I", value) if isinstance(value, int) else value
    data += bytes(-len(data) % 4)
    return struct.pack("<2H", kind, len(data)) + data


def security_collection(kind: int, *properties: bytes) -> bytes:
    """Return a collection: of the whole chain (0x0A01), or of one caller (0x0A02)."""
    return struct.pack("<2H", kind, len(properties)) + b"".join(properties)


def security_data(*collections: bytes, versions: tuple[int, int] = (1, 1)) -> bytes:
    """Return the security ORPC extension."""
    return struct.pack("<4H", *versions, 0, len(collections)) + b"".join(collections)


# IDispatch::Invoke, [MS-OAUT] 3.1.4.4


class Ndr:
    """A buffer of NDR bytes with alignment."""

    def __init__(self) -> None:
        self.out = bytearray()

    def put(self, form: str, *numbers: float) -> Ndr:
        for code, number in zip(form, numbers, strict=True):
            size = struct.calcsize(code)
            self.out += b"\xa5" * (-len(self.out) % size) + struct.pack(f"<{code}", number)
        return self

    def align(self, to: int) -> Ndr:
        self.out += b"\xa5" * (-len(self.out) % to)
        return self

    def raw(self, data: bytes) -> Ndr:
        self.out += data
        return self


Writer = Callable[[Ndr], object]


def bstr(text: str | bytes | None) -> Writer:
    """Return a writer of a BSTR's blob: text, bytes (of any number), or None."""

    def write(ndr: Ndr) -> None:
        raw = text.encode("utf-16-le") if isinstance(text, str) else text
        if raw is None:
            ndr.put("III", 0, 0xFFFFFFFF, 0)
            return
        units = (len(raw) + 1) // 2
        ndr.put("III", units, len(raw), units).raw(raw + bytes(len(raw) % 2))

    return write


def variant(
    ndr: Ndr, vt: int, form: str | None = None, *numbers: float, body: Writer | None = None, pointers: int = 0,
    tag: int | None = None,
) -> Ndr:  # fmt: skip
    """Write a VARIANT: pointers, then a value of fixed size or what ``body`` writes; sets clSize."""
    ndr.align(8)
    start = len(ndr.out)
    ndr.put("II", 0, 0x5A5A5A5A).put("HHHH", vt, 1, 2, 3)
    ndr.put("I", (vt & 0x6000 if vt & 0x2000 else vt) if tag is None else tag)
    for _ in range(pointers):
        ndr.put("I", USER)
    if body:
        body(ndr)
    elif form:
        ndr.put(form, *numbers)
    size = -(-(len(ndr.out) - start) // 8)
    ndr.out[start : start + 4] = struct.pack("<I", size)
    return ndr


def numbers_of(form: str, *values: float) -> Writer:
    """Return a writer of numbers of one form."""
    return lambda ndr: ndr.put(form * len(values), *values)


def pointed(*writers: Writer | None) -> Writer:
    """Return a writer of pointers, NULL for None, and of what they point to."""

    def write(ndr: Ndr) -> None:
        ndr.put("I" * len(writers), *[0 if each is None else USER for each in writers])
        for each in writers:
            if each is not None:
                each(ndr)

    return write


def safearray(
    kind: int, elements: Sequence[object], *, write: Writer, features: int = 0, element: int = 0,
    bounds: list[tuple[int, int]] | None = None, width: int = 0,
) -> Writer:  # fmt: skip
    """Write a SAFEARRAY behind its pointers; ``write`` writes what follows the max_count of its elements."""

    def put(ndr: Ndr) -> None:
        dims = bounds or [(len(elements), 0)]
        ndr.put("IHHIII", len(dims), len(dims), features, width, element << 16 | 7, kind)
        ndr.put("II", len(elements), 0x20008)
        for pair in dims:
            ndr.put("Ii", *pair)
        ndr.put("I", len(elements))
        write(ndr)

    return put


def persisted_object(size: int = 32, stream: bytes = b"persisted state!") -> Writer:
    """Return a writer of a persisted object, [MC-COMQC] 2.2.6.1.5."""
    return lambda ndr: ndr.put("III", 0xDEAD, size, 3).raw(CLSID.bytes_le).put("I", 0xBEEF).raw(stream)


def custom_objref(ndr: Ndr) -> None:
    """Write what the pRecInfo of a record points to: an object reference with library and type, version 1.2."""
    info = RECORD_LIBRARY.bytes_le + struct.pack("<I", 1) + RECORD_TYPE.bytes_le + struct.pack("<II", 2, 0x409)
    objref = b"MEOW" + struct.pack("<I", 4) + bytes(32) + struct.pack("<II", 0, len(info)) + info
    ndr.put("II", len(objref), len(objref)).raw(objref)


def brecord(fields: bytes | None, info: Writer = custom_objref) -> Writer:
    """Return a writer of a BRECORD behind its pointer, 2.2.28.2.1; ``info`` writes what pRecInfo points to."""

    def write(ndr: Ndr) -> None:
        size = 0 if fields is None else len(fields) + 4
        ndr.put("IIII", int(size > 0), size, USER, USER if size else 0)
        info(ndr)
        if fields is not None:
            ndr.put("II", size, size).raw(fields)

    return write


def invoke(
    arguments: Sequence[Writer], *, dispid: int = 1, flags: int = 1, named: Sequence[int] = (),
    references: Sequence[tuple[int, Writer]] = (), tail: bytes = b"",
) -> bytes:  # fmt: skip
    """Return the [in] parameters of IDispatch::Invoke.

    ``arguments`` are functions of an Ndr in the order of rgvarg, ``references`` are (index, function).
    """
    ndr = Ndr().put("i", dispid).raw(bytes(16)).put("II", 0x409, flags)
    ndr.put("IIII", 0x20000 if arguments else 0, 0x20004 if named else 0, len(arguments), len(named))
    if arguments:
        ndr.put("I", len(arguments)).put("I" * len(arguments), *[USER] * len(arguments))
        for write in arguments:
            write(ndr)
    if named:
        ndr.put("I", len(named)).put("i" * len(named), *named)
    count = len(references)
    ndr.put("II", count, count).put("I" * count, *(index for index, _ in references))
    ndr.put("I", count).put("I" * count, *[USER] * count)
    for _, write in references:
        write(ndr)
    return bytes(ndr.out) + tail


def value(
    vt: int, form: str | None = None, *numbers: float, body: Writer | None = None, pointers: int = 0,
    tag: int | None = None,
) -> Writer:  # fmt: skip
    """Return a writer of a VARIANT."""
    return lambda ndr: variant(ndr, vt, form, *numbers, body=body, pointers=pointers, tag=tag)


def string(text: str | bytes | None, *, vt: int = 8, pointers: int = 1) -> Writer:
    """Return a writer of a VARIANT with a BSTR."""
    return value(vt, body=bstr(text), pointers=pointers)
