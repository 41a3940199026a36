"""QUEUE_FORMAT values ([MS-MQMQ] 2.2.7) as format names ([MS-MQMQ] 2.1)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

SUFFIX: Final = {1: ";JOURNAL", 2: ";DEADLETTER", 3: ";DEADXACT", 4: ";XACTONLY"}  # [MS-MQMQ] 2.2.7, low nibble
_KIND: Final = {1: "PUBLIC", 2: "PRIVATE", 4: "MACHINE", 5: "CONNECTOR", 6: "DL"}
_DIRECT: Final = (3, 8)
_MULTICAST: Final = 7


class QueueFormat(NamedTuple):
    """A QUEUE_FORMAT as read: ``number`` is Uniquifier or m_address, ``text`` the direct name or the DL's domain."""

    qft: int
    suffix: int = 0
    guid: str | None = None
    number: int = 0
    port: int = 0
    text: str | None = None


def _multicast_address(number: int) -> str:
    # The octets stand in network order; a first octet outside 224..239 shows that the number was swapped (doubt D26).
    octets = number.to_bytes(4, "little")
    if not 224 <= octets[0] <= 239 and 224 <= octets[3] <= 239:
        octets = octets[::-1]
    return ".".join(map(str, octets))


@lru_cache(maxsize=8192)
def format_name(value: QueueFormat) -> str | None:
    r"""Return the format name, ``DIRECT=OS:host\private$\q`` or ``PRIVATE=guid\00000009;JOURNAL``.

    None where there is nothing to name: m_qft 0, an unknown m_qft, or a NULL string.
    """
    suffix = SUFFIX.get(value.suffix & 0x0F, "")
    if value.qft in _DIRECT:
        if value.text is None:
            return None
        said = value.text.upper().endswith(suffix)  # machine queues carry ;JOURNAL in their text
        return f"DIRECT={value.text}{'' if said else suffix}"
    if value.qft == _MULTICAST:
        return f"MULTICAST={_multicast_address(value.number)}:{value.port}{suffix}"
    kind = _KIND.get(value.qft)
    if kind is None or value.guid is None:
        return None
    rest = ""
    if kind == "PRIVATE":
        rest = f"\\{value.number:08x}"
    elif kind == "DL" and value.text:
        rest = f"@{value.text}"
    return f"{kind}={value.guid}{rest}{suffix}"
