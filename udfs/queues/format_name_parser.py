r"""Format names as people write them ([MS-MQMQ] 2.1) to QUEUE_FORMAT ([MS-MQMQ] 2.2.7): what a question names."""

from __future__ import annotations

import ipaddress
import re
import uuid
from typing import Final

from udfs.queues.format_names import SUFFIX, QueueFormat

PUBLIC, PRIVATE, DIRECT, MACHINE, CONNECTOR, DL, MULTICAST, SUBQUEUE = range(1, 9)
_BY_GUID: Final = {"PUBLIC": PUBLIC, "MACHINE": MACHINE, "CONNECTOR": CONNECTOR}
_SUFFIXES: Final = {suffix: number for number, suffix in SUFFIX.items()}
_KIND: Final = re.compile(r"([A-Za-z]+)=(.*)", re.DOTALL)
_NUMBER: Final = re.compile(r"([^\\]+)\\([0-9A-Fa-f]{1,8})")
_SUBQUEUE: Final = 5  # of m_SuffixAndFlags
_HTTP: Final = re.compile(r"https?://", re.IGNORECASE)


class FormatNameError(ValueError):
    """A text that is no format name; the message is one line."""


def format_name_of(name: str) -> str:
    r"""Return a queue's name as a format name: a path name ``host\private$\q`` as a direct one; others as they are."""
    return name if "=" in name.partition("\\")[0] else f"DIRECT=OS:{name}"


def queue_format(name: str) -> QueueFormat:
    r"""Return the QUEUE_FORMAT that a format name stands for; FormatNameError where it is none.

    The suffix of a direct name stands in ``suffix`` as well as in its text, as messages carry it; a name with another
    text behind its semicolon is a subqueue's ([MS-MQMQ] 2.1.2). Names of several elements cannot be asked about.
    """
    found = _KIND.fullmatch(name)
    if found is None or "\0" in name or len(name) > 32_000:
        raise FormatNameError(f"not a format name: {name[:200]!r}")
    kind, rest = found[1].upper(), found[2]
    try:
        if kind == "DIRECT":
            return _direct(rest)
        base, semicolon, last = rest.partition(";")
        suffix = _SUFFIXES[f";{last.upper()}"] if semicolon else 0
        if kind in _BY_GUID:
            return QueueFormat(_BY_GUID[kind], suffix, str(uuid.UUID(base)))
        if kind == "PRIVATE" and (private := _NUMBER.fullmatch(base)):
            return QueueFormat(PRIVATE, suffix, str(uuid.UUID(private[1])), int(private[2], 16))
        if kind == "DL":
            guid, _, domain = base.partition("@")
            return QueueFormat(DL, suffix, str(uuid.UUID(guid)), text=domain or None)
        if kind == "MULTICAST":
            address, _, port = base.rpartition(":")
            number = int.from_bytes(ipaddress.IPv4Address(address).packed, "little")
            return QueueFormat(MULTICAST, suffix, number=number, port=int(port))
    except (KeyError, ValueError) as error:
        raise FormatNameError(f"not a format name: {name[:200]!r}") from error
    raise FormatNameError(f"not a format name: {name[:200]!r}")


def _direct(text: str) -> QueueFormat:
    base, semicolon, last = text.partition(";")
    if not base:
        raise ValueError(text)
    if not semicolon or _HTTP.match(text):
        return QueueFormat(DIRECT, text=text)
    suffix = _SUFFIXES.get(f";{last.upper()}")
    if suffix is None:
        return QueueFormat(SUBQUEUE, _SUBQUEUE, text=text)
    return QueueFormat(DIRECT, suffix, text=text)
