r"""The normal form of whatever names a queue: the text that ``queue`` holds in every table.

Lower case. Direct names lose their protocol (``host\private$\name``), which makes them path names; HTTP and HTTPS
names stay whole; private ones are ``guid\%08x``, all others the format name with its kind. What stands behind a
semicolon stays, for journals, dead-letter queues and subqueues are queues of their own ([MS-MQMQ] 2.1).
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final

import pyarrow as pa

_GUID: Final = r"\{?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\}?"
# A private queue's number, with its kind or as packets carry it; 1 to 8 hexadecimal digits ([MS-MQMQ] 2.1.4).
_PRIVATE: Final = re.compile(rf"(?:private=)?{_GUID}\\([0-9a-f]{{1,8}})(;.*)?", re.DOTALL)
_BY_GUID: Final = re.compile(rf"(public|machine|connector|dl)={_GUID}(.*)", re.DOTALL)
# Elements of a multiple-element format name ([MS-MQMQ] 2.1.7): a comma that a kind follows.
_ELEMENTS: Final = re.compile(r",(?=(?:direct|public|private|machine|connector|dl|multicast)=)")
_PROTOCOL: Final = re.compile(r"([a-z]+):(.*)", re.DOTALL)
# Packets and QUEUE_FORMATs leave DIRECT= out (doubt D3 of the sheet on packets).
_BARE_DIRECT: Final = re.compile(r"(?:os|tcp|ipx|spx):|https?://")


def _address(text: str) -> str:
    """Return an IP address as text in its shortest form; what is none stays."""
    try:
        return str(ipaddress.ip_address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        return text


def _direct(name: str) -> str:
    protocol = _PROTOCOL.fullmatch(name)
    if not protocol:
        return name
    if protocol[1] in ("http", "https"):
        return f"direct={name}"
    if protocol[1] != "tcp":
        return protocol[2]
    host, separator, rest = protocol[2].partition("\\")
    return _address(host) + separator + rest


def _element(text: str) -> str:
    if private := _PRIVATE.fullmatch(text):
        return f"{private[1]}\\{int(private[2], 16):08x}{private[3] or ''}"
    if named := _BY_GUID.fullmatch(text):
        return f"{named[1]}={named[2]}{named[3]}"
    if text.startswith("direct="):
        return _direct(text.removeprefix("direct="))
    return _direct(text) if _BARE_DIRECT.match(text) else text.removeprefix("private=")


@lru_cache(maxsize=8192)
def normal_text(name: str | None) -> str | None:
    """Return the normal form of one name; None of None, and of what names nothing: no queue is an empty text."""
    if name is None:
        return None
    return ",".join(_element(part) for part in _ELEMENTS.split(name.lower())) or None


def normal_form(format_names: pa.Array) -> pa.Array:
    """Return the normal form of every name of a string array, null of what names nothing; looks once at each name."""
    encoded = format_names.dictionary_encode()
    distinct = [normal_text(name) for name in encoded.dictionary.to_pylist()]
    return pa.array(distinct, pa.string()).take(encoded.indices)


def parent(queue: str) -> tuple[str, str]:
    r"""Return a normal form without what follows its first semicolon, and that: ``host\q``, ``;journal``.

    HTTP names may hold semicolons of their own, names of several elements more than one: they stay whole.
    """
    if queue.startswith("direct=") or "," in queue:
        return queue, ""
    base, semicolon, suffix = queue.partition(";")
    return base, semicolon + suffix
