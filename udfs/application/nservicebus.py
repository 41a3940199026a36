"""Headers of NServiceBus: the extension is XML, ``ArrayOfHeaderInfo`` of ``HeaderInfo`` with ``Key`` and ``Value``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from udfs.application.application_message import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_HEADERS,
    ApplicationMessage,
    Headers,
    NativeFacts,
    TooLargeError,
    first_of,
    split_types,
    utc_time,
    whole_number,
)
from udfs.application.bounded_xml import allow_forbidden_characters, parse_xml, restore_forbidden_characters
from udfs.errors import DecodeError, MalformedError

FRAMEWORK: Final = "NServiceBus"
EXCEPTION_PART: Final = ".ExceptionInfo."  # in names of headers about an exception, of bridges too
EXCEPTION_TYPE_ENDING: Final = "ExceptionType"  # of those that only name its class

_ROOT: Final = "ArrayOfHeaderInfo"
_END_TAG: Final = b"</ArrayOfHeaderInfo>"
_NIL: Final = "xsi:nil"
# The document as .NET writes it, where nothing in it is escaped: a third of the time of the parser. What these do not
# match is parsed; tests show that both give the same.
_TEXT: Final = "([^<>&\r\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]*)"
_SPACE: Final = "[ \\t\\r\\n]*"
_PLAIN_ITEM: Final = re.compile(
    rf"{_SPACE}<HeaderInfo>{_SPACE}<Key>{_TEXT}</Key>{_SPACE}(?:<Value>{_TEXT}</Value>|<Value />){_SPACE}</HeaderInfo>"
)
_PLAIN_BEGIN: Final = re.compile(
    r'(?:<\?xml version="1\.0"(?: encoding="utf-8")?\?>[ \t\r\n]*)?'
    r"""<ArrayOfHeaderInfo(?: xmlns:xs[id]="[!#-%'-;=?-~]+"){0,2}>"""
)
# The values of AppSpecific, from which version 3 tells the intent.
_INTENTS: Final = {1: "Send", 2: "Publish", 3: "Subscribe", 4: "Unsubscribe", 5: "Reply"}
_PRIVATE: Final = "\\private$\\"
_NO_CORRELATION: Final = "\\0"  # behind the GUID of a correlation id that is no message id


class FoundHeaders(NamedTuple):
    """The headers of an extension, in its order, and what ended it too early."""

    headers: Headers
    error: DecodeError | None


def read_nservicebus(extension: bytes, native: NativeFacts) -> ApplicationMessage | None:
    """Read the extension of a message of NServiceBus; None if it is another one.

    What the headers do not say, as in version 3, the message's own headers do: the reply address is the response queue,
    the intent the number for the application, and the related message the correlation id.
    """
    found = read_headers(extension)
    if found is None:
        return None
    headers = found.headers
    header = headers.get
    message = ApplicationMessage(
        framework=FRAMEWORK,
        framework_evidence="extension ArrayOfHeaderInfo",
        application_message_id=header("NServiceBus.MessageId") or None,
        conversation_id=header("NServiceBus.ConversationId") or None,
        related_to=header("NServiceBus.RelatedTo") or _native_correlation(headers, native),
        sent_types=split_types(header("NServiceBus.EnclosedMessageTypes")),
        originating_endpoint=first_of(headers, "NServiceBus.OriginatingEndpoint", "NServiceBus.OriginatingAddress"),
        processing_endpoint=header("NServiceBus.ProcessingEndpoint") or None,
        reply_to=header("NServiceBus.ReplyToAddress") or _as_address(native.response_queue),
        intent=header("NServiceBus.MessageIntent") or _INTENTS.get(native.app_specific or 0),
        failed_queue=header("NServiceBus.FailedQ") or None,
        exception_type=header("NServiceBus.ExceptionInfo.ExceptionType") or None,
        exception_message=header("NServiceBus.ExceptionInfo.Message") or None,
        immediate_retries=whole_number(header("NServiceBus.FLRetries")),
        delayed_retries=whole_number(header("NServiceBus.Retries")),
        application_sent_at=utc_time(_iso_text(header("NServiceBus.TimeSent"))),
        application_headers=headers,
    )
    message.note_error("extension", found.error)
    return message


def read_headers(extension: bytes) -> FoundHeaders | None:
    """Read the headers of an extension; None if its root is another one.

    All behind the last end tag of the root is ignored: some senders leave bytes there. References to control
    characters, which XML forbids, are read; offsets of errors behind them count them as 3 bytes.
    """
    if _ROOT.encode() not in extension[:512]:
        return None
    end = extension.rfind(_END_TAG)
    if end >= 0 and (plain := read_plain_headers(extension[:end])) is not None:
        return FoundHeaders(plain, None)
    document = allow_forbidden_characters(extension if end < 0 else extension[: end + len(_END_TAG)])
    reader = _HeaderReader()
    error = parse_xml(document, reader.start, reader.end, reader.text, encoding="utf-8")
    if not reader.is_root:
        return None
    headers = reader.headers
    if document is not extension and b"\xef\xb7" in document:
        headers = {
            restore_forbidden_characters(key): value and restore_forbidden_characters(value)
            for key, value in headers.items()
        }
    return FoundHeaders(headers, error)


def read_plain_headers(document: bytes) -> Headers | None:
    """Read a document, up to its last end tag, in which nothing is escaped; None if it has to be parsed."""
    if len(document) > MAX_BYTES:
        return None
    try:
        text = document.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    begin = _PLAIN_BEGIN.match(text)
    if begin is None or begin[0].count("xmlns:xsi") > 1 or begin[0].count("xmlns:xsd") > 1:
        return None
    headers: Headers = {}
    at = begin.end()
    while (item := _PLAIN_ITEM.match(text, at)) is not None:
        headers.setdefault(item[1], item[2] or "")
        at = item.end()
    return headers if len(headers) <= MAX_HEADERS and not text[at:].strip(" \t\r\n") else None


class _HeaderReader:
    """Collects keys and values; of a key that is there twice the first one, as NServiceBus refuses such a message."""

    __slots__ = ("_depth", "_is_nil", "_item", "_key", "_parts", "headers", "is_root")

    def __init__(self) -> None:
        self.headers: Headers = {}
        self.is_root = False
        self._depth = 0
        self._parts: list[str] = []
        self._key: str | None = None
        self._item: str | None = None
        self._is_nil = False

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if self._depth == 1:
            if name != _ROOT:
                raise MalformedError(_ROOT, 0)
            self.is_root = True
        elif self._depth > MAX_DEPTH:
            raise TooLargeError("depth", 0)
        elif attributes and name == "Value":
            self._is_nil = attributes.get(_NIL) in ("true", "1")
        self._parts = []

    def text(self, text: str) -> None:
        self._parts.append(text)

    def end(self, name: str) -> None:
        self._depth -= 1
        if name == "Key":
            self._key = "".join(self._parts)
        elif name == "Value":
            self._item = None if self._is_nil else "".join(self._parts)
            self._is_nil = False
        elif name == "HeaderInfo":
            if self._key is not None:
                if len(self.headers) == MAX_HEADERS:
                    raise TooLargeError("HeaderInfo", 0)
                self.headers.setdefault(self._key, self._item)
            self._key = self._item = None


def _native_correlation(headers: Mapping[str, str | None], native: NativeFacts) -> str | None:
    """Return the id of the related message in messages of version 3, which have no header for it."""
    if (
        native.correlation_id is None
        or headers.get("NServiceBus.CorrelationId")
        or headers.get("NServiceBus.MessageId")
    ):
        return None
    return native.correlation_id.removesuffix(_NO_CORRELATION)


def _as_address(queue: str | None) -> str | None:
    """Return the normal form of a private queue as NServiceBus writes addresses, ``queue@machine``; others stay."""
    if queue is None or _PRIVATE not in queue:
        return queue
    machine, _, name = queue.partition(_PRIVATE)
    return f"{name}@{machine}"


def _iso_text(text: str | None) -> str | None:
    """Return ``2024-05-01 12:00:00:123456 Z`` in ISO 8601."""
    if not text or len(text) > 64:
        return None
    parts = text.strip().removesuffix("Z").strip().split(":")
    return f"{':'.join(parts[:3])}.{parts[3]}+00:00" if len(parts) == 4 else f"{':'.join(parts)}+00:00"
