"""R_QMMgmtGetInfo as NDR writes it ([MS-MQMR] 3.1.4.1), and its answer. impacket's engine misplaces unions, so by hand.

The interface speaks NDR alone, little-endian as every client of this kind sends it; answers are read in the order that
their PDU tells, with the reader of single stubs that serves captures too.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Sequence
from typing import Any, Final

from udfs.queues.format_name_parser import (
    CONNECTOR,
    DIRECT,
    DL,
    MACHINE,
    MULTICAST,
    PRIVATE,
    PUBLIC,
    SUBQUEUE,
    queue_format,
)
from udfs.queues.format_names import QueueFormat
from udfs.stubs.qmmgmt import METHODS
from udfs.stubs.single import decode_stub

INTERFACE: Final = ("41208ee0-e970-11d1-9b9e-00e02c064c39", "1.0")  # qmmgmt, [MS-MQMR] 1.9
GET_INFO: Final = 0
MOST_PROPERTIES: Final = 128  # cp has range(1, 128), [MS-MQMR] 3.1.4.1
_MGMT_MACHINE, _MGMT_QUEUE = 1, 2  # MgmtObjectType, [MS-MQMR] 2.2.1.1
_VT_NULL: Final = 1
_REFERENT: Final = 0x00020000


class AnswerError(ValueError):
    """An answer that is not what was asked for: the message says where its bytes stop making sense."""


def get_info(format_name: str | None, properties: Sequence[int]) -> bytes:
    """Return the request's stub about a queue, or (None) about the machine; at most ``MOST_PROPERTIES``."""
    if not 1 <= len(properties) <= MOST_PROPERTIES:
        raise ValueError(f"{len(properties)} properties in one question: 1 to {MOST_PROPERTIES} are allowed")
    out = bytearray(_managed_object(None if format_name is None else queue_format(format_name)))
    out += bytes(-len(out) % 4)
    count = len(properties)
    out += struct.pack(f"<II{count}II", count, count, *properties, count)
    for _ in properties:  # PROPVARIANT: 8-aligned, its type twice, [MS-MQMQ] 2.2.13; rule M03: all are VT_NULL
        out += bytes(-len(out) % 8) + struct.pack("<H6xH", _VT_NULL, _VT_NULL)
    return bytes(out)


def _managed_object(queue: QueueFormat | None) -> bytes:
    """MGMT_OBJECT, [MS-MQMR] 2.2.1.2."""
    if queue is None:
        return struct.pack("<HHI", _MGMT_MACHINE, _MGMT_MACHINE, 0)
    out = struct.pack("<HHI", _MGMT_QUEUE, _MGMT_QUEUE, _REFERENT)
    out += struct.pack("<BBHB3x", queue.qft, queue.suffix, 0, queue.qft)
    guid = uuid.UUID(queue.guid).bytes_le if queue.guid is not None else b""
    if queue.qft in (PUBLIC, MACHINE, CONNECTOR):
        return out + guid
    if queue.qft == PRIVATE:
        return out + guid + struct.pack("<I", queue.number)
    if queue.qft == MULTICAST:
        return out + struct.pack("<II", queue.number, queue.port)
    if queue.qft in (DIRECT, SUBQUEUE, DL):
        return out + guid + _string(queue.text)
    raise ValueError(f"no queue can be asked about by {queue}")


def _string(text: str | None) -> bytes:
    """A unique pointer to a conformant varying string, its pointee behind it (rule N11)."""
    if text is None:
        return bytes(4)
    raw = text.encode("utf-16-le", "replace") + b"\0\0"
    return struct.pack("<IIII", _REFERENT + 4, len(raw) // 2, 0, len(raw) // 2) + raw


def read_answer(stub: bytes, asked: int, *, big_endian: bool) -> tuple[int, list[tuple[int, Any]]]:
    """Return the HRESULT, unsigned, and the variants of an answer to ``asked`` properties: (vt, value) each.

    AnswerError where the stub does not decode, or holds another number of values than was asked for (rule M07).
    """
    found, errors = decode_stub(METHODS[GET_INFO], "response", stub, big_endian=big_endian)
    if errors:
        code, field, offset = errors[0]
        raise AnswerError(f"{code}: {field} at byte {offset}")
    variants = found["values"]
    if len(variants) != asked:
        raise AnswerError(f"{len(variants)} values for {asked} properties")
    return int(found["hresult"]), [(variant.vt, variant.value) for variant in variants]


def value_json(value: Any) -> str | None:  # noqa: ANN401 - any variant's value
    """Return a value as it stands in a snapshot file; None where the variant holds none (VT_NULL, VT_EMPTY)."""
    if value is None:
        return None
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:  # noqa: ANN401 - any variant's value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):  # a nested variant
        vt, inner = value
        return {"vt": vt, "value": _plain(inner)}
    return [_plain(item) for item in value] if isinstance(value, list) else value
