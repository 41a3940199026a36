"""XML in binary records, [MC-NBFX], with the texts of SOAP ([MC-NBFS]) and of a session ([MC-NBFSE]) as references."""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from udfs.application.application_message import MAX_DEPTH, ByteReader, TooLargeError, cut_to_limit
from udfs.application.bounded_xml import EndHandler, StartHandler, StopParsing, TextHandler
from udfs.application.soap_strings import SOAP_STRINGS
from udfs.errors import DecodeError, MalformedError, TruncatedError, UnsupportedError

_END_ELEMENT, _COMMENT, _ARRAY = 0x01, 0x02, 0x03
_MAX_PREFIXES: Final = 64  # of namespaces in one scope
_ATTRIBUTES: Final = range(0x04, 0x40)
_ELEMENTS: Final = range(0x40, 0x78)
_TEXTS: Final = range(0x80, 0xBE)
_CONSTANTS: Final = {0x80: "0", 0x82: "1", 0x84: "false", 0x86: "true", 0xA8: ""}
_INTEGERS: Final = {0x88: 1, 0x8A: 2, 0x8C: 4, 0x8E: 8}
_FLOATS: Final = {0x90: "<f", 0x92: "<d"}
_SKIPPED: Final = {0x94: 16, 0x96: 8, 0xAE: 8}  # decimals, times, durations: no header of SOAP is read that has them
_CHARS: Final = {0x98: 1, 0x9A: 2, 0x9C: 4}
_BYTES: Final = {0x9E: 1, 0xA0: 2, 0xA2: 4}
_WIDE: Final = {0xB6: 1, 0xB8: 2}
_LIST, _LIST_END, _DICTIONARY, _UNIQUE_ID, _UUID = 0xA4, 0xA6, 0xAA, 0xAC, 0xB0
_UINT64, _BOOLEAN, _WIDE_32, _QNAME = 0xB2, 0xB4, 0xBA, 0xBC


def parse_binary_xml(
    data: bytes, session: Sequence[str], start: StartHandler, end: EndHandler, text: TextHandler
) -> DecodeError | None:
    """Give elements and texts to handlers, as ``parse_xml`` does with namespaces; attributes are not given.

    ``session`` are the texts of the session so far (``read_string_table``); without one it is empty.
    """
    data, too_large = cut_to_limit(data)
    reader = _RecordReader(ByteReader(data), session, start, end, text)
    try:
        reader.read()
    except StopParsing:
        return None
    except DecodeError as error:
        return too_large or error
    return too_large


def read_string_table(reader: ByteReader, session: list[str]) -> None:
    """Add the texts that precede an envelope of a session to the session's."""
    name = "StringTable"
    size = reader.packed_number(name)
    table = ByteReader(reader.take(size, name))
    while table.left:
        session.append(table.text(name))


