"""PDUs of connection-oriented DCE/RPC, written and read ([C706] 12.6, [MS-RPCE] 2.2.2; fact sheet section 1).

Independent of the decoders under test, so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

HEADER = 16
DREP_LITTLE = b"\x10\x00\x00\x00"
DREP_BIG = b"\x00\x00\x00\x00"


class PduType(IntEnum):
    """PTYPE (1.2)."""

    REQUEST = 0
    RESPONSE = 2
    FAULT = 3
    BIND = 11
    BIND_ACK = 12
    BIND_NAK = 13
    ALTER_CONTEXT = 14
    ALTER_CONTEXT_RESP = 15
    AUTH3 = 16
    SHUTDOWN = 17
    CO_CANCEL = 18
    ORPHANED = 19


class Flag(IntFlag):
    """pfc_flags (1.3)."""

    FIRST = 0x01
    LAST = 0x02
    PENDING_CANCEL = 0x04  # in bind and alter_context the same bit asks for header signing
    CONC_MPX = 0x10
    DID_NOT_EXECUTE = 0x20
    MAYBE = 0x40
    OBJECT = 0x80


WHOLE = Flag.FIRST | Flag.LAST


class ProtocolError(Exception):
    """The received octets are not a PDU that is valid here."""


@dataclass(frozen=True)
class Syntax:
    """A p_syntax_id_t: UUID and version (major in the low half)."""

    uuid: uuid.UUID
    version: int = 1

    def pack(self, order: str = "<") -> bytes:
        raw = self.uuid.bytes_le if order == "<" else self.uuid.bytes
        return raw + struct.pack(order + "I", self.version)

    @classmethod
    def unpack(cls, data: bytes, order: str = "<") -> Syntax:
        raw = bytes(data[:16])
        ident = uuid.UUID(bytes_le=raw) if order == "<" else uuid.UUID(bytes=raw)
        return cls(ident, struct.unpack_from(order + "I", data, 16)[0])


NDR = Syntax(uuid.UUID("8a885d04-1ceb-11c9-9fe8-08002b104860"), 2)
NDR64 = Syntax(uuid.UUID("71710533-beba-4937-8319-b5dbef9ccc36"), 1)
NO_SYNTAX = Syntax(uuid.UUID(int=0), 0)
_FEATURES = "6cb71c2c-9812-4540-{:02x}00-000000000000"


def features(bits: int) -> Syntax:
    """Bind-time feature negotiation: the bits travel inside the UUID (1.7)."""
    return Syntax(uuid.UUID(_FEATURES.format(bits)), 1)


def feature_bits(syntax: Syntax) -> int | None:
    """The bits of a feature-negotiation syntax, None for any other syntax."""
    text = str(syntax.uuid)
    return int(text[19:21], 16) if text.startswith("6cb71c2c-9812-4540-") else None


@dataclass(frozen=True)
class Auth:
    """sec_trailer with its token (1.5)."""

    type: int
    level: int
    context_id: int = 1
    token: bytes = b""
    pad: int = 0


@dataclass
class Pdu:
    """One PDU: its header, the body between header and authentication padding, and the security trailer."""

    type: int
    call_id: int
    body: bytes = b""
    flags: int = WHOLE
    auth: Auth | None = None
    order: str = "<"

    def pack(self, align: int = 4) -> bytes:
        """The octets; with `auth` the body is padded to `align` from the start of the PDU."""
        body = self.body
        trailer = b""
        if self.auth is not None:
            pad = -(HEADER + len(body)) % align
            body += b"\x00" * pad
            trailer = struct.pack(self.order + "BBBBI", self.auth.type, self.auth.level, pad, 0, self.auth.context_id)
            trailer += self.auth.token
        return header(self, len(body) + len(trailer)) + body + trailer


def header(pdu: Pdu, rest: int) -> bytes:
    """The 16 octets in front of `rest` octets of body and trailer."""
    drep = DREP_LITTLE if pdu.order == "<" else DREP_BIG
    auth_length = len(pdu.auth.token) if pdu.auth else 0
    return (
        struct.pack("BBBB", 5, 0, pdu.type, pdu.flags)
        + drep
        + struct.pack(pdu.order + "HHI", HEADER + rest, auth_length, pdu.call_id)
    )


def frag_length(head: bytes) -> int:
    """Length of the PDU that these 16 octets begin."""
    if head[0] != 5 or head[1] > 1:
        raise ProtocolError(f"not a DCE/RPC PDU: {head.hex()}")
    length: int = struct.unpack_from("<H" if head[4] & 0x10 else ">H", head, 8)[0]
    if length < HEADER:
        raise ProtocolError(f"fragment length {length}")
    return length


def parse(data: bytes) -> Pdu:
    """Read one whole PDU; the body still holds sealed octets and their padding when the level says so."""
    order = "<" if data[4] & 0x10 else ">"
    length, auth_length, call_id = struct.unpack_from(order + "HHI", data, 8)
    if length != len(data):
        raise ProtocolError("fragment length and octets differ")
    if not auth_length:
        return Pdu(data[2], call_id, data[HEADER:], data[3], None, order)
    trailer = length - auth_length - 8
    if trailer < HEADER:
        raise ProtocolError("authentication token longer than the PDU")
    kind, level, pad, _, context = struct.unpack_from(order + "BBBBI", data, trailer)
    auth = Auth(kind, level, context, data[trailer + 8 :], pad)
    return Pdu(data[2], call_id, data[HEADER:trailer], data[3], auth, order)


@dataclass
class Context:
    """One presentation context element of a bind or alter_context."""

    id: int
    abstract: Syntax
    transfers: list[Syntax]


@dataclass
class Result:
    """One result of bind_ack or alter_context_resp: 0 accepted, 2 provider rejection, 3 negotiate_ack."""

    result: int
    reason: int
    transfer: Syntax = NO_SYNTAX


@dataclass
class Bind:
    """Body of bind and alter_context (1.4)."""

    max_xmit: int = 5840
    max_recv: int = 5840
    group: int = 0
    contexts: list[Context] = field(default_factory=list)

    def pack(self, order: str = "<") -> bytes:
        out = struct.pack(order + "HHIBBH", self.max_xmit, self.max_recv, self.group, len(self.contexts), 0, 0)
        for item in self.contexts:
            out += struct.pack(order + "HBB", item.id, len(item.transfers), 0) + item.abstract.pack(order)
            out += b"".join(transfer.pack(order) for transfer in item.transfers)
        return out

    @classmethod
    def unpack(cls, body: bytes, order: str = "<") -> Bind:
        max_xmit, max_recv, group, count = struct.unpack_from(order + "HHIB", body, 0)
        bind = cls(max_xmit, max_recv, group)
        at = 12
        for _ in range(count):
            ident, transfers = struct.unpack_from(order + "HB", body, at)
            abstract = Syntax.unpack(body[at + 4 :], order)
            at += 24
            item = Context(ident, abstract, [])
            for _ in range(transfers):
                item.transfers.append(Syntax.unpack(body[at:], order))
                at += 20
            bind.contexts.append(item)
        return bind


@dataclass
class BindAck:
    """Body of bind_ack and alter_context_resp (1.4)."""

    max_xmit: int
    max_recv: int
    group: int
    address: str
    results: list[Result] = field(default_factory=list)

    def pack(self, order: str = "<") -> bytes:
        name = self.address.encode("ascii") + b"\x00" if self.address else b""
        out = struct.pack(order + "HHIH", self.max_xmit, self.max_recv, self.group, len(name)) + name
        out += b"\x00" * (-(HEADER + len(out)) % 4)
        out += struct.pack(order + "BBH", len(self.results), 0, 0)
        for item in self.results:
            out += struct.pack(order + "HH", item.result, item.reason) + item.transfer.pack(order)
        return out

    @classmethod
    def unpack(cls, body: bytes, order: str = "<") -> BindAck:
        max_xmit, max_recv, group, length = struct.unpack_from(order + "HHIH", body, 0)
        address = body[10 : 10 + length].rstrip(b"\x00").decode("ascii")
        at = 10 + length
        at += -(HEADER + at) % 4
        ack = cls(max_xmit, max_recv, group, address)
        count = body[at]
        at += 4
        for _ in range(count):
            result, reason = struct.unpack_from(order + "HH", body, at)
            ack.results.append(Result(result, reason, Syntax.unpack(body[at + 4 :], order)))
            at += 24
        return ack


def bind_nak_body(reason: int) -> bytes:
    """Body of bind_nak: the reason and the one protocol version there is (1.4)."""
    return struct.pack("<HBBB", reason, 1, 5, 0) + b"\x00" * 3


def request_body(context: int, opnum: int, stub: bytes, hint: int, obj: uuid.UUID | None, order: str) -> bytes:
    """Body of a request fragment."""
    out = struct.pack(order + "IHH", hint, context, opnum)
    if obj is not None:
        out += obj.bytes_le if order == "<" else obj.bytes
    return out + stub


def response_body(context: int, stub: bytes, hint: int, cancels: int = 0) -> bytes:
    """Body of a response fragment."""
    return struct.pack("<IHBB", hint, context, cancels, 0) + stub


def fault_body(context: int, status: int, cancels: int = 0) -> bytes:
    """Body of a fault."""
    return struct.pack("<IHBBII", 32, context, cancels, 0, status, 0)


VERIFICATION_SIGNATURE = bytes.fromhex("8ae3137102f43671")


def verification_trailer(interface: Syntax, transfer: Syntax) -> bytes:
    """A bitmask and a presentation-context command, as Windows clients append them ([MS-RPCE] 2.2.2.13)."""
    bitmask = struct.pack("<HHI", 1, 4, 1)
    contexts = struct.pack("<HH", 2 | 0x4000, 40) + interface.pack() + transfer.pack()
    return VERIFICATION_SIGNATURE + bitmask + contexts


def strip_verification(stub: bytes) -> bytes:
    """The stub without a verification trailer; the padding in front of it stays (it is read over)."""
    at = stub.rfind(VERIFICATION_SIGNATURE)
    return stub[:at] if at >= 0 and at % 4 == 0 else stub
