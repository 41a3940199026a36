"""List the input files of a run: files, folders and patterns, local or on an object store; copy pipes to files."""

from __future__ import annotations

import fnmatch
import hashlib
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow.fs as pafs

from pipeline.lake.local_paths import local_path
from udfs.files import filesystems
from udfs.files.file_source import FileSource, open_stored_file

_COPY_CHUNK_BYTES: Final = 1 << 20
_GLOB_CHARACTERS: Final = re.compile(r"[*?\[]")


class InputError(Exception):
    """A path or pattern that names no file. The message is one line."""


@dataclass(frozen=True, slots=True, order=True)
class InputFile:
    """A file as it was listed: absolute path or URI, size in bytes, modification time in microseconds since 1970."""

    path: str
    size: int
    modified_us: int | None

    def capture_source(self) -> FileSource:
        """Return a source that opens the file. A file that is gone by then fails when it is opened."""
        modified_ns = None if self.modified_us is None else self.modified_us * 1000
        return FileSource(self.path, self.size, modified_ns, partial(open_stored_file, self.path))


FindFile = Callable[[str], InputFile | None]
"""Returns the current state of the file at a path, or None, as ``find_file`` does."""


def list_files(uris: Iterable[str]) -> list[InputFile]:
    """Return the files that URIs name, each once, sorted by path. InputError for a URI that names none.

    A folder stands for all files below it that are not hidden, a pattern (``*``, ``?``, ``[]``, ``**``) for the files
    and folders that match it.
    """
    found: dict[str, InputFile] = {}
    for uri in uris:
        listed = list(_list_remote(uri) if filesystems.is_remote(uri) else _list_local(uri))
        found.update((entry.path, entry) for entry in listed)
    return sorted(found.values())


def ledger_path(uri: str) -> str:
    """Return how the ledger names the file at a URI: by its absolute path, or by its URI on an object store.

    ValueError for a URI that cannot be one of a file.
    """
    return filesystems.canonical_location(uri) if filesystems.is_remote(uri) else str(Path(local_path(uri)).absolute())


def find_file(path: str) -> InputFile | None:
    """Return the current state of the file at a path of an ``InputFile``; None if it is missing or not accessible."""
    try:
        if "://" not in path:
            return _stat_file(Path(path)) if Path(path).is_file() else None
        filesystem, name = filesystems.resolve_filesystem(path)
        info = filesystem.get_file_info(name)
    except (InputError, OSError, ValueError):
        return None
    if info.type != pafs.FileType.File:
        return None
    return InputFile(path, info.size, info.mtime_ns // 1000 if info.mtime_ns else None)


def _list_local(uri: str) -> Iterator[InputFile]:
    try:
        path = Path(ledger_path(uri))
    except ValueError as error:
        raise InputError(str(error)) from error
    if path.exists():
        paths = [path]
    elif _GLOB_CHARACTERS.search(str(path)):
        paths = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        if not paths:
            raise InputError(f"no file matches {uri}")
    else:
        raise InputError(f"no such file or folder: {uri}")
    for found in paths:
        if found.is_dir():
            for below in found.rglob("*"):
                if below.is_file() and not any(part.startswith(".") for part in below.relative_to(found).parts):
                    yield _stat_file(below)
        else:
            yield _stat_file(found)


def _stat_file(path: Path) -> InputFile:
    try:
        facts = path.stat()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    return InputFile(str(path), facts.st_size, facts.st_mtime_ns // 1000)


def is_pipe(uri: str) -> bool:
    """Whether a URI is standard input (``-``) or a named pipe: such input is spooled before it is read."""
    if uri == "-":
        return True
    try:
        return not filesystems.is_remote(uri) and stat.S_ISFIFO(Path(local_path(uri)).stat().st_mode)
    except (OSError, ValueError):
        return False


def _list_remote(uri: str) -> Iterator[InputFile]:
    """Yield the objects at a URI, below it, or matching it as a pattern. Hidden ones are left out, as in folders."""
    uri = filesystems.canonical_location(uri)
    scheme, name = uri.split("://", 1)
    try:
        filesystem, root = filesystems.resolve_filesystem(uri)
        entry = filesystem.get_file_info(root)
        if entry.type == pafs.FileType.File:
            yield _object_file(scheme, entry)
            return
        pattern = _GLOB_CHARACTERS.search(name) if entry.type == pafs.FileType.NotFound else None
        if pattern is not None:
            filesystem, root = filesystems.resolve_filesystem(
                f"{scheme}://{name[: pattern.start()].rpartition('/')[0]}"
            )
        entries: list[Any] = filesystem.get_file_info(pafs.FileSelector(root, allow_not_found=True, recursive=True))
    except (OSError, ValueError) as error:
        # Do not repeat what may be credentials.
        raise InputError(f"{re.sub('//[^/]*@', '//...@', uri)}: {' '.join(str(error).split())}") from None
    count = 0
    for entry in entries:
        below = entry.path.removeprefix(f"{root}/").split("/")
        if entry.type == pafs.FileType.File and (
            not any(part.startswith(".") for part in below)
            if pattern is None
            else _matches_pattern(entry.path.split("/"), name.rstrip("/").split("/"))
        ):
            count += 1
            yield _object_file(scheme, entry)
    if not count:
        raise InputError(f"no file {'matches' if pattern else 'at'} {uri}")


def _object_file(scheme: str, entry: Any) -> InputFile:  # noqa: ANN401 - pyarrow's
    return InputFile(f"{scheme}://{entry.path}", entry.size, entry.mtime_ns // 1000 if entry.mtime_ns else None)


def _matches_pattern(parts: list[str], pattern: list[str]) -> bool:
    """Whether a path, or a folder that holds it, matches a pattern part by part. ``**`` matches any number of parts."""
    if not pattern:
        return not any(part.startswith(".") for part in parts)  # below a folder that matched
    if pattern[0] == "**":
        return _matches_pattern(parts, pattern[1:]) or (bool(parts) and _matches_pattern(parts[1:], pattern))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches_pattern(parts[1:], pattern[1:])


def spool_pipe(uri: str, folder: Path, max_bytes: int) -> Path:
    """Copy standard input or a pipe to a file in ``folder`` and return its path. InputError above ``max_bytes``.

    The file is named by its content: the same bytes piped again give the same file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = Path("stdin" if uri == "-" else local_path(uri))
    temporary = folder / f".spooling-{path.name}"
    digest, size = hashlib.sha256(), 0
    opened = nullcontext(sys.stdin.buffer) if uri == "-" else path.open("rb")
    try:
        with opened as stream, temporary.open("wb") as out:
            while chunk := stream.read(_COPY_CHUNK_BYTES):
                size += len(chunk)
                if size > max_bytes:
                    break
                digest.update(chunk)
                out.write(chunk)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if size > max_bytes:
        temporary.unlink()
        raise InputError(f"{uri}: more than {max_bytes} bytes (capture.spool_bytes)")
    target = folder / f"{digest.hexdigest()[:32]}.capture"
    if target.exists():
        temporary.unlink()  # keep the older file: the ledger knows its time
    else:
        temporary.replace(target)
    return target
