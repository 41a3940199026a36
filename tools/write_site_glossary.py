"""Write the glossary of the HTML site, whose terms the page explains: ``glossary.json`` from docs/start/glossary.md."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

GLOSSARY = Path(__file__).resolve().parents[1] / "docs" / "start" / "glossary.md"
_ENTRY = re.compile(r"^### (.+)\n\n((?:.+\n)+)", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ABBREVIATION = re.compile(r"(.+) \((.+)\)")


def page() -> str:
    """Return the file: the first paragraph of each entry, by each name of its heading, in lower case."""
    text = GLOSSARY.read_text(encoding="utf-8")
    terms = {name: _plain(paragraph) for heading, paragraph in _ENTRY.findall(text) for name in _names(heading)}
    return json.dumps(terms, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def _names(heading: str) -> Iterator[str]:
    """Yield the names of an entry: of ``Sending, resend`` both, of ``Gap (hole)`` the one in brackets too."""
    for name in heading.lower().split(", "):
        both = _ABBREVIATION.fullmatch(name)
        yield from both.groups() if both else (name,)


def _plain(paragraph: str) -> str:
    """Return a paragraph without marks of Markdown, on one line."""
    return re.sub(r"\s+", " ", re.sub(r"[*`]", "", _LINK.sub(r"\1", paragraph))).strip()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
