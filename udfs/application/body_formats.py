"""The forms of bodies that say by themselves what they are: XML, SOAP, JSON, text, gzip, [MS-NRBF]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from udfs.application.binary_formatter import is_binary_formatter, read_binary_formatter
from udfs.application.bounded_json import read_json_object
from udfs.application.bounded_xml import StopParsing, parse_xml
from udfs.application.soap_headers import ENVELOPE_NAMESPACES, SoapHeaderReader
from udfs.errors import DecodeError

BINARY_FORMATTER_TYPE: Final = 0x300  # of bodies that BinaryMessageFormatter writes

_GZIP: Final = b"\x1f\x8b\x08"
_MARKS: Final = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_EXPAT_NAMES: Final = {"utf-16-le": "utf-16le"}  # of encodings that replace a document's own
_SPACE: Final = " \t\r\n"
_LOOKED_AT: Final = 4096  # characters that decide whether a body is text
_MAX_ROOT: Final = 200  # characters of a body's root or keys
_NOT_IN_TEXTS: Final = frozenset({*range(32), 0x7F, 0xFFFD} - set(map(ord, "\t\r\n\f\x1b")))


class BodyForm(NamedTuple):
    """The form of a body, its root element, top keys or class, and what is wrong with it. None: not known."""

    body_format: str | None = None
    root: str | None = None
    error: DecodeError | None = None


def read_body_form(body: bytes, body_type: int, encoding: str | None = None) -> BodyForm:
    """Return the form of a body, or of the beginning of one. ``encoding`` is that of a text, where it is known."""
    if body.startswith(_GZIP):
        return BodyForm("gzip")
    if body_type == BINARY_FORMATTER_TYPE or is_binary_formatter(body):
        return _binary_formatter_form(body)
    mark, encoding = next(((each, of) for each, of in _MARKS if body.startswith(each)), (b"", encoding))
    encoding = encoding or _guessed_encoding(body)
    text = body[len(mark) : len(mark) + 4 * _LOOKED_AT].decode(encoding, "replace")
    first = text.lstrip(_SPACE)[:1]
    if first == "<" and (form := _xml_form(body, None if mark else _EXPAT_NAMES.get(encoding))) is not None:
        return form
    if first in ("{", "[") and (form := _json_form(body, encoding, mark)) is not None:
        return form
    return BodyForm("text") if _is_text(text[:_LOOKED_AT]) else BodyForm()


def _guessed_encoding(body: bytes) -> str:
    return "utf-16-le" if body[1:2] == body[3:4] == b"\0" and body[:1] != b"\0" else "utf-8"


def _is_text(text: str) -> bool:
    """Whether these are characters of a text; the last one may be cut."""
    cut = text[:-1] if text.endswith("\ufffd") and len(text) > 1 else text
    return bool(cut) and _NOT_IN_TEXTS.isdisjoint(map(ord, cut))


def _xml_form(body: bytes, encoding: str | None) -> BodyForm | None:
    """Return the form of a document; None if it has no root element."""
    root: list[str] = []

    def start(name: str, _attributes: Mapping[str, str]) -> None:
        if not root:
            root.append(name)
            if name.rpartition(" ")[0] in ENVELOPE_NAMESPACES:
                raise StopParsing

    error = parse_xml(body, start, encoding=encoding, namespaces=True)
    if not root:
        return BodyForm("xml", None, error) if body.lstrip().startswith(b"<?xml ") else None
    namespace, _, name = root[0].rpartition(" ")
    if namespace in ENVELOPE_NAMESPACES and name == "Envelope":
        envelope = SoapHeaderReader()
        error = parse_xml(body, envelope.start, envelope.end, envelope.text, encoding=encoding, namespaces=True)
        return BodyForm("soap", envelope.body_root or name, error)
    return BodyForm("xml", name[:_MAX_ROOT], error)


def _json_form(body: bytes, encoding: str, mark: bytes) -> BodyForm | None:
    found = read_json_object(body[len(mark) :], encoding)
    if found is None:  # a list: its items have no keys
        items = read_json_object(b'{"":' + body[len(mark) :] + b"}", encoding) if encoding == "utf-8" else None
        return BodyForm("json", "[]") if items and isinstance(items.members.get(""), list) else None
    if not found.members and found.error is not None:
        return None
    return BodyForm("json", ",".join(found.members)[:_MAX_ROOT], found.error)


def _binary_formatter_form(body: bytes) -> BodyForm:
    if body and not is_binary_formatter(body):
        return BodyForm(None, None, read_binary_formatter(body).error)
    found = read_binary_formatter(body)
    names = [each for each in (found.root_class, found.root_library) if each]
    return BodyForm("nrbf", ", ".join(names)[: 2 * _MAX_ROOT] or None, found.error)
