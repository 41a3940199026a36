"""Text for people: escaping and cutting of text from the wire, table cells, console tables, counts, times in sentences.

Labels and names on the wire are whatever a sender wrote. A terminal obeys control characters and escape sequences, and
bidirectional marks reorder a line. Such characters, and all others that are not printable, are replaced by their code
point. They can also be a megabyte long: what is shown is cut, and says so.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import Final

from udfs.times import us_to_datetime

CODE_POINT_FORMAT: Final = "<U+{:04X}>"
_MAX_COMBINING_MARKS: Final = 3  # on one letter; more of them would cover the lines above
MAX_TEXT_CHARS: Final = 500  # of a text of the wire in pages, and in lines at a terminal
CUT_DIGEST_CHARS: Final = 8
_MAX_CELL_CHARS: Final = 60
_CUT_CELL_CHARS: Final = 36  # left of a longer one: with the mark it is no wider
_MAX_CELL_ITEMS: Final = 20
_COLUMN_GAP: Final = "  "
_ROW_NUMBER: Final = "row"
_PLAIN_LINES: Final = re.compile(r"[\n -~]*")


def cut_text(text: str, max_chars: int = MAX_TEXT_CHARS, *, distinct: bool = False) -> str:
    """Return a text; of one with more than ``max_chars`` characters as many, and how many more it has.

    With ``distinct`` the beginning of the SHA-256 of its UTF-8 follows, so that different texts stay different.
    """
    if len(text) <= max_chars:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:CUT_DIGEST_CHARS]
    return f"{text[:max_chars]}... (+{len(text) - max_chars} characters{f', {digest}' if distinct else ''})"


def cut_text_sql(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Return the SQL of a text cut as ``cut_text`` does; different ones stay different. ``text``: a column, in SQL."""
    digest = f"substring(sha2({text}, 256), 1, {CUT_DIGEST_CHARS})"
    more = f"'... (+' || CAST(length({text}) - {max_chars} AS string) || ' characters, ' || {digest} || ')'"
    return f"CASE WHEN length({text}) <= {max_chars} THEN {text} ELSE substring({text}, 1, {max_chars}) || {more} END"


def escape_unprintable(text: str, max_chars: int = MAX_TEXT_CHARS, *, code_format: str = CODE_POINT_FORMAT) -> str:
    r"""Return a text that is safe to print: ``<U+202E>`` for unprintable characters, cut after ``max_chars``.

    Unprintable is what ``str.isprintable`` says: controls, bidirectional marks and other formats, lone surrogates,
    private-use and unassigned code points, line and paragraph separators, and all spaces but the plain one.
    ``max_chars`` limits the characters of the input, not of the output.
    """
    parts: list[str] = []
    marks = 0
    for char in cut_text(text, max_chars):
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        unsafe = not char.isprintable() or marks > _MAX_COMBINING_MARKS
        parts.append(code_format.format(ord(char)) if unsafe else char)
    return "".join(parts)


def escape_lines(text: str, encoding: str | None = None) -> str:
    r"""Return lines that are safe to print: all but line feeds as in ``escape_unprintable``, uncut.

    Characters that ``encoding`` lacks (None: it has all) become ``\uXXXX``.
    """
    if _PLAIN_LINES.fullmatch(text):
        return text
    safe = "\n".join(escape_unprintable(line, len(line)) for line in text.split("\n"))
    return safe if encoding is None else safe.encode(encoding, "backslashreplace").decode(encoding)


def escape_as_hex(text: str) -> str:
    r"""Return a text with unprintable characters as ``\x1b``."""
    return escape_unprintable(text, code_format="\\x{:02x}")


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded: one from a command line or a file's name may hold lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def format_time(at_us: int) -> str:
    """Return a time, given in microseconds since the epoch, as UTC text to the second."""
    return us_to_datetime(at_us).strftime("%Y-%m-%d %H:%M:%S")


