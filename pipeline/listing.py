"""Which files a run is given: files, folders and patterns, local or on an object store, in one order."""

from __future__ import annotations

import fnmatch
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from udfs.capture.sources import Source, open_stored

_MAGIC = re.compile(r"[*?\[]")


class InputError(Exception):
    """A path or pattern that leads to no file; the message is one line."""


@dataclass(frozen=True, slots=True, order=True)
class Listed:
    """A file as it was listed: ``path`` (absolute, non-local ones with their scheme), size in bytes, time in us."""

    path: str
    size: int
    modified_us: int | None

    def source(self) -> Source:
        """Return the file as a capture's source; that it has vanished since is found when it is read."""
        modified_ns = None if self.modified_us is None else self.modified_us * 1000
        return Source(self.path, self.size, modified_ns, partial(open_stored, self.path))


def list_files(uris: Iterable[str]) -> list[Listed]:
    """Return the files that the URIs name, each once, by path; raises ``InputError`` for one that names none.

    A folder stands for all files below it, whatever their names, but for hidden ones; a pattern (``*``, ``?``, ``[]``,
    ``**``) for the files and folders that match.
    """
    found: dict[str, Listed] = {}
    for uri in uris:
        listed = list(_remote(uri) if "://" in uri and not uri.startswith("file:") else _local(uri))
        found.update((entry.path, entry) for entry in listed)
    return sorted(found.values())


def find_file(path: str) -> Listed | None:
    """Return a file as it is now, by a path as ``Listed`` gives it; None when there is none or nobody can tell."""
    try:
        if "://" not in path:
            return _facts(Path(path)) if Path(path).is_file() else None
        filesystem, name = pafs.FileSystem.from_uri(path)
        info = filesystem.get_file_info(name)
    except (InputError, OSError, ValueError):
        return None
    if info.type != pafs.FileType.File:
        return None
    return Listed(path, info.size, info.mtime_ns // 1000 if info.mtime_ns else None)


def _local(uri: str) -> Iterator[Listed]:
    path = Path(re.sub(r"^file:(//)?", "", uri)).absolute()
    if path.exists():
        places = [path]
    elif _MAGIC.search(str(path)):
        places = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        if not places:
            raise InputError(f"no file matches {uri}")
    else:
        raise InputError(f"no such file or folder: {uri}")
    for place in places:
        if place.is_dir():
            for below in place.rglob("*"):
                if below.is_file() and not any(part.startswith(".") for part in below.relative_to(place).parts):
                    yield _facts(below)
        else:
            yield _facts(place)


def _facts(path: Path) -> Listed:
    try:
        facts = path.stat()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    return Listed(str(path), facts.st_size, facts.st_mtime_ns // 1000)


def is_pipe(uri: str) -> bool:
    """Whether a URI is standard input or a named pipe: these are spooled before they are read."""
    if uri == "-":
        return True
    try:
        return stat.S_ISFIFO(Path(uri).stat().st_mode)
    except (OSError, ValueError):
        return False


def _remote(uri: str) -> Iterator[Listed]:
    scheme = uri.split("://", 1)[0]
    match = _MAGIC.search(uri)
    root = uri if match is None else uri[: match.start()].rsplit("/", 1)[0]
    try:
        filesystem, name = pafs.FileSystem.from_uri(root)
        info = filesystem.get_file_info(name)
        entries: list[Any] = (
            [info]
            if info.type == pafs.FileType.File
            else filesystem.get_file_info(pafs.FileSelector(name, recursive=True))
        )
    except (OSError, ValueError) as error:
        raise InputError(f"{uri}: {error}") from error
    count = 0
    for entry in entries:
        path = f"{scheme}://{entry.path}"
        if entry.type == pafs.FileType.File and (match is None or fnmatch.fnmatchcase(path, uri)):
            count += 1
            yield Listed(path, entry.size, entry.mtime_ns // 1000 if entry.mtime_ns else None)
    if not count:
        raise InputError(f"no file at {uri}")
