"""List the input files of a run: files, folders and patterns, local or on an object store; copy pipes to files."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow.fs as pafs

from pipeline.local_paths import local_path
from udfs.files import filesystems
from udfs.files.file_source import FileSource, open_stored_file
from udfs.times import datetime_to_us, us_to_datetime

_COPY_CHUNK_BYTES: Final = 1 << 20
_GLOB_CHARACTERS: Final = re.compile(r"[*?\[]")


class InputError(Exception):
    """A file, folder or pattern that cannot be listed. The message is one line."""


class MissingInputError(InputError):
    """A path or pattern that names no file."""


@dataclass(frozen=True, slots=True, order=True)
class InputFile:
    """A file as it was listed: absolute path or URI, size in bytes, modification time in microseconds since 1970.

    Of a local path that is not text, ``path`` is the escaped form (``udfs.files.filesystems.escape_path``).
    """

    path: str
    size: int
    modified_us: int | None

    def capture_source(self) -> FileSource:
        """Return a source that opens the file. A file that is gone by then fails when it is opened."""
        modified_ns = None if self.modified_us is None else self.modified_us * 1000
        return FileSource(self.path, self.size, modified_ns, partial(open_stored_file, self.path))


FindFile = Callable[[str], InputFile | None]
"""Returns the current state of the file at a path, or None, as ``find_file`` does."""

Report = Callable[[str], None]
"""Takes a line about a file or folder that cannot be listed."""


def list_files(uris: Iterable[str], report: Report | None = None) -> list[InputFile]:
    """Return the files that URIs name, each once, sorted by path.

    A folder stands for all files below it that are not hidden, a pattern (``*``, ``?``, ``[]``, ``**``) for the files
    and folders that match it. What may not be listed, and a URI that names no file beside others that do, is passed to
    ``report``. Raises InputError where there is no ``report``, and if no URI names anything.
    """
    found: dict[str, InputFile] = {}
    missing: list[InputError] = []
    some_named = False
    for uri in uris:
        try:
            listed = (_list_remote if filesystems.is_remote_location(uri) else _list_local)(uri, report or _refuse)
            found.update((entry.path, entry) for entry in listed)
            some_named = True
        except MissingInputError as error:
            missing.append(error)
    if missing and (report is None or not some_named):
        raise missing[0]
    for problem in missing:
        (report or _refuse)(str(problem))
    return sorted(found.values())


def _refuse(problem: str) -> None:
    raise InputError(problem)


def newest_paths(files: Iterable[InputFile]) -> frozenset[str]:
    """Return the paths of the newest file of each folder: something may still be writing to them."""
    newest: dict[str, InputFile] = {}
    for file in sorted(files, key=lambda each: (each.modified_us or 0, each.path)):
        newest[file.path.rpartition("/")[0]] = file
    return frozenset(file.path for file in newest.values())


def ledger_path(uri: str) -> str:
    """Return how the ledger names the file at a URI: by its absolute path, or by its URI on an object store.

    A local path may be as a user writes it or as the ledger shows it. ValueError for a URI that names no file.
    """
    if filesystems.is_remote_location(uri):
        return filesystems.canonical_location(uri)
    return filesystems.escape_path(_absolute_path(filesystems.unescape_path(uri)))


def _absolute_path(uri: str) -> str:
    return str(Path(local_path(uri)).absolute())


def file_identity(path: str) -> tuple[int, int] | None:
    """Return what is equal for all names of a local file; None if there is no file at the path of an ``InputFile``."""
    try:
        found = Path(filesystems.unescape_path(path)).stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def find_file(path: str) -> InputFile | None:
    """Return the current state of the file at a path of an ``InputFile``; None if it is missing or not accessible."""
    try:
        if "://" not in path:
            real = filesystems.unescape_path(path)
            return _stat_file(real) if Path(real).is_file() else None
        filesystem, name = filesystems.resolve_filesystem(path)
        info = filesystem.get_file_info(name)
    except (OSError, ValueError):
        return None
    if info.type != pafs.FileType.File:
        return None
    return InputFile(path, info.size, _modified_us(info.mtime_ns) if info.mtime_ns else None)


def _list_local(uri: str, report: Report) -> list[InputFile]:
    """Return the files at a local path, below it, or matching it as a pattern."""
    try:
        path = _absolute_path(uri)
    except ValueError as error:
        raise InputError(str(error)) from error
    problems: list[str] = []
    if _GLOB_CHARACTERS.search(path) and not os.path.lexists(path):
        anchor = Path(path).anchor
        paths = list(_matching_paths(anchor, Path(path).parts[1:], problems))
        nothing = f"no file matches {filesystems.escape_path(uri)}"
    else:
        paths = [path] if _is_there(path, problems) else []
        nothing = f"no such file or folder: {filesystems.escape_path(uri)}"
    files = []
    for file in chain.from_iterable(_files_at(path, problems) for path in paths):
        try:
            files.append(_stat_file(file))
        except OSError as error:
            problems.append(_problem(file, error))
    for problem in dict.fromkeys(problems):  # ``**`` comes to a folder more than once
        report(problem)
    if not paths and not problems:
        raise MissingInputError(nothing)
    return files


def _is_there(path: str, problems: list[str]) -> bool:
    """Whether a path exists and is accessible; if it is not accessible, that is a problem."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        problems.append(_problem(path, error))
        return False
    return True


