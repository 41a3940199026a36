r"""Parse format names ([MS-MQMQ] 2.1) into QUEUE_FORMAT structures ([MS-MQMQ] 2.2.7), for requests."""

from __future__ import annotations

import ipaddress
import re
import uuid
from typing import Final

from udfs.queues.queue_format import SUFFIX_TEXTS, QueueFormat

QFT_PUBLIC, QFT_PRIVATE, QFT_DIRECT, QFT_MACHINE, QFT_CONNECTOR, QFT_DL, QFT_MULTICAST, QFT_SUBQUEUE = range(1, 9)
_TYPES_BY_GUID: Final = {"PUBLIC": QFT_PUBLIC, "MACHINE": QFT_MACHINE, "CONNECTOR": QFT_CONNECTOR}
_SUFFIX_NUMBERS: Final = {suffix: number for number, suffix in SUFFIX_TEXTS.items()}
_KIND: Final = re.compile(r"([A-Za-z]+)=(.*)", re.DOTALL)
_NUMBER: Final = re.compile(r"([^\\]+)\\([0-9A-Fa-f]{1,8})")
_SUFFIX_SUBQUEUE: Final = 5  # of m_SuffixAndFlags
_HTTP: Final = re.compile(r"https?://", re.IGNORECASE)


class FormatNameError(ValueError):
    """A text that is not a format name; the message is one line."""


def to_format_name(name: str) -> str:
    r"""Return a queue name as a format name: a path name ``host\private$\q`` becomes a direct name, others stay."""
    return name if "=" in name.partition("\\")[0] else f"DIRECT=OS:{name}"


def parse_format_name(name: str) -> QueueFormat:
    r"""Parse a format name into a QUEUE_FORMAT; raises FormatNameError.

    The suffix of a direct name is both in ``suffix`` and in ``text``, as in messages; a direct name with another text
    behind its semicolon names a subqueue ([MS-MQMQ] 2.1.2). Multiple-element format names are not supported.
    """
    found = _KIND.fullmatch(name)
    if found is None or "\0" in name or len(name) > 32_000:
        raise FormatNameError(f"not a format name: {name[:200]!r}")
    kind, rest = found[1].upper(), found[2]
    try:
        if kind == "DIRECT":
            return _parse_direct_name(rest)
        base, semicolon, last = rest.partition(";")
        suffix = _SUFFIX_NUMBERS[f";{last.upper()}"] if semicolon else 0
        if kind in _TYPES_BY_GUID:
            return QueueFormat(_TYPES_BY_GUID[kind], suffix, str(uuid.UUID(base)))
        if kind == "PRIVATE" and (private := _NUMBER.fullmatch(base)):
            return QueueFormat(QFT_PRIVATE, suffix, str(uuid.UUID(private[1])), int(private[2], 16))
        if kind == "DL":
            guid, _, domain = base.partition("@")
            return QueueFormat(QFT_DL, suffix, str(uuid.UUID(guid)), text=domain or None)
        if kind == "MULTICAST":
            address, _, port = base.rpartition(":")
            number = int.from_bytes(ipaddress.IPv4Address(address).packed, "little")
            return QueueFormat(QFT_MULTICAST, suffix, number=number, port=int(port))
    except (KeyError, ValueError) as error:
        raise FormatNameError(f"not a format name: {name[:200]!r}") from error
    raise FormatNameError(f"not a format name: {name[:200]!r}")


def _parse_direct_name(text: str) -> QueueFormat:
    base, semicolon, last = text.partition(";")
    if not base:
        raise ValueError(text)
    if not semicolon or _HTTP.match(text):
        return QueueFormat(QFT_DIRECT, text=text)
    suffix = _SUFFIX_NUMBERS.get(f";{last.upper()}")
    if suffix is None:
        return QueueFormat(QFT_SUBQUEUE, _SUFFIX_SUBQUEUE, text=text)
    return QueueFormat(QFT_DIRECT, suffix, text=text)
