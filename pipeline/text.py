"""Text for people: text of the wire made harmless for a terminal, values as table cells, parts of sentences.

Labels and names on the wire are whatever a sender liked to write.

A terminal obeys control characters and escape sequences, and turns lines around for marks of direction. Of these, and
of whatever else has no shape of its own, the code point is shown instead.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

CODE: Final = "<U+{:04X}>"
_MOST_MARKS: Final = 3  # accents on one letter; more of them are a tower over the lines above


def shown(text: str, most: int | None = None, *, code: str = CODE) -> str:
    r"""Return a text as it may be printed: ``<U+202E>`` for what is obeyed or not seen, ``...`` for what is too long.

    Hidden is what Python calls not printable: controls, marks of direction and other formats, lone surrogates, code
    points of private use or of none, separators of lines and paragraphs, and all spaces but the plain one. ``most`` is
    the number of characters of the text that are shown, ``code`` how code points are.
    """
    parts: list[str] = []
    marks = 0
    for char in text if most is None else text[:most]:
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        hidden = not char.isprintable() or marks > _MOST_MARKS
        parts.append(code.format(ord(char)) if hidden else char)
    return "".join(parts) + ("..." if most is not None and len(text) > most else "")


def clock(at: int) -> str:
    """Return a time for a sentence, to the second."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).strftime("%Y-%m-%d %H:%M:%S")


def counted(count: int, thing: str) -> str:
    """Return a number of things for a sentence."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


_WIDEST: Final = 60  # characters of a cell


def plain(text: str) -> str:
    """Return a text of the wire without what a terminal would obey."""
    return shown(text, code="\\x{:02x}")


def cell(value: object) -> str:
    """Return a value as it stands in a table: nothing for what is not known, times in UTC, numbers to three digits."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return _utc(value).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value))
    text = plain(str(value))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def json_value(value: object) -> int | float | str:
    """Return a value that JSON does not know: times as ISO 8601 in UTC, decimals as numbers, all else as text."""
    if isinstance(value, datetime):
        return _utc(value).isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _utc(at: datetime) -> datetime:
    """Return a time as UTC; one without a zone is."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return a table's lines, its head first; numbers stand to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [
        max(len(name), *(len(row[place]) for row in cells)) if cells else len(name) for place, name in enumerate(names)
    ]
    right = [
        any(isinstance(row[place], int | float) for row in rows)
        and not any(isinstance(row[place], bool) for row in rows)
        for place in range(len(names))
    ]

    def line(values: Sequence[str]) -> str:
        parts = (
            value.rjust(width) if number else value.ljust(width)
            for value, width, number in zip(values, widths, right, strict=True)
        )
        return "  ".join(parts).rstrip()

    return [line(names), line(["-" * width for width in widths]), *map(line, cells)]
