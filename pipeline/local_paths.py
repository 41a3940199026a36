"""Places of files and lakes as they are told: a path, the same as a ``file:`` URI, or an S3 URI for a lake.

And where the project's own files of configuration are.
"""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from udfs.files.filesystems import StorageLocationError, canonical_location, split_s3_uri

SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
_CREDENTIALS: Final = re.compile(r"//[^/]*@")
_S3: Final = re.compile(r"s3[an]?:", re.IGNORECASE)


def local_path(location: str) -> str:
    """Return the path of a place: a path as it is, a ``file:`` URI without scheme and escapes.

    ValueError, in one line, for an empty text and for a URI of another machine or store.
    """
    if not location:
        raise ValueError("an empty text is no path")
    if not location.lower().startswith("file:"):
        if SCHEME.match(location):
            shown = _CREDENTIALS.sub("//...@", location)
            raise ValueError(
                f"{shown}: not a place on this machine; give a path or file:///PATH, for a lake also s3://BUCKET/PATH"
            )
        return location
    path = location[len("file:") :]
    if path.startswith("//"):
        host, _, below = path[2:].partition("/")
        if host not in {"", "localhost"}:
            raise ValueError(f"{location}: {host} is another machine; give a path or file:///PATH")
        path = f"/{below}"
    return unquote(path, errors="surrogateescape")


def lake_location(location: str) -> str:
    """Return the path of a lake's folder, or its URI ``s3://BUCKET/...``; ValueError, in one line, for other places."""
    return _s3_location(location) if _S3.match(location) else local_path(location)


def _s3_location(uri: str) -> str:
    """Return the S3 URI of a lake, with the scheme ``s3`` and without a slash at its end; ValueError if it is none."""
    shown = _CREDENTIALS.sub("//...@", uri)
    try:
        _, name = split_s3_uri(uri)
    except StorageLocationError as error:
        raise ValueError(f"{shown}: {error}") from None
    if {"", ".", ".."} & {*name.rstrip("/").split("/")}:
        raise ValueError(f"{shown}: a part of the name is empty, or a dot or two")
    return canonical_location(uri).rstrip("/")


def bundled_folder(name: str, installed_name: str | None = None) -> Traversable:
    """Return a folder of ``conf``, or its copy in an installed package or archive (``installed_name`` or its own name).

    ``pyproject.toml`` and ``tools/build_pyfiles.py`` make the copy.
    """
    package = resources.files("pipeline")
    installed = package / (installed_name or name)
    return installed if installed.is_dir() else Path(str(package)).parent / "conf" / name
