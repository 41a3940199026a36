"""Parsing of bind PDUs and their answers: presentation contexts ([C706] 12.6.4.3-5, [MS-RPCE] 2.2.2.4, 3.3.1.5.3)."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import Final

from udfs.dcerpc.interfaces import FEATURE_NEGOTIATION_NAME, FEATURE_NEGOTIATION_PREFIX, TRANSFER_SYNTAX_NAMES

_SYNTAX_BYTES: Final = 20
_RESULT_BYTES: Final = 24
BIND_RESULT_NAMES: Final = ("accepted", "rejected", "rejected", "negotiated")  # 1: by the user, 2: by the provider


class MalformedBindError(Exception):
    """A bind PDU or its answer is shorter than its counts require."""


@dataclass(frozen=True, slots=True)
class ContextElement:
    """One presentation context that a bind proposes (p_cont_elem_t)."""

    context_id: int
    interface_uuid: str
    interface_version: str
    transfer_syntaxes: tuple[str, ...]  # names as in bronze.rpc_binds, in the order of the PDU


@dataclass(frozen=True, slots=True)
class ContextResult:
    """The server's result for one ``ContextElement`` (p_result_t), with the accepted transfer syntax or None."""

    result: str  # as in bronze.rpc_binds
    reason: int  # as on the wire
    transfer_syntax: str | None


def transfer_syntax_name(text: str) -> str:
    """Return the name of a transfer syntax UUID (``NDR``, ``NDR64``, ``feature_negotiation``), else the UUID itself."""
    if text.startswith(FEATURE_NEGOTIATION_PREFIX):
        return FEATURE_NEGOTIATION_NAME
    return TRANSFER_SYNTAX_NAMES.get(text, text)


def parse_bind(body: bytes, order: str, end: int) -> tuple[int, int, int, list[ContextElement]]:
    """Parse a bind or alter_context PDU, whose security trailer (or end) is at ``end``.

    Returns max_xmit_frag, max_recv_frag, assoc_group_id and the context elements. Raises ``MalformedBindError``.
    """
    try:
        xmit, receive, group, count = struct.unpack_from(order + "HHIB", body, 16)
        at = 28
        elements = []
        for _ in range(count):
            context_id, syntaxes = struct.unpack_from(order + "HB", body, at)
            stop = at + 4 + _SYNTAX_BYTES * (1 + syntaxes)
            if stop > end:
                raise MalformedBindError
            interface, version = _parse_syntax(body, at + 4, order)
            offered = tuple(
                transfer_syntax_name(_parse_syntax(body, where, order)[0])
                for where in range(at + 4 + _SYNTAX_BYTES, stop, _SYNTAX_BYTES)
            )
            elements.append(ContextElement(context_id, interface, version, offered))
            at = stop
    except struct.error as error:
        raise MalformedBindError from error
    return xmit, receive, group, elements


def parse_bind_ack(body: bytes, order: str, end: int) -> tuple[int, int, int, str | None, list[ContextResult]]:
    """Parse a bind_ack or alter_context_resp PDU.

    Returns max_xmit_frag, max_recv_frag, assoc_group_id, the secondary address (None when empty) and the results.
    Raises ``MalformedBindError``.
    """
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
            if at + _RESULT_BYTES > end:
                raise MalformedBindError
            result, reason = struct.unpack_from(order + "HH", body, at)
            syntax = _parse_syntax(body, at + 4, order)[0]
            name = BIND_RESULT_NAMES[result] if result < len(BIND_RESULT_NAMES) else "rejected"
            answers.append(ContextResult(name, reason, transfer_syntax_name(syntax) if name == "accepted" else None))
            at += _RESULT_BYTES
    except struct.error as error:
        raise MalformedBindError from error
    return xmit, receive, group, address, answers


def _parse_syntax(body: bytes, at: int, order: str) -> tuple[str, str]:
    """Return UUID and version (``major.minor``) of a p_syntax_id_t."""
    data = body[at : at + 16]
    if len(data) < 16:
        raise MalformedBindError
    name = uuid.UUID(bytes_le=data) if order == "<" else uuid.UUID(bytes=data)
    (version,) = struct.unpack_from(order + "I", body, at + 16)
    return str(name), f"{version & 0xFFFF}.{version >> 16}"
