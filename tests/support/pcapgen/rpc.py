"""Connection-oriented DCE/RPC PDUs as bytes ([C706] 12.6.3, [MS-RPCE] 2.2.2), in both byte orders, sealed or not."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, replace

REQUEST, RESPONSE, FAULT, BIND, BIND_ACK, BIND_NAK, ALTER, ALTER_RESP = 0, 2, 3, 11, 12, 13, 14, 15
AUTH3, SHUTDOWN, CO_CANCEL, ORPHANED = 16, 17, 18, 19
FIRST, LAST, CANCEL, MPX, DID_NOT_EXECUTE, MAYBE, OBJECT = 0x01, 0x02, 0x04, 0x10, 0x20, 0x40, 0x80

NDR = ("8a885d04-1ceb-11c9-9fe8-08002b104860", 2)
NDR64 = ("71710533-beba-4937-8319-b5dbef9ccc36", 1)
FEATURES = ("6cb71c2c-9812-4540-0300-000000000000", 1)
QM2QM = "1088a980-eae5-11d0-8d9b-00a02453c337"
REMOTE_READ = "1a9134dd-7b39-45ba-ad88-44d01ca47f28"
QMMGMT = "41208ee0-e970-11d1-9b9e-00e02c064c39"
QMCOMM = "fdb3a030-065f-11d1-bb9b-00a024ea5525"
QMCOMM2 = "76d12b80-3467-11d3-91ff-0090272f9ea3"
EPM = "e1af8308-5d1f-11c9-91a4-08002b14a0fa"
WINREG = "338cd001-2244-31f1-aaaa-900038001003"  # an interface that is not MSMQ
VERIFICATION_SIGNATURE = bytes.fromhex("8ae3137102f43671")  # [MS-RPCE] 2.2.2.13


@dataclass(frozen=True)
class Auth:
    """A security trailer; ``align``: the multiple to which the sender pads the stub."""

    kind: int
    level: int
    token: bytes
    context: int = 0
    align: int = 16


def guid(text: str, order: str = "<") -> bytes:
    """Return a UUID in wire form: the first three fields in the PDU's byte order."""
    value = uuid.UUID(text)
    return value.bytes_le if order == "<" else value.bytes


def syntax(name: tuple[str, int], order: str = "<") -> bytes:
    """Return UUID and version of a syntax in wire form."""
    return guid(name[0], order) + struct.pack(order + "I", name[1])


def drep(order: str) -> bytes:
    return b"\x10\0\0\0" if order == "<" else b"\0\0\0\0"


def pdu(
    kind: int,
    call_id: int,
    body: bytes = b"",
    *,
    flags: int = FIRST | LAST,
    order: str = "<",
    auth: Auth | None = None,
    stub_at: int = 0,
    minor: int = 0,
) -> bytes:
    """Return one PDU; ``body`` follows the 16-byte header, padding counts from ``stub_at`` in the body."""
    trailer = b""
    token = b""
    if auth is not None:
        token = auth.token
        pad = -(len(body) - stub_at) % auth.align
        trailer = b"\xbb" * pad + struct.pack(order + "BBBBI", auth.kind, auth.level, pad, 0, auth.context) + token
    size = 16 + len(body) + len(trailer)
    head = struct.pack(order + "BBBB4sHHI", 5, minor, kind, flags, drep(order), size, len(token), call_id)
    return head + body + trailer


def split_stub(stub: bytes, sizes: tuple[int, ...]) -> list[bytes]:
    """Split a stub into parts of the given sizes; the last part is the rest."""
    out = []
    for size in sizes:
        out.append(stub[:size])
        stub = stub[size:]
    return [*out, stub]


