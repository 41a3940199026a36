"""What one message says to applications, as the readers of this package return it, and what they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from udfs.errors import DecodeError, TruncatedError

MAX_BYTES: Final = 1 << 20
"""How much of an extension, or of a body, is read: what is larger is read so far, with the error ``too_large``."""
MAX_DEPTH: Final = 64  # of elements or objects in each other
MAX_HEADERS: Final = 1000  # of one message

Headers = dict[str, str | None]
"""The application's headers by name."""


class TooLargeError(DecodeError):
    """There is more, or it is deeper, than is read."""

    code = "too_large"


@dataclass(frozen=True, slots=True)
class NativeFacts:
    """What the message's own headers say, where a framework uses them. Queues are normal forms."""

    label: str | None = None
    response_queue: str | None = None
    app_specific: int | None = None
    correlation_id: str | None = None


@dataclass(slots=True)
class ApplicationMessage:
    """The columns of ``silver.messages`` that the application's headers and body give; None: not said."""

    framework: str | None = None
    framework_evidence: str | None = None
    body_format: str | None = None
    body_root: str | None = None
    application_message_id: str | None = None
    conversation_id: str | None = None
    related_to: str | None = None
    sent_types: list[str] | None = None
    originating_endpoint: str | None = None
    processing_endpoint: str | None = None
    reply_to: str | None = None
    intent: str | None = None
    failed_queue: str | None = None
    exception_type: str | None = None
    exception_message: str | None = None
    immediate_retries: int | None = None
    delayed_retries: int | None = None
    application_sent_at: datetime | None = None
    application_messages: int | None = None
    application_headers: Headers | None = None
    application_errors: list[tuple[str, str, int]] = field(default_factory=list)

    def note_error(self, part: str, error: DecodeError | None) -> None:
        """Add an error of the ``extension`` or the ``body``; its offset is in bytes from the start of that part."""
        if error is not None:
            self.application_errors.append((error.code, f"{part}.{error.field}" if error.field else part, error.offset))


def cut_to_limit(data: bytes) -> tuple[bytes, DecodeError | None]:
    """Return the bytes that are read, and the error where there are more."""
    return (data, None) if len(data) <= MAX_BYTES else (data[:MAX_BYTES], TooLargeError("", MAX_BYTES))


def first_of(headers: Mapping[str, str | None], *names: str) -> str | None:
    """Return the first header of some names that says something."""
    return next((value for value in map(headers.get, names) if value), None)


def split_types(text: str | None) -> list[str] | None:
    """Return the names of types in a list with semicolons; None where there is none."""
    return [name for each in (text or "").split(";") if (name := each.strip())] or None


def whole_number(text: str | None) -> int | None:
    """Return a count that a header says, 0 to 2^31 - 1; None for anything else."""
    return int(text) if text and len(text) < 11 and text.isascii() and text.isdigit() and int(text) < 1 << 31 else None


def utc_time(text: str | None) -> datetime | None:
    """Return a time in ISO 8601, with any number of digits of a second; None for anything else.

    One without a time zone is taken for UTC.
    """
    if not text or len(text) > 64:
        return None
    whole, dot, rest = text.strip().partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    try:
        time = datetime.fromisoformat(f"{whole}{dot}{rest[:digits][:6].ljust(6, '0')}{rest[digits:]}" if dot else whole)
        return time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


@dataclass(slots=True)
class ByteReader:
    """Reads bytes from front to back. All raise TruncatedError where they end too early."""

    data: bytes
    at: int = 0

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return len(self.data) - self.at

    def take(self, size: int, name: str) -> bytes:
        """Return the next bytes."""
        if size > self.left:
            raise TruncatedError(name, self.at)
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int, name: str, *, signed: bool = False) -> int:
        """Return a little-endian number of ``size`` bytes."""
        return int.from_bytes(self.take(size, name), "little", signed=signed)

    def packed_number(self, name: str) -> int:
        """Return a number in groups of 7 bits, the lowest first; at most 5 bytes, of which the last ends it."""
        value = 0
        for shift in range(0, 35, 7):
            group = self.number(1, name)
            value |= (group & 0x7F) << shift
            if group < 0x80:
                return value
        return value

    def text(self, name: str) -> str:
        """Return a text in UTF-8 behind its packed size in bytes; wrong sequences are replaced."""
        return self.take(self.packed_number(name), name).decode("utf-8", "replace")

    def texts(self, count: int, name: str) -> Iterator[str]:
        """Yield texts one behind the other."""
        return (self.text(name) for _ in range(count))
