"""Input files as decompressed byte streams: local or in an object store, plain, gzip, zstd, bzip2, xz or lz4.

The compression is detected from the first bytes, not from the name. Decompression is bounded, because a few kilobytes
can expand to terabytes.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import re
import stat
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.fs as pafs

from udfs.files.capture_file import ReadableStream
from udfs.files.filesystems import resolve_filesystem, unescape_path
from udfs.keys import key

_MAGIC_BYTES: Final = {
    b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz",
    b"\x04\x22\x4d\x18": "lz4",
}  # fmt: skip
_LONGEST_MAGIC_BYTES: Final = max(map(len, _MAGIC_BYTES))
_SKIPPABLE_FRAME: Final = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18(....)", re.DOTALL)  # of zstd and of lz4
_FREE_EXPANSION_BYTES: Final = 64 << 20  # decompressed bytes that are allowed in addition to the ratio
_SKIP_BYTES: Final = 1 << 20  # bytes skipped at a time
_CHUNK_BYTES: Final = 64 << 10  # decompressed bytes read at a time
_READ_BYTES: Final = 256 << 10  # compressed bytes read at a time
_XZ_MEMORY_BYTES: Final = 256 << 20  # xz -9 needs 65 MiB; a header may claim 4 GiB
_DECOMPRESSORS: Final[Mapping[str, Callable[[], Any]]] = {
    "gzip": partial(zlib.decompressobj, 16 + zlib.MAX_WBITS),
    "bzip2": bz2.BZ2Decompressor,
    "xz": partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY_BYTES),
}
_ENDS_EARLY: Final = "Truncated compressed stream"  # pyarrow's error has no class of its own


class ExpansionLimitError(OSError):
    """A compressed file expands beyond the configured bound."""


def open_stored_file(location: str) -> Any:  # noqa: ANN401 - a file of pyarrow
    """Open the stored (still compressed) bytes of a path, as the tables show it, or URI. Raises ``OSError``."""
    filesystem, name = resolve_filesystem(location)
    if isinstance(filesystem, pafs.LocalFileSystem):
        return pa.OSFile(os.fsencode(unescape_path(name)))  # the file system takes names in UTF-8 only
    return filesystem.open_input_file(name)


@dataclass(frozen=True, slots=True)
class FileSource:
    """An input file that can be opened repeatedly: path as in the tables, stored size, modification time.

    ``modified_ns``: nanoseconds since 1970, None if unknown. ``open_file`` opens the stored bytes.
    """

    path: str
    stored_bytes: int
    modified_ns: int | None
    open_file: Callable[[], BinaryIO]

    @staticmethod
    def from_bytes(data: bytes, path: str) -> FileSource:
        """Return a source that reads bytes in memory."""
        return FileSource(path, len(data), None, lambda: io.BytesIO(data))

    @staticmethod
    def from_path(location: str, path: str | None = None) -> FileSource:
        """Return a source that reads a path or URI, shown as ``path``. Raises ``OSError`` if it is missing.

        A local path is written as the tables show it (``escape_path``).
        """
        filesystem, name = resolve_filesystem(location)
        if isinstance(filesystem, pafs.LocalFileSystem):
            facts = Path(unescape_path(name)).stat()
            is_file, size, modified_ns = stat.S_ISREG(facts.st_mode), facts.st_size, facts.st_mtime_ns
        else:
            info = filesystem.get_file_info(name)
            is_file, size, modified_ns = info.type == pafs.FileType.File, info.size, info.mtime_ns
        if not is_file:
            raise FileNotFoundError(f"{path or location}: no such file")
        return FileSource(path or location, size, modified_ns, partial(open_stored_file, location))

    @property
    def path_key(self) -> str:
        """The key of the path. It identifies a capture without packets."""
        return key(self.path)

    @property
    def compression(self) -> str | None:
        """``gzip``, ``zstd``, ``bzip2``, ``xz`` or ``lz4``; None if the file is not compressed or cannot be read."""
        try:
            with self.open_file() as stream:
                return _detect_compression(stream)
        except OSError:
            return None

    def open_decompressed(self, max_expansion: int, max_bytes: int, start: int = 0) -> ReadableStream:
        """Open the file as a stream of decompressed bytes, at offset ``start`` of these bytes.

        ``max_expansion``: decompressed bytes per stored byte; ``max_bytes``: decompressed bytes. Reading beyond either
        bound raises ``ExpansionLimitError``. In a compressed file the bytes before ``start`` are read and skipped, so
        that this can happen here too. Raises ``OSError``.
        """
        raw: Any = self.open_file()
        kind = _detect_compression(raw)
        if kind is None:
            raw.seek(start)
            opened: ReadableStream = raw
            return opened
        raw.seek(0)
        stream = DecompressedStream(
            raw, kind, min(max_bytes, _FREE_EXPANSION_BYTES + self.stored_bytes * max_expansion)
        )
        try:
            stream.skip(start)
        except ExpansionLimitError:
            stream.close()
            raise
        return stream


def _detect_compression(stream: BinaryIO) -> str | None:
    """Return the compression of a stored file, None if there is none; the stream's position changes.

    Skippable frames are passed: both zstd and lz4 streams may begin with them.
    """
    at = 0
    while (found := _SKIPPABLE_FRAME.match(head := stream.read(max(8, _LONGEST_MAGIC_BYTES)))) is not None:
        at += 8 + int.from_bytes(found[1], "little")
        stream.seek(at)
    return next((name for magic, name in _MAGIC_BYTES.items() if head.startswith(magic)), None)


class DecompressedStream(io.RawIOBase):
    """The decompressed bytes of a compressed stream, up to a limit.

    If the stream is damaged or ends early, the bytes end there and ``error`` says why; the bytes before it are valid.
    Their number does not depend on the sizes of the reads: a decompressor returns nothing of the chunk that fails, so
    chunks are small and of fixed size.
    """

    def __init__(self, raw: BinaryIO, kind: str, limit: int) -> None:
        self.compression = kind
        self._raw = raw
        self._limit = limit
        self._total_bytes = 0
        self._chunk = memoryview(b"")  # decompressed, not yet returned
        self.error: str | None = None
        self.ended_early = False
        if kind in _DECOMPRESSORS:
            self._read: Callable[[int], bytes] = _ConcatenatedStreams(raw, kind).read
        else:
            stream = raw if isinstance(raw, pa.NativeFile) else pa.PythonFile(raw, "r")
            self._read = pa.CompressedInputStream(stream, kind).read

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - whatever has a buffer
        """Fill the buffer. Raises ``ExpansionLimitError`` beyond the limit."""
        if not self._chunk:
            self._chunk = memoryview(self._read_chunk())
        count = min(len(buffer), len(self._chunk))
        buffer[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        return count

    def _read_chunk(self) -> bytes:
        if self.error is not None:
            return b""  # some decompressors would continue behind the damage
        try:
            data = self._read(_CHUNK_BYTES)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            self.error = str(error)
            self.ended_early = isinstance(error, EOFError) or self.error == _ENDS_EARLY
            return b""
        self._total_bytes += len(data)
        if self._total_bytes > self._limit:
            raise ExpansionLimitError(f"expands beyond {self._limit} bytes")
        return data

    def skip(self, count: int) -> None:
        """Skip a number of bytes, or all up to the end. Raises ``ExpansionLimitError`` beyond the limit."""
        buffer = memoryview(bytearray(min(count, _SKIP_BYTES)))
        while count > 0 and (got := self.readinto(buffer[: min(count, _SKIP_BYTES)])):
            count -= got

    def close(self) -> None:
        """Close this stream and the stored one."""
        self._raw.close()
        super().close()


class _ConcatenatedStreams:
    """Decompressor of concatenated gzip, bzip2 or xz streams; returns all bytes before damage or an early end.

    Zeros behind a stream are padding; anything else that is no stream is damage.
    """

    def __init__(self, raw: BinaryIO, kind: str) -> None:
        self._raw = raw
        self._new_decompressor = _DECOMPRESSORS[kind]
        self._decompressor = self._new_decompressor()
        self._pending = b""

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes; empty at the end.

        Raises ``OSError``, ``zlib.error`` or ``lzma.LZMAError`` on damage, ``EOFError`` if the last stream is cut off.
        """
        while True:
            if self._decompressor.eof and not self._begin_next_stream():
                return b""
            chunk = self._pending
            if not chunk and getattr(self._decompressor, "needs_input", True):
                chunk = self._raw.read(_READ_BYTES)
            data: bytes = self._decompressor.decompress(chunk, size)
            self._pending = getattr(self._decompressor, "unconsumed_tail", b"")
            if data:
                return data
            if not chunk and not self._decompressor.eof:
                raise EOFError("the compressed stream ends early")

    def _begin_next_stream(self) -> bool:
        """Whether anything but padding follows."""
        rest = self._decompressor.unused_data
        while not (rest := rest.lstrip(b"\0")):
            rest = self._raw.read(_READ_BYTES)
            if not rest:
                return False
        self._decompressor, self._pending = self._new_decompressor(), rest
        return True
