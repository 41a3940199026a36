"""QUEUE_FORMAT structures ([MS-MQMQ] 2.2.7), and the format names ([MS-MQMQ] 2.1) built from them."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

SUFFIX_TEXTS: Final = {1: ";JOURNAL", 2: ";DEADLETTER", 3: ";DEADXACT", 4: ";XACTONLY"}  # [MS-MQMQ] 2.2.7, low nibble
KIND_NAMES: Final = {1: "PUBLIC", 2: "PRIVATE", 4: "MACHINE", 5: "CONNECTOR", 6: "DL"}
_DIRECT_TYPES: Final = (3, 8)
_MULTICAST_TYPE: Final = 7


class QueueFormat(NamedTuple):
    """A decoded QUEUE_FORMAT: ``number`` is Uniquifier or m_address, ``text`` the direct name or the DL's domain."""

    qft: int
    suffix: int = 0
    guid: str | None = None
    number: int = 0
    port: int = 0
    text: str | None = None


def _multicast_address(number: int) -> str:
    # Octets are in network order; a first octet outside 224..239 means that the number was byte-swapped (doubt D26).
    octets = number.to_bytes(4, "little")
    if not 224 <= octets[0] <= 239 and 224 <= octets[3] <= 239:
        octets = octets[::-1]
    return ".".join(map(str, octets))


@lru_cache(maxsize=8192)
def build_format_name(value: QueueFormat) -> str | None:
    r"""Return the format name of a QUEUE_FORMAT: ``DIRECT=OS:host\private$\q``, ``PRIVATE=guid\00000009;JOURNAL``.

    None if it names no queue: m_qft 0, an unknown m_qft, or a NULL string.
    """
    suffix = SUFFIX_TEXTS.get(value.suffix & 0x0F, "")
    if value.qft in _DIRECT_TYPES:
        if value.text is None:
            return None
        has_suffix = value.text.upper().endswith(suffix)  # machine queues carry ;JOURNAL in their text
        return f"DIRECT={value.text}{'' if has_suffix else suffix}"
    if value.qft == _MULTICAST_TYPE:
        return f"MULTICAST={_multicast_address(value.number)}:{value.port}{suffix}"
    kind = KIND_NAMES.get(value.qft)
    if kind is None or value.guid is None:
        return None
    rest = ""
    if kind == "PRIVATE":
        rest = f"\\{value.number:08x}"
    elif kind == "DL" and value.text:
        rest = f"@{value.text}"
    return f"{kind}={value.guid}{rest}{suffix}"
