r"""The normal form of queue names: the text in the ``queue`` column of every table.

Lower case. Direct names lose their protocol (``host\private$\name``), which makes them path names; HTTP and HTTPS
names stay whole; private queues are ``guid\%08x``, all others the format name with its kind. The suffix behind a
semicolon stays: journals, dead-letter queues and subqueues are queues of their own ([MS-MQMQ] 2.1).
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final

import pyarrow as pa

from udfs.columns.arrays import over_distinct

_GUID: Final = r"\{?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\}?"
# A private queue: GUID and a number of 1 to 8 hexadecimal digits, with or without "private=" ([MS-MQMQ] 2.1.4).
_PRIVATE: Final = re.compile(rf"(?:private=)?{_GUID}\\([0-9a-f]{{1,8}})(;.*)?", re.DOTALL)
_BY_GUID: Final = re.compile(rf"(public|machine|connector|dl)={_GUID}(.*)", re.DOTALL)
# Separator of the elements of a multiple-element format name ([MS-MQMQ] 2.1.7): a comma before a kind.
_ELEMENTS: Final = re.compile(r",(?=(?:direct|public|private|machine|connector|dl|multicast)=)")
_PROTOCOL: Final = re.compile(r"([a-z]+):(.*)", re.DOTALL)
# Direct names in packets and QUEUE_FORMATs lack "DIRECT=" (doubt D3 of the sheet on packets).
_BARE_DIRECT: Final = re.compile(r"(?:os|tcp|ipx|spx):|https?://")


def _shortest_address(text: str) -> str:
    """Return an IP address in its shortest text form; other text unchanged."""
    try:
        return str(ipaddress.ip_address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        return text


def _normalize_direct_name(name: str) -> str:
    protocol = _PROTOCOL.fullmatch(name)
    if not protocol:
        return name
    if protocol[1] in ("http", "https"):
        return f"direct={name}"
    if protocol[1] != "tcp":
        return protocol[2]
    host, separator, rest = protocol[2].partition("\\")
    return _shortest_address(host) + separator + rest


def _normalize_element(text: str) -> str:
    if private := _PRIVATE.fullmatch(text):
        return f"{private[1]}\\{int(private[2], 16):08x}{private[3] or ''}"
    if named := _BY_GUID.fullmatch(text):
        return f"{named[1]}={named[2]}{named[3]}"
    if text.startswith("direct="):
        return _normalize_direct_name(text.removeprefix("direct="))
    return _normalize_direct_name(text) if _BARE_DIRECT.match(text) else text.removeprefix("private=")


@lru_cache(maxsize=8192)
def normalize_queue_name(name: str | None) -> str | None:
    """Return the normal form of one queue name; None for None and for an empty name."""
    if name is None:
        return None
    return ",".join(_normalize_element(part) for part in _ELEMENTS.split(name.lower())) or None


def normalize_queue_names(format_names: pa.Array) -> pa.Array:
    """Return the normal form of each queue name of a string array; null for null and for an empty name."""
    return over_distinct(format_names, normalize_queue_name, pa.string())


def split_queue_suffix(queue: str) -> tuple[str, str]:
    r"""Split a normal form at its first semicolon into queue and suffix: ``host\q``, ``;journal``.

    HTTP names and multiple-element names are not split: their semicolons may mean something else.
    """
    if queue.startswith("direct=") or "," in queue:
        return queue, ""
    base, semicolon, suffix = queue.partition(";")
    return base, semicolon + suffix
