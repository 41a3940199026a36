"""Sorts packets by time in bounded memory: sorted pieces go to files, which are merged as they are read."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa

from pipeline.reports.packet_export.captured_packets import CapturedPacket

_PIECE_BYTES: Final = 64 << 20  # sorted in memory at once
_BATCH_BYTES: Final = 1 << 20  # of each file that are in memory
_PACKET_BYTES: Final = 500  # of memory that a packet takes beside its bytes
_MAX_FILES: Final = 64  # merged at once
_SCHEMA: Final = pa.schema(
    [
        ("time_ns", pa.int64()), ("path", pa.string()), ("packet_number", pa.int64()), ("link_type", pa.int64()),
        ("original_length", pa.int64()), ("data", pa.binary()), ("comment", pa.string()),
    ]
)  # fmt: skip


class PacketSorter:
    """Takes packets in any order, and gives them by time, then by capture and place in it; of all the first ``most``.

    Memory holds some ``piece_bytes`` of packets, and a little of each file; the caller removes ``folder``, where these
    are. ``count``: how many packets it took.
    """

    def __init__(self, folder: Path, most: int | None, piece_bytes: int = _PIECE_BYTES) -> None:
        self._folder, self._most, self._piece_bytes = folder, most, piece_bytes
        self._files: list[Path] = []
        self._held: list[CapturedPacket] = []
        self._held_bytes = 0
        self.count = 0

    def add(self, packets: Iterable[CapturedPacket]) -> None:
        """Take some packets."""
        for packet in packets:
            self._held.append(packet)
            self._held_bytes += len(packet.data) + _PACKET_BYTES
            self.count += 1
            if self._held_bytes >= self._piece_bytes:
                self._write()

    def packets(self) -> Iterator[CapturedPacket]:
        """Yield the packets in order."""
        self._held.sort()
        return islice(heapq.merge(*map(_read, self._files), self._held), self._most)

    def _write(self) -> None:
        """Write what is held to a file, with what is in other files where these are many."""
        merged = self._files if len(self._files) == _MAX_FILES else []
        path = self._folder / f"{self.count}.arrow"
        self._held.sort()
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_stream(out, _SCHEMA) as writer:
            packets = islice(heapq.merge(*map(_read, merged), self._held), self._most)
            for batch in _batches(packets):
                writer.write_batch(pa.record_batch([*map(list, zip(*batch, strict=True))], schema=_SCHEMA))
        for each in merged:
            each.unlink()
        self._files = [*(each for each in self._files if each not in merged), path]
        self._held, self._held_bytes = [], 0


def _batches(packets: Iterator[CapturedPacket]) -> Iterator[list[CapturedPacket]]:
    """Yield packets in lists that are not much longer than ``_BATCH_BYTES``."""
    batch, size = list[CapturedPacket](), 0
    for packet in packets:
        batch.append(packet)
        size += len(packet.data) + _PACKET_BYTES
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read(path: Path) -> Iterator[CapturedPacket]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as batches:
        for batch in batches:
            yield from map(CapturedPacket._make, zip(*(each.to_pylist() for each in batch.columns), strict=True))
