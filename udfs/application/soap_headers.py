"""The header block of a SOAP envelope, whatever it is written in: texts of WS-Addressing, and what the body holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from udfs.application.application_message import MAX_DEPTH, Headers, TooLargeError
from udfs.application.bounded_xml import StopParsing
from udfs.errors import MalformedError

ENVELOPE_NAMESPACES: Final = frozenset(
    {"http://www.w3.org/2003/05/soap-envelope", "http://schemas.xmlsoap.org/soap/envelope/"}
)
_ADDRESSING_NAMESPACES: Final = frozenset(
    {"http://www.w3.org/2005/08/addressing", "http://schemas.xmlsoap.org/ws/2004/08/addressing"}
)
_TEXTS: Final = frozenset({"Action", "MessageID", "RelatesTo", "To"})
_REFERENCES: Final = frozenset({"ReplyTo", "From", "FaultTo"})  # whose Address is read


class SoapHeaderReader:
    """Handlers of elements and texts, with namespaces. It stops at the first element of the body.

    ``headers`` are the texts of WS-Addressing by name, ``body_root`` the name of the body's element.
    """

    def __init__(self) -> None:
        self.headers: Headers = {}
        self.body_root: str | None = None
        self.is_envelope = False
        self._path: list[tuple[str, str]] = []  # namespace and name
        self._parts: list[str] = []

    def start(self, name: str, _attributes: Mapping[str, str]) -> None:
        """Take the beginning of an element."""
        namespace, _, local = name.rpartition(" ")
        depth = len(self._path)
        if depth == 0:
            if local != "Envelope" or namespace not in ENVELOPE_NAMESPACES:
                raise MalformedError("Envelope", 0)
            self.is_envelope = True
        elif depth == MAX_DEPTH:
            raise TooLargeError("depth", 0)
        elif depth == 2 and self._path[1][1] == "Body":
            self.body_root = local
            raise StopParsing
        self._path.append((namespace, local))
        self._parts.clear()

    def text(self, text: str) -> None:
        """Take a text."""
        if len(self._path) in (3, 4):
            self._parts.append(text)

    def end(self, _name: str) -> None:
        """Take the end of an element."""
        namespace, local = self._path.pop()
        depth = len(self._path)
        if depth == 1 and local == "Body":
            raise StopParsing
        if depth < 2 or self._path[1][1] != "Header" or namespace not in _ADDRESSING_NAMESPACES:
            return
        owner = self._path[2][1] if depth == 3 else None
        if (depth == 2 and local in _TEXTS) or (owner in _REFERENCES and local == "Address"):
            self.headers.setdefault(owner or local, "".join(self._parts).strip())
