"""Where a capture's bytes come from: local files and object stores, compressed or not, always as a plain stream.

Compression is recognised by the first bytes, not by the name. Decompression is bounded: a few kilobytes can promise
terabytes.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.fs as pafs

from udfs.files.container import Readable
from udfs.files.stores import place
from udfs.keys import key

_MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_SLACK: Final = 64 << 20  # decompressed bytes that no ratio forbids
_STEP: Final = 1 << 20  # bytes passed over at a time
_PIECE: Final = 64 << 10  # bytes decompressed at a time


class ExpansionLimitError(OSError):
    """A compressed capture expands beyond the configured bound."""


def open_stored(location: str) -> Any:  # noqa: ANN401 - a file of pyarrow
    """Open the stored bytes of a path or URI; raises ``OSError``."""
    filesystem, name = place(location)
    return filesystem.open_input_file(name)


@dataclass(frozen=True, slots=True)
class Source:
    """A capture that can be opened again and again: its ``path`` as the tables show it, its stored size and time."""

    path: str
    size: int
    modified_ns: int | None
    opener: Callable[[], BinaryIO]

    @staticmethod
    def of_bytes(data: bytes, path: str) -> Source:
        """Return a source over bytes in memory."""
        return Source(path, len(data), None, lambda: io.BytesIO(data))

    @staticmethod
    def of_path(location: str, path: str | None = None) -> Source:
        """Return a source over a path or a URI that ``pyarrow.fs`` knows; raises ``OSError`` if it is not there."""
        filesystem, name = place(location)
        info = filesystem.get_file_info(name)
        if info.type != pafs.FileType.File:
            raise FileNotFoundError(f"{path or location}: no such file")
        return Source(path or location, info.size, info.mtime_ns, partial(open_stored, location))

    @property
    def path_key(self) -> str:
        """Return the identity of a capture that has no packet."""
        return key(self.path)

    @property
    def compression(self) -> str | None:
        """Return ``gzip``, ``zstd`` or None; None too when the file cannot be read."""
        try:
            with self.opener() as stream:
                head = stream.read(4)
        except OSError:
            return None
        return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)

    def open(self, max_expansion: int, max_bytes: int, start: int = 0) -> Readable:
        """Open the capture, decompressing it, at the offset ``start`` of its decompressed bytes.

        Reading raises ``ExpansionLimitError`` beyond the bounds, as do compressed bytes before ``start``, which are
        read and passed over. Raises ``OSError``.
        """
        raw: Any = self.opener()
        head = raw.read(4)
        kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
        if kind is None:
            raw.seek(start)
            opened: Readable = raw
            return opened
        raw.seek(0)
        stream = Decompressed(raw, kind, min(max_bytes, _SLACK + self.size * max_expansion))
        try:
            stream.pass_over(start)
        except ExpansionLimitError:
            stream.close()
            raise
        return stream


class Decompressed(io.RawIOBase):
    """The decompressed bytes of a stream, up to a limit.

    Where the stream is damaged or ends early the bytes end, and ``error`` says why: what was read until there counts.
    How much that is does not depend on how the reader asks: decompressors give nothing of the piece that fails, so
    pieces are small and always the same.
    """

    def __init__(self, raw: BinaryIO, kind: str, limit: int) -> None:
        self.kind = kind
        self._raw = raw
        self._limit = limit
        self._done = 0
        self._piece = memoryview(b"")  # decompressed and not yet asked for
        self.error: str | None = None
        self.ended_early = False
        if kind == "gzip":
            self._inner: Any = _Gzip(raw)
        else:
            stream = raw if isinstance(raw, pa.NativeFile) else pa.PythonFile(raw, "r")
            self._inner = pa.CompressedInputStream(stream, kind)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - whatever has a buffer
        """Fill the buffer; raises ``ExpansionLimitError`` beyond the limit."""
        if not self._piece:
            self._piece = memoryview(self._next())
        count = min(len(buffer), len(self._piece))
        buffer[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        return count

    def _next(self) -> bytes:
        if self.error is not None:
            return b""  # some decompressors go on behind the damage
        try:
            data: bytes = self._inner.read(_PIECE)
        except (OSError, EOFError, zlib.error) as error:
            self.error, self.ended_early = str(error), isinstance(error, EOFError)
            return b""
        self._done += len(data)
        if self._done > self._limit:
            raise ExpansionLimitError(f"expands beyond {self._limit} bytes")
        return data

    def pass_over(self, count: int) -> None:
        """Read so many bytes for nobody, or to the end; raises ``ExpansionLimitError`` beyond the limit."""
        buffer = memoryview(bytearray(min(count, _STEP)))
        while count > 0 and (got := self.readinto(buffer[: min(count, _STEP)])):
            count -= got

    def close(self) -> None:
        """Close the stored stream too."""
        self._raw.close()
        super().close()


class _Gzip:
    """Members of a gzip file one after the other, giving all bytes before a damage or an early end."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._inflate = zlib.decompressobj(31)
        self._pending = b""

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes; empty at the end. Raises ``zlib.error`` on damage."""
        while True:
            if self._inflate.eof:
                rest = self._inflate.unused_data or self._pending
                if not rest:
                    rest = self._raw.read(1 << 16)
                if not rest.startswith(b"\x1f\x8b"):
                    return b""  # the end, or what tools append to pad a file
                self._inflate, self._pending = zlib.decompressobj(31), rest
            chunk = self._pending or self._raw.read(1 << 18)
            data = self._inflate.decompress(chunk, size)
            self._pending = self._inflate.unconsumed_tail
            if data:
                return data
            if not chunk:
                raise EOFError("the compressed stream ends early")