def fragments(
    kind: int,
    call_id: int,
    stub: bytes,
    *,
    context: int = 0,
    opnum: int = 0,
    cuts: tuple[int, ...] = (),
    order: str = "<",
    auth: Auth | None = None,
    obj: str | None = None,
    flags: int = 0,
    minor: int = 0,
) -> list[bytes]:
    """Return a request or response as ``len(cuts) + 1`` PDUs."""
    parts = split_stub(stub, cuts)
    out = []
    left = len(stub)
    for index, part in enumerate(parts):
        mark = flags | (FIRST if index == 0 else 0) | (LAST if index == len(parts) - 1 else 0)
        head = struct.pack(order + "IHH", left, context, opnum if kind == REQUEST else 0)
        if obj is not None:
            mark |= OBJECT
            head += guid(obj, order)
        out.append(pdu(kind, call_id, head + part, flags=mark, order=order, auth=auth, stub_at=len(head), minor=minor))
        left -= len(part)
    return out


def fault(
    call_id: int,
    status: int,
    *,
    context: int = 0,
    order: str = "<",
    flags: int = FIRST | LAST,
    auth: Auth | None = None,
) -> bytes:
    body = struct.pack(order + "IHBBII", 32, context, 0, 0, status, 0)
    return pdu(FAULT, call_id, body, flags=flags, order=order, auth=auth, stub_at=len(body))


@dataclass(frozen=True)
class Context:
    """A proposed presentation context and the server's result: 0 accepted, 2 rejected, 3 negotiated."""

    number: int
    interface: str
    offered: tuple[tuple[str, int], ...] = (NDR,)
    version: int = 1
    result: int = 0
    reason: int = 0

    @property
    def accepted(self) -> tuple[str, int]:
        return self.offered[-1]

    def rejected(self, reason: int = 2) -> Context:
        return replace(self, result=2, reason=reason)


def bind(
    contexts: tuple[Context, ...],
    call_id: int = 1,
    *,
    kind: int = BIND,
    group: int = 0,
    xmit: int = 5840,
    recv: int = 5840,
    order: str = "<",
    flags: int = FIRST | LAST,
    auth: Auth | None = None,
) -> bytes:
    """Return a bind or alter_context PDU."""
    body = struct.pack(order + "HHIBBH", xmit, recv, group, len(contexts), 0, 0)
    for context in contexts:
        body += struct.pack(order + "HBB", context.number, len(context.offered), 0)
        body += syntax((context.interface, context.version), order)
        body += b"".join(syntax(each, order) for each in context.offered)
    auth = None if auth is None else replace(auth, align=4)
    return pdu(kind, call_id, body, flags=flags, order=order, auth=auth)


def bind_ack(
    contexts: tuple[Context, ...],
    call_id: int = 1,
    *,
    kind: int = BIND_ACK,
    group: int = 0x1234,
    address: bytes = b"2103\0",
    xmit: int = 5840,
    recv: int = 5840,
    order: str = "<",
    auth: Auth | None = None,
) -> bytes:
    """Return a bind_ack or alter_context_resp PDU with the result of each context."""
    body = struct.pack(order + "HHIH", xmit, recv, group, len(address)) + address
    body += bytes(-len(body) % 4)
    body += struct.pack(order + "BBH", len(contexts), 0, 0)
    for context in contexts:
        accepted = syntax(context.accepted, order) if context.result == 0 else bytes(20)
        body += struct.pack(order + "HH", context.result, context.reason) + accepted
    auth = None if auth is None else replace(auth, align=4)
    return pdu(kind, call_id, body, order=order, auth=auth)


def bind_nak(call_id: int, reason: int, order: str = "<") -> bytes:
    return pdu(BIND_NAK, call_id, struct.pack(order + "HBBB", reason, 1, 5, 0) + bytes(3), order=order)


def auth3(call_id: int, auth: Auth, order: str = "<") -> bytes:
    return pdu(AUTH3, call_id, b"\0\0\0\0", order=order, auth=replace(auth, align=4))


def verification_trailer(stub: bytes) -> bytes:
    """Return the stub with a verification trailer of one bit mask command ([MS-RPCE] 2.2.2.13)."""
    padded = stub + bytes(-len(stub) % 4)
    return padded + VERIFICATION_SIGNATURE + struct.pack("<HHI", 0x4001, 4, 1)
