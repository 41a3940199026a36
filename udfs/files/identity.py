"""What a capture is called: its key, from its beginning alone, and what tells one capture from the start of another.

A capture's key is that of its decompressed bytes up to the end of the first packet's record or block, of its path when
there is no packet. Captures with one key are the same as far as the shorter one goes when the ``TAIL_BYTES`` before
its end are equal in both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from udfs.files.container import NO_TIME, TAIL_BYTES, Container, NotACaptureError
from udfs.files.sources import Decompressed, Source
from udfs.keys import key, key_bytes

# Of what reads captures: raised when the same bytes give other rows of bronze. 2: bytes missing before an RST.
DECODER_VERSION: Final = "2"
_BEGINNING: Final = 8 << 10  # bytes read at once: the first packet is in them, but for long ones
_STEP: Final = 1 << 20
MAX_EXPANSION: Final = 1100  # as the settings have it: decompressed bytes for each compressed one
MAX_EXPANDED: Final = 256 << 30  # decompressed bytes of one capture


class Prefix:
    """Hashes a capture from its beginning to the end of its first packet, block by block."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._digest: Any = None
        self.key: str | None = None

    def add(self, data: bytearray, base: int, container: Container) -> None:
        """Take a block of the container (its bytes, their offset), unless the key is known already."""
        if self.key is not None:
            return
        end = container.first_record_end
        have = len(self._data)
        self._data += data[have - base : (end or container.walked) - base]
        if end:
            self._digest = hashlib.sha256(key_bytes(bytes(self._data)))
            self.key = self._digest.hexdigest()[:32]
            self._data.clear()

    def key_with(self, *fields: str) -> str:
        """Return the key of the same bytes and further fields; raises ``ValueError`` before ``key`` is known."""
        if self._digest is None:
            raise ValueError("the first packet is not known yet")
        digest = self._digest.copy()
        digest.update(key_bytes(*fields))
        found: str = digest.hexdigest()[:32]
        return found


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the beginning of a capture shows.

    ``prefix`` is the hash to the end of its first packet, None when there is no packet; ``first_ns`` that packet's
    time (since 1970; None when it has none); ``error`` why the file could not be read at all; ``compression``
    ``gzip``, ``zstd`` or None.
    """

    prefix: Prefix | None = None
    first_ns: int | None = None
    compression: str | None = None
    error: str | None = None

    @property
    def key(self) -> str | None:
        """The key of the bytes up to the end of the first packet; None when there is none."""
        return None if self.prefix is None else self.prefix.key


def beginning(source: Source, max_expansion: int = MAX_EXPANSION, max_bytes: int = MAX_EXPANDED) -> Beginning:
    """Read the beginning of a capture, not much further than its first packet. Never raises for what it holds."""
    prefix, compression = Prefix(), None
    try:
        with source.open(max_expansion, max_bytes) as stream:
            compression = stream.kind if isinstance(stream, Decompressed) else None
            container = Container(stream, _BEGINNING)
            for records in container.blocks():
                prefix.add(records.data, records.base, container)
                if prefix.key is not None:
                    first = int(records.time[0])
                    return Beginning(prefix, None if first == NO_TIME else first, compression)
    except NotACaptureError:
        pass
    except OSError as error:
        return Beginning(compression=compression, error=str(error))
    return Beginning(compression=compression)


def identify(source: Source) -> str:
    """Return the key of a capture without reading it: of its first packet, of its path when it has none."""
    return beginning(source).key or source.path_key


@dataclass(frozen=True, slots=True)
class Content:
    """The decompressed bytes of a capture, as far as comparing needs them: how many, and the key of the last ones."""

    size: int
    tail_key: str


def measure(source: Source, max_expansion: int = MAX_EXPANSION, max_bytes: int = MAX_EXPANDED) -> Content | None:
    """Return how long a capture is and its tail's key; None when that cannot be read.

    Of a plain file only the end is read; a compressed one is decompressed to its end.
    """
    try:
        with source.open(max_expansion, max_bytes) as stream:
            if isinstance(stream, Decompressed):
                return _measured(stream)
        tail = _window(source, source.size, max_expansion, max_bytes)
    except OSError:
        return None
    return None if tail is None else Content(source.size, tail)


def tail_key(source: Source, end: int, max_expansion: int = MAX_EXPANSION, max_bytes: int = MAX_EXPANDED) -> str | None:
    """Return the key of the ``TAIL_BYTES`` (or fewer, at the beginning) before the offset ``end`` of the capture.

    None when it is shorter than that or cannot be read.
    """
    try:
        return _window(source, end, max_expansion, max_bytes)
    except OSError:
        return None


def _window(source: Source, end: int, max_expansion: int, max_bytes: int) -> str | None:
    begin = max(0, end - TAIL_BYTES)
    with source.open(max_expansion, max_bytes, begin) as stream:
        data = bytearray(end - begin)
        view, size = memoryview(data), 0
        while size < len(data) and (got := stream.readinto(view[size:])):
            size += got
    return key(bytes(data)) if size == len(data) else None


def _measured(stream: Decompressed) -> Content:
    buffer = memoryview(bytearray(_STEP))
    tail, size = bytearray(), 0
    while got := stream.readinto(buffer):
        size += got
        tail += buffer[:got]
        del tail[:-TAIL_BYTES]
    return Content(size, key(bytes(tail)))