def format_count(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1: ``1 call``, ``2 calls``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_age(span: timedelta) -> str:
    """Return a duration in its two largest units, rounded to seconds: ``3 d 4 h``, ``15 min``, ``0 s``."""
    left, parts = max(round(span.total_seconds()), 0), list[str]()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if (count := left // size) or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
        left %= size
    return " ".join(parts[:2])


def with_name(identifier: str, name: str | None) -> str:
    """Return an address or GUID with a name, ``name (identifier)``; alone without one, or where both are the same."""
    is_same = name is None or name.casefold() == identifier.casefold()
    return identifier if is_same else f"{name} ({identifier})"


def similar_names(name: str, names: Iterable[str]) -> str:
    """Return which names are similar to one that is unknown, as words that follow it; nothing if none is."""
    near = get_close_matches(name, [*names], n=3)
    return f"; similar: {', '.join(near)}" if near else ""


def format_cell(value: object) -> str:
    """Return a value as a table cell of at most 60 characters: empty for null, times in UTC, three decimals."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return _as_utc(value).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list | tuple):
        more = [f"... (+{format_count(len(value) - _MAX_CELL_ITEMS, 'value')})"] if len(value) > _MAX_CELL_ITEMS else []
        return ", ".join([*map(format_cell, value[:_MAX_CELL_ITEMS]), *more])
    text = str(value)
    return escape_as_hex(text if len(text) <= _MAX_CELL_CHARS else cut_text(text, _CUT_CELL_CHARS))


def json_default(value: object) -> int | float | str:
    """Return a value for ``json.dumps(default=...)``: times as ISO 8601 in UTC, decimals as numbers, else text."""
    if isinstance(value, datetime):
        return _as_utc(value).isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _as_utc(at: datetime) -> datetime:
    """Return a time in UTC; a time without a zone is taken as UTC."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def format_table(
    column_names: Sequence[str], rows: Sequence[Sequence[object]], max_width: int | None = None, first_number: int = 1
) -> list[str]:
    """Return the lines of a console table: header, rule, rows. Columns of numbers are aligned right.

    Columns that do not fit into ``max_width`` characters follow in more tables below, each with the rows' numbers, from
    ``first_number`` on.
    """
    cells = [[format_cell(value) for value in row] for row in rows]
    columns = range(len(column_names))
    widths = [max(len(column_names[i]), *(len(row[i]) for row in cells), 0) for i in columns]
    numeric = [
        any(isinstance(row[i], int | float | Decimal) for row in rows)
        and not any(isinstance(row[i], bool) for row in rows)
        for i in columns
    ]

    def line(values: Sequence[str]) -> str:
        aligned = (
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        )
        return _COLUMN_GAP.join(aligned).rstrip()

    if max_width is not None and sum(widths) + len(_COLUMN_GAP) * (len(widths) - 1) > max_width and len(widths) > 1:
        return _format_tables(column_names, rows, widths, max_width, first_number)
    return [line(column_names), line(["-" * width for width in widths]), *map(line, cells)]


def _format_tables(
    column_names: Sequence[str],
    rows: Sequence[Sequence[object]],
    widths: Sequence[int],
    max_width: int,
    first_number: int,
) -> list[str]:
    """Return the lines of tables of some columns each: as many as fit, or a single one that does not."""
    number_width = max(len(_ROW_NUMBER), len(str(first_number + len(rows))))
    parts: list[list[int]] = []
    room = 0
    for place, width in enumerate(widths):
        room -= len(_COLUMN_GAP) + width
        if room < 0 or not parts:
            parts.append([])
            room = max_width - number_width - len(_COLUMN_GAP) - width
        parts[-1].append(place)
    lines: list[str] = []
    for places in parts:
        numbered = [[number, *(row[place] for place in places)] for number, row in enumerate(rows, first_number)]
        lines += ["", *format_table([_ROW_NUMBER, *(column_names[place] for place in places)], numbered)]
    return lines[1:]
