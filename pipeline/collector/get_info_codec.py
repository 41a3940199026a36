"""Encodes requests and decodes responses of R_QMMgmtGetInfo in NDR ([MS-MQMR] 3.1.4.1).

Requests are encoded here because impacket's NDR engine misplaces unions. They are little-endian. Responses are decoded
in the byte order of their PDU, by the decoder of single stubs that captures use too.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Sequence
from typing import Any, Final

from udfs.queues.format_name_parser import (
    QFT_CONNECTOR,
    QFT_DIRECT,
    QFT_DL,
    QFT_MACHINE,
    QFT_MULTICAST,
    QFT_PRIVATE,
    QFT_PUBLIC,
    QFT_SUBQUEUE,
    parse_format_name,
)
from udfs.queues.queue_format import QueueFormat
from udfs.stubs.qmmgmt import METHODS
from udfs.stubs.single_stub import decode_single_stub

QMMGMT_SYNTAX_ID: Final = ("41208ee0-e970-11d1-9b9e-00e02c064c39", "1.0")  # qmmgmt, [MS-MQMR] 1.9
GET_INFO_OPNUM: Final = 0
MAX_PROPERTIES_PER_CALL: Final = 128  # cp has range(1, 128), [MS-MQMR] 3.1.4.1
_MACHINE_OBJECT, _QUEUE_OBJECT = 1, 2  # MgmtObjectType, [MS-MQMR] 2.2.1.1
_VT_NULL: Final = 1
_REFERENT: Final = 0x00020000


class ResponseError(ValueError):
    """A response that does not decode or does not fit its request; the message gives the position."""


def encode_request(format_name: str | None, properties: Sequence[int]) -> bytes:
    """Return the request stub for properties of a queue, or of the machine (None).

    ValueError for more than ``MAX_PROPERTIES_PER_CALL`` properties, or none.
    """
    if not 1 <= len(properties) <= MAX_PROPERTIES_PER_CALL:
        raise ValueError(f"{len(properties)} properties in one call: 1 to {MAX_PROPERTIES_PER_CALL} are allowed")
    out = bytearray(_encode_object(None if format_name is None else parse_format_name(format_name)))
    out += bytes(-len(out) % 4)
    count = len(properties)
    out += struct.pack(f"<II{count}II", count, count, *properties, count)
    for _ in properties:  # PROPVARIANT: 8-aligned, its type twice, [MS-MQMQ] 2.2.13; rule M03: all are VT_NULL
        out += bytes(-len(out) % 8) + struct.pack("<H6xH", _VT_NULL, _VT_NULL)
    return bytes(out)


def _encode_object(queue: QueueFormat | None) -> bytes:
    """Return MGMT_OBJECT, [MS-MQMR] 2.2.1.2; of the machine for None."""
    if queue is None:
        return struct.pack("<HHI", _MACHINE_OBJECT, _MACHINE_OBJECT, 0)
    out = struct.pack("<HHI", _QUEUE_OBJECT, _QUEUE_OBJECT, _REFERENT)
    out += struct.pack("<BBHB3x", queue.qft, queue.suffix, 0, queue.qft)
    guid = uuid.UUID(queue.guid).bytes_le if queue.guid is not None else b""
    if queue.qft in (QFT_PUBLIC, QFT_MACHINE, QFT_CONNECTOR):
        return out + guid
    if queue.qft == QFT_PRIVATE:
        return out + guid + struct.pack("<I", queue.number)
    if queue.qft == QFT_MULTICAST:
        return out + struct.pack("<II", queue.number, queue.port)
    if queue.qft in (QFT_DIRECT, QFT_SUBQUEUE, QFT_DL):
        return out + guid + _encode_string(queue.text)
    raise ValueError(f"qmmgmt does not accept {queue}")


def _encode_string(text: str | None) -> bytes:
    """Return a unique pointer to a conformant varying string, followed by the string (rule N11)."""
    if text is None:
        return bytes(4)
    raw = text.encode("utf-16-le", "replace") + b"\0\0"
    return struct.pack("<IIII", _REFERENT + 4, len(raw) // 2, 0, len(raw) // 2) + raw


def decode_response(stub: bytes, expected_count: int, *, big_endian: bool) -> tuple[int, list[tuple[int, Any]]]:
    """Return the unsigned HRESULT and the variants of a response as (vt, value).

    ResponseError if the stub does not decode, or has another number of values than requested (rule M07).
    """
    found, errors = decode_single_stub(METHODS[GET_INFO_OPNUM], "response", stub, big_endian=big_endian)
    if errors:
        code, field, offset = errors[0]
        raise ResponseError(f"{code}: {field} at byte {offset}")
    variants = found["values"]
    if len(variants) != expected_count:
        raise ResponseError(f"{len(variants)} values for {expected_count} requested properties")
    return int(found["hresult"]), [(variant.vt, variant.value) for variant in variants]


def encode_value_json(value: Any) -> str | None:  # noqa: ANN401 - any variant's value
    """Return a variant's value as JSON text for a snapshot file; None for VT_NULL and VT_EMPTY."""
    if value is None:
        return None
    return json.dumps(_to_json_value(value), ensure_ascii=False, separators=(",", ":"))


def _to_json_value(value: Any) -> Any:  # noqa: ANN401 - any variant's value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):  # a nested variant
        vt, inner = value
        return {"vt": vt, "value": _to_json_value(inner)}
    return [_to_json_value(item) for item in value] if isinstance(value, list) else value
