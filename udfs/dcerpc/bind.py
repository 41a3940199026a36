"""Binds: presentation contexts asked for and granted ([C706] 12.6.4.3-5, [MS-RPCE] 2.2.2.4, 3.3.1.5.3)."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import Final

from udfs.dcerpc.interfaces import FEATURE_NEGOTIATION, FEATURE_NEGOTIATION_PREFIX, TRANSFER_SYNTAX

_SYNTAX_SIZE: Final = 20
_RESULT_SIZE: Final = 24
RESULTS: Final = ("accepted", "rejected", "rejected", "negotiated")  # user rejection, provider rejection


class MalformedBindError(Exception):
    """A bind or its answer whose counts do not fit its length."""


@dataclass(frozen=True, slots=True)
class Element:
    """One presentation context asked for."""

    context_id: int
    interface: str  # UUID
    version: str
    syntaxes: tuple[str, ...]  # as they are named in rpc_binds


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one element: ``result`` as in rpc_binds, ``reason`` as on the wire, the accepted syntax or None."""

    result: str
    reason: int
    syntax: str | None


def syntax_name(text: str) -> str:
    """Return the name of a transfer syntax: ``NDR``, ``NDR64``, ``feature_negotiation``, else its UUID."""
    if text.startswith(FEATURE_NEGOTIATION_PREFIX):
        return FEATURE_NEGOTIATION
    return TRANSFER_SYNTAX.get(text, text)


def parse_bind(body: bytes, order: str, end: int) -> tuple[int, int, int, list[Element]]:
    """Read a bind or alter_context PDU up to its auth trailer at ``end``.

    Returns max_xmit_frag, max_recv_frag, assoc_group_id and the elements; raises ``MalformedBindError``.
    """
    try:
        xmit, receive, group, count = struct.unpack_from(order + "HHIB", body, 16)
        at = 28
        elements = []
        for _ in range(count):
            context_id, syntaxes = struct.unpack_from(order + "HB", body, at)
            stop = at + 4 + _SYNTAX_SIZE * (1 + syntaxes)
            if stop > end:
                raise MalformedBindError
            interface, version = _syntax(body, at + 4, order)
            offered = tuple(
                syntax_name(_syntax(body, where, order)[0])
                for where in range(at + 4 + _SYNTAX_SIZE, stop, _SYNTAX_SIZE)
            )
            elements.append(Element(context_id, interface, version, offered))
            at = stop
    except struct.error as error:
        raise MalformedBindError from error
    return xmit, receive, group, elements


def parse_bind_ack(body: bytes, order: str, end: int) -> tuple[int, int, int, str | None, list[Answer]]:
    """Read a bind_ack or alter_context_resp PDU; like ``parse_bind``, with the secondary address (None when empty)."""
    try:
        xmit, receive, group, size = struct.unpack_from(order + "HHIH", body, 16)
        at = 26 + size
        if at > end:
            raise MalformedBindError
        address = body[26:at].split(b"\0")[0].decode("ascii", "replace") or None
        at += -at % 4
        (count,) = struct.unpack_from("B", body, at)
        at += 4
        answers = []
        for _ in range(count):
            if at + _RESULT_SIZE > end:
                raise MalformedBindError
            result, reason = struct.unpack_from(order + "HH", body, at)
            syntax = _syntax(body, at + 4, order)[0]
            name = RESULTS[result] if result < len(RESULTS) else "rejected"
            answers.append(Answer(name, reason, syntax_name(syntax) if name == "accepted" else None))
            at += _RESULT_SIZE
    except struct.error as error:
        raise MalformedBindError from error
    return xmit, receive, group, address, answers


def _syntax(body: bytes, at: int, order: str) -> tuple[str, str]:
    data = body[at : at + 16]
    if len(data) < 16:
        raise MalformedBindError
    name = uuid.UUID(bytes_le=data) if order == "<" else uuid.UUID(bytes=data)
    (version,) = struct.unpack_from(order + "I", body, at + 16)
    return str(name), f"{version & 0xFFFF}.{version >> 16}"
