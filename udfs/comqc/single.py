"""The single-value reader: one message body to a dictionary. Slow and simple, for tests, notebooks and chasing a bug.

It shares the constants of ``layout.py`` and the reader of single dispatch calls with the column reader; how a message
is walked and judged it says in its own words, so that each checks the other.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final
from uuid import UUID

from udfs.comqc import layout
from udfs.comqc.layout import CHDR, METH, PART, SECD, SECR, SMTH, TRAILER
from udfs.comqc.values import type_name
from udfs.comqc.variants import read_invoke

Row = dict[str, Any]

_UUID: Final = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_TARGET: Final = re.compile(rf"(|{_UUID}|\{{{_UUID}\}})\0")


class _RejectedError(Exception):
    def __init__(self, reason: int, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset


class _CutError(Exception):
    """What comes next was not seen."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class _Message:
    """One body on its way: what holds for the method calls to come, and those that were read."""

    def __init__(self, body: bytes, size: int) -> None:
        self.body = body
        self.size = size
        self.target: Row = {}
        self.partition: str | None = None
        self.interface: str | None = None
        self.secds: list[int] = []
        self.security: int | None = None
        self.before = CHDR
        self.calls: list[Row] = []

    def u32(self, at: int) -> int:
        return int(struct.unpack_from("<I", self.body, at)[0])

    def guid(self, at: int) -> str:
        return str(UUID(bytes_le=self.body[at : at + 16]))

    def container(self) -> int:
        """Read the container header; return where the next one begins."""
        body = self.body
        if self.size < 8:
            raise _RejectedError(layout.NO_CONTAINER, 0)
        if len(body) < 8:
            raise _CutError(0)
        if body[:4] != b"CHDR":
            raise _RejectedError(layout.NO_CONTAINER, 0)
        size = self.u32(4)
        _demand(size % 8 == 0, layout.SIZE_UNEVEN, 4)
        _demand(size >= 120, layout.SHORT_CONTAINER, 4)
        _demand(size <= self.size, layout.SIZE_BEYOND, 4)
        if size > len(body):
            raise _CutError(0)
        _demand(body[8:24] == layout.MESSAGE_SIGNATURE, layout.MESSAGE_SIGNATURE_WRONG, 8)
        _demand(self.u32(24) == self.u32(28) == 1, layout.VERSION, 24)
        _demand(self.u32(32) == self.size, layout.MESSAGE_SIZE, 32)
        _demand(self.u32(68) == size - 80, layout.TARGET_SIZE, 68)
        _demand(body[80:96] == layout.TARGET_STRUCTURE, layout.TARGET_ID, 80)
        length = self.u32(112)
        _demand(116 + length <= size, layout.TARGET_STRING, 112)
        text = body[116 : 116 + length].decode("utf-16-le", "replace")
        _demand(length % 2 == 0 and _TARGET.fullmatch(text) is not None, layout.TARGET_STRING, 116)
        self.target = {"target_clsid": self.guid(96), "target_text": text[:-1]}
        return size

    def header(self, at: int) -> int:
        """Read one header behind the container's; return where the next one begins."""
        left, seen = self.size - at, len(self.body) - at
        if seen < min(left, 8):
            raise _CutError(at)
        _demand(left >= 8, layout.HEADER_CUT, at)
        kind = layout.SIGNATURES.get(self.u32(at), 0)
        size = self.u32(at + 4)
        _demand(kind != 0, layout.SIGNATURE, at)
        _demand(kind != CHDR, layout.CONTAINER_AGAIN, at)
        _demand(size % 8 == 0, layout.SIZE_UNEVEN, at)
        _demand(kind != SECR or size == 16, layout.REFERENCE_SIZE, at)
        _demand(kind != PART or size == 24, layout.PARTITION_SIZE, at)
        _demand(size >= layout.FIXED[kind], layout.SIZE_SMALL, at)
        _demand(size <= left, layout.SIZE_BEYOND, at)
        if size > seen:
            raise _CutError(at)
        if kind == PART and self.before != CHDR:
            kind = TRAILER
        _demand(kind not in (SECR, METH, SMTH) or bool(self.secds), layout.NO_SECURITY, at)
        _demand(kind in layout.FOLLOWS[self.before], layout.ORDER, at)
        if kind in (PART, TRAILER):
            self.partition = self.partition or self.guid(at + 8)
        elif kind in (SECD, SECR):
            self.secure(kind, at, size)
        else:
            self.method(kind, at, size)
        self.before = kind
        return at + size

    def secure(self, kind: int, at: int, size: int) -> None:
        if kind == SECD:
            _demand(self.u32(at + 8) <= size - 16, layout.SECURITY_SIZE, at)
            self.secds.append(at)
            self.security = at
        else:
            _demand(self.u32(at + 8) in self.secds, layout.REFERENCE_OFFSET, at)
            self.security = self.u32(at + 8)

    def method(self, kind: int, at: int, size: int) -> None:
        _demand(kind == METH or self.interface is not None, layout.FIRST_SHORT, at)
        opnum, representation, flags, length, reserved = struct.unpack_from("<5I", self.body, at + 8)
        _demand(representation == 0x10, layout.DATA_REPRESENTATION, at)
        _demand(flags == 0x1000, layout.FLAGS, at)
        _demand(length <= size - layout.FIXED[kind], layout.MARSHALED_SIZE, at)
        _demand(reserved == 1, layout.RESERVED, at)
        if kind == METH:
            self.interface = self.guid(at + 32)
        begin = at + layout.FIXED[kind]
        call: Row = {
            **self.target,
            "call_index": len(self.calls),
            "header_offset": at,
            "header": layout.NAMES[kind],
            "interface_id": self.interface,
            "is_dispatch": self.interface == str(UUID(bytes_le=layout.IID_IDISPATCH)),
            "opnum": opnum if opnum < 1 << 31 else None,
            "data_representation": representation,
            "flags": flags,
            "marshaled_bytes": length,
            "marshaled": self.body[begin : begin + length],
            "security_offset": self.security,
            "security_index": self.secds.index(self.security or 0),
            "errors": [] if opnum < 1 << 31 else [("malformed", "Method Number", 0)],
        }
        if call["is_dispatch"] and opnum == layout.INVOKE_OPNUM:
            call |= _dispatch(call["marshaled"])
        self.calls.append(call)


