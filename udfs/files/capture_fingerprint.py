"""Identity of captures: the key from the file's first packet, and the hash that compares the ends of two files.

The key of a capture is the key of its decompressed bytes up to the end of the first packet's record or block. Without a
packet it is the key of the path. Of two captures with the same key the shorter is a prefix of the longer if the
``TAIL_BYTES`` before its end are equal in both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from udfs.columns.absent import NO_TIME
from udfs.errors import describe_failure
from udfs.files.capture_file import TAIL_BYTES, CaptureFileReader, NotACaptureError
from udfs.files.file_source import DecompressedStream, FileSource
from udfs.keys import encode_key_fields, key

# Version of the capture reader: increased when the same bytes give other bronze rows. 2: bytes missing before an RST.
# 3: damaged segments that were sent again, refused contexts, when a half was complete; zeros at the end, EtherTypes in
# loopback headers, fields that a PDU is too short for. 4: who a client says it is in its handshake. 5: times ahead of
# the clock are not used. 6: times that go back inside a file. 7: clocks that were set forward.
# 8: clocks that were set as another tap shows. 9: that of all connections of a capture, and of TCP 1801. 10: the answer
# to a handshake whose request was not captured. 11: connections that join an association of another one.
DECODER_VERSION: Final = "11"
_START_BLOCK_BYTES: Final = 8 << 10  # read at once: nearly always enough for the first packet
_READ_BYTES: Final = 1 << 20
MAX_EXPANSION_RATIO: Final = 1100  # default of the setting: decompressed bytes per compressed byte
MAX_EXPANDED_BYTES: Final = 256 << 30  # default of the setting: decompressed bytes of one capture


class FirstPacketHash:
    """Incremental hash of a capture's bytes up to the end of its first packet; ``key`` is None until then."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._digest: Any = None
        self.key: str | None = None

    def add_block(self, data: bytearray, container: CaptureFileReader) -> None:
        """Hash the bytes of the next block of ``container``. Does nothing once the key is known."""
        if self.key is not None:
            return
        base, end = container.block_offset, container.first_record_end
        have = len(self._data)
        self._data += data[have - base : (end or container.bytes_parsed) - base]
        if end:
            self._digest = hashlib.sha256(encode_key_fields(bytes(self._data)))
            self.key = self._digest.hexdigest()[:32]
            self._data.clear()

    def key_with_fields(self, *fields: str) -> str:
        """Return the key of the same bytes and further fields. Raises ``ValueError`` before ``key`` is known."""
        if self._digest is None:
            raise ValueError("the first packet is not known yet")
        digest = self._digest.copy()
        digest.update(encode_key_fields(*fields))
        found: str = digest.hexdigest()[:32]
        return found


@dataclass(frozen=True, slots=True)
class CaptureStart:
    """What the start of a capture file shows: hash and time of the first packet, compression, read error.

    ``first_packet_hash`` is None if there is no packet. ``first_packet_ns`` is its time in ns since 1970, None if it
    has none. ``compression`` is as in bronze.capture_files. ``error`` says why the file could not be read at all.
    """

    first_packet_hash: FirstPacketHash | None = None
    first_packet_ns: int | None = None
    compression: str | None = None
    error: str | None = None

    @property
    def key(self) -> str | None:
        """The key of the bytes up to the end of the first packet; None if there is no packet."""
        return None if self.first_packet_hash is None else self.first_packet_hash.key


def read_capture_start(
    source: FileSource, max_expansion: int = MAX_EXPANSION_RATIO, max_expanded_bytes: int = MAX_EXPANDED_BYTES
) -> CaptureStart:
    """Read a capture file up to about its first packet. Never raises because of the file's content."""
    prefix, compression = FirstPacketHash(), None
    try:
        with source.open_decompressed(max_expansion, max_expanded_bytes) as stream:
            compression = stream.compression if isinstance(stream, DecompressedStream) else None
            container = CaptureFileReader(stream, _START_BLOCK_BYTES)
            for records in container.read_blocks():
                prefix.add_block(records.buffer, container)
                if prefix.key is not None:
                    first = int(records.time_ns[0])
                    return CaptureStart(prefix, None if first == NO_TIME else first, compression)
    except NotACaptureError:
        pass
    except OSError as error:
        return CaptureStart(compression=compression, error=str(error))
    except Exception as error:  # noqa: BLE001 - the task that reads the file reports it
        return CaptureStart(compression=compression, error=describe_failure(error))
    return CaptureStart(compression=compression)


def capture_key(source: FileSource) -> str:
    """Return the key of a capture, reading only its start: of the first packet, or of the path if it has none."""
    return read_capture_start(source).key or source.path_key


@dataclass(frozen=True, slots=True)
class ContentFingerprint:
    """Length of a capture's decompressed content in bytes, and the key of its last ``TAIL_BYTES``."""

    size_bytes: int
    tail_key: str


def fingerprint_content(
    source: FileSource, max_expansion: int = MAX_EXPANSION_RATIO, max_expanded_bytes: int = MAX_EXPANDED_BYTES
) -> ContentFingerprint | None:
    """Return the length and the tail key of a capture's content; None if it cannot be read.

    Of a plain file only the end is read. A compressed file is decompressed completely.
    """
    try:
        with source.open_decompressed(max_expansion, max_expanded_bytes) as stream:
            if isinstance(stream, DecompressedStream):
                return _fingerprint_stream(stream)
        tail = _hash_before(source, source.stored_bytes, max_expansion, max_expanded_bytes)
    except OSError:
        return None
    return None if tail is None else ContentFingerprint(source.stored_bytes, tail)


def compute_tail_key(
    source: FileSource, end: int, max_expansion: int = MAX_EXPANSION_RATIO, max_expanded_bytes: int = MAX_EXPANDED_BYTES
) -> str | None:
    """Return the key of the ``TAIL_BYTES`` before the offset ``end`` of a capture's content, of fewer near its start.

    None if the content is shorter than ``end`` or cannot be read.
    """
    try:
        return _hash_before(source, end, max_expansion, max_expanded_bytes)
    except OSError:
        return None


def _hash_before(source: FileSource, end: int, max_expansion: int, max_expanded_bytes: int) -> str | None:
    begin = max(0, end - TAIL_BYTES)
    with source.open_decompressed(max_expansion, max_expanded_bytes, begin) as stream:
        data = bytearray(end - begin)
        view, size = memoryview(data), 0
        while size < len(data) and (got := stream.readinto(view[size:])):
            size += got
    return key(bytes(data)) if size == len(data) else None


def _fingerprint_stream(stream: DecompressedStream) -> ContentFingerprint:
    buffer = memoryview(bytearray(_READ_BYTES))
    tail, size = bytearray(), 0
    while got := stream.readinto(buffer):
        size += got
        tail += buffer[:got]
        del tail[:-TAIL_BYTES]
    return ContentFingerprint(size, key(bytes(tail)))