class _RecordReader:
    def __init__(
        self, reader: ByteReader, session: Sequence[str], start: StartHandler, end: EndHandler, text: TextHandler
    ) -> None:
        self.reader, self.session = reader, session
        self.on_start, self.on_end, self.on_text = start, end, text
        self._open: list[str] = []  # names of elements
        self._scopes: list[Mapping[str, str]] = [{}]  # of each element, namespaces by prefix
        self._begun: tuple[str, str] | None = None  # prefix and name of an element whose attributes are read

    def read(self) -> None:
        while self.reader.left:
            at = self.reader.at
            kind = self.reader.number(1, "RecordType")
            if kind in _ATTRIBUTES:
                if self._begun is None:
                    raise MalformedError("Attribute", at)
                self._read_attribute(kind)
                continue
            self._finish_start()
            if kind in _ELEMENTS:
                if len(self._open) == MAX_DEPTH:
                    raise TooLargeError("depth", at)
                self._scopes.append(self._scopes[-1])
                self._begun = self._qualified_name(kind - 0x40, 0x44, 0x5E, kind)
            elif kind in _TEXTS:
                self.on_text(self._text(kind & ~1, at))
                if kind & 1:
                    self._end_element(at)
            elif kind == _END_ELEMENT:
                self._end_element(at)
            elif kind == _COMMENT:
                self.reader.text("Comment")
            else:
                raise (UnsupportedError if kind == _ARRAY else MalformedError)("RecordType", at)
            if not self._open and self._begun is None:
                return
        self._finish_start()
        raise TruncatedError("RecordType", self.reader.at)

    def _finish_start(self) -> None:
        if self._begun is not None:
            prefix, name = self._begun
            self._begun = None
            namespace = self._scopes[-1].get(prefix, "")
            full = f"{namespace} {name}" if namespace else name
            self._open.append(full)
            self.on_start(full, {})

    def _end_element(self, at: int) -> None:
        if not self._open:
            raise MalformedError("EndElement", at)
        self._scopes.pop()
        self.on_end(self._open.pop())

    def _qualified_name(self, form: int, dictionary: int, plain: int, kind: int) -> tuple[str, str]:
        """Return prefix and name; ``form`` is 0 to 3 for those without a prefix in the record's type."""
        name = "Name"
        if kind >= plain:
            return chr(ord("a") + kind - plain), self.reader.text(name)
        if kind >= dictionary:
            return chr(ord("a") + kind - dictionary), self._reference()
        prefix = self.reader.text("Prefix") if form & 1 else ""
        return prefix, self._reference() if form & 2 else self.reader.text(name)

    def _read_attribute(self, kind: int) -> None:
        if 0x08 <= kind <= 0x0B:
            prefix = self.reader.text("Prefix") if kind & 1 else ""
            value = self._reference() if kind & 2 else self.reader.text("Value")
            if len(self._scopes[-1]) == _MAX_PREFIXES:
                raise TooLargeError("namespaces", self.reader.at)
            self._scopes[-1] = {**self._scopes[-1], prefix: value}
            return
        self._qualified_name(kind & 3, 0x0C, 0x26, kind)
        at = self.reader.at
        text = self.reader.number(1, "Value")
        if text not in _TEXTS:
            raise MalformedError("Value", at)
        self._text(text & ~1, at)

    def _reference(self) -> str:
        """Return a text of a dictionary: even numbers are SOAP's, odd ones the session's."""
        at, number = self.reader.at, self.reader.packed_number("DictionaryString")
        texts = self.session if number & 1 else SOAP_STRINGS
        if number >> 1 >= len(texts):
            raise MalformedError("DictionaryString", at)
        return texts[number >> 1]

    def _text(self, kind: int, at: int) -> str:
        reader, name = self.reader, "Text"
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _INTEGERS:
            return str(reader.number(_INTEGERS[kind], name, signed=True))
        if kind in _CHARS:
            return reader.take(reader.number(_CHARS[kind], name), name).decode("utf-8", "replace")
        if kind in _WIDE or kind == _WIDE_32:
            size = reader.packed_number(name) if kind == _WIDE_32 else reader.number(_WIDE[kind], name)
            return reader.take(size, name).decode("utf-16-le", "replace")
        if kind == _DICTIONARY:
            return self._reference()
        if kind in (_UNIQUE_ID, _UUID):
            found = str(uuid.UUID(bytes_le=reader.take(16, name)))
            return f"urn:uuid:{found}" if kind == _UNIQUE_ID else found
        if kind in _BYTES:
            return base64.b64encode(reader.take(reader.number(_BYTES[kind], name), name)).decode()
        if kind in _FLOATS:
            return repr(struct.unpack(_FLOATS[kind], reader.take(struct.calcsize(_FLOATS[kind]), name))[0])
        if kind == _UINT64:
            return str(reader.number(8, name))
        if kind == _BOOLEAN:
            return "true" if reader.number(1, name) else "false"
        if kind == _QNAME:
            return f"{chr(ord('a') + reader.number(1, name) % 26)}:{self._reference()}"
        if kind in _SKIPPED:
            reader.take(_SKIPPED[kind], name)
            return ""
        if kind == _LIST:
            return self._list()
        raise MalformedError("RecordType", at)

    def _list(self) -> str:
        texts: list[str] = []
        while True:
            at = self.reader.at
            kind = self.reader.number(1, "Text")
            if kind == _LIST_END:
                return " ".join(texts)
            if kind not in _TEXTS or kind & ~1 == _LIST:
                raise MalformedError("RecordType", at)
            texts.append(self._text(kind & ~1, at))
