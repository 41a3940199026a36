"""Rows for people who look at a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from pipeline.text import shown

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