def _demand(holds: bool, reason: int, offset: int) -> None:  # noqa: FBT001  (the rule)
    if not holds:
        raise _RejectedError(reason, offset)


def _dispatch(marshaled: bytes) -> Row:
    invoke = read_invoke(marshaled)
    error = invoke.error
    return {
        "dispatch_id": invoke.dispatch_id,
        "dispatch_flags": invoke.flags,
        "named_dispatch_ids": invoke.named,
        "arguments": None
        if invoke.arguments is None
        else [(each[0], type_name(each[0]), each[1]) if each else (None, None, None) for each in invoke.arguments],
        "errors": [] if error is None else [(error.code, error.field, error.offset)],
    }


def decode_body(body: bytes, body_bytes: int | None = None) -> Row:
    """Return what one body holds: ``comqc_rejected``, ``rejected_offset``, ``errors`` and ``calls``.

    As ``decode_comqc`` gives them; errors are (code, field, offset), arguments (vt, vt_name, value). ``body_bytes`` is
    the declared size of a body of which not all was seen.
    """
    message = _Message(body, max(len(body), body_bytes or 0))
    out: Row = {"comqc_rejected": None, "rejected_offset": None, "errors": [], "calls": []}
    try:
        at = message.container()
        while at < message.size:
            at = message.header(at)
        _demand(bool(message.calls), layout.NO_METHOD, at)
        _demand(message.before not in (SECD, SECR), layout.SECURITY_WITHOUT_METHOD, at)
    except _CutError as cut:
        out["errors"] = [("truncated", "body", cut.offset)]
    except _RejectedError as rejected:
        out["comqc_rejected"] = layout.REASONS[rejected.reason]
        out["rejected_offset"] = rejected.offset
        return out
    out["calls"] = [call | {"partition_id": message.partition} for call in message.calls]
    return out
