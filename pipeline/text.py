"""Text of the wire, made harmless for a terminal: labels and names are whatever a sender liked to write.

A terminal obeys control characters and escape sequences, and turns lines around for marks of direction. Of these, and
of whatever else has no shape of its own, the code point is shown instead.
"""

from __future__ import annotations

import unicodedata
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
