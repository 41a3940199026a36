"""Which files a run is given: files, folders and patterns, local or on an object store, in one order."""

from __future__ import annotations

import fnmatch
import hashlib
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from udfs.files import stores
from udfs.files.sources import Source, open_stored

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
        listed = list(_remote(uri) if stores.is_remote(uri) else _local(uri))
        found.update((entry.path, entry) for entry in listed)
    return sorted(found.values())


def find_file(path: str) -> Listed | None:
    """Return a file as it is now, by a path as ``Listed`` gives it; None when there is none or nobody can tell."""
    try:
        if "://" not in path:
            return _facts(Path(path)) if Path(path).is_file() else None
        filesystem, name = stores.place(path)
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
    """Yield the objects at a URI, below it, or matching it as a pattern; hidden ones as in folders are left out."""
    uri = stores.canonical(uri)
    scheme, name = uri.split("://", 1)
    try:
        filesystem, root = stores.place(uri)
        entry = filesystem.get_file_info(root)
        if entry.type == pafs.FileType.File:
            yield _object(scheme, entry)
            return
        pattern = _MAGIC.search(name) if entry.type == pafs.FileType.NotFound else None
        if pattern is not None:
            filesystem, root = stores.place(f"{scheme}://{name[: pattern.start()].rpartition('/')[0]}")
        entries: list[Any] = filesystem.get_file_info(pafs.FileSelector(root, allow_not_found=True, recursive=True))
    except (OSError, ValueError) as error:
        # What looks like credentials is not shown again.
        raise InputError(f"{re.sub('//[^/]*@', '//...@', uri)}: {' '.join(str(error).split())}") from None
    count = 0
    for entry in entries:
        below = entry.path.removeprefix(f"{root}/").split("/")
        if entry.type == pafs.FileType.File and (
            not any(part.startswith(".") for part in below)
            if pattern is None
            else _matches(entry.path.split("/"), name.rstrip("/").split("/"))
        ):
            count += 1
            yield _object(scheme, entry)
    if not count:
        raise InputError(f"no file {'matches' if pattern else 'at'} {uri}")


def _object(scheme: str, entry: Any) -> Listed:  # noqa: ANN401 - of pyarrow
    return Listed(f"{scheme}://{entry.path}", entry.size, entry.mtime_ns // 1000 if entry.mtime_ns else None)


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Whether a path, or a folder that it is in, matches a pattern part by part; ``**`` is any number of parts."""
    if not pattern:
        return not any(part.startswith(".") for part in parts)  # all below a folder that matched but what is hidden
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


_CHUNK = 1 << 20


def spool(uri: str, folder: Path, limit: int) -> Path:
    """Copy a pipe to a file in the folder and return it; at most ``limit`` bytes, else ``InputError``.

    The file is named by its content, so that the same bytes piped again are the same file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".spooling-{'stdin' if uri == '-' else Path(uri).name}"
    digest, size = hashlib.sha256(), 0
    opened = nullcontext(sys.stdin.buffer) if uri == "-" else Path(uri).open("rb")  # noqa: SIM115
    try:
        with opened as stream, temporary.open("wb") as out:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                if size > limit:
                    break
                digest.update(chunk)
                out.write(chunk)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if size > limit:
        temporary.unlink()
        raise InputError(f"{uri}: more than {limit} bytes (capture.spool_bytes)")
    target = folder / f"{digest.hexdigest()[:32]}.capture"
    if target.exists():
        temporary.unlink()  # the ledger knows this file with its time
    else:
        temporary.replace(target)
    return target
