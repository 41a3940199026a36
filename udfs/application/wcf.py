"""Messages of WCF's netMsmqBinding: bodies are framed by [MC-NMF], with one envelope or with those of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from udfs.application.application_message import ApplicationMessage, ByteReader, Headers
from udfs.application.binary_xml import parse_binary_xml, read_string_table
from udfs.application.bounded_xml import parse_xml
from udfs.application.soap_headers import SoapHeaderReader
from udfs.errors import DecodeError, MalformedError, UnsupportedError

FRAMEWORK: Final = "WCF"
PREAMBLE: Final = b"\0\1\0\1"  # a version record, 1.0, and a mode record

_VIA, _KNOWN_ENCODING, _EXTENSIBLE_ENCODING, _SIZED_ENVELOPE, _END, _PREAMBLE_END = 2, 3, 4, 6, 7, 12
_SIMPLEX, _SINGLETON_SIZED = 3, 4
_MODES: Final = {1: "SingletonUnsized", 2: "Duplex", _SIMPLEX: "Simplex", _SINGLETON_SIZED: "SingletonSized"}
_ANONYMOUS: Final = ("/anonymous", "/none")  # how addresses end that name nobody


class _Encoding(NamedTuple):
    """How envelopes are written: its name, the form of bodies, and the encoding of texts."""

    name: str
    body_format: str
    text: str | None = None


_ENCODINGS: Final = {
    0: _Encoding("SOAP 1.1 UTF-8", "soap", "utf-8"),
    1: _Encoding("SOAP 1.1 UTF-16", "soap", "utf-16"),
    2: _Encoding("SOAP 1.1 UTF-16 little-endian", "soap", "utf-16le"),
    3: _Encoding("SOAP 1.2 UTF-8", "soap", "utf-8"),
    4: _Encoding("SOAP 1.2 UTF-16", "soap", "utf-16"),
    5: _Encoding("SOAP 1.2 UTF-16 little-endian", "soap", "utf-16le"),
    6: _Encoding("MTOM", "mtom"),
    7: _Encoding("Binary", "nbfs"),
    8: _Encoding("Binary with in-band dictionary", "nbfse"),
}


class _Preamble(NamedTuple):
    mode: int
    via: str
    encoding: _Encoding


def read_wcf(body: bytes) -> ApplicationMessage | None:
    """Read a body; None if it is not framed so. Of the first envelope the header block is read."""
    reader = ByteReader(body)
    try:
        preamble = _read_preamble(reader)
    except DecodeError:
        return None
    if preamble is None:
        return None
    message = ApplicationMessage(
        framework=FRAMEWORK, framework_evidence="body MC-NMF", body_format=preamble.encoding.body_format
    )
    headers: Headers = {
        "Via": preamble.via, "Encoding": preamble.encoding.name, "Mode": _MODES[preamble.mode],
    }  # fmt: skip
    count, session = 0, list[str]()
    try:
        for envelope in _envelopes(reader, preamble.mode):
            count += 1
            if count == 1:
                found, error = _read_envelope(envelope, preamble.encoding, session, reader.at - len(envelope))
                headers |= found.headers
                message.body_root = found.body_root
                message.note_error("body", error)
    except DecodeError as error:
        message.note_error("body", error)
    message.application_messages = count
    message.application_message_id = headers.get("MessageID") or None
    message.related_to = headers.get("RelatesTo") or None
    action = headers.get("Action")
    message.sent_types = [action] if action else None
    message.originating_endpoint = _named(headers.get("From"))
    message.processing_endpoint = _named(headers.get("To")) or preamble.via
    message.reply_to = _named(headers.get("ReplyTo"))
    message.application_headers = headers
    return message


def _read_preamble(reader: ByteReader) -> _Preamble | None:
    if reader.take(len(PREAMBLE), "VersionRecord") != PREAMBLE:
        return None
    mode = reader.number(1, "ModeRecord")
    if mode not in _MODES or reader.number(1, "ViaRecord") != _VIA:
        return None
    via = reader.text("ViaRecord.Via")
    if ":" not in via:
        return None
    kind = reader.number(1, "EnvelopeEncodingRecord")
    if kind == _KNOWN_ENCODING:
        encoding = _ENCODINGS.get(reader.number(1, "KnownEncodingRecord.Encoding"))
    elif kind == _EXTENSIBLE_ENCODING:
        encoding = _extensible_encoding(reader.text("ExtensibleEncodingRecord.Type"))
    else:
        return None
    return encoding and _Preamble(mode, via, encoding)


def _extensible_encoding(content_type: str) -> _Encoding:
    lower = content_type.lower()
    for part, known in (("msbinsession", 8), ("msbin", 7), ("multipart/related", 6)):
        if part in lower:
            return _ENCODINGS[known]._replace(name=content_type)
    return _Encoding(content_type, "soap")


def _envelopes(reader: ByteReader, mode: int) -> Iterator[bytes]:
    """Yield the envelopes; of one that is cut, what is there, and then the error."""
    if mode == _SINGLETON_SIZED:
        yield reader.take(reader.left, "Envelope")
        return
    if mode != _SIMPLEX:
        raise UnsupportedError("ModeRecord.Mode", len(PREAMBLE))
    at = reader.at
    if reader.number(1, "PreambleEndRecord") != _PREAMBLE_END:
        raise MalformedError("PreambleEndRecord", at)
    while (kind := reader.number(1, "RecordType")) != _END:
        if kind != _SIZED_ENVELOPE:
            raise MalformedError("RecordType", reader.at - 1)
        at, size = reader.at, reader.packed_number("SizedEnvelopeRecord.Size")
        whole = size <= reader.left
        yield reader.take(min(size, reader.left), "SizedEnvelopeRecord.Payload")
        if not whole:
            reader.take(size, "SizedEnvelopeRecord.Payload")


def _read_envelope(
    envelope: bytes, encoding: _Encoding, session: list[str], at: int
) -> tuple[SoapHeaderReader, DecodeError | None]:
    """Return what an envelope at an offset of the body says, and what ended it."""
    found = SoapHeaderReader()
    begin = 0
    if encoding.body_format in ("nbfs", "nbfse"):
        try:
            if encoding.body_format == "nbfse":
                reader = ByteReader(envelope)
                read_string_table(reader, session)
                begin = reader.at
            error = parse_binary_xml(envelope[begin:], session, found.start, found.end, found.text)
        except DecodeError as failed:
            error = failed
    else:
        begin = max(envelope.find(b"<"), 0) if encoding.body_format == "mtom" else 0  # behind the headers of MIME
        error = parse_xml(envelope[begin:], found.start, found.end, found.text, encoding=encoding.text, namespaces=True)
    return found, error and type(error)(error.field, at + begin + error.offset)


def _named(address: str | None) -> str | None:
    return None if not address or address.endswith(_ANONYMOUS) else address
