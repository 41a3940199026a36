"""Places on this machine: a path, or the same as a ``file:`` URI."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
_CREDENTIALS: Final = re.compile(r"//[^/]*@")


def local_path(place: str) -> str:
    """Return the path of a place: a path as it is, a ``file:`` URI without scheme and escapes.

    ValueError, in one line, for an empty text and for a URI of another machine or store.
    """
    if not place:
        raise ValueError("an empty text is no path")
    if not place.lower().startswith("file:"):
        if _SCHEME.match(place):
            shown = _CREDENTIALS.sub("//...@", place)
            raise ValueError(f"{shown}: not a place on this machine; give a path or file:///PATH")
        return place
    path = place[len("file:") :]
    if path.startswith("//"):
        host, _, below = path[2:].partition("/")
        if host not in {"", "localhost"}:
            raise ValueError(f"{place}: {host} is another machine; give a path or file:///PATH")
        path = f"/{below}"
    return unquote(path, errors="surrogateescape")
