"""Prints a message as a person reads it: its headers, the application's, and its body. All text is escaped."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pipeline.reports.shown_message.bodies import FoundBody
from pipeline.reports.shown_message.indentation import hex_lines, indent_json, indent_xml
from pipeline.reports.shown_message.inputs import ListedMessage, Sighting
from pipeline.text import cut_text, escape_unprintable, format_count, format_table
from schemas.messages import APPLICATION_COLUMNS, MESSAGES
from schemas.table import BINARY
from udfs.application import mass_transit, wcf
from udfs.application.body_formats import text_encoding
from udfs.application.variant_bodies import TEXT_ENCODINGS, VT_NAMES
from udfs.rows import RowMapping

MAX_SHOWN_BYTES: Final = 1 << 16  # of a body
_MAX_HEADER_CHARS: Final = 20_000  # of a header: texts of exceptions have many lines
_INDENT: Final = "    "
_HEADERS: Final = tuple(
    column.name
    for column in MESSAGES.columns
    if column not in APPLICATION_COLUMNS and column.type != BINARY
    and column.name not in ("message_key", "sighting_key", "seen_at", "seen_in", "run_id", "event_date")
)  # fmt: skip
_WITH_HEADERS_IN_BODIES: Final = (mass_transit.FRAMEWORK, wcf.FRAMEWORK)
_LAYOUTS: Final[Mapping[str, Callable[[str], Iterator[str]]]] = {
    "xml": indent_xml,
    "soap": indent_xml,
    "json": indent_json,
}
_TEXTS: Final = frozenset(("text", "mtom", *(VT_NAMES[code] for code in TEXT_ENCODINGS)))
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
# No other codecs of Python: some expand what is compressed, or take long.
_DECLARED: Final = re.compile(
    rb"\s*<\?xml [^>]*encoding=[\"']((?:iso-8859|windows)-[0-9]{1,4}|us-ascii|utf-8)[\"']", re.IGNORECASE
)


def format_list(messages: Sequence[ListedMessage]) -> list[str]:
    """Return a table of messages, each with the key by which it is shown."""
    return format_table(("first seen", "label", "application's id", "queue", "sightings", "key"), messages)


def format_message(
    sighting: Sighting, application: Mapping[str, Any], body: FoundBody, *, sightings: int
) -> Iterator[str]:
    """Yield the lines of a message, seen so many times. ``application``: values of ``APPLICATION_COLUMNS``."""
    row = sighting.row
    yield f"message   {escape_unprintable(row['message_id'] or 'identifier unknown')}"
    yield f"  key     {row['message_key'] or row['sighting_key']}"
    yield f"  seen    {escape_unprintable(_seen_text(sighting, sightings))}"
    yield "  headers"
    yield from _value_lines({name: row[name] for name in _HEADERS})
    headers = application["application_headers"]
    said = {name: value for name, value in application.items() if name != "application_headers"}
    if any(map(_is_said, said.values())):
        yield "  application"
        yield from _value_lines(said)
    if headers:
        yield f"  application's headers, of {' and '.join(_sources(row, application, body))}"
        yield from _value_lines(headers)
    size = f"{format_count(row['body_bytes'], 'byte')}, " if row["body_bytes"] else ""
    yield f"  body    {size}{escape_unprintable(body.source)}"
    if body.data:
        yield from _body_lines(row, application["body_format"], body.data)


def _sources(row: RowMapping, application: Mapping[str, Any], body: FoundBody) -> Iterator[str]:
    """Yield where the application's headers are from."""
    if row["extension"] is not None:
        yield f"{MESSAGES}.extension"
    if row["application_headers"] is not None:
        yield f"{MESSAGES}.application_headers"
    if body.data and application["framework"] in _WITH_HEADERS_IN_BODIES:
        yield f"the body ({body.source})"


def _seen_text(sighting: Sighting, sightings: int) -> str:
    row = sighting.row
    when = "time unknown" if row["seen_at"] is None else _value_text(row["seen_at"])
    place = f", {sighting.capture} packet {sighting.packet}" if sighting.capture else ""
    others = f"; {sightings} times in all" if sightings > 1 else ""
    return f"{when}, {row['seen_in']}{place}{others}"


def _is_said(value: object) -> bool:
    return value is not None and value not in ([], {})


def _value_lines(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each value that is there, more for a text of several lines."""
    texts = {name: _value_text(value) for name, value in values.items() if _is_said(value)}
    width = min(max(map(len, texts), default=0), 40)
    for name, text in texts.items():
        first, *more = _LINE_END.split(cut_text(text, _MAX_HEADER_CHARS))
        yield f"{_INDENT}{escape_unprintable(name):<{width}}  {_line(first)}".rstrip()
        yield from (f"{_INDENT}{'':<{width}}  {_line(each)}" for each in more)


def _value_text(value: Any) -> str:  # noqa: ANN401 - of a column
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{name} {_value_text(each)}" for name, each in value.items() if each is not None)
    if isinstance(value, tuple):  # of a map
        return " ".join(map(str, value))
    if isinstance(value, list):
        return ", ".join(map(_value_text, value))
    return str(value)


def _line(text: str) -> str:
    return escape_unprintable(text.expandtabs(4), len(text) * 4)


def _body_lines(row: RowMapping, body_format: str | None, body: bytes) -> Iterator[str]:
    """Yield the lines of a body in its form, no more than of ``MAX_SHOWN_BYTES``."""
    shown = body[:MAX_SHOWN_BYTES]
    layout = _LAYOUTS.get(body_format or "")
    if layout is not None and body_format == "soap" and (begin := max(shown.find(b"<"), 0)):
        yield f"{_INDENT}({format_count(begin, 'byte')} of framing before the envelope)"
        shown = shown[begin:]
    if layout is not None:
        lines = layout(_decoded(shown, row["body_type"]))
    elif body_format in _TEXTS:
        lines = iter(_LINE_END.split(_decoded(shown, row["body_type"])))
    else:
        lines = hex_lines(shown)
    yield from (f"{_INDENT}{_line(part)}" for line in lines for part in _LINE_END.split(line))
    if row["body_bytes_seen"] and row["body_bytes"] and row["body_bytes_seen"] < row["body_bytes"]:
        yield f"{_INDENT}... ({row['body_bytes'] - row['body_bytes_seen']} bytes of it were not captured)"
    if len(body) > MAX_SHOWN_BYTES:
        yield f"{_INDENT}... (+{len(body) - MAX_SHOWN_BYTES} bytes; --raw FILE writes all)"


def _decoded(body: bytes, body_type: int | None) -> str:
    """Return a body as text: by its mark, its VT code, what an XML document declares, or as it looks."""
    declared = _DECLARED.match(body)
    known = TEXT_ENCODINGS.get(body_type or 0)
    mark, encoding = text_encoding(body, known or (declared[1].decode() if declared else None))
    try:
        return codecs.getincrementaldecoder(encoding)("replace").decode(body[len(mark) :])
    except LookupError:  # iso-8859-99
        return body[len(mark) :].decode("utf-8", "replace")
