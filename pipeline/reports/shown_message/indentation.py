"""Lays out bodies for people: XML and JSON one element or member a line, bytes in hex. Nothing is parsed or expanded.

Only the space between elements and members changes, so what is cut or broken is laid out as far as it goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_STEP: Final = "  "
_MAX_LEVELS: Final = 32  # of indentation: a hostile body may have as many as it has bytes
_HEX_BYTES: Final = 16  # of a line
# What has no end goes on to the end of the text. No alternative begins like another one, so time is linear.
_XML: Final = re.compile(
    r"""(?P<other><!--(?:.*?-->|.*)|<!\[CDATA\[(?:.*?\]\]>|.*)|<\?(?:.*?\?>|.*)|<!(?:"[^"<]*"|'[^'<]*'|[^'"<>])*>)
    |(?P<end></[^<>]*>)
    |(?P<start><(?:"[^"<]*"|'[^'<]*'|[^'"<>])*>)
    |(?P<text><?[^<]*)""",
    re.DOTALL | re.VERBOSE,
)
_JSON: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_OPENING: Final = frozenset("{[")
_CLOSING: Final = frozenset("}]")
_MARKS: Final = frozenset("{}[],:")
_UNPRINTABLE: Final = re.compile(rb"[^ -~]")


def indent_xml(text: str) -> Iterator[str]:
    """Yield the lines of a document. An element that has text alone, or nothing, is one line."""
    level, opened = 0, list[str]()  # the last start tag and the text behind it, as long as its end may follow
    for token in _XML.finditer(text):
        part, kind = token[0], token.lastgroup
        if kind == "text" and opened:
            opened.append(part)
            continue
        if kind == "end":
            if not opened:
                level = max(level - 1, 0)
            yield _indented("".join((*opened, part)), level)
        else:
            if opened:
                yield from _opened_lines(opened, level)
                level += 1
            if kind == "start" and not part.endswith("/>"):
                opened = [part]
                continue
            if part.strip():
                yield _indented(part.strip(), level)
        opened = []
    if opened:
        yield from _opened_lines(opened, level)


def _opened_lines(opened: list[str], level: int) -> Iterator[str]:
    tag, *texts = opened
    yield _indented(tag, level)
    if text := "".join(texts).strip():
        yield _indented(text, level + 1)


def indent_json(text: str) -> Iterator[str]:
    """Yield the lines of a JSON text. Names, values and their order stay as they are written."""
    level, line, previous = 0, "", ""
    for token in _JSON.findall(text):
        level -= token in _CLOSING and level > 0
        if previous in _OPENING if token in _CLOSING else token in (",", ":"):
            line += token
        elif token in _CLOSING or previous in _OPENING or previous == ",":
            if line:
                yield line
            line = _indented(token, level)
        else:
            line += f" {token}" if previous == ":" or not {previous, token} & _MARKS else token
        level += token in _OPENING
        previous = token
    if line:
        yield line


def hex_lines(data: bytes) -> Iterator[str]:
    """Yield lines of 16 bytes: the offset, the bytes in hex, and as ASCII."""
    for at in range(0, len(data), _HEX_BYTES):
        part = data[at : at + _HEX_BYTES]
        yield f"{at:08x}  {part.hex(' '):<{3 * _HEX_BYTES}} {_UNPRINTABLE.sub(b'.', part).decode()}"


def _indented(text: str, level: int) -> str:
    return _STEP * min(level, _MAX_LEVELS) + text