def _files_at(path: str, problems: list[str]) -> Iterator[str]:
    """Yield the file at a path, or the files below it that are not hidden."""
    if not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises if the path is not accessible
        yield path
        return
    for entry in _entries(path, problems):
        if entry.name.startswith("."):
            continue
        try:
            is_folder, is_file = entry.is_dir(follow_symlinks=False), entry.is_file()
        except OSError:
            is_folder, is_file = False, True  # looking at it tells the reason
        if is_folder:
            yield from _files_at(entry.path, problems)
        elif is_file:
            yield entry.path


def _matching_paths(folder: str, pattern: Sequence[str], problems: list[str]) -> Iterator[str]:
    """Yield the paths below a folder that match a pattern part by part. ``**`` matches any number of folders."""
    if not pattern:
        yield folder
    elif not _GLOB_CHARACTERS.search(pattern[0]):
        path = str(Path(folder, pattern[0]))
        if _is_there(path, problems):
            yield from _matching_paths(path, pattern[1:], problems)
    else:
        if pattern[0] == "**":
            yield from _matching_paths(folder, pattern[1:], problems)
        for entry in _entries(folder, problems):
            if pattern[0] == "**" and entry.is_dir(follow_symlinks=False):
                yield from _matching_paths(entry.path, pattern, problems)
            elif pattern[0] != "**" and fnmatch.fnmatchcase(entry.name, pattern[0]):
                yield from _matching_paths(entry.path, pattern[1:], problems)


def _entries(folder: str, problems: list[str]) -> list[os.DirEntry[str]]:
    """Return the entries of a folder by name; none, and a problem, if it may not be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except NotADirectoryError:
        return []  # a file where a pattern has a folder
    except OSError as error:
        problems.append(_problem(folder, error))
        return []


def _problem(path: str, error: OSError) -> str:
    return f"{filesystems.escape_path(path)}: cannot be listed: {error.strerror or error}"


def _stat_file(path: str) -> InputFile:
    facts = Path(path).stat()
    return InputFile(filesystems.escape_path(path), facts.st_size, _modified_us(facts.st_mtime_ns))


def is_pipe(uri: str) -> bool:
    """Whether a URI is standard input (``-``) or a named pipe: such input is spooled before it is read."""
    if uri == "-":
        return True
    try:
        return not filesystems.is_remote_location(uri) and stat.S_ISFIFO(Path(local_path(uri)).stat().st_mode)
    except (OSError, ValueError):
        return False


def _list_remote(uri: str, report: Report) -> Iterator[InputFile]:
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
        problem = f"{re.sub('//[^/]*@', '//...@', uri)}: {' '.join(str(error).split())}"
        if isinstance(error, (filesystems.StorageLocationError, ValueError)):
            raise InputError(problem) from None
        report(problem)
        return
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
        raise MissingInputError(f"no file {'matches' if pattern else 'at'} {uri}")


def _modified_us(modified_ns: int) -> int:
    """Return a time of modification in microseconds, limited to the years of a timestamp: a file system holds any."""
    return datetime_to_us(us_to_datetime(modified_ns // 1000))


def _object_file(scheme: str, entry: Any) -> InputFile:  # noqa: ANN401 - pyarrow's
    return InputFile(f"{scheme}://{entry.path}", entry.size, _modified_us(entry.mtime_ns) if entry.mtime_ns else None)


def _matches_pattern(parts: list[str], pattern: list[str]) -> bool:
    """Whether a path, or a folder that holds it, matches a pattern part by part. ``**`` matches any number of parts."""
    if not pattern:
        return not any(part.startswith(".") for part in parts)  # below a folder that matched
    if pattern[0] == "**":
        return _matches_pattern(parts, pattern[1:]) or (bool(parts) and _matches_pattern(parts[1:], pattern))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches_pattern(parts[1:], pattern[1:])


def spool_pipe(uri: str, folder: Path, max_bytes: int) -> Path:
    """Copy standard input or a pipe to a file in ``folder`` and return its path. InputError above ``max_bytes``.

    The file is named by its content: the same bytes piped again give the same file. Several runs may do this at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    path = Path(local_path(uri))
    opened = nullcontext(sys.stdin.buffer) if uri == "-" else path.open("rb")
    descriptor, name = tempfile.mkstemp(prefix=".spooling-", dir=folder)
    temporary = Path(name)
    try:
        with opened as stream, os.fdopen(descriptor, "wb") as out:
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
