"""Benchmark of peak memory with one large capture that is generated while it is read, and never stored.

``python -m bench streamed 10G``. About half of the time is spent on generating packets. The peak is of the process.
"""

from __future__ import annotations

import io
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from bench.traffic import PCAP_HEADER, generate_packets, pcap_record
from udfs.capture.capture_reader import read_capture_batches
from udfs.files.file_source import FileSource

_CHUNK_BYTES = 1 << 20


def _generate_chunks(total: int) -> Iterator[bytes]:
    """Yield a pcap file of at least ``total`` bytes in chunks; the content is always the same."""
    piece = bytearray(PCAP_HEADER)
    left = total - len(piece)
    for at, _slot, frame in generate_packets():
        if left <= 0:
            break
        one = pcap_record(at, frame)
        piece += one
        left -= len(one)
        if len(piece) >= _CHUNK_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


class GeneratedCapture(io.RawIOBase):
    """The generated capture as a binary file. Seeking forward reads; seeking back generates it from the start."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begin()

    def _begin(self) -> None:
        self._pieces, self._piece, self._at = _generate_chunks(self._total), memoryview(b""), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("only from the beginning")
        if offset < self._at:
            self._begin()
        while self._at < offset and self.readinto(bytearray(min(_CHUNK_BYTES, offset - self._at))):
            pass
        return self._at

    def readinto(self, buffer: Any) -> int:
        if not self._piece:
            self._piece = memoryview(next(self._pieces, b""))
        size = min(len(buffer), len(self._piece))
        buffer[:size], self._piece = self._piece[:size], self._piece[size:]
        self._at += size
        return size


def print_streamed(total: int) -> None:
    """Read a generated capture of ``total`` bytes and print time, peak memory and rows."""
    source = FileSource("streamed.pcap", total, None, lambda: io.BufferedReader(GeneratedCapture(total)))
    rows: Counter[str] = Counter()
    begin = time.perf_counter()
    for kind, batch in read_capture_batches(source):
        rows[kind] += batch.num_rows
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(rows.items()))
    print(f"{total / 1e9:.1f} GB made and read: {seconds:.0f} s, peak {peak / 2**20:.0f} MiB; {counts}")
