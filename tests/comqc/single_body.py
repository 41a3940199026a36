"""Decode one COMQC message body in plain Python. Slow and simple: the reference for tests of the column decoder.

It shares with the column decoder the constants of ``container_layout.py`` and the readers of single Invoke calls and of
security data, but not the reading and checking of headers, so that tests can compare the two.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final
from uuid import UUID

from udfs.comqc import container_layout
from udfs.comqc.container_layout import CHDR, METH, PART, SECD, SECR, SMTH, TRAILER
from udfs.comqc.declared_arguments import read_typed_call
from udfs.comqc.declared_interfaces import NO_DECLARATIONS, Declarations, argument_names
from udfs.comqc.security_data import read_security_data
from udfs.comqc.single_invoke import ArgumentText, read_invoke
from udfs.comqc.variant_text import variant_type_name

BodyFields = dict[str, Any]

_UUID: Final = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_TARGET_STRING: Final = re.compile(rf"(|{_UUID}|\{{{_UUID}\}})\0")


class _BodyRejectedError(Exception):
    def __init__(self, reason: int, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset


class _BodyTruncatedError(Exception):
    """The next header was not captured completely; ``offset`` is its offset in the body."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class _BodyReader:
    """Reads the headers of one body; holds the state that applies to the next method call, and the calls so far."""

    def __init__(self, body: bytes, size: int, declarations: Declarations) -> None:
        self.declarations = declarations
        self.body = body
        self.size = size
        self.target: BodyFields = {}
        self.partition: str | None = None
        self.interface_id: str | None = None
        self.security_offsets: list[int] = []
        self.security_offset: int | None = None
        self.last_kind = CHDR
        self.calls: list[BodyFields] = []
        self.deviations: dict[int, list[int]] = {}  # the offsets of each

    def deviates(self, number: int, offset: int) -> None:
        self.deviations.setdefault(number, []).append(offset)

    def read_security_bytes(self, at: int) -> bytes:
        begin = at + container_layout.MIN_HEADER_BYTES[SECD]
        return self.body[begin : begin + self.read_uint32(begin - 8)]

    def read_uint32(self, at: int) -> int:
        return int(struct.unpack_from("<I", self.body, at)[0])

    def read_guid(self, at: int) -> str:
        return str(UUID(bytes_le=self.body[at : at + 16]))

    def read_container_header(self) -> int:
        """Read the container header; returns the offset of the next header."""
        body = self.body
        if self.size < 8:
            raise _BodyRejectedError(container_layout.NO_CONTAINER, 0)
        if len(body) < 8:
            raise _BodyTruncatedError(0)
        if body[:4] != b"CHDR":
            raise _BodyRejectedError(container_layout.NO_CONTAINER, 0)
        size = self.read_uint32(4)
        _require(size % 8 == 0, container_layout.SIZE_NOT_MULTIPLE_OF_8, 4)
        _require(size >= 120, container_layout.CONTAINER_TOO_SHORT, 4)
        _require(size <= self.size, container_layout.SIZE_BEYOND_MESSAGE, 4)
        if size > len(body):
            raise _BodyTruncatedError(0)
        _require(body[8:24] == container_layout.MESSAGE_SIGNATURE_GUID, container_layout.BAD_MESSAGE_SIGNATURE, 8)
        _require(self.read_uint32(24) == self.read_uint32(28) == 1, container_layout.BAD_VERSION, 24)
        _require(self.read_uint32(32) == self.size, container_layout.BAD_MESSAGE_SIZE, 32)
        _require(self.read_uint32(68) == size - 80, container_layout.BAD_TARGET_SIZE, 68)
        _require(body[80:96] == container_layout.TARGET_STRUCTURE_GUID, container_layout.BAD_TARGET_ID, 80)
        length = self.read_uint32(112)
        _require(116 + length <= size, container_layout.BAD_TARGET_STRING, 112)
        text = body[116 : 116 + length].decode("utf-16-le", "replace")
        _require(
            length % 2 == 0 and _TARGET_STRING.fullmatch(text) is not None, container_layout.BAD_TARGET_STRING, 116
        )
        if length > 2 and UUID(text[:-1]) != UUID(bytes_le=body[96:112]):
            self.deviates(container_layout.TARGET_STRING_DIFFERS, 116)
        self.target = {"target_clsid": self.read_guid(96), "target_text": text[:-1]}
        return size

    def read_header(self, at: int) -> int:
        """Read one header behind the container header; returns the offset of the next one."""
        left, seen = self.size - at, len(self.body) - at
        if seen < min(left, 8):
            raise _BodyTruncatedError(at)
        _require(left >= 8, container_layout.HEADER_TRUNCATED, at)
        kind = container_layout.HEADER_KINDS.get(self.read_uint32(at), 0)
        size = self.read_uint32(at + 4)
        _require(kind != 0, container_layout.UNKNOWN_SIGNATURE, at)
        _require(kind != CHDR, container_layout.SECOND_CONTAINER, at)
        _require(size % 8 == 0, container_layout.SIZE_NOT_MULTIPLE_OF_8, at)
        _require(kind != SECR or size == 16, container_layout.BAD_REFERENCE_SIZE, at)
        _require(kind != PART or size == 24, container_layout.BAD_PARTITION_SIZE, at)
        _require(size >= container_layout.MIN_HEADER_BYTES[kind], container_layout.SIZE_TOO_SMALL, at)
        _require(size <= left, container_layout.SIZE_BEYOND_MESSAGE, at)
        if size > seen:
            raise _BodyTruncatedError(at)
        if kind == PART and self.last_kind != CHDR:
            kind = TRAILER
        _require(kind not in (SECR, METH, SMTH) or bool(self.security_offsets), container_layout.NO_SECURITY, at)
        _require(kind in container_layout.MAY_FOLLOW[self.last_kind], container_layout.HEADER_OUT_OF_ORDER, at)
        if kind in (PART, TRAILER):
            self.partition = self.partition or self.read_guid(at + 8)
        elif kind in (SECD, SECR):
            self.apply_security(kind, at, size)
        else:
            self.read_method(kind, at, size)
        self.last_kind = kind
        return at + size

    def apply_security(self, kind: int, at: int, size: int) -> None:
        before = self.security_offset
        if kind == SECD:
            _require(self.read_uint32(at + 8) <= size - 16, container_layout.BAD_SECURITY_DATA_SIZE, at)
            if self.read_security_bytes(at) in map(self.read_security_bytes, self.security_offsets):
                self.deviates(container_layout.SECURITY_REPEATED, at)
            self.security_offsets.append(at)
            self.security_offset = at
        else:
            _require(self.read_uint32(at + 8) in self.security_offsets, container_layout.BAD_REFERENCE_OFFSET, at)
            self.security_offset = self.read_uint32(at + 8)
            if self.read_security_bytes(self.security_offset) == self.read_security_bytes(before or 0):
                self.deviates(container_layout.REFERENCE_NOT_NEEDED, at)

    def read_method(self, kind: int, at: int, size: int) -> None:
        _require(kind == METH or self.interface_id is not None, container_layout.FIRST_METHOD_WITHOUT_INTERFACE, at)
        opnum, representation, flags, length, reserved = struct.unpack_from("<5I", self.body, at + 8)
        _require(representation == 0x10, container_layout.BAD_DATA_REPRESENTATION, at)
        _require(flags == 0x1000, container_layout.BAD_FLAGS, at)
        _require(length <= size - container_layout.MIN_HEADER_BYTES[kind], container_layout.BAD_MARSHALED_SIZE, at)
        _require(reserved == 1, container_layout.BAD_RESERVED, at)
        if kind == METH:
            if self.interface_id == self.read_guid(at + 32):
                self.deviates(container_layout.INTERFACE_REPEATED, at)
            self.interface_id = self.read_guid(at + 32)
        begin = at + container_layout.MIN_HEADER_BYTES[kind]
        security_data = self.read_security_bytes(self.security_offset or 0)
        security = read_security_data(security_data)
        security_errors = [tuple(each.values()) for each in security.pop("errors")]
        call: BodyFields = {
            **self.target,
            "call_index": len(self.calls),
            "header_offset": at,
            "header": container_layout.CONTAINER_HEADER_NAMES[kind],
            "interface_id": self.interface_id,
            "is_dispatch": self.interface_id == str(UUID(bytes_le=container_layout.IID_IDISPATCH)),
            "opnum": opnum if opnum < 1 << 31 else None,
            "data_representation": representation,
            "flags": flags,
            "marshaled_bytes": length,
            "marshaled": self.body[begin : begin + length],
            "security_offset": self.security_offset,
            "security_index": self.security_offsets.index(self.security_offset or 0),
            "security_bytes": len(security_data),
            "security_data": security_data,
            **security,
            "errors": [] if opnum < 1 << 31 else [("malformed", "Method Number", 0)],
        }
        if call["is_dispatch"] and opnum == container_layout.IDISPATCH_INVOKE_OPNUM:
            call |= _invoke_values(call["marshaled"])
        self.apply_declarations(call)
        call["errors"] += security_errors
        self.calls.append(call)

    def apply_declarations(self, call: BodyFields) -> None:
        """Name a call and its arguments, and read the arguments if it is no dispatch call."""
        if call["is_dispatch"]:
            interface, number = self.declarations.classes.get(call["target_clsid"]), call.get("dispatch_id")
        else:
            interface, number = self.declarations.interfaces.get(call["interface_id"]), call["opnum"]
        call |= {"interface_name": interface and interface.name, "method": None, "argument_names": None}
        method = None if interface is None or number is None else interface.methods.get(number)
        if method is None:
            return
        call["method"] = method.name
        if not call["is_dispatch"]:
            arguments, error = read_typed_call(call["marshaled"], method)
            call["argument_names"] = [parameter.name for parameter in method.parameters]
            call["arguments"] = _argument_fields(arguments)
            call["errors"] += [] if error is None else [(error.code, error.field, error.offset)]
        elif call["arguments"] is not None:
            named = call["named_dispatch_ids"] or ()
            call["argument_names"] = argument_names(method, len(call["arguments"]), named)


