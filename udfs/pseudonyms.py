r"""Keyed pseudonyms for names and addresses: equal names get equal pseudonyms, irreversible without the key.

A pseudonym has the form of the original, so that code that parses names still works: an address becomes a unique local
IPv6 address (fd00::/8), ``srv1.example.com`` becomes ``host-....domain-....``, and in a queue name each part is
replaced in place: ``DIRECT=OS:srv1\private$\orders`` becomes ``DIRECT=OS:host-...\private$\queue-...``. Letter case
and the spelling of an address make no difference. GUIDs stay: they reveal no name.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Callable, Collection
from typing import Any, Final

KIND_LABELS, KIND_QUEUES, KIND_HOSTS, KIND_ADDRESSES, KIND_SENDERS = "labels", "queues", "hosts", "addresses", "senders"
PSEUDONYM_KINDS: Final = (KIND_LABELS, KIND_QUEUES, KIND_HOSTS, KIND_ADDRESSES, KIND_SENDERS)

_PSEUDONYM_DIGITS: Final = 12  # hex digits, 48 bits: one collision is expected among 16 million names
_KEPT_HOSTS: Final = frozenset({"", ".", "*", "localhost"})
# Parts of queue names that are the same everywhere ([MS-MQMQ] 2.1) and stay: system queues, and suffixes below.
_KEPT_QUEUES: Final = frozenset(
    {"", "private$", "system$", "msmq", "admin_queue$", "mqis_queue$", "notify_queue$", "order_queue$", "tree_queue$"}
)
_KEPT_SUFFIXES: Final = frozenset({"", "journal", "deadletter", "deadxact", "xactonly", "poison", "retry"})
_GUID: Final = r"\{?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\}?"
_IS_GUID: Final = re.compile(rf"{_GUID}(\\[0-9a-f]{{1,10}})?", re.IGNORECASE)
# Separator of the elements of a multiple-element format name ([MS-MQMQ] 2.1.7): a comma before a kind.
_ELEMENTS: Final = re.compile(r",(?=(?:direct|public|private|machine|connector|dl|multicast)=)", re.IGNORECASE)
_BY_GUID: Final = re.compile(
    rf"(?:(?:public|private|machine|connector)=)?{_GUID}(?:\\[0-9a-f]{{1,10}})?", re.IGNORECASE
)
_LIST: Final = re.compile(rf"(dl={_GUID})@?(.*)", re.IGNORECASE | re.DOTALL)
_MULTICAST: Final = re.compile(r"(multicast=)(.*?)(:[0-9]{1,5})?", re.IGNORECASE | re.DOTALL)
_WEB: Final = re.compile(r"((?:direct=)?https?://)(\[[^\]]*\]|[^/:;]*)(:[0-9]{1,5})?(.*)", re.IGNORECASE | re.DOTALL)
_DIRECT: Final = re.compile(r"((?:direct=)?(?:os|tcp|ipx|spx):|direct=)(.*)", re.IGNORECASE | re.DOTALL)
# An entry of NEXTHOPS ([MS-MQMQ] 2.3.12.12): IP=10.0.0.7:1801, IPv6=fe80::1, FOREIGN=<GUID>.
_HOP: Final = re.compile(r"(IP=|IPv6=|IPX=|FOREIGN=)(.*)", re.IGNORECASE | re.DOTALL)
_HOST_AND_PORT: Final = re.compile(r"(\[[^\]]*\]|[^\\/=:\[\]]+)(:[0-9]{1,5})", re.IGNORECASE)
# An id that reveals no name: a GUID, also as WCF writes it, or as MSMQ does, with a number.
_IS_ID: Final = re.compile(rf"(urn:uuid:)?{_GUID}(\\[0-9]{{1,10}})?", re.IGNORECASE)
_FORMAT_NAME: Final = re.compile(r"((?:msmq\.)?formatname:)(.+)", re.IGNORECASE | re.DOTALL)
_AT_MACHINE: Final = re.compile(r"([^@\\/=]+)@([^@\\/=:]+)")
_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}://)([^/?#]*)([^?#]*)(.*)", re.DOTALL)
_URI_SCHEMES: Final = frozenset(
    f"{each}://" for each in ("msmq", "msmq-pgm", "net.msmq", "http", "https", "net.tcp", "net.pipe", "loopback", "sb")
)
_KEPT_URI_PARTS: Final = frozenset({"", "private", "public", "private$", "msmq"})
_URI_OPTIONS: Final = re.compile(r"(\?((tx|recoverable|durable)=(true|false)&?)*)?", re.IGNORECASE)
_KEPT_JSON_NAMES: Final = frozenset({"vt", "value"})  # of PROPVARIANTs


class Pseudonymizer:
    """Replaces names of the given kinds by pseudonyms under a key; names of other kinds stay."""

    def __init__(self, kinds: Collection[str], key: bytes) -> None:
        """``kinds`` are some of ``PSEUDONYM_KINDS``; ``key`` has at least 16 bytes. Raises ValueError for others."""
        if unknown := set(kinds) - set(PSEUDONYM_KINDS):
            raise ValueError(f"no such kinds: {', '.join(sorted(unknown))}")
        if len(key) < 16:
            raise ValueError("a key of fewer than 16 bytes")
        self.kinds = frozenset(kinds)
        self._key = key

    def __repr__(self) -> str:
        """Show the kinds, never the key."""
        return f"Pseudonymizer({sorted(self.kinds)})"

    def _digest(self, kind: str, value: str) -> str:
        return hmac.new(self._key, f"{kind}\0{value}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def key_fingerprint(self) -> str:
        """Return a check value of the key: a lake stores it to recognise its key."""
        return self._digest("check", "")[:16]

    def row_key(self, text: str) -> str:
        """Return the pseudonym of a row key: row keys are hashes of addresses, which could be found by trying."""
        return self._digest("key", text)[:32]

    def label(self, text: str) -> str:
        """Return the pseudonym of a message label."""
        return (
            f"label-{self._digest(KIND_LABELS, text)[:_PSEUDONYM_DIGITS]}"
            if KIND_LABELS in self.kinds and text
            else text
        )

    def sender_name(self, text: str) -> str:
        """Return the pseudonym of a sender: a SID, a user name, a principal."""
        return (
            f"sender-{self._digest(KIND_SENDERS, text.lower())[:_PSEUDONYM_DIGITS]}"
            if KIND_SENDERS in self.kinds and text
            else text
        )

    def address(self, text: str) -> str:
        """Return the pseudonym of an IP address, also an IP address; other text is treated as a host name."""
        if (address := _parse_address(text)) is None:
            return self.host_name(text)
        if KIND_ADDRESSES not in self.kinds:
            return text
        digest = bytes.fromhex(self._digest(KIND_ADDRESSES, str(address)))
        return str(ipaddress.IPv6Address(b"\xfd" + digest[:15]))

    def host_name(self, text: str) -> str:
        """Return the pseudonym of a machine name or address; host and domain get pseudonyms of their own."""
        if _parse_address(text) is not None:
            return self.address(text)
        bare = text.strip("\\").lower()
        if KIND_HOSTS not in self.kinds or bare in _KEPT_HOSTS or _IS_GUID.fullmatch(bare):
            return text
        name, dot, domain = bare.partition(".")
        host = f"host-{self._digest(KIND_HOSTS, name)[:_PSEUDONYM_DIGITS]}" if name else ""
        return f"{host}{dot}domain-{self._digest('domain', domain)[:_PSEUDONYM_DIGITS]}" if domain else host

    def queue_part(self, text: str) -> str:
        """Return the pseudonym of the last part of a queue name, or of a subqueue name."""
        if KIND_QUEUES not in self.kinds or text.lower() in _KEPT_QUEUES:
            return text
        return f"queue-{self._digest(KIND_QUEUES, text.lower())[:_PSEUDONYM_DIGITS]}"

    def queue_name(self, text: str) -> str:
        """Return the pseudonym of a queue name: a format name of any number of elements, a path name, a normal form."""
        return ",".join(map(self._format_name_element, _ELEMENTS.split(text)))

    def _format_name_element(self, text: str) -> str:
        if web := _WEB.fullmatch(text):
            scheme, host, port, rest = web.groups()
            parts = re.split(r"([/;])", rest)
            named = [
                part if part in "/;" else self._queue_part_or_suffix(part, parts[at - 1])
                for at, part in enumerate(parts)
            ]
            return scheme + self._host_before_port(host) + (port or "") + "".join(named)
        if several := _LIST.fullmatch(text):
            return several[1] + (f"@{self.host_name(several[2])}" if several[2] else "")
        if group := _MULTICAST.fullmatch(text):
            return group[1] + self._multicast_address(group[2]) + (group[3] or "")
        base, semicolon, suffix = text.partition(";")
        suffix = semicolon + self._queue_part_or_suffix(suffix, semicolon)
        if _BY_GUID.fullmatch(base):
            return base + suffix
        kind, rest = direct.groups() if (direct := _DIRECT.fullmatch(base)) else ("", base)
        host, separator, path = rest.partition("\\")
        if not separator and not kind:
            return self.queue_part(rest) + suffix  # a bare name: of a subqueue, or of a queue without a host
        return kind + self.host_name(host) + separator + "\\".join(map(self.queue_part, path.split("\\"))) + suffix

    def application_id(self, text: str) -> str:
        """Return an application's id as it is, if it is a GUID; a pseudonym of any other one, whatever the kinds."""
        return self.known_text(text, _IS_ID.fullmatch)

    def application_address(self, text: str) -> str:
        """Return the pseudonym of an endpoint or an address: ``queue@machine``, a format name, a URI, a bare name.

        Its parts get the pseudonyms that queues and machines have elsewhere. Parts of a URI that are none of these,
        such as a user or options that are not known, are replaced whatever the kinds.
        """
        if named := _FORMAT_NAME.fullmatch(text):
            return named[1] + self.queue_name(named[2])
        if uri := _URI.fullmatch(text):
            return self._uri(*uri.groups())
        if at := _AT_MACHINE.fullmatch(text):
            return f"{self.queue_part(at[1])}@{self.host_name(at[2])}"
        return self.queue_name(text) if "\\" in text or "=" in text else self.queue_part(text)

    def _uri(self, scheme: str, authority: str, path: str, options: str) -> str:
        scheme = scheme if scheme.lower() in _URI_SCHEMES else f"{self.known_text(scheme[:-3], str.isspace)}://"
        user, at, place = authority.rpartition("@")
        host = self._next_hop(place) if place else ""
        parts = (part if part.lower() in _KEPT_URI_PARTS else self.queue_part(part) for part in path.split("/"))
        rest = options if _URI_OPTIONS.fullmatch(options) else f"?{self.known_text(options, str.isspace)}"
        return f"{scheme}{self.known_text(user, str.isspace)}{at}{host}{'/'.join(parts)}{rest}"

    def _queue_part_or_suffix(self, text: str, before: str) -> str:
        return text if before == ";" and text.lower() in _KEPT_SUFFIXES else self.queue_part(text)

    def _multicast_address(self, text: str) -> str:
        """Return the pseudonym of a multicast address, in 239.0.0.0/8 ([MS-MQMQ] 2.1.5 has IPv4 only)."""
        if _parse_address(text) is None:
            return self.host_name(text)
        if KIND_ADDRESSES not in self.kinds:
            return text
        digest = bytes.fromhex(self._digest(KIND_ADDRESSES, text))
        return str(ipaddress.IPv4Address(b"\xef" + digest[:3]))

    def any_text(self, text: str) -> str:
        """Return the pseudonym of a text of unknown kind; its form decides: address, next hop, queue or machine."""
        if hop := _HOP.fullmatch(text):
            return hop[1] + self._next_hop(hop[2])
        if _parse_address(text) is not None or _HOST_AND_PORT.fullmatch(text):
            return self._next_hop(text)
        if text.startswith("\\\\") and "\\" not in text[2:]:  # a machine, in CONNECTION_HISTORY
            return f"\\\\{self.host_name(text)}"
        if "\\" in text or "=" in text or ":" in text:
            return self.queue_name(text)
        return self.host_name(text)

    def _next_hop(self, text: str) -> str:
        """Return the pseudonym of a host or an address, maybe with a port."""
        if _parse_address(text) is not None:
            return self.address(text)
        if place := _HOST_AND_PORT.fullmatch(text):
            return self._host_before_port(place[1]) + place[2]
        return self.host_name(text)

    def known_text(self, text: str, known: Callable[[str], object]) -> str:
        """Return a text that is ``known``, of a vocabulary or of a form, as it is; a pseudonym of any other one.

        Whatever the kinds: nobody knows what such a text is.
        """
        return text if not text or known(text) else f"other-{self._digest('other', text)[:_PSEUDONYM_DIGITS]}"

    def snapshot_path(self, path: str) -> str:
        """Return the pseudonym of a snapshot file's path; the folder stays. File names contain machine names."""
        if KIND_HOSTS not in self.kinds:
            return path
        folder, slash, _ = path.rpartition("/")
        return f"{folder}{slash}snapshots-{self._digest('file', path)[:_PSEUDONYM_DIGITS]}"

    def _host_before_port(self, host: str) -> str:
        pseudonym = self.host_name(host)
        return f"[{pseudonym}]" if ":" in pseudonym else pseudonym

    def json_text(self, text: str) -> str:
        """Return JSON text of PROPVARIANTs with all strings replaced, other field names too; "null" for no JSON."""
        try:
            return json.dumps(self._json_value(json.loads(text)), separators=(",", ":"))
        except (ValueError, RecursionError):
            return "null"

    def _json_value(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, str):
            return self.any_text(value)
        if isinstance(value, list):
            return [self._json_value(each) for each in value]
        if isinstance(value, dict):
            return {
                self.known_text(name, _KEPT_JSON_NAMES.__contains__): self._json_value(each)
                for name, each in value.items()
            }
        return value


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
