"""Text of the wire, made harmless for a terminal: labels and names are whatever a sender liked to write.

A terminal obeys control characters and escape sequences, and turns lines around for marks of direction. Of these, and
of whatever else has no shape of its own, the code point is shown instead.
"""

from __future__ import annotations

import unicodedata
from typing import Final

# Controls, marks of direction and other formats, lone surrogates, code points of private use or of none, and the
# separators of lines and paragraphs.
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_MOST_MARKS: Final = 3  # accents on one letter; more of them are a tower over the lines above


def shown(text: str, most: int | None = None) -> str:
    r"""Return a text as it may be printed: ``<U+202E>`` for what is obeyed or not seen, ``...`` for what is too long.

    ``most`` is the number of characters of the text that are shown. Spaces are kept, odd ones as their code point.
    """
    parts: list[str] = []
    marks = 0
    for char in text if most is None else text[:most]:
        kind = unicodedata.category(char)
        marks = marks + 1 if kind in ("Mn", "Me") else 0
        hidden = kind in _HIDDEN or (kind == "Zs" and char != " ") or marks > _MOST_MARKS
        parts.append(f"<U+{ord(char):04X}>" if hidden else char)
    return "".join(parts) + ("..." if most is not None and len(text) > most else "")
