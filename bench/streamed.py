"""One large capture that is nowhere stored: made while it is read, in one process, and read in bounded memory.

``python -m bench streamed 10G``. What it takes includes making the packets, about half of it; the peak is of both.
"""

from __future__ import annotations

import io
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from bench.traffic import HEADER, packets, record
from udfs.capture.reader import capture_batches
from udfs.files.sources import Source

_PIECE = 1 << 20


def _pieces(total: int) -> Iterator[bytes]:
    """A pcap file of ``total`` bytes or a packet more, piece by piece; always the same."""
    piece = bytearray(HEADER)
    left = total - len(piece)
    for at, _slot, frame in packets():
        if left <= 0:
            break
        one = record(at, frame)
        piece += one
        left -= len(one)
        if len(piece) >= _PIECE:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


class Streamed(io.RawIOBase):
    """These bytes as a file that can be read on from any place, and from the beginning again."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begin()

    def _begin(self) -> None:
        self._pieces, self._piece, self._at = _pieces(self._total), memoryview(b""), 0

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
        while self._at < offset and self.readinto(bytearray(min(_PIECE, offset - self._at))):
            pass
        return self._at

    def readinto(self, buffer: Any) -> int:
        if not self._piece:
            self._piece = memoryview(next(self._pieces, b""))
        size = min(len(buffer), len(self._piece))
        buffer[:size], self._piece = self._piece[:size], self._piece[size:]
        self._at += size
        return size


def main(total: int) -> None:
    """Read such a capture and print what it took."""
    source = Source("streamed.pcap", total, None, lambda: io.BufferedReader(Streamed(total)))
    rows: Counter[str] = Counter()
    begin = time.perf_counter()
    for kind, batch in capture_batches(source):
        rows[kind] += batch.num_rows
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(rows.items()))
    print(f"{total / 1e9:.1f} GB made and read: {seconds:.0f} s, peak {peak / 2**20:.0f} MiB; {counts}")
