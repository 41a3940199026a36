r"""Names and addresses -> pseudonyms under a key: equal names have equal ones, and who has no key cannot tell whose.

A pseudonym has the form of what it stands for, so that all that reads names works on: an address becomes a unique local
IPv6 address (fd00::/8), ``srv1.example.com`` becomes ``host-....domain-....``, and of a queue's name its parts are
replaced where they stand: ``DIRECT=OS:srv1\private$\orders`` becomes ``direct=os:host-...\private$\queue-...``. Upper
and lower case and the spelling of an address make no difference. GUIDs stay: they are pseudonyms already.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Callable, Collection
from typing import Any, Final

import pyarrow as pa

LABELS, QUEUES, HOSTS, ADDRESSES, SENDERS = "labels", "queues", "hosts", "addresses", "senders"
KINDS: Final = (LABELS, QUEUES, HOSTS, ADDRESSES, SENDERS)

_DIGITS: Final = 12  # of a pseudonym: 48 bits, one clash is to be expected among 16 million names
_KEPT_HOSTS: Final = frozenset({"", ".", "*", "localhost"})
# Parts of names that are everyone's ([MS-MQMQ] 2.1): kinds of queues, those of the system, what stands behind a queue.
_KEPT_QUEUES: Final = frozenset(
    {"", "private$", "system$", "msmq", "admin_queue$", "mqis_queue$", "notify_queue$", "order_queue$", "tree_queue$"}
)
_KEPT_SUFFIXES: Final = frozenset({"", "journal", "deadletter", "deadxact", "xactonly", "poison", "retry"})
_GUID: Final = r"\{?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\}?"
_IS_GUID: Final = re.compile(rf"{_GUID}(\\[0-9a-f]{{1,10}})?", re.IGNORECASE)
# The elements of a multiple-element format name ([MS-MQMQ] 2.1.7): a comma that a kind follows.
_ELEMENTS: Final = re.compile(r",(?=(?:direct|public|private|machine|connector|dl|multicast)=)", re.IGNORECASE)
_BY_GUID: Final = re.compile(
    rf"(?:(?:public|private|machine|connector)=)?{_GUID}(?:\\[0-9a-f]{{1,10}})?", re.IGNORECASE
)
_LIST: Final = re.compile(rf"(dl={_GUID})@?(.*)", re.IGNORECASE | re.DOTALL)
_MULTICAST: Final = re.compile(r"(multicast=)([^:]+)(:.*)?", re.IGNORECASE | re.DOTALL)
_WEB: Final = re.compile(r"((?:direct=)?https?://)(\[[^\]]*\]|[^/:;]*)(:[0-9]+)?(.*)", re.IGNORECASE | re.DOTALL)
_DIRECT: Final = re.compile(r"((?:direct=)?(?:[a-z]+:)?)(.*)", re.IGNORECASE | re.DOTALL)
_PROTOCOL: Final = re.compile(r"(?:direct=)?(?:os|tcp|ipx|spx):|direct=", re.IGNORECASE)
# As NEXTHOPS has them ([MS-MQMQ] 2.3.12.12): IP=10.0.0.7:1801.
_HOP: Final = re.compile(r"(IP=|IPX=)?(\[[^\]]*\]|[^\\/=:\[\]]+)(:[0-9]+)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[-+0-9.eE:TZ ]*")  # numbers and times, as JSON has them


class Pseudonyms:
    """What stands for names of some kinds, under a key."""

    def __init__(self, kinds: Collection[str], key: bytes) -> None:
        """``kinds``: of ``KINDS``; ``key``: any bytes, at least 16. ValueError for others."""
        if unknown := set(kinds) - set(KINDS):
            raise ValueError(f"no such kinds: {', '.join(sorted(unknown))}")
        if len(key) < 16:
            raise ValueError("a key of fewer than 16 bytes")
        self.kinds = frozenset(kinds)
        self._key = key

    def __repr__(self) -> str:
        """Tell the kinds; never the key."""
        return f"Pseudonyms({sorted(self.kinds)})"

    def _digest(self, kind: str, value: str) -> str:
        return hmac.new(self._key, f"{kind}\0{value}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def check(self) -> str:
        """Return a text by which a lake knows its key again."""
        return self._digest("check", "")[:16]

    def key(self, text: str) -> str:
        """Return what stands for a key of rows: it was a hash of addresses, which anybody could try out."""
        return self._digest("key", text)[:32]

    def label(self, text: str) -> str:
        """Return what stands for a message's label."""
        return f"label-{self._digest(LABELS, text)[:_DIGITS]}" if LABELS in self.kinds and text else text

    def sender(self, text: str) -> str:
        """Return what stands for who sent: a SID, a user's name, a principal."""
        return f"sender-{self._digest(SENDERS, text.lower())[:_DIGITS]}" if SENDERS in self.kinds and text else text

    def address(self, text: str) -> str:
        """Return what stands for an IP address, an IP address too; a text that is none is taken for a host's name."""
        if (address := _address(text)) is None:
            return self.host(text)
        if ADDRESSES not in self.kinds:
            return text
        digest = bytes.fromhex(self._digest(ADDRESSES, str(address)))
        return str(ipaddress.IPv6Address(b"\xfd" + digest[:15]))

    def host(self, text: str) -> str:
        """Return what stands for a machine, given by its name (its domain apart) or its address."""
        if _address(text) is not None:
            return self.address(text)
        bare = text.strip("\\").lower()
        if HOSTS not in self.kinds or bare in _KEPT_HOSTS or _IS_GUID.fullmatch(bare):
            return text
        name, dot, domain = bare.partition(".")
        told = f"host-{self._digest(HOSTS, name)[:_DIGITS]}" if name else ""
        return f"{told}{dot}domain-{self._digest('domain', domain)[:_DIGITS]}" if domain else told

    def queue(self, text: str) -> str:
        """Return what stands for the last part of a queue's name, or a subqueue's name."""
        if QUEUES not in self.kinds or text.lower() in _KEPT_QUEUES:
            return text
        return f"queue-{self._digest(QUEUES, text.lower())[:_DIGITS]}"

    def name(self, text: str) -> str:
        """Return what stands for a format name of one or more elements, a path name, or a normal form."""
        return ",".join(map(self._element, _ELEMENTS.split(text)))

    def _element(self, text: str) -> str:
        if web := _WEB.fullmatch(text):
            scheme, host, port, rest = web.groups()
            parts = re.split(r"([/;])", rest)
            named = [part if part in "/;" else self._part(part, parts[at - 1]) for at, part in enumerate(parts)]
            return scheme + self._before_port(host) + (port or "") + "".join(named)
        if several := _LIST.fullmatch(text):
            return several[1] + (f"@{self.host(several[2])}" if several[2] else "")
        if group := _MULTICAST.fullmatch(text):
            return group[1] + self._group(group[2]) + (group[3] or "")
        base, semicolon, suffix = text.partition(";")
        suffix = semicolon + self._part(suffix, semicolon)
        if _BY_GUID.fullmatch(base):
            return base + suffix
        kind, rest = "", base
        if _PROTOCOL.match(base):
            direct = _DIRECT.fullmatch(base)
            kind, rest = direct.groups() if direct is not None else (kind, rest)
        host, separator, path = rest.partition("\\")
        if not separator and not kind:
            return self.queue(rest) + suffix  # a name alone: of a subqueue, or of a queue of nobody's
        return kind + self.host(host) + separator + "\\".join(map(self.queue, path.split("\\"))) + suffix

    def _part(self, text: str, before: str) -> str:
        return text if before == ";" and text.lower() in _KEPT_SUFFIXES else self.queue(text)

    def _group(self, text: str) -> str:
        """Return what stands for a multicast address: one of 239.0.0.0/8 ([MS-MQMQ] 2.1.5 knows IPv4 alone)."""
        if ADDRESSES not in self.kinds:
            return text
        digest = bytes.fromhex(self._digest(ADDRESSES, text))
        return str(ipaddress.IPv4Address(b"\xef" + digest[:3]))

    def text(self, text: str) -> str:
        """Return what stands for a text of which the form alone tells what it is: address, queue's name, machine."""
        if _address(text) is not None:
            return self.address(text)
        if hop := _HOP.fullmatch(text):
            return (hop[1] or "") + self._before_port(hop[2]) + hop[3]
        if _NUMBER.fullmatch(text) or _IS_GUID.fullmatch(text):
            return text
        if "\\" in text or "=" in text or ":" in text:
            return self.name(text)
        return self.host(text)

    def snapshot_file(self, path: str) -> str:
        """Return what stands for a snapshot file: the collector names them by machines. Its folder stays."""
        if HOSTS not in self.kinds:
            return path
        folder, slash, _ = path.rpartition("/")
        return f"{folder}{slash}snapshots-{self._digest('file', path)[:_DIGITS]}"

    def _before_port(self, host: str) -> str:
        told = self.host(host)
        return f"[{told}]" if ":" in told else told

    def json(self, text: str) -> str:
        """Return JSON with all its texts replaced; the names of its fields stay. What is no JSON is nothing."""
        try:
            return json.dumps(self._told(json.loads(text)), separators=(",", ":"))
        except (ValueError, RecursionError):
            return "null"

    def _told(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._told(each) for each in value]
        return {name: self._told(each) for name, each in value.items()} if isinstance(value, dict) else value


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def replaced(texts: pa.Array, by: Callable[[str], str]) -> pa.Array:
    """Return an array of texts with each replaced; nulls stay. Equal texts are asked about once."""
    encoded = texts.dictionary_encode()
    told = [None if text is None else by(text) for text in encoded.dictionary.to_pylist()]
    return pa.array(told, pa.string()).take(encoded.indices)
