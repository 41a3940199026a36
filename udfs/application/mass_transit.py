"""Messages of MassTransit: the extension is a JSON dictionary with ``Content-Type``, the body an envelope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from udfs.application.application_message import (
    MAX_DEPTH,
    MAX_HEADERS,
    ApplicationMessage,
    Headers,
    NativeFacts,
    TooLargeError,
    first_of,
    utc_time,
    whole_number,
)
from udfs.application.binary_formatter import read_binary_formatter
from udfs.application.bounded_json import as_headers, read_json_object
from udfs.application.bounded_xml import parse_xml
from udfs.application.bson import read_bson
from udfs.errors import DecodeError

FRAMEWORK: Final = "MassTransit"
CONTENT_TYPE_KEY: Final = "Content-Type"
CONTENT_TYPE_PREFIX: Final = "application/vnd.masstransit"
EXCEPTION_TEXT_HEADERS: Final = frozenset({"MT-Fault-Message", "MT-Fault-StackTrace"})

_CUT_LABEL: Final = 250  # characters: a label of as many may be the beginning of a type
_HEADER_CLASS: Final = "System.Runtime.Remoting.Messaging.Header"
_Envelope = tuple[dict[str, Any], DecodeError | None]


def is_mass_transit(headers: Headers) -> bool:
    """Whether the dictionary of an extension is of MassTransit: others may have a content type too."""
    return (headers.get(CONTENT_TYPE_KEY) or "").lower().startswith(CONTENT_TYPE_PREFIX)


def read_mass_transit(transport: Headers, body: bytes, native: NativeFacts) -> ApplicationMessage:
    """Return what a message says; ``transport`` are the headers of its extension.

    The message itself, in the envelope, is not read. Without a readable envelope the label says the message's type,
    unless it is so long that it may be cut.
    """
    kind = (transport.get(CONTENT_TYPE_KEY) or "").lower().removeprefix(CONTENT_TYPE_PREFIX).partition(";")[0]
    read = _ENVELOPES.get(kind.strip())
    found, error = read(body) if read and body else ({}, None)
    envelope = {name.lower(): value for name, value in found.items()}  # versions differ in capitals
    headers = transport | as_headers({name: value for name, value in found.items() if name.lower() != "message"})
    inner = envelope.get("headers")
    headers |= as_headers(inner) if isinstance(inner, dict) else {}

    def text(name: str) -> str | None:
        value = envelope.get(name)
        return value if isinstance(value, str) and value else None

    message = ApplicationMessage(
        framework=FRAMEWORK,
        framework_evidence="extension Content-Type",
        application_message_id=text("messageid"),
        conversation_id=text("conversationid"),
        sent_types=_types(envelope.get("messagetype")) or _type_of_label(native.label),
        originating_endpoint=text("sourceaddress"),
        processing_endpoint=text("destinationaddress"),
        reply_to=text("responseaddress"),
        exception_type=first_of(headers, "MT-Fault-ExceptionType"),
        exception_message=first_of(headers, "MT-Fault-Message"),
        delayed_retries=whole_number(str(envelope.get("retrycount") or "")),
        application_sent_at=utc_time(text("senttime")),
        application_headers=dict([*headers.items()][:MAX_HEADERS]),
    )
    if read is _bson_envelope and found:  # no other form of a body tells so by itself
        message.body_format, message.body_root = "bson", ",".join(found)
    message.note_error("body", error)
    return message


def _types(value: object) -> list[str] | None:
    types = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [each for each in types[:MAX_HEADERS] if isinstance(each, str) and each] or None


def _type_of_label(label: str | None) -> list[str] | None:
    return [label] if label and len(label) < _CUT_LABEL else None


def _json_envelope(body: bytes) -> _Envelope:
    found = read_json_object(body)
    return ({}, None) if found is None else (found.members, found.error)


def _bson_envelope(body: bytes) -> _Envelope:
    found = read_bson(body)
    return found.members, found.error


def _xml_envelope(body: bytes) -> _Envelope:
    """Return the members of an XML envelope: texts of the root's elements; of an element that repeats, a list."""
    found: dict[str, Any] = {}
    path: list[str] = []
    parts: list[str] = []

    def start(name: str, _attributes: Mapping[str, str]) -> None:
        if len(path) == MAX_DEPTH:
            raise TooLargeError("depth", 0)
        path.append(name.rpartition(":")[2])
        parts.clear()

    def end(_name: str) -> None:
        name, depth = path.pop(), len(path)
        if depth == 1 and len(found) < MAX_HEADERS and not isinstance(found.get(name), dict):
            text = "".join(parts)
            found[name] = text if name not in found else [*_as_list(found[name]), text]
        elif depth == 2 and path[1] == "headers" and len(found) < MAX_HEADERS:
            found.setdefault("headers", {})[name] = "".join(parts)

    error = parse_xml(body, start, end, lambda text: parts.append(text) if len(path) <= 3 else None)
    return found, error


def _as_list(value: Any) -> list[Any]:  # noqa: ANN401 - texts
    return value if isinstance(value, list) else [value]


def _binary_envelope(body: bytes) -> _Envelope:
    """Return the headers that the binary formatter wrote beside the message."""
    found = read_binary_formatter(body)
    members: dict[str, Any] = {}
    for item in found.objects.values():
        if item.class_name == _HEADER_CLASS and isinstance(name := found.resolve(item.members.get("Name")), str):
            members[name] = found.resolve(item.members.get("Value"))
    return members, found.error


_ENVELOPES: Final = {
    "+json": _json_envelope,
    "+bson": _bson_envelope,
    "+xml": _xml_envelope,
    "+binary": _binary_envelope,
}