def _argument_fields(arguments: list[ArgumentText | None]) -> list[tuple[int | None, str | None, str | None]]:
    return [(each[0], variant_type_name(each[0]), each[1]) if each else (None, None, None) for each in arguments]


def _require(holds: bool, reason: int, offset: int) -> None:
    if not holds:
        raise _BodyRejectedError(reason, offset)


def _invoke_values(marshaled: bytes) -> BodyFields:
    invoke = read_invoke(marshaled)
    error = invoke.error
    return {
        "dispatch_id": invoke.dispatch_id,
        "dispatch_flags": invoke.flags,
        "named_dispatch_ids": invoke.named_dispatch_ids,
        "arguments": None if invoke.arguments is None else _argument_fields(invoke.arguments),
        "errors": [] if error is None else [(error.code, error.field, error.offset)],
    }


def decode_body(body: bytes, body_bytes: int | None = None, declarations: Declarations = NO_DECLARATIONS) -> BodyFields:
    """Decode one body: returns the columns of ``decode_bodies`` by name.

    Deviations are (rule, offset, places), errors (code, field, offset), arguments (vt, vt_name, value). ``body_bytes``
    is the declared size of a body that was captured in part, ``declarations`` are the methods that are known.
    """
    message = _BodyReader(body, max(len(body), body_bytes or 0), declarations)
    out: BodyFields = {
        "comqc_rejected": None, "rejected_offset": None, "comqc_deviations": None, "errors": [], "calls": [],
    }  # fmt: skip
    try:
        at = message.read_container_header()
        while at < message.size:
            at = message.read_header(at)
        _require(bool(message.calls), container_layout.NO_METHOD_CALL, at)
        _require(message.last_kind not in (SECD, SECR), container_layout.SECURITY_WITHOUT_METHOD, at)
    except _BodyTruncatedError as cut:
        out["errors"] = [("truncated", "body", cut.offset)]
    except _BodyRejectedError as rejected:
        out["comqc_rejected"] = container_layout.REJECTION_TEXTS[rejected.reason]
        out["rejected_offset"] = rejected.offset
        return out
    out["comqc_deviations"] = [
        (container_layout.DEVIATION_TEXTS[number], offsets[0], len(offsets))
        for number, offsets in sorted(message.deviations.items())
    ]
    out["calls"] = [call | {"partition_id": message.partition} for call in message.calls]
    return out
